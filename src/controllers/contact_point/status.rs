//! Computes the status of a `ContactPoint` from its receiver's answers. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::contact_point::{ContactPointSpec, ContactPointStatus, LastTest};
use qm_core::conditions::{self, READY};
use qm_core::readiness::Readiness;
use qm_notify::queue::{AcceptedTests, ReceiverState, RequestedTest};
use qm_runtime::error::WRITE_REJECTED;
use qm_runtime::outcome::{EventPolicy, Outcome};
use qm_runtime::{ObjectKey, short_digest};

/// Condition that is False, with reason [`WRITE_REJECTED`], while the apiserver rejects statuses with delivery
/// outcomes; otherwise absent.
pub const OUTCOMES_RECORDED: &str = "OutcomesRecorded";
/// Reason of a receiver that has not accepted the test message yet, for a transient cause.
const UNREACHABLE: &str = "Unreachable";
/// Reason of a receiver whose answer is awaited after a suspension, or after a problem with the spec or a Secret.
pub(crate) const PROGRESSING: &str = "Progressing";

/// Returns the digest of the endpoint that the spec describes, without the fields that only say when the operator
/// sends.
pub fn digest(spec: &ContactPointSpec) -> String {
    let spec = ContactPointSpec {
        suspend: None,
        digest_seconds: None,
        ..spec.clone()
    };
    short_digest(serde_json::to_vec(&spec).unwrap_or_default())
}

/// Returns the supergroup that replaced the chat of the spec with this digest. The chat of another spec does not count.
pub(crate) fn migrated(status: Option<&ContactPointStatus>, spec: &str) -> Option<i64> {
    let status = status?;
    status.migrated_to_chat_id.filter(|_| {
        status
            .last_test
            .as_ref()
            .is_some_and(|tested| tested.spec == spec)
    })
}

/// Returns whether the contact point was ready at its last reconcile, or when it was suspended or lost a Secret.
fn was_ready(status: &ContactPointStatus) -> bool {
    status.ready || status.was_ready.unwrap_or_default()
}

/// Returns whether the endpoint of `tested` is known to accept messages, so that no test message is needed.
pub(crate) fn is_verified(status: &ContactPointStatus, tested: &LastTest) -> bool {
    // A status without a test comes from the original program (document 000), which sent a test message too.
    was_ready(status)
        && status
            .last_test
            .as_ref()
            .is_none_or(|before| before.is_same_configuration(tested))
}

/// Returns whether the last test message was for the endpoint of `tested`.
pub(crate) fn was_tested(status: &ContactPointStatus, tested: &LastTest) -> bool {
    status
        .last_test
        .as_ref()
        .is_some_and(|before| before.is_same_configuration(tested))
}

/// Returns whether messages wait for a receiver that is unavailable, which sets and `TrackedField`s report.
pub(super) fn is_unavailable(status: &ContactPointStatus) -> bool {
    conditions::get(&status.conditions, READY).is_some_and(|ready| ready.message == UNAVAILABLE)
}

/// Fills the draft of a status and returns the outcome for the receiver's last answer. `is_failing`: messages have
/// failed more than once in a row.
pub fn answered(
    status: &mut ContactPointStatus,
    receiver: &ReceiverState,
    is_failing: bool,
    tested: &LastTest,
    tests_accepted: AcceptedTests,
) -> Outcome {
    let migrated_before = migrated(Some(status), &tested.spec);
    let outcome = match receiver {
        // The test's result stays valid for this generation and while the receiver is unavailable: messages wait, and
        // each TrackedField reports the delay.
        ReceiverState::Retrying(_) if is_failing && is_verified(status, tested) => {
            Outcome::ready(UNAVAILABLE)
        }
        ReceiverState::Untried | ReceiverState::Retrying(_) if is_verified(status, tested) => {
            ready(migrated_before)
        }
        // The condition would name the former obstacle for as long as a pause of Telegram lasts.
        ReceiverState::Untried if status.was_ready.is_some() => {
            return Outcome::in_progress(PROGRESSING, ANSWER_AWAITED);
        }
        ReceiverState::Untried => return Outcome::unchanged(),
        ReceiverState::Accepted { migrated_to } => ready(migrated_to.or(migrated_before)),
        ReceiverState::Retrying(message) => {
            Outcome::failed(UNREACHABLE, format!("{message}; the operator retries"))
        }
        ReceiverState::Stopped { reason, message } => Outcome::failed(*reason, message.clone()),
    };
    status.migrated_to_chat_id = match receiver {
        ReceiverState::Accepted { migrated_to } => migrated_to.or(migrated_before),
        _ => migrated_before,
    };
    status.initialized = true;
    status.was_ready = None;
    if outcome.reason != UNREACHABLE {
        let before = status.last_test.take().unwrap_or_default();
        status.last_test = Some(LastTest {
            spec: tested.spec.clone(),
            secrets: tested.secrets.clone(),
            ..before
        });
        status.tests_accepted = (tests_accepted.count > 0).then_some(tests_accepted.count);
        status.tested_while_stopped = tests_accepted.while_stopped.then_some(true);
    }
    outcome.event(EventPolicy::OnMessage)
}

/// Records the answer to a requested test message. An attempt that failed for a transient cause is recorded, too, but
/// is no test of the endpoint.
pub(crate) fn set_requested_test(status: &mut ContactPointStatus, test: RequestedTest) {
    let Some(answer) = test.answer else { return };
    let last_test = status.last_test.get_or_insert_default();
    last_test.requested_at = Some(test.requested_at);
    last_test.error = answer.err();
}

/// Message of a tested contact point whose receiver is unavailable.
pub(super) const UNAVAILABLE: &str =
    "the receiver does not accept messages at the moment: they wait, and the operator retries";

/// Message of a receiver whose answer is awaited.
const ANSWER_AWAITED: &str = "the operator waits for the receiver's answer to the next message, which a rate limit may delay";

fn ready(migrated: Option<i64>) -> Outcome {
    Outcome::ready(match migrated {
        Some(chat) => format!(
            "the group became the supergroup {chat}, where messages now go; write that chatId"
        ),
        None => "messages can be sent".to_owned(),
    })
}

/// Fills the draft of a status and returns the outcome for a contact point without an endpoint. A Secret that returns
/// unchanged restores readiness without a test message. `spec` is the spec's [`digest`].
pub fn blocked(
    status: &mut ContactPointStatus,
    spec: &str,
    reason: &'static str,
    message: String,
) -> Outcome {
    remember_readiness(status, spec);
    Outcome::failed(reason, message).event(EventPolicy::OnMessage)
}

/// Fills the draft of a status and returns the outcome for a suspended contact point. `spec` is the spec's [`digest`].
pub fn suspended(status: &mut ContactPointStatus, spec: &str) -> Outcome {
    remember_readiness(status, spec);
    let message = "spec.suspend is true: the operator sends nothing, and messages wait";
    Outcome::suspended(message).event(EventPolicy::OnMessage)
}

/// Records in the draft whether the contact point was ready before the obstacle, and so may be ready again without a test
/// message.
/// `spec` is the spec's [`digest`].
pub(crate) fn remember_readiness(status: &mut ContactPointStatus, spec: &str) {
    status.migrated_to_chat_id = migrated(Some(status), spec);
    status.was_ready = Some(was_ready(status));
}

/// Sets the condition that lists the `TrackedField`s whose status the apiserver rejects, with the cause.
pub(crate) fn set_outcomes_recorded(
    status: &mut ContactPointStatus,
    left_out: &[(ObjectKey, String)],
    generation: i64,
    now: Time,
) {
    let Some(((first, why), others)) = left_out.split_first() else {
        status
            .conditions
            .retain(|condition| condition.type_ != OUTCOMES_RECORDED);
        return;
    };
    let why = &why[..why.floor_char_boundary(512)];
    let others: Vec<_> = others
        .iter()
        .map(|(field, _)| format!("{:?}", &*field.name))
        .collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!("; the same for {}", others.join(", "))
    };
    let message = format!(
        "the apiserver rejects status writes of TrackedField {:?}, so its messages are no longer sent: {why}{others}; change \
         the admission policy or webhook so that it accepts writes of trackedfields/status",
        &*first.name
    );
    conditions::set(
        &mut status.conditions,
        OUTCOMES_RECORDED,
        Readiness::False,
        WRITE_REJECTED,
        &message,
        generation,
        now,
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use qm_api::ContactPoint;
    use qm_core::kind::HasReadyCondition as _;
    use qm_runtime::outcome::{Progress, SUSPENDED};
    use rstest::rstest;

    use super::*;

    /// Returns the status as the runtime writes it; `None` if nothing changed.
    fn written(
        before: Option<&ContactPointStatus>,
        generation: i64,
        now: Time,
        update: impl FnOnce(&mut ContactPointStatus) -> Outcome,
    ) -> Option<ContactPointStatus> {
        let mut status = before.cloned().unwrap_or_default();
        let outcome = update(&mut status);
        if outcome.progress == Progress::Unchanged {
            return None;
        }
        ContactPoint::set_ready_condition(&mut status, &outcome.condition(), generation, now);
        Some(status)
    }

    fn status(
        before: Option<&ContactPointStatus>,
        receiver: &ReceiverState,
        is_failing: bool,
        tested: &LastTest,
        tests_accepted: AcceptedTests,
        generation: i64,
        now: Time,
    ) -> Option<ContactPointStatus> {
        written(before, generation, now, |status| {
            answered(status, receiver, is_failing, tested, tests_accepted)
        })
    }

    fn blocked(before: Option<&ContactPointStatus>, spec: &str, now: Time) -> ContactPointStatus {
        let generation = before.map_or(1, |before| before.observed_generation.unwrap_or(1));
        written(before, generation, now, |status| {
            super::blocked(status, spec, "SecretNotFound", "no".into())
        })
        .unwrap()
    }

    fn suspended(
        before: Option<&ContactPointStatus>,
        generation: i64,
        now: Time,
    ) -> ContactPointStatus {
        written(before, generation, now, |status| {
            super::suspended(status, "abc")
        })
        .unwrap()
    }

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn none() -> AcceptedTests {
        AcceptedTests::default()
    }

    fn tested() -> LastTest {
        LastTest {
            spec: "abc".into(),
            secrets: vec!["uid/1".into()],
            ..LastTest::default()
        }
    }

    fn ready() -> ContactPointStatus {
        status(
            None,
            &ReceiverState::Accepted { migrated_to: None },
            false,
            &tested(),
            none(),
            1,
            at(0),
        )
        .unwrap()
    }

    #[test]
    fn first_attempt_sets_initialized_whatever_its_result() {
        let failed = status(
            None,
            &ReceiverState::Retrying("connection refused".into()),
            false,
            &tested(),
            none(),
            1,
            at(0),
        )
        .unwrap();
        assert!(failed.initialized && !failed.ready);
        assert_eq!(
            conditions::get(&failed.conditions, READY).unwrap().reason,
            "Unreachable"
        );
        assert_eq!(
            failed.last_test, None,
            "an attempt with a transient error is no test"
        );
        assert!(ready().initialized && ready().ready);
    }

    #[test]
    fn missing_secret_is_no_attempt() {
        let status = blocked(None, "abc", at(0));
        assert!(!status.initialized && !status.ready);
    }

    #[test]
    fn contact_point_that_the_original_program_made_ready_stays_ready() {
        let foreign = ContactPointStatus {
            initialized: true,
            ready: true,
            ..ContactPointStatus::default()
        };
        let written = status(
            Some(&foreign),
            &ReceiverState::Untried,
            false,
            &tested(),
            none(),
            3,
            at(0),
        )
        .unwrap();
        assert!(written.ready && written.initialized);
        assert_eq!(
            (written.observed_generation, written.last_test),
            (Some(3), Some(tested()))
        );
    }

    #[rstest]
    #[case::reconcile_without_news(ReceiverState::Untried)]
    #[case::unavailable_receiver(ReceiverState::Retrying("timeout".into()))]
    fn tested_contact_point_stays_unchanged(#[case] state: ReceiverState) {
        let before = ready();
        let after = status(Some(&before), &state, false, &tested(), none(), 1, at(9))
            .unwrap_or_else(|| before.clone());
        assert_eq!(after, before);
    }

    #[test]
    fn unavailable_receiver_is_not_reported_as_accepting() {
        let unavailable = |is_failing| {
            let retrying = ReceiverState::Retrying("timeout".into());
            status(
                Some(&ready()),
                &retrying,
                is_failing,
                &tested(),
                none(),
                1,
                at(9),
            )
            .unwrap()
        };
        let message = |status: &ContactPointStatus| {
            conditions::get(&status.conditions, READY)
                .unwrap()
                .message
                .clone()
        };
        assert_eq!(
            message(&unavailable(false)),
            message(&ready()),
            "one failure changes nothing"
        );
        assert!(unavailable(true).ready && message(&unavailable(true)) == UNAVAILABLE);
        let accepted = ReceiverState::Accepted { migrated_to: None };
        let back = status(
            Some(&unavailable(true)),
            &accepted,
            false,
            &tested(),
            none(),
            1,
            at(9),
        )
        .unwrap();
        assert_eq!(message(&back), message(&ready()));
    }

    #[test]
    fn new_secret_is_tested_before_the_status_changes() {
        let new = LastTest {
            spec: "abc".into(),
            secrets: vec!["uid/2".into()],
            ..LastTest::default()
        };
        assert_eq!(
            status(
                Some(&ready()),
                &ReceiverState::Untried,
                false,
                &new,
                none(),
                1,
                at(9)
            ),
            None
        );
    }

    #[test]
    fn migration_is_reported_until_the_spec_changes() {
        let moved = status(
            Some(&ready()),
            &ReceiverState::Accepted {
                migrated_to: Some(-100),
            },
            false,
            &tested(),
            none(),
            1,
            at(1),
        )
        .unwrap();
        assert_eq!(migrated(Some(&moved), "abc"), Some(-100));
        let message = |status: &ContactPointStatus| {
            conditions::get(&status.conditions, READY)
                .unwrap()
                .message
                .clone()
        };
        assert!(message(&moved).contains("-100"), "{}", message(&moved));
        // A restart changes nothing.
        let again = status(
            Some(&moved),
            &ReceiverState::Untried,
            false,
            &tested(),
            none(),
            1,
            at(2),
        )
        .unwrap();
        assert_eq!(again, moved);

        let other = LastTest {
            spec: "def".into(),
            ..tested()
        };
        assert_eq!(
            migrated(Some(&moved), &other.spec),
            None,
            "the migration of another chat"
        );
        let accepted = status(
            Some(&moved),
            &ReceiverState::Accepted { migrated_to: None },
            false,
            &other,
            none(),
            2,
            at(3),
        )
        .unwrap();
        assert_eq!(
            (accepted.migrated_to_chat_id, message(&accepted)),
            (None, "messages can be sent".to_owned())
        );
        let unavailable = status(
            Some(&moved),
            &ReceiverState::Retrying("timeout".into()),
            false,
            &other,
            none(),
            2,
            at(3),
        )
        .unwrap();
        let blocked = blocked(Some(&moved), &other.spec, at(3));
        assert_eq!(
            (unavailable.migrated_to_chat_id, blocked.migrated_to_chat_id),
            (None, None)
        );
    }

    #[rstest]
    #[case::ready(Some(ready()), true)]
    #[case::of_the_original_program(
        Some(ContactPointStatus { initialized: true, ready: true, ..ContactPointStatus::default() }),
        true,
    )]
    #[case::stopped(
        status(None, &ReceiverState::Stopped { reason: "Unauthorized", message: "401".into() }, false, &tested(), none(), 1, at(0)),
        false,
    )]
    #[case::new(None, false)]
    fn ready_contact_point_is_ready_again_after_suspension(
        #[case] before: Option<ContactPointStatus>,
        #[case] again: bool,
    ) {
        let paused = suspended(before.as_ref(), 2, at(5));
        assert!(!paused.ready);
        assert_eq!(
            paused.initialized,
            before.as_ref().is_some_and(|before| before.initialized)
        );
        assert_eq!(
            conditions::get(&paused.conditions, READY).unwrap().reason,
            SUSPENDED
        );
        assert_eq!(paused.observed_generation, Some(2));
        assert_eq!(
            suspended(Some(&paused), 2, at(6)),
            paused,
            "the status is written once"
        );

        assert_eq!(is_verified(&paused, &tested()), again);
        let resumed = status(
            Some(&paused),
            &ReceiverState::Untried,
            false,
            &tested(),
            none(),
            3,
            at(9),
        )
        .unwrap();
        assert_eq!(resumed.ready, again);
        if again {
            assert!(resumed.was_ready.is_none());
            assert_eq!(
                (resumed.observed_generation, resumed.last_test),
                (Some(3), Some(tested()))
            );
        }
        let new = LastTest {
            secrets: vec!["uid/2".into()],
            ..tested()
        };
        let tested_before = before.is_some_and(|before| before.last_test.is_some());
        assert!(
            !tested_before || !is_verified(&paused, &new),
            "a Secret that changed meanwhile is tested again"
        );
    }

    #[test]
    fn contact_point_is_ready_again_without_a_test_once_its_secret_returns() {
        let lost = blocked(Some(&ready()), "abc", at(5));
        assert!(!lost.ready && is_verified(&lost, &tested()));
        assert_eq!(
            blocked(Some(&lost), "abc", at(6)),
            lost,
            "the status is written once"
        );
        let found = status(
            Some(&lost),
            &ReceiverState::Untried,
            false,
            &tested(),
            none(),
            1,
            at(9),
        )
        .unwrap();
        assert!(found.ready && found.was_ready.is_none());
        assert!(!is_verified(
            &lost,
            &LastTest {
                secrets: vec!["uid/2".into()],
                ..tested()
            }
        ));
    }

    /// A pause of Telegram delays the test message, perhaps for hours.
    #[rstest]
    #[case::missing_secret(blocked(None, "abc", at(0)))]
    #[case::missing_secret_of_a_ready_contact_point(blocked(Some(&ready()), "abc", at(5)))]
    #[case::suspended(suspended(None, 1, at(0)))]
    fn obstacle_that_no_longer_exists_is_not_reported(#[case] before: ContactPointStatus) {
        let new = LastTest {
            secrets: vec!["uid/2".into()],
            ..tested()
        };
        let answered = |before: &ContactPointStatus, receiver: &ReceiverState| {
            status(Some(before), receiver, false, &new, none(), 1, at(9)).unwrap()
        };
        let reason = |status: &ContactPointStatus| {
            let ready = conditions::get(&status.conditions, READY).unwrap();
            ready.reason.clone()
        };
        let awaited = answered(&before, &ReceiverState::Untried);
        assert_eq!((awaited.ready, &*reason(&awaited)), (false, PROGRESSING));
        assert_eq!(
            answered(&awaited, &ReceiverState::Untried),
            awaited,
            "the status is written once"
        );
        let unavailable = ReceiverState::Retrying("503".into());
        let failed = answered(&awaited, &unavailable);
        assert_eq!(reason(&failed), UNREACHABLE);
        let accepted = ReceiverState::Accepted { migrated_to: None };
        assert!(answered(&awaited, &accepted).ready);
    }

    #[test]
    fn unwritable_tracked_fields_are_named_while_there_are_any() {
        let mut status = ready();
        let why = ["webhook denied it".to_owned(), "x".repeat(2000)];
        let field = |name: &str, why: &String| (ObjectKey::new("n", name), why.clone());
        set_outcomes_recorded(
            &mut status,
            &[field("a", &why[0]), field("b", &why[1])],
            1,
            at(1),
        );
        let condition = conditions::get(&status.conditions, OUTCOMES_RECORDED).unwrap();
        assert_eq!(
            (&*condition.status, &*condition.reason),
            ("False", WRITE_REJECTED)
        );
        let expected = "TrackedField \"a\", so its messages are no longer sent: webhook denied it; the same for \"b\"; change the admission";
        assert!(
            condition.message.contains(expected),
            "{}",
            condition.message
        );
        set_outcomes_recorded(
            &mut status,
            &[field("b", &why[1]), field("c", &why[0])],
            1,
            at(1),
        );
        let condition = conditions::get(&status.conditions, OUTCOMES_RECORDED).unwrap();
        assert!(
            condition.message.contains("x; the same for \"c\""),
            "{}",
            condition.message
        );
        set_outcomes_recorded(&mut status, &[], 1, at(2));
        assert_eq!(status, ready());
    }

    #[test]
    fn suspending_does_not_change_the_endpoint() {
        let spec = |suspend| ContactPointSpec {
            type_: "Telegram".into(),
            suspend,
            ..ContactPointSpec::default()
        };
        assert_eq!(digest(&spec(None)), digest(&spec(Some(true))));
        assert_ne!(digest(&spec(None)), digest(&ContactPointSpec::default()));
    }

    #[test]
    fn delay_of_digests_does_not_change_the_endpoint() {
        let spec = |digest_seconds, footer: Option<&str>| ContactPointSpec {
            digest_seconds,
            footer: footer.map(Into::into),
            ..ContactPointSpec::default()
        };
        assert_eq!(digest(&spec(None, None)), digest(&spec(Some(30), None)));
        assert_ne!(digest(&spec(None, None)), digest(&spec(None, Some("a"))));
    }

    fn requested(requested_at: &str, answer: Option<Result<(), String>>) -> RequestedTest {
        RequestedTest {
            requested_at: requested_at.into(),
            answer,
        }
    }

    #[test]
    fn answer_to_a_requested_test_is_kept() {
        let mut before = ready();
        set_requested_test(&mut before, requested("1", None));
        assert_eq!(before, ready(), "no answer yet");
        set_requested_test(&mut before, requested("1", Some(Err("503".into()))));
        let result = |status: &ContactPointStatus| {
            let test = status.last_test.clone().unwrap();
            (test.requested_at, test.error)
        };
        assert_eq!(result(&before), (Some("1".into()), Some("503".into())));
        assert!(is_verified(&before, &tested()), "the same endpoint");
        assert!(was_tested(&before, &tested()));

        // Another spec has another test, which nobody requested.
        let new = LastTest {
            spec: "def".into(),
            ..tested()
        };
        let accepted = ReceiverState::Accepted { migrated_to: None };
        let mut after = status(Some(&before), &accepted, false, &new, none(), 2, at(3)).unwrap();
        assert_eq!(result(&after), result(&before));
        assert!(was_tested(&after, &new));
        set_requested_test(&mut after, requested("2", Some(Ok(()))));
        assert_eq!(result(&after), (Some("2".into()), None));
    }

    /// The attempt says nothing about the endpoint, which must still get its first test message.
    #[test]
    fn requested_test_that_may_pass_later_is_no_test() {
        let unavailable = ReceiverState::Retrying("503".into());
        let mut after = status(None, &unavailable, false, &tested(), none(), 1, at(0)).unwrap();
        set_requested_test(&mut after, requested("1", Some(Err("503".into()))));
        assert!(!was_tested(&after, &tested()) && !is_verified(&after, &tested()));
        let json = serde_json::to_value(&after).unwrap();
        assert_eq!(
            json["lastTest"]["spec"], "",
            "an older program needs the field"
        );
    }

    #[test]
    fn stop_and_its_end_are_reported() {
        let stopped = ReceiverState::Stopped {
            reason: "Unauthorized",
            message: "401".into(),
        };
        let status_ = status(Some(&ready()), &stopped, false, &tested(), none(), 1, at(5)).unwrap();
        assert!(!status_.ready && status_.initialized);
        let again = status(
            Some(&status_),
            &ReceiverState::Accepted { migrated_to: None },
            false,
            &tested(),
            none(),
            1,
            at(8),
        )
        .unwrap();
        assert!(again.ready);
        assert_eq!(
            conditions::get(&again.conditions, READY)
                .unwrap()
                .last_transition_time,
            at(8)
        );
    }
}
