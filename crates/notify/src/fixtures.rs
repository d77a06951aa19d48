//! Entries for tests.

use std::collections::BTreeMap;

use qm_api::tracked_field::{ChangeAction, Delivery, Entry, Subject, TargetReference};

use crate::OutgoingEntry;

pub(crate) fn subject(kind: &str, namespace: &str, name: &str, field: &str) -> Subject {
    let target = TargetReference {
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..TargetReference::default()
    };
    Subject::new(&target, field)
}

/// Returns an entry of `replicas` of Deployment `default/nginx`, with id `e1`.
pub(crate) fn item(
    action: ChangeAction,
    value: Option<&str>,
    previous: Option<Entry>,
) -> OutgoingEntry {
    let entry = Entry {
        time: "2026-01-02T03:04:05Z"
            .parse()
            .ok()
            .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time),
        action,
        value: value.map(Into::into),
        display_value: None,
        missing: false,
        truncated: None,
        id: Some("e1".into()),
        delivery: Some(Delivery::Pending),
        skipped: None,
        reason: None,
        subject: Some(subject("Deployment", "default", "nginx", "replicas")),
        uid: Some("u1".into()),
        resource_version: None,
        context: BTreeMap::new(),
        changed_by: None,
        merged: None,
        first_value: None,
        suspended_since: None,
        suspended_seconds: None,
    };
    OutgoingEntry {
        namespace: "team".into(),
        name: "replicas-of-nginx".into(),
        uid: "t1".into(),
        template: None,
        entry,
        previous,
    }
}

/// Returns an entry of the same field that changed from `old` to `new`.
pub(crate) fn updated(old: &str, new: &str) -> OutgoingEntry {
    let previous = Entry {
        id: Some("e0".into()),
        ..item(ChangeAction::Created, Some(old), None).entry
    };
    item(ChangeAction::Updated, Some(new), Some(previous))
}
