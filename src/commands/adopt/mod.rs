//! `quartermaster adopt`: finds the unowned objects whose names the resources need, and consents to their adoption. The
//! command reads specs only, so no operator need run.

use std::process::ExitCode;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, CustomResourceExt};
use qm_api::common::{ADOPT_BY, REQUESTED_AT};
use qm_api::{MyApp, MyIngress};
use qm_aws::elb::Elb;
use qm_aws::{Aws as _, Tags};
use qm_runtime::leader::Fence;
use qm_runtime::ownership::Owner;
use serde_json::{Value, json};

use self::candidate::{Candidate, CandidateObject, ObjectVersion};
use super::printer::Printer;
use super::{FIELD_MANAGER, has_code, message};
use crate::cli::commands::AdoptArgs;

mod candidate;
mod classify;
mod discover;
mod plan;

struct Adopt<'a> {
    client: Client,
    args: &'a AdoptArgs,
    aws: Elb,
}

pub(crate) async fn run(
    client: Client,
    cluster_name: &str,
    args: &AdoptArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let adopt = Adopt {
        // The fence is for the operator: a user needs no lease.
        aws: Elb::new(
            Fence::open(),
            qm_aws::AwsMetrics::default(),
            &qm_aws::AwsTimings::default(),
        ),
        client,
        args,
    };
    let mut candidates = adopt.discover().await?;
    let mut has_failed = candidates.iter().any(Candidate::is_undetermined);
    plan::reject_contested(&mut candidates);
    plan::print(&candidates, cluster_name, args, out)?;
    let (adopted, unnamed) = plan::partition(&candidates, args);
    if !adopted.is_empty() || !unnamed.is_empty() {
        out.line("")?;
    }
    if args.yes {
        for candidate in adopted {
            let (title, owner) = (&candidate.title, candidate.owner_title());
            match adopt.consent(candidate).await {
                Ok(()) => out.line(format!("allowed {owner} to adopt {title}"))?,
                Err(error) => {
                    has_failed = true;
                    out.line(format!("could not allow {owner} to adopt {title}: {error}"))?;
                }
            }
        }
    } else if !adopted.is_empty() {
        out.line(plan::adoptable(adopted.len(), args))?;
    }
    for line in plan::to_be_named(&unnamed, args) {
        out.line(line)?;
    }
    Ok(if has_failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

impl Adopt<'_> {
    /// Consents to the adoption of the version that was classified, and triggers a reconcile if no watch will.
    async fn consent(&self, candidate: &Candidate) -> Result<(), String> {
        let owner = &candidate.owner;
        let resource = match &candidate.object {
            CandidateObject::Unreadable => return Err("the object could not be read".into()),
            CandidateObject::Copy(copy) => {
                let resource = ApiResource::erase::<ConfigMap>(&());
                return self.annotate(&resource, copy, owner).await;
            }
            CandidateObject::Pod(pod) => {
                let resource = ApiResource::erase::<Pod>(&());
                self.annotate(&resource, pod, owner).await?;
                MyApp::api_resource()
            }
            CandidateObject::LoadBalancer(arn) => {
                let tags: Tags = [(ADOPT_BY.to_owned(), owner.path())].into();
                let tagged = self.aws.add_tags(arn, &tags).await;
                tagged.map_err(|error| error.to_string())?;
                MyIngress::api_resource()
            }
        };
        let now = jiff::Timestamp::now().to_string();
        let request = json!({ "uid": owner.uid(), "annotations": { REQUESTED_AT: now } });
        let triggered = self.patch(&resource, owner.namespace(), owner.name(), request);
        triggered.await.map_err(|error| {
            format!("the operator may now adopt the object, but an immediate reconcile could not be requested: {error}")
        })
    }

    async fn annotate(
        &self,
        resource: &ApiResource,
        object: &ObjectVersion,
        owner: &Owner,
    ) -> Result<(), String> {
        let metadata = json!({
            "uid": object.uid,
            "resourceVersion": object.version,
            "annotations": { ADOPT_BY: owner.path() },
        });
        self.patch(resource, &object.namespace, &object.name, metadata)
            .await
    }

    async fn patch(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
        metadata: Value,
    ) -> Result<(), String> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, resource);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match api.patch_metadata(name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(error) if has_code(&error, 409) => {
                Err("the object has changed since it was read: run the command again".into())
            }
            Err(error) => Err(message(&error)),
        }
    }
}
