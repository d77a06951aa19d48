//! Ownership of an object's fields, from its `managedFields`
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>).
//!
//! Ownership decides which fields an adoption or a correction transfers from other managers. Values decide whether an
//! object has drifted ([`fields`](super::fields)).

use std::collections::{BTreeSet, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use serde_json::{Map, Value};

use super::field_set::{IdentifiedItems, ListElements, covers_content, fields, find};
use super::fields::{self as values, Path, content};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Returns whether the entries must be [upgraded] before an apply, because
/// - `manager` has applied nothing yet, and an apply never removes fields of an update;
/// - `manager` has applied one of the `released` fields; or
/// - an update by `manager` still owns a field that is no longer `released`.
pub(crate) fn needs_upgrade(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    released: &[&[&str]],
) -> bool {
    let own = |kind| {
        managed
            .iter()
            .find(|entry| is_of(entry, manager) && operation(entry) == kind)
            .map(fields)
    };
    let Some(applied) = own(APPLY) else {
        return true;
    };
    let mut updated = own(UPDATE).cloned().unwrap_or_default();
    for path in released {
        take(&mut updated, path);
    }
    released.iter().any(|path| find(applied, path).is_some())
        || updated.as_object().is_some_and(|rest| !rest.is_empty())
}

/// Returns the entries after an upgrade or adoption:
/// - The fields of `desired` that other managers updated become applied fields of `manager`. The next apply therefore
///   removes those that it no longer sets.
/// - So do all fields of the creator (the manager whose update owns most fields of `desired`) of an object that the owner
///   owned before (`is_owned`): an earlier program created this object for the same owner.
/// - The `released` fields become an update by `manager`, and keep their values until another manager writes them.
/// - All other fields stay. If `manager` already has an entry, other managers keep all their fields, because they have
///   written these fields since.
pub fn upgraded(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    desired: &Value,
    released: &[&[&str]],
    is_owned: bool,
) -> Vec<ManagedFieldsEntry> {
    let api_version = desired["apiVersion"].as_str().unwrap_or_default();
    let desired = content(desired);
    let covers = |entry: &ManagedFieldsEntry| {
        let here = entry.subresource.as_deref().unwrap_or_default().is_empty();
        here && entry.api_version.as_deref() == Some(api_version)
    };
    let has_own = managed
        .iter()
        .any(|entry| covers(entry) && is_of(entry, manager));
    // The entry with the most fields of the desired state counts as the creator's.
    let desired_fields = |entry| {
        take_shared(&mut fields(entry).clone(), &desired)
            .as_ref()
            .map_or(0, leaves)
    };
    let others = managed
        .iter()
        .enumerate()
        .filter(|(_, entry)| !has_own && covers(entry) && operation(entry) == UPDATE);
    let creator = others
        .filter(|_| is_owned)
        .map(|(at, entry)| (desired_fields(entry), at))
        .filter(|(count, _)| *count > 0)
        .max()
        .map(|(_, at)| at);
    let mut applied = Value::Object(Map::new());
    let mut at: Option<Time> = None;
    let mut entries = Vec::new();
    for (number, entry) in managed.iter().enumerate() {
        let mut entry = entry.clone();
        let taken = if !covers(&entry) {
            None
        } else if is_of(&entry, manager) || Some(number) == creator {
            entry.fields_v1.take().map(|fields| fields.0)
        } else if !has_own && operation(&entry) == UPDATE {
            entry
                .fields_v1
                .as_mut()
                .and_then(|fields| take_shared(&mut fields.0, &desired))
        } else {
            None
        };
        if let Some(taken) = taken {
            join(&mut applied, taken);
            at = at.max(entry.time.clone());
        }
        // An entry with an empty set would own the whole object.
        if fields(&entry)
            .as_object()
            .is_some_and(|fields| !fields.is_empty())
        {
            entries.push(entry);
        }
    }
    let mut kept = Value::Object(Map::new());
    for path in released {
        if let Some(field) = take(&mut applied, path) {
            join(&mut kept, nested(path, field));
        }
    }
    let entry = |operation: &str, fields: Value| ManagedFieldsEntry {
        api_version: Some(api_version.to_owned()),
        fields_type: Some("FieldsV1".into()),
        fields_v1: Some(FieldsV1(fields)),
        manager: Some(manager.to_owned()),
        operation: Some(operation.to_owned()),
        subresource: None,
        time: at.clone(),
    };
    entries.push(entry(APPLY, applied));
    if kept.as_object().is_some_and(|kept| !kept.is_empty()) {
        entries.push(entry(UPDATE, kept));
    }
    entries
}

/// Returns the entries after the fields at `paths`, whoever owns them, became applied fields of `manager`, so that the
/// next apply removes them. Returns `None` if they already are, or if `manager` has applied nothing.
pub(crate) fn claimed(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    paths: &[Path],
) -> Option<Vec<ManagedFieldsEntry>> {
    let mut entries = managed.to_vec();
    let own = entries
        .iter_mut()
        .find(|entry| is_of(entry, manager) && operation(entry) == APPLY)?;
    let applied = &mut own.fields_v1.as_mut()?.0;
    let before = applied.clone();
    for path in paths {
        join(applied, nested(path, Value::Object(Map::new())));
    }
    (*applied != before).then_some(entries)
}

/// Returns the entries that own a field at `path`.
pub fn owners<'a>(
    managed: &'a [ManagedFieldsEntry],
    path: &[impl AsRef<str>],
) -> impl Iterator<Item = &'a ManagedFieldsEntry> {
    managed
        .iter()
        .filter(move |entry| find(fields(entry), path).is_some())
}

/// Returns whether `manager` owns a field at `path`.
pub fn is_owned_by(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    path: &[impl AsRef<str>],
) -> bool {
    owners(managed, path).any(|entry| is_of(entry, manager))
}

/// Returns whether `manager`, and no other manager, owns the field at `path`.
pub fn is_owned_only_by(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    path: &[impl AsRef<str>],
) -> bool {
    is_owned_by(managed, manager, path)
        && owners(managed, path).all(|entry| entry.manager.as_deref() == Some(manager))
}

/// Returns whether `manager` owns this label, as far as `managedFields` say which labels it owns.
pub(crate) fn may_own_label(managed: &[ManagedFieldsEntry], manager: &str, label: &str) -> bool {
    let own = managed.iter().filter(|entry| is_of(entry, manager));
    let mut labels = own
        .filter_map(|entry| find(fields(entry), &["f:metadata", "f:labels"]))
        .peekable();
    let field = format!("f:{label}");
    labels.peek().is_none() || labels.any(|labels| labels.get(&field).is_some())
}

/// Fields taken from other managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenFields {
    /// The taken fields.
    pub fields: BTreeSet<Path>,
    /// Managers that owned these fields.
    pub managers: BTreeSet<String>,
}

/// Transfer of fields from other managers.
#[derive(Debug, PartialEq)]
pub(crate) struct Transfer {
    /// The `managedFields` after the transfer.
    pub entries: Vec<ManagedFieldsEntry>,
    /// Transferred fields.
    pub taken: TakenFields,
}

/// Transfers these fields from all other managers to `manager`, which applied the object, so that the next apply
/// removes those that it does not set; `None` if no other manager owns any of them.
pub(crate) fn transfer(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    paths: &BTreeSet<Path>,
) -> Option<Transfer> {
    let mut entries = managed.to_vec();
    let own = entries
        .iter()
        .position(|entry| is_of(entry, manager) && operation(entry) == APPLY)?;
    let api_version = entries[own].api_version.clone();
    let mut foreign_fields = Value::Object(Map::new());
    let (mut fields_taken, mut managers) = (BTreeSet::new(), BTreeSet::new());
    for (index, entry) in entries.iter_mut().enumerate() {
        let is_own = index == own;
        if is_own || entry.api_version != api_version || !covers_content(entry) {
            continue;
        }
        let name = entry.manager.clone().unwrap_or_default();
        let Some(FieldsV1(set)) = &mut entry.fields_v1 else {
            continue;
        };
        for path in paths {
            let elements: Vec<&str> = path.iter().map(String::as_str).collect();
            if let Some(field) = take(set, &elements) {
                join(&mut foreign_fields, nested(&elements, field));
                fields_taken.insert(path.clone());
                managers.insert(name.clone());
            }
        }
    }
    if let Some(FieldsV1(applied)) = entries[own].fields_v1.as_mut() {
        join(applied, foreign_fields);
    }
    // An entry with an empty set would own the whole object.
    entries.retain(|entry| {
        fields(entry)
            .as_object()
            .is_none_or(|fields| !fields.is_empty())
    });
    let taken = TakenFields {
        fields: fields_taken,
        managers,
    };
    (!taken.fields.is_empty()).then_some(Transfer { entries, taken })
}

/// Returns the last writer of these fields other than `manager`: an owner of one of them. `managedFields` do not cover
/// removed fields, so without an owner the writer is a manager that wrote another item of the same list after `manager`
/// did.
pub(crate) fn last_writer<'a>(
    managed: &'a [ManagedFieldsEntry],
    manager: &str,
    paths: &[Path],
) -> Option<&'a str> {
    let (own, others): (Vec<_>, Vec<_>) = managed
        .iter()
        .filter(|entry| covers_content(entry))
        .partition(|entry| entry.manager.as_deref() == Some(manager));
    let last = own.iter().filter_map(|entry| entry.time.as_ref()).max();
    let holds =
        |entry: &&ManagedFieldsEntry| paths.iter().any(|path| find(fields(entry), path).is_some());
    let is_beside = |entry: &&ManagedFieldsEntry| {
        // A renumbered item is in the same list as the removed item; in a map, a neighbour is no evidence.
        let beside = |path: &Path| match path.split_last() {
            Some((item, list)) if item.starts_with("k:") => find(fields(entry), list).is_some(),
            _ => false,
        };
        entry.time.as_ref() >= last && paths.iter().any(beside)
    };
    let newest = |of: &dyn Fn(&&ManagedFieldsEntry) -> bool| {
        others
            .iter()
            .copied()
            .filter(|entry| of(entry))
            .max_by_key(|entry| entry.time.clone())
    };
    newest(&holds)
        .or_else(|| newest(&is_beside))?
        .manager
        .as_deref()
}

/// Lists whose items never conflict with other items: sidecars and volumes of other managers stay.
const NON_CONFLICTING_LISTS: [&str; 4] = [
    "f:containers",
    "f:initContainers",
    "f:ephemeralContainers",
    "f:volumes",
];

/// Lists of a container whose items name a volume of the Pod: file systems and block devices.
const VOLUME_USES: [&str; 2] = ["volumeMounts", "volumeDevices"];

/// Step to a field that the apiserver names in an error.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    /// Field of this name.
    Field(String),
    /// List item. The index is unknown, because the error numbers the items of an object that was never stored.
    Item,
}

/// Returns the fields of managers other than `manager` that conflict at `field`, as the apiserver names it where it
/// rejects both values together (`spec.template.spec.containers[0].env[1].valueFrom`): the first of these that exist:
/// - if `field` is the volume's name in a mount, the mounts of volumes that only `manager` owns and `desired` lacks;
/// - fields at `field` itself;
/// - fields in the smallest list item or map around `field` that has a field of `desired`;
/// - where whole items exclude one another, items in that list whose value at `field` rules out an item of `desired`.
///
/// `desired` is an object as sent, `object` the live object.
pub(crate) fn conflicting_fields(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    object: &Value,
    desired: &Value,
    field: &str,
) -> BTreeSet<Path> {
    let (desired, steps) = (content(desired), steps(field));
    let (own, others): (Vec<_>, Vec<_>) = managed
        .iter()
        .filter(|entry| covers_content(entry))
        .partition(|entry| entry.manager.as_deref() == Some(manager));
    let mounts = mounts_of_removed_volumes(managed, manager, object, &desired, &steps);
    if !mounts.is_empty() {
        return mounts;
    }
    for length in (1..=steps.len()).rev() {
        let (around, is_field) = (&steps[..length], length == steps.len());
        let is_item = around.last() == Some(&PathStep::Item);
        let is_list = steps.get(length) == Some(&PathStep::Item);
        let leaf = match steps.get(length + 1) {
            Some(PathStep::Field(leaf)) if is_list => Some(leaf),
            _ => None,
        };
        let all = own.iter().chain(&others);
        let has_items = || {
            all.clone().any(|entry| {
                parts_at(fields(entry), &desired, around)
                    .iter()
                    .any(|part| has_items(part.set))
            })
        };
        if !is_item && !is_list && has_items() {
            // A map with lists inside is nearly the whole object: too much to transfer.
            break;
        }
        let mut found = BTreeSet::new();
        for part in others
            .iter()
            .flat_map(|entry| parts_at(fields(entry), &desired, around))
        {
            let kept = part
                .path
                .last()
                .is_some_and(|name| NON_CONFLICTING_LISTS.contains(&name.as_str()));
            match part.value {
                Some(Value::Array(_)) if kept => {}
                Some(value) => {
                    let mut inside = BTreeSet::new();
                    foreign(part.set, value, &part.path, &mut inside);
                    if let (Some(leaf), Value::Array(items)) = (leaf, value) {
                        retain_excluding(&mut inside, leaf, value_at(object, &part.path), items);
                    }
                    found.append(&mut inside);
                }
                None if is_field && !is_item && part.parent.is_some() => {
                    found.insert(part.path);
                }
                None => {}
            }
        }
        if !found.is_empty() {
            return found;
        }
        if !is_field && !is_item && is_set(&desired, around) {
            break;
        }
    }
    BTreeSet::new()
}

/// Returns the mounts of other managers whose volume the next apply removes, if the apiserver rejects the volume's name
/// in a mount. Only `manager` owns such a volume, and `desired` lacks it.
fn mounts_of_removed_volumes(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    object: &Value,
    desired: &Value,
    steps: &[PathStep],
) -> BTreeSet<Path> {
    let [
        ..,
        PathStep::Field(list),
        PathStep::Item,
        PathStep::Field(name),
    ] = steps
    else {
        return BTreeSet::new();
    };
    if name != "name" || !VOLUME_USES.contains(&list.as_str()) {
        return BTreeSet::new();
    }
    let mount = &steps[..steps.len() - 1];
    let is_removed = |volume: Path| {
        is_owned_only_by(managed, manager, &volume) && value_at(desired, &volume).is_none()
    };
    managed
        .iter()
        .filter(|entry| covers_content(entry) && entry.manager.as_deref() != Some(manager))
        .flat_map(|entry| parts_at(fields(entry), desired, mount))
        .filter(|part| part.value.is_none())
        .map(|part| part.path)
        .filter(|mount| volume_of(object, mount).is_some_and(is_removed))
        .collect()
}

/// Returns the path of the volume that the mount at a path names.
fn volume_of(object: &Value, mount: &[String]) -> Option<Path> {
    // The container's list and item, and the mount's list and item.
    let (pod, _) = mount.split_last_chunk::<4>()?;
    let name = value_at(object, mount)?.get("name")?.as_str()?;
    let volume = ["f:volumes".to_owned(), format!("k:{{\"name\":\"{name}\"}}")];
    Some([pod, &volume].concat())
}

/// Removes the list items in `found` that exclude no item of `desired` at the field `leaf`: their values differ, and
/// both have one. `live` is the list in the live object.
fn retain_excluding(
    found: &mut BTreeSet<Path>,
    leaf: &str,
    live: Option<&Value>,
    desired: &[Value],
) {
    let values: Option<HashSet<_>> = desired.iter().map(|item| item.get(leaf)).collect();
    let (Some(values), Some(Value::Array(live))) = (values, live) else {
        return;
    };
    let elements = found.iter().filter_map(|path| path.last());
    let items = IdentifiedItems::new(elements.map(String::as_str), live);
    found.retain(|path| {
        let item = path.last().filter(|item| item.starts_with("k:"));
        item.and_then(|item| items.get(item).first()?.get(leaf))
            .is_none_or(|value| values.contains(value))
    });
}

/// Returns the list items of other managers that differ from a missing item of `desired` only in their number, because
/// another client has renumbered that item. `numbers` are the keys that can be such a number. An item that has only a
/// number looks like any other such item, so it counts as renumbered only if `is_alone`: there were no items of others
/// before. `object` and `desired` are [contents](content).
pub(crate) fn renumbered(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    object: &Value,
    desired: &Value,
    numbers: &[&str],
    is_alone: bool,
) -> BTreeSet<Path> {
    let mut found = BTreeSet::new();
    visit_numbered_lists(managed, object, desired, numbers, &mut |list| {
        let renumbered: Vec<_> = list
            .foreign
            .iter()
            .filter(|(_, item)| {
                let mut missing = list.missing.iter();
                missing.any(|desired| is_renumbered(item, desired, list.keys, is_alone))
            })
            .collect();
        // With more candidates than missing items, it is uncertain which ones were renumbered.
        if renumbered.len() <= list.missing.len() {
            let paths = renumbered
                .iter()
                .map(|(element, _)| [list.path, std::slice::from_ref(element)].concat());
            found.extend(paths);
        }
    });
    let is_owned_by_others = |path: &Path| {
        let others = managed
            .iter()
            .filter(|entry| entry.manager.as_deref() != Some(manager));
        others
            .filter(|entry| covers_content(entry))
            .any(|entry| find(fields(entry), path).is_some())
    };
    found.retain(is_owned_by_others);
    found
}

/// Returns whether a list whose items have one of these keys has items that `desired` lacks. `object` and `desired` are
/// [contents](content).
pub(crate) fn has_foreign_items(
    managed: &[ManagedFieldsEntry],
    object: &Value,
    desired: &Value,
    numbers: &[&str],
) -> bool {
    let mut has_foreign = false;
    visit_numbered_lists(managed, object, desired, numbers, &mut |list| {
        has_foreign |= !list.foreign.is_empty();
    });
    has_foreign
}

/// Returns whether `item` is the `desired` item with another number.
fn is_renumbered(item: &Value, desired: &Value, keys: &[String], is_alone: bool) -> bool {
    fn rest<'a>(item: &'a Value, keys: &[String]) -> impl Iterator<Item = (&'a String, &'a Value)> {
        let fields = item.as_object().into_iter().flatten();
        fields.filter(|(name, _)| !keys.contains(name))
    }
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let is_evidence =
        rest(desired, keys).next().is_some() || (is_alone && rest(item, keys).next().is_none());
    is_evidence
        && name(desired).unwrap_or_default() == name(item).unwrap_or_default()
        && rest(desired, keys).all(|(name, desired)| {
            item.get(name)
                .is_some_and(|it| values::is_within(desired, it))
        })
}

/// A list of the live object whose items have a number as a key.
struct NumberedList<'a> {
    path: &'a [String],
    keys: &'a [String],
    /// Desired items that the live list lacks.
    missing: Vec<&'a Value>,
    /// Live items that the desired list lacks, with their elements in `managedFields`.
    foreign: Vec<(String, &'a Value)>,
}

/// Calls `visit` for each list that `desired` sets and whose items have one of the keys `numbers`.
fn visit_numbered_lists(
    managed: &[ManagedFieldsEntry],
    object: &Value,
    desired: &Value,
    numbers: &[&str],
    visit: &mut dyn FnMut(NumberedList<'_>),
) {
    if numbers.is_empty() {
        return;
    }
    let sets: Vec<_> = managed
        .iter()
        .filter(|entry| covers_content(entry))
        .map(fields)
        .collect();
    visit_lists(object, desired, &sets, &mut Path::new(), &mut |list| {
        if list.keys.iter().any(|key| numbers.contains(&key.as_str())) {
            visit(list);
        }
    });
}

fn visit_lists(
    object: &Value,
    desired: &Value,
    sets: &[&Value],
    path: &mut Path,
    visit: &mut dyn FnMut(NumberedList<'_>),
) {
    let mut step = |element: String, object: &Value, desired: &Value| {
        let within: Vec<_> = sets.iter().filter_map(|set| set.get(&element)).collect();
        path.push(element);
        visit_lists(object, desired, &within, path, visit);
        path.pop();
    };
    match (object, desired) {
        (Value::Object(object), Value::Object(desired)) => {
            for (name, desired) in desired {
                if let Some(object) = object.get(name) {
                    step(format!("f:{name}"), object, desired);
                }
            }
        }
        (Value::Array(live), Value::Array(desired)) => {
            let Some(elements) = ListElements::new(sets) else {
                return;
            };
            let names: Vec<_> = desired.iter().map(|item| elements.of(item)).collect();
            let items = IdentifiedItems::new(names.iter().map(String::as_str), live);
            let mut missing = Vec::new();
            for (element, desired) in names.into_iter().zip(desired) {
                match items.get(&element).first().copied() {
                    Some(item) => step(element, item, desired),
                    None => missing.push(desired),
                }
            }
            let foreign = items
                .others()
                .iter()
                .map(|item| (elements.of(item), *item))
                .collect();
            visit(NumberedList {
                path,
                keys: elements.keys(),
                missing,
                foreign,
            });
        }
        _ => {}
    }
}

fn steps(field: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    let mut rest = field;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']').unwrap_or((inner, ""));
            let is_index = index.chars().all(|c| c.is_ascii_digit());
            steps.push(if is_index {
                PathStep::Item
            } else {
                PathStep::Field(index.to_owned())
            });
            rest = after;
        } else {
            rest = rest.strip_prefix('.').unwrap_or(rest);
            let (name, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
            let mut name = name.to_owned();
            // The apiserver names the field `loadBalancerSourceRanges` of a Service as Go does.
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            steps.push(PathStep::Field(name));
            rest = after;
        }
    }
    steps
}

/// Values of a desired object or list by the elements of a set.
struct Values<'a> {
    desired: &'a Value,
    items: Option<IdentifiedItems<'a>>,
}

impl<'a> Values<'a> {
    fn new(set: &Map<String, Value>, desired: &'a Value) -> Self {
        let elements = set.keys().map(String::as_str);
        let items = desired
            .as_array()
            .map(|items| IdentifiedItems::new(elements, items));
        Self { desired, items }
    }

    fn get(&self, element: &str) -> Option<&'a Value> {
        match element.strip_prefix("f:") {
            Some(name) => self.desired.get(name).filter(|value| !value.is_null()),
            None => self.items.as_ref()?.get(element).first().copied(),
        }
    }
}

/// Part of a set.
struct Part<'a> {
    path: Path,
    set: &'a Value,
    /// Desired value at the path.
    value: Option<&'a Value>,
    /// Desired value around the path.
    parent: Option<&'a Value>,
}

/// Returns the parts of a set at these steps.
fn parts_at<'a>(set: &'a Value, desired: &'a Value, steps: &[PathStep]) -> Vec<Part<'a>> {
    let whole = Part {
        path: Path::new(),
        set,
        value: Some(desired),
        parent: None,
    };
    steps.iter().fold(vec![whole], |found, step| {
        let next = found.into_iter().flat_map(|part| {
            let set = part.set.as_object();
            let values = set
                .zip(part.value)
                .map(|(set, desired)| Values::new(set, desired));
            let inner = set.into_iter().flatten().filter(|(element, _)| match step {
                PathStep::Field(name) => element.strip_prefix("f:") == Some(name),
                PathStep::Item => element.starts_with("k:") || element.starts_with("v:"),
            });
            inner
                .map(|(element, set)| Part {
                    path: [part.path.clone(), vec![element.clone()]].concat(),
                    set,
                    value: values
                        .as_ref()
                        .and_then(|values| values.get(element))
                        .filter(|value| !value.is_null()),
                    parent: part.value,
                })
                .collect::<Vec<_>>()
        });
        next.collect()
    })
}

/// Returns whether `desired` sets a field at these steps.
fn is_set(desired: &Value, steps: &[PathStep]) -> bool {
    match steps.split_first() {
        None => !desired.is_null(),
        Some((PathStep::Field(name), rest)) => {
            desired.get(name).is_some_and(|value| is_set(value, rest))
        }
        Some((PathStep::Item, rest)) => desired
            .as_array()
            .into_iter()
            .flatten()
            .any(|item| is_set(item, rest)),
    }
}

fn value_at<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, element| {
        let elements: Map<_, _> = [(element.clone(), Value::Null)].into_iter().collect();
        Values::new(&elements, value).get(element)
    })
}

/// Returns whether the set has list items at any depth.
fn has_items(set: &Value) -> bool {
    set.as_object()
        .into_iter()
        .flatten()
        .any(|(element, set)| element.starts_with("k:") || has_items(set))
}

/// Adds the fields of the set that `desired` does not set to `found`: of a list, whole items.
fn foreign(set: &Value, desired: &Value, path: &Path, found: &mut BTreeSet<Path>) {
    let Some(set) = set.as_object() else {
        return;
    };
    let values = Values::new(set, desired);
    for (element, inner) in set.iter().filter(|(element, _)| *element != ".") {
        let path = [path.clone(), vec![element.clone()]].concat();
        match values.get(element).filter(|value| !value.is_null()) {
            Some(Value::Array(_)) => {}
            Some(_) if desired.is_array() => {}
            Some(desired) => foreign(inner, desired, &path, found),
            None => _ = found.insert(path),
        }
    }
}

/// Returns a set with `field` at `path`.
fn nested(path: &[impl AsRef<str>], field: Value) -> Value {
    path.iter().rev().fold(field, |inner, name| {
        Value::Object([(name.as_ref().to_owned(), inner)].into_iter().collect())
    })
}

fn operation(entry: &ManagedFieldsEntry) -> &str {
    entry.operation.as_deref().unwrap_or_default()
}

fn is_of(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
        && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

/// Removes from the set the fields that have a value in `desired`, and returns them; `None` if there are none.
fn take_shared(set: &mut Value, desired: &Value) -> Option<Value> {
    let fields = set.as_object_mut()?;
    let mut taken = Map::new();
    let values = Values::new(fields, desired);
    fields.retain(|element, inner| {
        let desired = values.get(element);
        // The element `.` stands for the list or the item itself.
        let itself = element == ".";
        let whole = itself || (desired.is_some() && inner.as_object().is_none_or(Map::is_empty));
        let part = if whole {
            Some(inner.take())
        } else {
            desired.and_then(|desired| take_shared(inner, desired))
        };
        let Some(part) = part else { return true };
        taken.insert(element.clone(), part);
        inner.as_object().is_some_and(|rest| !rest.is_empty())
    });
    // A manager that owns no other field of the desired state keeps its elements.
    let none = taken.keys().all(|element| element == ".");
    if none {
        fields.append(&mut taken);
    }
    (!none).then_some(Value::Object(taken))
}

/// Returns the number of fields in the set.
fn leaves(set: &Value) -> usize {
    set.as_object()
        .filter(|set| !set.is_empty())
        .map_or(1, |set| set.values().map(leaves).sum())
}

/// Removes and returns the field at `path`. Also removes parents that become empty, because an empty set would own the
/// whole parent.
fn take(set: &mut Value, path: &[&str]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    let fields = set.as_object_mut()?;
    if rest.is_empty() {
        return fields.remove(*first);
    }
    let child = fields.get_mut(*first)?;
    let taken = take(child, rest)?;
    if child.as_object().is_some_and(Map::is_empty) {
        fields.remove(*first);
    }
    Some(taken)
}

/// Merges `other` into the set.
fn join(one: &mut Value, other: Value) {
    let (Value::Object(one), Value::Object(other)) = (one, other) else {
        return;
    };
    for (name, set) in other {
        join(
            one.entry(name).or_insert_with(|| Value::Object(Map::new())),
            set,
        );
    }
}

#[cfg(test)]
mod tests;
