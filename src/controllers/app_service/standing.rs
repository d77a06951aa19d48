//! The status of an app, from what is known of its objects. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::app_service::{AppCondition, AppServiceStatus, ServedPort};
use qm_core::conditions::READY;
use qm_runtime::Key;

use super::build::APP;
use crate::controllers::pod::Trouble;

/// The reason of an app that is as it should be.
pub const WELL: &str = "Ready";
/// The reason of an app that is on its way there.
pub const PROGRESSING: &str = "Progressing";
/// The reason of one whose `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";
/// Reason of an app whose autoscaler has been inactive for the grace period.
pub const SCALING_INACTIVE: &str = "ScalingInactive";
/// The Deployment controller's reason for a rollout that somebody has paused.
const PAUSED: &str = "DeploymentPaused";
/// Longest message of condition `Ready`, in bytes.
const MAX_MESSAGE: usize = 1024;

/// What the status says of a Deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout {
    /// How many Pods it is to have.
    pub wanted: i64,
    /// Whether its controller has seen what it says now.
    pub seen: bool,
    status: AppServiceStatus,
}

/// What the status says of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    cluster_ip: Option<String>,
    ports: Vec<ServedPort>,
}

/// An autoscaler that does not scale: its condition `ScalingActive` is False.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InactiveScaling {
    since: Option<Timestamp>,
    message: String,
}

/// How an app stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether all is well.
    pub ready: bool,
    /// Why, in one word.
    pub reason: String,
    /// Why, in words.
    pub message: String,
}

impl Standing {
    /// Not ready.
    pub fn not_ready(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            ready: false,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Adds what the autoscaler reports. A ready app stays ready until its autoscaler has been inactive for `grace`, counted
    /// from the time at which the Pods became `available`: before that there are no metrics. The second value is the time left.
    pub fn with_scaling(
        mut self,
        inactive: Option<&InactiveScaling>,
        available: Option<Timestamp>,
        grace: Duration,
        now: Timestamp,
    ) -> (Self, Option<Duration>) {
        let Some(InactiveScaling { since, message }) = inactive else {
            return (self, None);
        };
        self.message = format!(
            "{}; the HorizontalPodAutoscaler does not scale: {message}",
            self.message
        );
        if !self.ready {
            return (self, None);
        }
        // Another machine's clock can put the time in the future.
        let lasted = available.max(*since).map_or(grace, |since| {
            Duration::try_from(now.duration_since(since)).unwrap_or_default()
        });
        let remaining = grace
            .checked_sub(lasted)
            .filter(|remaining| !remaining.is_zero());
        if remaining.is_none() {
            (self.ready, self.reason) = (false, SCALING_INACTIVE.into());
        }
        (self, remaining)
    }
}

impl InactiveScaling {
    /// Reads the condition; returns `None` while the autoscaler scales, or before its controller has reconciled it.
    pub fn of(autoscaler: &HorizontalPodAutoscaler) -> Option<Self> {
        let mut conditions = autoscaler.status.as_ref()?.conditions.iter().flatten();
        let active = conditions.find(|condition| condition.type_ == "ScalingActive")?;
        (active.status == "False").then(|| Self {
            since: active.last_transition_time.as_ref().map(|time| time.0),
            message: active
                .message
                .clone()
                .or_else(|| active.reason.clone())
                .unwrap_or_default(),
        })
    }
}

impl Rollout {
    /// What the Deployment says.
    pub fn of(deployment: &Deployment) -> Self {
        let status = deployment.status.clone().unwrap_or_default();
        let number = |number: Option<i32>| number.map(i64::from);
        let conditions = status.conditions.iter().flatten().map(mirrored).collect();
        Self {
            wanted: deployment
                .spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1)
                .into(),
            seen: status.observed_generation >= deployment.metadata.generation,
            status: AppServiceStatus {
                replicas: number(status.replicas),
                updated_replicas: number(status.updated_replicas),
                ready_replicas: number(status.ready_replicas),
                available_replicas: number(status.available_replicas),
                unavailable_replicas: number(status.unavailable_replicas),
                terminating_replicas: number(status.terminating_replicas),
                collision_count: number(status.collision_count),
                conditions,
                ..AppServiceStatus::default()
            },
        }
    }

    /// Whether every Pod is as the spec says now, can serve, and no other is left: as `kubectl rollout status` has it.
    pub fn is_complete(&self) -> bool {
        let number = |number: Option<i64>| number.unwrap_or_default();
        let updated = number(self.status.updated_replicas);
        self.seen
            && updated == self.wanted
            && number(self.status.replicas) == updated
            && number(self.status.available_replicas) == updated
    }

    /// How the app of that key stands; `trouble` is what its Pods say.
    pub fn standing(&self, key: &Key, trouble: Option<Trouble>) -> Standing {
        if self.is_complete() {
            let message = match self.wanted {
                0 => "no Pod is wanted".into(),
                1 => "the Pod is available".into(),
                all => format!("all {all} Pods are available"),
            };
            return Standing {
                ready: true,
                reason: WELL.into(),
                message,
            };
        }
        if self.seen {
            // What `kubectl rollout pause` leaves; as long as it lasts there is nothing else to say.
            if let Some((reason, message)) = self
                .said("Progressing", "Unknown")
                .filter(|(reason, _)| reason == PAUSED)
            {
                return Standing::not_ready(
                    reason,
                    format!(
                        "{message}; to go on: kubectl rollout resume deployment/{} -n {}",
                        key.name, key.namespace
                    ),
                );
            }
            if let Some((reason, message)) = self.said("ReplicaFailure", "True") {
                return Standing::not_ready(reason, message);
            }
            if let Some(Trouble { reason, message }) = trouble {
                return Standing::not_ready(reason, message);
            }
            if let Some((reason, message)) = self.said("Progressing", "False") {
                return Standing::not_ready(reason, message);
            }
        }
        let available = self
            .status
            .available_replicas
            .unwrap_or_default()
            .min(self.wanted);
        let others = self.status.replicas.unwrap_or_default()
            - self.status.updated_replicas.unwrap_or_default();
        let message = if available == self.wanted && others > 0 {
            format!("Pods of before are still there: {others}")
        } else {
            format!("{available} of {} Pods are available", self.wanted)
        };
        Standing::not_ready(PROGRESSING, message)
    }

    /// Returns the time at which the Deployment became available.
    pub fn available_since(&self) -> Option<Timestamp> {
        let available = self
            .status
            .condition("Available")
            .filter(|condition| condition.status == "True")?;
        available.last_transition_time.as_ref().map(|time| time.0)
    }

    /// Reason and words of a condition that has this status.
    fn said(&self, type_: &str, status: &str) -> Option<(String, String)> {
        let condition = self
            .status
            .condition(type_)
            .filter(|condition| condition.status == status)?;
        Some((
            condition.reason.clone().unwrap_or_else(|| type_.into()),
            condition.message.clone().unwrap_or_default(),
        ))
    }
}

impl Served {
    /// What the Service says.
    pub fn of(service: &Service) -> Self {
        let Some(spec) = &service.spec else {
            return Self::default();
        };
        let ports = spec.ports.iter().flatten().map(|port| ServedPort {
            name: port.name.clone().filter(|name| !name.is_empty()),
            port: port.port.into(),
            node_port: port.node_port.filter(|port| *port != 0).map(i64::from),
            protocol: port.protocol.clone().unwrap_or_default(),
        });
        Self {
            cluster_ip: spec
                .cluster_ip
                .clone()
                .filter(|address| !address.is_empty()),
            ports: ports.collect(),
        }
    }
}

fn mirrored(condition: &DeploymentCondition) -> AppCondition {
    AppCondition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: condition.last_transition_time.clone(),
        last_update_time: condition.last_update_time.clone(),
        observed_generation: None,
    }
}

/// The status of the app `name` whose Deployment and Service, where they are known, say this. `observed` is the generation of the app that it all
/// speaks of.
pub fn status(
    before: Option<&AppServiceStatus>,
    name: &str,
    rollout: Option<Rollout>,
    served: Option<Served>,
    standing: &Standing,
    observed: i64,
    now: Time,
) -> AppServiceStatus {
    let mut status = rollout.unwrap_or_default().status;
    let Served { cluster_ip, ports } = served.unwrap_or_default();
    status.observed_generation = Some(observed);
    status.selector = Some(format!("{APP}={name}"));
    status.cluster_ip = cluster_ip;
    status.ports = ports;
    say(&mut status, before, standing, observed, now);
    status
}

/// Puts condition `Ready` first. Its time moves with its status only.
fn say(
    status: &mut AppServiceStatus,
    before: Option<&AppServiceStatus>,
    standing: &Standing,
    observed: i64,
    now: Time,
) {
    let value = if standing.ready { "True" } else { "False" };
    let before = before
        .and_then(|before| before.condition(READY))
        .filter(|before| before.status == value);
    let since = before
        .and_then(|before| before.last_transition_time.clone())
        .unwrap_or(now);
    let message = &standing.message[..standing.message.floor_char_boundary(MAX_MESSAGE)];
    let condition = AppCondition {
        type_: READY.into(),
        status: value.into(),
        reason: Some(standing.reason.clone()),
        message: Some(message.to_owned()),
        last_transition_time: Some(since),
        last_update_time: None,
        observed_generation: Some(observed),
    };
    status.conditions.insert(0, condition);
}

#[cfg(test)]
mod tests;
