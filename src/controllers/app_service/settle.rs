//! Has an app's objects be as they are built, and tells what stands in the way.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerPort, Service, ServicePort};
use kube::{Api, Resource};
use qm_api::AppService;
use qm_api::app_service::TCP;
use qm_runtime::children::{Quirks, Trouble};
use qm_runtime::drift::Advice;
use qm_runtime::ownership::Owner;
use qm_runtime::raw_object::BoundedObject;
use qm_runtime::reconciler::{Class, Failure, Outcome};
use qm_runtime::{Key, apply, drift};

use super::standing::{Rollout, SUSPENDED};
use super::validate::App;
use super::{AppServices, Error, build};

/// Reason of an app whose objects the operator may not write.
pub const FORBIDDEN: &str = "Forbidden";
/// Reason of the Event of an autoscaler that went.
pub const AUTOSCALING_OFF: &str = "AutoscalingOff";
/// Changes to make instead of editing an app's objects, by field.
pub const ADVICE: Advice = &[(
    "spec.replicas",
    "scale the AppService instead (spec.size, spec.autoscaling, kubectl scale, or a HorizontalPodAutoscaler whose \
     scaleTargetRef is this AppService)",
)];
/// How many Pods run, in the form of `managedFields`.
const REPLICAS: &[&str] = &["f:spec", "f:replicas"];

/// The ports of a Service, in the form of `managedFields`.
const SERVICE_PORTS: &[&str] = &["f:spec", "f:ports"];

/// What is kept of a Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Running {
    /// How far it is.
    pub rollout: Rollout,
    /// Of one whose container has a port twice: its image and its ports, in order of their numbers.
    twins: Option<(String, Vec<i32>)>,
}

/// What an app has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What runs it.
    Deployment,
    /// What says how many Pods it has.
    Autoscaler,
    /// What leads to it.
    Service,
    /// What leads to it from outside.
    Ingress,
}

/// What stands in the way of an app.
#[derive(Debug)]
pub enum Problem {
    /// It is to be let alone.
    Suspended,
    /// What was written cannot be built.
    SpecInvalid(String),
    /// Objects of its name are somebody else's.
    Conflict {
        /// Which ones.
        parts: Vec<Part>,
        /// Whose, and how to hand it over.
        words: String,
    },
    /// A port on the nodes is taken, or none is left: it may become free.
    NodePortTaken(String),
    /// Quota, a policy or rights: they may change.
    Forbidden(String),
    /// The apiserver does not take an object as it was built.
    Rejected(String),
    /// An object is being deleted; it is made again once it is gone.
    Deleting(String),
    /// An object could not be read or written.
    Unwritten(Trouble),
    /// Other managers keep changing an object.
    Contested {
        /// Message: the managers, the fields they change, and the change to make instead.
        words: String,
        /// Delay until the next reconcile.
        again: Duration,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspended => f.write_str("spec.suspend is true: nothing is changed"),
            Self::SpecInvalid(words)
            | Self::Conflict { words, .. }
            | Self::NodePortTaken(words)
            | Self::Forbidden(words)
            | Self::Rejected(words)
            | Self::Deleting(words)
            | Self::Contested { words, .. } => f.write_str(words),
            Self::Unwritten(Trouble::Api {
                what,
                error: kube::Error::Api(said),
            }) => {
                write!(f, "{what} could not be read or written: {}", said.message)
            }
            Self::Unwritten(trouble) => trouble.fmt(f),
        }
    }
}

impl Problem {
    /// In one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Suspended => SUSPENDED,
            Self::SpecInvalid(_) => "SpecInvalid",
            Self::Conflict { .. } => "Conflict",
            Self::NodePortTaken(_) => "NodePortTaken",
            Self::Forbidden(_) => FORBIDDEN,
            Self::Rejected(_) => "Rejected",
            Self::Deleting(_) => "Deleting",
            Self::Unwritten(_) => "Unwritten",
            Self::Contested { .. } => drift::CONTESTED,
        }
    }

    /// How the pass ends that met it.
    ///
    /// # Errors
    /// What is a failure of the pass.
    pub fn outcome(self) -> Result<Outcome, Error> {
        match self {
            Self::Suspended | Self::SpecInvalid(_) => Ok(Outcome::Done),
            Self::Conflict { .. }
            | Self::NodePortTaken(_)
            | Self::Forbidden(_)
            | Self::Deleting(_) => Ok(Outcome::Waiting),
            Self::Contested { again, .. } => Ok(Outcome::RequeueAfter(again)),
            Self::Rejected(words) => Err(Error::Rejected(words)),
            Self::Unwritten(trouble) => Err(trouble.into()),
        }
    }

    /// What is told of two parts: the first; all that is somebody else's. What only a change of the app mends is told once there
    /// is nothing else, which is tried again.
    fn or(self, next: Self) -> Self {
        match (self, next) {
            (
                Self::Conflict { mut parts, words },
                Self::Conflict {
                    parts: others,
                    words: more,
                },
            ) => {
                parts.extend(others);
                Self::Conflict {
                    parts,
                    words: format!("{words}; {more}"),
                }
            }
            (Self::Rejected(_), next) if !matches!(next, Self::Rejected(_)) => next,
            (first, _) => first,
        }
    }

    /// Of a part that is not as it is wanted.
    fn of(part: Part, trouble: Trouble) -> Self {
        let words = trouble.to_string();
        match &trouble {
            Trouble::Conflict(_) => Self::Conflict {
                parts: vec![part],
                words,
            },
            Trouble::Going(_) => Self::Deleting(words),
            Trouble::Refused { said, .. } if is_taken(said) => Self::NodePortTaken(words),
            Trouble::Refused { said, .. } if said.code == 403 || apply::is_denied(said) => {
                Self::Forbidden(words)
            }
            Trouble::Refused { .. } => Self::Rejected(words),
            Trouble::Api {
                error: kube::Error::Api(said),
                ..
            } if is_taken(said) => Self::NodePortTaken(words),
            Trouble::Owner(_) | Trouble::Api { .. } => Self::Unwritten(trouble),
        }
    }
}

/// Whether the apiserver has no port on the nodes to give, that one or any.
fn is_taken(said: &kube::core::Status) -> bool {
    said.message.contains("provided port is already allocated")
        || said.message.contains("failed to allocate a nodePort")
}

impl Running {
    /// What the Deployment says.
    pub fn of(deployment: &Deployment) -> Self {
        let pod = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        let container = pod.and_then(|pod| pod.containers.first());
        let ports = container
            .and_then(|container| container.ports.as_deref())
            .unwrap_or_default();
        let twins = container
            .filter(|_| has_twins(ports))
            .map(|container| (container.image.clone().unwrap_or_default(), numbers(ports)));
        Self {
            rollout: Rollout::of(deployment),
            twins,
        }
    }
}

fn numbers(ports: &[ContainerPort]) -> Vec<i32> {
    let mut numbers: Vec<_> = ports.iter().map(|port| port.container_port).collect();
    numbers.sort_unstable();
    numbers
}

/// Whether a port stands there twice: server-side apply cannot say that.
fn has_twins(ports: &[ContainerPort]) -> bool {
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| TCP.into());
    let once: BTreeSet<_> = ports
        .iter()
        .map(|port| (port.container_port, protocol(port)))
        .collect();
    once.len() < ports.len()
}

/// Properties of Services.
pub const SERVICE_QUIRKS: Quirks<Service> = Quirks {
    lost: lost_a_port,
    release: release_ports,
};

/// Removes the node ports that the live Service holds: the apiserver would find them taken.
fn release_ports(desired: &mut Service, live: &Service) {
    let held: Vec<_> = ports(live).filter_map(|port| port.node_port).collect();
    for port in desired
        .spec
        .iter_mut()
        .flat_map(|spec| spec.ports.iter_mut().flatten())
    {
        port.node_port = port.node_port.filter(|number| !held.contains(number));
    }
}

/// Whether a port on the nodes that was asked for is not what the Service has. An apiserver whose cache is behind takes it, and
/// keeps the one from before.
fn lost_a_port(sent: &Service, there: &Service) -> bool {
    let is_there = |port: &ServicePort| {
        ports(there).any(|it| {
            (it.port, &it.protocol, it.node_port) == (port.port, &port.protocol, port.node_port)
        })
    };
    ports(sent).any(|port| port.node_port.is_some() && !is_there(port))
}

fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
}

impl AppServices {
    /// Has all objects of the app be as they are wanted; what stands in the way.
    ///
    /// # Errors
    /// Something came in between: all is to be looked at again.
    pub(super) async fn settle(
        &self,
        owner: &Owner,
        key: &Key,
        object: &AppService,
        app: &App<'_>,
    ) -> Result<Option<Problem>, Error> {
        let apps = &self.apps;
        let service = async {
            match build::service(app) {
                Some(service) => self.service(owner, service).await,
                None => self.services.remove(owner, key, apps).await.map(drop),
            }
            .map_err(|trouble| (Part::Service, trouble))
        };
        let served = async {
            let service = service.await;
            // It would lead to somebody else's.
            let foreign = matches!(service, Err((_, Trouble::Conflict(_))));
            let ingress = match build::ingress(app).filter(|_| !foreign) {
                Some(ingress) => self.ingresses.settle(owner, ingress, apps, &[]).await,
                None => self.ingresses.remove(owner, key, apps).await.map(drop),
            };
            (service, ingress.map_err(|trouble| (Part::Ingress, trouble)))
        };
        let (run, (service, ingress)) = tokio::join!(self.run(owner, key, object, app), served);
        let mut problems = Vec::new();
        for (part, trouble) in [run, service, ingress].into_iter().filter_map(Result::err) {
            if trouble.class() == Class::Conflict {
                return Err(trouble.into());
            }
            problems.push(Problem::of(part, trouble));
        }
        Ok(problems
            .into_iter()
            .reduce(Problem::or)
            .or_else(|| self.contested(key)))
    }

    /// Returns the problem of an object that other managers keep changing.
    fn contested(&self, key: &Key) -> Option<Problem> {
        let contested = self
            .deployments
            .contested(key)
            .or_else(|| self.services.contested(key));
        let contested = contested
            .or_else(|| self.autoscalers.contested(key))
            .or_else(|| self.ingresses.contested(key));
        contested.map(|(words, again)| Problem::Contested { words, again })
    }

    /// The Deployment, and whoever says how many Pods it has. An autoscaler comes after the Deployment has let go of that
    /// number, and goes before it is taken again: neither writes over the other.
    async fn run(
        &self,
        owner: &Owner,
        key: &Key,
        object: &AppService,
        app: &App<'_>,
    ) -> Result<(), (Part, Trouble)> {
        let apps = &self.apps;
        let of_deployment = |trouble| (Part::Deployment, trouble);
        let of_autoscaler = |trouble| (Part::Autoscaler, trouble);
        let running = self.running(key, app).await.map_err(of_deployment)?;
        let Some(autoscaler) = build::autoscaler(app) else {
            if self
                .autoscalers
                .remove(owner, key, apps)
                .await
                .map_err(of_autoscaler)?
            {
                let ran = running.as_ref().map_or(0, |running| running.rollout.wanted);
                let note = format!(
                    "autoscaling is off: {ran} Pods were wanted, and spec.size is {}",
                    app.size
                );
                self.events
                    .normal(object.object_ref(&()), "Scale", AUTOSCALING_OFF, note);
            }
            return self
                .deployment(owner, app, running.as_ref(), Some(app.size))
                .await
                .map_err(of_deployment);
        };
        // A new one begins with what was written, within the bounds.
        let begins = running
            .is_none()
            .then(|| build::within_bounds(&autoscaler, app.size));
        self.deployment(owner, app, running.as_ref(), begins)
            .await
            .map_err(of_deployment)?;
        self.autoscalers
            .settle(owner, autoscaler, apps, &[])
            .await
            .map_err(of_autoscaler)
    }

    /// What there is of the Deployment. One without our label is asked for only if that makes a difference.
    async fn running(&self, key: &Key, app: &App<'_>) -> Result<Option<Running>, Trouble> {
        let known = self.deployments.report(key, key);
        let twins = has_twins(&build::as_the_original_has_them(&app.ports));
        if known.is_some() || (app.spec.autoscaling.is_none() && !twins) {
            return Ok(known);
        }
        let api: Api<BoundedObject<Deployment>> =
            Api::namespaced(self.client.clone(), &key.namespace);
        let live = api.get_opt(&key.name).await;
        let live = live.map_err(|error| Trouble::Api {
            what: format!("Deployment {key}"),
            error,
        })?;
        Ok(live.map(|BoundedObject(live)| Running::of(&live)))
    }

    /// The Deployment. Without `replicas` their number is left to others. So are the container's ports where the original
    /// program left one twice, until the Pods are made anew for another reason.
    async fn deployment(
        &self,
        owner: &Owner,
        app: &App<'_>,
        running: Option<&Running>,
        replicas: Option<i32>,
    ) -> Result<(), Trouble> {
        let twins = running.and_then(|running| running.twins.as_ref());
        let wanted = numbers(&build::as_the_original_has_them(&app.ports));
        let ports = twins.is_none_or(|(image, ports)| *image != app.spec.image || *ports != wanted);
        let container = format!("k:{{\"name\":\"{}\"}}", app.name);
        let container_ports = [
            "f:spec",
            "f:template",
            "f:spec",
            "f:containers",
            &container,
            "f:ports",
        ];
        let mut left: Vec<&[&str]> = Vec::new();
        if replicas.is_none() {
            left.push(REPLICAS);
        }
        if !ports {
            left.push(&container_ports);
        }
        let deployment = build::deployment(app, replicas, ports);
        self.deployments
            .settle(owner, deployment, &self.apps, &left)
            .await
    }

    /// The Service. A port on the nodes that is no longer given stays what it is, whatever else is changed of its port: the
    /// apiserver keeps it for the name alone.
    async fn service(&self, owner: &Owner, service: Service) -> Result<(), Trouble> {
        let chosen: Vec<_> = ports(&service)
            .filter(|port| port.node_port.is_none())
            .map(|port| {
                let protocol = port.protocol.as_deref().unwrap_or(TCP);
                format!("k:{{\"port\":{},\"protocol\":\"{protocol}\"}}", port.port)
            })
            .collect();
        let left: Vec<_> = chosen
            .iter()
            .map(|port| [SERVICE_PORTS, &[port.as_str(), "f:nodePort"]].concat())
            .collect();
        let left: Vec<_> = left.iter().map(Vec::as_slice).collect();
        self.services
            .settle(owner, service, &self.apps, &left)
            .await
    }
}

#[cfg(test)]
mod tests;
