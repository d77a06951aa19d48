//! Who says what about an object, as its `managedFields` tell
//! (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management>).
//!
//! Whoever changes a value that we applied takes our claim on it away. That we still hold all that we want, and that what
//! we want has not changed since, is therefore all that is to be known to say that nothing is to be written; a webhook that
//! changes our own write does not take the claim away, and is not fought.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, Time};
use serde_json::{Map, Value};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Whether `manager` holds all that `desired` says. `desired` is an object as it is sent.
pub fn holds(managed: &[ManagedFieldsEntry], manager: &str, desired: &Value) -> bool {
    let desired = content(desired);
    managed.iter().filter(|entry| is_of(entry, manager)).any(|entry| {
        let others: Vec<_> = managed.iter().filter(|other| *other != entry).map(fields).collect();
        covers(fields(entry), &desired, (operation(entry) == UPDATE).then_some(&*others))
    })
}

/// Whether anything is to be [handed over](handed_over) first: nothing was applied yet, and the fields of a writer that did not
/// apply are never removed by an apply; a field is to be `left` to others and is among what `manager` applied; or one that
/// was left is not to be any more.
pub fn is_to_be_handed_over(managed: &[ManagedFieldsEntry], manager: &str, left: &[&[&str]]) -> bool {
    let ours = |wanted| managed.iter().find(|entry| is_of(entry, manager) && operation(entry) == wanted).map(fields);
    let Some(applied) = ours(APPLY) else { return true };
    let mut updated = ours(UPDATE).cloned().unwrap_or_default();
    for path in left {
        take(&mut updated, path);
    }
    left.iter().any(|path| find(applied, path).is_some()) || updated.as_object().is_some_and(|rest| !rest.is_empty())
}

/// Who says something at `path` where `manager`, which applied the object, says nothing any more.
pub fn who_took<'a>(managed: &'a [ManagedFieldsEntry], manager: &str, path: &[&str]) -> Option<&'a str> {
    let (ours, theirs): (Vec<_>, Vec<_>) = managed.iter().partition(|entry| is_of(entry, manager));
    let says = |entry: &&ManagedFieldsEntry| find(fields(entry), path).is_some();
    if !ours.iter().any(|entry| operation(entry) == APPLY) || ours.iter().any(says) {
        return None;
    }
    theirs.into_iter().find(says)?.manager.as_deref()
}

/// Whether anybody but `manager` says something at `path`.
pub fn is_others(managed: &[ManagedFieldsEntry], manager: &str, path: &[&str]) -> bool {
    managed.iter().any(|entry| entry.manager.as_deref() != Some(manager) && find(fields(entry), path).is_some())
}

/// The entries after a hand-over: what its creator said of the object is then what `manager` applied, so that the next apply
/// takes away what it does not name; and so is what others updated of the fields that are in `desired`, but nothing else of
/// theirs. The fields at the paths of `left` stay with a plain update of `manager`'s: the value stands until somebody else
/// writes another one. Of an object of which `manager` said anything before nothing of others is taken: what they changed
/// since is theirs.
pub fn handed_over(
    managed: &[ManagedFieldsEntry],
    manager: &str,
    desired: &Value,
    left: &[&[&str]],
) -> Vec<ManagedFieldsEntry> {
    let api_version = desired["apiVersion"].as_str().unwrap_or_default();
    let desired = content(desired);
    let tells = |entry: &ManagedFieldsEntry| {
        let here = entry.subresource.as_deref().unwrap_or_default().is_empty();
        here && entry.api_version.as_deref() == Some(api_version)
    };
    let made = managed.iter().any(|entry| tells(entry) && is_of(entry, manager));
    // Whoever made it said most of what it is.
    let said = |entry| shared(&mut fields(entry).clone(), &desired).as_ref().map_or(0, leaves);
    let others = managed.iter().enumerate().filter(|(_, entry)| !made && tells(entry) && operation(entry) == UPDATE);
    let creator = others.map(|(at, entry)| (said(entry), at)).filter(|(said, _)| *said > 0).max().map(|(_, at)| at);
    let mut applied = Value::Object(Map::new());
    let mut at: Option<Time> = None;
    let mut entries = Vec::new();
    for (number, entry) in managed.iter().enumerate() {
        let mut entry = entry.clone();
        let taken = if !tells(&entry) {
            None
        } else if is_of(&entry, manager) || Some(number) == creator {
            entry.fields_v1.take().map(|fields| fields.0)
        } else if !made && operation(&entry) == UPDATE {
            entry.fields_v1.as_mut().and_then(|fields| shared(&mut fields.0, &desired))
        } else {
            None
        };
        if let Some(taken) = taken {
            join(&mut applied, taken);
            at = at.max(entry.time.clone());
        }
        // An empty set would be a claim on all.
        if fields(&entry).as_object().is_some_and(|fields| !fields.is_empty()) {
            entries.push(entry);
        }
    }
    let mut kept = Value::Object(Map::new());
    for path in left {
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

/// The entries after all that others updated at `path` is what `manager` applied; none if there is nothing of others'.
pub fn reclaimed(managed: &[ManagedFieldsEntry], manager: &str, path: &[&str]) -> Option<Vec<ManagedFieldsEntry>> {
    let mut entries = managed.to_vec();
    let ours = entries.iter().position(|entry| is_of(entry, manager) && operation(entry) == APPLY)?;
    let api_version = entries[ours].api_version.clone();
    let mut theirs = Value::Object(Map::new());
    let others = entries.iter_mut().filter(|entry| {
        operation(entry) == UPDATE
            && entry.api_version == api_version
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    });
    for FieldsV1(fields) in others.filter_map(|entry| entry.fields_v1.as_mut()) {
        if let Some(taken) = take(fields, path) {
            join(&mut theirs, nested(path, taken));
        }
    }
    let FieldsV1(applied) = entries[ours].fields_v1.as_mut()?;
    let before = applied.clone();
    join(applied, theirs);
    let news = *applied != before;
    // An empty set would be a claim on all.
    entries.retain(|entry| fields(entry).as_object().is_none_or(|fields| !fields.is_empty()));
    news.then_some(entries)
}

/// `field` at `path`.
fn nested(path: &[&str], field: Value) -> Value {
    path.iter().rev().fold(field, |inner, name| Value::Object([((*name).to_owned(), inner)].into_iter().collect()))
}

fn operation(entry: &ManagedFieldsEntry) -> &str {
    entry.operation.as_deref().unwrap_or_default()
}

fn is_of(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager) && entry.subresource.as_deref().unwrap_or_default().is_empty()
}

fn fields(entry: &ManagedFieldsEntry) -> &Value {
    entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0)
}

/// `object` without what no entry speaks of.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(object) = content.as_object_mut() {
        object.retain(|name, _| name != "apiVersion" && name != "kind" && name != "status");
    }
    if let Some(metadata) = content["metadata"].as_object_mut() {
        metadata.retain(|name, _| matches!(name.as_str(), "labels" | "annotations" | "ownerReferences" | "finalizers"));
    }
    content
}

/// Whether all of `desired` is in the set. An empty set at a field is that field as a whole. With `typed` the set is that of an
/// object as the API's types have it, which leave out what is empty, unless others say something there: their sets.
fn covers(set: &Value, desired: &Value, typed: Option<&[&Value]>) -> bool {
    let Some(set) = set.as_object() else { return false };
    if set.is_empty() {
        return true;
    }
    let within =
        |element: &str| typed.map(|others| others.iter().filter_map(|other| other.get(element)).collect::<Vec<_>>());
    match desired {
        Value::Object(desired) => desired.iter().filter(|(_, value)| !value.is_null()).all(|(name, value)| {
            let element = format!("f:{name}");
            let others = within(&element);
            match set.get(&element) {
                Some(set) => covers(set, value, others.as_deref()),
                None => others.is_some_and(|others| others.is_empty()) && is_empty(value),
            }
        }),
        Value::Array(items) => items.iter().all(|item| {
            let ours = |(element, set): (&String, &Value)| {
                is_element(element, item) && covers(set, item, within(element).as_deref())
            };
            set.iter().any(ours)
        }),
        _ => true,
    }
}

fn is_empty(value: &Value) -> bool {
    matches!(value, Value::Bool(false)) || value.as_str() == Some("") || value.as_i64() == Some(0)
}

/// Takes the fields that have a value in `desired` out of the set; none if there are none.
fn shared(set: &mut Value, desired: &Value) -> Option<Value> {
    let fields = set.as_object_mut()?;
    let mut taken = Map::new();
    fields.retain(|element, inner| {
        let desired = match (element.strip_prefix("f:"), desired) {
            (Some(name), Value::Object(desired)) => desired.get(name).filter(|value| !value.is_null()),
            (None, Value::Array(items)) => items.iter().find(|item| is_element(element, item)),
            _ => None,
        };
        // The list or the item as such.
        let itself = element == ".";
        let whole = itself || (desired.is_some() && inner.as_object().is_none_or(Map::is_empty));
        let part = if whole { Some(inner.take()) } else { desired.and_then(|desired| shared(inner, desired)) };
        let Some(part) = part else { return true };
        taken.insert(element.clone(), part);
        inner.as_object().is_some_and(|rest| !rest.is_empty())
    });
    // Who has nothing else of ours keeps it.
    let none = taken.keys().all(|element| element == ".");
    if none {
        fields.append(&mut taken);
    }
    (!none).then_some(Value::Object(taken))
}

/// How many fields there are in the set.
fn leaves(set: &Value) -> usize {
    set.as_object().filter(|set| !set.is_empty()).map_or(1, |set| set.values().map(leaves).sum())
}

/// Whether `element`, `k:{KEYS}` or `v:VALUE`, is this item of a list.
fn is_element(element: &str, item: &Value) -> bool {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    if let Some(value) = element.strip_prefix("v:") {
        return parsed(value) == *item;
    }
    let Some(Value::Object(keys)) = element.strip_prefix("k:").map(parsed) else { return false };
    // The one key of the API's own lists that has a default is the protocol.
    keys.iter().all(|(name, value)| item.get(name).map_or(value == "TCP", |item| item == value))
}

fn find<'a>(set: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(set, |set, name| set.get(name))
}

/// Takes the field at `path` out, and the parents that then hold nothing: an empty set would be a claim on the whole.
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

/// The union of two sets.
fn join(one: &mut Value, other: Value) {
    let (Value::Object(one), Value::Object(other)) = (one, other) else { return };
    for (name, set) in other {
        join(one.entry(name).or_insert_with(|| Value::Object(Map::new())), set);
    }
}

#[cfg(test)]
mod tests;
