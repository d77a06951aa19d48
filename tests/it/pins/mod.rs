//! Pins the operator's behaviour as a cluster, receivers and AWS see it: each test records a walk-through of one kind,
//! step by step, and compares the recording with a snapshot.
//!
//! A step lists the operator's requests (from the apiserver's audit log), the Events, and the objects that changed.
//! To accept an intended change, run `INSTA_UPDATE=always cargo test --test it pins` and review the diff.
//!
//! The control plane consists of etcd and the apiserver. The tests play the Deployment controller and the kubelet, and
//! the operator does not poll, so each write and each request has a known cause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::control_plane::audit::{Mark, Request, Subject};
use testbed::wait::until;
use testbed::{ControlPlane, Options};
use tokio::sync::Mutex;

use crate::support::mask::{self, Mask};
use crate::support::{ACCOUNT, Bed, Operator, Plane, SOON, SYSTEM, Settings, install};

mod app_service;
mod config_map_sync;
mod contact_point;
mod exit_codes;
mod messages;
pub mod metrics;
mod my_app;
mod my_ingress;
mod tracked_field;

/// Time without activity after which a step ends. Tests wait for the last expected effect of a step themselves; this
/// time serves to notice unexpected effects.
const IDLE: Duration = Duration::from_secs(2);

/// Flags that postpone polls, because polls cause requests that no step accounts for.
const NO_POLLS: [&str; 5] = [
    "--poll-min=1h",
    "--poll-max=1h",
    "--slow-backoff-min=1h",
    "--slow-backoff-max=1h",
    "--stopped-retry-period=1h",
];

/// Returns a new namespace on a control plane that the pins share while they run.
async fn bed(name: &str) -> Bed {
    static RUNNING: Mutex<Weak<ControlPlane>> = Mutex::const_new(Weak::new());
    let mut running = RUNNING.lock().await;
    let plane = if let Some(plane) = running.upgrade() {
        plane
    } else {
        // Without the controller-manager, no namespace has the ServiceAccount that the plugin demands of Pods.
        let flags = vec!["--disable-admission-plugins=ServiceAccount".into()];
        let options = Options {
            apiserver_flags: flags,
            ..Options::apiserver_only()
        };
        let plane = Arc::new(ControlPlane::start(options).await.unwrap());
        install(&plane).await;
        *running = Arc::downgrade(&plane);
        plane
    };
    drop(running);
    Bed::on(Plane::Own(plane), name).await
}

/// Everything that happened between two calls of [`Walkthrough::record`].
#[derive(Serialize)]
struct Step {
    #[serde(rename = "step")]
    title: &'static str,
    /// Writes by object, in order. The operator may write several objects concurrently.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    writes: BTreeMap<String, Vec<String>>,
    /// Number of reads by object or list.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reads: BTreeMap<String, Value>,
    /// Events by object, in order.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    events: BTreeMap<String, Vec<Value>>,
    /// Changed top-level fields (metadata, spec, data, status) by object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    objects: BTreeMap<String, Value>,
    /// Numbers of objects by readiness from the metrics, if they changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<BTreeMap<String, String>>,
    /// Requests to AWS.
    #[serde(skip_serializing_if = "Value::is_null")]
    aws: Value,
}

/// An object that each step records.
struct RecordedObject {
    title: String,
    api: Api<DynamicObject>,
    name: String,
    last: Value,
}

/// Requests that a walk-through records.
struct Coverage {
    /// The controller's name in metrics.
    controller: &'static str,
    /// Reads that each reconcile does. The number of reconciles depends on the speed of the machine, because two
    /// triggers that come close together cause one reconcile; the number of these reads per reconcile does not.
    reads_per_reconcile: &'static [&'static str],
    /// Selects further requests outside the test's namespaces.
    elsewhere: fn(&Subject) -> bool,
}

impl Coverage {
    /// Covers a controller without requests outside the test's namespaces.
    fn of(controller: &'static str, reads_per_reconcile: &'static [&'static str]) -> Self {
        Self {
            controller,
            reads_per_reconcile,
            elsewhere: |_| false,
        }
    }
}

/// A walk-through of one kind.
struct Walkthrough {
    bed: Bed,
    _operator: Operator,
    metrics: metrics::Reader,
    coverage: Coverage,
    objects: Vec<RecordedObject>,
    events: BTreeSet<String>,
    requests: u32,
    mark: Mark,
    began: Timestamp,
    reconciles: u64,
    resources: BTreeMap<String, String>,
    steps: Vec<Step>,
}

/// All steps of a walk-through, and the metrics at the end.
#[derive(Serialize)]
struct Recording {
    steps: Vec<Step>,
    metrics: BTreeMap<String, String>,
}

impl Walkthrough {
    /// Starts an operator; the start is the first step.
    async fn start(bed: Bed, settings: Settings, coverage: Coverage) -> Self {
        let mark = bed.plane.audit().mark().await.unwrap();
        let began = Timestamp::now();
        let settings = NO_POLLS.into_iter().fold(settings, Settings::flag);
        let operator = Operator::start(&bed, settings).await;
        let mut walk = Self {
            bed,
            metrics: metrics::Reader::new(&operator),
            _operator: operator,
            coverage,
            objects: Vec::new(),
            events: BTreeSet::new(),
            requests: 0,
            mark,
            began,
            reconciles: 0,
            resources: BTreeMap::new(),
            steps: Vec::new(),
        };
        walk.record("operator started").await;
        walk
    }

    /// Adds an object in the test's namespace to the recording.
    fn follow<K>(&mut self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let namespace = self.bed.namespace.clone();
        self.follow_in::<K>(&namespace, name);
    }

    /// Adds an object to the recording.
    fn follow_in<K>(&mut self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let resource = ApiResource::erase::<K>(&());
        self.objects.push(RecordedObject {
            title: format!("{} {name}", resource.kind),
            api: Api::namespaced_with(self.bed.client.clone(), namespace, &resource),
            name: name.into(),
            last: Value::Null,
        });
    }

    /// Requests a reconcile with the annotation and waits until a reconcile has ended.
    async fn request<K>(&mut self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.requests += 1;
        let before = self.count_reconciles().await;
        let at = json!({ "quartermaster.dev/requested-at": format!("request {}", self.requests) });
        self.bed
            .patch::<K>(name, json!({ "metadata": { "annotations": at } }))
            .await;
        until(format!("a reconcile of {name}"), SOON, async || {
            Ok((self.count_reconciles().await > before).then_some(()))
        })
        .await
        .unwrap();
    }

    async fn count_reconciles(&self) -> u64 {
        metrics::reconciles(&self.metrics.read().await, self.coverage.controller)
    }

    /// Waits until an object has `count` Events with this reason.
    async fn events(&self, name: &str, reason: &str, count: usize) {
        let what = format!("{count} Events {reason} of {name}");
        until(what, SOON, async || {
            let found = self.bed.events(name, reason).await.len();
            anyhow::ensure!(found <= count, "there are {found}");
            Ok((found == count).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Ends a step and records its effects.
    async fn record(&mut self, step: &'static str) {
        self.record_with(step, |_| Value::Null).await;
    }

    /// Ends a step; `aws` returns the step's requests to AWS.
    async fn record_with(&mut self, step: &'static str, aws: impl FnOnce(&Mask) -> Value) {
        self.idle().await;
        let next = self.bed.plane.audit().mark().await.unwrap();
        let requests = self.bed.plane.audit().requests(self.mark).await.unwrap();
        let metrics = self.metrics.read().await;
        let reconciles = metrics::reconciles(&metrics, self.coverage.controller);
        let resources = metrics::resources(&metrics);
        let mask = Mask::new(&self.bed.namespace, self.began);
        let (mut writes, mut reads) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, u64>::new());
        for request in requests.iter().filter(|request| self.counts(request)) {
            let (object, verb) = self.titled(request);
            let object = mask.text(&object);
            // A late trigger may cause one more reconcile of an object that the operator has just released.
            let is_late = object.starts_with(self.coverage.controller) && request.code == 404;
            if request.subject.is_write() && is_late {
                continue;
            }
            if request.subject.is_write() {
                writes.entry(object).or_default().push(verb);
            } else {
                *reads.entry(format!("{verb} {object}")).or_default() += 1;
            }
        }
        let done = reconciles - self.reconciles;
        let reads = reads.into_iter().map(|(read, count)| {
            let is_counted = !self.coverage.reads_per_reconcile.contains(&read.as_str());
            let count = if is_counted {
                count.into()
            } else if count.is_multiple_of(done) {
                format!("{} per reconcile", count / done).into()
            } else if count + 1 == done {
                // The late reconcile of a released object reads nothing.
                "1 per reconcile".into()
            } else {
                format!("{count} in {done} reconciles").into()
            };
            (read, count)
        });
        let step = Step {
            title: step,
            writes,
            reads: reads.collect(),
            aws: aws(&mask),
            events: self.new_events(&mask).await,
            objects: self.changed_objects(&mask).await,
            resources: (resources != self.resources).then(|| resources.clone()),
        };
        self.steps.push(step);
        (self.mark, self.began) = (next, Timestamp::now());
        (self.reconciles, self.resources) = (reconciles, resources);
    }

    /// Waits until the operator is idle, and until the next second: times in the API are whole seconds, and must tell
    /// steps apart.
    async fn idle(&self) {
        let mut last = (String::new(), Instant::now(), i64::MAX);
        until("the operator is idle", SOON, async || {
            let now = metrics::activity(&self.metrics.read().await);
            if now != last.0 {
                last = (now, Instant::now(), Timestamp::now().as_second());
            }
            let idle = last.1.elapsed() > IDLE && Timestamp::now().as_second() > last.2;
            Ok(idle.then_some(()))
        })
        .await
        .unwrap();
    }

    fn counts(&self, request: &Request) -> bool {
        let Subject {
            user, namespace, ..
        } = &request.subject;
        *user == format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}")
            && (namespace.starts_with(&self.bed.namespace)
                || (self.coverage.elsewhere)(&request.subject))
    }

    /// Returns the object of a request, and the verb with subresource and error code.
    fn titled(&self, request: &Request) -> (String, String) {
        let Subject {
            verb,
            resource,
            namespace,
            name,
            ..
        } = &request.subject;
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let mut verb = verb.clone();
        if !subresource.is_empty() {
            verb = format!("{verb} {subresource}");
        }
        if request.code >= 300 {
            verb = format!("{verb}: {}", request.code);
        }
        // The names of Events are generated.
        let name = if resource == "events" { "" } else { name };
        let is_here = *namespace == self.bed.namespace;
        let object = match (namespace.is_empty(), name.is_empty()) {
            (true, true) => format!("all {resource}"),
            (true, false) => format!("{resource} {name}"),
            (false, true) => format!("{resource} in {namespace}"),
            (false, false) if is_here => format!("{resource} {name}"),
            (false, false) => format!("{resource} {namespace}/{name}"),
        };
        (object, verb)
    }

    async fn new_events(&mut self, mask: &Mask) -> BTreeMap<String, Vec<Value>> {
        let events = self.bed.api::<Event>().list(&ListParams::default()).await;
        let mut events = events.unwrap().items;
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let mut new = BTreeMap::<_, Vec<_>>::new();
        for event in events {
            if !self.events.insert(event.uid().unwrap()) {
                continue;
            }
            let regarding = event.regarding.unwrap_or_default();
            let object = format!(
                "{} {}",
                regarding.kind.unwrap_or_default(),
                regarding.name.unwrap_or_default()
            );
            let mut event_fields = json!({
                "type": event.type_,
                "reason": event.reason,
                "action": event.action,
                "note": event.note.map(|note| mask.text(&note)),
                "controller": event.reporting_controller,
            });
            if let Some(series) = event.series {
                event_fields["count"] = series.count.into();
            }
            new.entry(object).or_default().push(event_fields);
        }
        new
    }

    async fn changed_objects(&mut self, mask: &Mask) -> BTreeMap<String, Value> {
        let mut changed = BTreeMap::new();
        for recorded in &mut self.objects {
            let found = recorded.api.get_opt(&recorded.name).await.unwrap();
            let now = found.map_or(json!("not found"), |object| {
                without_volatile_fields(&object, mask)
            });
            let before = mask::aged(&recorded.last);
            if now != before {
                changed.insert(recorded.title.clone(), difference(&before, &now));
            }
            recorded.last = now;
        }
        changed
    }

    /// Ends the walk-through.
    async fn end(self) -> Recording {
        Recording {
            metrics: metrics::samples(&self.metrics.read().await),
            steps: self.steps,
        }
    }
}

/// Returns the changed top-level fields of an object; `null` for removed fields.
fn difference(before: &Value, now: &Value) -> Value {
    let (Some(before), Some(fields)) = (before.as_object(), now.as_object()) else {
        return now.clone();
    };
    let removed = before.keys().filter(|name| !fields.contains_key(*name));
    let removed = removed.map(|name| (name.clone(), Value::Null));
    let changed = fields
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value))
        .map(|(name, value)| (name.clone(), value.clone()));
    changed.chain(removed).collect()
}

/// Returns an object without volatile metadata, and the operator's field managers of the object.
fn without_volatile_fields(object: &DynamicObject, mask: &Mask) -> Value {
    let entries = object.managed_fields().iter();
    let managers = entries.filter_map(|entry| {
        let manager = entry.manager.as_deref()?;
        let subresource = entry.subresource.as_deref().unwrap_or_default();
        let operation = entry.operation.as_deref().unwrap_or_default();
        let text = format!("{manager} {operation} {subresource}");
        manager
            .starts_with("quartermaster/")
            .then(|| text.trim_end().to_owned())
    });
    let managers: BTreeSet<String> = managers.collect();
    let mut value = serde_json::to_value(object).unwrap();
    let fields = value.as_object_mut().unwrap();
    fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
    let metadata = value["metadata"].as_object_mut().unwrap();
    let volatile = [
        "creationTimestamp",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    ];
    metadata.retain(|name, _| !volatile.contains(&name.as_str()));
    let mut value = mask.json(&value);
    if !managers.is_empty() {
        value["managers"] = json!(managers);
    }
    value
}

/// Compares a value with the snapshot of this name.
macro_rules! assert_pinned {
    ($name:literal, $walk:expr) => {{
        let recorded = $walk;
        insta::with_settings!({ sort_maps => true, omit_expression => true, prepend_module_to_snapshot => false }, {
            insta::assert_yaml_snapshot!($name, recorded);
        });
    }};
}
use assert_pinned;
