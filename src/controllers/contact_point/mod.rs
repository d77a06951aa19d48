//! `ContactPoint`: the controller reads Secrets ([`endpoint`]), configures a queue of the outbox, and reports the
//! receiver's answers ([`status`]).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use qm_api::common::{REQUESTED_AT, TEST_AT};
use qm_api::contact_point::{ContactPointSpec, ContactPointStatus, LastTest};
use qm_api::tracked_field::GROUP;
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_notify::Transport;
use qm_notify::queue::{AcceptedTests, InitialState, Outbox, TestMessage};
use qm_runtime::cache::CacheStatus;
use qm_runtime::controller::{Context, Controller};
use qm_runtime::error::{Class, Error, Result};
use qm_runtime::objects::Objects;
use qm_runtime::outcome::{Outcome, Progress, Requeue};
use qm_runtime::trigger::Trigger;
use qm_runtime::{ObjectKey, short_digest};

use self::endpoint::{EndpointError, ResolvedEndpoint, SecretSource};
use crate::controllers::tracked_field::contact_points::of_point;

pub mod endpoint;
pub mod status;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "contactpoint";
pub const KIND: KindInfo = KindInfo::of::<ContactPoint>(
    NAME,
    &["fc35e5ac8aeeadcb", "a89c84a7f751e2f5"],
    DelegatedAccess::Secrets,
    &[
        Permission::namespaced(GROUP, &["contactpoints"], &["list", "watch"]),
        Permission::namespaced(GROUP, &["contactpoints/status"], &["patch"]),
        // The operator gets Secrets by name, and never lists them.
        Permission::namespaced("", &["secrets"], &["get"]),
        EVENTS,
    ],
)
.with_uninstall_rank(20);
/// Maximum of `digestSeconds`, as in the CRD.
const MAX_DIGEST: u64 = 300;

pub(crate) struct ContactPoints<T> {
    pub(super) source: SecretSource,
    /// `--cluster-name`.
    pub(super) cluster: Option<String>,
    /// Queues of all contact points.
    pub(super) outbox: Arc<Outbox<T>>,
    /// Time after which a Secret in use is read again.
    pub(super) reread: Duration,
    /// All contact points.
    pub(super) points: Objects<ContactPoint>,
    /// State of the cache of contact points.
    pub(super) cache: CacheStatus,
    /// Last state of each contact point that the cache has shown.
    pub(super) announced: Mutex<HashMap<ObjectKey, Arc<ContactPoint>>>,
    /// All `TrackedField`s, some of which wait for a contact point.
    pub(super) fields: Objects<TrackedField>,
    pub(super) field_trigger: Trigger<TrackedField>,
    /// All `TrackedFieldSet`s, which report the contact point of their children.
    pub(super) sets: Objects<TrackedFieldSet>,
    pub(super) set_trigger: Trigger<TrackedFieldSet>,
    /// Configuration of each contact point's queue.
    pub(super) configs: Mutex<HashMap<ObjectKey, QueueConfig>>,
}

/// Time in which most receivers answer. An earlier report that the answer is awaited would only cause writes.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Configuration of a queue.
pub(crate) struct QueueConfig {
    /// UID of the `ContactPoint`.
    uid: Option<String>,
    tested: LastTest,
    /// When the queue got this configuration.
    since: Instant,
    requested_at: Option<String>,
    digest_delay: Duration,
    /// Whether the queue may send.
    is_open: bool,
    /// Cause of failing messages, as of the last reconcile.
    failing: Option<String>,
}

impl<T: Transport> ContactPoints<T> {
    fn configs(&self) -> MutexGuard<'_, HashMap<ObjectKey, QueueConfig>> {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, key: &ObjectKey) {
        if let Some(config) = self.configs().get_mut(key) {
            config.is_open = false;
        }
        self.outbox.close(key);
    }

    /// Returns whether the queue is open for `point`, whose spec has this [`digest`](status::digest).
    fn is_open(&self, key: &ObjectKey, point: &ContactPoint, spec: &str) -> bool {
        self.configs().get(key).is_some_and(|config| {
            config.is_open && config.uid == point.uid() && config.tested.spec == spec
        })
    }

    /// Configures the queue, unless the queue already has this configuration. Requests the test message that the
    /// annotation asks for. Also returns when the queue got the configuration.
    fn configure(
        &self,
        key: &ObjectKey,
        point: &ContactPoint,
        resolved: ResolvedEndpoint,
    ) -> (LastTest, Instant) {
        let tested = LastTest {
            spec: status::digest(&point.spec),
            secrets: resolved.secrets,
            ..LastTest::default()
        };
        let digest_delay = digest_delay(&point.spec);
        let requested_at = point.annotations().get(REQUESTED_AT).cloned();
        let mut configs = self.configs();
        let known = configs.get(key);
        let same = known.filter(|known| {
            known.is_open
                && known.tested == tested
                && known.uid == point.uid()
                && known.digest_delay == digest_delay
        });
        let since = same.map_or_else(Instant::now, |same| same.since);
        if same.is_none() {
            let initial_state = initial_state(point.status.as_ref(), &tested, known.is_none());
            let test = test_message(point, &tested);
            self.outbox
                .configure(key, resolved.endpoint, digest_delay, initial_state, test);
        }
        if known.is_some_and(|known| known.requested_at != requested_at) {
            self.outbox.retry_now(key);
        }
        if let Some(requested_at) = requested_test(point) {
            self.outbox.request_test(key, requested_at);
        }
        let failing = known.and_then(|known| known.failing.clone());
        configs.insert(
            key.clone(),
            QueueConfig {
                uid: point.uid(),
                tested: tested.clone(),
                since,
                requested_at,
                digest_delay,
                is_open: true,
                failing,
            },
        );
        (tested, since)
    }

    /// Wakes the sets of the namespace if messages fail for another cause than at the last reconcile. The sets report
    /// the cause, which the contact point's status does not have.
    fn wake_sets_on_new_cause(&self, key: &ObjectKey, failing: Option<&str>) {
        let mut configs = self.configs();
        let Some(config) = configs.get_mut(key) else {
            return;
        };
        if config.failing.as_deref() != failing {
            config.failing = failing.map(str::to_owned);
            drop(configs);
            self.wake_sets(&key.namespace);
        }
    }

    fn announced(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<ContactPoint>>> {
        let announced = self.announced.lock();
        announced.unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the sets of the namespace and the [`dependents`] of `point`.
    fn wake_dependents(&self, point: &ContactPoint, names_changed: bool) {
        let key = ObjectKey::of(point);
        for field in dependents(&key, &self.points, &self.fields, names_changed) {
            self.field_trigger.wake(&ObjectKey::of(field.as_ref()));
        }
        self.wake_sets(&key.namespace);
    }

    fn wake_sets(&self, namespace: &str) {
        for set in self.sets.in_namespace(namespace, |_| true) {
            self.set_trigger.wake(&ObjectKey::of(set.as_ref()));
        }
    }
}

/// Returns whether a change of a contact point concerns its dependents. A change of labels, annotations or other parts
/// of the status does not: each dependent that is woken renders its template again.
fn concerns_dependents(before: &ContactPoint, now: &ContactPoint) -> bool {
    let is_unavailable =
        |point: &ContactPoint| point.status.as_ref().is_some_and(status::is_unavailable);
    before.spec != now.spec
        || of_point(before) != of_point(now)
        || is_unavailable(before) != is_unavailable(now)
}

/// Returns the `TrackedField`s that a change of the contact point `key` concerns: those that send to it and, if
/// `names_changed`, those whose contact point is missing, because their message suggests the nearest name.
fn dependents(
    key: &ObjectKey,
    points: &Objects<ContactPoint>,
    fields: &Objects<TrackedField>,
    names_changed: bool,
) -> Vec<Arc<TrackedField>> {
    let points = if names_changed {
        points.in_namespace(&key.namespace, |_| true)
    } else {
        Vec::new()
    };
    let names: HashSet<&str> = points
        .iter()
        .filter_map(|point| point.metadata.name.as_deref())
        .collect();
    fields.in_namespace(&key.namespace, |field| {
        let name = field.spec.notification.contact_point.as_str();
        *name == *key.name || (names_changed && !names.contains(name))
    })
}

/// Returns the age of the oldest waiting entry at which a request begins.
fn digest_delay(spec: &ContactPointSpec) -> Duration {
    let seconds = spec.digest_seconds.unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default().min(MAX_DIGEST))
}

/// Returns the value of the annotation that requests a test message, unless the status says that the operator sent one
/// for it.
fn requested_test(point: &ContactPoint) -> Option<&str> {
    let requested_at = point.annotations().get(TEST_AT)?;
    let status = point.status.as_ref();
    let sent = status
        .and_then(|status| status.last_test.as_ref())
        .and_then(|test| test.requested_at.as_ref());
    (sent != Some(requested_at)).then_some(requested_at)
}

/// Returns the test message. An unchanged object, spec and set of Secrets keep the id, even after a restart, until a
/// receiver accepts the message.
fn test_message(point: &ContactPoint, tested: &LastTest) -> TestMessage {
    let LastTest { spec, secrets, .. } = tested;
    let configuration = format!(
        "{}/{spec}/{}",
        point.uid().unwrap_or_default(),
        secrets.join(",")
    );
    let status = point.status.as_ref();
    let accepted = AcceptedTests {
        count: status
            .and_then(|status| status.tests_accepted)
            .unwrap_or_default(),
        // A new configuration may be tested once more.
        while_stopped: status.is_some_and(|it| {
            status::was_tested(it, tested) && it.tested_while_stopped == Some(true)
        }),
    };
    TestMessage {
        configuration: short_digest(configuration),
        accepted,
    }
}

/// Returns the initial state of a queue. An endpoint that was tested before is not tested again, unless it replaces
/// another endpoint and is not ready. `is_first`: this process has not configured the queue before.
fn initial_state(
    status: Option<&ContactPointStatus>,
    tested: &LastTest,
    is_first: bool,
) -> InitialState {
    match status {
        Some(status) if status::is_verified(status, tested) => InitialState::Open,
        Some(status) if is_first && status::was_tested(status, tested) => InitialState::Probe,
        _ => InitialState::Test,
    }
}

impl<T: Transport> Controller for ContactPoints<T> {
    type Kind = ContactPoint;

    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = "quartermaster/contactpoint";
    // TrackedFields and the queue wait for `ready`.
    const STATUS_CAN_WAIT: bool = false;

    async fn reconcile(&self, cx: &mut Context<ContactPoint>) -> Result<Outcome> {
        let (key, point) = (cx.key.clone(), Arc::clone(&cx.object));
        let spec = status::digest(&point.spec);
        if point.spec.suspend.unwrap_or_default() {
            self.close(&key);
            return Ok(status::suspended(&mut cx.status, &spec));
        }
        let resolved = match endpoint::resolve(&self.source, &point, self.cluster.as_deref()).await
        {
            Ok(resolved) => resolved,
            Err(error @ EndpointError::SecretUnreadable(_)) => {
                let unreadable = Error::other(Class::Transient, error.reason(), error.to_string());
                // The apiserver recovers by itself: the condition stays, and the queue continues.
                if self.is_open(&key, &point, &spec) {
                    return Err(unreadable.with_outcome(Outcome::unchanged()));
                }
                self.close(&key);
                status::remember_readiness(&mut cx.status, &spec);
                return Err(unreadable);
            }
            Err(error) => {
                self.close(&key);
                let (reason, message) = (error.reason(), error.to_string());
                let outcome = status::blocked(&mut cx.status, &spec, reason, message);
                return Ok(match error {
                    EndpointError::SpecInvalid(_) | EndpointError::BodyInvalid(_) => Outcome {
                        progress: Progress::Stalled,
                        ..outcome
                    },
                    _ => outcome.requeue(Requeue::Poll),
                });
            }
        };
        let (tested, since) = self.configure(&key, &point, resolved);
        let failing = self.outbox.failing(&key);
        self.wake_sets_on_new_cause(&key, failing.as_deref());
        let outcome = status::answered(
            &mut cx.status,
            &self.outbox.receiver_state(&key),
            failing.is_some(),
            &tested,
            self.outbox.tests_accepted(&key),
        );
        if let Some(test) = self.outbox.requested_test(&key) {
            status::set_requested_test(&mut cx.status, test);
        }
        if outcome.reason == status::PROGRESSING
            && let Some(left) = ANSWER_TIME.checked_sub(since.elapsed())
        {
            return Ok(Outcome::unchanged().requeue(Requeue::After(left)));
        }
        // Jitter spreads the reads of the Secrets.
        let reread = self.reread.mul_f64(rand::random_range(1.0..1.2));
        Ok(outcome.requeue(Requeue::After(reread)))
    }

    fn fill_status(&self, cx: &mut Context<ContactPoint>) {
        let generation = cx.object.metadata.generation.unwrap_or_default();
        let left_out = self.outbox.left_out_of(&cx.key);
        let now = Time(jiff::Timestamp::now());
        status::set_outcomes_recorded(&mut cx.status, &left_out, generation, now);
    }

    fn on_status_written(&self, cx: &Context<ContactPoint>) {
        if cx.status.ready {
            self.outbox.open(&cx.key);
        }
    }

    fn on_applied(&self, point: &Arc<ContactPoint>, is_listed: bool) {
        if !is_listed {
            return;
        }
        let key = ObjectKey::of(point.as_ref());
        // The dependents report that contact points cannot be listed, until the next list.
        let was_unavailable = self.cache.unavailable(&key.namespace).is_some();
        let before = self.announced().insert(key, Arc::clone(point));
        let is_new = before.is_none() || was_unavailable;
        if is_new || before.is_some_and(|before| concerns_dependents(&before, point)) {
            self.wake_dependents(point, is_new);
        }
    }

    fn on_deleted(&self, point: &Arc<ContactPoint>) {
        self.announced().remove(&ObjectKey::of(point.as_ref()));
        self.wake_dependents(point, true);
    }

    fn forget(&self, key: &ObjectKey) {
        self.configs().remove(key);
        self.outbox.remove(key);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn dependents_send_to_the_contact_point_or_to_a_missing_one_of_its_namespace() {
        let points = Objects::<ContactPoint>::default();
        for (namespace, name) in [("a", "changed"), ("a", "other"), ("b", "elsewhere")] {
            let point = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint",
                "metadata": { "namespace": namespace, "name": name }, "spec": { "type": "webhook" },
            });
            points.insert(serde_json::from_value(point).unwrap());
        }
        let fields = Objects::<TrackedField>::default();
        for (namespace, name, point) in [
            ("a", "sends", "changed"),
            ("a", "sends-to-another", "other"),
            ("a", "waits", "elsewhere"),
            ("b", "of-another-namespace", "changed"),
        ] {
            let field = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
                "metadata": { "namespace": namespace, "name": name }, "spec": { "contactPoint": point },
            });
            fields.insert(serde_json::from_value(field).unwrap());
        }
        let of = |name: &str, names_changed: bool| -> Vec<String> {
            let key = ObjectKey::new("a", name);
            let dependents = dependents(&key, &points, &fields, names_changed);
            dependents.iter().map(|field| field.name_any()).collect()
        };
        assert_eq!(of("changed", false), ["sends"]);
        assert_eq!(of("changed", true), ["sends", "waits"]);
        points.remove(&ObjectKey::new("a", "changed"));
        assert_eq!(of("changed", true), ["sends", "waits"], "deleted");
        let all = ["sends", "sends-to-another", "waits"];
        assert_eq!(of("other", true), all);
    }

    /// A tenant may label a contact point all the time, and each `TrackedField` may have an expensive template.
    #[rstest]
    #[case::label(json!({ "metadata": { "labels": { "a": "b" }, "resourceVersion": "2" } }), false)]
    #[case::annotation(json!({ "metadata": { "annotations": { TEST_AT: "now" } } }), false)]
    #[case::accepted_test(json!({ "status": { "testsAccepted": 2 } }), false)]
    #[case::message_while_ready(json!({ "status": { "conditions": ready("True", "migrated") } }), false)]
    #[case::unavailable(json!({ "status": { "conditions": ready("True", status::UNAVAILABLE) } }), true)]
    #[case::spec(json!({ "spec": { "footer": "new" } }), true)]
    #[case::suspended(json!({ "spec": { "suspend": true } }), true)]
    #[case::not_ready(json!({ "status": { "ready": false } }), true)]
    #[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), true)]
    fn dependents_are_concerned_by_what_they_report(#[case] change: Value, #[case] expected: bool) {
        let before = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint",
            "metadata": { "namespace": "a", "name": "hook", "resourceVersion": "1" },
            "spec": { "type": "Webhook" },
            "status": { "ready": true, "testsAccepted": 1, "conditions": ready("True", "messages can be sent") },
        });
        let mut after = before.clone();
        let change: HashMap<String, HashMap<String, Value>> = from_value(change).unwrap();
        for (part, fields) in change {
            for (name, value) in fields {
                after[&part][&name] = value;
            }
        }
        let [before, after]: [ContactPoint; 2] =
            [before, after].map(|point| from_value(point).unwrap());
        assert_eq!(concerns_dependents(&before, &after), expected);
        assert_eq!(concerns_dependents(&after, &before), expected, "reverted");
    }

    fn ready(status: &str, message: &str) -> Value {
        json!([{ "type": "Ready", "status": status, "reason": "Ready", "message": message,
                 "lastTransitionTime": "2026-01-01T00:00:00Z" }])
    }
}
