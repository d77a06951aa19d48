//! The rules of listeners and their target groups.

use std::collections::BTreeSet;
use std::ops::ControlFlow::{Break, Continue};

use qm_api::my_ingress::{ListenerSpec, ListenerStatus};
use qm_aws::listeners::{self, DesiredListener, DesiredTargetGroup, InstanceTarget};
use qm_aws::listeners::{TargetGroup, TargetHealth};
use qm_aws::{AwsError, LoadBalancer, error};
use qm_runtime::error::{CONFLICT, Class};
use qm_runtime::ownership::Ownership;

use super::super::routes::{RouteProblem, TargetChange, released, route};
use super::super::status::{ListenerResult, count};
use super::super::step::{Intent, OwnedResource, Step};
use super::super::tags::TagOwnership;
use super::{End, ListenerResults, LoadBalancerFate, Stop, Walk, Walker, end_rejected};

/// Policy that AWS gives a new HTTPS listener without one. A listener that becomes HTTPS needs a policy
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_ModifyListener.html>).
const DEFAULT_POLICY: &str = "ELBSecurityPolicy-2016-08";

impl<'a> Walker<'a> {
    /// Returns whether the status records every port for which AWS may have resources. The status of a restored object
    /// may be older than its listeners.
    pub(super) fn is_status_complete(&self) -> bool {
        let ownership = self.observed.ownership.as_ref();
        let is_restored = ownership.is_some_and(|it| it.relation == Ownership::Restored);
        !self.observed.is_status_lost() && !is_restored
    }

    /// Returns whether, by spec and status, AWS has no listener or target group to ensure.
    fn has_no_listeners(&self) -> bool {
        self.is_status_complete()
            && self.desired.listeners().is_empty()
            && self.observed.draft.listeners.is_empty()
    }

    /// Reads the listeners and target groups of the load balancer, and records the ports of those that are desired or
    /// owned. Returns the ports with owned resources, or with a record.
    pub(super) fn record_inventory(&self, found: &LoadBalancer) -> Walk<BTreeSet<u16>> {
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
        Continue(existing)
    }

    /// Deletes all owned target groups, after the load balancer. A load balancer that is left behind keeps the groups
    /// that it uses.
    pub(super) fn delete_target_groups(&self, load_balancer: LoadBalancerFate) -> Walk {
        let (observed, tags) = (self.observed, &self.desired.tags);
        let left = load_balancer == LoadBalancerFate::Remains;
        self.take_step(Step::ListTargetGroups(tags.group_prefix()))?;
        let groups = &observed.listed_groups;
        let arns: BTreeSet<_> = groups.iter().map(|group| group.arn.clone()).collect();
        self.read_ownership(arns.iter().cloned())?;
        let owned: Vec<_> = arns
            .iter()
            .filter(|arn| observed.owners.is_owned(arn))
            .collect();
        if !owned.is_empty() {
            // If the cache is stale, the groups may belong to a newer MyIngress of that name.
            self.take_step(Step::ConfirmOwner(OwnedResource::TargetGroups))?;
        }
        for arn in owned {
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
    pub(super) fn ensure_listeners(&self, found: &LoadBalancer) -> Walk<Option<ListenerResults>> {
        if found.state == "failed" || self.has_no_listeners() {
            return Continue(None);
        }
        let (desired, observed) = (self.desired, self.observed);
        let existing = self.record_inventory(found)?;
        let ports: BTreeSet<_> = desired.listeners().iter().map(|it| it.port).collect();
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
                    self.keep_listener(port, reason, String::new())?
                }
                result => result?,
            };
            results.in_progress |= result.in_progress;
            results.desired.push(result);
        }
        for port in &existing - &ports {
            let before = observed.draft.listener(port).cloned();
            match self.remove_listener(port) {
                Break(Stop::End(End::Rejected(error))) if error.concerns_one_resource() => {
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
            return self.keep_listener(port, CONFLICT, message);
        }
        let service = observed.services.get(&port).and_then(Option::as_ref);
        let route = match route(service, listener, observed.nodes.as_ref()) {
            Ok(route) => route,
            Err(RouteProblem { reason, message }) => {
                return self.keep_listener(port, reason, format!("port {port}: {message}"));
            }
        };
        let group = match self.ensure_group(found, listener)? {
            Ok(group) => group,
            Err(result) => return Continue(result),
        };
        let arn = || group.arn.clone();
        let mut rejected_first = None;
        // The targets follow the nodes even if AWS rejects another step.
        let mut go_on = |walk| match walk {
            Break(Stop::End(End::Rejected(error))) if error.concerns_one_resource() => {
                rejected_first.get_or_insert(error);
                Continue(())
            }
            walk => walk,
        };
        let owned = self.ensure_ownership(&group.arn);
        if observed.owners.is_owned(&group.arn) {
            go_on(owned)?;
        } else {
            owned?;
        }
        let path = listener.health_check_path();
        if group.health_check_path != path {
            go_on(self.take_step(Step::SetHealthCheck(arn(), path.into())))?;
        }
        let registered = self.read_health(&group.arn)?;
        let released = released(service, registered);
        let (rejected, rejection) = self.rejected_targets(&group.arn);
        let targets = &route - &rejected;
        let TargetChange { add, remove, hold } = TargetChange::of(registered, &targets, &released);
        let registration = self.register(port, &group.arn, &add, &targets, rejection);
        let is_registered = registration.is_continue();
        go_on(registration)?;
        let mut is_redirected = false;
        if is_registered {
            let forwarding = self.ensure_forwarding(found, listener, existing, group);
            go_on(forwarding.map_continue(|it| is_redirected = it))?;
        }
        // AWS may have no room for the new targets before the old ones are removed.
        let stays = |it: &TargetHealth| !it.is_draining() && !remove.contains(&it.target);
        if !remove.is_empty() && (is_registered || registered.iter().any(stays)) {
            self.take_step(Step::DeregisterTargets(arn(), remove))?;
        }
        if let Some(error) = rejected_first {
            return end_rejected(error);
        }
        // Health from before the listener forwarded to the group, or the target was added, proves nothing.
        let known = |it: &&TargetHealth| !is_redirected && !add.contains(&it.target);
        let health: Vec<_> = registered.iter().filter(known).collect();
        let result = ListenerResult::of(port, &health, &targets, &found.security_groups);
        Continue(ListenerResult {
            total: count(route.len()),
            in_progress: result.in_progress || !add.is_empty() || !hold.is_empty(),
            ..result
        })
    }

    /// Keeps a listener as it is for this reason. Its targets stay as long as they lead to the Service, because the
    /// problem may be short.
    fn keep_listener(
        &self,
        port: u16,
        reason: &'static str,
        message: String,
    ) -> Walk<ListenerResult> {
        let left = match self.deregister_released(port) {
            // The result has an error already.
            Break(Stop::End(End::Rejected(_))) => None,
            left => left?,
        };
        let mut result = self.unchanged(port, reason, message);
        if let Some(left) = left {
            let healthy = left.iter().filter(|it| it.state == "healthy").count();
            result.healthy = count(healthy);
            if left.is_empty() {
                result.total = 0;
            }
        }
        Continue(result)
    }

    fn read_health(&self, group: &str) -> Walk<&'a [TargetHealth]> {
        self.take_step(Step::ReadTargetHealth(group.into()))?;
        let health = self.observed.health.get(group);
        Continue(health.map(Vec::as_slice).unwrap_or_default())
    }

    /// Removes the targets of a listener that no longer lead to the Service. Returns those that remain, `None` if the
    /// listener has no owned group.
    fn deregister_released(&self, port: u16) -> Walk<Option<Vec<&'a TargetHealth>>> {
        let observed = self.observed;
        let name = self.desired.tags.group_name(port);
        // A group without a listener gets no traffic.
        let mut groups = observed.target_groups.iter();
        let group = groups.find(|group| group.name == name);
        let Some(group) = group.filter(|group| observed.owners.is_owned(&group.arn)) else {
            return Continue(None);
        };
        let registered = self.read_health(&group.arn)?;
        let service = observed.services.get(&port).and_then(Option::as_ref);
        let targets = released(service, registered);
        let stays = |it: &&TargetHealth| !it.is_draining() && !targets.contains(&it.target);
        let left = registered.iter().filter(stays).collect();
        let count = targets.len();
        if count > 0 {
            self.take_step(Step::DeregisterTargets(group.arn.clone(), targets))?;
            self.updated(format!(
                "Removed {count} targets of port {port}: the Service released their node port"
            ))?;
        }
        Continue(Some(left))
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

    /// Returns the targets that AWS rejected, and the error. They must not block others: an instance may terminate before
    /// its node is deleted.
    fn rejected_targets(&self, group: &str) -> (BTreeSet<InstanceTarget>, Option<&'a AwsError>) {
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
        (rejected, last)
    }

    /// Registers the missing targets among `targets`, which AWS accepts after this `rejection` of others.
    fn register(
        &self,
        port: u16,
        group: &str,
        missing: &BTreeSet<InstanceTarget>,
        targets: &BTreeSet<InstanceTarget>,
        rejection: Option<&AwsError>,
    ) -> Walk {
        if !missing.is_empty() {
            self.take_step(Step::RegisterTargets(group.into(), missing.clone()))?;
        }
        let Some(error) = rejection else {
            return Continue(());
        };
        if targets.is_empty() {
            return end_rejected(error.clone());
        }
        let note = format!("Port {port}: AWS rejected some nodes as targets: {error}");
        self.warning("Update", error.reason, note)
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
