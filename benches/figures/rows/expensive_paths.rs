//! Measures the latency of ordinary changes while a tenant makes the operator look fields up in a huge object.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use qm_api::TrackedField;
use serde_json::json;
use testbed::wait::until;

use super::latency::{self, P99};
use crate::line::{Line, Sample};
use crate::stage::{PATIENCE, Sender, Stage, point};
use crate::support::SYSTEM;

/// The hostile Deployment.
const HUGE: &str = "huge";
/// Number of empty arguments: as many as fit, because the apiserver stores two bytes for each.
const ARGUMENTS: usize = 700_000;
/// Number of `TrackedField`s that look for 16 names at any depth of the huge Deployment.
const HOSTILE: usize = 100;
/// Number of ordinary `TrackedField`s.
const ORDINARY: usize = 100;
/// Number of changes of ordinary fields, over 40 seconds.
const CHANGES: usize = 2_000;

/// Measures ordinary changes while an annotation of the huge Deployment changes once a second.
pub async fn expensive_paths(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, ORDINARY).await?;
    hostile(&stage).await;
    let floor = latency::floor(&stage, ORDINARY);
    let floor = while_changing(&stage, floor).await?;
    let operator = stage.operator(ORDINARY).await?;
    until(
        "the operator refuses the expensive paths",
        PATIENCE,
        async || {
            // A list of all fields is work for the apiserver, so it is not read every time.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let fields = stage
                .bed
                .api::<TrackedField>()
                .list(&ListParams::default())
                .await?
                .items;
            let reason = |field: &TrackedField| {
                field
                    .annotations()
                    .get("quartermaster.dev/waiting-reason")
                    .cloned()
            };
            let refused = fields
                .iter()
                .filter_map(reason)
                .filter(|reason| reason == "PathTooExpensive")
                .count();
            ensure!(refused == HOSTILE, "it has refused {refused}");
            Ok(Some(()))
        },
    )
    .await?;
    stage.forget();
    let before = leaders(&stage).await?;
    let sample = latency::measured(&stage, ORDINARY, CHANGES, Sender::Operator);
    let sample = while_changing(&stage, sample).await?;
    let alive = operator.probe("livez").await?.0 == 200;
    let kept = alive && leaders(&stage).await? == before;
    let note = format!(
        "{} changes, p50 {:.0} ms, the slowest {:.0} ms",
        sample.len(),
        sample.p50(),
        sample.max()
    );
    Ok(vec![
        Line::new(
            "change -> receiver, p99, beside 100 expensive paths of a huge object",
            sample.p99(),
            "ms",
        )
        .below(P99)
        .floor(floor.p99())
        .note(note),
        Line::new("leases lost meanwhile", if kept { 0.0 } else { 1.0 }, "").at_most(0.0),
    ])
}

/// Measures while the huge Deployment changes.
async fn while_changing(
    stage: &Arc<Stage>,
    measured: impl Future<Output = Result<Sample>>,
) -> Result<Sample> {
    let changing = tokio::spawn(changing(Arc::clone(stage)));
    let sample = measured.await?;
    ensure!(
        !changing.is_finished(),
        "the huge Deployment no longer changes"
    );
    changing.abort();
    Ok(sample)
}

/// Creates the huge Deployment and its `TrackedField`s.
async fn hostile(stage: &Stage) {
    let labels = json!({ "app": HUGE });
    let container = json!({ "name": "web", "image": "nginx:1", "args": vec![""; ARGUMENTS] });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
    let spec =
        json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template });
    stage
        .bed
        .create::<Deployment>(HUGE, json!({ "spec": spec }))
        .await;
    stage
        .each(0..HOSTILE, async |number| {
            let names: Vec<_> = (0..16).map(|name| format!("'n{number}-{name}'")).collect();
            let path = format!("{{..[{}]}}", names.join(","));
            stage
                .bed
                .track(
                    &format!("hostile-{number}"),
                    "Deployment",
                    HUGE,
                    &path,
                    &point(number),
                )
                .await;
        })
        .await;
}

/// Changes an annotation of the huge Deployment once a second.
async fn changing(stage: Arc<Stage>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    for round in 0.. {
        ticks.tick().await;
        let patch =
            Patch::Merge(json!({ "metadata": { "annotations": { "round": round.to_string() } } }));
        stage
            .bed
            .api::<Deployment>()
            .patch_metadata(HUGE, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

/// Returns the leader and the number of leader transitions of each Lease.
async fn leaders(stage: &Stage) -> Result<Vec<(Option<String>, Option<i32>)>> {
    let leases: Api<Lease> = Api::namespaced(stage.bed.client.clone(), SYSTEM);
    let leases = leases
        .list(&ListParams::default())
        .await?
        .items
        .into_iter()
        .filter_map(|lease| lease.spec);
    Ok(leases
        .map(|spec| (spec.holder_identity, spec.lease_transitions))
        .collect())
}
