//! A fake of the Telegram Bot API's `sendMessage`, as strict as the real API.
//!
//! Sources: <https://core.telegram.org/bots/api#sendmessage>, <https://core.telegram.org/bots/api#responseparameters>,
//! <https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this>.

mod error;
mod message;
mod pace;
mod params;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderValue, header};
use serde_json::json;

use self::error::BotApiError;
pub use self::message::Message;
pub use self::pace::{Limit, Pace};
use self::params::Params;
use self::rules::Rules;
pub use self::rules::{Chat, Kind};
use crate::journal::{Journal, lock};
pub use crate::serve::Reply;
use crate::serve::{Arrived, Moment, Server, serve_http};

/// A rejected request.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Arrival time of the request's first bytes.
    pub at: Instant,
    /// The bot's id, if the token is known.
    pub bot: Option<String>,
    /// `chat_id` of the request.
    pub chat_id: Option<String>,
    /// The text of the request.
    pub text: Option<String>,
    /// `error_code`; `None` if a fault gave no complete response.
    pub code: Option<u16>,
    /// `description`, or the mention of a fault.
    pub description: String,
    /// Whether the request came within the `retry_after` of an earlier response.
    pub violation: bool,
}

/// A fault in place of the correct response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Responds without evaluating the request.
    Instead(Reply),
    /// No fault: the request gets the correct response.
    Nothing,
    /// Accepts and records the message if the rules allow it, but loses the correct response.
    AnswerLost(Reply),
}

impl Fault {
    /// Responds HTTP 200 with `ok: false`.
    pub fn not_ok() -> Self {
        let body = json!({"ok": false, "error_code": 500, "description": "Internal Server Error"});
        Self::Instead(Reply::ok().json(&body))
    }

    /// Responds HTTP 200 with truncated JSON.
    pub fn bad_json() -> Self {
        let json = HeaderValue::from_static("application/json");
        Self::Instead(
            Reply::ok()
                .header(header::CONTENT_TYPE, json)
                .body(r#"{"ok":true,"result":{"#),
        )
    }
}

/// The fake Bot API server, initially without tokens and chats. Clones share the server, which stops with the last
/// clone.
#[derive(Clone)]
pub struct BotApi {
    shared: Arc<Shared>,
    server: Arc<Server>,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    faults: Mutex<Faults>,
    messages: Journal<Message>,
    rejected: Journal<Rejected>,
}

#[derive(Default)]
struct Faults {
    next: VecDeque<(usize, Fault)>,
    always: Option<Fault>,
}

impl Faults {
    fn take(&mut self) -> Option<Fault> {
        while let Some((left, fault)) = self.next.front_mut() {
            if *left > 0 {
                *left -= 1;
                return Some(fault.clone());
            }
            self.next.pop_front();
        }
        self.always.clone()
    }
}

impl BotApi {
    /// Starts on a free port of 127.0.0.1.
    pub fn start() -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let server = serve_http(None, {
            let shared = shared.clone();
            move |arrived| std::future::ready(shared.handle(&arrived))
        })?;
        Ok(Self {
            shared,
            server: Arc::new(server),
        })
    }

    /// Returns the base URL: the part before `/bot{token}/sendMessage`.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Adds a token. Every bot sees every chat.
    pub fn add_token(&self, token: &str) {
        lock(&self.shared.rules).tokens.insert(token.to_owned());
    }

    /// Removes a token, as when its owner revokes it.
    pub fn revoke_token(&self, token: &str) {
        lock(&self.shared.rules).tokens.remove(token);
    }

    /// Adds a chat, or replaces the chat with the same id.
    pub fn add_chat(&self, chat: Chat) {
        lock(&self.shared.rules).add_chat(chat);
    }

    /// Removes a chat: requests get `chat not found`.
    pub fn remove_chat(&self, id: i64) {
        lock(&self.shared.rules).chats.remove(&id);
    }

    /// Sets the rate limits, and forgets the messages counted so far.
    pub fn set_pace(&self, pace: Pace) {
        lock(&self.shared.rules).set_pace(pace);
    }

    /// Injects a fault into the next `count` requests, after those of earlier orders.
    pub fn fault_next(&self, count: usize, fault: Fault) {
        lock(&self.shared.faults).next.push_back((count, fault));
    }

    /// Injects a fault into every other request, until [`Self::heal`].
    pub fn fault_always(&self, fault: Fault) {
        lock(&self.shared.faults).always = Some(fault);
    }

    /// Removes all faults. A listener that [`Self::refuse`] closed stays closed.
    pub fn heal(&self) {
        *lock(&self.shared.faults) = Faults::default();
    }

    /// Cuts all connections and refuses new ones.
    pub async fn refuse(&self) -> anyhow::Result<()> {
        self.server.shut().await
    }

    /// Listens again on the same port.
    pub async fn accept(&self) -> anyhow::Result<()> {
        self.server.open().await
    }

    /// Returns the accepted messages.
    pub fn messages(&self) -> Vec<Arc<Message>> {
        self.shared.messages.all()
    }

    /// Returns the rejected requests.
    pub fn rejected(&self) -> Vec<Arc<Rejected>> {
        self.shared.rejected.all()
    }

    /// Returns the requests that came within the `retry_after` of an earlier response.
    pub fn violations(&self) -> Vec<Arc<Rejected>> {
        self.rejected()
            .into_iter()
            .filter(|rejected| rejected.violation)
            .collect()
    }

    /// Returns all messages once `enough` accepts them; fails after `deadline`.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Message>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<Message>>> {
        self.shared.messages.wait_for(deadline, enough).await
    }

    /// Returns all rejected requests once `enough` accepts them; fails after `deadline`.
    pub async fn wait_for_rejected(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Rejected>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<Rejected>>> {
        self.shared.rejected.wait_for(deadline, enough).await
    }

    /// Calls `listener` for each later message, before the response.
    pub fn on_message(&self, listener: impl Fn(&Message) + Send + Sync + 'static) {
        self.shared.messages.listen(listener);
    }

    /// Calls `listener` for each later rejected request, before the response.
    pub fn on_rejected(&self, listener: impl Fn(&Rejected) + Send + Sync + 'static) {
        self.shared.rejected.listen(listener);
    }
}

impl Shared {
    fn handle(&self, arrived: &Arrived) -> Reply {
        let fault = lock(&self.faults).take();
        let token = token(arrived.uri.path());
        let params = Params::read(arrived);
        let sent = Sent {
            moment: arrived.moment,
            token,
            params: params.as_ref().ok(),
        };
        if let Some(Fault::Instead(reply)) = fault {
            self.rejected.push(sent.rejected(
                reply.answered().map(|status| status.as_u16()),
                "a fault",
                false,
            ));
            return reply;
        }
        let right = self.evaluate(&sent, params.as_ref());
        if let Some(Fault::AnswerLost(reply)) = fault {
            reply
        } else {
            right
        }
    }

    fn evaluate(&self, sent: &Sent<'_>, params: Result<&Params, &BotApiError>) -> Reply {
        // The lock also covers the journal, so that its order matches the message ids.
        let mut rules = lock(&self.rules);
        let verdict = rules.evaluate(sent.token, params, sent.moment);
        match verdict {
            Ok((message, result)) => {
                self.messages.push(message);
                Reply::ok().json(&json!({"ok": true, "result": result}))
            }
            Err(error) => {
                self.rejected.push(sent.rejected(
                    Some(error.code),
                    &error.description,
                    error.violation,
                ));
                error.reply()
            }
        }
    }
}

/// Returns the token of `/bot{token}/sendMessage`, well-formed or not. Method names ignore case.
fn token(path: &str) -> Option<&str> {
    let (token, method) = path.strip_prefix("/bot")?.split_once('/')?;
    method.eq_ignore_ascii_case("sendMessage").then_some(token)
}

struct Sent<'a> {
    moment: Moment,
    token: Option<&'a str>,
    params: Option<&'a Params>,
}

impl Sent<'_> {
    fn rejected(&self, code: Option<u16>, description: &str, violation: bool) -> Rejected {
        Rejected {
            at: self.moment.instant,
            bot: self.token.map(rules::bot_id),
            chat_id: self
                .params
                .and_then(|params| params.get("chat_id"))
                .map(ToOwned::to_owned),
            text: self
                .params
                .and_then(|params| params.get("text"))
                .map(ToOwned::to_owned),
            code,
            description: description.to_owned(),
            violation,
        }
    }
}
