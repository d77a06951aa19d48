#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value
)]

use rstest::rstest;
use serde_json::json;

use super::*;

fn manager(name: &str, second: u8, fields: Value) -> Value {
    json!({ "manager": name, "operation": "Update", "time": format!("2026-01-01T00:00:0{second}Z"), "fieldsV1": fields })
}

fn deployment(managers: &[Value]) -> Value {
    json!({
        "metadata": { "managedFields": managers, "annotations": { "a": "1", "b": "2" } },
        "spec": {
            "replicas": 2,
            "template": { "spec": { "containers": [
                { "name": "web", "image": "web:2", "args": ["x", "y"], "ports": [
                    { "containerPort": 80, "protocol": "TCP" }, { "containerPort": 81, "protocol": "TCP" },
                ] },
                { "name": "side", "image": "side:1" },
            ] } },
        },
    })
}

fn container(name: &str, fields: Value) -> Value {
    let key = format!(r#"k:{{"name":"{name}"}}"#);
    json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { key: fields } } } } })
}

fn changed_by(field: &str, object: &Value) -> Option<String> {
    let selector = FieldSelector::compile("Deployment", field).unwrap();
    selector.changed_by(object).map(|it| it.to_string())
}

#[rstest]
#[case::word("replicas", json!({ "f:spec": { "f:replicas": {} } }))]
#[case::path("{.spec.replicas}", json!({ "f:spec": { "f:replicas": {} } }))]
#[case::first_container("image", container("web", json!({ ".": {}, "f:image": {}, "f:name": {} })))]
#[case::named_container("image:side", container("side", json!({ "f:image": {} })))]
#[case::one_of_all_containers("images", container("side", json!({ "f:image": {} })))]
#[case::atomic_list("{.spec.template.spec.containers[0].args}", container("web", json!({ "f:args": {} })))]
#[case::item_of_an_atomic_list("{.spec.template.spec.containers[0].args[1]}", container("web", json!({ "f:args": {} })))]
#[case::two_keys(
    "{.spec.template.spec.containers[0].ports[1].protocol}",
    container("web", json!({ "f:ports": { r#"k:{"containerPort":81,"protocol":"TCP"}"#: { "f:protocol": {} } } }))
)]
#[case::part_of_an_object("{.metadata.annotations}", json!({ "f:metadata": { "f:annotations": { ".": {}, "f:b": {} } } }))]
fn owner_of_the_value_changed_it(#[case] field: &str, #[case] fields: Value) {
    let elsewhere = manager("elsewhere", 9, json!({ "f:status": { "f:replicas": {} } }));
    let object = deployment(&[elsewhere, manager("kubectl-edit", 1, fields)]);
    assert_eq!(changed_by(field, &object).as_deref(), Some("kubectl-edit"));
}

#[test]
fn subresource_is_named_and_everything_is_kept() {
    let mut scaled = manager(
        "kube-controller-manager",
        3,
        json!({ "f:spec": { "f:replicas": {} } }),
    );
    scaled["subresource"] = "scale".into();
    let object = deployment(&[scaled]);
    let selector = FieldSelector::compile("Deployment", "replicas").unwrap();
    let found = selector.changed_by(&object).unwrap();
    assert_eq!(found.to_string(), "kube-controller-manager (scale)");
    assert_eq!(
        serde_json::to_value(found).unwrap(),
        json!({ "manager": "kube-controller-manager", "operation": "Update", "subresource": "scale", "time": "2026-01-01T00:00:03Z" })
    );
}

/// Appliers that agree on a value share the field.
#[test]
fn newest_of_several_owners_counts_and_two_in_one_second_are_unknown() {
    let replicas = || json!({ "f:spec": { "f:replicas": {} } });
    let object = |seconds: [u8; 2]| {
        deployment(&[
            manager("first", seconds[0], replicas()),
            manager("second", seconds[1], replicas()),
        ])
    };
    assert_eq!(
        changed_by("replicas", &object([1, 2])).as_deref(),
        Some("second")
    );
    assert_eq!(
        changed_by("replicas", &object([3, 2])).as_deref(),
        Some("first")
    );
    assert_eq!(changed_by("replicas", &object([2, 2])), None);
}

#[test]
fn empty_entry_owns_nothing_where_others_have_entries_below_it() {
    let shrunk = manager(
        "creator",
        9,
        json!({ "f:metadata": { "f:annotations": {} } }),
    );
    let editor = manager(
        "editor",
        1,
        json!({ "f:metadata": { "f:annotations": { "f:a": {}, "f:b": {} } } }),
    );
    let object = deployment(&[shrunk.clone(), editor]);
    for field in ["{.metadata.annotations.a}", "{.metadata.annotations}"] {
        assert_eq!(
            changed_by(field, &object).as_deref(),
            Some("editor"),
            "{field}"
        );
    }
    // Without other managers' entries, the empty entry owns an atomic value.
    let object = deployment(&[shrunk]);
    assert_eq!(
        changed_by("{.metadata.annotations.a}", &object).as_deref(),
        Some("creator")
    );
}

#[rstest]
#[case::nobody("replicas", json!([]))]
#[case::other_field("replicas", json!([manager("a", 1, json!({ "f:spec": { "f:paused": {} } }))]))]
#[case::other_item("image", json!([manager("a", 1, container("side", json!({ "f:image": {} })))]))]
#[case::nothing_left("replicas", json!([manager("a", 1, json!({}))]))]
#[case::no_match("{.spec.none}", json!([manager("a", 1, json!({ "f:spec": { "f:none": {} } }))]))]
#[case::no_fields("replicas", json!([{ "manager": "a", "operation": "Update" }]))]
#[case::not_a_list("replicas", json!("a"))]
#[case::no_name("replicas", json!([manager("", 1, json!({ "f:spec": { "f:replicas": {} } }))]))]
fn writer_is_unknown(#[case] field: &str, #[case] managers: Value) {
    let mut object = deployment(&[]);
    object["metadata"]["managedFields"] = managers;
    assert_eq!(changed_by(field, &object), None);
}

/// Managers of 64 KiB are read completely, and the value's writer is found among them.
#[test]
fn writer_is_found_in_large_managed_fields() {
    let mut managers = vec![manager(
        "kubectl-edit",
        9,
        container("web", json!({ "f:image": {} })),
    )];
    while json!(managers).to_string().len() < 64 * 1024 {
        let name = |number| (format!("f:example.com/annotation-{number}"), json!({}));
        let annotations: Map<_, _> = (0..100).map(name).collect();
        let fields = json!({
            "f:metadata": { "f:annotations": annotations },
            "f:spec": container("web", json!({ "f:image": {} }))["f:spec"],
        });
        managers.push(manager("earlier", 1, fields));
    }
    let last = managers.remove(0);
    managers.push(last);
    let object = deployment(&managers);
    assert_eq!(
        changed_by("image", &object).as_deref(),
        Some("kubectl-edit")
    );
}

#[test]
fn work_is_bounded() {
    let items = |count: usize| -> Vec<_> {
        (0..count)
            .map(|number| json!({ "name": format!("item-{number}"), "value": 1 }))
            .collect()
    };
    let entries = |count: usize| -> Map<String, Value> {
        let key = |number| {
            (
                format!(r#"k:{{"name":"item-{number}"}}"#),
                json!({ "f:value": {} }),
            )
        };
        (0..count).map(key).collect()
    };
    let object = |count: usize| {
        let fields = json!({ "f:items": entries(count) });
        json!({ "metadata": { "managedFields": [manager("a", 1, fields)] }, "items": items(count) })
    };
    assert_eq!(
        changed_by("{.items[*].value}", &object(MAX_MATCHES)).as_deref(),
        Some("a")
    );
    assert_eq!(
        changed_by("{.items[*].value}", &object(MAX_MATCHES + 1)),
        None
    );
    assert_eq!(
        changed_by("{.items[0].value}", &object(MAX_COMPARED)).as_deref(),
        Some("a")
    );
    assert_eq!(
        changed_by("{.items[0].value}", &object(MAX_COMPARED + 1)),
        None
    );
}
