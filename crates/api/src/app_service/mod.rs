//! AppService: a Deployment and a Service from one short resource.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use qm_core::conditions::{self, Activity, READY, ReadyCondition};
use qm_core::kind::{HasReadyCondition, Kind};
use qm_core::names::MetadataNames;
use qm_core::readiness::{Readiness, ReadinessSummary, from_condition};
use serde::{Deserialize, Serialize};

use super::common::{NAMES, rule_over};
use super::my_app::BAD_PROFILE;

mod bounds;
mod fields;
mod pod_overrides;
mod port;
mod raw;
mod status;

pub use fields::{Autoscaling, ContainerResources, Ingress, IngressTls, LocalName};
pub use pod_overrides::{PATH as POD_OVERRIDES, PodOverrides};
pub use port::{
    NODE_PORTS_UNIQUE, ONE_PROTOCOL_PER_NAME, PORT_NAMES_REQUIRED, PORT_NAMES_UNIQUE, PORTS_UNIQUE,
    Port, TCP, TargetPort,
};
pub use raw::Raw;
pub use status::{AppCondition, AppServiceStatus, ServedPort};

/// API group of the kind.
pub const GROUP: &str = "kosmos.io";
/// Annotation of the original program: that program's copy of the spec. The operator ignores its value.
pub const OLD_SPEC: &str = "old/spec";

/// An app: a Deployment and a Service of the same name, from one short resource.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kosmos.io",
    version = "v1",
    kind = "AppService",
    doc = "An app: a Deployment and a Service of the same name, from one short resource.",
    plural = "appservices",
    shortname = "appsvc",
    category = "quartermaster",
    namespaced,
    status = "AppServiceStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD accepted an object without a spec. An unreadable object would stop the watch of the kind.
    // The path names the type, because the schema derives from a second type that has no default.
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
    /// Number of Pods. With `autoscaling`, this number applies only when the operator creates the Deployment, within `min` and `max`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub size: i64,
    /// Image of the container.
    #[serde(default)]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = (IMAGE.0, IMAGE.1))]
    pub image: String,
    /// Ports of the Service, at most 64. Defaults to none: the app then has no Service.
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
    /// Type of the Service: `NodePort`, `ClusterIP` or `LoadBalancer`. Defaults to `NodePort`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self in ['NodePort', 'ClusterIP', 'LoadBalancer']",
        "write serviceType: NodePort, ClusterIP or LoadBalancer",
    ))]
    pub service_type: Option<String>,
    /// Environment variables of the container, as in a Pod; at most 512, and 61440 bytes in all, with 96 for each entry. Defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = bounds::env())]
    pub env: Vec<Raw<EnvVar>>,
    /// Sources of environment variables, ConfigMaps and Secrets, as in a Pod; at most 32. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_SOURCES))]
    pub env_from: Vec<Raw<EnvFromSource>>,
    /// Resource requests and limits of the container. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ContainerResources>,
    /// Liveness probe of the container, as in a Pod. If it fails, the kubelet restarts the container. Its port is a
    /// number, or the name of a `targetPort`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler(), validation = bounds::one_success())]
    pub liveness_probe: Option<Raw<Probe>>,
    /// Readiness probe of the container, as in a Pod. While it fails, the Service sends the Pod no traffic. Its
    /// port is a number, or the name of a `targetPort`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler())]
    pub readiness_probe: Option<Raw<Probe>>,
    /// Startup probe of the container, as in a Pod. The other probes begin after its success. Its port is a number,
    /// or the name of a `targetPort`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = bounds::one_handler(), validation = bounds::one_success())]
    pub startup_probe: Option<Raw<Probe>>,
    /// Image pull policy: `Always`, `IfNotPresent` or `Never`. Defaults to `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = (
        "self in ['Always', 'IfNotPresent', 'Never']",
        "write imagePullPolicy: Always, IfNotPresent or Never",
    ))]
    pub image_pull_policy: Option<String>,
    /// Command of the container; 32768 bytes in all. Defaults to the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), inner(length(max = bounds::MAX_TEXT)))]
    #[x_kube(validation = bounds::command())]
    pub command: Vec<String>,
    /// Arguments of the command; 49152 bytes in all. Defaults to the image's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::MAX_TEXTS), inner(length(max = bounds::MAX_TEXT)))]
    #[x_kube(validation = bounds::args())]
    pub args: Vec<String>,
    /// Name of the ServiceAccount of the Pods, in the same namespace. Defaults to `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of a ServiceAccount: lower-case letters, digits, '-' and '.'",
    ))]
    pub service_account_name: Option<String>,
    /// Pod security profile. `Restricted`: the Pods meet the restricted profile and run as user 65532. `Baseline`: the Pods meet
    /// the baseline profile and run as the user of their image. Defaults to `Baseline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Restricted', 'Baseline']", BAD_PROFILE))]
    pub pod_security: Option<String>,
    /// Pod template (PodTemplateSpec) that the operator merges over the generated one, after `podSecurity`: volumes, sidecars, init
    /// containers, affinity. Lists merge by key, such as the names of containers, volumes and variables; the main container has the
    /// name of the app. At most 64 KiB. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_overrides: Option<Box<PodOverrides>>,
    /// Secrets for pulling the image, in the same namespace; at most 32. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<LocalName>,
    /// Autoscaling by CPU usage, with a HorizontalPodAutoscaler. Requires `resources.requests.cpu` or `resources.limits.cpu`,
    /// and a metrics server. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Ingress that routes HTTP from outside of the cluster to the first TCP port. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Ingress>,
    /// Suspension of reconciliation. While true, the operator changes nothing but the status, and the app keeps
    /// running; deleting the app still deletes its objects. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// CEL rule and message for an image.
pub const IMAGE: (&str, &str) = (
    r"!self.matches(r'\s')",
    "write an image without spaces, such as nginx:1.27",
);
/// Message for a name that a Service cannot have.
pub const NAME_RULE: &str = "the Service has this name too: write at most 63 lower-case letters, digits and '-', \
    with a letter first and a letter or digit last";
/// Message for a `nodePort` of a Service of type `ClusterIP`.
pub const NODE_PORT_NOT_ALLOWED: &str = "serviceType: ClusterIP has no ports on the nodes: remove nodePort, or write serviceType: NodePort";
/// Message for an Ingress without a TCP port.
pub const INGRESS_NEEDS_A_PORT: &str =
    "ingress leads to the first TCP port: add one, such as ports: [{port: 80}]";
/// Message for autoscaling without a CPU request.
const AUTOSCALING_NEEDS_CPU: &str = "autoscaling compares CPU usage with the CPU request: add resources.requests.cpu (or resources.limits.cpu), \
     such as resources: {requests: {cpu: 100m}}";
/// Message for a CPU request of zero, by which the autoscaler would divide.
pub const CPU_ABOVE_ZERO: &str = "autoscaling compares CPU usage with the CPU request: write a CPU request above zero (or a limit, where there is no \
     request), such as resources: {requests: {cpu: 100m}}";

/// Applies on create only, because the rule is at the root (RFC 1035).
fn name_of_a_service() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
    )
    .message(NAME_RULE)
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
        NODE_PORT_NOT_ALLOWED,
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
            status: Readiness::of(&ready.status),
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
        let message = conditions::bounded(condition.message);
        let own = |type_: &str, readiness: Readiness| {
            let value = readiness.as_str();
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
        let mut conditions = vec![own(READY, condition.status)];
        conditions.extend(
            others
                .iter()
                .filter(|(_, is_true)| *is_true)
                .map(|(type_, _)| own(type_, Readiness::True)),
        );
        // The conditions of the Deployment follow.
        let is_own = |type_: &str| type_ == READY || others.iter().any(|(own, _)| *own == type_);
        let of_deployment = status.conditions.drain(..);
        conditions.extend(of_deployment.filter(|other| !is_own(&other.type_)));
        status.conditions = conditions;
        status.observed_generation = Some(generation);
    }
}
