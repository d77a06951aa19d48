//! Responses to rejected requests.

use http::{StatusCode, header};
use serde_json::json;

use super::pace::TooMany;
use crate::serve::Reply;

/// A response with `ok: false`.
#[derive(Debug)]
pub(super) struct BotApiError {
    pub(super) code: u16,
    pub(super) description: String,
    pub(super) retry_after: Option<u64>,
    pub(super) migrate_to_chat_id: Option<i64>,
    pub(super) violation: bool,
}

impl BotApiError {
    pub(super) fn new(code: u16, description: impl Into<String>) -> Self {
        Self {
            code,
            description: description.into(),
            retry_after: None,
            migrate_to_chat_id: None,
            violation: false,
        }
    }

    pub(super) fn bad_request(what: &str) -> Self {
        Self::new(400, format!("Bad Request: {what}"))
    }

    pub(super) fn reply(&self) -> Reply {
        let mut body =
            json!({"ok": false, "error_code": self.code, "description": self.description});
        let mut reply =
            Reply::status(StatusCode::from_u16(self.code).unwrap_or(StatusCode::BAD_REQUEST));
        if let Some(id) = self.migrate_to_chat_id {
            body["parameters"] = json!({"migrate_to_chat_id": id});
        }
        if let Some(seconds) = self.retry_after {
            body["parameters"] = json!({"retry_after": seconds});
            reply = reply.header(header::RETRY_AFTER, seconds);
        }
        reply.json(&body)
    }
}

impl From<TooMany> for BotApiError {
    fn from(
        TooMany {
            retry_after,
            violation,
        }: TooMany,
    ) -> Self {
        let description = format!("Too Many Requests: retry after {retry_after}");
        Self {
            retry_after: Some(retry_after),
            violation,
            ..Self::new(429, description)
        }
    }
}
