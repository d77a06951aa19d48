//! State of a proxy, and the requests it received.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::StatusCode;
use http::uri::{Authority, Scheme};

use super::body::Upstream;
use super::request::ApiRequest;
use super::rules::Rules;
use super::watches::Watches;
use crate::journal::Journal;

/// A request that reached the proxy.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Time when the proxy had read the head.
    pub at: Instant,
    /// The parsed request.
    pub request: ApiRequest,
    answer: OnceLock<StatusCode>,
}

impl Seen {
    pub(super) fn new(at: Instant, request: ApiRequest) -> Self {
        Self {
            at,
            request,
            answer: OnceLock::new(),
        }
    }

    pub(super) fn answered(&self, status: StatusCode) {
        let _ = self.answer.set(status);
    }

    /// Returns the apiserver's own status, once it has answered.
    pub fn answer(&self) -> Option<StatusCode> {
        self.answer.get().copied()
    }
}

/// State of a proxy.
pub(super) struct Shared {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    pub(super) client: Upstream,
    pub(super) requests: Journal<Seen>,
    pub(super) rules: Arc<Rules>,
    pub(super) watches: Arc<Watches>,
}
