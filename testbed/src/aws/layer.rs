//! State of the layer in front of moto, and the journal of the calls.

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
    /// When its first bytes were read.
    pub at: Instant,
    /// Such as `CreateLoadBalancer`.
    pub action: String,
    /// The other parameters, flat, such as `Tags.member.1.Key`.
    pub params: BTreeMap<String, String>,
    /// What was answered.
    pub answer: Outcome,
    /// It went through to AWS's rules, whatever they said. A call that hangs, is cut before, or is answered by a fault did
    /// not.
    pub done: bool,
}

impl Call {
    /// Whether it can change nothing.
    pub fn is_read(&self) -> bool {
        faults::is_read(&self.action)
    }

    /// The error code of its answer.
    pub fn code(&self) -> Option<&str> {
        match &self.answer {
            Outcome::Answered { code, .. } => code.as_deref(),
            Outcome::Cut => None,
        }
    }
}

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer, or at least it was on its way.
    Answered {
        /// The HTTP status.
        http: u16,
        /// AWS's error code.
        code: Option<String>,
    },
    /// No answer: the connection was cut, by a fault or by the client itself.
    Cut,
}

pub(super) struct Layer {
    pub(super) moto: Moto,
    pub(super) state: Mutex<State>,
    pub(super) plan: Arc<Plan>,
    pub(super) journal: Journal<Call>,
    pub(super) down: AtomicBool,
    /// Calls that change something are done one at a time, and none is read meanwhile.
    pub(super) turn: RwLock<()>,
}

impl Layer {
    pub(super) fn new(moto: Moto, state: State) -> Self {
        Self {
            moto,
            state: Mutex::new(state),
            plan: Arc::default(),
            journal: Journal::default(),
            down: AtomicBool::new(false),
            turn: RwLock::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Runs something of this module's own on the servers' runtime, whatever runtime the caller has.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        runtime()?.spawn(work).await?
    }
}
