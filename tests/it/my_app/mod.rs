//! `MyApp`: its command, executed for real, and its Pod on the control plane.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::control_plane::audit::Mark;
use testbed::wait::until;

use crate::support::{Bed, SOON};

mod changes;
mod kills;
mod kubelet;
mod ownership;
mod rejected;
mod shell;
mod stale;
mod walkthrough;

/// Returns reason and message of the condition.
fn reason_and_message(app: &MyApp) -> (String, String) {
    let condition = app
        .status
        .as_ref()
        .and_then(|status| status.conditions.first());
    condition
        .map(|condition| (condition.reason.clone(), condition.message.clone()))
        .unwrap_or_default()
}

/// Returns a namespace without scheduler, kubelet and garbage collector: only the test changes Pods there.
async fn by_hand(name: &str) -> Bed {
    let bed = Bed::without_controllers(name).await;
    bed.create::<ServiceAccount>("default", json!({})).await;
    bed
}

impl Bed {
    /// Creates a `MyApp` with this spec.
    async fn app(&self, name: &str, spec: Value) -> MyApp {
        self.create(name, json!({ "spec": spec })).await
    }

    /// Waits until the condition of a `MyApp`'s current generation has this reason; returns the message.
    async fn app_has_reason(&self, name: &str, reason: &str) -> String {
        let app = self
            .until(name, reason, |app: &MyApp| {
                let observed = app
                    .status
                    .as_ref()
                    .and_then(|status| status.observed_generation);
                observed == app.metadata.generation && reason_and_message(app).0 == reason
            })
            .await;
        let status = app.status.as_ref().unwrap();
        assert_eq!(status.ready, reason == "Ready");
        assert_eq!(
            status.conditions[0].observed_generation,
            status.observed_generation
        );
        assert_eq!(
            status.conditions[0].status,
            if status.ready { "True" } else { "False" }
        );
        reason_and_message(&app).1
    }

    /// Returns the app's Pod.
    async fn pod(&self, app: &str) -> Option<Pod> {
        self.api().get_opt(&format!("{app}-pod")).await.unwrap()
    }

    /// Waits until a `MyApp` is ready; returns its Pod.
    async fn app_runs(&self, name: &str) -> Pod {
        self.app_has_reason(name, "Ready").await;
        self.pod(name).await.unwrap()
    }

    /// Waits until a `MyApp` is ready with a Pod other than this one.
    async fn app_runs_again(&self, name: &str, before: &Pod) -> Pod {
        self.another(name, before).await;
        self.app_runs(name).await
    }

    /// Waits until there is a Pod other than this one, which is not being deleted.
    async fn another(&self, app: &str, before: &Pod) -> Pod {
        let is_other =
            |pod: &Pod| pod.uid() != before.uid() && pod.metadata.deletion_timestamp.is_none();
        until(format!("another {app}-pod"), SOON, async || {
            Ok(self.pod(app).await.filter(is_other))
        })
        .await
        .unwrap()
    }

    /// Returns the number of the operator's requests in this namespace since `since`, without Events, by verb and
    /// resource.
    async fn requests(&self, since: Mark) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for subject in self.operator_requests(since).await {
            let watches = ["watch", "list"].contains(&subject.verb.as_str());
            if subject.resource != "events" && !watches {
                *counts
                    .entry(format!(
                        "{} {} {}",
                        subject.verb, subject.resource, subject.name
                    ))
                    .or_default() += 1;
            }
        }
        counts
    }

    /// Creates an object, and waits for the operator's reaction, which follows those to all earlier changes.
    async fn marker(&self, name: &str) {
        self.app(name, json!({ "image": "nginx", "suspend": true }))
            .await;
        self.app_has_reason(name, "Suspended").await;
    }

    /// Binds a Pod to this node, as the scheduler does.
    async fn bind(&self, app: &str, node: &str) {
        let name = format!("{app}-pod");
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name }, "target": { "kind": "Node", "name": node } });
        let pods: Api<Pod> = self.api();
        let _: Value = pods
            .create_subresource("binding", &name, &PostParams::default(), &binding)
            .await
            .unwrap();
    }

    /// Writes the status of a Pod, as its kubelet does.
    async fn pod_is(&self, app: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        let pods: Api<Pod> = self.api();
        pods.patch_status(&format!("{app}-pod"), &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Deletes a Terminating Pod finally, as its kubelet does, or the garbage collector for Pods of deleted nodes.
    async fn pod_ends(&self, app: &str) {
        let now = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        self.api::<Pod>()
            .delete(&format!("{app}-pod"), &now)
            .await
            .unwrap();
    }

    /// Creates a node with this condition.
    async fn node(&self, name: &str, ready: &str, message: &str) {
        let condition =
            json!({ "type": "Ready", "status": ready, "reason": "Said", "message": message });
        let nodes: Api<Node> = Api::all(self.client.clone());
        if nodes.get_opt(name).await.unwrap().is_none() {
            let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            nodes.create(&PostParams::default(), &node).await.unwrap();
        }
        let patch = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
        nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
}

/// Returns a Pod's status, running and ready or not.
fn running(ready: bool) -> Value {
    let ready = if ready { "True" } else { "False" };
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }], "containerStatuses": null })
}

/// Returns a Pod's status while its container waits.
fn waiting(phase: &str, reason: &str, message: &str) -> Value {
    let state = json!({ "waiting": { "reason": reason, "message": message } });
    let container = json!({ "name": "web", "image": "nginx", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": "False" }], "containerStatuses": [container] })
}

/// Returns the Pod that document 003's program creates: the variable twice, no owner.
fn documents_pod(app: &str, image: &str, banner: &str) -> Value {
    let script = "if [ -n \"$BANNER\" ]; then echo \"$BANNER\"; fi\nexec sleep infinity\n";
    json!({
        "metadata": { "labels": { "app": app } },
        "spec": { "containers": [{
            "name": app,
            "image": image,
            "ports": [{ "containerPort": 80 }],
            "env": [{ "name": "BANNER", "value": "" }, { "name": "BANNER", "value": banner }],
            "command": ["/bin/sh", "-c"],
            "args": [script],
        }] },
    })
}

/// Returns whether this `MyApp` is the controller of a Pod.
fn is_owned_by(pod: &Pod, app: &MyApp) -> bool {
    let controller = pod
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true));
    let label = pod.labels().get("quartermaster.dev/owner-uid");
    controller.is_some_and(|owner| Some(&owner.uid) == app.meta().uid.as_ref())
        && label == app.meta().uid.as_ref()
}
