//! The table of reasons and Events: the one place with their meanings and remedies.

use std::time::Duration;

use quartermaster::cli::Timings;

use Retry::{Aws, Backoff, Idle, On, Poll, Slow, Spec, Stopped, Text};

/// When the operator tries again by itself.
#[derive(Clone, Copy, Debug)]
pub enum Retry {
    /// Never: nothing is wrong, or the object is suspended.
    Idle,
    /// When the spec changes.
    Spec,
    /// At once when a watch shows this.
    On(&'static str),
    /// With the delays for what no watch shows.
    Poll,
    /// With the delays after failed requests.
    Backoff,
    /// With the delays for errors that somebody must fix elsewhere.
    Slow,
    /// At the interval for stopped receivers.
    Stopped,
    /// At the interval of the checks in AWS.
    Aws,
    /// As the text says.
    Text(&'static str),
}

impl Retry {
    pub fn text(self) -> String {
        let Timings {
            poll_min,
            poll_max,
            backoff_min,
            backoff_max,
            slow_backoff_min,
            slow_backoff_max,
            stopped_retry_period,
            aws_sync_period,
            ..
        } = Timings::default();
        let growing = |min, max| format!("after {}, growing to {}", time(min), time(max));
        match self {
            Idle => String::new(),
            Spec => "no: change the spec".into(),
            On(change) => format!("at once, when {change}"),
            Poll => growing(poll_min, poll_max),
            Backoff => growing(backoff_min, backoff_max),
            Slow => growing(slow_backoff_min, slow_backoff_max),
            Stopped => format!("every {}", time(stopped_retry_period)),
            Aws => format!("every {}", time(aws_sync_period)),
            Text(text) => text.into(),
        }
    }
}

/// Formats a whole number of seconds or minutes.
fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// A reason of the condition `Ready`, or of the annotation `quartermaster.dev/waiting`.
pub struct Reason {
    pub name: &'static str,
    /// The kinds that report it.
    pub kinds: &'static [&'static str],
    pub meaning: &'static str,
    pub retry: Retry,
    pub remedy: &'static str,
}

const fn reason(
    name: &'static str,
    kinds: &'static [&'static str],
    meaning: &'static str,
    retry: Retry,
    remedy: &'static str,
) -> Reason {
    Reason {
        name,
        kinds,
        meaning,
        retry,
        remedy,
    }
}

/// An Event other than those that report a reason.
pub struct Event {
    pub name: &'static str,
    pub kinds: &'static [&'static str],
    pub is_warning: bool,
    pub action: &'static str,
    pub meaning: &'static str,
    pub remedy: &'static str,
}

const fn event(
    name: &'static str,
    kinds: &'static [&'static str],
    is_warning: bool,
    action: &'static str,
    meaning: &'static str,
    remedy: &'static str,
) -> Event {
    Event {
        name,
        kinds,
        is_warning,
        action,
        meaning,
        remedy,
    }
}

const CP: &str = "ContactPoint";
const TF: &str = "TrackedField";
const SET: &str = "TrackedFieldSet";
const SYNC: &str = "ConfigMapSync";
const MA: &str = "MyApp";
const APP: &str = "AppService";
const MI: &str = "MyIngress";

const ADOPT: &str =
    "Run the command in the message, which adopts the object, or rename one of the two.";
const NOTHING: &str = "Nothing.";
/// When a set tries a rejected write of a `TrackedField` again.
const REJECTED_CHILD: &str = "after 5 s, growing to 5 min";
const READ_MESSAGE: &str = "Do what the message says.";

/// Every reason. The order within a kind is that of the page: what is well, what you can fix in the spec, then the rest.
#[rustfmt::skip]
pub const REASONS: &[Reason] = &[
    reason("Ready", &[CP], "Messages can be sent. While the receiver is unavailable, the message says that messages wait.", Idle, NOTHING),
    reason("Ready", &[SET], "Every selected resource is tracked.", Idle, NOTHING),
    reason("Ready", &[MA], "The Pod runs and is ready.", Idle, NOTHING),
    reason("Ready", &[APP], "Every Pod matches the spec and is available, and no other Pod is left.", Idle, NOTHING),
    reason("Ready", &[MI], "AWS reports the load balancer as `active`, and each listener has a healthy target.", Idle, NOTHING),
    reason("Synced", &[SYNC], "Every copy matches its source.", Idle, NOTHING),
    reason("NothingMatches", &[SET], "No resource matches. `Ready` is True.", On("a matching resource is created"), "Nothing, or correct `spec.target`: `quartermaster matches` shows what a set selects."),
    reason("Suspended", &[CP], "`spec.suspend` is true. The operator sends nothing, and messages wait.", Idle, "Set `spec.suspend` to false."),
    reason("Suspended", &[TF], "`spec.suspend` is true. The operator records changes and sends none.", Idle, "Set `spec.suspend` to false."),
    reason("Suspended", &[SET], "With `spec.suspend`, the operator changes no TrackedField. With `spec.template.suspend`, the operator records changes and sends none.", Idle, "Set the field that the message names to false."),
    reason("Suspended", &[SYNC, MA, APP, MI], "`spec.suspend` is true. The operator changes nothing.", Idle, "Set `spec.suspend` to false."),
    reason("Progressing", &[CP], "After a suspension or a problem, the operator waits for the receiver's answer to the next message. The rate limits of Telegram may delay that message.", Text("it continues by itself"), "Wait."),
    reason("Progressing", &[SET], "The operator lists the resources, or creates TrackedFields.", Text("it continues by itself"), "Wait."),
    reason("Progressing", &[APP], "Pods are starting or stopping, and nothing indicates a problem.", On("the Deployment changes"), "Wait."),

    // The spec.
    reason("SpecInvalid", &[CP], "The spec is incomplete or breaks a rule. The object is older than the rule, or its body is not a valid template.", Spec, READ_MESSAGE),
    reason("SpecInvalid", &[TF], "The spec is larger than 256 KiB, so the operator does not read it. The TrackedField is older than the bounds of the CRD.", Spec, "Shorten the spec."),
    reason("SpecInvalid", &[SET], "The spec is larger than 256 KiB, or a selector is invalid.", Spec, READ_MESSAGE),
    reason("SpecInvalid", &[SYNC, MA, MI], "The name or a field breaks a rule. The object is older than the rule.", Spec, READ_MESSAGE),
    reason("SpecInvalid", &[APP], "`podOverrides` is not a valid Pod template, or the object is older than a rule that it breaks.", Spec, READ_MESSAGE),
    reason("ImageMissing", &[MA], "The spec has no image. The object is older than the rule.", Spec, "Set `spec.image`."),
    reason("BodyInvalid", &[CP], "With `tokenIn: Body`, the test message would lack the token: the body fails, omits the token or changes it.", Spec, "Correct `webhookSpec.body`: it must contain `{{ token }}` unchanged."),
    reason("BodyInvalid", &[TF], "The ContactPoint's body fails for the newest change, so such messages use the default body. If the test message fails, entries wait.", On("the ContactPoint changes"), "Correct the ContactPoint's `webhookSpec.body`: the message names the line."),
    reason("BodyInvalid", &[SET], "The ContactPoint's body fails for the test message, so entries wait.", On("the ContactPoint changes"), "Correct the ContactPoint's `webhookSpec.body`: the message names the line."),
    reason("FieldNotFound", &[TF, SET], "The kind of the target has no field of that word, such as `replicas` of a Service.", Spec, "Write a field name of that kind, or a JSONPath: the message lists the words."),
    reason("PathInvalid", &[TF, SET], "The JSONPath cannot be read, or no name follows `image:` or `targetPort:`.", Spec, READ_MESSAGE),
    reason("PathTooExpensive", &[TF], "The JSONPath visits too many fields of the target, or its value is too large. The operator records only the target's deletion.", On("the target changes"), "Write names and indexes instead of `..`, `*`, slices and filters, or track less of that target."),
    reason("WhenInvalid", &[TF], "`spec.when` is not a valid expression, or has no result for the newest change. The operator sends such messages.", Spec, "Correct `spec.when`: try it with `quartermaster history NAME --when EXPRESSION`."),
    reason("WhenInvalid", &[SET], "`spec.template.when` is not a valid expression. The operator creates and changes no TrackedField.", Spec, "Correct `spec.template.when`: the message says where it fails."),
    reason("TemplateInvalid", &[TF], "`spec.template` does not parse, or fails or is empty for the newest change. Such messages use the default text.", Spec, "Correct `spec.template`: the message names the line."),
    reason("TemplateInvalid", &[SET], "`spec.template.template` does not parse. The operator creates and changes no TrackedField.", Spec, "Correct the template: the message names the line."),
    reason("ResourceMismatch", &[TF, SET], "The apiserver serves no such resource, or it has another kind or scope. Secrets and the kinds of `tg.azamaton.ru` are never tracked.", Poll, "Correct `spec.target`: the message names the right kind, or the nearest plural."),
    reason("OutOfScope", &[TF, SET], "The operator's flags `--watch-namespace` or `--no-cross-namespace-refs` exclude the namespace or the resource.", Spec, "Track a resource that the operator watches, or change its flags."),
    reason("OutOfScope", &[SYNC], "The operator's flags `--watch-namespace` or `--no-cross-namespace-refs` exclude a namespace or a selector.", Spec, "Name namespaces that the operator watches, or change its flags."),
    reason("OutOfScope", &[MI], "Listeners need the nodes, which an operator with `--watch-namespace` does not watch.", Spec, "Remove the listeners, or use an operator without `--watch-namespace`."),
    reason("DestinationNotAllowed", &[SYNC], "The destination is a namespace or a name that Kubernetes itself relies on, such as `kube-system`.", Spec, "Choose another destination, or run the operator with `--allow-protected-destinations`."),
    reason("Loop", &[SYNC], "The copied data would return to its source through other ConfigMapSyncs.", On("a ConfigMapSync changes"), "Delete one of the ConfigMapSyncs in the message."),
    reason("TooManyTargets", &[SET], "More resources match than `spec.maxTargets` allows. Those that are tracked stay tracked.", On("a resource is deleted"), "Raise `spec.maxTargets`, or select fewer resources."),

    // Objects that the spec names.
    reason("SecretNotFound", &[CP], "No Secret of that name exists, or the ContactPoint may not use it. The message names the namespaces in which the operator looked.", Poll, "Create the Secret in the ContactPoint's namespace, or correct its name."),
    reason("SecretKeyMissing", &[CP], "The Secret lacks the key. The message lists the keys that it has.", Poll, "Add the key to the Secret, or correct its name in the spec."),
    reason("SecretInvalid", &[CP], "The Secret's value is not a usable token, URL, signing key or certificate, for example because of a newline at its end. A Secret or a value may also be [too large](../kinds/contact-point.md#secrets).", Poll, "Recreate the Secret with `printf` or `kubectl create secret --from-literal`."),
    reason("SecretForbidden", &[CP], "The operator may not `get` Secrets in the namespace.", Poll, "Install the operator's roles again."),
    reason("SecretUnreadable", &[CP], "The apiserver did not answer with the Secret. A ContactPoint that the operator already sends to keeps its status until its spec changes or the operator restarts.", Backoff, "Wait. If it lasts, look at the apiserver."),
    reason("TargetNotFound", &[TF], "The target does not exist.", On("the target is created"), "Create the target, or correct `spec.target`."),
    reason("TargetUnreadable", &[TF], "The apiserver does not answer for the target, or the target nests deeper than the operator reads.", Backoff, "Fix what the message quotes, such as an aggregated API that is down. Or flatten the target."),
    reason("TargetUnreadable", &[SET], "The apiserver does not answer for the resource.", Poll, "Fix what the message quotes, such as an aggregated API that is down."),
    reason("ContactPointNotFound", &[TF, SET], "The namespace has no ContactPoint of that name. The message names the nearest of the first 100.", On("the ContactPoint is created"), "Create the ContactPoint, or correct `contactPoint`."),
    reason("ContactPointNotReady", &[TF, SET], "The ContactPoint is not ready, is suspended, or was not tried yet, which takes a moment.", On("the ContactPoint changes"), "Fix the ContactPoint: the message has its reason."),
    reason("TrackedFieldsNotServed", &[SET], "The operator may not list TrackedFields, their CRD is missing or incompatible, or their controller is off. Without its TrackedFields, the set would create them again.", Poll, "Do what the message says."),
    reason("SourceNotFound", &[SYNC], "The ConfigMap to copy, or its namespace, does not exist. Existing copies are kept.", On("the ConfigMap is created"), "Create the ConfigMap, or correct the spec."),
    reason("NamespaceNotFound", &[SET, SYNC], "A namespace that the spec names does not exist. The operator serves the others.", On("the namespace is created"), "Create the namespace, or correct the spec."),
    reason("NamespaceTerminating", &[SET], "The namespace is being deleted, so the operator can create nothing in it.", Text(REJECTED_CHILD), "Wait."),
    reason("NamespaceTerminating", &[SYNC], "The namespace of a copy is being deleted, so the operator can create nothing in it.", On("the namespace is created again"), "Wait, or correct the spec."),
    reason("NamespaceTerminating", &[MA, APP], "The namespace is being deleted, so the operator can create nothing in it.", Poll, "Wait."),
    reason("ServiceNotFound", &[MI], "The Service of a listener does not exist. The operator removes the listener's targets and keeps the listener.", On("the Service is created"), "Create the Service, or remove the listener."),
    reason("ServicePortNotFound", &[MI], "The Service has no such port over TCP. The message lists the ports that it has.", On("the Service changes"), "Correct the port in the listener or in the Service."),
    reason("NoNodePort", &[MI], "The Service has no port on the nodes. The operator removes the listener's targets.", On("the Service changes"), "Give the Service `type: NodePort`, or `type: LoadBalancer` without `allocateLoadBalancerNodePorts: false`."),

    // The receiver.
    reason("Unreachable", &[CP], "The test message failed for a cause that may pass, such as a timeout.", Backoff, "Check the URL and the network between the operator and the receiver, and NetworkPolicies."),
    reason("Unauthorized", &[CP], "The receiver answered 401 (Telegram: 401 or 404): it does not know the token. The operator reads the Secret again at once.", Stopped, "Put a valid token into the Secret."),
    reason("Forbidden", &[CP], "The receiver answered 403, or the bot lacks a permission in the Telegram chat.", Stopped, "Grant the permission to the token or the bot."),
    reason("NotFound", &[CP], "The receiver answered 404: the URL does not exist.", Stopped, "Correct the URL."),
    reason("Gone", &[CP], "The receiver answered 410: it no longer accepts messages at the URL, such as for an archived Slack channel.", Stopped, "Create a new webhook, and write its URL."),
    reason("ChatNotFound", &[CP], "Telegram does not know the chat, or the bot is not in the chat.", Stopped, "Add the bot to the chat, or correct `chatId`."),
    reason("TopicUnavailable", &[CP], "Telegram has closed or deleted the topic, or does not know it.", Stopped, "Reopen the topic, or correct `messageThreadId`."),
    reason("Redirected", &[CP], "The receiver answered with a redirect, which the operator does not follow.", Stopped, "Write the URL to which the redirect leads."),
    reason("AddressNotAllowed", &[CP], "The host is or resolves to an address to which the operator sends nothing, or the port is not allowed.", Stopped, "Use another address, or change the operator's `--webhook-...` flags."),
    reason("UnexpectedStatus", &[CP], "The receiver answered with another 4xx status, often a proxy's. The message names the status.", Stopped, "Correct the URL, or look at the receiver's log."),
    reason("Rejected", &[CP], "The receiver answered 400, 413, 415 or 422: to the test message, to three messages in a row, or to every message that waits.", Stopped, "Correct `webhookSpec.body` to the format of the receiver."),
    reason("DeliveryFailing", &[TF, SET], "Two or more attempts in a row failed, or the receiver asked for a pause of 30 s or more. Entries wait.", Backoff, "Fix the receiver: the message has its answer."),

    // The apiserver.
    reason("Forbidden", &[TF, SET], "The tracker role does not grant the resource, or the operator may not read it.", Text("at once after a new rule; after a denial of the apiserver, after 1 s, growing to 30 s"), "Grant the resource: the message has the ClusterRole."),
    reason("Forbidden", &[SYNC, APP], "A policy, a webhook or a missing permission denies a request.", Poll, "Change what the message names."),
    reason("Forbidden", &[MA], "The namespace's Pod security profile, a policy, a webhook or a missing permission denies a request. A Pod that runs stays.", Poll, "Change what the message names."),
    reason("Forbidden", &[MI], "The operator may not read a Service, or the namespace `kube-system`, which has the UID of the cluster.", Slow, "Install the operator's roles again."),
    reason("QuotaExceeded", &[SET], "A quota of the namespace forbids more TrackedFields.", Text(REJECTED_CHILD), "Raise the quota, or select fewer resources."),
    reason("QuotaExceeded", &[SYNC, MA, APP], "An object would exceed a quota of the namespace.", Poll, "Raise the quota, or use less."),
    reason("WriteRejected", &[TF], "The apiserver rejects the status, for example because of an admission policy. The operator records nothing and sends nothing more.", Backoff, "Change the policy or webhook, so that it accepts writes of `trackedfields/status`."),
    reason("WriteRejected", &[SET], "The apiserver rejects a TrackedField, for example because of an admission policy.", Text(REJECTED_CHILD), "Change what the message names."),
    reason("WriteRejected", &[SYNC], "The apiserver rejects a copy, for example because of an admission policy.", Poll, "Change what the message names."),
    reason("WriteRejected", &[MA, APP], "The apiserver rejects an object, for example because a value is invalid.", Text("no: change the spec, or annotate `requested-at`"), "Change what the message names."),
    reason("WriteFailed", &[SYNC, MI], "Requests to the apiserver have failed more than once.", Backoff, "Look at the apiserver: the message has its answer."),
    reason("WriteFailed", &[SET, MA, APP], "Requests to the apiserver have failed more than once, or an object of the operator is too large or cannot be decoded. The operator then leaves the object unchanged.", Backoff, "Look at the apiserver: the message has its answer. Correct or delete an object that cannot be decoded."),
    reason("Conflict", &[SET], "A TrackedField that the set does not own has the name that the set needs.", Text(REJECTED_CHILD), ADOPT),
    reason("Conflict", &[SYNC], "A ConfigMap that the ConfigMapSync does not own has the name of the copy.", On("the ConfigMap changes"), ADOPT),
    reason("Conflict", &[MA], "A Pod that the MyApp does not own has the name of its Pod.", Poll, ADOPT),
    reason("Conflict", &[APP], "An object that the AppService does not own has its name.", Poll, ADOPT),
    reason("Conflict", &[MI], "A load balancer, listener or target group that the MyIngress does not own has the name or port that it needs.", Aws, ADOPT),
    reason("ChildTerminating", &[SET], "A TrackedField that the set needs to create again is still being deleted.", Text(REJECTED_CHILD), "Wait, or remove what blocks the deletion."),
    reason("ChildTerminating", &[SYNC, APP], "An object that the operator needs to create again is still being deleted, for example because of a finalizer.", On("the object is deleted"), "Wait, or remove what blocks the deletion."),
    reason("ChildTerminating", &[MA], "The Pod is being deleted.", On("the Pod is deleted"), "Wait."),
    reason("DriftContested", &[SET, APP], "Another client keeps changing an object that the operator owns.", Text("after 15 s, growing to 5 min"), "Change the spec instead, or stop the other client: the Event `DriftCorrected` names it."),

    // Pods.
    reason("PodPending", &[MA], "The Pod does not run yet.", On("the Pod changes"), "Wait."),
    reason("PodNotReady", &[MA], "The Pod runs, but is not ready, and its container gives no reason.", On("the Pod changes"), "Look at the Pod's log."),
    reason("PodFailed", &[MA], "The Pod failed or was evicted.", Text("the operator recreates the Pod after 1 s, growing to 5 min"), "Look at the Pod's log and Events."),
    reason("PodSucceeded", &[MA], "The container exited with code 0.", Text("the operator recreates the Pod after 1 s, growing to 5 min"), "Look at the Pod's log."),
    reason("NodeNotReady", &[MA], "The Pod's node is not ready. The operator deletes nothing, because the Pod may still run.", Poll, "Fix the node. If it is gone for good: `kubectl delete node NODE`."),
    reason("NodeNotFound", &[MA], "The Pod's node no longer exists. The operator recreates the Pod once Kubernetes has deleted it.", Poll, "Wait."),
    reason("Unschedulable", &[MA], "No node accepts the Pod. The message is the scheduler's.", Text("the scheduler retries"), "Add nodes."),
    reason("Unschedulable", &[APP], "No node accepts the Pod. The message is the scheduler's.", Text("the scheduler retries"), "Add nodes, or lower the requests of the Pods."),
    reason("ImagePullBackOff", &[MA], "The kubelet cannot pull the image.", Text("the kubelet retries"), "Correct the image, or attach the pull Secret to the namespace's ServiceAccount `default` and delete the Pod."),
    reason("ImagePullBackOff", &[APP], "The kubelet cannot pull the image.", Text("the kubelet retries"), "Correct the image, or `imagePullSecrets`."),
    reason("CrashLoopBackOff", &[MA, APP], "The container exits again and again. The message has its exit code.", Text("the kubelet retries"), "Look at the log: `kubectl logs --previous`."),
    reason("FailedCreate", &[APP], "Kubernetes cannot create Pods, for example because of a quota. The message is the Deployment's.", Text("Kubernetes retries"), "Change what the message names."),
    reason("DeploymentPaused", &[APP], "Somebody paused the Deployment, so changes do not reach the Pods.", On("the Deployment is resumed"), "Run the command in the message: `kubectl rollout resume`."),
    reason("ProgressDeadlineExceeded", &[APP], "The Deployment made no progress for 10 minutes, and no Pod says why.", On("the Deployment changes"), "Look at the Pods and their Events."),
    reason("ScalingInactive", &[APP], "The autoscaler's condition `ScalingActive` has been False for 5 minutes. The Pods are available.", Text("the autoscaler retries every 15 s"), "Do what the message says, such as installing a metrics server."),
    reason("NodePortTaken", &[APP], "Another port, often of another Service, has the node port, or the range is full.", Poll, "Choose another `nodePort`, or none. Kubernetes may take 10 minutes to release one."),

    // AWS.
    reason("Creating", &[MI], "The operator requested the load balancer, and AWS does not show it yet.", Poll, "Wait."),
    reason("Provisioning", &[MI], "AWS creates the load balancer, which takes 2 to 5 minutes, or the operator has not changed all listeners yet.", Poll, "Wait."),
    reason("TargetsInitial", &[MI], "AWS has not finished the first health checks of the targets.", Poll, "Wait."),
    reason("Terminating", &[MI], "The MyIngress is being deleted, and AWS has not deleted its load balancer yet.", Poll, "Wait."),
    reason("TargetsUnhealthy", &[MI], "No target of a listener is healthy. The message has AWS's reason.", Poll, "Let the security group in the message reach the node port, and answer 200 at `healthCheckPath`."),
    reason("NoNodes", &[MI], "No node can receive traffic.", On("a node changes"), "Check that nodes have a `spec.providerID` of AWS and no label that excludes them from load balancers."),
    reason("NodesUnreadable", &[MI], "The operator may not list the nodes, or has not listed them yet.", On("the nodes are listed"), "If it lasts, install the operator's roles again."),
    reason("TargetsRejected", &[MI], "AWS accepts none of the nodes as targets: their instances have ended, or are in another VPC.", Backoff, "Delete Nodes without an instance, or name subnets of the nodes' VPC."),
    reason("ActiveImpaired", &[MI], "The load balancer works but cannot grow, mostly because its subnets have too few free addresses.", Aws, "Free addresses in the subnets, or name other subnets."),
    reason("ProvisioningFailed", &[MI], "AWS could not create the load balancer.", Aws, "Delete the MyIngress, and create it again."),
    reason("NameTaken", &[MI], "Another MyIngress has a load balancer of the name, or AWS has one that it does not show.", Text("at once, when the other one is deleted; otherwise after 1 s, growing to 5 min"), "Delete the other one, or create the MyIngress under another name."),
    reason("Incompatible", &[MI], "The load balancer has another scheme or type, which AWS cannot change.", Aws, "Delete it in AWS, or create the MyIngress under another name."),
    reason("SpecRejected", &[MI], "AWS rejects a value of the spec, such as a subnet that does not exist, or two subnets in one zone.", Text("every 10 min, and when the spec changes"), "Correct what the message names."),
    reason("SubnetInvalid", &[MI], "A subnet has too few free addresses, or its VPC has no internet gateway.", Slow, "Free addresses, attach a gateway, or name other subnets."),
    reason("QuotaExceeded", &[MI], "A quota of the AWS account is used up.", Slow, "Ask AWS for a higher quota, or delete what nobody needs."),
    reason("DeletionProtected", &[MI], "AWS protects the load balancer from deletion.", Slow, "Run the command in the message, which switches the protection off."),
    reason("NotPermitted", &[MI], "AWS does not permit the operation in the present state.", Slow, READ_MESSAGE),
    reason("AWSRequestFailed", &[MI], "AWS answered with an error code that the operator does not know.", Slow, READ_MESSAGE),
    reason("OperationInProgress", &[MI], "AWS has not finished another operation on the load balancer.", Backoff, "Wait."),
    reason("Throttled", &[MI], "AWS limits the requests of the account. A single failed call is not reported.", Backoff, "Look for other clients of the account."),
    reason("AWSUnavailable", &[MI], "AWS does not answer, or answers with an error of its own. A single failed call is not reported.", Backoff, "Look at the status page of AWS, and at the operator's network access to AWS."),
    reason("AccessDenied", &[MI], "The operator's AWS credentials lack a permission, which the message names.", Slow, "Compare the role's policy with the one in [AWS IAM](../security/aws-iam.md)."),
    reason("CredentialsMissing", &[MI], "The operator has no AWS credentials, they have expired, or AWS does not know them.", Slow, "Configure credentials: [AWS IAM](../security/aws-iam.md)."),
    reason("RegionMissing", &[MI], "The operator knows no AWS region.", Slow, "Set `AWS_REGION`, or the chart's `aws.region`."),
    reason("RegionMismatch", &[MI], "The load balancer is in another AWS region than the operator's. The operator neither recreates nor forgets it.", Slow, "Configure the former region, or delete the load balancer there."),
    reason("AccountMismatch", &[MI], "The load balancer is in another AWS account than that of the operator's credentials. The operator neither recreates nor forgets it.", Slow, "Configure credentials of the former account, or delete the load balancer there."),
    reason("ProxyInvalid", &[MI], "The variable `HTTPS_PROXY` of the operator names no proxy that works for AWS, such as a SOCKS proxy.", Slow, "Name an HTTP proxy, or remove the variable."),
];

/// Condition of a `ContactPoint` in addition to `Ready`, with its one reason.
pub const OUTCOMES_RECORDED: Reason = reason(
    "WriteRejected",
    &[CP],
    "An admission policy or webhook rejects every status write of the TrackedFields in the message. The operator sends none of their messages; the others continue.",
    Backoff,
    "Change the policy or webhook, so that it accepts writes of `trackedfields/status`.",
);

/// Every Event that does not report a reason.
#[rustfmt::skip]
pub const EVENTS: &[Event] = &[
    event("DeliveryFailed", &[TF], true, "Notify", "An entry became `Failed`: the receiver refused it again after accepting another message, or an attempt failed after 24 h.", "Fix the receiver. The change stays in the history, and no message reports it."),
    event("EntriesMerged", &[TF], true, "Merge", "The outbox is full, so the operator merged Pending entries with their neighbours. Emitted once, until those are delivered.", "Fix the receiver, or track less."),
    event("TrackedFieldsChanged", &[SET], false, "Reconcile", "The set created or deleted TrackedFields, with their numbers. At most one a minute.", NOTHING),
    event("DriftCorrected", &[SET, SYNC, APP], true, "Correct", "Another client changed an object that the operator owns, and the operator corrected the drift. The note names fields and field manager. Emitted once for the same fields and manager in an episode, at most 8 times per episode. An episode is a series of corrections of one object. It ends after 10 minutes without a correction (5 minutes under `DriftContested`), or when the desired state or `requested-at` changes.", "Change the spec instead, or stop the other client."),
    event("Recreated", &[SET, SYNC, APP, MA], false, "Create", "Another client deleted an object, and the operator created it again. For each object other than a Pod, emitted once in 10 minutes.", "To remove the object, change or delete its owner."),
    event("AutoscalingDisabled", &[APP], false, "Scale", "`autoscaling` was removed from the spec. The note has the running count and the `size` that the operator wrote instead.", NOTHING),
    event("Replaced", &[MA], false, "Delete", "The Pod differs from its desired state, so the operator deletes it. The note says what differs.", NOTHING),
    event("Adopted", &[MA], false, "Adopt", "The operator adopted a Pod that another program created, or that a backup restored.", NOTHING),
    event("Adopted", &[MI], false, "Adopt", "The operator adopted a load balancer, listener or target group.", NOTHING),
    event("Created", &[MI], false, "Create", "AWS created the load balancer.", NOTHING),
    event("Updated", &[MI], false, "Update", "The operator corrected the load balancer to match the spec.", NOTHING),
    event("TargetsRejected", &[MI], true, "Update", "AWS rejected some nodes as targets. The others receive traffic.", "Delete Nodes without an instance."),
    event("Deleted", &[MI], false, "Delete", "The operator deleted the load balancer with its MyIngress.", NOTHING),
    event("AlreadyDeleted", &[MI], false, "Delete", "No load balancer was left to delete.", NOTHING),
    event("Orphaned", &[MI], true, "Delete", "A load balancer that lost its ownership tags stays after the deletion of its MyIngress.", "Delete the load balancer in AWS if nobody needs it."),
];

/// Rule by which a kind emits Events of its reasons, with the action `Reconcile`.
#[rustfmt::skip]
pub const REPORTED: &[(&str, &str)] = &[
    (CP, "Each change of the reason, and of the message while the ContactPoint is not ready. Normal for `Ready` and `Suspended`, otherwise Warning. None for `Progressing`."),
    (TF, "Each change of reason or message, and every 30 minutes while it lasts. Normal for `Suspended` and for a ContactPoint that was not tried yet, otherwise Warning."),
    (SET, "Each reason once, until the set has been ready for 10 minutes or its spec changes. Normal for `Ready`, `NothingMatches` and `Suspended`, otherwise Warning. None for `Progressing`."),
    (SYNC, "Each change of the reason, and of the message while the sync is not ready. Normal for `Synced` and `Suspended`, otherwise Warning."),
    (APP, "`Ready` and the reasons of Pods, Deployment and autoscaler: each once, until the app has been ready for 10 minutes or its spec changes. Other reasons: each change of reason or message. Normal for `Ready` and `Suspended`, otherwise Warning. None for `Progressing`."),
    (MA, "The reasons of the Pod and its node: each once, until the app has been ready for 10 minutes or its spec changes. `Ready`: once after such an Event. Other reasons: each change of reason or message. Normal for `Ready` and `Suspended`, otherwise Warning. None for `PodPending` and `ChildTerminating`."),
    (MI, "Each change of the reason, and of the message while the MyIngress is not ready. Normal for `Ready`, `Suspended`, `Creating`, `Provisioning`, `TargetsInitial` and `Terminating`, otherwise Warning."),
];

/// Text about reasons that the table of a kind leaves out.
#[rustfmt::skip]
pub const NOTES: &[(&str, &str)] = &[
    (TF, "The annotation `quartermaster.dev/waiting` has the reason and message; `quartermaster.dev/waiting-reason` (column WAITING) has the reason alone. A TrackedField that does not wait has neither, and `quartermaster status` calls it `Ready`. Target problems take precedence over ContactPoint problems, unless an entry waits.\n\n\
        With `Suspended`, `ContactPointNotFound`, `ContactPointNotReady` and `DeliveryFailing`, the operator records changes as `Pending`, and sends them later. With `SpecInvalid`, `FieldNotFound`, `PathInvalid`, `ResourceMismatch`, `OutOfScope`, `Forbidden`, `TargetNotFound`, `TargetUnreadable` and `WriteRejected`, it records nothing."),
    (SET, "A set reports what concerns all its TrackedFields, such as a ContactPoint that is not ready. Each TrackedField reports only its own problems."),
    (SYNC, "The message names up to five namespaces without a current copy, each with its own reason; the condition has the reason of the first. The operator serves the others."),
    (APP, "Any other reason is the kubelet's, such as `CreateContainerConfigError` or `InvalidImageName`."),
    (MA, "Any other reason is the kubelet's, such as `ContainerCreating`, `CreateContainerConfigError` or `InvalidImageName`."),
    (MI, "`status.listeners[].reason` has these reasons too, for one listener."),
];
