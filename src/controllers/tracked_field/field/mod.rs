//! Which field of an object is tracked, and its value.
//!
//! A field is one of a few words (`replicas`, `image`, `targetPort`) or a `JSONPath` as `kubectl -o jsonpath` has it
//! (translated in `path`); its value is kept up to a bound ([`Observed`]).

use serde_json::Value;
use serde_json_path::JsonPath;

use crate::api::tracked_field::{A_PATH, words_of};

mod observed;
mod path;

pub use observed::{KEPT_BYTES, Observed};

/// The longest field that is accepted, in bytes.
const LONGEST: usize = 4096;

/// A field of an object, checked and ready to be looked up.
#[derive(Clone, Debug, PartialEq)]
pub struct Field(Select);

#[derive(Clone, Debug, PartialEq)]
enum Select {
    Replicas,
    /// Of the container of that name, or of the first one.
    Image(Option<Box<str>>),
    /// Of the port of that name, or of the first one.
    TargetPort(Option<Box<str>>),
    /// What all of these match, in this order (a union of several names is one query for each).
    Paths(Box<[JsonPath]>),
}

/// A field that cannot be tracked. Every message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The word does not exist, or not for that kind.
    #[error("{field:?} is no field of a {kind}: write {}{A_PATH}", words_of(kind))]
    FieldNotFound {
        /// Kind of the target.
        kind: String,
        /// The field, as the spec gives it.
        field: String,
    },
    /// It is meant as a `JSONPath`, or as `WORD:NAME`, and is not one.
    #[error("{field:?}: {problem}")]
    InvalidPath {
        /// The field, as the spec gives it.
        field: String,
        /// What is wrong, and what to write.
        problem: String,
    },
}

impl FieldError {
    /// The reason that conditions, Events and the waiting annotation give.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::FieldNotFound { .. } => "FieldNotFound",
            Self::InvalidPath { .. } => "InvalidPath",
        }
    }
}

impl Field {
    /// Understands `field` as that of an object of this kind.
    pub fn compile(kind: &str, field: &str) -> Result<Self, FieldError> {
        let invalid = |problem: String| FieldError::InvalidPath { field: field.chars().take(200).collect(), problem };
        if field.len() > LONGEST {
            return Err(invalid(format!("it is longer than {LONGEST} bytes")));
        }
        if field.contains(['{', '}']) {
            let queries = path::translate(field).map_err(invalid)?;
            let parse = |query: &String| JsonPath::parse(query).map_err(|error| invalid(error.to_string()));
            return queries.iter().map(parse).collect::<Result<_, _>>().map(|paths| Self(Select::Paths(paths)));
        }
        if field.contains(['.', '[', '$', '@']) && !field.contains(':') {
            let path = field.trim_start_matches('$');
            let dot = if path.starts_with(['.', '[']) { "" } else { "." };
            return Err(invalid(format!("a JSONPath stands in braces: write {{{dot}{path}}}")));
        }
        let (word, name) = match field.split_once(':') {
            Some((word, name)) => (word, Some(name)),
            None => (field, None),
        };
        let select = match (kind, word, name) {
            ("Deployment" | "StatefulSet", "replicas", None) => Select::Replicas,
            ("Deployment" | "StatefulSet", "image", name) => Select::Image(name.map(Into::into)),
            ("Service", "targetPort", name) => Select::TargetPort(name.map(Into::into)),
            _ => return Err(FieldError::FieldNotFound { kind: kind.into(), field: field.into() }),
        };
        if name == Some("") {
            let what = if word == "image" { "container" } else { "port" };
            return Err(invalid(format!(
                "the {what}'s name is missing: write {word}:NAME, or {word} for the first one"
            )));
        }
        Ok(Self(select))
    }

    /// The field's value in `object`, which is a whole one with `metadata` and all.
    ///
    /// Several matches of a path are a JSON list; a single one is the value itself, whatever the path could match:
    /// so `{.spec.containers[*].image}` of one container is its image, as kubectl prints it.
    pub fn extract(&self, object: &Value) -> Observed {
        match &self.0 {
            Select::Replicas => Observed::of(object.pointer("/spec/replicas")),
            Select::Image(name) => {
                let container = named(object.pointer("/spec/template/spec/containers"), name.as_deref());
                Observed::of(container.and_then(|container| container.get("image")))
            }
            Select::TargetPort(name) => {
                let port = named(object.pointer("/spec/ports"), name.as_deref());
                // The API's rule: a targetPort that is left out equals port.
                Observed::of(port.and_then(|port| port.get("targetPort").or_else(|| port.get("port"))))
            }
            Select::Paths(paths) => {
                let matches: Vec<&Value> = paths.iter().flat_map(|path| path.query(object).all()).collect();
                match matches[..] {
                    [] | [_] => Observed::of(matches.first().copied()),
                    _ => Observed::of_json(&matches),
                }
            }
        }
    }
}

/// The item of that name, or the first one.
fn named<'a>(list: Option<&'a Value>, name: Option<&str>) -> Option<&'a Value> {
    let list = list?.as_array()?;
    match name {
        None => list.first(),
        Some(name) => list.iter().find(|item| item.get("name").and_then(Value::as_str) == Some(name)),
    }
}

#[cfg(test)]
mod tests;
