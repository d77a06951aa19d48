//! Telegram's documented pace (<https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this>), kept
//! per token for all contact points that use it. Webhooks have none.
//!
//! The limits hold in any sliding window, which a token bucket does not give (a full bucket, emptied at the end of one
//! minute, refills in the next): so the times of the last requests are kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use qm_api::contact_point::ChatId;
use tokio::time::Instant;

use super::LONGEST_PAUSE;

/// So many requests in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many requests.
    pub requests: usize,
    /// In which time.
    pub window: Duration,
}

/// The limits of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of one chat.
    pub chat: Limit,
    /// Of one group, besides.
    pub group: Limit,
    /// Of all chats together.
    pub token: Limit,
}

impl Default for Limits {
    /// The documented numbers. The windows are a twentieth longer (a minute's: a second): Telegram counts when requests
    /// arrive, and the way there is not always equally long.
    fn default() -> Self {
        Self {
            chat: Limit {
                requests: 1,
                window: Duration::from_millis(1050),
            },
            group: Limit {
                requests: 20,
                window: Duration::from_secs(61),
            },
            token: Limit {
                requests: 30,
                window: Duration::from_millis(1050),
            },
        }
    }
}

/// A chat as one bot sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chatroom {
    /// Digest of the token.
    pub token: [u8; 32],
    /// The chat.
    pub chat: ChatId,
}

impl Chatroom {
    /// Groups and supergroups have negative numbers.
    fn is_group(&self) -> bool {
        matches!(self.chat, ChatId::Id(id) if id < 0)
    }
}

/// When the next request may go.
#[derive(Debug, Default)]
pub struct Log {
    limits: Limits,
    chats: HashMap<Chatroom, Chat>,
    tokens: HashMap<[u8; 32], VecDeque<Instant>>,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
struct Chat {
    sent: VecDeque<Instant>,
    held_until: Option<Instant>,
}

impl Log {
    /// An empty log.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// The earliest instant, `now` or later, at which a request to `room` keeps to all limits.
    pub fn next_slot(&self, room: &Chatroom, now: Instant) -> Instant {
        let mut at = now;
        if let Some(chat) = self.chats.get(room) {
            at = at
                .max(free(&chat.sent, self.limits.chat, now))
                .max(chat.held_until.unwrap_or(now));
            if room.is_group() {
                at = at.max(free(&chat.sent, self.limits.group, now));
            }
        }
        match self.tokens.get(&room.token) {
            Some(sent) => at.max(free(sent, self.limits.token, now)),
            None => at,
        }
    }

    /// Notes a request to `room` at `now`.
    pub fn take(&mut self, room: &Chatroom, now: Instant) {
        self.sweep(now);
        let Limits { chat, group, token } = self.limits;
        let kept = if room.is_group() {
            chat.requests.max(group.requests)
        } else {
            chat.requests
        };
        push(
            &mut self.chats.entry(room.clone()).or_default().sent,
            now,
            kept,
        );
        push(
            self.tokens.entry(room.token).or_default(),
            now,
            token.requests,
        );
    }

    /// Telegram asked for `room` to be left alone until then.
    pub fn hold(&mut self, room: &Chatroom, until: Instant) {
        let held = &mut self.chats.entry(room.clone()).or_default().held_until;
        *held = (*held).max(Some(until));
    }

    /// Forgets what no longer matters, once a window.
    fn sweep(&mut self, now: Instant) {
        let Limits { chat, group, token } = self.limits;
        let longest = chat.window.max(group.window).max(token.window);
        if self.swept.is_some_and(|swept| now < swept + longest) {
            return;
        }
        self.swept = Some(now);
        let old = |sent: &VecDeque<Instant>| sent.back().is_none_or(|last| *last + longest <= now);
        self.chats
            .retain(|_, chat| !old(&chat.sent) || chat.held_until.is_some_and(|until| until > now));
        self.tokens.retain(|_, sent| !old(sent));
    }
}

/// When one more request keeps to `limit`, after those in `sent`.
fn free(sent: &VecDeque<Instant>, limit: Limit, now: Instant) -> Instant {
    match sent
        .len()
        .checked_sub(limit.requests)
        .and_then(|index| sent.get(index))
    {
        Some(earlier) => *earlier + limit.window,
        None => now,
    }
}

fn push(sent: &mut VecDeque<Instant>, now: Instant, kept: usize) {
    sent.push_back(now);
    while sent.len() > kept {
        sent.pop_front();
    }
}

/// The pace of all tokens.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Log>);

impl Pace {
    /// Nothing sent yet.
    pub fn new(limits: Limits) -> Self {
        Self(Mutex::new(Log::new(limits)))
    }

    /// Waits until one request to `room` may go, and notes it. Cancelling it notes nothing.
    pub async fn slot(&self, room: &Chatroom) {
        loop {
            let at = {
                let mut log = self.lock();
                let now = Instant::now();
                let at = log.next_slot(room, now);
                if at <= now {
                    return log.take(room, now);
                }
                at
            };
            tokio::time::sleep_until(at).await;
        }
    }

    /// Leaves `room` alone for so long.
    pub fn hold(&self, room: &Chatroom, after: Duration) {
        self.lock()
            .hold(room, Instant::now() + after.min(LONGEST_PAUSE));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn room(token: u8, chat: i64) -> Chatroom {
        Chatroom {
            token: [token; 32],
            chat: ChatId::Id(chat),
        }
    }

    const LIMITS: Limits = Limits {
        chat: Limit {
            requests: 1,
            window: Duration::from_secs(1),
        },
        group: Limit {
            requests: 20,
            window: Duration::from_mins(1),
        },
        token: Limit {
            requests: 30,
            window: Duration::from_secs(1),
        },
    };

    /// Sends as fast as the log allows, in turn to each of `rooms`; gives the times since the start.
    fn flood(rooms: &[Chatroom], requests: usize) -> Vec<Duration> {
        let (mut log, start) = (Log::new(LIMITS), Instant::now());
        let mut now = start;
        (0..requests)
            .map(|index| {
                let room = &rooms[index % rooms.len()];
                now = log.next_slot(room, now);
                log.take(room, now);
                now - start
            })
            .collect()
    }

    fn most_in_any(window: Duration, times: &[Duration]) -> usize {
        times
            .iter()
            .map(|from| {
                times
                    .iter()
                    .filter(|at| **at >= *from && **at < *from + window)
                    .count()
            })
            .max()
            .unwrap()
    }

    #[test]
    fn one_a_second_in_a_chat() {
        let times = flood(&[room(1, 7)], 100);
        assert_eq!(most_in_any(Duration::from_secs(1), &times), 1);
        assert_eq!(*times.last().unwrap(), Duration::from_secs(99));
    }

    #[test]
    fn twenty_a_minute_in_a_group() {
        let times = flood(&[room(1, -7)], 100);
        assert_eq!(most_in_any(Duration::from_mins(1), &times), 20);
        assert_eq!(*times.last().unwrap(), Duration::from_secs(4 * 60 + 19));
    }

    #[test]
    fn thirty_a_second_in_all_of_one_token() {
        let rooms: Vec<_> = (1..=100).map(|chat| room(1, chat)).collect();
        assert_eq!(most_in_any(Duration::from_secs(1), &flood(&rooms, 300)), 30);
        // Another token has a pace of its own.
        let (mut log, now) = (Log::new(LIMITS), Instant::now());
        rooms[..30].iter().for_each(|room| log.take(room, now));
        assert_eq!(
            log.next_slot(&room(1, 200), now),
            now + Duration::from_secs(1)
        );
        assert_eq!(log.next_slot(&room(2, 200), now), now);
    }

    #[test]
    fn the_default_is_no_faster_than_documented() {
        let Limits { chat, group, token } = Limits::default();
        assert!(chat.requests == 1 && chat.window >= Duration::from_secs(1));
        assert!(group.requests == 20 && group.window >= Duration::from_mins(1));
        assert!(token.requests == 30 && token.window >= Duration::from_secs(1));
    }

    #[test]
    fn retry_after_holds_that_chat_of_that_token() {
        let (mut log, now) = (Log::new(LIMITS), Instant::now());
        let until = now + Duration::from_hours(1);
        log.hold(&room(1, 7), until);
        log.hold(&room(1, 7), now + Duration::from_secs(5));
        assert_eq!(log.next_slot(&room(1, 7), now), until);
        assert_eq!(log.next_slot(&room(1, 8), now), now);
        assert_eq!(log.next_slot(&room(2, 7), now), now);
        // It is not forgotten while it lasts, and is afterwards.
        log.take(&room(1, 8), now + Duration::from_secs(100));
        assert_eq!(
            log.next_slot(&room(1, 7), now + Duration::from_secs(101)),
            until
        );
    }

    #[test]
    fn idle_chats_are_forgotten() {
        let (mut log, now) = (Log::new(LIMITS), Instant::now());
        for chat in 0..10_000 {
            log.take(&room(u8::try_from(chat % 256).unwrap(), chat), now);
        }
        log.take(&room(1, 7), now + Duration::from_secs(61));
        assert_eq!((log.chats.len(), log.tokens.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn contact_points_with_one_token_share_its_pace() {
        let pace = Arc::new(Pace::new(LIMITS));
        let start = Instant::now();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let pace = Arc::clone(&pace);
                tokio::spawn(async move {
                    pace.slot(&room(1, 7)).await;
                    start.elapsed()
                })
            })
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.unwrap());
        }
        times.sort();
        assert_eq!(most_in_any(Duration::from_secs(1), &times), 1);
        assert!(times[4] < Duration::from_millis(4100), "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_of_any_length_is_one() {
        let pace = Pace::new(LIMITS);
        pace.hold(&room(1, 7), Duration::from_secs(u64::MAX));
        assert!(
            tokio::time::timeout(Duration::from_hours(24), pace.slot(&room(1, 7)))
                .await
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_window_ever_holds_too_many(steps in prop::collection::vec((0..40_i64, 0..1500_u64), 1..200)) {
            let (mut log, start) = (Log::new(LIMITS), Instant::now());
            let mut now = start;
            let mut sent: Vec<(i64, Duration)> = Vec::new();
            for (chat, pause) in steps {
                let room = room(1, chat - 20);
                now = log.next_slot(&room, now + Duration::from_millis(pause));
                log.take(&room, now);
                sent.push((chat - 20, now - start));
            }
            let all: Vec<_> = sent.iter().map(|(_, at)| *at).collect();
            prop_assert!(most_in_any(LIMITS.token.window, &all) <= 30);
            for chat in -20..20 {
                let times: Vec<_> = sent.iter().filter(|(to, _)| *to == chat).map(|(_, at)| *at).collect();
                if !times.is_empty() {
                    prop_assert!(most_in_any(LIMITS.chat.window, &times) <= 1);
                    prop_assert!(chat >= 0 || most_in_any(LIMITS.group.window, &times) <= 20);
                }
            }
        }
    }
}
