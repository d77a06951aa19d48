//! Macros for the trait implementations that kinds have in common.

/// Implements the traits of a kind that has `spec.suspend` and a list of conditions in its status. `{ FIELD }` names a field of
/// the status that repeats the condition `Ready`. `orphans` names a method of the spec that returns whether the children
/// stay when the object is deleted.
macro_rules! kind {
    (
        $kind:ident, $spec:ident, $status:ident $({ $ready:ident })?
        $(, finalizer: $finalizer:expr)? $(, orphans: $orphans:ident)? $(,)?
    ) => {
        $crate::spec_size::stored_spec!($spec);
        $crate::kind::has_conditions!($status $({ $ready })?);

        impl qm_core::kind::Kind for $kind {
            const NAMES: &'static qm_core::names::MetadataNames = &$crate::common::NAMES;
            $(const FINALIZER: Option<&'static str> = Some($finalizer);)?

            fn readiness(&self) -> qm_core::readiness::ReadinessSummary<'_> {
                qm_core::conditions::readiness(self.metadata.generation, self.status.as_ref())
            }

            fn is_suspended(&self) -> bool {
                self.spec.suspend.unwrap_or_default()
            }

            $(fn orphans_children(&self) -> bool {
                self.spec.$orphans()
            })?
        }
    };
}

/// Implements access to the conditions of a status.
macro_rules! has_conditions {
    ($status:ident $({ $ready:ident })?) => {
        impl qm_core::conditions::HasConditions for $status {
            fn conditions(&self) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
                &self.conditions
            }

            fn conditions_mut(
                &mut self,
            ) -> &mut Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
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
    };
}

pub(super) use has_conditions;
pub(super) use kind;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_core::kind::Kind;
    use qm_core::readiness::{NOT_OBSERVED, Readiness};
    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use crate::common::WAITING;
    use crate::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};

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
    #[case::ready(condition("True", "Ready", 2), Readiness::True, "Ready")]
    #[case::not_ready(condition("False", "Conflict", 2), Readiness::False, "Conflict")]
    #[case::older_spec(condition("True", "Ready", 1), Readiness::Unknown, NOT_OBSERVED)]
    #[case::unknown(condition("Unknown", "Pending", 2), Readiness::Unknown, "Pending")]
    fn readiness_follows_the_condition(
        #[case] more: Value,
        #[case] ready: Readiness,
        #[case] reason: &str,
    ) {
        let expected = (ready, reason.to_owned());
        for readiness in [
            readiness::<ContactPoint>,
            readiness::<ConfigMapSync>,
            readiness::<MyApp>,
            readiness::<AppService>,
            readiness::<MyIngress>,
        ] {
            assert_eq!(readiness(&more), expected);
        }
    }

    #[test]
    fn readiness_without_conditions_follows_the_field() {
        let of = |ready: bool| {
            readiness::<ContactPoint>(&json!({ "status": { "initialized": true, "ready": ready } }))
        };
        assert_eq!(of(true), (Readiness::True, "Ready".into()));
        assert_eq!(of(false), (Readiness::Unknown, NOT_OBSERVED.into()));
    }

    #[rstest]
    #[case::new(json!({}), Readiness::Unknown, NOT_OBSERVED)]
    #[case::waiting(json!({ "metadata": { "annotations": { WAITING: "TargetNotFound: a: b" } }, "status": [] }), Readiness::False, "TargetNotFound")]
    #[case::nothing_recorded(json!({ "status": [] }), Readiness::Unknown, NOT_OBSERVED)]
    #[case::ready(json!({ "status": [{ "action": "Created", "value": "1" }] }), Readiness::True, "Ready")]
    fn tracked_field_readiness_follows_the_annotation(
        #[case] more: Value,
        #[case] ready: Readiness,
        #[case] reason: &str,
    ) {
        assert_eq!(readiness::<TrackedField>(&more), (ready, reason.to_owned()));
    }
}
