//! Measures how long no replica acts after the leader is killed, and after a signal stops the leader.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::line::{Line, Sample};
use crate::stage::{FIELDS, PATIENCE, Stage, leads, says_it_leads};
use crate::support::{Operator, SYSTEM};

/// Number of measurements of each figure.
const TIMES: usize = 3;
/// Changes per second meanwhile.
const RATE: u32 = 20;

/// Measures from the signal to the first message of the other replica, while changes continue.
pub async fn failover(program: PathBuf) -> Result<Vec<Line>> {
    let stage = Stage::set(program, FIELDS).await?;
    let mut leader = stage.operator(FIELDS).await?;
    let load = tokio::spawn({
        let stage = Arc::clone(&stage);
        async move {
            loop {
                stage.paced(FIELDS, RATE, FIELDS).await;
            }
        }
    });
    let (mut killed, mut lasted) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let standby = standby(&stage).await?;
        let began = Instant::now();
        leader.kill();
        lasted.push(lease_left(&stage).await?);
        killed.push((first_message(&stage, &standby).await? - began).as_secs_f64());
        leader = standby;
    }
    let (mut stopped, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let standby = standby(&stage).await?;
        let began = Instant::now();
        leader.child().terminate()?;
        let end = async {
            leader.child().wait(PATIENCE).await?;
            anyhow::Ok(began.elapsed().as_secs_f64())
        };
        let (end, message) = tokio::try_join!(end, first_message(&stage, &standby))?;
        ended.push(end);
        stopped.push((message - began).as_secs_f64());
        leader = standby;
    }
    load.abort();
    let line = |what: &str, limit: f64, gaps: Vec<f64>, floor: Vec<f64>, floor_is: &str| {
        let (gaps, floor): (Sample, Sample) =
            (gaps.into_iter().collect(), floor.into_iter().collect());
        let note = format!(
            "the longest of {}; floor: {floor_is} ({})",
            gaps.list(),
            floor.list()
        );
        Line::new(what, gaps.max(), "s")
            .below(limit)
            .floor(floor.max())
            .note(note)
    };
    Ok(vec![
        line(
            "failover: SIGKILL -> next message",
            12.0,
            killed,
            lasted,
            "what was left of the lease",
        ),
        line(
            "handover: SIGTERM -> next message",
            2.0,
            stopped,
            ended,
            "the leader ends",
        ),
    ])
}

/// Starts a replica with synced caches that does not lead.
pub(super) async fn standby(stage: &Stage) -> Result<Operator> {
    let standby = Operator::start(&stage.bed, stage.settings()).await;
    ensure!(!says_it_leads(&standby), "two lead");
    Ok(standby)
}

/// Returns the seconds until the lease of a dead leader expires.
pub(super) async fn lease_left(stage: &Stage) -> Result<f64> {
    let lease = Api::<Lease>::namespaced(stage.bed.client.clone(), SYSTEM)
        .get("quartermaster")
        .await?;
    let spec = lease.spec.context("a Lease without a spec")?;
    let renewed = spec.renew_time.context("a Lease that was never renewed")?.0;
    let duration = spec
        .lease_duration_seconds
        .context("a Lease without a duration")?;
    Ok(f64::from(duration) - Timestamp::now().duration_since(renewed).as_secs_f64())
}

/// Returns the time of the first message after `standby` acquired the lease; from then on only `standby` sends.
pub(super) async fn first_message(stage: &Stage, standby: &Operator) -> Result<Instant> {
    leads(standby).await?;
    let leads_since = Instant::now();
    until("a message", PATIENCE, async || {
        let requests = stage.receivers.iter().flat_map(Receiver::requests);
        Ok(requests
            .map(|request| request.at)
            .filter(|at| *at > leads_since)
            .min())
    })
    .await
}
