//! What a kind is to the program: where the API has it, and what its controller may do.

use kube::CustomResourceExt;
use kube::core::ApiResource;

use super::schema::SchemaMark;

/// What the operator may do: these verbs on these resources of one API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resources, subresources as `pods/log`.
    pub resources: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
    /// Whether the resources lie in namespaces; otherwise they are the cluster's.
    pub namespaced: bool,
}

impl Right {
    /// On what lies in namespaces.
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
        }
    }

    /// On what lies in none.
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
        }
    }
}

/// Events, which every controller writes.
pub const EVENTS: Right = Right::namespaced("events.k8s.io", &["events"], &["create"]);

/// What the operator lends whoever writes an object: it does what they may not be allowed to. `manifests::policies` asks them for
/// the rights to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lends {
    /// Reads a `ConfigMap`, and writes it elsewhere.
    ConfigMaps,
    /// Reads what may be tracked, and tells of it.
    Targets,
    /// Reads Secrets, and sends them.
    Secrets,
    /// Makes a Deployment, and what goes with it.
    Deployments,
    /// Makes a Pod.
    Pods,
    /// Nothing that a right of Kubernetes compares with.
    Nothing,
}

/// One kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its controller's name: in logs, metrics and `--controllers`; the kind's singular.
    pub controller: &'static str,
    /// What its controller needs.
    pub rights: &'static [Right],
    /// What of that is lent.
    pub lends: Lends,
    /// The digests of every schema that its CRD had in a release, oldest first; the last one is today's. Each may only add
    /// to the one before, because a program goes on under a newer CRD than its own.
    pub schemas: &'static [&'static str],
    /// The finalizer that guards what its objects have outside of their own namespace, if they have anything there.
    pub finalizer: Option<&'static str>,
    resource: fn() -> ApiResource,
}

impl Kind {
    /// The arguments as the fields have them.
    pub const fn of<K: CustomResourceExt>(
        controller: &'static str,
        schemas: &'static [&'static str],
        lends: Lends,
        rights: &'static [Right],
    ) -> Self {
        Self {
            controller,
            rights,
            lends,
            schemas,
            finalizer: None,
            resource: K::api_resource,
        }
    }

    /// The same, with this finalizer.
    #[must_use]
    pub const fn guarded(self, finalizer: &'static str) -> Self {
        Self {
            finalizer: Some(finalizer),
            ..self
        }
    }

    /// Its group, version, kind and plural.
    pub fn resource(&self) -> ApiResource {
        (self.resource)()
    }

    /// The mark of its CRD's schema.
    pub fn schema(&self) -> SchemaMark {
        let digest = self.schemas.last().copied().unwrap_or_default();
        SchemaMark {
            number: self.schemas.len(),
            digest: digest.into(),
        }
    }

    /// The name of its CRD, `PLURAL.GROUP`.
    pub fn crd_name(&self) -> String {
        let resource = self.resource();
        format!("{}.{}", resource.plural, resource.group)
    }
}
