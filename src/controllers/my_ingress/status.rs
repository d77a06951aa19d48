//! Computes the status of a `MyIngress` and of its listeners. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::my_ingress::{Alb, ListenerStatus, MyIngressStatus};
use qm_aws::listeners::{InstanceTarget, TargetHealth};
use qm_aws::{AwsError, LoadBalancer};
use qm_core::conditions::READY;
use qm_core::readiness::TERMINATING;
use qm_runtime::error::{CONFLICT, FORBIDDEN, WRITE_FAILED};
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue, SPEC_INVALID, SUSPENDED};

use crate::controllers::reasons::OUT_OF_SCOPE;

/// The operator has requested a load balancer that AWS does not show yet.
pub(crate) const CREATING: &str = "Creating";
/// AWS creates the load balancer, or the operator has not changed all listeners yet.
pub(crate) const PROVISIONING: &str = "Provisioning";
/// The load balancer works, but cannot grow.
const IMPAIRED: &str = "ActiveImpaired";
/// AWS could not create the load balancer.
const PROVISIONING_FAILED: &str = "ProvisioningFailed";
/// The load balancer of that name belongs to another `MyIngress`.
pub(crate) const NAME_TAKEN: &str = "NameTaken";
/// The load balancer has another scheme or type, which cannot change.
pub(crate) const INCOMPATIBLE: &str = "Incompatible";
/// Deletion protection is on.
pub(crate) const DELETION_PROTECTED: &str = "DeletionProtected";
pub(crate) const SERVICE_NOT_FOUND: &str = "ServiceNotFound";
pub(crate) const SERVICE_PORT_NOT_FOUND: &str = "ServicePortNotFound";
/// The Service has no port on the nodes.
pub(crate) const NO_NODE_PORT: &str = "NoNodePort";
/// No node can take traffic.
pub(crate) const NO_NODES: &str = "NoNodes";
/// The operator may not list the nodes, or has not listed them yet.
pub(crate) const NODES_UNREADABLE: &str = "NodesUnreadable";
/// AWS does not know the health of the targets yet.
pub(crate) const TARGETS_INITIAL: &str = "TargetsInitial";
/// No target is healthy.
pub(crate) const TARGETS_UNHEALTHY: &str = "TargetsUnhealthy";

/// Reasons that need no action.
const TRANSIENT: [&str; 4] = [CREATING, PROVISIONING, TARGETS_INITIAL, TERMINATING];
/// Reasons for which no listener gets traffic. `CONFLICT` may also be the reason of one listener.
const WITHOUT_TRAFFIC: [&str; 3] = [CREATING, PROVISIONING_FAILED, NAME_TAKEN];
/// The reasons of this controller; [`qm_aws::error`] has those of AWS.
pub const REASONS: [&str; 22] = [
    READY,
    SUSPENDED,
    SPEC_INVALID,
    CREATING,
    PROVISIONING,
    IMPAIRED,
    PROVISIONING_FAILED,
    CONFLICT,
    NAME_TAKEN,
    INCOMPATIBLE,
    TERMINATING,
    DELETION_PROTECTED,
    FORBIDDEN,
    WRITE_FAILED,
    OUT_OF_SCOPE,
    SERVICE_NOT_FOUND,
    SERVICE_PORT_NOT_FOUND,
    NO_NODE_PORT,
    NO_NODES,
    NODES_UNREADABLE,
    TARGETS_INITIAL,
    TARGETS_UNHEALTHY,
];

/// AWS's reasons for unhealthy targets that a security group may cause
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html>).
const SECURITY_GROUP_REASONS: [&str; 3] = [
    "Target.Timeout",
    "Target.FailedHealthChecks",
    "Target.ResponseCodeMismatch",
];

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MyIngressReadiness {
    /// `None` if AWS was never asked for a load balancer.
    pub alb: Option<Alb>,
    pub ready: bool,
    pub reason: &'static str,
    pub message: String,
    /// True if no listener gets traffic, whatever its own status says.
    pub(crate) without_traffic: bool,
}

impl MyIngressReadiness {
    pub fn not_ready(alb: Option<Alb>, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            alb,
            ready: false,
            reason,
            message: message.into(),
            without_traffic: WITHOUT_TRAFFIC.contains(&reason),
        }
    }

    /// Returns the readiness of an object whose load balancer is not owned.
    pub fn conflict(alb: Option<Alb>, reason: &'static str, message: String) -> Self {
        Self {
            without_traffic: reason == CONFLICT || WITHOUT_TRAFFIC.contains(&reason),
            ..Self::not_ready(alb, reason, message)
        }
    }

    pub fn creating(alb: Option<Alb>) -> Self {
        let message = "the load balancer was requested, and AWS does not show it yet";
        Self::not_ready(Some(alb.unwrap_or_default()), CREATING, message)
    }

    /// Returns the readiness of an object whose listeners or target groups the next reconcile continues to change.
    pub(crate) fn late(alb: Option<Alb>, is_deleted: bool) -> Self {
        let message = "the operator handles the listeners one after the other, as fast as it may send requests to AWS";
        let reason = if is_deleted {
            TERMINATING
        } else {
            PROVISIONING
        };
        Self::not_ready(alb, reason, message)
    }

    pub fn rejected(alb: Option<Alb>, error: &AwsError) -> Self {
        Self::not_ready(alb, error.reason, error.to_string())
    }

    /// Returns the readiness of an owned load balancer.
    pub fn of(alb: Option<Alb>, load_balancer: &LoadBalancer) -> Self {
        let LoadBalancer { dns, state, .. } = load_balancer;
        let why = match load_balancer.state_reason.as_str() {
            "" => String::new(),
            why => format!(": {why}"),
        };
        let (reason, message) = match state.as_str() {
            "active" => (READY, format!("{dns} is active")),
            "active_impaired" => (
                IMPAIRED,
                format!("{dns} works, but AWS lacks the resources to scale it{why}"),
            ),
            "failed" => (
                PROVISIONING_FAILED,
                format!(
                    "AWS could not create the load balancer{why}; delete this MyIngress and create it again"
                ),
            ),
            _ => (
                PROVISIONING,
                format!("AWS is creating the load balancer, which takes minutes{why}"),
            ),
        };
        Self {
            ready: reason == READY,
            ..Self::not_ready(alb, reason, message)
        }
    }

    /// Returns the outcome of a reconcile that requeues as `requeue` says.
    pub fn outcome(&self, requeue: Requeue) -> Outcome {
        let (reason, message) = (self.reason, self.message.clone());
        let outcome = if self.ready {
            Outcome::ready(message)
        } else if TRANSIENT.contains(&reason) {
            Outcome::in_progress(reason, message)
        } else {
            Outcome::failed(reason, message)
        };
        outcome.event(EventPolicy::OnMessage).requeue(requeue)
    }

    /// Fills the draft of a status with the load balancer and its listeners.
    pub fn fill_status(&self, status: &mut MyIngressStatus, mut listeners: Vec<ListenerStatus>) {
        if self.without_traffic {
            for listener in &mut listeners {
                listener.healthy = 0;
                listener.reason = self.reason.into();
            }
        }
        status.alb.clone_from(&self.alb);
        status.listeners = listeners;
    }
}

/// The state of a desired listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerResult {
    pub port: u16,
    /// Number of healthy targets.
    pub healthy: u32,
    /// Number of desired targets.
    pub total: u32,
    /// Reason that no traffic arrives; empty while some does.
    pub reason: &'static str,
    /// Message of `reason`; empty if an [`AwsError`] has it.
    pub message: String,
    /// AWS is still working: the next reconcile will observe another state.
    pub(crate) in_progress: bool,
}

impl ListenerResult {
    /// Returns the result of a listener for which AWS shows a resource late.
    pub(crate) fn not_visible(port: u16) -> Self {
        Self {
            port,
            reason: TARGETS_INITIAL,
            message: format!(
                "the resources of port {port} were requested, and AWS does not show them yet"
            ),
            in_progress: true,
            ..Self::default()
        }
    }

    /// Returns the result of a listener whose group needs these targets. `security_groups` are the load balancer's.
    pub fn of(
        port: u16,
        health: &[&TargetHealth],
        targets: &BTreeSet<InstanceTarget>,
        security_groups: &BTreeSet<String>,
    ) -> Self {
        let health: BTreeMap<_, _> = health.iter().map(|it| (&it.target, *it)).collect();
        let known = targets.iter().filter_map(|target| health.get(target));
        let known: Vec<_> = known.copied().collect();
        let healthy = known.iter().filter(|it| it.state == "healthy").count();
        // A new target of the group has no health yet.
        let is_initial =
            known.len() < targets.len() || known.iter().any(|it| it.state == "initial");
        let result = Self {
            port,
            healthy: count(healthy),
            total: count(targets.len()),
            // AWS notifies nobody when an unhealthy target recovers.
            in_progress: is_initial || healthy == 0,
            ..Self::default()
        };
        if healthy > 0 {
            return result;
        }
        let ill = known.into_iter().filter(|it| it.state != "initial");
        let ill: Vec<_> = ill.collect();
        let (reason, message) = if ill.is_empty() {
            let message = format!("the targets of port {port} are in initial health checks");
            (TARGETS_INITIAL, message)
        } else {
            let causes: BTreeSet<_> = ill.iter().map(|it| cause(it)).collect();
            let causes = causes.into_iter().take(3).collect::<Vec<_>>().join(", ");
            let mut message = format!("no target of port {port} is healthy ({causes})");
            let may_be_blocked = |it: &&TargetHealth| SECURITY_GROUP_REASONS.contains(&&*it.reason);
            if ill.iter().any(may_be_blocked) {
                let node_port = targets.first().map(|target| target.port);
                let groups: Vec<_> = security_groups.iter().map(String::as_str).collect();
                message = format!(
                    "{message}: check that the Service has Pods that answer 200 at the health check's path, and that a security group of \
                     the nodes allows TCP {} from {}",
                    node_port.unwrap_or_default(),
                    groups.join(", ")
                );
            }
            (TARGETS_UNHEALTHY, message)
        };
        Self {
            reason,
            message,
            ..result
        }
    }

    /// Returns the status. `creation_requested_at` is the time of the last request to create something for the port.
    pub fn status(&self, creation_requested_at: Option<&Time>) -> ListenerStatus {
        ListenerStatus {
            port: self.port,
            healthy: self.healthy,
            total: self.total,
            reason: self.reason.into(),
            // Traffic arrives, so no reconcile has to wait for AWS to show something.
            creation_requested_at: creation_requested_at
                .filter(|_| !self.reason.is_empty())
                .cloned(),
        }
    }
}

pub(crate) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn cause(health: &TargetHealth) -> String {
    match (health.reason.as_str(), health.description.as_str()) {
        ("", _) => health.state.clone(),
        (reason, "") => reason.into(),
        (reason, description) => format!("{reason}: {description}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("active", "", true, READY, "web.elb is active")]
    #[case(
        "provisioning",
        "",
        false,
        PROVISIONING,
        "AWS is creating the load balancer, which takes minutes"
    )]
    #[case(
        "a_new_one",
        "why",
        false,
        PROVISIONING,
        "AWS is creating the load balancer, which takes minutes: why"
    )]
    #[case(
        "active_impaired",
        "no address",
        false,
        IMPAIRED,
        "web.elb works, but AWS lacks the resources to scale it: no address"
    )]
    #[case(
        "failed",
        "no address",
        false,
        PROVISIONING_FAILED,
        "AWS could not create the load balancer: no address; delete this MyIngress and create it again"
    )]
    fn only_active_is_ready(
        #[case] state: &str,
        #[case] why: &str,
        #[case] ready: bool,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let load_balancer = LoadBalancer {
            dns: "web.elb".into(),
            state: state.into(),
            state_reason: why.into(),
            ..LoadBalancer::default()
        };
        let readiness = MyIngressReadiness::of(None, &load_balancer);
        assert_eq!(
            (
                readiness.ready,
                readiness.reason,
                readiness.message.as_str()
            ),
            (ready, reason, message)
        );
    }

    fn target(instance: &str) -> InstanceTarget {
        InstanceTarget {
            instance: instance.into(),
            port: 30_001,
        }
    }

    /// Desired are `i-1` and `i-2`.
    #[rstest]
    #[case::new(&[], 0, "TargetsInitial", true)]
    #[case::initial(&[("i-1", "initial"), ("i-2", "initial")], 0, "TargetsInitial", true)]
    #[case::one_is_enough(&[("i-1", "healthy"), ("i-2", "unhealthy")], 1, "", false)]
    #[case::one_more_soon(&[("i-1", "healthy"), ("i-2", "initial")], 1, "", true)]
    #[case::others_do_not_count(&[("i-9", "healthy"), ("i-1", "unhealthy"), ("i-2", "unused")], 0, "TargetsUnhealthy", true)]
    #[case::the_other_may_be_healthy(&[("i-1", "unhealthy"), ("i-2", "initial")], 0, "TargetsUnhealthy", true)]
    fn result_of_targets(
        #[case] registered: &[(&str, &str)],
        #[case] healthy: u32,
        #[case] reason: &str,
        #[case] in_progress: bool,
    ) {
        let health = |(instance, state): &(&str, &str)| TargetHealth {
            target: target(instance),
            state: (*state).into(),
            reason: if *state == "unhealthy" {
                "Target.Timeout"
            } else {
                ""
            }
            .into(),
            description: String::new(),
        };
        let health: Vec<_> = registered.iter().map(health).collect();
        let targets = ["i-1", "i-2"].map(target).into();
        let security_groups = ["sg-1".to_owned(), "sg-2".to_owned()].into();
        let health: Vec<_> = health.iter().collect();
        let result = ListenerResult::of(443, &health, &targets, &security_groups);
        let status = ListenerStatus {
            port: 443,
            healthy,
            total: 2,
            reason: reason.into(),
            creation_requested_at: None,
        };
        assert_eq!(result.status(None), status);
        assert_eq!(
            (result.in_progress, result.message.is_empty()),
            (in_progress, reason.is_empty())
        );
        if reason == TARGETS_UNHEALTHY {
            let rule = "allows TCP 30001 from sg-1, sg-2";
            let message = result.message;
            assert!(
                message.contains("(Target.Timeout") && message.ends_with(rule),
                "{message}"
            );
        }
    }

    #[rstest]
    #[case::of_the_load_balancer(MyIngressReadiness::conflict(None, CONFLICT, String::new()), 0)]
    #[case::of_one_listener(MyIngressReadiness::not_ready(None, CONFLICT, ""), 1)]
    fn only_a_conflict_of_the_load_balancer_ends_all_traffic(
        #[case] readiness: MyIngressReadiness,
        #[case] healthy: u32,
    ) {
        let listener = ListenerStatus {
            port: 80,
            healthy: 1,
            total: 1,
            ..ListenerStatus::default()
        };
        let mut status = MyIngressStatus::default();
        readiness.fill_status(&mut status, vec![listener]);
        assert_eq!(status.listeners[0].healthy, healthy);
    }
}
