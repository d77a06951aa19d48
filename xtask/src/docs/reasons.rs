//! The reference of reasons and Events: the meaning of each, and an index of the tables in the pages of the kinds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::markdown::anchor;

const BEGIN: &str = "\
# Reasons and Events

Each reason of a condition `Ready`, of a TrackedField's annotation `quartermaster.dev/waiting`, and of an Event, its meaning, and the
page that explains it. How to find an object's reason: [Troubleshooting](../troubleshooting.md).

| reason | meaning | explained at |
| --- | --- | --- |
";

/// The meaning of each reason, in one sentence; sorted.
#[rustfmt::skip]
const MEANINGS: &[(&str, &str)] = &[
    ("AWSRequestFailed", "AWS answered a request with an error code that the operator does not know."),
    ("AWSUnavailable", "AWS does not answer, or answers with an error of its own."),
    ("AccessDenied", "The operator's AWS credentials lack a permission."),
    ("AccountMismatch", "The load balancer is in another AWS account than the operator's credentials."),
    ("ActiveImpaired", "The load balancer works, but AWS cannot give it what it needs to grow."),
    ("AddressNotAllowed", "The operator sends nothing to the webhook's address or port."),
    ("Adopted", "The operator adopted an object that another program created."),
    ("AlreadyDeleted", "No load balancer was left to delete."),
    ("AutoscalingDisabled", "The spec no longer has an autoscaler, so the operator wrote the size itself."),
    ("BodyInvalid", "The ContactPoint's body template fails, or leaves out the token."),
    ("ChatNotFound", "Telegram does not know the chat, or the bot is not in the chat."),
    ("ChildTerminating", "An object that the operator needs to create again is still being deleted."),
    ("Conflict", "The operator does not own an object of the name that it needs."),
    ("ContactPointNotFound", "The namespace has no ContactPoint of that name."),
    ("ContactPointNotReady", "The ContactPoint cannot deliver messages now."),
    ("CrashLoopBackOff", "A container of the app exits again and again."),
    ("Created", "AWS created the load balancer."),
    ("Creating", "The operator asked AWS for the load balancer, and AWS does not show it yet."),
    ("CredentialsMissing", "The operator has no AWS credentials that AWS accepts."),
    ("Deleted", "The operator deleted the load balancer."),
    ("DeletionProtected", "AWS protects the load balancer from deletion."),
    ("DeliveryFailed", "An entry of the history became `Failed`, so no message reports its change."),
    ("DeliveryFailing", "The receiver has failed several attempts in a row, and the operator keeps trying."),
    ("DeploymentPaused", "Somebody paused the Deployment, so changes do not reach the Pods."),
    ("DestinationNotAllowed", "The operator writes no copies to the destination, because Kubernetes itself relies on it."),
    ("DriftContested", "Another client keeps changing an object of the app."),
    ("DriftCorrected", "Another client changed an object, and the operator corrected the drift."),
    ("EntriesMerged", "The outbox was full, so the operator merged Pending entries."),
    ("FailedCreate", "Kubernetes cannot create Pods of the Deployment."),
    ("FieldNotFound", "The target's kind has no field of that word."),
    ("Forbidden", "The apiserver, or the receiver of a ContactPoint, denies the operator a request."),
    ("Gone", "The receiver no longer accepts messages at the URL."),
    ("ImageMissing", "The spec has no image."),
    ("ImagePullBackOff", "The kubelet cannot pull the image."),
    ("Incompatible", "The load balancer has another scheme or type, which AWS cannot change."),
    ("Loop", "The copy would lead back to its own source."),
    ("NameTaken", "Another load balancer has the name."),
    ("NamespaceNotFound", "A namespace that the spec names does not exist."),
    ("NamespaceTerminating", "The namespace is being deleted, so the operator can create nothing in it."),
    ("NoNodePort", "The Service has no port on the nodes."),
    ("NoNodes", "No node can receive traffic."),
    ("NodeNotFound", "The Pod's node no longer exists."),
    ("NodeNotReady", "The Pod's node is not ready."),
    ("NodePortTaken", "The node port belongs to another Service, or no node port is left."),
    ("NodesUnreadable", "The operator cannot list the nodes."),
    ("NotFound", "The receiver has nothing at the URL."),
    ("NotPermitted", "AWS does not permit the operation in the present state."),
    ("NothingMatches", "No resource matches the TrackedFieldSet."),
    ("OperationInProgress", "AWS has not finished another operation on the load balancer."),
    ("Orphaned", "A load balancer that lost its ownership tags stays after its MyIngress was deleted."),
    ("OutOfScope", "The operator's flags exclude the namespace or the resource."),
    ("PathInvalid", "The field is no JSONPath that the operator can read."),
    ("PathTooExpensive", "The JSONPath visits too much of the target."),
    ("PodFailed", "The Pod failed or was evicted."),
    ("PodNotReady", "The Pod runs, but is not ready."),
    ("PodPending", "The Pod does not run yet."),
    ("PodSucceeded", "The container exited with code 0."),
    ("ProgressDeadlineExceeded", "The Deployment made no progress within its deadline."),
    ("Progressing", "Pods of the app are starting or stopping, or TrackedFields of the set are being created."),
    ("Provisioning", "AWS creates the load balancer."),
    ("ProvisioningFailed", "AWS could not create the load balancer."),
    ("ProxyInvalid", "The variable `HTTPS_PROXY` of the operator names no proxy that works for AWS."),
    ("QuotaExceeded", "A quota of the namespace or of the AWS account is used up."),
    ("Ready", "The object is in its desired state and works."),
    ("Recreated", "Another client deleted an object, and the operator created it again."),
    ("Redirected", "The receiver answers with a redirect, which the operator does not follow."),
    ("RegionMismatch", "The load balancer is in another AWS region than the operator's."),
    ("RegionMissing", "The operator knows no AWS region."),
    ("Rejected", "The receiver does not accept the content of the messages."),
    ("Replaced", "The Pod differed from its desired state, so the operator deleted it."),
    ("ResourceMismatch", "The apiserver serves no such resource, or nobody may track it."),
    ("ScalingInactive", "The autoscaler cannot compute a size."),
    ("SecretForbidden", "The operator may not read the Secret."),
    ("SecretInvalid", "The Secret's value is no usable token, URL, key or certificate."),
    ("SecretKeyMissing", "The Secret lacks the key."),
    ("SecretNotFound", "The Secret does not exist, or the ContactPoint may not use it."),
    ("SecretUnreadable", "The operator could not read the Secret."),
    ("ServiceNotFound", "The Service of a listener does not exist."),
    ("ServicePortNotFound", "The Service lacks the port of a listener."),
    ("SourceNotFound", "The ConfigMap to copy does not exist."),
    ("SpecInvalid", "The spec breaks a rule."),
    ("SpecRejected", "AWS rejects a value of the spec."),
    ("Stamped", "The TrackedFieldSet created or deleted TrackedFields."),
    ("SubnetInvalid", "A subnet has too few free addresses, or its VPC has no internet gateway."),
    ("Suspended", "The field `spec.suspend` is true, so the operator changes nothing."),
    ("Synced", "Every copy equals its source."),
    ("TargetNotFound", "The target does not exist."),
    ("TargetUnreadable", "The operator cannot read the target."),
    ("TargetsInitial", "AWS has not finished the first health checks of the targets."),
    ("TargetsRejected", "AWS does not accept the nodes as targets."),
    ("TargetsUnhealthy", "No target of a listener is healthy."),
    ("TemplateInvalid", "The template of the TrackedField does not parse, or fails for the newest change."),
    ("Terminating", "The object is being deleted, and AWS has not deleted its load balancer yet."),
    ("Throttled", "AWS limits the account's requests."),
    ("TooManyTargets", "More resources match than the TrackedFieldSet may track."),
    ("TopicUnavailable", "Telegram has closed or deleted the topic, or does not know it."),
    ("Unauthorized", "The receiver does not accept the token."),
    ("UnexpectedStatus", "The receiver answers with a status that the operator does not expect."),
    ("Unreachable", "The test message failed for a reason that may pass."),
    ("Unschedulable", "No node can run the Pod."),
    ("Updated", "The operator corrected the load balancer to match the spec."),
    ("WhenInvalid", "The expression of the TrackedField does not parse, or has no result for the newest change."),
    ("WriteFailed", "The operator's writes to the apiserver keep failing."),
    ("WriteRejected", "The apiserver rejects a write, for example because of an admission policy."),
];

/// Returns the meaning of a reason; empty if `MEANINGS` lacks it.
fn meaning(reason: &str) -> &'static str {
    let found = MEANINGS.iter().find(|(known, _)| *known == reason);
    found.map_or("", |(_, meaning)| meaning)
}

/// Returns the page; `kinds` has each kind with the text and name of its page.
pub fn page(kinds: &[(String, String, String)]) -> String {
    let mut index = BTreeMap::<String, Vec<String>>::new();
    for (kind, page, name) in kinds {
        for (word, heading, is_event) in rows(page) {
            let of = if is_event {
                format!("{kind} (Event)")
            } else {
                kind.clone()
            };
            let link = format!("[{of}](../{name}#{})", anchor(&heading));
            index.entry(word).or_default().push(link);
        }
    }
    let mut page = BEGIN.to_owned();
    for (word, links) in index {
        // Writing to a String does not fail.
        let _ = writeln!(
            page,
            "| `{word}` | {} | {} |",
            meaning(&word),
            links.join(", ")
        );
    }
    page
}

/// Returns the first word of each row of the tables whose first column is `reason` or `event`, with the heading above,
/// and whether it is an Event's.
fn rows(page: &str) -> Vec<(String, String, bool)> {
    let (mut heading, mut column, mut rows) = (String::new(), None, Vec::new());
    for line in page.lines() {
        if line.starts_with('#') {
            line.trim_start_matches('#').trim().clone_into(&mut heading);
        }
        let Some(first) = line
            .strip_prefix("| ")
            .and_then(|line| line.split(" |").next())
        else {
            column = None;
            continue;
        };
        match (
            column,
            first
                .strip_prefix('`')
                .and_then(|word| word.split('`').next()),
        ) {
            (None, _) => column = Some(first),
            (Some("reason"), Some(word)) => rows.push((word.to_owned(), heading.clone(), false)),
            (Some("event"), Some(word)) => rows.push((word.to_owned(), heading.clone(), true)),
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use quartermaster::kinds::KINDS;

    use super::super::page_of;
    use super::*;

    #[test]
    fn every_reason_has_a_meaning_and_no_meaning_is_unused() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let used: BTreeSet<String> = KINDS
            .iter()
            .map(|kind| docs.join(page_of(&kind.resource().kind)))
            .flat_map(|page| rows(&fs::read_to_string(page).unwrap()))
            .map(|(reason, ..)| reason)
            .collect();
        let known: Vec<_> = MEANINGS.iter().map(|(reason, _)| *reason).collect();
        assert_eq!(known, used.iter().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn meaning_is_one_sentence() {
        for (reason, meaning) in MEANINGS {
            let is_one = meaning.starts_with(char::is_uppercase)
                && meaning.ends_with('.')
                && !meaning.contains(". ")
                && !meaning.contains('|');
            assert!(is_one, "{reason}: {meaning}");
        }
    }

    #[test]
    fn row_is_found_by_its_column_and_linked_to_its_heading() {
        let text = "## Its reasons\n\n| reason | what |\n| --- | --- |\n| `Ready` | `x` |\n| another one | y |\n\n\
                    | event | when |\n| --- | --- |\n| `Gone` | z |\n\n| field | what |\n| --- | --- |\n| `spec` | |\n";
        let found = page(&[("MyApp".into(), text.into(), "my-app.md".into())]);
        let table = found.strip_prefix(BEGIN).unwrap_or_default();
        assert_eq!(
            table,
            "| `Gone` | The receiver no longer accepts messages at the URL. | [MyApp (Event)](../my-app.md#its-reasons) |\n\
             | `Ready` | The object is in its desired state and works. | [MyApp](../my-app.md#its-reasons) |\n"
        );
    }
}
