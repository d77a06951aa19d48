//! Bounds on the lists of an AppService, which keep a spec within 256 KiB.
//!
//! A list of texts has a maximum number of items and a maximum sum of sizes. The rules on sums accept a list with too many items:
//! `maxItems` rejects a new list, and an older list would exceed the cost limit of rules at runtime.

use kube::core::Rule;
use serde_json::{Value, json};

/// Maximum length of a text in characters: an item of a command, or the value of a variable or header.
pub const MAX_TEXT: u32 = 32_768;
/// Maximum number of items of `command`, `args` and `env`.
pub const MAX_TEXTS: usize = 512;
/// Maximum number of items of `envFrom`.
pub const MAX_SOURCES: usize = 32;
/// Maximum number of items of a probe's command and of a probe's headers.
pub const MAX_PROBE_ITEMS: u32 = 64;
/// Maximum number of resources in `requests` or `limits`. With 16, Kubernetes 1.33 rejects [`requests_within_limits`] as too
/// costly.
pub const MAX_RESOURCES: u32 = 12;

const COMMAND_BYTES: usize = 32_768;
const ARGS_BYTES: usize = 49_152;
const ENV_BYTES: usize = 61_440;
const PROBE_BYTES: usize = 4096;
/// Size of the JSON around the strings of an item of `env`.
const ENV_ENTRY_BYTES: usize = 96;
/// Size of the JSON around the strings of a header.
const HEADER_BYTES: usize = 24;

/// Sources in `valueFrom` of an item of `env`, with their string fields.
const REFERENCES: [(&str, &[&str]); 4] = [
    ("configMapKeyRef", &["key", "name"]),
    ("secretKeyRef", &["key", "name"]),
    ("fieldRef", &["apiVersion", "fieldPath"]),
    ("resourceFieldRef", &["containerName", "resource"]),
];

/// Returns the rule for `command`.
pub fn command() -> Rule {
    texts(
        "command",
        MAX_TEXTS,
        COMMAND_BYTES,
        "put a long script into a ConfigMap, or into the image",
    )
}

/// Returns the rule for `args`.
pub fn args() -> Rule {
    texts(
        "args",
        MAX_TEXTS,
        ARGS_BYTES,
        "put a long text into a ConfigMap, or into the image",
    )
}

/// Returns the rule for `env`.
pub fn env() -> Rule {
    let references = REFERENCES.iter().flat_map(|(reference, fields)| {
        fields.iter().map(move |field| {
            format!("has(it.valueFrom.{reference}) && has(it.valueFrom.{reference}.{field}) ? size(it.valueFrom.{reference}.{field}) : 0")
        })
    });
    let references = references
        .map(|size| format!("({size})"))
        .collect::<Vec<_>>()
        .join(" + ");
    let size = format!(
        "{ENV_ENTRY_BYTES} + size(it.name) + (has(it.value) ? size(bytes(it.value)) : 0) + (has(it.valueFrom) ? {references} : 0)"
    );
    Rule::new(sum(MAX_TEXTS, &size, ENV_BYTES)).message(&*format!(
        "env may have {ENV_BYTES} bytes in all, including {ENV_ENTRY_BYTES} for each entry: put the rest into a ConfigMap \
         and name it in envFrom"
    ))
}

/// Returns the rule for an item of `env`.
pub fn one_value() -> Rule {
    Rule::new("!has(self.valueFrom) || !has(self.value) || self.value == ''")
        .message("write value or valueFrom, not both")
}

/// Returns the rule for the name of an item of `env`.
pub fn env_name() -> Rule {
    Rule::new("self.matches('^[ -<>-~]+$')")
        .message("write a name of printable ASCII characters without '=', such as LOG_LEVEL")
}

/// Returns the rule for `valueFrom` of an item of `env`.
pub fn one_source() -> Rule {
    Rule::new(one_of(&REFERENCES.map(|(reference, _)| reference))).message(
        "write one of configMapKeyRef, secretKeyRef, fieldRef and resourceFieldRef, such as \
         secretKeyRef: {name: shop, key: password}",
    )
}

/// Returns the rule for a probe.
pub fn one_handler() -> Rule {
    Rule::new(one_of(&["exec", "httpGet", "tcpSocket", "grpc"])).message(
        "write one of exec, httpGet, tcpSocket and grpc, such as httpGet: {path: /, port: 80}",
    )
}

/// Returns the rule for a liveness or startup probe.
pub fn one_success() -> Rule {
    Rule::new("!has(self.successThreshold) || self.successThreshold == 1")
        .message("write successThreshold: 1, or remove it: only a readinessProbe accepts another")
        .field_path(".successThreshold")
}

/// Returns the CEL expression for "exactly one of these fields exists".
fn one_of(fields: &[&str]) -> String {
    let exist: Vec<_> = fields
        .iter()
        .map(|field| format!("has(self.{field})"))
        .collect();
    format!("[{}].exists_one(it, it)", exist.join(", "))
}

/// Returns the rule for the names in `requests` or `limits`.
pub fn resource_names() -> Rule {
    Rule::new(format!(
        "size(self) > {MAX_RESOURCES} || self.all(name, name in ['cpu', 'memory', 'ephemeral-storage'] \
         || name.startsWith('hugepages-') || name.contains('/'))"
    ))
    .message(
        "a container has no resource of this name: write cpu, memory, ephemeral-storage, hugepages-SIZE, or a name with a \
         domain, such as nvidia.com/gpu",
    )
}

/// Returns the rule for `resources`.
pub fn requests_within_limits() -> Rule {
    let quantity = |of: &str| {
        format!(
            "(type(self.{of}[name]) in [int] ? quantity('0').add(self.{of}[name]) : quantity(self.{of}[name]))"
        )
    };
    Rule::new(format!(
        "!has(self.requests) || !has(self.limits) || size(self.requests) > {MAX_RESOURCES} \
         || self.requests.all(name, !(name in self.limits) || !{}.isGreaterThan({}))",
        quantity("requests"),
        quantity("limits"),
    ))
    .message("write requests that are not above their limits, such as requests: {cpu: 100m} for limits: {cpu: 1}")
}

/// Returns the rule for the list of this name in a probe, as `x-kubernetes-validations`.
pub fn for_probe_list(field: &str) -> Option<Value> {
    let items = MAX_PROBE_ITEMS as usize;
    let rule = match field {
        "command" => texts(
            "a probe's command",
            items,
            PROBE_BYTES,
            "put a long script into a ConfigMap, or into the image",
        ),
        "httpHeaders" => {
            let size = format!("{HEADER_BYTES} + size(it.name) + size(bytes(it.value))");
            Rule::new(sum(items, &size, PROBE_BYTES)).message(&*format!(
                "a probe's headers may have {PROBE_BYTES} bytes in all: shorten them"
            ))
        }
        _ => return None,
    };
    Some(json!([rule]))
}

fn texts(subject: &str, items: usize, bytes: usize, fix: &str) -> Rule {
    Rule::new(sum(items, "size(bytes(it))", bytes))
        .message(&*format!("{subject} may have {bytes} bytes in all: {fix}"))
}

fn sum(items: usize, size: &str, bytes: usize) -> String {
    format!("size(self) > {items} || self.map(it, {size}).sum() <= {bytes}")
}

/// Returns the rule for the port of the probe of this name: a name must be that of a `targetPort`, because no other port of the
/// container has a name. The rule applies on create and when probe or ports change. The rule uses `in` instead of `==`: Kubernetes
/// 1.33 assumes that a port, which may be a string, is as long as a request, and rejects `==` as too costly.
pub fn probe_port(probe: &str) -> Rule {
    let unchanged = |field: &str| {
        format!(
            "has(self.{field}) == has(oldSelf.value().{field}) && (!has(self.{field}) || self.{field} in [oldSelf.value().{field}])"
        )
    };
    let port_exists = |handler: &str| {
        let port = format!("self.{probe}.{handler}.port");
        format!(
            "(!has(self.{probe}.{handler}) || type({port}) in [int] || (has(self.ports) && (size(self.ports) > {ports} \
             || self.ports.exists(it, has(it.targetPort) && it.targetPort in [{port}]))))",
            ports = super::port::MAX_PORTS,
        )
    };
    let rule = format!(
        "!has(self.{probe}) || ({} && {})",
        port_exists("httpGet"),
        port_exists("tcpSocket")
    );
    let unchanged = format!("{} && {}", unchanged(probe), unchanged("ports"));
    Rule::new(format!("(oldSelf.hasValue() && {unchanged}) || {rule}"))
        .message(&*format!(
            "{probe} names a port that the container does not have: write the port's number, or give a port that name, such as \
             ports: [{{port: 80, targetPort: http}}] for port: http"
        ))
        .optional_old_self(true)
}
