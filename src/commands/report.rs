//! The report of `status`, as JSON and as text.

use std::collections::{BTreeMap, HashSet};
use std::{io, slice};

use kube::Resource as _;
use qm_api::TrackedFieldSet;
use qm_runtime::outcome::SUSPENDED;
use serde::Serialize;

use super::admission::{Policy, Unchecked, unchecked};
use super::in_namespace;
use super::objects::{ObjectState, ObjectSummary};
use super::operator_state::OperatorState;
use super::printer::{Cell, Colour, Printer, count, format_age, shorten};
use crate::cli::commands::ScopeArgs;
use crate::{INSTALL_CRDS, REPLACE_CRDS};

/// Maximum number of printed objects that are older than the admission policies.
const MAX_UNCHECKED: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct StatusReport {
    operator: OperatorState,
    #[serde(flatten)]
    snapshot: ClusterSnapshot,
    summary: Summary,
}

/// The state of the cluster, as far as the user may read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterSnapshot {
    /// Names of CRDs that are not installed.
    #[serde(rename = "missingCRDs")]
    pub(crate) missing_crds: Vec<String>,
    /// CRDs that an operator of this version does not serve.
    #[serde(rename = "incompatibleCRDs")]
    pub(crate) incompatible_crds: Vec<IncompatibleCrd>,
    /// Kinds that the user may not list.
    pub(crate) forbidden_kinds: Vec<UnavailableKind>,
    pub(crate) admission_policies: Vec<Policy>,
    /// Objects that are older than the policy of their kind.
    pub(crate) unchecked: Vec<Unchecked>,
    pub(crate) objects: Vec<ObjectSummary>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct UnavailableKind {
    pub(crate) name: String,
    pub(crate) message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct IncompatibleCrd {
    pub(crate) name: String,
    pub(crate) message: String,
    /// Whether no version of the operator serves the CRD.
    #[serde(skip)]
    pub(crate) is_foreign: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    objects: usize,
    ready: usize,
    not_ready: usize,
    delivering: usize,
    suspended: usize,
    terminating: usize,
    not_observed: usize,
    /// Number of Pending changes.
    undelivered: usize,
    /// `NAMESPACE/NAME` of the `TrackedField` with the oldest of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_undelivered: Option<String>,
}

impl StatusReport {
    pub(crate) fn new(operator: OperatorState, mut snapshot: ClusterSnapshot) -> Self {
        snapshot.objects.sort_by(|a, b| {
            (&a.namespace, &a.kind, &a.name).cmp(&(&b.namespace, &b.kind, &b.name))
        });
        snapshot.forget_deleted_sets();
        snapshot.unchecked = unchecked(&snapshot.admission_policies, &snapshot.objects);
        Self {
            operator,
            summary: Summary::of(&snapshot.objects),
            snapshot,
        }
    }

    /// Returns whether every kind could be listed.
    pub(crate) fn is_complete(&self) -> bool {
        self.snapshot.forbidden_kinds.is_empty()
    }

    pub(crate) fn print(&self, scope: &ScopeArgs, out: &mut Printer) -> io::Result<()> {
        let snapshot = &self.snapshot;
        if snapshot.objects.is_empty() {
            let in_namespace = in_namespace(scope.namespace());
            let explain = if snapshot.missing_crds.is_empty() && snapshot.forbidden_kinds.is_empty()
            {
                let command = "kubectl explain trackedfield.spec";
                format!("; to see what to write: {}", scope.cluster.command(command))
            } else {
                String::new()
            };
            out.line(format!(
                "There are no Quartermaster objects{in_namespace} yet{explain}"
            ))?;
        } else {
            self.print_objects(out)?;
        }
        for UnavailableKind { name, message } in &snapshot.forbidden_kinds {
            out.line(format!(
                "Not shown: {name}, which could not be listed: {message}"
            ))?;
        }
        out.line(match &self.operator {
            OperatorState::Running { holder, overdue } => {
                let overdue = overdue.map(|at| format!(", last renewed {} ago", format_age(at)));
                let overdue = overdue.unwrap_or_default();
                format!("The operator is running: {holder} is the leader{overdue}")
            }
            state => state.problem().unwrap_or_default(),
        })?;
        self.print_admission(out)?;
        for IncompatibleCrd {
            name,
            message,
            is_foreign,
        } in &snapshot.incompatible_crds
        {
            // The operator may have the CRD's version; then replacing the CRD with this program's would be wrong.
            if self.operator.is_running() && !is_foreign {
                out.line(format!(
                    "Served only by an operator of its version: {name} {message}"
                ))?;
            } else {
                let replace = scope.cluster.command(REPLACE_CRDS);
                out.line(format!("Not served: {name} {message} ({replace})"))?;
            }
        }
        if !snapshot.missing_crds.is_empty() {
            let install = scope.cluster.command(INSTALL_CRDS);
            out.line(format!(
                "Not installed: {} ({install})",
                snapshot.missing_crds.join(", ")
            ))?;
        }
        Ok(())
    }

    fn print_objects(&self, out: &mut Printer) -> io::Result<()> {
        let objects = &self.snapshot.objects;
        let shown = objects.iter().filter(|it| it.healthy_child_of().is_none());
        let rows: Vec<_> = shown.map(row).collect();
        if !rows.is_empty() {
            out.table(&["NAMESPACE", "OBJECT", "STATE", "FOR", "REASON"], &rows)?;
        }
        out.paragraph(healthy_children(objects))?;
        for object in objects {
            let state = object.state.to_string();
            let (head, lines) = match &*object.blockers {
                _ if object.state == ObjectState::Suspended => continue,
                [] if object.message.is_empty() => continue,
                [] => (&object.reason, slice::from_ref(&object.message)),
                blockers => (&state, blockers),
            };
            out.section(&format!("{}: {head}", object.title()), lines)?;
        }
        out.line("")?;
        out.line(self.summary.text())?;
        if let Some(object) = oldest(objects)
            && let Some(change) = &object.oldest_undelivered
        {
            let value = change.value.as_deref();
            let value = value.map(|value| format!(" {:?}", shorten(value)));
            let age = change.time.map(|at| format!(", for {}", format_age(at)));
            out.line(format!(
                "Oldest undelivered message: {}, {}{}{}; {} in all",
                object.title(),
                change.action,
                value.unwrap_or_default(),
                age.unwrap_or_default(),
                count(self.summary.undelivered, "change waits", "changes wait"),
            ))?;
        }
        Ok(())
    }

    /// Prints nothing while all policies are in force and no object is older than they are.
    fn print_admission(&self, out: &mut Printer) -> io::Result<()> {
        let unchecked = &self.snapshot.unchecked;
        let of_state = |state: &'static str| {
            let policies = self.snapshot.admission_policies.iter();
            policies.filter(move |policy| policy.state == state)
        };
        if of_state("NotInForce").next().is_some() {
            out.line("Admission policies that are not in force, so the permissions of authors may go unchecked:")?;
            for policy in of_state("NotInForce") {
                out.line(format!("  {}", policy.message))?;
            }
            out.line("  To install them: use what installed the operator (make deploy, kubectl apply or helm upgrade)")?;
        }
        if let Some(policy) = of_state("Unknown").next() {
            let why = &policy.message;
            out.line(format!(
                "Cannot tell whether the admission policies are in force: {why}"
            ))?;
        }
        if unchecked.is_empty() {
            return Ok(());
        }
        let number = count(unchecked.len(), "object is older", "objects are older");
        let authors = if unchecked.len() == 1 {
            "its author's"
        } else {
            "their authors'"
        };
        out.line(format!(
            "{number} than the admission policies, which did not check {authors} permissions:"
        ))?;
        for object in unchecked.iter().take(MAX_UNCHECKED) {
            let kind = object.kind.to_lowercase();
            out.line(format!("  {kind}/{} in {}", object.name, object.namespace))?;
        }
        if unchecked.len() > MAX_UNCHECKED {
            out.line("  ... (-o json lists them all)")?;
        }
        out.line("  A policy checks an object when its spec changes: ask the author to change a field, such as suspend, and to change it back. The object stays in this list.")?;
        out.line("  Delete what you do not trust. That also deletes its children, copies and undelivered messages.")
    }
}

impl ClusterSnapshot {
    /// Removes the set of each `TrackedField` whose set does not exist, unless the user may not list sets.
    fn forget_deleted_sets(&mut self) {
        let plural = TrackedFieldSet::plural(&());
        if self.forbidden_kinds.iter().any(|it| it.name == plural) {
            return;
        }
        let kind = TrackedFieldSet::kind(&());
        let sets: HashSet<_> = self
            .objects
            .iter()
            .filter(|it| it.kind == kind)
            .map(|it| (it.namespace.clone(), it.name.clone()))
            .collect();
        for object in &mut self.objects {
            let namespace = &object.namespace;
            object
                .set
                .take_if(|set| !sets.contains(&(namespace.clone(), set.clone())));
        }
    }
}

/// Returns a line for each set about its `TrackedField`s that have no problem. A set may have thousands of them.
fn healthy_children(objects: &[ObjectSummary]) -> Vec<String> {
    let mut states = BTreeMap::<_, Vec<ObjectState>>::new();
    for object in objects {
        if let Some(set) = object.healthy_child_of() {
            let of_set = states.entry((&object.namespace, set)).or_default();
            of_set.push(object.state);
        }
    }
    let states = states.into_iter();
    states
        .map(|((namespace, set), states)| {
            let parts: Vec<_> = [
                (ObjectState::Ready, "ready"),
                (ObjectState::Delivering, "delivering"),
                (ObjectState::Suspended, "suspended"),
            ]
            .into_iter()
            .map(|(state, word)| (states.iter().filter(|it| **it == state).count(), word))
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
            format!(
                "TrackedFields of the set {set} in {namespace}: {}",
                parts.join(", ")
            )
        })
        .collect()
}

fn row(object: &ObjectSummary) -> Vec<Cell> {
    let reason = Some(object.reason.clone()).filter(|it| !it.is_empty() && it != SUSPENDED);
    let pending = (object.pending > 0).then(|| format!("{} undelivered", object.pending));
    let reasons: Vec<_> = reason.into_iter().chain(pending).collect();
    let age = object.since.map(format_age).unwrap_or_default();
    vec![
        (&object.namespace).into(),
        object.short_title().into(),
        Cell::new(object.state.to_string(), object.state.colour()),
        Cell::new(age, Colour::Dim),
        reasons.join(", ").into(),
    ]
}

impl Summary {
    fn of(objects: &[ObjectSummary]) -> Self {
        let number = |state| objects.iter().filter(|it| it.state == state).count();
        Self {
            objects: objects.len(),
            ready: number(ObjectState::Ready),
            not_ready: number(ObjectState::NotReady),
            delivering: number(ObjectState::Delivering),
            suspended: number(ObjectState::Suspended),
            terminating: number(ObjectState::Terminating),
            not_observed: number(ObjectState::NotObserved),
            undelivered: objects.iter().map(|object| object.pending).sum(),
            oldest_undelivered: oldest(objects).map(|it| format!("{}/{}", it.namespace, it.name)),
        }
    }

    /// Returns the number of each state; of states other than ready and not ready only if there are any.
    fn text(&self) -> String {
        let mut text = format!(
            "{}: {} ready, {} not ready",
            count(self.objects, "object", "objects"),
            self.ready,
            self.not_ready
        );
        for (number, state) in [
            (self.delivering, "delivering"),
            (self.suspended, "suspended"),
            (self.terminating, "terminating"),
            (self.not_observed, "not observed"),
        ] {
            if number > 0 {
                text = format!("{text}, {number} {state}");
            }
        }
        text
    }
}

/// Returns the object with the oldest change that is Pending.
fn oldest(objects: &[ObjectSummary]) -> Option<&ObjectSummary> {
    let changes = objects.iter().filter_map(|object| {
        let oldest = object.oldest_undelivered.as_ref()?;
        Some((oldest.time, object))
    });
    let oldest = changes.min_by_key(|(time, _)| *time)?;
    Some(oldest.1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::tracked_field_set::SET;
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::objects::tests::kind;

    fn object(controller: &str, metadata: &Value, status: &Value) -> ObjectSummary {
        let object = json!({ "metadata": metadata, "spec": {}, "status": status });
        ObjectSummary::new(kind(controller), &serde_json::from_value(object).unwrap())
    }

    fn report(objects: Vec<ObjectSummary>) -> StatusReport {
        let snapshot = ClusterSnapshot {
            objects,
            ..ClusterSnapshot::default()
        };
        let operator = OperatorState::Unknown {
            message: "why".into(),
        };
        StatusReport::new(operator, snapshot)
    }

    #[test]
    fn summary_counts_every_object() {
        let name = |name: &str| json!({ "namespace": "a", "name": name });
        let mut deleting = name("deleting");
        deleting["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let report = report(vec![
            object("myapp", &name("new"), &json!(null)),
            object("configmapsync", &deleting, &json!(null)),
            object("contactpoint", &name("web"), &json!({ "ready": true })),
        ]);
        assert_eq!(
            report.summary.text(),
            "3 objects: 1 ready, 0 not ready, 1 terminating, 1 not observed"
        );
    }

    #[test]
    fn tracked_fields_of_a_deleted_set_are_on_their_own() {
        let child = |name: &str, set: &str| {
            let owner = json!([{ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet", "name": set, "uid": "1",
                "controller": true }]);
            let metadata = json!({ "namespace": "ops", "name": name, "labels": { SET: set }, "ownerReferences": owner });
            object(
                "trackedfield",
                &metadata,
                &json!([{ "action": "Created", "value": "1" }]),
            )
        };
        let objects = || {
            let set = json!({ "namespace": "ops", "name": "all" });
            let set = object("trackedfieldset", &set, &json!(null));
            vec![set, child("a", "all"), child("b", "deleted")]
        };
        let report = report(objects());
        assert_eq!(
            healthy_children(&report.snapshot.objects),
            ["TrackedFields of the set all in ops: 1 ready"]
        );

        let forbidden = UnavailableKind {
            name: "trackedfieldsets".into(),
            message: "forbidden".into(),
        };
        let mut unknown = ClusterSnapshot {
            objects: objects(),
            forbidden_kinds: vec![forbidden],
            ..ClusterSnapshot::default()
        };
        unknown.forget_deleted_sets();
        assert_eq!(healthy_children(&unknown.objects).len(), 2);
    }

    #[test]
    fn oldest_undelivered_change_is_found_and_all_are_counted() {
        let name = |namespace: &str, name: &str| json!({ "namespace": namespace, "name": name });
        let pending = |time: &str| json!([{ "time": time, "action": "Updated", "value": "1", "delivery": "Pending" }]);
        let (old, young) = (
            pending("2026-01-01T00:00:00Z"),
            pending("2026-01-02T00:00:00Z"),
        );
        let report = report(vec![
            object("trackedfield", &name("b", "old"), &old),
            object("trackedfield", &name("a", "young"), &young),
            object("contactpoint", &name("b", "web"), &json!({ "ready": true })),
        ]);
        let objects = report.snapshot.objects.iter();
        assert_eq!(
            objects.map(ObjectSummary::title).collect::<Vec<_>>(),
            [
                "trackedfield/young in a",
                "contactpoint/web in b",
                "trackedfield/old in b"
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
            summary.text(),
            "3 objects: 1 ready, 0 not ready, 2 delivering"
        );
    }
}
