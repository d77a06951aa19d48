//! The next history, from the stored one and what a reconcile observed: observations become entries, the history ends
//! with the newest state, outcomes are marked, and the limits are enforced (etcd accepts 1.5 MiB, and many clients read
//! the whole history again after each write).

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use qm_api::tracked_field::{ChangeAction, Delivery, Entry, History, Skipped, Subject};
use qm_core::time::whole_seconds;

use super::expiry::set_suspended;
use super::limits::{HistoryLimits, apply_limits};
use super::outcome::{DeliveryOutcome, FailedEntries, mark};
use super::previous::preceding;
use super::value::{Details, ObservedField, ObservedValue};
use crate::when::When;

/// Input of a reconcile.
pub struct Inputs<'a> {
    /// Subject that the spec tracks now.
    pub subject: &'a Subject,
    /// Observations that the history may lack, oldest first.
    pub observations: &'a [Entry],
    /// Newest known state, even if recorded long ago.
    pub newest: Option<&'a NewestState>,
    /// Outcomes of entries, by id.
    pub outcomes: &'a [(String, DeliveryOutcome)],
    /// Ids of entries in flight.
    pub in_flight: &'a HashSet<String>,
    /// Whether the object or its contact point is suspended.
    pub suspended: bool,
    /// `spec.when`, or why it is invalid.
    pub when: Option<&'a Result<When, String>>,
    /// UID of a target whose first value of each subject is not sent: it existed before the object, and `spec.initial`
    /// is `Quiet`.
    pub quiet: Option<&'a str>,
    /// `spec.historyLimit`.
    pub limit: Option<i64>,
    /// Measured time for which entries were suspended, by id.
    pub suspended_for: &'a BTreeMap<String, Duration>,
    /// Current time.
    pub now: Timestamp,
}

/// Result of a reconcile.
#[derive(Debug)]
pub struct HistoryChanges {
    /// History to write.
    pub history: History,
    /// Whether the history differs from the one before.
    pub changed: bool,
    /// Version of the last entry, if it contradicts the newest state: see [`record_newest`].
    pub contradicted: Option<u64>,
    /// Newly failed entries.
    pub failed: FailedEntries,
    /// Number of entries that were merged into a neighbour.
    pub merged: usize,
    /// Number of new entries for which no message is sent because of `spec.when`.
    pub skipped: usize,
    /// Number of first values that are recorded without a message.
    pub quiet: usize,
    /// Number of new entries for which `spec.when` is invalid or has no result: their messages are sent.
    pub when_errors: usize,
}

/// Returns the history after a reconcile.
pub fn next(
    before: &[Entry],
    inputs: &Inputs<'_>,
    mut ids: impl FnMut() -> String,
) -> HistoryChanges {
    let mut history = before.to_vec();
    record(&mut history, inputs.subject, inputs.observations);
    // Level-triggered: the history ends with the newest state, whatever was observed and whichever replica recorded it.
    let contradicted = inputs
        .newest
        .and_then(|newest| record_newest(&mut history, newest, &mut ids));
    let quiet = inputs
        .quiet
        .map_or(0, |uid| skip_initial(&mut history, before.len(), uid));
    let (skipped, when_errors) = inputs
        .when
        .map_or((0, 0), |when| skip(&mut history, before.len(), when));
    let failed = mark(&mut history, inputs.outcomes);
    set_suspended(
        &mut history,
        inputs.suspended,
        inputs.suspended_for,
        inputs.now,
    );
    display(&mut history, inputs.subject);
    let limits = HistoryLimits::new(inputs.limit);
    let in_flight = |id: &str| inputs.in_flight.contains(id);
    let merged = apply_limits(&mut history, limits, in_flight, ids);
    HistoryChanges {
        changed: history != before,
        history,
        contradicted,
        failed,
        merged,
        skipped,
        quiet,
        when_errors,
    }
}

/// Marks the first entry of each series as skipped, if it is new, at index `new` or later, and shows the target of this
/// UID. Returns the number of such entries.
fn skip_initial(history: &mut History, new: usize, uid: &str) -> usize {
    let mut skipped = 0;
    for at in new..history.len() {
        let (before, [entry, ..]) = history.split_at_mut(at) else {
            break;
        };
        // A subject that comes back starts a new series.
        let is_first = before.last().is_none_or(|last| !is_about(last, entry));
        if is_first
            && entry.action == ChangeAction::Created
            && entry.merged.is_none()
            && entry.uid.as_deref() == Some(uid)
        {
            (entry.delivery, entry.skipped) = (None, Some(Skipped::Initial));
            skipped += 1;
        }
    }
    skipped
}

/// Marks the entries from index `new` on for which `when` is false as skipped. A merged entry is always sent: it stands
/// for changes that `when` cannot test any more. Returns the numbers of skipped entries and of errors.
fn skip(history: &mut History, new: usize, when: &Result<When, String>) -> (usize, usize) {
    let (mut skipped, mut errors) = (0, 0);
    for at in new..history.len() {
        let (before, [entry, ..]) = history.split_at_mut(at) else {
            break;
        };
        if entry.merged.is_some() || entry.skipped.is_some() {
            continue;
        }
        let sends = when
            .as_ref()
            .map(|when| when.evaluate(entry, preceding(before, entry)));
        match sends {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                (entry.delivery, entry.skipped) = (None, Some(Skipped::When));
                skipped += 1;
            }
            Ok(Err(_)) | Err(_) => errors += 1,
        }
    }
    (skipped, errors)
}

/// Newest known state of the target, recorded or not.
#[derive(Clone, Debug, PartialEq)]
pub struct NewestState {
    /// The observation; an entry that records it gets a new id.
    pub observation: Entry,
    /// Creation time of the target, if it exists.
    pub created: Option<Timestamp>,
    /// True if the target existed before the field was followed.
    pub existed: bool,
    /// Version of the history's last entry when the read of this state began. The state is later than that entry even
    /// if its own version is lower: versions restart at lower numbers after a restore of etcd.
    pub outranks: Option<u64>,
}

/// Returns an observation of the target at this time, as the entry that records it; [`record`] sets the final action.
/// `observed`: the field, `None` if the target does not exist. `version`: the resource's version, if one was
/// observed. `id`: recognises a write without a response.
pub fn observation(
    subject: &Subject,
    at: Timestamp,
    uid: Option<String>,
    observed: Option<&ObservedField>,
    version: Option<u64>,
    id: Option<String>,
) -> Entry {
    let Details {
        context,
        changed_by,
    } = observed
        .and_then(|observed| observed.details.as_deref().cloned())
        .unwrap_or_default();
    let value = observed.map(|observed| &observed.value);
    let action = match value {
        Some(_) => ChangeAction::Updated,
        None => ChangeAction::Deleted,
    };
    Entry {
        time: Some(whole_seconds(at)),
        action,
        value: value.and_then(ObservedValue::text).map(str::to_owned),
        display_value: None,
        missing: value == Some(&ObservedValue::Missing),
        truncated: value.and_then(ObservedValue::truncation).cloned(),
        id,
        delivery: Some(Delivery::Pending),
        skipped: None,
        reason: None,
        subject: Some(subject.clone()),
        uid: uid.filter(|_| value.is_some()),
        resource_version: version.map(|version| version.to_string()),
        context,
        changed_by,
        merged: None,
        first_value: None,
        suspended_since: None,
        suspended_seconds: None,
    }
}

/// Returns whether `last` already records the observation: by its id, if the response to that write was lost; or
/// because another replica, or a read that overtook the watch, recorded this version, a later one or the deletion.
fn is_recorded_by(observation: &Entry, last: &Entry) -> bool {
    if !is_about(last, observation) {
        return false;
    }
    if observation.id.is_some() && observation.id == last.id {
        return true;
    }
    let exists = observation.action != ChangeAction::Deleted;
    let same_uid = observation.uid == last.uid;
    // A UID never returns after its deletion, which has no version if a read found it.
    if exists && observation.uid.is_some() && same_uid && last.action == ChangeAction::Deleted {
        return true;
    }
    let own = observation.resource_version.is_some();
    own && (!exists || same_uid) && version(observation) <= version(last)
}

/// Returns whether two observations show the same state of the target.
pub(super) fn is_same_state(a: &Entry, b: &Entry) -> bool {
    let exists = |entry: &Entry| entry.action != ChangeAction::Deleted;
    a.subject == b.subject
        && exists(a) == exists(b)
        && (!exists(a) || (has_same_value(a, b) && !differ(a.uid.as_ref(), b.uid.as_ref())))
}

/// Returns whether the UIDs belong to two resources; an unknown UID matches any.
fn differ(a: Option<&String>, b: Option<&String>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Appends the observed changes as Pending entries.
///
/// Each observation is compared with the last entry, if that has the same subject; another subject starts a new series.
/// So the first observation after a restart or a relist yields one entry for the net change, or none. Observations of
/// an earlier subject are dropped once the history has entries of the spec's `subject`.
pub fn record(history: &mut History, subject: &Subject, observations: &[Entry]) {
    let has_entries = history
        .last()
        .is_some_and(|last| last.subject.as_ref() == Some(subject));
    // Observations before a recorded one are recorded too, even those of a deleted resource of the same name.
    let recorded = history.last().and_then(|last| {
        let is_recorded = |observation: &Entry| is_recorded_by(observation, last);
        observations.iter().rposition(is_recorded)
    });
    let unrecorded = &observations[recorded.map_or(0, |at| at + 1)..];
    for observation in unrecorded {
        if !has_entries || observation.subject.as_ref() == Some(subject) {
            append(history, observation);
        }
    }
}

/// Appends the newest state if it is a change. Returns the version of the last entry if that entry differs and the
/// newest state has no later version: the watch is stale, or versions restarted at lower numbers. Only a new read can
/// decide.
pub(crate) fn record_newest(
    history: &mut History,
    newest: &NewestState,
    mut ids: impl FnMut() -> String,
) -> Option<u64> {
    let NewestState {
        observation,
        outranks,
        ..
    } = newest;
    if let Some(last) = history.last()
        && is_recorded_by(observation, last)
        && outranks.is_none_or(|outranked| outranked < version(last))
    {
        return change(Some(last), observation).map(|_| version(last));
    }
    let observation = Entry {
        id: Some(ids()),
        ..observation.clone()
    };
    append(history, &observation);
    None
}

fn append(history: &mut History, observation: &Entry) {
    let last = history
        .last_mut()
        .filter(|last| is_about(last, observation));
    let is_deleted = observation.action == ChangeAction::Deleted;
    let action = match change(last.as_deref(), observation) {
        Some(action) => action,
        // Merged observations stand for changes, even if the last value equals the first.
        None if observation.merged.is_some() && is_deleted => ChangeAction::Deleted,
        None if observation.merged.is_some() => ChangeAction::Updated,
        None => {
            if let Some(last) = last.filter(|_| !is_deleted) {
                complete(last, observation);
            }
            return;
        }
    };
    let mut entry = Entry {
        action,
        ..observation.clone()
    };
    if is_deleted && let Some(last) = last {
        entry.uid.clone_from(&last.uid);
        entry.context.clone_from(&last.context);
    }
    if !may_be_changed_by(history, &entry) {
        entry.changed_by = None;
    }
    history.push(entry);
}

/// Returns whether the last writer of the value may have made the change. `managedFields` do not name a client that
/// removes a part of an object or a list: the last writer of the remaining parts has then written nothing since the
/// entries before.
fn may_be_changed_by(before: &[Entry], entry: &Entry) -> bool {
    let has_parts = |entry: &Entry| {
        let value = entry.value.as_deref();
        value.is_some_and(|value| value.starts_with(['{', '[']))
    };
    let (Some(last), Some(writer)) = (before.last(), &entry.changed_by) else {
        return true;
    };
    let may_be_removal =
        entry.action == ChangeAction::Updated && (has_parts(last) || has_parts(entry));
    if !may_be_removal {
        return true;
    }
    let mut earlier = before.iter().rev().filter(|it| is_about(it, entry));
    let known = earlier.find_map(|it| it.changed_by.as_ref());
    known.is_none_or(|known| writer.time > known.time)
}

/// Sets the display value for `kubectl get`: shortened, in the last entry alone, and empty if the spec has another
/// subject.
pub(super) fn display(history: &mut History, subject: &Subject) {
    let Some((last, others)) = history.split_last_mut() else {
        return;
    };
    for entry in others {
        entry.display_value = None;
    }
    let is_current = last.subject.as_ref().is_none_or(|other| other == subject);
    last.display_value = if is_current {
        last.value.as_deref().and_then(shortened)
    } else {
        Some(String::new())
    };
}

/// Returns both ends of a text of more than 40 characters: the tag of an image is at the end.
fn shortened(text: &str) -> Option<String> {
    const ENDS: usize = 20;
    let (head, _) = text.char_indices().nth(ENDS - 1)?;
    let (tail, _) = text.char_indices().rev().nth(ENDS - 1)?;
    (text.chars().count() > 2 * ENDS).then(|| format!("{}…{}", &text[..head], &text[tail..]))
}

/// Returns whether an entry has the subject of the observation. Entries that Quartermaster did not write have no
/// subject, and match any.
fn is_about(entry: &Entry, observation: &Entry) -> bool {
    entry.subject.is_none() || entry.subject == observation.subject
}

/// Returns the change from the last entry of the same subject to the observed state, if any.
fn change(last: Option<&Entry>, observation: &Entry) -> Option<ChangeAction> {
    let is_deleted = observation.action == ChangeAction::Deleted;
    match last.filter(|last| last.action != ChangeAction::Deleted) {
        None if is_deleted => None,
        None => Some(ChangeAction::Created),
        Some(_) if is_deleted => Some(ChangeAction::Deleted),
        Some(last) if differ(last.uid.as_ref(), observation.uid.as_ref()) => {
            Some(ChangeAction::Created)
        }
        Some(last) => (!is_unknown(last) && !has_same_value(last, observation))
            .then_some(ChangeAction::Updated),
    }
}

/// Returns the resource version of an entry, 0 if unknown.
fn version(entry: &Entry) -> u64 {
    entry
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// Returns whether the value is unknown: the original program (document 000) wrote an empty value for a `targetPort`
/// that is a number.
fn is_unknown(entry: &Entry) -> bool {
    entry.id.is_none() && entry.value.is_none() && !entry.missing
}

fn has_same_value(a: &Entry, b: &Entry) -> bool {
    a.value == b.value && a.missing == b.missing && a.truncated == b.truncated
}

/// Completes an entry that Quartermaster did not write, without a message.
fn complete(entry: &mut Entry, observation: &Entry) {
    if entry.subject.is_none()
        || (entry.uid.is_none() && observation.uid.is_some())
        || is_unknown(entry)
    {
        let known = observation.clone();
        entry.subject = entry.subject.take().or(known.subject);
        entry.uid = entry.uid.take().or(known.uid);
        (entry.value, entry.missing, entry.truncated) =
            (known.value, known.missing, known.truncated);
    }
}
