//! Functions of `spec.when` in addition to those of CEL.

#![allow(clippy::needless_pass_by_value)] // so that the library can call them

use std::collections::HashMap;
use std::sync::Arc;

use cel::{ExecutionError, Value};

type Result<T> = std::result::Result<T, ExecutionError>;

/// Suffixes of Kubernetes' quantities.
const SUFFIXES: [(&str, f64); 16] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("Ei", 1_152_921_504_606_846_976.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("", 1.0),
];

/// Problem of a function whose argument is null.
pub(super) const NO_VALUE: &str =
    "the argument is null: write a test before it, such as changedBy.subresource != null && ...";

fn failed<T>(function: &str, message: String) -> Result<T> {
    Err(ExecutionError::FunctionError {
        function: function.into(),
        message,
    })
}

/// Returns the text that a function was given.
pub(super) fn argument<'a>(function: &str, value: &'a Value) -> Result<&'a str> {
    match value {
        Value::String(text) => Ok(text),
        Value::Null => failed(function, NO_VALUE.into()),
        other => failed(
            function,
            format!("needs a string, such as value, and got {}", other.type_of()),
        ),
    }
}

/// Returns a number, or a quantity such as `2Gi` or `500m`, as a double.
pub(super) fn number(value: Value) -> Result<f64> {
    match value {
        #[allow(clippy::cast_precision_loss)] // as CEL's double()
        Value::Int(number) => return Ok(number as f64),
        Value::Float(number) => return Ok(number),
        _ => {}
    }
    let text = argument("number", &value)?.trim();
    let parsed = SUFFIXES.iter().find_map(|(suffix, factor)| {
        let number = text.strip_suffix(suffix)?;
        let is_number = number.ends_with(|char: char| char.is_ascii_digit() || char == '.');
        let number: f64 = number.parse().ok().filter(|_| is_number)?;
        Some(number * factor)
    });
    parsed.filter(|number| number.is_finite()).map_or_else(
        || failed("number", format!("{:?} is not a number", brief(text))),
        Ok,
    )
}

/// Returns the tag of an image; empty if the image has no tag, or only a digest.
pub(super) fn tag(value: Value) -> Result<Arc<String>> {
    let image = argument("tag", &value)?;
    if image.starts_with(['[', '{', '"']) {
        let image = brief(image);
        return failed(
            "tag",
            format!(
                "{image:?} is not an image: track image, or image:CONTAINER, in place of images"
            ),
        );
    }
    let named = image.split('@').next().unwrap_or_default();
    let last = named.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map_or("", |(_, tag)| tag);
    Ok(Arc::new(tag.to_owned()))
}

/// Returns the parts of a version such as `v1.29.0-rc1`; parts that are left out are 0.
pub(super) fn version(value: Value) -> Result<Value> {
    let whole = argument("version", &value)?.trim();
    let invalid = || {
        failed(
            "version",
            format!("{:?} is not a version such as v1.29.0-rc1", brief(whole)),
        )
    };
    let version = whole.strip_prefix('v').unwrap_or(whole);
    let version = version.split('+').next().unwrap_or_default();
    let (numbers, pre) = version.split_once('-').unwrap_or((version, ""));
    let numbers: Vec<&str> = numbers.split('.').collect();
    let parsed: Option<Vec<i64>> = numbers
        .iter()
        .map(|number| {
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse().ok().filter(|_| is_number)
        })
        .collect();
    match parsed {
        Some(parsed) if parsed.len() <= 3 => {
            let part = |at: usize| Value::Int(parsed.get(at).copied().unwrap_or_default());
            Ok(map([
                ("major", part(0)),
                ("minor", part(1)),
                ("patch", part(2)),
                ("pre", text(pre)),
            ]))
        }
        _ => invalid(),
    }
}

fn brief(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

pub(super) fn text(text: &str) -> Value {
    Value::String(Arc::new(text.to_owned()))
}

pub(super) fn map<'a>(members: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let members: HashMap<String, Value> = members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    Value::Map(members.into())
}
