//! What there is with the names of what resources are to have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;

use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_api::{ConfigMapSync, MyApp, MyIngress};
use qm_aws::{Aws as _, AwsError, LoadBalancer, Tags};
use qm_core::conditions::{self, READY};
use qm_runtime::ownership::Owner;
use qm_runtime::{Key, Scope};
use serde::de::DeserializeOwned;

use super::find::{self, Source, Verdict};
use super::{Adopt, Found, Live, Thing, api};
use crate::commands::objects::pages;
use crate::commands::{RequestError, has_code, message};
use crate::controllers::config_map_sync::plan::{Destinations, Plan};
use crate::controllers::my_app::build::pod_name;
use crate::controllers::my_ingress::build;
use crate::controllers::my_ingress::tags::{OF_THE_CLUSTER, OwnershipTags};

/// How much is looked at at once.
const AT_ONCE: usize = 16;

/// Where a copy is to be.
struct Place<'a> {
    plan: &'a Plan,
    spec: &'a ConfigMapSyncSpec,
    owner: &'a Owner,
    namespace: String,
}

impl Adopt<'_> {
    /// All that there is, of the resources that are meant.
    pub(super) async fn look(&self) -> anyhow::Result<Vec<Found>> {
        let mut found = self.copies().await?;
        found.extend(self.pods().await?);
        found.extend(self.balancers().await?);
        Ok(found)
    }

    /// What is kept of the resources of a kind that are meant and stay, each with itself as an owner; and the UIDs of all.
    async fn resources<K, T>(
        &self,
        keep: impl Fn(&K) -> Option<T>,
    ) -> anyhow::Result<(Vec<(T, Owner)>, BTreeSet<String>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let named: Vec<_> = self
            .named
            .iter()
            .filter(|it| it.kind == K::kind(&()))
            .collect();
        if named.is_empty() && !self.named.is_empty() {
            return Ok(Default::default());
        }
        let api = match self.namespace {
            Some(namespace) => api::<K>(&self.client, namespace),
            None => Api::all(self.client.clone()),
        };
        let mut missing = named.clone();
        let kept = |object: K| {
            let name = object.name_any();
            missing.retain(|it| it.name != name);
            let meant = named.is_empty() || named.iter().any(|it| it.name == name);
            let owned = || Some((keep(&object)?, Owner::of(&object)?));
            let stays = object.meta().deletion_timestamp.is_none();
            (object.uid(), (meant && stays).then(owned).flatten())
        };
        let all = match pages(&api, kept).await {
            Ok(all) => all,
            // Its CRD is absent.
            Err(error) if has_code(&error, 404) => Vec::new(),
            Err(error) => {
                anyhow::bail!(
                    "the {} could not be listed: {}",
                    K::plural(&()),
                    RequestError::of_list(&error, self.namespace)
                )
            }
        };
        if let Some(named) = missing.first() {
            let place = self.namespace.map_or_else(String::new, |namespace| {
                format!(" in namespace {namespace}")
            });
            anyhow::bail!("there is no {named}{place}");
        }
        let (uids, kept): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        Ok((
            kept.into_iter().flatten().collect(),
            uids.into_iter().flatten().collect(),
        ))
    }

    /// What is where copies are to be.
    async fn copies(&self) -> anyhow::Result<Vec<Found>> {
        // Where Kubernetes itself lives nothing is offered.
        let planned = |sync: &ConfigMapSync| {
            Some((
                Plan::of(&sync.spec, &Scope::Cluster, false, None).ok()?,
                sync.spec.clone(),
            ))
        };
        let (syncs, uids) = self.resources(planned).await?;
        let mut namespaces: Vec<(String, BTreeMap<String, String>)> = Vec::new();
        if syncs.iter().any(|((plan, _), _)| plan.selects()) {
            let all: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let listed = pages(&all, |namespace| {
                (namespace.name_any(), namespace.labels().clone())
            })
            .await;
            namespaces = listed.map_err(|error| {
                anyhow::anyhow!("the namespaces could not be listed: {}", message(&error))
            })?;
        }
        let mut places: BTreeMap<&Key, Vec<_>> = BTreeMap::new();
        for ((plan, spec), owner) in &syncs {
            let named: Vec<String> = match &plan.to {
                Destinations::Named(names) => names.iter().cloned().collect(),
                Destinations::Selected { .. } => namespaces
                    .iter()
                    .filter(|(name, labels)| plan.reaches(name, Some(labels)))
                    .map(|(name, _)| name.clone())
                    .collect(),
            };
            let of = named.into_iter().map(|namespace| Place {
                plan,
                spec,
                owner,
                namespace,
            });
            places.entry(&plan.source).or_default().extend(of);
        }
        let read = async |(key, places): (&Key, Vec<_>)| {
            let source = api::<ConfigMap>(&self.client, &key.namespace)
                .get_opt(&key.name)
                .await;
            (
                Rc::<Source>::new(source.map_err(|error| message(&error))),
                places,
            )
        };
        // Sources may be many and large: each is kept for as long as its copies are looked at.
        let sources = stream::iter(places).map(read).buffered(AT_ONCE);
        let places = sources.flat_map(|(source, places)| {
            stream::iter(
                places
                    .into_iter()
                    .map(move |place| (Rc::clone(&source), place)),
            )
        });
        Ok(at_once(places, |(source, place)| self.copy(source, place, &uids)).await)
    }

    /// What is where this copy is to be.
    async fn copy(
        &self,
        source: Rc<Source>,
        place: Place<'_>,
        uids: &BTreeSet<String>,
    ) -> Option<Found> {
        let Place {
            plan,
            spec,
            owner,
            namespace,
        } = place;
        let what = format!("configmap {namespace}/{}", plan.name);
        let (thing, verdict) = match api::<ConfigMap>(&self.client, &namespace)
            .get_opt(&plan.name)
            .await
        {
            Ok(None) => return None,
            Ok(Some(live)) => {
                let verdict = find::copy(owner, spec, &live, &source, |uid| uids.contains(uid));
                (Thing::Copy(Live::of(&live)), verdict)
            }
            Err(error) => (Thing::Unknown, unseen(&message(&error))),
        };
        Some(Found::of::<ConfigMapSync>(owner, what, thing, verdict))
    }

    /// What has the names of Pods.
    async fn pods(&self) -> anyhow::Result<Vec<Found>> {
        let (apps, uids) = self.resources(|app: &MyApp| Some(app.clone())).await?;
        let uids = &uids;
        let look = |(app, owner): (MyApp, Owner)| async move {
            let name = pod_name(owner.name());
            let (thing, verdict) = match api::<Pod>(&self.client, owner.namespace())
                .get_opt(&name)
                .await
            {
                Ok(None) => return None,
                Ok(Some(live)) => {
                    let verdict = find::pod(&owner, &live, &app, |uid| uids.contains(uid));
                    (Thing::Pod(Live::of(&live)), verdict)
                }
                Err(error) => (Thing::Unknown, unseen(&message(&error))),
            };
            let what = format!("pod {}/{name}", owner.namespace());
            Some(Found::of::<MyApp>(&owner, what, thing, verdict))
        };
        Ok(at_once(stream::iter(apps), look).await)
    }

    /// What has the names of balancers. AWS is asked only for a `MyIngress` that is not well.
    async fn balancers(&self) -> anyhow::Result<Vec<Found>> {
        let ill = |ingress: &MyIngress| !is_well(ingress) && build::check(ingress).is_ok();
        let (ingresses, uids) = self
            .resources(|ingress| ill(ingress).then(|| ingress.clone()))
            .await?;
        if ingresses.is_empty() {
            return Ok(Vec::new());
        }
        let cluster = cluster_uid(&self.client).await?;
        let (cluster, uids) = (&cluster, &uids);
        let look = |(ingress, owner): (MyIngress, Owner)| async move {
            let marks = OwnershipTags {
                owner: &owner,
                cluster,
            };
            let wanted = build::desired(&ingress, &marks);
            let what = format!("load balancer {}", wanted.name);
            let (thing, verdict) = match self.look_for(&wanted.name).await {
                Ok(None) => return None,
                Ok(Some((live, tags))) => {
                    let verdict =
                        find::balancer(&marks, &live, &tags, &wanted, |uid| uids.contains(uid));
                    (Thing::Balancer(live.arn), verdict)
                }
                Err(error) => (Thing::Unknown, unseen(&error.to_string())),
            };
            Some(Found::of::<MyIngress>(&owner, what, thing, verdict))
        };
        Ok(at_once(stream::iter(ingresses), look).await)
    }

    async fn look_for(&self, name: &str) -> Result<Option<(LoadBalancer, Tags)>, AwsError> {
        let Some(live) = self.aws.find_load_balancer(name).await? else {
            return Ok(None);
        };
        Ok(self
            .aws
            .find_tags(&live.arn)
            .await?
            .map(|tags| (live, tags)))
    }
}

/// UID of the namespace that tells clusters apart.
async fn cluster_uid(client: &Client) -> anyhow::Result<String> {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let read = namespaces.get_metadata(OF_THE_CLUSTER).await;
    let read = read.map_err(|error| {
        anyhow::anyhow!(
            "namespace {OF_THE_CLUSTER} could not be read: {}",
            message(&error)
        )
    })?;
    read.metadata
        .uid
        .ok_or_else(|| anyhow::anyhow!("namespace {OF_THE_CLUSTER} has no UID"))
}

fn is_well(ingress: &MyIngress) -> bool {
    let Some(status) = &ingress.status else {
        return false;
    };
    conditions::get(&status.conditions, READY).is_some_and(|condition| condition.status == "True")
}

/// What `look` finds, many looks at once. What is ours is none of it.
async fn at_once<T, F>(items: impl Stream<Item = T>, look: impl FnMut(T) -> F) -> Vec<Found>
where
    F: Future<Output = Option<Found>>,
{
    let found = items.map(look).buffered(AT_ONCE);
    found
        .filter_map(async |found| found.filter(|found| found.verdict != Verdict::Settled))
        .collect()
        .await
}

fn unseen(why: &str) -> Verdict {
    Verdict::Leave(format!("it could not be looked at: {why}"))
}
