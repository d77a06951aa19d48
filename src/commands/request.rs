//! Requests of the commands: field manager, errors, outages.

use std::io;
use std::time::Duration;

use qm_runtime::telemetry;

use super::printer::Printer;

/// The field manager of these commands.
pub(crate) const FIELD_MANAGER: &str = "quartermaster/cli";

/// Shortest time between two reads of a command that waits for a change.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A failed request, with the apiserver's message.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct FailedRequest {
    message: String,
    pub(super) code: Option<u16>,
}

impl From<kube::Error> for FailedRequest {
    fn from(error: kube::Error) -> Self {
        Self::new(&error)
    }
}

impl FailedRequest {
    fn new(error: &kube::Error) -> Self {
        let code = match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        Self {
            message: message(error),
            code,
        }
    }

    /// Returns the error of a list in `namespace`, or in all namespaces. A user who may not list all namespaces may still
    /// list one.
    pub(super) fn of_list(error: &kube::Error, namespace: Option<&str>) -> Self {
        let mut error = Self::new(error);
        if error.code == Some(403) && namespace.is_none() {
            error.message += "; for one namespace: -n NAMESPACE";
        }
        error
    }

    /// Returns whether `error` is the answer of an apiserver that is overloaded or starting.
    pub(super) fn is_busy(error: &anyhow::Error) -> bool {
        matches!(Self::code_of(error), Some(429 | 503 | 504))
    }

    /// Returns whether the same request may succeed later: the apiserver did not answer, or is overloaded or starting.
    pub(super) fn may_pass(error: &anyhow::Error) -> bool {
        match Self::code_of(error) {
            Some(code) => code == 429 || code >= 500,
            None => true,
        }
    }

    /// Returns whether the user lacks a permission.
    pub(super) fn is_forbidden(error: &anyhow::Error) -> bool {
        Self::code_of(error) == Some(403)
    }

    fn code_of(error: &anyhow::Error) -> Option<u16> {
        error.downcast_ref::<Self>()?.code
    }
}

/// Returns the apiserver's message, or the cause of a missing answer.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.message.is_empty() => {
            format!("HTTP status {} without a message", status.code)
        }
        kube::Error::Api(status) => status.message.clone(),
        // kube's own text adds nothing.
        kube::Error::Service(error) => telemetry::causes(&**error),
        error => telemetry::causes(error),
    }
}

pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Prints why the cluster does not answer, once for each reason.
#[derive(Default)]
pub(crate) struct OutageReporter(String);

impl OutageReporter {
    pub(super) fn report(&mut self, error: &anyhow::Error, out: &mut Printer) -> io::Result<()> {
        let text = format!("the cluster does not answer; will retry: {error:#}");
        if text != self.0 {
            out.line(&text)?;
            self.0 = text;
        }
        Ok(())
    }
}

/// Returns ` in namespace NAMESPACE`, or nothing for all namespaces.
pub(crate) fn in_namespace(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |namespace| {
        format!(" in namespace {namespace}")
    })
}
