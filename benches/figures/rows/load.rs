//! Memory before and after a lot of work, and a receiver that is slow.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use testbed::receiver::Pace;
use testbed::wait::until;

use crate::line::Line;
use crate::process::Memory;
use crate::stage::{FIELDS, PATIENCE, POINTS, Stage, leads};
use crate::support::Operator;

/// How long it is left alone before its memory is read.
const SETTLE: Duration = Duration::from_secs(5);

/// Memory idle, with 1,000 `TrackedField`s, and after 10,000 changes of their fields.
pub async fn memory(program: PathBuf) -> Result<Vec<Line>> {
    const CHANGES: usize = 10_000;
    let stage = Stage::set(program, 0).await?;
    let mut operator = Operator::start(&stage.bed, stage.settings()).await;
    leads(&operator).await?;
    let process = operator.child().id();
    let read = async || {
        tokio::time::sleep(SETTLE).await;
        Memory::of(process)
    };
    let idle = read().await?;
    stage.add_fields(FIELDS).await;
    stage.delivered(FIELDS).await?;
    let with_fields = read().await?;
    let began = Instant::now();
    let changes = stage.flood(0..FIELDS, CHANGES).await?;
    stage.latencies(&changes, false).await?;
    let took = began.elapsed().as_secs_f64();
    stage.delivered(FIELDS).await?;
    let after = read().await?;
    let must = "RssAnon < 16, VmRSS < 30 MiB";
    Ok(vec![
        Line::promise("memory idle", "RssAnon < 6, VmRSS < 20 MiB", idle.words(), idle.below(6, 20))
            .floor("bare skeleton of kube, reqwest, axum: 2 and 13 MiB"),
        Line::promise("memory with 1,000 TrackedFields", must, with_fields.words(), with_fields.below(16, 30)),
        Line::promise("memory after 10,000 changes of them", must, after.words(), after.below(16, 30))
            .floor(format!("(they took {took:.0} s, as fast as they were told)")),
    ])
}

/// 1,000 changes of 50 fields to a receiver that takes one message a second.
pub async fn slow(program: PathBuf) -> Result<Vec<Line>> {
    const CHANGES: usize = 1_000;
    /// All of them have the same contact point.
    const TOLD_BY_ONE: usize = 50 * POINTS;
    let stage = Stage::set(program, TOLD_BY_ONE).await?;
    let _operator = stage.operator(TOLD_BY_ONE).await?;
    let receiver = &stage.receivers[0];
    receiver.pace(Some(Pace::OneAtATime(Duration::from_secs(1))));
    receiver.forget();
    let began = Instant::now();
    let mut changes = Vec::new();
    for _ in 0..CHANGES / 50 {
        let fields: Vec<usize> = (0..TOLD_BY_ONE).step_by(POINTS).collect();
        let round = futures::future::join_all(fields.into_iter().map(|index| stage.change(index))).await;
        changes.extend(round.into_iter().collect::<Result<Vec<_>>>()?);
    }
    let made = began.elapsed();
    let last = until("all are told", PATIENCE, async || {
        let arrivals = stage.arrivals(false);
        let all: Option<Vec<Instant>> = changes.iter().map(|(value, _)| arrivals.get(value).copied()).collect();
        Ok(all.and_then(|all| all.into_iter().max()))
    })
    .await?;
    let took = last - began;
    let messages = receiver.requests().len();
    Ok(vec![
        Line::promise(
            "1,000 changes to a receiver that takes 1 message a second: all told",
            "< 60 s",
            format!("{:.1} s, in {messages} messages", took.as_secs_f64()),
            took < Duration::from_mins(1),
        )
        .floor(format!("1,000 s one by one; making them took {:.1} s", made.as_secs_f64())),
    ])
}
