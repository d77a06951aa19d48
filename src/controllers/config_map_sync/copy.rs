//! Computes the desired content of a copy. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::common::OURS;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_runtime::ownership::Owner;
use qm_runtime::{ObjectKey, short_digest};

/// Annotation of `kubectl apply`, which contains the whole content once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Next step for a copy.
#[derive(Clone, Debug, PartialEq)]
pub enum CopyStep {
    /// The copy matches.
    Nothing,
    /// Replace the copy by this `ConfigMap`.
    Replace(Box<ConfigMap>),
    /// Delete the copy, which is immutable, and create it again.
    Recreate,
}

/// Returns a new copy.
pub fn new(
    source: &ConfigMap,
    spec: &ConfigMapSyncSpec,
    owner: &Owner,
    key: &ObjectKey,
) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()),
        ..ObjectMeta::default()
    };
    desired(
        source,
        spec,
        owner,
        &ConfigMap {
            metadata,
            ..ConfigMap::default()
        },
    )
}

/// Returns the next step for the existing copy `live`.
pub fn step(
    source: &ConfigMap,
    spec: &ConfigMapSyncSpec,
    owner: &Owner,
    live: &ConfigMap,
) -> CopyStep {
    let desired = desired(source, spec, owner, live);
    let same_content = content(&desired) == content(live);
    if same_content && desired.metadata == live.metadata {
        CopyStep::Nothing
    } else if live.immutable == Some(true) && !same_content {
        CopyStep::Recreate
    } else {
        CopyStep::Replace(Box::new(desired))
    }
}

/// Returns the digest of the inputs of a copy: if it changes, the copy is compared again.
pub fn digest(source: &ConfigMap, spec: &ConfigMapSyncSpec, owner: &Owner) -> String {
    let version = (source.uid(), source.resource_version());
    short_digest(format!(
        "{version:?} {:?} {:?} {}",
        spec.copy_labels,
        spec.copy_annotations,
        owner.uid()
    ))
}

fn desired(
    source: &ConfigMap,
    spec: &ConfigMapSyncSpec,
    owner: &Owner,
    live: &ConfigMap,
) -> ConfigMap {
    let mut metadata = live.metadata.clone();
    if spec.copy_labels == Some(true) {
        metadata.labels = Some(mirrored(source.labels(), metadata.labels.as_ref()));
    }
    if spec.copy_annotations == Some(true) {
        metadata.annotations = Some(mirrored(
            source.annotations(),
            metadata.annotations.as_ref(),
        ));
    }
    owner.set_ownership(&mut metadata);
    ConfigMap {
        metadata,
        data: source.data.clone(),
        binary_data: source.binary_data.clone(),
        immutable: source.immutable,
    }
}

/// Returns the names and values of the source, and those of the copy that the operator reserves for itself.
fn mirrored(
    source: &BTreeMap<String, String>,
    live: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let is_reserved = |name: &str| name.starts_with(OURS);
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
    use serde_json::{Value, json};

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

    fn made(more: bool) -> ConfigMap {
        new(&source(), &spec(more), &owner(), &ObjectKey::new("b", "d"))
    }

    #[test]
    fn new_copy_is_owned_and_has_the_content() {
        insta::assert_json_snapshot!([made(false), made(true)]);
    }

    #[rstest]
    #[case::unchanged(|_: &mut ConfigMap| {}, CopyStep::Nothing)]
    #[case::foreign_annotation(|copy: &mut ConfigMap| { copy.annotations_mut().insert("x".into(), "y".into()); }, CopyStep::Nothing)]
    #[case::finalizer(|copy: &mut ConfigMap| { copy.finalizers_mut().push("x/y".into()); }, CopyStep::Nothing)]
    #[case::empty_map(|copy: &mut ConfigMap| { copy.binary_data.clone_from(&source().binary_data); copy.immutable = Some(false); }, CopyStep::Nothing)]
    fn foreign_fields_stay(#[case] change: fn(&mut ConfigMap), #[case] expected: CopyStep) {
        let mut live = made(false);
        change(&mut live);
        assert_eq!(step(&source(), &spec(false), &owner(), &live), expected);
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
        match step(&source(), &spec(true), &owner(), &live) {
            CopyStep::Replace(written) => {
                assert_eq!(*written, expected);
                assert_eq!(
                    step(&source(), &spec(true), &owner(), &written),
                    CopyStep::Nothing
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn immutable_copy_is_recreated_if_its_content_differs() {
        let mut source = source();
        source.immutable = Some(true);
        let live = new(&source, &spec(true), &owner(), &ObjectKey::new("b", "d"));
        assert_eq!(
            step(&source, &spec(true), &owner(), &live),
            CopyStep::Nothing
        );
        let mut relabelled = live.clone();
        relabelled.labels_mut().remove("l");
        assert!(
            matches!(
                step(&source, &spec(true), &owner(), &relabelled),
                CopyStep::Replace(_)
            ),
            "metadata may change"
        );
        source
            .data
            .as_mut()
            .unwrap()
            .insert("k".into(), "new".into());
        assert_eq!(
            step(&source, &spec(true), &owner(), &live),
            CopyStep::Recreate
        );
        source = self::source();
        assert_eq!(
            step(&source, &spec(true), &owner(), &live),
            CopyStep::Recreate,
            "an immutable copy cannot become mutable"
        );
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
