//! The observed state: the object, the answers to the steps of a reconcile, and the steps that were taken or rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::MyIngress;
use qm_api::my_ingress::{Alb, ListenerStatus};
use qm_aws::listeners::{Listener, TargetGroup, TargetHealth};
use qm_aws::{AwsError, LoadBalancer};
use qm_core::time::whole_seconds;

use super::build::Desired;
use super::status::CREATING;
use super::step::{Intent, Step};
use super::tags::{OwnershipMap, TagOwnership};

/// The part of the status that records resources in AWS.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    /// `None` if AWS was never asked for a load balancer, or the status was lost.
    pub alb: Option<Alb>,
    /// All ports for which AWS may have a listener or target group.
    pub listeners: Vec<ListenerStatus>,
}

impl Draft {
    pub fn listener(&self, port: u16) -> Option<&ListenerStatus> {
        self.listeners.iter().find(|it| it.port == port)
    }

    /// Returns the time of the last request to create something for the port.
    pub(crate) fn creation_requested_at(&self, port: u16) -> Option<&Time> {
        self.listener(port)?.creation_requested_at.as_ref()
    }

    fn set_requested_at(&mut self, port: u16, at: Option<Time>) {
        if let Some(listener) = self.listeners.iter_mut().find(|it| it.port == port) {
            listener.creation_requested_at = at;
        }
    }
}

/// The observed state of one reconcile. An answer is valid once its step is in `done`.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The object, as last read or written.
    pub object: Arc<MyIngress>,
    /// The time, renewed before each step.
    pub now: Timestamp,
    /// Time within which AWS shows a new resource, counted from the record of the intent: the rest of the reconcile may
    /// pass before AWS gets the request.
    pub(crate) consistency_window: Duration,
    pub draft: Draft,
    /// The draft before the first step.
    recorded: Draft,

    pub region: String,
    pub account: String,
    pub load_balancer: Option<LoadBalancer>,
    /// The answer to the creation, which may be an existing load balancer. AWS may not show the load balancer yet.
    pub created: Option<LoadBalancer>,
    /// `None` if AWS does not show the load balancer.
    pub ownership: Option<TagOwnership>,
    /// The other `MyIngress` that owns the load balancer, unless that `MyIngress` does not exist.
    pub(crate) sibling: Option<String>,
    /// The load balancer of the desired name after the deletion.
    pub remaining: Option<LoadBalancer>,
    pub listeners: Vec<Listener>,
    pub target_groups: Vec<TargetGroup>,
    pub owners: OwnershipMap,
    /// The groups that were found by name.
    pub(crate) found_groups: BTreeMap<String, TargetGroup>,
    /// The group that was created for each port.
    pub(crate) created_groups: BTreeMap<u16, TargetGroup>,
    pub(crate) listed_groups: Vec<TargetGroup>,
    /// The health of the targets of each group.
    pub health: BTreeMap<String, Vec<TargetHealth>>,
    /// Instance IDs of the nodes that take traffic, or the reason that the nodes are unknown.
    pub nodes: Option<Result<BTreeSet<String>, String>>,
    /// The Service of each port's listener.
    pub services: BTreeMap<u16, Option<Service>>,

    pub done: Vec<Step>,
    pub rejected: Vec<(Step, AwsError)>,
}

impl Observed {
    pub fn new(object: Arc<MyIngress>, consistency_window: Duration) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let draft = Draft {
            alb: status.alb,
            listeners: status.listeners,
        };
        Self {
            object,
            now: now(),
            consistency_window,
            recorded: draft.clone(),
            draft,
            ..Self::default()
        }
    }

    /// Records that AWS rejected the step, which this reconcile does not repeat.
    pub fn reject(&mut self, step: Step, error: AwsError) {
        match &step {
            Step::CreateLoadBalancer(_) if error.had_no_effect => {
                // The load balancer that the status describes no longer exists.
                self.draft.alb = self.recorded.alb.clone().map(|alb| Alb {
                    dns: None,
                    state: None,
                    ..alb
                });
            }
            Step::CreateTargetGroup(port, _) if error.had_no_effect => {
                let before = self.recorded.creation_requested_at(*port).cloned();
                self.draft.set_requested_at(*port, before);
            }
            _ => {}
        }
        self.rejected.push((step, error));
    }

    /// Returns the ARN of the status before the first step, which does not prove ownership.
    pub fn arn(&self) -> Option<&str> {
        self.recorded.alb.as_ref()?.arn.as_deref()
    }

    /// Returns the load balancer of the desired name, as AWS shows or created it.
    pub(crate) fn visible(&self) -> Option<&LoadBalancer> {
        self.created.as_ref().or(self.load_balancer.as_ref())
    }

    /// Returns whether the operator requested the load balancer, and no earlier reconcile found it.
    pub(crate) fn is_newly_created(&self) -> bool {
        let is_awaited = |alb: &Alb| alb.creation_requested_at.is_some() && alb.dns.is_none();
        self.created.is_some() || self.recorded.alb.as_ref().is_some_and(is_awaited)
    }

    /// Returns whether AWS has no load balancer and rejected its creation.
    pub(crate) fn lacks_load_balancer(&self) -> bool {
        let mut rejected = self.rejected.iter();
        rejected.any(|(step, _)| matches!(step, Step::CreateLoadBalancer(_)))
    }

    /// Returns whether the status does not mention an existing load balancer: the status is new or was lost.
    pub(crate) fn is_status_lost(&self) -> bool {
        self.recorded.alb.is_none() && self.created.is_none()
    }

    /// Returns whether AWS may yet show a load balancer that was requested a moment ago.
    pub(crate) fn may_yet_appear(&self) -> bool {
        let alb = self.draft.alb.as_ref();
        self.is_within(
            self.consistency_window,
            alb.and_then(|alb| alb.creation_requested_at.as_ref()),
        )
    }

    /// Returns whether AWS may yet show a resource that was requested for the port a moment ago.
    pub(crate) fn may_yet_show(&self, port: u16) -> bool {
        self.is_within(
            self.consistency_window,
            self.draft.creation_requested_at(port),
        )
    }

    /// Returns whether the status records a request for the port that is recent enough: another creation then needs no
    /// new record.
    pub(crate) fn was_just_requested(&self, port: u16) -> bool {
        self.is_within(
            self.consistency_window / 4,
            self.draft.creation_requested_at(port),
        )
    }

    /// Returns whether `time` is recent. The clock of the replica that wrote `time` may be ahead.
    fn is_within(&self, limit: Duration, time: Option<&Time>) -> bool {
        time.is_some_and(|time| self.now.duration_since(time.0).unsigned_abs() < limit)
    }

    /// Returns the ports of owned listeners and target groups.
    pub(crate) fn owned_ports(&self, group_prefix: &str) -> BTreeSet<u16> {
        let listeners = self.listeners.iter();
        let listeners = listeners.filter(|it| self.owners.is_owned(&it.arn));
        let groups = self.target_groups.iter();
        let groups = groups.filter(|it| self.owners.is_owned(&it.arn));
        let of_groups = groups.filter_map(|it| it.name.strip_prefix(group_prefix)?.parse().ok());
        listeners.map(|it| it.port).chain(of_groups).collect()
    }

    /// Returns whether the listeners and target groups of the load balancer, and their tags, were read.
    pub(crate) fn has_inventory(&self) -> bool {
        let is_done = |is: fn(&Step) -> bool| self.done.iter().any(is);
        let listeners = self.listeners.iter().map(|it| &it.arn);
        let mut arns = listeners.chain(self.target_groups.iter().map(|it| &it.arn));
        is_done(|step| matches!(step, Step::ReadListeners(_)))
            && is_done(|step| matches!(step, Step::ReadTargetGroups(_)))
            && arns.all(|arn| self.owners.0.contains_key(arn))
    }

    /// Returns the load balancer for the status: as AWS shows it, if it is owned or adoptable. After the loss of the
    /// status, the load balancer is not recorded before its listeners are: a status with the load balancer alone would
    /// say that it has none.
    pub fn alb(&self) -> Option<Alb> {
        if self.is_status_lost() && !self.has_inventory() {
            return self.draft.alb.clone();
        }
        let is_adoptable = self
            .ownership
            .as_ref()
            .is_some_and(TagOwnership::is_adoptable);
        let Some(visible) = self.visible().filter(|_| is_adoptable) else {
            return self.draft.alb.clone();
        };
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let mut alb = Alb {
            dns: some(&visible.dns),
            arn: some(&visible.arn),
            state: some(&visible.state),
            ..self.draft.alb.clone().unwrap_or_default()
        };
        if visible.state == "active" {
            // AWS shows the load balancer, so no reconcile has to wait for it to appear.
            alb.creation_requested_at = None;
        }
        Some(alb)
    }

    /// Returns the draft that records `intent`.
    pub(crate) fn draft_with(&self, desired: &Desired<'_>, intent: &Intent) -> Draft {
        let recorded = self.draft.alb.clone().unwrap_or_default().managed_tag_keys;
        let keys: BTreeSet<_> = recorded
            .iter()
            .chain(&desired.managed_tag_keys)
            .cloned()
            .collect();
        let managed_tag_keys = keys.into_iter().collect();
        let mut draft = Draft {
            alb: self.alb(),
            ..self.draft.clone()
        };
        match intent {
            Intent::CreateLoadBalancer => {
                draft.alb = Some(Alb {
                    creation_requested_at: Some(Time(self.now)),
                    managed_tag_keys,
                    ..Alb::default()
                });
            }
            Intent::Tag => {
                draft.alb = draft.alb.map(|alb| Alb {
                    managed_tag_keys,
                    ..alb
                });
            }
            Intent::Ports(ports) => {
                let creating = |port: &u16| ListenerStatus {
                    port: *port,
                    reason: CREATING.into(),
                    ..ListenerStatus::default()
                };
                draft.listeners.extend(ports.iter().map(creating));
            }
            Intent::CreateFor(port) => draft.set_requested_at(*port, Some(Time(self.now))),
        }
        draft
    }
}

/// Returns the current time with the precision that the API stores.
pub(crate) fn now() -> Timestamp {
    whole_seconds(Timestamp::now()).0
}
