//! What a `MyIngress` says of itself. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::my_ingress::{Alb, ListenerStatus, MyIngressStatus};
use qm_aws::{Balancer, Fault};
use qm_core::conditions::{self, READY};

/// The reason of one whose `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";
/// The spec cannot be had.
pub const SPEC_INVALID: &str = "SpecInvalid";
/// AWS was asked for the balancer, and does not show it yet.
pub const CREATING: &str = "Creating";
/// AWS makes the balancer.
pub const PROVISIONING: &str = "Provisioning";
/// The balancer works, and lacks what it needs to grow.
pub const IMPAIRED: &str = "ActiveImpaired";
/// AWS could not make the balancer.
pub const FAILED: &str = "Failed";
/// The balancer of that name is not ours.
pub const CONFLICT: &str = "Conflict";
/// The balancer of that name is another `MyIngress`'.
pub const NAME_TAKEN: &str = "NameTaken";
/// The balancer has another scheme, or is of another type, which nobody can change.
pub const NOT_ALIKE: &str = "NotAlike";
/// The balancer is being deleted.
pub const DELETING: &str = "Deleting";
/// The balancer may not be deleted.
pub const DELETION_PROTECTED: &str = "DeletionProtected";
/// The operator may not see which cluster this is.
pub const FORBIDDEN: &str = "Forbidden";
/// Listeners need more than this operator reaches.
pub const OUT_OF_SCOPE: &str = "OutOfScope";
/// A listener leads to a Service that is not there.
pub const SERVICE_NOT_FOUND: &str = "ServiceNotFound";
/// The Service has no such port.
pub const SERVICE_PORT_NOT_FOUND: &str = "ServicePortNotFound";
/// The Service has no port on the nodes.
pub const NO_NODE_PORT: &str = "NoNodePort";
/// No node can take traffic.
pub const NO_NODES: &str = "NoNodes";
/// The nodes may not be listed.
pub const NODES_UNKNOWN: &str = "NodesUnknown";
/// Somebody else's listener or target group is where one of ours is to be.
pub const LISTENER_CONFLICT: &str = "ListenerConflict";
/// AWS has not found out yet how the targets of a listener are.
pub const TARGETS_INITIAL: &str = "TargetsInitial";
/// No target of a listener is healthy.
pub const TARGETS_UNHEALTHY: &str = "TargetsUnhealthy";

/// The reasons that nobody has to do anything about.
pub const PASSING: [&str; 5] = [SUSPENDED, CREATING, PROVISIONING, TARGETS_INITIAL, DELETING];
/// The reasons for which nothing arrives anywhere.
const NOWHERE: [&str; 4] = [CREATING, FAILED, CONFLICT, NAME_TAKEN];
/// The reasons that are ours; any other is AWS' ([`qm_aws::fault`]).
pub const REASONS: [&str; 22] = [
    READY,
    SUSPENDED,
    SPEC_INVALID,
    CREATING,
    PROVISIONING,
    IMPAIRED,
    FAILED,
    CONFLICT,
    NAME_TAKEN,
    NOT_ALIKE,
    DELETING,
    DELETION_PROTECTED,
    FORBIDDEN,
    OUT_OF_SCOPE,
    SERVICE_NOT_FOUND,
    SERVICE_PORT_NOT_FOUND,
    NO_NODE_PORT,
    NO_NODES,
    NODES_UNKNOWN,
    LISTENER_CONFLICT,
    TARGETS_INITIAL,
    TARGETS_UNHEALTHY,
];

/// How it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its balancer; none if AWS was never asked for one.
    pub alb: Option<Alb>,
    /// Whether all is well.
    pub ready: bool,
    /// The condition's reason.
    pub reason: &'static str,
    /// The condition's words.
    pub message: String,
}

impl Standing {
    /// It is not well, for this reason.
    pub fn not(alb: Option<Alb>, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            alb,
            ready: false,
            reason,
            message: message.into(),
        }
    }

    /// AWS refuses something.
    pub fn refused(alb: Option<Alb>, fault: &Fault) -> Self {
        Self::not(alb, fault.reason, fault.to_string())
    }

    /// It has this balancer.
    pub fn of(alb: Alb, balancer: &Balancer) -> Self {
        let Balancer {
            arn,
            dns,
            state,
            state_reason,
            ..
        } = balancer;
        let alb = Alb {
            dns: some(dns),
            arn: some(arn),
            state: some(state),
            ..alb
        };
        let why = if state_reason.is_empty() {
            String::new()
        } else {
            format!(": {state_reason}")
        };
        let (reason, message) = match state.as_str() {
            "active" => {
                return Self {
                    alb: Some(alb),
                    ready: true,
                    reason: READY,
                    message: format!("{dns} is active"),
                };
            }
            "active_impaired" => (
                IMPAIRED,
                format!("{dns} works, but AWS could not give it all that it needs to grow{why}"),
            ),
            "failed" => (
                FAILED,
                format!(
                    "AWS could not make the load balancer{why}; delete this MyIngress and create it anew"
                ),
            ),
            _ => (
                PROVISIONING,
                format!("AWS makes the load balancer, which takes minutes{why}"),
            ),
        };
        Self::not(Some(alb), reason, message)
    }

    /// The status that says so. `before` is the one that stands.
    pub fn status(
        &self,
        before: Option<&MyIngressStatus>,
        listeners: &[ListenerStatus],
        generation: i64,
        now: Time,
    ) -> MyIngressStatus {
        let mut conditions = before
            .map(|before| before.conditions.clone())
            .unwrap_or_default();
        conditions::set(
            &mut conditions,
            READY,
            self.ready,
            self.reason,
            &self.message,
            generation,
            now,
        );
        let nowhere = NOWHERE.contains(&self.reason);
        let listener = |it: &ListenerStatus| {
            if !nowhere {
                return it.clone();
            }
            ListenerStatus {
                healthy: 0,
                reason: self.reason.into(),
                ..it.clone()
            }
        };
        MyIngressStatus {
            alb: self.alb.clone(),
            listeners: listeners.iter().map(listener).collect(),
            observed_generation: Some(generation),
            conditions,
        }
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
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
        "AWS makes the load balancer, which takes minutes"
    )]
    #[case(
        "a_new_one",
        "why",
        false,
        PROVISIONING,
        "AWS makes the load balancer, which takes minutes: why"
    )]
    #[case(
        "active_impaired",
        "no address",
        false,
        IMPAIRED,
        "web.elb works, but AWS could not give it all that it needs to grow: no address"
    )]
    #[case(
        "failed",
        "no address",
        false,
        FAILED,
        "AWS could not make the load balancer: no address; delete this MyIngress and create it anew"
    )]
    fn only_active_is_ready(
        #[case] state: &str,
        #[case] why: &str,
        #[case] ready: bool,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let balancer = Balancer {
            arn: "arn:1".into(),
            dns: "web.elb".into(),
            state: state.into(),
            state_reason: why.into(),
            ..Balancer::default()
        };
        let before = Alb {
            tag_keys: vec!["team".into()],
            ..Alb::default()
        };
        let standing = Standing::of(before, &balancer);
        assert_eq!(
            (standing.ready, standing.reason, standing.message.as_str()),
            (ready, reason, message)
        );
        let alb = standing.alb.unwrap();
        assert_eq!(
            (alb.arn.as_deref(), alb.dns.as_deref()),
            (Some("arn:1"), Some("web.elb"))
        );
        assert_eq!((alb.state.as_deref(), alb.tag_keys.len()), (Some(state), 1));
    }
}
