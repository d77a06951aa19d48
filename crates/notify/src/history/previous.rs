//! Entries together with the previous value.

use qm_api::tracked_field::{Delivery, Entry};

/// Returns the entries to send, oldest first, each with the entry that has the previous value: the preceding one, if it
/// has the same subject and has not failed. The receiver never got a failed value, and if it rejected that value, it
/// would reject this message too.
pub fn pending(history: &[Entry]) -> impl Iterator<Item = (&Entry, Option<&Entry>)> {
    let pending = history
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.is_pending() && entry.id.is_some());
    pending.map(|(at, entry)| (entry, previous(&history[..at], entry)))
}

/// Returns the newest entry, with the preceding one of the same subject, whatever became of its message. This is the rule
/// of `when`, which compares recorded values.
pub fn newest_recorded(history: &[Entry]) -> Option<(&Entry, Option<&Entry>)> {
    let (newest, before) = history.split_last()?;
    Some((newest, preceding(before, newest)))
}

/// Returns the newest entry, with the preceding one by the rule of [`pending`].
pub fn newest(history: &[Entry]) -> Option<(&Entry, Option<&Entry>)> {
    let (newest, before) = history.split_last()?;
    Some((newest, previous(before, newest)))
}

fn previous<'a>(before: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    preceding(before, entry).filter(|before| before.delivery != Some(Delivery::Failed))
}

/// Returns the preceding entry of the same subject. Entries that Quartermaster did not write have no subject, and count
/// for any.
pub(super) fn preceding<'a>(before: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    before
        .last()
        .filter(|before| before.subject.is_none() || before.subject == entry.subject)
}
