//! Parameters of a method: JSON, a form, or a query, all as text, as the real server reads them.

use std::collections::HashMap;

use http::header;
use serde_json::Value;

use super::error::BotApiError;
use crate::serve::Arrived;

pub(super) struct Params(HashMap<String, String>);

impl Params {
    pub(super) fn read(arrived: &Arrived) -> Result<Self, BotApiError> {
        let mut params = arrived
            .uri
            .query()
            .map_or(Ok(HashMap::new()), |query| form(query.as_bytes()))?;
        let content_type = arrived
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let essence = content_type
            .and_then(|value| value.split(';').next())
            .unwrap_or_default()
            .trim();
        match essence.to_ascii_lowercase().as_str() {
            "application/json" => params.extend(json(&arrived.body)?),
            "application/x-www-form-urlencoded" => params.extend(form(&arrived.body)?),
            _ if arrived.body.is_empty() => {}
            _ => {
                return Err(BotApiError::bad_request(
                    "the stand-in reads JSON and forms only",
                ));
            }
        }
        Ok(Self(params))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "true" | "1" | "yes" | "t" | "y"
            )
        })
    }
}

fn json(body: &[u8]) -> Result<HashMap<String, String>, BotApiError> {
    if std::str::from_utf8(body).is_err() {
        return Err(not_utf8());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object
            .into_iter()
            .filter_map(|(name, value)| Some((name, text(value)?)))
            .collect()),
        _ => Err(BotApiError::bad_request("can't parse the JSON object")),
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

fn form(bytes: &[u8]) -> Result<HashMap<String, String>, BotApiError> {
    bytes
        .split(|byte| *byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=');
            let (name, value) = at.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}

/// Decodes percent-encoding, with `+` for a space; a `%` that begins no escape stays.
fn decode(bytes: &[u8]) -> Result<String, BotApiError> {
    let hex = |byte: Option<&u8>| {
        byte.and_then(|byte| char::from(*byte).to_digit(16))
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(bytes.get(at + 1)), hex(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 2;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    String::from_utf8(decoded).map_err(|_| not_utf8())
}

fn not_utf8() -> BotApiError {
    BotApiError::bad_request("strings must be encoded in UTF-8")
}
