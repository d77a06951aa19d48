//! `operating.md`: flags and metrics; and the times that the pages name.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::CommandFactory;
use jiff::Timestamp;
use quartermaster::api::standing::Ready;
use quartermaster::cli::{Cli, Timings};
use quartermaster::runtime::leader::Fence;
use quartermaster::runtime::metrics::resources::tally;
use quartermaster::runtime::metrics::{Metrics, Notified, Purpose, Receiver, Reconciled};

use super::{page, row};

/// All flags stand in the generated reference; what the page says of one is of one that is there.
#[test]
fn every_flag_that_is_named_is_one() {
    let page = page("operating.md");
    let (_, section) = page.split_once("\n## Flags\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut program = Cli::command();
    program.build();
    let flags: BTreeSet<_> =
        program.find_subcommand("run").unwrap().get_arguments().filter_map(|it| it.get_long()).collect();
    let named: Vec<_> = section.split('`').skip(1).step_by(2).filter_map(|code| code.strip_prefix("--")).collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        let is_one = flags.contains(name)
            || name.strip_suffix("...").is_some_and(|of| flags.iter().any(|it| it.starts_with(of)));
        assert!(is_one, "there is no --{name}");
    }
}

/// Every metric with some value, so that each one and its labels are written, with all that the bounded ones may say.
pub fn every_metric() -> String {
    let metrics = Metrics::new();
    let controller = metrics.controller("a", 1);
    for result in [Reconciled::Success, Reconciled::RequeueAfter, Reconciled::Requeue, Reconciled::Error] {
        controller.reconciled(result, Duration::ZERO);
    }
    metrics.api_request("host", "GET", None);
    metrics.show_leadership("a", Fence::open());
    for outcome in [Notified::Delivered, Notified::Retried, Notified::Stopped, Notified::Rejected] {
        metrics.notified(Receiver::Telegram, outcome);
        metrics.notified(Receiver::Webhook, outcome);
    }
    metrics.notification_latency(Duration::ZERO);
    let _watch = metrics.watch("deployments", Purpose::Own);
    metrics.aws_request("DescribeTags", "OK");
    let ready = [Ready::True, Ready::False, Ready::Unknown];
    metrics.show_resources("a", move || Some(tally(ready.into_iter().map(|ready| (ready, "Reason")))));
    metrics.show_oldest_pending(|| Some(Timestamp::UNIX_EPOCH));
    metrics.encode()
}

#[test]
fn every_metric_has_its_row_with_its_labels() {
    let page = page("operating.md");
    let text = every_metric();
    let mut names = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let row = row(&page, &name).unwrap_or_else(|| panic!("{name} has no row"));
        assert!(row.starts_with(&format!("| `{name}` | {kind} |")), "{name} is a {kind}");
        names.insert(name);
    }
    assert!(names.len() > 20, "{names:?}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, labels)) = line.split_once('{') else { continue };
        let row =
            names.iter().find(|known| name.starts_with(known.as_str())).and_then(|known| row(&page, known)).unwrap();
        for (label, value) in labels.split('}').next().unwrap().split(',').filter_map(|label| label.split_once('=')) {
            assert!(label == "le" || row.contains(&format!("`{label}`")), "{name}: label {label}");
            let listed = ["type", "outcome", "result", "ready", "state"].contains(&label);
            assert!(!listed || row.contains(&format!("`{}`", value.trim_matches('"'))), "{name}: {label}={value}");
        }
    }
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|line| line.split('`').next());
    let ours = ["quartermaster_", "controller_runtime_", "workqueue_", "process_", "rest_client_", "leader_election_"];
    for name in rows.filter(|name| ours.iter().any(|prefix| name.starts_with(prefix)) && !name.contains('{')) {
        assert!(names.contains(name), "there is no metric {name}");
    }
}

/// The pages write these times out. Whoever changes one looks for it there.
#[test]
fn the_times_that_the_pages_name() {
    let seconds = Duration::from_secs;
    let named = Timings {
        lease_duration: seconds(9),
        lease_renew_deadline: seconds(6),
        lease_retry_period: Duration::from_millis(500),
        retry_min: seconds(1),
        retry_max: seconds(300),
        retry_after_max: seconds(3600),
        stopped_retry: seconds(300),
        send_timeout: seconds(10),
        secret_reread: seconds(300),
        waiting_min: seconds(1),
        waiting_max: seconds(30),
        delivery_max_age: seconds(24 * 3600),
        event_renewal: seconds(1800),
        drain: Duration::from_millis(500),
        reconcile_timeout: seconds(60),
        slow_min: seconds(30),
        slow_max: seconds(600),
        watch_timeout: seconds(120),
        aws_resync: seconds(600),
        aws_shown_within: seconds(60),
        aws_read_period: Duration::from_millis(200),
        aws_write_period: Duration::from_millis(500),
        ..Timings::default()
    };
    assert_eq!(named, Timings::default());
}
