//! Batches the queries of concurrent reconciles: the query that the rate limit admits includes all waiting queries in
//! its call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::AwsError;
use crate::error::ACCESS_DENIED;

/// Maximum number of resources in one call.
pub(super) const MAX_NAMES: usize = 20;

/// A call that returns a `V` for each of several resources.
pub(super) trait BatchCall<V>: Sync {
    /// Waits until the rate limit allows a call.
    fn acquire(&self) -> impl Future<Output = ()> + Send;

    /// Makes the call.
    fn send(
        &self,
        names: Vec<String>,
    ) -> impl Future<Output = Result<BTreeMap<String, V>, AwsError>> + Send;
}

/// Queries that wait for a call.
pub(super) struct Batcher<V> {
    waiting: Mutex<VecDeque<PendingQuery<V>>>,
}

struct PendingQuery<V> {
    names: BTreeSet<String>,
    accept: oneshot::Sender<()>,
    reply: oneshot::Sender<BatchReply<V>>,
}

enum BatchReply<V> {
    Answer(Result<BTreeMap<String, V>, AwsError>),
    /// AWS rejected the call without naming the resource that caused the error, so the query makes its own call.
    QueryAlone,
}

impl<V: Clone> Batcher<V> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Mutex::default(),
        }
    }

    /// Returns the result for each existing resource of `names`, at most [`MAX_NAMES`].
    pub(super) async fn query(
        &self,
        names: BTreeSet<String>,
        call: &impl BatchCall<V>,
    ) -> Result<BTreeMap<String, V>, AwsError> {
        loop {
            let (accept, mut accepted) = oneshot::channel();
            let (reply, mut batch_reply) = oneshot::channel();
            self.waiting().push_back(PendingQuery {
                names: names.clone(),
                accept,
                reply,
            });
            let batch_reply = loop {
                tokio::select! {
                    biased;
                    batch_reply = &mut batch_reply => break batch_reply,
                    // Another query's call includes this query, which leaves the rate limit to others.
                    _ = &mut accepted => break batch_reply.await,
                    () = call.acquire() => send_batch(self.take_batch(), call).await,
                }
            };
            match batch_reply {
                Ok(BatchReply::Answer(answer)) => return answer,
                Ok(BatchReply::QueryAlone) => {
                    call.acquire().await;
                    return call.send(names.into_iter().collect()).await;
                }
                // The query that made the call was dropped before the reply.
                Err(_) => {}
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<PendingQuery<V>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the oldest queries that fit into one call.
    fn take_batch(&self) -> Vec<(BTreeSet<String>, oneshot::Sender<BatchReply<V>>)> {
        let mut waiting = self.waiting();
        let (mut accepted, mut room) = (Vec::new(), MAX_NAMES);
        while let Some(pending) =
            waiting.pop_front_if(|pending| pending.reply.is_closed() || pending.names.len() <= room)
        {
            // A query whose reconcile was dropped needs no call.
            if pending.accept.send(()).is_ok() {
                room -= pending.names.len();
                accepted.push((pending.names, pending.reply));
            }
        }
        accepted
    }
}

async fn send_batch<V: Clone>(
    pending: Vec<(BTreeSet<String>, oneshot::Sender<BatchReply<V>>)>,
    call: &impl BatchCall<V>,
) {
    let names: BTreeSet<_> = pending
        .iter()
        .flat_map(|(names, _)| names)
        .cloned()
        .collect();
    if names.is_empty() {
        // Another call has just included all queries.
        return;
    }
    let result = call.send(names.into_iter().collect()).await;
    let several = pending.len() > 1;
    // IAM permits reads of all resources or of none.
    let concerns_one =
        |error: &AwsError| error.concerns_one_resource() && error.reason != ACCESS_DENIED;
    for (names, reply) in pending {
        let batch_reply = match &result {
            Ok(found) => {
                let found = found.iter().filter(|(name, _)| names.contains(*name));
                BatchReply::Answer(Ok(found
                    .map(|(name, it)| (name.clone(), it.clone()))
                    .collect()))
            }
            Err(error) if several && concerns_one(error) => BatchReply::QueryAlone,
            Err(error) => BatchReply::Answer(Err(error.clone())),
        };
        // A query whose reconcile was dropped needs no reply.
        let _ = reply.send(batch_reply);
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

    /// Fake AWS that counts calls and has every resource except `none`.
    struct FakeAws {
        permits: Semaphore,
        calls: Mutex<Vec<Vec<String>>>,
        batcher: Batcher<u8>,
    }

    impl FakeAws {
        fn new(permits: usize) -> Self {
            Self {
                permits: Semaphore::new(permits),
                calls: Mutex::default(),
                batcher: Batcher::new(),
            }
        }

        async fn query(&self, name: &str) -> Result<Vec<String>, AwsError> {
            self.batcher
                .query([name.to_owned()].into(), self)
                .await
                .map(|found| found.into_keys().collect())
        }

        fn calls(&self) -> usize {
            self.calls.lock().unwrap().len()
        }
    }

    impl BatchCall<u8> for FakeAws {
        async fn acquire(&self) {
            self.permits.acquire().await.unwrap().forget();
        }

        async fn send(&self, names: Vec<String>) -> Result<BTreeMap<String, u8>, AwsError> {
            self.calls.lock().unwrap().push(names.clone());
            tokio::task::yield_now().await;
            if names.contains(&"none".to_owned()) {
                return Err(AwsError::unsent(
                    Class::Transient,
                    "OperationInProgress",
                    "not found",
                ));
            }
            if names.contains(&"all".to_owned()) {
                return Err(AwsError::unsent(Class::Transient, "Throttled", "too many"));
            }
            Ok(names.into_iter().map(|name| (name, 1)).collect())
        }
    }

    #[tokio::test]
    async fn waiting_queries_are_batched() {
        let aws = FakeAws::new(0);
        let names: Vec<_> = (0..30).map(|number| format!("n{number}")).collect();
        let queries = join_all(names.iter().map(|name| aws.query(name)));
        let served = async {
            aws.permits.add_permits(2);
        };
        let (answers, ()) = tokio::join!(queries, served);
        for (name, answer) in names.iter().zip(answers) {
            assert_eq!(
                answer,
                Ok(vec![name.clone()]),
                "each query gets its own resource"
            );
        }
        let calls: Vec<_> = aws.calls.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(calls, [20, 10]);
    }

    #[tokio::test]
    async fn missing_resource_costs_the_other_queries_one_call() {
        let aws = FakeAws::new(0);
        let queries = join_all([aws.query("a"), aws.query("none"), aws.query("b")]);
        let served = async {
            aws.permits.add_permits(4);
        };
        let (answers, ()) = tokio::join!(queries, served);
        assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
        assert_eq!(aws.calls(), 4);
    }

    /// A retry would fail too.
    #[tokio::test]
    async fn error_of_the_whole_call_is_not_retried() {
        let aws = FakeAws::new(0);
        let queries = join_all([aws.query("a"), aws.query("all")]);
        let served = async {
            aws.permits.add_permits(2);
        };
        let (answers, ()) = tokio::join!(queries, served);
        assert!(answers.iter().all(Result::is_err));
        assert_eq!(aws.calls(), 1);
    }

    /// A reconcile is dropped while its call includes queries of other reconciles, which then make their own calls.
    #[tokio::test]
    async fn dropped_query_does_not_block_the_others() {
        let aws = FakeAws::new(0);
        let mut first = Box::pin(aws.query("a"));
        let mut second = Box::pin(aws.query("b"));
        assert!(
            first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none()
        );
        aws.permits.add_permits(1);
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(aws.calls(), 1, "one call includes both");
        drop(first);
        aws.permits.add_permits(1);
        assert_eq!(second.await, Ok(vec!["b".to_owned()]));
    }
}
