//! Ports of the Service.

use std::borrow::Cow;

use kube::KubeSchema;
use kube::core::Rule;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// CEL expression for the name of a container's port (`IANA_SVC_NAME`): at most 15 letters, digits and hyphens, no hyphen at an end
/// or beside another, and at least one letter.
///
/// The expression compares single characters: Kubernetes 1.33 ignores the `maxLength` of a field that may be a string or a number,
/// assumes that the field is as long as a request, and rejects a regular expression and `==` as too costly.
macro_rules! port_name {
    () => {
        "self.size() <= 15 \
         && [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].all(i, i >= self.size() \
         || self.charAt(i) >= 'a' && self.charAt(i) <= 'z' || self.charAt(i) >= '0' && self.charAt(i) <= '9' \
         || self.charAt(i) == '-' && i > 0 && i < self.size() - 1 && self.charAt(i - 1) != '-') \
         && [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14].exists(i, i < self.size() \
         && self.charAt(i) >= 'a' && self.charAt(i) <= 'z')"
    };
}

/// A port of the Service, as in core/v1 ServicePort. Empty strings and zeros count as absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["port"]))]
pub struct Port {
    /// Name of the port. Required if there are several ports.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (
        "self == '' || !format.dns1123Label().validate(self).hasValue()",
        "write a port's name in lower-case letters, digits and '-', such as http",
    ))]
    pub name: String,
    /// Port of the Service, 1 to 65535.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i64,
    /// Port of the container, by number or name. A name becomes the name of the container's port with the number `port`.
    /// Defaults to `port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        concat!("type(self) in [int] ? self >= 0 && self <= 65535 : self == '' || ", port_name!()),
        TARGET_PORT,
    ))]
    pub target_port: Option<TargetPort>,
    /// Port on each node; not with `serviceType: ClusterIP`. Defaults to a port that Kubernetes assigns and the operator keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub node_port: Option<i64>,
    /// Transport protocol: `TCP`, `UDP` or `SCTP`. Defaults to `TCP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = ("self in ['', 'TCP', 'UDP', 'SCTP']", PROTOCOL))]
    pub protocol: String,
    /// Application protocol, such as `kubernetes.io/h2c`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = (
        "self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",
        "write a protocol's name, such as http, or with a domain before it, such as kubernetes.io/h2c",
    ))]
    pub app_protocol: Option<String>,
}

/// Port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// Number of the port. Kubernetes' type holds 32 bits, but the original CRD accepted larger numbers.
    Number(i64),
    /// Name of the port.
    Name(String),
}

impl JsonSchema for TargetPort {
    fn schema_name() -> Cow<'static, str> {
        "TargetPort".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 63 })
    }
}

/// Default protocol of a port.
pub const TCP: &str = "TCP";

impl Port {
    /// Returns the protocol or its default.
    pub fn protocol(&self) -> &str {
        if self.protocol.is_empty() {
            TCP
        } else {
            &self.protocol
        }
    }

    /// Returns the target port, if set.
    pub fn target(&self) -> Option<&TargetPort> {
        self.target_port.as_ref().filter(|target| match target {
            TargetPort::Number(number) => *number != 0,
            TargetPort::Name(name) => !name.is_empty(),
        })
    }

    /// Returns the node port, if set.
    pub fn node_port(&self) -> Option<i64> {
        self.node_port.filter(|port| *port != 0)
    }
}

/// Message for an invalid target port.
const TARGET_PORT: &str = "write targetPort as a number from 1 to 65535, or as a name of at most 15 lower-case letters, \
    digits and single '-' with a letter in it, such as http";
/// Message for an unknown protocol.
const PROTOCOL: &str = "write protocol: TCP, UDP or SCTP";

/// Maximum number of ports. The rules for all ports accept a longer list: `maxItems` rejects a new list, and an older list would
/// exceed the cost limit of rules at runtime.
pub const MAX_PORTS: usize = 64;

/// Message of [`named`].
pub const PORT_NAMES_REQUIRED: &str =
    "with several ports, each port needs a name: add name, such as name: http";
/// Message of [`names_differ`].
pub const PORT_NAMES_UNIQUE: &str = "two ports have the same name: give each its own name";
/// Message of [`ports_differ`].
pub const PORTS_UNIQUE: &str =
    "the same port is listed twice: remove one, or give it another protocol";
/// Message of [`node_ports_differ`].
pub const NODE_PORTS_UNIQUE: &str =
    "the same nodePort is listed twice: change one, or remove it so that Kubernetes assigns one";
/// Message of [`one_protocol_a_name`].
pub const ONE_PROTOCOL_PER_NAME: &str = "a targetPort's name means one port of one protocol: write a name for each protocol, or the number";

/// CEL expression for "the ports `p` and `q` have the same protocol".
const SAME_PROTOCOL: &str = "(has(p.protocol) && p.protocol != '' ? p.protocol : 'TCP') == (has(q.protocol) && q.protocol != '' ? q.protocol : 'TCP')";

/// Returns the rule that each of several ports has a name.
pub fn named() -> Rule {
    let rule = format!(
        "self.size() < 2 || self.size() > {MAX_PORTS} || self.all(p, has(p.name) && p.name != '')"
    );
    Rule::new(rule).message(PORT_NAMES_REQUIRED)
}

/// Returns the rule that no two names are equal.
pub fn names_differ() -> Rule {
    let rule = format!(
        "self.size() > {MAX_PORTS} || self.all(p, !has(p.name) || p.name == '' || self.exists_one(q, has(q.name) && q.name == p.name))"
    );
    Rule::new(rule).message(PORT_NAMES_UNIQUE)
}

/// Returns the rule that no two ports of one protocol are equal.
pub fn ports_differ() -> Rule {
    let rule = format!(
        "self.size() > {MAX_PORTS} || self.all(p, self.exists_one(q, q.port == p.port && {SAME_PROTOCOL}))"
    );
    Rule::new(rule).message(PORTS_UNIQUE)
}

/// Returns the rule that no two node ports of one protocol are equal.
pub fn node_ports_differ() -> Rule {
    let rule = format!(
        "self.size() > {MAX_PORTS} || self.all(p, !has(p.nodePort) || p.nodePort == 0 || self.exists_one(q, has(q.nodePort) && q.nodePort == p.nodePort && {SAME_PROTOCOL}))"
    );
    Rule::new(rule).message(NODE_PORTS_UNIQUE)
}

/// Returns the rule that a named port of the container has one protocol.
pub fn one_protocol_a_name() -> Rule {
    let rule = format!(
        "self.size() > {MAX_PORTS} || self.all(p, !has(p.targetPort) || !(type(p.targetPort) in [string]) || p.targetPort == '' || self.all(q, !has(q.targetPort) \
         || !(type(q.targetPort) in [string]) || !(q.targetPort in [p.targetPort]) || {SAME_PROTOCOL}))"
    );
    Rule::new(rule).message(ONE_PROTOCOL_PER_NAME)
}
