//! Computes the status of an app from its objects. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use qm_api::app_service::{AppCondition, AppServiceStatus, ServedPort};
use qm_core::conditions::{READY, RECONCILING, STALLED};
use qm_runtime::ObjectKey;
use qm_runtime::drift::CONTESTED;
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, WRITE_FAILED,
    WRITE_REJECTED,
};
use qm_runtime::outcome::{Outcome, Progress, Requeue, SPEC_INVALID, SUSPENDED};

use super::validate::APP_LABEL;
use crate::controllers::pod::PodProblem;

/// Reason of an app whose Pods are being rolled out.
pub const PROGRESSING: &str = "Progressing";
/// Reason of an app whose Service asks for a node port that is in use.
pub(crate) const NODE_PORT_TAKEN: &str = "NodePortTaken";
/// Reason of an app whose autoscaler has been inactive for the grace period.
pub(crate) const SCALING_INACTIVE: &str = "ScalingInactive";
/// The Deployment controller's reason for a paused rollout.
const PAUSED: &str = "DeploymentPaused";
/// Reasons that this controller sets or expects; any other comes from the Deployment or a Pod.
pub const REASONS: [&str; 15] = [
    READY,
    PROGRESSING,
    PAUSED,
    SCALING_INACTIVE,
    NODE_PORT_TAKEN,
    FORBIDDEN,
    QUOTA_EXCEEDED,
    NAMESPACE_TERMINATING,
    WRITE_REJECTED,
    WRITE_FAILED,
    CONFLICT,
    CONTESTED,
    CHILD_TERMINATING,
    SPEC_INVALID,
    SUSPENDED,
];

/// Fields of a Deployment that the status repeats.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rollout {
    /// `spec.replicas`.
    pub desired: i64,
    /// Whether the Deployment controller has observed the spec.
    pub is_observed: bool,
    status: AppServiceStatus,
}

/// Fields of a Service that the status repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceSummary {
    cluster_ip: Option<String>,
    ports: Vec<ServedPort>,
}

/// Autoscaler whose condition `ScalingActive` is False.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InactiveScaling {
    since: Option<Timestamp>,
    message: String,
}

/// Adds the state of the autoscaler. A ready app stays ready until its autoscaler has been inactive for `grace`,
/// counted from the time at which the Pods became `available`: before that there are no metrics.
pub(crate) fn with_scaling(
    outcome: Outcome,
    inactive: Option<&InactiveScaling>,
    available: Option<Timestamp>,
    grace: Duration,
    now: Timestamp,
) -> Outcome {
    let Some(InactiveScaling { since, message }) = inactive else {
        return outcome;
    };
    let message = format!(
        "{}; the HorizontalPodAutoscaler does not scale: {message}",
        outcome.message
    );
    if outcome.progress != Progress::Ready {
        return Outcome { message, ..outcome };
    }
    // The clock of another machine may be ahead.
    let lasted = available.max(*since).map_or(grace, |since| {
        Duration::try_from(now.duration_since(since)).unwrap_or_default()
    });
    match grace.checked_sub(lasted).filter(|left| !left.is_zero()) {
        Some(left) => Outcome { message, ..outcome }.requeue(Requeue::After(left)),
        None => Outcome::failed(SCALING_INACTIVE, message),
    }
}

impl InactiveScaling {
    /// Returns `None` while the autoscaler scales, and before its controller has set the condition.
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
    /// Extracts the fields that the status repeats.
    pub fn of(deployment: &Deployment) -> Self {
        let status = deployment.status.clone().unwrap_or_default();
        let number = |number: Option<i32>| number.map(i64::from);
        let conditions = status.conditions.iter().flatten().map(mirrored).collect();
        Self {
            desired: deployment
                .spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1)
                .into(),
            is_observed: status.observed_generation >= deployment.metadata.generation,
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

    /// Returns whether every Pod matches the spec and is available, and no old Pod is left, as `kubectl rollout status`
    /// does.
    pub fn is_complete(&self) -> bool {
        let number = |number: Option<i64>| number.unwrap_or_default();
        let updated = number(self.status.updated_replicas);
        self.is_observed
            && updated == self.desired
            && number(self.status.replicas) == updated
            && number(self.status.available_replicas) == updated
    }

    /// Returns the outcome of the app with this key; `problem` comes from its Pods.
    pub fn outcome(&self, key: &ObjectKey, problem: Option<PodProblem>) -> Outcome {
        if self.is_complete() {
            return Outcome::ready(match self.desired {
                0 => "no Pods are desired".into(),
                1 => "the Pod is available".into(),
                all => format!("all {all} Pods are available"),
            });
        }
        if self.is_observed {
            // `kubectl rollout pause` leaves this condition, which hides all others.
            let paused = self.condition("Progressing", "Unknown");
            if let Some((reason, message)) = paused.filter(|(reason, _)| reason == PAUSED) {
                let resume = format!("kubectl rollout resume deployment/{}", key.name);
                let message = format!("{message}; to resume: {resume} -n {}", key.namespace);
                return Outcome::failed(reason, message);
            }
            if let Some((reason, message)) = self.condition("ReplicaFailure", "True") {
                return Outcome::failed(reason, message);
            }
            if let Some(PodProblem { reason, message }) = problem {
                return Outcome::failed(reason, message);
            }
            if let Some((reason, message)) = self.condition("Progressing", "False") {
                return Outcome::failed(reason, message);
            }
        }
        let number = |number: Option<i64>| number.unwrap_or_default();
        let available = number(self.status.available_replicas).min(self.desired);
        let outdated = number(self.status.replicas) - number(self.status.updated_replicas);
        let message = if available == self.desired && outdated > 0 {
            format!("outdated Pods still exist: {outdated}")
        } else {
            format!("{available} of {} Pods are available", self.desired)
        };
        Outcome::in_progress(PROGRESSING, message)
    }

    /// Returns the time at which the Deployment became available.
    pub(crate) fn available_since(&self) -> Option<Timestamp> {
        let available = self
            .status
            .condition("Available")
            .filter(|condition| condition.status == "True")?;
        available.last_transition_time.as_ref().map(|time| time.0)
    }

    /// Returns reason and message of a condition that has this status.
    fn condition(&self, type_: &str, status: &str) -> Option<(String, String)> {
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

impl ServiceSummary {
    /// Extracts the fields that the status repeats.
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

/// Fills the draft of a status with the state of the Deployment and of the Service of the app `name`.
pub(crate) fn fill_status(
    status: &mut AppServiceStatus,
    name: &str,
    rollout: Option<Rollout>,
    service: Option<ServiceSummary>,
) {
    let own: Vec<_> = [READY, RECONCILING, STALLED]
        .iter()
        .filter_map(|type_| status.condition(type_).cloned())
        .collect();
    let ServiceSummary { cluster_ip, ports } = service.unwrap_or_default();
    *status = AppServiceStatus {
        observed_generation: status.observed_generation,
        selector: Some(format!("{APP_LABEL}={name}")),
        cluster_ip,
        ports,
        ..rollout.unwrap_or_default().status
    };
    status.conditions.splice(..0, own);
}

#[cfg(test)]
mod tests;
