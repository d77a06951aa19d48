//! Choice of a receiver's next reply.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode, header};

use super::Reply;

/// Rate limit of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Number of requests in any second; further requests get 429 with `Retry-After`.
    PerSecond(usize),
    /// Duration of each request, one at a time.
    OneAtATime(Duration),
}

pub(super) struct Script {
    pub(super) always: Reply,
    pub(super) next: VecDeque<(usize, Reply)>,
    pub(super) paths: HashMap<String, Reply>,
    pub(super) texts: Vec<(String, Reply)>,
    pace: Option<Pace>,
    /// Arrival times of the last second's requests.
    accepted: VecDeque<Instant>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            always: Reply::ok(),
            next: VecDeque::new(),
            paths: HashMap::new(),
            texts: Vec::new(),
            pace: None,
            accepted: VecDeque::new(),
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

impl Script {
    pub(super) fn set_pace(&mut self, pace: Option<Pace>) {
        self.pace = pace;
        self.accepted.clear();
    }

    /// Returns the reply to a request to `path` with this body that arrived at `now`, and the duration of its turn
    /// where replies take turns.
    pub(super) fn decide(
        &mut self,
        path: &str,
        body: &[u8],
        now: Instant,
    ) -> (Reply, Option<Duration>) {
        match self.pace {
            Some(Pace::PerSecond(limit)) => match self.too_many(limit, now) {
                Some(refusal) => (refusal, None),
                None => (self.reply(path, body), None),
            },
            Some(Pace::OneAtATime(takes)) => (self.reply(path, body), Some(takes)),
            None => (self.reply(path, body), None),
        }
    }

    fn too_many(&mut self, limit: usize, now: Instant) -> Option<Reply> {
        while self
            .accepted
            .front()
            .is_some_and(|first| now.saturating_duration_since(*first) >= SECOND)
        {
            self.accepted.pop_front();
        }
        if self.accepted.len() < limit {
            self.accepted.push_back(now);
            return None;
        }
        Some(
            Reply::status(StatusCode::TOO_MANY_REQUESTS)
                .header(header::RETRY_AFTER, HeaderValue::from_static("1")),
        )
    }

    fn reply(&mut self, path: &str, body: &[u8]) -> Reply {
        while let Some((left, reply)) = self.next.front_mut() {
            if *left > 0 {
                *left -= 1;
                return reply.clone();
            }
            self.next.pop_front();
        }
        let body = String::from_utf8_lossy(body);
        if let Some((_, reply)) = self.texts.iter().find(|(text, _)| body.contains(text)) {
            return reply.clone();
        }
        self.paths.get(path).unwrap_or(&self.always).clone()
    }
}
