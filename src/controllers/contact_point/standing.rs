//! The status of a contact point, from how its receiver took what was sent. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::contact_point::{ContactPointStatus, Tested};
use crate::notify::queue::Standing;
use crate::runtime::conditions::{self, READY};

/// The status that says how the receiver stands; none while there is nothing new to say.
pub fn status(
    before: Option<&ContactPointStatus>,
    standing: &Standing,
    tested: &Tested,
    generation: i64,
    now: Time,
) -> Option<ContactPointStatus> {
    let mut status = before.cloned().unwrap_or_default();
    let (ready, reason, message) = match standing {
        Standing::Untried => {
            // Nothing is sent again to an endpoint that was tested; what is said of it stands, for this generation too.
            let known = status.tested.as_ref() == Some(tested) || status.observed_generation.is_none();
            if !(known && status.ready) {
                return None;
            }
            (true, "Ready", well(&status))
        }
        Standing::Taken { migrated_to } => {
            let same = status.tested.as_ref().is_some_and(|before| before.spec == tested.spec);
            status.migrated_to_chat_id = migrated_to.or(status.migrated_to_chat_id.filter(|_| same));
            (true, "Ready", well(&status))
        }
        // One that was tested stays ready: its messages wait, and each object of theirs says so.
        Standing::Retrying(_) if status.ready && status.tested.as_ref() == Some(tested) => return None,
        Standing::Retrying(message) => (false, "Unreachable", format!("{message}; it is tried again")),
        Standing::Stopped { reason, message } => (false, *reason, message.clone()),
    };
    status.initialized = true;
    status.ready = ready;
    status.observed_generation = Some(generation);
    if !matches!(standing, Standing::Retrying(_)) {
        status.tested = Some(tested.clone());
    }
    conditions::set(&mut status.conditions, READY, ready, reason, &message, generation, now);
    Some(status)
}

/// What is said of a receiver that takes messages.
fn well(status: &ContactPointStatus) -> String {
    match status.migrated_to_chat_id {
        Some(chat) => format!("the group became the supergroup {chat}, where messages now go; write that chatId"),
        None => "messages can be sent".into(),
    }
}

/// The status of a contact point that has no endpoint: no attempt was made.
pub fn blocked(
    before: Option<&ContactPointStatus>,
    reason: &str,
    message: &str,
    generation: i64,
    now: Time,
) -> ContactPointStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.ready = false;
    status.observed_generation = Some(generation);
    conditions::set(&mut status.conditions, READY, false, reason, message, generation, now);
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

    fn tested() -> Tested {
        Tested { spec: "abc".into(), secrets: vec!["uid/1".into()] }
    }

    fn ready() -> ContactPointStatus {
        status(None, &Standing::Taken { migrated_to: None }, &tested(), 1, at(0)).unwrap()
    }

    #[test]
    fn the_first_attempt_makes_it_initialized_whatever_came_of_it() {
        let failed = status(None, &Standing::Retrying("connection refused".into()), &tested(), 1, at(0)).unwrap();
        assert!(failed.initialized && !failed.ready);
        assert_eq!(conditions::get(&failed.conditions, READY).unwrap().reason, "Unreachable");
        assert_eq!(failed.tested, None, "an attempt that may be repeated is no test");
        assert!(ready().initialized && ready().ready);
    }

    #[test]
    fn a_missing_secret_is_no_attempt() {
        let status = blocked(None, "SecretNotFound", "no", 1, at(0));
        assert!(!status.initialized && !status.ready);
    }

    #[test]
    fn what_the_original_program_called_ready_stays_ready() {
        let theirs = ContactPointStatus { initialized: true, ready: true, ..ContactPointStatus::default() };
        let ours = status(Some(&theirs), &Standing::Untried, &tested(), 3, at(0)).unwrap();
        assert!(ours.ready && ours.initialized);
        assert_eq!((ours.observed_generation, ours.tested), (Some(3), Some(tested())));
    }

    #[rstest]
    #[case::a_pass_without_news(Standing::Untried)]
    #[case::a_receiver_that_is_away(Standing::Retrying("timeout".into()))]
    fn a_tested_one_stays_as_it_is(#[case] standing: Standing) {
        let before = ready();
        let after = status(Some(&before), &standing, &tested(), 1, at(9)).unwrap_or_else(|| before.clone());
        assert_eq!(after, before);
    }

    #[test]
    fn a_new_secret_is_tested_before_anything_is_said() {
        let new = Tested { spec: "abc".into(), secrets: vec!["uid/2".into()] };
        assert_eq!(status(Some(&ready()), &Standing::Untried, &new, 1, at(9)), None);
    }

    #[test]
    fn a_stop_and_its_end_are_told() {
        let stopped = Standing::Stopped { reason: "Unauthorized", message: "401".into() };
        let status_ = status(Some(&ready()), &stopped, &tested(), 1, at(5)).unwrap();
        assert!(!status_.ready && status_.initialized);
        let again = status(Some(&status_), &Standing::Taken { migrated_to: None }, &tested(), 1, at(8)).unwrap();
        assert!(again.ready);
        assert_eq!(conditions::get(&again.conditions, READY).unwrap().last_transition_time, at(8));
    }
}
