//! Which calls something is done to, and what.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use tokio::sync::watch;

use super::answer::{self, Refused};
use super::gate::{Door, Point};
use crate::journal::lock;
pub use crate::proxy::Times;
use crate::serve::Reply;

/// Calls that have something in common.
#[derive(Clone, Debug)]
pub struct On(Kind);

#[derive(Clone, Debug)]
enum Kind {
    All,
    Reads,
    Writes,
    Actions(Vec<String>),
}

impl On {
    /// Every call of the `ELBv2` API.
    pub fn all() -> Self {
        Self(Kind::All)
    }

    /// Calls that change nothing.
    pub fn reads() -> Self {
        Self(Kind::Reads)
    }

    /// Calls that may change something.
    pub fn writes() -> Self {
        Self(Kind::Writes)
    }

    /// Calls of one action, such as `CreateLoadBalancer`.
    pub fn action(action: &str) -> Self {
        Self::actions(&[action])
    }

    /// Calls of one of these actions.
    pub fn actions(actions: &[&str]) -> Self {
        Self(Kind::Actions(actions.iter().map(|action| (*action).to_owned()).collect()))
    }

    fn matches(&self, action: &str) -> bool {
        match &self.0 {
            Kind::All => true,
            Kind::Reads => is_read(action),
            Kind::Writes => !is_read(action),
            Kind::Actions(actions) => actions.iter().any(|wanted| wanted == action),
        }
    }
}

/// Whether calls of this action change nothing.
pub(super) fn is_read(action: &str) -> bool {
    action.starts_with("Describe") || action.starts_with("Get")
}

/// What happens to a call instead of what is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not done: 400 `Throttling`.
    Throttled,
    /// Not done: this error.
    Code(Refused),
    /// Not done: this HTTP status with no body that means anything, as a load balancer before AWS's own servers has it.
    Bare(u16),
    /// Not done: 403 `ExpiredToken`.
    Expired,
    /// Not done: the connection is cut.
    CutBefore,
    /// Done; then the connection is cut without an answer.
    CutAfter,
    /// Done after this time.
    Slow(Duration),
    /// Not done, and never answered.
    Hang,
}

impl Fault {
    /// Not done: HTTP 400 with this error code.
    pub fn code(code: &str, message: &str) -> Self {
        Self::Code(Refused::new(code, message))
    }

    /// Not done: 500 `InternalFailure`.
    pub fn internal_failure() -> Self {
        let words = "The request processing has failed because of an unknown error, exception or failure.";
        Self::Code(Refused::with_status(500, "InternalFailure", words))
    }

    /// Not done: 503 `ServiceUnavailable`.
    pub fn unavailable() -> Self {
        Self::Code(unavailable())
    }

    /// The answer of a call that is not done.
    pub(super) fn instead(&self) -> Option<Instead> {
        let refused = match self {
            Self::Throttled => Refused::new("Throttling", "Rate exceeded"),
            Self::Expired => expired(),
            Self::Code(refused) => refused.clone(),
            Self::Bare(status) => return Some(Instead::Bare(*status)),
            Self::CutBefore | Self::CutAfter | Self::Slow(_) | Self::Hang => return None,
        };
        Some(Instead::Refused(refused))
    }
}

/// An answer without a deed.
pub(super) enum Instead {
    Refused(Refused),
    Bare(u16),
}

impl Instead {
    pub(super) fn reply(self, action: &str) -> Reply {
        match self {
            Self::Refused(refused) => answer::reply(action, Err(refused)),
            Self::Bare(status) => {
                Reply::status(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
            }
        }
    }
}

pub(super) fn unavailable() -> Refused {
    let words = "The request has failed due to a temporary failure of the server.";
    Refused::with_status(503, "ServiceUnavailable", words)
}

pub(super) fn expired() -> Refused {
    Refused::with_status(403, "ExpiredToken", "The security token included in the request is expired")
}

/// An order that stands until it is taken back, by hand: dropping this does nothing.
#[derive(Clone)]
pub struct Order {
    hits: watch::Sender<u64>,
    take_back: Arc<dyn Fn() + Send + Sync>,
}

impl Order {
    /// How often it was carried out.
    pub fn hits(&self) -> u64 {
        *self.hits.borrow()
    }

    /// Waits until it was carried out so often; an error after `deadline`.
    pub async fn wait_for_hits(&self, hits: u64, deadline: Duration) -> anyhow::Result<()> {
        let mut seen = self.hits.subscribe();
        tokio::time::timeout(deadline, seen.wait_for(|seen| *seen >= hits))
            .await
            .with_context(|| format!("{} of {hits} hits within {deadline:?}", self.hits()))??;
        Ok(())
    }

    /// Takes it back.
    pub fn take_back(&self) {
        (self.take_back)();
    }
}

/// What is done to a call on its way.
#[derive(Clone)]
pub(super) enum Deed {
    Fault(Fault),
    Gate(Point, Arc<Door>),
}

struct Standing {
    id: u64,
    on: On,
    times: Times,
    seen: u64,
    deed: Deed,
    hits: watch::Sender<u64>,
}

#[derive(Default)]
struct Orders {
    last_id: u64,
    standing: Vec<Standing>,
}

/// All that is ordered.
#[derive(Default)]
pub(super) struct Plan(Mutex<Orders>);

impl Plan {
    pub(super) fn order(self: &Arc<Self>, on: On, times: Times, deed: Deed) -> Order {
        let hits = watch::Sender::new(0);
        let mut orders = lock(&self.0);
        orders.last_id += 1;
        let id = orders.last_id;
        orders.standing.push(Standing { id, on, times, seen: 0, deed, hits: hits.clone() });
        let plan = self.clone();
        Order { hits, take_back: Arc::new(move || lock(&plan.0).standing.retain(|standing| standing.id != id)) }
    }

    pub(super) fn clear(&self) {
        // Dropped after the lock is: a gate's door opens then.
        let standing = std::mem::take(&mut lock(&self.0).standing);
        for Standing { deed, .. } in standing {
            if let Deed::Gate(_, door) = deed {
                door.open();
            }
        }
    }

    /// What is done to this call, in the order in which it was ordered.
    pub(super) fn decide(&self, action: &str) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for standing in lock(&self.0).standing.iter_mut().filter(|standing| standing.on.matches(action)) {
            standing.seen += 1;
            if standing.times.includes(standing.seen) {
                standing.hits.send_modify(|hits| *hits += 1);
                deeds.push(standing.deed.clone());
            }
        }
        deeds
    }
}
