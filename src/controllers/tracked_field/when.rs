//! The parsed `spec.when` of each `TrackedField`: parsed once for all objects with the same text.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use qm_api::tracked_field::TrackedFieldSpec;
use qm_notify::when::When;
use qm_runtime::ObjectKey;

/// A parsed `spec.when`.
pub(crate) struct ParsedWhen {
    text: Arc<str>,
    when: Result<When, String>,
}

impl ParsedWhen {
    /// Returns the expression, or why it is invalid.
    pub(super) fn when(&self) -> &Result<When, String> {
        &self.when
    }
}

#[derive(Default)]
pub(crate) struct ParsedWhens(Mutex<ParsedWhensState>);

#[derive(Default)]
struct ParsedWhensState {
    by_object: HashMap<ObjectKey, Arc<ParsedWhen>>,
    by_text: HashMap<Arc<str>, Weak<ParsedWhen>>,
}

impl ParsedWhens {
    /// Returns the parsed `spec.when` of an object.
    pub(super) fn of(&self, key: &ObjectKey, spec: &TrackedFieldSpec) -> Option<Arc<ParsedWhen>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(text) = spec.notification.when.as_deref() else {
            state.by_object.remove(key);
            return None;
        };
        let known = state.by_object.get(key);
        if let Some(known) = known.filter(|known| &*known.text == text) {
            return Some(Arc::clone(known));
        }
        let when = state.parsed(text);
        state.by_object.insert(key.clone(), Arc::clone(&when));
        Some(when)
    }

    /// Forgets a deleted object.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.by_object.remove(key);
    }
}

impl ParsedWhensState {
    fn parsed(&mut self, text: &str) -> Arc<ParsedWhen> {
        if let Some(parsed) = self.by_text.get(text).and_then(Weak::upgrade) {
            return parsed;
        }
        if self.by_text.len() == self.by_text.capacity() {
            self.by_text.retain(|_, parsed| parsed.strong_count() > 0);
        }
        let parsed = Arc::new(ParsedWhen {
            text: text.into(),
            when: When::parse(text),
        });
        let shared = Arc::downgrade(&parsed);
        self.by_text.insert(Arc::clone(&parsed.text), shared);
        parsed
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
        let whens = ParsedWhens::default();
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("default", name));
        let of = |key: &ObjectKey, when: &str| whens.of(key, &spec(when)).unwrap();
        let first = of(&a, "action == 'Updated'");
        assert!(first.when().is_ok());
        assert!(Arc::ptr_eq(&first, &of(&a, "action == 'Updated'")));
        assert!(Arc::ptr_eq(&first, &of(&b, "action == 'Updated'")));
        let changed = of(&a, "actio == 'Updated'");
        assert!(changed.when().is_err());
        let [first, changed] = [first, changed].map(|parsed| Arc::downgrade(&parsed));
        assert!(first.upgrade().is_some());
        whens.forget(&b);
        assert!(first.upgrade().is_none());
        assert!(whens.of(&a, &TrackedFieldSpec::default()).is_none());
        assert!(changed.upgrade().is_none());
    }

    #[test]
    fn texts_of_former_expressions_do_not_accumulate() {
        let whens = ParsedWhens::default();
        let key = ObjectKey::new("default", "a");
        for number in 0..1000 {
            whens.of(&key, &spec(&format!("value == '{number}'")));
        }
        assert!(whens.0.lock().unwrap().by_text.len() < 50);
    }
}
