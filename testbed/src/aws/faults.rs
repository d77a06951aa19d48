//! Matchers for calls, and the faults to inject into them.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::answer::{self, AwsErrorResponse};
use super::gate::{Door, Point};
use crate::injections::Injections;
pub use crate::injections::{Injection, Times};
use crate::serve::Reply;

/// Matches calls.
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
    /// Matches every call of the `ELBv2` API.
    pub fn all() -> Self {
        Self(Kind::All)
    }

    /// Matches calls that change nothing.
    pub fn reads() -> Self {
        Self(Kind::Reads)
    }

    /// Matches calls that may change something.
    pub fn writes() -> Self {
        Self(Kind::Writes)
    }

    /// Matches calls of one action, such as `CreateLoadBalancer`.
    pub fn action(action: &str) -> Self {
        Self::actions(&[action])
    }

    /// Matches calls of any of these actions.
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

/// Returns whether calls of this action change nothing.
pub(super) fn is_read(action: &str) -> bool {
    action.starts_with("Describe") || action.starts_with("Get")
}

/// A fault in place of the correct response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rejects the call with 400 `Throttling`.
    Throttled,
    /// Rejects the call with this error.
    Code(AwsErrorResponse),
    /// Rejects the call with this HTTP status and a meaningless body, as a load balancer in front of AWS's servers
    /// does.
    Bare(u16),
    /// Rejects the call with 403 `ExpiredToken`.
    Expired,
    /// Cuts the connection without performing the call.
    CutBefore,
    /// Performs the call, then cuts the connection without a response.
    CutAfter,
    /// Performs the call after this time.
    Slow(Duration),
    /// Never performs the call or responds.
    Hang,
}

impl Fault {
    /// Rejects the call with HTTP 400 and this error code.
    pub fn code(code: &str, message: &str) -> Self {
        Self::Code(AwsErrorResponse::new(code, message))
    }

    /// Rejects the call with 500 `InternalFailure`.
    pub fn internal_failure() -> Self {
        let message =
            "The request processing has failed because of an unknown error, exception or failure.";
        Self::Code(AwsErrorResponse::with_status(
            500,
            "InternalFailure",
            message,
        ))
    }

    /// Rejects the call with 503 `ServiceUnavailable`.
    pub fn unavailable() -> Self {
        Self::Code(unavailable())
    }

    /// Returns the response of a fault that does not perform the call.
    pub(super) fn response(&self) -> Option<FaultResponse> {
        let error = match self {
            Self::Throttled => AwsErrorResponse::new("Throttling", "Rate exceeded"),
            Self::Expired => expired(),
            Self::Code(error) => error.clone(),
            Self::Bare(status) => return Some(FaultResponse::Bare(*status)),
            Self::CutBefore | Self::CutAfter | Self::Slow(_) | Self::Hang => return None,
        };
        Some(FaultResponse::Error(error))
    }
}

/// A response to a call that is not performed.
pub(super) enum FaultResponse {
    Error(AwsErrorResponse),
    Bare(u16),
}

impl FaultResponse {
    pub(super) fn reply(self, action: &str) -> Reply {
        match self {
            Self::Error(error) => answer::reply(action, Err(error)),
            Self::Bare(status) => Reply::status(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            ),
        }
    }
}

pub(super) fn unavailable() -> AwsErrorResponse {
    let message = "The request has failed due to a temporary failure of the server.";
    AwsErrorResponse::with_status(503, "ServiceUnavailable", message)
}

pub(super) fn expired() -> AwsErrorResponse {
    AwsErrorResponse::with_status(
        403,
        "ExpiredToken",
        "The security token included in the request is expired",
    )
}

/// An intervention in a call.
#[derive(Clone)]
pub(super) enum Intervention {
    Fault(Fault),
    Gate(Point, Arc<Door>),
}

/// All interventions of a test.
pub(super) type Plan = Injections<On, Intervention>;

/// Removes all interventions and releases held calls.
pub(super) fn clear(plan: &Plan) {
    for intervention in plan.clear() {
        if let Intervention::Gate(_, door) = intervention {
            door.open();
        }
    }
}
