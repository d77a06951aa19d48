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

use self::find::{Content, Verdict};
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
    Copy(Live),
    Pod(Live),
    Balancer(String),
    /// It could not be looked at.
    Unknown,
}

/// The very version of an object that was looked at. Its content is not kept: there may be many.
struct Live {
    namespace: String,
    name: String,
    uid: Option<String>,
    version: Option<String>,
}

impl Live {
    fn of(object: &impl ResourceExt) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid(),
            version: object.resource_version(),
        }
    }
}

/// Shows what there is in the cluster that is called so, and hands it over if that is asked for.
///
/// # Errors
/// The resources themselves cannot be read.
pub async fn run(client: Client, called: &str, args: &AdoptArgs, out: &mut Paper) -> anyhow::Result<ExitCode> {
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
    if !found.is_empty() {
        out.line(format!("Cluster: {called}\n"))?;
    }
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
        let command = args.scope.cluster.command(&format!("quartermaster adopt --yes{place}"));
        out.line(format!("{can} be handed over; to do so: {command}"))?;
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
    /// What is kept of the resources of a kind that stay, each with itself as an owner; and the UIDs of all.
    async fn resources<K, T>(
        &self,
        keep: impl Fn(&K) -> Option<T>,
    ) -> anyhow::Result<(Vec<(T, Owner)>, BTreeSet<String>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api = match self.namespace {
            Some(namespace) => api::<K>(&self.client, namespace),
            None => Api::all(self.client.clone()),
        };
        let stays = |object: &K| object.meta().deletion_timestamp.is_none();
        let kept = |object: K| {
            let owned = || Some((keep(&object)?, Owner::of(&object)?));
            (object.uid(), stays(&object).then(owned).flatten())
        };
        let all = match pages(&api, kept).await {
            Ok(all) => all,
            // Its CRD is absent.
            Err(error) if is(&error, 404) => Vec::new(),
            Err(error) => anyhow::bail!("the {} could not be listed: {}", K::plural(&()), words(&error)),
        };
        let (uids, kept): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        Ok((kept.into_iter().flatten().collect(), uids.into_iter().flatten().collect()))
    }

    /// What is where copies are to be.
    async fn copies(&self) -> anyhow::Result<Vec<Found>> {
        // Where Kubernetes itself lives nothing is offered.
        let plan = |sync: &ConfigMapSync| Plan::of(&sync.spec, &Scope::Cluster, false).ok();
        let (plans, uids) = self.resources(plan).await?;
        let mut namespaces: Vec<(String, BTreeMap<String, String>)> = Vec::new();
        if plans.iter().any(|(plan, _)| plan.selects()) {
            let all: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let listed = pages(&all, |namespace| (namespace.name_any(), namespace.labels().clone())).await;
            namespaces =
                listed.map_err(|error| anyhow::anyhow!("the namespaces could not be listed: {}", words(&error)))?;
        }
        let wanted: BTreeSet<&Key> = plans.iter().map(|(plan, _)| &plan.source).collect();
        let read = async |key: &Key| {
            let source = api::<ConfigMap>(&self.client, &key.namespace).get_opt(&key.name).await;
            // Who may not read it is told less.
            (key.clone(), source.ok().flatten().map(|source| Content::of(&source)))
        };
        let sources: HashMap<_, _> = stream::iter(wanted).map(read).buffered(AT_ONCE).collect().await;
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
                        Some(found(Thing::Copy(Live::of(&live)), verdict, &owner))
                    }
                    Err(error) => Some(found(Thing::Unknown, unseen(&words(&error)), &owner)),
                }
            }
        };
        let places: Vec<_> = places.collect();
        Ok(stream::iter(places)
            .map(look)
            .buffered(AT_ONCE)
            .filter_map(async |found| found.filter(to_be_told))
            .collect()
            .await)
    }

    /// What has the names of Pods.
    async fn pods(&self) -> anyhow::Result<Vec<Found>> {
        let (apps, uids) = self.resources(|_: &MyApp| Some(())).await?;
        let uids = &uids;
        let look = |((), owner): ((), Owner)| async move {
            let name = pod_name(owner.name());
            let (thing, verdict) = match api::<Pod>(&self.client, owner.namespace()).get_opt(&name).await {
                Ok(None) => return None,
                Ok(Some(live)) => {
                    let verdict = find::pod(&owner, &live, |uid| uids.contains(uid));
                    (Thing::Pod(Live::of(&live)), verdict)
                }
                Err(error) => (Thing::Unknown, unseen(&words(&error))),
            };
            let what = format!("pod {}/{name}", owner.namespace());
            Some(Found { of: title::<MyApp>(&owner), what, owner, thing, verdict })
        };
        Ok(stream::iter(apps)
            .map(look)
            .buffered(AT_ONCE)
            .filter_map(async |found| found.filter(to_be_told))
            .collect()
            .await)
    }

    /// What has the names of balancers. AWS is asked only for a `MyIngress` that is not well.
    async fn balancers(&self) -> anyhow::Result<Vec<Found>> {
        let ill = |ingress: &MyIngress| !is_well(ingress) && build::check(ingress).is_ok();
        let (ingresses, uids) = self.resources(|ingress| ill(ingress).then(|| ingress.clone())).await?;
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
        Ok(stream::iter(ingresses)
            .map(look)
            .buffered(AT_ONCE)
            .filter_map(async |found| found.filter(to_be_told))
            .collect()
            .await)
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
            Thing::Copy(live) => self.mark::<ConfigMap>(live, consent).await,
            Thing::Pod(live) => {
                self.mark::<Pod>(live, consent).await?;
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

    async fn mark<K>(&self, live: &Live, mut metadata: Value) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        metadata["uid"] = live.uid.clone().into();
        metadata["resourceVersion"] = live.version.clone().into();
        patch::<K>(&self.client, &live.namespace, &live.name, metadata).await
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

/// What is ours is none of it.
fn to_be_told(found: &Found) -> bool {
    found.verdict != Verdict::Settled
}

fn unseen(why: &str) -> Verdict {
    Verdict::Leave(format!("it could not be looked at: {why}"))
}
