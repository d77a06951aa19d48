//! Desired state of a child: the pure decision about a live child, and the writes of a child that is applied
//! server-side.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::OnceLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::{NamespaceResourceScope, ObjectMeta, Status};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::child_cache::ConfirmedMatch;
use crate::drift::Drift;
use crate::error::{Class, Error, QUOTA_EXCEEDED, Result, WRITE_FAILED, WRITE_REJECTED};
use crate::fields::{self, Path, Projection, content};
use crate::ownership::{Owner, Ownership};
use crate::raw_object::BoundedObject;
use crate::{ObjectKey, managed_fields, short_digest, write};

/// A kind of children.
pub trait ChildKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Default
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> ChildKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Default
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Summary of a child for its owner's status.
pub trait ChildSummary: Clone + PartialEq + Send + Sync + 'static {}

impl<S: Clone + PartialEq + Send + Sync + 'static> ChildSummary for S {}

/// Desired state of one child. `S` is the summary that the cache has of a live child.
pub trait DesiredChild<K, S>: Send + Sync {
    /// Returns namespace and name of the child.
    fn key(&self) -> ObjectKey;

    /// Returns the digest of the desired state. A child that [matched](DesiredChild::matched) this digest is not read
    /// again until the child changes or the match expires.
    fn digest(&self) -> &str;

    /// Builds the child, with its ownership set.
    fn build(&self) -> K;

    /// Returns the write, if any, that a live child needs; the owner owns the child or may adopt it. `matched` is the
    /// last confirmed match of this child, even if the child has changed since.
    fn plan(
        &self,
        live: &K,
        ownership: &Ownership,
        matched: Option<&ConfirmedMatch>,
    ) -> Option<ChildAction<'_, K>>;

    /// Returns the metadata of a cached child, which shows the ownership, if [`DesiredChild::plan_cached`] can decide
    /// without a read.
    fn cached_metadata<'s>(&self, _summary: &'s S) -> Option<&'s ObjectMeta> {
        None
    }

    /// Returns the write that a cached child needs, if any.
    fn plan_cached(&self, _summary: &S) -> Option<ChildAction<'_, K>> {
        None
    }

    /// Describes the match of a child that was written or needs no write; `None` if later decisions do not use it.
    fn matched(&self, _live: &K) -> Option<ConfirmedMatch> {
        Some(ConfirmedMatch {
            desired: self.digest().to_owned(),
            values: 0,
            has_foreign_items: false,
        })
    }

    /// Returns whether a child that needs a write matched this desired state before another client changed the child.
    fn has_drifted(&self, _live: &K, matched: Option<&ConfirmedMatch>) -> bool {
        matched.is_some_and(|matched| matched.desired == self.digest())
    }

    /// Returns the values that the Event of a correction compares.
    fn values(&self, _live: &K) -> Projection {
        Projection::default()
    }

    /// Returns whether an Event reports the recreation of a child that another client deleted.
    fn reports_recreation(&self) -> bool {
        true
    }
}

/// Write that a live child needs. The write fails if the child has changed since the decision.
pub enum ChildAction<'a, K> {
    /// Apply the desired state server-side.
    Apply(&'a Applied<'a, K>),
    /// Replace the child with this object.
    Replace(Box<K>),
    /// Merge this patch into the child's metadata.
    Patch(Value),
    /// Delete the child, for this reason. A later call creates it again.
    Delete(String),
}

/// Exceptions of one kind to server-side apply.
pub struct Quirks<'a, K> {
    /// Child to create, if it has more fields than the applied one, such as a number of Pods that an autoscaler changes
    /// later.
    pub initial: Option<K>,
    /// Fields that the operator releases and whose values stay, as paths in the form of `managedFields`.
    pub released: &'a [&'a [&'a str]],
    /// Returns the fields of the live object (the second) whose values the desired object (the first) gives to other list
    /// items, where no two items may have the same value. The apply removes these fields, even `released` ones and those
    /// that no manager owns.
    pub reassigned: fn(&K, &K) -> Vec<Path>,
    /// Returns whether the apiserver ignored values of the applied object (the first), as the live object (the second)
    /// shows. The operator then applies the object again.
    pub ignored: fn(&K, &K) -> bool,
    /// Removes values that only one object may have and the live object has, such as a node port, from the desired
    /// object, before a dry run.
    pub clear_allocated: fn(&mut K, &K),
    /// Keys of list items, such as `containerPort`, that another client may renumber: an item of that client with
    /// another number and otherwise the desired values is corrected, not kept as a foreign item.
    pub renumbered: &'a [&'a str],
    /// Returns the field that the apiserver rejects with this status, if the status does not name the field.
    pub unnamed_field: fn(&Status) -> Option<&'static str>,
    /// Returns whether the spec of the live child (the second) is about another object than the desired one (the first).
    /// The spec is then replaced as a whole: what others have added was admitted for that other object. `None` for kinds
    /// without such a spec.
    pub is_retargeted: Option<fn(&K, &K) -> bool>,
}

impl<K> Default for Quirks<'_, K> {
    fn default() -> Self {
        Self {
            initial: None,
            released: &[],
            reassigned: |_, _| Vec::new(),
            ignored: |_, _| false,
            clear_allocated: |_, _| (),
            renumbered: &[],
            unnamed_field: |_| None,
            is_retargeted: None,
        }
    }
}

/// Desired state of a child that is applied server-side.
pub struct Applied<'a, K> {
    owner: &'a Owner,
    field_manager: &'static str,
    drift: &'a Drift,
    quirks: Quirks<'a, K>,
    pub(super) key: ObjectKey,
    object: K,
    /// The object as JSON, as it is sent.
    sent: Value,
    /// The [content] of the object, once a live child has been compared with it: most reconciles find
    /// a cached match.
    content: OnceLock<Value>,
    /// Digest of the object without the annotation that contains the digest.
    digest: String,
}

impl<'a, K: ChildKind> Applied<'a, K> {
    /// Creates the desired state from `object`: adds ownership and digest.
    pub(super) fn new(
        owner: &'a Owner,
        field_manager: &'static str,
        drift: &'a Drift,
        mut object: K,
        mut quirks: Quirks<'a, K>,
    ) -> Result<Self> {
        let key = ObjectKey::of(&object);
        owner.set_ownership(object.meta_mut());
        let value = |object: &K| -> Result<Value> {
            let mut value = serde_json::to_value(object)
                .map_err(kube::Error::SerdeError)
                .map_err(Error::api(title::<K>(&key)))?;
            value["apiVersion"] = K::api_version(&()).into();
            Ok(value)
        };
        let digest = short_digest(value(&object)?.to_string());
        let applied_digest = owner.names().applied_digest;
        object
            .annotations_mut()
            .insert(applied_digest.into(), digest.clone());
        if let Some(initial) = &mut quirks.initial {
            owner.set_ownership(initial.meta_mut());
            initial
                .annotations_mut()
                .insert(applied_digest.into(), digest.clone());
        }
        let sent = value(&object)?;
        Ok(Self {
            owner,
            field_manager,
            drift,
            quirks,
            object,
            key,
            content: OnceLock::new(),
            sent,
            digest,
        })
    }

    fn content(&self) -> &Value {
        self.content.get_or_init(|| content(&self.sent))
    }

    /// Returns the live child's values at the desired fields.
    fn projection(&self, live: &K) -> Projection {
        fields::project(&content(live), self.content(), managed_fields_of(live))
    }

    /// Returns whether the live child needs no write.
    fn is_current(
        &self,
        live: &K,
        ownership: &Ownership,
        matched: Option<&ConfirmedMatch>,
    ) -> bool {
        *ownership == Ownership::Owned
            && self.matches(live, matched)
            && !(self.quirks.ignored)(&self.object, live)
            // The apply that follows removes these fields.
            && !self.drift.has_taken(&self.key)
    }

    /// Returns whether another client has changed a child that was written or confirmed in the desired form.
    fn was_changed(&self, live: &K, matched: Option<&ConfirmedMatch>) -> bool {
        let was_confirmed = matched.is_some_and(|matched| matched.desired == self.digest);
        let applied_digest = live.annotations().get(self.owner.names().applied_digest);
        !self.matches(live, matched) && (was_confirmed || applied_digest == Some(&self.digest))
    }

    fn matches(&self, live: &K, matched: Option<&ConfirmedMatch>) -> bool {
        match matched.filter(|matched| matched.desired == self.digest) {
            Some(matched) => matched.values == self.projection(live).digest(),
            None => fields::matches(
                &content(live),
                self.content(),
                managed_fields_of(live),
                self.field_manager,
            ),
        }
    }

    /// Takes ownership of the live child where necessary, and applies the object. Returns the written child;
    /// `None`, except in the last attempt (`is_last`), if the child must be read and applied again.
    pub(super) async fn write(
        &self,
        api: &Api<BoundedObject<K>>,
        live: &K,
        ownership: &Ownership,
        matched: Option<&ConfirmedMatch>,
        has_drifted: bool,
        is_last: bool,
    ) -> Result<Option<K>> {
        let mut object = self.object.clone();
        object.meta_mut().uid = live.uid();
        // An object that cannot match the desired state is not adopted: it would be deleted with its owner.
        if *ownership == Ownership::Adoptable
            && let Err(kube::Error::Api(status)) =
                write::try_apply(api, self.field_manager, &object).await
            && write::is_immutable(&status)
        {
            let child = title::<K>(&self.key);
            return Err(Error::Other {
                // The object may be deleted, which wakes nobody, because it has no label of ours.
                class: Class::Waiting,
                reason: WRITE_REJECTED.into(),
                message: Error::Rejected { child, status }.to_string(),
            });
        }
        let replaced = self.replace_other_spec(api, live).await?;
        let live = replaced.as_ref().unwrap_or(live);
        let owned = self
            .take_ownership(api, live, ownership, matched, has_drifted)
            .await?;
        let owned = owned.as_ref().unwrap_or(live);
        if self.quirks.is_retargeted.is_some() {
            // The child may have got another target since the read.
            object.meta_mut().resource_version = owned.resource_version();
        }
        let applied = write::apply(api, self.field_manager, &object).await;
        match classified::<K, _>(&self.key, applied) {
            Ok(applied) if (self.quirks.ignored)(&self.object, &applied) => {
                // A child that counted as applied would keep the old value until its next change.
                if !is_last {
                    return Ok(None);
                }
                let child = title::<K>(&self.key);
                Err(Error::Other {
                    class: Class::Transient,
                    reason: WRITE_FAILED.into(),
                    message: format!(
                        "the apiserver does not keep a value of {child}: check whether an admission webhook changes it"
                    ),
                })
            }
            Err(error) if !is_last => {
                let Some(transfer) = self.conflict_transfer(api, owned, &error).await? else {
                    if self.rejected_fields(&error).is_some()
                        && has_changed(api, &self.key, owned).await?
                    {
                        return Ok(None);
                    }
                    return Err(error);
                };
                self.write_managed_fields(api, owned, json!({}), &transfer.entries)
                    .await?;
                self.drift.record_taken(&self.key, transfer.taken);
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Replaces the spec of a live child that is about another object; returns the child if it was written.
    async fn replace_other_spec(&self, api: &Api<BoundedObject<K>>, live: &K) -> Result<Option<K>> {
        let is_retargeted = self.quirks.is_retargeted;
        if !is_retargeted.is_some_and(|is| is(&self.object, live)) {
            return Ok(None);
        }
        let spec = &self.sent["spec"];
        let written = write::spec(api, self.field_manager, live.meta(), spec).await;
        classified::<K, _>(&self.key, written).map(Some)
    }

    /// Takes ownership of a live child's desired and reassigned fields before the apply; returns the child if it was
    /// written.
    async fn take_ownership(
        &self,
        api: &Api<BoundedObject<K>>,
        live: &K,
        ownership: &Ownership,
        matched: Option<&ConfirmedMatch>,
        has_drifted: bool,
    ) -> Result<Option<K>> {
        let manager = self.field_manager;
        let reassigned = (self.quirks.reassigned)(&self.object, live);
        let released = self.quirks.released.iter().copied();
        let released: Vec<&[&str]> = released
            .filter(|path| reassigned.iter().all(|reassigned| reassigned != path))
            .collect();
        let is_owned = *ownership == Ownership::Owned;
        let mut entries = None;
        let mut patch = json!({});
        if !is_owned {
            // This patch must include the ownership label: if the operator is killed before the apply, the child would
            // otherwise have neither the label nor the consent.
            patch = self.owner.ownership_patch(live.meta());
        }
        if !is_owned || managed_fields::needs_upgrade(managed_fields_of(live), manager, &released) {
            entries = Some(managed_fields::upgraded(
                managed_fields_of(live),
                manager,
                &self.sent,
                &released,
                is_owned,
            ));
        }
        if has_drifted {
            let now = entries
                .as_deref()
                .unwrap_or_else(|| managed_fields_of(live));
            let is_alone = matched.is_some_and(|matched| !matched.has_foreign_items);
            let renumbered = managed_fields::renumbered(
                now,
                manager,
                &content(live),
                self.content(),
                self.quirks.renumbered,
                is_alone,
            );
            if let Some(taken) = managed_fields::transfer(now, manager, &renumbered) {
                entries = Some(taken.entries);
            }
        }
        let now = entries
            .as_deref()
            .unwrap_or_else(|| managed_fields_of(live));
        if let Some(claimed) = managed_fields::claimed(now, manager, &reassigned) {
            entries = Some(claimed);
        }
        match entries {
            Some(entries) => {
                let written = self.write_managed_fields(api, live, patch, &entries);
                written.await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Merges `patch` and these `managedFields` into the metadata of the child; returns the written child.
    async fn write_managed_fields(
        &self,
        api: &Api<BoundedObject<K>>,
        live: &K,
        mut patch: Value,
        entries: &[ManagedFieldsEntry],
    ) -> Result<K> {
        patch["managedFields"] = json!(entries);
        let written = write::metadata(api, self.field_manager, live.meta(), patch).await;
        classified::<K, _>(&self.key, written)
    }

    /// Returns the fields that the apiserver rejects, with list indexes replaced by 0; `None` if no field can fix the
    /// rejection.
    fn rejected_fields(&self, error: &Error) -> Option<BTreeSet<String>> {
        let unnamed = error.status().and_then(self.quirks.unnamed_field);
        match unnamed {
            Some(field) => Some([field.to_owned()].into()),
            None => error.fields(),
        }
    }

    /// Returns the transfer of those fields of other managers that the apiserver rejects together with the desired
    /// state; `None` if the apiserver also rejects the desired state alone, or names no such field.
    async fn conflict_transfer(
        &self,
        api: &Api<BoundedObject<K>>,
        live: &K,
        error: &Error,
    ) -> Result<Option<managed_fields::Transfer>> {
        let Some(rejected) = self.rejected_fields(error) else {
            return Ok(None);
        };
        let object = content(live);
        let conflicting = |field: &String| {
            managed_fields::conflicting_fields(
                managed_fields_of(live),
                self.field_manager,
                &object,
                &self.sent,
                field,
            )
        };
        let conflicting = rejected.iter().flat_map(conflicting).collect();
        let Some(taken) =
            managed_fields::transfer(managed_fields_of(live), self.field_manager, &conflicting)
        else {
            return Ok(None);
        };
        let mut alone = self.object.clone();
        (self.quirks.clear_allocated)(&mut alone, live);
        let tried = write::try_create(api, self.field_manager, alone).await;
        match classified::<K, _>(&self.key, tried) {
            Ok(()) => Ok(Some(taken)),
            // Quota is checked after validation, so the object alone is valid.
            Err(error) if error.classify().1 == QUOTA_EXCEEDED => Ok(Some(taken)),
            // The object alone may have another problem, such as a node port that another Service holds.
            Err(error @ Error::Rejected { .. })
                if error.status().is_some_and(|it| it.code == 422) =>
            {
                let alone = self.rejected_fields(&error).unwrap_or_default();
                Ok((!alone.iter().any(|field| rejected.contains(field))).then_some(taken))
            }
            // Other errors, such as that of a webhook that does not support dry runs, say nothing about the object
            // alone.
            Err(Error::Rejected { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether the child has changed, or was deleted, since `read` was read. The apiserver may then have rejected
/// the apply because of fields that `read` lacks.
async fn has_changed<K: ChildKind>(
    api: &Api<BoundedObject<K>>,
    key: &ObjectKey,
    read: &K,
) -> Result<bool> {
    let newest = classified::<K, _>(key, api.get_opt(&key.name).await)?;
    Ok(newest.and_then(|newest| newest.resource_version()) != read.resource_version())
}

impl<K: ChildKind, S> DesiredChild<K, S> for Applied<'_, K> {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn build(&self) -> K {
        self.quirks.initial.as_ref().unwrap_or(&self.object).clone()
    }

    fn plan(
        &self,
        live: &K,
        ownership: &Ownership,
        matched: Option<&ConfirmedMatch>,
    ) -> Option<ChildAction<'_, K>> {
        (!self.is_current(live, ownership, matched)).then_some(ChildAction::Apply(self))
    }

    fn matched(&self, live: &K) -> Option<ConfirmedMatch> {
        let values = self.projection(live);
        Some(ConfirmedMatch {
            desired: self.digest.clone(),
            values: values.digest(),
            has_foreign_items: managed_fields::has_foreign_items(
                managed_fields_of(live),
                &content(live),
                self.content(),
                self.quirks.renumbered,
            ),
        })
    }

    fn has_drifted(&self, live: &K, matched: Option<&ConfirmedMatch>) -> bool {
        self.was_changed(live, matched)
    }

    fn values(&self, live: &K) -> Projection {
        self.projection(live)
    }
}

/// Returns kind and name, such as `Deployment shop/web`.
pub(crate) fn title<K: Resource<DynamicType = ()>>(key: &ObjectKey) -> String {
    format!("{} {key}", K::kind(&()))
}

/// Converts the error of a request for the child.
pub(crate) fn classified<K: Resource<DynamicType = ()>, T>(
    key: &ObjectKey,
    answer: kube::Result<T>,
) -> Result<T> {
    answer.map_err(|error| Error::of_child(title::<K>(key), error))
}

pub(crate) fn managed_fields_of(object: &impl Resource) -> &[ManagedFieldsEntry] {
    object.meta().managed_fields.as_deref().unwrap_or_default()
}
