#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::field_set::visits;

const MANAGER: &str = "example/test";

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

/// Returns the set of all fields of `desired`, as the apiserver writes it.
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

#[test]
fn upgrade_takes_desired_fields_of_other_writers_only() {
    let sidecar = json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"side\"}": { ".": {}, "f:name": {} } } } } } });
    let annotation = json!({ "f:metadata": { "f:annotations": { "f:note": {} } } });
    let status = json!({ "f:status": { "f:replicas": {} } });
    let mut old = whole();
    old["f:spec"]["f:strategy"] = json!({ "f:type": {} });
    let mut edited = json!({ "f:spec": { "f:template": { "f:spec": { "f:tolerations": {} } } } });
    let toleration = edited.clone();
    edited["f:spec"]["f:template"]["f:spec"]["f:containers"] =
        json!({ "k:{\"name\":\"a\"}": { "f:image": {} } });
    let managed = [
        entry("kubectl-edit", UPDATE, "", edited),
        entry("operator", UPDATE, "", old.clone()),
        entry("kubectl-patch", UPDATE, "", sidecar),
        entry("kubectl-annotate", UPDATE, "", annotation),
        entry("kube-controller-manager", UPDATE, "status", status),
        entry(
            "kubectl-scale",
            UPDATE,
            "scale",
            json!({ "f:spec": { "f:replicas": {} } }),
        ),
        entry("flux", APPLY, "", json!({ "f:spec": { "f:replicas": {} } })),
        entry(
            "kubectl-set",
            UPDATE,
            "",
            json!({ "f:spec": { "f:template": { "f:spec": { "f:containers": { "k:{\"name\":\"a\"}": { "f:image": {} } } } } } }),
        ),
    ];
    assert!(needs_upgrade(&managed, MANAGER, &[]));
    let after = upgraded(&managed, MANAGER, &desired(), &[], true);
    let name = |entry: &ManagedFieldsEntry| {
        format!("{} {}", entry.manager.as_deref().unwrap(), operation(entry))
    };
    let names: Vec<_> = after.iter().map(name).collect();
    assert_eq!(
        names,
        [
            "kubectl-edit Update",
            "kubectl-patch Update",
            "kubectl-annotate Update",
            "kube-controller-manager Update",
            "kubectl-scale Update",
            "flux Apply",
            "example/test Apply"
        ]
    );
    assert_eq!(
        after[0].fields_v1,
        Some(FieldsV1(toleration)),
        "a field outside the desired state stays"
    );
    assert_eq!(after[6].fields_v1, Some(FieldsV1(old)));
    assert!(!needs_upgrade(&after, MANAGER, &[]));
}

#[test]
fn adoption_leaves_other_fields_to_the_creator() {
    let mut created = whole();
    created["f:spec"]["f:strategy"] = json!({ "f:type": {} });
    let managed = [entry("kubectl-create", UPDATE, "", created)];
    let after = upgraded(&managed, MANAGER, &desired(), &[], false);
    let owned: Vec<_> = after.iter().map(fields).cloned().collect();
    assert_eq!(
        owned,
        [
            json!({ "f:spec": { "f:strategy": { "f:type": {} } } }),
            whole()
        ]
    );
}

#[test]
fn released_field_keeps_its_value_without_being_applied() {
    let replicas: &[&str] = &["f:spec", "f:replicas"];
    let mut without_replicas = desired();
    without_replicas["spec"]
        .as_object_mut()
        .unwrap()
        .remove("replicas");
    let applied = [entry(MANAGER, APPLY, "", whole())];
    assert!(
        !needs_upgrade(&applied, MANAGER, &[]) && needs_upgrade(&applied, MANAGER, &[replicas])
    );
    let after = upgraded(&applied, MANAGER, &without_replicas, &[replicas], true);
    assert_eq!(after.len(), 2);
    assert_eq!(
        (operation(&after[0]), find(fields(&after[0]), replicas)),
        (APPLY, None)
    );
    assert_eq!(
        (operation(&after[1]), fields(&after[1])),
        (UPDATE, &json!({ "f:spec": { "f:replicas": {} } }))
    );
    assert!(!needs_upgrade(&after, MANAGER, &[replicas]));
    // In the other direction: an apply without the field does not remove the field while an update by the same manager
    // owns it.
    assert!(needs_upgrade(&after, MANAGER, &[]));
    let back = upgraded(&after, MANAGER, &desired(), &[], true);
    assert_eq!(
        (back.len(), find(fields(&back[0]), replicas)),
        (1, Some(&json!({})))
    );
}

fn path(elements: &[&str]) -> Path {
    elements
        .iter()
        .map(|element| (*element).to_owned())
        .collect()
}

fn port(number: u16) -> String {
    format!("k:{{\"port\":{number},\"protocol\":\"TCP\"}}")
}

fn ports(numbers: &[u16]) -> Value {
    let items: Map<_, _> = numbers
        .iter()
        .map(|number| (port(*number), json!({ ".": {}, "f:port": {} })))
        .collect();
    json!({ "f:spec": { "f:ports": items } })
}

fn service() -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "spec": { "type": "NodePort", "selector": { "app": "a" },
        "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }] } })
}

#[test]
fn transfer_takes_the_fields_from_every_manager_and_nothing_else() {
    let mut foreign = ports(&[8080]);
    foreign["f:metadata"] = json!({ "f:labels": { "f:team": {} } });
    let status = entry("controller", UPDATE, "status", ports(&[1]));
    let managed = [
        entry(MANAGER, APPLY, "", ports(&[80])),
        entry("somebody", UPDATE, "", foreign),
        entry("flux", APPLY, "", ports(&[8080, 8081])),
        status.clone(),
    ];
    let paths = [path(&["f:spec", "f:ports", &port(8080)])].into();
    let taken = transfer(&managed, MANAGER, &paths).unwrap();
    let label = json!({ "f:metadata": { "f:labels": { "f:team": {} } } });
    let after = [
        entry(MANAGER, APPLY, "", ports(&[80, 8080])),
        entry("somebody", UPDATE, "", label),
        entry("flux", APPLY, "", ports(&[8081])),
        status,
    ];
    assert_eq!(taken.entries, after);
    let expected = TakenFields {
        fields: paths.clone(),
        managers: ["flux".into(), "somebody".into()].into(),
    };
    assert_eq!(taken.taken, expected);
    assert_eq!(
        super::transfer(&taken.entries, MANAGER, &paths),
        None,
        "no other manager owns the field any more"
    );
    assert_eq!(
        super::transfer(
            &[entry("somebody", UPDATE, "", ports(&[8080]))],
            MANAGER,
            &paths
        ),
        None,
        "the manager has applied nothing"
    );
}

#[test]
fn claimed_field_is_applied_whether_or_not_a_manager_owns_it() {
    let managed = [
        entry(MANAGER, APPLY, "", ports(&[80])),
        entry("flux", APPLY, "", ports(&[8080])),
    ];
    let paths = [
        path(&["f:spec", "f:ports", &port(80), "f:nodePort"]),
        path(&["f:spec", "f:ports", &port(8080)]),
    ];
    let after = claimed(&managed, MANAGER, &paths).unwrap();
    let mut applied = ports(&[80]);
    applied["f:spec"]["f:ports"][port(80)]["f:nodePort"] = json!({});
    applied["f:spec"]["f:ports"][port(8080)] = json!({});
    assert_eq!(
        after,
        [entry(MANAGER, APPLY, "", applied), managed[1].clone()]
    );
    assert_eq!(claimed(&after, MANAGER, &paths), None);
    assert_eq!(claimed(&managed, MANAGER, &[]), None);
}

const CONTAINER: [&str; 5] = [
    "f:spec",
    "f:template",
    "f:spec",
    "f:containers",
    "k:{\"name\":\"a\"}",
];

/// Returns a set that owns these fields in the app's container, and other fields outside the container.
fn in_container(fields: Value) -> Value {
    let mut set = nested(&CONTAINER, fields);
    let pod = set.pointer_mut("/f:spec/f:template/f:spec").unwrap();
    pod["f:containers"]["k:{\"name\":\"side\"}"] = json!({ ".": {}, "f:name": {}, "f:image": {} });
    pod["f:volumes"] = json!({ "k:{\"name\":\"v\"}": { ".": {}, "f:name": {} } });
    pod["f:tolerations"] = json!({});
    set
}

fn pod() -> Value {
    json!({ "apiVersion": "apps/v1", "spec": { "template": { "spec": { "serviceAccountName": "s", "containers": [{
        "name": "a", "image": "i",
        "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }, { "name": "B", "value": "1" }],
        "resources": { "requests": { "cpu": "1" } },
        "livenessProbe": { "httpGet": { "port": 80 } },
        "ports": [{ "containerPort": 80 }],
    }] } } } })
}

/// Each field is named as the apiserver names it when it rejects two values, of one manager each, that exclude each
/// other.
#[rstest]
#[case::the_other_half_of_an_item(
    "containers[0].env[1].valueFrom",
    json!({ "f:env": { "k:{\"name\":\"A\"}": { "f:value": {} }, "k:{\"name\":\"FOREIGN\"}": { ".": {}, "f:name": {}, "f:value": {} } } }),
    &["f:env", "k:{\"name\":\"A\"}", "f:value"]
)]
#[case::limit_below_the_request(
    "containers[0].resources.requests",
    json!({ "f:resources": { "f:limits": { "f:cpu": {} } }, "f:tty": {} }),
    &["f:resources", "f:limits"]
)]
#[case::foreign_handler("containers[0].livenessProbe.tcpSocket", json!({ "f:livenessProbe": { "f:tcpSocket": { "f:port": {} }, "f:periodSeconds": {} } }), &["f:livenessProbe", "f:tcpSocket"])]
#[case::desired_handler("containers[0].livenessProbe.httpGet", json!({ "f:livenessProbe": { "f:tcpSocket": { "f:port": {} } } }), &["f:livenessProbe", "f:tcpSocket"])]
#[case::foreign_item(
    "containers[0].ports[1].name",
    json!({ "f:ports": { "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": { ".": {}, "f:containerPort": {} } } }),
    &["f:ports", "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}"]
)]
#[case::a_sidecar_stays("containers[1].image", json!({}), &[])]
#[case::a_volume_stays("volumes[0].name", json!({}), &[])]
#[case::a_toleration_stays("serviceAccountName", json!({ "f:tty": {} }), &[])]
#[case::item_without_a_desired_field("containers[0].env[1].name", json!({ "f:resources": { "f:limits": { "f:cpu": {} } } }), &[])]
fn smallest_item_or_map_with_a_desired_field_is_found(
    #[case] field: &str,
    #[case] foreign: Value,
    #[case] expected: &[&str],
) {
    let managed = [
        entry(
            MANAGER,
            APPLY,
            "",
            in_container(json!({ ".": {}, "f:image": {} })),
        ),
        entry("kubectl-set", UPDATE, "", in_container(foreign)),
    ];
    let found = conflicting_fields(
        &managed,
        MANAGER,
        &json!({}),
        &pod(),
        &format!("spec.template.spec.{field}"),
    );
    let all: BTreeSet<_> = (!expected.is_empty())
        .then(|| path(&[&CONTAINER, expected].concat()))
        .into_iter()
        .collect();
    assert_eq!(found, all);
}

#[rstest]
#[case::foreign_item("spec.ports[1].name", ports(&[8080]), &["f:spec", "f:ports", "k:{\"port\":8080,\"protocol\":\"TCP\"}"])]
#[case::foreign_field("spec.externalTrafficPolicy", json!({ "f:spec": { "f:externalTrafficPolicy": {}, "f:sessionAffinity": {} } }), &["f:spec", "f:externalTrafficPolicy"])]
#[case::field_in_upper_case("spec.LoadBalancerSourceRanges", json!({ "f:spec": { "f:loadBalancerSourceRanges": {}, "f:sessionAffinity": {} } }), &["f:spec", "f:loadBalancerSourceRanges"])]
#[case::no_other_manager("spec.ports[0].nodePort", json!({ "f:spec": { "f:sessionAffinity": {} } }), &[])]
fn conflicting_fields_of_a_service_are_found(
    #[case] field: &str,
    #[case] foreign: Value,
    #[case] expected: &[&str],
) {
    let managed = [
        entry(MANAGER, APPLY, "", ports(&[80])),
        entry("somebody", UPDATE, "", foreign),
    ];
    let all: BTreeSet<_> = (!expected.is_empty())
        .then(|| path(expected))
        .into_iter()
        .collect();
    assert_eq!(
        conflicting_fields(&managed, MANAGER, &json!({}), &service(), field),
        all
    );
}

/// The app no longer has the volume `old`, which another manager mounts, and still has the volume `v`.
#[rstest]
#[case::without_a_desired_mount("volumeMounts", "mountPath", json!(null))]
#[case::beside_a_desired_mount("volumeMounts", "mountPath", json!([{ "name": "v", "mountPath": "/v" }]))]
#[case::device("volumeDevices", "devicePath", json!(null))]
fn only_mounts_of_a_removed_volume_conflict(
    #[case] list: &str,
    #[case] key: &str,
    #[case] desired_mounts: Value,
) {
    let mount = |path: &str| format!("k:{{\"{key}\":\"{path}\"}}");
    let set = json!({ ".": {}, "f:name": {} });
    let mut own = in_container(json!({ ".": {}, "f:image": {} }));
    own["f:spec"]["f:template"]["f:spec"]["f:volumes"]["k:{\"name\":\"old\"}"] = set.clone();
    let foreign =
        json!({ "f:tty": {}, format!("f:{list}"): { mount("/old"): set, mount("/new"): set } });
    let managed = [
        entry(MANAGER, APPLY, "", own),
        entry("injector", UPDATE, "", in_container(foreign)),
    ];
    let mounts = json!([{ "name": "old", key: "/old" }, { "name": "v", key: "/new" }]);
    let mut object = pod();
    object["spec"]["template"]["spec"]["containers"][0][list] = mounts;
    let mut desired = pod();
    desired["spec"]["template"]["spec"]["containers"][0][list] = desired_mounts;
    desired["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "v" }]);
    let field = format!("spec.template.spec.containers[0].{list}[0].name");
    let found = conflicting_fields(&managed, MANAGER, &object, &desired, &field);
    let list = format!("f:{list}");
    let expected = [path(&CONTAINER), path(&[&list, &mount("/old")])].concat();
    assert_eq!(found, BTreeSet::from([expected]));
}

/// Another client renumbered the app's port and kept its name; another manager added a port.
#[test]
fn items_that_exclude_no_desired_item_do_not_conflict() {
    let managed = [
        entry(MANAGER, APPLY, "", ports(&[80])),
        entry("somebody", UPDATE, "", ports(&[8080, 9090])),
    ];
    let all = |ports: Value| json!({ "spec": { "ports": ports } });
    let renamed = json!({ "port": 8080, "protocol": "TCP", "name": "http" });
    let metrics = json!({ "port": 9090, "protocol": "TCP", "name": "metrics" });
    let object = all(json!([renamed, metrics]));
    let named = |name: Value| all(json!([{ "port": 80, "protocol": "TCP", "name": name }]));
    let of = |port: u16| path(&["f:spec", "f:ports", &self::port(port)]);
    let found = |desired: Value| {
        conflicting_fields(&managed, MANAGER, &object, &desired, "spec.ports[1].name")
    };
    assert_eq!(found(named(json!("http"))), BTreeSet::from([of(8080)]));
    assert_eq!(
        found(all(json!([{ "port": 80, "protocol": "TCP" }]))),
        BTreeSet::from([of(8080), of(9090)]),
        "all need a name"
    );
}

/// A port that differs from the app's only in its number is the app's; other or additional ports are foreign.
#[rstest]
#[case::another_number(json!([{ "port": 8080, "protocol": "TCP", "targetPort": 80, "nodePort": 30000 }]), &[8080])]
#[case::another_target(json!([{ "port": 8080, "protocol": "TCP", "targetPort": 8080 }]), &[])]
#[case::beside_the_desired_port(json!([{ "port": 80, "protocol": "TCP", "targetPort": 80 }, { "port": 8080, "protocol": "TCP", "targetPort": 80 }]), &[])]
#[case::two(json!([{ "port": 8080, "protocol": "TCP", "targetPort": 80 }, { "port": 8081, "protocol": "TCP", "targetPort": 80 }]), &[])]
fn renumbered_port_differs_from_a_foreign_port(#[case] live: Value, #[case] expected: &[u16]) {
    let mut object = service();
    object["spec"]["ports"] = live;
    let managed = [
        entry(MANAGER, UPDATE, "", json!({ "f:spec": { "f:ports": {} } })),
        entry("somebody", UPDATE, "", ports(&[8080, 8081])),
    ];
    let expected: BTreeSet<_> = expected
        .iter()
        .map(|number| path(&["f:spec", "f:ports", &port(*number)]))
        .collect();
    assert_eq!(
        renumbered(
            &managed,
            MANAGER,
            &content(&object),
            &content(&service()),
            &["port"],
            false
        ),
        expected
    );
}

/// Another client removed or renumbered the app's container port; another manager may have added a port.
#[rstest]
#[case::named_by_others(json!({ "containerPort": 80 }), json!({ "containerPort": 9090, "name": "metrics" }), true, false)]
#[case::unnamed_and_renamed(json!({ "containerPort": 80, "name": "http" }), json!({ "containerPort": 9090 }), true, false)]
#[case::another_name(json!({ "containerPort": 80, "name": "http" }), json!({ "containerPort": 9090, "name": "metrics" }), true, false)]
#[case::a_number_beside_ports_of_others(json!({ "containerPort": 80 }), json!({ "containerPort": 9090 }), false, false)]
#[case::renumbered(json!({ "containerPort": 80 }), json!({ "containerPort": 8080, "protocol": "TCP" }), true, true)]
#[case::named_and_renumbered(json!({ "containerPort": 80, "name": "http" }), json!({ "containerPort": 8080, "name": "http" }), false, true)]
fn foreign_container_port_is_not_taken_for_a_renumbered_one(
    #[case] desired: Value,
    #[case] live: Value,
    #[case] is_alone: bool,
    #[case] is_taken: bool,
) {
    let with = |port: &Value| json!({ "spec": { "template": { "spec": { "containers": [{ "name": "a", "ports": [port] }] } } } });
    let element = |port: &Value| {
        format!(
            "k:{{\"containerPort\":{},\"protocol\":\"TCP\"}}",
            port["containerPort"]
        )
    };
    let set = |port: &Value| {
        nested(
            &CONTAINER,
            json!({ "f:ports": { element(port): { ".": {}, "f:containerPort": {} } } }),
        )
    };
    let managed = [
        entry(MANAGER, APPLY, "", set(&desired)),
        entry("injector", UPDATE, "", set(&live)),
    ];
    let found = renumbered(
        &managed,
        MANAGER,
        &with(&live),
        &with(&desired),
        &["containerPort"],
        is_alone,
    );
    assert_eq!(
        has_foreign_items(&managed, &with(&live), &with(&desired), &["containerPort"]),
        live["containerPort"] != desired["containerPort"]
    );
    let foreign = [path(&CONTAINER), path(&["f:ports", &element(&live)])].concat();
    assert_eq!(found, is_taken.then_some(foreign).into_iter().collect());
}

#[test]
fn label_may_be_owned_unless_another_manager_owns_it() {
    let labels = |names: &[&str]| {
        let names: Map<_, _> = names
            .iter()
            .map(|name| (format!("f:{name}"), json!({})))
            .collect();
        json!({ "f:metadata": { "f:labels": names } })
    };
    let managed = [
        entry(MANAGER, APPLY, "", labels(&["app"])),
        entry(MANAGER, UPDATE, "", labels(&["uid"])),
        entry("agent", UPDATE, "", labels(&["seen"])),
    ];
    let may_own = |managed: &[ManagedFieldsEntry]| {
        ["app", "uid", "seen"].map(|name| may_own_label(managed, MANAGER, name))
    };
    assert_eq!(may_own(&managed), [true, true, false]);
    assert_eq!(may_own(&managed[2..]), [true; 3], "no entry covers labels");
}

/// Another manager wrote the field through the scale subresource, by an update, or by a forced apply.
#[rstest]
#[case::scaled(entry("hpa", "Update", "scale", json!({ "f:spec": { "f:replicas": {} } })), Some("hpa"))]
#[case::updated(entry("kubectl-edit", "Update", "", json!({ "f:spec": { "f:replicas": {} } })), Some("kubectl-edit"))]
#[case::applied(entry("argocd", "Apply", "", json!({ "f:spec": { "f:replicas": {} } })), Some("argocd"))]
#[case::the_status(entry("controller", "Update", "status", json!({ "f:spec": { "f:replicas": {} } })), None)]
#[case::something_else(entry("argocd", "Apply", "", json!({ "f:metadata": { "f:labels": {} } })), None)]
fn last_writer_of_a_field_is_named(#[case] taker: ManagedFieldsEntry, #[case] named: Option<&str>) {
    let managed = [entry(MANAGER, "Apply", "", whole()), taker];
    assert_eq!(
        last_writer(&managed, MANAGER, &[path(&["f:spec", "f:replicas"])]),
        named
    );
}

/// Only a manager that wrote to the list after the operator's apply can have removed the field.
#[test]
fn last_writer_of_a_removed_field_wrote_beside_it_since() {
    let at = |entry: ManagedFieldsEntry, time: &str| ManagedFieldsEntry {
        time: Some(serde_json::from_value(json!(time)).unwrap()),
        ..entry
    };
    let own = at(
        entry(MANAGER, APPLY, "", ports(&[])),
        "2026-01-01T00:00:10Z",
    );
    let removed = [path(&["f:spec", "f:ports", &port(80)])];
    for (time, named) in [
        ("2026-01-01T00:00:20Z", Some("somebody")),
        ("2026-01-01T00:00:05Z", None),
    ] {
        let managed = [
            own.clone(),
            at(entry("somebody", UPDATE, "", ports(&[8080])), time),
        ];
        assert_eq!(last_writer(&managed, MANAGER, &removed), named);
    }
}

/// An agent labels the object after another client removed a label of the operator.
#[test]
fn neighbour_in_a_map_is_not_accused() {
    let labels = |name: &str| json!({ "f:metadata": { "f:labels": { name: {} } } });
    let at = |entry: ManagedFieldsEntry, time: &str| ManagedFieldsEntry {
        time: Some(serde_json::from_value(json!(time)).unwrap()),
        ..entry
    };
    let managed = [
        at(
            entry(MANAGER, APPLY, "", labels("f:other")),
            "2026-01-01T00:00:10Z",
        ),
        at(
            entry("agent", UPDATE, "", labels("f:team")),
            "2026-01-01T00:00:20Z",
        ),
    ];
    assert_eq!(
        last_writer(
            &managed,
            MANAGER,
            &[path(&["f:metadata", "f:labels", "f:x"])]
        ),
        None
    );
}

/// A list may have hundreds of items, and is compared in one poll of a worker.
#[rstest]
#[case::upgraded(|managed: &[ManagedFieldsEntry], object: &Value| _ = upgraded(managed, MANAGER, object, &[], true))]
#[case::has_foreign_items(|managed: &[ManagedFieldsEntry], object: &Value| {
    assert!(!has_foreign_items(managed, object, object, &["port"]));
})]
#[case::renumbered(|managed: &[ManagedFieldsEntry], object: &Value| {
    let nothing = json!({ "spec": { "ports": [] } });
    assert!(renumbered(managed, MANAGER, object, &nothing, &["port"], true).is_empty());
})]
#[case::conflicting_fields(|managed: &[ManagedFieldsEntry], object: &Value| {
    assert!(conflicting_fields(managed, MANAGER, object, object, "spec.ports[0].nodePort").is_empty());
})]
#[case::conflicting_items(|managed: &[ManagedFieldsEntry], object: &Value| {
    let desired = json!({ "spec": { "ports": [{ "port": 0, "name": "other" }] } });
    assert!(conflicting_fields(managed, MANAGER, object, &desired, "spec.ports[0].name").is_empty());
})]
fn cost_grows_linearly_with_the_items(#[case] work: fn(&[ManagedFieldsEntry], &Value)) {
    let cost = |count: u16| {
        let numbers: Vec<_> = (0..count).collect();
        let items: Vec<_> = numbers
            .iter()
            .map(|at| json!({ "port": at, "protocol": "TCP", "name": format!("p{at}") }))
            .collect();
        let object = json!({ "apiVersion": "apps/v1", "spec": { "ports": items } });
        let managed = [
            entry("flux", APPLY, "", ports(&numbers)),
            entry("kubectl-edit", UPDATE, "", ports(&numbers)),
        ];
        visits(|| work(&managed, &object))
    };
    let (small, large) = (cost(256), cost(512));
    assert!(small >= 256, "{small}");
    assert!(large <= 2 * small, "{small} {large}");
}
