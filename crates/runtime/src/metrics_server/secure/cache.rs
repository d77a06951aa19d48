//! Cache of reviews' answers. The apiserver gets no question twice while its answer is valid or in flight.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum number of questions in flight or with a valid answer. Few clients read metrics; more questions come from a
/// client that guesses tokens.
const MAX_QUESTIONS: usize = 256;
/// Maximum number of new questions per second, also as a burst: more come from a client that guesses tokens.
const NEW_PER_SECOND: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Hash of a question, so that the cache holds no token.
type Question = [u8; 32];
/// Answer, once it has arrived, and its expiry. Without an expiry, only the waiting clients get the answer.
type CachedAnswer<A> = watch::Receiver<Option<(A, Option<Instant>)>>;

/// Cache of answers to one kind of question.
pub struct AuthCache<A> {
    answers: Mutex<HashMap<Question, CachedAnswer<A>>>,
    new: DefaultDirectRateLimiter,
}

impl<A: Clone + Send + Sync + 'static> AuthCache<A> {
    /// Creates an empty cache.
    pub fn new() -> Self {
        Self {
            answers: Mutex::default(),
            new: RateLimiter::direct(Quota::per_second(NEW_PER_SECOND)),
        }
    }

    /// Returns the answer to `question`. `ask` returns the answer and, if the answer may be cached, its validity.
    /// Returns `None` if there are too many questions. A question whose answer has expired does not count as new.
    pub async fn answer<F>(&self, question: &[u8], ask: impl FnOnce() -> F) -> Option<A>
    where
        F: Future<Output = (A, Option<Duration>)> + Send + 'static,
    {
        let mut answer = self.lookup(Sha256::digest(question).into(), ask)?;
        answer
            .wait_for(Option::is_some)
            .await
            .ok()?
            .as_ref()
            .map(|(answer, _)| answer.clone())
    }

    fn lookup<F>(&self, question: Question, ask: impl FnOnce() -> F) -> Option<CachedAnswer<A>>
    where
        F: Future<Output = (A, Option<Duration>)> + Send + 'static,
    {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = answers.get(&question).filter(|answer| is_valid(answer)) {
            return Some(answer.clone());
        }
        if !answers.get(&question).is_some_and(has_expired) {
            if answers.len() >= MAX_QUESTIONS {
                answers.retain(|_, answer| is_valid(answer));
            }
            let full = answers.len() >= MAX_QUESTIONS && !answers.contains_key(&question);
            if full || self.new.check().is_err() {
                return None;
            }
        }
        let (sender, cached) = watch::channel(None);
        let answer = ask();
        // The task continues even if its client disconnects, because other clients may wait.
        tokio::spawn(async move {
            let (answer, ttl) = answer.await;
            sender.send_replace(Some((answer, ttl.map(|ttl| Instant::now() + ttl))));
        });
        answers.insert(question, cached.clone());
        Some(cached)
    }
}

/// Returns whether the answer is valid or in flight.
fn is_valid<A>(answer: &CachedAnswer<A>) -> bool {
    match &*answer.borrow() {
        Some((_, until)) => until.is_some_and(|until| Instant::now() < until),
        None => answer.has_changed().is_ok(),
    }
}

fn has_expired<A>(answer: &CachedAnswer<A>) -> bool {
    matches!(&*answer.borrow(), Some((_, Some(_))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);
    const TTL: Option<Duration> = Some(MINUTE);

    #[tokio::test(start_paused = true)]
    async fn question_is_asked_once_until_its_answer_expires() {
        let (cache, times) = (AuthCache::new(), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let times = Arc::clone(&times);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                (times.fetch_add(1, Ordering::Relaxed), TTL)
            }
        };
        let at_once = join_all((0..10).map(|_| cache.answer(b"token", ask))).await;
        assert_eq!(at_once, [Some(0); 10]);
        assert_eq!(cache.answer(b"another", ask).await, Some(1));
        tokio::time::advance(MINUTE.checked_sub(Duration::from_secs(2)).unwrap()).await;
        assert_eq!(cache.answer(b"token", ask).await, Some(0));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(cache.answer(b"token", ask).await, Some(2));
        // An answer without a validity reaches only the waiting clients.
        let never = || ready((7, None));
        assert_eq!(cache.answer(b"third", never).await, Some(7));
        assert_eq!(cache.answer(b"third", ask).await, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_arrives_after_its_client_has_gone() {
        let cache = AuthCache::new();
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            (1, TTL)
        };
        let given_up =
            tokio::time::timeout(Duration::from_secs(1), cache.answer(b"token", slow)).await;
        assert!(given_up.is_err());
        assert_eq!(cache.answer(b"token", pending).await, Some(1));
    }

    /// Creates a cache without a limit on new questions.
    fn unlimited<A: Clone + Send + Sync + 'static>() -> AuthCache<A> {
        AuthCache {
            new: RateLimiter::direct(Quota::per_second(NonZeroU32::MAX)),
            ..AuthCache::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cache_is_bounded() {
        let cache = unlimited();
        for number in 0..3 * MAX_QUESTIONS {
            tokio::time::advance(MINUTE / 100).await;
            assert_eq!(
                cache
                    .answer(&number.to_be_bytes(), || ready((number, TTL)))
                    .await,
                Some(number)
            );
            assert!(cache.answers.lock().unwrap().len() <= MAX_QUESTIONS);
        }
        // Valid answers and questions in flight stay.
        let cache = unlimited();
        for number in 0..MAX_QUESTIONS {
            assert!(
                cache
                    .lookup(Sha256::digest(number.to_be_bytes()).into(), pending)
                    .is_some()
            );
        }
        assert_eq!(cache.answer(b"one more", || ready((1, TTL))).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn new_questions_are_rate_limited() {
        let cache = AuthCache::new();
        assert_eq!(cache.answer(b"known", || ready((0, TTL))).await, Some(0));
        let (mut questions, began) = (0_u32, std::time::Instant::now());
        for number in 0..MAX_QUESTIONS {
            questions += u32::from(
                cache
                    .answer(&number.to_be_bytes(), || ready((1, TTL)))
                    .await
                    .is_some(),
            );
        }
        let seconds = u32::try_from(began.elapsed().as_secs()).unwrap() + 1;
        assert!(
            questions <= NEW_PER_SECOND.get() * (seconds + 1),
            "{questions} in {seconds} s"
        );
        // A known question is asked again meanwhile.
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(cache.answer(b"known", || ready((2, TTL))).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_questions_are_rate_limited() {
        let cache = AuthCache::new();
        let (mut questions, began) = (0_u32, std::time::Instant::now());
        for _ in 0..MAX_QUESTIONS {
            questions += u32::from(cache.answer(b"token", || ready((1, None))).await.is_some());
        }
        let seconds = u32::try_from(began.elapsed().as_secs()).unwrap() + 1;
        assert!(
            questions <= NEW_PER_SECOND.get() * (seconds + 1),
            "{questions} in {seconds} s"
        );
    }

    #[tokio::test]
    async fn question_that_panics_is_asked_again() {
        let cache = AuthCache::new();
        assert_eq!(
            cache.answer(b"token", || async { panic!("broken") }).await,
            None
        );
        assert_eq!(cache.answer(b"token", || ready((1, TTL))).await, Some(1));
    }
}
