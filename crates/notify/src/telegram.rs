//! The Telegram Bot API: one method, `sendMessage` (<https://core.telegram.org/bots/api#sendmessage>).

use std::fmt;
use std::time::Duration;

use qm_api::contact_point::ChatId;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::answer::{self, Secrets};
use super::pace::{Chatroom, Pace};
use super::{Failure, Refusal, Sent};

/// A chat, and the bot that writes into it.
#[derive(Clone)]
pub struct Chat {
    token: SecretString,
    key: [u8; 32],
    to: ChatId,
    thread: Option<i64>,
    silent: bool,
}

/// Why a Secret's content cannot be a bot's token. Never says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Not UTF-8.
    #[error("the token is not UTF-8")]
    NotText,
    /// Whitespace around it: nearly always the newline of `echo`.
    #[error(
        "the token begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`"
    )]
    Padded,
    /// Anything else.
    #[error(
        "the token does not have the shape that BotFather gives it: digits, a colon, then letters, digits, _ and -"
    )]
    Shape,
}

impl Chat {
    /// A chat from the bytes of a Secret. Nothing is asked of the token's length: the documents' example is shorter than
    /// a real one. The alphabet keeps other Secrets, which a key may name by mistake or on purpose, from being sent.
    ///
    /// # Errors
    /// Why they are no token.
    pub fn new(
        token: &[u8],
        chat: ChatId,
        thread: Option<i64>,
        silent: bool,
    ) -> Result<Self, BadToken> {
        let token = std::str::from_utf8(token).map_err(|_| BadToken::NotText)?;
        if token.trim().len() != token.len() {
            return Err(BadToken::Padded);
        }
        let (bot, secret) = token.split_once(':').ok_or(BadToken::Shape)?;
        let digits = !bot.is_empty() && bot.bytes().all(|byte| byte.is_ascii_digit());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !digits || secret.is_empty() || !secret.bytes().all(plain) {
            return Err(BadToken::Shape);
        }
        Ok(Self {
            token: token.into(),
            key: Sha256::digest(token).into(),
            to: chat,
            thread,
            silent,
        })
    }

    /// The supergroup `to` that this chat became.
    #[must_use]
    pub fn moved(&self, to: i64) -> Self {
        Self {
            to: ChatId::Id(to),
            ..self.clone()
        }
    }

    /// What the pace of this chat is kept under.
    pub fn room(&self) -> Chatroom {
        Chatroom {
            token: self.key,
            chat: self.to.clone(),
        }
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chat")
            .field("to", &self.to)
            .field("thread", &self.thread)
            .field("silent", &self.silent)
            .finish_non_exhaustive()
    }
}

/// What a request needs besides the chat.
pub(super) struct Call<'a> {
    pub(super) client: &'a reqwest::Client,
    pub(super) base: &'a reqwest::Url,
    pub(super) timeout: Duration,
    pub(super) pace: &'a Pace,
    pub(super) held: &'a (dyn Fn() -> Result<(), Failure> + Sync),
}

impl Call<'_> {
    /// Sends `text`, which carries `taken` entries. A chat that became a supergroup is followed at once.
    pub(super) async fn send(
        &self,
        chat: &Chat,
        text: &str,
        taken: usize,
    ) -> Result<Sent, Failure> {
        let (reply, migrated_to) = match self.post(chat, text).await? {
            Reply::Moved(to) => {
                let chat = chat.moved(to);
                // To the pace it is another chat.
                self.pace.slot(&chat.room()).await;
                (self.post(&chat, text).await?, Some(to))
            }
            reply => (reply, None),
        };
        match reply {
            Reply::Done => Ok(Sent { taken, migrated_to }),
            Reply::Failed(failure) => Err(failure),
            Reply::Moved(_) => Err(Failure::Retry {
                message: "the chat moved twice".into(),
                after: None,
            }),
        }
    }

    /// One request. A chat that is to be left alone for a while is.
    async fn post(&self, chat: &Chat, text: &str) -> Result<Reply, Failure> {
        let secrets = Secrets::new([&chat.token]);
        let request = self
            .client
            .post(method_url(self.base, &chat.token))
            .header(http::header::CONTENT_TYPE, "application/json")
            .timeout(self.timeout)
            .body(payload(chat, text).to_string());
        (self.held)()?;
        let mut response = request
            .send()
            .await
            .map_err(|error| secrets.failure(error, self.timeout))?;
        let status = response.status().as_u16();
        let header = answer::retry_after(&response, jiff::Timestamp::now());
        let body = answer::body(&mut response).await;
        let reply = understand(status, header, &body, &secrets);
        if let Reply::Failed(Failure::Retry {
            after: Some(after), ..
        }) = reply
        {
            self.pace.hold(&chat.room(), after);
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

fn payload(chat: &Chat, text: &str) -> Value {
    let mut payload = json!({ "chat_id": chat.to, "text": text });
    if let Some(thread) = chat.thread {
        payload["message_thread_id"] = thread.into();
    }
    if chat.silent {
        payload["disable_notification"] = true.into();
    }
    payload
}

enum Reply {
    Done,
    Moved(i64),
    Failed(Failure),
}

/// The Bot API's answer (<https://core.telegram.org/bots/api#making-requests>).
#[derive(Default, Deserialize)]
struct Answer {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    error_code: Option<u16>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Parameters>,
}

/// <https://core.telegram.org/bots/api#responseparameters>
#[derive(Default, Deserialize)]
struct Parameters {
    #[serde(default)]
    retry_after: Option<u64>,
    #[serde(default)]
    migrate_to_chat_id: Option<i64>,
}

/// How the Bot API words it that the bot lacks a right in the chat.
const NO_RIGHTS: [&str; 4] = [
    "not enough rights",
    "have no rights",
    "need administrator rights",
    "chat_write_forbidden",
];

/// Phrases of the Bot API for a closed or deleted forum topic: "Bad Request: `TOPIC_CLOSED`", "Bad Request: message
/// thread not found". People can undo both in the chat.
const TOPIC: [&str; 4] = [
    "topic_closed",
    "topic_deleted",
    "topic_id_invalid",
    "message thread not found",
];

fn understand(status: u16, header: Option<Duration>, body: &[u8], secrets: &Secrets) -> Reply {
    let answer = serde_json::from_slice::<Answer>(body).ok();
    let said = match answer
        .as_ref()
        .and_then(|answer| answer.description.as_deref())
    {
        Some(description) => secrets.quote(description.as_bytes()),
        None => secrets.quote(body),
    };
    // A proxy may turn a refusal into a 200; the answer's own code then counts.
    let (ok, code, parameters) = match answer {
        Some(answer) => {
            let code = if status == 200 {
                answer.error_code.unwrap_or(status)
            } else {
                status
            };
            (answer.ok, code, answer.parameters.unwrap_or_default())
        }
        None => (false, status, Parameters::default()),
    };
    if status == 200 && ok {
        return Reply::Done;
    }
    if let Some(to) = parameters.migrate_to_chat_id {
        return Reply::Moved(to);
    }
    let refused = |reason, message: String| Reply::Failed(Failure::Refused { reason, message });
    let lower = said.to_lowercase();
    match code {
        300..=399 => refused(
            Refusal::Redirected,
            format!(
                "the Bot API answered with a redirect ({code}), which is not followed; see --telegram-api-url"
            ),
        ),
        401 | 404 => refused(
            Refusal::Unauthorized,
            format!(
                "the Bot API does not know this token ({code} {said}); put the one that BotFather gave into the Secret"
            ),
        ),
        403 => refused(
            Refusal::Forbidden,
            format!(
                "the bot may not write to this chat ({code} {said}); add it to the chat, or unblock it"
            ),
        ),
        400 if lower.contains("chat not found") => refused(
            Refusal::ChatNotFound,
            format!(
                "the bot does not see this chat ({said}); check chatId, and add the bot to the chat"
            ),
        ),
        // A 400, but it would meet every message until somebody gives the bot its rights.
        400 if NO_RIGHTS.iter().any(|words| lower.contains(words)) => refused(
            Refusal::Forbidden,
            format!("the bot may not write to this chat ({code} {said}); give it the right to"),
        ),
        400 if TOPIC.iter().any(|words| lower.contains(words)) => refused(
            Refusal::TopicUnavailable,
            format!(
                "this topic takes no messages ({code} {said}); open it again, or correct messageThreadId"
            ),
        ),
        410 => refused(
            Refusal::Gone,
            format!("the Bot API is no longer there ({code} {said}); see --telegram-api-url"),
        ),
        429 => Reply::Failed(Failure::Retry {
            message: format!("too many requests ({code} {said})"),
            after: parameters.retry_after.map(answer::seconds).or(header),
        }),
        400 | 413 | 415 | 422 => refused(
            Refusal::Rejected,
            format!("the Bot API rejected the message ({code} {said})"),
        ),
        400..=499 if code != 408 => refused(
            Refusal::UnexpectedStatus,
            format!(
                "the Bot API answered with an unexpected status ({code} {said}); see --telegram-api-url"
            ),
        ),
        200 => Reply::Failed(Failure::Retry {
            message: format!("no answer of a Bot API (200 {said})"),
            after: None,
        }),
        _ => Reply::Failed(Failure::Retry {
            message: format!("the Bot API is in trouble ({code} {said})"),
            after: parameters.retry_after.map(answer::seconds).or(header),
        }),
    }
}

#[cfg(test)]
mod tests;
