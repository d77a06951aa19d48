//! Measures how soon the operator acts on an awaited object once it exists.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;

use crate::floor::Floor;
use crate::line::{Line, Sample};
use crate::stage::{Change, Sender, Stage, leading, name, point};

/// Number of measurements of each figure.
const TIMES: usize = 10;
/// Promised limit, in milliseconds.
const LIMIT: f64 = 1_000.0;

/// Measures a new target and a new contact point: from the apiserver's acknowledgement to the message.
pub async fn appear(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, 0).await?;
    let (_floor, _) = Floor::start(&stage).await?;
    let _operator = leading(&stage.bed, stage.settings()).await?;
    let bed = &stage.bed;

    let (mut targets, mut floor) = (Sample::default(), Sample::default());
    for field in 0..TIMES {
        let name = name(field);
        bed.track(&name, "Deployment", &name, "replicas", &point(field))
            .await;
        bed.waiting(&name, "TargetNotFound").await;
        let value = stage.new_value();
        bed.deployment(&name, value).await;
        let change = [Change {
            field,
            value,
            acknowledged: Instant::now(),
        }];
        targets = targets.and(stage.latencies(&change, Sender::Operator).await?);
        floor = floor.and(stage.latencies(&change, Sender::Floor).await?);
    }

    let mut points = Sample::default();
    for field in TIMES..2 * TIMES {
        let (name, point) = (name(field), format!("late-{field}"));
        let value = stage.new_value();
        bed.deployment(&name, value).await;
        bed.track(&name, "Deployment", &name, "replicas", &point)
            .await;
        bed.waiting(&name, "ContactPointNotFound").await;
        bed.webhook(&point, &stage.receivers[0].url()).await;
        let change = [Change {
            field,
            value,
            acknowledged: Instant::now(),
        }];
        points = points.and(stage.latencies(&change, Sender::Operator).await?);
    }
    let line = |what: &str, sample: &Sample| {
        let note = format!("the longest of {TIMES}; p50 {:.1} ms", sample.p50());
        Line::new(what, sample.max(), "ms").below(LIMIT).note(note)
    };
    Ok(vec![
        line("a target appears -> the message", &targets).floor(floor.max()),
        line("a ContactPoint appears -> test, then what waited", &points),
    ])
}
