//! `quartermaster adopt`: finds what the documents' programs left without a mark, from the specs of our resources and what is
//! there ([`look`]), whether the operator runs or not; says whose it is ([`find`]) and what may be handed over ([`offers`]);
//! and hands it over.

use std::fmt::Debug;
use std::process::ExitCode;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::{MyApp, MyIngress};
use qm_aws::elb::Elb;
use qm_aws::{Aws as _, Tags};
use qm_core::REQUESTED_AT;
use qm_runtime::leader::Fence;
use qm_runtime::metrics::Metrics;
use qm_runtime::ownership::{ADOPT_BY, Owner};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::find::Verdict;
use super::printer::{Printer, count};
use super::{MANAGER, has_code, message};
use crate::cli::commands::{AdoptArgs, Named};

pub mod find;
mod look;
mod offers;

/// Something with the name of what a resource is to have.
struct Found {
    resource: Named,
    /// The same as people read it, with its namespace.
    of: String,
    /// What it is, as people read it.
    what: String,
    owner: Owner,
    thing: Thing,
    verdict: Verdict,
}

impl Found {
    /// What the resource `owner` of kind `K` is to have.
    fn of<K: Resource<DynamicType = ()>>(
        owner: &Owner,
        what: String,
        thing: Thing,
        verdict: Verdict,
    ) -> Self {
        let resource = Named {
            kind: K::kind(&()).into_owned(),
            name: owner.name().to_owned(),
        };
        let of = format!("{resource} in {}", owner.namespace());
        Self {
            resource,
            of,
            what,
            owner: owner.clone(),
            thing,
            verdict,
        }
    }
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
pub async fn run(
    client: Client,
    called: &str,
    args: &AdoptArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let adopt = Adopt {
        namespace: args.scope.namespace(),
        named: &args.resources,
        // No lease is needed: what is done is what its owner may do by hand.
        aws: Elb::new(Fence::open(), Metrics::new(), &qm_aws::Timings::default()),
        client,
    };
    let mut found = adopt.look().await?;
    let mut failed = found.iter().any(|it| {
        matches!(
            (&it.thing, &it.verdict),
            (Thing::Unknown, _) | (_, Verdict::Unsure(_))
        )
    });
    offers::contest(&mut found);
    offers::show(&found, called, args, out)?;
    let (now, later) = offers::sort(&found, args);
    if !now.is_empty() || !later.is_empty() {
        out.line("")?;
    }
    if args.yes {
        for offer in now {
            let done = adopt.hand_over(offer).await;
            failed |= done.is_err();
            match done {
                Ok(()) => out.line(format!("handed over to {}: {}", offer.of, offer.what))?,
                Err(why) => out.line(format!(
                    "NOT handed over to {}: {}: {why}",
                    offer.of, offer.what
                ))?,
            }
        }
    } else if !now.is_empty() {
        let can = count(now.len(), "thing can", "things can");
        let command = offers::command(
            args,
            adopt.namespace,
            args.resources.iter().map(Named::to_string),
        );
        out.line(format!("{can} be handed over; to do so: {command}"))?;
    }
    for line in offers::to_be_named(&later, args) {
        out.line(line)?;
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

struct Adopt<'a> {
    client: Client,
    namespace: Option<&'a str>,
    /// The resources that are meant; none means all.
    named: &'a [Named],
    aws: Elb,
}

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

impl Adopt<'_> {
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
                self.aws
                    .add_tags(arn, &tags)
                    .await
                    .map_err(|error| error.to_string())?;
                self.wake::<MyIngress>(&found.owner).await
            }
            Thing::Unknown => Err("it could not be looked at".into()),
        }
    }

    async fn mark<K>(&self, live: &Live, mut metadata: Value) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        metadata["uid"] = live.uid.clone().into();
        metadata["resourceVersion"] = live.version.clone().into();
        patch::<K>(&self.client, &live.namespace, &live.name, metadata).await
    }

    async fn wake<K>(&self, owner: &Owner) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let now = jiff::Timestamp::now().to_string();
        let metadata = json!({ "uid": owner.uid(), "annotations": { REQUESTED_AT: now } });
        let woken = patch::<K>(&self.client, owner.namespace(), owner.name(), metadata).await;
        woken.map_err(|why| {
            format!("it is marked, but the operator is not told, and looks by itself later: {why}")
        })
    }
}

async fn patch<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    metadata: Value,
) -> Result<(), String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let parameters = PatchParams {
        field_manager: Some(MANAGER.into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    match api::<K>(client, namespace)
        .patch_metadata(name, &parameters, &patch)
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if has_code(&error, 409) => {
            Err("it has changed since it was looked at: run this again".into())
        }
        Err(error) => Err(message(&error)),
    }
}
