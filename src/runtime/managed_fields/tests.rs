#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use serde_json::json;

use super::*;

const US: &str = "quartermaster/test";

fn entry(manager: &str, operation: &str, subresource: &str, fields: Value) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        api_version: Some("apps/v1".into()),
        fields_type: Some("FieldsV1".into()),
        fields_v1: Some(FieldsV1(fields)),
        manager: Some(manager.into()),
        operation: Some(operation.into()),
        subresource: Some(subresource.to_owned()).filter(|name| !name.is_empty()),
        time: None,
    }
}

fn desired() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "a", "namespace": "b", "uid": "c", "labels": { "x": "1" } },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "a" } },
            "template": { "spec": { "containers": [
                { "name": "a", "image": "i", "command": ["sh"], "ports": [{ "containerPort": 80 }, { "containerPort": 80, "protocol": "UDP" }] },
            ] } },
        },
    })
}

/// The set of all that `desired` says, as the apiserver writes it.
fn whole() -> Value {
    json!({
        "f:metadata": { "f:labels": { "f:x": {} } },
        "f:spec": {
            "f:replicas": {},
            "f:selector": {},
            "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": {
                ".": {}, "f:name": {}, "f:image": {}, "f:command": {},
                "f:ports": {
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} },
                    "k:{\"containerPort\":80,\"protocol\":\"UDP\"}": { ".": {}, "f:containerPort": {}, "f:protocol": {} },
                },
            } } } },
        },
    })
}

#[rstest]
#[case::all(&[], true)]
#[case::a_label(&["f:metadata", "f:labels", "f:x"], false)]
#[case::a_scalar(&["f:spec", "f:replicas"], false)]
#[case::a_whole(&["f:spec", "f:selector"], false)]
#[case::an_element(&["f:spec", "f:template", "f:spec", "f:containers", "k:{\"name\":\"a\"}"], false)]
#[case::a_port(&["f:spec", "f:template", "f:spec", "f:containers", "k:{\"name\":\"a\"}", "f:ports", "k:{\"containerPort\":80,\"protocol\":\"TCP\"}"], false)]
#[case::its_twin(&["f:spec", "f:template", "f:spec", "f:containers", "k:{\"name\":\"a\"}", "f:ports", "k:{\"containerPort\":80,\"protocol\":\"UDP\"}"], false)]
fn whoever_lost_a_claim_does_not_hold_all(#[case] lost: &[&str], #[case] held: bool) {
    let mut set = whole();
    if !lost.is_empty() {
        take(&mut set, lost).unwrap();
    }
    for operation in [APPLY, UPDATE] {
        assert_eq!(holds(&[entry(US, operation, "", set.clone())], US, &desired()), held);
    }
    assert!(!holds(&[entry("other", APPLY, "", set.clone())], US, &desired()));
    assert!(!holds(&[entry(US, UPDATE, "status", set)], US, &desired()));
}

/// The API's types leave out some of what is empty, and not all.
#[test]
fn what_is_empty_is_held_unless_somebody_else_says_it() {
    let mut desired = desired();
    desired["spec"]["replicas"] = json!(0);
    let mut set = whole();
    take(&mut set, &["f:spec", "f:replicas"]).unwrap();
    let ours = entry(US, UPDATE, "", set.clone());
    assert!(holds(std::slice::from_ref(&ours), US, &desired));
    let scaled = entry("kubectl", UPDATE, "scale", json!({ "f:spec": { "f:replicas": {} } }));
    assert!(!holds(&[ours, scaled], US, &desired));
    assert!(!holds(&[entry(US, APPLY, "", set)], US, &desired));
}

#[test]
fn what_a_writer_said_of_our_fields_is_handed_over_and_no_more() {
    let sidecar = json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"side\"}": { ".": {}, "f:name": {} } } } } } });
    let annotation = json!({ "f:metadata": { "f:annotations": { "f:note": {} } } });
    let status = json!({ "f:status": { "f:replicas": {} } });
    let mut old = whole();
    old["f:spec"]["f:strategy"] = json!({ "f:type": {} });
    let mut edited = json!({ "f:spec": { "f:template": { "f:spec": { "f:tolerations": {} } } } });
    let toleration = edited.clone();
    edited["f:spec"]["f:template"]["f:spec"]["f:containers"] = json!({ "k:{\"name\":\"a\"}": { "f:image": {} } });
    let managed = [
        entry("kubectl-edit", UPDATE, "", edited),
        entry("operator", UPDATE, "", old.clone()),
        entry("kubectl-patch", UPDATE, "", sidecar),
        entry("kubectl-annotate", UPDATE, "", annotation),
        entry("kube-controller-manager", UPDATE, "status", status),
        entry("kubectl-scale", UPDATE, "scale", json!({ "f:spec": { "f:replicas": {} } })),
        entry("flux", APPLY, "", json!({ "f:spec": { "f:replicas": {} } })),
        entry(
            "kubectl-set",
            UPDATE,
            "",
            json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": { "f:image": {} } } } } } }),
        ),
    ];
    assert!(is_to_be_handed_over(&managed, US, &[]));
    let after = handed_over(&managed, US, &desired(), &[]);
    let told = |entry: &ManagedFieldsEntry| format!("{} {}", entry.manager.as_deref().unwrap(), operation(entry));
    let names: Vec<_> = after.iter().map(told).collect();
    assert_eq!(
        names,
        [
            "kubectl-edit Update",
            "kubectl-patch Update",
            "kubectl-annotate Update",
            "kube-controller-manager Update",
            "kubectl-scale Update",
            "flux Apply",
            "quartermaster/test Apply"
        ]
    );
    assert_eq!(after[0].fields_v1, Some(FieldsV1(toleration)), "what we say nothing of stays theirs");
    assert_eq!(after[6].fields_v1, Some(FieldsV1(old)));
    assert!(!is_to_be_handed_over(&after, US, &[]));
    assert!(holds(&after, US, &desired()));
}

#[test]
fn a_field_that_is_left_keeps_its_value_without_being_applied() {
    let replicas: &[&str] = &["f:spec", "f:replicas"];
    let mut wanted = desired();
    wanted["spec"].as_object_mut().unwrap().remove("replicas");
    let applied = [entry(US, APPLY, "", whole())];
    assert!(!is_to_be_handed_over(&applied, US, &[]) && is_to_be_handed_over(&applied, US, &[replicas]));
    let after = handed_over(&applied, US, &wanted, &[replicas]);
    assert_eq!(after.len(), 2);
    assert_eq!((operation(&after[0]), find(fields(&after[0]), replicas)), (APPLY, None));
    assert_eq!((operation(&after[1]), fields(&after[1])), (UPDATE, &json!({ "f:spec": { "f:replicas": {} } })));
    assert!(!is_to_be_handed_over(&after, US, &[replicas]));
    // And back: an apply that does not name what is ours by an update as well would not take it away.
    assert!(is_to_be_handed_over(&after, US, &[]));
    let back = handed_over(&after, US, &desired(), &[]);
    assert_eq!((back.len(), find(fields(&back[0]), replicas)), (1, Some(&json!({}))));
}

#[test]
fn what_others_put_beside_ours_is_taken() {
    let path = &["f:spec", "f:ports"];
    let port = |port: u16| json!({ "f:spec": { "f:ports": { format!("k:{{\"port\":{port},\"protocol\":\"TCP\"}}"): { ".": {}, "f:port": {} } } } });
    let mut theirs = port(8080);
    theirs["f:metadata"] = json!({ "f:labels": { "f:team": {} } });
    let status = entry("controller", UPDATE, "status", port(1));
    let managed = [
        entry(US, APPLY, "", port(80)),
        entry("somebody", UPDATE, "", theirs),
        entry("another", UPDATE, "", port(8081)),
        entry("flux", APPLY, "", port(8082)),
        status.clone(),
    ];
    let after = reclaimed(&managed, US, path).unwrap();
    let mut all = port(80);
    join(&mut all, port(8080));
    join(&mut all, port(8081));
    assert_eq!(fields(&after[0]), &all);
    let label = json!({ "f:metadata": { "f:labels": { "f:team": {} } } });
    assert_eq!(after[1..], [entry("somebody", UPDATE, "", label), entry("flux", APPLY, "", port(8082)), status]);
    assert_eq!(reclaimed(&after, US, path), None);
    assert_eq!(reclaimed(&[entry("somebody", UPDATE, "", port(80))], US, path), None, "nothing is ours");
}

/// By a write of its scale, an update, or an apply by force.
#[rstest]
#[case::scaled(entry("hpa", "Update", "scale", json!({ "f:spec": { "f:replicas": {} } })), Some("hpa"))]
#[case::updated(entry("kubectl-edit", "Update", "", json!({ "f:spec": { "f:replicas": {} } })), Some("kubectl-edit"))]
#[case::applied(entry("argocd", "Apply", "", json!({ "f:spec": { "f:replicas": {} } })), Some("argocd"))]
#[case::left_to_others(entry(US, "Update", "", json!({ "f:spec": { "f:replicas": {} } })), None)]
#[case::something_else(entry("argocd", "Apply", "", json!({ "f:spec": { "f:paused": {} } })), None)]
fn who_took_a_field_is_named(#[case] taker: ManagedFieldsEntry, #[case] named: Option<&str>) {
    let path = ["f:spec", "f:replicas"];
    let mut rest = whole();
    take(&mut rest, &path);
    let taken = [entry(US, "Apply", "", rest), taker.clone()];
    assert_eq!(who_took(&taken, US, &path), named);
    assert_eq!(who_took(&[entry(US, "Apply", "", whole()), taker.clone()], US, &path), None, "both say it");
    assert_eq!(who_took(&[taker], US, &path), None, "it was never ours");
}
