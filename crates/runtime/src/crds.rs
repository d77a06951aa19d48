//! Whether the CRD of a kind is there, and ours.

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use qm_core::SCHEMA;
use qm_core::kind::KindInfo;
use qm_core::schema::SchemaVersion;
use tokio::sync::watch;
use tracing::warn;

use super::metrics::{Metrics, Purpose};
use super::watching::{self, Told};

/// Installs this version's CRDs where there are none.
pub const INSTALL: &str = "quartermaster crds | kubectl apply --server-side -f -";
/// Has them take the place of those that are there.
pub const REPLACE: &str = "quartermaster crds | kubectl apply --server-side --force-conflicts -f -";

/// What is known of a CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, with our schema.
    Present,
    /// It is not, or is another one, in the words of `/readyz`.
    Absent(String),
}

/// What is known of the CRD of `kind`, as long as the returned future follows it; nothing before its watch has answered.
pub fn follow(
    client: Client,
    kind: &KindInfo,
    watches: &watcher::Config,
    metrics: &Metrics,
) -> (
    watch::Receiver<Option<Presence>>,
    impl Future<Output = ()> + Send + use<>,
) {
    let (sender, receiver) = watch::channel(None);
    let (name, ours) = (kind.crd_name(), kind.schema());
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
                    listed = Some(judge(&name, &crd, &ours));
                    continue;
                }
                Told::Shown(Event::InitDone) => listed.take().unwrap_or_else(|| missing(&name)),
                Told::Shown(Event::Apply(crd)) => judge(&name, &crd, &ours),
                Told::Shown(Event::Delete(_)) => missing(&name),
                Told::Stands => continue,
                Told::Failed(error) => {
                    warn!(
                        crd = name,
                        error = &error as &dyn std::error::Error,
                        "the CRD's watch failed; it goes on"
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
    ours: &SchemaVersion,
) -> Presence {
    match unlike(crd, ours) {
        Some(what) => Presence::Absent(format!("CRD {name} {what} ({REPLACE})")),
        None => Presence::Present,
    }
}

/// Why a program of the schema `ours` cannot work under this CRD, if it cannot. An older one prunes our fields without a word; so
/// does one that is not ours. A newer one keeps them.
pub fn unlike(
    crd: &PartialObjectMeta<CustomResourceDefinition>,
    ours: &SchemaVersion,
) -> Option<String> {
    match crd.annotations().get(SCHEMA) {
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
    fn a_crd_is_ours_when_it_keeps_our_fields(
        #[case] theirs: Option<&str>,
        #[case] words: Option<&str>,
    ) {
        let mut crd = PartialObjectMeta::<CustomResourceDefinition>::default();
        crd.metadata.annotations =
            theirs.map(|theirs| [(SCHEMA.to_owned(), theirs.to_owned())].into());
        match (
            judge("x.example.com", &crd, &"2-aa".parse().unwrap()),
            words,
        ) {
            (Presence::Present, None) => {}
            (Presence::Absent(said), Some(words)) => {
                assert!(
                    said.starts_with(&format!("CRD x.example.com {words} (")),
                    "{said}"
                );
            }
            (presence, _) => panic!("{presence:?}"),
        }
    }
}
