//! The CRDs: whose they are, and their end.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, ResourceExt};
use qm_api::common::SCHEMA;

use super::{Refused, Uninstall, told};
use crate::commands::{is, words};
use crate::registry;

/// What of a CRD matters.
pub struct Crd {
    pub name: String,
    pub uid: Option<String>,
    pub deleting: bool,
    /// It has the mark of this program's: its objects are ours.
    pub ours: bool,
}

impl Uninstall<'_> {
    /// The CRDs of our kinds that are there. Who may not see them can still delete the objects.
    pub(super) async fn crds(&self) -> anyhow::Result<Vec<Crd>> {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(self.client.clone());
        let mut crds = Vec::new();
        for kind in registry::KINDS {
            match api.get_metadata_opt(&kind.crd_name()).await {
                Ok(Some(crd)) => crds.push(Crd {
                    name: crd.name_any(),
                    uid: crd.uid(),
                    deleting: crd.metadata.deletion_timestamp.is_some(),
                    ours: crd.annotations().contains_key(SCHEMA),
                }),
                Ok(None) => {}
                Err(error) if is(&error, 404) => {}
                Err(error) if is(&error, 403) && !self.args.purge => {
                    self.unseen.replace(Some(words(&error)));
                    return Ok(crds);
                }
                Err(error) if is(&error, 403) => return Err(Refused(words(&error)).into()),
                Err(error) => return Err(told(&error, &words(&error))),
            }
        }
        Ok(crds)
    }

    /// Deletes the CRDs, if they are to go; gives those that go and are still there.
    pub(super) async fn purge(&self) -> anyhow::Result<Vec<Crd>> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let mut left = Vec::new();
        if self.namespace().is_some() {
            return Ok(left);
        }
        for crd in self.crds().await?.into_iter().filter(|crd| crd.ours) {
            if !crd.deleting && self.args.purge {
                let preconditions = Some(Preconditions {
                    uid: crd.uid.clone(),
                    resource_version: None,
                });
                let parameters = DeleteParams {
                    preconditions,
                    ..DeleteParams::default()
                };
                match api.delete(&crd.name, &parameters).await {
                    Err(error) if is(&error, 404) || is(&error, 409) => {}
                    Err(error) if is(&error, 403) => return Err(Refused(words(&error)).into()),
                    Err(error) => anyhow::bail!(words(&error)),
                    Ok(_) => {}
                }
            }
            if crd.deleting || self.args.purge {
                left.push(crd);
            }
        }
        Ok(left)
    }
}
