//! What a process uses, as `/proc` says (<https://man7.org/linux/man-pages/man5/proc.5.html>).

use anyhow::{Context as _, Result};

/// Memory, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Memory that no file stands behind.
    pub anonymous: f64,
    /// All that is resident, pages of the program's file and libraries among it.
    pub resident: f64,
}

impl Memory {
    /// Of the process with this id.
    pub fn of(process: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"))?;
            let kibibytes = line.split_whitespace().nth(1).with_context(|| format!("no number in {line}"))?;
            anyhow::Ok(f64::from(kibibytes.parse::<u32>()?) / 1024.0)
        };
        Ok(Self { anonymous: field("RssAnon:")?, resident: field("VmRSS:")? })
    }
}

/// CPU time that a process has used so far, in user space and in the kernel, in seconds.
pub fn cpu_seconds(process: u32) -> Result<f64> {
    /// Linux counts in hundredths of a second, whatever its own clock does.
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name stands in parentheses, and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let ticks: u32 = rest.split_whitespace().skip(11).take(2).filter_map(|number| number.parse::<u32>().ok()).sum();
    Ok(f64::from(ticks) / TICKS)
}
