//! What the whole suite used of the rights that we ship: cargo runs this after `tests/it`, whose clusters have left their logs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use quartermaster::manifests::rbac;
use serde_json::Value;
use testbed::control_plane::audit::{self, Request};

const OPERATOR: &str = "system:serviceaccount:quartermaster-system:quartermaster-controller-manager";

/// What is never asked for by a request of its own: the apiserver looks whether it may be while it answers another one, for
/// `OwnerReferencesPermissionEnforcement`.
const LOOKED_FOR: [&str; 4] = [
    "update appservices/finalizers.kosmos.io",
    "update configmapsyncs/finalizers.apps.bixbite.io",
    "update myapps/finalizers.demo.rtfm.co.ua",
    "delete deployments.apps",
];

/// The requests of the operator's processes, to whatever cluster.
static REQUESTS: LazyLock<Vec<Request>> = LazyLock::new(|| {
    let folder = std::env::var_os(audit::KEPT_IN).expect("cargo sets it");
    let logs = std::fs::read_dir(folder).expect("run the whole suite first: make test");
    let ours = |request: &Request| request.subject.user == OPERATOR && request.user_agent.starts_with("quartermaster/");
    logs.flat_map(|log| audit::kept(&log.unwrap().path()).unwrap()).filter(ours).collect()
});

fn right(request: &Request) -> String {
    let subject = &request.subject;
    format!("{} {}.{}", subject.verb, subject.resource, subject.group)
}

/// Every verb on every resource that a rule of ours grants the operator.
fn granted() -> BTreeSet<String> {
    let ours = ["role", "leader_election_role", "tracker_targets_role", "metrics_auth_role"];
    let roles = rbac::objects().into_iter().filter(|(name, _)| ours.contains(&name.as_str()));
    let mut granted = BTreeSet::new();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    for rule in roles.flat_map(|(_, role)| role["rules"].as_array().unwrap().clone()) {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(texts(&rule["verbs"]).iter().map(|verb| format!("{verb} {resource}.{group}")));
            }
        }
    }
    granted
}

#[test]
fn every_right_is_used() {
    let used: BTreeSet<_> = REQUESTS.iter().filter(|it| !it.lacked_right).map(right).collect();
    let mut unused: Vec<_> = granted().difference(&used).cloned().collect();
    // Where the apiserver can, a watch begins with what a list would have (it needs both rights).
    let is_listed = |right: &str| right.strip_prefix("list ").is_some_and(|it| used.contains(&format!("watch {it}")));
    unused.retain(|right| !LOOKED_FOR.contains(&right.as_str()) && !is_listed(right));
    assert!(unused.is_empty(), "no test uses these; if not all were run: make test\n{}", unused.join("\n"));
    let really = LOOKED_FOR.iter().filter(|right| used.contains(**right)).collect::<Vec<_>>();
    assert!(really.is_empty(), "these are asked for after all: {really:?}");
}

/// Refused is only what a test takes away, or what an apiserver does not know yet that has just started: both are rights that we ship.
#[test]
fn nothing_is_asked_for_in_vain() {
    // What is tracked without a right: a test's own kind, and the pages' example.
    let is_tracked = |request: &Request| {
        let subject = &request.subject;
        subject.group.ends_with("example.com") || subject.resource == "cronjobs"
    };
    let refused: BTreeSet<_> = REQUESTS.iter().filter(|it| it.lacked_right && !is_tracked(it)).map(right).collect();
    let granted = granted();
    let in_vain: Vec<_> = refused.difference(&granted).collect();
    assert!(in_vain.is_empty(), "no rule of ours grants these: {in_vain:?}");
}
