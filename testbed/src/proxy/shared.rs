//! State of a proxy, and the requests that reached it.

use std::sync::Arc;
use std::time::Instant;

use http::uri::{Authority, Scheme};

use super::body::Upstream;
use super::request::ApiRequest;
use super::rules::Rules;
use super::watches::Watches;
use crate::journal::Journal;

/// A request that reached the proxy.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When its head had been read.
    pub at: Instant,
    /// What it is about.
    pub request: ApiRequest,
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
