//! Precedence between sets and `TrackedField`s that track one field, and between targets beyond `maxTargets`. Pure: the
//! controller and `quartermaster matches` decide by the same rules.

use std::sync::Arc;

use qm_api::TrackedField;
use qm_api::common::{ADOPT_BY, NAMES};
use qm_core::shared;
use qm_runtime::ObjectKey;
use qm_runtime::ownership::{controller_of, owner_of, proves_owner};

use super::child::{self, Identity, Seniority};

/// Maximum length of `NAMESPACE/NAME`, in bytes. Clients may write annotations of any length.
const MAX_PATH: usize = 63 + 1 + 253;

/// The parts of a `TrackedField` that precedence depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tracking {
    pub identity: Identity,
    pub target: ObjectKey,
    contact_point: Arc<str>,
    /// Owner that the annotation names. Any client may write the annotation.
    pub owner: Option<ObjectKey>,
    /// True if a UID proves the owner.
    pub is_owner_proven: bool,
    /// Set that may adopt the `TrackedField`, as `NAMESPACE/NAME`; `None` if another object controls the `TrackedField`.
    adopt_by: Option<Arc<str>>,
}

impl Tracking {
    pub fn of(field: &TrackedField) -> Self {
        let adopt_by = field.metadata.annotations.as_ref();
        let adopt_by = adopt_by.and_then(|annotations| annotations.get(ADOPT_BY));
        let adopt_by = adopt_by.filter(|set| set.len() <= MAX_PATH);
        let adopt_by = adopt_by.filter(|_| controller_of(&field.metadata).is_none());
        Self {
            identity: child::identity(field),
            target: {
                let target = &field.spec.target;
                ObjectKey::new(&target.namespace, &target.name)
            },
            contact_point: shared::text(&field.spec.notification.contact_point),
            adopt_by: adopt_by.map(|set| shared::text(set)),
            owner: owner_of(&field.metadata, &NAMES).map(|(owner, _)| owner),
            is_owner_proven: proves_owner(&field.metadata, &NAMES),
        }
    }
}

/// The parts of a set that precedence depends on.
pub(crate) struct Claimant<'a> {
    pub key: &'a ObjectKey,
    pub contact_point: &'a str,
    /// `None` if the set is not stored yet, and so is the youngest.
    pub(crate) seniority: Option<Seniority>,
}

/// The `TrackedField` for a field of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    None,
    /// The set owns the `TrackedField`.
    Own(ObjectKey),
    /// The set may adopt the `TrackedField`.
    Adoptable(ObjectKey),
    /// The `TrackedField` has another owner, sends to the same contact point and takes precedence.
    Covered(ObjectKey),
}

impl Claimant<'_> {
    /// Returns the `TrackedField` that tracks the field. `derived` is the key of a child that the set creates. `owns`
    /// returns whether the set owns a `TrackedField`, and `seniority_of` the seniority of another stored set.
    ///
    /// A user's `TrackedField`, or one of an older set, covers the field. A `TrackedField` that the set may adopt
    /// replaces the child that the set has created, so that the history stays, but not one that the set has adopted
    /// before. A copy of the created child does not replace it. An owned one with the name of a child for another field
    /// has been edited, and is changed back.
    pub fn existing(
        &self,
        candidates: impl IntoIterator<Item = (ObjectKey, Tracking)>,
        derived: &ObjectKey,
        owns: impl Fn(&ObjectKey, &Tracking) -> bool,
        seniority_of: impl Fn(&ObjectKey) -> Option<Seniority>,
    ) -> Existing {
        let path = self.key.to_string();
        let (mut own, mut adoptable) = (None, None);
        for (key, tracking) in candidates {
            if owns(&key, &tracking) {
                let is_derived = key == *derived;
                let is_edited = !is_derived && child::is_derived_name(&self.key.name, &key.name);
                if is_derived || (own.is_none() && !is_edited) {
                    own = Some(key);
                }
            } else if tracking.adopt_by.as_deref() == Some(&*path) {
                adoptable.get_or_insert(key);
            } else if *tracking.contact_point == *self.contact_point
                && tracking
                    .owner
                    .is_none_or(|owner| self.yields_to(&owner, &seniority_of))
            {
                return Existing::Covered(key);
            }
        }
        match (own, adoptable) {
            (Some(own), None) => Existing::Own(own),
            (Some(own), Some(_)) if own != *derived => Existing::Own(own),
            (_, Some(adoptable)) => Existing::Adoptable(adoptable),
            (None, None) => Existing::None,
        }
    }

    /// Returns whether the `owner` of a `TrackedField` that this set does not own takes precedence: an older set, a set
    /// that no longer exists and has orphaned its children, or an earlier set with the name of this one.
    fn yields_to(
        &self,
        owner: &ObjectKey,
        seniority_of: impl Fn(&ObjectKey) -> Option<Seniority>,
    ) -> bool {
        *owner == *self.key
            || seniority_of(owner)
                .is_none_or(|other| self.seniority.as_ref().is_none_or(|own| other < *own))
    }
}

/// Demand of a target for one of the slots that `maxTargets` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Other `TrackedField`s track all fields.
    Nothing,
    /// The target has a child, which keeps its slot.
    Kept,
    /// The target needs a free slot.
    New,
}

impl Demand {
    /// Returns the demand of a target. `has_child` has an item for each field that no other `TrackedField` covers:
    /// whether the field has a child.
    pub fn of(has_child: impl IntoIterator<Item = bool>) -> Self {
        let mut demand = Self::Nothing;
        for has_child in has_child {
            if has_child {
                return Self::Kept;
            }
            demand = Self::New;
        }
        demand
    }
}

/// Returns the number of slots that these targets do not keep.
pub(crate) fn free_slots(demands: &[Demand], slots: usize) -> usize {
    let kept = demands.iter().filter(|demand| **demand == Demand::Kept);
    slots.saturating_sub(kept.count())
}

/// Returns for each target whether it gets no slot. `demands` are in the order of namespace and name, in which targets
/// get free slots.
pub(crate) fn left_out(demands: &[Demand], slots: usize) -> Vec<bool> {
    let mut free = free_slots(demands, slots);
    let mut is_left_out = |demand: &Demand| {
        let is_left_out = *demand == Demand::New && free == 0;
        if *demand == Demand::New {
            free = free.saturating_sub(1);
        }
        is_left_out
    };
    demands.iter().map(&mut is_left_out).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ops", name)
    }

    fn seniority(second: i64) -> Seniority {
        let time = jiff::Timestamp::from_second(second).unwrap();
        (Some(Time(time)), None)
    }

    fn tracking(contact_point: &str, owner: Option<&str>, adopt_by: Option<&str>) -> Tracking {
        Tracking {
            identity: 1,
            target: key("web"),
            contact_point: contact_point.into(),
            owner: owner.map(key),
            is_owner_proven: owner.is_some(),
            adopt_by: adopt_by.map(Into::into),
        }
    }

    /// Owners: `all` is the set itself, `older` and `younger` are stored, all others do not exist.
    #[rstest]
    #[case::nothing(&[], Existing::None)]
    #[case::hand_made(&[("mine", "hook", None, None)], Existing::Covered(key("mine")))]
    #[case::other_contact_point(&[("mine", "chat", None, None)], Existing::None)]
    #[case::of_the_older_set(&[("a", "hook", Some("older"), None)], Existing::Covered(key("a")))]
    #[case::of_the_younger_set(&[("a", "hook", Some("younger"), None)], Existing::None)]
    #[case::orphaned(&[("a", "hook", Some("deleted"), None)], Existing::Covered(key("a")))]
    #[case::own(&[("derived", "hook", Some("all"), None)], Existing::Own(key("derived")))]
    #[case::own_and_covered(
        &[("derived", "hook", Some("all"), None), ("mine", "hook", None, None)],
        Existing::Covered(key("mine"))
    )]
    #[case::adoptable(&[("mine", "chat", None, Some("ops/all"))], Existing::Adoptable(key("mine")))]
    #[case::adoptable_before_derived(
        &[("derived", "hook", Some("all"), None), ("mine", "hook", None, Some("ops/all"))],
        Existing::Adoptable(key("mine"))
    )]
    #[case::first_adoptable(
        &[("a", "chat", None, Some("ops/all")), ("b", "chat", None, Some("ops/all"))],
        Existing::Adoptable(key("a"))
    )]
    #[case::adopted(&[("adopted", "hook", Some("all"), None)], Existing::Own(key("adopted")))]
    #[case::adopted_before_adoptable(
        &[("adopted", "hook", Some("all"), None), ("mine", "chat", None, Some("ops/all"))],
        Existing::Own(key("adopted"))
    )]
    #[case::adoptable_before_adopted(
        &[("a", "chat", None, Some("ops/all")), ("adopted", "hook", Some("all"), None)],
        Existing::Own(key("adopted"))
    )]
    #[case::adoptable_before_the_original_of_a_copy(
        &[
            ("copy", "hook", Some("all"), None),
            ("derived", "hook", Some("all"), None),
            ("mine", "chat", None, Some("ops/all")),
        ],
        Existing::Adoptable(key("mine"))
    )]
    #[case::copy_before_derived(
        &[("copy", "hook", Some("all"), None), ("derived", "hook", Some("all"), None)],
        Existing::Own(key("derived"))
    )]
    #[case::copy_after_derived(
        &[("derived", "hook", Some("all"), None), ("my-copy", "hook", Some("all"), None)],
        Existing::Own(key("derived"))
    )]
    #[case::edited(&[("all-web-image-abcdefghij234567abcd", "hook", Some("all"), None)], Existing::None)]
    #[case::edited_beside_derived(
        &[("all-web-image-abcdefghij234567abcd", "hook", Some("all"), None), ("derived", "hook", Some("all"), None)],
        Existing::Own(key("derived"))
    )]
    #[case::adoptable_by_another(&[("mine", "chat", None, Some("ops/older"))], Existing::None)]
    fn hand_made_ones_and_the_older_set_win(
        #[case] candidates: &[(&str, &str, Option<&str>, Option<&str>)],
        #[case] expected: Existing,
    ) {
        let set = key("all");
        let claimant = Claimant {
            key: &set,
            contact_point: "hook",
            seniority: Some(seniority(10)),
        };
        let seniorities = |owner: &ObjectKey| match &*owner.name {
            "older" => Some(seniority(5)),
            "younger" => Some(seniority(15)),
            _ => None,
        };
        let candidates = candidates
            .iter()
            .map(|(name, contact_point, owner, adopt_by)| {
                (key(name), tracking(contact_point, *owner, *adopt_by))
            });
        let owns = |_: &ObjectKey, tracking: &Tracking| tracking.owner.as_ref() == Some(&set);
        let existing = claimant.existing(candidates, &key("derived"), owns, seniorities);
        assert_eq!(existing, expected);
    }

    #[test]
    fn text_that_names_no_set_is_not_kept() {
        let adopt_by = |set: &str| {
            let field: TrackedField = serde_json::from_value(json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
                "metadata": { "namespace": "ops", "name": "mine", "annotations": { ADOPT_BY: set } },
                "spec": {
                    "target": { "kind": "Deployment", "namespace": "shop", "name": "web" },
                    "field": "replicas", "contactPoint": "hook",
                },
            }))
            .unwrap();
            Tracking::of(&field).adopt_by
        };
        let longest = format!("{}/{}", "n".repeat(63), "s".repeat(253));
        assert_eq!(adopt_by(&longest).as_deref(), Some(&*longest));
        assert_eq!(adopt_by(&format!("{longest}s")), None);
    }

    #[test]
    fn places_are_kept_and_then_filled_in_order() {
        use Demand::{Kept, New, Nothing};
        let demands = [New, Nothing, New, Kept, New];
        assert_eq!(left_out(&demands, 5), [false; 5]);
        assert_eq!(left_out(&demands, 2), [false, false, true, false, true]);
        assert_eq!(left_out(&demands, 0), [true, false, true, false, true]);
        assert_eq!([3, 1, 0].map(|it| free_slots(&demands, it)), [2, 0, 0]);
    }
}
