//! The status of a contact point, from how its receiver took what was sent. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::contact_point::{ContactPointSpec, ContactPointStatus, LastTest};
use qm_core::conditions::{self, READY};
use qm_notify::queue::{AcceptedTests, Standing};
use qm_runtime::error::WRITE_REJECTED;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::{Key, short_digest};

/// Condition that is False, with the reason [`WRITE_REJECTED`], while the apiserver rejects statuses with delivery outcomes, and
/// absent otherwise.
pub const OUTCOMES_RECORDED: &str = "OutcomesRecorded";

/// Digest of what a spec says of the endpoint: suspending it is no change of that.
pub fn digest(spec: &ContactPointSpec) -> String {
    let spec = ContactPointSpec {
        suspend: None,
        ..spec.clone()
    };
    short_digest(serde_json::to_vec(&spec).unwrap_or_default())
}

/// The supergroup that the chat of the spec with this digest became: what became of another spec's chat is not this one's.
pub fn migrated(status: Option<&ContactPointStatus>, spec: &str) -> Option<i64> {
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

/// Whether the endpoint that `tested` stands for is known to take messages: it is not tested again.
pub fn known_well(status: &ContactPointStatus, tested: &LastTest) -> bool {
    // The original program, which did not say with what, sent its test message too.
    was_ready(status)
        && status
            .last_test
            .as_ref()
            .is_none_or(|before| before == tested)
}

/// Whether nothing is said yet of how it is.
pub fn unsaid(status: Option<&ContactPointStatus>) -> bool {
    status
        .is_none_or(|status| !status.ready && conditions::get(&status.conditions, READY).is_none())
}

/// What stays of the status before, under the spec with this digest.
fn kept(before: Option<&ContactPointStatus>, spec: &str) -> ContactPointStatus {
    ContactPointStatus {
        migrated_to_chat_id: migrated(before, spec),
        ..before.cloned().unwrap_or_default()
    }
}

/// Returns the status that says how the receiver stands; none while there is nothing new to say. `is_failing`: messages
/// have failed more than once in a row.
#[allow(clippy::too_many_arguments)] // all that the status depends on
pub fn status(
    before: Option<&ContactPointStatus>,
    standing: &Standing,
    is_failing: bool,
    tested: &LastTest,
    tests_accepted: AcceptedTests,
    generation: i64,
    now: Time,
) -> Option<ContactPointStatus> {
    let mut status = kept(before, &tested.spec);
    let (well, reason, message) = match standing {
        // What is said of an endpoint that was tested stands, for this generation too; also while its receiver is away: its
        // messages wait, and each object of theirs says so.
        Standing::Retrying(_) if is_failing && known_well(&status, tested) => {
            (true, "Ready", AWAY.to_owned())
        }
        Standing::Untried | Standing::Retrying(_) if known_well(&status, tested) => {
            (true, "Ready", ready(status.migrated_to_chat_id))
        }
        Standing::Untried => return None,
        Standing::Taken { migrated_to } => {
            status.migrated_to_chat_id = migrated_to.or(status.migrated_to_chat_id);
            (true, "Ready", ready(status.migrated_to_chat_id))
        }
        Standing::Retrying(message) => (
            false,
            "Unreachable",
            format!("{message}; it is tried again"),
        ),
        Standing::Stopped { reason, message } => (false, *reason, message.clone()),
    };
    status.initialized = true;
    status.ready = well;
    status.was_ready = None;
    status.observed_generation = Some(generation);
    if well || !matches!(standing, Standing::Retrying(_)) {
        status.last_test = Some(tested.clone());
        status.tests_accepted = (tests_accepted.count > 0).then_some(tests_accepted.count);
        status.tested_while_stopped = tests_accepted.while_stopped.then_some(true);
    }
    conditions::set(
        &mut status.conditions,
        READY,
        well,
        reason,
        &message,
        generation,
        now,
    );
    Some(status)
}

/// Message of a contact point that was tested and whose receiver does not accept messages now.
const AWAY: &str =
    "the receiver does not accept messages at the moment: they wait, and the operator retries";

fn ready(migrated: Option<i64>) -> String {
    match migrated {
        Some(chat) => format!(
            "the group became the supergroup {chat}, where messages now go; write that chatId"
        ),
        None => "messages can be sent".to_owned(),
    }
}

/// Lists in `status` the `TrackedField`s whose status the apiserver refuses to write, with the cause.
pub fn name_left_out(
    status: &mut ContactPointStatus,
    left_out: &[(Key, String)],
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
        "the apiserver refuses to write the status of TrackedField {:?}, so nothing more of it is sent: {why}{others}; change \
         the admission policy or webhook so that it accepts writes of trackedfields/status",
        &*first.name
    );
    conditions::set(
        &mut status.conditions,
        OUTCOMES_RECORDED,
        false,
        WRITE_REJECTED,
        &message,
        generation,
        now,
    );
}

/// Returns the status of a contact point without an endpoint, to which no attempt was made. A Secret that returns
/// unchanged restores readiness without a test message. `spec` is the spec's [`digest`].
pub fn blocked(
    before: Option<&ContactPointStatus>,
    spec: &str,
    reason: &str,
    message: &str,
    generation: i64,
    now: Time,
) -> ContactPointStatus {
    let mut status = kept(before, spec);
    status.was_ready = was_ready(&status).then_some(true);
    status.ready = false;
    status.observed_generation = Some(generation);
    conditions::set(
        &mut status.conditions,
        READY,
        false,
        reason,
        message,
        generation,
        now,
    );
    status
}

/// The status of a contact point that is suspended. `spec` is the spec's [`digest`].
pub fn suspended(
    before: Option<&ContactPointStatus>,
    spec: &str,
    generation: i64,
    now: Time,
) -> ContactPointStatus {
    let mut status = kept(before, spec);
    status.was_ready = was_ready(&status).then_some(true);
    status.ready = false;
    status.observed_generation = Some(generation);
    let message = "spec.suspend is true: nothing is sent, messages wait";
    conditions::set(
        &mut status.conditions,
        READY,
        false,
        SUSPENDED,
        message,
        generation,
        now,
    );
    status
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

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
        }
    }

    fn ready() -> ContactPointStatus {
        status(
            None,
            &Standing::Taken { migrated_to: None },
            false,
            &tested(),
            none(),
            1,
            at(0),
        )
        .unwrap()
    }

    #[test]
    fn the_first_attempt_makes_it_initialized_whatever_came_of_it() {
        let failed = status(
            None,
            &Standing::Retrying("connection refused".into()),
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
            "an attempt that may be repeated is no test"
        );
        assert!(ready().initialized && ready().ready);
    }

    #[test]
    fn a_missing_secret_is_no_attempt() {
        let status = blocked(None, "abc", "SecretNotFound", "no", 1, at(0));
        assert!(!status.initialized && !status.ready);
    }

    #[test]
    fn what_the_original_program_called_ready_stays_ready() {
        let theirs = ContactPointStatus {
            initialized: true,
            ready: true,
            ..ContactPointStatus::default()
        };
        let ours = status(
            Some(&theirs),
            &Standing::Untried,
            false,
            &tested(),
            none(),
            3,
            at(0),
        )
        .unwrap();
        assert!(ours.ready && ours.initialized);
        assert_eq!(
            (ours.observed_generation, ours.last_test),
            (Some(3), Some(tested()))
        );
    }

    #[rstest]
    #[case::a_pass_without_news(Standing::Untried)]
    #[case::a_receiver_that_is_away(Standing::Retrying("timeout".into()))]
    fn a_tested_one_stays_as_it_is(#[case] standing: Standing) {
        let before = ready();
        let after = status(Some(&before), &standing, false, &tested(), none(), 1, at(9))
            .unwrap_or_else(|| before.clone());
        assert_eq!(after, before);
    }

    #[test]
    fn a_receiver_that_stays_away_is_not_said_to_take_messages() {
        let away = |is_failing| {
            let standing = Standing::Retrying("timeout".into());
            status(
                Some(&ready()),
                &standing,
                is_failing,
                &tested(),
                none(),
                1,
                at(9),
            )
            .unwrap()
        };
        let words = |status: &ContactPointStatus| {
            conditions::get(&status.conditions, READY)
                .unwrap()
                .message
                .clone()
        };
        assert_eq!(
            words(&away(false)),
            words(&ready()),
            "one failure is no news"
        );
        assert!(away(true).ready && words(&away(true)) == AWAY);
        let taken = Standing::Taken { migrated_to: None };
        let back = status(
            Some(&away(true)),
            &taken,
            false,
            &tested(),
            none(),
            1,
            at(9),
        )
        .unwrap();
        assert_eq!(words(&back), words(&ready()));
    }

    #[test]
    fn a_new_secret_is_tested_before_anything_is_said() {
        let new = LastTest {
            spec: "abc".into(),
            secrets: vec!["uid/2".into()],
        };
        assert_eq!(
            status(
                Some(&ready()),
                &Standing::Untried,
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
    fn a_move_is_told_until_the_spec_changes() {
        let moved = status(
            Some(&ready()),
            &Standing::Taken {
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
        let words = |status: &ContactPointStatus| {
            conditions::get(&status.conditions, READY)
                .unwrap()
                .message
                .clone()
        };
        assert!(words(&moved).contains("-100"), "{}", words(&moved));
        // After a restart nothing is new.
        let again = status(
            Some(&moved),
            &Standing::Untried,
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
            "another chat's move"
        );
        let taken = status(
            Some(&moved),
            &Standing::Taken { migrated_to: None },
            false,
            &other,
            none(),
            2,
            at(3),
        )
        .unwrap();
        assert_eq!(
            (taken.migrated_to_chat_id, words(&taken)),
            (None, "messages can be sent".to_owned())
        );
        let away = status(
            Some(&moved),
            &Standing::Retrying("timeout".into()),
            false,
            &other,
            none(),
            2,
            at(3),
        )
        .unwrap();
        let blocked = blocked(Some(&moved), &other.spec, "SecretNotFound", "no", 2, at(3));
        assert_eq!(
            (away.migrated_to_chat_id, blocked.migrated_to_chat_id),
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
        status(None, &Standing::Stopped { reason: "Unauthorized", message: "401".into() }, false, &tested(), none(), 1, at(0)),
        false,
    )]
    #[case::new(None, false)]
    fn one_that_was_ready_is_so_again_after_a_suspension(
        #[case] before: Option<ContactPointStatus>,
        #[case] again: bool,
    ) {
        let held = suspended(before.as_ref(), "abc", 2, at(5));
        assert!(!held.ready);
        assert_eq!(
            held.initialized,
            before.as_ref().is_some_and(|before| before.initialized)
        );
        assert_eq!(
            conditions::get(&held.conditions, READY).unwrap().reason,
            SUSPENDED
        );
        assert_eq!(held.observed_generation, Some(2));
        assert_eq!(
            suspended(Some(&held), "abc", 2, at(6)),
            held,
            "it is written once"
        );

        assert_eq!(known_well(&held, &tested()), again);
        let resumed = status(
            Some(&held),
            &Standing::Untried,
            false,
            &tested(),
            none(),
            3,
            at(9),
        );
        assert_eq!(resumed.is_some(), again);
        if let Some(resumed) = resumed {
            assert!(resumed.ready && resumed.was_ready.is_none());
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
            !tested_before || !known_well(&held, &new),
            "a Secret that changed meanwhile is tested"
        );
    }

    #[test]
    fn one_that_lost_a_secret_for_a_while_is_ready_again_without_a_test() {
        let lost = blocked(Some(&ready()), "abc", "SecretNotFound", "no", 1, at(5));
        assert!(!lost.ready && known_well(&lost, &tested()));
        assert_eq!(
            blocked(Some(&lost), "abc", "SecretNotFound", "no", 1, at(6)),
            lost,
            "it is written once"
        );
        let found = status(
            Some(&lost),
            &Standing::Untried,
            false,
            &tested(),
            none(),
            1,
            at(9),
        )
        .unwrap();
        assert!(found.ready && found.was_ready.is_none());
        assert!(!known_well(
            &lost,
            &LastTest {
                secrets: vec!["uid/2".into()],
                ..tested()
            }
        ));
    }

    #[test]
    fn those_that_cannot_be_written_are_named_while_there_are_any() {
        let mut status = ready();
        let why = ["webhook denied it".to_owned(), "x".repeat(2000)];
        let field = |name: &str, why: &String| (Key::new("n", name), why.clone());
        name_left_out(
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
        let said = "TrackedField \"a\", so nothing more of it is sent: webhook denied it; the same for \"b\"; change the admission";
        assert!(condition.message.contains(said), "{}", condition.message);
        name_left_out(
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
        name_left_out(&mut status, &[], 1, at(2));
        assert_eq!(status, ready());
    }

    #[test]
    fn what_is_said_is_not_said_over() {
        let theirs = ContactPointStatus {
            initialized: true,
            ready: true,
            ..ContactPointStatus::default()
        };
        let silent = ContactPointStatus::default();
        assert!(unsaid(None) && unsaid(Some(&silent)));
        assert!(!unsaid(Some(&theirs)) && !unsaid(Some(&ready())));
        assert!(!unsaid(Some(&blocked(
            None,
            "abc",
            "SecretNotFound",
            "no",
            1,
            at(0)
        ))));
    }

    #[test]
    fn suspending_is_no_change_of_the_endpoint() {
        let spec = |suspend| ContactPointSpec {
            type_: "Telegram".into(),
            suspend,
            ..ContactPointSpec::default()
        };
        assert_eq!(digest(&spec(None)), digest(&spec(Some(true))));
        assert_ne!(digest(&spec(None)), digest(&ContactPointSpec::default()));
    }

    #[test]
    fn a_stop_and_its_end_are_told() {
        let stopped = Standing::Stopped {
            reason: "Unauthorized",
            message: "401".into(),
        };
        let status_ = status(Some(&ready()), &stopped, false, &tested(), none(), 1, at(5)).unwrap();
        assert!(!status_.ready && status_.initialized);
        let again = status(
            Some(&status_),
            &Standing::Taken { migrated_to: None },
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
