//! What `/proc` says of a process (<https://man7.org/linux/man-pages/man5/proc.5.html>).

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Memory, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Memory that no file stands behind.
    pub anonymous: u64,
    /// All that is resident, pages of the program's file and libraries among it.
    pub resident: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

impl Memory {
    /// Of the process with this id.
    pub fn of(process: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"))?;
            let number = line.split_whitespace().nth(1).with_context(|| format!("no number in {line}"))?;
            anyhow::Ok(number.parse::<u64>()?)
        };
        Ok(Self { anonymous: field("RssAnon:")?, resident: field("VmRSS:")?, peak: field("VmHWM:")? })
    }

    /// Whether it is below so many MiB.
    pub fn below(self, anonymous: u64, resident: u64) -> bool {
        self.anonymous < anonymous << 10 && self.resident < resident << 10
    }

    /// For people.
    pub fn words(self) -> String {
        format!(
            "RssAnon {}, VmRSS {} (peak {}) MiB",
            mebibytes(self.anonymous),
            mebibytes(self.resident),
            mebibytes(self.peak)
        )
    }
}

/// KiB as MiB.
fn mebibytes(kibibytes: u64) -> String {
    format!("{}.{}", kibibytes >> 10, ((kibibytes & 1023) * 10) >> 10)
}

/// CPU time that a process has used so far, in user space and in the kernel.
pub fn cpu_time(process: u32) -> Result<Duration> {
    /// Linux counts in hundredths of a second, whatever its own clock does.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name stands in parentheses, and may hold anything.
    let (_, rest) = stat.rsplit_once(')').context("no name")?;
    let ticks: u32 = rest.split_whitespace().skip(11).take(2).filter_map(|number| number.parse::<u32>().ok()).sum();
    Ok(TICK * ticks)
}
