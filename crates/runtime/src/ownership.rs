//! Ownership of objects: one rule for every kind with children.
//!
//! An object is owned if it carries the UID of its owner, either in its controller reference (within the namespace) or
//! in the label [`MetadataNames::owner_uid`]. The annotation [`MetadataNames::owner`] alone proves nothing. The
//! operator never changes or deletes an object that it does not own.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use qm_core::kind::Kind;
use qm_core::names::MetadataNames;
use serde_json::{Value, json};

use super::{ObjectKey, SpecRevision};

/// An object with children.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    names: &'static MetadataNames,
    namespace: String,
    reference: OwnerReference,
    orphans: bool,
    fresh: bool,
    revision: SpecRevision,
    observed_generation: Option<i64>,
    is_ready: bool,
    contested: Option<String>,
}

/// Relation of an object to an [`Owner`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The owner owns the object.
    Owned,
    /// An earlier object with the owner's name owned the object: both were restored from a backup.
    Restored,
    /// The object carries the consent to its adoption by the owner.
    Adoptable,
    /// The object has another owner, or none.
    Foreign(ForeignOwner),
}

/// Owner of a foreign object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignOwner {
    /// The object has no known owner and can be adopted.
    Unowned,
    /// Another object of the owner's kind, which the foreign object names as `NAMESPACE/NAME`. The foreign object can be
    /// adopted.
    Sibling(String),
    /// Another object of the owner's kind, `NAMESPACE/NAME`, may adopt the foreign object but has not done so yet.
    Promised(String),
    /// Another controller reference, as `KIND NAME`. An object has at most one, and a controlled object cannot be
    /// adopted.
    Controlled(String),
}

impl Owner {
    /// Creates the owner for `object`; `None` before the object is stored, because it has no UID then.
    pub fn of<K: Kind>(object: &K) -> Option<Self> {
        // A foreground deletion of the owner waits for its children.
        let reference = OwnerReference {
            block_owner_deletion: Some(true),
            ..object.controller_owner_ref(&())?
        };
        let namespace = object.namespace()?;
        Some(Self {
            names: K::NAMES,
            namespace,
            reference,
            orphans: object.orphans_children(),
            fresh: false,
            revision: SpecRevision::of(object),
            observed_generation: None,
            is_ready: false,
            contested: None,
        })
    }

    /// Sets whether the owner has no children yet. A fresh owner's children are created without a read.
    #[must_use]
    pub fn fresh(self, fresh: bool) -> Self {
        Self { fresh, ..self }
    }

    /// Returns whether the owner has no children yet.
    pub(crate) fn is_fresh(&self) -> bool {
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

    /// Returns whether the owner's status reports the current spec.
    pub fn is_observed(&self) -> bool {
        self.observed_generation.is_some() && self.observed_generation == self.revision.generation
    }

    /// Sets whether the owner's status reports that the owner is ready.
    #[must_use]
    pub fn ready(self, is_ready: bool) -> Self {
        Self { is_ready, ..self }
    }

    /// Returns whether the owner's status reports that the current spec is applied.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready && self.is_observed()
    }

    /// Sets the message with which the owner's status reports that other managers keep changing a child.
    #[must_use]
    pub fn contested(self, contested: Option<String>) -> Self {
        Self { contested, ..self }
    }

    /// Returns the message with which the status of the current spec reports that other managers keep changing a child.
    pub(crate) fn contest_message(&self) -> Option<&str> {
        self.contested.as_deref().filter(|_| self.is_observed())
    }

    /// Returns the owner's revision.
    pub(crate) fn revision(&self) -> &SpecRevision {
        &self.revision
    }

    /// Returns the owner's kind, as manifests write it.
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

    /// Returns `NAMESPACE/NAME`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.reference.name)
    }

    /// Returns the owner's UID.
    pub fn uid(&self) -> &str {
        &self.reference.uid
    }

    /// Returns the owner's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the owner's name.
    pub fn name(&self) -> &str {
        &self.reference.name
    }

    /// Returns the metadata of a child of this name in the owner's namespace, with its ownership set.
    pub fn child_metadata(&self, name: &str) -> ObjectMeta {
        let mut metadata = ObjectMeta {
            name: Some(name.into()),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        self.set_ownership(&mut metadata);
        metadata
    }

    /// Sets the ownership of an object in any namespace. Removes the ownership of an earlier owner of the same name,
    /// and the consent to the adoption by this owner; a consent for another owner stays. Only an object of the owner's
    /// namespace has an owner reference, and only if it is deleted with the owner.
    pub fn set_ownership(&self, metadata: &mut ObjectMeta) {
        metadata
            .labels
            .get_or_insert_default()
            .insert(self.names.owner_uid.into(), self.reference.uid.clone());
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(self.names.owner.into(), self.path());
        annotations.retain(|name, value| name != self.names.adopt_by || *value != self.path());
        if metadata.namespace.as_deref() == Some(&self.namespace) {
            let mut references = metadata.owner_references.take().unwrap_or_default();
            references.retain(|owner| {
                if owner.uid == self.reference.uid {
                    !self.orphans
                } else {
                    !self.has_same_name(owner)
                }
            });
            match references
                .iter_mut()
                .find(|owner| owner.uid == self.reference.uid)
            {
                Some(reference) => reference.clone_from(&self.reference),
                None if self.orphans => {}
                None => references.push(self.reference.clone()),
            }
            metadata.owner_references = Some(references).filter(|it| !it.is_empty());
        }
    }

    /// Returns the merge patch for `metadata` that has the effect of [`Owner::set_ownership`].
    pub fn ownership_patch(&self, metadata: &ObjectMeta) -> Value {
        let mut owned = metadata.clone();
        self.set_ownership(&mut owned);
        json!({
            "labels": { self.names.owner_uid: self.uid() },
            "annotations": { self.names.owner: self.path(), self.names.adopt_by: owned.annotations.unwrap_or_default().get(self.names.adopt_by) },
            "ownerReferences": owned.owner_references,
        })
    }

    /// Removes the ownership from an object that is not to be deleted.
    pub(crate) fn clear_ownership(&self, metadata: &mut ObjectMeta) {
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

    /// Returns whether [`Owner::set_ownership`] would change nothing.
    pub fn has_ownership(&self, metadata: &ObjectMeta) -> bool {
        let mut owned = metadata.clone();
        self.set_ownership(&mut owned);
        let owners = |metadata: &ObjectMeta| -> Vec<_> {
            let references = metadata.owner_references.iter().flatten();
            references
                .map(|owner| (owner.uid.clone(), owner.controller))
                .collect()
        };
        owned.labels == metadata.labels
            && owned.annotations == metadata.annotations
            && owners(&owned) == owners(metadata)
    }

    /// Returns whether the object lacks an owner reference that [`Owner::set_ownership`] would add.
    pub fn lacks_reference(&self, metadata: &ObjectMeta) -> bool {
        let mut references = metadata.owner_references.iter().flatten();
        !self.orphans
            && metadata.namespace.as_deref() == Some(&self.namespace)
            && !references.any(|owner| owner.uid == self.reference.uid)
    }

    /// Returns the relation of the object of `metadata` to this owner. `exists` returns whether an object of the
    /// owner's kind has that UID.
    pub fn ownership(&self, metadata: &ObjectMeta, exists: impl Fn(&str) -> bool) -> Ownership {
        let here = metadata.namespace.as_deref() == Some(&self.namespace);
        let controller = controller_of(metadata);
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
        let names_owner = |name: &str| annotation(name).is_some_and(|value| *value == self.path());

        match controller {
            // A reference across namespaces is invalid, so it refers to some other object.
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
            Some(uid) if names_owner(self.names.owner) && !exists(uid) => {
                return Ownership::Restored;
            }
            _ => {}
        }
        if names_owner(self.names.adopt_by) {
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

    /// Returns the message about a foreign object, with the command that adopts it. `resource` is the plural with its
    /// group, as kubectl accepts it.
    pub(crate) fn conflict_message(
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
                    "{resource} {namespace}/{name} is not owned, so it stays unchanged; to adopt it: {command}"
                )
            }
            ForeignOwner::Sibling(owner) => format!(
                "{resource} {namespace}/{name} belongs to {} {owner}, so it stays unchanged; to adopt it: {command}",
                self.reference.kind
            ),
            ForeignOwner::Promised(other) => format!(
                "{resource} {namespace}/{name} awaits its adoption by {other}, so it stays unchanged; to adopt it for \
                 {} instead: {command} --overwrite",
                self.path()
            ),
            ForeignOwner::Controlled(controller) => format!(
                "{resource} {namespace}/{name} is controlled by {controller}, so it stays unchanged: choose another \
                 name for this {}, or delete {resource} {namespace}/{name}",
                self.reference.kind
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

/// Returns whether an object carries the UID of an owner, in its controller reference or in the ownership label.
pub fn proves_owner(metadata: &ObjectMeta, names: &MetadataNames) -> bool {
    let has_label = |labels: &BTreeMap<_, _>| labels.contains_key(names.owner_uid);
    metadata.labels.as_ref().is_some_and(has_label) || controller_of(metadata).is_some()
}

/// Returns the controller reference.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

/// Maximum length of the name of an object, in bytes.
const MAX_NAME: usize = 253;

/// Returns the owner that an object names: key and UID, which is empty if the object has none.
pub fn owner_of<'a>(
    metadata: &'a ObjectMeta,
    names: &MetadataNames,
) -> Option<(ObjectKey, &'a str)> {
    // Any client may write the annotation; the controller reference takes precedence.
    let (namespace, name, uid) = if let Some(controller) = controller_of(metadata) {
        let namespace = metadata.namespace.as_deref()?;
        (namespace, &*controller.name, &*controller.uid)
    } else {
        let owner = metadata.annotations.as_ref()?.get(names.owner)?;
        let (namespace, name) = owner.split_once('/')?;
        let labels = metadata.labels.as_ref();
        let uid = labels.and_then(|labels| labels.get(names.owner_uid));
        (namespace, name, uid.map_or("", String::as_str))
    };
    // Clients may write texts of any length, and caches keep the owner.
    let texts = [namespace, name, uid];
    let is_possible = texts.iter().all(|text| text.len() <= MAX_NAME);
    is_possible.then(|| (ObjectKey::new(namespace, name), uid))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;
    use crate::testing::{NAMES, Widget};

    fn owner() -> Owner {
        let object = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "spec": {},
            "metadata": { "namespace": "shop", "name": "web", "uid": "own" } });
        Owner::of(&serde_json::from_value::<Widget>(object).unwrap()).unwrap()
    }

    fn metadata(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn reference(api_version: &str, name: &str, uid: &str) -> Value {
        json!([{ "apiVersion": api_version, "kind": "Widget", "name": name, "uid": uid, "controller": true }])
    }

    /// Objects of the owner's kind that exist.
    fn exists(uid: &str) -> bool {
        uid == "sibling" || uid == "own"
    }

    fn controlled(name: &str) -> Ownership {
        Ownership::Foreign(ForeignOwner::Controlled(format!("Widget {name}")))
    }

    #[rstest]
    #[case::label_and_reference(json!({ "namespace": "shop", "labels": { NAMES.owner_uid: "own" }, "ownerReferences": reference("example.com/v1", "web", "own") }), Ownership::Owned)]
    #[case::reference(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "own") }), Ownership::Owned)]
    #[case::label(json!({ "namespace": "shop", "labels": { NAMES.owner_uid: "own" } }), Ownership::Owned)]
    #[case::label_in_another_namespace(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "own" } }), Ownership::Owned)]
    #[case::reference_in_another_namespace(json!({ "namespace": "far", "ownerReferences": reference("example.com/v1", "web", "own") }), controlled("web"))]
    #[case::annotation_alone(json!({ "namespace": "shop", "annotations": { NAMES.owner: "shop/web" } }), Ownership::Foreign(ForeignOwner::Unowned))]
    #[case::unowned(json!({ "namespace": "shop" }), Ownership::Foreign(ForeignOwner::Unowned))]
    #[case::reference_to_an_earlier_owner(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "deleted") }), Ownership::Restored)]
    #[case::of_an_earlier_version(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v0", "web", "deleted") }), Ownership::Restored)]
    #[case::of_another_group(json!({ "namespace": "shop", "ownerReferences": reference("apps/v1", "web", "deleted") }), controlled("web"))]
    #[case::of_another_name(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "db", "deleted") }), controlled("db"))]
    #[case::label_of_an_earlier_owner(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "deleted" }, "annotations": { NAMES.owner: "shop/web" } }), Ownership::Restored)]
    #[case::label_of_an_existing_object(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "sibling" }, "annotations": { NAMES.owner: "shop/web" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/web".into())))]
    #[case::sibling(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "sibling" }, "annotations": { NAMES.owner: "shop/db" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/db".into())))]
    #[case::sibling_that_no_longer_exists(json!({ "namespace": "far", "labels": { NAMES.owner_uid: "deleted" }, "annotations": { NAMES.owner: "shop/db" } }), Ownership::Foreign(ForeignOwner::Sibling("shop/db".into())))]
    #[case::adoptable(json!({ "namespace": "far", "annotations": { NAMES.adopt_by: "shop/web" } }), Ownership::Adoptable)]
    #[case::adoptable_by_another(json!({ "namespace": "far", "annotations": { NAMES.adopt_by: "shop/db" } }), Ownership::Foreign(ForeignOwner::Promised("shop/db".into())))]
    #[case::controller_is_never_overruled(json!({ "namespace": "shop", "annotations": { NAMES.adopt_by: "shop/web" }, "ownerReferences": reference("apps/v1", "x", "1") }), controlled("x"))]
    fn ownership_follows_from_metadata(#[case] object: Value, #[case] claim: Ownership) {
        assert_eq!(owner().ownership(&metadata(object), exists), claim);
    }

    #[rstest]
    #[case::namespace(json!({ "annotations": { NAMES.owner: format!("{}/web", "a".repeat(254)) } }))]
    #[case::name(json!({ "annotations": { NAMES.owner: format!("shop/{}", "a".repeat(254)) } }))]
    #[case::reference(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", &"a".repeat(254), "1") }))]
    #[case::uid(json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", &"1".repeat(254)) }))]
    fn text_that_is_too_long_names_no_owner(#[case] object: Value) {
        assert_eq!(owner_of(&metadata(object), &NAMES), None);
    }

    #[test]
    fn ownership_is_set_and_cleared() {
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
    fn consent_for_another_owner_is_kept() {
        let mut marked = metadata(json!({ "namespace": "far" }));
        owner().set_ownership(&mut marked);
        marked
            .annotations
            .as_mut()
            .unwrap()
            .insert(NAMES.adopt_by.into(), "shop/db".into());
        assert!(
            owner().has_ownership(&marked),
            "the consent requires no write"
        );
        assert_eq!(
            owner().ownership_patch(&marked)["annotations"][NAMES.adopt_by],
            "shop/db"
        );
        owner().set_ownership(&mut marked);
        assert_eq!(marked.annotations.unwrap()[NAMES.adopt_by], "shop/db");
    }

    #[test]
    fn earlier_owner_of_the_same_name_is_replaced() {
        let mut marked = metadata(
            json!({ "namespace": "shop", "ownerReferences": reference("example.com/v1", "web", "deleted") }),
        );
        owner().set_ownership(&mut marked);
        let uids: Vec<_> = marked
            .owner_references
            .unwrap()
            .into_iter()
            .map(|owner| owner.uid)
            .collect();
        assert_eq!(uids, ["own"]);
    }

    #[test]
    fn conflict_message_has_the_command_that_adopts_the_object() {
        let message =
            owner().conflict_message(&ForeignOwner::Unowned, "configmaps", "far", "settings");
        assert!(
            message.ends_with(
                "kubectl annotate configmaps settings -n far example.com/adopt-by=shop/web"
            ),
            "{message}"
        );
        let message = owner().conflict_message(
            &ForeignOwner::Promised("shop/db".into()),
            "configmaps",
            "far",
            "settings",
        );
        assert!(
            message.contains("by shop/db,") && message.ends_with("adopt-by=shop/web --overwrite"),
            "{message}"
        );
        let message = owner().conflict_message(
            &ForeignOwner::Controlled("X y".into()),
            "configmaps",
            "far",
            "settings",
        );
        assert!(
            message.contains("X y") && !message.contains("annotate"),
            "{message}"
        );
    }
}
