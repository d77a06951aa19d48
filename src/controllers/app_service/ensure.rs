//! Makes an app's objects match what [`build`] builds.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use qm_api::AppService;
use qm_api::app_service::TCP;
use qm_runtime::children::Quirks;
use qm_runtime::controller::Context;
use qm_runtime::error::{Class, Error, Result};
use qm_runtime::raw_object::BoundedObject;

use super::children::{DeploymentState, has_twins, numbers, ports, service_quirks};
use super::validate::App;
use super::{AppServices, build};

/// Reason of the Event of an autoscaler that was deleted.
pub const AUTOSCALING_DISABLED: &str = "AutoscalingDisabled";
/// Path of the number of Pods, in the form of `managedFields`.
const REPLICAS: &[&str] = &["f:spec", "f:replicas"];
/// Path of the ports of a Service, in the form of `managedFields`.
const SERVICE_PORTS: &[&str] = &["f:spec", "f:ports"];

impl AppServices {
    /// Makes all objects of the app match the desired state.
    ///
    /// Returns the most important error.
    pub(super) async fn ensure(&self, cx: &Context<AppService>, app: &App<'_>) -> Result<()> {
        let service = async {
            let service = match build::service(app) {
                Some(service) => self.ensure_service(cx, service).await,
                None => self.services.ensure_absent(cx, &cx.key).await.map(drop),
            };
            // Otherwise the Ingress would lead to a Service that the app does not own.
            let is_not_owned = matches!(service, Err(Error::NotOwned(_)));
            let ingress = match build::ingress(app).filter(|_| !is_not_owned) {
                Some(ingress) => self.ingresses.apply(cx, ingress, Quirks::default()).await,
                None => self.ingresses.ensure_absent(cx, &cx.key).await.map(drop),
            };
            (service, ingress)
        };
        let (run, (service, ingress)) = tokio::join!(self.ensure_pods(cx, app), service);
        let mut errors: Vec<_> = [run, service, ingress]
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
    async fn ensure_pods(&self, cx: &Context<AppService>, app: &App<'_>) -> Result<()> {
        let deployment = self.deployment_state(cx, app).await?;
        let Some(autoscaler) = build::autoscaler(app) else {
            if self.autoscalers.ensure_absent(cx, &cx.key).await? {
                let replicas = deployment.as_ref().map_or(0, |it| it.rollout.desired);
                let note = format!(
                    "autoscaling is off: the autoscaler wanted {replicas} Pods, and spec.size is {}",
                    app.size
                );
                cx.event("Scale", AUTOSCALING_DISABLED, note);
            }
            return self
                .ensure_deployment(cx, app, deployment.as_ref(), Some(app.size))
                .await;
        };
        // A new Deployment starts with the size of the spec, within the autoscaler's bounds.
        let replicas = deployment
            .is_none()
            .then(|| build::within_bounds(&autoscaler, app.size));
        self.ensure_deployment(cx, app, deployment.as_ref(), replicas)
            .await?;
        self.autoscalers
            .apply(cx, autoscaler, Quirks::default())
            .await
    }

    /// Returns the state of the Deployment. A Deployment that the operator does not own yet is not cached, and read
    /// only if an autoscaler or a port that appears twice depends on its state.
    async fn deployment_state(
        &self,
        cx: &Context<AppService>,
        app: &App<'_>,
    ) -> Result<Option<DeploymentState>> {
        let known = self.deployments.summary(&cx.key, &cx.owner);
        let has_twins = has_twins(&build::original_container_ports(&app.ports));
        if known.is_some() || (app.spec.autoscaling.is_none() && !has_twins) {
            return Ok(known);
        }
        let api: Api<BoundedObject<Deployment>> =
            Api::namespaced(cx.client().clone(), &cx.key.namespace);
        let live = api.get_opt(&cx.key.name).await;
        let live = live.map_err(Error::api(format!(
            "Deployment {} could not be read",
            cx.key
        )))?;
        Ok(live.map(|BoundedObject(live)| DeploymentState::of(&live)))
    }

    /// Applies the Deployment. Without `replicas`, the operator does not own the number of Pods. If the original
    /// program has left a port twice, the container's ports stay unchanged until the Pods are replaced for another
    /// reason.
    async fn ensure_deployment(
        &self,
        cx: &Context<AppService>,
        app: &App<'_>,
        live: Option<&DeploymentState>,
        replicas: Option<i32>,
    ) -> Result<()> {
        let twins = live.and_then(|live| live.twins.as_ref());
        let desired = numbers(&build::original_container_ports(&app.ports));
        let ports =
            twins.is_none_or(|(image, ports)| *image != app.spec.image || *ports != desired);
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
        if !ports {
            released.push(&container_ports);
        }
        let deployment = build::deployment(app, replicas, ports);
        let quirks = Quirks {
            released: &released,
            ..Quirks::default()
        };
        self.deployments.apply(cx, deployment, quirks).await
    }

    /// Applies the Service. A node port that the spec no longer names keeps its number even if the rest of the port
    /// changes: the apiserver matches ports by name alone.
    async fn ensure_service(&self, cx: &Context<AppService>, service: Service) -> Result<()> {
        let unnamed: Vec<_> = ports(&service)
            .filter(|port| port.node_port.is_none())
            .map(|port| {
                let protocol = port.protocol.as_deref().unwrap_or(TCP);
                format!("k:{{\"port\":{},\"protocol\":\"{protocol}\"}}", port.port)
            })
            .collect();
        let released: Vec<_> = unnamed
            .iter()
            .map(|port| [SERVICE_PORTS, &[port.as_str(), "f:nodePort"]].concat())
            .collect();
        let released: Vec<_> = released.iter().map(Vec::as_slice).collect();
        let quirks = service_quirks(&released);
        self.services.apply(cx, service, quirks).await
    }
}
