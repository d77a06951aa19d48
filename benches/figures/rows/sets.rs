//! Measures a `TrackedFieldSet` with 10,000 targets.

use std::collections::HashSet;
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::TryStreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use serde_json::json;
use testbed::usage::Memory;
use tokio::time::timeout;

use super::rest::{requests, restart};
use crate::line::Line;
use crate::stage::{Change, PATIENCE, SETTLE, Sender, Stage, leading};

/// Number of targets at first.
const TARGETS: usize = 9_950;
/// Number of `TrackedField`s beside the set, whose changes are measured meanwhile.
const OTHERS: usize = 50;
/// Number of targets that are created later.
const LATER: usize = 50;
/// Time without changes in which nothing may be written.
const REST: Duration = Duration::from_secs(30);
/// Number of changes of a rollout.
const ROLLOUT: usize = 500;

/// Measures how long 10,000 quiet entries take and what that costs others, memory, writes at rest, a new target, a restart,
/// and the messages of a rollout.
pub async fn sets(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, 0).await?;
    stage.add_fields(OTHERS).await;
    stage
        .each(0..TARGETS, async |index| {
            stage.bed.deployment(&target(index), 0).await;
        })
        .await;
    let before = stage.bed.plane.audit().mark().await?;
    let mut operator = leading(&stage.bed, stage.settings()).await?;
    stage.delivered(OTHERS).await?;
    tokio::time::sleep(SETTLE).await;
    let idle = Memory::of(operator.child().id())?;

    let spec = json!({
        "target": { "kind": "Deployment", "names": { "include": ["target-*"] } },
        "fields": ["replicas"],
        "template": { "contactPoint": "point-0" },
        "maxTargets": TARGETS + LATER,
    });
    let began = Instant::now();
    stage
        .bed
        .create::<TrackedFieldSet>("all", json!({ "spec": spec }))
        .await;
    let others = stage.paced(OTHERS, 10, 300);
    let (others, recorded) = tokio::join!(others, recorded(&stage, TARGETS, began));
    let recorded = recorded?;
    let latencies = stage.latencies(&others, Sender::Operator).await?;
    let sent = requests(&stage.bed, before).await?;
    let reads = sent
        .iter()
        .filter(|it| it.subject.verb == "get" && it.subject.resource == "deployments");
    let reads = reads.count();

    tokio::time::sleep(SETTLE).await;
    let memory = Memory::of(operator.child().id())?;
    let since = stage.bed.plane.audit().mark().await?;
    tokio::time::sleep(REST).await;
    let writes = requests(&stage.bed, since).await?.into_iter();
    let writes = writes.filter(|it| it.subject.is_write() && it.subject.resource != "leases");
    let writes = writes.count();

    stage.forget();
    let mut created = Vec::new();
    for index in 0..LATER {
        let value = stage.new_value();
        stage
            .bed
            .deployment(&format!("target-later-{index}"), value)
            .await;
        created.push(Change {
            field: index,
            value,
            acknowledged: Instant::now(),
        });
    }
    let appeared = stage.latencies(&created, Sender::Operator).await?;

    let start = restart(&stage.bed, stage.settings(), &mut operator).await?;
    let messages = rollout(&stage).await?;
    let number = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let per_child = (memory.anonymous - idle.anonymous) * 1024.0 / number(TARGETS);
    Ok(vec![
        Line::new("10,000 targets: all quiet entries written", recorded, "s").below(60.0),
        Line::new("GETs of targets meanwhile", number(reads), "").at_most(0.0),
        Line::new("other changes meanwhile, p99", latencies.p99(), "ms").below(250.0),
        Line::new("RssAnon with 10,000 children", memory.anonymous, "MiB")
            .below(64.0)
            .note(format!(
                "idle {:.1}; {per_child:.1} KiB a child",
                idle.anonymous
            )),
        Line::new(
            "writes at rest but the lease's, in 30 s",
            number(writes),
            "",
        )
        .at_most(0.0),
        Line::new("start -> ready and leading, 10,000 children", start, "s").below(3.0),
        Line::new(
            "500 changes in 60 s, digestSeconds 30: messages",
            number(messages),
            "",
        )
        .at_most(8.0),
        Line::new("new target to socket, p99", appeared.p99(), "ms").below(1000.0),
    ])
}

fn target(index: usize) -> String {
    format!("target-{index}")
}

/// Waits until this many children have an entry. Returns the seconds since `began`.
async fn recorded(stage: &Stage, children: usize, began: Instant) -> Result<f64> {
    // Repeated lists of all children would take the apiserver's time.
    let config = watcher::Config::default().labels("quartermaster.dev/set=all");
    let fields = watcher(stage.bed.api::<TrackedField>(), config).applied_objects();
    let mut fields = pin!(fields);
    let mut with_entry = HashSet::new();
    let all_have_one = async {
        while with_entry.len() < children {
            let field = fields.try_next().await?.context("the watch has ended")?;
            if field.status.as_ref().is_some_and(|it| !it.is_empty()) {
                with_entry.insert(field.name_any());
            }
        }
        anyhow::Ok(began.elapsed().as_secs_f64())
    };
    timeout(PATIENCE * 3, all_have_one)
        .await
        .context("some children have no entry")?
}

/// Changes 500 targets within a minute. Returns the number of messages.
async fn rollout(stage: &Stage) -> Result<usize> {
    stage
        .bed
        .patch::<ContactPoint>("point-0", json!({ "spec": { "digestSeconds": 30 } }))
        .await;
    tokio::time::sleep(SETTLE).await;
    stage.forget();
    let pause = Duration::from_mins(1) / u32::try_from(ROLLOUT)?;
    let mut changes = Vec::new();
    for index in 0..ROLLOUT {
        let value = stage.new_value();
        stage
            .bed
            .patch::<Deployment>(&target(index), json!({ "spec": { "replicas": value } }))
            .await;
        changes.push(Change {
            field: index,
            value,
            acknowledged: Instant::now(),
        });
        tokio::time::sleep(pause).await;
    }
    stage.arrivals(&changes, Sender::Operator).await?;
    Ok(stage.receivers[0].requests().len())
}
