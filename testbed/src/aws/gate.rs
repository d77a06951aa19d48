//! Gates, which hold a call at a point so that a test can act at that moment.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

use super::faults::Injection;

/// Pause of a released call, so that the server first notices a killed client's closed connection.
const DISCONNECT_NOTICE: Duration = Duration::from_millis(20);

/// Point at which a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// After the call arrived, before any part of it is performed.
    Before,
    /// After the call is performed, before the response.
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateState {
    Closed,
    Open,
    Cut,
}

/// The call's side of a gate.
pub(super) struct Door {
    state: watch::Sender<GateState>,
    reached: watch::Sender<bool>,
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(GateState::Closed),
            reached: watch::Sender::new(false),
        }
    }

    pub(super) fn open(&self) {
        self.set(GateState::Open);
    }

    fn set(&self, to: GateState) {
        self.state.send_if_modified(|state| {
            let closed = *state == GateState::Closed;
            if closed {
                *state = to;
            }
            closed
        });
    }

    /// Waits and returns whether the call continues. The server drops this future when the client disconnects.
    pub(super) async fn wait(&self) -> bool {
        let mut state = self.state.subscribe();
        self.reached.send_replace(true);
        // The sender lives as long as `self`.
        let continues = state
            .wait_for(|state| *state != GateState::Closed)
            .await
            .is_ok_and(|state| *state == GateState::Open);
        if continues {
            tokio::time::sleep(DISCONNECT_NOTICE).await;
        }
        continues
    }
}

/// Holds one call. Dropping the gate releases the call and lets later matching calls through.
pub struct Gate {
    door: Arc<Door>,
    injection: Injection,
}

impl Gate {
    pub(super) fn new(door: Arc<Door>, injection: Injection) -> Self {
        Self { door, injection }
    }

    /// Waits until the call is held; fails after `deadline`.
    pub async fn reached(&self, deadline: Duration) -> anyhow::Result<()> {
        let mut reached = self.door.reached.subscribe();
        let waited = tokio::time::timeout(deadline, reached.wait_for(|reached| *reached)).await;
        waited.with_context(|| format!("no such call within {deadline:?}"))??;
        Ok(())
    }

    /// Returns whether the call arrived.
    pub fn was_reached(&self) -> bool {
        *self.door.reached.borrow()
    }

    /// Releases the call. A call held before it is performed is not performed if its client has disconnected.
    pub fn release(&self) {
        self.injection.cancel();
        self.door.open();
    }

    /// Cuts the connection: a call held before it is performed is not performed, a performed one gets no response.
    pub fn cut(&self) {
        self.injection.cancel();
        self.door.set(GateState::Cut);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.release();
    }
}
