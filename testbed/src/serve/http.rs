//! Completely read HTTP/1 requests, and correct and faulty responses.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;

use super::{Line, Moment, Server, Wire};

/// A completely read request.
pub(crate) struct Arrived {
    pub(crate) moment: Moment,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A server's response to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    ending: Ending,
    delay: Duration,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Whole,
    Half,
    Reset,
    Never,
}

impl Reply {
    /// Answers this status.
    pub fn status(status: StatusCode) -> Self {
        Self {
            ending: Ending::Whole,
            delay: Duration::ZERO,
            status,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Answers 200.
    pub fn ok() -> Self {
        Self::status(StatusCode::OK)
    }

    /// Redirects the client (302).
    pub fn redirect(location: HeaderValue) -> Self {
        Self::status(StatusCode::FOUND).header(header::LOCATION, location)
    }

    /// Answers 200 with this many meaningless bytes.
    pub fn junk(bytes: usize) -> Self {
        let body = (0..bytes)
            .map(|at| (at % 251).to_le_bytes()[0])
            .collect::<Vec<u8>>();
        Self::ok().body(body)
    }

    /// Never answers; the connection stays open.
    pub fn hang() -> Self {
        Self {
            ending: Ending::Never,
            ..Self::ok()
        }
    }

    /// Reads the request and resets the connection without a response.
    pub fn reset() -> Self {
        Self {
            ending: Ending::Reset,
            ..Self::ok()
        }
    }

    /// Sends half of the body, then resets the connection.
    #[must_use]
    pub fn cut_midway(self) -> Self {
        Self {
            ending: Ending::Half,
            ..self
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.append(name, value.into());
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn json(self, body: &serde_json::Value) -> Self {
        self.header(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        )
        .body(body.to_string())
    }

    /// Delays the response by this time.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Returns the status that the client sees; `None` without a complete response.
    pub fn answered(&self) -> Option<StatusCode> {
        (self.ending == Ending::Whole).then_some(self.status)
    }

    async fn act(self, line: &Line) -> io::Result<Response<BoxBody<Bytes, io::Error>>> {
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let body = match self.ending {
            Ending::Never => std::future::pending().await,
            Ending::Reset => {
                line.reset_at_end();
                return Err(reset());
            }
            Ending::Whole => Full::new(self.body)
                .map_err(|never: Infallible| match never {})
                .boxed(),
            Ending::Half => {
                line.reset_at_end();
                half(&self.body)
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers);
        Ok(response)
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

/// Returns the first half, then an error. One poll between them lets the first half reach the socket.
fn half(body: &Bytes) -> BoxBody<Bytes, io::Error> {
    let first = body.slice(..body.len().div_ceil(2));
    let stream = futures::stream::unfold(0, move |step| {
        let first = first.clone();
        async move {
            if step == 0 {
                return Some((Ok(Frame::data(first)), 1));
            }
            tokio::task::yield_now().await;
            Some((Err(reset()), 2))
        }
    });
    BoxBody::new(StreamBody::new(stream))
}

/// Serves HTTP/1: reads each request completely, then sends the reply of `handle`.
pub(crate) fn serve_http<F, R>(tls: Option<ServerConfig>, handle: F) -> anyhow::Result<Server>
where
    F: Fn(Arrived) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let handle = Arc::new(handle);
    Server::start(tls, move |wire, line| {
        connection(wire, line, handle.clone())
    })
}

async fn connection<F, R>(wire: Wire, line: Arc<Line>, handle: Arc<F>)
where
    F: Fn(Arrived) -> R + Send + Sync + 'static,
    R: Future<Output = Reply> + Send + 'static,
{
    let service = service_fn(|request: ::http::Request<Incoming>| {
        let moment = line.take_head();
        let (line, handle) = (line.clone(), handle.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let (method, uri, headers) = (head.method, head.uri, head.headers);
            handle(Arrived {
                moment,
                method,
                uri,
                headers,
                body,
            })
            .await
            .act(&line)
            .await
        }
    });
    // No timeout, because a pooled connection of a client may be idle for as long as a test likes.
    let served = hyper::server::conn::http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(wire), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection ended early");
    }
}
