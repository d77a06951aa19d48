//! `MyIngress`: an AWS Application Load Balancer, from its subnets and its scheme.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over};

/// The kind's API group.
pub const GROUP: &str = "demo.rtfm.co.ua";
/// Finalizer: the balancer lies in AWS, where no garbage collection of Kubernetes reaches it.
pub const FINALIZER: &str = "quartermaster.dev/load-balancer";

/// Why a name will not do, and what will (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_CreateLoadBalancer.html>).
pub const NAME: &str = "take a name of at most 28 lower-case letters, digits and '-', with a letter or digit at both ends, which is not internal \
    and does not start with internal-: the load balancer is called NAME-alb, and AWS lets it have 32 characters";
/// What to say where there are too few subnets.
pub const SUBNETS: &str =
    "give at least two subnets, each in another availability zone: a load balancer takes no less";
/// What to say of something else than a subnet's ID.
pub const BAD_SUBNET: &str = "write the IDs of subnets, such as subnet-0123456789abcdef0";
/// What to say of a subnet that is named twice.
pub const TWICE: &str = "name each one once";
/// What to say of another scheme.
pub const BAD_SCHEME: &str = "write scheme: internet-facing, or scheme: internal";
/// What to say of a scheme that changes.
pub const FIXED_SCHEME: &str = "the scheme of a load balancer cannot change: delete this MyIngress and create it anew, or create one of another name";
/// What to say of another address type.
pub const BAD_ADDRESSES: &str = "write ipAddressType: ipv4, ipAddressType: dualstack, or ipAddressType: dualstack-without-public-ipv4";
/// What to say of an internal balancer that would need no public addresses to begin with.
pub const PUBLIC_ONLY: &str = "ipAddressType: dualstack-without-public-ipv4 is for scheme: internet-facing alone; write ipAddressType: dualstack";
/// What to say of something else than a security group's ID.
pub const BAD_GROUP: &str = "write the IDs of security groups, such as sg-0123456789abcdef0";
/// What to say of a tag's key that is too long, or empty.
pub const LONG_KEY: &str = "write tags whose keys have 1 to 128 characters";
/// What to say of a tag with other characters
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_Tag.html>).
pub const BAD_TAG: &str =
    "write tags of letters, digits, spaces and the characters _ . : / = + - @";
/// What to say of a tag that is not the user's to set.
pub const OUR_TAG: &str = "take other keys: those that begin with aws: are for AWS, ManagedBy and those that begin with quartermaster.dev/ \
    say whose the load balancer is, and by those under k8s.aws/ and kubernetes.io/ other controllers take it for theirs";

/// What to say of another protocol.
pub const BAD_PROTOCOL: &str = "write protocol: HTTP, or protocol: HTTPS with a certificateArn";
/// What to say of HTTPS without a certificate, and of a certificate without HTTPS.
pub const CERTIFICATE: &str = "protocol: HTTPS needs certificateArn, the ARN of a certificate in ACM or IAM; protocol: HTTP takes none";
/// What to say of a policy without HTTPS.
pub const POLICY: &str = "sslPolicy is for protocol: HTTPS alone: take it out";
/// What to say of something else than an ARN.
pub const BAD_CERTIFICATE: &str =
    "write the ARN of a certificate, such as arn:aws:acm:eu-central-1:123456789012:certificate/...";
/// What to say of a path that is none.
pub const BAD_PATH: &str = "write a path that begins with / and has no spaces, such as /healthz";
/// What to say of a name that no Service has.
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
    // An object from before there was a schema may lack a spec. One that cannot be read would stop the watch of all.
    // Named, because the derived schema is that of a type beside this one, which has no default of its own.
    attr = "cfg_attr(all(), serde(default = \"MyIngress::default\"))",
    validation = name_of_a_balancer(),
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
    /// IDs of the subnets that it has an address in: at least two, each in another availability zone, all in one VPC.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "items" = { "type": "string", "maxLength": 64 }))]
    #[x_kube(
        validation = ("self.all(subnet, subnet.matches('^subnet-[0-9a-z]+$'))", BAD_SUBNET),
        validation = ("self.all(subnet, self.exists_one(other, other == subnet))", TWICE),
    )]
    pub subnets: Vec<String>,
    /// `internet-facing` (unless given) or `internal`. It cannot change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['', 'internet-facing', 'internal']", BAD_SCHEME))]
    pub scheme: String,
    /// IDs of its security groups. Unless given AWS takes the VPC's default group, and whatever is set there stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "items" = { "type": "string", "maxLength": 64 }))]
    #[x_kube(
        validation = ("self.all(group, group.matches('^sg-[0-9a-z]+$'))", BAD_GROUP),
        validation = ("self.all(group, self.exists_one(other, other == group))", TWICE),
    )]
    pub security_groups: Vec<String>,
    /// `ipv4`, `dualstack` or `dualstack-without-public-ipv4`. Unless given it is created with `ipv4`, and whatever is set there
    /// stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['ipv4', 'dualstack', 'dualstack-without-public-ipv4']", BAD_ADDRESSES))]
    pub ip_address_type: Option<String>,
    /// Tags of the balancer beside those that say whose it is. Tags that others set stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 40, "additionalProperties" = { "type": "string", "maxLength": 256 }))]
    #[x_kube(
        validation = ("self.all(key, size(key) >= 1 && size(key) <= 128)", LONG_KEY),
        validation = (
            "self.all(key, !key.lowerAscii().startsWith('aws:') && !key.startsWith('quartermaster.dev/') && key != 'ManagedBy' \
             && !key.lowerAscii().matches('^([^/]*[.])?(k8s[.]aws|kubernetes[.]io)/'))",
            OUR_TAG,
        ),
        validation = (r"self.all(key, self[key].matches(r'^[\p{L}\p{Z}\p{N}_.:/=+@-]*$') && key.matches(r'^[\p{L}\p{Z}\p{N}_.:/=+@-]*$'))", BAD_TAG),
    )]
    pub tags: BTreeMap<String, String>,
    /// What it listens on, and where that leads; without any it is a balancer that others make listeners for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 8, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port"]))]
    pub listeners: Vec<Listener>,
    /// While true the balancer is left alone; deleting the object still deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec, in bytes, if that was too large to be read.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

impl MyIngressSpec {
    /// The scheme, also where none is given.
    pub fn scheme(&self) -> &str {
        if self.scheme.is_empty() {
            "internet-facing"
        } else {
            &self.scheme
        }
    }

    /// The address type that it is created with.
    pub fn ip_address_type(&self) -> &str {
        self.ip_address_type.as_deref().unwrap_or("ipv4")
    }
}

/// A port that the balancer listens on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = certificate_for_https(), validation = policy_for_https())]
pub struct Listener {
    /// The port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// `HTTP` (unless given) or `HTTPS`, which needs `certificateArn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['HTTP', 'HTTPS']", BAD_PROTOCOL))]
    pub protocol: Option<String>,
    /// ARN of the certificate of an HTTPS listener, in ACM or IAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = ("self.startsWith('arn:')", BAD_CERTIFICATE))]
    pub certificate_arn: Option<String>,
    /// Security policy of an HTTPS listener. Unless given AWS takes its default, and whatever is set there stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub ssl_policy: Option<String>,
    /// The Service that it leads to.
    pub service: ServiceRef,
    /// Path at which the targets' health is asked for; `/` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (r"self.matches(r'^/\S*$')", BAD_PATH))]
    pub health_check_path: Option<String>,
}

impl Listener {
    /// The protocol, also where none is given.
    pub fn protocol(&self) -> &str {
        self.protocol.as_deref().unwrap_or("HTTP")
    }

    /// The path, also where none is given.
    pub fn health_check_path(&self) -> &str {
        self.health_check_path.as_deref().unwrap_or("/")
    }
}

/// A Service of the same namespace that has a port on the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRef {
    /// Its name.
    #[schemars(length(max = 63))]
    #[x_kube(validation = ("!format.dns1123Label().validate(self).hasValue()", BAD_SERVICE))]
    pub name: String,
    /// Its port, as its `spec.ports` has it.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// How the balancer is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MyIngressStatus {
    /// The balancer, once AWS was asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alb: Option<Alb>,
    /// How each listener is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port"]))]
    pub listeners: Vec<ListenerStatus>,
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; while it is False also `Reconciling` or `Stalled`, with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// The balancer in AWS. None of this proves whose it is: its tags do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Alb {
    /// Its DNS name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// Its Amazon Resource Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arn: Option<String>,
    /// What AWS says of it: `provisioning`, `active`, `active_impaired` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// When AWS was last asked to create it. For a while after that it may be there though AWS does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_requested_at: Option<Time>,
    /// Keys of the tags of the spec that it has, or is about to have: those that the spec drops are taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_tag_keys: Vec<String>,
}

/// How a listener is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// The port.
    pub port: u16,
    /// How many of its targets are healthy, as AWS last said.
    #[serde(default)]
    pub healthy: u32,
    /// How many targets it is to have: one for each node that takes traffic.
    #[serde(default)]
    pub total: u32,
    /// Why no traffic arrives, or why that is not known; empty while some does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When AWS was last asked to create something of it. For a while after that it may be there though AWS does not show it.
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

/// Not on the field: where it is absent, it is internet-facing.
fn fixed_scheme() -> Rule {
    let scheme = |object: &str| {
        format!(
            "(has({object}.scheme) && {object}.scheme != '' ? {object}.scheme : 'internet-facing')"
        )
    };
    Rule::new(format!("{} == {}", scheme("self"), scheme("oldSelf"))).message(FIXED_SCHEME)
}

/// Over two fields, and both are new with this one: no older object can break it.
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

/// On create only: a rule at the root would otherwise keep an older object from everything, its deletion included.
fn name_of_a_balancer() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || (self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,26}[a-z0-9])?$') && \
         !(self.metadata.name + '-').startsWith('internal-'))",
    )
    .message(NAME)
    .optional_old_self(true)
}

super::kind::kind!(MyIngress, MyIngressSpec, MyIngressStatus, finalizer: FINALIZER);
