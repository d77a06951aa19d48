//! The desired content of a copy, and the action for an existing one. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::common::PREFIX;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_runtime::child_cache::ConfirmedMatch;
use qm_runtime::children::{ChildAction, DesiredChild};
use qm_runtime::fields::{self, Projection};
use qm_runtime::managed_fields::is_owned_only_by;
use qm_runtime::ownership::{Owner, Ownership};
use qm_runtime::{ObjectKey, short_digest};
use serde_json::json;

/// Field manager of all writes of the controller.
pub(super) const FIELD_MANAGER: &str = "quartermaster/configmapsync";

/// Annotation of `kubectl apply`, which contains the whole content once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Maximum number of keys whose values are compared one by one to report drift.
const MAX_REPORTED_KEYS: usize = 1000;

/// The copy that a sync needs in one namespace.
pub struct DesiredCopy<'a> {
    pub key: ObjectKey,
    pub source: &'a ConfigMap,
    pub spec: &'a ConfigMapSyncSpec,
    /// The sync.
    pub owner: &'a Owner,
    /// [Digest](digest) of source, spec and owner.
    pub digest: &'a str,
}

impl DesiredChild<ConfigMap, ()> for DesiredCopy<'_> {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn digest(&self) -> &str {
        self.digest
    }

    fn build(&self) -> ConfigMap {
        self.desired(ObjectMeta {
            name: Some(self.key.name.to_string()),
            namespace: Some(self.key.namespace.to_string()),
            ..ObjectMeta::default()
        })
    }

    fn plan(
        &self,
        live: &ConfigMap,
        _: &Ownership,
        _: Option<&ConfirmedMatch>,
    ) -> Option<ChildAction<'_, ConfigMap>> {
        let mut desired = self.desired(live.metadata.clone());
        let same_content = content(&desired) == content(live);
        if same_content && desired.metadata == live.metadata {
            return None;
        }
        if live.immutable == Some(true) && !same_content {
            return Some(ChildAction::Delete("the copy is immutable".into()));
        }
        // The apiserver keeps its own `managedFields`.
        desired.metadata.managed_fields = None;
        Some(ChildAction::Replace(Box::new(desired)))
    }

    fn values(&self, live: &ConfigMap) -> Projection {
        let (data, binary, _) = content(live);
        let keys = data.len() + binary.len();
        if keys <= MAX_REPORTED_KEYS {
            return fields::all(&fields::content(live));
        }
        // Each value in a projection takes far more memory than a short key.
        let metadata = ObjectMeta {
            managed_fields: None,
            ..live.metadata.clone()
        };
        let digest = short_digest(format!("{data:?} {binary:?}"));
        let content = json!({
            "metadata": metadata, "immutable": live.immutable, "data": format!("{keys} keys with the digest {digest}"),
        });
        fields::all(&fields::content(&content))
    }
}

impl DesiredCopy<'_> {
    /// Returns the desired copy; `metadata` is that of the live one.
    fn desired(&self, mut metadata: ObjectMeta) -> ConfigMap {
        let (source, spec) = (self.source, self.spec);
        let managed = metadata.managed_fields.as_deref().unwrap_or_default();
        let entries = |live: Option<BTreeMap<_, _>>, source, is_copied: Option<bool>, field| {
            if is_copied == Some(true) {
                Some(mirrored(source, live.as_ref()))
            } else {
                live.map(|live| without_copied(live, managed, field))
            }
        };
        let (labels, annotations) = (metadata.labels.take(), metadata.annotations.take());
        metadata.labels = entries(labels, source.labels(), spec.copy_labels, "f:labels");
        metadata.annotations = entries(
            annotations,
            source.annotations(),
            spec.copy_annotations,
            "f:annotations",
        );
        self.owner.set_ownership(&mut metadata);
        ConfigMap {
            metadata,
            data: source.data.clone(),
            binary_data: source.binary_data.clone(),
            immutable: source.immutable,
        }
    }
}

/// Returns the digest of the inputs of a copy: if it changes, the copy is compared again.
pub fn digest(source: &ConfigMap, spec: &ConfigMapSyncSpec, owner: &Owner) -> String {
    let version = (source.uid(), source.resource_version());
    short_digest(format!(
        "{version:?} {:?} {:?} {} {}",
        spec.copy_labels,
        spec.copy_annotations,
        spec.orphans(),
        owner.uid()
    ))
}

fn is_reserved(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Returns the labels or annotations of a copy: those of the source, except for reserved ones and the annotation of
/// `kubectl apply`, and the reserved ones of the `live` copy.
fn mirrored(
    source: &BTreeMap<String, String>,
    live: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let copied = source
        .iter()
        .filter(|(name, _)| !is_reserved(name) && *name != LAST_APPLIED);
    let reserved = live
        .into_iter()
        .flatten()
        .filter(|(name, _)| is_reserved(name));
    copied
        .chain(reserved)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Removes the labels or annotations that the operator copied when the spec still asked for them: those that only the
/// operator owns, except for reserved ones.
fn without_copied(
    mut live: BTreeMap<String, String>,
    managed: &[ManagedFieldsEntry],
    field: &str,
) -> BTreeMap<String, String> {
    live.retain(|name, _| {
        let path = ["f:metadata", field, &format!("f:{name}")];
        is_reserved(name) || !is_owned_only_by(managed, FIELD_MANAGER, &path)
    });
    live
}

/// Comparable content: an empty map equals a missing one, and an unset flag equals false.
type CopyContent<'a> = (
    Vec<(&'a String, &'a String)>,
    Vec<(&'a String, &'a [u8])>,
    bool,
);

fn content(map: &ConfigMap) -> CopyContent<'_> {
    let data = map.data.iter().flatten().collect();
    let binary = map
        .binary_data
        .iter()
        .flatten()
        .map(|(name, bytes)| (name, bytes.0.as_slice()))
        .collect();
    (data, binary, map.immutable.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use kube::Resource;
    use qm_api::ConfigMapSync;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn owner() -> Owner {
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" }, "spec": {} });
        Owner::of(&serde_json::from_value::<ConfigMapSync>(sync).unwrap()).unwrap()
    }

    fn map(value: Value) -> ConfigMap {
        serde_json::from_value(value).unwrap()
    }

    fn spec(more: bool) -> ConfigMapSyncSpec {
        ConfigMapSyncSpec {
            copy_labels: Some(more),
            copy_annotations: Some(more),
            ..ConfigMapSyncSpec::default()
        }
    }

    fn source() -> ConfigMap {
        map(json!({
            "metadata": { "namespace": "a", "name": "c", "uid": "1", "resourceVersion": "1", "labels": { "l": "1" },
                "annotations": { "n": "1", LAST_APPLIED: "{}", "quartermaster.dev/owner": "x/y" } },
            "data": { "k": "v", "empty": "" }, "binaryData": { "b": "AAE=" },
        }))
    }

    fn copy<'a>(
        source: &'a ConfigMap,
        spec: &'a ConfigMapSyncSpec,
        owner: &'a Owner,
    ) -> DesiredCopy<'a> {
        let key = ObjectKey::new("b", "d");
        let digest = "";
        DesiredCopy {
            key,
            source,
            spec,
            owner,
            digest,
        }
    }

    fn made(more: bool) -> ConfigMap {
        copy(&source(), &spec(more), &owner()).build()
    }

    /// Returns the action for the copy `live`: "keep", "delete", or "replace" with the new copy.
    fn planned(
        source: &ConfigMap,
        more: bool,
        live: &ConfigMap,
    ) -> (&'static str, Option<ConfigMap>) {
        match copy(source, &spec(more), &owner()).plan(live, &Ownership::Owned, None) {
            None => ("keep", None),
            Some(ChildAction::Replace(written)) => ("replace", Some(*written)),
            Some(ChildAction::Delete(_)) => ("delete", None),
            Some(_) => panic!("no action for a copy"),
        }
    }

    #[test]
    fn new_copy_is_owned_and_has_the_content() {
        insta::assert_json_snapshot!([made(false), made(true)]);
    }

    #[rstest]
    #[case::unchanged(|_: &mut ConfigMap| {})]
    #[case::foreign_annotation(|copy: &mut ConfigMap| { copy.annotations_mut().insert("x".into(), "y".into()); })]
    #[case::finalizer(|copy: &mut ConfigMap| { copy.finalizers_mut().push("x/y".into()); })]
    #[case::empty_map(|copy: &mut ConfigMap| { copy.binary_data.clone_from(&source().binary_data); copy.immutable = Some(false); })]
    fn foreign_fields_stay(#[case] change: fn(&mut ConfigMap)) {
        let mut live = made(false);
        change(&mut live);
        assert_eq!(planned(&source(), false, &live), ("keep", None));
    }

    #[rstest]
    #[case::value(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().insert("k".into(), "x".into()); })]
    #[case::extra_key(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().insert("x".into(), "x".into()); })]
    #[case::missing_key(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().remove("k"); })]
    #[case::no_data(|copy: &mut ConfigMap| copy.data = None)]
    #[case::bytes(|copy: &mut ConfigMap| copy.binary_data = None)]
    #[case::extra_label(|copy: &mut ConfigMap| { copy.labels_mut().insert("x".into(), "x".into()); })]
    #[case::missing_label(|copy: &mut ConfigMap| { copy.labels_mut().remove("l"); })]
    #[case::annotation(|copy: &mut ConfigMap| { copy.annotations_mut().insert("n".into(), "x".into()); })]
    #[case::owner(|copy: &mut ConfigMap| { copy.annotations_mut().remove("quartermaster.dev/owner"); })]
    #[case::consent(|copy: &mut ConfigMap| { copy.annotations_mut().insert("quartermaster.dev/adopt-by".into(), "sync/s".into()); })]
    fn owned_fields_are_corrected(#[case] change: fn(&mut ConfigMap)) {
        let mut live = made(true);
        live.meta_mut().resource_version = Some("7".into());
        let expected = live.clone();
        change(&mut live);
        let written = Some(expected.clone());
        assert_eq!(planned(&source(), true, &live), ("replace", written));
        assert_eq!(planned(&source(), true, &expected), ("keep", None));
    }

    #[test]
    fn immutable_copy_is_recreated_if_its_content_differs() {
        let mut source = source();
        source.immutable = Some(true);
        let live = copy(&source, &spec(true), &owner()).build();
        assert_eq!(planned(&source, true, &live).0, "keep");
        let mut relabelled = live.clone();
        relabelled.labels_mut().remove("l");
        assert_eq!(
            planned(&source, true, &relabelled).0,
            "replace",
            "metadata may change"
        );
        source
            .data
            .as_mut()
            .unwrap()
            .insert("k".into(), "new".into());
        assert_eq!(planned(&source, true, &live).0, "delete");
        assert_eq!(
            planned(&self::source(), true, &live).0,
            "delete",
            "an immutable copy cannot become mutable"
        );
    }

    /// The garbage collector deletes an object with a reference to an owner that is deleted in the foreground, even
    /// while no operator runs.
    #[test]
    fn copy_has_an_owner_reference_unless_it_is_orphaned() {
        fn in_own_namespace<'a>(
            source: &'a ConfigMap,
            (owner, spec): &'a (Owner, ConfigMapSyncSpec),
        ) -> DesiredCopy<'a> {
            DesiredCopy {
                key: ObjectKey::new("sync", "d"),
                ..copy(source, spec, owner)
            }
        }
        let with_policy = |policy: &str| {
            let sync = json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" },
                "spec": { "deletionPolicy": policy } });
            let sync: ConfigMapSync = serde_json::from_value(sync).unwrap();
            (Owner::of(&sync).unwrap(), sync.spec)
        };
        let (deletes, orphans) = (with_policy("Delete"), with_policy("Orphan"));
        let source = source();
        assert_ne!(
            digest(&source, &deletes.1, &deletes.0),
            digest(&source, &orphans.1, &orphans.0)
        );
        for (before, after, references) in [(&deletes, &orphans, 0), (&orphans, &deletes, 1)] {
            let live = in_own_namespace(&source, before).build();
            let desired = in_own_namespace(&source, after);
            let Some(ChildAction::Replace(written)) = desired.plan(&live, &Ownership::Owned, None)
            else {
                panic!("the copy is not replaced")
            };
            let written = *written;
            assert_eq!(written.owner_references().len(), references);
            assert!(desired.plan(&written, &Ownership::Owned, None).is_none());
            let (owner, _) = after;
            assert!(owner.has_ownership(&written.metadata));
            assert!(!owner.has_ownership(&live.metadata));
            assert!(!owner.lacks_reference(&written.metadata));
            assert_eq!(
                owner.ownership(&written.metadata, |_| true),
                Ownership::Owned
            );
        }
    }

    #[test]
    fn drift_of_many_keys_is_reported_as_a_whole() {
        let copy_of = |value: &str, keys: usize| {
            let keys = (0..keys).map(|key| (format!("k{key}"), value.to_owned()));
            ConfigMap {
                data: Some(keys.collect()),
                ..ConfigMap::default()
            }
        };
        let (source, spec, owner) = (source(), spec(false), owner());
        let copy = copy(&source, &spec, &owner);
        let differences =
            |one: &ConfigMap, other: &ConfigMap| copy.values(one).differences(&copy.values(other));
        let many = copy_of("a", MAX_REPORTED_KEYS + 1);
        assert_eq!(differences(&many, &many), [] as [Vec<String>; 0]);
        let edited = copy_of("b", MAX_REPORTED_KEYS + 1);
        assert_eq!(differences(&many, &edited), [["f:data"]]);
        assert_eq!(differences(&many, &copy_of("a", 2)), [["f:data"]]);
    }

    #[test]
    fn digest_changes_with_the_source_and_the_spec() {
        let first = digest(&source(), &spec(true), &owner());
        let mut edited = source();
        edited.metadata.resource_version = Some("2".into());
        assert_ne!(first, digest(&edited, &spec(true), &owner()));
        assert_ne!(first, digest(&source(), &spec(false), &owner()));
        assert_eq!(first, digest(&source(), &spec(true), &owner()));
    }
}
