//! What has this process stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, which is how Kubernetes ends a Pod, and Ctrl-C. From when there is one of these, neither ends the process by itself.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes them from now on.
    ///
    /// # Errors
    /// The system does not let it.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
