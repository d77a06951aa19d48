//! Notifications that the receiver got.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Scene;
use crate::support::{READY, accepted, changes};

/// Returns the changes that the receiver accepted, by `TrackedField`, in order, and each once.
pub fn sent(scene: &Scene<'_>) -> Value {
    let (mut ids, mut fields) = (BTreeSet::new(), BTreeMap::<String, Vec<Value>>::new());
    for change in changes(&scene.receiver) {
        // A replica that was frozen may send a change of an earlier round late.
        if change["namespace"] != scene.bed.namespace.as_str() {
            continue;
        }
        if ids.insert(change["id"].to_string()) {
            let of = format!("{} {}", change["kind"], change["name"]).replace('"', "");
            let shown = json!([change["action"], change["value"], change["previous"]]);
            fields.entry(of).or_default().push(shown);
        }
    }
    json!(fields)
}

/// Asserts that only a kill, or a fault with its effect, repeats a message: at most the request in flight, with entries
/// or a test message. Without such a fault there are `tests` test messages.
pub fn assert_repeats_bounded(scene: &Scene<'_>, tests: usize) {
    let mut requests = accepted(&scene.receiver);
    requests.retain(|it| it.text().contains(&scene.bed.namespace));
    let is_test = |request: &&std::sync::Arc<testbed::receiver::Request>| {
        request.header("ce-type") == Some(READY)
    };
    let sent = requests.iter().filter(is_test).count();
    assert!(
        sent >= tests,
        "{sent} of {tests} test messages were delivered"
    );
    let more_tests = sent - tests;
    let (mut seen, mut repeated) = (BTreeSet::new(), 0);
    for request in requests.iter().filter(|it| !is_test(it)) {
        let data = request.json().unwrap();
        let ids = match data["ids"].as_array() {
            Some(ids) => ids.clone(),
            None => vec![data["id"].clone()],
        };
        let new = ids.iter().filter(|id| seen.insert(id.to_string())).count();
        repeated += usize::from(new < ids.len());
    }
    let allowed = scene.permitted_repeats();
    assert!(
        more_tests + repeated <= allowed,
        "{more_tests} test messages and {repeated} requests with changes were repeated; {allowed} may be"
    );
}
