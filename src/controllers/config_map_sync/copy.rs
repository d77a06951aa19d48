//! What a copy is to be. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::common::OURS;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_runtime::ownership::Owner;
use qm_runtime::{ObjectKey, short_digest};

/// The whole content once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How a copy is brought to what it is to be.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is so.
    Nothing,
    /// This is written in place of it.
    Replace(Box<ConfigMap>),
    /// It is immutable: it is deleted and made again.
    Recreate,
}

/// A copy where there is none.
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

/// What is to be done about the copy that is there.
pub fn step(source: &ConfigMap, spec: &ConfigMapSyncSpec, owner: &Owner, live: &ConfigMap) -> Step {
    let desired = desired(source, spec, owner, live);
    let same_content = content(&desired) == content(live);
    if same_content && desired.metadata == live.metadata {
        Step::Nothing
    } else if live.immutable == Some(true) && !same_content {
        Step::Recreate
    } else {
        Step::Replace(Box::new(desired))
    }
}

/// What a copy is made from: it is looked at again when that changes.
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

/// What the source has, and what of the copy's is ours.
fn mirrored(
    source: &BTreeMap<String, String>,
    live: Option<&BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let is_ours = |name: &str| name.starts_with(OURS);
    let theirs = source
        .iter()
        .filter(|(name, _)| !is_ours(name) && *name != LAST_APPLIED);
    let ours = live.into_iter().flatten().filter(|(name, _)| is_ours(name));
    theirs
        .chain(ours)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// An empty map is none, and an unset flag is false.
type Content<'a> = (
    Vec<(&'a String, &'a String)>,
    Vec<(&'a String, &'a [u8])>,
    bool,
);

fn content(map: &ConfigMap) -> Content<'_> {
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
    fn a_new_copy_is_ours_and_has_the_content() {
        insta::assert_json_snapshot!([made(false), made(true)]);
    }

    #[rstest]
    #[case::as_it_is(|_: &mut ConfigMap| {}, Step::Nothing)]
    #[case::others_annotate_it(|copy: &mut ConfigMap| { copy.annotations_mut().insert("x".into(), "y".into()); }, Step::Nothing)]
    #[case::a_finalizer(|copy: &mut ConfigMap| { copy.finalizers_mut().push("x/y".into()); }, Step::Nothing)]
    #[case::an_empty_map_is_none(|copy: &mut ConfigMap| { copy.binary_data.clone_from(&source().binary_data); copy.immutable = Some(false); }, Step::Nothing)]
    fn what_is_not_ours_to_say_stays(#[case] change: fn(&mut ConfigMap), #[case] expected: Step) {
        let mut live = made(false);
        change(&mut live);
        assert_eq!(step(&source(), &spec(false), &owner(), &live), expected);
    }

    #[rstest]
    #[case::a_value(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().insert("k".into(), "x".into()); })]
    #[case::a_key_more(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().insert("x".into(), "x".into()); })]
    #[case::a_key_less(|copy: &mut ConfigMap| { copy.data.as_mut().unwrap().remove("k"); })]
    #[case::no_data(|copy: &mut ConfigMap| copy.data = None)]
    #[case::bytes(|copy: &mut ConfigMap| copy.binary_data = None)]
    #[case::a_label_more(|copy: &mut ConfigMap| { copy.labels_mut().insert("x".into(), "x".into()); })]
    #[case::a_label_less(|copy: &mut ConfigMap| { copy.labels_mut().remove("l"); })]
    #[case::an_annotation(|copy: &mut ConfigMap| { copy.annotations_mut().insert("n".into(), "x".into()); })]
    #[case::the_owner(|copy: &mut ConfigMap| { copy.annotations_mut().remove("quartermaster.dev/owner"); })]
    #[case::consent(|copy: &mut ConfigMap| { copy.annotations_mut().insert("quartermaster.dev/adopt-by".into(), "sync/s".into()); })]
    fn what_is_ours_is_put_right(#[case] change: fn(&mut ConfigMap)) {
        let mut live = made(true);
        live.meta_mut().resource_version = Some("7".into());
        let right = live.clone();
        change(&mut live);
        match step(&source(), &spec(true), &owner(), &live) {
            Step::Replace(written) => {
                assert_eq!(*written, right);
                assert_eq!(
                    step(&source(), &spec(true), &owner(), &written),
                    Step::Nothing
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_immutable_copy_is_made_again_when_its_content_differs() {
        let mut source = source();
        source.immutable = Some(true);
        let live = new(&source, &spec(true), &owner(), &ObjectKey::new("b", "d"));
        assert_eq!(step(&source, &spec(true), &owner(), &live), Step::Nothing);
        let mut relabelled = live.clone();
        relabelled.labels_mut().remove("l");
        assert!(
            matches!(
                step(&source, &spec(true), &owner(), &relabelled),
                Step::Replace(_)
            ),
            "metadata may change"
        );
        source
            .data
            .as_mut()
            .unwrap()
            .insert("k".into(), "new".into());
        assert_eq!(step(&source, &spec(true), &owner(), &live), Step::Recreate);
        source = self::source();
        assert_eq!(
            step(&source, &spec(true), &owner(), &live),
            Step::Recreate,
            "it cannot be made mutable again"
        );
    }

    #[test]
    fn another_source_or_another_way_to_copy_is_looked_at_again() {
        let first = digest(&source(), &spec(true), &owner());
        let mut edited = source();
        edited.metadata.resource_version = Some("2".into());
        assert_ne!(first, digest(&edited, &spec(true), &owner()));
        assert_ne!(first, digest(&source(), &spec(false), &owner()));
        assert_eq!(first, digest(&source(), &spec(true), &owner()));
    }
}
