//! Lists in pages of bounded size: the API bounds the number of objects of a page, but not its bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::request::Parts;
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::Client;
use kube::api::ListParams;
use kube::client::Body;
use kube::core::ObjectList;
use tower::{BoxError, service_fn};
use tracing::debug;

/// Number of objects in a page of [`all_pages`].
const PAGE_SIZE: u32 = 500;

/// Maximum number of objects in a page of a watch's list.
pub const MAX_OBJECTS: u32 = 100;

/// Number of objects in a list's first page, while their size is unknown.
const FIRST_OBJECTS: u32 = 10;

/// Desired size of a page, in bytes.
const DESIRED_BYTES: usize = 512 * 1024;

/// Maximum size of a page with more than one object, in bytes. The operator requests a larger page again with fewer
/// objects. A page can be larger because all earlier objects were small.
const MAX_BYTES: usize = 1024 * 1024;

/// Maximum number of resources whose page size is remembered. Lists of other resources start with [`FIRST_OBJECTS`].
const MAX_REMEMBERED: usize = 1000;

/// Lists all pages by `list`, and returns `convert` of each object.
pub async fn all_pages<K: Clone, T, F: Future<Output = kube::Result<ObjectList<K>>>>(
    params: ListParams,
    list: impl Fn(ListParams) -> F,
    mut convert: impl FnMut(K) -> T,
) -> kube::Result<Vec<T>> {
    let mut converted = Vec::new();
    let mut page = params.limit(PAGE_SIZE);
    loop {
        let list = list(page.clone()).await?;
        converted.extend(list.items.into_iter().map(&mut convert));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(converted),
        }
    }
}

/// Sizes of the next pages, by path.
#[derive(Clone, Default)]
struct Pages(Arc<Mutex<HashMap<String, u32>>>);

/// Returns a client whose lists with a `limit` have pages of bounded size: the limit is the maximum number of objects
/// in a page, which may have fewer. Callers follow `metadata.continue`.
pub fn bounded(client: Client) -> Client {
    let (pages, namespace) = (Pages::default(), client.default_namespace().to_owned());
    let service = service_fn(move |request: Request<Body>| {
        let (pages, client) = (pages.clone(), client.clone());
        async move {
            match requested_limit(&request) {
                Some(requested) => pages.list(&client, request.into_parts().0, requested).await,
                None => Ok(client.send(request).await?),
            }
        }
    });
    Client::new(service, namespace)
}

impl Pages {
    async fn list(
        &self,
        client: &Client,
        parts: Parts,
        requested: u32,
    ) -> Result<Response<Body>, BoxError> {
        let path = parts.uri.path().to_owned();
        let mut limit = if is_continued(&parts.uri) {
            self.known(&path)
        } else {
            FIRST_OBJECTS
        }
        .min(requested);
        loop {
            let mut page = parts.clone();
            page.uri = with_limit(&parts.uri, limit)?;
            let (head, body) = client
                .send(Request::from_parts(page, Body::empty()))
                .await?
                .into_parts();
            if !head.status.is_success() {
                return Ok(Response::from_parts(head, body));
            }
            let most = if limit > 1 { MAX_BYTES } else { usize::MAX };
            match Limited::new(body, most).collect().await {
                Ok(body) => {
                    let body = body.to_bytes();
                    self.remember(path, next_limit(limit, body.len()));
                    return Ok(Response::from_parts(head, body.into()));
                }
                Err(error) if error.is::<LengthLimitError>() => {
                    debug!(path, limit, "page too large; will list fewer objects");
                    limit = fewer(limit);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn limits(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, path: &str) -> u32 {
        self.limits().get(path).copied().unwrap_or(FIRST_OBJECTS)
    }

    fn remember(&self, path: String, limit: u32) {
        let mut limits = self.limits();
        if limits.len() >= MAX_REMEMBERED {
            limits.clear();
        }
        limits.insert(path, limit);
    }
}

/// Returns the number of objects to request after a page with `limit` objects and `bytes` bytes.
fn next_limit(limit: u32, bytes: usize) -> u32 {
    let limit = u64::from(limit) * DESIRED_BYTES as u64 / (bytes as u64).max(1);
    u32::try_from(limit)
        .unwrap_or(u32::MAX)
        .clamp(1, MAX_OBJECTS)
}

/// Returns the number of objects to request after a page of `limit` objects was too large.
fn fewer(limit: u32) -> u32 {
    (limit / 10).max(1)
}

/// Returns the `limit` of a list.
fn requested_limit(request: &Request<Body>) -> Option<u32> {
    let limit = || {
        parameters(request.uri())
            .find_map(|parameter| parameter.strip_prefix("limit="))?
            .parse()
            .ok()
    };
    (request.method() == Method::GET)
        .then(limit)
        .flatten()
        .filter(|limit| *limit > 0)
}

/// Returns whether the request continues a list.
fn is_continued(uri: &Uri) -> bool {
    parameters(uri).any(|parameter| {
        parameter
            .strip_prefix("continue=")
            .is_some_and(|token| !token.is_empty())
    })
}

fn with_limit(uri: &Uri, limit: u32) -> http::Result<Uri> {
    let others = parameters(uri)
        .filter(|parameter| !parameter.is_empty() && !parameter.starts_with("limit="));
    let query: Vec<_> = others
        .map(str::to_owned)
        .chain([format!("limit={limit}")])
        .collect();
    let path_and_query = format!("{}?{}", uri.path(), query.join("&"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path_and_query.parse()?);
    Ok(Uri::from_parts(parts)?)
}

fn parameters(uri: &Uri) -> impl Iterator<Item = &str> {
    uri.query().unwrap_or_default().split('&')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::ready;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ListParams};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::small(10, 5000, 100)]
    #[case::desired_size(10, 512 * 1024, 10)]
    #[case::large(10, 1024 * 1024, 5)]
    #[case::grown(1, 100 * 1024, 5)]
    #[case::one_is_too_large(1, 1_400_000, 1)]
    #[case::beyond_any_bound(100, usize::MAX, 1)]
    #[case::empty(10, 0, 100)]
    fn next_page_size_follows_from_the_bytes_of_this_one(
        #[case] limit: u32,
        #[case] bytes: usize,
        #[case] next: u32,
    ) {
        assert_eq!(next_limit(limit, bytes), next);
    }

    #[test]
    fn too_large_page_shrinks_to_one_object() {
        assert_eq!((fewer(100), fewer(10), fewer(9), fewer(1)), (10, 1, 1, 1));
    }

    /// Returns an apiserver with objects of these sizes, in bytes, and the limits of its requests.
    fn apiserver(sizes: Vec<usize>) -> (Client, Arc<Mutex<Vec<u32>>>) {
        let limits = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&limits);
        let serve = move |request: Request<Body>| {
            let limit = requested_limit(&request).unwrap();
            log.lock().unwrap().push(limit);
            let token = parameters(request.uri())
                .find_map(|it| it.strip_prefix("continue="))
                .unwrap_or("0");
            let from: usize = token.parse().unwrap();
            let to = sizes.len().min(from + limit as usize);
            let item = |at: usize| json!({ "metadata": { "name": at.to_string() }, "data": { "a": "x".repeat(sizes[at]) } });
            let items: Vec<_> = (from..to).map(item).collect();
            let token = if to < sizes.len() {
                to.to_string()
            } else {
                String::new()
            };
            let list = json!({ "metadata": { "continue": token, "resourceVersion": "1" }, "items": items });
            ready(Ok::<_, BoxError>(Response::new(Body::from(
                list.to_string().into_bytes(),
            ))))
        };
        (bounded(Client::new(service_fn(serve), "default")), limits)
    }

    async fn listed(client: &Client) -> Vec<usize> {
        let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let (mut names, mut page) = (Vec::new(), ListParams::default().limit(MAX_OBJECTS));
        loop {
            let list = api.list(&page).await.unwrap();
            names.extend(list.items.iter().map(|item| {
                item.metadata
                    .name
                    .as_ref()
                    .unwrap()
                    .parse::<usize>()
                    .unwrap()
            }));
            page.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
            if page.continue_token.is_none() {
                return names;
            }
        }
    }

    /// [`MAX_BYTES`] limits every page of several objects, whatever their order.
    #[tokio::test]
    async fn each_object_is_listed_once_whatever_its_size() {
        const LARGE: usize = 1_400_000;
        for (sizes, expected) in [
            (vec![10; 250], vec![10, 100, 100, 100]),
            // The first objects are small, so a later page is too large and is requested again.
            (
                [vec![10; 10], vec![LARGE; 3]].concat(),
                vec![10, 100, 10, 1, 1, 1],
            ),
            (vec![LARGE; 2], vec![10, 1, 1]),
            (vec![200_000; 6], vec![10, 1, 2, 2, 2]),
        ] {
            let (client, limits) = apiserver(sizes.clone());
            assert_eq!(listed(&client).await, (0..sizes.len()).collect::<Vec<_>>());
            assert_eq!(*limits.lock().unwrap(), expected);
            limits.lock().unwrap().clear();
            assert_eq!(listed(&client).await.len(), sizes.len());
            assert_eq!(
                *limits.lock().unwrap(),
                expected,
                "the next list starts as the first did"
            );
        }
    }

    #[tokio::test]
    async fn smaller_limit_of_the_caller_is_kept() {
        let (client, limits) = apiserver(vec![10; 20]);
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        assert_eq!(
            api.list(&ListParams::default().limit(3))
                .await
                .unwrap()
                .items
                .len(),
            3
        );
        assert_eq!(*limits.lock().unwrap(), [3]);
    }
}
