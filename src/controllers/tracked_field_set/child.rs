//! The children of a `TrackedFieldSet`: their names, specs and digests. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use data_encoding::BASE32_NOPAD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::core::ObjectMeta;
use qm_api::common::{OWNER, OWNER_UID};
use qm_api::tracked_field::{
    BUILT_IN_KINDS, Initial, NotificationSpec, TargetReference, TrackedFieldSpec,
};
use qm_api::tracked_field_set::{HISTORY_LIMIT, SET, TargetSelector, TrackedFieldSetSpec};
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::ObjectKey;
use qm_runtime::children::Quirks;
use qm_runtime::ownership::Owner;
use qm_runtime::watch::ResourceName;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Maximum length of namespace, name and field in the name of a child.
const MAX_READABLE_LENGTH: usize = 165;

/// Number of base32 characters of the digest in the name of a child: 100 bits.
const DIGEST_LENGTH: usize = 20;

/// Identity of a tracked field, the same for all `TrackedField`s of one namespace that track it.
pub type Identity = u64;

/// Creation time and UID of a set; the older set comes first.
pub(crate) type Seniority = (Option<Time>, Option<String>);

/// Returns the seniority of the set with this metadata.
pub(crate) fn seniority(metadata: &ObjectMeta) -> Seniority {
    (metadata.creation_timestamp.clone(), metadata.uid.clone())
}

/// Returns the identity of a `TrackedField`.
pub fn identity(field: &TrackedField) -> Identity {
    let namespace = field.metadata.namespace.as_deref().unwrap_or_default();
    identity_of(namespace, &field.spec.target, &field.spec.field)
}

/// Returns the identity of a `TrackedField` in `namespace` with this spec.
pub(crate) fn identity_of(namespace: &str, target: &TargetReference, field: &str) -> Identity {
    let built_in = BUILT_IN_KINDS.iter().find(|it| it.kind == target.kind);
    // A built-in kind may be written with its API version and resource as well.
    let resource = match (&target.api_version, &target.resource) {
        (Some(api_version), Some(plural)) => {
            let group = api_version.split_once('/').map_or("", |(group, _)| group);
            Some((group, plural.as_str()))
        }
        _ => built_in.map(|it| (it.group, it.plural)),
    };
    let mut hash = DefaultHasher::new();
    let target = (resource, &target.namespace, &target.name);
    (namespace, target, field).hash(&mut hash);
    hash.finish()
}

/// Returns the name of the child for a field of `target`: at most 250 characters, and the same after a restore.
pub fn name(set: &str, resource: &ResourceName, target: &ObjectKey, field: &str) -> String {
    let group = resource.group();
    let ObjectKey { namespace, name } = target;
    let identity = json!([set, group, resource.plural, namespace, name, field]).to_string();
    let digest = BASE32_NOPAD
        .encode(&Sha256::digest(identity))
        .to_ascii_lowercase();
    let word = if field.starts_with('{') {
        "path"
    } else {
        field
    };
    let readable = [namespace, name, word]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-");
    let is_kept = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let readable: String = readable
        .chars()
        .take(MAX_READABLE_LENGTH)
        .map(|c| if is_kept(c) { c } else { '-' })
        .collect();
    format!("{set}-{readable}-{}", &digest[..DIGEST_LENGTH])
}

/// Returns whether [`name`] may have made this name, for any field of any target of the set.
pub(crate) fn is_derived_name(set: &str, name: &str) -> bool {
    let rest = name
        .strip_prefix(set)
        .and_then(|rest| rest.strip_prefix('-'));
    let digest = rest
        .and_then(|rest| rest.rsplit_once('-'))
        .map(|(_, digest)| digest);
    let is_base32 = |c: u8| c.is_ascii_lowercase() || (b'2'..=b'7').contains(&c);
    digest.is_some_and(|digest| digest.len() == DIGEST_LENGTH && digest.bytes().all(is_base32))
}

/// Returns the part of the spec that all children of a set share.
pub fn notification(spec: &TrackedFieldSetSpec) -> Arc<NotificationSpec> {
    let mut notification = spec.template.clone();
    notification.history_limit.get_or_insert(HISTORY_LIMIT);
    Arc::new(notification)
}

/// Returns the spec of the child for a field of a target.
pub fn spec(
    selector: &TargetSelector,
    notification: &Arc<NotificationSpec>,
    target: &ObjectKey,
    field: &str,
    initial: Initial,
) -> TrackedFieldSpec {
    TrackedFieldSpec {
        target: selector.reference(&target.namespace, &target.name),
        field: field.to_owned(),
        notification: Arc::clone(notification),
        initial: Some(initial.as_str().to_owned()),
        oversized: None,
    }
}

/// Returns a child of `set` without its ownership.
pub fn build(set: &TrackedFieldSet, key: &ObjectKey, spec: TrackedFieldSpec) -> TrackedField {
    let label = (
        SET.to_owned(),
        set.metadata.name.clone().unwrap_or_default(),
    );
    TrackedField {
        metadata: ObjectMeta {
            name: Some(key.name.to_string()),
            namespace: Some(key.namespace.to_string()),
            labels: Some([label].into()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// Returns how a child is applied. The admission policies check that the author of a `TrackedField` may read its target,
/// so the context, template or `when` that somebody sets together with another target never stays.
pub fn quirks() -> Quirks<'static, TrackedField> {
    Quirks {
        is_retargeted: Some(|desired, live| {
            desired.spec.target != live.spec.target || desired.spec.field != live.spec.field
        }),
        ..Quirks::default()
    }
}

/// Summary of a live child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiveChild {
    pub initial: Initial,
    /// Digest of the parts that the set writes.
    pub content: u64,
}

impl LiveChild {
    pub fn of(child: &TrackedField) -> Self {
        let owners = child.metadata.owner_references.iter().flatten();
        let owners: Vec<_> = owners.map(|owner| owner.uid.as_str()).collect();
        let (owner, label) = (
            child.annotations().get(OWNER),
            child.labels().get(OWNER_UID),
        );
        Self {
            initial: Initial::of(child),
            content: content(
                child,
                owner.map(String::as_str),
                label.map(String::as_str),
                &owners,
            ),
        }
    }
}

/// Returns a digest of the parts that `owner` writes. A live child with the same digest needs no read.
pub(crate) fn content_of(child: &TrackedField, owner: &Owner) -> u64 {
    let uid = owner.uid();
    content(child, Some(&owner.path()), Some(uid), &[uid])
}

fn content(
    child: &TrackedField,
    owner: Option<&str>,
    owner_label: Option<&str>,
    owners: &[&str],
) -> u64 {
    let labels = child.metadata.labels.as_ref();
    let set = labels.and_then(|labels| labels.get(SET));
    let spec = serde_json::to_string(&child.spec).unwrap_or_default();
    let mut hash = DefaultHasher::new();
    (set, owner, owner_label, owners, spec).hash(&mut hash);
    hash.finish()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::HashSet;

    use super::*;

    pub fn deployments() -> ResourceName {
        ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        }
    }

    #[test]
    fn name_is_readable_and_stable() {
        let target = ObjectKey::new("shop", "web.v1");
        let name = name("prod-images", &deployments(), &target, "image:web");
        assert_eq!(
            name,
            "prod-images-shop-web-v1-image-web-gnwou23hmgqd6k7ouoxm"
        );
    }

    #[test]
    fn names_differ_and_are_valid() {
        let set = "s".repeat(63);
        let long = "a".repeat(253);
        let mut names = HashSet::new();
        for namespace in ["", "a", "a-b", &long[..63]] {
            for name_of in ["b", "b-c", "B_c:d", &long] {
                for field in ["replicas", "image", "image:a", "{.a}", "{.b}"] {
                    for resource in ["v1", "apps/v1", "batch/v1"] {
                        let resource = ResourceName {
                            api_version: resource.into(),
                            plural: "things".into(),
                        };
                        let target = ObjectKey::new(namespace, name_of);
                        let name = name(&set, &resource, &target, field);
                        assert!(name.len() <= 250, "{name}");
                        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
                        assert!(name.chars().all(|c| is_valid(c) || c == '-'), "{name}");
                        assert!(name.ends_with(is_valid), "{name}");
                        assert!(names.insert(name));
                    }
                }
            }
        }
    }

    /// A beta version and the stable one are the same resource.
    #[test]
    fn version_of_the_api_does_not_change_the_name() {
        let beta = ResourceName {
            api_version: "apps/v1beta1".into(),
            ..deployments()
        };
        let target = ObjectKey::new("a", "b");
        assert_eq!(
            name("s", &beta, &target, "replicas"),
            name("s", &deployments(), &target, "replicas")
        );
    }
}
