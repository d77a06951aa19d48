//! Alerts and dashboard: their queries use existing metrics, each alert fires when it should (`tests/alerts`), and each
//! alert has a page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Output;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use crate::support::tool;

mod pages;
mod promtool;
mod queries;
mod served;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The rules in the format that Prometheus reads.
const RULES: &str = "charts/quartermaster/files/prometheus/rules.yaml";

#[derive(Debug, Deserialize)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    expr: String,
    #[serde(default)]
    r#for: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Returns the content of a file of the repository.
fn text(name: &str) -> String {
    let path = Path::new(ROOT).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn alerts() -> Vec<Alert> {
    let rules: Value = serde_saphyr::from_str(&text(RULES)).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let alerts: Vec<Alert> = rules
        .map(|rule| serde_json::from_value(rule.clone()).unwrap())
        .collect();
    let names: BTreeSet<_> = alerts.iter().map(|alert| &alert.name).collect();
    assert_eq!((names.len(), alerts.len()), (10, 10), "{names:?}");
    alerts
}

/// Returns the panels of the dashboard that show something.
fn panels() -> Vec<Value> {
    let dashboard: Value =
        serde_json::from_str(&text("config/grafana/quartermaster.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let panels: Vec<_> = panels
        .filter(|panel| panel["type"] != "row")
        .cloned()
        .collect();
    assert!(panels.len() > 15, "{}", panels.len());
    panels
}

/// Returns each panel's title and query, with an interval in place of Grafana's own.
fn expressions() -> Vec<(String, String)> {
    let of = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let queried = |target: &Value| {
            target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "5m")
        };
        let targets = panel["targets"].as_array().unwrap();
        targets
            .iter()
            .map(|target| (title.clone(), queried(target)))
            .collect::<Vec<_>>()
    };
    let expressions: Vec<_> = panels().iter().flat_map(of).collect();
    assert!(expressions.len() > 20, "{}", expressions.len());
    expressions
}
