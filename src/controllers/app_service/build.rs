//! Builds the objects of an app, without their ownership, which [`Children`](qm_runtime::children::Children) adds.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricSpec,
    MetricTarget, ResourceMetricSource,
};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, LocalObjectReference, PodSpec, PodTemplateSpec, ResourceRequirements,
    Service, ServicePort, ServiceSpec,
};
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule,
    IngressServiceBackend, IngressSpec, IngressTLS, ServiceBackendPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use qm_api::app_service::TCP;
use qm_api::my_app::RESTRICTED;

use super::overrides;
use super::validate::{APP_LABEL, App};
use crate::controllers::pod::{restricted_container, restricted_pod};

/// Default image pull policy, as in the original program.
const IF_NOT_PRESENT: &str = "IfNotPresent";
/// Default target of an autoscaler, in percent of the requested CPU.
const DEFAULT_CPU_PERCENT: i32 = 80;

/// Returns the labels that select the Pods, and that generated Pods have. A Deployment cannot change its selector.
fn selector(app: &App) -> BTreeMap<String, String> {
    [(APP_LABEL.to_owned(), app.name.to_owned())].into()
}

/// Returns the metadata of an object, with the labels that Kubernetes recommends
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>). Pods do not get these labels:
/// another label would restart the Pods of an adopted Deployment.
fn metadata(app: &App) -> ObjectMeta {
    let mut labels = selector(app);
    labels.insert("app.kubernetes.io/name".into(), app.name.into());
    labels.insert("app.kubernetes.io/instance".into(), app.name.into());
    labels.insert(
        "app.kubernetes.io/managed-by".into(),
        "quartermaster".into(),
    );
    ObjectMeta {
        name: Some(app.name.into()),
        namespace: Some(app.namespace.clone()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// Builds the Deployment. Without `replicas` the number of Pods stays unset, and without `sets_ports` the container's
/// ports.
pub fn deployment(app: &App, replicas: Option<i32>, sets_ports: bool) -> Deployment {
    let spec = app.spec;
    let resources = spec
        .resources
        .as_ref()
        .map(|resources| ResourceRequirements {
            limits: filled(resources.limits.clone()),
            requests: filled(resources.requests.clone()),
            claims: None,
        });
    // Without podSecurity the template equals the original program's, so that adoption restarts nothing.
    let restricted = spec.pod_security.as_deref() == Some(RESTRICTED);
    let container = Container {
        name: app.name.into(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some(
            spec.image_pull_policy
                .clone()
                .unwrap_or_else(|| IF_NOT_PRESENT.into()),
        ),
        ports: Some(container_ports(&app.ports)).filter(|all| sets_ports && !all.is_empty()),
        command: listed(&spec.command),
        args: listed(&spec.args),
        env: listed(&app.env),
        env_from: listed(&app.env_from),
        liveness_probe: app.liveness.clone(),
        readiness_probe: app.readiness.clone(),
        startup_probe: app.startup.clone(),
        resources,
        security_context: restricted.then(restricted_container),
        ..Container::default()
    };
    let secrets = spec
        .image_pull_secrets
        .iter()
        .map(|secret| LocalObjectReference {
            name: secret.name.clone(),
        });
    let pod = PodSpec {
        containers: vec![container],
        service_account_name: spec.service_account_name.clone(),
        // Kubernetes copies each of the two fields to the other: a field left unset would keep a value that the spec
        // dropped.
        service_account: spec.service_account_name.clone(),
        image_pull_secrets: Some(secrets.collect::<Vec<_>>()).filter(|secrets| !secrets.is_empty()),
        security_context: restricted.then(restricted_pod),
        ..PodSpec::default()
    };
    let mut template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(selector(app)),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    };
    if let Some(changes) = &app.overrides {
        overrides::merge(&mut template, changes.as_ref().clone());
    }
    Deployment {
        metadata: metadata(app),
        spec: Some(DeploymentSpec {
            replicas,
            selector: LabelSelector {
                match_labels: Some(selector(app)),
                ..LabelSelector::default()
            },
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

/// Returns the container's ports: each number and protocol once and, as in the original program, without name and
/// protocol, except for ports that the Service finds by name.
fn container_ports(ports: &[ServicePort]) -> Vec<ContainerPort> {
    let mut all: Vec<ContainerPort> = Vec::new();
    for port in ports {
        let protocol = port.protocol.as_deref();
        match &port.target_port {
            Some(IntOrString::String(name)) => {
                if all.iter().any(|known| known.name.as_deref() == Some(name)) {
                    continue;
                }
                all.retain(|known| !is_at(known, port.port, protocol));
                all.push(ContainerPort {
                    name: Some(name.clone()),
                    container_port: port.port,
                    protocol: port.protocol.clone(),
                    ..ContainerPort::default()
                });
            }
            Some(IntOrString::Int(number))
                if !all.iter().any(|known| is_at(known, *number, Some(TCP))) =>
            {
                all.push(ContainerPort {
                    container_port: *number,
                    ..ContainerPort::default()
                });
            }
            Some(IntOrString::Int(_)) | None => {}
        }
    }
    all
}

/// Returns the container's ports as the original program builds them: one for each port, by number.
pub(crate) fn original_container_ports(ports: &[ServicePort]) -> Vec<ContainerPort> {
    let number = |port: &ServicePort| match &port.target_port {
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(_)) | None => 0,
    };
    ports
        .iter()
        .map(|port| ContainerPort {
            container_port: number(port),
            ..ContainerPort::default()
        })
        .collect()
}

fn is_at(port: &ContainerPort, number: i32, protocol: Option<&str>) -> bool {
    port.container_port == number && port.protocol.as_deref().or(Some(TCP)) == protocol
}

/// Builds the Service; `None` if the app has no ports.
pub fn service(app: &App) -> Option<Service> {
    (!app.ports.is_empty()).then(|| Service {
        metadata: metadata(app),
        spec: Some(ServiceSpec {
            type_: Some(app.service_type.into()),
            selector: Some(selector(app)),
            ports: Some(app.ports.clone()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

/// Builds the autoscaler, which sets the number of Pods instead of `size`.
pub fn autoscaler(app: &App) -> Option<HorizontalPodAutoscaler> {
    let autoscaling = app.spec.autoscaling.as_ref()?;
    let cpu = MetricSpec {
        type_: "Resource".into(),
        resource: Some(ResourceMetricSource {
            name: "cpu".into(),
            target: MetricTarget {
                type_: "Utilization".into(),
                average_utilization: Some(autoscaling.cpu.unwrap_or(DEFAULT_CPU_PERCENT)),
                ..MetricTarget::default()
            },
        }),
        ..MetricSpec::default()
    };
    Some(HorizontalPodAutoscaler {
        metadata: metadata(app),
        spec: Some(HorizontalPodAutoscalerSpec {
            scale_target_ref: CrossVersionObjectReference {
                api_version: Some("apps/v1".into()),
                kind: "Deployment".into(),
                name: app.name.into(),
            },
            min_replicas: Some(autoscaling.min.unwrap_or(1)),
            max_replicas: autoscaling.max,
            metrics: Some(vec![cpu]),
            ..HorizontalPodAutoscalerSpec::default()
        }),
        status: None,
    })
}

/// Returns the number of Pods within an autoscaler's bounds that is nearest to `size`.
pub(crate) fn within_bounds(autoscaler: &HorizontalPodAutoscaler, size: i32) -> i32 {
    let bounds = autoscaler.spec.as_ref();
    let least = bounds.and_then(|spec| spec.min_replicas).unwrap_or(1);
    size.max(least)
        .min(bounds.map_or(size, |spec| spec.max_replicas))
}

/// Builds the Ingress to the first TCP port.
pub fn ingress(app: &App) -> Option<Ingress> {
    let ingress = app.spec.ingress.as_ref()?;
    let port = app
        .ports
        .iter()
        .find(|port| port.protocol.as_deref() == Some(TCP))?;
    let backend = IngressServiceBackend {
        name: app.name.into(),
        port: Some(ServiceBackendPort {
            number: Some(port.port),
            ..ServiceBackendPort::default()
        }),
    };
    let path = HTTPIngressPath {
        path: Some(ingress.path.clone().unwrap_or_else(|| "/".into())),
        path_type: "Prefix".into(),
        backend: IngressBackend {
            service: Some(backend),
            ..IngressBackend::default()
        },
    };
    let tls = ingress.tls.as_ref().map(|tls| IngressTLS {
        hosts: ingress.host.clone().map(|host| vec![host]),
        secret_name: Some(tls.secret_name.clone()),
    });
    Some(Ingress {
        metadata: metadata(app),
        spec: Some(IngressSpec {
            ingress_class_name: ingress.class.clone(),
            rules: Some(vec![IngressRule {
                host: ingress.host.clone(),
                http: Some(HTTPIngressRuleValue { paths: vec![path] }),
            }]),
            tls: tls.map(|tls| vec![tls]),
            ..IngressSpec::default()
        }),
        status: None,
    })
}

fn listed<T: Clone>(all: &[T]) -> Option<Vec<T>> {
    (!all.is_empty()).then(|| all.to_vec())
}

fn filled<V>(all: BTreeMap<String, V>) -> Option<BTreeMap<String, V>> {
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests;
