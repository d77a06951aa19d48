//! Every entry that a status ever held, from the test's own watch.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::deliveries::Delivery;
use crate::support::Bed;

/// A record of what every status ever held, from its start to its drop.
pub struct Ledger {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    _watch: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// Entries in the order of their first appearance, each in its last state.
    entries: Vec<Entry>,
    indexes: HashMap<String, usize>,
    largest: usize,
}

impl Ledger {
    pub fn open(bed: &Bed) -> Self {
        let seen = Arc::<Mutex<BTreeMap<String, Seen>>>::default();
        let (api, notes) = (bed.api::<TrackedField>(), Arc::clone(&seen));
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            let mut events = std::pin::pin!(watcher(api, Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(field) | Event::InitApply(field)) = event {
                    let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
                    notes
                        .entry(field.name_any())
                        .or_default()
                        .note(field.history().unwrap());
                }
            }
        });
        Self {
            seen,
            _watch: watch,
        }
    }

    /// Returns the entries of each `TrackedField`, in order.
    pub fn fields(&self) -> BTreeMap<String, Vec<Entry>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .map(|(field, seen)| (field.clone(), seen.entries.clone()))
            .collect()
    }

    /// Returns the length of the longest status that this `TrackedField` had, in bytes of JSON.
    pub fn largest(&self, field: &str) -> usize {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(field)
            .map_or(0, |seen| seen.largest)
    }

    /// Returns ids of entries that no receiver accepted.
    pub fn undelivered(&self, deliveries: &[Delivery]) -> Vec<String> {
        let accepted = deliveries
            .iter()
            .filter(|request| request.accepted)
            .flat_map(|request| &request.entries);
        let accepted: HashSet<&str> = accepted.map(|entry| entry.id.as_str()).collect();
        let entries = self.fields().into_values().flatten();
        entries
            .filter_map(|entry| entry.id)
            .filter(|id| !accepted.contains(id.as_str()))
            .collect()
    }
}

impl Seen {
    fn note(&mut self, status: Vec<Entry>) {
        self.largest = self.largest.max(serde_json::to_vec(&status).unwrap().len());
        for entry in status {
            let id = entry.id.clone().unwrap();
            if let Some(at) = self.indexes.get(&id) {
                self.entries[*at] = entry;
            } else {
                self.indexes.insert(id, self.entries.len());
                self.entries.push(entry);
            }
        }
    }
}

/// Returns the time at which an entry was recorded, since the epoch. The entry's id contains the millisecond.
pub fn recorded_at(entry: &Entry) -> Duration {
    let id = Uuid::parse_str(entry.id.as_deref().unwrap()).unwrap();
    let (seconds, nanoseconds) = id.get_timestamp().unwrap().to_unix();
    Duration::new(seconds, nanoseconds)
}

/// Returns the version of the entry's resource.
pub fn version(entry: &Entry) -> u64 {
    entry.resource_version.as_deref().unwrap().parse().unwrap()
}
