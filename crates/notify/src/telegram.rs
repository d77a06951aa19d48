//! The Telegram Bot API: one method, `sendMessage` (<https://core.telegram.org/bots/api#sendmessage>).

use std::fmt;
use std::time::Duration;

use qm_api::contact_point::ChatId;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::rate_limit::{ChatKey, TelegramRateLimiter};
use super::redactor::Redactor;
use super::{Refusal, SendError, SendReceipt, response};

/// Chat with the token of its bot.
#[derive(Clone)]
pub struct TelegramChat {
    token: SecretString,
    token_digest: [u8; 32],
    to: ChatId,
    thread: Option<i64>,
    silent: bool,
    footer: Option<String>,
}

/// Error of a token. The message does not contain the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    #[error("the token is not UTF-8")]
    NotText,
    /// The token has surrounding whitespace, usually the newline of `echo`.
    #[error(
        "the token begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`"
    )]
    Padded,
    /// The token does not have the shape of a bot token.
    #[error(
        "the token does not have the shape that BotFather gives it: digits, a colon, then letters, digits, _ and -"
    )]
    Shape,
}

impl TelegramChat {
    /// Creates a chat from the bytes of a Secret. A token may have any length: the example in Telegram's documentation
    /// is shorter than a real one. The check of the alphabet keeps the operator from sending other Secrets, which a key
    /// may name by mistake or on purpose.
    ///
    /// # Errors
    /// Returns the error of the token.
    pub fn new(
        token: &[u8],
        chat: ChatId,
        thread: Option<i64>,
        silent: bool,
    ) -> Result<Self, InvalidToken> {
        let token = std::str::from_utf8(token).map_err(|_| InvalidToken::NotText)?;
        if token.trim().len() != token.len() {
            return Err(InvalidToken::Padded);
        }
        let (bot, secret) = token.split_once(':').ok_or(InvalidToken::Shape)?;
        let digits = !bot.is_empty() && bot.bytes().all(|byte| byte.is_ascii_digit());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !digits || secret.is_empty() || !secret.bytes().all(plain) {
            return Err(InvalidToken::Shape);
        }
        Ok(Self {
            token: token.into(),
            token_digest: Sha256::digest(token).into(),
            to: chat,
            thread,
            silent,
            footer: None,
        })
    }

    /// Sets `spec.footer`.
    #[must_use]
    pub fn with_footer(self, footer: Option<String>) -> Self {
        Self { footer, ..self }
    }

    /// Returns the last line of each message.
    pub(crate) fn footer(&self) -> Option<&str> {
        self.footer.as_deref()
    }

    /// Returns the supergroup `to` that this chat became.
    #[must_use]
    pub fn migrated(&self, to: i64) -> Self {
        Self {
            to: ChatId::Id(to),
            ..self.clone()
        }
    }

    /// Returns the rate limiter's key of this chat.
    pub fn key(&self) -> ChatKey {
        ChatKey {
            token: self.token_digest,
            chat: self.to.clone(),
        }
    }
}

impl fmt::Debug for TelegramChat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TelegramChat")
            .field("to", &self.to)
            .field("thread", &self.thread)
            .field("silent", &self.silent)
            .finish_non_exhaustive()
    }
}

/// Context of a request to a chat.
pub(super) struct TelegramRequest<'a> {
    pub(super) client: &'a reqwest::Client,
    pub(super) base: &'a reqwest::Url,
    pub(super) timeout: Duration,
    /// Upper limit of `Retry-After`, which a proxy may send.
    pub(super) max_retry_after: Duration,
    pub(super) rate_limiter: &'a TelegramRateLimiter,
    /// Namespace of the contact point.
    pub(super) namespace: &'a str,
    pub(super) check_lease: &'a (dyn Fn() -> Result<(), SendError> + Sync),
}

impl TelegramRequest<'_> {
    /// Sends `text`, which carries this many entries. If the chat became a supergroup, sends the message there
    /// immediately, unless the Bot API asked for a pause of the supergroup: its end is awaited outside the request,
    /// where a new endpoint ends the wait.
    pub(super) async fn send(
        &self,
        chat: &TelegramChat,
        text: &str,
        carried: usize,
    ) -> Result<SendReceipt, SendError> {
        let (reply, migrated_to) = match self.post(chat, text).await? {
            SendMessageReply::Migrated(to) => {
                let chat = chat.migrated(to);
                // The supergroup has its own rate limit.
                let key = chat.key();
                let acquired = self
                    .rate_limiter
                    .acquire_unless_paused(&key, self.namespace);
                acquired.await.map_err(|left| SendError::Retry {
                    message: format!("the Bot API asked for a pause of the supergroup {to}"),
                    after: Some(left),
                })?;
                (self.post(&chat, text).await?, Some(to))
            }
            reply => (reply, None),
        };
        match reply {
            SendMessageReply::Accepted => Ok(SendReceipt {
                accepted: carried,
                migrated_to,
            }),
            SendMessageReply::Failed(error) => Err(error),
            SendMessageReply::Migrated(_) => Err(SendError::Retry {
                message: "the chat migrated twice".into(),
                after: None,
            }),
        }
    }

    /// Sends one request. If the Bot API asks for a pause, pauses the chat.
    async fn post(&self, chat: &TelegramChat, text: &str) -> Result<SendMessageReply, SendError> {
        let redactor = Redactor::new([&chat.token]);
        let request = self
            .client
            .post(method_url(self.base, &chat.token))
            .header(http::header::CONTENT_TYPE, "application/json")
            .timeout(self.timeout)
            .body(payload(chat, text).to_string());
        (self.check_lease)()?;
        let mut response = request
            .send()
            .await
            .map_err(|error| redactor.error(error, self.timeout, false))?;
        let status = response.status().as_u16();
        let header = response::retry_after(&response, jiff::Timestamp::now())
            .map(|after| after.min(self.max_retry_after));
        let body = response::body(&mut response).await;
        let reply = interpret(status, header, &body, &redactor);
        if let SendMessageReply::Failed(SendError::Retry {
            after: Some(after), ..
        }) = reply
        {
            self.rate_limiter.pause(&chat.key(), after);
        }
        Ok(reply)
    }
}

fn method_url(base: &reqwest::Url, token: &SecretString) -> reqwest::Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty()
            .push(&format!("bot{}", token.expose_secret()))
            .push("sendMessage");
    }
    url
}

fn payload(chat: &TelegramChat, text: &str) -> Value {
    let mut payload = json!({ "chat_id": chat.to, "text": text });
    if let Some(thread) = chat.thread {
        payload["message_thread_id"] = thread.into();
    }
    if chat.silent {
        payload["disable_notification"] = true.into();
    }
    payload
}

pub(super) enum SendMessageReply {
    Accepted,
    Migrated(i64),
    Failed(SendError),
}

/// Response of the Bot API (<https://core.telegram.org/bots/api#making-requests>).
#[derive(Default, Deserialize)]
struct BotApiResponse {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    error_code: Option<u16>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<ResponseParameters>,
}

/// <https://core.telegram.org/bots/api#responseparameters>
#[derive(Default, Deserialize)]
struct ResponseParameters {
    #[serde(default)]
    retry_after: Option<u64>,
    #[serde(default)]
    migrate_to_chat_id: Option<i64>,
}

/// Phrases of the Bot API for a missing right in the chat.
const NO_RIGHTS_PHRASES: [&str; 4] = [
    "not enough rights",
    "have no rights",
    "need administrator rights",
    "chat_write_forbidden",
];

/// Phrases of the Bot API for a closed or deleted forum topic: "Bad Request: `TOPIC_CLOSED`", "Bad Request: message
/// thread not found". People can undo both in the chat.
const TOPIC_PHRASES: [&str; 4] = [
    "topic_closed",
    "topic_deleted",
    "topic_id_invalid",
    "message thread not found",
];

pub(super) fn interpret(
    status: u16,
    header: Option<Duration>,
    body: &[u8],
    redactor: &Redactor,
) -> SendMessageReply {
    let response = serde_json::from_slice::<BotApiResponse>(body).ok();
    let quote = match response
        .as_ref()
        .and_then(|response| response.description.as_deref())
    {
        Some(description) => redactor.quote(description.as_bytes()),
        None => redactor.quote(body),
    };
    // A proxy may turn a refusal into a 200; then the code in the body counts.
    let (ok, code, parameters) = match response {
        Some(response) => {
            let code = if status == 200 {
                response.error_code.unwrap_or(status)
            } else {
                status
            };
            (response.ok, code, response.parameters.unwrap_or_default())
        }
        None => (false, status, ResponseParameters::default()),
    };
    if status == 200 && ok {
        return SendMessageReply::Accepted;
    }
    if let Some(to) = parameters.migrate_to_chat_id {
        return SendMessageReply::Migrated(to);
    }
    let refused =
        |reason, message: String| SendMessageReply::Failed(SendError::Refused { reason, message });
    let lower = quote.to_lowercase();
    match code {
        300..=399 => refused(
            Refusal::Redirected,
            format!(
                "the Bot API answered with a redirect ({code}), which the operator does not follow; correct \
                 --telegram-api-url"
            ),
        ),
        401 | 404 => refused(
            Refusal::Unauthorized,
            format!(
                "the Bot API does not know this token ({code} {quote}); put the token from BotFather into the Secret"
            ),
        ),
        403 => refused(
            Refusal::Forbidden,
            format!(
                "the bot may not write to this chat ({code} {quote}); add it to the chat, or unblock it"
            ),
        ),
        400 if lower.contains("chat not found") => refused(
            Refusal::ChatNotFound,
            format!(
                "the bot does not see this chat ({quote}); check chatId, and add the bot to the chat"
            ),
        ),
        // A 400 that affects every message until somebody grants the bot its rights in the chat.
        400 if NO_RIGHTS_PHRASES
            .iter()
            .any(|phrase| lower.contains(phrase)) =>
        {
            refused(
                Refusal::Forbidden,
                format!(
                    "the bot may not write to this chat ({code} {quote}); grant the bot the permission"
                ),
            )
        }
        400 if TOPIC_PHRASES.iter().any(|phrase| lower.contains(phrase)) => refused(
            Refusal::TopicUnavailable,
            format!(
                "this topic accepts no messages ({code} {quote}); reopen the topic, or correct messageThreadId"
            ),
        ),
        410 => refused(
            Refusal::Gone,
            format!(
                "the Bot API was removed from this URL ({code} {quote}); correct --telegram-api-url"
            ),
        ),
        429 => SendMessageReply::Failed(SendError::Retry {
            message: format!("too many requests ({code} {quote})"),
            after: parameters.retry_after.map(response::seconds).or(header),
        }),
        400 | 413 | 415 | 422 => refused(
            Refusal::Rejected,
            format!("the Bot API rejected the message ({code} {quote})"),
        ),
        400..=499 if code != 408 => refused(
            Refusal::UnexpectedStatus,
            format!(
                "the Bot API answered with an unexpected status ({code} {quote}); check --telegram-api-url"
            ),
        ),
        200 => SendMessageReply::Failed(SendError::Retry {
            message: format!(
                "the response does not come from a Bot API (200 {quote}); check --telegram-api-url"
            ),
            after: None,
        }),
        _ => SendMessageReply::Failed(SendError::Retry {
            message: format!("the Bot API failed ({code} {quote})"),
            after: parameters.retry_after.map(response::seconds).or(header),
        }),
    }
}

#[cfg(test)]
mod tests;
