//! Permissions used by the whole suite: cargo runs this after `tests/it`, whose clusters have left their logs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::sync::LazyLock;

use k8s_openapi::api::rbac::v1::PolicyRule;
use testbed::control_plane::audit::{self, Request, Subject};
use testbed::usage;
use xtask::rbac;

const NAMESPACE: &str = "quartermaster-system";
const OPERATOR: &str =
    "system:serviceaccount:quartermaster-system:quartermaster-controller-manager";

/// Returns whether a permission has no request of its own: the apiserver checks it while it answers another request, for
/// `OwnerReferencesPermissionEnforcement`.
fn is_checked_indirectly(permission: &str) -> bool {
    permission == "delete deployments.apps"
        || permission.starts_with("update ") && permission.contains("/finalizers.")
}

/// The requests of the operator's processes, to whatever cluster of this run, each with whether a granted permission may be
/// refused there. The process that runs the tests, cargo, started before the first of them.
static REQUESTS: LazyLock<Vec<(Request, bool)>> = LazyLock::new(|| {
    let folder = PathBuf::from(std::env::var_os(audit::KEPT_IN).expect("cargo sets it"));
    let began = usage::started(parent_id()).unwrap();
    let logs = audit::logs(&folder, began).expect("run the whole suite first: make test");
    let from_operator = |request: &Request| {
        request.subject.user == OPERATOR && request.user_agent.starts_with("quartermaster/")
    };
    let of_log = |log: PathBuf| {
        let refuses = audit::refuses(&log);
        audit::kept(&log)
            .unwrap()
            .into_iter()
            .filter(from_operator)
            .map(move |request| (request, refuses))
    };
    logs.into_iter().flat_map(of_log).collect()
});

/// A shipped rule, and where it holds: everywhere, or in one namespace.
struct Rule {
    rule: PolicyRule,
    namespace: Option<&'static str>,
}

/// The rules that grant the operator something.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let from_operator = [
        "role",
        "leader_election_role",
        "tracker_targets_role",
        "metrics_auth_role",
    ];
    let roles = rbac::objects()
        .into_iter()
        .filter(|(name, _)| from_operator.contains(&name.as_str()));
    roles
        .flat_map(|(_, role)| {
            let namespace = (role["kind"] == "Role").then_some(NAMESPACE);
            let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
            rules.into_iter().map(move |rule| Rule { rule, namespace })
        })
        .collect()
});

impl Rule {
    fn grants(&self, subject: &Subject) -> bool {
        let has =
            |list: &Option<Vec<String>>, word: &String| list.iter().flatten().any(|it| it == word);
        let PolicyRule {
            api_groups,
            resources,
            resource_names,
            verbs,
            ..
        } = &self.rule;
        // A rule names a role without the prefix that config/default adds.
        let unprefixed = subject
            .name
            .strip_prefix("quartermaster-")
            .unwrap_or(&subject.name)
            .to_owned();
        verbs.contains(&subject.verb)
            && has(api_groups, &subject.group)
            && has(resources, &subject.resource)
            && (resource_names.is_none()
                || has(resource_names, &subject.name)
                || has(resource_names, &unprefixed))
            && self
                .namespace
                .is_none_or(|namespace| namespace == subject.namespace)
    }
}

fn permission(subject: &Subject) -> String {
    format!("{} {}.{}", subject.verb, subject.resource, subject.group)
}

/// Returns verb, resource and all else that a rule can name.
fn call(subject: &Subject) -> String {
    format!(
        "{} {:?} in namespace {:?}",
        permission(subject),
        subject.name,
        subject.namespace
    )
}

/// Returns every verb on every resource that a shipped rule grants the operator.
fn granted() -> BTreeSet<String> {
    let mut granted = BTreeSet::new();
    for Rule { rule, .. } in &*RULES {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                granted.extend(
                    rule.verbs
                        .iter()
                        .map(|verb| format!("{verb} {resource}.{group}")),
                );
            }
        }
    }
    granted
}

#[test]
fn every_permission_is_used() {
    let used: BTreeSet<_> = REQUESTS
        .iter()
        .filter(|(it, _)| !it.lacked_right)
        .map(|(it, _)| permission(&it.subject))
        .collect();
    let mut unused: Vec<_> = granted().difference(&used).cloned().collect();
    // If the apiserver supports it, a watch starts with the objects of a list (which needs both permissions).
    let is_listed = |permission: &str| {
        permission
            .strip_prefix("list ")
            .is_some_and(|it| used.contains(&format!("watch {it}")))
    };
    unused.retain(|permission| !is_checked_indirectly(permission) && !is_listed(permission));
    assert!(
        unused.is_empty(),
        "no test uses these; if not all were run: make test\n{}",
        unused.join("\n")
    );
    let really: Vec<_> = used
        .iter()
        .filter(|permission| is_checked_indirectly(permission))
        .collect();
    assert!(
        really.is_empty(),
        "these are requested after all: {really:?}"
    );
}

/// Compares by verb, resource, namespace and name. No test excuses a failure.
#[test]
fn every_request_is_granted_by_a_rule() {
    // Kinds tracked without permission: a test's own, and the pages' example.
    let is_tracked = |subject: &Subject| {
        ["list", "watch"].contains(&&*subject.verb)
            && (subject.group.ends_with("example.com")
                || permission(subject).ends_with(" networkpolicies.networking.k8s.io"))
    };
    // Every account may read /readyz and /version by default, except from an apiserver that has not loaded its rules yet.
    let is_probe = |subject: &Subject| subject.resource.is_empty() && subject.verb == "get";
    let refused = REQUESTS
        .iter()
        .filter(|(it, _)| it.lacked_right)
        .map(|(it, _)| &it.subject);
    let in_vain: BTreeSet<_> = refused
        .filter(|it| !is_tracked(it) && !is_probe(it) && !RULES.iter().any(|rule| rule.grants(it)))
        .map(call)
        .collect();
    assert!(
        in_vain.is_empty(),
        "no shipped rule grants these: {in_vain:#?}"
    );
}

/// A test that removes a permission declares it: `expect_refusals` of the control plane's audit log.
#[test]
fn granted_request_is_refused_only_after_removal() {
    let refused = REQUESTS
        .iter()
        .filter(|(it, refuses)| it.lacked_right && !refuses)
        .map(|(it, _)| &it.subject);
    let refused: BTreeSet<_> = refused
        .filter(|it| RULES.iter().any(|rule| rule.grants(it)))
        .map(call)
        .collect();
    assert!(
        refused.is_empty(),
        "these permissions were granted and did not hold: {refused:#?}"
    );
}

/// A rule for one object, and one for a namespace, do not grant the same elsewhere.
#[test]
fn rule_grants_named_objects_in_its_scope() {
    let granted_here = |verb: &str, resource: &str, group: &str, namespace: &str, name: &str| {
        let [verb, resource, group, namespace, name] =
            [verb, resource, group, namespace, name].map(str::to_owned);
        let subject = Subject {
            user: OPERATOR.into(),
            verb,
            group,
            resource,
            namespace,
            name,
        };
        RULES.iter().any(|rule| rule.grants(&subject))
    };
    let lease = |verb, namespace, name| {
        granted_here(verb, "leases", "coordination.k8s.io", namespace, name)
    };
    assert!(lease("create", NAMESPACE, "") && lease("update", NAMESPACE, "quartermaster"));
    assert!(!lease("create", "default", "") && !lease("update", "default", "quartermaster"));
    assert!(!lease("update", NAMESPACE, "another") && !lease("delete", NAMESPACE, "quartermaster"));
    let crds = |verb, name| {
        granted_here(
            verb,
            "customresourcedefinitions",
            "apiextensions.k8s.io",
            "",
            name,
        )
    };
    assert!(
        crds("watch", "myapps.demo.rtfm.co.ua")
            && !crds("watch", "")
            && !crds("list", "widgets.example.com")
    );
    assert!(
        granted_here("get", "secrets", "", "anywhere", "any")
            && !granted_here("list", "secrets", "", "anywhere", "")
    );
}
