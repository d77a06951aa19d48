//! Waiting for a state, with a deadline: tests never sleep for a fixed time instead.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Pause before the second check of a state. Each further pause is a quarter longer, so that a long wait costs little.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Longest pause between two checks.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Repeats `look` until it returns a value. Errors of `look` are ignored, except that a timeout reports the last one.
///
/// # Errors
///
/// `look` returns no value within `deadline`; the error names `what`.
pub async fn until<T>(
    what: impl Display,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let (end, mut pause) = (Instant::now() + deadline, FIRST_PAUSE);
    loop {
        let missed = match tokio::time::timeout(deadline, look()).await {
            Ok(Ok(Some(found))) => return Ok(found),
            Ok(Ok(None)) => anyhow!("not within {deadline:?}"),
            Ok(Err(error)) => error.context(format!("not within {deadline:?}")),
            Err(_) => anyhow!("a check takes longer than {deadline:?}"),
        };
        if Instant::now() > end {
            return Err(missed.context(what.to_string()));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(LONGEST_PAUSE);
    }
}
