//! Target of the fuzzer for fields: see `crate::fuzz`.

#![allow(clippy::missing_panics_doc)] // a target panics if the parser is wrong

use qm_api::tracked_field::KEPT_BYTES;
use qm_runtime::nesting::{OBJECT_LEVELS, is_deeper};
use serde_json::Value;

use super::field::FieldSelector;
use super::lookup::{Lookup, LookupMode, look_up};

/// Looks up a field: the field, a line `---`, an object.
pub fn json_path(input: &str) {
    let (field, object) = input.split_once("\n---\n").unwrap_or((input, "{}"));
    let object: Value = serde_json::from_str(object).unwrap_or_default();
    if is_deeper(&object, OBJECT_LEVELS) {
        return;
    }
    let kind = object.get("kind").and_then(Value::as_str);
    let selector = match FieldSelector::compile(kind.unwrap_or("Deployment"), field) {
        Ok(selector) => selector,
        Err(error) => {
            let error = error.to_string();
            return assert!(!error.is_empty() && error.len() <= 8 * 1024, "{error}");
        }
    };
    assert_eq!(selector.text(), field);
    let look_up = |mode| look_up(&object, vec![selector.clone()], |_| true, mode).remove(&selector);
    let found = look_up(LookupMode::Background);
    match &found {
        Some(Lookup::Found(value)) => {
            let text = value.text().unwrap_or_default();
            assert!(text.len() <= KEPT_BYTES, "a value of {} bytes", text.len());
        }
        Some(Lookup::Rejected(estimate)) => assert!(!estimate.to_string().is_empty()),
        Some(Lookup::Deferred) | None => unreachable!("nothing follows a background lookup"),
    }
    let inline = look_up(LookupMode::Inline);
    assert!(
        inline == found || inline == Some(Lookup::Deferred),
        "{inline:?} differs from {found:?}"
    );
    let _ = selector.changed_by(&object);
}
