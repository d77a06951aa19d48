//! Answers that are kept for a while: no question is asked twice meanwhile, not even while its first answer is under way.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

/// How many are kept, or under way, at most: a handful ask for metrics, whoever else tries tokens.
const MOST: usize = 256;
/// How many new questions are asked in a second, and at once: more come from somebody who tries tokens.
const NEW_A_SECOND: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// A question, as its hash: what was asked with is not kept.
type Question = [u8; 32];
/// An answer and its end, once it is there. Without an end it is for those alone who wait for it.
type Asked<A> = watch::Receiver<Option<(A, Option<Instant>)>>;

/// Answers to questions of one kind.
pub struct Remembered<A> {
    known: Mutex<HashMap<Question, Asked<A>>>,
    new: DefaultDirectRateLimiter,
}

impl<A: Clone + Send + Sync + 'static> Remembered<A> {
    /// None yet.
    pub fn new() -> Self {
        Self {
            known: Mutex::default(),
            new: RateLimiter::direct(Quota::per_second(NEW_A_SECOND)),
        }
    }

    /// The answer to `question`, which `ask` gives together with the time that it lasts, if it lasts at all. None if too much
    /// is asked already. One whose answer has lasted is asked again at any pace, which that time bounds.
    pub async fn answer<F>(&self, question: &[u8], ask: impl FnOnce() -> F) -> Option<A>
    where
        F: Future<Output = (A, Option<Duration>)> + Send + 'static,
    {
        let mut asked = self.asked(Sha256::digest(question).into(), ask)?;
        asked
            .wait_for(Option::is_some)
            .await
            .ok()?
            .as_ref()
            .map(|(answer, _)| answer.clone())
    }

    fn asked<F>(&self, question: Question, ask: impl FnOnce() -> F) -> Option<Asked<A>>
    where
        F: Future<Output = (A, Option<Duration>)> + Send + 'static,
    {
        // Nothing that holds the lock can leave it half-changed.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = known.get(&question).filter(|asked| stands(asked)) {
            return Some(asked.clone());
        }
        if !known.get(&question).is_some_and(has_lasted) {
            if known.len() >= MOST {
                known.retain(|_, asked| stands(asked));
            }
            let full = known.len() >= MOST && !known.contains_key(&question);
            if full || self.new.check().is_err() {
                return None;
            }
        }
        let (tell, asked) = watch::channel(None);
        let answer = ask();
        // Goes on when the one who asked does not wait: others may.
        tokio::spawn(async move {
            let (answer, lasts) = answer.await;
            tell.send_replace(Some((answer, lasts.map(|lasts| Instant::now() + lasts))));
        });
        known.insert(question, asked.clone());
        Some(asked)
    }
}

/// Whether it is under way, or was answered and that lasts.
fn stands<A>(asked: &Asked<A>) -> bool {
    match &*asked.borrow() {
        Some((_, until)) => until.is_some_and(|until| Instant::now() < until),
        None => asked.has_changed().is_ok(),
    }
}

fn has_lasted<A>(asked: &Asked<A>) -> bool {
    matches!(&*asked.borrow(), Some((_, Some(_))))
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
    const LASTS: Option<Duration> = Some(MINUTE);

    #[tokio::test(start_paused = true)]
    async fn a_question_is_asked_once_until_its_answer_has_run_out() {
        let (remembered, times) = (Remembered::new(), Arc::new(AtomicUsize::new(0)));
        let ask = || {
            let times = Arc::clone(&times);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                (times.fetch_add(1, Ordering::Relaxed), LASTS)
            }
        };
        let at_once = join_all((0..10).map(|_| remembered.answer(b"token", ask))).await;
        assert_eq!(at_once, [Some(0); 10]);
        assert_eq!(remembered.answer(b"another", ask).await, Some(1));
        tokio::time::advance(MINUTE.checked_sub(Duration::from_secs(2)).unwrap()).await;
        assert_eq!(remembered.answer(b"token", ask).await, Some(0));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(remembered.answer(b"token", ask).await, Some(2));
        // What lasts for no time is for those alone who wait for it.
        let never = || ready((7, None));
        assert_eq!(remembered.answer(b"third", never).await, Some(7));
        assert_eq!(remembered.answer(b"third", ask).await, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_wait_leaves_the_answer_to_others() {
        let remembered = Remembered::new();
        let slow = || async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            (1, LASTS)
        };
        let given_up =
            tokio::time::timeout(Duration::from_secs(1), remembered.answer(b"token", slow)).await;
        assert!(given_up.is_err());
        assert_eq!(remembered.answer(b"token", pending).await, Some(1));
    }

    /// With no limit to how fast new questions are asked.
    fn at_any_pace<A: Clone + Send + Sync + 'static>() -> Remembered<A> {
        Remembered {
            new: RateLimiter::direct(Quota::per_second(NonZeroU32::MAX)),
            ..Remembered::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_kept_than_that() {
        let remembered = at_any_pace();
        for number in 0..3 * MOST {
            tokio::time::advance(MINUTE / 100).await;
            assert_eq!(
                remembered
                    .answer(&number.to_be_bytes(), || ready((number, LASTS)))
                    .await,
                Some(number)
            );
            assert!(remembered.known.lock().unwrap().len() <= MOST);
        }
        // What still stands, or is under way, makes room for nobody.
        let remembered = at_any_pace();
        for number in 0..MOST {
            assert!(
                remembered
                    .asked(Sha256::digest(number.to_be_bytes()).into(), pending)
                    .is_some()
            );
        }
        assert_eq!(
            remembered.answer(b"one more", || ready((1, LASTS))).await,
            None
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_tries_tokens_has_few_asked_about() {
        let remembered = Remembered::new();
        assert_eq!(
            remembered.answer(b"known", || ready((0, LASTS))).await,
            Some(0)
        );
        let (mut asked, began) = (0_u32, std::time::Instant::now());
        for number in 0..MOST {
            asked += u32::from(
                remembered
                    .answer(&number.to_be_bytes(), || ready((1, LASTS)))
                    .await
                    .is_some(),
            );
        }
        let seconds = u32::try_from(began.elapsed().as_secs()).unwrap() + 1;
        assert!(
            asked <= NEW_A_SECOND.get() * (seconds + 1),
            "{asked} in {seconds} s"
        );
        // What was known before goes on meanwhile.
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(
            remembered.answer(b"known", || ready((2, LASTS))).await,
            Some(2)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_answered_is_asked_no_faster() {
        let remembered = Remembered::new();
        let (mut asked, began) = (0_u32, std::time::Instant::now());
        for _ in 0..MOST {
            asked += u32::from(
                remembered
                    .answer(b"token", || ready((1, None)))
                    .await
                    .is_some(),
            );
        }
        let seconds = u32::try_from(began.elapsed().as_secs()).unwrap() + 1;
        assert!(
            asked <= NEW_A_SECOND.get() * (seconds + 1),
            "{asked} in {seconds} s"
        );
    }

    #[tokio::test]
    async fn a_question_that_breaks_is_asked_again() {
        let remembered = Remembered::new();
        assert_eq!(
            remembered
                .answer(b"token", || async { panic!("broken") })
                .await,
            None
        );
        assert_eq!(
            remembered.answer(b"token", || ready((1, LASTS))).await,
            Some(1)
        );
    }
}
