//! Paths that are expensive to evaluate in a huge object, next to ordinary paths.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use qm_api::TrackedField;
use qm_api::tracked_field::ChangeAction;
use serde_json::{Value, json};
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, SYSTEM, Settings};

/// Number that makes each hostile path more expensive than the limit. `make bench` has as many as fit into an object.
const ARGUMENTS: usize = 130_000;
const HOSTILE: usize = 100;
const LEASE: &str = "expensive-paths";

/// Creates a Deployment whose container has this many empty arguments.
async fn deployment(bed: &Bed, name: &str, arguments: usize) {
    let labels = json!({ "app": name });
    let container = json!({ "name": "web", "image": "nginx:1", "args": vec![""; arguments] });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
    let spec =
        json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template });
    bed.create::<Deployment>(name, json!({ "spec": spec }))
        .await;
}

/// Merges a patch into a Deployment, without reading the huge answer.
async fn change(bed: &Bed, name: &str, patch: Value) {
    bed.api::<Deployment>()
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Returns a union of 16 names at any depth, another one for each number.
fn expensive_path(number: usize) -> String {
    let names: Vec<_> = (0..16).map(|name| format!("'n{number}-{name}'")).collect();
    format!("{{..[{}]}}", names.join(","))
}

/// Returns the leader, and the number of leader changes.
async fn leader(bed: &Bed) -> (Option<String>, Option<i32>) {
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), SYSTEM);
    let spec = leases.get(LEASE).await.unwrap().spec.unwrap();
    (spec.holder_identity, spec.lease_transitions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expensive_paths_of_one_object_delay_no_other_field() {
    let bed = Bed::without_controllers("expensive").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 0).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    deployment(&bed, "huge", ARGUMENTS).await;
    let names: Vec<String> = (0..HOSTILE)
        .map(|number| format!("hostile-{number}"))
        .collect();
    let hostile = names.iter().enumerate().map(|(number, name)| {
        let (bed, path) = (&bed, expensive_path(number));
        async move { bed.track(name, "Deployment", "huge", &path, "hook").await }
    });
    join_all(hostile).await;
    // Cheap in any object.
    bed.track(
        "image",
        "Deployment",
        "huge",
        "{.spec.template.spec.containers[*].image}",
        "hook",
    )
    .await;

    // The delay that this test looks for would take far longer than the lease.
    let settings = Settings::default()
        .leader_election(60)
        .flag(&format!("--leader-election-id={LEASE}"));
    let operator = Operator::start(&bed, settings).await;
    let mut sent = vec![("Created".to_owned(), "0".to_owned())];
    let delivered = async |sent: &[(String, String)]| {
        let sent: Vec<_> = sent
            .iter()
            .map(|(action, value)| (action.as_str(), Some(value.as_str())))
            .collect();
        bed.delivered("web", &sent).await;
    };
    delivered(&sent).await;
    bed.delivered("image", &[("Created", Some("nginx:1"))])
        .await;
    for name in &names {
        let message = bed.waiting(name, "PathTooExpensive").await;
        let (_, steps) = message.split_once("about ").unwrap();
        let steps: usize = steps
            .split(' ')
            .next()
            .unwrap()
            .replace(',', "")
            .parse()
            .unwrap();
        // Each of the 16 names takes one step for each argument, and a few more for the other levels of the object.
        assert!(
            (16 * ARGUMENTS..32 * ARGUMENTS).contains(&steps)
                && message.contains("may take 2,000,000 steps: write names"),
            "{message}"
        );
    }
    let before = leader(&bed).await;
    assert!(before.0.is_some());

    for round in 1..=10 {
        let changed = json!({ "metadata": { "annotations": { "round": round.to_string() } } });
        change(&bed, "huge", changed).await;
        bed.scale("web", round).await;
        sent.push(("Updated".into(), round.to_string()));
        delivered(&sent).await;
        assert_eq!(operator.probe("livez").await.unwrap().0, 200);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(leader(&bed).await, before);

    // A path that becomes cheap is evaluated again.
    let container = json!({ "name": "web", "image": "nginx:2", "args": [""] });
    change(
        &bed,
        "huge",
        json!({ "spec": { "template": { "spec": { "containers": [container] } } } }),
    )
    .await;
    bed.delivered(
        "image",
        &[("Created", Some("nginx:1")), ("Updated", Some("nginx:2"))],
    )
    .await;
    for name in &names {
        bed.waiting(name, "").await;
        bed.delivered(name, &[("Created", None)]).await;
    }
}

/// The operator evaluates the path on another thread; of states that arrive faster, only the newest one counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_through_a_large_object_ends_with_the_newest_value() {
    let bed = Bed::without_controllers("large").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    deployment(&bed, "large", 30_000).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    for name in ["first", "second"] {
        bed.track(name, "Deployment", "large", "{..image}", "hook")
            .await;
        bed.delivered(name, &[("Created", Some("nginx:1"))]).await;
    }
    for version in 2..=8 {
        let container = json!({ "name": "web", "image": format!("nginx:{version}") });
        let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
        let (api, params) = (bed.api::<Deployment>(), PatchParams::default());
        api.patch_metadata("large", &params, &Patch::Strategic(patch))
            .await
            .unwrap();
    }
    for name in ["first", "second"] {
        let newest = until(
            format!("{name} ends with the newest value"),
            SOON,
            async || bed.history_with_last(name, "nginx:8").await.map(Some),
        );
        newest.await.unwrap();
    }
    bed.delete::<Deployment>("large").await;
    for name in ["first", "second"] {
        bed.until(name, "has the deletion", |field: &TrackedField| {
            field
                .history()
                .unwrap()
                .last()
                .is_some_and(|entry| entry.action == ChangeAction::Deleted)
        })
        .await;
    }
}
