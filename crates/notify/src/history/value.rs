//! The value of a field, as far as it is kept.

use std::io;

use qm_api::tracked_field::Truncation;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// How much of a value is kept and sent, in bytes of UTF-8.
pub const KEPT_BYTES: usize = 1024;

/// The value of a field: strings as they stand, anything else (`null` too) as compact JSON with sorted keys.
///
/// Two are equal when the whole values are: one that was cut is compared by its length and digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObservedValue {
    /// The object has no such field: not the same as an empty, false or null one.
    Missing,
    /// The whole value.
    Text(Box<str>),
    /// A value of more than [`KEPT_BYTES`].
    Cut {
        /// Its beginning, cut between two characters.
        head: Box<str>,
        /// Length and digest of the whole.
        cut: Box<Truncation>,
    },
}

impl ObservedValue {
    /// The value of a field that may not be there.
    pub fn of(value: Option<&Value>) -> Self {
        match value {
            None => Self::Missing,
            Some(Value::String(text)) => Self::of_text(text),
            Some(other) => Self::of_json(other),
        }
    }

    /// One value as it is, several as a JSON list.
    pub fn of_matches(matches: &[&Value]) -> Self {
        match matches {
            [] | [_] => Self::of(matches.first().copied()),
            _ => Self::of_json(&matches),
        }
    }

    /// A string, as it stands.
    pub fn of_text(text: &str) -> Self {
        let mut kept = ValuePrefix::default();
        kept.take(text.as_bytes());
        kept.finish()
    }

    /// Compact JSON. Nothing beyond the first [`KEPT_BYTES`] is held in memory, however large the value is.
    pub fn of_json(value: &impl Serialize) -> Self {
        let mut kept = ValuePrefix::default();
        match serde_json::to_writer(&mut kept, value) {
            Ok(()) => kept.finish(),
            // JSON values always serialise, and the writer never fails.
            Err(_) => Self::Missing,
        }
    }

    /// What is kept of it; `None` when it is missing.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Missing => None,
            Self::Text(text) | Self::Cut { head: text, .. } => Some(text),
        }
    }

    /// Length and digest of the whole, when it was cut.
    pub fn cut(&self) -> Option<&Truncation> {
        match self {
            Self::Cut { cut, .. } => Some(cut),
            Self::Missing | Self::Text(_) => None,
        }
    }
}

/// Keeps the beginning of what is written to it, and counts and hashes the whole when that is longer.
#[derive(Default)]
struct ValuePrefix {
    head: Vec<u8>,
    length: u64,
    hash: Option<Sha256>,
}

impl ValuePrefix {
    fn take(&mut self, bytes: &[u8]) {
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
            // The bound fell into the middle of a character.
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
                ObservedValue::Cut {
                    head,
                    cut: Box::new(Truncation {
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
        self.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
