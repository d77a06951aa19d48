//! Last writer of a field's value, by the object's `managedFields`.
//!
//! The apiserver lets each manager's entry list the fields that it wrote last, so a manager that changes a value takes
//! the field from all others. Several appliers may share a field if they agree on the value: the latest counts.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::ChangedBy;
use serde::Deserialize;
use serde_json::{Map, Value};
use serde_json_path::PathElement;

use super::{FieldLookup, FieldSelector, PORTS, named_index};

/// Maximum number of matches that are considered. If a field has more, its writer is unknown.
const MAX_MATCHES: usize = 64;
/// Maximum number of names of `fieldsV1` that are compared with an item of a list, for all matches together.
const MAX_COMPARED: usize = 20_000;

/// Step of a path from an object to a value.
#[derive(Clone, Copy)]
enum Key<'a> {
    Member(&'a str),
    Item(usize),
}

/// An entry of `managedFields`, without its fields.
#[derive(Deserialize)]
struct Writer {
    manager: Option<String>,
    operation: Option<String>,
    subresource: Option<String>,
    time: Option<Time>,
}

/// Name of a list's item in `fieldsV1`.
enum ItemName {
    Index(usize),
    Value(Value),
    Keys(Map<String, Value>),
    Other,
}

/// The names of items that were parsed. Most managers have entries of the same items.
type ItemNames<'a> = HashMap<&'a str, ItemName>;

/// Part of a manager's `fieldsV1` at a path.
enum Owned {
    /// Fields below the value: parts of an object or a list.
    Parts,
    /// An empty set after this many steps: the value, or an atomic object or list that contains the value.
    Whole(usize),
}

impl FieldSelector {
    /// Returns the last writer of the field's value in `object`; `None` if unknown.
    pub fn changed_by(&self, object: &Value) -> Option<ChangedBy> {
        let entries = object.pointer("/metadata/managedFields")?.as_array()?;
        let (managers, fields): (Vec<Writer>, Vec<&Value>) = entries
            .iter()
            .filter_map(|entry| {
                let manager = Writer::deserialize(entry).ok()?;
                Some((manager, entry.get("fieldsV1").unwrap_or(&Value::Null)))
            })
            .unzip();
        let (mut compared, mut names) = (0, ItemNames::new());
        let mut is_owner = vec![false; managers.len()];
        for path in self.paths(object)? {
            for at in owners(&fields, object, &path, &mut compared, &mut names)? {
                is_owner[at] = true;
            }
        }
        let owners = managers.iter().zip(is_owner);
        let owners: Vec<_> = owners.filter_map(|(it, owns)| owns.then_some(it)).collect();
        let newest = owners.iter().max_by_key(|owner| time(owner))?;
        let as_new = owners.iter().filter(|it| time(it) == time(newest));
        if as_new.count() > 1 {
            return None;
        }
        Some(ChangedBy {
            manager: newest.manager.clone().filter(|name| !name.is_empty())?,
            operation: newest.operation.clone(),
            subresource: newest
                .subresource
                .clone()
                .filter(|subresource| !subresource.is_empty()),
            time: newest.time.clone(),
        })
    }

    /// Returns the path of each match; `None` if there are too many.
    fn paths<'a>(&'a self, object: &'a Value) -> Option<Vec<Vec<Key<'a>>>> {
        let of_item = |list: &'static str, name: Option<&str>, field: &'static str| {
            let at = named_index(object.pointer(list), name)?;
            let mut path: Vec<_> = list.split('/').skip(1).map(Key::Member).collect();
            path.extend([Key::Item(at), Key::Member(field)]);
            Some(vec![path])
        };
        match &self.0.select {
            FieldLookup::Replicas => Some(vec![vec![Key::Member("spec"), Key::Member("replicas")]]),
            FieldLookup::Image(containers, name) => of_item(containers.0, name.as_deref(), "image"),
            FieldLookup::TargetPort(name) => of_item(PORTS, name.as_deref(), "targetPort"),
            FieldLookup::Paths(queries) => {
                let mut paths = Vec::new();
                for path in queries {
                    for node in path.query.query_located(object).iter() {
                        if paths.len() == MAX_MATCHES {
                            return None;
                        }
                        let key = |element: &PathElement<'a>| match *element {
                            PathElement::Name(name) => Key::Member(name),
                            PathElement::Index(index) => Key::Item(index),
                        };
                        paths.push(node.location().iter().map(key).collect());
                    }
                }
                Some(paths)
            }
        }
    }
}

fn time(manager: &Writer) -> Option<k8s_openapi::jiff::Timestamp> {
    manager.time.as_ref().map(|time| time.0)
}

/// Returns the indexes of the managers that own the value at `path`; `None` if that takes too many comparisons.
/// `managers` are the `fieldsV1` of each manager.
///
/// An empty set owns a scalar or an atomic value. An empty set below which another manager has fields owns nothing: a
/// set of keys becomes empty as other managers take the keys.
fn owners<'a>(
    managers: &[&'a Value],
    object: &Value,
    path: &[Key<'_>],
    compared: &mut usize,
    names: &mut ItemNames<'a>,
) -> Option<Vec<usize>> {
    let mut has_parts = vec![false; path.len() + 1];
    let mut owned = Vec::new();
    for (at, fields) in managers.iter().enumerate() {
        let (mut node, mut value) = (*fields, object);
        for (depth, has_parts) in has_parts.iter_mut().enumerate() {
            let Some(fields) = node.as_object() else {
                break;
            };
            let is_empty = fields.keys().all(|name| name == ".");
            *has_parts |= !is_empty;
            if is_empty {
                owned.push((at, Owned::Whole(depth)));
                break;
            }
            let Some(key) = path.get(depth) else {
                owned.push((at, Owned::Parts));
                break;
            };
            let step = match key {
                Key::Member(name) => fields.get(&format!("f:{name}")).zip(value.get(*name)),
                Key::Item(index) => {
                    let item = value.get(*index);
                    *compared += fields.len();
                    if *compared > MAX_COMPARED {
                        return None;
                    }
                    item.and_then(|item| item_entry(fields, *index, item, names))
                        .zip(item)
                }
            };
            let Some(step) = step else { break };
            (node, value) = step;
        }
    }
    let owners = owned.into_iter().filter_map(|(at, owned)| match owned {
        Owned::Parts => Some(at),
        // The root of `fieldsV1` is empty if the manager has nothing left.
        Owned::Whole(depth) => (depth > 0 && !has_parts[depth]).then_some(at),
    });
    Some(owners.collect())
}

impl ItemName {
    fn parse(name: &str) -> Self {
        let parsed = name.split_once(':').and_then(|(form, text)| match form {
            "i" => {
                let index: Option<usize> = text.parse().ok();
                index.filter(|it| it.to_string() == text).map(Self::Index)
            }
            "v" => serde_json::from_str(text).ok().map(Self::Value),
            "k" => serde_json::from_str(text).ok().map(Self::Keys),
            _ => None,
        });
        parsed.unwrap_or(Self::Other)
    }

    fn is_of(&self, index: usize, item: &Value) -> bool {
        match self {
            Self::Index(of) => *of == index,
            Self::Value(value) => value == item,
            Self::Keys(keys) => keys
                .iter()
                .all(|(name, value)| item.get(name) == Some(value)),
            Self::Other => false,
        }
    }
}

/// Returns the set of a list's item: by its keys, its value or its index.
fn item_entry<'a>(
    fields: &'a Map<String, Value>,
    index: usize,
    item: &Value,
    names: &mut ItemNames<'a>,
) -> Option<&'a Value> {
    fields.iter().find_map(|(name, entry)| {
        let parsed = names.entry(name).or_insert_with(|| ItemName::parse(name));
        parsed.is_of(index, item).then_some(entry)
    })
}

#[cfg(test)]
mod tests;
