//! How long nobody acts when the leader is killed, and when it is told to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::line::{Line, median, times};
use crate::stage::{FIELDS, PATIENCE, Stage, leads, says_it_leads};
use crate::support::Operator;

/// Times that each is done.
const TIMES: usize = 3;
/// Changes a second meanwhile.
const RATE: u32 = 20;

/// From the signal to the first message that the other replica sends.
pub async fn failover(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, FIELDS).await?;
    let mut leader = stage.operator(FIELDS).await?;
    let load = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move { while stage.paced(0..FIELDS, RATE, FIELDS).await.is_ok() {} }
    });
    let (mut killed, mut stopped) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        for (gaps, kill) in [(&mut killed, true), (&mut stopped, false)] {
            let standby = Operator::start(&stage.bed, stage.settings()).await;
            ensure!(!says_it_leads(&standby), "two lead");
            let began = Instant::now();
            if kill {
                leader.kill();
            } else {
                leader.child().terminate()?;
            }
            gaps.push(first_message(&stage, &standby).await? - began);
            leader.child().wait(PATIENCE).await?;
            leader = standby;
        }
    }
    load.abort();
    let line = |what: &str, must: &str, limit: u64, gaps: &[Duration]| {
        let measured = format!("{:.2} s ({})", median(gaps).as_secs_f64(), times(gaps));
        Line::promise(what, must, measured, gaps.iter().all(|gap| *gap < Duration::from_secs(limit)))
    };
    Ok(vec![
        line("failover: SIGKILL of the leader -> the next message", "< 12 s", 12, &killed).floor("the lease lasts 9 s"),
        line("handover: SIGTERM of the leader -> the next message", "< 2 s", 2, &stopped)
            .floor("drain 0.5 s, next try within 1.1 s"),
    ])
}

/// When the first message came after `standby` took the lease: nobody else sends from then on.
async fn first_message(stage: &Stage, standby: &Operator) -> Result<Instant> {
    leads(standby).await?;
    let leads_since = Instant::now();
    stage.forget();
    until("a message", PATIENCE, async || {
        let requests = stage.receivers.iter().flat_map(Receiver::requests);
        Ok(requests.map(|request| request.at).filter(|at| *at > leads_since).min())
    })
    .await
}
