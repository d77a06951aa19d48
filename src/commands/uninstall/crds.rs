//! The CRDs: their owner and their deletion.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use qm_api::common::SCHEMA;

use crate::cli::commands::UninstallArgs;
use crate::commands::{FailedRequest, has_code, message, objects};
use crate::controllers;

/// The CRD of a kind.
pub(super) type Crd = PartialObjectMeta<CustomResourceDefinition>;

/// Reads the installed CRDs. The second value is the error of those that the user may not read; only `--purge` has to
/// read all.
pub(super) async fn read(
    client: &Client,
    args: &UninstallArgs,
) -> Result<(Vec<Crd>, Option<String>), FailedRequest> {
    let (mut crds, mut unknown) = (Vec::new(), None);
    for kind in controllers::KINDS {
        match objects::crd(client, kind).await {
            Ok(crd) => crds.extend(crd),
            Err(error) if has_code(&error, 403) && !args.purge => unknown = Some(message(&error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((crds, unknown))
}

/// Returns whether the CRD belongs to this program. The objects of any other CRD are foreign, too.
pub(super) fn is_owned(crd: &Crd) -> bool {
    crd.annotations().contains_key(SCHEMA)
}

pub(super) fn is_deleting(crd: &Crd) -> bool {
    crd.metadata.deletion_timestamp.is_some()
}

/// Returns whether the command deletes the CRD, or the CRD is already being deleted. CRDs stay if the command is
/// limited to a namespace.
pub(super) fn is_purged(crd: &Crd, args: &UninstallArgs) -> bool {
    is_owned(crd) && args.scope.namespace().is_none() && (is_deleting(crd) || args.purge)
}

/// Deletes the CRDs. Returns the names of those that still existed, each with the reason why it was not deleted.
pub(super) async fn purge(
    client: &Client,
    args: &UninstallArgs,
) -> Result<Vec<(String, Option<FailedRequest>)>, FailedRequest> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let (crds, _) = read(client, args).await?;
    let mut remaining = Vec::new();
    for crd in crds.iter().filter(|crd| is_purged(crd, args)) {
        let mut problem = None;
        if !is_deleting(crd) {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: crd.uid(),
                resource_version: None,
            });
            match api.delete(&crd.name_any(), &params).await {
                Ok(_) => {}
                // Deleted or replaced meanwhile: the next attempt reads it again.
                Err(error) if has_code(&error, 404) || has_code(&error, 409) => {}
                Err(error) if has_code(&error, 403) => problem = Some(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        remaining.push((crd.name_any(), problem));
    }
    Ok(remaining)
}
