//! Why a `TrackedField` waits: the words of its annotation and of its Event.

use qm_api::tracked_field::Entry;
use qm_api::{ContactPoint, TrackedField};
use qm_core::conditions;
use qm_notify::OutgoingEntry;
use qm_notify::history;
use qm_notify::message::{self, TextLimit};
use qm_runtime::Key;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::watch_hub::ResourceName;

use super::follower::Unreadable;
use super::target::TargetKey;
use super::tracker::{Tracker, WatchProblem};
use crate::cli::NO_CROSS_NAMESPACE_REFS;

/// Reason of a target that cannot be read.
pub const TARGET_UNREADABLE: &str = "TargetUnreadable";

/// Obstacle to recording or sending changes. The variant's name is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingReason {
    /// The stored spec was not read.
    SpecInvalid(String),
    /// The target does not exist.
    TargetNotFound {
        /// What it is, as `KIND NAMESPACE/NAME`.
        target: String,
    },
    /// The operator may not read the target.
    Forbidden {
        /// What it may not read.
        resource: ResourceName,
        /// The apiserver's words.
        message: String,
    },
    /// The tracker role does not grant the target's resource.
    NotGranted(String),
    /// The apiserver does not give the target, for a reason that may pass.
    TargetUnreadable(String),
    /// The target exists, and cannot be decoded as it now is.
    TargetUndecodable {
        /// What it is, as `KIND NAMESPACE/NAME`.
        target: String,
        /// What it does, and what to do about it.
        problem: String,
    },
    /// The lookup of the field is too expensive in the target as it now is.
    PathTooExpensive {
        /// What it is, as `KIND NAMESPACE/NAME`.
        target: String,
        /// What it takes, and what to write instead.
        problem: String,
    },
    /// The spec names a resource that the apiserver does not serve so.
    ResourceMismatch(String),
    /// The field cannot be looked up.
    Field {
        /// `FieldNotFound` or `PathInvalid`.
        reason: &'static str,
        /// What to write instead.
        message: String,
    },
    /// The template does not parse; messages are the default ones.
    TemplateInvalid(String),
    /// The contact point's body fails; messages are sent as without one.
    BodyInvalid {
        /// The contact point's name.
        name: String,
        /// Why.
        message: String,
    },
    /// The target lies where this operator does not watch.
    OutOfScope {
        /// The target's namespace; empty for a cluster-scoped one.
        namespace: String,
    },
    /// The target is outside the namespace of the `TrackedField`, and the operator refuses that.
    CrossNamespace {
        /// The target's namespace; empty for a cluster-scoped one.
        namespace: String,
    },
    /// It is suspended itself.
    Suspended,
    /// There is no such contact point.
    ContactPointNotFound {
        /// Its name.
        name: String,
        /// The name nearest to it that there is.
        nearest: Option<String>,
    },
    /// The contact point has no status yet, which is but a moment.
    ContactPointNotObserved {
        /// Its name.
        name: String,
    },
    /// The contact point is not ready, or is suspended.
    ContactPointNotReady {
        /// Its name.
        name: String,
        /// Its own reason.
        because: String,
    },
    /// The apiserver refuses to write the status; nothing more of the object is sent.
    WriteRejected(String),
    /// The receiver does not take messages now; they are tried again.
    DeliveryFailing {
        /// The contact point's name.
        name: String,
        /// What happened last.
        message: String,
    },
}

impl WaitingReason {
    /// Whether what was followed is no longer to be.
    pub fn ends_tracking(&self) -> bool {
        matches!(
            self,
            Self::ResourceMismatch(_)
                | Self::OutOfScope { .. }
                | Self::CrossNamespace { .. }
                | Self::Field { .. }
                | Self::NotGranted(_)
        )
    }

    /// Whether nobody is woken by its end: neither a new CRD nor a new right is watched for.
    pub fn ends_unnoticed(&self) -> bool {
        match self {
            Self::ResourceMismatch(_) | Self::Forbidden { .. } => true,
            // Of a kind that may be made anew in the other scope.
            Self::OutOfScope { namespace } | Self::CrossNamespace { namespace } => {
                namespace.is_empty()
            }
            _ => false,
        }
    }

    /// Whether somebody has to do something, or something is wrong.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Suspended | Self::ContactPointNotObserved { .. })
    }

    /// The reason, as Events have it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SpecInvalid(_) => "SpecInvalid",
            Self::TargetNotFound { .. } => "TargetNotFound",
            Self::Forbidden { .. } | Self::NotGranted(_) => "Forbidden",
            Self::TargetUnreadable(_) | Self::TargetUndecodable { .. } => TARGET_UNREADABLE,
            Self::PathTooExpensive { .. } => "PathTooExpensive",
            Self::ResourceMismatch(_) => "ResourceMismatch",
            Self::Field { reason, .. } => reason,
            Self::TemplateInvalid(_) => "TemplateInvalid",
            Self::BodyInvalid { .. } => "BodyInvalid",
            Self::OutOfScope { .. } | Self::CrossNamespace { .. } => "OutOfScope",
            Self::Suspended => "Suspended",
            Self::ContactPointNotFound { .. } => "ContactPointNotFound",
            Self::ContactPointNotObserved { .. } | Self::ContactPointNotReady { .. } => {
                "ContactPointNotReady"
            }
            Self::WriteRejected(_) => "WriteRejected",
            Self::DeliveryFailing { .. } => "DeliveryFailing",
        }
    }

    /// The words.
    pub fn message(&self) -> String {
        match self {
            Self::TargetNotFound { target } => {
                format!("{target} does not exist; the operator reports it once it exists")
            }
            Self::Forbidden { resource, message } => format!("{}; {}", brief(message), how_to_grant(resource)),
            Self::TargetUnreadable(message) => format!("{}; it is tried again", brief(message)),
            Self::TargetUndecodable { target, problem } => {
                format!("{target} {problem}; nothing is recorded until then")
            }
            Self::PathTooExpensive { target, problem } => format!("{target}: {problem}"),
            Self::SpecInvalid(message)
            | Self::NotGranted(message)
            | Self::ResourceMismatch(message)
            | Self::Field { message, .. } => message.clone(),
            Self::TemplateInvalid(message) => {
                format!("spec.template: {message}; until it is mended messages are the default ones")
            }
            Self::BodyInvalid { name, message } => format!(
                "webhookSpec.body of {name:?} fails for the newest change: {message}; such messages are sent as without it"
            ),
            Self::OutOfScope { namespace } if namespace.is_empty() => {
                "the target is cluster-scoped, and this operator watches some namespaces only (--watch-namespace)"
                    .into()
            }
            Self::OutOfScope { namespace } => {
                format!("this operator does not watch namespace {namespace:?} (--watch-namespace)")
            }
            Self::CrossNamespace { namespace } if namespace.is_empty() => {
                format!("the target is cluster-scoped, and this operator refuses that ({NO_CROSS_NAMESPACE_REFS})")
            }
            Self::CrossNamespace { namespace } => {
                format!("namespace {namespace:?} is not the TrackedField's own ({NO_CROSS_NAMESPACE_REFS})")
            }
            Self::Suspended => "changes are recorded, and sent once spec.suspend is false".into(),
            Self::ContactPointNotFound { name, nearest: Some(nearest) } => {
                format!("{name:?} not found; there is {nearest:?}")
            }
            Self::ContactPointNotFound { name, nearest: None } => {
                format!("{name:?} not found; a ContactPoint is looked for in the TrackedField's own namespace")
            }
            Self::ContactPointNotObserved { name } => format!("{name:?}: it has not been tried yet"),
            Self::ContactPointNotReady { name, because } => format!("{name:?}: {because}"),
            Self::WriteRejected(message) => format!(
                "the apiserver refuses to write the status, so nothing is recorded and nothing more is sent: {}; change the \
                 admission policy or webhook so that it accepts writes of trackedfields/status, or delete this TrackedField",
                brief(message)
            ),
            Self::DeliveryFailing { name, message } => format!("{name:?}: {message}; it is tried again"),
        }
    }
}

/// Returns what to write so that `resource` may be tracked.
pub fn how_to_grant(resource: &ResourceName) -> String {
    format!(
        "grant it with a ClusterRole labelled quartermaster.dev/aggregate-to-tracker: \"true\" whose rule is apiGroups: \
         [{:?}], resources: [{:?}], verbs: [get, list, watch]",
        resource
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group),
        resource.plural
    )
}

/// The apiserver's words, up to 512 bytes of them.
pub fn brief(words: &str) -> &str {
    &words[..words.floor_char_boundary(512)]
}

/// What keeps a target from being tracked.
pub fn of_target(
    tracker: &Tracker,
    key: &Key,
    shard: Option<&str>,
    target: &TargetKey,
    object: &TrackedField,
) -> Option<WaitingReason> {
    match tracker.watch_problem(&target.resource, shard) {
        Some(WatchProblem::Forbidden(message)) => {
            return Some(WaitingReason::Forbidden {
                resource: target.resource.clone(),
                message,
            });
        }
        Some(WatchProblem::NotServed) => {
            let ResourceName {
                api_version,
                plural,
            } = &target.resource;
            return Some(WaitingReason::ResourceMismatch(format!(
                "the apiserver does not serve {plural} of {api_version}"
            )));
        }
        Some(WatchProblem::Failing(message)) => {
            return Some(WaitingReason::TargetUnreadable(message));
        }
        None => {}
    }
    let name = || {
        let kind = &object.spec.target.kind;
        let place = if target.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", target.namespace)
        };
        format!("{kind} {place}{}", target.name)
    };
    if let Some(why) = tracker.unreadable(key) {
        let (target, problem) = (name(), why.to_string());
        return Some(match why {
            Unreadable::TooExpensive(_) => WaitingReason::PathTooExpensive { target, problem },
            Unreadable::TooDeep | Unreadable::TooLarge | Unreadable::NotJson(_) => {
                WaitingReason::TargetUndecodable { target, problem }
            }
        });
    }
    (tracker.exists(key) == Some(false)).then(|| WaitingReason::TargetNotFound { target: name() })
}

/// What is wrong with the template.
pub fn of_template(
    object: &TrackedField,
    history: &[Entry],
    cluster: Option<&str>,
) -> Option<WaitingReason> {
    let template = object.spec.template.as_deref()?;
    if let Err(error) = message::check_template(template) {
        return Some(WaitingReason::TemplateInvalid(error));
    }
    // Whether it can be rendered shows only on a change.
    let item = newest(object, history)?;
    let problem = match message::template::message(template, &message::View::of(&item, cluster)) {
        Ok(text) if text.trim().is_empty() => "it says nothing for the newest change".to_owned(),
        Ok(_) => return None,
        Err(error) => format!("it fails for the newest change: {error}"),
    };
    Some(WaitingReason::TemplateInvalid(problem))
}

/// What is wrong with the body that the contact point gives messages. One that does not parse is the contact point's to
/// say: it is not ready.
pub fn of_body(
    object: &TrackedField,
    history: &[Entry],
    point: &ContactPoint,
    cluster: Option<&str>,
) -> Option<WaitingReason> {
    let body = point.spec.webhook_spec.as_ref()?.body.as_deref()?;
    let body = message::template::Body::new(body).ok()?;
    let item = newest(object, history)?;
    let view = message::View::of(&item, cluster);
    let text = message::render(
        std::slice::from_ref(&item),
        cluster,
        false,
        TextLimit::WEBHOOK,
    )
    .text;
    let message = body
        .render(&view, std::slice::from_ref(&view), &text)
        .err()?;
    Some(WaitingReason::BodyInvalid {
        name: object.spec.contact_point.clone(),
        message,
    })
}

/// The newest change, as its message without a template has it.
fn newest(object: &TrackedField, history: &[Entry]) -> Option<OutgoingEntry> {
    let (newest, previous) = history::newest(history)?;
    Some(OutgoingEntry::of(object, None, newest, previous))
}

/// What keeps a contact point from taking messages.
pub fn of_point(point: &ContactPoint) -> Option<WaitingReason> {
    let name = point.metadata.name.clone().unwrap_or_default();
    let status = point.status.as_ref();
    let ready = status.and_then(|status| conditions::get(&status.conditions, conditions::READY));
    // One that is being resumed says so until its status is written.
    if point.spec.suspend.unwrap_or_default()
        || ready.is_some_and(|ready| ready.reason == SUSPENDED)
    {
        return Some(WaitingReason::ContactPointNotReady {
            name,
            because: "it is suspended".into(),
        });
    }
    if status.is_some_and(|status| status.ready) {
        return None;
    }
    Some(match ready {
        None => WaitingReason::ContactPointNotObserved { name },
        Some(ready) => WaitingReason::ContactPointNotReady {
            name,
            because: format!("{}: {}", ready.reason, ready.message),
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    fn of(status: &serde_json::Value) -> Option<WaitingReason> {
        let point = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint", "metadata": { "name": "hook" },
            "spec": { "type": "webhook" }, "status": status,
        });
        of_point(&serde_json::from_value(point).unwrap())
    }

    /// As when both are applied from one file.
    #[test]
    fn that_a_contact_point_is_new_is_no_warning() {
        let new = of(&json!(null)).unwrap();
        assert_eq!(
            (new.reason(), &*new.message()),
            (
                "ContactPointNotReady",
                r#""hook": it has not been tried yet"#
            )
        );
        assert!(!new.is_warning());
        let condition = |status: &str| {
            json!([{ "type": "Ready", "status": status, "reason": "Unauthorized", "message": "no",
                     "lastTransitionTime": "2026-01-01T00:00:00Z" }])
        };
        let refused = of(&json!({ "ready": false, "conditions": condition("False") })).unwrap();
        assert_eq!(
            (refused.reason(), &*refused.message()),
            ("ContactPointNotReady", r#""hook": Unauthorized: no"#)
        );
        assert!(refused.is_warning());
        assert_eq!(
            of(&json!({ "ready": true, "conditions": condition("True") })),
            None
        );
    }
}
