//! Why a child is not as it is wanted.

use kube::core::Status;

use crate::runtime::owners::Unconfirmed;
use crate::runtime::reconciler::{Class, Failure, is_replaced};

/// Why a child is not as it is wanted.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// It is not ours: these are the words of the condition.
    #[error("{0}")]
    Conflict(String),
    /// It is being deleted; it is made again once it is gone.
    #[error("{0} is being deleted; it is made again once it is gone")]
    Going(String),
    /// The apiserver does not take it as it is: its own words.
    #[error("the apiserver refuses {what}: {}", .said.message)]
    Refused {
        /// The child.
        what: String,
        /// The answer.
        said: Box<Status>,
    },
    /// Its owner may be gone.
    #[error(transparent)]
    Owner(#[from] Unconfirmed),
    /// It could not be read or written.
    #[error("{what} could not be read or written: {error}")]
    Api {
        /// The child.
        what: String,
        /// Why.
        #[source]
        error: kube::Error,
    },
}

impl Failure for Trouble {
    fn class(&self) -> Class {
        match self {
            Self::Conflict(_) | Self::Refused { .. } => Class::Terminal,
            Self::Going(_) => Class::Transient,
            Self::Owner(unconfirmed) => unconfirmed.class(),
            Self::Api { error, .. } => error.class(),
        }
    }
}

impl Trouble {
    /// Of `what`, which was answered with `error`.
    pub(super) fn of(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(said)
                if is_unreadable(&said)
                    || (matches!(said.code, 400 | 403 | 405 | 413 | 422) && !is_replaced(&said)) =>
            {
                Self::Refused { what, said }
            }
            error => Self::Api { what, error },
        }
    }
}

/// Server-side apply answers 500 to an object that is none of its kind, such as one with a quantity that is no number (seen
/// on 1.36); a creation is then a 400.
fn is_unreadable(said: &Status) -> bool {
    let begins = ["failed to convert new object", "failed to create typed patch object"];
    said.code == 500 && begins.iter().any(|words| said.message.starts_with(words))
}
