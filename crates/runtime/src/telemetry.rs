//! Logs on standard error, as text on a terminal and otherwise as one flat JSON object per line; and [`traces`].
//!
//! The keys are controller-runtime's (controller, controllerGroup, controllerKind, namespace, name, reconcileID), so
//! that queries for other operators work. The keys are fields of the span [`reconcile_span`].

use std::borrow::Cow;
use std::env;
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

use super::ObjectKey;
use crate::settings::{LogFormat, LogSettings, Program};

mod causes;
mod collector;
pub mod traces;

pub use causes::causes;
use traces::Traces;

/// Sets up the log and the traces of this process. The current tokio runtime sends the traces.
///
/// # Errors
/// The level does not parse, or the process already has a log.
pub fn init(program: &Program, settings: &LogSettings) -> anyhow::Result<Traces> {
    let terminal = io::stderr().is_terminal();
    let colour = colours(terminal, env::var_os("NO_COLOR").as_deref());
    let json = match settings.format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let (traces, problem) = match Traces::from_env(program) {
        Ok(traces) => (traces, None),
        Err(error) => (Traces::none(), Some(error)),
    };
    subscriber(
        program,
        &settings.level,
        json,
        colour,
        io::stderr,
        traces.layer(),
    )?
    .try_init()?;
    if let Some(error) = problem {
        tracing::warn!(
            error = causes(error.as_ref()),
            "cannot set up traces; will send none"
        );
    }
    Ok(traces)
}

/// Returns whether to print colours: on a terminal, unless `NO_COLOR` has a value other than the empty one
/// (<https://no-color.org>).
pub fn colours(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Returns the highest level of each crate, which the settings cannot exceed.
///
/// Only messages of the program's own crates are known to be free of secrets. At debug and trace level, other crates
/// print the data that passes through them, such as hosts and bytes in reqwest and hyper-util. Other crates are limited
/// to info, except for:
/// - `kube_client::client`, which logs a whole answer that it cannot parse at *warn*; the answer may be a Secret.
/// - `kube_client::client::builder`, which logs each failed request as an error, expected ones too. The caller gets the
///   error, and [`super::client`] logs each request at debug.
/// - `kube_runtime`, which repeats messages of the runtime, and whose spans repeat fields.
fn caps(program: &Program) -> Targets {
    Targets::new()
        .with_default(LevelFilter::INFO)
        .with_targets(
            program
                .own_targets()
                .map(|target| (target, LevelFilter::TRACE)),
        )
        .with_target(traces::TARGET, LevelFilter::OFF)
        .with_target("kube_client::client", LevelFilter::ERROR)
        .with_target("kube_client::client::builder", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF)
}

fn subscriber<W>(
    program: &Program,
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
        .with_filter(level.parse::<Targets>()?.and(caps(program)))
        .boxed();
    Ok(Registry::default().with([layer].into_iter().chain(traces).collect::<Vec<_>>()))
}

/// Creates the span of one reconcile. Log lines of the reconcile have the span's fields at any log level: a span below
/// level `error` would be off while the settings limit the runtime's target to errors.
pub(crate) fn reconcile_span(
    controller: &str,
    group: &str,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Span {
    tracing::error_span!(
        "reconcile",
        controller,
        controllerGroup = group,
        controllerKind = kind,
        namespace,
        name,
        reconcileID = %Uuid::new_v4()
    )
}

/// Creates the span of work for one object outside its reconciles.
pub fn background_span(controller: &str, group: &str, kind: &str, key: &ObjectKey) -> Span {
    tracing::error_span!(
        "background",
        controller,
        controllerGroup = group,
        controllerKind = kind,
        namespace = &*key.namespace,
        name = &*key.name
    )
}

/// Format with one flat JSON object per line: `ts`, `level`, `logger`, `msg`, the fields of the spans from the
/// outermost to the innermost, the fields of the event. A later field replaces an earlier one of the same name.
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
        // Lines of crates that use the older `log` facade have their origin in fields.
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

/// Visitor that collects the fields of an event as JSON values.
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
