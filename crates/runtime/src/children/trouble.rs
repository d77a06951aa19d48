//! Why a child is not as it is wanted.

use std::collections::BTreeSet;

use kube::core::Status;

use crate::apply::is_immutable;
use crate::owners::Unconfirmed;
use crate::reconciler::{Class, Failure, is_replaced};

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
    /// Returns the fields that the apiserver names where it refuses an object, with list indexes replaced by 0; `None`
    /// if no field can fix the refusal.
    pub(super) fn fields(&self) -> Option<BTreeSet<String>> {
        let said = match self {
            Self::Refused { said, .. } if !is_immutable(said) => said,
            // The apiserver detects this before it validates fields.
            Self::Api {
                error: kube::Error::Api(said),
                ..
            } if said.message.starts_with("duplicate nodePort") => {
                return Some(["spec.ports[0].nodePort".into()].into());
            }
            _ => return None,
        };
        let causes = said.details.iter().flat_map(|details| &details.causes);
        // Indexes are those of an object that was never stored.
        let fields = causes
            .map(|cause| any_item(&cause.field))
            .filter(|field| !field.starts_with("metadata"));
        Some(fields.collect())
    }

    /// Of `what`, which was answered with `error`.
    pub(super) fn of(what: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(said)
                if is_unreadable(&said)
                    || (matches!(said.code, 400 | 403 | 405 | 413 | 422)
                        && !is_replaced(&said)
                        && !is_owner_kind_unknown(&said)) =>
            {
                Self::Refused { what, said }
            }
            error => Self::Api { what, error },
        }
    }
}

/// Returns whether an apiserver that has just started does not know the owner's kind yet, and so cannot tell whether the operator may
/// block its deletion.
fn is_owner_kind_unknown(said: &Status) -> bool {
    said.code == 403 && said.message.contains("cannot find RESTMapping")
}

/// Server-side apply answers 500 to an object that is none of its kind, such as one with a quantity that is no number (seen
/// on 1.36); a creation is then a 400.
fn is_unreadable(said: &Status) -> bool {
    let begins = [
        "failed to convert new object",
        "failed to create typed patch object",
    ];
    said.code == 500 && begins.iter().any(|words| said.message.starts_with(words))
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
    use super::*;

    /// The words are those of the admission plugin `OwnerReferencesPermissionEnforcement`.
    #[test]
    fn an_apiserver_that_does_not_know_the_owner_s_kind_yet_is_asked_again() {
        let of = |message: &str| {
            let status = Status::failure(message, "Forbidden").with_code(403);
            Trouble::of(
                "Service shop/web".into(),
                kube::Error::Api(Box::new(status)),
            )
            .class()
        };
        let unknown = "services \"web\" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for \
                       APIVersion example.com/v1 Kind Widget: no matches for kind \"Widget\" in version \"example.com/v1\"";
        assert_eq!(of(unknown), Class::Transient);
        assert_eq!(
            of("services \"web\" is forbidden: cannot create resource"),
            Class::Terminal
        );
    }

    #[test]
    fn number_of_an_item_is_not_looked_at_and_a_key_is() {
        let field = "spec.template.spec.containers[2].resources.limits[cpu]";
        assert_eq!(
            any_item(field),
            "spec.template.spec.containers[0].resources.limits[cpu]"
        );
        assert_eq!(any_item("spec.replicas"), "spec.replicas");
    }
}
