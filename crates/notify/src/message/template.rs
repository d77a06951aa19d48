//! A user's template, in Jinja's language as minijinja has it, bounded before it runs.
//!
//! The only filters are those listed here, there are no functions and no macros, and what a template could produce is
//! bounded ([`bounds`]).

use std::io;
use std::sync::{Arc, LazyLock};

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, filters};
use serde::Serialize;

use super::{BODY, View};

mod bounds;

/// What a template may cost.
#[derive(Clone, Copy)]
struct Bounds {
    /// All that it may ever produce on the way to its text, in bytes.
    budget: usize,
    /// Instructions that one rendering may take.
    fuel: u64,
    /// Length of its text, in bytes.
    output: usize,
}

/// Of a `TrackedField`'s template: a digest renders up to a hundred.
const MESSAGE: Bounds = Bounds {
    budget: 1024 * 1024,
    fuel: 10_000,
    output: super::Limit::WEBHOOK.max(),
};
/// Of a webhook's `body`: a request renders one.
const WHOLE_BODY: Bounds = Bounds {
    budget: 16 * 1024 * 1024,
    fuel: 100_000,
    output: BODY,
};
/// What filter `replace` gives at most.
const REPLACED: usize = 64 * 1024;

/// The variables of a `TrackedField`'s template.
const VARIABLES: [&str; 17] = [
    "action",
    "cluster",
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
/// The further variables of a webhook's `body`.
const BODY_VARIABLES: [&str; 2] = ["entries", "text"];

/// The filters, and by how much each can make its input longer.
const FILTERS: [(&str, usize); 16] = [
    ("abs", 1),
    ("capitalize", 3),
    ("count", 1),
    ("d", 1),
    ("default", 1),
    ("first", 1),
    ("float", 1),
    ("int", 1),
    ("last", 1),
    ("length", 1),
    ("lower", 3),
    ("replace", 1),
    ("tojson", 6),
    ("trim", 1),
    ("truncate", 1),
    ("upper", 3),
];
const TESTS: [&str; 6] = ["defined", "undefined", "none", "true", "false", "number"];

/// What a `TrackedField`'s template is to say is known at first sight.
///
/// # Errors
/// Why it cannot be rendered, in words.
pub fn check_template(source: &str) -> Result<(), String> {
    bounds::check(source, &VARIABLES, MESSAGE)
}

/// The same for a webhook's `body`.
///
/// # Errors
/// Why it cannot be rendered, in words.
pub fn check_body(source: &str) -> Result<(), String> {
    bounds::check(
        source,
        &[&VARIABLES[..], &BODY_VARIABLES].concat(),
        WHOLE_BODY,
    )
}

/// Renders a `TrackedField`'s template.
///
/// # Errors
/// Why it cannot be rendered, in words.
pub fn message(source: &str, view: &View) -> Result<String, String> {
    static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| environment(MESSAGE));
    check_template(source)?;
    render(&ENVIRONMENT, source, &shown(view), MESSAGE.output)
}

/// A webhook's `body`, checked.
#[derive(Clone)]
pub struct Body(Arc<str>);

impl Body {
    /// Checks it, once for all that is rendered.
    ///
    /// # Errors
    /// Why it cannot be rendered, in words.
    pub fn new(source: &str) -> Result<Self, String> {
        check_body(source)?;
        Ok(Self(source.into()))
    }

    /// Renders it. `view` is the first (or only) entry, `entries` are all of them, `text` is the whole message.
    ///
    /// # Errors
    /// What failed or grew too long, in words.
    pub fn render(&self, view: &View, entries: &[View], text: &str) -> Result<String, String> {
        #[derive(Serialize)]
        struct Variables<'a> {
            #[serde(flatten)]
            view: View,
            entries: Vec<View>,
            text: &'a str,
        }
        static ENVIRONMENT: LazyLock<Environment<'static>> =
            LazyLock::new(|| environment(WHOLE_BODY));
        let variables = Variables {
            view: shown(view),
            entries: entries.iter().map(shown).collect(),
            text,
        };
        render(&ENVIRONMENT, &self.0, &variables, WHOLE_BODY.output)
    }
}

/// In a template `value` is a text: what the default message shows.
fn shown(view: &View) -> View {
    View {
        value: Some(view.shown().to_owned()),
        ..view.clone()
    }
}

fn render<'a>(
    environment: &Environment<'a>,
    source: &'a str,
    variables: &impl Serialize,
    limit: usize,
) -> Result<String, String> {
    let template = environment
        .template_from_str(source)
        .map_err(|error| words(&error))?;
    let mut output = Bounded {
        bytes: Vec::new(),
        limit,
    };
    match template.render_captured_to(Value::from(Serde(variables)), &mut output) {
        Ok(_) => String::from_utf8(output.bytes).map_err(|_| "it gives no text".into()),
        Err(error) if error.kind() == ErrorKind::WriteFailure => {
            Err(format!("it gives more than {limit} bytes"))
        }
        Err(error) => Err(words(&error)),
    }
}

/// What a template can use. It has no loader, so it reaches no file.
fn environment(bounds: Bounds) -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_fuel(Some(bounds.fuel));
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(|output, state, value| {
        // What is not there is nothing, not the word "none".
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
    environment.add_test("defined", minijinja::tests::is_defined);
    environment.add_test("undefined", minijinja::tests::is_undefined);
    environment.add_test("none", minijinja::tests::is_none);
    environment.add_test("true", minijinja::tests::is_true);
    environment.add_test("false", minijinja::tests::is_false);
    environment.add_test("number", minijinja::tests::is_number);
    environment
}

/// JSON as it stands: minijinja's own filter escapes for HTML (`<` as `\u003c`), which readers of plain JSON also take,
/// but which makes a log hard to read.
fn to_json(value: &Value) -> Result<Value, Error> {
    let json = serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(json))
}

fn replace(text: &str, from: &str, to: &str) -> Result<String, Error> {
    let grown = text
        .matches(from)
        .count()
        .saturating_mul(to.len())
        .saturating_add(text.len());
    if grown > REPLACED {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("replace gives more than {REPLACED} bytes"),
        ));
    }
    Ok(text.replace(from, to))
}

/// The first `length` characters, the last of them an ellipsis when something is left out.
fn truncate(text: &str, length: usize) -> String {
    if text.chars().nth(length).is_none() {
        return text.to_owned();
    }
    text.chars()
        .take(length.saturating_sub(1))
        .chain((length > 0).then_some('…'))
        .collect()
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
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

fn words(error: &Error) -> String {
    let what = error.detail().map_or_else(
        || error.kind().to_string(),
        |detail| format!("{}: {detail}", error.kind()),
    );
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

#[cfg(test)]
mod tests;
