//! Measures memory before and after many changes, and a slow receiver.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testbed::receiver::Pace;
use testbed::usage::Memory;

use crate::floor::Floor;
use crate::line::Line;
use crate::stage::{FIELDS, POINTS, SETTLE, Sender, Stage, leading};

/// Number of changes before memory is read.
const CHANGES: usize = 10_000;

/// Measures memory idle, with 1,000 `TrackedField`s, and after 10,000 changes of their fields: at a rate that the
/// operator keeps up with, and as fast as the apiserver accepts them. The floor does the same work at the same time.
pub async fn memory(program: PathBuf) -> Result<Vec<Line>> {
    let (idle, with_fields, paced, _) = worked(program.clone(), Some(100)).await?;
    let (_, _, flooded, all_delivered) = worked(program, None).await?;
    let lines = [
        lines("idle", idle, 6.0, 22.0),
        lines("with 1,000 TrackedFields", with_fields, 16.0, 30.0),
        lines("after 10,000 changes, 100/s", paced, 16.0, 30.0),
        lines("after 10,000 changes at once", flooded, 16.0, 30.0),
    ];
    Ok(lines.into_iter().flatten().chain([all_delivered]).collect())
}

/// Memory of the operator and of the floor.
type Held = [Memory; 2];

fn lines(when: &str, [operator, floor]: Held, anonymous: f64, resident: f64) -> [Line; 2] {
    [
        Line::new(&format!("RssAnon {when}"), operator.anonymous, "MiB")
            .below(anonymous)
            .floor(floor.anonymous),
        Line::new(&format!("VmRSS {when}"), operator.resident, "MiB")
            .below(resident)
            .floor(floor.resident),
    ]
}

/// Returns the memory before, with the fields, and after the changes (`rate` per second, or as many as the apiserver
/// accepts), and how long their delivery took.
async fn worked(program: PathBuf, rate: Option<u32>) -> Result<(Held, Held, Held, Line)> {
    let stage = Stage::set(program, 0).await?;
    let (floor, _) = Floor::start(&stage).await?;
    let mut operator = leading(&stage.bed, stage.settings()).await?;
    let process = operator.child().id();
    let read = async || {
        tokio::time::sleep(SETTLE).await;
        anyhow::Ok([Memory::of(process)?, Memory::of(floor.id())?])
    };
    let idle = read().await?;
    stage.add_fields(FIELDS).await;
    stage.delivered(FIELDS).await?;
    let with_fields = read().await?;
    let began = Instant::now();
    let changes = match rate {
        Some(rate) => stage.paced(FIELDS, rate, CHANGES).await,
        None => stage.flood(FIELDS, CHANGES).await,
    };
    let made = began.elapsed();
    let mut delivered = Vec::new();
    for sender in [Sender::Operator, Sender::Floor] {
        let last = stage
            .arrivals(&changes, sender)
            .await?
            .into_iter()
            .max()
            .context("no change")?;
        delivered.push((last - began).as_secs_f64());
    }
    stage.delivered(FIELDS).await?;
    let all_delivered = Line::new("10,000 changes at once: all delivered", delivered[0], "s")
        .floor(delivered[1])
        .note(format!("making them took {:.1} s", made.as_secs_f64()));
    Ok((idle, with_fields, read().await?, all_delivered))
}

/// Measures 1,000 changes of 50 fields to a receiver that accepts one message a second.
pub async fn slow(program: PathBuf) -> Result<Vec<Line>> {
    const ROUNDS: usize = 20;
    /// The fields of one contact point are changed.
    const TRACKED: usize = 50 * POINTS;
    let stage = Stage::set(program, TRACKED).await?;
    let _operator = stage.operator(TRACKED).await?;
    let receiver = &stage.receivers[0];
    receiver.pace(Some(Pace::OneAtATime(Duration::from_secs(1))));
    let began = Instant::now();
    let mut changes = Vec::new();
    for _ in 0..ROUNDS {
        let round = (0..TRACKED)
            .step_by(POINTS)
            .map(|field| stage.change(field));
        changes.extend(futures::future::join_all(round).await);
    }
    let made = began.elapsed().as_secs_f64();
    let last = stage
        .arrivals(&changes, Sender::Operator)
        .await?
        .into_iter()
        .max()
        .context("no change")?;
    let (count, messages) = (changes.len(), receiver.requests().len());
    let one_by_one = f64::from(u32::try_from(count)?);
    let note = format!("in {messages} messages; making them took {made:.1} s; floor: one by one");
    Ok(vec![
        Line::new(
            "1,000 changes, receiver takes 1/s: all delivered",
            (last - began).as_secs_f64(),
            "s",
        )
        .below(60.0)
        .floor(one_by_one)
        .note(note),
    ])
}
