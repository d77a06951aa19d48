//! User templates in Jinja's language, as minijinja implements it, with limits that are checked before rendering.
//!
//! Templates have few filters, no functions and no macros; [`cost`] limits their output.

use std::io;
use std::sync::LazyLock;

use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, filters};
use serde::Serialize;

use self::cost::{MAX_REPLACED, TemplateLimits, error_message};
use super::{TextLimit, View};
use crate::without_panic::without_panic;

pub(super) mod cost;

/// Limits of a `TrackedField`'s template; a digest renders up to a hundred.
const MESSAGE_LIMITS: TemplateLimits = TemplateLimits {
    budget: 1024 * 1024,
    fuel: 10_000,
    output: TextLimit::WEBHOOK.max(),
};

/// Variables of a `TrackedField`'s template.
pub(super) const VARIABLES: [&str; 19] = [
    "action",
    "changedBy",
    "cluster",
    "context",
    "field",
    "firstValue",
    "id",
    "kind",
    "merged",
    "missing",
    "name",
    "namespace",
    "previous",
    "previousTruncated",
    "time",
    "trackedField",
    "trackedFieldNamespace",
    "truncated",
    "value",
];

/// Checks a `TrackedField`'s template without rendering it.
///
/// # Errors
/// Returns the error message.
pub fn check_template(source: &str) -> Result<(), String> {
    cost::check(source, &VARIABLES, MESSAGE_LIMITS)
}

/// Renders a `TrackedField`'s template.
///
/// # Errors
/// Returns the error message.
pub fn message(source: &str, view: &View) -> Result<String, String> {
    static ENVIRONMENT: LazyLock<Environment<'static>> =
        LazyLock::new(|| environment(MESSAGE_LIMITS));
    check_template(source)?;
    render(&ENVIRONMENT, source, &shown(view), MESSAGE_LIMITS.output)
}

/// Returns the view for a template, where `value` is always a text, as in the default message.
pub(super) fn shown(view: &View) -> View {
    View {
        value: Some(view.shown().to_owned()),
        ..view.clone()
    }
}

pub(super) fn render<'a>(
    environment: &Environment<'a>,
    source: &'a str,
    variables: &impl Serialize,
    limit: usize,
) -> Result<String, String> {
    let mut output = BoundedWriter {
        bytes: Vec::new(),
        limit,
    };
    let rendered = without_panic("template", || {
        let template = environment.template_from_str(source)?;
        template.render_captured_to(Value::from(Serde(variables)), &mut output)
    })?;
    match rendered {
        Ok(_) => String::from_utf8(output.bytes).map_err(|_| "the result is not UTF-8".into()),
        Err(error) if error.kind() == ErrorKind::WriteFailure => {
            Err(format!("the result has more than {limit} bytes"))
        }
        Err(error) => Err(error_message(&error)),
    }
}

/// Creates the environment of a template. The environment has no loader, so a template cannot read files.
pub(super) fn environment(limits: TemplateLimits) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(limits.fuel));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(|output, state, value| {
        // A missing value renders as nothing, not as the word "none".
        if value.is_none() {
            Ok(())
        } else {
            minijinja::escape_formatter(output, state, value)
        }
    });
    environment.add_filter("abs", filters::abs);
    environment.add_filter("capitalize", filters::capitalize);
    environment.add_filter("count", filters::length);
    environment.add_filter("d", filters::default);
    environment.add_filter("default", filters::default);
    environment.add_filter("first", filters::first);
    environment.add_filter("float", filters::float);
    environment.add_filter("int", filters::int);
    environment.add_filter("last", filters::last);
    environment.add_filter("length", filters::length);
    environment.add_filter("lower", filters::lower);
    environment.add_filter("replace", replace);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |text: &str| text.trim().to_owned());
    environment.add_filter("truncate", truncate);
    environment.add_filter("upper", filters::upper);
    environment.add_filter("urlencode", url_encode);
    environment.add_test("defined", minijinja::tests::is_defined);
    environment.add_test("undefined", minijinja::tests::is_undefined);
    environment.add_test("none", minijinja::tests::is_none);
    environment.add_test("true", minijinja::tests::is_true);
    environment.add_test("false", minijinja::tests::is_false);
    environment.add_test("number", minijinja::tests::is_number);
    environment
}

/// Renders JSON without minijinja's HTML escapes (`<` as `\u003c`), which make a log hard to read.
fn to_json(value: &Value) -> Result<Value, Error> {
    let json = serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(json))
}

/// Encodes a text as a value of a form or of a URL's query; a missing value is empty.
fn url_encode(value: &Value) -> Result<String, Error> {
    let text = match value.kind() {
        ValueKind::None => String::new(),
        ValueKind::String | ValueKind::Number | ValueKind::Bool => value.to_string(),
        ValueKind::Undefined => return Err(ErrorKind::UndefinedError.into()),
        _ => {
            let problem = "urlencode needs a text: write tojson before it";
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
    };
    let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    // Only a form reads `+` as a space.
    Ok(encoded.replace('+', "%20"))
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let grown = text
        .matches(from)
        .count()
        .saturating_mul(to.len())
        .saturating_add(text.len());
    if grown > MAX_REPLACED {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("replace produces more than {MAX_REPLACED} bytes"),
        ));
    }
    Ok(text.replace(from, to))
}

/// Truncates `text` to `length` characters; the last one is an ellipsis if `text` is longer.
fn truncate(text: &str, length: usize) -> String {
    if text.chars().nth(length).is_none() {
        return text.to_owned();
    }
    text.chars()
        .take(length.saturating_sub(1))
        .chain((length > 0).then_some('…'))
        .collect()
}

struct BoundedWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
