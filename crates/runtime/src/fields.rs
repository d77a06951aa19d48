//! Values of an object at the fields that its desired state sets. Pure.
//!
//! Lists are matched item by item where the object's own `managedFields` name the keys
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy>), so that another manager's item
//! does not count as a difference, and as a whole where `managedFields` treat the list as atomic.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::field_set::{IdentifiedItems, ListElements, covers_content, fields, find};

/// Path of a field, in the form of `managedFields`: `f:spec`, `f:ports`, `k:{"port":80,"protocol":"TCP"}`.
pub type Path = Vec<String>;

/// Maximum number of fields named in a message.
const MAX_NAMED: usize = 5;
/// Fields whose values a message may show. Values of environment variables, arguments, annotations and `ConfigMap`s may
/// be secrets.
const VISIBLE: [&str; 14] = [
    "averageUtilization",
    "containerPort",
    "cpu",
    "image",
    "imagePullPolicy",
    "maxReplicas",
    "memory",
    "minReplicas",
    "nodePort",
    "port",
    "protocol",
    "replicas",
    "targetPort",
    "type",
];
/// Longest value that a message shows, in characters.
const MAX_VISIBLE: usize = 64;

/// Values of an object at some fields; null where a field is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    values: BTreeMap<Path, Value>,
}

/// Returns an object without its status and without the fields that `managedFields` never cover.
pub fn content(object: &impl Serialize) -> Value {
    // Serialization cannot fail: the object came from JSON.
    let mut object = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, _| name != "apiVersion" && name != "kind" && name != "status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| {
            matches!(
                name.as_str(),
                "labels" | "annotations" | "ownerReferences" | "finalizers"
            )
        });
    }
    object
}

/// Returns the values of `object` at the fields that `desired` sets. Both are [contents](content); `managed` are the
/// object's `managedFields`.
pub fn project(object: &Value, desired: &Value, managed: &[ManagedFieldsEntry]) -> Projection {
    let sets: Vec<_> = managed
        .iter()
        .filter(|entry| covers_content(entry))
        .map(fields)
        .collect();
    let mut projection = Projection::default();
    projection.walk(&mut Vec::new(), Some(object), desired, &sets);
    projection
}

/// Returns all values of a [content].
pub fn all(content: &Value) -> Projection {
    project(content, content, &[])
}

/// Returns whether `object`, written by `manager`, has every value of `desired` as the apiserver stores it. An atomic
/// field may also contain the apiserver's defaults, unless another manager has written the field since.
pub fn matches(
    object: &Value,
    desired: &Value,
    managed: &[ManagedFieldsEntry],
    manager: &str,
) -> bool {
    let expected = project(desired, desired, managed);
    let is_owned_by_others = |path: &Path| {
        managed.iter().any(|entry| {
            entry.manager.as_deref() != Some(manager)
                && covers_content(entry)
                && find(fields(entry), path).is_some()
        })
    };
    project(object, desired, managed)
        .values
        .iter()
        .all(|(path, value)| {
            // A missing or repeated item has the path of the item, while the desired item has the paths of its fields.
            let Some(expected) = expected.values.get(path) else {
                return false;
            };
            same(path, expected, value) || (is_within(expected, value) && !is_owned_by_others(path))
        })
}

impl Projection {
    /// Returns a digest of the values.
    pub fn digest(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for (path, value) in &self.values {
            (path, value.to_string()).hash(&mut hash);
        }
        hash.finish()
    }

    /// Returns the fields whose values differ. For a field that one side lacks, the fields inside are omitted.
    pub fn differences(&self, other: &Self) -> Vec<Path> {
        let mut differences: Vec<Path> = Vec::new();
        // A path sorts right before the paths inside it.
        let all: BTreeSet<_> = self.values.keys().chain(other.values.keys()).collect();
        for path in all {
            let is_inside = differences
                .last()
                .is_some_and(|outer| path.starts_with(outer));
            if !is_inside && self.values.get(path) != other.values.get(path) {
                differences.push(path.clone());
            }
        }
        differences
    }

    /// Returns the value at the field, if it is short and cannot be a secret.
    pub(crate) fn visible_value(&self, path: &Path) -> Option<String> {
        let name = path.last()?.strip_prefix("f:")?;
        // The keys of ConfigMaps and annotations may have any name.
        let is_spec =
            path.first()? == "f:spec" && !path.iter().any(|element| element == "f:annotations");
        let text = match self.values.get(path)? {
            _ if !is_spec || !VISIBLE.contains(&name) => return None,
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return None,
        };
        (text.chars().count() <= MAX_VISIBLE && !text.contains(char::is_control)).then_some(text)
    }

    fn walk(&mut self, path: &mut Path, live: Option<&Value>, desired: &Value, sets: &[&Value]) {
        let live = live.unwrap_or(&Value::Null);
        match (desired, live) {
            (Value::Null, _) => {}
            (Value::Object(desired), Value::Object(live))
                if !desired.is_empty() && !is_atomic(sets) =>
            {
                for (name, desired) in desired {
                    self.step(path, format!("f:{name}"), live.get(name), desired, sets);
                }
            }
            (Value::Array(desired), Value::Array(live)) => self.items(path, live, desired, sets),
            // An empty desired object only requires that the object exists.
            (Value::Object(desired), Value::Object(_)) if desired.is_empty() => {
                self.set(path, json!({}));
            }
            _ => self.set(path, live.clone()),
        }
    }

    fn step(
        &mut self,
        path: &mut Path,
        element: String,
        live: Option<&Value>,
        desired: &Value,
        sets: &[&Value],
    ) {
        let within: Vec<_> = sets.iter().filter_map(|set| set.get(&element)).collect();
        path.push(element);
        self.walk(path, live, desired, &within);
        path.pop();
    }

    fn items(&mut self, path: &mut Path, live: &[Value], desired: &[Value], sets: &[&Value]) {
        let has_values = || {
            let mut sets = sets.iter().filter_map(|set| set.as_object());
            sets.any(|set| set.keys().any(|element| element.starts_with("v:")))
        };
        if let Some(elements) = ListElements::new(sets) {
            let elements: Vec<_> = desired.iter().map(|item| elements.of(item)).collect();
            let items = IdentifiedItems::new(elements.iter().map(String::as_str), live);
            for (element, desired) in elements.into_iter().zip(desired) {
                let all = items.get(&element);
                if all.len() > 1 {
                    // An update may repeat an item; of two environment variables with one name, the last one counts.
                    // Several desired items may have this element.
                    path.push(element);
                    self.values
                        .entry(path.clone())
                        .or_insert_with(|| json!(all));
                    path.pop();
                } else {
                    self.step(path, element, all.first().copied(), desired, sets);
                }
            }
        } else if has_values() {
            let items: HashSet<&Value> = live.iter().collect();
            for desired in desired {
                let live = items.get(desired).copied();
                self.step(path, format!("v:{desired}"), live, desired, sets);
            }
        } else if is_atomic(sets) || live.len() != desired.len() {
            self.set(path, json!(live));
        } else {
            for (index, (live, desired)) in live.iter().zip(desired).enumerate() {
                self.step(path, format!("i:{index}"), Some(live), desired, &[]);
            }
        }
    }

    fn set(&mut self, path: &Path, value: Value) {
        self.values.insert(path.clone(), value);
    }
}

/// Returns whether the field is atomic: a manager owns the field, and no manager owns a field inside.
fn is_atomic(sets: &[&Value]) -> bool {
    let inside = |set: &Map<String, Value>| set.keys().any(|element| element != ".");
    let mut all = sets.iter().filter_map(|set| set.as_object());
    all.clone().any(Map::is_empty) && !all.any(inside)
}

/// Returns whether two values are equal to the apiserver, which omits empty values and normalizes quantities.
fn same(path: &Path, desired: &Value, live: &Value) -> bool {
    if desired == live || (is_empty(desired) && is_empty(live)) {
        return true;
    }
    let is_quantity = path
        .iter()
        .rev()
        .nth(1)
        .is_some_and(|list| list == "f:requests" || list == "f:limits");
    match (desired.as_str(), live.as_str()) {
        (Some(desired), Some(live)) if is_quantity => {
            quantity(desired).is_some_and(|it| Some(it) == quantity(live))
        }
        _ => false,
    }
}

/// Returns whether `live` contains all of `desired`.
pub(super) fn is_within(desired: &Value, live: &Value) -> bool {
    match (desired, live) {
        (Value::Object(desired), Value::Object(live)) => desired
            .iter()
            .all(|(name, desired)| is_within(desired, live.get(name).unwrap_or(&Value::Null))),
        (Value::Array(desired), Value::Array(live)) => {
            desired.len() == live.len()
                && desired
                    .iter()
                    .zip(live)
                    .all(|(desired, live)| is_within(desired, live))
        }
        _ => desired == live || (is_empty(desired) && is_empty(live)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Parses a quantity into billionths, the smallest unit of the API
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>); `None` if the quantity is
/// finer or too large.
fn quantity(text: &str) -> Option<i128> {
    let number_ends = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (base, exponent) = match suffix {
        "n" => (10, -9),
        "u" => (10, -6),
        "m" => (10, -3),
        "" => (10, 0),
        "k" => (10, 3),
        "M" => (10, 6),
        "G" => (10, 9),
        "T" => (10, 12),
        "P" => (10, 15),
        "E" => (10, 18),
        "Ki" => (2, 10),
        "Mi" => (2, 20),
        "Gi" => (2, 30),
        "Ti" => (2, 40),
        "Pi" => (2, 50),
        "Ei" => (2, 60),
        _ => (10, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    let (two, ten) = if base == 2 {
        (exponent, 9)
    } else {
        (0, exponent.checked_add(9)?)
    };
    let ten = ten.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(2_i128.checked_pow(two.unsigned_abs())?)?;
    let factor = 10_i128.checked_pow(ten.unsigned_abs())?;
    if ten >= 0 {
        scaled.checked_mul(factor)
    } else {
        (scaled % factor == 0).then_some(scaled / factor)
    }
}

/// Formats the values that `before` [makes visible](Projection::visible_value) as `spec.replicas=5,
/// spec.type=NodePort`; only the first few if there are many.
pub(crate) fn old_values(paths: &[Path], before: &Projection) -> String {
    let values = paths
        .iter()
        .filter_map(|path| Some(format!("{}={}", name(path), before.visible_value(path)?)));
    values.take(MAX_NAMED).collect::<Vec<_>>().join(", ")
}

/// Formats fields as `spec.replicas and spec.template.spec.containers[name=web].image`; only the first few if there are
/// many.
pub(crate) fn format_paths(paths: &[Path]) -> String {
    let mut named: Vec<_> = paths
        .iter()
        .take(MAX_NAMED)
        .map(Vec::as_slice)
        .map(name)
        .collect();
    if paths.len() > MAX_NAMED {
        named.push(format!("{} more", paths.len() - MAX_NAMED));
    }
    match named.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => named.concat(),
    }
}

fn name(path: &[String]) -> String {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    path.iter()
        .enumerate()
        .fold(String::new(), |name, (index, element)| {
            let (kind, rest) = element.split_once(':').unwrap_or_default();
            match serde_json::from_str::<Map<String, Value>>(rest) {
                Ok(keys) if kind == "k" => {
                    let keys: Vec<_> = keys
                        .iter()
                        .map(|(name, value)| format!("{name}={}", text(value)))
                        .collect();
                    format!("{name}[{}]", keys.join(","))
                }
                _ if kind == "f" && rest.chars().all(|c| c.is_ascii_alphanumeric()) => {
                    format!("{name}{}{rest}", if index == 0 { "" } else { "." })
                }
                _ => format!("{name}[{rest}]"),
            }
        })
}

#[cfg(test)]
mod tests;
