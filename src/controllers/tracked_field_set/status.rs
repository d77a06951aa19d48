//! The status of a `TrackedFieldSet`: reasons and messages. Pure.

use std::collections::HashSet;
use std::time::Duration;

use qm_api::tracked_field::Initial;
use qm_api::tracked_field_set::{MAX_CHILDREN, TrackedFieldSetSpec, TrackedFieldSetStatus};
use qm_core::conditions::READY;
use qm_notify::message;
use qm_notify::when::When;
use qm_runtime::ObjectKey;
use qm_runtime::drift::CONTESTED;
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, Error, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, Result,
    WRITE_FAILED, WRITE_REJECTED,
};
use qm_runtime::outcome::{Outcome, Progress, Requeue, SPEC_INVALID, SUSPENDED};
use qm_runtime::watch::{ResourceName, WatchProblem};

use super::child;
use super::plan::Plan;
use super::writes::Rejections;
use crate::controllers::contact_point::endpoint::BODY_INVALID;
use crate::controllers::reasons::{NAMESPACE_NOT_FOUND, OUT_OF_SCOPE};
use crate::controllers::tracked_field::field::{FIELD_NOT_FOUND, PATH_INVALID, Selectors};
use crate::controllers::tracked_field::waiting::{
    CONTACT_POINT_NOT_FOUND, CONTACT_POINT_NOT_READY, DELIVERY_FAILING, RESOURCE_MISMATCH,
    TARGET_UNREADABLE, TEMPLATE_INVALID, WHEN_INVALID, WaitingReason,
};

/// Reason of a set for which nothing matches.
pub(crate) const NOTHING_MATCHES: &str = "NothingMatches";
/// Reason of a set whose resources are not listed yet, or whose children are being created.
pub const PROGRESSING: &str = "Progressing";
/// Reason of a set that selects more resources than it may track.
pub(crate) const TOO_MANY_TARGETS: &str = "TooManyTargets";

/// Reason of a set whose children are unknown.
pub const TRACKED_FIELDS_NOT_SERVED: &str = "TrackedFieldsNotServed";

/// Time for which the status of a set stays while its resources are listed.
pub(super) const LISTING_GRACE: Duration = Duration::from_secs(10);

pub const REASONS: [&str; 27] = [
    READY,
    NOTHING_MATCHES,
    PROGRESSING,
    SUSPENDED,
    SPEC_INVALID,
    FIELD_NOT_FOUND,
    PATH_INVALID,
    TEMPLATE_INVALID,
    WHEN_INVALID,
    RESOURCE_MISMATCH,
    FORBIDDEN,
    TARGET_UNREADABLE,
    OUT_OF_SCOPE,
    NAMESPACE_NOT_FOUND,
    TOO_MANY_TARGETS,
    QUOTA_EXCEEDED,
    CONFLICT,
    CHILD_TERMINATING,
    NAMESPACE_TERMINATING,
    CONTESTED,
    WRITE_REJECTED,
    WRITE_FAILED,
    CONTACT_POINT_NOT_FOUND,
    CONTACT_POINT_NOT_READY,
    BODY_INVALID,
    DELIVERY_FAILING,
    TRACKED_FIELDS_NOT_SERVED,
];

/// Checks the fields, template and condition of a spec, without the cluster.
pub fn check(spec: &TrackedFieldSetSpec) -> Result<(), Outcome> {
    let notification = child::notification(spec);
    let mut names = HashSet::new();
    for field in spec.fields.iter().filter(|field| names.insert(*field)) {
        let child = child::spec(
            &spec.target,
            &notification,
            &ObjectKey::new("", ""),
            field,
            Initial::Quiet,
        );
        Selectors::compile(&child).map_err(|error| {
            Outcome::stalled(error.reason(), error.message("spec.template.context"))
        })?;
    }
    if let Some(template) = &spec.template.template {
        message::check_template(template).map_err(|error| {
            Outcome::stalled(TEMPLATE_INVALID, format!("spec.template.template: {error}"))
        })?;
    }
    if let Some(when) = &spec.template.when {
        When::parse(when).map_err(|error| {
            Outcome::stalled(WHEN_INVALID, format!("spec.template.when: {error}"))
        })?;
    }
    Ok(())
}

/// Reports a set whose children are unknown. Without them, the set would create them again.
pub(super) fn fields_not_served(why: &str) -> Outcome {
    let message = format!("this operator does not serve TrackedFields: {why}");
    Outcome::failed(TRACKED_FIELDS_NOT_SERVED, message)
}

/// Reports a set whose resources have not been listed for `elapsed`. For a while, the status stays if `keeps_status`.
pub(super) fn listing(keeps_status: bool, resource: &ResourceName, elapsed: Duration) -> Outcome {
    if let Some(left) = LISTING_GRACE.checked_sub(elapsed)
        && keeps_status
    {
        return Outcome::unchanged().requeue(Requeue::InFlight(left));
    }
    let message = format!("the operator lists {}", resource.plural);
    Outcome::unknown(PROGRESSING, message)
}

/// Reports a set whose resource cannot be tracked, with the error that is retried.
pub(super) fn blocked(waiting: &WaitingReason, error: Option<Box<Error>>) -> Result<Outcome> {
    let outcome = waiting.outcome();
    match error {
        Some(error) => Err(error.with_outcome(outcome)),
        None if waiting.needs_poll() => Ok(outcome.requeue(Requeue::Poll)),
        None => Ok(outcome),
    }
}

/// Reports a set whose resource cannot be watched.
pub(super) fn watch_outcome(resource: &ResourceName, problem: WatchProblem) -> Outcome {
    WaitingReason::of_watch(resource, problem).outcome()
}

/// Clears the numbers that only a plan of the current spec shows.
pub(super) fn clear_counts(status: &mut TrackedFieldSetStatus) {
    status.targets = None;
    status.covered = None;
    status.leaving = None;
    status.left_out = None;
}

/// Adds the obstacle of the contact point to the outcome of a set that has another problem. The children of a stalled set
/// report the obstacle themselves.
pub(super) fn with_contact_point(
    mut outcome: Outcome,
    obstacle: Option<&WaitingReason>,
) -> Outcome {
    if !matches!(outcome.progress, Progress::Stalled | Progress::Unchanged)
        && let Some(waiting) = obstacle
    {
        let (reason, message) = (waiting.reason(), waiting.message());
        outcome.message = format!("{}; {reason}: {message}", outcome.message);
    }
    outcome
}

/// Reports the first rejected write, if there is one.
pub(super) fn rejected(rejections: &Rejections) -> Option<Outcome> {
    let first = rejections.all().next()?;
    let others = match rejections.all().count() {
        1 => String::new(),
        number => format!(" (and {} more)", number - 1),
    };
    let message = format!("{}{others}", first.message);
    Some(Outcome::failed(first.reason.clone(), message))
}

/// Reports a set that names namespaces that do not exist.
pub(crate) fn namespaces_not_found(missing: &[&str]) -> Outcome {
    let message = format!(
        "namespaces not found: {}; create them, or correct spec.target.namespaces.names",
        missing.join(", ")
    );
    Outcome::failed(NAMESPACE_NOT_FOUND, message)
}

/// Returns what to change so that a set with `spec` and `needed` resources to track leaves out none of them.
pub(crate) fn how_to_track_all(spec: &TrackedFieldSetSpec, needed: usize) -> String {
    if needed * spec.fields.len() <= MAX_CHILDREN {
        format!("raise spec.maxTargets to {needed}, or select fewer")
    } else {
        format!(
            "select fewer, or split the selection over several sets; one set owns at most {MAX_CHILDREN} TrackedFields"
        )
    }
}

/// Reports a set of which no write failed. `missing` are namespaces that the spec names and that do not exist;
/// `remaining` is the number of writes that a later reconcile makes. If the template suspends the children, they leave
/// this to the set to report.
pub(super) fn matched(
    spec: &TrackedFieldSetSpec,
    targets: usize,
    plan: &Plan,
    missing: &[&str],
    remaining: usize,
) -> Outcome {
    if !missing.is_empty() {
        namespaces_not_found(missing)
    } else if !plan.left_out.is_empty() {
        let left_out = plan.left_out.len();
        let tracked = plan.desired.values().filter(|it| it.takes_slot).count();
        let are = if left_out == 1 { "is" } else { "are" };
        let message = format!(
            "{targets} resources are selected, and {left_out} {are} not tracked: {}",
            how_to_track_all(spec, tracked + left_out)
        );
        Outcome::failed(TOO_MANY_TARGETS, message)
    } else if remaining > 0 {
        let done = plan.desired.len().saturating_sub(remaining);
        let message = format!(
            "{done} of {} TrackedFields are up to date",
            plan.desired.len()
        );
        Outcome::unknown(PROGRESSING, message)
    } else {
        let (reason, message) = if targets == 0 {
            let message = "no resource matches spec.target; a matching resource is tracked as soon as it is created";
            (NOTHING_MATCHES, message.to_owned())
        } else {
            let by_others = match plan.covered.values().sum::<usize>() {
                0 => String::new(),
                covered => format!(", covered by other TrackedFields: {covered}"),
            };
            let children = plan.desired.len();
            let message = format!("resources: {targets}, TrackedFields: {children}{by_others}");
            (READY, message)
        };
        if spec.template.suspend.unwrap_or_default() {
            return Outcome::suspended(format!(
                "spec.template.suspend is true: changes are recorded, and no message is sent; {message}"
            ));
        }
        Outcome {
            reason: reason.into(),
            ..Outcome::ready(message)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::{BTreeSet, HashMap};
    use std::time::Instant;

    use qm_runtime::SpecRevision;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::plan::DesiredTrackedField;
    use super::*;

    /// Returns the spec of a set that tracks two fields.
    fn spec(is_delivery_suspended: bool) -> TrackedFieldSetSpec {
        serde_json::from_value(json!({
            "target": { "kind": "Deployment" },
            "fields": ["replicas", "images"],
            "template": { "contactPoint": "hook", "suspend": is_delivery_suspended },
        }))
        .unwrap()
    }

    /// Returns a plan with a child of two fields for each of the tracked targets.
    fn plan(tracked: usize, left_out: usize) -> Plan {
        let desired = (0..tracked).flat_map(|at| {
            let target = ObjectKey::new("ops", &format!("tracked-{at}"));
            (0..2).map(move |field_index| {
                let desired = DesiredTrackedField {
                    target: target.clone(),
                    replaces: None,
                    field_index,
                    initial: Initial::Quiet,
                    takes_slot: field_index == 0,
                    checked: None,
                    is_contested: false,
                };
                (
                    ObjectKey::new("ops", &format!("{at}-{field_index}")),
                    desired,
                )
            })
        });
        let left_out = (0..left_out).map(|at| ObjectKey::new("ops", &format!("left-out-{at}")));
        Plan {
            revision: SpecRevision::default(),
            compared: Instant::now(),
            desired: desired.collect(),
            covered: HashMap::new(),
            left_out: left_out.collect::<BTreeSet<_>>(),
            leaving: HashMap::new(),
        }
    }

    #[rstest]
    #[case::retried(
        Outcome::failed(FORBIDDEN, "no"),
        r#"no; ContactPointNotFound: "hook" not found; there is "hooks""#
    )]
    #[case::listing(
        Outcome::unknown(PROGRESSING, "no"),
        r#"no; ContactPointNotFound: "hook" not found; there is "hooks""#
    )]
    #[case::reported_by_the_children(Outcome::stalled(WHEN_INVALID, "no"), "no")]
    #[case::unchanged(Outcome::unchanged(), "")]
    fn set_reports_its_contact_point_with_another_problem(
        #[case] outcome: Outcome,
        #[case] expected: &str,
    ) {
        let missing = WaitingReason::ContactPointNotFound {
            name: "hook".into(),
            nearest: Some("hooks".into()),
        };
        assert_eq!(with_contact_point(outcome.clone(), None), outcome);
        let reported = with_contact_point(outcome, Some(&missing));
        assert_eq!(reported.message, expected);
    }

    #[rstest]
    #[case::unknown_field(json!({ "fields": ["{.spec"] }), PATH_INVALID)]
    #[case::template(json!({ "fields": ["replicas"], "template": { "contactPoint": "hook", "template": "{% if" } }), TEMPLATE_INVALID)]
    #[case::condition(json!({ "fields": ["replicas"], "template": { "contactPoint": "hook", "when": "value >" } }), WHEN_INVALID)]
    fn spec_that_only_a_change_can_fix_is_stalled(#[case] spec: Value, #[case] reason: &str) {
        let mut whole = json!({
            "target": { "kind": "Deployment" },
            "template": { "contactPoint": "hook" },
        });
        whole
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let outcome = check(&serde_json::from_value(whole).unwrap()).unwrap_err();
        assert_eq!(
            (&*outcome.reason, outcome.progress),
            (reason, Progress::Stalled)
        );
    }

    #[rstest]
    #[case::one(
        4,
        1,
        "5 resources are selected, and 1 is not tracked: raise spec.maxTargets to 5, or select fewer"
    )]
    #[case::several(
        1,
        2,
        "3 resources are selected, and 2 are not tracked: raise spec.maxTargets to 3, or select fewer"
    )]
    #[case::as_many_as_the_crd_permits(
        1,
        4999,
        "5000 resources are selected, and 4999 are not tracked: raise spec.maxTargets to 5000, or select fewer"
    )]
    #[case::more_than_the_crd_permits(
        1,
        5000,
        "5001 resources are selected, and 5000 are not tracked: select fewer, or split the selection over several sets; one set owns at most 10000 TrackedFields"
    )]
    fn sufficient_number_of_targets_is_named_if_the_crd_permits_it(
        #[case] tracked: usize,
        #[case] left_out: usize,
        #[case] expected: &str,
    ) {
        let plan = plan(tracked, left_out);
        let outcome = matched(&spec(false), tracked + left_out, &plan, &[], 0);
        assert_eq!(
            (&*outcome.reason, &*outcome.message),
            (TOO_MANY_TARGETS, expected)
        );
    }

    /// Its children do not report the suspension.
    #[rstest]
    #[case::complete(2, 0, 0, SUSPENDED, "resources: 2, TrackedFields: 4")]
    #[case::nothing_matches(
        0,
        0,
        0,
        SUSPENDED,
        "no resource matches spec.target; a matching resource is tracked as soon as it is created"
    )]
    #[case::incomplete(2, 0, 1, PROGRESSING, "3 of 4 TrackedFields are up to date")]
    #[case::too_many_targets(
        1,
        2,
        0,
        TOO_MANY_TARGETS,
        "3 resources are selected, and 2 are not tracked: raise spec.maxTargets to 3, or select fewer"
    )]
    fn suspended_delivery_is_reported_unless_there_is_a_problem(
        #[case] tracked: usize,
        #[case] left_out: usize,
        #[case] remaining: usize,
        #[case] reason: &str,
        #[case] expected: &str,
    ) {
        let (targets, plan) = (tracked + left_out, plan(tracked, left_out));
        let outcome = matched(&spec(true), targets, &plan, &[], remaining);
        let mut message = expected.to_owned();
        if reason == SUSPENDED {
            assert_eq!(outcome.progress, Progress::Suspended);
            message.insert_str(
                0,
                "spec.template.suspend is true: changes are recorded, and no message is sent; ",
            );
        }
        assert_eq!((&*outcome.reason, outcome.message), (reason, message));
    }
}
