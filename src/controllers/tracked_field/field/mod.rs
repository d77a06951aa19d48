//! The tracked field of an object, and its value.
//!
//! A field is a word (`replicas`, `image`, `images`, `targetPort`) or a `JSONPath` in the dialect of
//! `kubectl -o jsonpath` (translated in `path`). Long values are truncated ([`ObservedValue`]). The cost of a lookup is
//! estimated before it runs (`cost`).

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use qm_api::tracked_field::{A_PATH, TrackedFieldSpec, words_of};
use qm_notify::history::ObservedValue;
use serde_json::Value;
use serde_json_path::JsonPath;

use self::query::QueryStep;

mod changed_by;
pub(crate) mod cost;
mod path;
mod query;

/// Maximum length of a field, in bytes.
const MAX_LENGTH: usize = 4096;
/// Maximum number of characters of a field that an error quotes.
const MAX_QUOTED: usize = 200;

pub(crate) const FIELD_NOT_FOUND: &str = "FieldNotFound";
pub(crate) const PATH_INVALID: &str = "PathInvalid";

/// A field of an object, checked and ready for lookups. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSelector(Arc<Compiled>);

#[derive(Debug, PartialEq, Eq)]
struct Compiled {
    /// Text from the spec.
    text: Box<str>,
    select: FieldLookup,
}

#[derive(Debug, PartialEq, Eq)]
enum FieldLookup {
    Replicas,
    /// Image of the container with that name, or of the first container.
    Image(Containers, Option<Box<str>>),
    /// Target port of the port with that name, or of the first port.
    TargetPort(Option<Box<str>>),
    /// Matches of all these paths, in this order (a union of several names is one query for each name).
    Paths(Box<[FieldPath]>),
}

/// A query and its steps.
#[derive(Debug, PartialEq, Eq)]
struct FieldPath {
    query: JsonPath,
    steps: Box<[QueryStep]>,
}

/// The tracked field of a `TrackedField`, and the fields of its context by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selectors {
    pub(crate) field: FieldSelector,
    pub(crate) context: Vec<(String, FieldSelector)>,
}

impl Selectors {
    /// Compiles the fields of a spec.
    pub(crate) fn compile(spec: &TrackedFieldSpec) -> Result<Self, SelectorError> {
        let compile = |context: Option<&String>, field: &str| {
            FieldSelector::compile(&spec.target.kind, field).map_err(|error| SelectorError {
                context: context.cloned(),
                error,
            })
        };
        let context = spec.notification.context.iter();
        Ok(Self {
            field: compile(None, &spec.field)?,
            context: context
                .map(|(name, path)| Ok((name.clone(), compile(Some(name), path)?)))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &FieldSelector> {
        let context = self.context.iter().map(|(_, field)| field);
        std::iter::once(&self.field).chain(context)
    }
}

/// A field without context.
#[cfg(test)]
impl From<FieldSelector> for Selectors {
    fn from(field: FieldSelector) -> Self {
        Self {
            field,
            context: Vec::new(),
        }
    }
}

impl Hash for FieldSelector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

/// Field of a spec that cannot be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelectorError {
    /// Name in the context; `None` for the tracked field.
    context: Option<String>,
    error: FieldError,
}

impl SelectorError {
    /// Returns the reason for conditions, Events and the waiting annotation.
    pub(crate) fn reason(&self) -> &'static str {
        self.error.reason()
    }

    /// Returns the message. `context` is the path of the context, such as `spec.context`.
    pub(crate) fn message(&self, context: &str) -> String {
        match &self.context {
            Some(name) => format!("{context}.{name}: {}", self.error),
            None => self.error.to_string(),
        }
    }
}

/// A field that cannot be tracked. Every message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The word does not exist, or not for that kind.
    #[error("{kind} has no field {field:?}: write {}{A_PATH}", words_of(kind))]
    FieldNotFound { kind: String, field: String },
    /// The field looks like a `JSONPath` or `WORD:NAME`, and is not valid.
    #[error("{field:?}: {problem}")]
    PathInvalid {
        field: String,
        /// The problem, and what to write.
        problem: String,
    },
}

impl FieldError {
    /// Returns the reason for conditions, Events and the waiting annotation.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::FieldNotFound { .. } => FIELD_NOT_FOUND,
            Self::PathInvalid { .. } => PATH_INVALID,
        }
    }
}

impl FieldSelector {
    /// Compiles `field` for an object of this kind.
    pub fn compile(kind: &str, field: &str) -> Result<Self, FieldError> {
        let quoted = || field.chars().take(MAX_QUOTED).collect();
        let invalid = |problem: String| FieldError::PathInvalid {
            field: quoted(),
            problem,
        };
        if field.len() > MAX_LENGTH {
            let problem = format!("the field is longer than {MAX_LENGTH} bytes: shorten it");
            return Err(invalid(problem));
        }
        let paths = |text: &str| {
            let parse = |steps: Vec<QueryStep>| {
                let query = JsonPath::parse(&format!("${}", query::text(&steps)));
                let query = query.map_err(|error| invalid(error.to_string()))?;
                Ok(FieldPath {
                    query,
                    steps: steps.into(),
                })
            };
            let queries = path::translate(text).map_err(invalid)?;
            let paths = queries.into_iter().map(parse).collect::<Result<_, _>>()?;
            Ok(FieldLookup::Paths(paths))
        };
        if field.contains(['{', '}']) {
            return Ok(Self::new(field, paths(field)?));
        }
        if field.contains(['.', '[', '$', '@']) && !field.contains(':') {
            let path = field.trim_start_matches('$');
            let dot = if path.starts_with(['.', '[']) {
                ""
            } else {
                "."
            };
            return Err(invalid(format!(
                "write a JSONPath in braces: {{{dot}{path}}}"
            )));
        }
        let (word, name) = match field.split_once(':') {
            Some((word, name)) => (word, Some(name)),
            None => (field, None),
        };
        let select = match (kind, word, name) {
            ("Deployment" | "StatefulSet", "replicas", None) => Some(FieldLookup::Replicas),
            (_, "image", name) => {
                Containers::of(kind).map(|it| FieldLookup::Image(it, name.map(Into::into)))
            }
            (_, "images", None) => Containers::of(kind)
                .map(|it| paths(&it.images()))
                .transpose()?,
            ("Service", "targetPort", name) => Some(FieldLookup::TargetPort(name.map(Into::into))),
            _ => None,
        };
        let select = select.ok_or_else(|| FieldError::FieldNotFound {
            kind: kind.into(),
            field: quoted(),
        })?;
        if name == Some("") {
            let what = if word == "image" { "container" } else { "port" };
            return Err(invalid(format!(
                "the {what}'s name is missing: write {word}:NAME, or {word} for the first one"
            )));
        }
        Ok(Self::new(field, select))
    }

    fn new(text: &str, select: FieldLookup) -> Self {
        Self(Arc::new(Compiled {
            text: text.into(),
            select,
        }))
    }

    /// Returns the field as in the spec.
    pub(crate) fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns the field's value in `object`, which must be complete, with `metadata`.
    ///
    /// Several matches of a path are a JSON list. A single match is the value itself, whatever the path could match:
    /// `{.spec.containers[*].image}` of one container is its image, as kubectl prints it.
    pub fn extract(&self, object: &Value) -> ObservedValue {
        ObservedValue::of_matches(&self.matches(object))
    }

    /// Returns the matches that [`FieldSelector::extract`] makes a value of.
    pub(crate) fn matches<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        match &self.0.select {
            FieldLookup::Paths(paths) => paths
                .iter()
                .flat_map(|path| path.query.query(object).all())
                .collect(),
            FieldLookup::Replicas => object.pointer("/spec/replicas").into_iter().collect(),
            FieldLookup::Image(containers, name) => {
                let container = named(object.pointer(containers.0), name.as_deref());
                container
                    .and_then(|container| container.get("image"))
                    .into_iter()
                    .collect()
            }
            FieldLookup::TargetPort(name) => {
                let port = named(object.pointer(PORTS), name.as_deref());
                // The API defaults a missing targetPort to port.
                port.and_then(|port| port.get("targetPort").or_else(|| port.get("port")))
                    .into_iter()
                    .collect()
            }
        }
    }
}

/// Path of the containers in an object, as a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Containers(&'static str);

impl Containers {
    /// Returns the path for a kind; `None` for one without containers.
    fn of(kind: &str) -> Option<Self> {
        match kind {
            "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => {
                Some(Self("/spec/template/spec/containers"))
            }
            "CronJob" => Some(Self("/spec/jobTemplate/spec/template/spec/containers")),
            _ => None,
        }
    }

    /// Returns the `JSONPath` of the images of all containers.
    fn images(self) -> String {
        format!("{{{}[*].image}}", self.0.replace('/', "."))
    }
}

/// Path of a Service's ports.
const PORTS: &str = "/spec/ports";

/// Returns the item with that name, or the first item.
fn named<'a>(list: Option<&'a Value>, name: Option<&str>) -> Option<&'a Value> {
    list?.get(named_index(list, name)?)
}

fn named_index(list: Option<&Value>, name: Option<&str>) -> Option<usize> {
    let mut items = list?.as_array()?.iter();
    items.position(|item| {
        name.is_none_or(|name| item.get("name").and_then(Value::as_str) == Some(name))
    })
}

#[cfg(test)]
pub(crate) mod tests;
