//! Rate limits of the Bot API, counted in sliding windows.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A limit of messages in any `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Number of messages.
    pub count: usize,
    /// Length of the window.
    pub window: Duration,
}

/// Rate limits of each token, by default the documented ones; tests shorten the windows. The `retry_after` of a
/// rejection is in whole seconds at any rate, at least 1, as in the real protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Limit of each chat: 1 a second.
    pub chat: Limit,
    /// Further limit of each group and supergroup: 20 a minute.
    pub group: Limit,
    /// Limit of all chats together: 30 a second.
    pub overall: Limit,
    /// Time by which a message may come early, because a sender's clock starts when it sends, not when the message
    /// arrives.
    pub tolerance: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            chat: Limit {
                count: 1,
                window: Duration::from_secs(1),
            },
            group: Limit {
                count: 20,
                window: Duration::from_mins(1),
            },
            overall: Limit {
                count: 30,
                window: Duration::from_secs(1),
            },
            tolerance: Duration::from_millis(20),
        }
    }
}

impl Pace {
    /// Returns no limits.
    pub fn unlimited() -> Self {
        let none = Limit {
            count: usize::MAX,
            window: Duration::ZERO,
        };
        Self {
            chat: none,
            group: none,
            overall: none,
            tolerance: Duration::ZERO,
        }
    }
}

/// Counted messages of one chat of one token, or of all chats of one token.
#[derive(Default)]
struct Meter {
    /// Arrival times of accepted messages, oldest first.
    accepted: VecDeque<Instant>,
    /// End of the latest `retry_after`.
    wait_until: Option<Instant>,
}

impl Meter {
    /// Returns when the window has room again, if it has none now. `accepted` must hold at least as many messages as
    /// the limit counts.
    fn full_until(&self, limit: Limit, tolerance: Duration, now: Instant) -> Option<Instant> {
        let oldest = self.accepted.len().checked_sub(limit.count)?;
        let room = *self.accepted.get(oldest)? + limit.window.saturating_sub(tolerance);
        (room > now).then_some(room)
    }
}

/// Time to wait in whole seconds, and whether the sender ignored an earlier wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany {
    pub(super) retry_after: u64,
    pub(super) violation: bool,
}

#[derive(Default)]
pub(super) struct Meters {
    pace: Pace,
    chats: HashMap<(String, i64), Meter>,
    tokens: HashMap<String, Meter>,
}

impl Meters {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            ..Self::default()
        }
    }

    /// Rejects a message within the `retry_after` of an earlier response.
    pub(super) fn check_retry_after(
        &mut self,
        token: &str,
        chat: i64,
        now: Instant,
    ) -> Result<(), TooMany> {
        let chat = self
            .chats
            .entry((token.to_owned(), chat))
            .or_default()
            .wait_until;
        let overall = self.tokens.entry(token.to_owned()).or_default().wait_until;
        // The sender starts to count the seconds later than this server, so no tolerance applies.
        match chat.max(overall) {
            Some(until) if until > now => Err(TooMany {
                retry_after: seconds(until - now),
                violation: true,
            }),
            _ => Ok(()),
        }
    }

    /// Counts one message, or returns how long there is no room.
    pub(super) fn count(
        &mut self,
        token: &str,
        chat: i64,
        group: bool,
        now: Instant,
    ) -> Result<(), TooMany> {
        let Pace {
            chat: per_chat,
            group: per_group,
            overall: all,
            tolerance,
        } = self.pace;
        let in_chat = self.chats.entry((token.to_owned(), chat)).or_default();
        let overall = self.tokens.entry(token.to_owned()).or_default();
        let chat_full = in_chat.full_until(per_chat, tolerance, now);
        let group_full = if group {
            in_chat.full_until(per_group, tolerance, now)
        } else {
            None
        };
        let of_chat = chat_full.max(group_full);
        let of_all = overall.full_until(all, tolerance, now);
        if let Some(until) = of_chat.max(of_all) {
            let retry_after = seconds(until - now);
            let wait_until = Some(now + Duration::from_secs(retry_after));
            if of_chat.is_some() {
                in_chat.wait_until = wait_until;
            }
            if of_all.is_some() {
                overall.wait_until = wait_until;
            }
            return Err(TooMany {
                retry_after,
                violation: false,
            });
        }
        for (meter, keep) in [
            (in_chat, per_chat.window.max(per_group.window)),
            (overall, all.window),
        ] {
            while meter
                .accepted
                .front()
                .is_some_and(|first| now.saturating_duration_since(*first) > keep)
            {
                meter.accepted.pop_front();
            }
            meter.accepted.push_back(now);
        }
        Ok(())
    }
}

fn seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}
