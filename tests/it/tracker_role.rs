//! Kinds that may be tracked: only those that the tracker role grants, whatever else the operator may read.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use qm_api::TrackedField;
use serde_json::{Value, json};
use testbed::Options;
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{
    ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings, actions_and_values, fill_tracker_role,
};

/// Starts a control plane where the tracker role has the rules that the test gives it.
async fn bed_with_receiver(name: &str) -> (Bed, Receiver) {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), name).await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    (bed, receiver)
}

async fn track(bed: &Bed, name: &str, target: Value, field: &str) {
    let spec = json!({ "target": target, "field": field, "contactPoint": "hook" });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

fn config_map(bed: &Bed, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "resource": "configmaps", "namespace": bed.namespace, "name": name })
}

async fn set_value(bed: &Bed, name: &str, value: &str) {
    bed.patch::<ConfigMap>(name, json!({ "data": { "value": value } }))
        .await;
}

/// Returns the operator's requests for `ConfigMap`s, by verb.
async fn requests(bed: &Bed, since: testbed::control_plane::audit::Mark, verb: &str) -> usize {
    let user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let all = bed.plane.audit().requests(since).await.unwrap();
    let concerns = |it: &&testbed::control_plane::audit::Request| {
        it.subject.user == user && it.subject.resource == "configmaps" && it.subject.verb == verb
    };
    all.iter().filter(concerns).count()
}

#[tokio::test]
async fn target_is_forbidden_when_only_permissions_of_the_operator_cover_it() {
    let (bed, _receiver) = bed_with_receiver("own-rights").await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "value": "1" } }))
        .await;
    // For its own work the operator may list and watch all of these.
    let _operator = Operator::start(&bed, Settings::default().whole_cluster()).await;
    let here = bed.namespace.as_str();
    let cases = [
        ("v1", "ConfigMap", "configmaps", Some(here), "settings"),
        ("v1", "Pod", "pods", Some(here), "web"),
        ("v1", "Node", "nodes", None, "node-1"),
        ("v1", "Namespace", "namespaces", None, here),
    ];
    for (api_version, kind, plural, namespace, name) in cases {
        let mut target =
            json!({ "apiVersion": api_version, "kind": kind, "resource": plural, "name": name });
        if let Some(namespace) = namespace {
            target["namespace"] = namespace.into();
        }
        track(&bed, plural, target, "{.metadata.name}").await;
    }
    for (_, _, plural, ..) in cases {
        let message = bed.waiting(plural, "Forbidden: ").await;
        let expected =
            "ClusterRole \"quartermaster-tracker-role\" does not grant get, list, watch on ";
        assert!(
            message.contains(expected)
                && message.contains("quartermaster.dev/aggregate-to-tracker"),
            "{message}"
        );
        assert_eq!(
            actions_and_values(&bed.history(plural).await),
            [],
            "{plural}"
        );
    }
    // A permission by name does not count, because a watch cannot be limited to a name here.
    let rules = json!({ "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"],
        "resourceNames": ["settings"] }] });
    let patch = [
        "patch",
        "clusterrole",
        "quartermaster-tracker-role",
        "--type=merge",
        "-p",
        &rules.to_string(),
    ];
    bed.plane.run_kubectl(&patch, "").await.unwrap();
    let expected = "a watch cannot be limited to names";
    bed.until("configmaps", expected, |field: &TrackedField| {
        let waiting = field
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get("quartermaster.dev/waiting"));
        waiting.is_some_and(|message| message.contains(expected))
    })
    .await;
    assert_eq!(actions_and_values(&bed.history("configmaps").await), []);
}

#[tokio::test]
async fn target_is_tracked_while_the_tracker_role_grants_it() {
    let (bed, _receiver) = bed_with_receiver("granted").await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "value": "1" } }))
        .await;
    bed.deployment("web", 1).await;
    // Namespaced installs read the one role of the cluster, too.
    let _operator = Operator::start(&bed, Settings::default()).await;
    track(&bed, "map", config_map(&bed, "settings"), "{.data.value}").await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    bed.waiting("map", "Forbidden: ").await;
    bed.delivered("web", &[("Created", Some("1"))]).await;

    fill_tracker_role(&bed.plane, &[("", "configmaps")]).await;
    bed.waiting("map", "").await;
    bed.delivered("map", &[("Created", Some("1"))]).await;
    set_value(&bed, "settings", "2").await;
    bed.delivered("map", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;

    // Every permission is removed, even for the kinds that need no apiVersion.
    let nothing = json!({ "rules": [] }).to_string();
    let patch = [
        "patch",
        "clusterrole",
        "quartermaster-tracker-role",
        "--type=merge",
        "-p",
        &nothing,
    ];
    bed.plane.run_kubectl(&patch, "").await.unwrap();
    for name in ["map", "web"] {
        bed.waiting(name, "Forbidden: ").await;
    }
    for value in ["3", "4"] {
        set_value(&bed, "settings", value).await;
        bed.scale("web", value.parse().unwrap()).await;
    }
    fill_tracker_role(&bed.plane, &[("", "configmaps")]).await;
    // A single net change, because nobody observed the changes meanwhile.
    bed.delivered(
        "map",
        &[
            ("Created", Some("1")),
            ("Updated", Some("2")),
            ("Updated", Some("4")),
        ],
    )
    .await;
    bed.delivered("web", &[("Created", Some("1")), ("Updated", Some("4"))])
        .await;
}

#[tokio::test]
async fn config_map_is_watched_by_metadata_and_read_at_most_once_a_second() {
    const FIELDS: usize = 20;
    const CHANGES: usize = 100;
    let (bed, _receiver) = bed_with_receiver("by-metadata").await;
    fill_tracker_role(&bed.plane, &[("", "configmaps")]).await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "value": "0" } }))
        .await;
    bed.create::<ConfigMap>("quiet", json!({ "data": { "value": "0" } }))
        .await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let fields: Vec<_> = (0..FIELDS).map(|field| format!("field-{field}")).collect();
    let (mark, began) = (bed.plane.audit().mark().await.unwrap(), Instant::now());
    for name in &fields {
        track(&bed, name, config_map(&bed, "settings"), "{.data.value}").await;
    }
    // A read serves all fields that need one when it begins.
    let most = FIELDS / 2 + usize::try_from(began.elapsed().as_secs()).unwrap();
    for name in &fields {
        bed.delivered(name, &[("Created", Some("0"))]).await;
    }
    let reads = requests(&bed, mark, "get").await;
    assert!(reads <= most, "{reads} reads for {FIELDS} new fields");

    let (mark, began) = (bed.plane.audit().mark().await.unwrap(), Instant::now());
    for change in 1..=CHANGES {
        set_value(&bed, "settings", &change.to_string()).await;
    }
    let last = CHANGES.to_string();
    for name in &fields {
        let ends = |field: &TrackedField| {
            let history = field.history().unwrap();
            history
                .last()
                .is_some_and(|entry| entry.value.as_ref() == Some(&last) && !entry.is_pending())
        };
        bed.until(name, "ends with the last value", ends).await;
    }
    let (reads, most) = (
        requests(&bed, mark, "get").await,
        2 + usize::try_from(began.elapsed().as_secs()).unwrap(),
    );
    assert!(
        (1..=most).contains(&reads),
        "{reads} reads in {:?} for {FIELDS} fields",
        began.elapsed()
    );

    // The watch itself has no value: a change is recorded once the ConfigMap has been read.
    let reads = Match::verb(Verb::Get)
        .resource("configmaps")
        .name("settings");
    let order = proxy.inject(reads, Times::Always, Fault::Hang);
    set_value(&bed, "settings", "unread").await;
    order.wait_for_hits(1, SOON).await.unwrap();
    track(&bed, "quiet", config_map(&bed, "quiet"), "{.data.value}").await;
    bed.delivered("quiet", &[("Created", Some("0"))]).await;
    assert_eq!(
        actions_and_values(&bed.history(&fields[0]).await).last(),
        Some(&("Updated", Some(&*last)))
    );
    order.cancel();
    bed.delete::<ConfigMap>("settings").await;
    let deleted = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .last()
            .is_some_and(|entry| entry.value.is_none())
    };
    for name in &fields {
        bed.until(name, "was deleted", deleted).await;
    }
    until("no unchanged object is read", SOON, async || {
        let mark = bed.plane.audit().mark().await?;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        Ok((requests(&bed, mark, "get").await == 0).then_some(()))
    })
    .await
    .unwrap();
}
