//! How soon a change is told, alone and beside a receiver that hangs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use futures::StreamExt as _;
use quartermaster::api::TrackedField;
use serde_json::json;
use testbed::receiver::Reply;

use crate::floor;
use crate::line::{Latencies, Line};
use crate::stage::{Change, FIELDS, POINTS, Stage, name, point};

/// Changes a second.
const RATE: u32 = 50;

/// Promised, in milliseconds.
const P50: f64 = 50.0;
const P99: f64 = 250.0;
const MUST: &str = "p50 < 50 ms, p99 < 250 ms";

/// From the apiserver's acknowledgement of a change to the message's first bytes at its receiver.
pub async fn latency(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, FIELDS).await?;
    let floor_before = measured_floor(&stage, 500).await?;
    let operator = stage.operator(FIELDS).await?;
    let spread = measured(&stage, 0..FIELDS, 2_000).await?;

    // All of them on one contact point: its requests are one after the other.
    let api = stage.bed.api::<TrackedField>();
    futures::stream::iter(0..FIELDS)
        .for_each_concurrent(16, |index| {
            let (api, to) = (&api, json!({ "spec": { "contactPoint": point(0) } }));
            async move {
                api.patch(&name(index), &kube::api::PatchParams::default(), &kube::api::Patch::Merge(to))
                    .await
                    .unwrap();
            }
        })
        .await;
    let one = measured(&stage, 0..FIELDS, 1_000).await?;
    drop(operator);
    let floor_after = measured_floor(&stage, 500).await?;

    let floor = format!(
        "p50 {:.1} / {:.1} ms, p99 {:.1} / {:.1} ms (before / after)",
        floor_before.p50(),
        floor_after.p50(),
        floor_before.p99(),
        floor_after.p99()
    );
    let line = |what: &str, latencies: &Latencies| {
        let kept = latencies.p50() < P50 && latencies.p99() < P99;
        Line::promise(what, MUST, latencies.words(), kept).floor(&floor)
    };
    Ok(vec![
        line("change -> receiver's socket, 1,000 TrackedFields, 50 changes/s, 5 ContactPoints", &spread),
        line("the same, all on one ContactPoint", &one),
    ])
}

/// The same for the contact points whose receivers are well, while one hangs. In turn, so that noise meets both.
pub async fn hang(program: PathBuf) -> Result<Vec<Line>> {
    const ROUNDS: usize = 3;
    const CHANGES: usize = 500;
    let stage = Stage::set(program, FIELDS).await?;
    let operator = stage.operator(FIELDS).await?;
    let (mut before, mut meanwhile) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        before.push(of_the_well(&stage, CHANGES).await?);
        stage.receivers[0].always(Reply::hang());
        meanwhile.push(of_the_well(&stage, CHANGES).await?);
        stage.receivers[0].always(Reply::ok());
        stage.delivered(FIELDS).await?;
        stage.forget();
    }
    drop(operator);
    let ratio = |of: fn(&Latencies) -> f64| {
        let ratios = before.iter().zip(&meanwhile).map(|(before, meanwhile)| of(meanwhile) / of(before));
        ratios.collect::<Latencies>().p50()
    };
    let middle = |all: &[Latencies], of: fn(&Latencies) -> f64| all.iter().map(of).collect::<Latencies>().p50();
    let (p50, p99) = (ratio(Latencies::p50), ratio(Latencies::p99));
    let words = |all: &[Latencies]| {
        format!("p50 {:.1} ms, p99 {:.1} ms", middle(all, Latencies::p50), middle(all, Latencies::p99))
    };
    let measured = format!("p50 {p50:.2} x, p99 {p99:.2} x ({}; medians of {ROUNDS} rounds)", words(&meanwhile));
    let line = Line::promise("the same while another ContactPoint's receiver hangs", "<= 1.2 x", measured, p50 <= 1.2);
    Ok(vec![line.floor(format!("without: {}", words(&before)))])
}

/// Changes of all fields; what became of those whose receiver is not the first.
async fn of_the_well(stage: &Arc<Stage>, changes: usize) -> Result<Latencies> {
    let changes = stage.paced(0..FIELDS, RATE, changes).await?;
    let mut sorted = changes;
    sorted.sort_by_key(|(value, _)| *value);
    // They were made in turn, from the first field on.
    let well: Vec<Change> =
        sorted.into_iter().enumerate().filter(|(index, _)| index % POINTS != 0).map(|(_, change)| change).collect();
    stage.latencies(&well, false).await
}

async fn measured(stage: &Arc<Stage>, fields: std::ops::Range<usize>, changes: usize) -> Result<Latencies> {
    let changes = stage.paced(fields, RATE, changes).await?;
    let latencies = stage.latencies(&changes, false).await?;
    stage.forget();
    Ok(latencies)
}

async fn measured_floor(stage: &Arc<Stage>, changes: usize) -> Result<Latencies> {
    let watch = floor::start(stage).await;
    let changes = stage.paced(0..FIELDS, RATE, changes).await?;
    let latencies = stage.latencies(&changes, true).await?;
    watch.abort();
    stage.forget();
    Ok(latencies)
}
