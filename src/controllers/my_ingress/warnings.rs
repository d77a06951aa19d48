//! Notes of Warning Events, so that a lasting problem causes a single Event.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use qm_runtime::ObjectKey;

use super::step::{EventType, Step};

/// Notes of the Warning Events about each `MyIngress`, except about its condition. After a restart of the process, an
/// Event may repeat a note.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<HashMap<ObjectKey, BTreeSet<String>>>);

impl Warnings {
    fn objects(&self) -> MutexGuard<'_, HashMap<ObjectKey, BTreeSet<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a note. Returns whether the note is new.
    pub(crate) fn insert(&self, key: &ObjectKey, note: &str) -> bool {
        let mut objects = self.objects();
        let notes = objects.entry(key.clone()).or_default();
        notes.insert(note.to_owned())
    }

    /// Forgets the notes that a reconcile with these steps has not repeated.
    pub(crate) fn retain(&self, key: &ObjectKey, done: &[Step]) {
        let is_repeated = |note: &String| {
            let is_of = |step: &Step| matches!(step, Step::Emit(EventType::Warning, _, _, it) if it == note);
            done.iter().any(is_of)
        };
        if let Some(notes) = self.objects().get_mut(key) {
            notes.retain(is_repeated);
        }
    }

    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.objects().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_new_until_a_reconcile_does_not_repeat_it() {
        let (warnings, key) = (Warnings::default(), ObjectKey::new("shop", "web"));
        let other = ObjectKey::new("shop", "other");
        let emit =
            |note: &str| Step::Emit(EventType::Warning, "Update", "TargetsRejected", note.into());
        assert!(warnings.insert(&key, "i-1"));
        warnings.retain(&key, &[emit("i-1")]);
        assert!(!warnings.insert(&key, "i-1"));
        assert!(warnings.insert(&key, "i-2"));
        assert!(warnings.insert(&other, "i-1"));
        warnings.retain(&key, &[emit("i-2")]);
        assert!(warnings.insert(&key, "i-1"));
        assert!(!warnings.insert(&key, "i-2"));
        warnings.forget(&key);
        assert!(warnings.insert(&key, "i-2"));
        assert!(!warnings.insert(&other, "i-1"));
    }
}
