//! The floor: a bare watch that posts what it sees at once, without history, retries or a thought.

use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use tokio::task::JoinHandle;

use crate::stage::Stage;

/// Where it posts to: the operator's messages go elsewhere.
pub const PATH: &str = "/floor";

/// Watches every Deployment and posts its replicas to one of the stage's receivers, until it is aborted. Returns when
/// the watch has listed what is there.
pub async fn start(stage: &Arc<Stage>) -> JoinHandle<()> {
    let (listed, wait) = tokio::sync::oneshot::channel();
    let stage = Arc::clone(stage);
    let task = tokio::spawn(async move {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut listed = Some(listed);
        let api = Api::<Deployment>::all(stage.bed.client.clone());
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(object)) => {
                    let replicas = object.spec.and_then(|spec| spec.replicas).unwrap_or_default();
                    let name = object.metadata.name.unwrap_or_default();
                    let url = format!("{}{PATH}", stage.receiver_of(&name).url());
                    let body = serde_json::json!({ "value": replicas.to_string() }).to_string();
                    let post = client.post(url).body(body);
                    tokio::spawn(async move { post.send().await });
                }
                Ok(Event::InitDone) => drop(listed.take().map(|listed| listed.send(()))),
                Ok(_) => {}
                Err(error) => eprintln!("the floor's watch: {error}"),
            }
        }
    });
    wait.await.unwrap();
    task
}
