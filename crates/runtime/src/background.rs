//! CPU-bound work, one job at a time on a thread of low priority, so that it does not delay the async workers, which
//! renew the lease.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::debug;

/// Runner of jobs, one at a time. Clones share the limit.
#[derive(Clone)]
pub struct Background(Arc<Semaphore>);

/// Permit to run a job.
pub struct Permit {
    _permit: OwnedSemaphorePermit,
}

impl Default for Background {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Background {
    /// Waits until no other job runs.
    ///
    /// # Errors
    /// None in practice: the semaphore is never closed.
    pub async fn acquire(&self) -> io::Result<Permit> {
        let permit = Arc::clone(&self.0)
            .acquire_owned()
            .await
            .map_err(io::Error::other)?;
        Ok(Permit { _permit: permit })
    }
}

impl Permit {
    /// Runs `job`, and resumes its panic in the caller. The job keeps the permit until its end, even if nobody waits
    /// for the result.
    ///
    /// # Errors
    /// The operating system's error if no thread can be created.
    pub async fn run<T: Send + 'static>(
        self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (answer, result) = oneshot::channel();
        // A thread of tokio's pool would keep the low priority for other work.
        thread::Builder::new()
            .name("background".into())
            .spawn(move || {
                lower_priority();
                let done = catch_unwind(AssertUnwindSafe(job));
                drop(self);
                let _ = answer.send(done);
            })?;
        let done = result.await.map_err(io::Error::other)?;
        Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// Niceness of the thread: about a tenth of the CPU time of a thread of normal priority. At 19, the lowest priority, a
/// machine whose CPUs are busy for minutes would hold a job up for as long.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Gives this thread a low priority.
#[cfg(target_os = "linux")]
fn lower_priority() {
    // On Linux, 0 means the calling thread, not its process (setpriority(2)).
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        debug!(%error, "cannot lower the priority of a thread; will run jobs at normal priority");
    }
}

/// Does nothing: on other platforms the call would lower the priority of the whole process.
#[cfg(not(target_os = "linux"))]
fn lower_priority() {
    debug!("cannot set a thread's priority on this platform; will run jobs at normal priority");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn job_has_a_low_priority_and_the_caller_keeps_its_own() {
        use rustix::process::getpriority_process;
        let before = getpriority_process(None).unwrap();
        let permit = Background::default().acquire().await.unwrap();
        let job = || (thread::current().id(), getpriority_process(None).unwrap());
        let (thread, priority) = permit.run(job).await.unwrap();
        assert_ne!(thread, thread::current().id());
        assert_eq!(
            (priority, getpriority_process(None).unwrap()),
            (NICENESS, before)
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn jobs_run_one_at_a_time_even_if_a_result_is_no_longer_awaited() {
        let (background, running) = (Background::default(), Arc::new(AtomicUsize::new(0)));
        let runs = (0..8).map(|number| {
            let (background, running) = (background.clone(), Arc::clone(&running));
            async move {
                let permit = background.acquire().await.unwrap();
                let job = move || {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                let run = permit.run(job);
                if number % 2 == 0 {
                    let _ = tokio::time::timeout(Duration::from_millis(1), run).await;
                } else {
                    run.await.unwrap();
                }
            }
        });
        join_all(runs).await;
        assert!(background.acquire().await.is_ok());
    }

    #[tokio::test]
    async fn panic_reaches_the_caller_and_the_next_job_runs() {
        let background = Background::default();
        let permit = background.acquire().await.unwrap();
        let panicking = AssertUnwindSafe(permit.run(|| -> usize { panic!("boom") }));
        let panic = panicking.catch_unwind().await.unwrap_err();
        assert_eq!(super::super::tasks::panic_message(&*panic), "boom");
        let permit = background.acquire().await.unwrap();
        assert_eq!(permit.run(|| 7).await.unwrap(), 7);
    }
}
