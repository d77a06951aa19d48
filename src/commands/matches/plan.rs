//! Plan of a set: the `TrackedField` that each selected resource has or gets, by the rules of the controller. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::ObjectKey;
use qm_runtime::watch::ResourceName;
use serde::Serialize;

use super::super::printer::Colour;
use crate::controllers::tracked_field_set::child::{self, Identity, Seniority, seniority};
use crate::controllers::tracked_field_set::precedence::{
    self, Claimant, Demand, Existing, Tracking,
};

/// The parts of a stored `TrackedField` that the plan depends on.
#[derive(Debug)]
pub(super) struct Stored {
    key: ObjectKey,
    target: ObjectKey,
    field: String,
    tracking: Tracking,
}

impl Stored {
    pub(super) fn of(field: &TrackedField) -> Self {
        let spec = &field.spec;
        Self {
            key: ObjectKey::of(field),
            target: ObjectKey::new(&spec.target.namespace, &spec.target.name),
            field: spec.field.clone(),
            tracking: Tracking::of(field),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum MatchState {
    Tracked,
    New,
    Covered,
    LeftOut,
    Conflict,
    Leaving,
}

impl MatchState {
    pub(super) const ALL: [Self; 6] = [
        Self::Tracked,
        Self::New,
        Self::Covered,
        Self::LeftOut,
        Self::Conflict,
        Self::Leaving,
    ];

    /// Returns the state as an adjective.
    pub(super) fn adjective(self) -> &'static str {
        match self {
            Self::Tracked => "tracked",
            Self::New => "new",
            Self::Covered => "covered",
            Self::LeftOut => "left out",
            Self::Conflict => "in conflict",
            Self::Leaving => "leaving",
        }
    }

    pub(super) fn colour(self) -> Colour {
        match self {
            Self::Tracked => Colour::Green,
            Self::New => Colour::Plain,
            Self::Covered | Self::Leaving => Colour::Dim,
            Self::LeftOut | Self::Conflict => Colour::Red,
        }
    }
}

/// A field of a selected resource, or of a resource whose child the set no longer needs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MatchedField {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) field: String,
    pub(super) state: MatchState,
    /// Name of the `TrackedField`, which may not exist yet; empty for a resource beyond `maxTargets`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) tracked_field: String,
}

impl MatchedField {
    fn new(target: &ObjectKey, field: &str, (state, tracked_field): (MatchState, String)) -> Self {
        Self {
            namespace: target.namespace.to_string(),
            name: target.name.to_string(),
            field: field.to_owned(),
            state,
            tracked_field,
        }
    }
}

#[derive(Debug)]
pub(super) struct MatchPlan {
    pub(super) matches: Vec<MatchedField>,
    /// Number of selected resources.
    pub(super) targets: usize,
    /// Number of selected resources beyond `max_targets`.
    pub(super) left_out: usize,
    /// Value of `maxTargets`.
    pub(super) max_targets: usize,
    /// Value of `maxTargets` that leaves out no resource.
    pub(super) needed_targets: usize,
}

impl MatchPlan {
    /// Returns whether the set can track every selected resource.
    pub(super) fn is_complete(&self) -> bool {
        self.left_out == 0 && self.number(MatchState::Conflict) == 0
    }

    pub(super) fn number(&self, state: MatchState) -> usize {
        self.matches.iter().filter(|it| it.state == state).count()
    }
}

/// Returns the fields of `targets`, and the children that the set no longer needs. `seniorities` are those of the
/// stored sets.
pub(super) fn plan(
    set: &TrackedFieldSet,
    resource: &ResourceName,
    targets: BTreeSet<ObjectKey>,
    fields: &[Stored],
    seniorities: &HashMap<ObjectKey, Seniority>,
) -> MatchPlan {
    let max_targets = set.spec.max_targets();
    let known = Known::new(set, resource, fields, seniorities);
    let mut plan = MatchPlan {
        matches: Vec::new(),
        targets: targets.len(),
        left_out: 0,
        max_targets,
        needed_targets: 0,
    };
    let by_target: Vec<Vec<MatchedField>> = targets
        .into_iter()
        .map(|target| known.matches(&target))
        .collect();
    let demand = |matches: &Vec<MatchedField>| {
        let uncovered = matches.iter().filter(|it| it.state != MatchState::Covered);
        Demand::of(uncovered.map(|it| it.state == MatchState::Tracked))
    };
    let demands: Vec<_> = by_target.iter().map(demand).collect();
    let needs_slot = |demand: &&Demand| **demand != Demand::Nothing;
    plan.needed_targets = demands.iter().filter(needs_slot).count();
    let mut needed = HashSet::new();
    for (mut matches, is_left_out) in by_target
        .into_iter()
        .zip(precedence::left_out(&demands, max_targets))
    {
        if is_left_out {
            plan.left_out += 1;
            for found in &mut matches {
                if found.state != MatchState::Covered {
                    found.state = MatchState::LeftOut;
                    found.tracked_field.clear();
                }
            }
        }
        let children = matches.iter().filter(|it| it.state == MatchState::Tracked);
        needed.extend(children.map(|it| it.tracked_field.clone()));
        plan.matches.append(&mut matches);
    }
    let mut leaving: Vec<_> = fields
        .iter()
        .filter(|field| known.owns(field) && !needed.contains(&*field.key.name))
        .map(|field| {
            let name = field.key.name.to_string();
            MatchedField::new(&field.target, &field.field, (MatchState::Leaving, name))
        })
        .collect();
    leaving
        .sort_by(|a, b| (&a.namespace, &a.name, &a.field).cmp(&(&b.namespace, &b.name, &b.field)));
    plan.matches.append(&mut leaving);
    plan
}

/// `TrackedField`s and sets of the namespace of a set.
struct Known<'a> {
    set: &'a TrackedFieldSet,
    key: ObjectKey,
    resource: &'a ResourceName,
    by_identity: HashMap<Identity, Vec<&'a Stored>>,
    by_name: BTreeMap<&'a str, &'a Stored>,
    seniorities: &'a HashMap<ObjectKey, Seniority>,
}

impl<'a> Known<'a> {
    fn new(
        set: &'a TrackedFieldSet,
        resource: &'a ResourceName,
        fields: &'a [Stored],
        seniorities: &'a HashMap<ObjectKey, Seniority>,
    ) -> Self {
        let mut by_identity = HashMap::<_, Vec<_>>::new();
        for field in fields {
            let identity = field.tracking.identity;
            by_identity.entry(identity).or_default().push(field);
        }
        Self {
            set,
            key: ObjectKey::of(set),
            resource,
            by_identity,
            by_name: fields.iter().map(|it| (&*it.key.name, it)).collect(),
            seniorities,
        }
    }

    fn owns(&self, field: &Stored) -> bool {
        field.tracking.is_owner_proven && field.tracking.owner.as_ref() == Some(&self.key)
    }

    fn matches(&self, target: &ObjectKey) -> Vec<MatchedField> {
        let fields = self.set.spec.fields.iter();
        fields
            .map(|field| MatchedField::new(target, field, self.existing(target, field)))
            .collect()
    }

    /// Returns the `TrackedField` that tracks the field for the set or instead of it, or the one that the set needs.
    fn existing(&self, target: &ObjectKey, field: &str) -> (MatchState, String) {
        let spec = &self.set.spec;
        let reference = spec.target.reference(&target.namespace, &target.name);
        let identity = child::identity_of(&self.key.namespace, &reference, field);
        let own = &self.set.metadata;
        let claimant = Claimant {
            key: &self.key,
            contact_point: &spec.template.contact_point,
            seniority: own.uid.as_ref().map(|_| seniority(own)),
        };
        let candidates = self.by_identity.get(&identity).into_iter().flatten();
        let candidates = candidates.map(|it| (it.key.clone(), it.tracking.clone()));
        let derived = child::name(&self.key.name, self.resource, target, field);
        let derived = ObjectKey::new(&self.key.namespace, &derived);
        let owns = |key: &ObjectKey, _: &Tracking| {
            let field = self.by_name.get(&*key.name);
            field.is_some_and(|field| self.owns(field))
        };
        let seniority_of = |set: &ObjectKey| self.seniorities.get(set).cloned();
        let (state, key) = match claimant.existing(candidates, &derived, owns, seniority_of) {
            Existing::Own(key) => (MatchState::Tracked, key),
            Existing::Adoptable(key) => (MatchState::New, key),
            Existing::Covered(key) => (MatchState::Covered, key),
            Existing::None => match self.by_name.get(&*derived.name) {
                None => (MatchState::New, derived),
                Some(other) if self.owns(other) => (MatchState::Tracked, derived),
                Some(_) => (MatchState::Conflict, derived),
            },
        };
        (state, key.name.to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::{Value, json};

    use super::*;

    fn set(more: &Value) -> TrackedFieldSet {
        let mut spec = json!({ "target": { "kind": "Deployment" }, "fields": ["replicas"], "template": { "contactPoint": "hook" } });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let metadata = json!({ "namespace": "ops", "name": "all", "uid": "2", "creationTimestamp": "2026-01-02T00:00:00Z" });
        serde_json::from_value(json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet", "metadata": metadata, "spec": spec }))
            .unwrap()
    }

    fn field(name: &str, target: &str, owner: Option<&str>) -> Stored {
        let metadata = json!({ "namespace": "ops", "name": name, "ownerReferences": owner.map(|owner| json!([
            { "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet", "name": owner, "uid": owner, "controller": true }])) });
        let target = json!({ "kind": "Deployment", "namespace": "ops", "name": target });
        let spec = json!({ "target": target, "field": "replicas", "contactPoint": "hook" });
        let field = json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField", "metadata": metadata, "spec": spec });
        Stored::of(&serde_json::from_value(field).unwrap())
    }

    fn planned(
        set: &TrackedFieldSet,
        targets: &[&str],
        fields: &[Stored],
    ) -> (Vec<(String, MatchState)>, usize) {
        let plan = whole_plan(set, targets, fields);
        let states = plan.matches.iter();
        let states = states.map(|it| (it.name.clone(), it.state));
        (states.collect(), plan.left_out)
    }

    fn whole_plan(set: &TrackedFieldSet, targets: &[&str], fields: &[Stored]) -> MatchPlan {
        let resource = ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        };
        let stored = |name: &str, time: &str| {
            let metadata = json!({ "creationTimestamp": time, "uid": name });
            let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
            (ObjectKey::new("ops", name), seniority(&metadata))
        };
        let seniorities = [
            stored("older", "2026-01-01T00:00:00Z"),
            stored("younger", "2026-01-03T00:00:00Z"),
        ];
        let targets = targets.iter().map(|name| ObjectKey::new("ops", name));
        plan(
            set,
            &resource,
            targets.collect(),
            fields,
            &seniorities.into(),
        )
    }

    #[test]
    fn covered_resources_do_not_count_towards_the_sufficient_number() {
        let fields = [field("z", "z", Some("all")), field("a", "a", None)];
        let set = set(&json!({ "maxTargets": 2 }));
        let plan = whole_plan(&set, &["a", "b", "c", "d", "z"], &fields);
        assert_eq!((plan.left_out, plan.needed_targets), (2, 4));
        assert!(!plan.is_complete());
        assert!(whole_plan(&set, &["a", "b", "z"], &fields).is_complete());
    }

    #[test]
    fn annotation_alone_proves_no_owner() {
        let metadata = json!({ "namespace": "ops", "name": "a", "annotations": { "quartermaster.dev/owner": "ops/all" } });
        let target = json!({ "kind": "Deployment", "namespace": "ops", "name": "another" });
        let spec = json!({ "target": target, "field": "replicas", "contactPoint": "hook" });
        let field = json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField", "metadata": metadata, "spec": spec });
        let mut field = Stored::of(&serde_json::from_value(field).unwrap());
        let set = set(&json!({}));
        let resource = ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        };
        let target = ObjectKey::new("ops", "a");
        field.key.name = child::name("all", &resource, &target, "replicas").into();
        let (states, _) = planned(&set, &["a"], &[field]);
        assert_eq!(states, [("a".to_owned(), MatchState::Conflict)]);
    }

    #[test]
    fn tracked_fields_of_others_cover_unless_a_younger_set_owns_them() {
        let fields = [
            field("a", "a", None),
            field("b", "b", Some("older")),
            field("c", "c", Some("younger")),
            field("d", "d", Some("deleted")),
            field("e", "e", Some("all")),
            field("f", "f", Some("all")),
        ];
        let (states, left_out) =
            planned(&set(&json!({})), &["a", "b", "c", "d", "e", "g"], &fields);
        let expected = [
            ("a", MatchState::Covered),
            ("b", MatchState::Covered),
            ("c", MatchState::New),
            ("d", MatchState::Covered),
            ("e", MatchState::Tracked),
            ("g", MatchState::New),
            ("f", MatchState::Leaving),
        ];
        assert_eq!(
            states,
            expected.map(|(name, state)| (name.to_owned(), state))
        );
        assert_eq!(left_out, 0);

        let mut new = set(&json!({}));
        new.metadata.uid = None;
        new.metadata.creation_timestamp = None;
        let (states, _) = planned(&new, &["c"], &fields[2..3]);
        assert_eq!(states, [("c".to_owned(), MatchState::Covered)]);
    }

    #[test]
    fn resources_with_a_child_keep_it_and_covered_ones_need_no_place() {
        let fields = [field("z", "z", Some("all")), field("a", "a", None)];
        let (states, left_out) = planned(
            &set(&json!({ "maxTargets": 2 })),
            &["a", "b", "c", "z"],
            &fields,
        );
        let expected = [
            ("a", MatchState::Covered),
            ("b", MatchState::New),
            ("c", MatchState::LeftOut),
            ("z", MatchState::Tracked),
        ];
        assert_eq!(
            states,
            expected.map(|(name, state)| (name.to_owned(), state))
        );
        assert_eq!(left_out, 1);
    }

    #[test]
    fn name_of_another_tracked_field_is_a_conflict() {
        let resource = ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        };
        let name = child::name("all", &resource, &ObjectKey::new("ops", "a"), "replicas");
        let plan = whole_plan(&set(&json!({})), &["a"], &[field(&name, "b", None)]);
        assert_eq!(plan.matches[0].state, MatchState::Conflict);
        assert!(!plan.is_complete());
    }
}
