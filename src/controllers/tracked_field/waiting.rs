//! Obstacles of a `TrackedField`, with the text of its annotation and Event.

use qm_api::tracked_field::{Entry, Skipped};
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use qm_core::conditions::Activity;
use qm_core::kind::{HasReadyCondition as _, Kind as _};
use qm_notify::message::{self, TextLimit};
use qm_notify::when::When;
use qm_notify::{OutgoingEntry, history};
use qm_runtime::ObjectKey;
use qm_runtime::error::{FORBIDDEN, WRITE_REJECTED};
use qm_runtime::outcome::{Outcome, SPEC_INVALID, SUSPENDED};
use qm_runtime::watch::{ResourceName, WatchProblem};

use super::lookup::Unreadable;
use super::resolver::TargetKey;
use super::tracker::Tracker;
use crate::cli::NO_CROSS_NAMESPACE_REFS;
use crate::controllers::contact_point::endpoint::BODY_INVALID;
use crate::controllers::reasons::OUT_OF_SCOPE;
use crate::permissions::{AGGREGATE_TO_TRACKER, TARGET_VERBS};

/// Reason of a target that cannot be read.
pub(crate) const TARGET_UNREADABLE: &str = "TargetUnreadable";
pub(crate) const RESOURCE_MISMATCH: &str = "ResourceMismatch";
pub(crate) const WHEN_INVALID: &str = "WhenInvalid";
pub(crate) const TEMPLATE_INVALID: &str = "TemplateInvalid";
pub(crate) const CONTACT_POINT_NOT_FOUND: &str = "ContactPointNotFound";
pub(crate) const CONTACT_POINT_NOT_READY: &str = "ContactPointNotReady";
pub(crate) const DELIVERY_FAILING: &str = "DeliveryFailing";

/// Obstacle to recording or sending changes; [`WaitingReason::reason`] returns its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitingReason {
    /// The stored spec is too large.
    SpecInvalid(String),
    TargetNotFound {
        /// Target, as `KIND NAMESPACE/NAME`.
        target: String,
    },
    /// The operator may not read the target.
    Forbidden {
        resource: ResourceName,
        message: String,
    },
    /// The tracker role does not grant the target's resource.
    NotGranted(String),
    /// The apiserver does not return the target, for a transient reason.
    TargetUnreadable(String),
    /// The watch of the target's resource fails.
    WatchFailing(String),
    /// The current version of the target cannot be decoded.
    TargetUndecodable {
        /// Target, as `KIND NAMESPACE/NAME`.
        target: String,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The lookup of the field is too expensive in the target's current version.
    PathTooExpensive {
        /// Target, as `KIND NAMESPACE/NAME`.
        target: String,
        /// The cost, and what to write instead.
        problem: String,
    },
    /// The apiserver does not serve the resource that the spec names.
    ResourceMismatch(String),
    /// The field cannot be looked up.
    Field {
        /// `FieldNotFound` or `PathInvalid`.
        reason: &'static str,
        /// The problem, and what to write instead.
        message: String,
    },
    /// The filter does not parse, or has no result for the newest change.
    WhenInvalid(String),
    /// The template does not parse; messages use the default text.
    TemplateInvalid(String),
    /// The contact point's body fails; messages are sent without it.
    BodyInvalid {
        name: String,
        message: String,
    },
    /// The contact point's body fails for the test message; nothing is sent.
    TestBodyInvalid {
        name: String,
        /// The contact point's message.
        message: String,
    },
    /// The target is outside the namespaces that the operator watches.
    OutOfScope {
        /// The target's namespace; empty for a cluster-scoped one.
        namespace: String,
    },
    /// The target is outside the namespace of the `TrackedField`, and the operator is configured to reject that.
    CrossNamespace {
        /// The target's namespace; empty for a cluster-scoped one.
        namespace: String,
    },
    Suspended,
    ContactPointNotFound {
        name: String,
        /// The most similar name that exists.
        nearest: Option<String>,
    },
    /// The contact point has no status yet; the first one takes a moment.
    ContactPointNotObserved {
        name: String,
    },
    /// The contact point is not ready, or is suspended.
    ContactPointNotReady {
        name: String,
        /// The contact point's reason and message.
        because: String,
    },
    /// The apiserver rejects status writes; no more messages of the object are sent.
    WriteRejected(String),
    /// Requests to the receiver fail; the operator retries.
    DeliveryFailing {
        name: String,
        message: String,
    },
}

impl WaitingReason {
    /// Returns whether the former target is no longer followed.
    pub(crate) fn ends_tracking(&self) -> bool {
        matches!(
            self,
            Self::ResourceMismatch(_)
                | Self::OutOfScope { .. }
                | Self::CrossNamespace { .. }
                | Self::Field { .. }
                | Self::NotGranted(_)
        )
    }

    /// Returns whether no watch shows the end of the obstacle: neither a new CRD nor a new permission wakes the object.
    pub(crate) fn needs_poll(&self) -> bool {
        match self {
            Self::ResourceMismatch(_) | Self::Forbidden { .. } => true,
            // The kind may be recreated with the other scope.
            Self::OutOfScope { namespace } | Self::CrossNamespace { namespace } => {
                namespace.is_empty()
            }
            _ => false,
        }
    }

    /// Returns the obstacle of a watch of `resource` with a problem.
    pub(crate) fn of_watch(resource: &ResourceName, problem: WatchProblem) -> Self {
        match problem {
            WatchProblem::Forbidden(message) => Self::Forbidden {
                resource: resource.clone(),
                message,
            },
            WatchProblem::NotServed => {
                let ResourceName {
                    api_version,
                    plural,
                } = resource;
                Self::ResourceMismatch(format!(
                    "the apiserver does not serve {plural} of {api_version}: install its CRD, or correct the target"
                ))
            }
            WatchProblem::Failing(message) => Self::WatchFailing(message),
        }
    }

    /// Returns whether `set`, which owns `child`, reports the obstacle, so that the child does not. All `TrackedField`s
    /// of the set have such an obstacle, and thousands of patches and Events would say the same.
    pub(crate) fn is_reported_by(&self, set: &TrackedFieldSet, child: &TrackedField) -> bool {
        let reported = ReportedObstacles::of(set);
        let template = &set.spec.template;
        match self {
            Self::Suspended => {
                reported == ReportedObstacles::Shared && template.suspend.unwrap_or_default()
            }
            Self::Forbidden { .. }
            | Self::NotGranted(_)
            | Self::WatchFailing(_)
            | Self::OutOfScope { .. }
            | Self::CrossNamespace { .. }
            // The set deletes the child of a deleted target after a while.
            | Self::TargetNotFound { .. }
            | Self::ResourceMismatch(_) => reported.includes(self.reason()),
            // The child keeps its contact point while the apiserver rejects the change, or other clients contest it.
            Self::ContactPointNotFound { .. }
            | Self::ContactPointNotObserved { .. }
            | Self::ContactPointNotReady { .. }
            | Self::TestBodyInvalid { .. }
            | Self::DeliveryFailing { .. } => {
                reported.includes(self.reason())
                    && child.spec.notification.contact_point == template.contact_point
            }
            Self::SpecInvalid(_)
            | Self::TargetUnreadable(_)
            | Self::TargetUndecodable { .. }
            | Self::PathTooExpensive { .. }
            | Self::Field { .. }
            | Self::TemplateInvalid(_)
            | Self::WhenInvalid(_)
            | Self::BodyInvalid { .. }
            | Self::WriteRejected(_) => false,
        }
    }

    /// Returns the end of the message of a `TrackedField` that `set` owns: where to correct a field that the set
    /// writes.
    pub(crate) fn advice_of(&self, set: Option<&TrackedFieldSet>) -> String {
        let Some(set) = set else {
            return String::new();
        };
        let template = &set.spec.template;
        let field = match self {
            Self::WhenInvalid(_) if template.when.is_some() => "when",
            Self::TemplateInvalid(_) if template.template.is_some() => "template",
            _ => return String::new(),
        };
        let name = set.metadata.name.as_deref().unwrap_or_default();
        format!(
            "; correct spec.template.{field} of TrackedFieldSet {name:?}, which writes this field"
        )
    }

    /// Returns whether the Event is a Warning: something is wrong, or a user has to act.
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Suspended | Self::ContactPointNotObserved { .. })
    }

    /// Returns the outcome of an object with this obstacle.
    pub(crate) fn outcome(&self) -> Outcome {
        let (reason, message) = (self.reason(), self.message());
        match self {
            Self::OutOfScope { .. } | Self::CrossNamespace { .. } if !self.needs_poll() => {
                Outcome::stalled(reason, message)
            }
            _ if self.is_warning() => Outcome::failed(reason, message),
            _ => Outcome::in_progress(reason, message),
        }
    }

    /// Returns the reason for Events.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SpecInvalid(_) => SPEC_INVALID,
            Self::TargetNotFound { .. } => "TargetNotFound",
            Self::Forbidden { .. } | Self::NotGranted(_) => FORBIDDEN,
            Self::TargetUnreadable(_) | Self::WatchFailing(_) | Self::TargetUndecodable { .. } => {
                TARGET_UNREADABLE
            }
            Self::PathTooExpensive { .. } => "PathTooExpensive",
            Self::ResourceMismatch(_) => RESOURCE_MISMATCH,
            Self::Field { reason, .. } => reason,
            Self::WhenInvalid(_) => WHEN_INVALID,
            Self::TemplateInvalid(_) => TEMPLATE_INVALID,
            Self::BodyInvalid { .. } | Self::TestBodyInvalid { .. } => BODY_INVALID,
            Self::OutOfScope { .. } | Self::CrossNamespace { .. } => OUT_OF_SCOPE,
            Self::Suspended => SUSPENDED,
            Self::ContactPointNotFound { .. } => CONTACT_POINT_NOT_FOUND,
            Self::ContactPointNotObserved { .. } | Self::ContactPointNotReady { .. } => {
                CONTACT_POINT_NOT_READY
            }
            Self::WriteRejected(_) => WRITE_REJECTED,
            Self::DeliveryFailing { .. } => DELIVERY_FAILING,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::TargetNotFound { target } => {
                format!("{target} does not exist; the operator reports it once it exists")
            }
            Self::Forbidden { resource, message } => format!("{}; {}", brief(message), how_to_grant(resource)),
            Self::TargetUnreadable(message) | Self::WatchFailing(message) => format!("{}; the operator retries", brief(message)),
            Self::TargetUndecodable { target, problem } => {
                format!("{target} {problem}; until then, changes are not recorded")
            }
            Self::PathTooExpensive { target, problem } => format!("{target}: {problem}"),
            Self::SpecInvalid(message)
            | Self::NotGranted(message)
            | Self::ResourceMismatch(message)
            | Self::Field { message, .. } => message.clone(),
            Self::WhenInvalid(message) => format!("spec.when: {message}"),
            Self::TemplateInvalid(message) => {
                format!("spec.template: {message}; until the template is fixed, messages use the default text")
            }
            Self::BodyInvalid { name, message } => format!(
                "webhookSpec.body of {name:?} fails for the newest change: {message}; such messages use the default body"
            ),
            Self::OutOfScope { namespace } if namespace.is_empty() => {
                "the target is cluster-scoped, but the operator watches only some namespaces (--watch-namespace): track an object in \
                 one of these namespaces"
                    .into()
            }
            Self::OutOfScope { namespace } => {
                format!(
                    "the operator does not watch namespace {namespace:?}: add it to --watch-namespace, or track an object in \
                     a watched namespace"
                )
            }
            Self::CrossNamespace { namespace } if namespace.is_empty() => {
                format!(
                    "the target is cluster-scoped, which {NO_CROSS_NAMESPACE_REFS} forbids: track an object in the \
                     namespace of this resource"
                )
            }
            Self::CrossNamespace { namespace } => {
                format!(
                    "the target is in namespace {namespace:?}, which {NO_CROSS_NAMESPACE_REFS} forbids: track an object in \
                     the namespace of this resource"
                )
            }
            Self::Suspended => "changes are recorded, and sent once spec.suspend is false".into(),
            Self::ContactPointNotFound { name, nearest: Some(nearest) } => {
                format!("{name:?} not found; there is {nearest:?}")
            }
            Self::ContactPointNotFound { name, nearest: None } => {
                format!("{name:?} not found; create the ContactPoint in the namespace of this resource")
            }
            Self::ContactPointNotObserved { name } => {
                format!("{name:?}: the operator has not tested it yet")
            }
            Self::ContactPointNotReady { name, because } => format!("{name:?}: {because}"),
            Self::TestBodyInvalid { name, message } => format!("{name:?}: {message}"),
            Self::WriteRejected(message) => format!(
                "the apiserver rejects writes of the status, so changes are neither recorded nor sent: {}; change the \
                 admission policy or webhook so that it accepts writes of trackedfields/status, or delete this TrackedField",
                brief(message)
            ),
            Self::DeliveryFailing { name, message } => {
                format!("{name:?}: {message}; the operator retries")
            }
        }
    }
}

/// Obstacles that a set reports [instead of its `TrackedField`s](WaitingReason::is_reported_by).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReportedObstacles {
    /// None.
    #[default]
    None,
    /// Those of this reason, which stalls the set. The set looks for no others until its spec changes.
    OfReason(String),
    /// All that its `TrackedField`s share.
    Shared,
}

impl ReportedObstacles {
    /// Returns the obstacles that `set` reports, as far as its stored status shows.
    pub(crate) fn of(set: &TrackedFieldSet) -> Self {
        if !is_reconciled(set) {
            return Self::None;
        }
        let ready = set.ready_condition();
        match ready.filter(|ready| ready.activity == Activity::Stalled) {
            Some(ready) => Self::OfReason(ready.reason.to_owned()),
            None => Self::Shared,
        }
    }

    fn includes(&self, reason: &str) -> bool {
        match self {
            Self::None => false,
            Self::OfReason(stalled) => stalled == reason,
            Self::Shared => true,
        }
    }
}

/// Returns whether the operator acts on `set`. A suspended set reports only its suspension; a terminating set, which
/// finalizers of other programs may keep for long, is not reconciled.
pub(crate) fn is_reconciled(set: &TrackedFieldSet) -> bool {
    !set.is_suspended() && set.metadata.deletion_timestamp.is_none()
}

/// Returns what to write so that `resource` may be tracked.
pub(crate) fn how_to_grant(resource: &ResourceName) -> String {
    format!(
        "grant it with a ClusterRole labelled {AGGREGATE_TO_TRACKER}: \"true\" whose rule is apiGroups: \
         [{:?}], resources: [{:?}], verbs: [{}]",
        resource.group(),
        resource.plural,
        TARGET_VERBS.join(", ")
    )
}

/// Returns up to 512 bytes of a message of the apiserver.
pub(crate) fn brief(message: &str) -> &str {
    &message[..message.floor_char_boundary(512)]
}

/// Returns the obstacle to tracking a target.
pub(crate) fn of_target(
    tracker: &Tracker,
    key: &ObjectKey,
    watched_namespace: Option<&str>,
    target: &TargetKey,
    object: &TrackedField,
) -> Option<WaitingReason> {
    if let Some(problem) = tracker.watch_problem(&target.resource, watched_namespace) {
        return Some(WaitingReason::of_watch(&target.resource, problem));
    }
    let name = || {
        let kind = &object.spec.target.kind;
        let namespace = if target.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", target.namespace)
        };
        format!("{kind} {namespace}{}", target.name)
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

pub(crate) fn of_when(when: &Result<When, String>, history: &[Entry]) -> Option<WaitingReason> {
    let problem = match when {
        Err(error) => {
            format!("{error}; until the expression is fixed, a message is sent for every change")
        }
        // The language has no types that could be checked without a change.
        Ok(when) => {
            let (entry, previous) = history::newest_recorded(history)?;
            // The expression does not decide about a quiet first value, which is the previous value of the next change.
            let is_quiet = entry.skipped == Some(Skipped::Initial);
            let previous = previous.or(is_quiet.then_some(entry));
            let error = when.evaluate(entry, previous).err()?;
            format!("failed for the newest change: {error}; messages for such changes are sent")
        }
    };
    Some(WaitingReason::WhenInvalid(problem))
}

pub(crate) fn of_template(
    object: &TrackedField,
    history: &[Entry],
    cluster: Option<&str>,
) -> Option<WaitingReason> {
    let template = object.spec.notification.template.as_deref()?;
    if let Err(error) = message::check_template(template) {
        return Some(WaitingReason::TemplateInvalid(error));
    }
    // Only a change shows whether the template can be rendered.
    let item = newest(object, history)?;
    let problem = match message::template::message(template, &message::View::of(&item, cluster)) {
        Ok(text) if text.trim().is_empty() => "empty for the newest change".to_owned(),
        Ok(_) => return None,
        Err(error) => format!("failed for the newest change: {error}"),
    };
    Some(WaitingReason::TemplateInvalid(problem))
}

/// Returns the problem of the contact point's body. A body that does not parse makes the contact point not ready, and
/// is reported there.
pub fn of_body(
    object: &TrackedField,
    history: &[Entry],
    point: &ContactPoint,
    cluster: Option<&str>,
) -> Option<WaitingReason> {
    let webhook = point.spec.webhook_spec.as_ref()?;
    let body = message::Body::of(webhook).ok()??;
    let item = newest(object, history)?;
    let view = message::View::of(&item, cluster);
    let text = message::render(
        std::slice::from_ref(&item),
        cluster,
        point.spec.footer.as_deref(),
        false,
        TextLimit::WEBHOOK,
    )
    .text;
    let message = body
        .check(&view, std::slice::from_ref(&view), &text)
        .err()?;
    Some(WaitingReason::BodyInvalid {
        name: object.spec.notification.contact_point.clone(),
        message,
    })
}

/// Returns the newest change, as its message without a template contains it; `None` if no message is sent for it.
fn newest(object: &TrackedField, history: &[Entry]) -> Option<OutgoingEntry> {
    let (newest, previous) = history::newest(history)?;
    let is_sent = newest.skipped.is_none();
    is_sent.then(|| OutgoingEntry::of(object, None, newest, previous))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::tracked_field::History;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a history of one entry, for which no message is sent if `is_skipped`.
    fn first(value: &str, is_skipped: bool) -> History {
        let mut entry = json!({
            "action": "Created", "id": "1", "value": value, "subject": "Deployment/shop/web/image",
        });
        if is_skipped {
            entry["skipped"] = "Initial".into();
        } else {
            entry["delivery"] = "Pending".into();
        }
        serde_json::from_value(json!([entry])).unwrap()
    }

    fn field(template: &str) -> TrackedField {
        let target = json!({ "kind": "Deployment", "namespace": "shop", "name": "web" });
        let field = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
            "metadata": { "namespace": "ops", "name": "web" },
            "spec": { "target": target, "field": "image", "contactPoint": "hook", "template": template },
        });
        serde_json::from_value(field).unwrap()
    }

    fn point(body: &str) -> ContactPoint {
        let webhook = json!({ "url": "https://hook.example.com", "body": body });
        let point = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint",
            "metadata": { "namespace": "ops", "name": "hook" },
            "spec": { "type": "Webhook", "webhookSpec": webhook },
        });
        serde_json::from_value(point).unwrap()
    }

    fn set(template: &Value, ready: &Value) -> TrackedFieldSet {
        let set = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet",
            "metadata": { "namespace": "ops", "name": "all" },
            "spec": { "target": { "kind": "Deployment" }, "fields": ["image"], "template": template },
            "status": { "conditions": ready },
        });
        serde_json::from_value(set).unwrap()
    }

    fn ready(reason: &str, other: &str) -> Value {
        let conditions = ["Ready", other].map(|type_| {
            json!({
                "type": type_, "status": if type_ == "Ready" { "False" } else { "True" }, "reason": reason,
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        });
        json!(conditions)
    }

    /// Otherwise nobody would say why nothing is recorded or sent.
    #[test]
    fn child_of_a_stalled_set_reports_all_but_the_reason_of_the_set() {
        let child = field("");
        let template = json!({ "contactPoint": "hook", "suspend": true });
        let missing = WaitingReason::ContactPointNotFound {
            name: "hook".into(),
            nearest: None,
        };
        let obstacles = [
            missing,
            WaitingReason::NotGranted(String::new()),
            WaitingReason::OutOfScope {
                namespace: "shop".into(),
            },
            WaitingReason::Suspended,
            WaitingReason::WhenInvalid(String::new()),
        ];
        for (conditions, reported) in [
            (json!([]), [true, true, true, true, false]),
            (
                ready("Forbidden", "Reconciling"),
                [true, true, true, true, false],
            ),
            (
                ready("OutOfScope", "Stalled"),
                [false, false, true, false, false],
            ),
            (ready("WhenInvalid", "Stalled"), [false; 5]),
        ] {
            let set = set(&template, &conditions);
            let is_reported = |waiting: &WaitingReason| waiting.is_reported_by(&set, &child);
            assert_eq!(obstacles.each_ref().map(is_reported), reported, "{set:?}");
        }
    }

    /// The apiserver may reject the change of the child.
    #[test]
    fn child_reports_a_contact_point_that_its_set_no_longer_names() {
        let child = field("");
        let obstacles = [
            WaitingReason::ContactPointNotFound {
                name: "hook".into(),
                nearest: None,
            },
            WaitingReason::NotGranted(String::new()),
        ];
        for (contact_point, reported) in [("hook", [true, true]), ("other", [false, true])] {
            let template = json!({ "contactPoint": contact_point });
            let set = set(&template, &ready("WriteRejected", "Reconciling"));
            let is_reported = |waiting: &WaitingReason| waiting.is_reported_by(&set, &child);
            assert_eq!(obstacles.each_ref().map(is_reported), reported);
        }
    }

    /// Every child of a quiet set would report a problem that its first message does not have.
    #[test]
    fn template_and_body_are_tried_only_with_changes_that_are_sent() {
        let change = r#"{{ previous | replace("a", "b") }} -> {{ value }}"#;
        let (object, point) = (field(change), point(change));
        let is_reported = |is_skipped: bool| {
            let history = first("web:1", is_skipped);
            (
                of_template(&object, &history, None).is_some(),
                of_body(&object, &history, &point, None).is_some(),
            )
        };
        assert_eq!(is_reported(false), (true, true));
        assert_eq!(is_reported(true), (false, false));
        let invalid = of_template(&field("{% if %}"), &first("web:1", true), None);
        assert!(invalid.is_some(), "it does not parse");
    }

    #[test]
    fn quiet_value_is_its_own_previous_value_for_the_expression() {
        let when = When::parse("number(value) < number(previous)");
        let is_reported = |value: &str, is_skipped: bool| {
            let history = first(value, is_skipped);
            of_when(&when, &history).is_some()
        };
        assert!(!is_reported("2", true));
        assert!(
            is_reported("2", false),
            "the first message has no previous value"
        );
        assert!(is_reported("web:1", true), "an image is no number");
    }
}
