//! Values of fields, truncated for storage.

use std::collections::BTreeMap;
use std::io;

use qm_api::tracked_field::{ChangedBy, KEPT_BYTES, Truncation};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Value of a field: a string as it is, anything else (`null` too) as compact JSON with sorted keys.
///
/// Two values are equal if the whole values are equal: truncated values compare by length and digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedValue {
    /// The object has no such field, which differs from an empty, false or null one.
    Missing,
    /// Whole value.
    Text(Box<str>),
    /// Truncated value of more than [`KEPT_BYTES`].
    Truncated {
        /// Beginning of the value, in whole characters.
        head: Box<str>,
        /// Length and digest of the whole value.
        truncation: Box<Truncation>,
    },
}

impl ObservedValue {
    /// Creates the value of a field, which may be missing.
    pub fn of(value: Option<&Value>) -> Self {
        match value {
            None => Self::Missing,
            Some(Value::String(text)) => Self::of_text(text),
            Some(other) => Self::of_json(other),
        }
    }

    /// Creates a value from matches: a single match as it is, several as a JSON list.
    pub fn of_matches(matches: &[&Value]) -> Self {
        match matches {
            [] | [_] => Self::of(matches.first().copied()),
            _ => Self::of_json(&matches),
        }
    }

    /// Creates the value of a string.
    pub fn of_text(text: &str) -> Self {
        let mut kept = ValuePrefix::default();
        kept.append(text.as_bytes());
        kept.finish()
    }

    /// Creates a value of compact JSON. However large the value is, memory holds only its first [`KEPT_BYTES`].
    pub(crate) fn of_json(value: &impl Serialize) -> Self {
        let mut kept = ValuePrefix::default();
        match serde_json::to_writer(&mut kept, value) {
            Ok(()) => kept.finish(),
            // JSON values always serialise, and the writer never fails.
            Err(_) => Self::Missing,
        }
    }

    /// Returns the stored text, or `None` if the field is missing.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Missing => None,
            Self::Text(text) | Self::Truncated { head: text, .. } => Some(text),
        }
    }

    /// Returns the length and digest of a truncated value.
    pub fn truncation(&self) -> Option<&Truncation> {
        match self {
            Self::Truncated { truncation, .. } => Some(truncation),
            Self::Missing | Self::Text(_) => None,
        }
    }
}

/// Value of a field in one version of an object, with the details that an entry records if the value is a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedField {
    /// Value of the field.
    pub value: ObservedValue,
    /// `None` without `spec.context` and a known writer.
    pub details: Option<Box<Details>>,
}

/// Details that an entry records beside the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Values of `spec.context`.
    pub context: BTreeMap<String, String>,
    /// Last writer of the value, if known.
    pub changed_by: Option<Box<ChangedBy>>,
}

impl From<ObservedValue> for ObservedField {
    fn from(value: ObservedValue) -> Self {
        Self {
            value,
            details: None,
        }
    }
}

/// Writer that keeps the beginning of its input, and counts and hashes a longer one.
#[derive(Default)]
struct ValuePrefix {
    head: Vec<u8>,
    length: u64,
    hash: Option<Sha256>,
}

impl ValuePrefix {
    fn append(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        let room = KEPT_BYTES - self.head.len();
        let (fits, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(fits);
        if !rest.is_empty() {
            self.hash
                .get_or_insert_with(|| Sha256::new_with_prefix(&self.head))
                .update(rest);
        }
    }

    fn finish(self) -> ObservedValue {
        let head = match String::from_utf8(self.head) {
            Ok(head) => head,
            // The limit is inside a character.
            Err(error) => {
                let whole = error.utf8_error().valid_up_to();
                String::from_utf8_lossy(&error.as_bytes()[..whole]).into_owned()
            }
        };
        let head = head.into_boxed_str();
        match self.hash {
            None => ObservedValue::Text(head),
            Some(hash) => {
                let nibbles = hash
                    .finalize()
                    .into_iter()
                    .flat_map(|byte| [byte >> 4, byte & 15]);
                let sha256 = nibbles
                    .filter_map(|nibble| char::from_digit(nibble.into(), 16))
                    .collect();
                ObservedValue::Truncated {
                    head,
                    truncation: Box::new(Truncation {
                        length: self.length,
                        sha256,
                    }),
                }
            }
        }
    }
}

impl io::Write for ValuePrefix {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
