//! Takes the steps of a reconcile and records the answers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use qm_api::MyIngress;
use qm_api::my_ingress::Alb;
use qm_aws::{Aws, AwsError, Tags};
use qm_core::kind::HasReadyCondition as _;
use qm_runtime::WatchScope;
use qm_runtime::controller::Context;
use qm_runtime::error::{Class, Error, FORBIDDEN, Result};
use qm_runtime::outcome::Requeue;

use super::backends::Backends;
use super::build::Desired;
use super::observe::Observed;
use super::status::MyIngressReadiness;
use super::step::{EventType, Intent, Step};
use super::tags::TagOwnership;
use super::warnings::Warnings;

/// Error of a step.
#[derive(Debug)]
pub(crate) enum StepError {
    /// AWS rejected the step.
    Aws(AwsError),
    /// The apiserver failed, so the reconcile ends.
    Reconcile(Error),
}

impl From<AwsError> for StepError {
    fn from(error: AwsError) -> Self {
        Self::Aws(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Reconcile(error)
    }
}

/// Wraps the error of a read in the cluster. The runtime retries slowly after a missing permission, because no watch
/// shows when an administrator grants it.
pub(super) fn read_error(problem: String, error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.code == 403 => Error::other(
            Class::Slow,
            FORBIDDEN,
            format!("{problem}: {}", status.message),
        ),
        source => Error::Api { problem, source },
    }
}

/// Executor of steps, with AWS and the cached nodes.
pub(crate) struct Executor<A> {
    pub scope: WatchScope,
    pub aws: A,
    pub(crate) backends: Arc<Backends>,
    pub(crate) warnings: Warnings,
}

impl<A: Aws> Executor<A> {
    /// Takes the step and keeps its answer in `observed`.
    pub async fn execute(
        &self,
        cx: &mut Context<MyIngress>,
        desired: &Desired<'_>,
        observed: &mut Observed,
        step: &Step,
    ) -> Result<(), StepError> {
        let aws = &self.aws;
        match step {
            Step::ReadRegion => observed.region = aws.region().await?,
            Step::ReadAccount => observed.account = aws.account().await?,
            Step::FindLoadBalancer(name) => {
                observed.load_balancer = aws.find_load_balancer(name).await?;
            }
            Step::VerifyDeletion(name) => {
                observed.remaining = aws.find_load_balancer(name).await?;
            }
            Step::ReadTags(arn) => {
                let ownership = aws.find_tags(arn).await?;
                let ownership = ownership.map(|tags| Self::ownership(cx, desired, tags));
                observed.sibling = ownership.as_ref().and_then(|it| self.sibling(cx, it));
                observed.ownership = ownership;
            }
            Step::ReadOwnership(arns) => {
                let tags = aws.tags_of(arns).await?.into_iter();
                let owners = tags.map(|(arn, tags)| (arn, Self::ownership(cx, desired, tags)));
                observed.owners.0.extend(owners);
            }
            Step::ReadListeners(arn) => observed.listeners = aws.listeners(arn).await?,
            Step::ReadTargetGroups(arn) => observed.target_groups = aws.target_groups(arn).await?,
            Step::ListTargetGroups(prefix) => {
                observed.listed_groups = aws.target_groups_named(prefix).await?;
            }
            Step::FindTargetGroup(name) => {
                let group = aws.find_target_group(name).await?;
                let group = group.map(|group| (name.clone(), group));
                observed.found_groups.extend(group);
            }
            Step::ReadTargetHealth(group) => {
                let health = aws.target_health(group).await?;
                observed.health.insert(group.clone(), health);
            }
            Step::ReadNodes => observed.nodes = Some(self.backends.instances().await),
            Step::ReadService(port, name) => {
                let services: Api<Service> =
                    Api::namespaced(cx.client().clone(), &cx.key.namespace);
                let what = || format!("Service {name} could not be read");
                let service = services.get_opt(name).await;
                let service = service.map_err(|error| read_error(what(), error))?;
                observed.services.insert(*port, service);
            }

            Step::ConfirmOwner(_) => cx.confirm_owner().await?,
            Step::AddFinalizer => {
                cx.add_finalizer().await?;
                observed.object = Arc::clone(&cx.object);
            }
            Step::RecordIntent(intent) => Self::record(cx, desired, observed, intent).await?,
            Step::Emit(EventType::Normal, action, reason, note) => cx.event(action, reason, note),
            Step::Emit(EventType::Warning, action, reason, note) => {
                if self.warnings.insert(&cx.key, note) {
                    cx.warning(action, reason, note);
                }
            }

            Step::CreateLoadBalancer(load_balancer) => {
                let created = aws.create_load_balancer(load_balancer).await?;
                observed.draft.alb = Some(Alb {
                    arn: Some(created.arn.clone()),
                    ..observed.draft.alb.clone().unwrap_or_default()
                });
                observed.created = Some(created);
            }
            Step::AddTags(arn, tags) => aws.add_tags(arn, tags).await?,
            Step::RemoveTags(arn, keys) => aws.remove_tags(arn, keys).await?,
            Step::SetIpAddressType(arn, it) => aws.set_ip_address_type(arn, it).await?,
            Step::SetSubnets(arn, subnets) => aws.set_subnets(arn, subnets).await?,
            Step::SetSecurityGroups(arn, groups) => aws.set_security_groups(arn, groups).await?,
            Step::DeleteLoadBalancer(arn) => aws.delete_load_balancer(arn).await?,
            Step::CreateTargetGroup(port, group) => {
                let created = aws.create_target_group(group).await?;
                observed.created_groups.insert(*port, created);
            }
            Step::SetHealthCheck(group, path) => aws.set_health_check(group, path).await?,
            Step::RegisterTargets(group, targets) => aws.register_targets(group, targets).await?,
            Step::DeregisterTargets(group, targets) => {
                aws.deregister_targets(group, targets).await?;
            }
            Step::DeleteTargetGroup(group) => aws.delete_target_group(group).await?,
            Step::CreateListener(load_balancer, listener, tags) => {
                aws.create_listener(load_balancer, listener, tags).await?;
            }
            Step::ModifyListener(arn, listener) => aws.modify_listener(arn, listener).await?,
            Step::DeleteListener(arn) => aws.delete_listener(arn).await?,
        }
        Ok(())
    }

    fn ownership(cx: &Context<MyIngress>, desired: &Desired<'_>, tags: Tags) -> TagOwnership {
        let relation = desired.tags.ownership(&tags, |uid| cx.owner_exists(uid));
        TagOwnership { relation, tags }
    }

    /// Returns the other `MyIngress` that owns the load balancer, unless that `MyIngress` certainly does not exist.
    fn sibling(&self, cx: &Context<MyIngress>, ownership: &TagOwnership) -> Option<String> {
        let may_exist =
            |uid: &str, namespace: &str| cx.owner_exists(uid) || !self.scope.covers(namespace);
        ownership.sibling(may_exist).map(Into::into)
    }

    /// Writes the intent to the status, without changing the condition.
    async fn record(
        cx: &mut Context<MyIngress>,
        desired: &Desired<'_>,
        observed: &mut Observed,
        intent: &Intent,
    ) -> Result<()> {
        observed.draft = observed.draft_with(desired, intent);
        cx.status.alb.clone_from(&observed.draft.alb);
        cx.status.listeners.clone_from(&observed.draft.listeners);
        if cx.status.conditions.is_empty() {
            // The user should not wait for the end of the reconcile to see the first condition.
            let generation = cx.object.metadata.generation.unwrap_or_default();
            let creating = MyIngressReadiness::creating(None).outcome(Requeue::Poll);
            let (condition, now) = (creating.condition(), Time(observed.now));
            MyIngress::set_ready_condition(&mut cx.status, &condition, generation, now);
        }
        cx.write_status().await?;
        observed.object = Arc::clone(&cx.object);
        Ok(())
    }
}
