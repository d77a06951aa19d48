//! Finds the objects whose names the resources need.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;

use anyhow::Context as _;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Resource, ResourceExt};
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_api::{ConfigMapSync, MyApp, MyIngress};
use qm_aws::{Aws as _, AwsError, DesiredLoadBalancer, LoadBalancer, Tags};
use qm_core::conditions::{self, READY};
use qm_core::kind::Kind;
use qm_runtime::ownership::Owner;
use qm_runtime::{ObjectKey, WatchScope};
use serde::de::DeserializeOwned;

use super::Adopt;
use super::candidate::{Candidate, CandidateObject, ObjectVersion};
use super::classify::{self, CopySource};
use crate::commands::objects::pages;
use crate::commands::{FailedRequest, has_code, in_namespace, message};
use crate::controllers::config_map_sync::plan::{CopyPlan, Destinations};
use crate::controllers::my_app::build::pod_name;
use crate::controllers::my_ingress::build;
use crate::controllers::my_ingress::tags::{CLUSTER_NAMESPACE, OwnershipTags};

/// Maximum number of concurrent reads.
const CONCURRENCY: usize = 16;

struct PlannedSync {
    plan: CopyPlan,
    spec: ConfigMapSyncSpec,
    owner: Owner,
}

impl Adopt<'_> {
    pub(super) async fn discover(&self) -> anyhow::Result<Vec<Candidate>> {
        let mut candidates = self.copies().await?;
        candidates.extend(self.pods().await?);
        candidates.extend(self.load_balancers().await?);
        Ok(candidates)
    }

    /// Lists the resources of a kind. Returns those that the arguments name and that are not being deleted, and the UIDs
    /// of all.
    async fn owners<K>(&self) -> anyhow::Result<(Vec<(K, Owner)>, BTreeSet<String>)>
    where
        K: Kind + Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let named = self.args.owners.iter();
        let named: Vec<_> = named.filter(|it| it.kind == K::kind(&())).collect();
        if named.is_empty() && !self.args.owners.is_empty() {
            return Ok(Default::default());
        }
        let namespace = self.args.scope.namespace();
        let api = match namespace {
            Some(namespace) => self.api(namespace),
            None => Api::all(self.client.clone()),
        };
        let objects: Vec<K> = match pages(&api, |object| object).await {
            Ok(objects) => objects,
            // The CRD is not installed.
            Err(error) if has_code(&error, 404) => Vec::new(),
            Err(error) => {
                return Err(FailedRequest::of_list(&error, namespace))
                    .with_context(|| format!("the {} could not be listed", K::plural(&())));
            }
        };
        let uids = objects.iter().filter_map(ResourceExt::uid).collect();
        let names: BTreeSet<_> = objects.iter().map(ResourceExt::name_any).collect();
        if let Some(missing) = named.iter().find(|it| !names.contains(&it.name)) {
            anyhow::bail!("there is no {missing}{}", in_namespace(namespace));
        }
        let owner = |object: K| {
            let is_meant = named.is_empty() || named.iter().any(|it| it.name == object.name_any());
            let is_deleting = object.meta().deletion_timestamp.is_some();
            let owner = Owner::of(&object).filter(|_| is_meant && !is_deleting)?;
            Some((object, owner))
        };
        Ok((objects.into_iter().filter_map(owner).collect(), uids))
    }

    async fn copies(&self) -> anyhow::Result<Vec<Candidate>> {
        let (syncs, uids) = self.owners::<ConfigMapSync>().await?;
        let plan = |(sync, owner): (ConfigMapSync, Owner)| {
            // Copies in Kubernetes' own namespaces are left out: users who allow such copies adopt each with its own
            // annotation.
            let plan = CopyPlan::of(&sync.spec, &WatchScope::Cluster, false, None).ok()?;
            let spec = sync.spec;
            Some(PlannedSync { plan, spec, owner })
        };
        let syncs: Vec<_> = syncs.into_iter().filter_map(plan).collect();
        let mut namespaces = Vec::new();
        if syncs.iter().any(|sync| sync.plan.selects()) {
            let api: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let listed = pages(&api, |it| (it.name_any(), it.labels().clone())).await;
            let listed = listed.map_err(FailedRequest::from);
            namespaces = listed.context("the namespaces could not be listed")?;
        }
        // Sources may be many and large: each is kept only while its copies are read.
        let sources = stream::iter(&syncs).map(|sync| async move {
            let ObjectKey { namespace, name } = &sync.plan.source;
            let source = self.api::<ConfigMap>(namespace).get_opt(name).await;
            let source: CopySource = source.map_err(|error| message(&error));
            (sync, Rc::new(source))
        });
        let copies = sources.buffered(CONCURRENCY).flat_map(|(sync, source)| {
            let destinations = destinations(&sync.plan, &namespaces);
            stream::iter(destinations).map(move |namespace| (sync, Rc::clone(&source), namespace))
        });
        let uids = &uids;
        let candidates = copies.map(|(sync, source, namespace)| async move {
            let PlannedSync { plan, spec, owner } = sync;
            let read = self.api::<ConfigMap>(&namespace).get_opt(&plan.name).await;
            let found = |copy: ConfigMap| {
                let exists = |uid: &str| uids.contains(uid);
                let adoptability = classify::copy(owner, spec, &copy, &source, exists);
                let version = ObjectVersion::of(&copy);
                (CandidateObject::Copy(version), adoptability)
            };
            let read = read.map(|it| it.map(found));
            let title = format!("configmap {namespace}/{}", plan.name);
            Candidate::new(owner, title, read.map_err(|error| message(&error)))
        });
        Ok(collect(candidates).await)
    }

    async fn pods(&self) -> anyhow::Result<Vec<Candidate>> {
        let (apps, uids) = self.owners::<MyApp>().await?;
        let uids = &uids;
        let candidates = stream::iter(apps).map(|(app, owner)| async move {
            let (namespace, name) = (owner.namespace(), pod_name(owner.name()));
            let read = self.api::<Pod>(namespace).get_opt(&name).await;
            let found = |pod: Pod| {
                let adoptability = classify::pod(&owner, &pod, &app, |uid| uids.contains(uid));
                (CandidateObject::Pod(ObjectVersion::of(&pod)), adoptability)
            };
            let read = read.map(|it| it.map(found));
            let title = format!("pod {namespace}/{name}");
            Candidate::new(&owner, title, read.map_err(|error| message(&error)))
        });
        Ok(collect(candidates).await)
    }

    /// Calls AWS only for a `MyIngress` that is valid and not ready.
    async fn load_balancers(&self) -> anyhow::Result<Vec<Candidate>> {
        let (mut ingresses, uids) = self.owners::<MyIngress>().await?;
        ingresses.retain(|(ingress, _)| !is_ready(ingress) && build::check(ingress).is_ok());
        if ingresses.is_empty() {
            return Ok(Vec::new());
        }
        let (cluster, uids) = (&self.cluster_uid().await?, &uids);
        let candidates = stream::iter(ingresses).map(|(ingress, owner)| async move {
            let owner = &owner;
            let ownership = OwnershipTags { owner, cluster };
            let desired = build::desired(&ingress, &ownership);
            let found = |(live, tags): (LoadBalancer, Tags)| {
                let exists = |uid: &str| uids.contains(uid);
                let adoptability =
                    classify::load_balancer(&ownership, &live, &tags, &desired, exists);
                (CandidateObject::LoadBalancer(live.arn), adoptability)
            };
            let read = self.load_balancer(&desired).await;
            let read = read.map(|it| it.map(found));
            let title = format!("load balancer {}", desired.name);
            Candidate::new(owner, title, read.map_err(|error| error.to_string()))
        });
        Ok(collect(candidates).await)
    }

    async fn load_balancer(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> Result<Option<(LoadBalancer, Tags)>, AwsError> {
        let Some(live) = self.aws.find_load_balancer(&desired.name).await? else {
            return Ok(None);
        };
        let tags = self.aws.find_tags(&live.arn).await?;
        Ok(tags.map(|tags| (live, tags)))
    }

    /// Returns the UID by which the operator's tags tell clusters apart.
    async fn cluster_uid(&self) -> anyhow::Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = api.get_metadata(CLUSTER_NAMESPACE).await;
        let namespace = namespace.map_err(FailedRequest::from);
        let namespace = namespace
            .with_context(|| format!("namespace {CLUSTER_NAMESPACE} could not be read"))?;
        let uid = namespace.metadata.uid;
        uid.with_context(|| format!("namespace {CLUSTER_NAMESPACE} has no UID"))
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Returns the namespaces of the copies: those that the plan names, or those of `namespaces` whose labels the plan
/// selects.
fn destinations(plan: &CopyPlan, namespaces: &[(String, BTreeMap<String, String>)]) -> Vec<String> {
    if let Destinations::Named(names) = &plan.to {
        return names.iter().cloned().collect();
    }
    let reached = namespaces
        .iter()
        .filter(|(name, labels)| plan.reaches(name, Some(labels)));
    reached.map(|(name, _)| name.clone()).collect()
}

fn is_ready(ingress: &MyIngress) -> bool {
    let conditions = ingress.status.as_ref().map(|status| &status.conditions);
    let ready = conditions.and_then(|conditions| conditions::get(conditions, READY));
    ready.is_some_and(|condition| condition.status == "True")
}

async fn collect(
    candidates: impl Stream<Item = impl Future<Output = Option<Candidate>>>,
) -> Vec<Candidate> {
    let candidates = candidates.buffered(CONCURRENCY);
    candidates.filter_map(async |it| it).collect().await
}
