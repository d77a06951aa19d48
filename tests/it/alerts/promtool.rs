//! Checks of the rules, of their tests and of the metrics by Prometheus' own tool.

use std::process::Stdio;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use xtask::docs::every_metric;

use super::*;

/// Runs promtool; returns whether promtool succeeded, and its output.
async fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(tool("promtool").await);
    command.args(arguments).current_dir(ROOT).kill_on_drop(true);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // promtool may exit before it has read all of its input.
    let _ = child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .await;
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().await.unwrap();
    (
        status.success(),
        [stdout, stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .concat(),
    )
}

#[tokio::test]
async fn rules_are_valid() {
    let (succeeded, output) =
        promtool(&["check", "rules", "--lint=all", "--lint-fatal", RULES], "").await;
    assert!(succeeded && output.contains("10 rules found"), "{output}");
}

/// A rule may contain any query.
#[tokio::test]
async fn queries_of_the_dashboard_are_valid() {
    let rules: Vec<_> = expressions()
        .into_iter()
        .enumerate()
        .map(|(at, (_, expr))| json!({ "record": format!("panel:expression:{at}"), "expr": expr }))
        .collect();
    let rules = json!({ "groups": [{ "name": "panels", "rules": rules }] }).to_string();
    let (succeeded, output) = promtool(&["check", "rules", "--lint=none"], &rules).await;
    assert!(succeeded, "{output}");
    let (succeeded, output) = promtool(
        &["check", "rules", "--lint=none"],
        &rules.replacen("sum(", "sum((", 1),
    )
    .await;
    assert!(!succeeded, "{output}");
}

#[tokio::test]
async fn each_alert_fires_only_under_its_condition() {
    let file = "tests/alerts/quartermaster.yaml";
    let (succeeded, output) = promtool(&["test", "rules", file], "").await;
    assert!(succeeded, "{output}");
    // The tests of the rules have a firing and a silent case of each alert.
    let cases: Value = serde_saphyr::from_str(&text(file)).unwrap();
    let cases = cases["tests"].as_array().unwrap();
    for Alert { name: alert, .. } in alerts() {
        let (mut fires, mut rests) = (false, false);
        for case in cases {
            let checks = case["alert_rule_test"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|it| it["alertname"] == *alert);
            let fire: Vec<_> = checks
                .map(|it| !it["exp_alerts"].as_array().unwrap().is_empty())
                .collect();
            fires |= fire.contains(&true);
            rests |= !fire.is_empty() && !fire.contains(&true);
        }
        assert!(
            fires && rests,
            "{alert}: fires {fires}, rests throughout a case {rests}"
        );
    }
}

#[tokio::test]
async fn metrics_follow_the_conventions_of_prometheus() {
    let (succeeded, output) = promtool(
        &["check", "metrics"],
        &qm_runtime::metrics_server::plain(&every_metric()),
    )
    .await;
    assert!(succeeded, "{output}");
}
