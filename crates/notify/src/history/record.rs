//! Observations become entries.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::{Action, Delivery, Entry, History, Subject};
use uuid::Uuid;

use crate::history::ObservedValue;

/// What the watch, or a first look, showed of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When.
    pub at: Timestamp,
    /// What.
    pub state: State,
    /// The resource's version that showed it, if one did: what the history already tells of is not recorded again.
    pub version: Option<u64>,
    /// The id that its entry gets: by it a write whose answer was lost is recognised. None: any new one.
    pub id: Option<Uuid>,
    /// The observations that were folded into this one, which is the last of them.
    pub(super) folded: Option<Box<Folded>>,
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

/// The target, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is there.
    Present {
        /// Its UID.
        uid: Option<String>,
        /// The field.
        value: ObservedValue,
    },
    /// It is not.
    Absent,
}

/// What was observed of one subject, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Of what.
    pub subject: Subject,
    /// What was seen.
    pub observations: Vec<Observation>,
}

/// What is left of observations that were folded into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folded {
    changes: u64,
    first_value: Option<String>,
}

/// What [`record`] did to the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// New entries.
    pub entries: usize,
    /// The changes that they stand for.
    pub changes: u64,
    /// The last entry of before learnt what the program that wrote it had not noted; nothing to tell anybody.
    pub learnt: bool,
}

impl Recorded {
    /// The history has to be written.
    pub fn changed(&self) -> bool {
        self.entries > 0 || self.learnt
    }
}

impl Observation {
    /// One look at the target.
    pub fn new(at: Timestamp, state: State, version: Option<u64>) -> Self {
        Self {
            at,
            state,
            version,
            id: None,
            folded: None,
        }
    }

    /// The same, whose entry will have this id.
    #[must_use]
    pub fn with_id(self, id: Uuid) -> Self {
        Self {
            id: Some(id),
            ..self
        }
    }

    /// Whether `last` was recorded from this observation, by a pass that never learnt that it had; or from this version
    /// of the resource or a later one, or from its end, by another replica or from a read that overtook the watch.
    fn is_told_by(&self, last: &Entry) -> bool {
        if self.id.is_some()
            && self.id == last.id.as_deref().and_then(|id| Uuid::parse_str(id).ok())
        {
            return true;
        }
        let same = match &self.state {
            // A UID does not come back. What a read found to be gone has no version.
            State::Present { uid: Some(uid), .. }
                if last.action == Action::Deleted && last.uid.as_ref() == Some(uid) =>
            {
                return true;
            }
            State::Present { uid, .. } => *uid == last.uid,
            State::Absent => true,
        };
        same && self.version.is_some_and(|own| own <= version(last))
    }

    /// How many changes it stands for, if it is one at all.
    pub fn changes(&self) -> u64 {
        self.folded.as_ref().map_or(1, |folded| folded.changes)
    }

    /// One observation in place of two neighbours: it shows what the later one shows.
    pub(super) fn fold(self, next: Self) -> Self {
        let changes = self.changes().saturating_add(next.changes());
        let first_value = match self.folded {
            Some(folded) => folded.first_value,
            None => self
                .state
                .value()
                .and_then(ObservedValue::text)
                .map(str::to_owned),
        };
        let folded = Folded {
            changes,
            first_value,
        };
        Self {
            folded: Some(Box::new(folded)),
            ..next
        }
    }

    /// Bytes of memory that it holds on to.
    pub(super) fn size(&self) -> usize {
        let first = self
            .folded
            .as_ref()
            .and_then(|folded| folded.first_value.as_ref());
        let state = match &self.state {
            State::Absent => 0,
            State::Present { uid, value } => {
                uid.as_ref().map_or(0, String::len)
                    + value.text().map_or(0, str::len)
                    + value
                        .cut()
                        .map_or(0, |cut| size_of_val(cut) + cut.sha256.len())
            }
        };
        size_of::<Self>() + state + first.map_or(0, |first| size_of::<Folded>() + first.len())
    }
}

impl State {
    fn value(&self) -> Option<&ObservedValue> {
        match self {
            Self::Present { value, .. } => Some(value),
            Self::Absent => None,
        }
    }

    /// Nothing changed from this one to `next`.
    pub(super) fn is_still(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Absent, Self::Absent) => true,
            (Self::Present { uid: a, value: old }, Self::Present { uid: b, value: new }) => {
                old == new && !differ(a.as_deref(), b.as_deref())
            }
            _ => false,
        }
    }
}

/// Two UIDs of two resources: one that is not known may be any.
fn differ(a: Option<&str>, b: Option<&str>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Appends what changed, as Pending entries of `subject` with ids from `ids`.
///
/// The last entry is what an observation is compared with, if it is of the same subject; another subject starts a new
/// series. So the first observation after a restart or a re-list gives one entry for the net change, or none.
pub fn record(
    history: &mut History,
    subject: &Subject,
    observations: impl IntoIterator<Item = Observation>,
    mut ids: impl FnMut() -> String,
) -> Recorded {
    let mut observations: Vec<Observation> = observations.into_iter().collect();
    if let Some(last) = history.last().filter(|last| speaks_of(last, subject))
        && let Some(told) = observations
            .iter()
            .rposition(|observation| observation.is_told_by(last))
    {
        // Everything observed before that is recorded too, even for a deleted resource of the same name.
        observations.drain(..=told);
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
    let last = history.last().filter(|last| speaks_of(last, subject));
    let told = last
        .filter(|last| observation.is_told_by(last))
        .map(version);
    if let Some(version) = told
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
        let last = history.last_mut().filter(|last| speaks_of(last, subject));
        let uid = last.as_ref().and_then(|last| last.uid.clone());
        let single = observation.folded.is_none();
        let action = match (
            change(last.as_deref(), &observation.state),
            &observation.state,
        ) {
            (Some(action), _) => action,
            (None, State::Absent) if single => continue,
            (None, State::Absent) => Action::Deleted,
            (None, State::Present { uid, value }) if single => {
                recorded.learnt |=
                    last.is_some_and(|last| learn(last, subject, uid.as_ref(), value));
                continue;
            }
            (None, State::Present { .. }) => Action::Updated,
        };
        recorded.entries += 1;
        recorded.changes = recorded.changes.saturating_add(observation.changes());
        let id = observation.id.map_or_else(&mut ids, |id| id.to_string());
        history.push(entry(action, subject, observation, uid, id));
    }
    recorded
}

/// Sets what `kubectl get` prints of the last entry, whose value may be long, or of a target that the spec left.
pub(super) fn display(history: &mut History, subject: &Subject) {
    let Some((last, others)) = history.split_last_mut() else {
        return;
    };
    for entry in others {
        entry.display_value = None;
    }
    last.display_value = if speaks_of(last, subject) {
        last.value.as_deref().and_then(shortened)
    } else {
        Some(String::new())
    };
}

/// Returns the two ends of a text of more than 40 characters: an image's tag is at its end.
fn shortened(text: &str) -> Option<String> {
    const ENDS: usize = 20;
    let (head, _) = text.char_indices().nth(ENDS - 1)?;
    let (tail, _) = text.char_indices().rev().nth(ENDS - 1)?;
    (text.chars().count() > 2 * ENDS).then(|| format!("{}…{}", &text[..head], &text[tail..]))
}

fn speaks_of(entry: &Entry, subject: &Subject) -> bool {
    entry
        .subject
        .as_ref()
        .is_none_or(|spoken_of| spoken_of == subject)
}

/// Returns the change from the last entry of the same subject to `state`, if any.
fn change(last: Option<&Entry>, state: &State) -> Option<Action> {
    match (last.filter(|last| last.action != Action::Deleted), state) {
        (None, State::Absent) => None,
        (Some(_), State::Absent) => Some(Action::Deleted),
        (None, State::Present { .. }) => Some(Action::Created),
        (Some(last), State::Present { uid, .. }) if differ(last.uid.as_deref(), uid.as_deref()) => {
            Some(Action::Created)
        }
        (Some(last), State::Present { value, .. }) => {
            (!is_unknown(last) && !shows(last, value)).then_some(Action::Updated)
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

/// The original program wrote an empty value for a targetPort that is a number: what it saw is not known.
fn is_unknown(entry: &Entry) -> bool {
    entry.id.is_none() && entry.value.is_none() && !entry.missing
}

fn shows(entry: &Entry, value: &ObservedValue) -> bool {
    entry.value.as_deref() == value.text()
        && entry.missing == (*value == ObservedValue::Missing)
        && entry.truncated.as_ref() == value.cut()
}

/// Notes in an entry what the program that wrote it did not; says whether there was anything.
fn learn(
    entry: &mut Entry,
    subject: &Subject,
    uid: Option<&String>,
    value: &ObservedValue,
) -> bool {
    let news =
        entry.subject.is_none() || (entry.uid.is_none() && uid.is_some()) || is_unknown(entry);
    if news {
        entry.subject.get_or_insert_with(|| subject.clone());
        entry.uid = entry.uid.take().or_else(|| uid.cloned());
        set_value(entry, value);
    }
    news
}

fn set_value(entry: &mut Entry, value: &ObservedValue) {
    entry.value = value.text().map(str::to_owned);
    entry.missing = *value == ObservedValue::Missing;
    entry.truncated = value.cut().cloned();
}

/// `uid` is that of the resource as it was: what is gone has none of its own.
fn entry(
    action: Action,
    subject: &Subject,
    observation: Observation,
    uid: Option<String>,
    id: String,
) -> Entry {
    let (merged, first_value) = match observation.folded {
        Some(folded) => (Some(folded.changes), folded.first_value),
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
    if let State::Present { uid, value } = observation.state {
        set_value(&mut entry, &value);
        entry.uid = uid;
    }
    entry
}

/// As the API stores a time: to the second, so that what was read back equals what was written.
pub(super) fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// One entry in place of two neighbours. It shows what the later one shows, and has a new id: a receiver that saw one
/// of the two, and passes over ids that it has seen, must not pass over this one.
pub(super) fn fold_entries(first: Entry, next: Entry, id: String) -> Entry {
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
        // It was made, or made again, somewhere in between.
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
