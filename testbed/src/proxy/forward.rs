//! Forwarding of one request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use serde_json::json;
use tokio::sync::oneshot;

use super::body::{Body, Error, FLUSHED};
use super::request::{ApiRequest, Verb};
use super::rules::{ApiErrorResponse, Fault, Lost, Point, Then};
use super::shared::{Seen, Shared};
use super::watches::GONE;
use crate::serve::{Line, Moment};

/// Responds to a request, or fails: the connection is then cut (for HTTP/2, the stream).
pub(super) async fn serve(
    shared: Arc<Shared>,
    line: Arc<Line>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let one_stream = request.version() < Version::HTTP_2;
    through(&shared, &line, request).await.inspect_err(|error| {
        tracing::debug!(%error, "a request is cut");
        if one_stream {
            line.reset_at_end();
        }
    })
}

async fn through(
    shared: &Shared,
    line: &Arc<Line>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let moment = Moment::now();
    let (about, request) = read(request).await?;
    let seen = shared
        .requests
        .push(Seen::new(moment.instant, about.clone()));
    let faults = shared.rules.decide(|matching| matching.matches(&about));
    if let Some(answer) = before(&faults, &about).await? {
        return Ok(answer);
    }
    let mut request = outgoing(request, &shared.scheme, &shared.authority)?;
    for fault in &faults {
        request = match fault {
            Fault::Repeat => {
                let (first, second) = copies(request).await?;
                shared
                    .client
                    .request(first)
                    .await?
                    .into_body()
                    .collect()
                    .await?;
                second
            }
            Fault::Late(delay) => {
                // The body must be read completely before the client's connection ends.
                let (late, _) = copies(request).await?;
                let (client, delay) = (shared.client.clone(), *delay);
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    client.request(late).await
                });
                return Ok(error_response(StatusCode::GATEWAY_TIMEOUT.into()));
            }
            _ => request,
        };
    }
    let mut response = shared.client.request(request).await?;
    seen.answered(response.status());
    if let Some(answer) = after_applied(&faults, &about).await? {
        return Ok(answer);
    }
    strip(response.headers_mut());
    *response.version_mut() = Version::default();
    let is_json = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let guarded = about.verb == Verb::Watch && response.status().is_success() && is_json;
    let response = response.map(|body| {
        if guarded {
            shared.watches.guard(about.clone(), body, line)
        } else {
            body.map_err(Error::from).boxed_unsync()
        }
    });
    Ok(faults
        .into_iter()
        .fold(response, |response, fault| match fault {
            Fault::Hook(Point::AfterAnswer, hook) => {
                let about = about.clone();
                response.map(|body| when_answered(body, line, async move { hook(about).await }))
            }
            _ => response,
        }))
}

/// Reads a request completely and returns it twice.
async fn copies(request: Request<Body>) -> Result<(Request<Body>, Request<Body>), Error> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let first = Request::from_parts(head.clone(), full(bytes.clone()));
    Ok((first, Request::from_parts(head, full(bytes))))
}

/// Returns the parsed request and the request itself. The body of a create is read completely, for the name; other
/// bodies stream.
async fn read(request: Request<Incoming>) -> Result<(ApiRequest, Request<Body>), Error> {
    let mut about = ApiRequest::parse(request.method(), request.uri());
    let (head, body) = request.into_parts();
    let body = if about.verb == Verb::Create {
        let bytes = body.collect().await?.to_bytes();
        about.read_body(&bytes);
        full(bytes)
    } else {
        body.map_err(Error::from).boxed_unsync()
    };
    Ok((about, Request::from_parts(head, body)))
}

async fn before(faults: &[Fault], about: &ApiRequest) -> Result<Option<Response<Body>>, Error> {
    for fault in faults {
        match fault {
            Fault::Delay(delay) => tokio::time::sleep(*delay).await,
            Fault::Answer(error) => return Ok(Some(error_response(*error))),
            Fault::Respond(body) => {
                return Ok(Some(json_response(StatusCode::OK, body.clone().into())));
            }
            Fault::Cut => return Err(cut()),
            Fault::Hang => std::future::pending().await,
            Fault::Gone if about.verb == Verb::Watch => {
                return Ok(Some(json_response(StatusCode::OK, GONE.into())));
            }
            Fault::Gone => return Ok(Some(error_response(StatusCode::GONE.into()))),
            // The hook has its own task: it may kill the client, whose end would cancel this one.
            Fault::Hook(Point::Before, hook) => go_on(tokio::spawn(hook(about.clone())).await?)?,
            Fault::LoseAnswer(_) | Fault::Repeat | Fault::Late(_) | Fault::Hook(..) => {}
        }
    }
    Ok(None)
}

async fn after_applied(
    faults: &[Fault],
    about: &ApiRequest,
) -> Result<Option<Response<Body>>, Error> {
    for fault in faults {
        match fault {
            Fault::Hook(Point::AfterApplied, hook) => {
                go_on(tokio::spawn(hook(about.clone())).await?)?;
            }
            Fault::LoseAnswer(Lost::Cut) => return Err(cut()),
            Fault::LoseAnswer(Lost::Hang) => std::future::pending().await,
            Fault::LoseAnswer(Lost::Answer(error)) => return Ok(Some(error_response(*error))),
            _ => {}
        }
    }
    Ok(None)
}

fn go_on(then: Then) -> Result<(), Error> {
    if then == Then::Cut {
        Err(cut())
    } else {
        Ok(())
    }
}

fn cut() -> Error {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn json_response(code: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = code;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// Returns a `Status`, as the apiserver does.
fn error_response(error: ApiErrorResponse) -> Response<Body> {
    let ApiErrorResponse {
        code, retry_after, ..
    } = error;
    let message = match error.message {
        "" => format!("the testbed says {code}"),
        message => message.into(),
    };
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason(code), "code": code.as_u16(),
    });
    if let Some(seconds) = retry_after {
        status["details"] = json!({"retryAfterSeconds": seconds});
    }
    let mut response = json_response(code, status.to_string().into());
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// Returns the `StatusReason` of apimachinery's `meta/v1` for a code.
fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        413 => "RequestEntityTooLarge",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}

fn outgoing(
    mut request: Request<Body>,
    scheme: &Scheme,
    authority: &Authority,
) -> Result<Request<Body>, Error> {
    let path = request
        .uri()
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::builder()
        .scheme(scheme.clone())
        .authority(authority.clone())
        .path_and_query(path)
        .build()?;
    *request.version_mut() = Version::HTTP_11;
    strip(request.headers_mut());
    request.headers_mut().remove(header::HOST);
    Ok(request)
}

/// Removes headers that belong to one connection only (RFC 9110, section 7.6.1).
fn strip(headers: &mut HeaderMap) {
    const OF_THE_CONNECTION: [HeaderName; 5] = [
        header::CONNECTION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    for name in OF_THE_CONNECTION {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}

/// Runs `then` once the kernel has the last byte of this body.
fn when_answered(
    body: Body,
    line: &Arc<Line>,
    then: impl Future<Output = Then> + Send + 'static,
) -> Body {
    let (done, ended) = oneshot::channel();
    let mut flushed = line.flushed();
    tokio::spawn(async move {
        if let Ok(flushed_before) = ended.await {
            let _ = tokio::time::timeout(
                FLUSHED,
                flushed.wait_for(|flushed| *flushed > flushed_before),
            )
            .await;
            then.await;
        }
    });
    ObservedBody {
        body,
        line: line.clone(),
        done: Some(done),
    }
    .boxed_unsync()
}

/// A body that reports its end.
struct ObservedBody {
    body: Body,
    line: Arc<Line>,
    done: Option<oneshot::Sender<u64>>,
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            let _ = done.send(*self.line.flushed().borrow());
        }
    }
}

impl hyper::body::Body for ObservedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
