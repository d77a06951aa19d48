//! The state of a workload's objects, without values that differ from run to run.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Resource as _, ResourceExt as _};
use qm_core::kind::KindInfo;
use serde_json::{Map, Value, json};

use crate::support::Bed;
use crate::support::mask::Mask;

/// Label of an object with its owner's UID.
const OWNER: &str = "quartermaster.dev/owner-uid";

/// Start of the message of an autoscaler without metrics, which the cluster writes some time after its creation.
const NO_METRICS: &str = "; the HorizontalPodAutoscaler does not scale";

/// Minimum length of a digest in a name.
const DIGEST: usize = 16;

/// Prefixes of annotations that other controllers write.
const OF_OTHERS: [&str; 2] = ["deployment.kubernetes.io/", "endpoints.kubernetes.io/"];

/// Returns all objects of these kinds in these namespaces, by kind and name.
pub async fn take(
    bed: &Bed,
    namespaces: &[String],
    kinds: &[ApiResource],
) -> anyhow::Result<Value> {
    let mask = Mask::new(&bed.namespace, Timestamp::MAX);
    let mut state = Map::new();
    for namespace in namespaces {
        for kind in kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                let name = mask.text(&format!("{} {namespace}/{}", kind.kind, named(&object)));
                state.insert(name, mask.json(&comparable(kind, &object)));
            }
        }
    }
    Ok(Value::Object(state))
}

/// Returns an object's name, without the digest of the namespace.
fn named(object: &DynamicObject) -> String {
    let name = object.name_any();
    match name.rsplit_once('-') {
        Some((name, last)) if last.len() >= DIGEST => format!("{name}-<digest>"),
        _ => name,
    }
}

/// Returns what a workload determines of an object.
fn comparable(kind: &ApiResource, object: &DynamicObject) -> Value {
    let is_own = is_ours(&kind.kind, &kind.api_version);
    let meta = object.meta();
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.retain(|name, _| !OF_OTHERS.iter().any(|prefix| name.starts_with(prefix)));
    // A manager creates by update and changes by apply, so the operation depends on what it had to write.
    let managers: BTreeSet<_> = meta
        .managed_fields
        .iter()
        .flatten()
        .filter_map(|entry| {
            let manager = entry.manager.as_deref()?;
            let subresource = entry.subresource.as_deref().unwrap_or_default();
            manager
                .starts_with("quartermaster")
                .then(|| format!("{manager} {subresource}"))
        })
        .collect();
    let owners = meta.owner_references.iter().flatten();
    let owners: Vec<_> = owners
        .map(|it| json!([it.kind, it.name, it.controller]))
        .collect();
    let mut state = json!({
        "labels": meta.labels,
        "annotations": annotations,
        "finalizers": meta.finalizers,
        "owners": owners,
        "managers": managers,
        "deleting": meta.deletion_timestamp.is_some(),
    });
    let mut content = object.data.clone();
    if kind.kind == "Pod" {
        // The apiserver and the scheduler add the rest.
        let mut spec = json!({});
        for name in ["containers", "securityContext", "restartPolicy"] {
            spec[name] = content["spec"][name].clone();
        }
        for container in spec["containers"].as_array_mut().into_iter().flatten() {
            container["volumeMounts"].take();
        }
        content = json!({ "spec": spec });
    }
    for (name, value) in content.as_object().into_iter().flatten() {
        if name != "status" || is_own {
            state[name] = value.clone();
        }
    }
    // The Deployment's status, with names of ReplicaSets that collide after a recreation.
    if let Some(status) = state["status"].as_object_mut().filter(|_| is_own) {
        status.remove("collisionCount");
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten() {
            if condition["type"] != "Ready" {
                condition["message"].take();
            } else if let Some(text) = condition["message"].as_str()
                && let Some((text, _)) = text.split_once(NO_METRICS)
            {
                condition["message"] = text.into();
            }
        }
    }
    // A deletion that the operator missed has no version.
    for entry in state["status"].as_array_mut().into_iter().flatten() {
        if entry["action"] == "Deleted" {
            entry["resourceVersion"].take();
        }
    }
    if is_own {
        state["generation"] = json!(meta.generation);
    }
    state
}

/// Returns the names, UIDs and versions of all objects of these kinds in these namespaces. The version changes with the
/// spec, or with the content of an object without spec and status.
pub async fn versions(
    bed: &Bed,
    namespaces: &[String],
    kinds: &[ApiResource],
) -> anyhow::Result<BTreeSet<String>> {
    let mut versions = BTreeSet::new();
    for namespace in namespaces {
        for kind in kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
                let has_status = object.data.get("status").is_some();
                let version = match object.metadata.generation {
                    Some(generation) => generation.to_string(),
                    None if has_status => String::new(),
                    None => object.resource_version().unwrap_or_default(),
                };
                versions.insert(format!("{} {namespace}/{name} {uid} {version}", kind.kind));
            }
        }
    }
    Ok(versions)
}

/// Returns the objects whose owner is of our kinds and does not exist.
pub async fn orphans(
    bed: &Bed,
    namespaces: &[String],
    kinds: &[ApiResource],
) -> anyhow::Result<Vec<String>> {
    let (mut uids, mut owned) = (BTreeSet::new(), Vec::new());
    for namespace in namespaces {
        for kind in kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                uids.extend(object.uid());
                let name = format!("{} {namespace}/{}", kind.kind, object.name_any());
                if let Some(owner) = object.labels().get(OWNER) {
                    owned.push((name.clone(), owner.clone()));
                }
                for owner in object.owner_references() {
                    if is_ours(&owner.kind, &owner.api_version) {
                        owned.push((name.clone(), owner.uid.clone()));
                    }
                }
            }
        }
    }
    owned.retain(|(_, owner)| !uids.contains(owner));
    Ok(owned.into_iter().map(|(name, _)| name).collect())
}

fn is_ours(kind: &str, api_version: &str) -> bool {
    let ours = quartermaster::controllers::KINDS.iter();
    ours.map(KindInfo::resource)
        .any(|it| it.kind == kind && it.api_version == api_version)
}
