//! Takes the steps of a reconcile and keeps the answers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::MyIngress;
use qm_api::my_ingress::{Alb, FINALIZER, MyIngressStatus};
use qm_aws::{Aws, AwsError, Tags};
use qm_runtime::events::Events;
use qm_runtime::owners::{Owners, Unconfirmed};
use qm_runtime::reconciler::{Class, Failure};
use qm_runtime::written::Written;
use qm_runtime::{Scope, finalizer};

use super::backends::Backends;
use super::build::Desired;
use super::observe::Observed;
use super::status::MyIngressReadiness;
use super::step::{EventType, Intent, Step};
use super::tags::{OF_THE_CLUSTER, Ownership, OwnershipTags};

/// The field manager.
const MANAGER: &str = "quartermaster/myingress";

#[derive(Debug, thiserror::Error)]
pub enum MyIngressError {
    #[error(transparent)]
    Aws(#[from] AwsError),
    /// The `MyIngress` may no longer exist.
    #[error(transparent)]
    Owner(#[from] Unconfirmed),
    #[error("namespace {OF_THE_CLUSTER}, whose UID tells clusters apart, could not be read: {0}")]
    ReadCluster(#[source] kube::Error),
    #[error("Service {0} could not be read: {1}")]
    ReadService(String, #[source] kube::Error),
    #[error("the status or the finalizer could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for MyIngressError {
    fn class(&self) -> Class {
        match self {
            Self::Aws(error) => error.class(),
            Self::ReadCluster(kube::Error::Api(status))
            | Self::ReadService(_, kube::Error::Api(status))
                if status.code == 403 =>
            {
                Class::Slow
            }
            Self::Owner(unconfirmed) => unconfirmed.class(),
            Self::ReadCluster(error) | Self::ReadService(_, error) | Self::WriteStatus(error) => {
                error.class()
            }
        }
    }
}

/// The effects at the edge: AWS, the apiserver, the caches and Events.
pub(crate) struct Executor<A> {
    pub client: Client,
    pub scope: Scope,
    pub aws: A,
    pub ingresses: Owners<MyIngress>,
    pub backends: Arc<Backends>,
    pub events: Events,
    pub own_writes: Written<MyIngress>,
}

impl<A: Aws> Executor<A> {
    /// Takes the step and keeps its answer in `observed`.
    pub async fn execute(
        &self,
        desired: &Desired<'_>,
        observed: &mut Observed,
        step: &Step,
    ) -> Result<(), MyIngressError> {
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
                let ownership = ownership.map(|tags| self.ownership(desired, tags));
                observed.sibling = ownership.as_ref().and_then(|it| self.sibling(it));
                observed.ownership = ownership;
            }
            Step::ReadOwnership(arns) => {
                let tags = aws.tags_of(arns).await?.into_iter();
                let owners = tags.map(|(arn, tags)| (arn, self.ownership(desired, tags)));
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
                let namespace = desired.tags.owner.namespace();
                let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
                let service = services.get_opt(name).await;
                let service =
                    service.map_err(|error| MyIngressError::ReadService(name.clone(), error))?;
                observed.services.insert(*port, service);
            }

            Step::ConfirmOwner(_) => self.ingresses.confirm(desired.tags.owner).await?,
            Step::AddFinalizer => {
                let (api, object) = (self.api(&observed.object), Arc::clone(&observed.object));
                let put = finalizer::put(&self.own_writes, &api, MANAGER, object, FINALIZER);
                observed.object = put.await.map_err(MyIngressError::WriteStatus)?;
            }
            Step::RemoveFinalizer => {
                let (api, object) = (self.api(&observed.object), observed.object.as_ref());
                let taken = finalizer::take(&api, MANAGER, object, FINALIZER).await;
                taken.map_err(MyIngressError::WriteStatus)?;
            }
            Step::RecordIntent(intent) => self.record(desired, observed, intent).await?,
            Step::Emit(kind, action, reason, note) => {
                let (is_normal, object) = (*kind == EventType::Normal, &observed.object);
                let (object, note) = (object.object_ref(&()), note.clone());
                self.events
                    .standing(is_normal, object, action, reason, note);
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

    fn api(&self, ingress: &MyIngress) -> Api<MyIngress> {
        let namespace = ingress.namespace().unwrap_or_default();
        Api::namespaced(self.client.clone(), &namespace)
    }

    fn ownership(&self, desired: &Desired<'_>, tags: Tags) -> Ownership {
        let claim = desired.tags.claim(&tags, |uid| self.ingresses.lives(uid));
        Ownership { claim, tags }
    }

    /// Returns the other `MyIngress` that owns the load balancer, if that one may exist.
    fn sibling(&self, ownership: &Ownership) -> Option<String> {
        let may_exist =
            |uid: &str, namespace: &str| self.ingresses.lives(uid) || !self.scope.covers(namespace);
        OwnershipTags::sibling(ownership, may_exist).map(Into::into)
    }

    /// Writes the intent to the status, whose condition stays.
    async fn record(
        &self,
        desired: &Desired<'_>,
        observed: &mut Observed,
        intent: &Intent,
    ) -> Result<(), MyIngressError> {
        observed.draft = observed.draft_with(desired, intent);
        let (object, draft) = (&observed.object, &observed.draft);
        let mut status = object.status.clone().unwrap_or_default();
        status.alb.clone_from(&draft.alb);
        status.listeners.clone_from(&draft.listeners);
        if status.conditions.is_empty() {
            // The first condition need not wait for the end of the reconcile.
            let generation = object.metadata.generation.unwrap_or_default();
            let creating = MyIngressReadiness::creating(draft.alb.clone());
            let now = Time(observed.now);
            status = creating.status(Some(&status), &draft.listeners, generation, now);
        }
        if object.status.as_ref() != Some(&status) {
            let written = self.write_status(object, &status).await?;
            observed.object = written.ok_or(Unconfirmed::Gone)?;
        }
        Ok(())
    }

    /// Writes the status, unless the object has it. Returns the object as written, unless it no longer exists.
    pub async fn write_status(
        &self,
        object: &MyIngress,
        status: &MyIngressStatus,
    ) -> Result<Option<Arc<MyIngress>>, MyIngressError> {
        let api = self.api(object);
        let written = self.own_writes.status(&api, MANAGER, object, status).await;
        written.map_err(MyIngressError::WriteStatus)
    }
}
