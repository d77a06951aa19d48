#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};
use qm_runtime::backoff::BackoffPolicy;
use qm_runtime::settings::MetricsCertificate;
use rstest::rstest;
use secrecy::ExposeSecret;

use super::*;

const KINDS: &[&str] = &["contactpoint", "trackedfield", "myingress"];

fn run(flags: &[&str]) -> Result<RunConfig, clap::Error> {
    let cli = Cli::try_parse_from(["quartermaster", "run"].iter().chain(flags))?;
    match cli.command {
        Command::Run(args) => args.config(KINDS),
        other => panic!("{other:?}"),
    }
}

#[test]
fn command_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_typed() {
    let config = run(&[]).unwrap();
    assert!(!config.runtime.leader_elect);
    assert_eq!(config.runtime.leader_election_id, "quartermaster");
    assert_eq!(
        config.metrics,
        [
            "[::]:8080".parse().unwrap(),
            "0.0.0.0:8080".parse().unwrap()
        ]
    );
    assert_eq!(config.runtime.metrics_certificate, None);
    assert_eq!(config.probes[0].port(), 8081);
    assert_eq!(config.runtime.operator_namespace, "quartermaster-system");
    assert!(config.runtime.watch_namespaces.is_empty());
    assert_eq!(
        config.runtime.controllers,
        Some(KINDS.iter().copied().collect())
    );
    assert_eq!(config.cluster_name, None);
    assert_eq!(
        config.notifications.telegram_api_url,
        "https://api.telegram.org"
    );
    assert_eq!(config.notifications.shared_secrets, SharedSecrets::Telegram);
    assert!(!config.notifications.allow_loopback && config.notifications.deny.is_empty());
    assert!(!config.notifications.quote_private && config.notifications.allow_ports.is_empty());
    assert!(config.notifications.webhook_proxy.is_none());
    assert_eq!(
        (config.log.level.as_str(), config.log.format),
        ("info", LogFormat::Auto)
    );
    assert_eq!(config.timings, Timings::default());
}

#[test]
fn default_timings_match_the_flags() {
    let matches = <Timings as Args>::augment_args(clap::Command::new("x")).get_matches_from(["x"]);
    assert_eq!(
        Timings::from_arg_matches(&matches).unwrap(),
        Timings::default()
    );
    assert_eq!(Timings::default().aws(), qm_aws::AwsTimings::default());
    assert_eq!(
        Timings::default().runtime(),
        qm_runtime::settings::RuntimeTimings::default()
    );
}

/// The article of `MyIngress` retries every error after 30 seconds.
#[test]
fn first_retry_comes_within_thirty_seconds() {
    let timings = Timings::default();
    for min in [timings.backoff_min, timings.slow_backoff_min] {
        let max = timings.slow_backoff_max;
        for _ in 0..100 {
            let first = BackoffPolicy { min, max }.start().next_delay();
            assert!(first <= Duration::from_secs(30), "{first:?}");
        }
    }
}

#[test]
fn every_flag_of_run_has_a_variable_and_help() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for flag in run.get_arguments() {
        let name = flag.get_long().unwrap();
        let variable = flag
            .get_env()
            .unwrap_or_else(|| panic!("--{name} has no variable"))
            .to_str()
            .unwrap();
        let expected = format!("QUARTERMASTER_{}", name.to_uppercase().replace('-', "_"));
        let exception = matches!(
            (name, variable),
            ("operator-namespace", "POD_NAMESPACE")
                | ("pod-name", "POD_NAME")
                | ("pod-ip", "POD_IPS")
        );
        assert!(variable == expected || exception, "--{name} is {variable}");
        assert!(flag.get_help().is_some(), "--{name} has no help");
    }
    // Only few other flags have an environment variable, as the help says.
    let without = command
        .get_subcommands()
        .filter(|it| it.get_arguments().any(|flag| flag.get_env().is_none()));
    assert!(
        without.count() > 1
            && AFTER_HELP.contains("Each flag of run also has an environment\nvariable")
    );
}

#[rstest]
#[case(&["--leader-elect"], true)]
#[case(&["--leader-elect=true"], true)]
#[case(&["--leader-elect=false"], false)]
#[case(&[], false)]
fn leader_elect_is_parsed(#[case] flags: &[&str], #[case] on: bool) {
    assert_eq!(run(flags).unwrap().runtime.leader_elect, on);
}

#[rstest]
#[case("")]
#[case("maybe")]
fn boolean_flag_rejects_another_word(#[case] word: &str) {
    for flag in ["leader-elect", "metrics-secure", "webhook-allow-loopback"] {
        let error = run(&[&format!("--{flag}={word}")]).unwrap_err().to_string();
        assert!(error.contains("write true or false"), "{error}");
    }
}

#[rstest]
#[case(&["--metrics-secure"], Some(MetricsCertificate::SelfSigned))]
#[case(&["--metrics-secure", "--metrics-cert-path="], Some(MetricsCertificate::SelfSigned))]
#[case(&["--metrics-secure", "--metrics-cert-path=/certs"], Some(MetricsCertificate::Mounted("/certs".into())))]
#[case(&["--metrics-secure=false", "--metrics-cert-path="], None)]
fn metrics_certificate_is_parsed(
    #[case] flags: &[&str],
    #[case] expected: Option<MetricsCertificate>,
) {
    assert_eq!(run(flags).unwrap().runtime.metrics_certificate, expected);
}

#[test]
fn flags_are_typed() {
    let config = run(&[
        "--metrics-bind-address=0",
        "--health-probe-bind-address=[::1]:0",
        "--operator-namespace=ops",
        "--watch-namespace=b,a",
        "--watch-namespace=a",
        "--telegram-api-url=http://127.0.0.1:9/base/",
        "--cluster-name=  prod eu ",
        "--shared-secrets=labelled",
        "--webhook-allow-loopback",
        "--webhook-deny-cidr=10.0.0.0/8",
        "--webhook-deny-cidr=192.168.1.7,fd00::/8",
        "--webhook-allow-port=443,8443",
        "--webhook-allow-port=80",
        "--webhook-quote-private",
        "--webhook-proxy=http://user:sesame@proxy:3128",
        "--log-level=warn,qm_notify=debug",
        "--log-format=json",
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=100ms",
        "--delivery-max-age=1h30m",
        "--pod-name=qm-0",
        "--pod-ip=10.244.0.7,fd00::7",
        "--pod-ip=",
    ])
    .unwrap();
    assert!(config.metrics.is_empty());
    assert_eq!(config.probes, ["[::1]:0".parse().unwrap()]);
    assert_eq!(config.runtime.operator_namespace, "ops");
    assert_eq!(
        config.runtime.watch_namespaces,
        ["a".to_owned(), "b".to_owned()].into()
    );
    assert_eq!(
        config.notifications.telegram_api_url,
        "http://127.0.0.1:9/base"
    );
    assert_eq!(config.cluster_name.as_deref(), Some("prod eu"));
    assert_eq!(config.notifications.shared_secrets, SharedSecrets::Labelled);
    assert!(config.notifications.allow_loopback);
    let deny: Vec<_> = config
        .notifications
        .deny
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(config.notifications.allow_ports, [443, 8443, 80]);
    assert!(config.notifications.quote_private);
    assert_eq!(deny, ["10.0.0.0/8", "192.168.1.7/32", "fd00::/8"]);
    assert_eq!(
        config
            .notifications
            .webhook_proxy
            .as_ref()
            .unwrap()
            .expose_secret(),
        "http://user:sesame@proxy:3128"
    );
    assert!(!format!("{config:?}").contains("sesame"));
    assert_eq!(
        (config.log.level.as_str(), config.log.format),
        ("warn,qm_notify=debug", LogFormat::Json)
    );
    assert_eq!(config.timings.leader_elect_retry_period.as_millis(), 100);
    assert_eq!(config.timings.delivery_max_age.as_secs(), 5400);
    assert_eq!(config.runtime.pod_name.as_deref(), Some("qm-0"));
    let own: Vec<_> = config
        .notifications
        .own_addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(own, ["10.244.0.7", "fd00::7"]);
}

#[rstest]
#[case("*", KINDS)]
#[case("*,-myingress", &["contactpoint", "trackedfield"])]
#[case("-myingress,*", &["contactpoint", "trackedfield"])]
#[case("TrackedField", &["trackedfield"])]
#[case("trackedfield, contactpoint", &["contactpoint", "trackedfield"])]
fn controllers_are_parsed(#[case] list: &str, #[case] on: &[&'static str]) {
    assert_eq!(
        run(&["--controllers", list]).unwrap().runtime.controllers,
        Some(on.iter().copied().collect())
    );
}

#[rstest]
#[case(&["--controllers=trackedfeild"], "there is no kind \"trackedfeild\"; write * or some of contactpoint, trackedfield")]
#[case(&["--controllers=-myingress"], "no kind remains; write *, or *,-NAME")]
#[case(&["--metrics-cert-path=/certs"], "--metrics-cert-path: the certificate is for --metrics-secure; write both")]
#[case(&["--metrics-bind-address=8080"], "--metrics-bind-address: write :8080")]
#[case(&["--health-probe-bind-address=:99999"], "--health-probe-bind-address: write :8080")]
#[case(&["--watch-namespace=Shop"], "lower-case letters")]
#[case(&["--operator-namespace="], "write the namespace")]
#[case(&["--telegram-api-url=api.telegram.org"], "write a URL such as https://api.telegram.org")]
#[case(&["--telegram-api-url=ftp://api.telegram.org"], "write a URL such as https://api.telegram.org")]
#[case(&["--telegram-api-url=https://u:sesame@host"], "leave out the credentials")]
#[case(&["--webhook-proxy=socks5://u:sesame@host"], "write a URL such as http://proxy.example:3128")]
#[case(&["--webhook-proxy=http://u:sesame@"], "write a URL such as http://proxy.example:3128")]
#[case(&["--webhook-deny-cidr=10.0.0.0/40"], "write a network such as 10.0.0.0/8")]
#[case(&["--pod-ip=10.0.0.0/8"], "write for example 10.0.0.7")]
#[case(&["--webhook-allow-port=0"], "write a port from 1 to 65535")]
#[case(&["--webhook-allow-port=65536"], "write a port from 1 to 65535")]
#[case(&["--cluster-name=a\nb"], "one line")]
#[case(&["--shared-secrets=on"], "telegram, labelled, off")]
#[case(&["--log-level=inof"], "write error, warn, info")]
#[case(&["--log-level=qm_notify=loud"], "qm_notify=debug")]
#[case(&["--log-level="], "write error, warn, info")]
#[case(&["--log-format=xml"], "auto, human, json")]
#[case(&["--leader-elect-lease-duration=9"], "such as 500ms, 9s")]
#[case(&["--leader-elect-lease-duration=-9s"], "such as 500ms, 9s")]
#[case(&["--leader-elect-lease-duration=0s"], "such as 500ms, 9s")]
#[case(&["--leader-elect-lease-duration=87601h"], "at most 87600h")]
#[case(&["--leader-elect-lease-duration=900ms", "--leader-elect-renew-deadline=600ms", "--leader-elect-retry-period=50ms"], "at least 1s")]
#[case(&["--leader-elect-lease-duration=6s"], "must be less than --leader-elect-lease-duration")]
#[case(&["--leader-elect-retry-period=3s"], "divided by 2.2")]
#[case(&["--backoff-min=10m"], "--backoff-min must not be more than --backoff-max")]
#[case(&["--leader-elect=maybe"], "maybe")]
#[case(&["--leader-election-id="], "write a Lease's name")]
#[case(&["--leader-election-id=Shop_1"], "write a Lease's name")]
fn error_of_a_wrong_value_says_what_to_write(#[case] flags: &[&str], #[case] expected: &str) {
    let error = run(flags).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(message.contains(expected), "{message}");
    assert!(!message.contains("sesame"), "{message}");
}

#[test]
fn help_explains_the_flags() {
    let mut command = Cli::command();
    let run = command.find_subcommand_mut("run").unwrap();
    let help = run.render_long_help().to_string();
    for part in [
        "--leader-elect",
        "[env: POD_NAMESPACE=",
        "[default: :8080]",
        "Examples:",
        "Exit codes:",
    ] {
        assert!(help.contains(part), "no {part} in\n{help}");
    }
    assert!(!help.contains("--backoff-min"), "tuning flags are hidden");
}

/// Every command has one line and examples, and no line of a help text is so long that a terminal of 100 columns wraps it.
#[test]
fn every_command_has_one_line_and_examples() {
    let mut program = Cli::command();
    program.build();
    let commands = program
        .get_subcommands()
        .filter(|it| it.get_name() != "help");
    for command in commands.chain([&program]) {
        let name = command.get_name();
        let about = command.get_about().unwrap().to_string();
        assert!(about.len() <= 80 && !about.contains([':', '\n']), "{about}");
        let help = command.get_after_help().unwrap().to_string();
        assert!(help.contains("Examples:\n  # "), "{name}: {help}");
        assert!(help.lines().all(|line| line.len() <= 100), "{name}: {help}");
    }
}

#[test]
fn examples_of_the_help_parse() {
    let kinds: Vec<_> = crate::controllers::KINDS
        .iter()
        .map(|kind| kind.controller)
        .collect();
    let program = Cli::command();
    let help: Vec<_> = program
        .get_subcommands()
        .chain([&program])
        .filter_map(clap::Command::get_after_help)
        .map(ToString::to_string)
        .collect();
    let examples: Vec<_> = help
        .iter()
        .flat_map(|help| help.lines())
        .map(str::trim)
        .filter(|line| line.starts_with("quartermaster "))
        .collect();
    assert!(examples.len() >= 20, "{examples:?}");
    for example in examples {
        let alone = example.split(['|', '>']).next().unwrap();
        let cli = Cli::try_parse_from(shell_words::split(alone).unwrap())
            .unwrap_or_else(|error| panic!("{example}: {error}"));
        if let Command::Run(args) = cli.command {
            args.config(&kinds)
                .unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}
