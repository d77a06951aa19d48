//! Which Events were published of an object that is not well, so that what goes round in circles is told once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Key;

/// The reasons that were told of each object since it was well: a container that crashes has the same few in turn for ever.
/// A restart may tell one of them once more.
#[derive(Default)]
pub struct Told(Mutex<HashMap<Key, BTreeSet<String>>>);

impl Told {
    fn told(&self) -> MutexGuard<'_, HashMap<Key, BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is not well, for this reason: whether that is to be told.
    pub fn is_news(&self, key: &Key, reason: &str) -> bool {
        self.told().entry(key.clone()).or_default().insert(reason.to_owned())
    }

    /// It is well, or gone: whether anything was told since it was before.
    pub fn forget(&self, key: &Key) -> bool {
        self.told().remove(key).is_some()
    }
}
