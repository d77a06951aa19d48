//! Computes the status of a `ConfigMapSync` from the results of its copies. Pure.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::config_map_sync::ConfigMapSyncStatus;
use qm_runtime::ObjectKey;
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, WRITE_FAILED,
    WRITE_REJECTED,
};
use qm_runtime::outcome::{EventPolicy, Outcome, SPEC_INVALID, SUSPENDED};

use crate::controllers::reasons::{NAMESPACE_NOT_FOUND, OUT_OF_SCOPE};

/// Reason of a sync whose copies all match their source.
pub const SYNCED: &str = "Synced";
/// Reason of a sync with a destination to which the operator copies nothing.
pub(crate) const DESTINATION_NOT_ALLOWED: &str = "DestinationNotAllowed";
/// Reason of a sync whose copies would overwrite its source through other syncs.
pub(crate) const LOOP: &str = "Loop";
/// Reason of a sync without a source.
pub(crate) const SOURCE_NOT_FOUND: &str = "SourceNotFound";

pub const REASONS: [&str; 15] = [
    SYNCED,
    SUSPENDED,
    SPEC_INVALID,
    OUT_OF_SCOPE,
    DESTINATION_NOT_ALLOWED,
    LOOP,
    SOURCE_NOT_FOUND,
    FORBIDDEN,
    NAMESPACE_NOT_FOUND,
    NAMESPACE_TERMINATING,
    CHILD_TERMINATING,
    CONFLICT,
    QUOTA_EXCEEDED,
    WRITE_REJECTED,
    WRITE_FAILED,
];

/// Maximum number of destinations, or links of a loop, that a message names.
const MAX_NAMED: usize = 5;

/// Returns whether a sync with this reason must poll, because no watch shows the end of its problem.
pub(crate) fn is_polled(reason: &str) -> bool {
    [FORBIDDEN, QUOTA_EXCEEDED, WRITE_REJECTED].contains(&reason)
}

/// Reason why one copy does not match its source, or could not be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopyProblem {
    pub namespace: String,
    pub reason: Cow<'static, str>,
    /// The problem, and what to do.
    pub message: String,
}

/// Results of the copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopySummary {
    /// Number of copies that the spec asks for.
    pub destinations: usize,
    /// Number of copies that match the source.
    pub matching: usize,
    /// Number of copies that the spec no longer asks for and that stay until their replacements exist.
    pub kept: usize,
    /// Copies that do not match, or could not be removed.
    pub problems: Vec<CopyProblem>,
}

/// Returns the outcome of a sync that copied nothing.
pub fn blocked(
    status: &mut ConfigMapSyncStatus,
    reason: impl Into<Cow<'static, str>>,
    message: impl Into<String>,
) -> Outcome {
    (status.destinations, status.copies) = (None, None);
    Outcome::failed(reason, message).event(EventPolicy::OnMessage)
}

/// Fills the draft of the status, and returns the outcome of these results.
pub(crate) fn outcome(
    status: &mut ConfigMapSyncStatus,
    summary: &CopySummary,
    now: Time,
) -> Outcome {
    // If the status has no time, a process wrote the copies and was killed before it wrote the status.
    if summary.matching > 0 {
        status.last_sync_time.get_or_insert(now);
    }
    let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    status.destinations = Some(count(summary.destinations));
    status.copies = Some(count(summary.matching));
    let outcome = match summary.problems.first() {
        Some(first) => Outcome::failed(first.reason.clone(), incomplete(summary)),
        None => Outcome {
            reason: SYNCED.into(),
            ..Outcome::ready(match summary.destinations {
                0 => "no namespace needs a copy".into(),
                1 => "the copy matches its source".into(),
                several => format!("{several} copies match their source"),
            })
        },
    };
    outcome.event(EventPolicy::OnMessage)
}

/// Names the first problems, each with its own message.
fn incomplete(summary: &CopySummary) -> String {
    let CopySummary {
        destinations,
        matching,
        kept,
        problems,
    } = summary;
    let named = problems.iter().take(MAX_NAMED).map(|problem| {
        let CopyProblem {
            namespace,
            reason,
            message,
        } = problem;
        format!("{namespace}: {reason}: {message}")
    });
    let named = named.collect::<Vec<_>>().join("; ");
    let more = match problems.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        rest => format!("; and {rest} more"),
    };
    let kept = match kept {
        0 => String::new(),
        1 => "; one earlier copy stays until its replacement exists".into(),
        several => format!("; {several} earlier copies stay until their replacements exist"),
    };
    format!("{matching} of {destinations} copies match the source; {named}{more}{kept}")
}

/// Returns the message of [`LOOP`] about `sync`. The message names only the `links` of its own namespace: readers of
/// its status must not learn about other tenants.
pub(crate) fn closed_loop(sync: &ObjectKey, links: &[ObjectKey]) -> String {
    let (own, others): (Vec<_>, Vec<_>) = links
        .iter()
        .partition(|link| link.namespace == sync.namespace);
    let mut parts: Vec<_> = own
        .iter()
        .take(MAX_NAMED)
        .map(|link| format!("ConfigMapSync {link}"))
        .collect();
    if own.len() > MAX_NAMED {
        parts.push(format!(
            "{} more of namespace {}",
            own.len() - MAX_NAMED,
            sync.namespace
        ));
    }
    match others.len() {
        0 => {}
        1 => parts.push("a ConfigMapSync of another namespace".into()),
        several => parts.push(format!("{several} ConfigMapSyncs of other namespaces")),
    }
    let through = match parts.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => parts.concat(),
    };
    let fix = if own.is_empty() {
        "change the source or the destination of this ConfigMapSync"
    } else {
        "delete or change these, or this one"
    };
    format!("the copied data would return to its source through {through}: {fix}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn problem(namespace: &str) -> CopyProblem {
        CopyProblem {
            namespace: namespace.into(),
            reason: QUOTA_EXCEEDED.into(),
            message: "full".into(),
        }
    }

    fn matching(matching: usize) -> CopySummary {
        CopySummary {
            destinations: 2,
            matching,
            ..CopySummary::default()
        }
    }

    #[test]
    fn blocked_sync_clears_the_counts_and_keeps_the_time() {
        let mut status = ConfigMapSyncStatus::default();
        outcome(&mut status, &matching(0), at(1));
        assert_eq!(status.last_sync_time, None, "nothing was copied");
        outcome(&mut status, &matching(2), at(2));
        assert_eq!(
            status.last_sync_time,
            Some(at(2)),
            "an earlier process wrote the copies"
        );
        outcome(&mut status, &matching(2), at(3));
        assert_eq!(status.last_sync_time, Some(at(2)));
        assert_eq!(status.copies, Some(2));
        let outcome = blocked(&mut status, SOURCE_NOT_FOUND, "no");
        assert_eq!((status.destinations, status.copies), (None, None));
        assert_eq!(status.last_sync_time, Some(at(2)));
        assert_eq!(outcome.reason, SOURCE_NOT_FOUND);
    }

    #[test]
    fn loop_names_links_of_its_own_namespace_and_counts_the_others() {
        let message = |links: &[(&str, &str)]| {
            let links: Vec<_> = links
                .iter()
                .map(|(namespace, name)| ObjectKey::new(namespace, name))
                .collect();
            closed_loop(&ObjectKey::new("shop", "c"), &links)
                .replace("the copied data would return to its source through ", "")
        };
        assert_eq!(
            message(&[("shop", "a"), ("shop", "b")]),
            "ConfigMapSync shop/a and ConfigMapSync shop/b: delete or change these, or this one"
        );
        assert_eq!(
            message(&[("secret", "x"), ("shop", "a"), ("hidden", "y")]),
            "ConfigMapSync shop/a and 2 ConfigMapSyncs of other namespaces: delete or change these, or this one"
        );
        assert_eq!(
            message(&[("secret", "x")]),
            "a ConfigMapSync of another namespace: change the source or the destination of this ConfigMapSync"
        );
        let many: Vec<_> = (0..2000)
            .map(|number| ("shop", format!("{number:0>253}")))
            .collect();
        let many: Vec<_> = many
            .iter()
            .map(|(namespace, name)| (*namespace, &**name))
            .collect();
        let message = message(&many);
        assert!(
            message.contains(" and 1995 more of namespace shop: ") && message.len() < 2000,
            "{message}"
        );
    }

    #[test]
    fn message_names_the_first_problems() {
        let report =
            |summary: &CopySummary| outcome(&mut ConfigMapSyncStatus::default(), summary, at(1));
        let one = CopySummary {
            destinations: 3,
            matching: 2,
            problems: vec![problem("b")],
            ..CopySummary::default()
        };
        let outcome = report(&one);
        assert_eq!(outcome.reason, QUOTA_EXCEEDED);
        assert_eq!(
            outcome.message,
            "2 of 3 copies match the source; b: QuotaExceeded: full"
        );
        let many = CopySummary {
            destinations: 200,
            matching: 0,
            kept: 2,
            problems: (0..200)
                .map(|number| problem(&format!("n{number}")))
                .collect(),
        };
        let message = report(&many).message;
        assert!(
            message.contains("n4: QuotaExceeded: full; and 195 more; 2 earlier copies stay"),
            "{message}"
        );
    }
}
