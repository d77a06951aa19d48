//! Minimum duration of a watch. kube's watcher repeats a watch that ends without an error at once, so it would send
//! requests without a pause to a server, or a load balancer, that ends each watch.

use std::future::ready;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, Either, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, service_fn};

/// Minimum time from the response to a watch until its end, unless the watch fails.
const MIN_DURATION: Duration = Duration::from_secs(1);

/// Returns a client whose watches last at least [`MIN_DURATION`].
pub(crate) fn paced(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let mut parameters = request.uri().query().unwrap_or_default().split('&');
        let is_watch = parameters.any(|parameter| parameter == "watch=true");
        async move {
            let response = client.send(request).await?;
            let is_watch = is_watch && response.status().is_success();
            Ok::<_, BoxError>(response.map(|body| {
                if is_watch {
                    Either::Left(lasting(body))
                } else {
                    Either::Right(body)
                }
            }))
        }
    });
    Client::new(service, namespace)
}

fn lasting(body: Body) -> impl hyper::body::Body<Data = Bytes, Error = kube::Error> {
    let end = Instant::now() + MIN_DURATION;
    let pause = stream::once(sleep_until(end)).filter_map(|()| ready(None));
    StreamBody::new(body.into_data_stream().map_ok(Frame::data).chain(pause))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::runtime::watcher;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watch_that_ends_at_once_is_repeated_once_a_second() {
        let watches = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&watches);
        let server = service_fn(move |request: Request<Body>| {
            let list = r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#;
            let is_watch = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch="));
            count.fetch_add(usize::from(is_watch), Ordering::Relaxed);
            let body = if is_watch { "" } else { list };
            ready(Ok::<_, BoxError>(Response::new(Body::from(
                body.as_bytes().to_vec(),
            ))))
        });
        let maps: Api<ConfigMap> = Api::all(paced(Client::new(server, "default")));
        let events = watcher(maps, watcher::Config::default()).for_each(|event| {
            event.unwrap();
            ready(())
        });
        let ended = timeout(Duration::from_mins(1), pin!(events)).await;
        assert!(ended.is_err(), "a watcher never ends");
        let watches = watches.load(Ordering::Relaxed);
        assert!((50..=61).contains(&watches), "{watches}");
    }
}
