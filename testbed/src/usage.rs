//! Resource usage and start time of a process, from `/proc` (<https://man7.org/linux/man-pages/man5/proc.5.html>).

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};

/// Memory, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Anonymous memory, which no file backs.
    pub anonymous: f64,
    /// Resident memory, including pages of the program and its libraries.
    pub resident: f64,
}

impl Memory {
    /// Returns the memory of the process with this id.
    pub fn of(process: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| {
            let line = status
                .lines()
                .find(|line| line.starts_with(name))
                .with_context(|| format!("no {name}"))?;
            let kibibytes = line
                .split_whitespace()
                .nth(1)
                .with_context(|| format!("no number in {line}"))?;
            anyhow::Ok(f64::from(kibibytes.parse::<u32>()?) / 1024.0)
        };
        Ok(Self {
            anonymous: field("RssAnon:")?,
            resident: field("VmRSS:")?,
        })
    }
}

/// Returns the CPU time that a process has used so far, in user space and in the kernel, in seconds.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    let [user, kernel] = ticks(process, [14, 15])?;
    Ok((user + kernel) / TICKS)
}

/// Returns when a process started, to the second.
pub fn started(process: u32) -> Result<Timestamp> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let boot = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .context("no time of boot")?;
    let [since_boot] = ticks(process, [22])?;
    Ok(Timestamp::from_second(boot.trim().parse()?)?
        + SignedDuration::try_from_secs_f64(since_boot / TICKS)?)
}

/// Ticks a second: the unit of `/proc`, whatever the kernel's own clock rate.
const TICKS: f64 = 100.0;

/// Returns these fields of `/proc/PID/stat`, by their number in proc(5), from the fourth on.
fn ticks<const N: usize>(process: u32, fields: [usize; N]) -> Result<[f64; N]> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the name in parentheses, and may contain any character.
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let rest: Vec<_> = rest.split_whitespace().collect();
    let mut all = [0.0; N];
    for (value, field) in all.iter_mut().zip(fields) {
        *value = rest
            .get(field - 3)
            .with_context(|| format!("no field {field}"))?
            .parse()?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn started_returns_time_of_process_start() {
        let second = SignedDuration::from_secs(1);
        let before = Timestamp::now() - second;
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let of_child = started(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            before <= of_child && of_child <= Timestamp::now() + second,
            "{before} {of_child}"
        );
        assert!(started(std::os::unix::process::parent_id()).unwrap() <= of_child);
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
    }
}
