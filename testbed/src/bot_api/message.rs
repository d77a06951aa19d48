//! A message.

use std::time::{Instant, SystemTime};

/// A message that was taken.
#[derive(Clone, Debug)]
pub struct Message {
    /// When the first bytes of its request were read.
    pub at: Instant,
    /// The same instant on the wall clock.
    pub time: SystemTime,
    /// The bot's id: the digits of its token.
    pub bot: String,
    /// The chat's id, also where the request named a channel.
    pub chat_id: i64,
    /// The topic in the chat, if one was named.
    pub message_thread_id: Option<i64>,
    /// `disable_notification`.
    pub disable_notification: bool,
    /// `parse_mode`, if one was given. It is recorded, not obeyed.
    pub parse_mode: Option<String>,
    /// The id that the answer gave it: 1, 2, 3 ... in each chat.
    pub message_id: i64,
    /// The text as it was sent.
    pub text: String,
}
