//! Which calls something is done to, and what.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::answer::{self, Refused};
use super::gate::{Door, Point};
use crate::orders::Orders;
pub use crate::orders::{Order, Times};
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
        Self(Kind::Actions(
            actions.iter().map(|action| (*action).to_owned()).collect(),
        ))
    }

    pub(super) fn matches(&self, action: &str) -> bool {
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
        let words =
            "The request processing has failed because of an unknown error, exception or failure.";
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
            Self::Bare(status) => Reply::status(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            ),
        }
    }
}

pub(super) fn unavailable() -> Refused {
    let words = "The request has failed due to a temporary failure of the server.";
    Refused::with_status(503, "ServiceUnavailable", words)
}

pub(super) fn expired() -> Refused {
    Refused::with_status(
        403,
        "ExpiredToken",
        "The security token included in the request is expired",
    )
}

/// What is done to a call on its way.
#[derive(Clone)]
pub(super) enum Deed {
    Fault(Fault),
    Gate(Point, Arc<Door>),
}

/// All that is ordered.
pub(super) type Plan = Orders<On, Deed>;

/// Takes all back: what is held goes on.
pub(super) fn clear(plan: &Plan) {
    for deed in plan.clear() {
        if let Deed::Gate(_, door) = deed {
            door.open();
        }
    }
}
