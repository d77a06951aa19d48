//! Entries that are in flight: taken by a line, and not yet settled and recorded.

use std::collections::{HashMap, HashSet};

use super::line::Pick;
use crate::controllers::tracked_field::history::Outcome;
use crate::runtime::Key;

/// By `TrackedField`: while one of its entries is in flight, no line takes another one.
#[derive(Default)]
pub(super) struct Flights(HashMap<Key, Vec<Flying>>);

struct Flying {
    id: String,
    line: Key,
    /// What came of it; recorded is what stands in the `TrackedField`'s status, and is no longer in flight.
    outcome: Option<Outcome>,
}

impl Flights {
    pub(super) fn take_off(&mut self, line: &Key, Pick { field, id, .. }: &Pick) {
        let flying = Flying { id: id.to_string(), line: line.clone(), outcome: None };
        self.0.entry(field.clone()).or_default().push(flying);
    }

    pub(super) fn settle(&mut self, Pick { field, id, .. }: &Pick, outcome: &Outcome) {
        let flying = self.0.get_mut(field).into_iter().flatten();
        for entry in flying.filter(|entry| *entry.id == **id) {
            entry.outcome = Some(outcome.clone());
        }
    }

    /// What has no outcome in that line will have none. Gives the `TrackedField`s of which nothing flies any more.
    pub(super) fn ground(&mut self, line: &Key) -> Vec<Key> {
        self.0
            .extract_if(|_, flying| {
                flying.retain(|entry| entry.line != *line || entry.outcome.is_some());
                flying.is_empty()
            })
            .map(|(field, _)| field)
            .collect()
    }

    /// These outcomes are recorded. Gives the lines of their entries.
    pub(super) fn recorded(&mut self, field: &Key, outcomes: &[(String, Outcome)]) -> Vec<Key> {
        let Some(flying) = self.0.get_mut(field) else { return Vec::new() };
        let is_done = |entry: &mut Flying| entry.outcome.is_some() && outcomes.iter().any(|(id, _)| *id == entry.id);
        let lines = flying.extract_if(.., is_done).map(|entry| entry.line).collect();
        if flying.is_empty() {
            self.0.remove(field);
        }
        lines
    }

    /// Nobody will record anything of that `TrackedField`. Gives the lines of its entries.
    pub(super) fn forget(&mut self, field: &Key) -> Vec<Key> {
        self.0.remove(field).into_iter().flatten().map(|entry| entry.line).collect()
    }

    pub(super) fn has(&self, field: &Key) -> bool {
        self.0.contains_key(field)
    }

    pub(super) fn ids(&self, field: &Key) -> HashSet<String> {
        self.0.get(field).into_iter().flatten().map(|entry| entry.id.clone()).collect()
    }

    pub(super) fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        let flying = self.0.get(field).into_iter().flatten();
        flying.filter_map(|entry| Some((entry.id.clone(), entry.outcome.clone()?))).collect()
    }

    /// Whether something of that line is settled and not recorded.
    pub(super) fn unrecorded(&self, line: &Key) -> bool {
        self.0.values().flatten().any(|entry| entry.line == *line && entry.outcome.is_some())
    }

    pub(super) fn all_recorded(&self) -> bool {
        !self.0.values().flatten().any(|entry| entry.outcome.is_some())
    }
}
