//! Flags, metrics and times that the pages name.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::CommandFactory;
use quartermaster::cli::{Cli, Timings};

use super::{page, pages, prose, row};

/// Flags of other programs (helm, kubectl, velero, the apiserver, the bench) that pages name without their command.
const OF_OTHERS: [&str; 13] = [
    "cluster-cidr",
    "create-namespace",
    "feature-gates",
    "force-conflicts",
    "from-literal",
    "overwrite",
    "reset-then-reuse-values",
    "restore-status",
    "service-cluster-ip-range",
    "set",
    "strict",
    "take-ownership",
    "wait",
];

/// The generated reference has all flags, and the pages name only existing flags.
#[test]
fn every_named_flag_exists() {
    let mut program = Cli::command();
    program.build();
    let flags: BTreeSet<_> = program
        .get_subcommands()
        .flat_map(|command| command.get_arguments().filter_map(|it| it.get_long()))
        .collect();
    let mut named = 0;
    let mut unknown = BTreeSet::new();
    for (path, text) in pages() {
        // The tables of the changelog have old names.
        if path.ends_with("CHANGELOG.md") {
            continue;
        }
        let prose = prose(&text);
        let spans = prose.split('`').skip(1).step_by(2);
        for name in spans.filter_map(|code| code.strip_prefix("--")) {
            let name = name.split([' ', '=']).next().unwrap_or_default();
            named += 1;
            let is_one = flags.contains(name)
                || OF_OTHERS.contains(&name)
                || name
                    .strip_suffix("...")
                    .is_some_and(|of| flags.iter().any(|it| it.starts_with(of)));
            if !is_one {
                unknown.insert(format!("{}: --{name}", path.display()));
            }
        }
    }
    assert!(named > 30 && unknown.is_empty(), "{unknown:#?}");
}

/// The generated reference has all metrics, and the pages name only existing metrics.
#[test]
fn every_named_metric_exists() {
    let reference = page("reference/metrics.md");
    let prefixes = [
        "quartermaster_",
        "controller_runtime_",
        "workqueue_",
        "process_",
        "rest_client_",
        "leader_election_master_",
    ];
    let mut named = 0;
    for (path, text) in pages() {
        let mut text = prose(&text);
        if path.ends_with("CHANGELOG.md") {
            // The tables of the changelog have old names.
            let lines = text.lines().filter(|line| !line.starts_with('|'));
            text = lines.collect::<Vec<_>>().join("\n");
        }
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '*'));
        let is_one = |word: &&str| {
            prefixes.iter().any(|begin| {
                word.strip_prefix(begin)
                    .is_some_and(|rest| !rest.is_empty() && rest != "*")
            })
        };
        for word in words.filter(is_one) {
            assert!(
                row(&reference, word).is_some(),
                "{}: metric {word} does not exist",
                path.display()
            );
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}

/// The pages contain these times as text. A change of a time has to change its pages.
#[test]
fn named_times_match_the_code() {
    let seconds = Duration::from_secs;
    let named = Timings {
        leader_elect_lease_duration: seconds(9),
        leader_elect_renew_deadline: seconds(6),
        leader_elect_retry_period: Duration::from_millis(500),
        backoff_min: seconds(1),
        backoff_max: seconds(300),
        retry_after_max: seconds(3600),
        stopped_retry_period: seconds(300),
        send_timeout: seconds(10),
        secret_refresh_period: seconds(300),
        policy_check_period: seconds(300),
        poll_min: seconds(1),
        poll_max: seconds(30),
        delivery_max_age: seconds(24 * 3600),
        event_renewal: seconds(1800),
        graceful_shutdown_timeout: Duration::from_millis(500),
        reconcile_timeout: seconds(60),
        slow_backoff_min: seconds(15),
        slow_backoff_max: seconds(600),
        watch_timeout: seconds(120),
        scaling_inactive_grace_period: seconds(300),
        aws_sync_period: seconds(600),
        aws_consistency_window: seconds(120),
        aws_timeout: seconds(20),
        aws_read_period: Duration::from_millis(200),
        aws_write_period: Duration::from_millis(500),
        metrics_authentication_ttl: seconds(60),
        metrics_authorized_ttl: seconds(300),
        metrics_unauthorized_ttl: seconds(30),
        metrics_connection_max_age: seconds(60),
        metrics_io_timeout: seconds(10),
        sync_period: seconds(1800),
        set_status_period: seconds(5),
        drift_window: seconds(600),
        drift_backoff_min: seconds(15),
        drift_backoff_max: seconds(300),
        confirmation_period: Duration::from_millis(50),
        api_timeout: seconds(30),
    };
    assert_eq!(named, Timings::default());
}
