//! Logs: for people on a terminal, one flat JSON object a line otherwise, on standard error; and [`traces`].
//!
//! The keys are controller-runtime's (controller, controllerGroup, controllerKind, namespace, name, reconcileID), so that
//! queries written for other operators find ours. They are fields of the span that [`pass`] opens.

use std::borrow::Cow;
use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use jiff::Timestamp;
use serde::Serializer;
use serde::ser::SerializeMap;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Span, Subscriber};
use tracing_subscriber::filter::{FilterExt as _, ParseError, Targets};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Scope};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt as log};
use uuid::Uuid;

use super::Key;
use crate::settings::{LogFormat, LogSettings};

mod collector;
pub mod traces;

use traces::Traces;

/// Sets up the log of this process, and its traces. Must be called within the runtime that is to send these.
///
/// # Errors
/// When the level does not parse, or a log was set up before.
pub fn init(settings: &LogSettings) -> anyhow::Result<Traces> {
    let terminal = io::stderr().is_terminal();
    let colour = colours(terminal, env::var_os("NO_COLOR").as_deref());
    let json = match settings.format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let (traces, problem) = match Traces::of_environment() {
        Ok(traces) => (traces, None),
        Err(error) => (Traces::none(), Some(error)),
    };
    subscriber(&settings.level, json, colour, io::stderr, traces.layer())?.try_init()?;
    if let Some(error) = problem {
        tracing::warn!(error = causes(error.as_ref()), "no traces are sent");
    }
    Ok(traces)
}

/// Returns whether to print colours: on a terminal, unless `NO_COLOR` has a value other than the empty one
/// (<https://no-color.org>).
pub fn colours(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Prefixes of the targets of this program's own crates.
const OWN_TARGETS: [&str; 2] = ["quartermaster", "qm_"];

/// The most that each crate may log, whatever level is asked for.
///
/// Only our own words are known to be free of secrets. At debug and trace level others print what passes through them:
/// reqwest and hyper-util hosts and bytes. They are held at info, except for those that were read:
/// - `kube_client::client` logs, at *warn*, the whole answer that it could not parse, which may be a Secret.
/// - `kube_client::client::builder` logs each failed request as an error, expected ones too. The error comes back to
///   who asked, and [`super::client`] logs each request at debug.
/// - `kube_runtime` says again what we say better ourselves, and its spans repeat the fields of ours.
fn caps() -> Targets {
    Targets::new()
        .with_default(LevelFilter::INFO)
        .with_targets(OWN_TARGETS.map(|target| (target, LevelFilter::TRACE)))
        .with_target(traces::TARGET, LevelFilter::OFF)
        .with_target("kube_client::client", LevelFilter::ERROR)
        .with_target("kube_client::client::builder", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF)
}

fn subscriber<W>(
    level: &str,
    json: bool,
    colour: bool,
    writer: W,
    traces: Option<Box<dyn Layer<Registry> + Send + Sync>>,
) -> Result<impl Subscriber + use<W>, ParseError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = log::layer()
        .with_writer(writer)
        .with_ansi(colour)
        .log_internal_errors(false);
    let layer = if json {
        layer
            .event_format(Flat)
            .fmt_fields(JsonFields::new())
            .boxed()
    } else {
        layer.with_target(false).compact().boxed()
    };
    let layer = layer
        .with_filter(level.parse::<Targets>()?.and(caps()))
        .boxed();
    Ok(Registry::default().with([layer].into_iter().chain(traces).collect::<Vec<_>>()))
}

/// The span of one pass over one object: every line within carries its fields.
pub fn pass(controller: &str, group: &str, kind: &str, namespace: &str, name: &str) -> Span {
    tracing::info_span!(
        target: "quartermaster",
        "pass",
        controller,
        controllerGroup = group,
        controllerKind = kind,
        namespace,
        name,
        reconcileID = %Uuid::new_v4()
    )
}

/// Creates the span of requests for one object outside its reconciles.
pub fn ask(controller: &str, group: &str, kind: &str, key: &Key) -> Span {
    tracing::info_span!(
        target: "quartermaster",
        "ask",
        controller,
        controllerGroup = group,
        controllerKind = kind,
        namespace = &*key.namespace,
        name = &*key.name
    )
}

/// An error with its causes, on one line. Many errors repeat their cause in their own words: each is said once.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !words.contains(&said) {
            words = format!("{words}: {said}");
        }
        next = cause.source();
    }
    words
}

/// One flat JSON object a line: `ts`, `level`, `logger`, `msg`, then the spans' fields from the outermost in, then the
/// event's. Of two fields with one name the inner one stands.
struct Flat;

impl<S, N> FormatEvent<S, N> for Flat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Map::new();
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let text = extensions
                .get::<FormattedFields<N>>()
                .map_or("", |fields| fields.as_str());
            fields.extend(serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default());
        }
        event.record(&mut Fields(&mut fields));
        let mut text = |key| match fields.remove(key) {
            Some(Value::String(text)) => Some(text),
            other => other.map(|value| value.to_string()),
        };
        let message = text("message").unwrap_or_default();
        // Lines that come from crates with the older `log` facade carry their origin as fields.
        let logger =
            text("log.target").map_or_else(|| Cow::Borrowed(event.metadata().target()), Cow::Owned);
        for key in ["log.module_path", "log.file", "log.line"] {
            fields.remove(key);
        }
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        let mut line = Vec::with_capacity(256);
        write_line(&mut line, level, &logger, &message, &fields).map_err(|_| fmt::Error)?;
        writeln!(writer, "{}", String::from_utf8_lossy(&line))
    }
}

fn write_line(
    line: impl Write,
    level: &str,
    logger: &str,
    message: &str,
    fields: &Map<String, Value>,
) -> serde_json::Result<()> {
    let mut json = serde_json::Serializer::new(line);
    let mut map = json.serialize_map(None)?;
    map.serialize_entry("ts", &format!("{:.3}", Timestamp::now()))?;
    map.serialize_entry("level", level)?;
    map.serialize_entry("logger", logger)?;
    map.serialize_entry("msg", message)?;
    for (key, value) in fields
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "ts" | "level" | "logger" | "msg"))
    {
        map.serialize_entry(key, value)?;
    }
    map.end()
}

/// Takes an event's fields as JSON values.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, causes(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests;
