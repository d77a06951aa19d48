#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1;
use rstest::rstest;

use super::*;
use crate::field_set::visits;

const MANAGER: &str = "example/test";

fn entry(manager: &str, set: Value) -> ManagedFieldsEntry {
    ManagedFieldsEntry {
        manager: Some(manager.into()),
        fields_v1: Some(FieldsV1(set)),
        ..ManagedFieldsEntry::default()
    }
}

fn desired() -> Value {
    json!({ "metadata": { "labels": { "app": "a" } }, "spec": {
        "replicas": 0, "paused": false, "selector": { "app": "a" }, "command": ["sh", "-c"], "secrets": null,
        "resources": { "limits": { "cpu": "0.5" } },
        "ports": [{ "port": 80, "targetPort": 80 }, { "port": 53, "protocol": "UDP" }],
    } })
}

/// Returns the object as the apiserver stores it.
fn live() -> Value {
    json!({ "metadata": { "labels": { "app": "a" } }, "spec": {
        "replicas": 0, "selector": { "app": "a" }, "command": ["sh", "-c"], "strategy": "default",
        "resources": { "limits": { "cpu": "500m" } },
        "ports": [
            { "port": 80, "protocol": "TCP", "targetPort": 80, "nodePort": 30000 },
            { "port": 53, "protocol": "UDP", "nodePort": 30001 },
        ],
    } })
}

fn applied() -> ManagedFieldsEntry {
    entry(
        MANAGER,
        json!({ "f:metadata": { "f:labels": { "f:app": {} } }, "f:spec": {
        "f:replicas": {}, "f:selector": {}, "f:command": {}, "f:resources": { "f:limits": { "f:cpu": {} } },
        "f:ports": {
            "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:port": {}, "f:targetPort": {} },
            "k:{\"port\":53,\"protocol\":\"UDP\"}": { ".": {}, "f:port": {}, "f:protocol": {} },
        },
    } }),
    )
}

/// Each change is detected both by the process that confirmed the values and by a new process.
#[rstest]
#[case::nothing(|_: &mut Value| {}, None)]
#[case::a_field_of_others(|it: &mut Value| it["spec"]["strategy"] = json!("other"), None)]
#[case::a_label_of_others(|it: &mut Value| it["metadata"]["labels"]["team"] = json!("x"), None)]
#[case::a_default_inside_an_item(|it: &mut Value| it["spec"]["ports"][0]["nodePort"] = json!(30002), None)]
#[case::an_item_of_others(|it: &mut Value| it["spec"]["ports"].as_array_mut().unwrap().insert(0, json!({ "port": 81, "protocol": "TCP" })), None)]
#[case::another_order(|it: &mut Value| it["spec"]["ports"].as_array_mut().unwrap().reverse(), None)]
#[case::a_scalar(|it: &mut Value| it["spec"]["replicas"] = json!(3), Some("spec.replicas"))]
#[case::empty_value(|it: &mut Value| it["spec"]["paused"] = json!(true), Some("spec.paused"))]
#[case::a_quantity(|it: &mut Value| it["spec"]["resources"]["limits"]["cpu"] = json!("501m"), Some("spec.resources.limits.cpu"))]
#[case::the_only_key(|it: &mut Value| it["spec"]["resources"]["limits"] = json!({ "memory": "1" }), Some("spec.resources.limits.cpu"))]
#[case::all_labels(|it: &mut Value| it["metadata"] = json!({}), Some("metadata.labels"))]
#[case::an_atomic_list(|it: &mut Value| it["spec"]["command"] = json!(["sh"]), Some("spec.command"))]
#[case::one_more_in_an_atomic_list(|it: &mut Value| it["spec"]["command"] = json!(["sh", "-c", "x"]), Some("spec.command"))]
#[case::a_key_of_an_item(|it: &mut Value| it["spec"]["ports"][0]["port"] = json!(8080), Some("spec.ports[port=80,protocol=TCP]"))]
#[case::a_field_of_an_item(|it: &mut Value| it["spec"]["ports"][0]["targetPort"] = json!(8080), Some("spec.ports[port=80,protocol=TCP].targetPort"))]
#[case::missing_item(|it: &mut Value| _ = it["spec"]["ports"].as_array_mut().unwrap().remove(1), Some("spec.ports[port=53,protocol=UDP]"))]
fn drift_is_a_difference_of_the_desired_fields(
    #[case] change: fn(&mut Value),
    #[case] drift: Option<&str>,
) {
    let mut changed = live();
    change(&mut changed);
    let managed = [applied()];
    let (before, after) = (
        project(&live(), &desired(), &managed),
        project(&changed, &desired(), &managed),
    );
    assert_eq!(before.digest() != after.digest(), drift.is_some());
    assert_eq!(
        format_paths(&after.differences(&before)),
        drift.unwrap_or_default()
    );
    assert_eq!(
        matches(&changed, &desired(), &managed, MANAGER),
        drift.is_none()
    );
}

/// An entry of `managedFields` that has lost its items to other managers does not make the list atomic.
#[test]
fn list_is_matched_by_key_after_others_took_its_items() {
    let mut emptied = applied().fields_v1.unwrap().0;
    emptied["f:spec"]["f:ports"] = json!({});
    let foreign = json!({ "f:spec": { "f:ports": { "k:{\"port\":8080,\"protocol\":\"TCP\"}": { "f:port": {} } } } });
    let mut changed = live();
    changed["spec"]["ports"] = json!([{ "port": 8080, "protocol": "TCP", "targetPort": 80 }]);
    let managed = [entry(MANAGER, emptied), entry("kubectl-edit", foreign)];
    assert!(!matches(&changed, &desired(), &managed, MANAGER));
    let differences = project(&changed, &desired(), &managed).differences(&project(
        &live(),
        &desired(),
        &[applied()],
    ));
    assert_eq!(
        format_paths(&differences),
        "spec.ports[port=53,protocol=UDP] and spec.ports[port=80,protocol=TCP]"
    );
}

#[test]
fn repeated_item_is_a_difference() {
    let mut repeated = live();
    let ports = repeated["spec"]["ports"].as_array_mut().unwrap();
    ports.push(json!({ "port": 80, "protocol": "TCP", "targetPort": 8080 }));
    let managed = [applied()];
    assert!(!matches(&repeated, &desired(), &managed, MANAGER));
    let differences = project(&repeated, &desired(), &managed).differences(&project(
        &live(),
        &desired(),
        &managed,
    ));
    assert_eq!(
        format_paths(&differences),
        "spec.ports[port=80,protocol=TCP]"
    );
}

/// A list may have hundreds of items, and is compared in one poll of a worker.
#[test]
fn cost_of_a_comparison_grows_linearly_with_the_items() {
    let cost = |count: usize| {
        let variables: Vec<_> = (0..count)
            .map(|at| json!({ "name": format!("N{at}"), "value": "v" }))
            .collect();
        let set: Map<_, _> = (0..count)
            .map(|at| {
                (
                    format!("k:{{\"name\":\"N{at}\"}}"),
                    json!({ ".": {}, "f:name": {}, "f:value": {} }),
                )
            })
            .collect();
        let object = json!({ "spec": { "env": variables } });
        let managed = [entry(MANAGER, json!({ "f:spec": { "f:env": set } }))];
        let projecting = visits(|| _ = project(&object, &object, &managed));
        let matching = visits(|| assert!(matches(&object, &object, &managed, MANAGER)));
        (projecting, matching)
    };
    let (small, large) = (cost(256), cost(512));
    assert!(small.0 >= 256 && small.1 >= 256, "{small:?}");
    assert!(
        large.0 <= 2 * small.0 && large.1 <= 2 * small.1,
        "{small:?} {large:?}"
    );
}

/// An atomic field may contain the apiserver's defaults, but no value of another manager.
#[test]
fn atomic_field_may_have_defaults_unless_others_wrote_it() {
    let mut filled = live();
    filled["spec"]["selector"]["version"] = json!("1");
    assert!(matches(&filled, &desired(), &[applied()], MANAGER));
    let foreign = entry("somebody", json!({ "f:spec": { "f:selector": {} } }));
    assert!(!matches(
        &filled,
        &desired(),
        &[applied(), foreign],
        MANAGER
    ));
    let before = project(&live(), &desired(), &[applied()]);
    assert_ne!(
        project(&filled, &desired(), &[applied()]).digest(),
        before.digest()
    );
}

#[test]
fn object_without_managers_is_compared_item_by_item() {
    let (desired, bare) = (desired(), project(&live(), &desired(), &[]));
    assert!(matches(&live(), &desired, &[], MANAGER));
    let mut more = live();
    more["spec"]["ports"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "port": 81 }));
    assert_ne!(project(&more, &desired, &[]), bare);
}

#[rstest]
#[case("0.5", "500m", true)]
#[case("1000m", "1", true)]
#[case("1024Mi", "1Gi", true)]
#[case("1e3", "1k", true)]
#[case("0.5Gi", "512Mi", true)]
#[case("-1", "-1000m", true)]
#[case("1", "1.1", false)]
#[case("1Ki", "1k", false)]
#[case("1E", "1e", false)]
#[case("one", "one more", false)]
#[case("1e99999999999", "1", false)]
fn quantities_are_compared_by_their_value(
    #[case] one: &str,
    #[case] other: &str,
    #[case] equal: bool,
) {
    let path = ["f:limits".to_owned(), "f:cpu".into()].to_vec();
    assert_eq!(same(&path, &json!(one), &json!(other)), equal);
    let elsewhere = ["f:env".to_owned(), "f:value".into()].to_vec();
    assert!(
        !same(&elsewhere, &json!(one), &json!(other)),
        "only where the API has quantities"
    );
}

#[test]
fn many_fields_are_named_by_the_first() {
    let paths: Vec<_> = (0..7)
        .map(|number| vec!["f:spec".to_owned(), format!("f:a{number}")])
        .collect();
    assert_eq!(
        format_paths(&paths),
        "spec.a0, spec.a1, spec.a2, spec.a3, spec.a4 and 2 more"
    );
    assert_eq!(format_paths(&paths[..1]), "spec.a0");
    let label = ["f:metadata", "f:labels", "f:app.kubernetes.io/name"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(
        format_paths(&[label]),
        "metadata.labels[app.kubernetes.io/name]"
    );
}

#[test]
fn values_that_may_be_secret_are_not_shown() {
    let container = json!({
        "name": "web", "image": "nginx:evil", "args": ["--password=sesame"], "command": ["sesame"],
        "env": [{ "name": "image", "value": "sesame" }],
        "livenessProbe": { "httpGet": { "port": 80, "path": "/sesame", "httpHeaders": [{ "name": "type", "value": "sesame" }] } },
    });
    let metadata = json!({ "annotations": { "image": "sesame", "type": "sesame" } });
    let object = json!({
        "metadata": metadata, "data": { "image": "sesame", "port": "sesame" },
        "spec": { "replicas": 5, "type": "a".repeat(65), "port": "two\nlines",
            "template": { "metadata": metadata, "spec": { "containers": [container] } } },
    });
    let values = all(&object);
    let paths: Vec<_> = values.values.keys().cloned().collect();
    let visible: Vec<_> = paths
        .iter()
        .filter_map(|path| values.visible_value(path))
        .collect();
    assert_eq!(visible, ["5", "nginx:evil", "80"]);
    let replicas = vec![vec!["f:spec".to_owned(), "f:replicas".into()]];
    assert_eq!(old_values(&replicas, &values), "spec.replicas=5");
    assert_eq!(old_values(&replicas, &Projection::default()), "");
    assert!(!old_values(&paths, &values).contains("sesame"));
}
