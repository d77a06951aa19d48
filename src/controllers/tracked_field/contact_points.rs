//! The contact points of all namespaces, and why one accepts no messages.

use std::sync::Arc;

use kube::ResourceExt as _;
use qm_api::ContactPoint;
use qm_core::conditions;
use qm_core::nearest::nearest;
use qm_notify::Transport;
use qm_notify::queue::Outbox;
use qm_runtime::ObjectKey;
use qm_runtime::cache::CacheStatus;
use qm_runtime::objects::Objects;
use qm_runtime::outcome::SUSPENDED;

use super::waiting::WaitingReason;
use crate::controllers::contact_point::endpoint::BODY_INVALID;
use crate::controllers::contact_point::status::PROGRESSING;

/// Maximum number of contact points whose names are compared with that of a missing one. A comparison of two long names
/// takes some 100 µs, and each reconcile of a `TrackedField` without its contact point makes them.
const MAX_COMPARED: usize = 100;

/// The contact points of all namespaces, and whether they accept messages.
pub struct ContactPointView<T> {
    pub points: Objects<ContactPoint>,
    /// State of the cache of contact points.
    pub cache: CacheStatus,
    pub outbox: Arc<Outbox<T>>,
}

impl<T: Transport> ContactPointView<T> {
    /// Returns the contact point of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<ContactPoint>> {
        self.points.get(&ObjectKey::new(namespace, name))
    }

    /// Returns why messages cannot be sent to a contact point now. A receiver whose requests fail counts only if a
    /// message `is_pending`.
    pub fn obstacle(&self, namespace: &str, name: &str, is_pending: bool) -> Option<WaitingReason> {
        if let Some(why) = self.cache.unavailable(namespace) {
            let because = format!("this operator does not serve contact points: {why}");
            let name = name.to_owned();
            return Some(WaitingReason::ContactPointNotReady { name, because });
        }
        let Some(point) = self.get(namespace, name) else {
            let nearest = nearest_point(&self.points, namespace, name);
            let name = name.to_owned();
            return Some(WaitingReason::ContactPointNotFound { name, nearest });
        };
        of_point(&point).or_else(|| {
            let message = self.outbox.failing(&ObjectKey::of(point.as_ref()))?;
            is_pending.then(|| WaitingReason::DeliveryFailing {
                name: name.to_owned(),
                message,
            })
        })
    }
}

/// Returns the most similar name of the first contact points of a namespace, if any is similar.
fn nearest_point(points: &Objects<ContactPoint>, namespace: &str, name: &str) -> Option<String> {
    let points = points.in_namespace(namespace, |_| true);
    let first = points.iter().take(MAX_COMPARED);
    let names: Vec<String> = first.map(|point| point.name_any()).collect();
    nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns the obstacle to sending messages to a contact point.
pub(crate) fn of_point(point: &ContactPoint) -> Option<WaitingReason> {
    let name = point.metadata.name.clone().unwrap_or_default();
    let status = point.status.as_ref();
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    if point.metadata.deletion_timestamp.is_some() {
        return Some(WaitingReason::ContactPointNotReady {
            name,
            because: "it is being deleted".into(),
        });
    }
    // A contact point that is being resumed reports its suspension until its status is written.
    if point.spec.suspend.unwrap_or_default()
        || ready.is_some_and(|ready| ready.reason == SUSPENDED)
    {
        return Some(WaitingReason::ContactPointNotReady {
            name,
            because: "it is suspended".into(),
        });
    }
    if status.is_some_and(|status| status.ready) {
        return None;
    }
    Some(match ready {
        None => WaitingReason::ContactPointNotObserved { name },
        Some(ready) if ready.reason == PROGRESSING => {
            WaitingReason::ContactPointNotObserved { name }
        }
        Some(ready) if ready.reason == BODY_INVALID => WaitingReason::TestBodyInvalid {
            name,
            message: ready.message.clone(),
        },
        Some(ready) => WaitingReason::ContactPointNotReady {
            name,
            because: format!("{}: {}", ready.reason, ready.message),
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    fn of(status: &serde_json::Value) -> Option<WaitingReason> {
        let point = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint", "metadata": { "name": "hook" },
            "spec": { "type": "webhook" }, "status": status,
        });
        of_point(&serde_json::from_value(point).unwrap())
    }

    #[test]
    fn missing_contact_point_is_compared_with_a_bounded_number_of_names() {
        let points = Objects::<ContactPoint>::default();
        let add = |name: &str| {
            let metadata = json!({ "namespace": "a", "name": name });
            let point = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint",
                "metadata": metadata, "spec": { "type": "Webhook" },
            });
            points.insert(serde_json::from_value(point).unwrap());
        };
        let nearest = || nearest_point(&points, "a", "telegram-chat");
        add("telegram-cp");
        assert_eq!(nearest().as_deref(), Some("telegram-cp"));
        for number in 0..MAX_COMPARED {
            add(&format!("a{number}"));
        }
        assert_eq!(nearest(), None);
    }

    /// Another tool's finalizer may keep the contact point for long.
    #[test]
    fn terminating_contact_point_sends_nothing() {
        let point = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint",
            "metadata": { "name": "hook", "deletionTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "type": "webhook" }, "status": { "initialized": true, "ready": true },
        });
        let reason = of_point(&serde_json::from_value(point).unwrap()).unwrap();
        assert_eq!(&*reason.message(), r#""hook": it is being deleted"#);
    }

    /// Both are applied from one file.
    #[test]
    fn new_contact_point_is_no_warning() {
        let new = of(&json!(null)).unwrap();
        assert_eq!(
            (new.reason(), &*new.message()),
            (
                "ContactPointNotReady",
                r#""hook": the operator has not tested it yet"#
            )
        );
        assert!(!new.is_warning());
        let condition = |status: &str, reason: &str| {
            json!([{ "type": "Ready", "status": status, "reason": reason, "message": "no",
                     "lastTransitionTime": "2026-01-01T00:00:00Z" }])
        };
        let awaited = json!({ "ready": false, "conditions": condition("False", PROGRESSING) });
        assert_eq!(of(&awaited), Some(new));
        let refused = json!({ "ready": false, "conditions": condition("False", "Unauthorized") });
        let refused = of(&refused).unwrap();
        assert_eq!(
            (refused.reason(), &*refused.message()),
            ("ContactPointNotReady", r#""hook": Unauthorized: no"#)
        );
        assert!(refused.is_warning());
        assert_eq!(
            of(&json!({ "ready": true, "conditions": condition("True", "Ready") })),
            None
        );
    }
}
