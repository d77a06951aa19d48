//! `make bench`: every figure that the product promises, measured on a real control plane, with the floor of this
//! machine in the same run.
//!
//!     cargo bench                          all rows, about ten minutes
//!     cargo bench -- latency cpu           these rows
//!     cargo bench -- --strict              a figure that is missed is a failure
//!     cargo bench -- growth                how costs grow with the number of objects, about an hour
//!     cargo bench -- shards                50,000 TrackedFields with three operators
//!
//! The release build is measured, run as users run it, with its `ServiceAccount`'s permissions. Each row is measured by
//! a separate process on a separate control plane (etcd and kube-apiserver alone: no other client writes). The targets
//! are Deployments, whose `replicas` are tracked; their changes are merge patches. The floor is a bare watch that posts
//! immediately ([`floor`]), unless a note describes another one. All processes end with this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

mod floor;
mod line;
mod rows;
mod stage;
#[path = "../../tests/it/support/mod.rs"]
mod support;

use self::line::Line;

/// The rows, in the order of the table.
#[rustfmt::skip] // related rows share a line
const ROWS: [&str; 17] = [
    "latency", "hang", "expensive_paths", "appear", "memory", "failover", "slow", "cpu", "start",
    "copies", "crowd",
    "burst", "alone", "still",
    "sets", "rules",
    "size",
];

/// The rows of `growth`, which are measured only on request.
const GROWTH: [&str; 4] = ["fields", "syncs", "services", "ingresses"];

/// The row of 50,000 `TrackedField`s, which is measured only on request.
const SHARDS: [&str; 1] = ["shards"];

const USAGE: &str = "cargo bench -- [--strict] [growth | ROW ...]";

/// Flag of the process that measures a row, before the row's name.
const MEASURE: &str = "--measure";

#[tokio::main]
async fn main() -> ExitCode {
    // cargo passes `--bench` to every bench.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let result = match &args[..] {
        [flag, row, program] if flag == MEASURE => {
            measure(row, program.into()).await.map(|()| true)
        }
        [flag, receivers @ ..] if flag == floor::FLAG => floor::run(receivers).await.map(|()| true),
        _ => all(&args).await,
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures one row and prints its lines as JSON.
async fn measure(row: &str, program: PathBuf) -> Result<()> {
    let lines = async {
        match row {
            "latency" => rows::latency::latency(program).await,
            "hang" => rows::latency::hang(program).await,
            "expensive_paths" => rows::expensive_paths::expensive_paths(program).await,
            "appear" => rows::appear::appear(program).await,
            "memory" => rows::load::memory(program).await,
            "failover" => rows::replicas::failover(program).await,
            "slow" => rows::load::slow(program).await,
            "cpu" => rows::rest::cpu(program).await,
            "start" => rows::rest::start(program).await,
            "copies" => rows::copies::copies(program).await,
            "crowd" => rows::copies::crowd(program).await,
            "burst" => rows::apps::burst(program).await,
            "alone" => rows::apps::alone(program).await,
            "still" => rows::apps::still(program).await,
            "sets" => rows::sets::sets(program).await,
            "rules" => rows::rules::rules(),
            "size" => rows::rest::size(&program),
            "fields" => rows::growth::fields(program).await,
            "syncs" => rows::growth::syncs(program).await,
            "services" => rows::growth::services(program).await,
            "ingresses" => rows::growth::ingresses(program).await,
            "shards" => rows::growth::shards(program).await,
            other => bail!("there is no row {other}"),
        }
    };
    let lines = tokio::select! {
        lines = lines => lines?,
        () = testbed::process::parent_ended() => bail!("the bench has ended"),
    };
    println!("{}", serde_json::to_string(&lines)?);
    Ok(())
}

/// Measures the requested rows and prints the table. Returns whether all promises were kept.
async fn all(args: &[String]) -> Result<bool> {
    let strict = args.iter().any(|arg| arg == "--strict");
    let named: Vec<&str> = args
        .iter()
        .map(String::as_str)
        .filter(|arg| *arg != "--strict")
        .collect();
    let rows: Vec<&str> = match &named[..] {
        [] => ROWS.into(),
        ["growth"] => GROWTH.into(),
        named => {
            let all: Vec<&str> = ROWS.into_iter().chain(GROWTH).chain(SHARDS).collect();
            if let Some(unknown) = named.iter().find(|name| !all.contains(*name)) {
                bail!(
                    "there is no row {unknown}\n{USAGE}\nrows: {}",
                    all.join(" ")
                );
            }
            all.into_iter().filter(|row| named.contains(row)).collect()
        }
    };
    let program = release_build().await?;
    let load_before = load();
    let mut lines = Vec::new();
    let mut broken = false;
    for row in rows {
        eprintln!("measuring {row} (load average {})", load());
        match in_separate_process(row, &program).await {
            Ok(more) => lines.extend(more),
            Err(error) => {
                eprintln!("{row}: {error:#}");
                lines.push(Line::broken(row));
                broken = true;
            }
        }
    }
    let cores = std::thread::available_parallelism()?;
    println!(
        "\n{cores} cores; load average {load_before} before, {} after\n",
        load()
    );
    print!("{}", line::table(&lines));
    let missed = lines.iter().filter(|line| line.missed()).count();
    if missed > 0 {
        println!("\n{missed} missed");
    }
    Ok(!broken && (missed == 0 || !strict))
}

/// Builds the released program as the image does. The build of `cargo bench` has the features of the tests' dependencies.
async fn release_build() -> Result<PathBuf> {
    eprintln!("building the release");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args([
            "build",
            "--config",
            "hack/release.toml",
            "--release",
            "--bin",
            "quartermaster",
            "--message-format=json-render-diagnostics",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("running cargo")?
        .wait_with_output()
        .await?;
    ensure!(built.status.success(), "the release build failed");
    let built = String::from_utf8(built.stdout)?;
    let messages = built
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.context("cargo names no executable")
}

/// Measures a row in a separate process, so that its servers end with it and its memory is separate.
async fn in_separate_process(row: &str, program: &Path) -> Result<Vec<Line>> {
    let output = Command::new(std::env::current_exe()?)
        .args([MEASURE, row])
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?
        .wait_with_output()
        .await?;
    ensure!(output.status.success(), "not measured");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
