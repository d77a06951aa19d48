//! Matchers for requests, and the faults to inject into them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use http::StatusCode;
use tokio::sync::Semaphore;

use super::request::{ApiRequest, Verb};
use crate::injections::Injections;
pub use crate::injections::{Injection, Times};

type Also = Arc<dyn Fn(&ApiRequest) -> bool + Send + Sync>;

/// Matches requests.
#[derive(Clone, Default)]
pub struct Match {
    verbs: Option<Vec<Verb>>,
    group: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    except: Vec<String>,
    also: Vec<Also>,
}

impl Match {
    /// Matches every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Matches requests with this verb.
    pub fn verb(verb: Verb) -> Self {
        Self {
            verbs: Some(vec![verb]),
            ..Self::default()
        }
    }

    /// Matches watches of a resource.
    pub fn watch(resource: &str) -> Self {
        Self::verb(Verb::Watch).resource(resource)
    }

    /// Matches watches and lists of a resource.
    pub fn watches_and_lists(resource: &str) -> Self {
        Self {
            verbs: Some(vec![Verb::Watch, Verb::List]),
            ..Self::default()
        }
        .resource(resource)
    }

    /// Matches requests that may change something.
    pub fn writes() -> Self {
        let verbs = [
            Verb::Create,
            Verb::Update,
            Verb::Patch,
            Verb::Delete,
            Verb::DeleteCollection,
        ];
        Self {
            verbs: Some(verbs.to_vec()),
            ..Self::default()
        }
    }

    /// Requires this API group; the core group is `""`.
    #[must_use]
    pub fn group(self, group: &str) -> Self {
        Self {
            group: Some(group.to_owned()),
            ..self
        }
    }

    /// Requires this resource (the plural).
    #[must_use]
    pub fn resource(self, resource: &str) -> Self {
        Self {
            resource: Some(resource.to_owned()),
            ..self
        }
    }

    /// Excludes this resource.
    #[must_use]
    pub fn except_resource(mut self, resource: &str) -> Self {
        self.except.push(resource.to_owned());
        self
    }

    /// Requires this subresource; `""` is the object itself.
    #[must_use]
    pub fn subresource(self, subresource: &str) -> Self {
        Self {
            subresource: Some(subresource.to_owned()),
            ..self
        }
    }

    /// Requires this namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..self
        }
    }

    /// Requires this object name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    /// Requires this condition in addition.
    #[must_use]
    pub fn and(mut self, also: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        self.also.push(Arc::new(also));
        self
    }

    /// Returns whether this request matches.
    pub fn matches(&self, request: &ApiRequest) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == found)
        };
        self.verbs
            .as_ref()
            .is_none_or(|verbs| verbs.contains(&request.verb))
            && is(&self.group, Some(&request.group))
            && is(&self.resource, Some(&request.resource))
            && is(&self.subresource, Some(&request.subresource))
            && is(&self.namespace, request.namespace.as_deref())
            && is(&self.name, request.name.as_deref())
            && !self.except.contains(&request.resource)
            && self.also.iter().all(|also| also(request))
    }
}

/// A rejection in the apiserver's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiErrorResponse {
    /// The HTTP status.
    pub code: StatusCode,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The message; empty for one that names the testbed.
    pub message: &'static str,
}

impl From<StatusCode> for ApiErrorResponse {
    fn from(code: StatusCode) -> Self {
        Self {
            code,
            retry_after: None,
            message: "",
        }
    }
}

/// Response in place of a lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Cuts the connection.
    Cut,
    /// Never responds.
    Hang,
    /// Sends this rejection.
    Answer(ApiErrorResponse),
}

/// Stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// After the request arrived, before the proxy forwards it.
    Before,
    /// After the apiserver's response, before the client gets it.
    AfterApplied,
    /// After the kernel has the whole response for the client.
    AfterAnswer,
}

/// Next step after a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Continues the request.
    GoOn,
    /// Ends the request: the proxy does not forward it, or loses the response; the connection is cut.
    Cut,
}

type Hook = Arc<dyn Fn(ApiRequest) -> BoxFuture<'static, Then> + Send + Sync>;

/// A fault.
#[derive(Clone)]
pub enum Fault {
    /// Forwards the request after this time.
    Delay(Duration),
    /// Rejects the request without forwarding it.
    Answer(ApiErrorResponse),
    /// Responds 200 with this body, without forwarding the request.
    Respond(String),
    /// Cuts the connection without forwarding the request (for HTTP/2, the stream).
    Cut,
    /// Never forwards the request or responds.
    Hang,
    /// Does not forward the request. A watch gets an `ERROR` event with code 410 and ends; any other request gets
    /// status 410.
    Gone,
    /// Forwards the request but loses the response.
    LoseAnswer(Lost),
    /// Forwards the request twice, like a proxy that retries; the client gets the second response.
    Repeat,
    /// Responds 504 immediately, and forwards the request after this time.
    Late(Duration),
    /// Runs the test's own code at this point.
    Hook(Point, Hook),
}

impl Fault {
    /// Responds with this status without forwarding the request.
    pub fn status(code: StatusCode) -> Self {
        Self::Answer(code.into())
    }

    /// Runs `hook` at `point`, to its end even if the client disconnects. The hook's result is ignored after the
    /// response.
    pub fn hook<F, R>(point: Point, hook: F) -> Self
    where
        F: Fn(ApiRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Then> + Send + 'static,
    {
        Self::Hook(point, Arc::new(move |request| hook(request).boxed()))
    }

    /// Holds each request, before it is forwarded, until `allowed` has a permit for it.
    pub fn hold(allowed: &Arc<Semaphore>) -> Self {
        let allowed = Arc::clone(allowed);
        Self::hook(Point::Before, move |_| {
            let allowed = Arc::clone(&allowed);
            async move {
                if let Ok(permit) = allowed.acquire_owned().await {
                    permit.forget();
                }
                Then::GoOn
            }
        })
    }
}

/// The injected faults.
pub(super) type Rules = Injections<Match, Fault>;
