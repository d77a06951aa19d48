//! MyIngress: an AWS Application Load Balancer.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over};

/// API group of the kind.
pub const GROUP: &str = "demo.rtfm.co.ua";
/// Finalizer: the load balancer is in AWS, where garbage collection does not work.
pub const FINALIZER: &str = "quartermaster.dev/load-balancer";

/// Message for an invalid name (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_CreateLoadBalancer.html>).
pub const NAME_RULE: &str = "choose a name of at most 28 lower-case letters, digits and '-', with a letter or digit at both ends, which is not internal \
    and does not start with internal-: the load balancer is called NAME-alb, and AWS accepts at most 32 characters";
/// Message for too few subnets.
pub const SUBNETS: &str =
    "give at least two subnets, each in a different availability zone: AWS requires two";
/// Message for an invalid subnet ID.
pub const BAD_SUBNET: &str = "write the IDs of subnets, such as subnet-0123456789abcdef0";
/// Message for a duplicate subnet or security group.
pub const TWICE: &str = "remove the duplicate";
/// Message for an unknown scheme.
pub const BAD_SCHEME: &str = "write scheme: internet-facing, or scheme: internal";
/// Message for a changed scheme.
const FIXED_SCHEME: &str = "the scheme of a load balancer cannot change: delete and recreate this MyIngress, or create one with another name";
/// Message for an unknown address type.
pub const BAD_ADDRESSES: &str = "write ipAddressType: ipv4, ipAddressType: dualstack, or ipAddressType: dualstack-without-public-ipv4";
/// Message for an internal load balancer with an address type for public load balancers.
pub const PUBLIC_ONLY: &str = "ipAddressType: dualstack-without-public-ipv4 needs scheme: internet-facing; for scheme: internal write ipAddressType: dualstack";
/// Message for an invalid security group ID.
pub const BAD_GROUP: &str = "write the IDs of security groups, such as sg-0123456789abcdef0";
/// Message for an empty or too long key of a tag.
pub const LONG_KEY: &str = "write tags whose keys have 1 to 128 characters";
/// Message for a tag with invalid characters
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_Tag.html>).
pub const BAD_TAG: &str =
    "write tags of letters, digits, spaces and the characters _ . : / = + - @";
/// Message for a reserved tag.
pub const RESERVED_TAG: &str = "choose other keys: AWS reserves aws:, Quartermaster owns ManagedBy and quartermaster.dev/, and other controllers \
    claim load balancers by keys under k8s.aws/ and kubernetes.io/";

/// Message for an unknown protocol.
pub const BAD_PROTOCOL: &str = "write protocol: HTTP, or protocol: HTTPS with a certificateArn";
/// Message for HTTPS without a certificate, or a certificate without HTTPS.
pub const CERTIFICATE: &str = "protocol: HTTPS needs certificateArn, the ARN of a certificate in ACM or IAM; protocol: HTTP takes none";
/// Message for a security policy without HTTPS.
pub const POLICY: &str = "sslPolicy needs protocol: HTTPS: remove it, or write protocol: HTTPS";
/// Message for an invalid ARN.
const BAD_CERTIFICATE: &str =
    "write the ARN of a certificate, such as arn:aws:acm:eu-central-1:123456789012:certificate/...";
/// Message for an invalid path.
pub const BAD_PATH: &str = "write a path that begins with / and has no spaces, such as /healthz";
/// Message for an invalid Service name.
pub const BAD_SERVICE: &str = "write the name of a Service: lower-case letters, digits and '-', with a letter or digit at both ends";

/// An AWS Application Load Balancer.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "demo.rtfm.co.ua",
    version = "v1",
    kind = "MyIngress",
    doc = "An AWS Application Load Balancer.",
    plural = "myingresses",
    shortname = "mying",
    category = "quartermaster",
    namespaced,
    status = "MyIngressStatus",
    derive = "PartialEq",
    derive = "Default",
    // An object older than the schema may lack a spec. An unreadable object would stop the watch of the kind.
    // The path names the type, because the schema derives from a second type that has no default.
    attr = "cfg_attr(all(), serde(default = \"MyIngress::default\"))",
    validation = name_of_a_load_balancer(),
    printcolumn(name = "DNS", type_ = "string", json_path = ".status.alb.dns"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.alb.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[x_kube(validation = two_subnets(), validation = fixed_scheme(), validation = public_addresses())]
pub struct MyIngressSpec {
    /// IDs of the subnets of the load balancer: 2 to 16, each in a different availability zone, all in one VPC. Required on new
    /// objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "items" = { "type": "string", "maxLength": 64 }))]
    #[x_kube(
        validation = ("self.all(subnet, subnet.matches('^subnet-[0-9a-z]+$'))", BAD_SUBNET),
        validation = ("self.all(subnet, self.exists_one(other, other == subnet))", TWICE),
    )]
    pub subnets: Vec<String>,
    /// Scheme of the load balancer: `internet-facing` or `internal`. Immutable. Defaults to `internet-facing`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['', 'internet-facing', 'internal']", BAD_SCHEME))]
    pub scheme: String,
    /// IDs of the security groups, at most 16. Defaults to the VPC's default group at creation; later, the operator keeps the
    /// groups that AWS has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "items" = { "type": "string", "maxLength": 64 }))]
    #[x_kube(
        validation = ("self.all(group, group.matches('^sg-[0-9a-z]+$'))", BAD_GROUP),
        validation = ("self.all(group, self.exists_one(other, other == group))", TWICE),
    )]
    pub security_groups: Vec<String>,
    /// Type of the IP addresses: `ipv4`, `dualstack` or `dualstack-without-public-ipv4` (internet-facing only). Defaults to `ipv4`
    /// at creation; later, the operator keeps the type that AWS has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['ipv4', 'dualstack', 'dualstack-without-public-ipv4']", BAD_ADDRESSES))]
    pub ip_address_type: Option<String>,
    /// Tags of the load balancer, in addition to the ownership tags; at most 40, keys of 128 characters. The operator keeps tags that
    /// others set. Reserved are `aws:...`, `ManagedBy`, `quartermaster.dev/...`, `k8s.aws/...` and `kubernetes.io/...`. Defaults to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 40, "additionalProperties" = { "type": "string", "maxLength": 256 }))]
    #[x_kube(
        validation = ("self.all(key, size(key) >= 1 && size(key) <= 128)", LONG_KEY),
        validation = (
            "self.all(key, !key.lowerAscii().startsWith('aws:') && !key.startsWith('quartermaster.dev/') && key != 'ManagedBy' \
             && !key.lowerAscii().matches('^([^/]*[.])?(k8s[.]aws|kubernetes[.]io)/'))",
            RESERVED_TAG,
        ),
        validation = (r"self.all(key, self[key].matches(r'^[\p{L}\p{Z}\p{N}_.:/=+@-]*$') && key.matches(r'^[\p{L}\p{Z}\p{N}_.:/=+@-]*$'))", BAD_TAG),
    )]
    pub tags: BTreeMap<String, String>,
    /// Listeners of the load balancer, at most 8. Defaults to none: other programs may then add listeners.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 8, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port"]))]
    pub listeners: Vec<ListenerSpec>,
    /// Suspension of reconciliation. While true, the operator changes nothing in AWS, and the load balancer keeps
    /// running; deleting the object still deletes the load balancer. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

impl MyIngressSpec {
    /// Returns the scheme or its default.
    pub fn scheme(&self) -> &str {
        if self.scheme.is_empty() {
            "internet-facing"
        } else {
            &self.scheme
        }
    }

    /// Returns the type of the IP addresses at creation.
    pub fn ip_address_type(&self) -> &str {
        self.ip_address_type.as_deref().unwrap_or("ipv4")
    }
}

/// A listener: a port of the load balancer and the Service behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = certificate_for_https(), validation = policy_for_https())]
pub struct ListenerSpec {
    /// Port of the load balancer, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Protocol: `HTTP`, or `HTTPS` with `certificateArn`. Defaults to `HTTP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['HTTP', 'HTTPS']", BAD_PROTOCOL))]
    pub protocol: Option<String>,
    /// ARN of the certificate in ACM or IAM. Required for HTTPS; not allowed for HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = ("self.startsWith('arn:')", BAD_CERTIFICATE))]
    pub certificate_arn: Option<String>,
    /// Security policy of an HTTPS listener. Defaults to AWS's default at creation; later, the operator keeps the policy that
    /// AWS has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub ssl_policy: Option<String>,
    /// Service that receives the traffic, of `type: NodePort` or `type: LoadBalancer` in the same namespace.
    pub service: ServiceRef,
    /// Path of the health checks; 200 is healthy. Defaults to `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (r"self.matches(r'^/\S*$')", BAD_PATH))]
    pub health_check_path: Option<String>,
}

impl ListenerSpec {
    /// Returns the protocol or its default.
    pub fn protocol(&self) -> &str {
        self.protocol.as_deref().unwrap_or("HTTP")
    }

    /// Returns the path of the health checks or its default.
    pub fn health_check_path(&self) -> &str {
        self.health_check_path.as_deref().unwrap_or("/")
    }
}

/// Reference to a Service in the same namespace that has node ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// Name of the Service.
    #[schemars(length(max = 63))]
    #[x_kube(validation = ("!format.dns1123Label().validate(self).hasValue()", BAD_SERVICE))]
    pub name: String,
    /// TCP port of the Service, as in its `spec.ports[].port`.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// Observed state of the load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MyIngressStatus {
    /// Load balancer in AWS. Absent until the operator has asked AWS to create it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alb: Option<Alb>,
    /// Observed state of each listener, and of each port with resources in AWS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port"]))]
    pub listeners: Vec<ListenerStatus>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, and while `Ready` is False also `Reconciling` or `Stalled` with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// Load balancer in AWS. Only its tags prove its owner, not these fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Alb {
    /// DNS name of the load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// Amazon Resource Name (ARN) of the load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arn: Option<String>,
    /// State in AWS: `provisioning`, `active`, `active_impaired` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Time of the last creation request. For a while afterwards, AWS may not show an existing load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_requested_at: Option<Time>,
    /// Keys of the tags that the operator sets from the spec. If the spec drops a key, the operator removes its tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_tag_keys: Vec<String>,
}

/// Observed state of a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// Port of the load balancer.
    pub port: u16,
    /// Number of healthy targets.
    #[serde(default)]
    pub healthy: u32,
    /// Number of targets: one for each node that receives traffic.
    #[serde(default)]
    pub total: u32,
    /// Reason why no traffic reaches the Service, or why that is unknown. Empty while traffic reaches the Service.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time of the last creation request for the listener or its target group. For a while afterwards, AWS may not show an
    /// existing one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_requested_at: Option<Time>,
}

fn two_subnets() -> Rule {
    rule_over(
        &["subnets"],
        "has(self.subnets) && size(self.subnets) >= 2",
        SUBNETS,
    )
}

/// Applies to the spec, not the field: an absent scheme means internet-facing.
fn fixed_scheme() -> Rule {
    let scheme = |object: &str| {
        format!(
            "(has({object}.scheme) && {object}.scheme != '' ? {object}.scheme : 'internet-facing')"
        )
    };
    Rule::new(format!("{} == {}", scheme("self"), scheme("oldSelf"))).message(FIXED_SCHEME)
}

/// Applies on every change: the rule is as old as its fields, so every stored object satisfies it.
fn certificate_for_https() -> Rule {
    Rule::new("has(self.certificateArn) == (has(self.protocol) && self.protocol == 'HTTPS')")
        .message(CERTIFICATE)
}

fn policy_for_https() -> Rule {
    Rule::new("!has(self.sslPolicy) || (has(self.protocol) && self.protocol == 'HTTPS')")
        .message(POLICY)
}

fn public_addresses() -> Rule {
    rule_over(
        &["scheme", "ipAddressType"],
        "!(has(self.scheme) && self.scheme == 'internal' && has(self.ipAddressType) && \
         self.ipAddressType == 'dualstack-without-public-ipv4')",
        PUBLIC_ONLY,
    )
}

/// Applies on create only: at the root, the rule would otherwise block all changes of an older object, even its deletion.
fn name_of_a_load_balancer() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || (self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,26}[a-z0-9])?$') && \
         !(self.metadata.name + '-').startsWith('internal-'))",
    )
    .message(NAME_RULE)
    .optional_old_self(true)
}

super::kind::kind!(MyIngress, MyIngressSpec, MyIngressStatus, finalizer: FINALIZER);
