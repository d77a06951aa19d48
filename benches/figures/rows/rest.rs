//! Measures costs at rest, the time to readiness, and the size of the binary.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use testbed::control_plane::audit::{Mark, Request};
use testbed::usage::{Memory, cpu_seconds};
use testbed::wait::until;
use tokio::task::AbortHandle;

use crate::floor::Floor;
use crate::line::{Line, Sample};
use crate::stage::{FIELDS, PATIENCE, SETTLE, Stage, says_it_leads};
use crate::support::{ACCOUNT, Bed, Operator, SYSTEM, Settings};

/// Measures CPU and writes over a minute without changes, in which the metrics are read four times. The floor is
/// measured at the same time.
pub async fn cpu(program: PathBuf) -> Result<Vec<Line>> {
    const WINDOW: Duration = Duration::from_mins(1);
    let stage = Stage::set(program, FIELDS).await?;
    let before = stage.bed.plane.audit().mark().await?;
    let mut operator = stage.operator(FIELDS).await?;
    let watches = requests(&stage.bed, before).await?;
    let watches = watches
        .iter()
        .filter(|request| request.subject.verb == "watch");
    let watches = watches
        .filter(|request| request.subject.resource == "deployments")
        .count();
    let (floor, _) = Floor::start(&stage).await?;
    let scraped = scraped(&stage, &operator).await?;
    tokio::time::sleep(SETTLE).await;

    let processes = [operator.child().id(), floor.id()];
    let used = || {
        processes
            .iter()
            .map(|process| cpu_seconds(*process))
            .collect::<Result<Vec<_>>>()
    };
    let (since, before, began) = (
        stage.bed.plane.audit().mark().await?,
        used()?,
        Instant::now(),
    );
    tokio::time::sleep(WINDOW).await;
    let (after, took) = (used()?, began.elapsed().as_secs_f64());
    let share = |process: usize| (after[process] - before[process]) / took * 100.0;
    let sent = requests(&stage.bed, since).await?;
    let writes = sent.iter().filter(|request| request.subject.is_write());
    let writes = writes.filter(|request| !request.subject.resource.ends_with("reviews"));
    let (leases, others): (Vec<_>, Vec<_>) =
        writes.partition(|request| request.subject.resource == "leases");
    let memory = Memory::of(operator.child().id())?;
    scraped.abort();
    Ok(vec![
        Line::new("CPU at rest, 1,000 TrackedFields", share(0), "% of a core")
            .below(0.5)
            .floor(share(1))
            .note(format!(
                "{} requests in {took:.0} s, {} of them for the lease",
                sent.len(),
                leases.len()
            )),
        Line::new(
            "VmRSS at rest, 1,000 TrackedFields, metrics read",
            memory.resident,
            "MiB",
        )
        .below(32.0),
        Line::new(
            "writes at rest but the lease's, in 60 s",
            f64::from(u32::try_from(others.len())?),
            "",
        )
        .at_most(0.0),
        Line::new(
            "watches of Deployments for 1,000 TrackedFields",
            f64::from(u32::try_from(watches)?),
            "",
        )
        .at_most(1.0)
        .floor(1.0),
    ])
}

/// Reads the metrics as Prometheus does, from now on. Returns once they can be read.
async fn scraped(stage: &Stage, operator: &Operator) -> Result<AbortHandle> {
    const EVERY: Duration = Duration::from_secs(15);
    let kubectl = async |arguments: &[&str]| stage.bed.plane.run_kubectl(arguments, "").await;
    kubectl(&["create", "serviceaccount", "prometheus", "-n", "default"]).await?;
    let (role, account) = (
        "--clusterrole=quartermaster-metrics-reader",
        "--serviceaccount=default:prometheus",
    );
    kubectl(&["create", "clusterrolebinding", "prometheus", role, account]).await?;
    let token = kubectl(&["create", "token", "prometheus", "-n", "default"]).await?;
    let url = format!(
        "https://{}/metrics",
        operator.address("--metrics-bind-address")?
    );
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_danger_accept_invalid_certs(true)
        .build()?;
    let scrape = async move || {
        client
            .get(&url)
            .bearer_auth(token.trim())
            .send()
            .await?
            .error_for_status()
    };
    until("the metrics are read", PATIENCE, async || {
        Ok(Some(scrape().await?))
    })
    .await?;
    let scraping = tokio::spawn(async move {
        loop {
            tokio::time::sleep(EVERY).await;
            scrape().await.unwrap();
        }
    });
    Ok(scraping.abort_handle())
}

/// Returns the requests of the operator (or of the floor, which has its permissions) to the apiserver.
pub(super) async fn requests(bed: &Bed, since: Mark) -> Result<Vec<Request>> {
    let user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let mut requests = bed.plane.audit().requests(since).await?;
    requests.retain(|request| request.subject.user == user);
    Ok(requests)
}

/// Measures from the start to `/readyz` and the lease, which no replica holds.
pub async fn start(program: PathBuf) -> Result<Vec<Line>> {
    const TIMES: usize = 5;
    let stage = Stage::set(program, FIELDS).await?;
    let mut operator = stage.operator(FIELDS).await?;
    let (mut both, mut ready, mut floor) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TIMES {
        operator.child().terminate()?;
        operator.child().wait(PATIENCE).await?;
        floor.push(Floor::start(&stage).await?.1);
        let began = Instant::now();
        operator = Operator::launch(&stage.bed, stage.settings()).await;
        let (mut is_ready, mut leads) = (None, None);
        while is_ready.is_none() || leads.is_none() {
            if is_ready.is_none() && answers_ok(&operator).await {
                is_ready = Some(began.elapsed());
            }
            if leads.is_none() && says_it_leads(&operator) {
                leads = Some(began.elapsed());
            }
            operator.child().check_running()?;
            // The start is measured in milliseconds.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        both.extend(is_ready.max(leads));
        ready.extend(is_ready);
    }
    let sample = |times: Vec<Duration>| {
        times
            .into_iter()
            .map(|time| time.as_secs_f64())
            .collect::<Sample>()
    };
    let (both, ready, floor) = (sample(both), sample(ready), sample(floor));
    let note = format!(
        "the longest of {}; /readyz alone {}; floor: listed",
        both.list(),
        ready.list()
    );
    Ok(vec![
        Line::new(
            "start -> ready and leading, 1,000 TrackedFields",
            both.max(),
            "s",
        )
        .below(1.0)
        .floor(floor.max())
        .note(note),
    ])
}

/// Restarts the operator. Returns the seconds until it is ready and leads.
pub(super) async fn restart(bed: &Bed, settings: Settings, operator: &mut Operator) -> Result<f64> {
    operator.child().terminate()?;
    operator.child().wait(PATIENCE).await?;
    let began = Instant::now();
    *operator = Operator::launch(bed, settings).await;
    until("the operator is ready and leads", PATIENCE, async || {
        let is_up = answers_ok(operator).await && says_it_leads(operator);
        Ok(is_up.then(|| began.elapsed().as_secs_f64()))
    })
    .await
}

/// Requests `/readyz` with a minimal request.
async fn answers_ok(operator: &Operator) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async {
        let mut socket =
            tokio::net::TcpStream::connect(operator.address("--health-probe-bind-address")?)
                .await?;
        socket
            .write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    ask.await
        .is_ok_and(|answer: String| answer.starts_with("HTTP/1.1 200"))
}

/// Returns the size of the binary.
pub fn size(program: &Path) -> Result<Vec<Line>> {
    let kibibytes = u32::try_from(std::fs::metadata(program)?.len() >> 10)?;
    Ok(vec![
        Line::new("release binary", f64::from(kibibytes) / 1024.0, "MiB").below(24.0),
    ])
}
