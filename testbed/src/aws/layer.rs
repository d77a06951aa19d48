//! State of the layer in front of moto, and the journal of calls.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::Result;
use tokio::sync::RwLock;

use super::faults::{self, Plan};
use super::moto::Moto;
use super::state::State;
use crate::journal::{Journal, lock};
use crate::serve::runtime;

/// A call of the `ELBv2` API that reached the server.
#[derive(Clone, Debug)]
pub struct Call {
    /// Arrival time of the first bytes.
    pub at: Instant,
    /// The action, such as `CreateLoadBalancer`.
    pub action: String,
    /// The other parameters, flat, such as `Tags.member.1.Key`.
    pub params: BTreeMap<String, String>,
    /// The response.
    pub answer: Outcome,
    /// Whether AWS's rules evaluated the call, whatever their result. A call that hangs, is cut beforehand, or gets a
    /// fault as response never reaches the rules.
    pub done: bool,
}

impl Call {
    /// Returns whether the call can change nothing.
    pub fn is_read(&self) -> bool {
        faults::is_read(&self.action)
    }

    /// Returns the error code of the response.
    pub fn code(&self) -> Option<&str> {
        match &self.answer {
            Outcome::Answered { code, .. } => code.as_deref(),
            Outcome::Cut => None,
        }
    }
}

/// Outcome of a call for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response, possibly still being sent.
    Answered {
        /// The HTTP status.
        http: u16,
        /// AWS's error code.
        code: Option<String>,
    },
    /// No response: a fault or the client cut the connection.
    Cut,
}

pub(super) struct Layer {
    pub(super) moto: Moto,
    pub(super) state: Mutex<State>,
    pub(super) plan: Arc<Plan>,
    pub(super) journal: Journal<Call>,
    pub(super) down: AtomicBool,
    /// Lock that serializes writes and excludes reads during a write.
    pub(super) write_lock: RwLock<()>,
}

impl Layer {
    pub(super) fn new(moto: Moto, state: State) -> Self {
        Self {
            moto,
            state: Mutex::new(state),
            plan: Arc::default(),
            journal: Journal::default(),
            down: AtomicBool::new(false),
            write_lock: RwLock::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs a future of this module on the servers' runtime, whatever the caller's runtime.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        runtime()?.spawn(work).await?
    }
}
