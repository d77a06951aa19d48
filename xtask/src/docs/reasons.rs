//! Pages of the reasons, the Events and the conditions.

use std::fmt::Write as _;

use qm_core::conditions::{READY, RECONCILING, STALLED};
use quartermaster::controllers::KINDS;
use quartermaster::controllers::contact_point::status::OUTCOMES_RECORDED;

use super::markdown::{cell, page_of};

pub mod table;

const REASONS: &str = "\
# Reasons

Every reason of the condition `Ready`, and of a TrackedField that waits, kind by kind: its meaning, when the operator retries, and
what you can do. `kubectl describe` shows an object's reason and message, and so does `quartermaster status`. The message says more
than this page: it names the object and quotes the error.

To make the operator try at once, annotate the object:
`kubectl -n NAMESPACE annotate KIND/NAME quartermaster.dev/requested-at=\"$(date +%s)\" --overwrite`. \"After 1 s, growing to
30 s\" means that the delay doubles, with random jitter.

`quartermaster status` and the [metric](metrics.md) `quartermaster_resources` also know `NotObserved`: no status describes the current
spec yet. If that lasts, no operator serves the object: [Troubleshoot](../operate/troubleshoot.md). An object that is being deleted is
`Terminating` instead.
";

const EVENTS: &str = "\
# Events

The operator emits two groups of Events. `kubectl events --for KIND/NAME` shows those of an object; the apiserver deletes them after an hour.

## Events of reasons

Such an Event has the action `Reconcile`, and the reason and message of the condition `Ready`: [Reasons](reasons.md).

| kind | emitted for |
| --- | --- |
";

const CONDITIONS: &str = "\
# Conditions

The conditions of each kind, in the form that `kubectl wait` and
[kstatus](https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md) read. Flux and Helm's `--wait` use kstatus.
[Reasons](reasons.md) lists the reasons.

";

const WAITING: &str = "
## Waiting for an object

- `kubectl wait --for=condition=Ready KIND/NAME --timeout=5m` waits until the object matches its current spec: the condition has an
  `observedGeneration`, which `kubectl wait` compares with the object.
- kstatus calls an object `Current` when `Ready` is True, `InProgress` while `Reconciling` is True, and `Failed` when `Stalled` is True.
- `status.observedGeneration` is the generation of the spec that the whole status describes. It is -1 until the operator has
  observed the object, which kstatus calls `InProgress`.

A TrackedField has no conditions, because its status is the list of its history:

- The annotations `quartermaster.dev/waiting` and `quartermaster.dev/waiting-reason` exist while something is wrong.
- `kubectl wait --for=jsonpath='{.status[-1:].delivery}'=Delivered tf/NAME` waits until the last change was delivered.
- kstatus expects an object in `status` and fails for a TrackedField. With Flux, keep TrackedFields in a Kustomization without `wait`.
";

/// Returns the page of the reasons.
pub fn reasons() -> String {
    let mut page = REASONS.to_owned();
    for kind in kinds() {
        // Writing to a String does not fail.
        let _ = write!(
            page,
            "\n## {kind}\n\n{}| reason | meaning | the operator retries | what to do |\n| --- | --- | --- | --- |\n",
            note(&kind)
        );
        for it in of(&kind) {
            page.push_str(&row(it));
        }
        if kind == "ContactPoint" {
            let _ = write!(
                page,
                "\nReason of the condition `{OUTCOMES_RECORDED}`:\n\n| reason | meaning | the operator retries | what to do |\n\
                 | --- | --- | --- | --- |\n{}",
                row(&table::OUTCOMES_RECORDED)
            );
        }
        let _ = write!(
            page,
            "\nExplained in [{kind}](../kinds/{}).\n",
            page_of(&kind)
        );
    }
    page
}

fn row(it: &table::Reason) -> String {
    format!(
        "| `{}` | {} | {} | {} |\n",
        it.name,
        cell(it.meaning),
        it.retry.text(),
        cell(it.remedy)
    )
}

/// Returns the page of the Events.
pub fn events() -> String {
    let mut page = EVENTS.to_owned();
    for (kind, emitted) in ordered(table::REPORTED) {
        let _ = writeln!(page, "| {kind} | {emitted} |");
    }
    page.push_str("\n## Events of actions\n\n| reason | kinds | type | action | meaning | what to do |\n| --- | --- | --- | --- | --- | --- |\n");
    let mut events: Vec<_> = table::EVENTS.iter().collect();
    events.sort_by_key(|event| event.name);
    for event in events {
        let type_ = if event.is_warning {
            "Warning"
        } else {
            "Normal"
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {type_} | `{}` | {} | {} |",
            event.name,
            event.kinds.join(", "),
            event.action,
            cell(event.meaning),
            cell(event.remedy)
        );
    }
    page
}

/// Returns the page of the conditions.
pub fn conditions() -> String {
    let mut page = CONDITIONS.to_owned();
    page.push_str("| condition | kinds | True while | absent |\n| --- | --- | --- | --- |\n");
    for (condition, kinds, meaning, absent) in [
        (
            READY,
            "all but TrackedField",
            "the object matches its spec",
            "before the first reconcile",
        ),
        (
            RECONCILING,
            "all but TrackedField",
            "`Ready` is False or Unknown, and the operator works on the object, retries, or waits for another object",
            "otherwise",
        ),
        (
            STALLED,
            "all but TrackedField",
            "`Ready` is False, and the operator does not retry: only a change of the spec helps",
            "otherwise",
        ),
        (
            OUTCOMES_RECORDED,
            "ContactPoint",
            "never: it is False while the apiserver rejects the status of a TrackedField",
            "otherwise",
        ),
        (
            "Available",
            "AppService",
            "enough Pods of the Deployment are available",
            "before the Deployment exists",
        ),
        (
            "Progressing",
            "AppService",
            "the Deployment is rolled out, or was",
            "before the Deployment exists",
        ),
        (
            "ReplicaFailure",
            "AppService",
            "Kubernetes cannot create Pods of the Deployment",
            "otherwise",
        ),
    ] {
        let _ = writeln!(page, "| `{condition}` | {kinds} | {meaning} | {absent} |");
    }
    let _ = write!(
        page,
        "\n`{RECONCILING}` and `{STALLED}` repeat the reason and message of `{READY}`. A suspended object has neither: kstatus calls it \
         `InProgress`, so Flux's `wait` and Helm's `--wait` time out. The last three conditions are those of the Deployment.\n{WAITING}"
    );
    page
}

/// Returns the kinds in their order.
fn kinds() -> impl Iterator<Item = String> {
    KINDS.iter().map(|kind| kind.resource().kind)
}

/// Returns these rows in the order of the kinds.
fn ordered(rows: &[(&'static str, &'static str)]) -> Vec<(String, &'static str)> {
    let text = |kind: &str| {
        rows.iter()
            .find(|(of, _)| *of == kind)
            .map(|(_, text)| *text)
    };
    kinds()
        .filter_map(|kind| text(&kind).map(|text| (kind, text)))
        .collect()
}

fn note(kind: &str) -> String {
    let notes = ordered(table::NOTES);
    let found = notes.into_iter().find(|(of, _)| of == kind);
    found.map_or_else(String::new, |(_, note)| format!("{note}\n\n"))
}

/// Returns the reasons of a kind.
pub fn of(kind: &str) -> impl Iterator<Item = &'static table::Reason> {
    table::REASONS
        .iter()
        .filter(move |reason| reason.kinds.contains(&kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::BTreeSet;

    use super::*;

    /// Returns the texts of the tables, each with the name of its row.
    fn texts() -> Vec<(&'static str, &'static str)> {
        let reasons = table::REASONS.iter().chain([&table::OUTCOMES_RECORDED]);
        let reasons = reasons.flat_map(|it| [(it.name, it.meaning), (it.name, it.remedy)]);
        let events = table::EVENTS
            .iter()
            .flat_map(|it| [(it.name, it.meaning), (it.name, it.remedy)]);
        reasons
            .chain(events)
            .chain(table::REPORTED.iter().copied())
            .chain(table::NOTES.iter().copied())
            .collect()
    }

    #[test]
    fn text_has_whole_sentences_of_at_most_25_words() {
        for (name, text) in texts() {
            assert!(text.ends_with('.') && !text.contains('|'), "{name}: {text}");
            let paragraphs = text.split("\n\n");
            for sentence in paragraphs.flat_map(|paragraph| paragraph.split(". ")) {
                let words = sentence.split_whitespace().count();
                assert!(words <= 25, "{name}: {words} words: {sentence}");
            }
        }
    }

    #[test]
    fn kind_has_each_reason_once() {
        let kinds: Vec<_> = kinds().collect();
        for kind in &kinds {
            let names: Vec<_> = of(kind).map(|it| it.name).collect();
            let once: BTreeSet<_> = names.iter().collect();
            assert!(
                names.len() > 10 && once.len() == names.len(),
                "{kind}: {names:?}"
            );
            assert!(
                ordered(table::REPORTED).iter().any(|(of, _)| of == kind),
                "{kind}"
            );
        }
        let named = table::REASONS.iter().flat_map(|it| it.kinds);
        let named = named.chain(table::EVENTS.iter().flat_map(|it| it.kinds));
        for kind in named.chain(table::NOTES.iter().map(|(kind, _)| kind)) {
            assert!(kinds.iter().any(|it| it == kind), "{kind}");
        }
    }

    #[test]
    fn delays_are_those_of_the_operator() {
        use table::Retry;
        assert_eq!(Retry::Poll.text(), "after 1 s, growing to 30 s");
        assert_eq!(Retry::Slow.text(), "after 15 s, growing to 10 min");
    }
}
