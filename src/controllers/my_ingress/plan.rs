//! Decides the next step of a reconcile. Pure.
//!
//! [`walk`] goes through the rules from the top, past the steps that are done, to the first one that is not, so the
//! order of the rules is the order of the calls. A step that AWS rejects ends the reconcile, unless a rule continues
//! with another step. The rules of listeners are in [`listeners`].

use std::collections::BTreeSet;
use std::ops::ControlFlow::{self, Break, Continue};

use qm_api::common::ADOPT_BY;
use qm_api::my_ingress::{Alb, FINALIZER, ListenerStatus};
use qm_aws::{AwsError, DesiredLoadBalancer, LoadBalancer, Tags, error};
use qm_core::readiness::TERMINATING;
use qm_runtime::error::{CONFLICT, Class};
use qm_runtime::finalizer;
use qm_runtime::outcome::Requeue;
use qm_runtime::ownership::Ownership;

use super::build::{Desired, incompatibility};
use super::observe::Observed;
use super::status::{
    DELETION_PROTECTED, INCOMPATIBLE, ListenerResult, MyIngressReadiness, NAME_TAKEN,
};
use super::step::{EventType, Intent, OwnedResource, Step};
use super::tags::TagOwnership;

mod listeners;

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
        (None, None) => walker.end_without_load_balancer(),
    }
}

fn end_rejected<T>(error: AwsError) -> Walk<T> {
    Break(Stop::End(End::Rejected(error)))
}

fn blocked<T>(readiness: MyIngressReadiness, requeue: Requeue) -> Walk<T> {
    Break(Stop::End(End::Blocked(readiness, requeue)))
}

/// Fate of the load balancer whose target groups are deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadBalancerFate {
    /// AWS has deleted the load balancer.
    Gone,
    /// AWS keeps the load balancer, which the `MyIngress` does not own.
    Remains,
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
        if !self.is_status_complete() {
            // Tags and status then say that the load balancer is known, so its listeners are recorded before.
            self.record_inventory(found)?;
        }
        let (mut changed, mut error) = (Vec::new(), None);
        // The tags come first, because they prove ownership.
        match self.tag(&desired.tags, arn, &ownership.tags) {
            Continue(differed) => changed.extend(differed.then_some("tags")),
            Break(Stop::End(End::Rejected(rejected))) if ownership.relation == Ownership::Owned => {
                error = Some(rejected);
            }
            Break(stop) => return Break(stop),
        }
        if error.as_ref().is_none_or(AwsError::concerns_one_resource) {
            let drift = self.correct_drift(desired, found, &mut changed)?;
            error = error.or(drift);
        }
        if ownership.relation != Ownership::Owned {
            let adopted = format!("Adopted load balancer {name}: {arn}");
            self.normal("Adopt", "Adopted", adopted)?;
        } else if self.observed.is_newly_created() {
            let created = format!("Created load balancer {name}: {arn}");
            self.normal("Create", "Created", created)?;
        } else if !changed.is_empty() {
            let changed = changed.join(", ");
            self.updated(format!("Corrected {changed} on load balancer {name}"))?;
        }
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
    /// balancer that the `MyIngress` once owned, for the Event `Orphaned`, and the keys of its tags, for its adoption. AWS
    /// may show tags late, so the operator soon reads a recent load balancer again.
    fn end_not_owned<T>(&self, reason: &'static str, message: String) -> Walk<T> {
        let known = self.alb().unwrap_or_default();
        let actual = self.observed.visible().map(|actual| &*actual.arn);
        let recorded = self.observed.arn().filter(|arn| Some(*arn) == actual);
        let alb = Alb {
            arn: recorded.map(Into::into),
            creation_requested_at: known.creation_requested_at,
            managed_tag_keys: match recorded {
                Some(_) => known.managed_tag_keys,
                None => Vec::new(),
            },
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
    ///
    /// AWS limits the number of tags, so the dropped ones go first, once the ownership tags prove the permission.
    fn ensure_tags(
        &self,
        arn: &str,
        desired: &Tags,
        actual: &Tags,
        dropped: &BTreeSet<&String>,
    ) -> Walk<bool> {
        let is_missing = |(key, value): (&String, &String)| actual.get(key) != Some(value);
        let mut missing = desired.clone();
        missing.retain(|key, value| is_missing((key, value)));
        let (mut first, mut last) = (BTreeSet::new(), BTreeSet::new());
        let is_owned = !self.desired.tags.tags().iter().any(is_missing);
        for key in actual.keys().filter(|key| !desired.contains_key(*key)) {
            if is_owned && dropped.contains(key) {
                first.insert(key.clone());
            } else if dropped.contains(key)
                || (key == ADOPT_BY && self.desired.tags.has_consent(actual))
            {
                last.insert(key.clone());
            }
        }
        let differs = !(missing.is_empty() && first.is_empty() && last.is_empty());
        if !first.is_empty() {
            self.take_step(Step::RemoveTags(arn.into(), first))?;
        }
        if !missing.is_empty() {
            self.take_step(Step::AddTags(arn.into(), missing))?;
        }
        if !last.is_empty() {
            self.take_step(Step::RemoveTags(arn.into(), last))?;
        }
        Continue(differs)
    }

    /// Corrects differences from the spec, and returns the first error. Continues after an error that may concern one
    /// resource: while AWS does not answer, three calls would take longer than a reconcile may.
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
                Break(Stop::End(End::Rejected(error))) => {
                    let is_last = !error.concerns_one_resource();
                    first.get_or_insert(error);
                    if is_last {
                        break;
                    }
                }
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
            self.delete_target_groups(LoadBalancerFate::Remains)?;
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
            // AWS rejects the deletion until a person changes something, such as the deletion protection, or another AWS
            // service that uses the load balancer.
            Break(Stop::End(End::Rejected(error)))
                if error.class == Class::Slow || error.is(error::IN_USE) =>
            {
                return self.keep_until_deletable(found, error);
            }
            deleted => deleted?,
        }
        self.take_step(Step::VerifyDeletion(name.clone()))?;
        let remaining = self.observed.remaining.as_ref();
        if remaining.is_some_and(|it| it.arn == *arn) {
            return self.deleting("AWS is deleting the load balancer");
        }
        self.delete_target_groups(LoadBalancerFate::Gone)?;
        let deleted = format!("Deleted load balancer {name}: {arn}");
        self.normal("Delete", "Deleted", deleted)?;
        Break(Stop::End(End::Deleted))
    }

    /// Ensures the listeners of a load balancer that AWS does not delete: until a person permits the deletion, traffic
    /// follows the nodes.
    fn keep_until_deletable(
        &self,
        found: &'a LoadBalancer,
        error: AwsError,
    ) -> Walk<Converged<'a>> {
        let error = self.with_protection_hint(error.needs_a_person(), &found.arn);
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
    fn end_without_load_balancer<T>(&self) -> Walk<T> {
        if self.observed.may_yet_appear() {
            return self.deleting(
                "AWS may still create the load balancer: the operator deletes it once AWS shows it",
            );
        }
        // AWS may leave a load balancer out of one list.
        if let Some(arn) = self.observed.arn() {
            self.take_step(Step::ReadTags(arn.into()))?;
            if self.observed.ownership.is_some() {
                return self.deleting(
                    "AWS shows the tags of the load balancer, but not the load balancer",
                );
            }
        }
        self.delete_target_groups(LoadBalancerFate::Gone)?;
        if let Some(arn) = self.observed.arn() {
            let name = &self.desired.name;
            let note = format!("AWS no longer shows load balancer {name}, whose ARN was {arn}");
            self.normal("Delete", "AlreadyDeleted", note)?;
        }
        Break(Stop::End(End::Deleted))
    }
}
