//! Who reads the metrics, and whether that one may: the apiserver is asked for both, with a `TokenReview` and a
//! `SubjectAccessReview`.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec as Asked,
};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::{debug, warn};

use super::remembered::Remembered;
use crate::settings::Timings;

/// Path of the metrics.
pub(crate) const PATH: &str = "/metrics";

/// Those who read the metrics.
pub struct Callers {
    apiserver: Apiserver,
    known: Remembered<Result<UserInfo, Refused>>,
    allowed: Remembered<Result<(), Refused>>,
    known_for: Duration,
    allowed_for: Duration,
    refused_for: Duration,
}

/// Why somebody is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refused {
    /// No token, or one that the apiserver does not know.
    Unknown,
    /// This one lacks the right.
    Forbidden(String),
    /// The apiserver could not be asked.
    Unanswered,
    /// Too many tokens are tried at once.
    Busy,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => write!(
                f,
                "send the token of a ServiceAccount that may read metrics (Authorization: Bearer TOKEN); kubectl create \
                 token NAME gives one"
            ),
            Self::Forbidden(user) => write!(
                f,
                "user {user:?} may not get {PATH}: bind a ClusterRole to it that has nonResourceURLs [{PATH}] and verbs \
                 [get], such as quartermaster-metrics-reader"
            ),
            Self::Unanswered => {
                write!(
                    f,
                    "the apiserver cannot be asked who may read metrics: the log of this replica says why"
                )
            }
            Self::Busy => write!(
                f,
                "too many tokens are tried at once: try again in a second"
            ),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let words = format!("{self}\n");
        match self {
            Self::Unknown => (
                StatusCode::UNAUTHORIZED,
                [(WWW_AUTHENTICATE, "Bearer")],
                words,
            )
                .into_response(),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, words).into_response(),
            Self::Unanswered => (StatusCode::SERVICE_UNAVAILABLE, words).into_response(),
            Self::Busy => {
                (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], words).into_response()
            }
        }
    }
}

impl Callers {
    /// Nobody is known yet. `client` writes without the lease, for a replica that stands by is read too.
    pub fn new(client: Client, timings: &Timings) -> Self {
        Self {
            apiserver: Apiserver {
                client,
                silent_on_who: Arc::default(),
                silent_on_whether: Arc::default(),
            },
            known: Remembered::new(),
            allowed: Remembered::new(),
            known_for: timings.metrics_known_for,
            allowed_for: timings.metrics_allowed_for,
            refused_for: timings.metrics_refused_for,
        }
    }

    async fn check(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let token = bearer(headers).ok_or(Refused::Unknown)?;
        let (asked, apiserver, lasts) = (
            token.to_owned(),
            self.apiserver.clone(),
            self.lasts(self.known_for),
        );
        let ask = || async move { lasts(apiserver.who(asked).await) };
        let user = self
            .known
            .answer(token.as_bytes(), ask)
            .await
            .ok_or(Refused::Busy)??;
        let asked = asked_for(user);
        // Plain strings: this cannot fail.
        let question = serde_json::to_vec(&asked).unwrap_or_default();
        let (apiserver, lasts) = (self.apiserver.clone(), self.lasts(self.allowed_for));
        let ask = || async move { lasts(apiserver.may(asked).await) };
        self.allowed
            .answer(&question, ask)
            .await
            .ok_or(Refused::Busy)?
    }

    /// Adds to an answer how long it lasts, if it does, which is `well` for a good one.
    fn lasts<T>(
        &self,
        well: Duration,
    ) -> impl FnOnce(Result<T, Refused>) -> (Result<T, Refused>, Option<Duration>) + use<T> {
        let refused_for = self.refused_for;
        move |answer| {
            let lasts = match &answer {
                Ok(_) => Some(well),
                Err(Refused::Unknown | Refused::Forbidden(_)) => Some(refused_for),
                Err(Refused::Unanswered | Refused::Busy) => None,
            };
            (answer, lasts)
        }
    }
}

/// Lets a request through whose sender may read the metrics.
pub async fn let_in(State(callers): State<Arc<Callers>>, request: Request, next: Next) -> Response {
    match callers.check(request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            debug!(%refused, "somebody may not read the metrics");
            refused.into_response()
        }
    }
}

/// The token that a request carries (<https://www.rfc-editor.org/rfc/rfc6750#section-2.1>).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

fn asked_for(
    UserInfo {
        extra,
        groups,
        uid,
        username,
    }: UserInfo,
) -> Asked {
    let get = NonResourceAttributes {
        path: Some(PATH.into()),
        verb: Some("get".into()),
    };
    Asked {
        extra,
        groups,
        uid,
        user: username,
        non_resource_attributes: Some(get),
        ..Asked::default()
    }
}

/// What is asked of it.
#[derive(Clone)]
struct Apiserver {
    client: Client,
    /// It did not say who somebody is the last time, which was told;
    silent_on_who: Arc<AtomicBool>,
    /// nor whether that one may.
    silent_on_whether: Arc<AtomicBool>,
}

impl Apiserver {
    async fn who(&self, token: String) -> Result<UserInfo, Refused> {
        let spec = TokenReviewSpec {
            token: Some(token),
            ..TokenReviewSpec::default()
        };
        let review = TokenReview {
            spec,
            ..TokenReview::default()
        };
        let status = self
            .ask(&review, &self.silent_on_who)
            .await?
            .status
            .unwrap_or_default();
        status
            .user
            .filter(|_| status.authenticated == Some(true))
            .ok_or(Refused::Unknown)
    }

    async fn may(&self, asked: Asked) -> Result<(), Refused> {
        let user = asked.user.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: asked,
            ..SubjectAccessReview::default()
        };
        let answer = self.ask(&review, &self.silent_on_whether).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            Ok(())
        } else {
            Err(Refused::Forbidden(user))
        }
    }

    async fn ask<K>(&self, review: &K, silent: &AtomicBool) -> Result<K, Refused>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let answer = Api::all(self.client.clone())
            .create(&PostParams::default(), review)
            .await;
        let silent = silent.swap(answer.is_err(), Ordering::Relaxed);
        answer.map_err(|error| {
            if !silent {
                let error = &error as &dyn std::error::Error;
                warn!(
                    error,
                    "the apiserver cannot be asked who may read the metrics"
                );
            }
            Refused::Unanswered
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
    fn a_token(#[case] header: &str, #[case] token: Option<&str>) {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
        assert_eq!(bearer(&headers), token);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
