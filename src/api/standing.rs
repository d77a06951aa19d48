//! How an object says that it stands: its condition `Ready` in two words, of whatever kind it is.

use kube::ResourceExt;

use super::common::{Conditions, WAITING};
use super::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use crate::runtime::conditions::{self, READY};

/// The reason of one of which nothing is said yet, or of an older spec only.
pub const UNSEEN: &str = "Unseen";

/// Whether it is well: the status of its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ready {
    /// It is.
    True,
    /// It is not.
    False,
    /// That is not known, or not of the spec that it now has.
    Unknown,
}

impl Ready {
    /// As a condition's status has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Whether an object is well, and the reason in a word.
pub type Stand<'a> = (Ready, &'a str);

/// What says how it stands.
pub trait Stands {
    /// How it stands.
    fn stand(&self) -> Stand<'_>;
}

/// By its condition: the generations that the object has and that the condition speaks of, its status and its reason.
pub fn by_condition<'a>(
    generation: Option<i64>,
    condition: Option<(Option<i64>, &str, &'a str)>,
) -> Stand<'a> {
    match condition {
        Some((observed, _, _)) if generation > observed => (Ready::Unknown, UNSEEN),
        Some((_, "True", reason)) => (Ready::True, reason),
        Some((_, "False", reason)) => (Ready::False, reason),
        Some((_, _, reason)) => (Ready::Unknown, reason),
        None => (Ready::Unknown, UNSEEN),
    }
}

/// By whether it waits, and whether anything is recorded of it.
pub fn by_waiting<'a>(waiting: Option<(&'a str, &str)>, recorded: bool) -> Stand<'a> {
    match waiting {
        Some((reason, _)) => (Ready::False, reason),
        None if recorded => (Ready::True, READY),
        None => (Ready::Unknown, UNSEEN),
    }
}

/// Why a `TrackedField` waits, in a word and in words. Its status has no room for conditions: an annotation says it.
pub fn waiting(object: &impl ResourceExt) -> Option<(&str, &str)> {
    object
        .annotations()
        .get(WAITING)
        .map(|text| text.split_once(": ").unwrap_or((text, "")))
}

fn ready(conditions: &Conditions, observed: Option<i64>) -> Option<(Option<i64>, &str, &str)> {
    let ready = conditions::get(conditions, READY)?;
    Some((
        observed.or(ready.observed_generation),
        &ready.status,
        &ready.reason,
    ))
}

macro_rules! stand_by_their_condition {
    ($($kind:ty),*) => {$(
        impl Stands for $kind {
            fn stand(&self) -> Stand<'_> {
                let status = self.status.as_ref();
                by_condition(
                    self.metadata.generation,
                    status.and_then(|status| ready(&status.conditions, status.observed_generation)),
                )
            }
        }
    )*};
}

stand_by_their_condition!(ConfigMapSync, MyApp, MyIngress);

impl Stands for ContactPoint {
    fn stand(&self) -> Stand<'_> {
        let Some(status) = &self.status else {
            return (Ready::Unknown, UNSEEN);
        };
        // The original program wrote no conditions.
        if status.ready && status.conditions.is_empty() {
            return (Ready::True, READY);
        }
        by_condition(
            self.metadata.generation,
            ready(&status.conditions, status.observed_generation),
        )
    }
}

/// Its conditions are of a Deployment's form.
impl Stands for AppService {
    fn stand(&self) -> Stand<'_> {
        let status = self.status.as_ref();
        let ready = status.and_then(|status| {
            let ready = status.condition(READY)?;
            let observed = status.observed_generation.or(ready.observed_generation);
            Some((
                observed,
                &*ready.status,
                ready.reason.as_deref().unwrap_or_default(),
            ))
        });
        by_condition(self.metadata.generation, ready)
    }
}

impl Stands for TrackedField {
    fn stand(&self) -> Stand<'_> {
        by_waiting(
            waiting(self),
            self.status
                .as_ref()
                .is_some_and(|history| !history.is_empty()),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn stand<K: Stands + DeserializeOwned>(more: &Value) -> (Ready, String) {
        let mut object =
            json!({ "metadata": { "name": "x", "namespace": "a", "generation": 2 }, "spec": {} });
        for (field, value) in more.as_object().unwrap() {
            if field == "metadata" {
                object["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .extend(value.as_object().unwrap().clone());
            } else {
                object[field] = value.clone();
            }
        }
        let object: K = serde_json::from_value(object).unwrap();
        let (ready, reason) = object.stand();
        (ready, reason.to_owned())
    }

    fn condition(status: &str, reason: &str, observed: i64) -> Value {
        let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed });
        json!({ "status": { "conditions": [condition], "observedGeneration": observed } })
    }

    #[rstest]
    #[case::new(json!({}), Ready::Unknown, UNSEEN)]
    #[case::well(condition("True", "Ready", 2), Ready::True, "Ready")]
    #[case::ill(condition("False", "Conflict", 2), Ready::False, "Conflict")]
    #[case::of_an_older_spec(condition("True", "Ready", 1), Ready::Unknown, UNSEEN)]
    #[case::unknown(condition("Unknown", "Asking", 2), Ready::Unknown, "Asking")]
    fn a_condition_says_it(#[case] more: Value, #[case] ready: Ready, #[case] reason: &str) {
        let expected = (ready, reason.to_owned());
        for stands in [
            stand::<ContactPoint>,
            stand::<ConfigMapSync>,
            stand::<MyApp>,
            stand::<AppService>,
            stand::<MyIngress>,
        ] {
            assert_eq!(stands(&more), expected);
        }
    }

    #[test]
    fn one_of_the_original_program_says_it_by_a_field() {
        let of = |ready: bool| {
            stand::<ContactPoint>(&json!({ "status": { "initialized": true, "ready": ready } }))
        };
        assert_eq!(of(true), (Ready::True, "Ready".into()));
        assert_eq!(of(false), (Ready::Unknown, UNSEEN.into()));
    }

    #[rstest]
    #[case::new(json!({}), Ready::Unknown, UNSEEN)]
    #[case::waits(json!({ "metadata": { "annotations": { WAITING: "TargetNotFound: a: b" } }, "status": [] }), Ready::False, "TargetNotFound")]
    #[case::nothing_recorded(json!({ "status": [] }), Ready::Unknown, UNSEEN)]
    #[case::well(json!({ "status": [{ "action": "Created", "value": "1" }] }), Ready::True, "Ready")]
    fn an_annotation_says_it(#[case] more: Value, #[case] ready: Ready, #[case] reason: &str) {
        assert_eq!(stand::<TrackedField>(&more), (ready, reason.to_owned()));
    }
}
