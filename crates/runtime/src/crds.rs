//! Presence of the CRD of each kind, with a compatible schema.

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
use super::watching::{self, Told};

/// State of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The CRD exists with a compatible schema.
    Present,
    /// The CRD does not exist or has another schema; with the message of `/readyz`.
    Absent(String),
}

/// Returns the state of the CRD of `kind`, `None` before the watch has answered, and the future that follows the CRD. Messages
/// about another schema contain the command `replace`.
pub fn follow(
    client: Client,
    kind: &KindInfo,
    replace: Option<&'static str>,
    watches: &watcher::Config,
    metrics: &Metrics,
) -> (
    watch::Receiver<Option<Presence>>,
    impl Future<Output = ()> + Send + use<>,
) {
    let (sender, receiver) = watch::channel(None);
    let (name, ours, names) = (kind.crd_name(), kind.schema(), kind.names);
    let config = watches.clone().fields(&format!("metadata.name={name}"));
    let counted = metrics.watch(
        "customresourcedefinitions.apiextensions.k8s.io",
        Purpose::Own,
    );
    let follow = async move {
        let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
        let mut told = std::pin::pin!(watching::watch(api, config, counted));
        let mut listed = None;
        while let Some(told) = told.next().await {
            let presence = match told {
                Told::Shown(Event::Init) => {
                    listed = None;
                    continue;
                }
                Told::Shown(Event::InitApply(crd)) => {
                    listed = Some(judge(&name, &crd, names, &ours, replace));
                    continue;
                }
                Told::Shown(Event::InitDone) => listed.take().unwrap_or_else(|| missing(&name)),
                Told::Shown(Event::Apply(crd)) => judge(&name, &crd, names, &ours, replace),
                Told::Shown(Event::Delete(_)) => missing(&name),
                Told::Stands => continue,
                Told::Failed(error) => {
                    warn!(
                        crd = name,
                        error = &error as &dyn std::error::Error,
                        "watch of the CRD failed; will retry"
                    );
                    continue;
                }
            };
            sender.send_if_modified(|known| {
                let news = known.as_ref() != Some(&presence);
                *known = Some(presence);
                news
            });
        }
    };
    (receiver, follow)
}

fn missing(name: &str) -> Presence {
    Presence::Absent(format!("CRD {name} is not installed"))
}

fn judge(
    name: &str,
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    ours: &SchemaVersion,
    replace: Option<&str>,
) -> Presence {
    let Some(what) = unlike(crd, names, ours) else {
        return Presence::Present;
    };
    let hint = replace.map_or_else(String::new, |command| format!(" ({command})"));
    Presence::Absent(format!("CRD {name} {what}{hint}"))
}

/// Returns why a program with the schema `ours` cannot work with this CRD, if it cannot. An older or foreign schema silently
/// prunes fields; a newer schema keeps them.
pub fn unlike(
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    names: &MetadataNames,
    ours: &SchemaVersion,
) -> Option<String> {
    if ours.is_any() {
        return None;
    }
    match crd.annotations().get(names.schema) {
        Some(theirs)
            if theirs
                .parse()
                .is_ok_and(|theirs: SchemaVersion| theirs.is_compatible_with(ours)) =>
        {
            None
        }
        Some(theirs) => Some(format!(
            "has schema {theirs}, not {ours}: install this version's CRDs"
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
        assert_eq!(unlike(&PartialObjectMeta::default(), &NAMES, &any), None);
    }

    #[rstest]
    #[case::the_same(Some("2-aa"), None)]
    #[case::of_a_later_version(Some("10-bb"), None)]
    #[case::of_an_earlier_version(
        Some("1-cc"),
        Some("has schema 1-cc, not 2-aa: install this version's CRDs")
    )]
    #[case::changed_by_somebody(
        Some("2-dd"),
        Some("has schema 2-dd, not 2-aa: install this version's CRDs")
    )]
    #[case::without_a_number(
        Some("aa"),
        Some("has schema aa, not 2-aa: install this version's CRDs")
    )]
    #[case::of_another_program(None, Some("is not this program's: install its CRDs"))]
    fn crd_must_keep_all_fields(#[case] theirs: Option<&str>, #[case] words: Option<&str>) {
        let mut crd = PartialObjectMeta::<CustomResourceDefinition>::default();
        crd.metadata.annotations =
            theirs.map(|theirs| [(NAMES.schema.to_owned(), theirs.to_owned())].into());
        match (
            judge(
                "x.example.com",
                &crd,
                &NAMES,
                &"2-aa".parse().unwrap(),
                Some("replace"),
            ),
            words,
        ) {
            (Presence::Present, None) => {}
            (Presence::Absent(said), Some(words)) => {
                assert_eq!(said, format!("CRD x.example.com {words} (replace)"));
            }
            (presence, _) => panic!("{presence:?}"),
        }
    }
}
