//! Measures what the operator computes for a change: `when`, and `changedBy` of a large object.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use qm_api::tracked_field::Entry;
use qm_notify::when::When;
use quartermaster::controllers::tracked_field::field::FieldSelector;
use serde_json::{Value, json};

use crate::line::{Line, Sample};

const RUNS: usize = 2_000;
/// Parts of an expression that read the value without a regular expression.
const WITHOUT_MATCHES: [&str; 2] = ["version(tag(value)).major >= 0", "!value.contains('@')"];
/// Size of the `managedFields`, in bytes.
const MANAGED_FIELDS: usize = 64 * 1024;

/// Measures both in this process.
pub fn rules() -> Result<Vec<Line>> {
    let entry = entry()?;
    let of_when = |parts: &[&str]| {
        let when = When::parse(&expression(parts)).map_err(anyhow::Error::msg)?;
        let evaluate = || when.evaluate(black_box(&entry), None);
        ensure!(evaluate() == Ok(true), "the expression ends early");
        Ok(p99(evaluate))
    };
    let object = object();
    let selector = FieldSelector::compile("Deployment", "{.spec.items[*].value}")?;
    let changed_by = || selector.changed_by(black_box(&object));
    let found = changed_by().map(|it| it.manager);
    ensure!(
        found.as_deref() == Some("last"),
        "the writer is not found: {found:?}"
    );
    Ok(vec![
        Line::new(
            "when of 512 characters without matches(), p99",
            of_when(&WITHOUT_MATCHES)?,
            "us",
        )
        .at_most(50.0)
        .note("without a control plane"),
        Line::new(
            "when of 512 characters, only matches(), p99",
            of_when(&["value.matches('^[^@]+:v?[0-9.]+$')"])? / 1_000.0,
            "ms",
        )
        .below(10.0)
        .note("a value of 1 kB; without a control plane"),
        Line::new(
            "changedBy with 64 KiB of managedFields, p99",
            p99(changed_by) / 1_000.0,
            "ms",
        )
        .below(1.0)
        .note("without a control plane"),
    ])
}

/// Returns the 99th percentile of the duration, in microseconds.
fn p99<T>(run: impl Fn() -> T) -> f64 {
    let runs = (0..RUNS).map(|_| {
        let start = Instant::now();
        black_box(run());
        start.elapsed().as_secs_f64() * 1e6
    });
    runs.collect::<Sample>().p99()
}

/// Returns an expression as long as the CRD allows, each part of which is evaluated.
fn expression(parts: &[&str]) -> String {
    let mut source = "true".to_owned();
    for part in parts.iter().cycle() {
        let longer = format!("{source} && {part}");
        if longer.chars().count() > 512 {
            return source;
        }
        source = longer;
    }
    source
}

fn entry() -> Result<Entry> {
    let value = format!("registry.example.com/{}:1.2.3", "shop/".repeat(180) + "web");
    let subject = "Deployment.apps/shop/web/image";
    Ok(serde_json::from_value(json!({
        "action": "Updated", "id": "1", "value": value, "subject": subject,
    }))?)
}

/// Returns an object whose `managedFields` have the size: each manager has entries of all items.
fn object() -> Value {
    const ITEMS: usize = 16;
    let items: Vec<_> = (0..ITEMS)
        .map(|number| json!({ "name": format!("item-{number}"), "value": number }))
        .collect();
    let entries: serde_json::Map<String, Value> = (0..ITEMS)
        .map(|number| {
            let key = format!(r#"k:{{"name":"item-{number}"}}"#);
            let others = (0..16).map(|other| (format!("f:annotation-{other}"), json!({})));
            let fields: serde_json::Map<_, _> =
                others.chain([("f:value".to_owned(), json!({}))]).collect();
            (key, fields.into())
        })
        .collect();
    let manager = |name: &str, second: usize| {
        json!({
            "manager": name, "operation": "Update", "time": format!("2026-01-01T00:00:{second:02}Z"),
            "fieldsV1": { "f:spec": { "f:items": entries } },
        })
    };
    let mut managers = vec![manager("last", 59)];
    while json!(managers).to_string().len() < MANAGED_FIELDS {
        managers.push(manager("earlier", managers.len()));
    }
    json!({ "metadata": { "managedFields": managers }, "spec": { "items": items } })
}
