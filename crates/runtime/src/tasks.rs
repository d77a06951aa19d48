//! Tasks that run as long as the process. A stopped watch looks like a quiet cluster, so the early exit of its task
//! would go unnoticed. The process therefore ends with the task, and Kubernetes restarts the process.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Unexpected exit of a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task} {cause}")]
pub struct TaskExit {
    task: String,
    cause: String,
}

/// Guard of the tasks of the process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tasks(Arc<watch::Sender<Option<TaskExit>>>);

impl Tasks {
    /// Creates a guard without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Guards `task`: a return or a panic is an unexpected exit; an abort or a drop is not.
    pub fn guard(
        &self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (task_name, exits) = (name.into(), self.clone());
        async move {
            let cause = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(()) => "exited".to_owned(),
                Err(panic) => format!("panicked: {}", panic_message(&*panic)),
            };
            error!(task = task_name, cause, "task exited unexpectedly");
            // The first exit causes the others.
            exits.0.send_if_modified(|exit| {
                let first = exit.is_none();
                exit.get_or_insert(TaskExit {
                    task: task_name,
                    cause,
                });
                first
            });
        }
    }

    /// Waits for the first unexpected exit.
    pub(crate) async fn first_exit(&self) -> TaskExit {
        let mut exits = self.0.subscribe();
        match exits
            .wait_for(Option::is_some)
            .await
            .map(|exit| exit.clone())
        {
            Ok(Some(exit)) => exit,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }

    /// Runs `work` until it finishes or a task exits. After an exit `end` is cancelled, which must make `work` finish:
    /// the other tasks are drained as usual.
    ///
    /// # Errors
    /// The error of `work`, or the exit.
    pub(crate) async fn supervise<E: From<TaskExit>>(
        &self,
        end: &CancellationToken,
        work: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            result = &mut work => result,
            exit = self.first_exit() => {
                end.cancel();
                work.await?;
                Err(exit.into())
            }
        }
    }
}

/// Returns the message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
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
    async fn work_is_drained_and_ends_when_a_task_returns_or_panics() {
        for (panics, message) in [
            (false, "the watch exited"),
            (true, "the watch panicked: boom"),
        ] {
            let (tasks, end) = (Tasks::new(), CancellationToken::new());
            tokio::spawn(tasks.guard("the watch", async move { assert!(!panics, "boom") }));
            let mut drained = false;
            let work = async {
                end.cancelled().await;
                drained = true;
                Ok::<_, TaskExit>(())
            };
            let exit = tasks.supervise(&end, work).await.unwrap_err();
            assert_eq!(exit.to_string(), message);
            assert!(drained);
        }
    }

    #[tokio::test]
    async fn aborted_task_is_no_unexpected_exit() {
        let (tasks, end) = (Tasks::new(), CancellationToken::new());
        let task = tokio::spawn(tasks.guard("the watch", pending()));
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(
            tasks.supervise(&end, async { Ok::<_, TaskExit>(()) }).await,
            Ok(())
        );
        assert!(tasks.first_exit().now_or_never().is_none() && !end.is_cancelled());
    }
}
