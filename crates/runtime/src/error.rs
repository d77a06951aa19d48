//! Errors of a reconcile.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kube::core::Status;

use super::client;
use super::outcome::{Outcome, SPEC_INVALID};
use super::write::{is_denied, is_immutable, is_replaced, is_terminating};

/// Reason of an object that needs the name of a foreign object.
pub const CONFLICT: &str = "Conflict";
/// Reason of an object whose child is being deleted.
pub const CHILD_TERMINATING: &str = "ChildTerminating";
/// Reason of an object in a namespace that is being deleted.
pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
/// Reason of an object for which the operator may not make a request.
pub const FORBIDDEN: &str = "Forbidden";
/// Reason of an object whose child would exceed a quota.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Reason of an object whose child the apiserver rejects.
pub const WRITE_REJECTED: &str = "WriteRejected";
/// Reason of an object for which requests failed more than once.
pub const WRITE_FAILED: &str = "WriteFailed";

/// Class of an error, which decides when to reconcile again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Wait for a change of the object, or for the periodic reconcile.
    Terminal,
    /// Retry with growing delays. The object waits for something that no watch shows; waiting is not an error.
    Waiting,
    /// Retry with growing delays.
    Transient,
    /// Retry with longer delays: a person must fix something that no watch shows.
    Slow,
    /// Reconcile again: the object was changed or replaced meanwhile, or the lease is lost. Neither is an error.
    Stale,
}

impl Class {
    /// Returns the class of a failed request.
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 || is_replaced(status) => Self::Stale,
            error if client::is_not_leading(error) => Self::Stale,
            _ => Self::Transient,
        }
    }
}

/// Result of a fallible step of a reconcile.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a reconcile. The message becomes that of the condition `Ready`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The spec is invalid; the message says what to write instead.
    #[error("{0}")]
    Invalid(String),
    /// The child is foreign; the message names its owner and the command that adopts it.
    #[error("{0}")]
    NotOwned(String),
    /// The child is being deleted.
    #[error("{0} is being deleted; the operator recreates it afterwards")]
    Terminating(String),
    /// The apiserver rejects the child.
    #[error("the apiserver rejected {child}: {}", .status.message)]
    Rejected {
        /// The child, such as `Deployment shop/web`.
        child: String,
        /// Status that the apiserver answered with.
        status: Box<Status>,
    },
    /// The reconcile used a stale state.
    #[error("{0}")]
    Stale(String),
    /// A request failed.
    #[error("{problem}: {}", message(source))]
    Api {
        /// Operation that failed, such as `Deployment shop/web could not be read or written`.
        problem: String,
        /// Cause of the failure.
        source: kube::Error,
    },
    /// An error with an outcome for the status.
    #[error("{error}")]
    WithOutcome {
        /// Outcome for the status.
        outcome: Box<Outcome>,
        /// Error that decides when to retry.
        #[source]
        error: Box<Error>,
    },
    /// An error that the controller has classified.
    #[error("{message}")]
    Other {
        /// Class of the error.
        class: Class,
        /// Reason of the condition `Ready`.
        reason: Cow<'static, str>,
        /// Message of the condition `Ready`.
        message: String,
    },
}

impl Error {
    /// Creates an error with the reason and message of the condition `Ready`.
    pub fn other(
        class: Class,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self::Other {
            class,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Wraps the error of a request: `Error::api("the Pods could not be listed")`.
    pub fn api(problem: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let problem = problem.into();
        move |source| Self::Api { problem, source }
    }

    /// Adds an outcome, which the status gets in place of the error.
    #[must_use]
    pub fn with_outcome(self, outcome: Outcome) -> Self {
        Self::WithOutcome {
            outcome: Box::new(outcome),
            error: Box::new(self),
        }
    }

    /// Classifies the error of a request for a child, such as `Deployment shop/web`.
    pub fn of_child(child: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status)
                if is_undecodable(&status)
                    || is_denied(&status)
                    || (matches!(status.code, 400 | 403 | 405 | 413 | 422)
                        && !is_replaced(&status)
                        && !is_owner_kind_unknown(&status)) =>
            {
                Self::Rejected { child, status }
            }
            source => Self::Api {
                problem: format!("{child} could not be read or written"),
                source,
            },
        }
    }

    /// Returns the class of the error, and the reason of the condition `Ready`.
    pub fn classify(&self) -> (Class, Cow<'static, str>) {
        let (class, reason) = match self {
            Self::Invalid(_) => (Class::Terminal, SPEC_INVALID),
            Self::NotOwned(_) => (Class::Waiting, CONFLICT),
            Self::Terminating(_) => (Class::Waiting, CHILD_TERMINATING),
            Self::Rejected { status, .. } => match rejection_reason(status) {
                WRITE_REJECTED => (Class::Terminal, WRITE_REJECTED),
                reason => (Class::Waiting, reason),
            },
            Self::Stale(_) => (Class::Stale, ""),
            Self::Api { source, .. } => (Class::of(source), WRITE_FAILED),
            Self::WithOutcome { error, .. } => return error.classify(),
            Self::Other { class, reason, .. } => return (*class, reason.clone()),
        };
        (class, reason.into())
    }

    /// Returns the status that the apiserver answered with, if any.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Rejected { status, .. }
            | Self::Api {
                source: kube::Error::Api(status),
                ..
            } => Some(status),
            _ => None,
        }
    }

    /// Returns whether the apiserver answered that there is no such object, or no such namespace.
    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(|status| status.code == 404)
    }

    /// Returns whether the object of a write, or the object that is reconciled, has changed or was replaced meanwhile.
    pub fn is_stale(&self) -> bool {
        self.classify().0 == Class::Stale
    }

    /// Merges two errors of one reconcile. Errors about foreign children are joined. Otherwise the first error wins,
    /// unless it is terminal and the second is not.
    #[must_use]
    pub fn or(self, next: Self) -> Self {
        let is_terminal = |error: &Self| error.classify().0 == Class::Terminal;
        match (self, next) {
            (Self::NotOwned(first), Self::NotOwned(next)) => {
                Self::NotOwned(format!("{first}; {next}"))
            }
            (first, next) if is_terminal(&first) && !is_terminal(&next) => next,
            (first, _) => first,
        }
    }

    /// Returns the fields that the apiserver names where it rejects a child, with list indexes replaced by 0; `None` if
    /// no field can fix the rejection.
    pub(super) fn fields(&self) -> Option<BTreeSet<String>> {
        let Self::Rejected { status, .. } = self else {
            return None;
        };
        if is_immutable(status) {
            return None;
        }
        let causes = status.details.iter().flat_map(|details| &details.causes);
        // Indexes are those of an object that was never stored.
        let fields = causes
            .map(|cause| any_item(&cause.field))
            .filter(|field| !field.starts_with("metadata"));
        Some(fields.collect())
    }
}

/// Returns the apiserver's message or, without one, the error's.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        error => error.to_string(),
    }
}

/// Returns the reason of an object whose child the apiserver rejects with this status.
pub(crate) fn rejection_reason(status: &Status) -> &'static str {
    if is_terminating(status) {
        NAMESPACE_TERMINATING
    } else if status.code == 403 && status.message.contains("exceeded quota") {
        QUOTA_EXCEEDED
    } else if status.code == 403 || is_denied(status) {
        FORBIDDEN
    } else {
        WRITE_REJECTED
    }
}

/// Returns whether the apiserver has just started and does not know the owner's kind yet, which the check of
/// `blockOwnerDeletion` needs.
fn is_owner_kind_unknown(status: &Status) -> bool {
    status.code == 403 && status.message.contains("cannot find RESTMapping")
}

/// Returns whether the apiserver cannot decode the object as its kind, such as a quantity that is not a number:
/// server-side apply then answers 500 (seen on 1.36), and a create 400.
fn is_undecodable(status: &Status) -> bool {
    let prefixes = [
        "failed to convert new object",
        "failed to create typed patch object",
    ];
    status.code == 500
        && prefixes
            .iter()
            .any(|prefix| status.message.starts_with(prefix))
}

/// Returns the field with each list index replaced by 0.
fn any_item(field: &str) -> String {
    let mut parts = field.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (index, rest) = part.split_once(']').unwrap_or((part, ""));
        let is_number = index.bytes().all(|byte| byte.is_ascii_digit());
        format!("{name}[{}]{rest}", if is_number { "0" } else { index })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::client::RequestError;

    fn of_child(code: u16, reason: &str, message: &str) -> Error {
        let status = Status::failure(message, reason).with_code(code);
        Error::of_child(
            "Service shop/web".into(),
            kube::Error::Api(Box::new(status)),
        )
    }

    fn api(code: u16, field: &str) -> kube::Error {
        let status = json!({ "status": "Failure", "message": "", "reason": "Invalid", "code": code, "details": {
            "causes": [{ "reason": "FieldValueInvalid", "message": "field is immutable", "field": field }] } });
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[rstest]
    #[case::changed(api(409, ""), Class::Stale)]
    #[case::replaced(api(422, "metadata.uid"), Class::Stale)]
    #[case::invalid(api(422, "spec.field"), Class::Transient)]
    #[case::server_error(api(500, ""), Class::Transient)]
    #[case::fenced(kube::Error::Service(Box::new(RequestError::NotLeading)), Class::Stale)]
    #[case::unanswered(
        kube::Error::Service(Box::new(RequestError::Timeout(Duration::ZERO))),
        Class::Transient
    )]
    fn answer_has_a_class(#[case] error: kube::Error, #[case] class: Class) {
        assert_eq!(Class::of(&error), class);
    }

    #[rstest]
    // The message comes from the admission plugin OwnerReferencesPermissionEnforcement.
    #[case::apiserver_that_has_just_started(
        403,
        "services \"web\" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for \
         APIVersion example.com/v1 Kind Widget: no matches for kind \"Widget\" in version \"example.com/v1\"",
        Class::Transient,
        WRITE_FAILED
    )]
    #[case::permission(
        403,
        "services \"web\" is forbidden: cannot create resource",
        Class::Waiting,
        FORBIDDEN
    )]
    #[case::quota(
        403,
        "pods \"web\" is forbidden: exceeded quota: q",
        Class::Waiting,
        QUOTA_EXCEEDED
    )]
    #[case::webhook(
        400,
        "admission webhook \"w\" denied the request: no",
        Class::Waiting,
        FORBIDDEN
    )]
    #[case::invalid(
        422,
        "Service \"web\" is invalid: spec.ports: Required value",
        Class::Terminal,
        WRITE_REJECTED
    )]
    #[case::unreadable(
        500,
        "failed to create typed patch object (shop/web)",
        Class::Terminal,
        WRITE_REJECTED
    )]
    #[case::server_error(500, "etcdserver: request timed out", Class::Transient, WRITE_FAILED)]
    #[case::changed(409, "the object has been modified", Class::Stale, WRITE_FAILED)]
    fn classify_an_answer(
        #[case] code: u16,
        #[case] message: &str,
        #[case] class: Class,
        #[case] reason: &str,
    ) {
        let classified = of_child(code, "", message).classify();
        assert_eq!((classified.0, &*classified.1), (class, reason));
    }

    fn not_owned(child: &str) -> Error {
        Error::NotOwned(child.into())
    }

    fn rejected(child: &str) -> Error {
        of_child(422, "", child)
    }

    fn terminating() -> Error {
        Error::Terminating("b".into())
    }

    #[rstest]
    #[case::first(terminating(), not_owned("a"), CHILD_TERMINATING, "b")]
    #[case::before_a_rejection(terminating(), rejected("a"), CHILD_TERMINATING, "b")]
    #[case::after_a_rejection(rejected("a"), terminating(), CHILD_TERMINATING, "b")]
    #[case::rejections(
        rejected("a"),
        rejected("c"),
        WRITE_REJECTED,
        "the apiserver rejected Service shop/web: a"
    )]
    #[case::not_owned(not_owned("a"), not_owned("b"), CONFLICT, "a; b")]
    fn choose_the_failure_to_report(
        #[case] first: Error,
        #[case] next: Error,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let error = first.or(next);
        assert_eq!(error.classify().1, reason);
        assert!(error.to_string().starts_with(message), "{error}");
    }

    #[test]
    fn list_indexes_are_ignored_and_keys_are_not() {
        let field = "spec.template.spec.containers[2].resources.limits[cpu]";
        let expected = "spec.template.spec.containers[0].resources.limits[cpu]";
        assert_eq!(any_item(field), expected);
        assert_eq!(any_item("spec.replicas"), "spec.replicas");
    }
}
