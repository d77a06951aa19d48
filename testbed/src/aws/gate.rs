//! A call that is held on its way, so that something can be done at that very moment.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

use super::faults::Order;

/// What a call that was let go waits for, so that the end of a client that was killed meanwhile is noticed first.
const NOTICE: Duration = Duration::from_millis(20);

/// Where on its way a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It arrived, and nothing of it is done.
    Before,
    /// It is done; the client knows nothing of it.
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Closed,
    Open,
    Cut,
}

/// The side of a gate that a call comes to.
pub(super) struct Door {
    way: watch::Sender<Way>,
    held: watch::Sender<bool>,
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            way: watch::Sender::new(Way::Closed),
            held: watch::Sender::new(false),
        }
    }

    pub(super) fn open(&self) {
        self.set(Way::Open);
    }

    fn set(&self, to: Way) {
        self.way.send_if_modified(|way| {
            let closed = *way == Way::Closed;
            if closed {
                *way = to;
            }
            closed
        });
    }

    /// Waits, and says whether the call goes on. The caller is dropped here when its client is gone.
    pub(super) async fn pass(&self) -> bool {
        let mut way = self.way.subscribe();
        self.held.send_replace(true);
        // The sender lives as long as `self`.
        let goes_on = way
            .wait_for(|way| *way != Way::Closed)
            .await
            .is_ok_and(|way| *way == Way::Open);
        if goes_on {
            tokio::time::sleep(NOTICE).await;
        }
        goes_on
    }
}

/// Holds one call. Dropping it lets the call go on, and any that would still have come to it.
pub struct Gate {
    door: Arc<Door>,
    order: Order,
}

impl Gate {
    pub(super) fn new(door: Arc<Door>, order: Order) -> Self {
        Self { door, order }
    }

    /// Waits until the call is held; an error after `deadline`.
    pub async fn reached(&self, deadline: Duration) -> anyhow::Result<()> {
        let mut held = self.door.held.subscribe();
        let waited = tokio::time::timeout(deadline, held.wait_for(|held| *held)).await;
        waited.with_context(|| format!("no such call within {deadline:?}"))??;
        Ok(())
    }

    /// Whether the call came.
    pub fn was_reached(&self) -> bool {
        *self.door.held.borrow()
    }

    /// Lets the call go on. If its client is gone by then, a call held before it is done is not done.
    pub fn release(&self) {
        self.order.take_back();
        self.door.open();
    }

    /// Cuts the connection: a call held before it is done is not done, one held after it is not answered.
    pub fn cut(&self) {
        self.order.take_back();
        self.door.set(Way::Cut);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.release();
    }
}
