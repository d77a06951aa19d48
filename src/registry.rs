//! THE list of kinds: CRDs, rights, readiness, metrics and the documentation's tables derive from it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::ApiResource;

use crate::api::schema::{self, SchemaMark};
use crate::api::{ContactPoint, TrackedField};
use crate::controllers::{contact_point, notifications, tracked_field};
use crate::runtime::manager::Manager;

/// What the operator may do: these verbs on these resources of one API group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resources, subresources as `pods/log`.
    pub resources: &'static [&'static str],
    /// The verbs.
    pub verbs: &'static [&'static str],
}

/// One kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its controller's name: in logs, metrics and `--controllers`; the kind's singular.
    pub controller: &'static str,
    /// What its controller needs.
    pub rights: &'static [Right],
    /// The digests of every schema that its CRD had in a release, oldest first; the last one is today's. Each may only add
    /// to the one before, because a program goes on under a newer CRD than its own.
    schemas: &'static [&'static str],
    crd: fn() -> CustomResourceDefinition,
    resource: fn() -> ApiResource,
}

/// All kinds.
pub const KINDS: &[Kind] = &[
    Kind::of::<ContactPoint>(
        contact_point::NAME,
        &["08a918ff431bf589"],
        &[READ_OF_CONTACT_POINTS, STATUS_OF_CONTACT_POINTS, SECRETS, EVENTS],
    ),
    Kind::of::<TrackedField>(
        tracked_field::NAME,
        &["3263ce942aa2e68f"],
        &[WAITING_OF_TRACKED_FIELDS, STATUS_OF_TRACKED_FIELDS, EVENTS],
    ),
];

/// What starts the controllers: one function for kinds that share something.
pub const START: &[fn(&mut Manager) -> anyhow::Result<()>] = &[notifications::start];

const READ: &[&str] = &["get", "list", "watch"];
const FOLLOW: &[&str] = &["list", "watch"];
const TG: &str = "tg.azamaton.ru";
const READ_OF_CONTACT_POINTS: Right = Right { group: TG, resources: &["contactpoints"], verbs: FOLLOW };
const STATUS_OF_CONTACT_POINTS: Right = Right { group: TG, resources: &["contactpoints/status"], verbs: &["patch"] };
/// `get`: after a write that came too late. `patch`: the annotation that says why one waits.
const WAITING_OF_TRACKED_FIELDS: Right =
    Right { group: TG, resources: &["trackedfields"], verbs: &["get", "list", "patch", "watch"] };
const STATUS_OF_TRACKED_FIELDS: Right = Right { group: TG, resources: &["trackedfields/status"], verbs: &["patch"] };
/// By name only, never listed.
const SECRETS: Right = Right { group: "", resources: &["secrets"], verbs: &["get"] };
const EVENTS: Right = Right { group: "events.k8s.io", resources: &["events"], verbs: &["create"] };

/// Reads the CRDs themselves: which are there, and whether they are ours. For these the rights are by name.
pub const CRD_VERBS: &[&str] = FOLLOW;

/// What leader election needs, in the operator's own namespace.
pub const LEADER_RIGHTS: &[Right] =
    &[Right { group: "coordination.k8s.io", resources: &["leases"], verbs: &["create", "get", "update"] }];

/// The targets that a `TrackedField` may name without `apiVersion`. Other kinds are granted by any `ClusterRole` with
/// [`AGGREGATE_TO_TRACKER`].
pub const TARGET_RIGHTS: &[Right] = &[
    Right { group: "", resources: &["services"], verbs: READ },
    Right { group: "apps", resources: &["deployments", "statefulsets"], verbs: READ },
];

/// Label of a `ClusterRole`: `"true"` adds its rules to what the operator may track.
pub const AGGREGATE_TO_TRACKER: &str = "quartermaster.dev/aggregate-to-tracker";

impl Kind {
    const fn of<K: CustomResourceExt>(
        controller: &'static str,
        schemas: &'static [&'static str],
        rights: &'static [Right],
    ) -> Self {
        Self { controller, rights, schemas, crd: K::crd, resource: K::api_resource }
    }

    /// Its CRD, as it is installed.
    pub fn crd(&self) -> CustomResourceDefinition {
        schema::finish((self.crd)(), self.schemas.len())
    }

    /// Its group, version, kind and plural.
    pub fn resource(&self) -> ApiResource {
        (self.resource)()
    }

    /// The mark of its CRD's schema.
    pub fn schema(&self) -> SchemaMark {
        SchemaMark::of(&self.crd(), self.schemas.len())
    }

    /// The name of its CRD, `PLURAL.GROUP`.
    pub fn crd_name(&self) -> String {
        let resource = self.resource();
        format!("{}.{}", resource.plural, resource.group)
    }
}

/// The kind of that controller.
pub fn find(controller: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.controller == controller)
}

/// The CRDs of all kinds, as they are installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    KINDS.iter().map(Kind::crd).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    /// A replica tells an older CRD from a newer one by the number alone: it must grow with each change.
    #[test]
    fn a_changed_schema_has_a_new_number() {
        for kind in KINDS {
            let SchemaMark { number, digest } = kind.schema();
            assert_eq!(number, kind.schemas.len());
            assert_eq!(
                kind.schemas.last(),
                Some(&digest.as_str()),
                "the schema of {} has changed: add {digest:?} to the end of its list in src/registry.rs (in place of the \
                 last one only if no release had that), and run `make manifests`",
                kind.crd_name()
            );
            let once = kind.schemas.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(once, number, "a schema that comes back still has a new number");
        }
    }
}
