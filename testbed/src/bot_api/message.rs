//! A message.

use std::time::{Instant, SystemTime};

/// An accepted message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Arrival time of the request's first bytes.
    pub at: Instant,
    /// Arrival time on the wall clock.
    pub time: SystemTime,
    /// The bot's id: the digits of its token.
    pub bot: String,
    /// The chat's id, also if the request named a channel.
    pub chat_id: i64,
    /// The topic in the chat, if given.
    pub message_thread_id: Option<i64>,
    /// `disable_notification`.
    pub disable_notification: bool,
    /// `parse_mode`, if given; recorded but not applied.
    pub parse_mode: Option<String>,
    /// The id in the response: 1, 2, 3 ... in each chat.
    pub message_id: i64,
    /// The text of the request.
    pub text: String,
}
