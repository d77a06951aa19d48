//! Answers that are kept for a while: no question is asked twice meanwhile, not even while its first answer is under way.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

/// How many are kept, or under way, at most: a handful ask for metrics, whoever else tries tokens.
const MOST: usize = 256;

/// A question, as its hash: what was asked with is not kept.
type Question = [u8; 32];
/// An answer and its end, once it is there.
type Asked<A> = watch::Receiver<Option<(A, Instant)>>;

/// Answers to questions of one kind.
pub struct Remembered<A>(Mutex<HashMap<Question, Asked<A>>>);

impl<A: Clone + Send + Sync + 'static> Remembered<A> {
    /// None yet.
    pub fn new() -> Self {
        Self(Mutex::default())
    }

    /// The answer to `question`, which `ask` gives together with the time that it lasts. None if too much is asked already.
    pub async fn answer<F>(&self, question: &[u8], ask: impl FnOnce() -> F) -> Option<A>
    where
        F: Future<Output = (A, Duration)> + Send + 'static,
    {
        let mut asked = self.asked(Sha256::digest(question).into(), ask)?;
        asked.wait_for(Option::is_some).await.ok()?.as_ref().map(|(answer, _)| answer.clone())
    }

    fn asked<F>(&self, question: Question, ask: impl FnOnce() -> F) -> Option<Asked<A>>
    where
        F: Future<Output = (A, Duration)> + Send + 'static,
    {
        // Nothing that holds the lock can leave it half-changed.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = known.get(&question).filter(|asked| stands(asked)) {
            return Some(asked.clone());
        }
        if known.len() >= MOST {
            known.retain(|_, asked| asked.borrow().is_none() && stands(asked));
        }
        if known.len() >= MOST {
            return None;
        }
        let (tell, asked) = watch::channel(None);
        let answer = ask();
        // Goes on when the one who asked does not wait: others may.
        tokio::spawn(async move {
            let (answer, lasts) = answer.await;
            tell.send_replace(Some((answer, Instant::now() + lasts)));
        });
        known.insert(question, asked.clone());
        Some(asked)
    }
}

/// Whether it is under way, or was answered and that lasts.
fn stands<A>(asked: &Asked<A>) -> bool {
    match &*asked.borrow() {
        Some((_, until)) => Instant::now() < *until,
        None => asked.has_changed().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;

    use super::*;

    const LASTS: Duration = Duration::from_mins(1);

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
        tokio::time::advance(LASTS.checked_sub(Duration::from_secs(2)).unwrap()).await;
        assert_eq!(remembered.answer(b"token", ask).await, Some(0));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(remembered.answer(b"token", ask).await, Some(2));
        // What lasts for no time is for those alone who wait for it.
        let never = || ready((7, Duration::ZERO));
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
        let given_up = tokio::time::timeout(Duration::from_secs(1), remembered.answer(b"token", slow)).await;
        assert!(given_up.is_err());
        assert_eq!(remembered.answer(b"token", pending).await, Some(1));
    }

    #[tokio::test]
    async fn no_more_are_kept_than_that() {
        let remembered = Remembered::new();
        for number in 0..3 * MOST {
            assert_eq!(remembered.answer(&number.to_be_bytes(), || ready((number, LASTS))).await, Some(number));
            assert!(remembered.0.lock().unwrap().len() <= MOST);
        }
        // What is under way is bounded too, and asks no more than that.
        let remembered = Remembered::<usize>::new();
        for number in 0..MOST {
            assert!(remembered.asked(Sha256::digest(number.to_be_bytes()).into(), pending).is_some());
        }
        assert_eq!(remembered.answer(b"one more", || ready((1, LASTS))).await, None);
    }

    #[tokio::test]
    async fn a_question_that_breaks_is_asked_again() {
        let remembered = Remembered::new();
        assert_eq!(remembered.answer(b"token", || async { panic!("broken") }).await, None);
        assert_eq!(remembered.answer(b"token", || ready((1, LASTS))).await, Some(1));
    }
}
