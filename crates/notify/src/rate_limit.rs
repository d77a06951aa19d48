//! Telegram's documented rate limits
//! (<https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this>), applied per token for all
//! contact points that use it. Webhooks have no rate limits.
//!
//! The limits apply to every sliding window, so the log keeps the times of the last requests: a token bucket, emptied
//! at the end of one minute, would refill in the next.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use qm_api::contact_point::ChatId;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

use super::semaphores::semaphore_of;

/// Longest pause that is safe to add to an instant: a hundred years. `SenderConfig::max_retry_after` limits the pause
/// that the header `Retry-After` may ask for.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_hours(100 * 365 * 24);

/// Maximum number of requests in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimit {
    pub requests: usize,
    pub window: Duration,
}

/// Limits of one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelegramLimits {
    /// Limit of each chat.
    pub chat: WindowLimit,
    /// Further limit of each group.
    pub group: WindowLimit,
    /// Limit of all chats together.
    pub token: WindowLimit,
}

impl Default for TelegramLimits {
    /// Returns the documented numbers. A window of a second is 50 ms longer, and a window of a minute 1 s, because
    /// Telegram counts requests when they arrive and the network delay varies.
    fn default() -> Self {
        Self {
            chat: WindowLimit {
                requests: 1,
                window: Duration::from_millis(1050),
            },
            group: WindowLimit {
                requests: 20,
                window: Duration::from_secs(61),
            },
            token: WindowLimit {
                requests: 30,
                window: Duration::from_millis(1050),
            },
        }
    }
}

/// Key of a chat of one bot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChatKey {
    /// SHA-256 of the token.
    pub token: [u8; 32],
    pub chat: ChatId,
}

impl ChatKey {
    /// Returns whether the chat is a group or supergroup, which have negative numbers.
    fn is_group(&self) -> bool {
        matches!(self.chat, ChatId::Id(id) if id < 0)
    }
}

/// Log of the last requests of all tokens and chats.
#[derive(Debug, Default)]
pub(crate) struct TokenLog {
    limits: TelegramLimits,
    chats: HashMap<ChatKey, ChatLog>,
    tokens: HashMap<[u8; 32], VecDeque<Instant>>,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
struct ChatLog {
    sent: VecDeque<Instant>,
    paused_until: Option<Instant>,
}

impl TokenLog {
    /// Creates an empty log.
    pub fn new(limits: TelegramLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Returns the earliest instant, `now` or later, at which a request to `key` respects all limits.
    pub(crate) fn next_allowed(&self, key: &ChatKey, now: Instant) -> Instant {
        self.allowed_by_chat(key, now)
            .max(self.allowed_by_token(key, now))
    }

    /// Returns the rest of the pause that Telegram asked for.
    fn pause_left(&self, key: &ChatKey, now: Instant) -> Option<Duration> {
        let left = self
            .chats
            .get(key)?
            .paused_until?
            .saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Returns the earliest instant, `now` or later, at which a request to `key` respects the limits of its chat.
    fn allowed_by_chat(&self, key: &ChatKey, now: Instant) -> Instant {
        let mut at = now;
        if let Some(chat) = self.chats.get(key) {
            at = at
                .max(allowed_at(&chat.sent, self.limits.chat, now))
                .max(chat.paused_until.unwrap_or(now));
            if key.is_group() {
                at = at.max(allowed_at(&chat.sent, self.limits.group, now));
            }
        }
        at
    }

    /// Returns the earliest instant, `now` or later, at which a request to `key` respects the limit of its token.
    fn allowed_by_token(&self, key: &ChatKey, now: Instant) -> Instant {
        self.tokens.get(&key.token).map_or(now, |sent| {
            allowed_at(sent, self.limits.token, now).max(now)
        })
    }

    /// Records a request to `key` at `now`.
    pub fn record(&mut self, key: &ChatKey, now: Instant) {
        self.sweep(now);
        let TelegramLimits { chat, group, token } = self.limits;
        let kept = if key.is_group() {
            chat.requests.max(group.requests)
        } else {
            chat.requests
        };
        push(
            &mut self.chats.entry(key.clone()).or_default().sent,
            now,
            kept,
        );
        push(
            self.tokens.entry(key.token).or_default(),
            now,
            token.requests,
        );
    }

    /// Allows no request to `key` before `until`, because Telegram asked for a pause.
    pub fn pause(&mut self, key: &ChatKey, until: Instant) {
        let paused_until = &mut self.chats.entry(key.clone()).or_default().paused_until;
        *paused_until = (*paused_until).max(Some(until));
    }

    /// Removes expired records, once per window.
    fn sweep(&mut self, now: Instant) {
        let TelegramLimits { chat, group, token } = self.limits;
        let longest = chat.window.max(group.window).max(token.window);
        if self.swept.is_some_and(|swept| now < swept + longest) {
            return;
        }
        self.swept = Some(now);
        let old = |sent: &VecDeque<Instant>| sent.back().is_none_or(|last| *last + longest <= now);
        self.chats.retain(|_, chat| {
            !old(&chat.sent) || chat.paused_until.is_some_and(|until| until > now)
        });
        self.tokens.retain(|_, sent| !old(sent));
    }
}

/// Returns the earliest instant at which one more request after those in `sent` respects `limit`.
fn allowed_at(sent: &VecDeque<Instant>, limit: WindowLimit, now: Instant) -> Instant {
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

/// A token, and a namespace whose requests use it; `None` for the requests of all namespaces.
type TurnKey = ([u8; 32], Option<String>);

/// Rate limiter of all tokens.
#[derive(Debug)]
pub(crate) struct TelegramRateLimiter {
    log: Mutex<TokenLog>,
    /// Semaphores of one permit, each for the next request.
    turns: Mutex<HashMap<TurnKey, Weak<Semaphore>>>,
}

impl TelegramRateLimiter {
    /// Creates a rate limiter without any request.
    pub fn new(limits: TelegramLimits) -> Self {
        Self {
            log: Mutex::new(TokenLog::new(limits)),
            turns: Mutex::default(),
        }
    }

    /// Waits until the limits allow one request of `namespace` to `key`, and records that request. The namespaces whose
    /// requests wait for the limit of a token take turns. A cancelled wait records nothing.
    pub async fn acquire(&self, key: &ChatKey, namespace: &str) {
        while let Err(left) = self.acquire_unless_paused(key, namespace).await {
            sleep(left).await;
        }
    }

    /// Like [`acquire`](Self::acquire), but waits for no pause that Telegram asked for, which may take hours: returns
    /// the rest of it.
    pub async fn acquire_unless_paused(
        &self,
        key: &ChatKey,
        namespace: &str,
    ) -> Result<(), Duration> {
        loop {
            let now = Instant::now();
            let at = {
                let log = self.lock();
                if let Some(left) = log.pause_left(key, now) {
                    return Err(left);
                }
                log.allowed_by_chat(key, now)
            };
            if at > now {
                // The request takes no turn yet.
                sleep_until(at).await;
                continue;
            }
            // Semaphores are fair, and only one request of each namespace at a time waits for that of the token.
            let (of_namespace, of_token) = (self.turn(key, Some(namespace)), self.turn(key, None));
            let _first_of_namespace = of_namespace.acquire().await;
            let _first_of_token = of_token.acquire().await;
            let now = Instant::now();
            let at = self.lock().allowed_by_token(key, now);
            if at > now {
                sleep_until(at).await;
            }
            let (mut log, now) = (self.lock(), Instant::now());
            // Another request may have used the chat meanwhile.
            if log.next_allowed(key, now) <= now {
                log.record(key, now);
                return Ok(());
            }
        }
    }

    /// Returns the semaphore of a namespace for the token, or that of the token.
    fn turn(&self, key: &ChatKey, namespace: Option<&str>) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        semaphore_of(&mut turns, (key.token, namespace.map(str::to_owned)), 1)
    }

    /// Allows no request to `key` for this time.
    pub fn pause(&self, key: &ChatKey, after: Duration) {
        self.lock()
            .pause(key, Instant::now() + after.min(LONGEST_PAUSE));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TokenLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    fn key(token: u8, chat: i64) -> ChatKey {
        ChatKey {
            token: [token; 32],
            chat: ChatId::Id(chat),
        }
    }

    const LIMITS: TelegramLimits = TelegramLimits {
        chat: WindowLimit {
            requests: 1,
            window: Duration::from_secs(1),
        },
        group: WindowLimit {
            requests: 20,
            window: Duration::from_mins(1),
        },
        token: WindowLimit {
            requests: 30,
            window: Duration::from_secs(1),
        },
    };

    /// Sends as fast as the log allows, to each of `keys` in turn; returns the times since the start.
    fn flood(keys: &[ChatKey], requests: usize) -> Vec<Duration> {
        let (mut log, start) = (TokenLog::new(LIMITS), Instant::now());
        let mut now = start;
        (0..requests)
            .map(|index| {
                let key = &keys[index % keys.len()];
                now = log.next_allowed(key, now);
                log.record(key, now);
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
    fn chat_gets_one_request_per_second() {
        let times = flood(&[key(1, 7)], 100);
        assert_eq!(most_in_any(Duration::from_secs(1), &times), 1);
        assert_eq!(*times.last().unwrap(), Duration::from_secs(99));
    }

    #[test]
    fn group_gets_twenty_requests_per_minute() {
        let times = flood(&[key(1, -7)], 100);
        assert_eq!(most_in_any(Duration::from_mins(1), &times), 20);
        assert_eq!(*times.last().unwrap(), Duration::from_secs(4 * 60 + 19));
    }

    #[test]
    fn token_allows_thirty_requests_per_second_over_all_chats() {
        let keys: Vec<_> = (1..=100).map(|chat| key(1, chat)).collect();
        assert_eq!(most_in_any(Duration::from_secs(1), &flood(&keys, 300)), 30);
        // Each token has separate limits.
        let (mut log, now) = (TokenLog::new(LIMITS), Instant::now());
        keys[..30].iter().for_each(|key| log.record(key, now));
        assert_eq!(
            log.next_allowed(&key(1, 200), now),
            now + Duration::from_secs(1)
        );
        assert_eq!(log.next_allowed(&key(2, 200), now), now);
    }

    #[test]
    fn default_limits_are_no_faster_than_documented() {
        let TelegramLimits { chat, group, token } = TelegramLimits::default();
        assert!(chat.requests == 1 && chat.window >= Duration::from_secs(1));
        assert!(group.requests == 20 && group.window >= Duration::from_mins(1));
        assert!(token.requests == 30 && token.window >= Duration::from_secs(1));
    }

    #[test]
    fn pause_applies_to_one_chat_of_one_token() {
        let (mut log, now) = (TokenLog::new(LIMITS), Instant::now());
        let until = now + Duration::from_hours(1);
        log.pause(&key(1, 7), until);
        log.pause(&key(1, 7), now + Duration::from_secs(5));
        assert_eq!(log.next_allowed(&key(1, 7), now), until);
        assert_eq!(log.next_allowed(&key(1, 8), now), now);
        assert_eq!(log.next_allowed(&key(2, 7), now), now);
        // The pause outlasts the removal of expired records.
        log.record(&key(1, 8), now + Duration::from_secs(100));
        assert_eq!(
            log.next_allowed(&key(1, 7), now + Duration::from_secs(101)),
            until
        );
    }

    #[test]
    fn idle_chats_are_removed() {
        let (mut log, now) = (TokenLog::new(LIMITS), Instant::now());
        for chat in 0..10_000 {
            log.record(&key(u8::try_from(chat % 256).unwrap(), chat), now);
        }
        log.record(&key(1, 7), now + Duration::from_secs(61));
        assert_eq!((log.chats.len(), log.tokens.len()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn contact_points_with_one_token_share_its_limits() {
        let limiter = Arc::new(TelegramRateLimiter::new(LIMITS));
        let start = Instant::now();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let limiter = Arc::clone(&limiter);
                tokio::spawn(async move {
                    limiter.acquire(&key(1, 7), "shop").await;
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
    async fn namespace_with_many_requests_does_not_delay_another() {
        let (limiter, start) = (Arc::new(TelegramRateLimiter::new(LIMITS)), Instant::now());
        for chat in 0..300 {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire(&key(1, chat), "crowd").await });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        limiter.acquire(&key(1, 300), "shop").await;
        assert!(start.elapsed() < LIMITS.token.window * 2, "300 take 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn paused_chat_delays_no_other_chat_of_its_namespace() {
        let limiter = Arc::new(TelegramRateLimiter::new(LIMITS));
        limiter.pause(&key(1, 7), Duration::from_hours(1));
        let (shared, start) = (Arc::clone(&limiter), Instant::now());
        let paused = tokio::spawn(async move { shared.acquire(&key(1, 7), "shop").await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        limiter.acquire(&key(1, 8), "shop").await;
        assert!(start.elapsed() < LIMITS.chat.window && !paused.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn pause_of_any_length_does_not_overflow() {
        let limiter = TelegramRateLimiter::new(LIMITS);
        limiter.pause(&key(1, 7), Duration::from_secs(u64::MAX));
        assert!(
            tokio::time::timeout(
                Duration::from_hours(24),
                limiter.acquire(&key(1, 7), "shop")
            )
            .await
            .is_err()
        );
    }

    proptest! {
        #[test]
        fn no_window_exceeds_its_limit(steps in prop::collection::vec((0..40_i64, 0..1500_u64), 1..200)) {
            let (mut log, start) = (TokenLog::new(LIMITS), Instant::now());
            let mut now = start;
            let mut sent: Vec<(i64, Duration)> = Vec::new();
            for (chat, pause) in steps {
                let key = key(1, chat - 20);
                now = log.next_allowed(&key, now + Duration::from_millis(pause));
                log.record(&key, now);
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
