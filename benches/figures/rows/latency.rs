//! Measures how soon a change is delivered, alone and next to a receiver that hangs.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use qm_api::TrackedField;
use serde_json::json;
use testbed::receiver::Reply;

use crate::floor::Floor;
use crate::line::{Line, Sample};
use crate::stage::{FIELDS, POINTS, RATE, Sender, Stage, name, point};

/// Promised limits, in milliseconds.
const P50: f64 = 50.0;
pub const P99: f64 = 250.0;

/// Measures from the apiserver's acknowledgement of a change to the first bytes of the message at its receiver.
pub async fn latency(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, FIELDS).await?;
    let before = floor(&stage, FIELDS).await?;
    let operator = stage.operator(FIELDS).await?;
    let spread = measured(&stage, FIELDS, 2_000, Sender::Operator).await?;

    // All fields use one contact point, which sends its requests one after the other.
    stage
        .each(0..FIELDS, async |index| {
            stage
                .bed
                .patch::<TrackedField>(
                    &name(index),
                    json!({ "spec": { "contactPoint": point(0) } }),
                )
                .await;
        })
        .await;
    measured(&stage, FIELDS, 100, Sender::Operator).await?;
    let one = measured(&stage, FIELDS, 1_000, Sender::Operator).await?;
    drop(operator);
    let floor = before.and(floor(&stage, FIELDS).await?);

    let lines = |points: &str, sample: &Sample| {
        let note = format!(
            "{} changes, the slowest {:.0} ms",
            sample.len(),
            sample.max()
        );
        [
            Line::new(
                &format!("change -> receiver, p50, {points}"),
                sample.p50(),
                "ms",
            )
            .below(P50)
            .floor(floor.p50())
            .note("1,000 TrackedFields, 50 changes/s"),
            Line::new(
                &format!("change -> receiver, p99, {points}"),
                sample.p99(),
                "ms",
            )
            .below(P99)
            .floor(floor.p99())
            .note(note),
        ]
    };
    Ok([
        lines("5 ContactPoints", &spread),
        lines("1 ContactPoint", &one),
    ]
    .into_iter()
    .flatten()
    .collect())
}

/// Measures the contact points with healthy receivers while another receiver hangs, and while none does. The rounds
/// alternate, so that noise affects both.
pub async fn hang(program: PathBuf) -> Result<Vec<Line>> {
    const ROUNDS: usize = 4;
    let stage = Stage::set(program, FIELDS).await?;
    let _operator = stage.operator(FIELDS).await?;
    let (mut alone, mut beside) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        alone = alone.and(of_healthy_receivers(&stage).await?);
        let hanging = &stage.receivers[0];
        hanging.always(Reply::hang());
        beside = beside.and(of_healthy_receivers(&stage).await?);
        hanging.always(Reply::ok());
        // Closes the connections that still wait for a response.
        hanging.refuse().await?;
        hanging.accept().await?;
        stage.delivered(FIELDS).await?;
        stage.forget();
    }
    let line = |what: &str, of: fn(&Sample) -> f64| {
        let note = format!(
            "{:.1} ms, without it {:.1} ms; {} changes each",
            of(&beside),
            of(&alone),
            alone.len()
        );
        Line::new(what, of(&beside) / of(&alone), "x")
            .at_most(1.2)
            .note(note)
    };
    Ok(vec![
        line("p50 while another's receiver hangs / without", Sample::p50),
        line("p99 while another's receiver hangs / without", Sample::p99),
    ])
}

/// Measures changes of all fields. Returns the latencies of the fields whose receiver is not the first one.
async fn of_healthy_receivers(stage: &Arc<Stage>) -> Result<Sample> {
    let mut changes = stage.paced(FIELDS, RATE, 500).await;
    changes.retain(|change| change.field % POINTS != 0);
    stage.latencies(&changes, Sender::Operator).await
}

/// Measures `changes` changes of `fields` fields in turn.
pub(super) async fn measured(
    stage: &Arc<Stage>,
    fields: usize,
    changes: usize,
    sender: Sender,
) -> Result<Sample> {
    let changes = stage.paced(fields, RATE, changes).await;
    let latencies = stage.latencies(&changes, sender).await?;
    stage.forget();
    Ok(latencies)
}

/// Measures changes of `fields` fields with the floor.
pub(super) async fn floor(stage: &Arc<Stage>, fields: usize) -> Result<Sample> {
    let (_floor, _) = Floor::start(stage).await?;
    measured(stage, fields, 500, Sender::Floor).await
}
