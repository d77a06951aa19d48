//! Conditions by the API conventions: one of each type, and a transition time that changes only with the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::readiness::{self, Readiness, ReadinessSummary};

/// Type of the condition that summarizes the state of an object.
pub const READY: &str = "Ready";
/// Condition of an object that the operator is still working on; absent otherwise.
pub const RECONCILING: &str = "Reconciling";
/// Condition of an object that the operator does not retry until its spec changes; absent otherwise.
pub const STALLED: &str = "Stalled";
/// Longest message, in bytes: the API allows 32 KiB, but people read messages in a table.
pub const MAX_MESSAGE: usize = 1024;

/// Activity of the operator for an object that is not ready, in the terms of
/// [kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Nothing: the object is ready or suspended.
    #[default]
    Idle,
    /// The operator works on the object or retries: [`RECONCILING`] is True.
    Reconciling,
    /// The operator waits for a change to the spec: [`STALLED`] is True.
    Stalled,
}

/// The condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyCondition<'a> {
    /// Status of the condition.
    pub status: Readiness,
    /// CamelCase reason.
    pub reason: &'a str,
    /// Message for people.
    pub message: &'a str,
    /// Activity of the operator if the object is not ready.
    pub activity: Activity,
}

impl ReadyCondition<'_> {
    /// Returns whether the object is ready.
    pub fn is_true(&self) -> bool {
        self.status == Readiness::True
    }

    /// Returns the conditions other than `Ready`, each with whether it is True; the status has only those that are.
    pub fn others(&self) -> [(&'static str, bool); 2] {
        [
            (RECONCILING, self.activity == Activity::Reconciling),
            (STALLED, self.activity == Activity::Stalled),
        ]
    }
}

/// A status with a list of conditions.
pub trait HasConditions {
    /// Returns the conditions.
    fn conditions(&self) -> &[Condition];

    /// Returns the conditions, to change them.
    fn conditions_mut(&mut self) -> &mut Vec<Condition>;

    /// Returns the observed generation of the spec.
    fn observed_generation(&self) -> Option<i64> {
        get(self.conditions(), READY)?.observed_generation
    }

    /// Sets the fields that repeat the condition `Ready`, such as `observedGeneration`.
    fn mirror_ready(&mut self, _is_ready: bool, _generation: i64) {}
}

/// Returns the first [`MAX_MESSAGE`] bytes of a message, up to a whole character.
pub fn bounded(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE)]
}

/// Sets a condition; replaces the condition of the same type.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Readiness,
    reason: &str,
    message: &str,
    generation: i64,
    now: Time,
) {
    let status = status.as_str();
    let message = bounded(message);
    let existing = conditions
        .iter_mut()
        .find(|condition| condition.type_ == type_);
    let since = match &existing {
        Some(condition) if condition.status == status => condition.last_transition_time.clone(),
        _ => now,
    };
    let condition = Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: Some(generation),
        last_transition_time: since,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}

/// Returns the condition of that type.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns the condition `Ready`.
pub fn ready(conditions: &[Condition]) -> Option<ReadyCondition<'_>> {
    let is_present = |type_| get(conditions, type_).is_some();
    get(conditions, READY).map(|ready| ReadyCondition {
        status: Readiness::of(&ready.status),
        reason: &ready.reason,
        message: &ready.message,
        activity: match (is_present(RECONCILING), is_present(STALLED)) {
            (_, true) => Activity::Stalled,
            (true, false) => Activity::Reconciling,
            (false, false) => Activity::Idle,
        },
    })
}

/// Sets the condition `Ready`, and [`RECONCILING`] or [`STALLED`] with the same reason and message.
pub fn set_ready(
    conditions: &mut Vec<Condition>,
    ready: &ReadyCondition<'_>,
    generation: i64,
    now: &Time,
) {
    set(
        conditions,
        READY,
        ready.status,
        ready.reason,
        ready.message,
        generation,
        now.clone(),
    );
    for (type_, is_true) in ready.others() {
        if is_true {
            let (reason, message) = (ready.reason, ready.message);
            set(
                conditions,
                type_,
                Readiness::True,
                reason,
                message,
                generation,
                now.clone(),
            );
        } else {
            conditions.retain(|other| other.type_ != type_);
        }
    }
}

/// Returns the readiness of an object of this generation with this status.
pub fn readiness<S: HasConditions>(
    generation: Option<i64>,
    status: Option<&S>,
) -> ReadinessSummary<'_> {
    let ready = status.and_then(|status| {
        let ready = get(status.conditions(), READY)?;
        let observed = status.observed_generation().or(ready.observed_generation);
        Some((observed, &*ready.status, &*ready.reason))
    });
    readiness::from_condition(generation, ready)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        Time(text.parse().unwrap())
    }

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let mut conditions = Vec::new();
        set(
            &mut conditions,
            READY,
            Readiness::False,
            "SecretNotFound",
            "no",
            1,
            at("2026-01-01T00:00:00Z"),
        );
        set(
            &mut conditions,
            READY,
            Readiness::False,
            "Unauthorized",
            "still no",
            2,
            at("2026-01-01T00:00:05Z"),
        );
        let condition = get(&conditions, READY).unwrap();
        assert_eq!(condition.last_transition_time, at("2026-01-01T00:00:00Z"));
        assert_eq!(
            (condition.reason.as_str(), condition.observed_generation),
            ("Unauthorized", Some(2))
        );
        set(
            &mut conditions,
            READY,
            Readiness::True,
            "Ready",
            "",
            2,
            at("2026-01-01T00:00:09Z"),
        );
        assert_eq!(
            get(&conditions, READY).unwrap().last_transition_time,
            at("2026-01-01T00:00:09Z")
        );
        assert_eq!(conditions.len(), 1);
    }
}
