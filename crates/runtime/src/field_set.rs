//! Sets of fields in an entry of `managedFields` (`FieldsV1`), and the list items that their elements identify.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::{Map, Value};

/// Maximum number of keys in all forms of the elements of one list, because a writer may invent forms. Lists in
/// Kubernetes' API have one form, with at most three keys.
const MAX_KEYS: usize = 16;

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Returns how many elements `work` parses and looks up.
#[cfg(test)]
pub(super) fn visits(work: impl FnOnce()) -> usize {
    VISITS.set(0);
    work();
    VISITS.get()
}

/// Returns the set of fields of an entry.
pub(super) fn fields(entry: &ManagedFieldsEntry) -> &Value {
    entry
        .fields_v1
        .as_ref()
        .map_or(&Value::Null, |fields| &fields.0)
}

/// Returns the part of a set at a path.
pub(super) fn find<'a>(set: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    path.iter()
        .try_fold(set, |set, name| set.get(name.as_ref()))
}

/// Returns whether an entry may cover fields other than the status.
pub(super) fn covers_content(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref() != Some("status")
}

/// Parsed elements that identify list items, `k:{KEYS}` or `v:VALUE`. Elements that are equal as JSON have one number;
/// the numbers count up from 0 in the order of addition.
#[derive(Default)]
struct ElementIndex {
    /// Forms of the `k:` elements: the names of their keys.
    forms: Vec<Vec<String>>,
    by_keys: HashMap<Map<String, Value>, usize>,
    by_value: HashMap<Value, usize>,
}

impl ElementIndex {
    /// Adds an element, and returns its number; `None` if it identifies no item.
    fn add(&mut self, element: &str) -> Option<usize> {
        let next = self.count();
        let parsed = |text: &str| {
            #[cfg(test)]
            VISITS.set(VISITS.get() + 1);
            serde_json::from_str::<Value>(text).unwrap_or_default()
        };
        if let Some(value) = element.strip_prefix("v:") {
            return Some(*self.by_value.entry(parsed(value)).or_insert(next));
        }
        let Some(Value::Object(keys)) = element.strip_prefix("k:").map(parsed) else {
            return None;
        };
        if !self.forms.iter().any(|names| names.iter().eq(keys.keys())) {
            let known: usize = self.forms.iter().map(Vec::len).sum();
            if known + keys.len() > MAX_KEYS {
                return None;
            }
            self.forms.push(keys.keys().cloned().collect());
        }
        Some(*self.by_keys.entry(keys).or_insert(next))
    }

    /// Returns how many numbers the elements have.
    fn count(&self) -> usize {
        self.by_keys.len() + self.by_value.len()
    }

    /// Returns the numbers of the elements that identify this item.
    fn numbers(&self, item: &Value) -> impl Iterator<Item = usize> {
        #[cfg(test)]
        VISITS.set(VISITS.get() + 1 + self.forms.len());
        let by_keys = self
            .forms
            .iter()
            .filter_map(move |names| self.by_keys.get(&keys_of(item, names)).copied());
        by_keys.chain(self.by_value.get(item).copied())
    }
}

/// Returns the values of an item at these keys.
fn keys_of(item: &Value, names: &[String]) -> Map<String, Value> {
    // Among the keys of the lists in Kubernetes' API, only the protocol has a default.
    let value = |name: &String| item.get(name).cloned().unwrap_or_else(|| "TCP".into());
    names
        .iter()
        .map(|name| (name.clone(), value(name)))
        .collect()
}

/// Elements of `managedFields` for the items of a list with keys.
pub(super) struct ListElements<'a> {
    index: ElementIndex,
    /// First element of each number.
    elements: Vec<&'a str>,
    keys: Vec<String>,
}

impl<'a> ListElements<'a> {
    /// Returns the elements in these sets; `None` if they do not name the keys.
    pub fn new(sets: &[&'a Value]) -> Option<Self> {
        let all = sets
            .iter()
            .copied()
            .filter_map(Value::as_object)
            .flat_map(Map::keys);
        let (mut index, mut elements) = (ElementIndex::default(), Vec::new());
        for element in all.filter(|element| element.starts_with("k:")) {
            if index.add(element) == Some(elements.len()) {
                elements.push(element.as_str());
            }
        }
        let keys = index.forms.first()?.clone();
        Some(Self {
            index,
            elements,
            keys,
        })
    }

    /// Returns the keys that identify the items.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Returns the element for this item.
    pub fn of(&self, item: &Value) -> String {
        match self.index.numbers(item).min() {
            Some(first) => self.elements[first].to_owned(),
            None => format!("k:{}", Value::Object(keys_of(item, &self.keys))),
        }
    }
}

/// Items of a list by the elements that identify them.
pub(super) struct IdentifiedItems<'a> {
    numbers: HashMap<String, usize>,
    by_number: Vec<Vec<&'a Value>>,
    others: Vec<&'a Value>,
}

impl<'a> IdentifiedItems<'a> {
    /// Finds the items that each element identifies.
    pub fn new<'e>(elements: impl IntoIterator<Item = &'e str>, items: &'a [Value]) -> Self {
        let mut index = ElementIndex::default();
        let numbers: HashMap<_, _> = elements
            .into_iter()
            .filter_map(|element| Some((element.to_owned(), index.add(element)?)))
            .collect();
        let mut by_number = vec![Vec::new(); index.count()];
        let mut others = Vec::new();
        for item in items {
            let mut found = index.numbers(item).peekable();
            if found.peek().is_none() {
                others.push(item);
            }
            for number in found {
                by_number[number].push(item);
            }
        }
        Self {
            numbers,
            by_number,
            others,
        }
    }

    /// Returns the items that this element identifies, in the order of the list.
    pub fn get(&self, element: &str) -> &[&'a Value] {
        self.numbers
            .get(element)
            .map(|number| self.by_number[*number].as_slice())
            .unwrap_or_default()
    }

    /// Returns the items that no element identifies.
    pub fn others(&self) -> &[&'a Value] {
        &self.others
    }
}

#[cfg(test)]
mod tests;
