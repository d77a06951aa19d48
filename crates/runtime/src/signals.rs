//! Signals that stop the process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Handlers of SIGTERM, with which Kubernetes ends a Pod, and of Ctrl-C. Once this value exists, neither signal ends
/// the process by itself.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Registers the signal handlers.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns a token that SIGTERM or Ctrl-C cancels. A second signal ends the process immediately.
///
/// # Errors
/// The errors of [`Signals::new`].
pub fn stop() -> io::Result<CancellationToken> {
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            if token.is_cancelled() {
                std::process::exit(1);
            }
            info!("received a signal; draining");
            token.cancel();
        }
    });
    Ok(stop)
}
