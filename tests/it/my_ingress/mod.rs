//! `MyIngress` against moto, which replaces AWS, behind the testbed's layer of AWS's own rules and of faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::Api;
use qm_api::MyIngress;
use serde_json::{Value, json};
use testbed::aws::{Aws, Balancer, Call};
use testbed::control_plane::audit::Mark;
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings};

mod calls;
mod delayed;
mod deletion;
mod drift;
mod kills;
mod listener_deletion;
mod listeners;
mod nodes;
mod outages;
mod ownership;
mod proxied;
mod rest;
mod stale;
mod walkthrough;

/// The document's subnets, which exist in the testbed.
const SUBNETS: [&str; 2] = ["subnet-abc", "subnet-def"];

/// A namespace, and its own AWS.
struct Site {
    bed: Bed,
    aws: Aws,
}

impl Site {
    async fn new(name: &str) -> Self {
        Self {
            bed: Bed::shared(name).await,
            aws: Aws::start().await.unwrap(),
        }
    }

    /// Creates another namespace with the same AWS.
    async fn another(&self, name: &str) -> Self {
        Self {
            bed: Bed::on(self.bed.plane.clone(), name).await,
            aws: self.aws.clone(),
        }
    }

    /// Returns settings for this AWS.
    fn settings(&self) -> Settings {
        Settings::default()
            .aws(&self.aws)
            .flag("--controllers=myingress")
    }

    async fn operator(&self) -> Operator {
        Operator::start(&self.bed, self.settings()).await
    }

    /// Creates a `MyIngress` with the document's subnets, and these fields.
    async fn ingress(&self, name: &str, more: Value) -> MyIngress {
        let mut spec = json!({ "subnets": SUBNETS });
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        self.bed.create(name, json!({ "spec": spec })).await
    }

    async fn respec(&self, name: &str, spec: Value) {
        self.bed
            .patch::<MyIngress>(name, json!({ "spec": spec }))
            .await;
    }

    /// Triggers a reconcile, which reads AWS again.
    async fn reconcile(&self, name: &str) {
        self.bed.request_reconcile::<MyIngress>(name).await;
    }

    /// Waits until the condition of the current generation has this reason; returns its message.
    async fn has_reason(&self, name: &str, reason: &str) -> String {
        let ingress = self.bed.until(name, reason, |ingress: &MyIngress| {
            reason_and_message(ingress).0 == reason && up_to_date(ingress)
        });
        reason_and_message(&ingress.await).1
    }

    async fn ready(&self, name: &str) -> MyIngress {
        self.has_reason(name, "Ready").await;
        self.bed.api().get(name).await.unwrap()
    }

    /// Waits until the object is deleted.
    async fn is_deleted(&self, name: &str) {
        let api: Api<MyIngress> = self.bed.api();
        until(format!("{name} is deleted"), SOON, async || {
            Ok(api.get_opt(name).await?.is_none().then_some(()))
        })
        .await
        .unwrap();
    }

    /// Returns the load balancer of that `MyIngress`.
    async fn balancer(&self, name: &str) -> Option<Balancer> {
        self.aws.balancer(&format!("{name}-alb")).await.unwrap()
    }

    /// Waits until the load balancer satisfies `is`.
    async fn becomes(&self, name: &str, what: &str, is: impl Fn(&Balancer) -> bool) -> Balancer {
        until(
            format!("the load balancer of {name} {what}"),
            SOON,
            async || {
                Ok(self
                    .balancer(name)
                    .await
                    .filter(|load_balancer| is(load_balancer)))
            },
        )
        .await
        .unwrap()
    }

    /// Returns the operator's writes since `since` in this namespace, without Events.
    async fn writes(&self, since: Mark) -> Vec<String> {
        let requests = self.bed.operator_requests(since).await;
        requests
            .filter(|it| it.is_write() && it.resource != "events")
            .map(|it| format!("{} {}", it.verb, it.resource))
            .collect()
    }

    /// Returns `NAMESPACE/NAME`.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.bed.namespace)
    }
}

/// Returns reason and message of the condition.
fn reason_and_message(ingress: &MyIngress) -> (String, String) {
    let conditions = ingress
        .status
        .as_ref()
        .map(|status| &*status.conditions)
        .unwrap_or_default();
    conditions
        .first()
        .map(|condition| (condition.reason.clone(), condition.message.clone()))
        .unwrap_or_default()
}

fn up_to_date(ingress: &MyIngress) -> bool {
    ingress
        .status
        .as_ref()
        .is_some_and(|status| status.observed_generation == ingress.metadata.generation)
}

/// Returns the number of calls by action.
fn counted(calls: &[Arc<Call>]) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for call in calls {
        *counted.entry(call.action.clone()).or_default() += 1;
    }
    counted
}

/// Returns the calls that may change something.
fn changing(calls: &[Arc<Call>]) -> Vec<String> {
    calls
        .iter()
        .filter(|call| !call.is_read())
        .map(|call| call.action.clone())
        .collect()
}
