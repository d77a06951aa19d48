//! The floor: a bare watch that posts what it sees at once, without history, retries or a thought. A process of its
//! own, with the operator's rights, so that all that the operator costs can be seen beside what it costs.

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

/// Given to the process that is the floor, before the receivers' URLs.
pub const FLAG: &str = "--floor";

/// What it says when it has seen what is there.
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

/// The process. Killed when dropped.
pub struct Floor {
    child: Child,
    _folder: Folder,
}

impl Floor {
    /// Starts it; returns when it has listed what is there, and says how long that took.
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
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok((floor, began.elapsed()))
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}
