//! What Prometheus' own tool says of the rules, of their tests and of the metrics.

use std::process::Stdio;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use xtask::docs::every_metric;

use super::*;

/// Whether promtool is content, and what it says.
async fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(tool("promtool").await);
    command.args(arguments).current_dir(ROOT).kill_on_drop(true);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read all.
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
async fn the_rules_are_without_a_fault() {
    let (well, said) = promtool(&["check", "rules", "--lint=all", "--lint-fatal", RULES], "").await;
    assert!(well && said.contains("9 rules found"), "{said}");
}

/// A rule may have any expression.
#[tokio::test]
async fn what_the_dashboard_asks_for_is_understood() {
    let rules: Vec<_> = expressions()
        .into_iter()
        .enumerate()
        .map(|(at, (_, expr))| json!({ "record": format!("panel:expression:{at}"), "expr": expr }))
        .collect();
    let rules = json!({ "groups": [{ "name": "panels", "rules": rules }] }).to_string();
    let (well, said) = promtool(&["check", "rules", "--lint=none"], &rules).await;
    assert!(well, "{said}");
    let (well, said) = promtool(
        &["check", "rules", "--lint=none"],
        &rules.replacen("sum(", "sum((", 1),
    )
    .await;
    assert!(!well, "{said}");
}

#[tokio::test]
async fn each_alert_fires_when_it_should_and_not_otherwise() {
    let file = "tests/alerts/quartermaster.yaml";
    let (well, said) = promtool(&["test", "rules", file], "").await;
    assert!(well, "{said}");
    // Both are shown of each.
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
async fn the_metrics_are_as_prometheus_wants_them() {
    let (well, said) = promtool(
        &["check", "metrics"],
        &qm_runtime::metrics::serving::plain(&every_metric()),
    )
    .await;
    assert!(well, "{said}");
}
