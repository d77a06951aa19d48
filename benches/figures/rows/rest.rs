//! What it costs at rest, how soon it is ready, how large it is.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::line::{Line, median, times};
use crate::process::cpu_time;
use crate::stage::{FIELDS, PATIENCE, Stage, metric, says_it_leads};
use crate::support::Operator;

/// CPU over a minute in which nothing changes.
pub async fn cpu(program: PathBuf) -> Result<Vec<Line>> {
    const SETTLE: Duration = Duration::from_secs(5);
    const WINDOW: Duration = Duration::from_secs(60);
    let stage = Stage::set(program, FIELDS).await?;
    let mut operator = stage.operator(FIELDS).await?;
    let process = operator.child().id();
    tokio::time::sleep(SETTLE).await;
    let requests = metric(&operator, "rest_client_requests_total").await?;
    let (used, began) = (cpu_time(process)?, Instant::now());
    tokio::time::sleep(WINDOW).await;
    let (used, took) = (cpu_time(process)? - used, began.elapsed());
    let requests = metric(&operator, "rest_client_requests_total").await? - requests;
    let share = used.as_secs_f64() / took.as_secs_f64();
    let measured =
        format!("{:.2} % ({} ms in {:.0} s, {requests} requests)", share * 100.0, used.as_millis(), took.as_secs_f64());
    Ok(vec![Line::promise("CPU at rest with 1,000 TrackedFields", "< 0.5 % of a core", measured, share < 0.005)])
}

/// From its start to `/readyz` and the lease, which nobody holds.
pub async fn start(program: PathBuf) -> Result<Vec<Line>> {
    const TIMES: usize = 5;
    let stage = Stage::set(program, FIELDS).await?;
    let mut operator = stage.operator(FIELDS).await?;
    let (mut ready, mut leading) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        operator.child().terminate()?;
        operator.child().wait(PATIENCE).await?;
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
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        ready.extend(is_ready);
        leading.extend(leads);
    }
    let second = Duration::from_secs(1);
    let both: Vec<Duration> = ready.iter().zip(&leading).map(|(ready, leading)| *ready.max(leading)).collect();
    let measured = format!("{:.2} s ({})", median(&both).as_secs_f64(), times(&both));
    Ok(vec![
        Line::promise(
            "start to ready with 1,000 TrackedFields, leading",
            "< 1 s",
            measured,
            both.iter().all(|time| *time < second),
        )
        .floor(format!("/readyz alone: {}", times(&ready))),
    ])
}

/// `/readyz`, with the least that a request can be.
async fn answers_ok(operator: &Operator) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async {
        let mut socket = tokio::net::TcpStream::connect(operator.address("--health-probe-bind-address")?).await?;
        socket.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    ask.await.is_ok_and(|answer: String| answer.starts_with("HTTP/1.1 200"))
}

/// The file's size.
pub fn size(program: &Path) -> Result<Vec<Line>> {
    let bytes = std::fs::metadata(program)?.len();
    let measured = format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20);
    Ok(vec![Line::promise("release binary", "< 20 MiB", measured, bytes < 20 << 20)])
}
