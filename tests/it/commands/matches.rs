//! `quartermaster matches`.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use qm_api::{TrackedField, TrackedFieldSet};
use serde_json::{Value, json};
use testbed::process::Folder;
use testbed::receiver::Receiver;

use super::Run;
use crate::support::{Bed, Operator, Settings};

/// Returns the lines of the table, each as its words.
fn table(output: &str) -> Vec<Vec<&str>> {
    let lines = output.lines().take_while(|line| !line.is_empty());
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

fn last(output: &str) -> &str {
    output.lines().last().unwrap_or_default()
}

#[tokio::test]
async fn matches_agrees_with_the_operator() {
    let bed = Bed::shared("matches").await;
    let here = bed.namespace.as_str();
    let run = Run::on(&bed);
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    for name in ["web-a", "web-b", "web-canary", "web-own"] {
        bed.deployment(name, 1).await;
    }
    bed.track("mine", "Deployment", "web-own", "replicas", "hook")
        .await;
    bed.delivered("mine", &[("Created", Some("1"))]).await;

    // From a file, before the set exists.
    let mut set = json!({
        "apiVersion": "tg.azamaton.ru/v1",
        "kind": "TrackedFieldSet",
        "metadata": { "name": "web" },
        "spec": {
            "target": { "kind": "Deployment", "names": { "include": ["web-*"], "exclude": ["*-canary"] } },
            "fields": ["replicas"],
            "template": { "contactPoint": "hook" },
            "keepSeconds": 0,
        },
    });
    let folder = Folder::new().unwrap();
    let file = folder.path().join("set.json");
    let file = file.to_str().unwrap();
    std::fs::write(file, set.to_string()).unwrap();
    let from_file = ["matches", "-f", file, "-n", here];
    let output = run.ends(0, &from_file).await;
    let shown = table(&output);
    assert_eq!(
        shown[0],
        ["NAMESPACE", "NAME", "FIELD", "STATE", "TRACKEDFIELD"]
    );
    let states = |shown: &[Vec<&str>]| -> Vec<String> {
        let rows = shown.iter().skip(1);
        rows.map(|row| row[1..4].join(" ")).collect()
    };
    assert_eq!(
        states(&shown),
        [
            "web-a replicas New",
            "web-b replicas New",
            "web-own replicas Covered"
        ]
    );
    assert_eq!(shown[3][4], "mine", "{output}");
    assert_eq!(last(&output), "3 resources match: 2 new, 1 covered");

    // The operator creates the TrackedFields that the command has announced.
    bed.create::<TrackedFieldSet>("web", json!({ "spec": set["spec"] }))
        .await;
    for row in &shown[1..3] {
        bed.until(row[4], "is recorded", |field: &TrackedField| {
            field.history().unwrap().len() == 1
        })
        .await;
    }
    bed.until("web", "is ready", |set: &TrackedFieldSet| {
        let status = set.status.as_ref();
        status.is_some_and(|it| it.children == Some(2) && it.covered == Some(1))
    })
    .await;
    let named = ["matches", "tfs/web", "-n", here];
    let output = run.ends(0, &named).await;
    assert_eq!(
        states(&table(&output)),
        [
            "web-a replicas Tracked",
            "web-b replicas Tracked",
            "web-own replicas Covered"
        ]
    );
    let children: Vec<_> = table(&output)[1..3].iter().map(|row| row[4]).collect();
    assert_eq!(children, [shown[1][4], shown[2][4]]);
    assert_eq!(last(&output), "3 resources match: 2 tracked, 1 covered");
    let changed = bed.api::<TrackedFieldSet>().get("web").await.unwrap();
    assert!(
        !changed
            .annotations()
            .contains_key("quartermaster.dev/requested-at")
    );

    // A change of the selection, before it is applied: of the stored set's children one is no longer needed.
    set["spec"]["target"]["names"] = json!({ "exclude": ["web-b", "web-own"] });
    set["spec"]["maxTargets"] = json!(1);
    std::fs::write(file, set.to_string()).unwrap();
    let output = run.ends(1, &from_file).await;
    assert_eq!(
        states(&table(&output)),
        [
            "web-a replicas Tracked",
            "web-canary replicas LeftOut",
            "web-b replicas Leaving"
        ]
    );
    assert_eq!(
        last(&output),
        "2 resources match: 1 tracked, 1 leaving; 1 resource is left out: raise spec.maxTargets to 2, or select fewer"
    );
    let json: Value = serde_json::from_str(
        &run.ends(1, &[&from_file[..], &["-o", "json"]].concat())
            .await,
    )
    .unwrap();
    assert_eq!(
        json["summary"],
        json!({ "targets": 2, "leftOut": 1, "maxTargets": 1 })
    );
    assert_eq!(
        json["matches"][1],
        json!({ "namespace": here, "name": "web-canary", "field": "replicas", "state": "LeftOut" })
    );
    assert_eq!(json["matches"][2]["trackedField"], shown[2][4]);

    // The operator then does just that.
    bed.patch::<TrackedFieldSet>("web", json!({ "spec": set["spec"] }))
        .await;
    bed.until("web", "leaves one out", |set: &TrackedFieldSet| {
        let status = set.status.as_ref();
        status
            .is_some_and(|it| (it.targets, it.children, it.left_out) == (Some(2), Some(1), Some(1)))
    })
    .await;
}

#[tokio::test]
async fn matches_follows_labels_and_needs_the_permissions_of_an_author() {
    let bed = Bed::on_own_plane("matches-rights").await;
    let here = bed.namespace.as_str();
    let far = Bed::on(bed.plane.clone(), "matches-far").await;
    for (at, name) in [(&bed, "own"), (&far, "web"), (&far, "db")] {
        at.deployment(name, 1).await;
    }
    let web = json!({ "metadata": { "labels": { "tier": "web" } } });
    far.patch::<Deployment>("web", web).await;
    bed.kubectl(&["label", "namespace", &far.namespace, "env=prod"])
        .await;
    let spec = json!({
        "target": {
            "kind": "Deployment",
            "selector": { "matchLabels": { "tier": "web" } },
            "namespaces": { "selector": { "matchLabels": { "env": "prod" } } },
        },
        "fields": ["replicas", "image"],
        "template": { "contactPoint": "hook" },
    });
    bed.create::<TrackedFieldSet>("prod", json!({ "spec": spec }))
        .await;
    bed.webhook("hook", "http://127.0.0.1:9/").await;
    let run = Run::on(&bed);
    let named = ["matches", "prod", "-n", here];
    let output = run.ends(0, &named).await;
    let rows = table(&output);
    let rows: Vec<_> = rows[1..].iter().map(|row| row[..4].join(" ")).collect();
    let expected = ["replicas", "image"].map(|field| format!("{} web {field} New", far.namespace));
    assert_eq!(rows, expected);
    assert_eq!(last(&output), "1 resource matches: 2 new");

    // The permissions of a user come one by one, and each that is missing is named.
    bed.kubectl(&["create", "serviceaccount", "few"]).await;
    let few = bed
        .plane
        .kubeconfig_for_service_account(here, "few")
        .await
        .unwrap();
    let run = Run::on(&bed).kubeconfig(few);
    let grants = [
        ("get", "trackedfieldsets.tg.azamaton.ru"),
        ("list", "namespaces"),
        ("list", "deployments.apps"),
        ("list", "trackedfields.tg.azamaton.ru"),
        ("list", "trackedfieldsets.tg.azamaton.ru"),
    ];
    for (at, (verb, resource)) in grants.into_iter().enumerate() {
        let output = run.ends(1, &named).await;
        let plural = resource.split('.').next().unwrap();
        assert!(
            output.contains(&format!("cannot {verb} resource \"{plural}\"")),
            "{output}"
        );
        let (name, account) = (format!("few-{at}"), format!("{here}:few"));
        let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
        bed.kubectl(&["create", "clusterrole", &name, &verb, &resource])
            .await;
        let (role, account) = (
            format!("--clusterrole={name}"),
            format!("--serviceaccount={account}"),
        );
        bed.kubectl(&["create", "clusterrolebinding", &name, &role, &account])
            .await;
    }
    run.ends(0, &named).await;
}

#[tokio::test]
async fn wrong_set_is_named() {
    let bed = Bed::shared("matches-wrong").await;
    let here = bed.namespace.as_str();
    let run = Run::on(&bed);
    let folder = Folder::new().unwrap();
    let file = folder.path().join("set.yaml");
    let file = file.to_str().unwrap();
    let written = |text: &str| std::fs::write(file, text).unwrap();
    let from_file = ["matches", "-f", file, "-n", here];

    let output = run.ends(1, &from_file).await;
    assert!(
        output.starts_with(&format!("error: {file}: No such file")),
        "{output}"
    );
    let head = "apiVersion: tg.azamaton.ru/v1\nkind: TrackedFieldSet\nmetadata: {name: a, namespace: elsewhere}\n";
    let spec = |target: &str| {
        format!(
            "{head}spec: {{target: {target}, fields: [\"{{.a}}\"], template: {{contactPoint: hook}}}}\n"
        )
    };
    written(&spec("{kind: Deployment}"));
    let output = run.ends(1, &from_file).await;
    assert!(
        output.contains("the set is in namespace elsewhere: leave out -n"),
        "{output}"
    );
    let from_file = ["matches", "-f", file];
    written(&spec("{kind: Node, apiVersion: v1, resource: nodes}"));
    let output = run.ends(1, &from_file).await;
    let message = "Node is cluster-scoped: write spec.target.namespaces: {selector: {}}";
    assert!(output.contains(message), "{output}");
    written(&spec(
        "{kind: Widget, apiVersion: example.com/v1, resource: widgets}",
    ));
    let output = run.ends(1, &from_file).await;
    let message = "the apiserver does not serve example.com/v1: install its CRD, or correct target.apiVersion";
    assert!(output.contains(message), "{output}");
    written(&spec(
        "{kind: Deployment, apiVersion: apps/v1beta1, resource: deployments}",
    ));
    let output = run.ends(1, &from_file).await;
    let message = "the apiserver does not serve apps/v1beta1: write target.apiVersion: apps/v1";
    assert!(output.contains(message), "{output}");
    written(&spec("{kind: Deployment, selecter: {}, name: a}"));
    let output = run.ends(1, &from_file).await;
    assert!(
        output.contains("unknown field spec.target.name"),
        "{output}"
    );

    // A stored set is checked too, and so are the names in it.
    let spec = |namespace: &str, when: &str| {
        json!({
            "target": { "kind": "Deployment", "namespaces": { "names": [namespace] } },
            "fields": ["replicas"],
            "template": { "contactPoint": "hock", "when": when },
        })
    };
    let stored = json!({ "spec": spec(here, "valu == '1'") });
    bed.create::<TrackedFieldSet>("stored", stored).await;
    let named = ["matches", "tfs/stored", "-n", here];
    let output = run.ends(1, &named).await;
    let message = format!("error: tfs/stored in {here}: WhenInvalid: spec.template.when: ");
    assert!(output.starts_with(&message), "{output}");
    bed.patch::<TrackedFieldSet>("stored", json!({ "spec": spec("matches-nowhere", "true") }))
        .await;
    let output = run.ends(0, &named).await;
    assert_eq!(
        output,
        format!(
            "NamespaceNotFound: namespaces not found: matches-nowhere; create them, or correct spec.target.namespaces.names\n\
             ContactPointNotFound: \"hock\" not found; create the ContactPoint in namespace {here}\n\
             0 resources match\n"
        )
    );

    let output = run.ends(1, &["matches", "tfs/nowhere", "-n", here]).await;
    assert!(
        output.contains("there is no TrackedFieldSet nowhere in namespace"),
        "{output}"
    );
    let output = run.ends(2, &["matches", "tf/nowhere", "-n", here]).await;
    assert!(output.contains("only these select resources"), "{output}");
}
