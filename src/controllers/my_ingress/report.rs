//! The report of a reconcile: condition, status and outcome. Pure.

use std::ops::ControlFlow::{Break, Continue};

use qm_api::my_ingress::{Alb, ListenerStatus};
use qm_aws::AwsError;
use qm_runtime::error::Class;
use qm_runtime::outcome::Requeue;

use super::build::Desired;
use super::observe::Observed;
use super::plan::{self, End, ListenerResults, Settled, Stop};
use super::status::{MyIngressReadiness, PROVISIONING};

#[derive(Debug)]
pub(crate) struct Report {
    pub readiness: MyIngressReadiness,
    pub listeners: Vec<ListenerStatus>,
    pub outcome: Result<Requeue, AwsError>,
}

/// Returns the report, or `None` while a step is left and once nothing is left to delete.
pub(crate) fn report(desired: &Desired<'_>, observed: &Observed) -> Option<Report> {
    let (readiness, outcome) = match plan::walk(desired, observed) {
        Continue(settled) => return Some(settled_report(desired, observed, &settled)),
        Break(Stop::Next(_) | Stop::End(End::Deleted)) => return None,
        Break(Stop::End(End::Refused(error))) => {
            let readiness = MyIngressReadiness::refused(observed.alb(), &error);
            (readiness, Err(error))
        }
        Break(Stop::End(End::Blocked(readiness, outcome))) => (readiness, Ok(outcome)),
    };
    Some(Report {
        readiness,
        listeners: observed.draft.listeners.clone(),
        outcome,
    })
}

fn settled_report(desired: &Desired<'_>, observed: &Observed, settled: &Settled<'_>) -> Report {
    let is_deleting = desired.load_balancer.is_none();
    let mut alb = observed.alb();
    if !is_deleting {
        let managed_tag_keys = desired.managed_tag_keys.clone();
        alb = alb.map(|alb| Alb {
            managed_tag_keys,
            ..alb
        });
    }
    let shown = MyIngressReadiness::of(alb.clone(), settled.load_balancer);
    let outcome = if shown.reason == PROVISIONING {
        Requeue::Poll
    } else {
        Requeue::OnChange
    };
    let (result, listeners) = match &settled.listeners {
        None => (Ok((shown, outcome)), observed.draft.listeners.clone()),
        Some(results) => {
            let status = |port| observed.draft.creation_requested_at(port);
            let desired = results.desired.iter().map(|it| it.status(status(it.port)));
            let listeners = desired.chain(results.others.iter().cloned()).collect();
            (with_listeners(shown, outcome, results), listeners)
        }
    };
    let (readiness, outcome) = match (result, &settled.refused) {
        (Ok((readiness, outcome)), None) => (readiness, Ok(outcome)),
        // Whatever the listeners' problems are, an editor has to permit the deletion first.
        (result, Some(error)) if is_deleting => {
            let readiness = MyIngressReadiness::refused(alb, error);
            match result {
                Ok((_, Requeue::Poll)) => (readiness, Ok(Requeue::Poll)),
                _ => (readiness, Err(error.clone())),
            }
        }
        (Err(error), _) => (MyIngressReadiness::refused(alb, &error), Err(error)),
        (Ok(_), Some(error)) => (MyIngressReadiness::refused(alb, error), Err(error.clone())),
    };
    Report {
        readiness,
        listeners,
        outcome,
    }
}

/// Returns the readiness of a load balancer with these listeners that is otherwise `shown`.
fn with_listeners(
    shown: MyIngressReadiness,
    outcome: Requeue,
    results: &ListenerResults,
) -> Result<(MyIngressReadiness, Requeue), AwsError> {
    // Problems that somebody has to fix come first.
    let problems = results.desired.iter().filter(|it| !it.message.is_empty());
    let (passing, mut problems): (Vec<_>, Vec<_>) = problems.partition(|it| it.changes);
    problems.extend(passing);
    let messages = problems.iter().map(|it| it.message.as_str());
    // The first of the most urgent ones.
    let refused = results
        .refused
        .iter()
        .min_by_key(|error| match error.class {
            Class::Transient | Class::Stale => 0,
            Class::Slow => 1,
            Class::Terminal | Class::Waiting => 2,
        });
    if let Some(error) = refused {
        let messages: Vec<_> = [error.message.as_str()]
            .into_iter()
            .chain(messages)
            .collect();
        let error = AwsError {
            message: messages.join("; "),
            ..error.clone()
        };
        if results.changes && error.class != Class::Transient {
            let readiness = MyIngressReadiness::refused(shown.alb, &error);
            return Ok((readiness, Requeue::Poll));
        }
        return Err(error);
    }
    if shown.reason == PROVISIONING {
        return Ok((shown, outcome));
    }
    let outcome = if results.changes {
        Requeue::Poll
    } else {
        outcome
    };
    let Some(first) = problems.first() else {
        return Ok((shown, outcome));
    };
    let messages = messages.collect::<Vec<_>>().join("; ");
    let readiness = MyIngressReadiness::not_ready(shown.alb, first.reason, messages);
    Ok((readiness, outcome))
}
