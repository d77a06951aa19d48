//! Conversion of observations into entries.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::{Action, Delivery, Entry, History, Subject};
use uuid::Uuid;

use crate::history::ObservedValue;

/// State of the target, as the watch or a read showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Time of the observation.
    pub at: Timestamp,
    /// Observed state.
    pub state: TargetState,
    /// Version of the resource, if one was observed: changes that the history already has are not recorded again.
    pub version: Option<u64>,
    /// Id of the entry, by which a later reconcile recognises a write without a response. `None`: any new id.
    pub id: Option<Uuid>,
    /// Merged observations, of which this one is the last.
    pub(super) merged: Option<Box<Merged>>,
}

/// Newest known state of the target, recorded or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestState {
    /// The state; an entry that records it gets a new id.
    pub observation: Observation,
    /// Version of the history's last entry when the read of this state began. The state is later than that entry even
    /// if its own version is lower: versions restart at lower numbers after a restore of etcd.
    pub outranks: Option<u64>,
}

/// State of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// The target exists.
    Present {
        /// UID of the target.
        uid: Option<String>,
        /// Value of the field.
        value: ObservedValue,
    },
    /// The target does not exist.
    Absent,
}

/// Observations of one subject, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservationSeries {
    pub subject: Subject,
    /// Observations, oldest first.
    pub observations: Vec<Observation>,
}

/// Summary of merged observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Merged {
    changes: u64,
    first_value: Option<String>,
}

/// Result of [`record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of new entries.
    pub entries: usize,
    /// Number of changes that the new entries stand for.
    pub changes: u64,
    /// Whether the previously last entry got fields that the original program had not written. No message results.
    pub completed: bool,
}

impl Recorded {
    /// Returns whether the history must be written.
    pub fn changed(&self) -> bool {
        self.entries > 0 || self.completed
    }
}

impl Observation {
    /// Creates an observation.
    pub fn new(at: Timestamp, state: TargetState, version: Option<u64>) -> Self {
        Self {
            at,
            state,
            version,
            id: None,
            merged: None,
        }
    }

    /// Returns the observation with the id of its entry.
    #[must_use]
    pub fn with_id(self, id: Uuid) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// Returns whether `last` already records this observation: the id is the same (the response to that write was
    /// lost); or another replica, or a read that overtook the watch, recorded this version, a later one or the
    /// deletion.
    fn is_recorded_by(&self, last: &Entry) -> bool {
        if self.id.is_some()
            && self.id == last.id.as_deref().and_then(|id| Uuid::parse_str(id).ok())
        {
            return true;
        }
        let same = match &self.state {
            // A UID never returns. A deletion that a read found has no version.
            TargetState::Present { uid: Some(uid), .. }
                if last.action == Action::Deleted && last.uid.as_ref() == Some(uid) =>
            {
                return true;
            }
            TargetState::Present { uid, .. } => *uid == last.uid,
            TargetState::Absent => true,
        };
        same && self.version.is_some_and(|own| own <= version(last))
    }

    /// Returns the number of changes that this observation stands for, if it is a change.
    pub fn changes(&self) -> u64 {
        self.merged.as_ref().map_or(1, |merged| merged.changes)
    }

    /// Merges two neighbouring observations; the result shows the later state.
    pub(super) fn merge(self, next: Self) -> Self {
        let changes = self.changes().saturating_add(next.changes());
        let first_value = match self.merged {
            Some(merged) => merged.first_value,
            None => self
                .state
                .value()
                .and_then(ObservedValue::text)
                .map(str::to_owned),
        };
        let merged = Merged {
            changes,
            first_value,
        };
        Self {
            merged: Some(Box::new(merged)),
            ..next
        }
    }

    /// Returns the size in memory, in bytes.
    pub(super) fn size(&self) -> usize {
        let first = self
            .merged
            .as_ref()
            .and_then(|merged| merged.first_value.as_ref());
        let state = match &self.state {
            TargetState::Absent => 0,
            TargetState::Present { uid, value } => {
                uid.as_ref().map_or(0, String::len)
                    + value.text().map_or(0, str::len)
                    + value
                        .cut()
                        .map_or(0, |cut| size_of_val(cut) + cut.sha256.len())
            }
        };
        size_of::<Self>() + state + first.map_or(0, |first| size_of::<Merged>() + first.len())
    }
}

impl TargetState {
    fn value(&self) -> Option<&ObservedValue> {
        match self {
            Self::Present { value, .. } => Some(value),
            Self::Absent => None,
        }
    }

    /// Returns whether `next` is the same state.
    pub(super) fn is_unchanged(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Absent, Self::Absent) => true,
            (Self::Present { uid: a, value: old }, Self::Present { uid: b, value: new }) => {
                old == new && !differ(a.as_deref(), b.as_deref())
            }
            _ => false,
        }
    }
}

/// Returns whether the UIDs belong to two resources; an unknown UID matches any.
fn differ(a: Option<&str>, b: Option<&str>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Appends changes as Pending entries of `subject`, with ids from `ids`.
///
/// Each observation is compared with the last entry, if that has the same subject; another subject starts a new series.
/// So the first observation after a restart or a relist yields one entry for the net change, or none.
pub fn record(
    history: &mut History,
    subject: &Subject,
    observations: impl IntoIterator<Item = Observation>,
    mut ids: impl FnMut() -> String,
) -> Recorded {
    let mut observations: Vec<Observation> = observations.into_iter().collect();
    if let Some(last) = history.last().filter(|last| is_about(last, subject))
        && let Some(newest_recorded) = observations
            .iter()
            .rposition(|observation| observation.is_recorded_by(last))
    {
        // Earlier observations are recorded too, even those of a deleted resource of the same name.
        observations.drain(..=newest_recorded);
    }
    append(history, subject, observations, &mut ids)
}

/// Appends the newest state if it is a change. Returns the version of the last entry if that entry differs and the
/// newest state has no later version: the watch is stale, or versions restarted at lower numbers. Only a new read can
/// decide.
pub fn record_newest(
    history: &mut History,
    subject: &Subject,
    newest: &NewestState,
    ids: impl FnMut() -> String,
) -> Option<u64> {
    let NewestState {
        observation,
        outranks,
    } = newest;
    let last = history.last().filter(|last| is_about(last, subject));
    let recorded_version = last
        .filter(|last| observation.is_recorded_by(last))
        .map(version);
    if let Some(version) = recorded_version
        && outranks.is_none_or(|outranked| outranked < version)
    {
        return change(last, &observation.state).map(|_| version);
    }
    append(history, subject, [observation.clone()], ids);
    None
}

fn append(
    history: &mut History,
    subject: &Subject,
    observations: impl IntoIterator<Item = Observation>,
    mut ids: impl FnMut() -> String,
) -> Recorded {
    let mut recorded = Recorded::default();
    for observation in observations {
        let last = history.last_mut().filter(|last| is_about(last, subject));
        let uid = last.as_ref().and_then(|last| last.uid.clone());
        let is_single = observation.merged.is_none();
        let action = match (
            change(last.as_deref(), &observation.state),
            &observation.state,
        ) {
            (Some(action), _) => action,
            (None, TargetState::Absent) if is_single => continue,
            (None, TargetState::Absent) => Action::Deleted,
            (None, TargetState::Present { uid, value }) if is_single => {
                recorded.completed |=
                    last.is_some_and(|last| complete(last, subject, uid.as_ref(), value));
                continue;
            }
            (None, TargetState::Present { .. }) => Action::Updated,
        };
        recorded.entries += 1;
        recorded.changes = recorded.changes.saturating_add(observation.changes());
        let id = observation.id.map_or_else(&mut ids, |id| id.to_string());
        history.push(entry(action, subject, observation, uid, id));
    }
    recorded
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
    last.display_value = if is_about(last, subject) {
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

fn is_about(entry: &Entry, subject: &Subject) -> bool {
    entry.subject.as_ref().is_none_or(|other| other == subject)
}

/// Returns the change from the last entry of the same subject to `state`, if any.
fn change(last: Option<&Entry>, state: &TargetState) -> Option<Action> {
    match (last.filter(|last| last.action != Action::Deleted), state) {
        (None, TargetState::Absent) => None,
        (Some(_), TargetState::Absent) => Some(Action::Deleted),
        (None, TargetState::Present { .. }) => Some(Action::Created),
        (Some(last), TargetState::Present { uid, .. })
            if differ(last.uid.as_deref(), uid.as_deref()) =>
        {
            Some(Action::Created)
        }
        (Some(last), TargetState::Present { value, .. }) => {
            (!is_unknown(last) && !has_value(last, value)).then_some(Action::Updated)
        }
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

fn has_value(entry: &Entry, value: &ObservedValue) -> bool {
    entry.value.as_deref() == value.text()
        && entry.missing == (*value == ObservedValue::Missing)
        && entry.truncated.as_ref() == value.cut()
}

/// Completes an entry of the original program; returns whether anything was missing.
fn complete(
    entry: &mut Entry,
    subject: &Subject,
    uid: Option<&String>,
    value: &ObservedValue,
) -> bool {
    let is_incomplete =
        entry.subject.is_none() || (entry.uid.is_none() && uid.is_some()) || is_unknown(entry);
    if is_incomplete {
        entry.subject.get_or_insert_with(|| subject.clone());
        entry.uid = entry.uid.take().or_else(|| uid.cloned());
        set_value(entry, value);
    }
    is_incomplete
}

fn set_value(entry: &mut Entry, value: &ObservedValue) {
    entry.value = value.text().map(str::to_owned);
    entry.missing = *value == ObservedValue::Missing;
    entry.truncated = value.cut().cloned();
}

/// Creates an entry. `uid` is the UID of a deleted resource.
fn entry(
    action: Action,
    subject: &Subject,
    observation: Observation,
    uid: Option<String>,
    id: String,
) -> Entry {
    let (merged, first_value) = match observation.merged {
        Some(merged) => (Some(merged.changes), merged.first_value),
        None => (None, None),
    };
    let mut entry = Entry {
        time: Some(whole_seconds(observation.at)),
        action,
        value: None,
        display_value: None,
        missing: false,
        truncated: None,
        id: Some(id),
        delivery: Some(Delivery::Pending),
        reason: None,
        subject: Some(subject.clone()),
        uid,
        resource_version: observation.version.map(|version| version.to_string()),
        merged,
        first_value,
        suspended_since: None,
        suspended_seconds: None,
    };
    if let TargetState::Present { uid, value } = observation.state {
        set_value(&mut entry, &value);
        entry.uid = uid;
    }
    entry
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
        (_, Action::Deleted) => Action::Deleted,
        (Action::Updated, Action::Updated) => Action::Updated,
        // The resource was created or recreated in between.
        _ => Action::Created,
    };
    Entry {
        action,
        id: Some(id),
        merged: Some(merged),
        first_value: first_value.filter(|_| same_subject),
        ..next
    }
}
