//! The parsed `spec.when` of each `TrackedField`: parsed once for all objects with the same text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use qm_api::tracked_field::TrackedFieldSpec;
use qm_notify::when::When;
use qm_runtime::ObjectKey;

/// A `spec.when`.
pub(crate) struct Filter {
    text: Arc<str>,
    when: Result<When, String>,
}

impl Filter {
    /// Returns the expression, or why it is invalid.
    pub(super) fn when(&self) -> &Result<When, String> {
        &self.when
    }
}

#[derive(Default)]
pub(crate) struct Filters(Mutex<FiltersState>);

#[derive(Default)]
struct FiltersState {
    by_object: HashMap<ObjectKey, Arc<Filter>>,
    by_text: HashMap<Arc<str>, Weak<Filter>>,
}

impl Filters {
    /// Returns the filter of a spec.
    pub(super) fn of(&self, key: &ObjectKey, spec: &TrackedFieldSpec) -> Option<Arc<Filter>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(text) = spec.notification.when.as_deref() else {
            state.by_object.remove(key);
            return None;
        };
        let known = state.by_object.get(key);
        if let Some(known) = known.filter(|known| &*known.text == text) {
            return Some(Arc::clone(known));
        }
        let filter = state.parsed(text);
        state.by_object.insert(key.clone(), Arc::clone(&filter));
        Some(filter)
    }

    /// Forgets the filter of a deleted object.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_object.remove(key);
    }
}

impl FiltersState {
    fn parsed(&mut self, text: &str) -> Arc<Filter> {
        if let Some(filter) = self.by_text.get(text).and_then(Weak::upgrade) {
            return filter;
        }
        if self.by_text.len() == self.by_text.capacity() {
            self.by_text.retain(|_, filter| filter.strong_count() > 0);
        }
        let filter = Arc::new(Filter {
            text: text.into(),
            when: When::parse(text),
        });
        let shared = Arc::downgrade(&filter);
        self.by_text.insert(Arc::clone(&filter.text), shared);
        filter
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::tracked_field::NotificationSpec;

    use super::*;

    fn spec(when: &str) -> TrackedFieldSpec {
        TrackedFieldSpec {
            notification: Arc::new(NotificationSpec {
                when: Some(when.into()),
                ..NotificationSpec::default()
            }),
            ..TrackedFieldSpec::default()
        }
    }

    #[test]
    fn expression_is_parsed_once_and_freed_with_its_last_object() {
        let filters = Filters::default();
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("default", name));
        let of = |key: &ObjectKey, when: &str| filters.of(key, &spec(when)).unwrap();
        let first = of(&a, "action == 'Updated'");
        assert!(first.when().is_ok());
        assert!(Arc::ptr_eq(&first, &of(&a, "action == 'Updated'")));
        assert!(Arc::ptr_eq(&first, &of(&b, "action == 'Updated'")));
        let changed = of(&a, "actio == 'Updated'");
        assert!(changed.when().is_err());
        let [first, changed] = [first, changed].map(|filter| Arc::downgrade(&filter));
        assert!(first.upgrade().is_some());
        filters.forget(&b);
        assert!(first.upgrade().is_none());
        assert!(filters.of(&a, &TrackedFieldSpec::default()).is_none());
        assert!(changed.upgrade().is_none());
    }

    #[test]
    fn texts_of_former_expressions_do_not_accumulate() {
        let filters = Filters::default();
        let key = ObjectKey::new("default", "a");
        for number in 0..1000 {
            filters.of(&key, &spec(&format!("value == '{number}'")));
        }
        assert!(filters.0.lock().unwrap().by_text.len() < 50);
    }
}
