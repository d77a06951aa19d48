//! Which requests something is done to, and what.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use http::StatusCode;

use super::request::{ApiRequest, Verb};
use crate::orders::Orders;
pub use crate::orders::{Order, Times};

type Also = Arc<dyn Fn(&ApiRequest) -> bool + Send + Sync>;

/// Requests that have something in common.
#[derive(Clone, Default)]
pub struct Match {
    verbs: Option<Vec<Verb>>,
    group: Option<String>,
    resource: Option<String>,
    subresource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    except: Vec<String>,
    also: Option<Also>,
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests with this verb.
    pub fn verb(verb: Verb) -> Self {
        Self {
            verbs: Some(vec![verb]),
            ..Self::default()
        }
    }

    /// Watches of a resource.
    pub fn watch(resource: &str) -> Self {
        Self::verb(Verb::Watch).resource(resource)
    }

    /// Requests that may change something.
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

    /// Of this API group; the core group is `""`.
    #[must_use]
    pub fn group(self, group: &str) -> Self {
        Self {
            group: Some(group.to_owned()),
            ..self
        }
    }

    /// Of this resource (the plural).
    #[must_use]
    pub fn resource(self, resource: &str) -> Self {
        Self {
            resource: Some(resource.to_owned()),
            ..self
        }
    }

    /// Not of this resource.
    #[must_use]
    pub fn except_resource(mut self, resource: &str) -> Self {
        self.except.push(resource.to_owned());
        self
    }

    /// Of this subresource; `""` for the object itself.
    #[must_use]
    pub fn subresource(self, subresource: &str) -> Self {
        Self {
            subresource: Some(subresource.to_owned()),
            ..self
        }
    }

    /// In this namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..self
        }
    }

    /// Of the object with this name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    /// That this says yes to besides (one such condition; a second takes the first one's place).
    #[must_use]
    pub fn and(self, also: impl Fn(&ApiRequest) -> bool + Send + Sync + 'static) -> Self {
        Self {
            also: Some(Arc::new(also)),
            ..self
        }
    }

    /// Whether this request is one of them.
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
            && self.also.as_ref().is_none_or(|also| also(request))
    }
}

/// An answer in the apiserver's own form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub code: StatusCode,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
}

impl From<StatusCode> for Refusal {
    fn from(code: StatusCode) -> Self {
        Self {
            code,
            retry_after: None,
        }
    }
}

/// What the client gets instead of an answer that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The connection is cut.
    Cut,
    /// Nothing, for ever.
    Hang,
    /// This answer.
    Answer(Refusal),
}

/// Where on its way a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// It arrived, and is not forwarded yet.
    Before,
    /// The apiserver has answered; the client knows nothing of it.
    AfterApplied,
    /// The answer was handed to the kernel for the client.
    AfterAnswer,
}

/// What becomes of a request after a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    GoOn,
    /// It ends here: it is not forwarded, or its answer is lost; the connection is cut.
    Cut,
}

type Hook = Arc<dyn Fn(ApiRequest) -> BoxFuture<'static, Then> + Send + Sync>;

/// What is done to a request.
#[derive(Clone)]
pub enum Fault {
    /// It is forwarded after this time.
    Delay(Duration),
    /// It is not forwarded; this is the answer.
    Answer(Refusal),
    /// It is not forwarded; the answer is 200 with this body.
    Say(String),
    /// It is not forwarded; the connection is cut (of HTTP/2, the stream).
    Cut,
    /// It is not forwarded, and never answered.
    Hang,
    /// It is not forwarded. A watch gets an `ERROR` event with code 410 and ends; anything else the status 410.
    Gone,
    /// The apiserver does what is asked; its answer is lost.
    LoseAnswer(Lost),
    /// The apiserver is asked twice, as by a proxy that tries again; the second answer counts.
    Repeat,
    /// The answer is 504 at once, and the apiserver is asked after this time.
    Late(Duration),
    /// Something of the test's own runs at this point.
    Hook(Point, Hook),
}

impl Fault {
    /// Answers this status without forwarding.
    pub fn status(code: StatusCode) -> Self {
        Self::Answer(code.into())
    }

    /// Runs `hook` at `point`. It runs to its end also if the client is gone by then. What it returns has no meaning
    /// after the answer.
    pub fn hook<F, R>(point: Point, hook: F) -> Self
    where
        F: Fn(ApiRequest) -> R + Send + Sync + 'static,
        R: Future<Output = Then> + Send + 'static,
    {
        Self::Hook(point, Arc::new(move |request| hook(request).boxed()))
    }
}

/// The faults that are ordered.
pub(super) type Rules = Orders<Match, Fault>;
