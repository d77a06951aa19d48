//! Plans the copies of a `ConfigMapSync`. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use qm_api::common::LABELS;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_api::spec_size::StoredSpec as _;
use qm_core::validation::{is_dns_label, is_dns_subdomain, is_label_key, is_label_value};
use qm_runtime::outcome::SPEC_INVALID;
use qm_runtime::{ObjectKey, WatchScope};

use super::status::DESTINATION_NOT_ALLOWED;
use crate::cli::NO_CROSS_NAMESPACE_REFS;
use crate::controllers::reasons::OUT_OF_SCOPE;

/// Namespaces of Kubernetes itself.
const PROTECTED_NAMESPACES: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];
/// `ConfigMap`s that other components write or trust, in any namespace: the cluster's certificate authority, and the
/// users of an EKS cluster (<https://docs.aws.amazon.com/eks/latest/userguide/auth-configmap.html>).
const PROTECTED_NAMES: [&str; 3] = ["aws-auth", "kube-root-ca.crt", "openshift-service-ca.crt"];

/// Reason why a spec has no plan, or a destination gets no copy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    /// The spec breaks a rule of the CRD that was added after the object was stored.
    #[error("{0}")]
    SpecInvalid(String),
    /// The operator does not watch a namespace that the spec names.
    #[error("{0}")]
    OutOfScope(String),
    /// The operator copies nothing to the destination.
    #[error("{0}")]
    DestinationNotAllowed(String),
}

impl PlanError {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SpecInvalid(_) => SPEC_INVALID,
            Self::OutOfScope(_) => OUT_OF_SCOPE,
            Self::DestinationNotAllowed(_) => DESTINATION_NOT_ALLOWED,
        }
    }
}

/// The source and the copies of a `ConfigMapSync`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CopyPlan {
    pub source: ObjectKey,
    pub name: String,
    /// Namespaces of the copies.
    pub to: Destinations,
    /// Named namespaces that get no copy, and why.
    pub rejected: BTreeMap<String, PlanError>,
}

/// The namespaces of copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Destinations {
    /// Namespaces by name.
    Named(BTreeSet<String>),
    /// Namespaces with these labels, except those of Kubernetes itself, and except the one in which the copy would be
    /// the source.
    Selected {
        selector: Selector,
        /// True if these labels also select the namespaces of Kubernetes itself.
        allow_protected: bool,
    },
}

impl CopyPlan {
    /// Returns the plan of `spec`. `allow_protected`: copies may go to the namespaces of Kubernetes itself. `only`: the
    /// one namespace that may be named, if references to others are rejected.
    pub fn of(
        spec: &ConfigMapSyncSpec,
        scope: &WatchScope,
        allow_protected: bool,
        only: Option<&str>,
    ) -> Result<Self, PlanError> {
        spec.check_size().map_err(PlanError::SpecInvalid)?;
        let name = spec.copy_name();
        if spec.source_namespace.is_empty() || spec.config_map_name.is_empty() {
            return Err(PlanError::SpecInvalid(
                "add sourceNamespace and configMapName: the ConfigMap to copy".into(),
            ));
        }
        let namespaces = [
            ("sourceNamespace", &spec.source_namespace),
            ("destinationNamespace", &spec.destination_namespace),
        ];
        for (field, name) in namespaces {
            if !name.is_empty() && !is_dns_label(name) {
                return Err(PlanError::SpecInvalid(format!(
                    "{field}: {name:?} is not a valid name: write lower-case letters, digits and '-', at most 63"
                )));
            }
        }
        if !is_dns_subdomain(&spec.config_map_name) {
            return Err(PlanError::SpecInvalid(format!(
                "configMapName: {:?} is not a valid name: write lower-case letters, digits, '-' and '.', at most 253",
                spec.config_map_name
            )));
        }
        let source = ObjectKey::new(&spec.source_namespace, &spec.config_map_name);
        let mut named: BTreeSet<String> = spec.destination_namespaces.iter().cloned().collect();
        let single = Some(&spec.destination_namespace).filter(|name| !name.is_empty());
        let given = [
            single.is_some(),
            !named.is_empty(),
            spec.destination_namespace_selector.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(PlanError::SpecInvalid(
                "give one destination: destinationNamespace, destinationNamespaces or destinationNamespaceSelector"
                    .into(),
            ));
        }
        named.extend(single.cloned());
        let outside = |namespace: &str| {
            let message = if !scope.covers(namespace) {
                format!(
                    "the operator does not watch namespace {namespace:?}: add it to --watch-namespace"
                )
            } else if let Some(own) = only.filter(|only| *only != namespace) {
                format!(
                    "namespace {namespace:?} is not allowed with {NO_CROSS_NAMESPACE_REFS}: write namespace {own:?}"
                )
            } else {
                return None;
            };
            Some(PlanError::OutOfScope(message))
        };
        if let Some(rejected) = outside(&spec.source_namespace) {
            return Err(rejected);
        }
        if !allow_protected && PROTECTED_NAMES.contains(&name) {
            return Err(PlanError::DestinationNotAllowed(format!(
                "copies named {name} are not allowed, because other programs trust this name: write another destinationName, or run the \
                 operator with --allow-protected-destinations"
            )));
        }
        let mut rejected = BTreeMap::new();
        let to = match &spec.destination_namespace_selector {
            Some(_) if *scope != WatchScope::Cluster => {
                return Err(PlanError::OutOfScope(
                    "destinationNamespaceSelector needs an operator without --watch-namespace: name the namespaces in \
                     destinationNamespaces"
                        .into(),
                ));
            }
            Some(_) if only.is_some() => {
                return Err(PlanError::OutOfScope(format!(
                    "destinationNamespaceSelector selects other namespaces, which {NO_CROSS_NAMESPACE_REFS} forbids: \
                     write the ConfigMapSync's own namespace as destinationNamespace"
                )));
            }
            Some(selector) => {
                if let Some(bad) = invalid_label(selector) {
                    return Err(PlanError::SpecInvalid(format!(
                        "destinationNamespaceSelector: {bad:?} is not valid: {LABELS}"
                    )));
                }
                let unknown = |error| {
                    format!(
                        "destinationNamespaceSelector: {error}: write In, NotIn, Exists or DoesNotExist"
                    )
                };
                let selector = Selector::try_from(selector.clone())
                    .map_err(|error| PlanError::SpecInvalid(unknown(error)))?;
                Destinations::Selected {
                    selector,
                    allow_protected,
                }
            }
            None => {
                if named.contains(&spec.source_namespace) && name == spec.config_map_name {
                    return Err(PlanError::SpecInvalid(
                        "a ConfigMap cannot be copied onto itself: name another namespace or another destinationName"
                            .into(),
                    ));
                }
                for namespace in std::mem::take(&mut named) {
                    if let Some(why) = outside(&namespace) {
                        rejected.insert(namespace, why);
                    } else if !allow_protected && PROTECTED_NAMESPACES.contains(&&*namespace) {
                        let message = format!(
                            "copies in {namespace} are not allowed, because this namespace belongs to Kubernetes: name another \
                             namespace, or run the operator with --allow-protected-destinations"
                        );
                        rejected.insert(namespace, PlanError::DestinationNotAllowed(message));
                    } else {
                        named.insert(namespace);
                    }
                }
                // A destination that cannot be served must not block others.
                if let Some(first) = rejected.values().next().filter(|_| named.is_empty()) {
                    return Err(first.clone());
                }
                Destinations::Named(named)
            }
        };
        Ok(Self {
            source,
            name: name.into(),
            to,
            rejected,
        })
    }

    /// Returns whether this namespace needs a copy; `labels` are its labels, if known.
    pub fn reaches(&self, namespace: &str, labels: Option<&BTreeMap<String, String>>) -> bool {
        match &self.to {
            Destinations::Named(names) => names.contains(namespace),
            Destinations::Selected {
                selector,
                allow_protected,
            } => {
                labels.is_some_and(|labels| selector.matches(labels))
                    && (*allow_protected || !PROTECTED_NAMESPACES.contains(&namespace))
                    && !(*namespace == *self.source.namespace && *self.name == *self.source.name)
            }
        }
    }

    /// Returns whether a copy that exists in this namespace stays, although the operator may not write there: the flags
    /// of the operator forbid the destination, not the spec.
    pub fn withholds(&self, namespace: &str) -> bool {
        match &self.to {
            Destinations::Named(_) => self.rejected.contains_key(namespace),
            Destinations::Selected {
                allow_protected, ..
            } => !allow_protected && PROTECTED_NAMESPACES.contains(&namespace),
        }
    }

    /// Returns whether the destinations are selected by labels.
    pub fn selects(&self) -> bool {
        matches!(self.to, Destinations::Selected { .. })
    }
}

/// Returns a key or value of the selector that is not valid in a label, so that no namespace can have it.
fn invalid_label(selector: &LabelSelector) -> Option<&str> {
    let expressions = selector.match_expressions.iter().flatten();
    let labels = selector.match_labels.iter().flatten();
    let mut keys = labels
        .clone()
        .map(|(key, _)| key)
        .chain(expressions.clone().map(|it| &it.key));
    let mut values = labels
        .map(|(_, value)| value)
        .chain(expressions.flat_map(|it| it.values.iter().flatten()));
    let found = keys
        .find(|key| !is_label_key(key))
        .or_else(|| values.find(|value| !is_label_value(value)));
    found.map(String::as_str)
}

/// Returns whether an `old` copy that is no longer `desired` must stay, because its replacement is not among the
/// `existing` copies yet. The replacement is the desired copy in the same namespace or, without one, any desired copy.
pub(crate) fn must_stay(
    old: &ObjectKey,
    desired: &BTreeSet<ObjectKey>,
    existing: &BTreeSet<ObjectKey>,
) -> bool {
    let successor = desired.iter().find(|copy| copy.namespace == old.namespace);
    successor.map_or(!desired.is_empty() && existing.is_empty(), |copy| {
        !existing.contains(copy)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::renamed("a/old", &["a/new"], &["a/new"], false)]
    #[case::not_renamed_yet("a/old", &["a/new"], &[], true)]
    #[case::moved("a/x", &["b/x"], &["b/x"], false)]
    #[case::not_moved_yet("a/x", &["b/x"], &[], true)]
    #[case::fewer("a/x", &["b/x", "c/x"], &["b/x"], false)]
    #[case::renamed_elsewhere_only("a/old", &["a/new", "b/new"], &["b/new"], true)]
    #[case::none_desired("a/x", &[], &[], false)]
    fn old_copy_stays_until_its_replacement_exists(
        #[case] old: &str,
        #[case] desired: &[&str],
        #[case] there: &[&str],
        #[case] wants: bool,
    ) {
        let key = |path: &str| {
            path.split_once('/')
                .map(|(namespace, name)| ObjectKey::new(namespace, name))
                .unwrap()
        };
        let keys = |paths: &[&str]| paths.iter().map(|path| key(path)).collect();
        assert_eq!(must_stay(&key(old), &keys(desired), &keys(there)), wants);
    }

    fn plan(
        spec: &Value,
        scope: &WatchScope,
        allow_protected: bool,
    ) -> Result<CopyPlan, PlanError> {
        let mut whole = json!({ "sourceNamespace": "a", "configMapName": "c" });
        whole
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        CopyPlan::of(
            &serde_json::from_value(whole).unwrap(),
            scope,
            allow_protected,
            None,
        )
    }

    #[rstest]
    #[case::one(json!({ "destinationNamespace": "b" }), &["b"])]
    #[case::several(json!({ "destinationNamespaces": ["b", "d"] }), &["b", "d"])]
    #[case::itself_under_another_name(json!({ "destinationNamespace": "a", "destinationName": "x" }), &["a"])]
    #[case::go_writes_empty_strings(json!({ "destinationNamespace": "", "destinationNamespaces": ["b"] }), &["b"])]
    fn named_destinations_are_planned(#[case] spec: Value, #[case] to: &[&str]) {
        let plan = plan(&spec, &WatchScope::Cluster, false).unwrap();
        assert_eq!(
            plan.to,
            Destinations::Named(to.iter().map(ToString::to_string).collect())
        );
        for namespace in ["a", "b", "d"] {
            assert_eq!(plan.reaches(namespace, None), to.contains(&namespace));
        }
    }

    #[test]
    fn selected_destinations_are_planned() {
        let selector =
            json!({ "destinationNamespaceSelector": { "matchLabels": { "team": "x" } } });
        let matching: BTreeMap<_, _> = [("team".to_owned(), "x".to_owned())].into();
        for (allow_protected, itself) in [(false, false), (true, true)] {
            let mut spec = selector.clone();
            if itself {
                spec["destinationName"] = "other".into();
            }
            let plan = plan(&spec, &WatchScope::Cluster, allow_protected).unwrap();
            assert!(plan.reaches("b", Some(&matching)));
            assert!(!plan.reaches("b", Some(&BTreeMap::new())) && !plan.reaches("b", None));
            assert_eq!(
                plan.reaches("kube-system", Some(&matching)),
                allow_protected
            );
            assert_eq!(plan.reaches("a", Some(&matching)), itself);
        }
    }

    #[rstest]
    #[case::nowhere(json!({}), "give one destination")]
    #[case::two_ways(json!({ "destinationNamespace": "b", "destinationNamespaceSelector": {} }), "give one destination")]
    #[case::itself(json!({ "destinationNamespace": "a" }), "onto itself")]
    #[case::itself_among_others(json!({ "destinationNamespaces": ["b", "a"] }), "onto itself")]
    #[case::nothing(json!({ "configMapName": "", "destinationNamespace": "b" }), "the ConfigMap to copy")]
    #[case::the_articles_sample(json!({ "sourceNamespace": "sourceNamespace", "destinationNamespace": "b" }), "write lower-case letters")]
    #[case::too_long(json!({ "destinationNamespace": "a".repeat(64) }), "at most 63")]
    #[case::no_key(json!({ "destinationNamespaceSelector": { "matchExpressions": [{ "key": "team name/\u{2603}", "operator": "DoesNotExist" }] } }), "labels")]
    #[case::no_value(json!({ "destinationNamespaceSelector": { "matchLabels": { "a": "b c" } } }), "labels")]
    #[case::an_operator(json!({ "destinationNamespaceSelector": { "matchExpressions": [{ "key": "k", "operator": "Is" }] } }), "write In,")]
    fn invalid_spec_is_rejected(#[case] spec: Value, #[case] expected: &str) {
        let rejected = plan(&spec, &WatchScope::Cluster, false).unwrap_err();
        assert!(
            matches!(&rejected, PlanError::SpecInvalid(message) if message.contains(expected)),
            "{rejected:?}"
        );
    }

    #[rstest]
    #[case(json!({ "destinationNamespace": "kube-system" }))]
    #[case(json!({ "destinationNamespaces": ["kube-system", "kube-public"] }))]
    #[case(json!({ "destinationNamespace": "b", "destinationName": "kube-root-ca.crt" }))]
    #[case(json!({ "destinationNamespace": "b", "configMapName": "aws-auth" }))]
    fn protected_destination_is_rejected_unless_allowed(#[case] spec: Value) {
        let rejected = plan(&spec, &WatchScope::Cluster, false).unwrap_err();
        assert!(
            matches!(&rejected, PlanError::DestinationNotAllowed(message) if message.contains("--allow-protected")),
            "{rejected:?}"
        );
        plan(&spec, &WatchScope::Cluster, true).unwrap();
    }

    #[test]
    fn rejected_destination_does_not_block_the_others() {
        let scope = WatchScope::Namespaces(vec!["a".into(), "b".into(), "kube-public".into()]);
        let plan = plan(
            &json!({ "destinationNamespaces": ["b", "kube-public", "z"] }),
            &scope,
            false,
        )
        .unwrap();
        assert_eq!(plan.to, Destinations::Named(["b".to_owned()].into()));
        let rejected: Vec<_> = plan.rejected.keys().map(String::as_str).collect();
        assert_eq!(rejected, ["kube-public", "z"]);
    }

    #[rstest]
    #[case::source(json!({ "sourceNamespace": "z", "destinationNamespace": "b" }), "namespace \"z\"")]
    #[case::destination(json!({ "destinationNamespaces": ["z"] }), "namespace \"z\"")]
    #[case::selector(json!({ "destinationNamespaceSelector": {} }), "--watch-namespace")]
    fn reference_out_of_scope_is_rejected(#[case] spec: Value, #[case] expected: &str) {
        let scope = WatchScope::Namespaces(vec!["a".into(), "b".into()]);
        let rejected = plan(&spec, &scope, false).unwrap_err();
        assert!(
            matches!(&rejected, PlanError::OutOfScope(message) if message.contains(expected)),
            "{rejected:?}"
        );
    }
}
