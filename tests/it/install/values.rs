//! Values that both the chart and the operator accept.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};
use quartermaster::cli::{Cli, Command as Subcommand};

use super::chart::{CHART, helm, rendered, template};
use super::*;
use crate::support::SYSTEM;

/// Every flag of `run`, except the one that the Pod's own namespace sets, has a value that sets it.
#[tokio::test]
async fn every_flag_has_a_value() {
    let flags = [
        (
            "leader-elect",
            "leaderElection.enabled=true",
            "--leader-elect",
        ),
        (
            "leader-election-id",
            "leaderElection.id=mine",
            "--leader-election-id=mine",
        ),
        (
            "leader-elect-lease-duration",
            "leaderElection.leaseDuration=20s",
            "--leader-elect-lease-duration=20s",
        ),
        (
            "leader-elect-renew-deadline",
            "leaderElection.renewDeadline=8s",
            "--leader-elect-renew-deadline=8s",
        ),
        (
            "leader-elect-retry-period",
            "leaderElection.retryPeriod=1s",
            "--leader-elect-retry-period=1s",
        ),
        (
            "metrics-bind-address",
            "metrics.port=9090",
            "--metrics-bind-address=:9090",
        ),
        ("metrics-secure", "metrics.secure=true", "--metrics-secure"),
        (
            "metrics-cert-path",
            "metrics.certSecret=mine",
            "--metrics-secure --metrics-cert-path=/tmp/k8s-metrics-server/metrics-certs",
        ),
        (
            "health-probe-bind-address",
            "healthProbe.port=9091",
            "--health-probe-bind-address=:9091",
        ),
        (
            "watch-namespace",
            "watchNamespaces={shop,billing}",
            "--watch-namespace=shop --watch-namespace=billing",
        ),
        (
            "controllers",
            "controllers={*,-myingress}",
            "--controllers=*,-myingress",
        ),
        (
            "cluster-name",
            "clusterName=prod: eu",
            "--cluster-name=prod: eu",
        ),
        (
            "allow-protected-destinations",
            "allowProtectedDestinations=true",
            "--allow-protected-destinations",
        ),
        (
            "admission-policy-prefix",
            "admissionPolicies.enabled=false",
            "--admission-policy-prefix=",
        ),
        (
            "no-cross-namespace-refs",
            "noCrossNamespaceRefs=true",
            "--no-cross-namespace-refs",
        ),
        (
            "telegram-api-url",
            "telegramAPIURL=https://t.example.com",
            "--telegram-api-url=https://t.example.com",
        ),
        (
            "shared-secrets",
            "sharedSecrets=off",
            "--shared-secrets=off",
        ),
        (
            "webhook-allow-loopback",
            "webhook.allowLoopback=true",
            "--webhook-allow-loopback",
        ),
        (
            "webhook-deny-cidr",
            "webhook.denyCIDRs={10.0.0.0/8}",
            "--webhook-deny-cidr=10.0.0.0/8",
        ),
        (
            "webhook-allow-port",
            "webhook.allowPorts={443,8443}",
            "--webhook-allow-port=443 --webhook-allow-port=8443",
        ),
        (
            "webhook-quote-private",
            "webhook.quotePrivate=true",
            "--webhook-quote-private",
        ),
        (
            "webhook-proxy",
            "webhook.proxy=http://proxy:3128",
            "--webhook-proxy=http://proxy:3128",
        ),
        ("log-level", "log.level=debug", "--log-level=debug"),
        ("log-format", "log.format=json", "--log-format=json"),
        (
            "tracker-role",
            "extraArgs={--tracker-role=mine}",
            "--tracker-role=mine",
        ),
        (
            "aws-timeout",
            "extraArgs={--aws-timeout=30s}",
            "--aws-timeout=30s",
        ), // the flags that --help hides
    ];
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let help = run
        .get_arguments()
        .filter(|flag| !flag.is_hide_set())
        .filter_map(|flag| flag.get_long());
    let known: BTreeSet<_> = flags
        .iter()
        .map(|(flag, ..)| *flag)
        .chain(["operator-namespace", "help"])
        .collect();
    let missing: Vec<_> = help.filter(|flag| !known.contains(flag)).collect();
    assert!(
        missing.is_empty(),
        "values.yaml has nothing for {missing:?}"
    );
    for (_, value, expected) in flags {
        let args = args(value).await;
        assert!(
            format!(" {} ", args.join(" ")).contains(&format!(" {expected} ")),
            "{value}: {args:?}"
        );
        assert_eq!(understood(&args), Ok(()), "{args:?}");
    }
}

/// No webhook may reach the operator itself, so the chart passes its addresses.
#[tokio::test]
async fn operator_gets_its_own_addresses() {
    let deployment = &rendered(&[]).await[&format!("apps/v1 Deployment {SYSTEM}/{DEPLOYMENT}")];
    let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let variable = Cli::command();
    let variable = variable
        .find_subcommand("run")
        .unwrap()
        .get_arguments()
        .find(|it| it.get_long() == Some("pod-ip"));
    let variable = variable
        .unwrap()
        .get_env()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    let expected =
        json!({ "name": variable, "valueFrom": { "fieldRef": { "fieldPath": "status.podIPs" } } });
    assert!(env.as_array().unwrap().contains(&expected), "{env:#}");
}

/// Returns the operator's arguments.
async fn args(value: &str) -> Vec<String> {
    let deployment =
        &rendered(&["--set", value]).await[&format!("apps/v1 Deployment {SYSTEM}/{DEPLOYMENT}")];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"][0]["name"], "POD_NAMESPACE");
    container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap().to_owned())
        .collect()
}

/// Returns whether the operator starts with them.
fn understood(args: &[impl AsRef<str>]) -> Result<(), String> {
    let arguments = ["quartermaster"]
        .into_iter()
        .chain(args.iter().map(AsRef::as_ref));
    let Subcommand::Run(args) = Cli::try_parse_from(arguments)
        .map_err(|error| error.to_string())?
        .command
    else {
        return Err("it is not run".into());
    };
    let kinds: Vec<_> = controllers::KINDS
        .iter()
        .map(|kind| kind.controller)
        .collect();
    args.config(&kinds)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// The chart rejects values with which the operator would exit. Each value has helm's message, and the flag as it would
/// reach the operator.
#[tokio::test]
async fn values_that_stop_the_operator_are_rejected() {
    let long = format!("clusterName={}", "e".repeat(101));
    let long_flag = format!("--cluster-name={}", "e".repeat(101));
    for (value, expected, flags) in [
        (
            "leaderElection.id=Foo_",
            "/leaderElection/id",
            &["--leader-election-id=Foo_"][..],
        ),
        (
            "leaderElection.id=a..b",
            "/leaderElection/id",
            &["--leader-election-id=a..b"],
        ),
        (
            "leaderElection.leaseDuration=9",
            "/leaderElection/leaseDuration",
            &["--leader-elect-lease-duration=9"],
        ),
        (
            "leaderElection.leaseDuration=6s",
            "renewDeadline is 6s, and leaseDuration is 6s",
            &["--leader-elect-lease-duration=6s"],
        ),
        (
            "leaderElection.leaseDuration=999ms,leaderElection.renewDeadline=9ms,leaderElection.retryPeriod=1ms",
            "leaseDuration is 999ms: write 1s or more",
            &[
                "--leader-elect-lease-duration=999ms",
                "--leader-elect-renew-deadline=9ms",
                "--leader-elect-retry-period=1ms",
            ],
        ),
        (
            "leaderElection.renewDeadline=9s",
            "renewDeadline is 9s, and leaseDuration is 9s",
            &["--leader-elect-renew-deadline=9s"],
        ),
        (
            "leaderElection.renewDeadline=1100ms",
            "retryPeriod is 500ms, and",
            &["--leader-elect-renew-deadline=1100ms"],
        ),
        (
            "leaderElection.retryPeriod=2728ms",
            "retryPeriod is 2728ms, and",
            &["--leader-elect-retry-period=2728ms"],
        ),
        (
            "leaderElection.retryPeriod=0s",
            "retryPeriod is 0s: write a longer one",
            &["--leader-elect-retry-period=0s"],
        ),
        (
            "leaderElection.retryPeriod=1s1h",
            "/leaderElection/retryPeriod",
            &["--leader-elect-retry-period=1s1h"],
        ),
        ("log.level=verbose", "/log/level", &["--log-level=verbose"]),
        (
            "log.level=info\\,verbose",
            "/log/level",
            &["--log-level=info,verbose"],
        ),
        (
            "log.level=hyper=loud",
            "/log/level",
            &["--log-level=hyper=loud"],
        ),
        (
            "telegramAPIURL=foo",
            "write a URL such as https://api.telegram.org",
            &["--telegram-api-url=foo"],
        ),
        (
            "telegramAPIURL=ftp://foo",
            "write a URL such as https://api.telegram.org",
            &["--telegram-api-url=ftp://foo"],
        ),
        (
            "telegramAPIURL=https://",
            "write a URL such as https://api.telegram.org",
            &["--telegram-api-url=https://"],
        ),
        (
            "telegramAPIURL=http://a?b",
            "write a URL such as https://api.telegram.org",
            &["--telegram-api-url=http://a?b"],
        ),
        (
            "telegramAPIURL=http://a#b",
            "write a URL such as https://api.telegram.org",
            &["--telegram-api-url=http://a#b"],
        ),
        (
            "telegramAPIURL=http://me:sesame@foo",
            "write a URL such as https://api.telegram.org, without credentials",
            &["--telegram-api-url=http://me:sesame@foo"],
        ),
        (
            "webhook.proxy=me:sesame@foo",
            "webhook.proxy: write a URL such as",
            &["--webhook-proxy=me:sesame@foo"],
        ),
        (
            "webhook.proxy=http://me:sesame@",
            "webhook.proxy: write a URL such as",
            &["--webhook-proxy=http://me:sesame@"],
        ),
        (
            "webhook.denyCIDRs={10.0.0.0/33}",
            "/webhook/denyCIDRs/0",
            &["--webhook-deny-cidr=10.0.0.0/33"],
        ),
        (
            "webhook.denyCIDRs={10.0.0.256}",
            "/webhook/denyCIDRs/0",
            &["--webhook-deny-cidr=10.0.0.256"],
        ),
        (
            "webhook.denyCIDRs={10.0.0/8}",
            "/webhook/denyCIDRs/0",
            &["--webhook-deny-cidr=10.0.0/8"],
        ),
        (
            "webhook.denyCIDRs={fd00::/129}",
            "/webhook/denyCIDRs/0",
            &["--webhook-deny-cidr=fd00::/129"],
        ),
        (
            "webhook.denyCIDRs={cluster.local}",
            "/webhook/denyCIDRs/0",
            &["--webhook-deny-cidr=cluster.local"],
        ),
        (
            "clusterName=prod\neu",
            "/clusterName",
            &["--cluster-name=prod\neu"],
        ),
        (&long, "/clusterName", &[&long_flag]),
        (
            "watchNamespaces={a_b}",
            "/watchNamespaces/0",
            &["--watch-namespace=a_b"],
        ),
        (
            "controllers={nosuchthing}",
            "unknown name \"nosuchthing\"",
            &["--controllers=nosuchthing"],
        ),
        (
            "controllers={-myingress}",
            "no kind remains to run",
            &["--controllers=-myingress"],
        ),
        (
            "sharedSecrets=some",
            "/sharedSecrets",
            &["--shared-secrets=some"],
        ),
        ("log.format=xml", "/log/format", &["--log-format=xml"]),
        (
            "extraArgs={--metrics-bind-address=:1}",
            "the chart sets --metrics-bind-address already",
            &["--metrics-bind-address=:8443", "--metrics-bind-address=:1"],
        ),
    ] {
        let (done, output) = template(&["--set-string", value]).await;
        assert!(
            !done && output.contains(expected) && !output.contains("sesame"),
            "{value}: {output}"
        );
        let run = [&["run"], flags].concat();
        assert!(
            understood(&run).is_err(),
            "the operator would start: {flags:?}"
        );
    }
}

/// A user who may read Pods must not read the proxy's password.
#[tokio::test]
async fn proxy_password_comes_only_from_a_secret() {
    let values = "webhook.proxySecret.name=proxy,webhook.proxySecret.key=url";
    let deployment =
        &rendered(&["--set", values]).await[&format!("apps/v1 Deployment {SYSTEM}/{DEPLOYMENT}")];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let flag = run
        .get_arguments()
        .find(|it| it.get_long() == Some("webhook-proxy"))
        .unwrap();
    let variable = flag.get_env().unwrap().to_str().unwrap();
    let expected = json!({ "name": variable, "valueFrom": { "secretKeyRef": { "name": "proxy", "key": "url" } } });
    assert!(
        container["env"].as_array().unwrap().contains(&expected),
        "{:#}",
        container["env"]
    );
    assert!(
        !container["args"].to_string().contains("webhook-proxy"),
        "{:#}",
        container["args"]
    );

    let instead = "write webhook.proxySecret: {name: NAME, key: KEY}";
    let both = "set this or webhook.proxy, not both";
    for (value, expected) in [
        ("webhook.proxy=http://me:sesame@proxy:3128", instead),
        ("webhook.proxy=http://sesame@proxy", instead),
        (
            "extraArgs={--webhook-proxy=http://me:sesame@proxy}",
            instead,
        ),
        (
            "extraArgs={--webhook-proxy,http://me:sesame@proxy:3128}",
            "write --webhook-proxy=URL as one argument",
        ),
        (
            "extraArgs={--webhook-proxy,http://proxy:3128}",
            "write --webhook-proxy=URL as one argument",
        ),
        (
            &format!("extraEnv[0].name={variable},extraEnv[0].value=http://me:sesame@proxy"),
            instead,
        ),
        ("webhook.proxySecret.name=proxy", "write both name and key"),
        ("webhook.proxySecret.key=url", "write both name and key"),
        (&format!("{values},webhook.proxy=http://proxy"), both),
        (
            &format!("{values},extraArgs={{--webhook-proxy=http://proxy}}"),
            both,
        ),
        (
            &format!("{values},extraEnv[0].name={variable},extraEnv[0].value=http://proxy"),
            both,
        ),
        (
            "webhook.proxySecret.name=Not/One,webhook.proxySecret.key=url",
            "/webhook/proxySecret/name",
        ),
    ] {
        let (done, output) = template(&["--set-string", value]).await;
        assert!(
            !done && output.contains(expected) && !output.contains("sesame"),
            "{value}: {output}"
        );
    }
}

/// Neither help nor an error shows the content of the variable.
#[tokio::test]
async fn proxy_variable_is_never_printed() {
    for (value, arguments) in [
        ("http://me:sesame@proxy", &["run", "--help"][..]),
        ("http://me:sesame@proxy", &["run", "--no-such-flag"]),
        ("me:sesame@proxy", &["run"]),
    ] {
        let mut command = tree_command(env!("CARGO_BIN_EXE_quartermaster"));
        command
            .args(arguments)
            .env("QUARTERMASTER_WEBHOOK_PROXY", value);
        let (_, output) = result_of(&command.output().await.unwrap());
        assert!(
            output.contains("--") && !output.contains("sesame"),
            "{arguments:?}: {output}"
        );
    }
}

/// The chart accepts every value with which the operator would start, up to the bounds.
#[tokio::test]
async fn values_that_the_operator_accepts_are_accepted() {
    let long = format!("clusterName={}", "é".repeat(100));
    for value in [
        "leaderElection.id=a.b-c",
        "leaderElection.leaseDuration=6001ms",
        "leaderElection.leaseDuration=1h1m0s1ms",
        "leaderElection.renewDeadline=8999ms",
        "leaderElection.renewDeadline=1101ms",
        "leaderElection.retryPeriod=2727ms",
        "log.level=INFO",
        "log.level=off",
        "log.level=info\\, qm_notify=debug\\,hyper=off",
        "telegramAPIURL=http://[::1]:8081/base/",
        "telegramAPIURL=https://t.example.com:8443",
        "webhook.proxy=http://proxy:3128/path@1",
        "webhook.proxy=https://[fd00::1]",
        "webhook.denyCIDRs={0.0.0.0/0,10.0.0.1,255.255.255.255/32,fd00::/8,::/0,::1,::ffff:10.0.0.0/104,fe80::1/128}",
        &long,
        "extraArgs={--webhook-deny-cidr=10.0.0.0/8},webhook.denyCIDRs={fd00::/8},controllers={*,-myapp}",
    ] {
        let args = args(value).await;
        assert_eq!(understood(&args), Ok(()), "{value}");
    }
}

/// Each setting that the permissions follow has one value: set in another way, the operator would start, and its
/// requests would be forbidden.
#[tokio::test]
async fn settings_with_permissions_have_one_value() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for (flag, value) in [
        ("controllers", "controllers"),
        ("leader-election-id", "leaderElection.id"),
        ("metrics-secure", "metrics.secure"),
        ("watch-namespace", "watchNamespaces"),
    ] {
        let variable = run
            .get_arguments()
            .find(|it| it.get_long() == Some(flag))
            .unwrap()
            .get_env()
            .unwrap();
        let (flag, variable) = (format!("--{flag}"), variable.to_str().unwrap());
        for (values, what) in [
            (format!("extraArgs={{--aws-timeout=30s,{flag}=x}}"), &*flag),
            (format!("extraArgs={{{flag},x}}"), &flag),
            (
                format!("extraEnv[0].name=A,extraEnv[1].name={variable}"),
                variable,
            ),
        ] {
            let (done, output) = template(&["--set", &values]).await;
            assert!(
                !done
                    && output.contains(&format!(
                        ": set the value {value} instead of {what}, because"
                    )),
                "{values}: {output}"
            );
        }
    }
}

#[tokio::test]
async fn unknown_values_are_rejected() {
    for (value, expected) in [
        ("replica=3", "replica"),
        ("replicas=two", "replicas"),
        ("image.digest=sha256:12", "digest"),
        (
            "controllers={nosuchthing}",
            "unknown name \"nosuchthing\"; write * for all, or names of: appservice, ",
        ),
        (
            "controllers={-myingress}",
            "no kind remains to run; write *, or *,-NAME",
        ),
        (
            "serviceAccount.create=false",
            "set serviceAccount.name to the name of an existing account",
        ),
        ("fullnameOverride=Foo_Bar", "fullnameOverride"),
        ("leaderElection.enabled=false", "leaderElection"),
        ("log.format=xml", "format"),
        ("metrics.certSecret=Not/One", "certSecret"),
        ("watchNamespaces={Shop}", "watchNamespaces"),
        ("extraEnv[0].name=A,extraEnv[0].value=true", "extraEnv"),
        (
            "networkPolicy.egress.to[0].ipBlock.cidr=10.0.0.1/32",
            "additional properties 'ipBlock' not allowed",
        ),
        (
            "networkPolicy.egress.enabled=true",
            "networkPolicy.egress.to is empty: only DNS requests could leave",
        ),
        (
            "metrics.enabled=false,metrics.dashboard.enabled=true",
            "metrics.dashboard.enabled is true, but metrics.enabled is false",
        ),
        (
            "metrics.port=8081",
            "metrics.port and healthProbe.port are both 8081: write two different ports",
        ),
    ] {
        let (done, output) = template(&["--set", value]).await;
        assert!(!done && output.contains(expected), "{value}: {output}");
    }
    assert!(
        template(&[
            "--set",
            "networkPolicy.egress.enabled=true,networkPolicy.enabled=false"
        ])
        .await
        .0
    );
    // A disabled server needs no port.
    assert!(
        template(&["--set", "metrics.port=8081,metrics.enabled=false"])
            .await
            .0
    );
    // A single replica needs no lease, if no other Pod acts during an upgrade.
    let (done, output) = template(&["--set", "replicas=1,leaderElection.enabled=false"]).await;
    assert!(done && output.contains("type: Recreate"), "{output}");
    assert!(!template(&[]).await.1.contains("type: Recreate"));
}

/// A chart that depends on this one switches it by a condition on such a value.
#[tokio::test]
async fn parent_chart_may_disable_the_chart() {
    assert!(template(&["--set", "enabled=true"]).await.0);
    let (done, output) = template(&["--set", "enabled=false"]).await;
    assert!(
        !done && output.contains("/enabled"),
        "without a parent chart the value changes nothing: {output}"
    );
}

/// Truncated names never collide.
#[tokio::test]
async fn names_that_are_too_long_are_rejected() {
    let template = async |release: &str, values: &str| {
        let fixed = ["template", release, CHART, "--set", values];
        result_of(
            &tree_command(helm().await)
                .args(fixed)
                .output()
                .await
                .unwrap(),
        )
    };
    for name in [
        "quartermaster-of-platform-eu1",
        "fifteen-letters",
        "team.quartermaster",
        "1-quartermaster",
    ] {
        let (done, output) = template(name, "replicas=2").await;
        assert!(
            !done
                && output.contains("at most 28 lower-case letters")
                && output.contains("fullnameOverride"),
            "{name}: {output}"
        );
        let (done, output) = template(name, "fullnameOverride=quartermaster-of-platform-eu").await;
        assert!(
            done && output.contains("name: quartermaster-of-platform-eu-manager-role\n"),
            "{name}: {output}"
        );
    }
    for (name, begins) in [
        (
            "quartermaster-of-platform-eu",
            "quartermaster-of-platform-eu",
        ),
        ("fourteen-of-it", "fourteen-of-it-quartermaster"),
        ("quartermaster", "quartermaster"),
    ] {
        let (done, output) = template(name, "replicas=2").await;
        assert!(
            done && output.contains(&format!("name: {begins}-manager-role\n")),
            "{name}: {output}"
        );
    }
    let (done, output) = template("a", "fullnameOverride=quartermaster-of-platform-eu1").await;
    assert!(!done && output.contains("/fullnameOverride"), "{output}");
}
