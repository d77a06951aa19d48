//! Kinds of the operator: the API resource of each and the permissions of its controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ApiResource;
use kube::core::object::HasStatus;
use kube::{CustomResourceExt, Resource};

use crate::conditions::{self, HasConditions, ReadyCondition};
use crate::names::MetadataNames;
use crate::readiness::ReadinessSummary;
use crate::schema::SchemaVersion;

/// An API type that an operator serves.
pub trait Kind: Resource<DynamicType = ()> {
    /// Names of the operator's labels and annotations.
    const NAMES: &'static MetadataNames;
    /// Finalizer of objects that own something outside of their namespace.
    const FINALIZER: Option<&'static str> = None;
    /// Annotations of the operator that the controller reads, besides `requested-at`. Caches drop the operator's other
    /// annotations.
    const ANNOTATIONS: &'static [&'static str] = &[];
    /// Annotations of other programs whose presence the controller reads. Caches drop their values.
    const FOREIGN_ANNOTATIONS: &'static [&'static str] = &[];

    /// Returns the readiness as last written.
    fn readiness(&self) -> ReadinessSummary<'_>;

    /// Replaces values that other objects have too by shared copies, before a cache stores the object.
    fn share(&mut self) {}

    /// Returns whether the spec tells the operator to change nothing, so that the runtime skips the reconcile. A kind
    /// that acts while it is suspended, such as one that still records, keeps the default, and its controller reads
    /// `spec.suspend`.
    fn is_suspended(&self) -> bool {
        false
    }

    /// Returns whether the object's children stay when the object is deleted. They have no owner reference then, because
    /// the garbage collector could delete them before the operator has released them.
    fn orphans_children(&self) -> bool {
        false
    }
}

/// A kind whose status has the condition `Ready`.
pub trait HasReadyCondition: Kind + HasStatus {
    /// Returns the condition as last written, for any generation.
    fn ready_condition(&self) -> Option<ReadyCondition<'_>>;

    /// Returns the observed generation of the status.
    fn observed_generation(&self) -> Option<i64>;

    /// Sets the condition of a status, and fields that repeat it. `generation` is the object's; the transition time of
    /// a condition that changes its status is `now`.
    fn set_ready_condition(
        status: &mut Self::Status,
        condition: &ReadyCondition<'_>,
        generation: i64,
        now: Time,
    );

    /// Returns the annotations that report the condition, for a kind whose status has no room for conditions. An
    /// annotation without a value is removed.
    fn ready_annotations(_condition: &ReadyCondition<'_>) -> Vec<(&'static str, Option<String>)> {
        Vec::new()
    }
}

impl<K: Kind + HasStatus<Status: HasConditions>> HasReadyCondition for K {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        conditions::ready(self.status()?.conditions())
    }

    fn observed_generation(&self) -> Option<i64> {
        self.status()?.observed_generation()
    }

    fn set_ready_condition(
        status: &mut Self::Status,
        condition: &ReadyCondition<'_>,
        generation: i64,
        now: Time,
    ) {
        conditions::set_ready(status.conditions_mut(), condition, generation, &now);
        status.mirror_ready(condition.is_true(), generation);
    }
}

/// Verbs on resources of one API group, as in a rule of a `ClusterRole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resources, with subresources as `pods/log`.
    pub resources: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// True if the resources are namespaced.
    pub namespaced: bool,
    /// Names of the objects; empty for all objects.
    pub resource_names: &'static [&'static str],
}

impl Permission {
    /// Creates a permission on namespaced resources.
    pub const fn namespaced(
        group: &'static str,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resources,
            verbs,
            namespaced: true,
            resource_names: &[],
        }
    }

    /// Creates a permission on cluster-scoped resources.
    pub const fn cluster_scoped(
        group: &'static str,
        resources: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resources,
            verbs,
            namespaced: false,
            resource_names: &[],
        }
    }

    /// Limits the permission to the objects of these names.
    #[must_use]
    pub const fn named(self, resource_names: &'static [&'static str]) -> Self {
        Self {
            resource_names,
            ..self
        }
    }
}

/// Permission to create Events, which every controller needs.
pub const EVENTS: Permission = Permission::namespaced("events.k8s.io", &["events"], &["create"]);

/// Access that the operator has and an object's author may lack. Admission policies require the same of the author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegatedAccess {
    /// The operator reads a `ConfigMap` and writes it to other namespaces.
    ConfigMaps,
    /// The operator reads a target and notifies of its changes.
    Targets,
    /// The operator creates objects of another kind in the object's own namespace, for targets in any namespace that the object
    /// selects.
    SelectedTargets,
    /// The operator reads Secrets and sends them.
    Secrets,
    /// The operator creates objects of every resource that the controller may create, in the object's own namespace. Each
    /// pair is a resource and a field of the spec: an object without the field does not need the resource.
    Children(&'static [(&'static str, &'static str)]),
    /// The operator does nothing that a Kubernetes permission covers.
    Nothing,
}

/// Constants of a kind as a value.
#[derive(Clone, Copy, Debug)]
pub struct KindInfo {
    /// Name of the controller in logs, metrics and `--controllers`: the kind's singular.
    pub controller: &'static str,
    /// Permissions that the controller needs.
    pub permissions: &'static [Permission],
    /// Access that the controller gives to an author.
    pub delegated_access: DelegatedAccess,
    /// Digests of every released schema of the CRD, oldest first; the last one is the current schema. A schema may only
    /// add to the previous one, because an older program continues with a newer CRD. If empty, the program works with
    /// any schema.
    pub schemas: &'static [&'static str],
    /// Names of the operator's labels and annotations: [`Kind::NAMES`].
    pub names: &'static MetadataNames,
    /// Finalizer of the kind's objects: [`Kind::FINALIZER`].
    pub finalizer: Option<&'static str>,
    /// Rank of the kind when all objects are deleted: lower ranks go first.
    pub uninstall_rank: u8,
    resource: fn() -> ApiResource,
}

impl KindInfo {
    /// Creates the value for the kind `K`.
    pub const fn of<K: Kind + CustomResourceExt>(
        controller: &'static str,
        schemas: &'static [&'static str],
        delegated_access: DelegatedAccess,
        permissions: &'static [Permission],
    ) -> Self {
        Self {
            controller,
            permissions,
            delegated_access,
            schemas,
            names: K::NAMES,
            finalizer: K::FINALIZER,
            uninstall_rank: 100,
            resource: K::api_resource,
        }
    }

    /// Returns group and name of each resource that the controller may create, except Events.
    pub fn created_resources(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let may_create = |it: &&Permission| it.verbs.contains(&"create") && **it != EVENTS;
        let permissions = self.permissions.iter().filter(may_create);
        permissions.flat_map(|it| it.resources.iter().map(|resource| (it.group, *resource)))
    }

    /// Sets the rank of the kind when all objects are deleted; 100 unless set.
    #[must_use]
    pub const fn with_uninstall_rank(self, uninstall_rank: u8) -> Self {
        Self {
            uninstall_rank,
            ..self
        }
    }

    /// Returns group, version, kind and plural of the kind.
    pub fn resource(&self) -> ApiResource {
        (self.resource)()
    }

    /// Returns the version of the current schema.
    pub fn schema(&self) -> SchemaVersion {
        let digest = self.schemas.last().copied().unwrap_or_default();
        SchemaVersion {
            number: self.schemas.len(),
            digest: digest.into(),
        }
    }

    /// Returns the name of the CRD: `PLURAL.GROUP`.
    pub fn crd_name(&self) -> String {
        let resource = self.resource();
        format!("{}.{}", resource.plural, resource.group)
    }
}
