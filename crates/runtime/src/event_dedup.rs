//! Deduplication of Events: a condition that comes and goes causes a single Event.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use qm_core::conditions::{self, ReadyCondition};
use tokio::time::Instant;

use super::ObjectKey;
use super::outcome::{EventPolicy, Outcome, Progress};

/// Time of readiness after which the deduplication of an object's Events is reset, as the kubelet resets its restart
/// backoff (<https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts>).
const RESET_AFTER: Duration = Duration::from_mins(10);

/// Reasons of the Events of each object since its spec changed or it was last ready for [`RESET_AFTER`]. After a
/// restart of the process, an Event may repeat a reason.
#[derive(Default)]
pub(super) struct EventDedup(Mutex<HashMap<ObjectKey, Reported>>);

#[derive(Default)]
struct Reported {
    generation: i64,
    reasons: BTreeSet<String>,
    /// True if an earlier process wrote a condition that was not True, and no Event has followed.
    follows_problem: bool,
    ready_since: Option<Instant>,
    /// Reason and message of the last Event about a condition.
    last: Option<(String, String)>,
    /// Last Event of [`EventPolicy::Renew`]: the object's UID, reason, message and time. A write of a deleted object may
    /// end after [`EventDedup::forget`], when another object has the name.
    renewed: Option<(String, String, String, Instant)>,
}

impl EventDedup {
    /// Returns whether an Event is to report the outcome. `before` is the condition as last written; without one, the last
    /// Event counts.
    pub fn is_due(
        &self,
        key: &ObjectKey,
        generation: i64,
        outcome: &Outcome,
        before: Option<ReadyCondition<'_>>,
    ) -> bool {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = objects.entry(key.clone()).or_insert_with(|| Reported {
            // A new process does not know what the previous one reported.
            follows_problem: before.is_some_and(|before| !before.is_true()),
            ..Reported::default()
        });
        let was_failing = reported.follows_problem || !reported.reasons.is_empty();
        // [`EventDedup::renew`] handles `Renew`.
        if matches!(outcome.event, EventPolicy::Never | EventPolicy::Renew(_)) {
            return false;
        }
        let is_ready = outcome.progress == Progress::Ready;
        let is_reset = reported
            .ready_since
            .is_some_and(|since| since.elapsed() > RESET_AFTER);
        if (is_reset && !is_ready) || reported.generation != generation {
            *reported = Reported {
                generation,
                ..Reported::default()
            };
        }
        reported.follows_problem = false;
        reported.ready_since = is_ready.then(|| reported.ready_since.unwrap_or_else(Instant::now));
        let is_recovery = outcome.event == EventPolicy::OnRecovery;
        if is_recovery && !was_failing {
            return false;
        }
        let is_new = reported.reasons.insert(outcome.reason.to_string());
        let message = conditions::bounded(&outcome.message);
        let last = reported.last.take();
        let before = match (&before, &last) {
            (Some(before), _) => Some((before.reason, before.message)),
            (None, Some((reason, message))) => Some((&**reason, &**message)),
            (None, None) => None,
        };
        let is_reason = before.is_none_or(|(reason, _)| reason != outcome.reason);
        let is_due = if outcome.event == EventPolicy::OnMessage {
            is_reason || (!is_ready && before.is_none_or(|(_, before)| before != message))
        } else {
            is_new && is_reason
        };
        reported.last = if is_due {
            Some((outcome.reason.to_string(), message.into()))
        } else {
            last
        };
        is_due
    }

    /// Returns whether an Event that repeats every `period` is due for the outcome, and when the next one is due.
    pub fn renew(
        &self,
        key: &ObjectKey,
        uid: &str,
        outcome: &Outcome,
        period: Duration,
    ) -> (bool, Option<Duration>) {
        let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.progress == Progress::Ready {
            // Most objects never have anything to report.
            if let Some(reported) = objects.get_mut(key) {
                reported.renewed = None;
            }
            return (false, None);
        }
        let last = &mut objects.entry(key.clone()).or_default().renewed;
        let left = match last {
            Some((of, reason, message, at))
                if *of == *uid && *reason == outcome.reason && *message == outcome.message =>
            {
                period.saturating_sub(at.elapsed())
            }
            _ => Duration::ZERO,
        };
        if !left.is_zero() {
            return (false, Some(left));
        }
        let now = Instant::now();
        let reason = outcome.reason.to_string();
        *last = Some((uid.to_owned(), reason, outcome.message.clone(), now));
        (true, Some(period))
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

#[cfg(test)]
mod tests {
    use qm_core::conditions::Activity;
    use qm_core::readiness::Readiness;
    use rstest::rstest;

    use super::*;

    const POLICIES: [EventPolicy; 3] = [
        EventPolicy::OnReason,
        EventPolicy::OnMessage,
        EventPolicy::OnRecovery,
    ];

    fn condition(
        is_true: bool,
        reason: &'static str,
        message: &'static str,
    ) -> ReadyCondition<'static> {
        ReadyCondition {
            status: if is_true {
                Readiness::True
            } else {
                Readiness::False
            },
            reason,
            message,
            activity: Activity::default(),
        }
    }

    fn crash() -> Outcome {
        Outcome::failed("CrashLoopBackOff", "exit code 1")
    }

    fn ready() -> Outcome {
        Outcome::ready("runs").event(EventPolicy::OnRecovery)
    }

    #[tokio::test(start_paused = true)]
    async fn reason_is_reported_once_until_the_object_has_been_ready_for_a_while() {
        let (dedup, key) = (EventDedup::default(), ObjectKey::new("shop", "web"));
        let is_crash_due = |generation| dedup.is_due(&key, generation, &crash(), None);
        let is_ready_due = || dedup.is_due(&key, 1, &ready(), None);
        assert!(is_crash_due(1) && is_ready_due());
        for _ in 0..3 {
            assert!(
                !is_crash_due(1) && !is_ready_due(),
                "the condition comes and goes"
            );
        }
        tokio::time::advance(RESET_AFTER * 2).await;
        assert!(!is_ready_due() && is_crash_due(1) && is_ready_due() && !is_crash_due(1));
        assert!(is_crash_due(2), "the spec has changed");
        dedup.forget(&key);
        assert!(is_crash_due(2));
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_outcome_is_reported_again_after_the_period() {
        let (dedup, key) = (EventDedup::default(), ObjectKey::new("shop", "web"));
        let (period, minute) = (Duration::from_mins(30), Duration::from_mins(1));
        let renew = |outcome: &Outcome| dedup.renew(&key, "1", outcome, period);
        assert_eq!(renew(&crash()), (true, Some(period)));
        tokio::time::advance(minute).await;
        assert_eq!(
            renew(&crash()),
            (false, Some(period.saturating_sub(minute)))
        );
        let other = Outcome::failed("CrashLoopBackOff", "exit code 2");
        assert_eq!(renew(&other), (true, Some(period)), "another message");
        tokio::time::advance(period).await;
        assert_eq!(renew(&other), (true, Some(period)), "the period is over");
        assert_eq!(renew(&Outcome::ready("")), (false, None));
        assert_eq!(renew(&other), (true, Some(period)), "ready meanwhile");
        let recreated = dedup.renew(&key, "2", &other, period);
        assert_eq!(recreated, (true, Some(period)), "another object");
    }

    #[test]
    fn recovery_is_reported_after_another_event() {
        let key = ObjectKey::new("shop", "web");
        let starting = Outcome::in_progress("PodPending", "");
        let pending = condition(false, "PodPending", "");
        let dedup = EventDedup::default();
        assert!(!dedup.is_due(&key, 1, &starting, None));
        assert!(
            !dedup.is_due(&key, 1, &ready(), Some(pending)),
            "nothing was wrong"
        );
        assert!(dedup.is_due(&key, 1, &crash(), Some(condition(true, "Ready", "runs"))));
        let crashed = condition(false, "CrashLoopBackOff", "exit code 1");
        assert!(dedup.is_due(&key, 1, &ready(), Some(crashed)));
        let restarted = EventDedup::default();
        assert!(
            restarted.is_due(&key, 1, &ready(), Some(crashed)),
            "another process reported it"
        );
        let restarted = EventDedup::default();
        assert!(!restarted.is_due(&key, 2, &starting, Some(crashed)));
        assert!(
            restarted.is_due(&key, 2, &ready(), Some(pending)),
            "another process reported it, before the new spec"
        );
        assert!(!restarted.is_due(&key, 2, &ready(), Some(pending)), "once");
    }

    #[test]
    fn written_condition_is_not_reported_again() {
        for policy in POLICIES {
            let dedup = EventDedup::default();
            let key = ObjectKey::new("shop", "web");
            let outcome = crash().event(policy);
            let before = condition(false, "CrashLoopBackOff", "exit code 1");
            assert!(!dedup.is_due(&key, 1, &outcome, Some(before)), "{policy:?}");
        }
    }

    #[test]
    fn message_that_was_shortened_is_not_reported_again() {
        let message: &'static str = "x".repeat(2000).leak();
        let outcome = Outcome::failed("Loop", message).event(EventPolicy::OnMessage);
        let before = condition(false, "Loop", conditions::bounded(message));
        let key = ObjectKey::new("shop", "web");
        assert!(!EventDedup::default().is_due(&key, 1, &outcome, Some(before)));
    }

    #[test]
    fn outcome_without_a_stored_condition_is_reported_once() {
        let (dedup, key) = (EventDedup::default(), ObjectKey::new("shop", "web"));
        let is_due = |message: &str| {
            let outcome = Outcome::failed("Loop", message).event(EventPolicy::OnMessage);
            dedup.is_due(&key, 1, &outcome, None)
        };
        let due = ["a", "a", "a", "b", "b"].map(is_due);
        assert_eq!(due, [true, false, false, true, false]);
    }

    #[rstest]
    #[case::first(Outcome::failed("Loop", "a"), None, true)]
    #[case::ready_first(Outcome::ready("a"), None, true)]
    #[case::unchanged(Outcome::failed("Loop", "a"), Some((false, "Loop", "a")), false)]
    #[case::another_reason(Outcome::failed("Other", "a"), Some((false, "Loop", "a")), true)]
    #[case::ready_again(Outcome::ready("a"), Some((false, "Loop", "a")), true)]
    #[case::another_message(Outcome::failed("Loop", "b"), Some((false, "Loop", "a")), true)]
    #[case::another_message_while_ready(Outcome::ready("b"), Some((true, "Ready", "a")), false)]
    fn change_of_reason_or_message_is_reported(
        #[case] outcome: Outcome,
        #[case] before: Option<(bool, &'static str, &'static str)>,
        #[case] is_reported: bool,
    ) {
        let before = before.map(|(is_true, reason, message)| condition(is_true, reason, message));
        let outcome = outcome.event(EventPolicy::OnMessage);
        let key = ObjectKey::new("shop", "web");
        let dedup = EventDedup::default();
        assert_eq!(dedup.is_due(&key, 1, &outcome, before), is_reported);
    }

    #[test]
    fn message_is_reported_while_the_object_is_not_ready() {
        let (dedup, key) = (EventDedup::default(), ObjectKey::new("shop", "web"));
        let failed = crash().event(EventPolicy::OnMessage);
        let before = condition(false, "CrashLoopBackOff", "exit code 2");
        for _ in 0..2 {
            assert!(dedup.is_due(&key, 1, &failed, Some(before)));
        }
        let ready = Outcome::ready("2 copies").event(EventPolicy::OnMessage);
        let before = condition(true, "Ready", "1 copy");
        assert!(!dedup.is_due(&key, 1, &ready, Some(before)));
    }
}
