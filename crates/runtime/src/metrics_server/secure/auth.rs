//! Authentication and authorization of requests for the metrics, by a `TokenReview` and a `SubjectAccessReview`.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::cache::AuthCache;
use crate::server::{self, Handler, Response};
use crate::settings::RuntimeTimings;

pub(crate) const PATH: &str = "/metrics";

/// Check of the clients that read the metrics.
pub struct MetricsAuth {
    reviews: ReviewClient,
    /// Phrase that names the `ClusterRole` that grants reading the metrics, for messages.
    reader_hint: Option<&'static str>,
    users: AuthCache<Result<UserInfo, AuthError>>,
    allowed: AuthCache<Result<(), AuthError>>,
    authentication_ttl: Duration,
    authorized_ttl: Duration,
    unauthorized_ttl: Duration,
}

/// Reason why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AuthError {
    /// The request has no token, or the apiserver does not know the token.
    Unauthenticated,
    /// The user lacks the permission.
    Forbidden {
        user: String,
        reader_hint: Option<&'static str>,
    },
    /// The apiserver does not answer reviews.
    NoReview,
    /// Clients present too many new tokens.
    Busy,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unauthenticated => write!(
                f,
                "send the token of a ServiceAccount that may read metrics (Authorization: Bearer TOKEN); kubectl create \
                 token NAME prints one"
            ),
            Self::Forbidden { user, reader_hint } => {
                write!(
                    f,
                    "user {user:?} may not get {PATH}: bind the user to a ClusterRole with nonResourceURLs [{PATH}] and \
                     verbs [get]"
                )?;
                reader_hint.map_or(Ok(()), |hint| write!(f, ", such as {hint}"))
            }
            Self::NoReview => write!(
                f,
                "cannot check whether you may read metrics: the review failed; see the log of this replica"
            ),
            Self::Busy => write!(f, "too many unknown tokens; retry in a second"),
        }
    }
}

impl AuthError {
    fn response(&self) -> Response {
        let (status, header) = match self {
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            ),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, None),
            Self::NoReview => (StatusCode::SERVICE_UNAVAILABLE, None),
            Self::Busy => (
                StatusCode::TOO_MANY_REQUESTS,
                Some((RETRY_AFTER, HeaderValue::from_static("1"))),
            ),
        };
        let mut response = server::text(status, format!("{self}\n"));
        response.headers_mut().extend(header);
        response
    }
}

impl MetricsAuth {
    /// Creates a check with empty caches. `client` must be able to write without the lease, because standbys serve the
    /// metrics too. `reader_hint` is the phrase that names the `ClusterRole` in messages.
    pub fn new(
        client: Client,
        reader_hint: Option<&'static str>,
        timings: &RuntimeTimings,
    ) -> Self {
        Self {
            reviews: ReviewClient {
                client,
                token_reviews_fail: Arc::default(),
                access_reviews_fail: Arc::default(),
            },
            reader_hint,
            users: AuthCache::new(),
            allowed: AuthCache::new(),
            authentication_ttl: timings.metrics_authentication_ttl,
            authorized_ttl: timings.metrics_authorized_ttl,
            unauthorized_ttl: timings.metrics_unauthorized_ttl,
        }
    }

    /// Returns a handler that passes a request for the metrics on if its sender may read them.
    pub(crate) fn require(self, handler: Handler) -> Handler {
        let (auth, handler) = (Arc::new(self), Arc::new(handler));
        Box::new(move |head| {
            let (auth, handler) = (Arc::clone(&auth), Arc::clone(&handler));
            async move {
                if head.uri.path() == PATH
                    && let Err(error) = auth.check(&head.headers).await
                {
                    debug!(%error, "denied a request for the metrics");
                    return error.response();
                }
                handler(head).await
            }
            .boxed()
        })
    }

    async fn check(&self, headers: &HeaderMap) -> Result<(), AuthError> {
        let token = bearer(headers).ok_or(AuthError::Unauthenticated)?;
        let (sent, reviews, with_ttl) = (
            token.to_owned(),
            self.reviews.clone(),
            self.with_ttl(self.authentication_ttl),
        );
        let ask = || async move { with_ttl(reviews.authenticate(sent).await) };
        let user = self
            .users
            .answer(token.as_bytes(), ask)
            .await
            .ok_or(AuthError::Busy)??;
        let access = access(user);
        // Plain strings serialize without an error.
        let question = serde_json::to_vec(&access).unwrap_or_default();
        let (reviews, reader_hint) = (self.reviews.clone(), self.reader_hint);
        let with_ttl = self.with_ttl(self.authorized_ttl);
        let ask = || async move { with_ttl(reviews.authorize(access, reader_hint).await) };
        self.allowed
            .answer(&question, ask)
            .await
            .ok_or(AuthError::Busy)?
    }

    /// Returns a function that adds to an answer the time for which it may be cached: `ttl` for a positive answer,
    /// `None` if the answer must not be cached.
    fn with_ttl<T>(
        &self,
        ttl: Duration,
    ) -> impl FnOnce(Result<T, AuthError>) -> (Result<T, AuthError>, Option<Duration>) + use<T>
    {
        let unauthorized_ttl = self.unauthorized_ttl;
        move |answer| {
            let ttl = match &answer {
                Ok(_) => Some(ttl),
                Err(AuthError::Unauthenticated | AuthError::Forbidden { .. }) => {
                    Some(unauthorized_ttl)
                }
                Err(AuthError::NoReview | AuthError::Busy) => None,
            };
            (answer, ttl)
        }
    }
}

/// Returns the token of a request (<https://www.rfc-editor.org/rfc/rfc6750#section-2.1>).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn access(
    UserInfo {
        extra,
        groups,
        uid,
        username,
    }: UserInfo,
) -> SubjectAccessReviewSpec {
    let get = NonResourceAttributes {
        path: Some(PATH.into()),
        verb: Some("get".into()),
    };
    SubjectAccessReviewSpec {
        extra,
        groups,
        uid,
        user: username,
        non_resource_attributes: Some(get),
        ..SubjectAccessReviewSpec::default()
    }
}

#[derive(Clone)]
struct ReviewClient {
    client: Client,
    /// The last `TokenReview` failed, and the log has a warning.
    token_reviews_fail: Arc<AtomicBool>,
    /// The last `SubjectAccessReview` failed, and the log has a warning.
    access_reviews_fail: Arc<AtomicBool>,
}

impl ReviewClient {
    async fn authenticate(&self, token: String) -> Result<UserInfo, AuthError> {
        let spec = TokenReviewSpec {
            token: Some(token),
            ..TokenReviewSpec::default()
        };
        let review = TokenReview {
            spec,
            ..TokenReview::default()
        };
        let status = self
            .create(&review, &self.token_reviews_fail)
            .await?
            .status
            .unwrap_or_default();
        status
            .user
            .filter(|_| status.authenticated == Some(true))
            .ok_or(AuthError::Unauthenticated)
    }

    async fn authorize(
        &self,
        access: SubjectAccessReviewSpec,
        reader_hint: Option<&'static str>,
    ) -> Result<(), AuthError> {
        let user = access.user.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: access,
            ..SubjectAccessReview::default()
        };
        let answer = self.create(&review, &self.access_reviews_fail).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            Ok(())
        } else {
            Err(AuthError::Forbidden { user, reader_hint })
        }
    }

    async fn create<K>(&self, review: &K, fails: &AtomicBool) -> Result<K, AuthError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let answer = Api::all(self.client.clone())
            .create(&PostParams::default(), review)
            .await;
        let failed_before = fails.swap(answer.is_err(), Ordering::Relaxed);
        answer.map_err(|error| {
            if !failed_before {
                let error = &error as &dyn std::error::Error;
                warn!(
                    error,
                    "reviews of clients that read the metrics fail; will retry at the next request"
                );
            }
            AuthError::NoReview
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Bearer abc", Some("abc"))]
    #[case("bearer  abc ", Some("abc"))]
    #[case("Bearer ", None)]
    #[case("Bearer", None)]
    #[case("Basic abc", None)]
    #[case("", None)]
    fn bearer_finds_the_token(#[case] header: &str, #[case] token: Option<&str>) {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        assert_eq!(bearer(&headers), token);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
