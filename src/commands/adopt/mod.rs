//! `quartermaster adopt`: finds what the documents' programs left without a mark ([`find`] says whose something is), from the
//! specs of our resources and what is there, whether the operator runs or not; and hands it over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::process::ExitCode;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Patch, PatchParams};
use kube::core::{NamespaceResourceScope, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::find::Verdict;
use super::objects::pages;
use super::paper::{Cell, Paper, count};
use super::{MANAGER, is, words};
use crate::api::common::REQUESTED_AT;
use crate::api::{ConfigMapSync, MyApp, MyIngress};
use crate::cli::Timings;
use crate::cli::commands::AdoptArgs;
use crate::cloud::elb::Elb;
use crate::cloud::{Balancers as _, Fault, Tags};
use crate::controllers::config_map_sync::plan::{Destinations, Plan};
use crate::controllers::my_app::build::pod_name;
use crate::controllers::my_ingress::tags::Mark;
use crate::controllers::my_ingress::{OF_THE_CLUSTER, build};
use crate::runtime::conditions::{self, READY};
use crate::runtime::leader::Fence;
use crate::runtime::metrics::Metrics;
use crate::runtime::ownership::{ADOPT_BY, Owner};
use crate::runtime::{Key, Scope};

pub mod find;

/// How much is looked at at once.
const AT_ONCE: usize = 16;

/// Something with the name of what a resource is to have.
struct Found {
    /// The resource, as people read it.
    of: String,
    /// What it is, as people read it.
    what: String,
    owner: Owner,
    thing: Thing,
    verdict: Verdict,
}

/// How it is handed over.
enum Thing {
    Copy(Box<ConfigMap>),
    Pod(Box<Pod>),
    Balancer(String),
    /// It could not be looked at.
    Unknown,
}

/// Shows what there is, and hands it over if that is asked for.
///
/// # Errors
/// The resources themselves cannot be read.
pub async fn run(client: Client, args: &AdoptArgs, out: &mut Paper) -> anyhow::Result<ExitCode> {
    let adopt = Adopt {
        namespace: args.scope.namespace(),
        // No lease is needed: what is done is what its owner may do by hand.
        cloud: Elb::new(Fence::open(), Metrics::new(), &Timings::default()),
        client,
    };
    let mut found = adopt.copies().await?;
    found.extend(adopt.pods().await?);
    found.extend(adopt.balancers().await?);
    let offers: Vec<_> = found.iter().filter(|it| matches!(it.verdict, Verdict::Offer(_))).collect();
    let mut failed = found.iter().any(|it| matches!(it.thing, Thing::Unknown));
    if offers.is_empty() {
        out.line("There is nothing to hand over.")?;
    } else {
        let row = |it: &&Found| {
            let Verdict::Offer(note) = &it.verdict else { return Vec::new() };
            vec![Cell::from(&it.of), Cell::from(&it.what), Cell::from(note)]
        };
        out.table(&["TO", "WHAT", "NOTE"], &offers.iter().map(row).collect::<Vec<_>>())?;
    }
    let left = found.iter().filter_map(|it| match &it.verdict {
        Verdict::Leave(why) => Some(format!("  {}, which {} is to have: {why}", it.what, it.of)),
        _ => None,
    });
    for (number, line) in left.enumerate() {
        if number == 0 {
            out.line("\nLeft alone:")?;
        }
        out.line(line)?;
    }
    if offers.is_empty() {
        return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    out.line("")?;
    if !args.yes {
        let place = adopt.namespace.map_or_else(String::new, |namespace| format!(" -n {namespace}"));
        let can = count(offers.len(), "thing can", "things can");
        out.line(format!("{can} be handed over; to do so: quartermaster adopt --yes{place}"))?;
        return Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    for offer in offers {
        let done = adopt.hand_over(offer).await;
        failed |= done.is_err();
        match done {
            Ok(()) => out.line(format!("handed over to {}: {}", offer.of, offer.what))?,
            Err(why) => out.line(format!("NOT handed over to {}: {}: {why}", offer.of, offer.what))?,
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Adopt<'a> {
    client: Client,
    namespace: Option<&'a str>,
    cloud: Elb,
}

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

fn title<K: Resource<DynamicType = ()>>(owner: &Owner) -> String {
    format!("{}/{} in {}", K::kind(&()).to_lowercase(), owner.name(), owner.namespace())
}

impl Adopt<'_> {
    /// The resources of a kind that stay, each with itself as an owner; and the UIDs of all.
    async fn resources<K>(&self) -> anyhow::Result<(Vec<(K, Owner)>, BTreeSet<String>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api = match self.namespace {
            Some(namespace) => api::<K>(&self.client, namespace),
            None => Api::all(self.client.clone()),
        };
        let all = match pages(&api, |object| object).await {
            Ok(all) => all,
            // Its CRD is absent.
            Err(error) if is(&error, 404) => Vec::new(),
            Err(error) => anyhow::bail!("the {} could not be listed: {}", K::plural(&()), words(&error)),
        };
        let uids = all.iter().filter_map(ResourceExt::uid).collect();
        let stays = all.into_iter().filter(|object| object.meta().deletion_timestamp.is_none());
        Ok((stays.filter_map(|object| Owner::of(&object).map(|owner| (object, owner))).collect(), uids))
    }

    /// What is where copies are to be.
    async fn copies(&self) -> anyhow::Result<Vec<Found>> {
        let (syncs, uids) = self.resources::<ConfigMapSync>().await?;
        // Where Kubernetes itself lives nothing is offered.
        let plans: Vec<_> = syncs
            .into_iter()
            .filter_map(|(sync, owner)| Some((Plan::of(&sync.spec, &Scope::Cluster, false).ok()?, owner)))
            .collect();
        let mut namespaces: Vec<(String, BTreeMap<String, String>)> = Vec::new();
        if plans.iter().any(|(plan, _)| plan.selects()) {
            let all: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let listed = pages(&all, |namespace| (namespace.name_any(), namespace.labels().clone())).await;
            namespaces =
                listed.map_err(|error| anyhow::anyhow!("the namespaces could not be listed: {}", words(&error)))?;
        }
        let mut sources: HashMap<Key, Option<ConfigMap>> = HashMap::new();
        for (plan, _) in &plans {
            if !sources.contains_key(&plan.source) {
                let source = api::<ConfigMap>(&self.client, &plan.source.namespace).get_opt(&plan.source.name).await;
                // Who may not read it is told less.
                sources.insert(plan.source.clone(), source.ok().flatten());
            }
        }
        let places = plans.iter().flat_map(|(plan, owner)| {
            let named: Vec<String> = match &plan.to {
                Destinations::Named(names) => names.iter().cloned().collect(),
                Destinations::Selected { .. } => namespaces
                    .iter()
                    .filter(|(name, labels)| plan.reaches(name, Some(labels)))
                    .map(|(name, _)| name.clone())
                    .collect(),
            };
            named.into_iter().map(move |namespace| (plan, owner, namespace))
        });
        let (sources, uids) = (&sources, &uids);
        let look = |(plan, owner, namespace): (&Plan, &Owner, String)| {
            let (plan, owner) = (plan.clone(), owner.clone());
            async move {
                let live = api::<ConfigMap>(&self.client, &namespace).get_opt(&plan.name).await;
                let what = format!("configmap {namespace}/{}", plan.name);
                let source = sources.get(&plan.source).and_then(Option::as_ref);
                let found = |thing, verdict, owner: &Owner| Found {
                    of: title::<ConfigMapSync>(owner),
                    what: what.clone(),
                    owner: owner.clone(),
                    thing,
                    verdict,
                };
                match live {
                    Ok(None) => None,
                    Ok(Some(live)) => {
                        let verdict = find::copy(&owner, &live, source, |uid| uids.contains(uid));
                        Some(found(Thing::Copy(Box::new(live)), verdict, &owner))
                    }
                    Err(error) => Some(found(Thing::Unknown, unseen(&words(&error)), &owner)),
                }
            }
        };
        let places: Vec<_> = places.collect();
        Ok(stream::iter(places).map(look).buffered(AT_ONCE).filter_map(async |found| found).collect().await)
    }

    /// What has the names of Pods.
    async fn pods(&self) -> anyhow::Result<Vec<Found>> {
        let (apps, uids) = self.resources::<MyApp>().await?;
        let uids = &uids;
        let look = |(_, owner): (MyApp, Owner)| async move {
            let name = pod_name(owner.name());
            let (thing, verdict) = match api::<Pod>(&self.client, owner.namespace()).get_opt(&name).await {
                Ok(None) => return None,
                Ok(Some(live)) => {
                    let verdict = find::pod(&owner, &live, |uid| uids.contains(uid));
                    (Thing::Pod(Box::new(live)), verdict)
                }
                Err(error) => (Thing::Unknown, unseen(&words(&error))),
            };
            let what = format!("pod {}/{name}", owner.namespace());
            Some(Found { of: title::<MyApp>(&owner), what, owner, thing, verdict })
        };
        Ok(stream::iter(apps).map(look).buffered(AT_ONCE).filter_map(async |found| found).collect().await)
    }

    /// What has the names of balancers. AWS is asked only for a `MyIngress` that is not well.
    async fn balancers(&self) -> anyhow::Result<Vec<Found>> {
        let (ingresses, uids) = self.resources::<MyIngress>().await?;
        let ingresses: Vec<_> =
            ingresses.into_iter().filter(|(ingress, _)| !is_well(ingress) && build::check(ingress).is_ok()).collect();
        if ingresses.is_empty() {
            return Ok(Vec::new());
        }
        let cluster = cluster_uid(&self.client).await?;
        let (cluster, uids) = (&cluster, &uids);
        let look = |(ingress, owner): (MyIngress, Owner)| async move {
            let mark = Mark { owner: &owner, cluster };
            let wanted = build::wanted(&ingress, &mark);
            let of = title::<MyIngress>(&owner);
            let what = format!("load balancer {}", wanted.name);
            let (thing, verdict) = match self.look_for(&wanted.name).await {
                Ok(None) => return None,
                Ok(Some((live, tags))) => {
                    let verdict = find::balancer(&mark, &live, &tags, &wanted, |uid| uids.contains(uid));
                    (Thing::Balancer(live.arn), verdict)
                }
                Err(fault) => (Thing::Unknown, unseen(&fault.to_string())),
            };
            Some(Found { of, what, owner, thing, verdict })
        };
        Ok(stream::iter(ingresses).map(look).buffered(AT_ONCE).filter_map(async |found| found).collect().await)
    }

    async fn look_for(&self, name: &str) -> Result<Option<(crate::cloud::Balancer, Tags)>, Fault> {
        let Some(live) = self.cloud.find(name).await? else { return Ok(None) };
        Ok(self.cloud.tags(&live.arn).await?.map(|tags| (live, tags)))
    }

    /// Sets the mark, on the very version that was looked at, and has its resource looked at where no watch tells of that.
    async fn hand_over(&self, found: &Found) -> Result<(), String> {
        let path = found.owner.path();
        let consent = json!({ "annotations": { ADOPT_BY: path } });
        match &found.thing {
            Thing::Copy(live) => self.mark(live.as_ref(), consent).await,
            Thing::Pod(live) => {
                self.mark(live.as_ref(), consent).await?;
                self.wake::<MyApp>(&found.owner).await
            }
            Thing::Balancer(arn) => {
                let tags: Tags = [(ADOPT_BY.to_owned(), path)].into();
                self.cloud.add_tags(arn, &tags).await.map_err(|fault| fault.to_string())?;
                self.wake::<MyIngress>(&found.owner).await
            }
            Thing::Unknown => Err("it could not be looked at".into()),
        }
    }

    async fn mark<K>(&self, live: &K, mut metadata: Value) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        metadata["uid"] = live.uid().into();
        metadata["resourceVersion"] = live.resource_version().into();
        patch::<K>(&self.client, &live.namespace().unwrap_or_default(), &live.name_any(), metadata).await
    }

    async fn wake<K>(&self, owner: &Owner) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let now = jiff::Timestamp::now().to_string();
        let metadata = json!({ "uid": owner.uid(), "annotations": { REQUESTED_AT: now } });
        let woken = patch::<K>(&self.client, owner.namespace(), owner.name(), metadata).await;
        woken.map_err(|why| format!("it is marked, but the operator is not told, and looks by itself later: {why}"))
    }
}

async fn patch<K>(client: &Client, namespace: &str, name: &str, metadata: Value) -> Result<(), String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    match api::<K>(client, namespace).patch_metadata(name, &parameters, &patch).await {
        Ok(_) => Ok(()),
        Err(error) if is(&error, 409) => Err("it has changed since it was looked at: run this again".into()),
        Err(error) => Err(words(&error)),
    }
}

/// UID of the namespace that tells clusters apart.
async fn cluster_uid(client: &Client) -> anyhow::Result<String> {
    let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let read = namespaces.get_metadata(OF_THE_CLUSTER).await;
    let read =
        read.map_err(|error| anyhow::anyhow!("namespace {OF_THE_CLUSTER} could not be read: {}", words(&error)))?;
    read.metadata.uid.ok_or_else(|| anyhow::anyhow!("namespace {OF_THE_CLUSTER} has no UID"))
}

fn is_well(ingress: &MyIngress) -> bool {
    let Some(status) = &ingress.status else { return false };
    conditions::get(&status.conditions, READY).is_some_and(|condition| condition.status == "True")
}

fn unseen(why: &str) -> Verdict {
    Verdict::Leave(format!("it could not be looked at: {why}"))
}
