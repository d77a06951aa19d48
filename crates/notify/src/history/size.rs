//! Sizes of stored entries.

use qm_api::tracked_field::{ChangedBy, Entry, Truncation};

/// Size of a quoted time.
const TIME: usize = "\"2025-02-11T20:44:21Z\"".len();

/// Returns the size of an entry and its comma as the apiserver stores them, in bytes: Go's JSON escapes `<`, `>` and
/// `&`.
///
/// Summing is cheaper than serialising, and each reconcile needs the size of every entry.
pub(super) fn stored(entry: &Entry) -> usize {
    // All fields by name: the compiler rejects a new field until it is counted here.
    let Entry {
        time,
        action,
        value,
        display_value,
        missing,
        truncated,
        id,
        delivery,
        skipped,
        reason,
        subject,
        uid,
        resource_version,
        context,
        changed_by,
        merged,
        first_value,
        suspended_since,
        suspended_seconds,
    } = entry;
    let text = |name: &str, text: Option<&str>| text.map_or(0, |text| field(name, string(text)));
    let number =
        |name: &str, value: Option<u64>| value.map_or(0, |value| field(name, digits(value)));

    // Two braces and the comma after the entry; each field counts a comma, and the last one has none.
    2 + time.as_ref().map_or(0, |_| field("time", TIME))
        + field("action", 2 + action.as_str().len())
        + text("value", value.as_deref())
        + text("displayValue", display_value.as_deref())
        + if *missing {
            field("missing", "true".len())
        } else {
            0
        }
        + truncated
            .as_ref()
            .map_or(0, |Truncation { length, sha256 }| {
                field(
                    "truncated",
                    1 + field("length", digits(*length)) + field("sha256", string(sha256)),
                )
            })
        + text("id", id.as_deref())
        + delivery.map_or(0, |delivery| field("delivery", 2 + delivery.as_str().len()))
        + skipped.map_or(0, |skipped| field("skipped", 2 + skipped.as_str().len()))
        + text("reason", reason.as_deref())
        + subject
            .as_ref()
            .map_or(0, |subject| field("subject", string(subject.as_str())))
        + text("uid", uid.as_deref())
        + text("resourceVersion", resource_version.as_deref())
        + if context.is_empty() {
            0
        } else {
            let fields = context
                .iter()
                .map(|(name, value)| field(name, string(value)));
            field("context", 1 + fields.sum::<usize>())
        }
        + changed_by.as_deref().map_or(0, |changed_by| {
            let ChangedBy {
                manager,
                operation,
                subresource,
                time,
            } = changed_by;
            field(
                "changedBy",
                1 + text("manager", Some(manager))
                    + text("operation", operation.as_deref())
                    + text("subresource", subresource.as_deref())
                    + time.as_ref().map_or(0, |_| field("time", TIME)),
            )
        })
        + number("merged", *merged)
        + text("firstValue", first_value.as_deref())
        + suspended_since
            .as_ref()
            .map_or(0, |_| field("suspendedSince", TIME))
        + number("suspendedSeconds", *suspended_seconds)
}

/// Returns the size of `"name":value,`.
fn field(name: &str, value: usize) -> usize {
    name.len() + "\"\":,".len() + value
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Returns the size of a quoted string.
fn string(text: &str) -> usize {
    let escaped = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | 0x08 | 0x09 | 0x0a | 0x0c | 0x0d => 2,
        0..0x20 | b'<' | b'>' | b'&' => 6,
        _ => 1,
    });
    // Go also escapes these two line ends: six bytes instead of three.
    let line_ends = if text.is_ascii() {
        0
    } else {
        text.matches(['\u{2028}', '\u{2029}']).count()
    };
    2 + escaped.sum::<usize>() + 3 * line_ends
}
