//! What `status` shows: of every object how it stands, and what all of it comes to. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::admission::{Policy, Unchecked, unchecked};
use super::lease::Operator;
use super::objects::{Object, State};
use super::paper::count;
use crate::registry;

/// All that is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the operator runs, as far as is known.
    pub operator: Who,
    /// What there is.
    #[serde(flatten)]
    pub seen: Seen,
    /// How many there are of each state, and what is oldest.
    pub summary: Summary,
}

/// What was seen of the kinds and their objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// The CRDs that are not installed.
    pub absent: Vec<String>,
    /// The CRDs that an operator of this version does not work with, as far as they may be read.
    pub not_served: Vec<Without>,
    /// The kinds that may not be listed.
    pub not_listed: Vec<Without>,
    /// The admission policies.
    pub admission_policies: Vec<Policy>,
    /// The objects that are older than the policy of their kind.
    pub unchecked: Vec<Unchecked>,
    /// Every object.
    pub objects: Vec<Object>,
}

/// What something is missing of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Without {
    /// Its name.
    pub name: String,
    /// Why.
    pub message: String,
}

/// Whether the operator runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    /// `Runs`, `Stopped` or `Unknown`.
    pub state: &'static str,
    /// Who acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// When they renewed the Lease, if they are late with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Timestamp>,
    /// Why nobody does, or why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl From<Operator> for Who {
    fn from(operator: Operator) -> Self {
        let who = |state, holder, message| Self {
            state,
            holder,
            renewed: None,
            message,
        };
        match operator {
            Operator::Runs(holder) | Operator::NotYet(holder) => who("Runs", Some(holder), None),
            Operator::Late(holder, renewed) => Self {
                renewed: Some(renewed),
                ..who("Runs", Some(holder), None)
            },
            Operator::Stopped(why) => who("Stopped", None, Some(why)),
            Operator::Absent(why) | Operator::Unread(why) | Operator::Unknown(why) => {
                who("Unknown", None, Some(why))
            }
        }
    }
}

/// What all of it comes to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// How many objects there are.
    pub objects: usize,
    /// Those that are well.
    pub ready: usize,
    /// Those that are not.
    pub not_ready: usize,
    /// Those whose messages are on their way.
    pub delivering: usize,
    /// Those that are left alone.
    pub suspended: usize,
    /// Those that are being deleted.
    pub deleting: usize,
    /// Those that nobody has looked at as they are now.
    pub unseen: usize,
    /// How many changes wait to be told.
    pub undelivered: u64,
    /// The `TrackedField` with the oldest of them, `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_undelivered: Option<String>,
}

impl Seen {
    /// Whether no kind may be listed.
    pub fn sees_none(&self) -> bool {
        self.not_listed.len() == registry::KINDS.len()
    }
}

impl Summary {
    /// Each state that there are any of; the first two in any case.
    pub fn words(&self) -> String {
        let Self {
            ready,
            not_ready,
            delivering,
            suspended,
            deleting,
            unseen,
            ..
        } = self;
        let others = [
            (delivering, "delivering"),
            (suspended, "suspended"),
            (deleting, "deleting"),
            (unseen, "unseen"),
        ];
        let others = others.into_iter().filter(|(number, _)| **number > 0);
        let states = [(ready, "ready"), (not_ready, "not ready")]
            .into_iter()
            .chain(others);
        let states = states
            .map(|(number, state)| format!("{number} {state}"))
            .collect::<Vec<_>>()
            .join(", ");
        format!("{}: {states}", count(self.objects, "object", "objects"))
    }
}

/// What all of it comes to. Pure.
pub fn report(operator: Operator, mut seen: Seen) -> Report {
    seen.objects.sort_by(|one, other| {
        (&one.namespace, &one.kind, &one.name).cmp(&(&other.namespace, &other.kind, &other.name))
    });
    seen.unchecked = unchecked(&seen.admission_policies, &seen.objects);
    let objects = &seen.objects;
    let are = |state: State| {
        objects
            .iter()
            .filter(|object| object.state == state)
            .count()
    };
    let summary = Summary {
        objects: objects.len(),
        ready: are(State::Ready),
        not_ready: are(State::NotReady),
        delivering: are(State::Delivering),
        suspended: are(State::Suspended),
        deleting: are(State::Deleting),
        unseen: are(State::Unseen),
        undelivered: objects.iter().map(|object| object.pending).sum(),
        oldest_undelivered: oldest(objects)
            .map(|object| format!("{}/{}", object.namespace, object.name)),
    };
    Report {
        operator: operator.into(),
        seen,
        summary,
    }
}

/// The object with the oldest message that is not delivered.
pub fn oldest(objects: &[Object]) -> Option<&Object> {
    objects
        .iter()
        .filter(|object| object.oldest_undelivered.is_some())
        .min_by_key(|object| {
            object
                .oldest_undelivered
                .as_ref()
                .and_then(|oldest| oldest.time)
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::*;
    use crate::commands::{lease, objects};

    fn object(controller: &str, namespace: &str, name: &str, status: &Value) -> Object {
        let object = json!({ "metadata": { "namespace": namespace, "name": name }, "spec": {}, "status": status });
        Object::of(
            objects::kind(controller).unwrap(),
            &serde_json::from_value(object).unwrap(),
        )
    }

    /// Or else one that is written into a file has a new report with every look.
    #[test]
    fn an_operator_that_stopped_is_the_same_report_however_long_ago() {
        let said = lease::Said::Lease {
            holder: "a".into(),
            duration: std::time::Duration::from_secs(9),
            renewed: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        };
        let at = |time: &str| {
            report(
                lease::at_a_glance(&said, time.parse().unwrap()),
                Seen::default(),
            )
        };
        let one = at("2026-01-01T00:01:00Z");
        assert_eq!(one, at("2026-01-01T00:01:01Z"));
        let why = "a has not renewed its Lease since 2026-01-01 00:00:00Z";
        assert_eq!(
            (one.operator.state, one.operator.message.as_deref()),
            ("Stopped", Some(why))
        );
        // Nor while it is about to count as stopped.
        let late = at("2026-01-01T00:00:20Z");
        assert_eq!(late, at("2026-01-01T00:00:21Z"));
        assert_eq!(
            late.operator.renewed,
            Some("2026-01-01T00:00:00Z".parse().unwrap())
        );
        assert_eq!(at("2026-01-01T00:00:05Z").operator.renewed, None);
    }

    #[test]
    fn every_object_counts_somewhere() {
        let going = json!({ "namespace": "a", "name": "going", "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let going = serde_json::from_value(json!({ "metadata": going, "spec": {} })).unwrap();
        let objects = vec![
            object("myapp", "a", "new", &Value::Null),
            Object::of(objects::kind("configmapsync").unwrap(), &going),
            object("contactpoint", "a", "web", &json!({ "ready": true })),
        ];
        let report = report(
            Operator::Unknown("why".into()),
            Seen {
                objects,
                ..Seen::default()
            },
        );
        assert_eq!(
            report.summary.words(),
            "3 objects: 1 ready, 0 not ready, 1 deleting, 1 unseen"
        );
    }

    #[test]
    fn the_oldest_undelivered_of_all_is_found_and_all_are_counted() {
        let pending = |time: &str| json!([{ "time": time, "action": "Updated", "value": "1", "delivery": "Pending" }]);
        let objects = vec![
            object("trackedfield", "b", "old", &pending("2026-01-01T00:00:00Z")),
            object(
                "trackedfield",
                "a",
                "young",
                &pending("2026-01-02T00:00:00Z"),
            ),
            object("contactpoint", "b", "web", &json!({ "ready": true })),
        ];
        let report = report(
            Operator::Unknown("why".into()),
            Seen {
                objects,
                ..Seen::default()
            },
        );
        let order: Vec<_> = report
            .seen
            .objects
            .iter()
            .map(|object| (object.namespace.as_str(), object.title()))
            .collect();
        let title = |text: &str| text.to_owned();
        assert_eq!(
            order,
            [
                ("a", title("trackedfield/young")),
                ("b", title("contactpoint/web")),
                ("b", title("trackedfield/old"))
            ]
        );
        let oldest_undelivered = Some("b/old".into());
        let summary = Summary {
            objects: 3,
            ready: 1,
            delivering: 2,
            undelivered: 2,
            oldest_undelivered,
            ..Summary::default()
        };
        assert_eq!(report.summary, summary);
        assert_eq!(
            summary.words(),
            "3 objects: 1 ready, 0 not ready, 2 delivering"
        );
    }
}
