//! Decides the next step of a reconcile. Pure.
//!
//! [`walk`] goes through the rules from the top, past the steps that are done, to the first one that is not, so the
//! order of the rules is the order of the calls. A step that AWS rejects ends the reconcile, unless a rule continues
//! with another step.

use std::collections::BTreeSet;
use std::ops::ControlFlow::{self, Break, Continue};

use qm_api::common::ADOPT_BY;
use qm_api::my_ingress::{Alb, FINALIZER, ListenerSpec, ListenerStatus};
use qm_aws::listeners::{self, DesiredListener, DesiredTargetGroup, InstanceTarget};
use qm_aws::listeners::{TargetGroup, TargetHealth};
use qm_aws::{AwsError, DesiredLoadBalancer, LoadBalancer, Tags, error};
use qm_runtime::error::{CONFLICT, Class};
use qm_runtime::finalizer;
use qm_runtime::outcome::Requeue;
use qm_runtime::ownership::Ownership;

use super::build::{Desired, incompatibility};
use super::observe::Observed;
use super::routes::{RouteProblem, TargetChange, released, route};
use super::status::{
    DELETION_PROTECTED, INCOMPATIBLE, ListenerResult, MyIngressReadiness, NAME_TAKEN, TERMINATING,
    count,
};
use super::step::{EventType, Intent, OwnedResource, Step};
use super::tags::TagOwnership;

/// Policy that AWS gives a new HTTPS listener without one. A listener that becomes HTTPS needs a policy
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_ModifyListener.html>).
const DEFAULT_POLICY: &str = "ELBSecurityPolicy-2016-08";

const OWNER_NOT_VISIBLE: &str = "AWS does not show the tags of the load balancer yet";

/// Returns the next step, or `None` if nothing is left to do in this reconcile.
pub(crate) fn next(desired: &Desired<'_>, observed: &Observed) -> Option<Step> {
    match walk(desired, observed) {
        Break(Stop::Next(step)) => Some(step),
        Break(Stop::End(_)) | Continue(_) => None,
    }
}

/// A part of the walk, with its result.
pub(crate) type Walk<T = ()> = ControlFlow<Stop, T>;

/// The point at which a walk stops.
#[derive(Debug)]
pub(crate) enum Stop {
    Next(Step),
    End(End),
}

/// End of a reconcile before every rule is satisfied.
#[derive(Debug)]
pub(crate) enum End {
    /// AWS rejected a step that the rest depends on.
    Rejected(AwsError),
    /// The reconcile waits for AWS, or for a person to change something.
    Blocked(MyIngressReadiness, Requeue),
    /// AWS has no owned resource left.
    Deleted,
}

/// Result of a walk through all rules: AWS has all of the desired state, except what it rejects.
#[derive(Debug)]
pub(crate) struct Converged<'a> {
    pub load_balancer: &'a LoadBalancer,
    /// `None` if there is no listener to ensure.
    pub listeners: Option<ListenerResults>,
    /// Error of a step of the load balancer itself.
    pub rejected: Option<AwsError>,
}

#[derive(Debug, Default)]
pub(crate) struct ListenerResults {
    pub desired: Vec<ListenerResult>,
    /// Ports that are not desired and not removed yet.
    pub others: Vec<ListenerStatus>,
    pub rejected: Vec<AwsError>,
    /// AWS is still working: the next reconcile will observe another state.
    pub(crate) in_progress: bool,
}

/// Goes through the rules until a step is to be taken or the reconcile ends.
pub(crate) fn walk<'a>(desired: &'a Desired<'a>, observed: &'a Observed) -> Walk<Converged<'a>> {
    let walker = Walker { desired, observed };
    let found = match &observed.created {
        Some(created) => Some(created),
        None => walker.find_load_balancer()?,
    };
    match (&desired.load_balancer, found) {
        (Some(desired), Some(found)) => walker.ensure(desired, found),
        (Some(desired), None) => walker.create(desired),
        (None, Some(found)) => walker.delete(found),
        (None, None) => walker.finalize(),
    }
}

fn end_rejected<T>(error: AwsError) -> Walk<T> {
    Break(Stop::End(End::Rejected(error)))
}

fn blocked<T>(readiness: MyIngressReadiness, requeue: Requeue) -> Walk<T> {
    Break(Stop::End(End::Blocked(readiness, requeue)))
}

struct Walker<'a> {
    desired: &'a Desired<'a>,
    observed: &'a Observed,
}

impl<'a> Walker<'a> {
    /// Continues after a step that is done, ends at a step that AWS rejected, and otherwise proposes the step.
    fn take_step(&self, step: Step) -> Walk {
        if self.observed.done.contains(&step) {
            return Continue(());
        }
        let mut rejections = self.observed.rejected.iter();
        match rejections.find(|(rejected, _)| *rejected == step) {
            Some((_, error)) => end_rejected(error.clone()),
            None => Break(Stop::Next(step)),
        }
    }

    fn normal(&self, action: &'static str, reason: &'static str, note: String) -> Walk {
        self.take_step(Step::Emit(EventType::Normal, action, reason, note))
    }

    fn warning(&self, action: &'static str, reason: &'static str, note: String) -> Walk {
        self.take_step(Step::Emit(EventType::Warning, action, reason, note))
    }

    fn updated(&self, note: String) -> Walk {
        self.normal("Update", "Updated", note)
    }

    fn alb(&self) -> Option<Alb> {
        self.observed.draft.alb.clone()
    }

    fn not_visible<T>(&self) -> Walk<T> {
        blocked(MyIngressReadiness::creating(self.alb()), Requeue::Poll)
    }

    fn deleting<T>(&self, message: &str) -> Walk<T> {
        let alb = Some(self.alb().unwrap_or_default());
        let readiness = MyIngressReadiness::not_ready(alb, TERMINATING, message);
        blocked(readiness, Requeue::Poll)
    }

    /// Finds the load balancer of the desired name, in the region and account of the ARN in the status. The ARN proves
    /// nothing else.
    fn find_load_balancer(&self) -> Walk<Option<&'a LoadBalancer>> {
        let (observed, tags) = (self.observed, &self.desired.tags);
        let find = Step::FindLoadBalancer(self.desired.name.clone());
        let Some(arn) = observed.arn() else {
            self.take_step(find)?;
            return Continue(observed.load_balancer.as_ref());
        };
        self.take_step(Step::ReadRegion)?;
        if let Some(region) = qm_aws::region_of(arn).filter(|region| *region != observed.region) {
            return end_rejected(tags.in_another_region(arn, region, &observed.region));
        }
        self.take_step(find)?;
        let current = match &observed.load_balancer {
            Some(found) => qm_aws::account_of(&found.arn),
            None if observed.may_yet_appear() => None,
            None => {
                self.take_step(Step::ReadAccount)?;
                Some(observed.account.as_str())
            }
        };
        match (qm_aws::account_of(arn), current) {
            (Some(account), Some(current)) if account != current => {
                end_rejected(tags.in_another_account(arn, account, current))
            }
            _ => Continue(observed.load_balancer.as_ref()),
        }
    }

    fn add_finalizer(&self) -> Walk {
        if finalizer::has(self.observed.object.as_ref(), FINALIZER) {
            return Continue(());
        }
        self.take_step(Step::AddFinalizer)
    }

    fn create<T>(&self, desired: &DesiredLoadBalancer) -> Walk<T> {
        // If the answer was lost, the status has no ARN, and AWS answers another creation with the existing load
        // balancer.
        let is_named = self.alb().is_some_and(|alb| alb.arn.is_some());
        if is_named && self.observed.may_yet_appear() {
            return self.not_visible();
        }
        self.add_finalizer()?;
        self.take_step(Step::RecordIntent(Intent::CreateLoadBalancer))?;
        self.take_step(Step::CreateLoadBalancer(desired.clone()))?;
        self.not_visible()
    }

    /// Ensures that the load balancer that AWS shows or has just created matches the desired state.
    fn ensure(
        &self,
        desired: &DesiredLoadBalancer,
        found: &'a LoadBalancer,
    ) -> Walk<Converged<'a>> {
        let (name, arn) = (&desired.name, &found.arn);
        self.take_step(Step::ReadTags(arn.clone()))?;
        let Some(ownership) = &self.observed.ownership else {
            return self.not_visible();
        };
        // AWS may have answered the creation with an existing load balancer that has the same settings.
        if !ownership.is_adoptable() {
            return self.not_owned(found, ownership);
        }
        if let Some(message) = incompatibility(found, desired) {
            if ownership.relation != Ownership::Owned {
                return self.end_not_owned(INCOMPATIBLE, message);
            }
            let alb = self.observed.alb();
            let readiness = MyIngressReadiness::not_ready(alb, INCOMPATIBLE, message);
            return blocked(readiness, Requeue::OnChange);
        }
        if ownership.relation == Ownership::Restored {
            self.take_step(Step::ConfirmOwner(OwnedResource::LoadBalancer))?;
        }
        self.add_finalizer()?;
        let (mut changed, mut error) = (Vec::new(), None);
        // The tags come first, because they prove ownership.
        let tagged = self.tag(&desired.tags, arn, &ownership.tags);
        match &tagged {
            Continue(differed) => {
                changed.extend(differed.then_some("tags"));
                error = self.correct_drift(desired, found, &mut changed)?;
            }
            Break(Stop::End(_)) => {}
            Break(Stop::Next(step)) => return Break(Stop::Next(step.clone())),
        }
        if ownership.relation != Ownership::Owned {
            if tagged.is_continue() {
                let adopted = format!("Adopted load balancer {name}: {arn}");
                self.normal("Adopt", "Adopted", adopted)?;
            }
        } else if self.observed.created.is_some() {
            let created = format!("Created load balancer {name}: {arn}");
            self.normal("Create", "Created", created)?;
        } else if !changed.is_empty() {
            let changed = changed.join(", ");
            self.updated(format!("Corrected {changed} on load balancer {name}"))?;
        }
        tagged?;
        if let Some(error) = error
            .as_ref()
            .filter(|error| !error.concerns_one_resource())
        {
            return end_rejected(error.clone());
        }
        // Traffic follows the nodes even if AWS rejected another step.
        Continue(Converged {
            load_balancer: found,
            listeners: self.ensure_listeners(found)?,
            rejected: error,
        })
    }

    fn not_owned<T>(&self, found: &LoadBalancer, ownership: &TagOwnership) -> Walk<T> {
        let name = &self.desired.name;
        let Some(sibling) = &self.observed.sibling else {
            let message = self.desired.tags.conflict(found, name, &ownership.tags);
            return self.end_not_owned(CONFLICT, message);
        };
        let message = format!(
            "MyIngress {sibling} owns load balancer {name}, and names are unique in an AWS account and region: create this \
             MyIngress again under another name"
        );
        self.end_not_owned(NAME_TAKEN, message)
    }

    /// Ends the reconcile at a load balancer that the `MyIngress` does not own. The status keeps only the ARN of a load
    /// balancer that the `MyIngress` once owned, for the Event `Orphaned`. AWS may show tags late, so the operator soon
    /// reads a recent load balancer again.
    fn end_not_owned<T>(&self, reason: &'static str, message: String) -> Walk<T> {
        let known = self.alb().unwrap_or_default();
        let actual = self.observed.visible().map(|actual| &actual.arn);
        let alb = Alb {
            arn: known.arn.filter(|arn| Some(arn) == actual),
            creation_requested_at: known.creation_requested_at,
            ..Alb::default()
        };
        let requeue = if self.observed.may_yet_appear() {
            Requeue::Poll
        } else {
            Requeue::OnChange
        };
        let readiness = MyIngressReadiness::conflict(Some(alb), reason, message);
        blocked(readiness, requeue)
    }

    /// Ensures the tags of the load balancer. Returns whether a tag differed.
    fn tag(&self, desired: &Tags, arn: &str, actual: &Tags) -> Walk<bool> {
        let alb = self.observed.draft.alb.as_ref();
        let recorded: BTreeSet<_> = alb.iter().flat_map(|alb| &alb.managed_tag_keys).collect();
        let keys: BTreeSet<_> = self.desired.managed_tag_keys.iter().collect();
        if !keys.is_subset(&recorded) {
            // A later reconcile removes only recorded tags.
            self.take_step(Step::RecordIntent(Intent::Tag))?;
        }
        self.ensure_tags(arn, desired, actual, &(&recorded - &keys))
    }

    /// Ensures the tags, removes those that the spec `dropped`, and removes the consent to an adoption. Returns whether
    /// a tag differed.
    fn ensure_tags(
        &self,
        arn: &str,
        desired: &Tags,
        actual: &Tags,
        dropped: &BTreeSet<&String>,
    ) -> Walk<bool> {
        let (mut missing, mut extra) = (desired.clone(), BTreeSet::new());
        missing.retain(|key, value| actual.get(key) != Some(value));
        for key in actual.keys().filter(|key| !desired.contains_key(*key)) {
            let is_consent = key == ADOPT_BY && self.desired.tags.has_consent(actual);
            if is_consent || dropped.contains(key) {
                extra.insert(key.clone());
            }
        }
        let differs = !missing.is_empty() || !extra.is_empty();
        if !missing.is_empty() {
            self.take_step(Step::AddTags(arn.into(), missing))?;
        }
        if !extra.is_empty() {
            self.take_step(Step::RemoveTags(arn.into(), extra))?;
        }
        Continue(differs)
    }

    /// Corrects differences from the spec, continues after an error, and returns the first error.
    fn correct_drift(
        &self,
        desired: &DesiredLoadBalancer,
        found: &LoadBalancer,
        changed: &mut Vec<&'static str>,
    ) -> Walk<Option<AwsError>> {
        let arn = || found.arn.clone();
        let address_type = desired.ip_address_type.as_ref();
        let address_type = address_type.filter(|it| found.ip_address_type != **it);
        let set_address_type =
            |it: &String| ("IP address type", Step::SetIpAddressType(arn(), it.clone()));
        // Either the new or the old subnets may support only IPv4.
        let (fewer, more) = (
            address_type.filter(|it| *it == "ipv4"),
            address_type.filter(|it| *it != "ipv4"),
        );
        let subnets = Some(&desired.subnets).filter(|it| found.subnets != **it);
        // If the spec has no security groups, the load balancer keeps those that AWS chose.
        let groups = Some(&desired.security_groups)
            .filter(|it| !it.is_empty() && found.security_groups != **it);
        let steps = [
            fewer.map(set_address_type),
            subnets.map(|it| ("subnets", Step::SetSubnets(arn(), it.clone()))),
            more.map(set_address_type),
            groups.map(|it| {
                let step = Step::SetSecurityGroups(arn(), it.clone());
                ("security groups", step)
            }),
        ];
        let mut first = None;
        for (what, step) in steps.into_iter().flatten() {
            match self.take_step(step) {
                Continue(()) => changed.push(what),
                Break(Stop::End(End::Rejected(error))) => _ = first.get_or_insert(error),
                Break(stop) => return Break(stop),
            }
        }
        Continue(first)
    }

    /// Deletes the load balancer that AWS shows, if it is owned.
    fn delete(&self, found: &'a LoadBalancer) -> Walk<Converged<'a>> {
        let (name, arn) = (&self.desired.name, &found.arn);
        self.take_step(Step::ReadTags(arn.clone()))?;
        let Some(ownership) = &self.observed.ownership else {
            return self.deleting(OWNER_NOT_VISIBLE);
        };
        if !ownership.is_owned() {
            if ownership.tags.is_empty() && self.observed.may_yet_appear() {
                return self.deleting(OWNER_NOT_VISIBLE);
            }
            self.delete_target_groups(true)?;
            if self.observed.arn() == Some(arn) {
                let note =
                    format!("Load balancer {arn} lost the operator's tags, so it stays unchanged");
                self.warning("Delete", "Orphaned", note)?;
            }
            return Break(Stop::End(End::Deleted));
        }
        // If the cache is stale, the load balancer may belong to a newer MyIngress of that name.
        self.take_step(Step::ConfirmOwner(OwnedResource::LoadBalancer))?;
        match self.take_step(Step::DeleteLoadBalancer(arn.clone())) {
            Break(Stop::End(End::Rejected(error))) if error.class == Class::Slow => {
                return self.ensure_undeletable(found, error);
            }
            deleted => deleted?,
        }
        self.take_step(Step::VerifyDeletion(name.clone()))?;
        let remaining = self.observed.remaining.as_ref();
        if remaining.is_some_and(|it| it.arn == *arn) {
            return self.deleting("AWS is deleting the load balancer");
        }
        self.delete_target_groups(false)?;
        let deleted = format!("Deleted load balancer {name}: {arn}");
        self.normal("Delete", "Deleted", deleted)?;
        Break(Stop::End(End::Deleted))
    }

    /// Ensures the listeners of a load balancer that AWS does not delete: until a person permits the deletion, traffic
    /// follows the nodes.
    fn ensure_undeletable(&self, found: &'a LoadBalancer, error: AwsError) -> Walk<Converged<'a>> {
        let error = self.with_protection_hint(error, &found.arn);
        if self.desired.listeners.is_none() {
            return end_rejected(error);
        }
        match self.ensure_listeners(found) {
            Break(Stop::End(_)) => end_rejected(error),
            Break(stop) => Break(stop),
            Continue(listeners) => Continue(Converged {
                load_balancer: found,
                listeners,
                rejected: Some(error),
            }),
        }
    }

    /// Adds the command that disables deletion protection to an error that deletion protection causes.
    fn with_protection_hint(&self, error: AwsError, arn: &str) -> AwsError {
        // AWS uses this code for other errors too.
        let message = error.message.to_lowercase();
        if !error.is(error::OPERATION_NOT_PERMITTED) || !message.contains("deletion protection") {
            return error;
        }
        let message = format!(
            "deletion protection is enabled ({}); to delete the load balancer: {} modify-load-balancer-attributes --load-balancer-arn {arn} \
             --attributes Key=deletion_protection.enabled,Value=false && {}",
            error.message,
            qm_aws::command(arn),
            self.desired.tags.reconcile_command(),
        );
        AwsError {
            reason: DELETION_PROTECTED,
            message,
            ..error
        }
    }

    /// Ends a deletion for which AWS shows no load balancer.
    fn finalize<T>(&self) -> Walk<T> {
        if self.observed.may_yet_appear() {
            return self.deleting(
                "AWS may still create the load balancer: the operator deletes it once AWS shows it",
            );
        }
        self.delete_target_groups(false)?;
        if let Some(arn) = self.observed.arn() {
            let name = &self.desired.name;
            let note = format!("AWS no longer shows load balancer {name}, whose ARN was {arn}");
            self.normal("Delete", "AlreadyDeleted", note)?;
        }
        Break(Stop::End(End::Deleted))
    }

    /// Returns whether, by spec and status, AWS has no listener or target group to ensure.
    fn has_no_listeners(&self) -> bool {
        let is_known = !self.observed.is_status_lost();
        is_known && self.desired.listeners().is_empty() && self.observed.draft.listeners.is_empty()
    }

    /// Deletes all owned target groups, after the load balancer. Groups of a load balancer that was `left` behind stay.
    fn delete_target_groups(&self, left: bool) -> Walk {
        if self.has_no_listeners() {
            return Continue(());
        }
        let (observed, tags) = (self.observed, &self.desired.tags);
        self.take_step(Step::ListTargetGroups(tags.group_prefix()))?;
        let groups = &observed.listed_groups;
        let arns: BTreeSet<_> = groups.iter().map(|group| group.arn.clone()).collect();
        self.read_ownership(arns.iter().cloned())?;
        // If the cache is stale, the groups may belong to a newer MyIngress of that name.
        self.take_step(Step::ConfirmOwner(OwnedResource::TargetGroups))?;
        for arn in arns.iter().filter(|arn| observed.owners.is_owned(arn)) {
            match self.take_step(Step::DeleteTargetGroup(arn.clone())) {
                Break(Stop::End(End::Rejected(error))) if left && error.is(error::IN_USE) => {}
                deleted => deleted?,
            }
        }
        let is_shown = |name: &str| {
            let mut named = groups.iter().filter(|group| group.name == name);
            named.any(|group| !observed.owners.is_untagged(&group.arn))
        };
        let mut ports = observed.draft.listeners.iter().map(|it| it.port);
        if ports.any(|port| observed.may_yet_show(port) && !is_shown(&tags.group_name(port))) {
            return self.deleting(
                "AWS may still create a target group: the operator deletes it once AWS shows it",
            );
        }
        Continue(())
    }

    fn read_ownership(&self, arns: impl Iterator<Item = String>) -> Walk {
        let arns: Vec<_> = arns.collect();
        if arns.is_empty() {
            return Continue(());
        }
        self.take_step(Step::ReadOwnership(arns))
    }

    /// Ensures the desired listeners one after the other, then removes the others. A rejected listener must not block
    /// others.
    fn ensure_listeners(&self, found: &LoadBalancer) -> Walk<Option<ListenerResults>> {
        if found.state == "failed" || self.has_no_listeners() {
            return Continue(None);
        }
        let (desired, observed) = (self.desired, self.observed);
        self.take_step(Step::ReadListeners(found.arn.clone()))?;
        self.take_step(Step::ReadTargetGroups(found.arn.clone()))?;
        let arns = observed.listeners.iter().map(|it| it.arn.clone());
        let groups = observed.target_groups.iter().map(|it| it.arn.clone());
        self.read_ownership(arns.chain(groups))?;
        let ports: BTreeSet<_> = desired.listeners().iter().map(|it| it.port).collect();
        let recorded: BTreeSet<_> = observed.draft.listeners.iter().map(|it| it.port).collect();
        let existing = &observed.owned_ports(&desired.tags.group_prefix()) | &recorded;
        let new = &(&ports | &existing) - &recorded;
        if !new.is_empty() {
            // A later reconcile removes only resources of recorded ports.
            self.take_step(Step::RecordIntent(Intent::Ports(new)))?;
        }
        if !ports.is_empty() {
            self.take_step(Step::ReadNodes)?;
        }
        let mut results = ListenerResults::default();
        for listener in desired.listeners() {
            let port = listener.port;
            let result = match self.ensure_listener(found, listener) {
                Break(Stop::End(End::Rejected(error))) if error.concerns_one_resource() => {
                    let message = format!("port {port}: {}", error.message);
                    let reason = error.reason;
                    results.rejected.push(AwsError { message, ..error });
                    self.unchanged(port, reason, String::new())
                }
                result => result?,
            };
            results.in_progress |= result.in_progress;
            results.desired.push(result);
        }
        for port in &existing - &ports {
            let before = observed.draft.listener(port).cloned();
            match self.remove_listener(port) {
                Break(Stop::End(End::Rejected(error))) => {
                    let rejected = before.map(|before| ListenerStatus {
                        healthy: 0,
                        reason: error.reason.into(),
                        ..before
                    });
                    results.others.extend(rejected);
                    results.rejected.push(error);
                }
                Break(stop) => return Break(stop),
                Continue(true) => {}
                Continue(false) => {
                    results.in_progress = true;
                    results.others.extend(before);
                }
            }
        }
        Continue(Some(results))
    }

    /// Returns the result of a listener whose targets were not read.
    fn unchanged(&self, port: u16, reason: &'static str, message: String) -> ListenerResult {
        let before = self.observed.draft.listener(port);
        ListenerResult {
            port,
            healthy: before.map_or(0, |before| before.healthy),
            total: before.map_or(0, |before| before.total),
            reason,
            message,
            in_progress: false,
        }
    }

    /// Ensures a listener that is never without targets: its target group gets targets before the listener forwards to
    /// the group, and new targets before old ones are removed.
    fn ensure_listener(
        &self,
        found: &LoadBalancer,
        listener: &ListenerSpec,
    ) -> Walk<ListenerResult> {
        let (observed, tags, port) = (self.observed, &self.desired.tags, listener.port);
        let name = listener.service.name.clone();
        self.take_step(Step::ReadService(port, name))?;
        let existing = observed.listeners.iter().find(|it| it.port == port);
        if let Some(foreign) = existing.filter(|it| !observed.owners.is_adoptable(&it.arn)) {
            let arn = &foreign.arn;
            if observed.owners.is_untagged(arn) && observed.may_yet_show(port) {
                return Continue(ListenerResult::not_visible(port));
            }
            let message = format!(
                "the listener of port {port} is not owned, so it stays unchanged: choose another port, delete \
                 the listener, or, {}",
                tags.adopt_command(arn)
            );
            return Continue(self.unchanged(port, CONFLICT, message));
        }
        let service = observed.services.get(&port).and_then(Option::as_ref);
        let route = match route(service, listener, observed.nodes.as_ref()) {
            Ok(route) => route,
            // Targets that still lead to the Service stay, because the problem may be short.
            Err(RouteProblem { reason, message }) => {
                let is_empty = self.deregister_released(port)?;
                let mut result = self.unchanged(port, reason, format!("port {port}: {message}"));
                if is_empty {
                    (result.healthy, result.total) = (0, 0);
                }
                return Continue(result);
            }
        };
        let group = match self.ensure_group(found, listener)? {
            Ok(group) => group,
            Err(result) => return Continue(result),
        };
        let arn = || group.arn.clone();
        self.ensure_ownership(&group.arn)?;
        let path = listener.health_check_path();
        if group.health_check_path != path {
            self.take_step(Step::SetHealthCheck(arn(), path.into()))?;
        }
        let registered = self.read_health(&group.arn)?;
        let released = released(service, registered);
        let TargetChange { add, remove, hold } = TargetChange::of(registered, &route, &released);
        let rejected = self.register(port, &group.arn, &add, registered, &route)?;
        let is_redirected = self.ensure_forwarding(found, listener, existing, group)?;
        if !remove.is_empty() {
            self.take_step(Step::DeregisterTargets(arn(), remove))?;
        }
        // Health from before the listener forwarded to the group, or the target was added, proves nothing.
        let known = |it: &&TargetHealth| !is_redirected && !add.contains(&it.target);
        let health: Vec<_> = registered.iter().filter(known).collect();
        let targets = &route - &rejected;
        let result = ListenerResult::of(port, &health, &targets, &found.security_groups);
        Continue(ListenerResult {
            total: count(route.len()),
            in_progress: result.in_progress || !add.is_subset(&rejected) || !hold.is_empty(),
            ..result
        })
    }

    fn read_health(&self, group: &str) -> Walk<&'a [TargetHealth]> {
        self.take_step(Step::ReadTargetHealth(group.into()))?;
        let health = self.observed.health.get(group);
        Continue(health.map(Vec::as_slice).unwrap_or_default())
    }

    /// Removes the targets of a listener that no longer lead to the Service. Returns whether no target remains.
    fn deregister_released(&self, port: u16) -> Walk<bool> {
        let observed = self.observed;
        let name = self.desired.tags.group_name(port);
        // A group without a listener gets no traffic.
        let mut groups = observed.target_groups.iter();
        let group = groups.find(|group| group.name == name);
        let Some(group) = group.filter(|group| observed.owners.is_owned(&group.arn)) else {
            return Continue(false);
        };
        let registered = self.read_health(&group.arn)?;
        let service = observed.services.get(&port).and_then(Option::as_ref);
        let targets = released(service, registered);
        let active = registered.iter().filter(|it| !it.is_draining()).count();
        let count = targets.len();
        if count > 0 {
            self.take_step(Step::DeregisterTargets(group.arn.clone(), targets))?;
            self.updated(format!(
                "Removed {count} targets of port {port}: the Service released their node port"
            ))?;
        }
        Continue(active == count)
    }

    /// Ensures the target group of a listener. Returns the group, or the result of a listener that cannot have one.
    fn ensure_group(
        &self,
        found: &LoadBalancer,
        listener: &ListenerSpec,
    ) -> Walk<Result<&'a TargetGroup, ListenerResult>> {
        let (observed, owners, port) = (self.observed, &self.observed.owners, listener.port);
        let not_visible = || Continue(Err(ListenerResult::not_visible(port)));
        let name = self.desired.tags.group_name(port);
        let mut led_to = observed.target_groups.iter();
        let existing = match led_to.find(|group| group.name == name) {
            Some(group) => Some(group),
            None => self.find_group(&name)?,
        };
        if let Some(group) = existing {
            let arn = &group.arn;
            if owners.is_untagged(arn) && observed.may_yet_show(port) {
                return not_visible();
            }
            if owners.is_adoptable(arn) && group.vpc == found.vpc {
                return Continue(Ok(group));
            }
            if !owners.is_owned(arn) {
                return Continue(Err(self.foreign_group(port, group)));
            }
            // The group belonged to an owned load balancer that another client deleted.
            self.take_step(Step::DeleteTargetGroup(arn.clone()))?;
        }
        let create = DesiredTargetGroup {
            name,
            vpc: found.vpc.clone(),
            // Each target has its own port.
            port: 80,
            health_check_path: listener.health_check_path().into(),
            tags: self.desired.tags.tags(),
        };
        self.take_recorded(port, Step::CreateTargetGroup(port, create))?;
        let Some(created) = observed.created_groups.get(&port) else {
            return not_visible();
        };
        match self.take_step(Step::ReadOwnership(vec![created.arn.clone()])) {
            Break(Stop::End(End::Rejected(error))) if error.is(error::GROUP_NOT_FOUND) => {
                return not_visible();
            }
            read => read?,
        }
        // AWS may have answered with an existing group that has the same settings.
        if owners.is_owned(&created.arn) {
            return Continue(Ok(created));
        }
        if owners.is_untagged(&created.arn) {
            return not_visible();
        }
        Continue(Err(self.foreign_group(port, created)))
    }

    fn foreign_group(&self, port: u16, group: &TargetGroup) -> ListenerResult {
        let TargetGroup { name, arn, .. } = group;
        let message = format!(
            "target group {name}, which port {port} needs, is not owned: delete it, or, {}",
            self.desired.tags.adopt_command(arn)
        );
        self.unchanged(port, CONFLICT, message)
    }

    fn find_group(&self, name: &str) -> Walk<Option<&'a TargetGroup>> {
        self.take_step(Step::FindTargetGroup(name.into()))?;
        let group = self.observed.found_groups.get(name);
        self.read_ownership(group.iter().map(|group| group.arn.clone()))?;
        Continue(group)
    }

    /// Takes a step that creates a resource for the port, after recording the intent. A recent record is enough.
    fn take_recorded(&self, port: u16, step: Step) -> Walk {
        let taken = self.take_step(step);
        let record = Step::RecordIntent(Intent::CreateFor(port));
        let is_recorded =
            self.observed.was_just_requested(port) || self.observed.done.last() == Some(&record);
        match taken {
            Break(Stop::Next(_)) if !is_recorded => Break(Stop::Next(record)),
            taken => taken,
        }
    }

    /// Ensures the tags of an owned or adoptable listener or target group.
    fn ensure_ownership(&self, arn: &str) -> Walk {
        let tags = &self.desired.tags;
        let Some(TagOwnership { tags: actual, .. }) = self.observed.owners.0.get(arn) else {
            return Continue(());
        };
        self.ensure_tags(arn, &tags.tags(), actual, &BTreeSet::new())?;
        if tags.has_consent(actual) {
            self.normal("Adopt", "Adopted", format!("Adopted {arn}"))?;
        }
        Continue(())
    }

    /// Registers the missing targets. Returns those that AWS rejects, which must not block others: an instance may
    /// terminate before its node is deleted.
    fn register(
        &self,
        port: u16,
        group: &str,
        add: &BTreeSet<InstanceTarget>,
        registered: &[TargetHealth],
        route: &BTreeSet<InstanceTarget>,
    ) -> Walk<BTreeSet<InstanceTarget>> {
        let (mut rejected, mut last) = (BTreeSet::new(), None);
        for (step, error) in &self.observed.rejected {
            if let Step::RegisterTargets(arn, targets) = step
                && arn == group
                && error.is(error::INVALID_TARGET)
            {
                let named = |target: &&InstanceTarget| mentions(&error.message, &target.instance);
                rejected.extend(targets.iter().filter(named).cloned());
                last = Some(error);
            }
        }
        let accepted = add - &rejected;
        let stays = |it: &TargetHealth| !it.is_draining() && route.contains(&it.target);
        if !accepted.is_empty() {
            self.take_step(Step::RegisterTargets(group.into(), accepted))?;
        } else if let Some(error) = last.filter(|_| !registered.iter().any(stays)) {
            return end_rejected(error.clone());
        }
        if let Some(error) = last {
            let note = format!("Port {port}: AWS rejected some nodes as targets: {error}");
            self.warning("Update", error.reason, note)?;
        }
        Continue(rejected)
    }

    /// Ensures that the listener forwards to the group. Returns whether the listener was changed or created.
    fn ensure_forwarding(
        &self,
        found: &LoadBalancer,
        listener: &ListenerSpec,
        existing: Option<&listeners::Listener>,
        group: &TargetGroup,
    ) -> Walk<bool> {
        let port = listener.port;
        let mut desired = DesiredListener {
            port,
            protocol: listener.protocol().into(),
            certificate: listener.certificate_arn.clone(),
            ssl_policy: listener.ssl_policy.clone(),
            group: group.arn.clone(),
        };
        let Some(existing) = existing else {
            let tags = self.desired.tags.tags();
            let create = Step::CreateListener(found.arn.clone(), desired, tags);
            self.take_recorded(port, create)?;
            self.updated(format!("Created the listener of port {port}"))?;
            return Continue(true);
        };
        self.ensure_ownership(&existing.arn)?;
        if !differs(existing, &desired) {
            return Continue(false);
        }
        if desired.protocol == "HTTPS" && existing.protocol != "HTTPS" {
            let policy = &mut desired.ssl_policy;
            policy.get_or_insert_with(|| DEFAULT_POLICY.into());
        }
        self.take_step(Step::ModifyListener(existing.arn.clone(), desired))?;
        self.updated(format!("Corrected the listener of port {port}"))?;
        Continue(existing.group.as_ref() != Some(&group.arn))
    }

    /// Removes the owned listener of a port that is not desired, then the owned target group. Returns whether both are
    /// deleted.
    fn remove_listener(&self, port: u16) -> Walk<bool> {
        let (observed, owners) = (self.observed, &self.observed.owners);
        let existing = observed.listeners.iter().find(|it| it.port == port);
        if let Some(listener) = existing.filter(|it| owners.is_owned(&it.arn)) {
            self.take_step(Step::DeleteListener(listener.arn.clone()))?;
            self.updated(format!("Deleted the listener of port {port}"))?;
        }
        let name = self.desired.tags.group_name(port);
        let found = self.find_group(&name)?;
        let Some(group) = found.filter(|group| owners.is_owned(&group.arn)) else {
            let is_late = found.is_none_or(|group| owners.is_untagged(&group.arn));
            return Continue(!(is_late && observed.may_yet_show(port)));
        };
        let holds = |it: &&listeners::Listener| {
            it.group.as_ref() == Some(&group.arn) && !owners.is_owned(&it.arn)
        };
        if let Some(holder) = observed.listeners.iter().find(holds) {
            let message = format!(
                "target group {name} is no longer needed, but a listener that is not owned uses it: delete the listener of \
                 port {}",
                holder.port
            );
            return end_rejected(AwsError::unsent(Class::Slow, CONFLICT, message));
        }
        self.take_step(Step::DeleteTargetGroup(group.arn.clone()))?;
        Continue(true)
    }
}

/// Returns whether the message names this instance, and not an instance with a longer ID.
fn mentions(message: &str, instance: &str) -> bool {
    message
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .any(|word| word == instance)
}

/// Returns whether the listener differs from the spec, which may omit the policy.
fn differs(existing: &listeners::Listener, desired: &DesiredListener) -> bool {
    existing.protocol != desired.protocol
        || existing.certificate != desired.certificate
        || (desired.ssl_policy.is_some() && existing.ssl_policy != desired.ssl_policy)
        || existing.group.as_ref() != Some(&desired.group)
}
