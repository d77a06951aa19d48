//! The CRD of each kind: the kind is watched while its CRD exists with a compatible schema.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use qm_core::kind::KindInfo;
use qm_core::names::MetadataNames;
use qm_core::schema::SchemaVersion;
use tokio::sync::{SetOnce, watch};
use tracing::warn;

use super::adapter::WatchCommand;
use super::stream::watch_object;
use crate::availability::Availability;
use crate::metrics::{Metrics, Purpose};

/// Watches the CRD of `kind`, and stops the watch of the kind while the CRD is missing or incompatible. `is_known` is
/// set once the watch has answered. Messages about an incompatible schema contain the command `replace`.
#[expect(
    clippy::too_many_arguments,
    reason = "parts of the manager, which imports this module"
)]
pub(crate) fn follow(
    client: Client,
    kind: &KindInfo,
    replace: Option<&'static str>,
    watches: &watcher::Config,
    metrics: &Metrics,
    availability: Availability,
    commands: watch::Sender<WatchCommand>,
    is_known: Arc<SetOnce<()>>,
) -> impl Future<Output = ()> + Send + use<> {
    let (name, own, names) = (kind.crd_name(), kind.schema(), kind.names);
    let config = watches.clone();
    let guard = metrics.watch(
        "customresourcedefinitions.apiextensions.k8s.io",
        Purpose::Own,
    );
    async move {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
        let mut crds = std::pin::pin!(watch_object(api, &name, config, guard, &availability));
        while let Some(crd) = crds.next().await {
            let stop = match crd {
                Ok(Some(crd)) => problem(&name, &crd, names, &own, replace),
                Ok(None) => Some(format!("CRD {name} is not installed")),
                Err(error) => {
                    warn!(
                        crd = name,
                        error = &error as &dyn std::error::Error,
                        "watch of the CRD failed; will retry"
                    );
                    continue;
                }
            };
            commands.send_if_modified(|command| {
                let news = command.stop != stop;
                command.stop = stop;
                news
            });
            // Later calls have no effect.
            let _ = is_known.set(());
        }
    }
}

/// Returns the reason that `/readyz` reports for a kind that is not served; `None` if the kind is served.
fn problem(
    name: &str,
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    own: &SchemaVersion,
    replace: Option<&str>,
) -> Option<String> {
    let mismatch = mismatch(crd, names, own)?;
    let hint = replace.map_or_else(String::new, |command| format!(" ({command})"));
    Some(format!("CRD {name} {mismatch}{hint}"))
}

/// Reason that a program cannot work with a CRD.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrdMismatch {
    /// The CRD belongs to a version of the program with another schema.
    #[error("has schema {installed}, not {own}: install this version's CRDs")]
    OtherVersion {
        /// Annotation of the CRD.
        installed: String,
        /// Schema of this program.
        own: SchemaVersion,
    },
    /// The CRD has no schema, so no version of the program works with it.
    #[error("belongs to another program: install this program's CRDs")]
    Foreign,
}

/// Returns why a program with the schema `own` cannot work with this CRD; `None` if it can. An older or foreign schema
/// silently prunes fields; a newer schema keeps them.
pub fn mismatch(
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    own: &SchemaVersion,
) -> Option<CrdMismatch> {
    if own.is_any() {
        return None;
    }
    match crd.annotations().get(names.schema) {
        Some(installed)
            if installed
                .parse()
                .is_ok_and(|installed: SchemaVersion| installed.is_compatible_with(own)) =>
        {
            None
        }
        Some(installed) => Some(CrdMismatch::OtherVersion {
            installed: installed.clone(),
            own: own.clone(),
        }),
        None => Some(CrdMismatch::Foreign),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;
    use crate::testing::NAMES;

    #[test]
    fn program_without_schemas_works_with_any_crd() {
        let any = SchemaVersion {
            number: 0,
            digest: String::new(),
        };
        assert_eq!(mismatch(&PartialObjectMeta::default(), &NAMES, &any), None);
    }

    #[rstest]
    #[case::unchanged(Some("2-aa"), None)]
    #[case::of_a_later_version(Some("10-bb"), None)]
    #[case::of_an_earlier_version(
        Some("1-cc"),
        Some("has schema 1-cc, not 2-aa: install this version's CRDs")
    )]
    #[case::another_digest(
        Some("2-dd"),
        Some("has schema 2-dd, not 2-aa: install this version's CRDs")
    )]
    #[case::without_a_number(
        Some("aa"),
        Some("has schema aa, not 2-aa: install this version's CRDs")
    )]
    #[case::of_another_program(
        None,
        Some("belongs to another program: install this program's CRDs")
    )]
    fn crd_must_keep_all_fields(#[case] installed: Option<&str>, #[case] problem: Option<&str>) {
        let mut crd = PartialObjectMeta::<CustomResourceDefinition>::default();
        crd.metadata.annotations =
            installed.map(|installed| [(NAMES.schema.to_owned(), installed.to_owned())].into());
        assert_eq!(
            super::problem(
                "x.example.com",
                &crd,
                &NAMES,
                &"2-aa".parse().unwrap(),
                Some("replace"),
            ),
            problem.map(|problem| format!("CRD x.example.com {problem} (replace)"))
        );
    }
}
