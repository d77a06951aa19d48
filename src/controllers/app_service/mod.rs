//! `AppService`: a Deployment, its Service, autoscaler and Ingress.
//!
//! [`validate`] checks the spec, [`build`] builds the desired objects with the user's [`overrides`], [`pods`] finds out
//! why Pods do not run, and [`status`] reports the result.
//!
//! The *original program* is a tutorial's operator of the CRD `appservices.kosmos.io`, whose objects this one adopts.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{ContainerPort, Pod, Service, ServicePort};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::ListParams;
use kube::core::{ApiResource, Status};
use kube::{Api, ResourceExt};
use qm_api::AppService;
use qm_api::app_service::{GROUP, OLD_SPEC, TCP};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::children::{Children, Quirks};
use qm_runtime::controller::{Context, Controller};
use qm_runtime::drift::{Advice, CONTESTED};
use qm_runtime::error::{Class, Error, Result};
use qm_runtime::fields::Path;
use qm_runtime::manager::Manager;
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue};
use qm_runtime::{ObjectKey, short_digest};
use tracing::warn;

use self::pods::PodWithStatus;
use self::status::{InactiveScaling, NODE_PORT_TAKEN, Rollout, ServiceSummary};
use self::validate::App;
use crate::cli::RunConfig;
use crate::controllers::pod::PodProblem;

pub mod build;
pub mod overrides;
pub mod pods;
pub mod status;
pub mod validate;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "appservice";
pub const KIND: KindInfo = KindInfo::of::<AppService>(
    NAME,
    &["2c0f60d51c04cbbd", "ba6741daf92795b1"],
    DelegatedAccess::Children(&[
        ("horizontalpodautoscalers", "autoscaling"),
        ("ingresses", "ingress"),
    ]),
    &[
        // `patch`: to remove the original program's annotation.
        Permission::namespaced(GROUP, &["appservices"], &["get", "list", "patch", "watch"]),
        Permission::namespaced(GROUP, &["appservices/status"], &["patch"]),
        // The admission plugin OwnerReferencesPermissionEnforcement requires `update` to set references that block the
        // owner's deletion.
        Permission::namespaced(GROUP, &["appservices/finalizers"], &["update"]),
        // The operator never deletes a Deployment, but OwnerReferencesPermissionEnforcement requires `delete` to set
        // its owner.
        Permission::namespaced("apps", &["deployments"], CHILD_VERBS),
        Permission::namespaced("", &["services"], CHILD_VERBS),
        Permission::namespaced("autoscaling", &["horizontalpodautoscalers"], CHILD_VERBS),
        Permission::namespaced("networking.k8s.io", &["ingresses"], CHILD_VERBS),
        Permission::namespaced("", &["pods"], &["list"]),
        EVENTS,
    ],
)
.with_uninstall_rank(40);
/// Verbs on children that the operator creates and deletes.
const CHILD_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];
/// Maximum number of Pods of an app that the operator reads to find out why they do not run.
const MAX_PODS: u32 = 200;

/// Reason of the Event of an autoscaler that was deleted.
pub const AUTOSCALING_DISABLED: &str = "AutoscalingDisabled";
/// Path of the number of Pods, in the form of `managedFields`.
const REPLICAS: &[&str] = &["f:spec", "f:replicas"];
/// Path of the ports of a Service, in the form of `managedFields`.
const SERVICE_PORTS: &[&str] = &["f:spec", "f:ports"];

/// Changes to make instead of editing an app's objects, by field.
const ADVICE: Advice = &[(
    "spec.replicas",
    "scale the AppService instead (spec.size, spec.autoscaling, kubectl scale, or a HorizontalPodAutoscaler whose \
     scaleTargetRef is this AppService)",
)];

pub(crate) struct AppServices {
    deployments: Arc<Children<Deployment, DeploymentState>>,
    services: Arc<Children<Service, ServiceSummary>>,
    autoscalers: Arc<Children<HorizontalPodAutoscaler, Option<InactiveScaling>>>,
    ingresses: Arc<Children<Ingress, ()>>,
    scaling_grace_period: Duration,
}

/// Adds the controller.
pub(super) fn add_to(manager: &mut Manager, config: &RunConfig) -> anyhow::Result<()> {
    let scaling_grace_period = config.timings.scaling_inactive_grace_period;
    manager.add(|setup| {
        Ok(AppServices {
            deployments: setup.children(DeploymentState::of, ADVICE),
            services: setup.children(ServiceSummary::of, ADVICE),
            autoscalers: setup.children(InactiveScaling::of, ADVICE),
            ingresses: setup.children(|_| (), ADVICE),
            scaling_grace_period,
        })
    })
}

impl Controller for AppServices {
    type Kind = AppService;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = "quartermaster/appservice";

    async fn reconcile(&self, cx: &mut Context<AppService>) -> Result<Outcome> {
        let object = Arc::clone(&cx.object);
        let app = validate::check(&object).map_err(Error::Invalid)?;
        // The future holds objects of four kinds, too much for the stack of every reconcile.
        Box::pin(self.ensure(cx, &app)).await?;
        if object.annotations().contains_key(OLD_SPEC) {
            // The original program recorded the spec in the annotation. Until a status is written, the annotation alone
            // shows that the app may have objects that no watch shows.
            cx.annotate(&[(OLD_SPEC, None)]).await?;
        }
        if let Some((message, delay)) = self.contested(&cx.key) {
            let contested = Outcome::failed(CONTESTED, message).event(EventPolicy::OnMessage);
            return Ok(contested.requeue(Requeue::After(delay)));
        }

        let deployment = self.deployments.summary(&cx.key, &cx.owner);
        let rollout = deployment.unwrap_or_default().rollout;
        // Until the Deployment controller has observed the Deployment, Pods belong to an earlier state.
        let is_rolling_out = rollout.is_observed && !rollout.is_complete();
        let problem = if is_rolling_out {
            self.pod_problem(cx).await
        } else {
            None
        };
        let outcome = rollout.outcome(&cx.key, problem);
        if is_rolling_out {
            return Ok(outcome.requeue(Requeue::Poll));
        }
        let autoscaler = self.autoscalers.summary(&cx.key, &cx.owner).flatten();
        let inactive = autoscaler.filter(|_| app.spec.autoscaling.is_some());
        Ok(status::with_scaling(
            outcome,
            inactive.as_ref(),
            rollout.available_since(),
            self.scaling_grace_period,
            Timestamp::now(),
        ))
    }

    async fn synced(&self) {
        self.deployments.synced().await;
        self.services.synced().await;
    }

    fn fill_status(&self, cx: &mut Context<AppService>) {
        let deployment = self.deployments.summary(&cx.key, &cx.owner);
        let rollout = deployment.map(|deployment| deployment.rollout);
        let service = self.services.summary(&cx.key, &cx.owner);
        status::fill_status(&mut cx.status, &cx.key.name, rollout, service);
    }

    fn classify(&self, error: &Error) -> (Class, Cow<'static, str>) {
        if error.status().is_some_and(is_node_port_taken) {
            // The port may become free.
            (Class::Waiting, NODE_PORT_TAKEN.into())
        } else {
            error.classify()
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.deployments.forget(key);
        self.services.forget(key);
        self.autoscalers.forget(key);
        self.ingresses.forget(key);
    }
}

impl AppServices {
    /// Makes all objects of the app match the desired state.
    ///
    /// Returns the most important error.
    async fn ensure(&self, cx: &Context<AppService>, app: &App<'_>) -> Result<()> {
        let service = async {
            let service = match build::service(app) {
                Some(service) => self.ensure_service(cx, service).await,
                None => self.services.ensure_absent(cx, &cx.key).await.map(drop),
            };
            // An Ingress must not send traffic to a Service that the app does not own.
            let is_not_owned = matches!(service, Err(Error::NotOwned(_)));
            let ingress = match build::ingress(app).filter(|_| !is_not_owned) {
                Some(ingress) => {
                    let applied = self.ingresses.apply(cx, ingress, Quirks::default());
                    applied.await.map(drop)
                }
                None => self.ingresses.ensure_absent(cx, &cx.key).await.map(drop),
            };
            (service, ingress)
        };
        let (workload, (service, ingress)) = tokio::join!(self.ensure_workload(cx, app), service);
        let mut errors: Vec<_> = [workload, service, ingress]
            .into_iter()
            .filter_map(Result::err)
            .collect();
        let stale = errors
            .iter()
            .position(|error| error.classify().0 == Class::Stale);
        if let Some(stale) = stale {
            return Err(errors.swap_remove(stale));
        }
        errors.into_iter().reduce(Error::or).map_or(Ok(()), Err)
    }

    /// Makes the Deployment and the autoscaler match the desired state. The autoscaler is created after the Deployment
    /// has released `replicas`, and deleted before the Deployment owns the field again, so neither overwrites the
    /// other.
    async fn ensure_workload(&self, cx: &Context<AppService>, app: &App<'_>) -> Result<()> {
        let Some(autoscaler) = build::autoscaler(app) else {
            let deployment = self.deployments.summary(&cx.key, &cx.owner);
            if self.autoscalers.ensure_absent(cx, &cx.key).await? {
                let replicas = deployment.map_or(0, |it| it.rollout.desired);
                let note = format!(
                    "deleted the autoscaler, which had set {replicas} Pods: spec.size, which is {}, applies",
                    app.size
                );
                cx.event("Scale", AUTOSCALING_DISABLED, note);
            }
            return self
                .ensure_deployment(cx, app, Some(app.size), app.size)
                .await;
        };
        let initial = build::within_bounds(&autoscaler, app.size);
        let deployment = self.ensure_deployment(cx, app, None, initial).await;
        if matches!(deployment, Err(Error::NotOwned(_))) {
            // The autoscaler would go on scaling a Deployment that the app does not own.
            self.autoscalers.ensure_absent(cx, &cx.key).await?;
        }
        deployment?;
        self.autoscalers
            .apply(cx, autoscaler, Quirks::default())
            .await
            .map(drop)
    }

    /// Returns the digest of the image and the ports of the live Deployment, if it has a port twice. The operator does
    /// not cache a Deployment that it does not own yet, and reads it only if `ports` has a port twice.
    async fn duplicate_ports(
        &self,
        cx: &Context<AppService>,
        ports: &[ContainerPort],
    ) -> Result<Option<String>> {
        if !has_duplicate_ports(ports) {
            return Ok(None);
        }
        let deployment = match self.deployments.summary(&cx.key, &cx.owner) {
            Some(known) => Some(known),
            None => self
                .deployments
                .live(&cx.key)
                .await?
                .map(|live| live.summary),
        };
        Ok(deployment.and_then(|it| it.duplicate_ports))
    }

    /// Applies the Deployment. A new one starts with `initial` Pods; without `replicas`, the operator does not own their
    /// number afterwards. If the original program has left a port twice, the container's ports stay unchanged until the
    /// Pods are replaced for another reason.
    async fn ensure_deployment(
        &self,
        cx: &Context<AppService>,
        app: &App<'_>,
        replicas: Option<i32>,
        initial: i32,
    ) -> Result<()> {
        let ports = build::original_container_ports(&app.ports);
        let duplicate_ports = self.duplicate_ports(cx, &ports).await?;
        // Overrides change the template, and so replace the Pods.
        let sets_ports = app.overrides.is_some()
            || duplicate_ports.is_none_or(|live| live != ports_digest(&app.spec.image, &ports));
        let container = format!("k:{{\"name\":\"{}\"}}", app.name);
        let container_ports = [
            "f:spec",
            "f:template",
            "f:spec",
            "f:containers",
            &container,
            "f:ports",
        ];
        let mut released: Vec<&[&str]> = Vec::new();
        if replicas.is_none() {
            released.push(REPLICAS);
        }
        if !sets_ports {
            released.push(&container_ports);
        }
        let deployment = build::deployment(app, replicas, sets_ports);
        let quirks = Quirks {
            initial: (!released.is_empty()).then(|| build::deployment(app, Some(initial), true)),
            released: &released,
            renumbered: &["containerPort"],
            ..Quirks::default()
        };
        let applied = self.deployments.apply(cx, deployment, quirks);
        applied.await.map(drop)
    }

    /// Applies the Service. A node port that the spec no longer names keeps its number even if the rest of the port
    /// changes, unless another port gets the number: the apiserver matches ports by name alone.
    async fn ensure_service(&self, cx: &Context<AppService>, service: Service) -> Result<()> {
        let unnamed: Vec<Path> = ports(&service)
            .filter(|port| port.node_port.is_none())
            .map(node_port_path)
            .collect();
        let released: Vec<Vec<&str>> = unnamed
            .iter()
            .map(|path| path.iter().map(String::as_str).collect())
            .collect();
        let released: Vec<_> = released.iter().map(Vec::as_slice).collect();
        let quirks = service_quirks(&released);
        self.services.apply(cx, service, quirks).await.map(drop)
    }

    /// Returns the message about an object that other managers keep changing, and when the next correction is due.
    fn contested(&self, key: &ObjectKey) -> Option<(String, Duration)> {
        let contested = self.deployments.contested(key);
        let contested = contested.or_else(|| self.services.contested(key));
        let contested = contested.or_else(|| self.autoscalers.contested(key));
        contested.or_else(|| self.ingresses.contested(key))
    }

    /// Returns the first problem of the app's Pods.
    async fn pod_problem(&self, cx: &Context<AppService>) -> Option<PodProblem> {
        let resource = ApiResource::erase::<Pod>(&());
        let api: Api<PodWithStatus> =
            Api::namespaced_with(cx.client().clone(), &cx.key.namespace, &resource);
        let mut page = ListParams::default()
            .labels(&format!("{}={}", validate::APP_LABEL, cx.key.name))
            .limit(MAX_PODS);
        let mut count = 0;
        loop {
            let pods = match api.list(&page).await {
                Ok(pods) => pods,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    warn!(error, "the Pods of the app could not be listed; will retry");
                    return None;
                }
            };
            // Pages are in the order of names, so the first page with a problem has the first such Pod.
            let problem = pods::problem(&cx.key.name, &pods);
            count += pods.items.len();
            page.continue_token = pods.metadata.continue_.filter(|token| !token.is_empty());
            if problem.is_some() || page.continue_token.is_none() || count >= MAX_PODS as usize {
                return problem;
            }
        }
    }
}

/// Cached summary of a Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeploymentState {
    pub rollout: Rollout,
    /// Digest of the image and the ports of a container that has a port twice.
    duplicate_ports: Option<String>,
}

/// Returns whether the apiserver rejected a Service because the requested node port, or every node port, is in use.
fn is_node_port_taken(status: &Status) -> bool {
    duplicate_node_port(status).is_some()
        || status
            .message
            .contains("provided port is already allocated")
        || status.message.contains("failed to allocate a nodePort")
}

impl DeploymentState {
    pub fn of(deployment: &Deployment) -> Self {
        let pod = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        let container = pod.and_then(|pod| pod.containers.first());
        let ports = container
            .and_then(|container| container.ports.as_deref())
            .unwrap_or_default();
        let duplicate_ports = container
            .filter(|_| has_duplicate_ports(ports))
            .map(|container| ports_digest(container.image.as_deref().unwrap_or_default(), ports));
        Self {
            rollout: Rollout::of(deployment),
            duplicate_ports,
        }
    }
}

/// Returns a digest of an image and ports, whatever the order of the ports.
fn ports_digest(image: &str, ports: &[ContainerPort]) -> String {
    let mut numbers: Vec<_> = ports.iter().map(|port| port.container_port).collect();
    numbers.sort_unstable();
    short_digest(format!("{image} {numbers:?}"))
}

/// Returns whether a port appears twice, which server-side apply cannot express.
fn has_duplicate_ports(ports: &[ContainerPort]) -> bool {
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| TCP.into());
    let once: BTreeSet<_> = ports
        .iter()
        .map(|port| (port.container_port, protocol(port)))
        .collect();
    once.len() < ports.len()
}

/// Returns the exceptions of Services to server-side apply. `released` are paths of fields that the operator releases.
fn service_quirks<'a>(released: &'a [&'a [&'a str]]) -> Quirks<'a, Service> {
    Quirks {
        released,
        reassigned: moved_node_ports,
        ignored: ignored_a_node_port,
        clear_allocated: clear_node_ports,
        renumbered: &["port"],
        unnamed_field: duplicate_node_port,
        ..Quirks::default()
    }
}

/// Returns the field of a node port that two ports have. The apiserver rejects such ports before it validates fields, so
/// the status names no field.
fn duplicate_node_port(status: &Status) -> Option<&'static str> {
    let is_duplicate = status.message.starts_with("duplicate nodePort");
    is_duplicate.then_some("spec.ports[0].nodePort")
}

/// Returns the live node ports that the desired Service requests for other ports.
fn moved_node_ports(desired: &Service, live: &Service) -> Vec<Path> {
    let has_moved = |port: &&ServicePort| {
        let live_port =
            ports(live).find(|it| (it.port, &it.protocol) == (port.port, &port.protocol));
        let number = live_port.and_then(|it| it.node_port);
        let is_requested =
            || ports(desired).any(|it| (it.node_port, &it.protocol) == (number, &port.protocol));
        port.node_port.is_none() && number.is_some() && is_requested()
    };
    ports(desired)
        .filter(has_moved)
        .map(node_port_path)
        .collect()
}

/// Returns the path of a port's node port, in the form of `managedFields`.
fn node_port_path(port: &ServicePort) -> Path {
    let protocol = port.protocol.as_deref().unwrap_or(TCP);
    let item = format!("k:{{\"port\":{},\"protocol\":\"{protocol}\"}}", port.port);
    let path = [SERVICE_PORTS, &[item.as_str(), "f:nodePort"]].concat();
    path.into_iter().map(str::to_owned).collect()
}

/// Removes the live Service's node ports from the desired one: the apiserver would reject them as allocated.
fn clear_node_ports(desired: &mut Service, live: &Service) {
    let allocated: Vec<_> = ports(live).filter_map(|port| port.node_port).collect();
    for port in desired
        .spec
        .iter_mut()
        .flat_map(|spec| spec.ports.iter_mut().flatten())
    {
        port.node_port = port.node_port.filter(|number| !allocated.contains(number));
    }
}

/// Returns whether the live Service lacks a node port that the operator sent: an apiserver with a stale cache accepts the
/// new port and keeps the old one.
fn ignored_a_node_port(sent: &Service, live: &Service) -> bool {
    let is_live = |port: &ServicePort| {
        ports(live).any(|it| {
            (it.port, &it.protocol, it.node_port) == (port.port, &port.protocol, port.node_port)
        })
    };
    ports(sent).any(|port| port.node_port.is_some() && !is_live(port))
}

fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::two_ports("duplicate nodePort: {TCP 30080}", true)]
    #[case::another_service(
        "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated",
        true
    )]
    #[case::full_range(
        "Internal error occurred: failed to allocate a nodePort: range is full",
        true
    )]
    #[case::server_error("etcdserver: request timed out", false)]
    fn node_port_in_use_differs_from_other_errors(#[case] message: &str, #[case] expected: bool) {
        assert_eq!(is_node_port_taken(&Status::failure(message, "")), expected);
    }

    /// The live ports are 80 with the number 30080, and 81 with 30081.
    #[rstest]
    #[case::moved(json!([{ "port": 80, "protocol": "TCP" }, { "port": 81, "protocol": "TCP", "nodePort": 30080 }]), &[80])]
    #[case::exchanged(json!([{ "port": 80, "protocol": "TCP", "nodePort": 30081 }, { "port": 81, "protocol": "TCP", "nodePort": 30080 }]), &[])]
    #[case::unchanged(json!([{ "port": 80, "protocol": "TCP" }, { "port": 81, "protocol": "TCP", "nodePort": 30081 }]), &[])]
    #[case::another_protocol(json!([{ "port": 80, "protocol": "TCP" }, { "port": 81, "protocol": "UDP", "nodePort": 30080 }]), &[])]
    #[case::removed_port(json!([{ "port": 81, "protocol": "TCP", "nodePort": 30080 }]), &[])]
    fn node_port_that_another_port_requests_has_moved(
        #[case] desired: Value,
        #[case] expected: &[u16],
    ) {
        let service = |ports: Value| -> Service {
            let service =
                json!({ "apiVersion": "v1", "kind": "Service", "spec": { "ports": ports } });
            serde_json::from_value(service).unwrap()
        };
        let live = service(json!([
            { "port": 80, "protocol": "TCP", "nodePort": 30080 },
            { "port": 81, "protocol": "TCP", "nodePort": 30081 },
        ]));
        let item = |port: &u16| format!("k:{{\"port\":{port},\"protocol\":\"TCP\"}}");
        let moved = moved_node_ports(&service(desired), &live);
        let items: Vec<_> = moved.iter().map(|path| path[2].clone()).collect();
        assert_eq!(items, expected.iter().map(item).collect::<Vec<_>>());
    }
}
