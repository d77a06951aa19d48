//! `AppService`: an app from one short resource.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use qm_core::conditions::{Activity, MAX_MESSAGE, READY, ReadyCondition};
use qm_core::kind::{HasReadyCondition, Kind};
use qm_core::names::MetadataNames;
use qm_core::readiness::{ReadinessSummary, from_condition};
use serde::{Deserialize, Serialize};

use super::common::{NAMES, rule_over};
use super::my_app::BAD_PROFILE;

mod as_written;
mod bounds;
mod parts;
mod port;
mod status;

pub use as_written::AsWritten;
pub use parts::{Autoscaling, Ingress, IngressTls, LocalName, Resources};
pub use port::{
    NAMED, NAMES_DIFFER, NODE_PORTS_DIFFER, ONE_PROTOCOL_A_NAME, PORTS_DIFFER, Port, TCP,
    TargetPort,
};
pub use status::{AppCondition, AppServiceStatus, ServedPort};

/// The API group.
pub const GROUP: &str = "kosmos.io";
/// Annotation of the original program: its own copy of the spec, which it compares with. It says nothing to us.
pub const OLD_SPEC: &str = "old/spec";

/// Runs an app: a Deployment and a Service of its own name, from one short resource.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kosmos.io",
    version = "v1",
    kind = "AppService",
    doc = "Runs an app: a Deployment and a Service of its own name, from one short resource.",
    plural = "appservices",
    shortname = "appsvc",
    category = "quartermaster",
    namespaced,
    status = "AppServiceStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD let an AppService without a spec in. One that cannot be read would stop the watch of all.
    // Named, because the derived schema is that of a type beside this one, which has no default of its own.
    attr = "cfg_attr(all(), serde(default = \"AppService::default\"))",
    validation = name_of_a_service(),
    scale(
        spec_replicas_path = ".spec.size",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("required" = ["image", "size"]))]
#[x_kube(
    validation = cluster_ip_takes_no_node_port(),
    validation = ingress_needs_a_port(),
    validation = autoscaling_needs_cpu(),
    validation = autoscaled_cpu_is_above_zero(),
    validation = bounds::probe_port("livenessProbe"),
    validation = bounds::probe_port("readinessProbe"),
    validation = bounds::probe_port("startupProbe"),
)]
pub struct AppServiceSpec {
    /// How many Pods run. While `autoscaling` is set it is not looked at, but where the Deployment is made.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub size: i64,
    /// The container's image.
    #[serde(default)]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = (IMAGE.0, IMAGE.1))]
    pub image: String,
    /// What the Service listens on; without ports there is no Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = port::MAX_PORTS))]
    #[x_kube(
        validation = port::named(),
        validation = port::names_differ(),
        validation = port::ports_differ(),
        validation = port::node_ports_differ(),
        validation = port::one_protocol_a_name(),
    )]
    pub ports: Vec<Port>,
    /// Type of the Service: `NodePort` unless given, `ClusterIP` or `LoadBalancer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self in ['NodePort', 'ClusterIP', 'LoadBalancer']",
        "write serviceType: NodePort, ClusterIP or LoadBalancer",
    ))]
    pub service_type: Option<String>,
    /// Environment of the container, as in a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = bounds::env())]
    pub env: Vec<AsWritten<EnvVar>>,
    /// Environment of the container from `ConfigMaps` and Secrets, as in a Pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_SOURCES))]
    pub env_from: Vec<AsWritten<EnvFromSource>>,
    /// What the container asks for, and what it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Says whether the container must be started again, as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler(), validation = bounds::one_success())]
    pub liveness_probe: Option<AsWritten<Probe>>,
    /// Says whether the container can serve, as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler())]
    pub readiness_probe: Option<AsWritten<Probe>>,
    /// Says whether the container has started, as in a Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler(), validation = bounds::one_success())]
    pub startup_probe: Option<AsWritten<Probe>>,
    /// `Always`, `IfNotPresent` or `Never`; `IfNotPresent` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self in ['Always', 'IfNotPresent', 'Never']",
        "write imagePullPolicy: Always, IfNotPresent or Never",
    ))]
    pub image_pull_policy: Option<String>,
    /// What the container runs, in place of the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), inner(length(max = bounds::MAX_TEXT)))]
    #[x_kube(validation = bounds::command())]
    pub command: Vec<String>,
    /// Its arguments, in place of the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), inner(length(max = bounds::MAX_TEXT)))]
    #[x_kube(validation = bounds::args())]
    pub args: Vec<String>,
    /// The `ServiceAccount` of the Pods, in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of a ServiceAccount: lower-case letters, digits, '-' and '.'",
    ))]
    pub service_account_name: Option<String>,
    /// `Restricted`: the Pods fit the restricted pod security profile, so they run as user 65532. `Baseline`, and unless given:
    /// they run as their image says, and fit the baseline profile only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Restricted', 'Baseline']", BAD_PROFILE))]
    pub pod_security: Option<String>,
    /// Secrets with which the image is pulled, in this namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalName>,
    /// Has a `HorizontalPodAutoscaler` say how many Pods run. It needs `resources.requests.cpu` or `resources.limits.cpu`,
    /// and a metrics server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Leads HTTP from outside of the cluster to the first TCP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Ingress>,
    /// While true nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec, in bytes, if that was too large to be read.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// Of an image: a CEL rule and its message.
pub const IMAGE: (&str, &str) = (
    r"!self.matches(r'\s')",
    "write an image without spaces, such as nginx:1.27",
);
/// What to write where the name cannot be that of a Service.
pub const NAME: &str = "the Service has this name too: begin it with a lower-case letter, then letters, digits and '-', at most 63";
/// What to write where a Service of type `ClusterIP` is to have a port on the nodes.
pub const NO_NODE_PORT: &str = "serviceType: ClusterIP has no ports on the nodes: remove nodePort, or write serviceType: NodePort";
/// What to write where an Ingress has no Service to lead to.
pub const INGRESS_NEEDS_A_PORT: &str =
    "ingress leads to the first TCP port: add one, such as ports: [{port: 80}]";
/// What to write where the autoscaler would have no request to measure against.
pub const AUTOSCALING_NEEDS_CPU: &str = "autoscaling compares CPU usage with the CPU request: add resources.requests.cpu (or resources.limits.cpu), \
     such as resources: {requests: {cpu: 100m}}";
/// Message about a CPU request of zero, by which the autoscaler would divide.
pub const CPU_ABOVE_ZERO: &str = "autoscaling compares CPU usage with the CPU request: write a CPU request above zero (or a limit, where there is no \
     request), such as resources: {requests: {cpu: 100m}}";

/// At the root, so it binds on create only (RFC 1035).
fn name_of_a_service() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
    )
    .message(NAME)
    .optional_old_self(true)
}

fn cluster_ip_takes_no_node_port() -> Rule {
    rule_over(
        &["serviceType", "ports"],
        &format!(
            "!has(self.serviceType) || self.serviceType != 'ClusterIP' || !has(self.ports) || size(self.ports) > {most} \
             || self.ports.all(p, !has(p.nodePort) || p.nodePort == 0)",
            most = port::MAX_PORTS,
        ),
        NO_NODE_PORT,
    )
}

fn ingress_needs_a_port() -> Rule {
    rule_over(
        &["ingress", "ports"],
        "!has(self.ingress) || (has(self.ports) && self.ports.exists(port, !has(port.protocol) || port.protocol in ['', 'TCP']))",
        INGRESS_NEEDS_A_PORT,
    )
}

/// A limit without a request counts as the request.
fn autoscaling_needs_cpu() -> Rule {
    rule_over(
        &["autoscaling", "resources"],
        "!has(self.autoscaling) || (has(self.resources) \
         && ((has(self.resources.requests) && 'cpu' in self.resources.requests) \
         || (has(self.resources.limits) && 'cpu' in self.resources.limits)))",
        AUTOSCALING_NEEDS_CPU,
    )
}

/// A limit without a request counts as the request.
fn autoscaled_cpu_is_above_zero() -> Rule {
    let is_above_zero = |of: &str| {
        let cpu = format!("self.resources.{of}['cpu']");
        format!("(type({cpu}) in [int] ? {cpu} > 0 : quantity({cpu}).isGreaterThan(quantity('0')))")
    };
    rule_over(
        &["autoscaling", "resources"],
        &format!(
            "!has(self.autoscaling) || !has(self.resources) \
             || (has(self.resources.requests) && 'cpu' in self.resources.requests ? {} \
             : !has(self.resources.limits) || !('cpu' in self.resources.limits) || {})",
            is_above_zero("requests"),
            is_above_zero("limits"),
        ),
        CPU_ABOVE_ZERO,
    )
}

super::spec_size::stored_spec!(AppServiceSpec);

impl Kind for AppService {
    const NAMES: &'static MetadataNames = &NAMES;
    const FOREIGN_ANNOTATIONS: &'static [&'static str] = &[OLD_SPEC];

    fn readiness(&self) -> ReadinessSummary<'_> {
        let status = self.status.as_ref();
        let ready = status.and_then(|status| {
            let ready = status.condition(READY)?;
            let observed = status.observed_generation.or(ready.observed_generation);
            Some((
                observed,
                &*ready.status,
                ready.reason.as_deref().unwrap_or_default(),
            ))
        });
        from_condition(self.metadata.generation, ready)
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend.unwrap_or_default()
    }
}

impl HasReadyCondition for AppService {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        let ready = self.status.as_ref()?.condition(READY)?;
        Some(ReadyCondition {
            is_true: ready.status == "True",
            reason: ready.reason.as_deref().unwrap_or_default(),
            message: ready.message.as_deref().unwrap_or_default(),
            activity: Activity::default(),
        })
    }

    fn observed_generation(&self) -> Option<i64> {
        self.status.as_ref()?.observed_generation
    }

    fn set_ready_condition(
        status: &mut AppServiceStatus,
        condition: &ReadyCondition<'_>,
        generation: i64,
        now: Time,
    ) {
        let message = &condition.message[..condition.message.floor_char_boundary(MAX_MESSAGE)];
        let own = |type_: &str, is_true: bool| {
            let value = if is_true { "True" } else { "False" };
            let same = status
                .condition(type_)
                .filter(|before| before.status == value);
            let since = same.and_then(|before| before.last_transition_time.clone());
            AppCondition {
                type_: type_.into(),
                status: value.into(),
                reason: Some(condition.reason.into()),
                message: Some(message.into()),
                last_transition_time: Some(since.unwrap_or_else(|| now.clone())),
                last_update_time: None,
                observed_generation: Some(generation),
            }
        };
        let others = condition.others();
        let mut conditions = vec![own(READY, condition.is_true)];
        conditions.extend(
            others
                .iter()
                .filter(|(_, is_true)| *is_true)
                .map(|(type_, _)| own(type_, true)),
        );
        // The conditions of the Deployment follow.
        let is_own = |type_: &str| type_ == READY || others.iter().any(|(own, _)| *own == type_);
        let of_deployment = status.conditions.drain(..);
        conditions.extend(of_deployment.filter(|other| !is_own(&other.type_)));
        status.conditions = conditions;
        status.observed_generation = Some(generation);
    }
}
