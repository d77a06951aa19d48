//! State of the CRD of each kind: whether it exists with a compatible schema.

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use qm_core::kind::KindInfo;
use qm_core::names::MetadataNames;
use qm_core::schema::SchemaVersion;
use tokio::sync::watch;
use tracing::warn;

use super::metrics::{Metrics, Purpose};
use super::watch::{WatchUpdate, watch_updates};

/// State of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdState {
    /// The CRD exists with a compatible schema.
    Present,
    /// The CRD does not exist or has an incompatible schema; with the message of `/readyz`.
    Absent(String),
}

/// Returns the state of the CRD of `kind`, `None` before the watch has answered, and the future that follows the CRD.
/// Messages about an incompatible schema contain the command `replace`.
pub fn follow(
    client: Client,
    kind: &KindInfo,
    replace: Option<&'static str>,
    watches: &watcher::Config,
    metrics: &Metrics,
) -> (
    watch::Receiver<Option<CrdState>>,
    impl Future<Output = ()> + Send + use<>,
) {
    let (sender, receiver) = watch::channel(None);
    let (name, own, names) = (kind.crd_name(), kind.schema(), kind.names);
    let config = watches.clone().fields(&format!("metadata.name={name}"));
    let guard = metrics.watch(
        "customresourcedefinitions.apiextensions.k8s.io",
        Purpose::Own,
    );
    let follow = async move {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
        let mut update = std::pin::pin!(watch_updates(api, config, guard));
        let mut listed = None;
        while let Some(update) = update.next().await {
            let state = match update {
                WatchUpdate::Event(Event::Init) => {
                    listed = None;
                    continue;
                }
                WatchUpdate::Event(Event::InitApply(crd)) => {
                    listed = Some(state_of(&name, &crd, names, &own, replace));
                    continue;
                }
                WatchUpdate::Event(Event::InitDone) => {
                    listed.take().unwrap_or_else(|| missing(&name))
                }
                WatchUpdate::Event(Event::Apply(crd)) => {
                    state_of(&name, &crd, names, &own, replace)
                }
                WatchUpdate::Event(Event::Delete(_)) => missing(&name),
                WatchUpdate::Recovered => continue,
                WatchUpdate::Failed(error) => {
                    warn!(
                        crd = name,
                        error = &error as &dyn std::error::Error,
                        "watch of the CRD failed; will retry"
                    );
                    continue;
                }
            };
            sender.send_if_modified(|known| {
                let news = known.as_ref() != Some(&state);
                *known = Some(state);
                news
            });
        }
    };
    (receiver, follow)
}

fn missing(name: &str) -> CrdState {
    CrdState::Absent(format!("CRD {name} is not installed"))
}

fn state_of(
    name: &str,
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    own: &SchemaVersion,
    replace: Option<&str>,
) -> CrdState {
    let Some(problem) = mismatch(crd, names, own) else {
        return CrdState::Present;
    };
    let hint = replace.map_or_else(String::new, |command| format!(" ({command})"));
    CrdState::Absent(format!("CRD {name} {problem}{hint}"))
}

/// Returns why a program with the schema `own` cannot work with this CRD, if it cannot. An older or foreign schema silently
/// prunes fields; a newer schema keeps them.
pub fn mismatch(
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    own: &SchemaVersion,
) -> Option<String> {
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
        Some(installed) => Some(format!(
            "has schema {installed}, not {own}: install this version's CRDs"
        )),
        None => Some("is not this program's: install its CRDs".into()),
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
    #[case::of_another_program(None, Some("is not this program's: install its CRDs"))]
    fn crd_must_keep_all_fields(#[case] installed: Option<&str>, #[case] problem: Option<&str>) {
        let mut crd = PartialObjectMeta::<CustomResourceDefinition>::default();
        crd.metadata.annotations =
            installed.map(|installed| [(NAMES.schema.to_owned(), installed.to_owned())].into());
        match (
            state_of(
                "x.example.com",
                &crd,
                &NAMES,
                &"2-aa".parse().unwrap(),
                Some("replace"),
            ),
            problem,
        ) {
            (CrdState::Present, None) => {}
            (CrdState::Absent(message), Some(problem)) => {
                assert_eq!(message, format!("CRD x.example.com {problem} (replace)"));
            }
            (state, _) => panic!("{state:?}"),
        }
    }
}
