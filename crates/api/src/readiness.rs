//! Readiness of each kind, as its status or its annotation has it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use qm_core::conditions::{HasConditions, MAX_MESSAGE, READY, ReadyCondition};
use qm_core::kind::{HasReadyCondition, Kind};
use qm_core::names::MetadataNames;
use qm_core::readiness::{NOT_OBSERVED, Readiness, ReadinessSummary, from_condition, from_status};

use crate::app_service::{AppCondition, AppServiceStatus, OLD_SPEC};
use crate::common::{NAMES, WAITING, WAITING_REASON};
use crate::config_map_sync::ConfigMapSyncStatus;
use crate::contact_point::ContactPointStatus;
use crate::my_app::MyAppStatus;
use crate::my_ingress::MyIngressStatus;
use crate::tracked_field::StoredHistory;
use crate::{
    AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField, config_map_sync,
    my_ingress,
};

/// Returns the readiness of a `TrackedField` that waits for this reason, and that has recorded an entry or not.
pub fn from_waiting<'a>(waiting: Option<(&'a str, &str)>, recorded: bool) -> ReadinessSummary<'a> {
    match waiting {
        Some((reason, _)) => (Readiness::False, reason),
        None if recorded => (Readiness::True, READY),
        None => (Readiness::Unknown, NOT_OBSERVED),
    }
}

/// Returns why a `TrackedField` waits, as reason and message. Its status is a list without room for conditions, so an
/// annotation has them.
pub fn waiting(object: &impl ResourceExt) -> Option<(&str, &str)> {
    object
        .annotations()
        .get(WAITING)
        .map(|text| text.split_once(": ").unwrap_or((text, "")))
}

macro_rules! has_conditions {
    ($($status:ty $({ $ready:ident })?),* $(,)?) => {$(
        impl HasConditions for $status {
            fn conditions(&self) -> &[Condition] {
                &self.conditions
            }

            fn conditions_mut(&mut self) -> &mut Vec<Condition> {
                &mut self.conditions
            }

            fn observed_generation(&self) -> Option<i64> {
                self.observed_generation
            }

            fn mirror_ready(&mut self, _is_ready: bool, generation: i64) {
                self.observed_generation = Some(generation);
                $(self.$ready = _is_ready;)?
            }
        }
    )*};
}

has_conditions!(
    ConfigMapSyncStatus,
    ContactPointStatus { ready },
    MyAppStatus { ready },
    MyIngressStatus
);

macro_rules! kind {
    ($($kind:ty $({ $($constant:item)* })?),* $(,)?) => {$(
        impl Kind for $kind {
            const NAMES: &'static MetadataNames = &NAMES;
            $($($constant)*)?

            fn readiness(&self) -> ReadinessSummary<'_> {
                from_status(self.metadata.generation, self.status.as_ref())
            }

            fn is_suspended(&self) -> bool {
                self.spec.suspend.unwrap_or_default()
            }
        }
    )*};
}

kind!(
    ConfigMapSync {
        const FINALIZER: Option<&'static str> = Some(config_map_sync::FINALIZER);
    },
    MyApp,
    MyIngress {
        const FINALIZER: Option<&'static str> = Some(my_ingress::FINALIZER);
    },
);

impl Kind for ContactPoint {
    const NAMES: &'static MetadataNames = &NAMES;

    fn readiness(&self) -> ReadinessSummary<'_> {
        match &self.status {
            // The original program wrote no conditions.
            Some(status) if status.ready && status.conditions.is_empty() => {
                (Readiness::True, READY)
            }
            status => from_status(self.metadata.generation, status.as_ref()),
        }
    }
}

impl Kind for AppService {
    const NAMES: &'static MetadataNames = &NAMES;
    const FOREIGN_ANNOTATIONS: &'static [&'static str] = &[OLD_SPEC];

    fn readiness(&self) -> ReadinessSummary<'_> {
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
        from_condition(self.metadata.generation, ready)
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend.unwrap_or_default()
    }
}

impl HasReadyCondition for AppService {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        let ready = self.status.as_ref()?.condition(READY)?;
        Some(ReadyCondition {
            is_true: ready.status == "True",
            reason: ready.reason.as_deref().unwrap_or_default(),
            message: ready.message.as_deref().unwrap_or_default(),
        })
    }

    fn observed_generation(&self) -> Option<i64> {
        self.status.as_ref()?.observed_generation
    }

    fn set_ready_condition(
        status: &mut AppServiceStatus,
        condition: &ReadyCondition<'_>,
        generation: i64,
        now: Time,
    ) {
        let value = if condition.is_true { "True" } else { "False" };
        let same = status
            .condition(READY)
            .filter(|before| before.status == value);
        let since = same.and_then(|before| before.last_transition_time.clone());
        let message = &condition.message[..condition.message.floor_char_boundary(MAX_MESSAGE)];
        let ready = AppCondition {
            type_: READY.into(),
            status: value.into(),
            reason: Some(condition.reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(since.unwrap_or(now)),
            last_update_time: None,
            observed_generation: Some(generation),
        };
        status.observed_generation = Some(generation);
        // Before the conditions of the Deployment.
        status.conditions.retain(|other| other.type_ != READY);
        status.conditions.insert(0, ready);
    }
}

impl Kind for TrackedField {
    const NAMES: &'static MetadataNames = &NAMES;

    fn readiness(&self) -> ReadinessSummary<'_> {
        let recorded = self
            .status
            .as_ref()
            .is_some_and(|history| !history.is_empty());
        from_waiting(waiting(self), recorded)
    }
}

/// The history has no room for a condition: annotations report it while it is False.
impl HasReadyCondition for TrackedField {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        waiting(self).map(|(reason, message)| ReadyCondition {
            is_true: false,
            reason,
            message,
        })
    }

    fn observed_generation(&self) -> Option<i64> {
        None
    }

    fn set_ready_condition(
        _status: &mut StoredHistory,
        _condition: &ReadyCondition<'_>,
        _generation: i64,
        _now: Time,
    ) {
    }

    fn ready_annotations(condition: &ReadyCondition<'_>) -> Vec<(&'static str, Option<String>)> {
        let ReadyCondition {
            is_true,
            reason,
            message,
        } = *condition;
        vec![
            (WAITING, (!is_true).then(|| format!("{reason}: {message}"))),
            (WAITING_REASON, (!is_true).then(|| reason.to_owned())),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn readiness<K: Kind + DeserializeOwned>(more: &Value) -> (Readiness, String) {
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
        let (ready, reason) = object.readiness();
        (ready, reason.to_owned())
    }

    fn condition(status: &str, reason: &str, observed: i64) -> Value {
        let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed });
        json!({ "status": { "conditions": [condition], "observedGeneration": observed } })
    }

    #[rstest]
    #[case::new(json!({}), Readiness::Unknown, NOT_OBSERVED)]
    #[case::well(condition("True", "Ready", 2), Readiness::True, "Ready")]
    #[case::ill(condition("False", "Conflict", 2), Readiness::False, "Conflict")]
    #[case::of_an_older_spec(condition("True", "Ready", 1), Readiness::Unknown, NOT_OBSERVED)]
    #[case::unknown(condition("Unknown", "Asking", 2), Readiness::Unknown, "Asking")]
    fn a_condition_says_it(#[case] more: Value, #[case] ready: Readiness, #[case] reason: &str) {
        let expected = (ready, reason.to_owned());
        for stands in [
            readiness::<ContactPoint>,
            readiness::<ConfigMapSync>,
            readiness::<MyApp>,
            readiness::<AppService>,
            readiness::<MyIngress>,
        ] {
            assert_eq!(stands(&more), expected);
        }
    }

    #[test]
    fn one_of_the_original_program_says_it_by_a_field() {
        let of = |ready: bool| {
            readiness::<ContactPoint>(&json!({ "status": { "initialized": true, "ready": ready } }))
        };
        assert_eq!(of(true), (Readiness::True, "Ready".into()));
        assert_eq!(of(false), (Readiness::Unknown, NOT_OBSERVED.into()));
    }

    #[rstest]
    #[case::new(json!({}), Readiness::Unknown, NOT_OBSERVED)]
    #[case::waits(json!({ "metadata": { "annotations": { WAITING: "TargetNotFound: a: b" } }, "status": [] }), Readiness::False, "TargetNotFound")]
    #[case::nothing_recorded(json!({ "status": [] }), Readiness::Unknown, NOT_OBSERVED)]
    #[case::well(json!({ "status": [{ "action": "Created", "value": "1" }] }), Readiness::True, "Ready")]
    fn an_annotation_says_it(#[case] more: Value, #[case] ready: Readiness, #[case] reason: &str) {
        assert_eq!(readiness::<TrackedField>(&more), (ready, reason.to_owned()));
    }
}
