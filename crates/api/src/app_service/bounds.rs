//! Bounds on the lists of an `AppService`, so that a spec stays within 256 KiB.
//!
//! A list of texts is bounded by the number of its items and by the sum of their sizes. The rules on sums pass a list with too
//! many items, because `maxItems` refuses a new one and an older one would exceed what a rule may cost at runtime.

use kube::core::Rule;
use serde_json::{Value, json};

/// Longest text, in characters: a part of a command, a value of the environment or of a header.
pub const MAX_TEXT: u32 = 32_768;
/// Most items of `command`, `args` and `env`.
pub const MAX_TEXTS: usize = 512;
/// Most sources of the environment.
pub const MAX_SOURCES: usize = 32;
/// Most parts of a probe's command, and most headers of a probe.
pub const MAX_PARTS: u32 = 64;
/// Most resources that are requested or limited. With 16, Kubernetes 1.33 refuses [`requests_within_limits`] as too costly.
pub const MAX_RESOURCES: u32 = 12;

const COMMAND_BYTES: usize = 32_768;
const ARGS_BYTES: usize = 49_152;
const ENV_BYTES: usize = 61_440;
const PROBE_BYTES: usize = 4096;
/// Size of what stands around the strings of an entry of `env`, as JSON.
const ENV_ENTRY_BYTES: usize = 96;
/// Size of what stands around a header's strings, as JSON.
const HEADER_BYTES: usize = 24;

/// Texts that an entry of `env` takes from elsewhere.
const REFERENCES: [(&str, &[&str]); 4] = [
    ("configMapKeyRef", &["key", "name"]),
    ("secretKeyRef", &["key", "name"]),
    ("fieldRef", &["apiVersion", "fieldPath"]),
    ("resourceFieldRef", &["containerName", "resource"]),
];

/// Rule over `command`.
pub fn command() -> Rule {
    texts(
        "command",
        MAX_TEXTS,
        COMMAND_BYTES,
        "put a long script into a ConfigMap, or into the image",
    )
}

/// Rule over `args`.
pub fn args() -> Rule {
    texts(
        "args",
        MAX_TEXTS,
        ARGS_BYTES,
        "put a long text into a ConfigMap, or into the image",
    )
}

/// Rule over `env`.
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
        "env may have {ENV_BYTES} bytes in all, with {ENV_ENTRY_BYTES} for the form of each entry: put the rest into a ConfigMap \
         and name it in envFrom"
    ))
}

/// Rule over an entry of `env`.
pub fn one_value() -> Rule {
    Rule::new("!has(self.valueFrom) || !has(self.value) || self.value == ''")
        .message("write value or valueFrom, not both")
}

/// Rule over the name of an entry of `env`.
pub fn env_name() -> Rule {
    Rule::new("self.matches('^[ -<>-~]+$')")
        .message("write a name of printable ASCII characters without '=', such as LOG_LEVEL")
}

/// Rule over `valueFrom` of an entry of `env`.
pub fn one_source() -> Rule {
    Rule::new(one_of(&REFERENCES.map(|(reference, _)| reference))).message(
        "write one of configMapKeyRef, secretKeyRef, fieldRef and resourceFieldRef, such as \
         secretKeyRef: {name: shop, key: password}",
    )
}

/// Rule over a probe.
pub fn one_handler() -> Rule {
    Rule::new(one_of(&["exec", "httpGet", "tcpSocket", "grpc"])).message(
        "write one of exec, httpGet, tcpSocket and grpc, such as httpGet: {path: /, port: 80}",
    )
}

/// Rule over a liveness or startup probe.
pub fn one_success() -> Rule {
    Rule::new("!has(self.successThreshold) || self.successThreshold == 1")
        .message("write successThreshold: 1, or remove it: only a readinessProbe takes another")
        .field_path(".successThreshold")
}

/// Returns CEL for "exactly one of these fields is there".
fn one_of(fields: &[&str]) -> String {
    let there: Vec<_> = fields
        .iter()
        .map(|field| format!("has(self.{field})"))
        .collect();
    format!("[{}].exists_one(it, it)", there.join(", "))
}

/// Rule over the names of `requests` or `limits`.
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

/// Rule over `resources`.
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

/// The rule over a list within a probe, as `x-kubernetes-validations`, if the field of this name is one.
pub fn of_part(field: &str) -> Option<Value> {
    let items = MAX_PARTS as usize;
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

fn texts(what: &str, items: usize, bytes: usize, instead: &str) -> Rule {
    Rule::new(sum(items, "size(bytes(it))", bytes))
        .message(&*format!("{what} may have {bytes} bytes in all: {instead}"))
}

fn sum(items: usize, size: &str, bytes: usize) -> String {
    format!("size(self) > {items} || self.map(it, {size}).sum() <= {bytes}")
}

/// Rules over the probe of this name: a named port has to be the name of a `targetPort`, because no other port of the
/// container has a name. The rule binds on create and when probe or ports change. `in` takes the place of `==`: Kubernetes 1.33
/// takes a port, which may be a string, to be as long as a request, and refuses `==` as too costly.
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
