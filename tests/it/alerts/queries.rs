//! Alerts and dashboard query only metrics, labels and label values that `/metrics` serves.

use qm_runtime::outcome::SUSPENDED;
use quartermaster::controllers::KINDS;
use quartermaster::controllers::{config_map_sync, my_ingress, tracked_field_set};
use xtask::docs::every_metric;

use super::*;

/// Labels that Prometheus and its operator add to each sample.
const ADDED: [&str; 3] = ["job", "instance", "namespace"];

/// Returns every served metric, by the names of its samples, with the served values of each label.
fn served() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut served = BTreeMap::<String, BTreeMap<String, BTreeSet<String>>>::new();
    for line in every_metric().lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let labels = served.entry(name.to_owned()).or_default();
        let Some((pairs, _)) = rest.split_once('}') else {
            continue;
        };
        for (label, value) in pairs.split("\",").filter_map(|pair| pair.split_once("=\"")) {
            labels
                .entry(label.to_owned())
                .or_default()
                .insert(value.trim_end_matches('"').to_owned());
        }
    }
    assert!(
        served.len() > 30 && served.contains_key("quartermaster_delivery_latency_seconds_bucket"),
        "{served:?}"
    );
    served
}

/// A selector of a query: the metric's name, and for each label whether the label must equal a value.
struct Selector {
    name: String,
    matchers: Vec<(String, String, String)>,
}

/// Selectors and labels of a query. Prometheus checks the syntax (`promtool`); this type only splits the text into
/// tokens.
#[derive(Default)]
struct ParsedQuery {
    selectors: Vec<Selector>,
    by: BTreeSet<String>,
}

/// Keywords that no parenthesis follows.
const KEYWORDS: [&str; 6] = ["and", "or", "unless", "offset", "bool", "inf"];
/// Keywords that labels in parentheses follow.
const LISTS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

impl ParsedQuery {
    fn of(expression: &str) -> Self {
        let mut query = Self::default();
        let mut rest = expression;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        while let Some(c) = rest.chars().next() {
            if c == '[' {
                // A duration.
                rest = rest.split_once(']').unwrap().1;
            } else if c.is_ascii_alphabetic() || c == '_' {
                let (word, after) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
                rest = after.trim_start();
                if LISTS.contains(&word) {
                    let (labels, after) = rest.strip_prefix('(').unwrap().split_once(')').unwrap();
                    query.by.extend(
                        labels
                            .split(',')
                            .map(|label| label.trim().to_owned())
                            .filter(|it| !it.is_empty()),
                    );
                    rest = after;
                } else if let Some(list) = rest.strip_prefix('{') {
                    let (matchers, after) = list.split_once('}').unwrap();
                    query.selectors.push(Selector {
                        name: word.to_owned(),
                        matchers: matchers.split(',').map(matcher).collect(),
                    });
                    rest = after;
                } else if !KEYWORDS.contains(&word)
                    && !rest.starts_with('(')
                    && !LISTS.iter().any(|list| rest.starts_with(list))
                {
                    query.selectors.push(Selector {
                        name: word.to_owned(),
                        matchers: Vec::new(),
                    });
                }
            } else if c.is_ascii_digit() {
                // A number, or the argument of `offset`.
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            } else {
                rest = &rest[c.len_utf8()..];
            }
        }
        assert!(!query.selectors.is_empty(), "{expression} queries nothing");
        query
    }
}

fn matcher(text: &str) -> (String, String, String) {
    let at = text.find(['=', '!']).unwrap_or_else(|| panic!("{text}"));
    let (label, rest) = text.split_at(at);
    let quote = rest.find('"').unwrap();
    let (operator, value) = rest.split_at(quote);
    (
        label.trim().to_owned(),
        operator.to_owned(),
        value.trim().trim_matches('"').to_owned(),
    )
}

/// Returns the reasons that the resources of a controller can have; without a controller, of all.
fn reasons(controller: Option<&str>) -> BTreeSet<String> {
    let syncs = config_map_sync::status::REASONS
        .iter()
        .map(ToString::to_string);
    let balancers = my_ingress::status::REASONS.iter().map(ToString::to_string);
    let sets = [SUSPENDED, tracked_field_set::status::PROGRESSING].map(str::to_owned);
    let sets = sets.into_iter();
    match controller {
        Some("configmapsync") => syncs.collect(),
        Some("trackedfieldset") => sets.collect(),
        Some("myingress") => balancers.collect(),
        Some(other) => panic!("list the reasons of a {other} here"),
        None => syncs.chain(balancers).chain(sets).collect(),
    }
}

/// Returns the problems of a query.
fn faults(expression: &str) -> Vec<String> {
    let served = served();
    let query = ParsedQuery::of(expression);
    let (mut faults, mut known) = (Vec::new(), BTreeSet::from(ADDED.map(str::to_owned)));
    for Selector { name, matchers } in &query.selectors {
        let nothing = BTreeMap::new();
        // Metrics about the scrape itself.
        let labels = if name == "up" {
            Some(&nothing)
        } else {
            served.get(name)
        };
        let Some(labels) = labels else {
            faults.push(format!("there is no metric {name:?}"));
            continue;
        };
        known.extend(labels.keys().cloned());
        let controller = matchers
            .iter()
            .find(|(label, ..)| label == "controller")
            .map(|(_, _, value)| &**value);
        if !matchers.iter().any(|(label, ..)| label == "job") {
            faults.push(format!("{name} may be somebody else's: it names no job"));
        }
        for (label, operator, value) in matchers {
            let values: BTreeSet<String> = match label.as_str() {
                label if ADDED.contains(&label) => continue,
                _ if !labels.contains_key(label) => {
                    faults.push(format!("{name} has no label {label}"));
                    continue;
                }
                "controller" => KINDS
                    .iter()
                    .map(|kind| kind.controller.to_owned())
                    .collect(),
                "reason" if name == "quartermaster_resources" => reasons(controller),
                _ => labels[label].clone(),
            };
            if !["=", "!="].contains(&&**operator) || !values.contains(value) {
                faults.push(format!(
                    "{name}: {label} is never {value:?}, but one of {values:?}"
                ));
            }
        }
    }
    faults.extend(
        query
            .by
            .difference(&known)
            .map(|label| format!("nothing has a label {label}")),
    );
    faults
}

#[test]
fn every_alert_queries_served_metrics() {
    for Alert {
        name: alert, expr, ..
    } in alerts()
    {
        assert_eq!(faults(&expr), Vec::<String>::new(), "{alert}");
    }
}

#[test]
fn every_panel_queries_served_metrics() {
    for (panel, expression) in expressions() {
        assert_eq!(
            faults(&expression),
            Vec::<String>::new(),
            "{panel}: {expression}"
        );
    }
}

#[test]
fn unserved_metrics_are_detected() {
    for (expression, expected) in [
        (
            "rate(quartermaster_delivery_attempt_total{job=\"x\"}[5m])",
            "there is no metric \"quartermaster_delivery_attempt_total\"",
        ),
        (
            "quartermaster_resources{job=\"x\", kind=\"myapp\"}",
            "quartermaster_resources has no label kind",
        ),
        (
            "quartermaster_resources{job=\"x\", controller=\"mypod\"}",
            "controller is never \"mypod\"",
        ),
        (
            "quartermaster_resources{job=\"x\", controller=\"myingress\", reason=\"Gone\"}",
            "reason is never \"Gone\"",
        ),
        (
            "quartermaster_entries_failed_total{job=\"x\", reason=\"Conflict\"}",
            "reason is never \"Conflict\"",
        ),
        (
            "quartermaster_watches{job=\"x\", state=\"stale\"}",
            "state is never \"stale\"",
        ),
        (
            "sum by (pod) (quartermaster_watches{job=\"x\"})",
            "nothing has a label pod",
        ),
        ("quartermaster_watches", "names no job"),
    ] {
        let faults = faults(expression);
        assert!(
            faults.len() == 1 && faults[0].contains(expected),
            "{expression}: {faults:?}"
        );
    }
}

/// A metric that neither an alert nor a panel uses informs nobody.
#[test]
fn every_metric_has_an_alert_or_a_panel() {
    let expressions = alerts()
        .into_iter()
        .map(|alert| alert.expr)
        .chain(expressions().into_iter().map(|(_, it)| it));
    let query: BTreeSet<_> = expressions
        .flat_map(|it| ParsedQuery::of(&it).selectors)
        .map(|selector| selector.name)
        .collect();
    let parts = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .any(|part| name.ends_with(part))
    };
    for name in served()
        .into_keys()
        .filter(|name| name.starts_with("quartermaster_") && !parts(name))
    {
        assert!(query.contains(&name), "no alert or panel uses {name}");
    }
}
