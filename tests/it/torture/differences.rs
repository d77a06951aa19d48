//! Differences of two JSON values.

use serde_json::Value;

/// Returns a line for each path at which the values differ.
pub fn differences(expected: &Value, actual: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", Some(expected), Some(actual), &mut lines);
    lines
}

fn compare(path: &str, expected: Option<&Value>, actual: Option<&Value>, lines: &mut Vec<String>) {
    match (expected, actual) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            for name in one
                .keys()
                .chain(other.keys().filter(|it| !one.contains_key(*it)))
            {
                compare(
                    &format!("{path}.{name}"),
                    one.get(name),
                    other.get(name),
                    lines,
                );
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            for index in 0..one.len().max(other.len()) {
                compare(
                    &format!("{path}[{index}]"),
                    one.get(index),
                    other.get(index),
                    lines,
                );
            }
        }
        (expected, actual) if expected != actual => {
            let text = |value: Option<&Value>| value.map_or("nothing".into(), Value::to_string);
            lines.push(format!(
                "{path}: expected {}, found {}",
                text(expected),
                text(actual)
            ));
        }
        _ => {}
    }
}
