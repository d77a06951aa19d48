//! Health of targets.

use super::state::{Listener, State, Target};

/// AWS's description of each reason, from the User Guide for Application Load Balancers, "Health check reason codes".
/// Where the guide lists several descriptions, the first.
pub(super) const DESCRIPTIONS: [(&str, &str); 12] = [
    (
        "Elb.InitialHealthChecking",
        "Initial health checks in progress",
    ),
    (
        "Elb.InternalError",
        "Health checks failed due to an internal error",
    ),
    (
        "Elb.RegistrationInProgress",
        "Target registration is in progress",
    ),
    (
        "Target.DeregistrationInProgress",
        "Target deregistration is in progress",
    ),
    ("Target.FailedHealthChecks", "Health checks failed"),
    ("Target.HealthCheckDisabled", "Health checks are disabled"),
    ("Target.InvalidState", "Target is in the stopped state"),
    (
        "Target.IpUnusable",
        "The IP address cannot be used as a target, as it is in use by a load balancer",
    ),
    (
        "Target.NotInUse",
        "Target group is not configured to receive traffic from the load balancer",
    ),
    (
        "Target.NotRegistered",
        "Target is not registered to the target group",
    ),
    (
        "Target.ResponseCodeMismatch",
        "Health checks failed with these codes: [404]",
    ),
    ("Target.Timeout", "Request timed out"),
];

/// A target's health, in AWS's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) state: String,
    pub(super) reason: String,
    pub(super) description: String,
}

impl Health {
    /// Returns health with AWS's description of this reason.
    fn new(state: &str, reason: &str) -> Self {
        let known = DESCRIPTIONS.iter().find(|(known, _)| *known == reason);
        Self::described(
            state,
            reason,
            known
                .map(|(_, description)| *description)
                .unwrap_or_default(),
        )
    }

    fn described(state: &str, reason: &str, description: &str) -> Self {
        Self {
            state: state.to_owned(),
            reason: reason.to_owned(),
            description: description.to_owned(),
        }
    }
}

impl State {
    /// Returns the group's targets and their health, and forgets drained targets.
    pub(super) fn targets(&mut self, group: &str) -> Vec<(Target, Health)> {
        let drained = self.times.draining;
        if let Some(group) = self.groups.get_mut(group) {
            group
                .targets
                .retain(|_, target| target.leaving.is_none_or(|left| left.elapsed() < drained));
        }
        let targets = self
            .groups
            .get(group)
            .map(|group| group.targets.keys())
            .into_iter()
            .flatten();
        targets
            .map(|target| (target.clone(), self.health(group, target)))
            .collect()
    }

    pub(super) fn health(&self, arn: &str, target: &Target) -> Health {
        let registered = self
            .groups
            .get(arn)
            .and_then(|group| Some((group, group.targets.get(target)?)));
        let Some((group, registered)) = registered else {
            return Health::new("unused", "Target.NotRegistered");
        };
        if registered.leaving.is_some() {
            return Health::new("draining", "Target.DeregistrationInProgress");
        }
        let instance = self.instances.get(&target.0);
        if instance.is_some_and(|instance| !instance.running) {
            return Health::new("unused", "Target.InvalidState");
        }
        let forwarding: Vec<&Listener> = self
            .listeners
            .values()
            .filter(|listener| listener.groups.iter().any(|group| group == arn))
            .collect();
        let Some(since) = forwarding.iter().map(|listener| listener.since).min() else {
            return Health::new("unused", "Target.NotInUse");
        };
        let mut balancers = forwarding
            .iter()
            .filter_map(|listener| self.balancers.get(&listener.balancer));
        if instance.is_some_and(|instance| {
            !balancers.any(|balancer| balancer.zones.contains(&instance.zone))
        }) {
            let message =
                "Target is in an Availability Zone that is not enabled for the load balancer";
            return Health::described("unused", "Target.NotInUse", message);
        }
        if let Some((state, reason)) = group.forced.get(&target.0) {
            return Health::new(state, reason);
        }
        if since.max(registered.since).elapsed() < self.times.initial {
            return Health::new("initial", "Elb.RegistrationInProgress");
        }
        Health::new("healthy", "")
    }
}
