//! The Bot API's checks, in their order.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::error::BotApiError;
use super::message::Message;
use super::pace::{Meters, Pace};
use super::params::Params;
use crate::serve::Moment;

/// Type of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A private chat with a person; the id is positive.
    Private,
    /// A basic group; the id is negative.
    Group,
    /// A supergroup; the id is -100 followed by digits.
    Supergroup,
    /// A channel; the id looks like a supergroup's, and the channel may have a name.
    Channel,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Group => "group",
            Self::Supergroup => "supergroup",
            Self::Channel => "channel",
        }
    }

    fn is_group(self) -> bool {
        matches!(self, Self::Group | Self::Supergroup)
    }
}

/// A chat that bots can write to.
#[derive(Clone, Debug)]
pub struct Chat {
    id: i64,
    kind: Kind,
    /// Username without the `@`, in lower case.
    username: Option<String>,
    topics: BTreeSet<i64>,
    closed_topics: BTreeSet<i64>,
    closed: bool,
    upgraded_to: Option<i64>,
}

impl Chat {
    /// Returns a chat of this kind, open to bots. The id must have the format of the kind.
    pub fn new(kind: Kind, id: i64) -> anyhow::Result<Self> {
        let long = id.to_string().starts_with("-100") && id <= -1_000_000_000_000;
        let fits = match kind {
            Kind::Private => id > 0,
            Kind::Group => id < 0 && !long,
            Kind::Supergroup | Kind::Channel => long,
        };
        anyhow::ensure!(fits, "{id} is no id of a {}", kind.name());
        Ok(Self {
            id,
            kind,
            username: None,
            topics: BTreeSet::new(),
            closed_topics: BTreeSet::new(),
            closed: false,
            upgraded_to: None,
        })
    }

    /// Sets the public name: `@name`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            username: Some(name.trim_start_matches('@').to_ascii_lowercase()),
            ..self
        }
    }

    /// Adds a topic: an existing `message_thread_id`.
    #[must_use]
    pub fn with_topic(mut self, message_thread_id: i64) -> Self {
        self.topics.insert(message_thread_id);
        self
    }

    /// Adds a topic that an administrator closed.
    #[must_use]
    pub fn with_closed_topic(mut self, message_thread_id: i64) -> Self {
        self.closed_topics.insert(message_thread_id);
        self.with_topic(message_thread_id)
    }

    /// Closes the chat: the person blocked the bot, or the group or channel removed it.
    #[must_use]
    pub fn closed(self) -> Self {
        Self {
            closed: true,
            ..self
        }
    }

    /// Upgrades the group to the supergroup with this id.
    #[must_use]
    pub fn upgraded_to(self, id: i64) -> Self {
        Self {
            upgraded_to: Some(id),
            ..self
        }
    }

    fn forbidden(&self) -> &'static str {
        match self.kind {
            Kind::Private => "Forbidden: bot was blocked by the user",
            Kind::Group => "Forbidden: bot was kicked from the group chat",
            Kind::Supergroup => "Forbidden: bot was kicked from the supergroup chat",
            Kind::Channel => "Forbidden: bot is not a member of the channel chat",
        }
    }

    fn shown(&self) -> Value {
        let mut shown = json!({"id": self.id, "type": self.kind.name()});
        let name = if self.kind == Kind::Private {
            "first_name"
        } else {
            "title"
        };
        shown[name] = json!("testbed");
        if let Some(username) = &self.username {
            shown["username"] = json!(username);
        }
        shown
    }
}

#[derive(Default)]
pub(super) struct Rules {
    pub(super) tokens: HashSet<String>,
    pub(super) chats: HashMap<i64, Chat>,
    meters: Meters,
    last_ids: HashMap<i64, i64>,
}

/// Longest text, in UTF-16 code units.
const MAX_TEXT_UNITS: usize = 4096;

impl Rules {
    pub(super) fn add_chat(&mut self, chat: Chat) {
        self.chats.insert(chat.id, chat);
    }

    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.meters = Meters::new(pace);
    }

    /// Returns the accepted message and the `result` of the response, or the rejection.
    pub(super) fn evaluate(
        &mut self,
        token: Option<&str>,
        params: Result<&Params, &BotApiError>,
        moment: Moment,
    ) -> Result<(Message, Value), BotApiError> {
        let token = token
            .filter(|token| well_formed(token))
            .ok_or_else(|| BotApiError::new(404, "Not Found"))?;
        if !self.tokens.contains(token) {
            return Err(BotApiError::new(401, "Unauthorized"));
        }
        let params =
            params.map_err(|error| BotApiError::new(error.code, error.description.clone()))?;
        let text = params.get("text").unwrap_or_default();
        if text.trim().is_empty() {
            return Err(BotApiError::bad_request("message text is empty"));
        }
        let thread = thread(params)?;
        let chat = self.chat(params.get("chat_id"))?;
        self.meters
            .check_retry_after(token, chat.id, moment.instant)?;
        if let Some(id) = chat.upgraded_to {
            let error = BotApiError::bad_request("group chat was upgraded to a supergroup chat");
            return Err(BotApiError {
                migrate_to_chat_id: Some(id),
                ..error
            });
        }
        if chat.closed {
            return Err(BotApiError::new(403, chat.forbidden()));
        }
        if thread.is_some_and(|thread| !chat.topics.contains(&thread)) {
            return Err(BotApiError::bad_request("message thread not found"));
        }
        if thread.is_some_and(|thread| chat.closed_topics.contains(&thread)) {
            return Err(BotApiError::bad_request("TOPIC_CLOSED"));
        }
        if text.encode_utf16().count() > MAX_TEXT_UNITS {
            return Err(BotApiError::bad_request("message is too long"));
        }
        self.meters
            .count(token, chat.id, chat.kind.is_group(), moment.instant)?;
        let last = self.last_ids.entry(chat.id).or_default();
        *last += 1;
        let message = Message {
            at: moment.instant,
            time: moment.time,
            bot: bot_id(token),
            chat_id: chat.id,
            message_thread_id: thread,
            disable_notification: params.flag("disable_notification"),
            parse_mode: params.get("parse_mode").map(ToOwned::to_owned),
            message_id: *last,
            text: text.to_owned(),
        };
        let result = shown(&message, &chat);
        Ok((message, result))
    }

    fn chat(&self, given: Option<&str>) -> Result<Chat, BotApiError> {
        let given = given.unwrap_or_default();
        if given.is_empty() {
            return Err(BotApiError::bad_request("chat_id is empty"));
        }
        let found = match given.strip_prefix('@') {
            Some(name) => {
                let name = name.to_ascii_lowercase();
                self.chats.values().find(|chat| {
                    chat.kind != Kind::Private && chat.username.as_ref() == Some(&name)
                })
            }
            None => given.parse().ok().and_then(|id: i64| self.chats.get(&id)),
        };
        found
            .cloned()
            .ok_or_else(|| BotApiError::bad_request("chat not found"))
    }
}

fn thread(params: &Params) -> Result<Option<i64>, BotApiError> {
    let Some(given) = params
        .get("message_thread_id")
        .filter(|given| !given.is_empty())
    else {
        return Ok(None);
    };
    match given.parse() {
        Ok(0) => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(BotApiError::bad_request(
            "invalid message thread identifier specified",
        )),
    }
}

/// Returns whether the token is `digits:characters`; for any other token the path is not found.
fn well_formed(token: &str) -> bool {
    let Some((id, secret)) = token.split_once(':') else {
        return false;
    };
    let is_word = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    !id.is_empty()
        && id.bytes().all(|byte| byte.is_ascii_digit())
        && !secret.is_empty()
        && is_word(secret)
}

/// Returns the public part of a token.
pub(super) fn bot_id(token: &str) -> String {
    token
        .split_once(':')
        .map(|(id, _)| id)
        .filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()))
        .unwrap_or("?")
        .to_owned()
}

/// Returns the Message object of the response: <https://core.telegram.org/bots/api#message>.
fn shown(message: &Message, chat: &Chat) -> Value {
    let date = message
        .time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let mut shown = json!({
        "message_id": message.message_id,
        "chat": chat.shown(),
        "date": date,
        // The real API trims white space at both ends.
        "text": message.text.trim(),
    });
    if chat.kind == Kind::Channel {
        shown["sender_chat"] = chat.shown();
    } else {
        let id: i64 = message.bot.parse().unwrap_or_default();
        shown["from"] =
            json!({"id": id, "is_bot": true, "first_name": "testbed", "username": "testbed_bot"});
    }
    if let Some(thread) = message.message_thread_id {
        shown["message_thread_id"] = json!(thread);
        shown["is_topic_message"] = json!(true);
    }
    shown
}
