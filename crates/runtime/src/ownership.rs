//! Who an object belongs to: one rule for every kind that makes objects.
//!
//! An object is ours when it carries the UID of the resource that made it: as its controller (in the same namespace), or as
//! the label [`MetadataNames::owner_uid`]; either proves. The annotation [`MetadataNames::owner`] alone proves nothing. What is not ours is never changed
//! and never deleted.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use qm_core::kind::Kind;
use qm_core::names::MetadataNames;
use serde_json::{Value, json};

use super::ObjectKey;

/// A resource that makes objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    names: &'static MetadataNames,
    namespace: String,
    reference: OwnerReference,
    fresh: bool,
    generation: Option<i64>,
    observed_generation: Option<i64>,
    contested: Option<String>,
    requested: Option<String>,
}

/// What an object is to an [`Owner`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It is ours.
    Owned,
    /// It was that of a resource of our name which is gone: both were restored from a backup.
    Restored,
    /// Its owner hands it over.
    Adoptable,
    /// It is somebody else's, or nobody's.
    Foreign(ForeignOwner),
}

/// Whose an object is that is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignOwner {
    /// Nobody's that we know of: it can be handed over.
    Unowned,
    /// That of another resource of our kind, `NAMESPACE/NAME` as the object itself says: it can be handed over.
    Sibling(String),
    /// It is to be handed over to another resource of our kind, `NAMESPACE/NAME`, and was not taken over yet.
    Promised(String),
    /// It has a controller, `KIND NAME`. An object has one only, and what that one made nobody can hand over.
    Controlled(String),
}

impl Owner {
    /// `object`, once it is stored: before that it has no UID.
    pub fn of<K: Kind>(object: &K) -> Option<Self> {
        // Whoever deletes it in the foreground waits for what it has.
        let reference = OwnerReference {
            block_owner_deletion: Some(true),
            ..object.controller_owner_ref(&())?
        };
        let requested = object.annotations().get(K::NAMES.requested_at).cloned();
        let generation = object.meta().generation;
        let namespace = object.namespace()?;
        Some(Self {
            names: K::NAMES,
            namespace,
            reference,
            fresh: false,
            generation,
            observed_generation: None,
            contested: None,
            requested,
        })
    }

    /// Says whether nothing was ever done for it. What it is to have is then made without a look at what is there.
    #[must_use]
    pub fn fresh(self, fresh: bool) -> Self {
        Self { fresh, ..self }
    }

    /// Whether nothing was ever done for it.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Returns the names of the operator's labels and annotations.
    pub fn names(&self) -> &'static MetadataNames {
        self.names
    }

    /// Sets the generation that the owner's status reports.
    #[must_use]
    pub fn observed_generation(self, observed_generation: Option<i64>) -> Self {
        Self {
            observed_generation,
            ..self
        }
    }

    /// Returns whether the owner's spec is the one that its status reports.
    pub fn is_observed(&self) -> bool {
        self.observed_generation.is_some() && self.observed_generation == self.generation
    }

    /// Sets the message with which the owner's status reports that other managers keep changing a child.
    #[must_use]
    pub fn contested(self, contested: Option<String>) -> Self {
        Self { contested, ..self }
    }

    /// Returns the message with which the status of the present spec reports that other managers keep changing a child.
    pub fn contest_message(&self) -> Option<&str> {
        self.contested.as_deref().filter(|_| self.is_observed())
    }

    /// Returns the owner's generation.
    pub fn generation(&self) -> Option<i64> {
        self.generation
    }

    /// Returns the value of the last reconcile request that a person made.
    pub fn requested(&self) -> Option<&str> {
        self.requested.as_deref()
    }

    /// Returns the owner's kind.
    pub fn kind(&self) -> &str {
        &self.reference.kind
    }

    /// Returns the reference to the owner for Events.
    pub fn object_ref(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.reference.api_version.clone()),
            kind: Some(self.reference.kind.clone()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.reference.name.clone()),
            uid: Some(self.reference.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// `NAMESPACE/NAME`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.reference.name)
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        &self.reference.uid
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.reference.name
    }

    /// Returns the metadata of a child of this name in the owner's namespace, with the marks of the owner.
    pub fn child_metadata(&self, name: &str) -> ObjectMeta {
        let mut metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        self.set_ownership(&mut metadata);
        metadata
    }

    /// Marks an object as ours, in whichever namespace it is, and takes the marks of a former owner away, and the consent that
    /// we take it over; another's is for them to use.
    pub fn set_ownership(&self, metadata: &mut ObjectMeta) {
        metadata
            .labels
            .get_or_insert_default()
            .insert(self.names.owner_uid.into(), self.reference.uid.clone());
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(self.names.owner.into(), self.path());
        annotations.retain(|name, value| name != self.names.adopt_by || *value != self.path());
        if metadata.namespace.as_deref() == Some(&self.namespace) {
            let references = metadata.owner_references.get_or_insert_default();
            references
                .retain(|owner| owner.uid == self.reference.uid || !self.has_same_name(owner));
            match references
                .iter_mut()
                .find(|owner| owner.uid == self.reference.uid)
            {
                Some(ours) => ours.clone_from(&self.reference),
                None => references.push(self.reference.clone()),
            }
        }
    }

    /// What puts our marks on an object of this metadata, as a merge patch of it, and takes away what [`Owner::set_ownership`] does.
    pub fn ownership_patch(&self, metadata: &ObjectMeta) -> Value {
        let mut marked = metadata.clone();
        self.set_ownership(&mut marked);
        json!({
            "labels": { self.names.owner_uid: self.uid() },
            "annotations": { self.names.owner: self.path(), self.names.adopt_by: marked.annotations.unwrap_or_default().get(self.names.adopt_by) },
            "ownerReferences": marked.owner_references,
        })
    }

    /// Takes our marks away from an object that is to stay.
    pub fn clear_ownership(&self, metadata: &mut ObjectMeta) {
        if let Some(labels) = &mut metadata.labels {
            labels.remove(self.names.owner_uid);
        }
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(self.names.owner);
        }
        if let Some(references) = &mut metadata.owner_references {
            references
                .retain(|owner| owner.uid != self.reference.uid && !self.has_same_name(owner));
        }
    }

    /// Whether an object has all marks of ours, and no consent of ours is left on it.
    pub fn has_ownership(&self, metadata: &ObjectMeta) -> bool {
        let mut marked = metadata.clone();
        self.set_ownership(&mut marked);
        marked.labels == metadata.labels
            && marked.annotations == metadata.annotations
            && marked.owner_references.iter().flatten().all(|mark| {
                metadata
                    .owner_references
                    .iter()
                    .flatten()
                    .any(|owner| owner.uid == mark.uid && owner.controller == mark.controller)
            })
    }

    /// What the object of `metadata` is to us. `exists` says whether a resource of our kind has that UID.
    pub fn ownership(&self, metadata: &ObjectMeta, exists: impl Fn(&str) -> bool) -> Ownership {
        let here = metadata.namespace.as_deref() == Some(&self.namespace);
        let controller = metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true));
        let label = metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(self.names.owner_uid));
        let annotation = |name: &str| {
            metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(name))
        };
        let names_us = |name: &str| annotation(name).is_some_and(|value| *value == self.path());

        match controller {
            // In another namespace a reference means some other resource, if any.
            Some(controller) if here && controller.uid == self.reference.uid => {
                return Ownership::Owned;
            }
            Some(controller)
                if here && self.has_same_name(controller) && !exists(&controller.uid) =>
            {
                return Ownership::Restored;
            }
            Some(controller) => {
                return Ownership::Foreign(ForeignOwner::Controlled(format!(
                    "{} {}",
                    controller.kind, controller.name
                )));
            }
            None => {}
        }
        match label {
            Some(uid) if *uid == self.reference.uid => return Ownership::Owned,
            Some(uid) if names_us(self.names.owner) && !exists(uid) => return Ownership::Restored,
            _ => {}
        }
        if names_us(self.names.adopt_by) {
            return Ownership::Adoptable;
        }
        if let Some(other) = annotation(self.names.adopt_by) {
            return Ownership::Foreign(ForeignOwner::Promised(other.clone()));
        }
        match (label, annotation(self.names.owner)) {
            (Some(_), Some(owner)) => Ownership::Foreign(ForeignOwner::Sibling(owner.clone())),
            _ => Ownership::Foreign(ForeignOwner::Unowned),
        }
    }

    /// What to say of an object that is not ours: `resource` is its plural with its group, as kubectl takes it.
    pub fn conflict_message(
        &self,
        foreign: &ForeignOwner,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> String {
        let command = format!(
            "kubectl annotate {resource} {name} -n {namespace} {}={}",
            self.names.adopt_by,
            self.path()
        );
        match foreign {
            ForeignOwner::Unowned => {
                format!(
                    "{resource} {namespace}/{name} is not ours and is left alone; to hand it over: {command}"
                )
            }
            ForeignOwner::Sibling(owner) => format!(
                "{resource} {namespace}/{name} belongs to {} {owner} and is left alone; to hand it over: {command}",
                self.reference.kind
            ),
            ForeignOwner::Promised(other) => format!(
                "{resource} {namespace}/{name} is to be handed over to {other} and is left alone; to hand it over to this one: \
                 {command} --overwrite"
            ),
            ForeignOwner::Controlled(controller) => format!(
                "{resource} {namespace}/{name} is controlled by {controller} and is left alone: choose another name, or delete it"
            ),
        }
    }

    fn has_same_name(&self, owner: &OwnerReference) -> bool {
        let group = |api_version: &str| {
            api_version
                .split_once('/')
                .map(|(group, _)| group.to_owned())
        };
        owner.kind == self.reference.kind
            && owner.name == self.reference.name
            && group(&owner.api_version) == group(&self.reference.api_version)
    }
}

/// Returns whose child an object says it is: namespace, name, and UID, which is empty if the object lacks it.
pub fn owner_of<'a>(
    metadata: &'a ObjectMeta,
    names: &MetadataNames,
) -> Option<(ObjectKey, &'a str)> {
    // Anybody may write another annotation; a controller stands there for a reason.
    let controller = metadata
        .owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true));
    if let Some(controller) = controller {
        let key = ObjectKey::new(metadata.namespace.as_deref()?, &controller.name);
        return Some((key, &controller.uid));
    }
    let (namespace, name) = metadata
        .annotations
        .as_ref()?
        .get(names.owner)?
        .split_once('/')?;
    let uid = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(names.owner_uid));
    Some((
        ObjectKey::new(namespace, name),
        uid.map_or("", String::as_str),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;
    use crate::testing::{NAMES, Widget};

    fn owner() -> Owner {
        let object = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "spec": {},
            "metadata": { "namespace": "shop", "name": "web", "uid": "ours" } });
        Owner::of(&serde_json::from_value::<Widget>(object).unwrap()).unwrap()
    }

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn reference(api_version: &str, name: &str, uid: &str) -> Value {
        json!([{ "apiVersion": api_version, "kind": "Widget", "name": name, "uid": uid, "controller": true }])
    }

    /// Resources of our kind that are there, besides the owner.
    fn exists(uid: &str) -> bool {
        uid == "sibling" || uid == "ours"
    }

    fn controlled(name: &str) -> Ownership {
        Ownership::Foreign(ForeignOwner::Controlled(format!("Widget {name}")))
    }

    #[rstest]
    #[case::both_marks(json!({ "namespace": "shop", "labels": { NAMES.owner_uid: "ours" }, "ownerReferences": reference("example.com/v1", "web", "ours") }), Ownership::Owned)]
    #[case::the_reference(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "ours") }), Ownership::Owned)]
    #[case::the_label(json!({ "namespace": "shop", "labels": { NAMES.owner_uid: "ours" } }), Ownership::Owned)]
    #[case::the_label_elsewhere(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "ours" } }), Ownership::Owned)]
    #[case::a_reference_elsewhere_means_another(json!({ "namespace": "far", "ownerReferences": reference("example.com/v1", "web", "ours") }), controlled("web"))]
    #[case::the_annotation_proves_nothing(json!({ "namespace": "shop", "annotations": { NAMES.owner: "shop/web" } }), Ownership::Foreign(ForeignOwner::Unowned))]
    #[case::no_mark(json!({ "namespace": "shop" }), Ownership::Foreign(ForeignOwner::Unowned))]
    #[case::a_former_of_our_name(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "gone") }), Ownership::Restored)]
    #[case::of_an_earlier_version(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v0", "web", "gone") }), Ownership::Restored)]
    #[case::of_another_group(json!({ "namespace": "shop", "ownerReferences": reference("apps/v1", "web", "gone") }), controlled("web"))]
    #[case::of_another_name(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "db", "gone") }), controlled("db"))]
    #[case::a_former_label(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "gone" }, "annotations": { NAMES.owner: "shop/web" } }), Ownership::Restored)]
    #[case::a_label_that_lives(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "sibling" }, "annotations": { NAMES.owner: "shop/web" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/web".into())))]
    #[case::a_siblings(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "sibling" }, "annotations": { NAMES.owner: "shop/db" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/db".into())))]
    #[case::a_former_siblings(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "gone" }, "annotations": { NAMES.owner: "shop/db" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/db".into())))]
    #[case::handed_over(json!({ "namespace": "far", "annotations": { NAMES.adopt_by: "shop/web" } }), Ownership::Adoptable)]
    #[case::handed_to_another(json!({ "namespace": "far", "annotations": { NAMES.adopt_by: "shop/db" } }), Ownership::Foreign(ForeignOwner::Promised("shop/db".into())))]
    #[case::a_controller_cannot_be_overruled(json!({ "namespace": "shop", "annotations": { NAMES.adopt_by: "shop/web" }, "ownerReferences": reference("apps/v1", "x", "1") }), controlled("x"))]
    fn whose_it_is(#[case] object: Value, #[case] claim: Ownership) {
        assert_eq!(owner().ownership(&metadata(object), exists), claim);
    }

    #[test]
    fn what_is_marked_is_ours_and_loses_it_again() {
        for namespace in ["shop", "far"] {
            let mut marked = metadata(json!({
                "namespace": namespace,
                "labels": { "a": "b" },
                "annotations": { NAMES.adopt_by: "shop/web", "c": "d" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x" }],
            }));
            assert!(!owner().has_ownership(&marked));
            owner().set_ownership(&mut marked);
            assert!(owner().has_ownership(&marked));
            assert_eq!(owner().ownership(&marked, exists), Ownership::Owned);
            assert_eq!(
                marked.owner_references.as_ref().unwrap().len(),
                if namespace == "shop" { 2 } else { 1 }
            );
            assert!(
                !marked
                    .annotations
                    .as_ref()
                    .unwrap()
                    .contains_key(NAMES.adopt_by)
            );
            owner().clear_ownership(&mut marked);
            assert_eq!(
                owner().ownership(&marked, exists),
                Ownership::Foreign(ForeignOwner::Unowned)
            );
            assert_eq!(
                marked.labels,
                metadata(json!({ "labels": { "a": "b" } })).labels
            );
        }
    }

    #[test]
    fn the_consent_for_another_is_kept() {
        let mut marked = metadata(json!({ "namespace": "far" }));
        owner().set_ownership(&mut marked);
        marked
            .annotations
            .as_mut()
            .unwrap()
            .insert(NAMES.adopt_by.into(), "shop/db".into());
        assert!(
            owner().has_ownership(&marked),
            "nothing is to be written because of it"
        );
        assert_eq!(
            owner().ownership_patch(&marked)["annotations"][NAMES.adopt_by],
            "shop/db"
        );
        owner().set_ownership(&mut marked);
        assert_eq!(marked.annotations.unwrap()[NAMES.adopt_by], "shop/db");
    }

    #[test]
    fn a_former_owner_of_our_name_gives_way() {
        let mut marked = metadata(
            json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "gone") }),
        );
        owner().set_ownership(&mut marked);
        let uids: Vec<_> = marked
            .owner_references
            .unwrap()
            .into_iter()
            .map(|owner| owner.uid)
            .collect();
        assert_eq!(uids, ["ours"]);
    }

    #[test]
    fn a_conflict_says_the_command_that_ends_it() {
        let words =
            owner().conflict_message(&ForeignOwner::Unowned, "configmaps", "far", "settings");
        assert!(
            words.ends_with(
                "kubectl annotate configmaps settings -n far example.com/adopt-by=shop/web"
            ),
            "{words}"
        );
        let words = owner().conflict_message(
            &ForeignOwner::Promised("shop/db".into()),
            "configmaps",
            "far",
            "settings",
        );
        assert!(
            words.contains("to shop/db ") && words.ends_with("adopt-by=shop/web --overwrite"),
            "{words}"
        );
        let words = owner().conflict_message(
            &ForeignOwner::Controlled("X y".into()),
            "configmaps",
            "far",
            "settings",
        );
        assert!(
            words.contains("X y") && !words.contains("annotate"),
            "{words}"
        );
    }
}
