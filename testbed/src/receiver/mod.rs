//! A fake webhook receiver that records requests, and misbehaves on request.

mod script;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, Method, StatusCode};
use hyper::body::Bytes;

pub use self::script::Pace;
use self::script::Script;
use crate::journal::{Journal, lock};
pub use crate::serve::Reply;
use crate::serve::{Arrived, Server, serve_http};
use crate::tls::{self, Identity};

/// A completely received request.
pub struct Request {
    /// Arrival time of the first bytes.
    pub at: Instant,
    /// Arrival time on the wall clock.
    pub time: SystemTime,
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The query, empty if there is none.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Status of the response; `None` if the client got no complete one.
    pub answered: Option<StatusCode>,
}

impl Request {
    /// Returns a header's value, if present and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body as text, with replacement characters for invalid UTF-8.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::from_slice(&self.body)
    }
}

/// Debug output omits header values, because one of them is a token.
impl fmt::Debug for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Request")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("body", &self.text())
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

/// An HTTP/1 server on a free port of 127.0.0.1. Clones share the server, which stops with the last clone.
#[derive(Clone)]
pub struct Receiver {
    shared: Arc<Shared>,
    server: Arc<Server>,
    scheme: &'static str,
}

#[derive(Default)]
struct Shared {
    requests: Journal<Request>,
    script: Mutex<Script>,
    turn: tokio::sync::Mutex<()>,
}

impl Receiver {
    /// Starts a plain HTTP receiver that answers 200.
    pub fn start() -> anyhow::Result<Self> {
        Self::serve(None, "http")
    }

    /// Starts an HTTPS receiver. With `client_ca_pem`, clients need a certificate of that authority.
    pub fn start_tls(identity: &Identity, client_ca_pem: Option<&str>) -> anyhow::Result<Self> {
        Self::serve(
            Some(tls::server_config(identity, client_ca_pem, &["http/1.1"])?),
            "https",
        )
    }

    fn serve(tls: Option<rustls::ServerConfig>, scheme: &'static str) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let server = serve_http(tls, {
            let shared = shared.clone();
            move |arrived| shared.clone().handle(arrived)
        })?;
        Ok(Self {
            shared,
            server: Arc::new(server),
            scheme,
        })
    }

    /// Returns the URL, such as `http://127.0.0.1:4711`.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.server.address())
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.server.address().port()
    }

    /// Returns all requests so far, in the order of their last bytes.
    pub fn requests(&self) -> Vec<Arc<Request>> {
        self.shared.requests.all()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.shared.requests.clear();
    }

    /// Returns all requests once `enough` accepts them; fails after `deadline`.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Request>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<Request>>> {
        self.shared.requests.wait_for(deadline, enough).await
    }

    /// Calls `listener` for each later request, before the response.
    pub fn on_request(&self, listener: impl Fn(&Request) + Send + Sync + 'static) {
        self.shared.requests.listen(listener);
    }

    /// Sets the reply to requests that no other rule covers.
    pub fn always(&self, reply: Reply) {
        lock(&self.shared.script).always = reply;
    }

    /// Sets the reply to the next `count` requests, after those of earlier orders.
    pub fn next(&self, count: usize, reply: Reply) {
        lock(&self.shared.script).next.push_back((count, reply));
    }

    /// Sets the reply to requests to `path`, except those that [`Self::next`] covers.
    pub fn at_path(&self, path: &str, reply: Reply) {
        lock(&self.shared.script)
            .paths
            .insert(path.to_owned(), reply);
    }

    /// Sets the reply to requests whose body contains `text`, except those that [`Self::next`] covers.
    pub fn at_text(&self, text: &str, reply: Reply) {
        lock(&self.shared.script)
            .texts
            .push((text.to_owned(), reply));
    }

    /// Sets the rate limit; `None` accepts everything.
    pub fn pace(&self, pace: Option<Pace>) {
        lock(&self.shared.script).set_pace(pace);
    }

    /// Restores the default: answers 200 to everything. A listener that [`Self::refuse`] closed stays closed.
    pub fn behave(&self) {
        *lock(&self.shared.script) = Script::default();
    }

    /// Cuts all connections and refuses new ones; the port stays reserved.
    pub async fn refuse(&self) -> anyhow::Result<()> {
        self.server.shut().await
    }

    /// Listens again on the same port.
    pub async fn accept(&self) -> anyhow::Result<()> {
        self.server.open().await
    }
}

impl Shared {
    async fn handle(self: Arc<Self>, arrived: Arrived) -> Reply {
        let path = arrived.uri.path();
        let (reply, turn) = lock(&self.script).decide(path, &arrived.body, arrived.moment.instant);
        self.requests.push(Request {
            at: arrived.moment.instant,
            time: arrived.moment.time,
            path: path.to_owned(),
            query: arrived.uri.query().unwrap_or_default().to_owned(),
            method: arrived.method,
            headers: arrived.headers,
            body: arrived.body,
            answered: reply.answered(),
        });
        if let Some(takes) = turn {
            let _turn = self.turn.lock().await;
            tokio::time::sleep(takes).await;
        }
        reply
    }
}
