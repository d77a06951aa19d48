//! Tasks that last as long as the process. One that ends before is a fault that nothing else would show: a watch that
//! says nothing looks like a quiet cluster. The process ends with it, and Kubernetes starts another.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// A task ended that must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task} {how}")]
pub struct Fault {
    task: String,
    how: String,
}

/// The tasks of the process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tasks(Arc<watch::Sender<Option<Fault>>>);

impl Tasks {
    /// No task yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `task`, guarded: that it ends or panics is a fault. That it is aborted, or dropped, is none.
    pub fn guard(
        &self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (task_name, faults) = (name.into(), self.clone());
        async move {
            let how = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(()) => "ended by itself".to_owned(),
                Err(panic) => format!("panicked: {}", words(&*panic)),
            };
            error!(task = task_name, how, "a task ended that must not");
            // The first one is the cause of others.
            faults.0.send_if_modified(|fault| {
                let first = fault.is_none();
                fault.get_or_insert(Fault {
                    task: task_name,
                    how,
                });
                first
            });
        }
    }

    /// Waits for the first fault.
    pub async fn fault(&self) -> Fault {
        let mut faults = self.0.subscribe();
        match faults
            .wait_for(Option::is_some)
            .await
            .map(|fault| fault.clone())
        {
            Ok(Some(fault)) => fault,
            // The sender is ours.
            _ => std::future::pending().await,
        }
    }

    /// Does `work` until its end or a fault. After a fault `end` is cancelled, which must bring the work to its end: what
    /// the fault leaves whole is drained as ever.
    ///
    /// # Errors
    /// The work's own, or the fault.
    pub async fn supervise<E: From<Fault>>(
        &self,
        end: &CancellationToken,
        work: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            result = &mut work => result,
            fault = self.fault() => {
                end.cancel();
                work.await?;
                Err(fault.into())
            }
        }
    }
}

/// The words of a panic.
pub fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_ends_the_work_after_it_was_drained() {
        for (panics, words) in [
            (false, "the watch ended by itself"),
            (true, "the watch panicked: boom"),
        ] {
            let (tasks, end) = (Tasks::new(), CancellationToken::new());
            tokio::spawn(tasks.guard("the watch", async move { assert!(!panics, "boom") }));
            let mut drained = false;
            let work = async {
                end.cancelled().await;
                drained = true;
                Ok::<_, Fault>(())
            };
            let fault = tasks.supervise(&end, work).await.unwrap_err();
            assert_eq!(fault.to_string(), words);
            assert!(drained);
        }
    }

    #[tokio::test]
    async fn a_task_that_is_aborted_is_no_fault() {
        let (tasks, end) = (Tasks::new(), CancellationToken::new());
        let task = tokio::spawn(tasks.guard("the watch", pending()));
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(
            tasks.supervise(&end, async { Ok::<_, Fault>(()) }).await,
            Ok(())
        );
        assert!(tasks.fault().now_or_never().is_none() && !end.is_cancelled());
    }
}
