//! The report of a reconcile: condition, status, and when to reconcile again. Pure.

use std::ops::ControlFlow::{Break, Continue};

use qm_api::my_ingress::{Alb, ListenerStatus};
use qm_aws::AwsError;
use qm_runtime::error::Class;
use qm_runtime::outcome::Requeue;

use super::build::Desired;
use super::observe::Observed;
use super::plan::{self, Converged, End, ListenerResults, Stop};
use super::status::{MyIngressReadiness, PROVISIONING};

#[derive(Debug)]
pub(crate) struct Report {
    pub readiness: MyIngressReadiness,
    pub listeners: Vec<ListenerStatus>,
    pub requeue: Result<Requeue, AwsError>,
    /// True if the reconcile reached every listener, and no listener had a transient error: all lasting problems then
    /// have their warnings.
    pub(crate) has_all_warnings: bool,
}

/// Returns the report, or `None` while a step is left and once nothing is left to delete.
pub(crate) fn report(desired: &Desired<'_>, observed: &Observed) -> Option<Report> {
    let (readiness, requeue) = match plan::walk(desired, observed) {
        Continue(converged) => return Some(converged_report(desired, observed, &converged)),
        Break(Stop::Next(_) | Stop::End(End::Deleted)) => return None,
        Break(Stop::End(End::Rejected(error))) => {
            let mut readiness = MyIngressReadiness::rejected(observed.alb(), &error);
            readiness.without_traffic |= observed.lacks_load_balancer();
            (readiness, Err(error))
        }
        Break(Stop::End(End::Blocked(readiness, requeue))) => (readiness, Ok(requeue)),
    };
    Some(Report {
        readiness,
        listeners: observed.draft.listeners.clone(),
        requeue,
        has_all_warnings: false,
    })
}

fn converged_report(
    desired: &Desired<'_>,
    observed: &Observed,
    converged: &Converged<'_>,
) -> Report {
    let is_deleting = desired.load_balancer.is_none();
    let mut alb = observed.alb();
    // While AWS rejects a step, the status keeps the keys of tags that may not be removed yet.
    if !is_deleting && converged.rejected.is_none() {
        let managed_tag_keys = desired.managed_tag_keys.clone();
        alb = alb.map(|alb| Alb {
            managed_tag_keys,
            ..alb
        });
    }
    let base = MyIngressReadiness::of(alb.clone(), converged.load_balancer);
    let requeue = if base.reason == PROVISIONING {
        Requeue::Poll
    } else {
        Requeue::OnChange
    };
    let (result, listeners) = match &converged.listeners {
        None => (Ok((base, requeue)), observed.draft.listeners.clone()),
        Some(results) => {
            let status = |port| observed.draft.creation_requested_at(port);
            let desired = results.desired.iter().map(|it| it.status(status(it.port)));
            let listeners = desired.chain(results.others.iter().cloned()).collect();
            (with_listeners(base, requeue, results), listeners)
        }
    };
    let (readiness, requeue) = match (result, &converged.rejected) {
        (Ok((readiness, requeue)), None) => (readiness, Ok(requeue)),
        // A person has to permit the deletion first, whatever problems the listeners have.
        (result, Some(error)) if is_deleting => {
            let readiness = MyIngressReadiness::rejected(alb, error);
            match result {
                Ok((_, Requeue::Poll)) => (readiness, Ok(Requeue::Poll)),
                _ => (readiness, Err(error.clone())),
            }
        }
        (Err(error), _) => (MyIngressReadiness::rejected(alb, &error), Err(error)),
        (Ok((_, Requeue::Poll)), Some(error)) if error.class != Class::Transient => {
            (MyIngressReadiness::rejected(alb, error), Ok(Requeue::Poll))
        }
        (Ok(_), Some(error)) => (MyIngressReadiness::rejected(alb, error), Err(error.clone())),
    };
    let mut rejected = converged.listeners.iter().flat_map(|it| &it.rejected);
    let has_all_warnings = rejected.all(|error| error.class != Class::Transient);
    Report {
        readiness,
        listeners,
        requeue,
        has_all_warnings,
    }
}

/// Adds the listeners' problems to `base`, the readiness of the load balancer.
fn with_listeners(
    base: MyIngressReadiness,
    requeue: Requeue,
    results: &ListenerResults,
) -> Result<(MyIngressReadiness, Requeue), AwsError> {
    // Problems that a person has to fix come first.
    let problems = results.desired.iter().filter(|it| !it.message.is_empty());
    let (transient, mut problems): (Vec<_>, Vec<_>) = problems.partition(|it| it.in_progress);
    problems.extend(transient);
    let messages = problems.iter().map(|it| it.message.as_str());
    // Of several errors, the first of the most urgent class is reported.
    let rejected = results
        .rejected
        .iter()
        .min_by_key(|error| match error.class {
            Class::Transient | Class::Stale => 0,
            Class::Slow => 1,
            Class::Terminal | Class::Waiting => 2,
        });
    if let Some(error) = rejected {
        let messages: Vec<_> = [error.message.as_str()]
            .into_iter()
            .chain(messages)
            .collect();
        let error = AwsError {
            message: messages.join("; "),
            ..error.clone()
        };
        let is_polled = results.in_progress || base.reason == PROVISIONING;
        if is_polled && error.class != Class::Transient {
            let readiness = MyIngressReadiness::rejected(base.alb, &error);
            return Ok((readiness, Requeue::Poll));
        }
        return Err(error);
    }
    if base.reason == PROVISIONING {
        return Ok((base, requeue));
    }
    let requeue = if results.in_progress {
        Requeue::Poll
    } else {
        requeue
    };
    let Some(first) = problems.first() else {
        return Ok((base, requeue));
    };
    let messages = messages.collect::<Vec<_>>().join("; ");
    let readiness = MyIngressReadiness::not_ready(base.alb, first.reason, messages);
    Ok((readiness, requeue))
}
