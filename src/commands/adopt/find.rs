//! What may be handed over, and what belongs to somebody. Pure.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::ObjectMeta;
use qm_api::MyApp;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_aws::{DesiredLoadBalancer, LoadBalancer, Tags};
use qm_runtime::ownership::{Claim, Foreign, OWNER, OWNER_UID, Owner};

use crate::controllers::config_map_sync::copy;
use crate::controllers::my_app::build;
use crate::controllers::my_app::pod_state::{PodLifecycle, PodState};
use crate::controllers::my_ingress::build::incompatibility;
use crate::controllers::my_ingress::tags::OwnershipTags;

/// Label: who manages an object
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>).
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Tag of a balancer that document 003's program made.
const KOPF: (&str, &str) = ("ManagedBy", "kopf");
/// What the keys of tags begin with by which other programs know what is theirs: `CloudFormation` and other services of AWS,
/// the AWS Load Balancer Controller, Kubernetes' own cloud controller, and this one.
const OTHERS: [&str; 6] = [
    "aws:",
    "elbv2.k8s.aws/",
    "ingress.k8s.aws/",
    "service.k8s.aws/",
    "kubernetes.io/",
    "quartermaster.dev/",
];

/// What something with the right name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is ours, or is handed over already.
    Settled,
    /// It may be handed over, and stays as it is; what is to be known of that.
    Offer(String),
    /// It may be handed over, and is then overwritten or replaced; why that is.
    Replace(String),
    /// It may be handed over, and whether it stays as it is is not known; why.
    Unsure(String),
    /// It is left alone, because it belongs to somebody.
    Leave(String),
}

/// What a copy is made from: none, where there is none; or why it could not be read.
pub type Source = Result<Option<ConfigMap>, String>;

/// What there is where a copy is to be.
pub fn copy(
    owner: &Owner,
    spec: &ConfigMapSyncSpec,
    live: &ConfigMap,
    source: &Source,
    lives: impl Fn(&str) -> bool,
) -> Verdict {
    // Our marks are all that it lacks if it stays as it is.
    let step = |source: &ConfigMap| {
        let mut taken = live.clone();
        owner.mark(&mut taken.metadata);
        copy::step(source, spec, owner, &taken)
    };
    let offer = match source.as_ref().map(|source| source.as_ref().map(step)) {
        Ok(None) => {
            Verdict::Offer("its source does not exist: it stays as it is until there is one".into())
        }
        Ok(Some(copy::Step::Nothing)) => Verdict::Offer("as its source".into()),
        Ok(Some(copy::Step::Replace(_))) => {
            Verdict::Replace("differs from its source, which then replaces it".into())
        }
        Ok(Some(copy::Step::Recreate)) => Verdict::Replace(
            "differs from its source, and is immutable: it is deleted, and made anew".into(),
        ),
        Err(why) => Verdict::Unsure(format!(
            "its source could not be read, and may replace it: {why}"
        )),
    };
    object(owner, &live.metadata, offer, lives)
}

/// What there is where the Pod of `app` is to be.
pub fn pod(owner: &Owner, live: &Pod, app: &MyApp, lives: impl Fn(&str) -> bool) -> Verdict {
    let pod = PodState::of(live);
    let replaced = |why: &str| Verdict::Replace(format!("{why}: it is deleted, and made anew"));
    let offer = match build::validate(app) {
        Err(invalid) => Verdict::Offer(format!(
            "stays as it is until its MyApp is mended: {invalid}"
        )),
        Ok(wanted) => match pod.difference(&wanted) {
            Some(why) => replaced(&why),
            None if pod.lifecycle == PodLifecycle::Ended => replaced("it has come to its end"),
            None => Verdict::Offer("taken over as it runs".into()),
        },
    };
    object(owner, &live.metadata, offer, lives)
}

fn object(
    owner: &Owner,
    metadata: &ObjectMeta,
    offer: Verdict,
    lives: impl Fn(&str) -> bool,
) -> Verdict {
    let foreign = match owner.claim(metadata, lives) {
        Claim::Ours | Claim::Restored | Claim::HandedOver => return Verdict::Settled,
        Claim::Foreign(foreign) => foreign,
    };
    match foreign {
        Foreign::Sibling(other) => return Verdict::Leave(format!("it belongs to {other}")),
        Foreign::Promised(other) => {
            return Verdict::Leave(format!("it is to be handed over to {other}"));
        }
        Foreign::Controlled(controller) => {
            return Verdict::Leave(format!("it is controlled by {controller}"));
        }
        Foreign::Unmarked => {}
    }
    if let Some(uid) = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(OWNER_UID))
    {
        return Verdict::Leave(format!(
            "its label says that it belongs to the resource with the UID {uid}"
        ));
    }
    if metadata.deletion_timestamp.is_some() {
        return Verdict::Leave("it is being deleted".into());
    }
    if let Some(reference) = metadata.owner_references.iter().flatten().next() {
        return Verdict::Leave(format!(
            "it belongs to {} {}",
            reference.kind, reference.name
        ));
    }
    if let Some(manager) = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(MANAGED_BY))
    {
        return Verdict::Leave(format!("it is managed by {manager}"));
    }
    offer
}

/// The balancer of the right name.
pub(crate) fn balancer(
    marks: &OwnershipTags<'_>,
    live: &LoadBalancer,
    tags: &Tags,
    wanted: &DesiredLoadBalancer,
    lives: impl Fn(&str) -> bool,
) -> Verdict {
    if !matches!(marks.claim(tags, lives), Claim::Foreign(_)) {
        return Verdict::Settled;
    }
    if let Some(owner) = tags.get(OWNER) {
        return Verdict::Leave(format!("its tags say that it belongs to {owner}"));
    }
    if let Some(key) = tags
        .keys()
        .find(|key| OTHERS.iter().any(|prefix| key.starts_with(prefix)))
    {
        return Verdict::Leave(format!("its tag {key} says that it is another program's"));
    }
    if let Some(manager) = tags.get(KOPF.0).filter(|manager| *manager != KOPF.1) {
        return Verdict::Leave(format!("it is managed by {manager}"));
    }
    match incompatibility(live, wanted) {
        Some(words) => Verdict::Leave(words),
        None => Verdict::Offer(live.arn.clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::{ConfigMapSync, MyIngress};
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::controllers::my_ingress;

    fn owner() -> Owner {
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" }, "spec": {} });
        Owner::of(&from_value::<ConfigMapSync>(sync).unwrap()).unwrap()
    }

    fn map(metadata: &Value, data: &Value) -> ConfigMap {
        let mut map = json!({ "metadata": { "namespace": "far", "name": "c" }, "data": data });
        map["metadata"]
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().unwrap().clone());
        from_value(map).unwrap()
    }

    #[rstest]
    #[case::bare(json!({}), Verdict::Offer("as its source".into()))]
    #[case::ours(json!({ "labels": { "quartermaster.dev/owner-uid": "u" } }), Verdict::Settled)]
    #[case::handed_over(json!({ "annotations": { "quartermaster.dev/adopt-by": "sync/s" } }), Verdict::Settled)]
    #[case::promised(json!({ "annotations": { "quartermaster.dev/adopt-by": "a/b" } }), Verdict::Leave("it is to be handed over to a/b".into()))]
    #[case::a_siblings(json!({ "labels": { "quartermaster.dev/owner-uid": "v" }, "annotations": { "quartermaster.dev/owner": "a/b" } }), Verdict::Leave("it belongs to a/b".into()))]
    #[case::of_a_uid(json!({ "labels": { "quartermaster.dev/owner-uid": "v" } }), Verdict::Leave("its label says that it belongs to the resource with the UID v".into()))]
    #[case::controlled(json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": true }] }), Verdict::Leave("it is controlled by X x".into()))]
    #[case::owned(json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "1" }] }), Verdict::Leave("it belongs to X x".into()))]
    #[case::of_a_chart(json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }), Verdict::Leave("it is managed by Helm".into()))]
    #[case::going(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), Verdict::Leave("it is being deleted".into()))]
    fn whose_it_is(#[case] metadata: Value, #[case] verdict: Verdict) {
        let live = map(&metadata, &json!({ "k": "v" }));
        assert_eq!(
            copied(
                &live,
                &Ok(Some(map(&json!({}), &json!({ "k": "v" })))),
                &json!({})
            ),
            verdict
        );
    }

    fn copied(live: &ConfigMap, source: &Source, spec: &Value) -> Verdict {
        copy(
            &owner(),
            &from_value(spec.clone()).unwrap(),
            live,
            source,
            |_| true,
        )
    }

    #[test]
    fn what_its_source_is_not_known_to_leave_as_it_is_is_not_offered() {
        let live = map(&json!({}), &json!({ "k": "v" }));
        let Verdict::Offer(note) = copied(&live, &Ok(None), &json!({})) else {
            panic!()
        };
        assert!(note.contains("does not exist"), "{note}");
        let words = "its source could not be read, and may replace it: you may not";
        assert_eq!(
            copied(&live, &Err("you may not".into()), &json!({})),
            Verdict::Unsure(words.into())
        );
        let helm = map(
            &json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }),
            &json!({}),
        );
        assert!(matches!(
            copied(&helm, &Err("you may not".into()), &json!({})),
            Verdict::Leave(_)
        ));
    }

    /// The controller decides by the same step.
    #[rstest]
    #[case::the_same(json!({}), json!({}), json!({}), "as its source")]
    #[case::another_value(json!({ "data": { "a": "c" } }), json!({}), json!({}), "replaces it")]
    #[case::an_empty_map(json!({ "binaryData": {} }), json!({}), json!({}), "as its source")]
    #[case::to_be_immutable(json!({}), json!({ "immutable": true }), json!({}), "replaces it")]
    #[case::immutable_no_more(json!({ "immutable": true }), json!({}), json!({}), "made anew")]
    #[case::of_other_labels(json!({}), json!({ "metadata": { "labels": { "l": "1" } } }), json!({}), "as its source")]
    #[case::labels_that_are_copied(json!({}), json!({ "metadata": { "labels": { "l": "1" } } }), json!({ "copyLabels": true }), "replaces it")]
    #[case::annotations_that_are_copied(json!({ "metadata": { "annotations": { "n": "1" } } }), json!({}), json!({ "copyAnnotations": true }), "replaces it")]
    fn what_would_not_stay_as_it_is_is_said(
        #[case] live: Value,
        #[case] source: Value,
        #[case] spec: Value,
        #[case] words: &str,
    ) {
        let map = |more: &Value| -> ConfigMap {
            let mut map = json!({ "data": { "a": "b" } });
            map.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            from_value(map).unwrap()
        };
        let verdict = copied(&map(&live), &Ok(Some(map(&source))), &spec);
        match &verdict {
            Verdict::Offer(note) if words == "as its source" => assert_eq!(note, words),
            Verdict::Replace(note) => assert!(note.ends_with(words), "{note}"),
            _ => panic!("{verdict:?}"),
        }
    }

    /// The controller decides by the same words.
    #[rstest]
    #[case::as_it_is_wanted("nginx:1", "hello", "Running", json!({ "image": "nginx:1", "banner": "hello" }), None)]
    #[case::of_another_image("redis", "hello", "Running", json!({ "image": "nginx:1", "banner": "hello" }), Some("its image is redis, and is to be nginx:1"))]
    #[case::of_another_banner("nginx:1", "hello", "Running", json!({ "image": "nginx:1", "banner": "bye" }), Some("the banner has changed"))]
    #[case::at_its_end("nginx:1", "hello", "Failed", json!({ "image": "nginx:1", "banner": "hello" }), Some("it has come to its end"))]
    #[case::that_cannot_be_told("redis", "hello", "Running", json!({}), None)]
    fn what_is_taken_over_as_it_runs(
        #[case] image: &str,
        #[case] banner: &str,
        #[case] phase: &str,
        #[case] spec: Value,
        #[case] replaced: Option<&str>,
    ) {
        let app =
            json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" }, "spec": spec });
        let app: MyApp = from_value(app).unwrap();
        let container = json!({ "name": "web", "image": image, "env": [{ "name": "BANNER", "value": banner }] });
        let pod = json!({ "metadata": { "namespace": "shop", "name": "web-pod" }, "spec": { "containers": [container] },
            "status": { "phase": phase } });
        let verdict = super::pod(
            &Owner::of(&app).unwrap(),
            &from_value(pod).unwrap(),
            &app,
            |_| true,
        );
        match (&verdict, replaced) {
            (Verdict::Offer(_), None) => {}
            (Verdict::Replace(note), Some(why)) => assert!(note.starts_with(why), "{note}"),
            _ => panic!("{verdict:?}"),
        }
    }

    #[rstest]
    #[case::of_the_documents_program(&[("ManagedBy", "kopf")], true)]
    #[case::untagged(&[], true)]
    #[case::with_tags_of_a_team(&[("team", "shop")], true)]
    #[case::of_terraform(&[("ManagedBy", "terraform")], false)]
    #[case::of_a_stack(&[("aws:cloudformation:stack-name", "x")], false)]
    #[case::of_another_controller(&[("elbv2.k8s.aws/cluster", "x")], false)]
    #[case::of_another_cluster(&[("quartermaster.dev/cluster", "d"), ("quartermaster.dev/owner", "shop/web")], false)]
    #[case::promised(&[("quartermaster.dev/adopt-by", "a/b")], false)]
    fn whose_a_balancer_is(#[case] tags: &[(&str, &str)], #[case] offered: bool) {
        let ingress = json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" },
            "spec": { "subnets": ["subnet-a", "subnet-b"] } });
        let ingress: MyIngress = from_value(ingress).unwrap();
        let owner = Owner::of(&ingress).unwrap();
        let marks = OwnershipTags {
            owner: &owner,
            cluster: "c",
        };
        let wanted = my_ingress::build::desired(&ingress, &marks);
        let live = LoadBalancer {
            arn: "arn:1".into(),
            kind: "application".into(),
            scheme: "internet-facing".into(),
            ..LoadBalancer::default()
        };
        let tags: Tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let verdict = balancer(&marks, &live, &tags, &wanted, |_| true);
        assert_eq!(
            verdict == Verdict::Offer("arn:1".into()),
            offered,
            "{verdict:?}"
        );
        let internal = LoadBalancer {
            scheme: "internal".into(),
            ..live
        };
        assert!(matches!(
            balancer(&marks, &internal, &tags, &wanted, |_| true),
            Verdict::Leave(_)
        ));
        assert_eq!(
            balancer(&marks, &internal, &marks.tags(), &wanted, |_| true),
            Verdict::Settled
        );
    }
}
