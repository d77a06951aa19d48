//! Values that many objects have in common, each of which is in memory once.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Number of values from which unused ones are dropped.
const MIN_SWEEP: usize = 1024;

static TEXTS: LazyLock<Shared<str>> = LazyLock::new(Shared::default);

/// Returns the shared copy of a text, such as a name that several indexes have.
pub fn text(text: &str) -> Arc<str> {
    TEXTS.get(text)
}

/// The values in use, by content.
#[derive(Debug)]
pub struct Shared<T: ?Sized>(Mutex<SharedState<T>>);

#[derive(Debug)]
struct SharedState<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Number of values at which the next sweep is due.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(SharedState {
            values: HashSet::new(),
            sweep_at: MIN_SWEEP,
        }))
    }
}

impl<T: ?Sized + Hash + Eq> Shared<T> {
    fn state(&self) -> MutexGuard<'_, SharedState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shared copy of a value.
    pub fn get<'a, Q>(&self, value: &'a Q) -> Arc<T>
    where
        Q: ?Sized + Hash + Eq,
        Arc<T>: Borrow<Q> + From<&'a Q>,
    {
        let mut state = self.state();
        if let Some(known) = state.values.get(value) {
            return Arc::clone(known);
        }
        state.insert(value.into())
    }

    /// Returns the shared copy of a value that is already in memory.
    pub fn of(&self, value: Arc<T>) -> Arc<T> {
        let mut state = self.state();
        if let Some(known) = state.values.get(&value) {
            return Arc::clone(known);
        }
        state.insert(value)
    }
}

impl<T: ?Sized + Hash + Eq> SharedState<T> {
    fn insert(&mut self, value: Arc<T>) -> Arc<T> {
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = self.values.len() + self.values.len() / 4 + MIN_SWEEP;
        }
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_while_somebody_uses_them() {
        let shared = Shared::<str>::default();
        let first = shared.get("a");
        assert!(Arc::ptr_eq(&first, &shared.get("a")));
        assert!(Arc::ptr_eq(&first, &shared.of("a".into())));
        let kept = Arc::downgrade(&shared.get("b"));
        assert!(!Arc::ptr_eq(&first, &shared.get("b")));
        for number in 0..10 * MIN_SWEEP {
            shared.get(&*number.to_string());
        }
        assert!(shared.state().values.len() <= MIN_SWEEP + 2);
        assert!(kept.upgrade().is_none());
        assert!(Arc::ptr_eq(&first, &shared.get("a")));
    }
}
