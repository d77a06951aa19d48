//! What several passes ask for in the same moment is asked for by one call: whoever has a turn takes along what others wait to
//! ask.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::AwsError;

/// How many things AWS lets one call name.
pub(super) const AT_ONCE: usize = 20;

/// A call that can ask for several things, each of which has a `V`.
pub(super) trait BatchCall<V>: Sync {
    /// Comes when a call may be made.
    fn turn(&self) -> impl Future<Output = ()> + Send;

    /// Makes the call.
    fn send(
        &self,
        names: Vec<String>,
    ) -> impl Future<Output = Result<BTreeMap<String, V>, AwsError>> + Send;
}

/// What is waited for.
pub(super) struct Batcher<V> {
    waiting: Mutex<VecDeque<PendingQuery<V>>>,
}

struct PendingQuery<V> {
    names: BTreeSet<String>,
    take: oneshot::Sender<()>,
    tell: oneshot::Sender<BatchReply<V>>,
}

enum BatchReply<V> {
    Answer(Result<BTreeMap<String, V>, AwsError>),
    /// The call was refused, and it is not known for whose sake.
    AskAlone,
}

impl<V: Clone> Batcher<V> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }

    /// What there is of these, no more than [`AT_ONCE`].
    pub(super) async fn ask(
        &self,
        names: BTreeSet<String>,
        call: &impl BatchCall<V>,
    ) -> Result<BTreeMap<String, V>, AwsError> {
        loop {
            let (take, mut taken) = oneshot::channel();
            let (tell, mut told) = oneshot::channel();
            self.waiting().push_back(PendingQuery {
                names: names.clone(),
                take,
                tell,
            });
            let told = loop {
                tokio::select! {
                    biased;
                    told = &mut told => break told,
                    // It is being asked for: the turn is left to others.
                    _ = &mut taken => break told.await,
                    () = call.turn() => answer(self.take(), call).await,
                }
            };
            match told {
                Ok(BatchReply::Answer(answer)) => return answer,
                Ok(BatchReply::AskAlone) => {
                    call.turn().await;
                    return call.send(names.into_iter().collect()).await;
                }
                // Whoever asked for it was stopped in the middle.
                Err(_) => {}
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<PendingQuery<V>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who have waited longest, as many as one call has room for.
    fn take(&self) -> Vec<(BTreeSet<String>, oneshot::Sender<BatchReply<V>>)> {
        let mut waiting = self.waiting();
        let (mut taken, mut room) = (Vec::new(), AT_ONCE);
        while let Some(asked) =
            waiting.pop_front_if(|asked| asked.tell.is_closed() || asked.names.len() <= room)
        {
            // Who does not wait any more is not asked for.
            if asked.take.send(()).is_ok() {
                room -= asked.names.len();
                taken.push((asked.names, asked.tell));
            }
        }
        taken
    }
}

async fn answer<V: Clone>(
    asked: Vec<(BTreeSet<String>, oneshot::Sender<BatchReply<V>>)>,
    call: &impl BatchCall<V>,
) {
    let names: BTreeSet<_> = asked.iter().flat_map(|(names, _)| names).cloned().collect();
    if names.is_empty() {
        // Another took them in this very moment.
        return;
    }
    let came = call.send(names.into_iter().collect()).await;
    let several = asked.len() > 1;
    for (names, tell) in asked {
        let told = match &came {
            Ok(found) => {
                let found = found.iter().filter(|(name, _)| names.contains(*name));
                BatchReply::Answer(Ok(found
                    .map(|(name, it)| (name.clone(), it.clone()))
                    .collect()))
            }
            Err(error) if several && error.is_of_one() => BatchReply::AskAlone,
            Err(error) => BatchReply::Answer(Err(error.clone())),
        };
        // Who does not wait any more need not be told.
        let _ = tell.send(told);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt;
    use futures::future::join_all;
    use qm_runtime::error::Class;
    use tokio::sync::Semaphore;

    use super::*;

    /// An AWS that has everything but `none`, and counts calls.
    struct FakeAws {
        turns: Semaphore,
        calls: Mutex<Vec<Vec<String>>>,
        batcher: Batcher<u8>,
    }

    impl FakeAws {
        fn new(turns: usize) -> Self {
            Self {
                turns: Semaphore::new(turns),
                calls: Mutex::default(),
                batcher: Batcher::new(),
            }
        }

        async fn ask(&self, name: &str) -> Result<Vec<String>, AwsError> {
            self.batcher
                .ask([name.to_owned()].into(), self)
                .await
                .map(|found| found.into_keys().collect())
        }

        fn calls(&self) -> usize {
            self.calls.lock().unwrap().len()
        }
    }

    impl BatchCall<u8> for FakeAws {
        async fn turn(&self) {
            self.turns.acquire().await.unwrap().forget();
        }

        async fn send(&self, names: Vec<String>) -> Result<BTreeMap<String, u8>, AwsError> {
            self.calls.lock().unwrap().push(names.clone());
            tokio::task::yield_now().await;
            if names.contains(&"none".to_owned()) {
                return Err(AwsError::unsent(
                    Class::Transient,
                    "OperationInProgress",
                    "there is none",
                ));
            }
            if names.contains(&"all".to_owned()) {
                return Err(AwsError::unsent(Class::Transient, "Throttled", "too many"));
            }
            Ok(names.into_iter().map(|name| (name, 1)).collect())
        }
    }

    #[tokio::test]
    async fn who_waits_is_taken_along() {
        let aws = FakeAws::new(0);
        let names: Vec<_> = (0..30).map(|number| format!("n{number}")).collect();
        let asks = join_all(names.iter().map(|name| aws.ask(name)));
        let served = async {
            aws.turns.add_permits(2);
        };
        let (answers, ()) = tokio::join!(asks, served);
        for (name, answer) in names.iter().zip(answers) {
            assert_eq!(answer, Ok(vec![name.clone()]), "each is told of its own");
        }
        let calls: Vec<_> = aws.calls.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(calls, [20, 10]);
    }

    #[tokio::test]
    async fn one_that_is_not_there_costs_the_others_no_more_than_a_call() {
        let aws = FakeAws::new(0);
        let asks = join_all([aws.ask("a"), aws.ask("none"), aws.ask("b")]);
        let served = async {
            aws.turns.add_permits(4);
        };
        let (answers, ()) = tokio::join!(asks, served);
        assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
        assert_eq!(aws.calls(), 4);
    }

    /// Another call would not be answered either.
    #[tokio::test]
    async fn what_concerns_all_is_not_asked_again() {
        let aws = FakeAws::new(0);
        let asks = join_all([aws.ask("a"), aws.ask("all")]);
        let served = async {
            aws.turns.add_permits(2);
        };
        let (answers, ()) = tokio::join!(asks, served);
        assert!(answers.iter().all(Result::is_err));
        assert_eq!(aws.calls(), 1);
    }

    /// A pass is dropped while it asks for others: they ask themselves.
    #[tokio::test]
    async fn who_is_stopped_strands_nobody() {
        let aws = FakeAws::new(0);
        let mut first = Box::pin(aws.ask("a"));
        let mut second = Box::pin(aws.ask("b"));
        assert!(
            first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none()
        );
        aws.turns.add_permits(1);
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(aws.calls(), 1, "it asks for both");
        drop(first);
        aws.turns.add_permits(1);
        assert_eq!(second.await, Ok(vec!["b".to_owned()]));
    }
}
