//! Resources that may be tracked: the tracker role, an aggregated `ClusterRole`, grants them. The operator's other
//! permissions do not count: they would make every `ConfigMap`, Pod and Node of the cluster trackable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::runtime::watcher;
use kube::{Api, Client};
use qm_runtime::availability::Availability;
use qm_runtime::metrics::{Metrics, Purpose};
use qm_runtime::watch::{ResourceName, error_status, watch_object};
use tracing::{info, warn};

use super::waiting::{brief, how_to_grant};
use crate::permissions::{TARGET_VERBS, TRACKER_ROLE_VERBS};

/// Rules of the tracker role, as its watch shows them.
pub struct Grants {
    role: String,
    rules: Mutex<Option<Rules>>,
}

/// State of the tracker role.
#[derive(Clone, Debug, PartialEq)]
enum Rules {
    Present(Vec<PolicyRule>),
    NotFound,
    /// The operator may not read the role; with the apiserver's message.
    Unreadable(String),
}

/// Whether a resource may be tracked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The tracker role has not been read yet.
    Unknown,
    /// The tracker role grants the resource.
    Granted,
    /// The tracker role does not grant the resource; with the reason.
    Missing(String),
}

impl Grants {
    /// Creates the rules of the `ClusterRole` named `role`, unknown until [`Grants::follow`] has read them.
    pub fn new(role: &str) -> Self {
        Self {
            role: role.into(),
            rules: Mutex::default(),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Option<Rules>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `resource` may be tracked.
    pub fn of(&self, resource: &ResourceName) -> Grant {
        match &*self.rules() {
            None => Grant::Unknown,
            Some(Rules::Present(rules)) => self.judge(rules, resource),
            Some(Rules::NotFound) => Grant::Missing(format!(
                "ClusterRole {:?} (--tracker-role) not found, so no target is tracked: create it (deploy/tracker_role.yaml) or set \
                 --tracker-role",
                self.role
            )),
            Some(Rules::Unreadable(message)) => Grant::Missing(format!(
                "ClusterRole {:?} (--tracker-role) cannot be read, so no target is tracked: {}; grant the operator {} \
                 on it",
                self.role,
                brief(message),
                TRACKER_ROLE_VERBS.join(" and ")
            )),
        }
    }

    fn judge(&self, rules: &[PolicyRule], resource: &ResourceName) -> Grant {
        // A watch cannot be limited to names, so a rule with names grants nothing.
        let granted = |verb, named: bool| {
            let has_names = |rule: &&PolicyRule| {
                rule.resource_names
                    .as_ref()
                    .is_some_and(|names| !names.is_empty())
            };
            rules
                .iter()
                .filter(|rule| has_names(rule) == named)
                .any(|rule| covers(rule, verb, resource))
        };
        let missing: Vec<_> = TARGET_VERBS
            .iter()
            .copied()
            .filter(|verb| !granted(verb, false))
            .collect();
        if missing.is_empty() {
            return Grant::Granted;
        }
        let named = if missing.iter().any(|verb| granted(verb, true)) {
            "; its rule with resourceNames does not count, because a watch cannot be limited to names"
        } else {
            ""
        };
        Grant::Missing(format!(
            "ClusterRole {:?} does not grant {} on {}{named}; {}",
            self.role,
            missing.join(", "),
            resource.full(),
            how_to_grant(resource)
        ))
    }

    /// Follows the role for as long as the process runs, and calls `changed` after each change.
    pub fn follow<C: Fn() + Send + 'static>(
        self: &Arc<Self>,
        client: Client,
        watches: &watcher::Config,
        metrics: &Metrics,
        availability: Availability,
        changed: C,
    ) -> impl Future<Output = ()> + Send + use<C> {
        let grants = Arc::clone(self);
        let config = watches.clone();
        let guard = metrics.watch("clusterroles.rbac.authorization.k8s.io", Purpose::Own);
        async move {
            let api: Api<ClusterRole> = Api::all(client);
            let mut roles = std::pin::pin!(watch_object(
                api,
                &grants.role,
                config,
                guard,
                &availability
            ));
            while let Some(role) = roles.next().await {
                let rules = match role {
                    Ok(Some(role)) => Rules::Present(role.rules.unwrap_or_default()),
                    Ok(None) => Rules::NotFound,
                    Err(error) => {
                        let cause = &error as &dyn std::error::Error;
                        warn!(
                            role = grants.role,
                            error = cause,
                            "watch of the tracker role failed; will retry"
                        );
                        match error_status(&error).filter(|status| matches!(status.code, 401 | 403))
                        {
                            // Rules that were read stay valid: the role itself did not change.
                            Some(status)
                                if !matches!(&*grants.rules(), Some(Rules::Present(_))) =>
                            {
                                Rules::Unreadable(status.message.clone())
                            }
                            _ => continue,
                        }
                    }
                };
                let before = grants.rules().replace(rules.clone());
                if before != Some(rules) {
                    info!(role = grants.role, "the tracker role changed");
                    changed();
                }
            }
        }
    }
}

fn covers(rule: &PolicyRule, verb: &str, resource: &ResourceName) -> bool {
    let group = resource.group();
    let has = |values: &[String], expected: &str| {
        values.iter().any(|value| value == "*" || value == expected)
    };
    has(&rule.verbs, verb)
        && has(rule.api_groups.as_deref().unwrap_or_default(), group)
        && has(
            rule.resources.as_deref().unwrap_or_default(),
            &resource.plural,
        )
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// Grants of a role that allows everything.
    pub fn everything() -> Grants {
        let grants = Grants::new("tracker");
        let rules = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
        grants
            .rules()
            .replace(Rules::Present(serde_json::from_value(rules).unwrap()));
        grants
    }

    fn of(rules: Value, api_version: &str, plural: &str) -> Grant {
        let grants = Grants::new("tracker");
        grants
            .rules()
            .replace(Rules::Present(serde_json::from_value(rules).unwrap()));
        grants.of(&ResourceName {
            api_version: api_version.into(),
            plural: plural.into(),
        })
    }

    #[rstest]
    #[case::exact_rule(json!({ "apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["get", "list", "watch"] }), None)]
    #[case::wildcards(json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }), None)]
    #[case::another_group(json!({ "apiGroups": [""], "resources": ["cronjobs"], "verbs": ["*"] }), Some("get, list, watch"))]
    #[case::a_subresource(json!({ "apiGroups": ["batch"], "resources": ["cronjobs/status"], "verbs": ["*"] }), Some("get, list, watch"))]
    #[case::some_verbs(json!({ "apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["get", "list"] }), Some("watch"))]
    #[case::no_names(
        json!({ "apiGroups": ["batch"], "resources": ["cronjobs"], "verbs": ["*"], "resourceNames": [] }), None
    )]
    fn rule_grants_the_named_resources(#[case] rule: Value, #[case] missing: Option<&str>) {
        let expected = missing.map_or(Grant::Granted, |verbs| {
            let resource = ResourceName {
                api_version: "batch/v1".into(),
                plural: "cronjobs".into(),
            };
            let hint = how_to_grant(&resource);
            Grant::Missing(format!(
                "ClusterRole \"tracker\" does not grant {verbs} on cronjobs.batch; {hint}"
            ))
        });
        assert_eq!(of(json!([rule]), "batch/v1", "cronjobs"), expected);
    }

    #[test]
    fn rules_add_up_and_rules_with_names_do_not_count() {
        let rule = |verbs: Value, names: Value| json!({ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs, "resourceNames": names });
        let rules = json!([
            rule(json!(["get", "list"]), Value::Null),
            rule(json!(["watch"]), Value::Null)
        ]);
        assert_eq!(of(rules, "v1", "configmaps"), Grant::Granted);
        let rules = json!([
            rule(json!(["get", "list"]), Value::Null),
            rule(json!(["watch"]), json!(["one"]))
        ]);
        let Grant::Missing(message) = of(rules, "v1", "configmaps") else {
            panic!()
        };
        assert!(
            message.contains("does not grant watch on configmaps; its rule with resourceNames"),
            "{message}"
        );
    }

    #[test]
    fn unread_or_missing_role_grants_nothing() {
        let grants = Grants::new("tracker");
        let resource = ResourceName {
            api_version: "apps/v1".into(),
            plural: "deployments".into(),
        };
        assert_eq!(grants.of(&resource), Grant::Unknown);
        for (rules, problem) in [
            (Rules::NotFound, "not found"),
            (Rules::Unreadable("no".into()), "cannot be read"),
        ] {
            grants.rules().replace(rules);
            let Grant::Missing(message) = grants.of(&resource) else {
                panic!()
            };
            assert!(message.contains(problem), "{message}");
        }
    }
}
