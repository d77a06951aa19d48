//! Bodies of requests and responses through the proxy.

use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;

pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Body = UnsyncBoxBody<Bytes, Error>;
pub(super) type Upstream = Client<HttpsConnector<HttpConnector>, Body>;

/// Longest wait for a byte to get from the proxy to the kernel.
pub(super) const FLUSHED: Duration = Duration::from_secs(1);
