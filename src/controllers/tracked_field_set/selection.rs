//! The resources that a `TrackedFieldSet` selects. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, Selector, SelectorExt};
use kube::{Api, Client};
use qm_api::common::LABELS;
use qm_api::tracked_field_set::{NamePatterns, TargetSelector};
use qm_runtime::watch::ResourceName;
use wildmatch::WildMatch;

type Labels = BTreeMap<String, String>;

/// A selection of resources of one kind.
#[derive(Clone, Debug)]
pub struct Selection {
    pub resource: ResourceName,
    labels: Selector,
    include: Vec<WildMatch>,
    exclude: Vec<WildMatch>,
    pub(crate) namespaces: SelectedNamespaces,
}

/// Reason why a selection matches nothing. Each message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectionError {
    /// The resources are cluster-scoped, and the spec does not select all namespaces.
    #[error("{0} is cluster-scoped: write spec.target.namespaces: {{selector: {{}}}}")]
    ClusterScoped(String),
    /// A stored selector breaks a rule of the CRD.
    #[error("{0}")]
    SelectorInvalid(String),
}

/// The namespaces of a selection.
#[derive(Clone, Debug)]
pub(crate) enum SelectedNamespaces {
    /// The resources are cluster-scoped.
    Cluster,
    Named(BTreeSet<String>),
    Labelled(Selector),
}

impl Selection {
    /// Creates the selection of a set in `namespace`; `namespaced` if the resources are namespaced.
    ///
    /// # Errors
    /// If no resource can match.
    pub(crate) fn new(
        target: &TargetSelector,
        resource: ResourceName,
        namespaced: bool,
        namespace: &str,
    ) -> Result<Self, SelectionError> {
        let NamePatterns { include, exclude } = target.names.clone().unwrap_or_default();
        let compile =
            |patterns: Vec<String>| patterns.iter().map(|it| WildMatch::new(it)).collect();
        let labels = target.selector.clone().unwrap_or_default();
        Ok(Self {
            labels: selector(labels, "target.selector")?,
            include: compile(include),
            exclude: compile(exclude),
            namespaces: SelectedNamespaces::of(target, namespaced, namespace)?,
            resource,
        })
    }

    /// Returns the APIs that list every resource of the selection.
    pub fn apis(&self, client: &Client, resource: &ApiResource) -> Vec<Api<DynamicObject>> {
        match &self.namespaces {
            SelectedNamespaces::Named(names) => names
                .iter()
                .map(|name| Api::namespaced_with(client.clone(), name, resource))
                .collect(),
            SelectedNamespaces::Cluster | SelectedNamespaces::Labelled(_) => {
                vec![Api::all_with(client.clone(), resource)]
            }
        }
    }

    /// Returns the parameters of a list of the resources with the selected labels.
    pub(crate) fn list_params(&self) -> ListParams {
        let all = ListParams::default();
        if self.labels.selects_all() {
            return all;
        }
        all.labels_from(&self.labels)
    }

    /// Returns whether the selection includes `namespace`. `labels` are those of the namespace, `None` if unknown.
    pub fn reaches(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match &self.namespaces {
            SelectedNamespaces::Cluster => namespace.is_empty(),
            SelectedNamespaces::Named(names) => names.contains(namespace),
            SelectedNamespaces::Labelled(selector) => {
                selector.selects_all() || labels.is_some_and(|labels| selector.matches(labels))
            }
        }
    }

    /// Returns whether a resource with this name and these labels is selected, whatever its namespace.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        (self.include.is_empty() || self.include.iter().any(|it| it.matches(name)))
            && !self.exclude.iter().any(|it| it.matches(name))
            && (self.labels.selects_all() || self.labels.matches(labels))
    }
}

impl SelectedNamespaces {
    /// Returns each namespace that the selection names; a single `None` if it names none.
    pub(super) fn names(&self) -> Vec<Option<String>> {
        match self {
            Self::Named(names) => names.iter().cloned().map(Some).collect(),
            Self::Cluster | Self::Labelled(_) => vec![None],
        }
    }

    fn of(
        target: &TargetSelector,
        namespaced: bool,
        namespace: &str,
    ) -> Result<Self, SelectionError> {
        let kind = &target.kind;
        let namespaces = target.namespaces.clone().unwrap_or_default();
        if !namespaced {
            let is_everywhere = namespaces
                .selector
                .is_some_and(|selector| selector == LabelSelector::default());
            return if is_everywhere {
                Ok(Self::Cluster)
            } else {
                Err(SelectionError::ClusterScoped(kind.clone()))
            };
        }
        Ok(match namespaces.selector {
            Some(labels) => Self::Labelled(selector(labels, "target.namespaces.selector")?),
            None if namespaces.names.is_empty() => Self::Named([namespace.to_owned()].into()),
            None => Self::Named(namespaces.names.into_iter().collect()),
        })
    }
}

fn selector(labels: LabelSelector, field: &str) -> Result<Selector, SelectionError> {
    Selector::try_from(labels).map_err(|error| {
        SelectionError::SelectorInvalid(format!("spec.{field}: {error}: {LABELS}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn selection(target: Value, namespaced: bool) -> Result<Selection, SelectionError> {
        let target: TargetSelector = serde_json::from_value(target).unwrap();
        let resource = ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        };
        Selection::new(&target, resource, namespaced, "ops")
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[rstest]
    #[case::all(json!({}), "web", true)]
    #[case::included(json!({ "include": ["web-*", "api"] }), "web-1", true)]
    #[case::not_included(json!({ "include": ["web-*", "api"] }), "api-1", false)]
    #[case::excluded(json!({ "include": ["*"], "exclude": ["*-canary"] }), "web-canary", false)]
    #[case::one_character(json!({ "include": ["web-?"] }), "web-10", false)]
    #[case::dots_are_no_pattern(json!({ "include": ["a.b"] }), "axb", false)]
    fn names_are_patterns(#[case] names: Value, #[case] name: &str, #[case] is_selected: bool) {
        let selection = selection(json!({ "kind": "Deployment", "names": names }), true).unwrap();
        assert_eq!(selection.matches(name, &Labels::new()), is_selected);
    }

    #[test]
    fn labels_select_resources() {
        let target =
            json!({ "kind": "Deployment", "selector": { "matchLabels": { "tier": "web" } } });
        let selection = selection(target, true).unwrap();
        assert!(selection.matches("a", &labels(&[("tier", "web"), ("x", "y")])));
        assert!(!selection.matches("a", &labels(&[("tier", "db")])));
        assert!(!selection.matches("a", &Labels::new()));
    }

    #[rstest]
    #[case::own(json!(null), &["ops"], &["shop"])]
    #[case::named(json!({ "names": ["shop", "prod"] }), &["shop", "prod"], &["ops"])]
    #[case::labelled(json!({ "selector": { "matchLabels": { "env": "prod" } } }), &["prod"], &["ops", "unknown"])]
    #[case::everywhere(json!({ "selector": {} }), &["ops", "prod", "unknown"], &[])]
    fn namespaces_limit_the_selection(
        #[case] namespaces: Value,
        #[case] reached: &[&str],
        #[case] others: &[&str],
    ) {
        let mut target = json!({ "kind": "Deployment" });
        if !namespaces.is_null() {
            target["namespaces"] = namespaces;
        }
        let selection = selection(target, true).unwrap();
        let known = |name: &str| match name {
            "unknown" => None,
            "prod" => Some(labels(&[("env", "prod")])),
            _ => Some(Labels::new()),
        };
        for name in reached {
            assert!(selection.reaches(name, known(name).as_ref()), "{name}");
        }
        for name in others {
            assert!(!selection.reaches(name, known(name).as_ref()), "{name}");
        }
    }

    #[test]
    fn cluster_scoped_kind_needs_the_selector_of_everything() {
        let target = |namespaces: Value| json!({ "kind": "Node", "namespaces": namespaces });
        let everywhere = selection(target(json!({ "selector": {} })), false).unwrap();
        assert!(everywhere.reaches("", None));
        for namespaces in [json!({}), json!({ "names": ["a"] })] {
            let error = selection(target(namespaces), false).unwrap_err();
            assert_eq!(
                error.to_string(),
                "Node is cluster-scoped: write spec.target.namespaces: {selector: {}}"
            );
        }
    }
}
