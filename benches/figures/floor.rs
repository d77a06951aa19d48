//! The floor: a bare watch that posts each event immediately, without history or retries. A separate process with the
//! operator's permissions, so that the operator's costs can be compared with it.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use testbed::process::{Child, Folder, Program};
use testbed::receiver::Receiver;

use crate::stage::{FLOOR_PATH, PATIENCE, Stage, index};
use crate::support::{ACCOUNT, SYSTEM};

/// Flag of the floor process, before the receivers' URLs.
pub const FLAG: &str = "--floor";

/// Output of the floor once it has listed the Deployments.
const LISTED: &str = "listed";

/// Watches every Deployment and posts its replicas to one of the receivers, until it is killed.
pub async fn run(receivers: &[String]) -> Result<()> {
    let posts = reqwest::Client::builder().no_proxy().build()?;
    let api = Api::<Deployment>::all(kube::Client::try_default().await?);
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default().streaming_lists()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object)) => {
                let replicas = object
                    .spec
                    .and_then(|spec| spec.replicas)
                    .unwrap_or_default();
                let name = object.metadata.name.unwrap_or_default();
                let url = format!("{}{FLOOR_PATH}", receivers[index(&name) % receivers.len()]);
                let body = serde_json::json!({ "value": replicas.to_string() }).to_string();
                tokio::spawn(posts.post(url).body(body).send());
            }
            Ok(Event::InitDone) => println!("{LISTED}"),
            Ok(_) => {}
            Err(error) => eprintln!("the watch failed: {error}"),
        }
    }
    Ok(())
}

/// The floor process, killed when dropped.
pub struct Floor {
    child: Child,
    _folder: Folder,
}

impl Floor {
    /// Starts the floor and waits until the floor has listed the Deployments. Returns the duration of the start.
    pub async fn start(stage: &Stage) -> Result<(Self, Duration)> {
        let kubeconfig = stage
            .bed
            .plane
            .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
            .await?;
        let folder = Folder::new()?;
        let began = Instant::now();
        let child = Program::new(std::env::current_exe()?)
            .arg(FLAG)
            .args(stage.receivers.iter().map(Receiver::url))
            .env("KUBECONFIG", kubeconfig)
            .spawn(folder.path().join("floor.log"))?;
        let mut floor = Self {
            child,
            _folder: folder,
        };
        while !floor.child.log_text()?.contains(LISTED) {
            floor.child.check_running()?;
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "the floor lists nothing\n{}",
                floor.child.log_tail()
            );
            // The start is measured in milliseconds.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok((floor, began.elapsed()))
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}
