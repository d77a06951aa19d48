//! Bodies on their way through the proxy.

use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;

pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;
pub(super) type Body = UnsyncBoxBody<Bytes, Error>;
pub(super) type Upstream = Client<HttpsConnector<HttpConnector>, Body>;

/// How long a byte may take from the proxy to the kernel before what waits for it goes on all the same.
pub(super) const FLUSHED: Duration = Duration::from_secs(1);
