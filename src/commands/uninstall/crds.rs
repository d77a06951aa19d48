//! The CRDs: their owner and their deletion.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use qm_api::common::SCHEMA;

use super::{Crd, Uninstall};
use crate::commands::{RequestError, has_code, message, objects};
use crate::kinds;

impl Uninstall<'_> {
    /// Reads the CRDs. The second value is the error of those that the user may not read; only `--purge` has to read all.
    pub(super) async fn crds(&self) -> Result<(Vec<Crd>, Option<String>), RequestError> {
        let (mut crds, mut unknown) = (Vec::new(), None);
        for kind in kinds::KINDS {
            match objects::crd(&self.client, kind).await {
                Ok(None) => {}
                Ok(Some(crd)) => crds.push(Crd {
                    name: crd.name_any(),
                    is_deleting: crd.metadata.deletion_timestamp.is_some(),
                    is_owned: crd.annotations().contains_key(SCHEMA),
                    problem: None,
                    uid: crd.uid(),
                }),
                Err(error) if has_code(&error, 403) && !self.args.purge => {
                    unknown = Some(message(&error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok((crds, unknown))
    }

    /// Returns true if the CRD is to be deleted, or is being deleted. CRDs stay if the command is limited to a namespace.
    pub(super) fn is_purged(&self, crd: &Crd) -> bool {
        crd.is_owned && self.namespace().is_none() && (crd.is_deleting || self.args.purge)
    }

    /// Deletes the CRDs. Returns those that still existed.
    pub(super) async fn purge(&self) -> Result<Vec<Crd>, RequestError> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let (mut crds, _) = self.crds().await?;
        crds.retain(|crd| self.is_purged(crd));
        for crd in crds.iter_mut().filter(|crd| !crd.is_deleting) {
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: crd.uid.clone(),
                resource_version: None,
            });
            match api.delete(&crd.name, &params).await {
                Ok(_) => {}
                // Deleted or replaced meanwhile: the next round reads it again.
                Err(error) if has_code(&error, 404) || has_code(&error, 409) => {}
                Err(error) if has_code(&error, 403) => crd.problem = Some(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(crds)
    }
}
