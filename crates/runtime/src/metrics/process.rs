//! Metrics of this process from /proc, under the names that every Prometheus client library uses
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>), and its number of tasks.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Units of time in /proc (`USER_HZ`): 100 a second on every architecture that Kubernetes runs on (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Collector that reads /proc at each scrape; a system without /proc has only the number of tasks.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (status, stat) = (read("/proc/self/status"), read("/proc/self/stat"));
        let fds = fs::read_dir("/proc/self/fd")
            .ok()
            .and_then(|fds| i64::try_from(fds.count()).ok());
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory.",
                kilobytes(&status, "VmRSS:"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory.",
                kilobytes(&status, "VmSize:"),
            ),
            ("process_open_fds", "Open file descriptors.", fds),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                open_files_limit(&read("/proc/self/limits")),
            ),
            ("process_threads", "Threads.", number(&status, "Threads:")),
            (
                "tokio_alive_tasks",
                "Tasks of the asynchronous runtime that have not ended.",
                Some(alive_tasks()),
            ),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        if let Some((cpu, start)) = times(&stat) {
            let cpu = ConstCounter::new(cpu);
            let help = "User and system time.";
            cpu.encode(encoder.encode_descriptor(
                "process_cpu_seconds",
                help,
                None,
                cpu.metric_type(),
            )?)?;
            if let Some(boot) = number(&read("/proc/stat"), "btime ") {
                #[allow(clippy::cast_precision_loss)] // seconds since 1970
                let since_epoch = ConstGauge::new(boot as f64 + start);
                let help = "Start, in seconds since 1970.";
                since_epoch.encode(encoder.encode_descriptor(
                    "process_start_time_seconds",
                    help,
                    None,
                    since_epoch.metric_type(),
                )?)?;
            }
        }
        Ok(())
    }
}

/// Returns the number of tasks, 0 outside a runtime.
fn alive_tasks() -> i64 {
    let runtime = tokio::runtime::Handle::try_current();
    let tasks = runtime.map_or(0, |runtime| runtime.metrics().num_alive_tasks());
    i64::try_from(tasks).unwrap_or(i64::MAX)
}

/// Returns the number after `key` on its line.
fn number(text: &str, key: &str) -> Option<i64> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn kilobytes(status: &str, key: &str) -> Option<i64> {
    number(status, key)?.checked_mul(1024)
}

fn open_files_limit(limits: &str) -> Option<i64> {
    number(limits, "Max open files")
}

/// Returns the seconds of CPU used, and the seconds from boot to start: fields 14, 15 and 22 of /proc/self/stat. The
/// second field is the program's name in parentheses, which may contain any character.
fn times(stat: &str) -> Option<(f64, f64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    Some((
        (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
        ticks(22)? / TICKS_PER_SECOND,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_parsed_from_proc() {
        let stat = "7 (a) b)) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 3 0 4200 1000 200 18446744073709551615";
        assert_eq!(times(stat), Some((2.0, 42.0)));
        assert_eq!(times(""), None);
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t    1024 kB\nThreads:\t3\n";
        assert_eq!(kilobytes(status, "VmRSS:"), Some(1_048_576));
        assert_eq!(number(status, "Threads:"), Some(3));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max open files            1024                 4096                 files     \n";
        assert_eq!(open_files_limit(limits), Some(1024));
    }
}
