//! Conversion of observations into entries.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::{ChangeAction, Delivery, Entry, History, Subject};

use crate::history::ObservedValue;

/// Newest known state of the target, recorded or not.
#[derive(Clone, Debug, PartialEq)]
pub struct NewestState {
    /// The observation; an entry that records it gets a new id.
    pub observation: Entry,
    /// Version of the history's last entry when the read of this state began. The state is later than that entry even
    /// if its own version is lower: versions restart at lower numbers after a restore of etcd.
    pub outranks: Option<u64>,
}

/// Returns an observation of the target at this time: the entry that records it, except that the action is `Deleted`
/// or `Updated` until [`record`] compares the observation with the entry before. `value`: the field's value, `None` if
/// the target does not exist. `version`: the resource's version, if one was observed. A later reconcile recognises a
/// write without a response by `id`.
pub fn observation(
    subject: &Subject,
    at: Timestamp,
    uid: Option<String>,
    value: Option<&ObservedValue>,
    version: Option<u64>,
    id: Option<String>,
) -> Entry {
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
        truncated: value.and_then(ObservedValue::cut).cloned(),
        id,
        delivery: Some(Delivery::Pending),
        reason: None,
        subject: Some(subject.clone()),
        uid: uid.filter(|_| value.is_some()),
        resource_version: version.map(|version| version.to_string()),
        merged: None,
        first_value: None,
        suspended_since: None,
        suspended_seconds: None,
    }
}

/// Returns whether `last` already records the observation: the id is the same (the response to that write was lost); or
/// another replica, or a read that overtook the watch, recorded this version, a later one or the deletion.
fn is_recorded_by(observation: &Entry, last: &Entry) -> bool {
    if !is_about(last, observation) {
        return false;
    }
    if observation.id.is_some() && observation.id == last.id {
        return true;
    }
    let exists = observation.action != ChangeAction::Deleted;
    let same_uid = observation.uid == last.uid;
    // A UID never returns. A deletion that a read found has no version.
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
pub fn record_newest(
    history: &mut History,
    newest: &NewestState,
    mut ids: impl FnMut() -> String,
) -> Option<u64> {
    let NewestState {
        observation,
        outranks,
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
    let uid = if is_deleted {
        last.and_then(|last| last.uid.clone())
    } else {
        observation.uid.clone()
    };
    history.push(Entry {
        action,
        uid,
        ..observation.clone()
    });
}

/// Sets the display values for `kubectl get`: of the last entry only, whose value may be long, and empty if the spec
/// left its target.
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

/// Returns whether an entry has the subject of the observation. Entries of the original program have no subject.
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

/// Returns whether the value is unknown: the original program wrote an empty value for a targetPort that is a number.
fn is_unknown(entry: &Entry) -> bool {
    entry.id.is_none() && entry.value.is_none() && !entry.missing
}

fn has_same_value(a: &Entry, b: &Entry) -> bool {
    a.value == b.value && a.missing == b.missing && a.truncated == b.truncated
}

/// Completes an entry of the original program, without a message.
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

/// Returns a time as the API stores it, in whole seconds, so that a read time equals the written one.
pub(super) fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Merges two neighbouring entries. The result shows the later state and has a new id, because a receiver that got one
/// of the two ignores known ids.
pub(super) fn merge_entries(first: Entry, next: Entry, id: String) -> Entry {
    let merged = first.changes().saturating_add(next.changes());
    let same_subject = first.subject == next.subject;
    let first_value = if first.merged.is_some() {
        first.first_value
    } else {
        first.value
    };
    let action = match (first.action, next.action) {
        (_, ChangeAction::Deleted) => ChangeAction::Deleted,
        (ChangeAction::Updated, ChangeAction::Updated) => ChangeAction::Updated,
        // The resource was created or recreated in between.
        _ => ChangeAction::Created,
    };
    Entry {
        action,
        id: Some(id),
        merged: Some(merged),
        first_value: first_value.filter(|_| same_subject),
        ..next
    }
}
