//! Values derived from each CRD's own schema, inside and beyond every bound: what is accepted reaches an end state, and
//! for an app that of a new object; what is rejected says what to write; and the object and its children recover once
//! the value is changed back.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use qm_api::{
    AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField, TrackedFieldSet,
};
use qm_core::kind::HasReadyCondition;
use qm_core::readiness::Readiness;
use quartermaster::controllers;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::aws::{Aws, SUBNETS};
use testbed::receiver::Receiver;
use testbed::wait::until;

use self::values::{Change, changes, pairs};
use crate::pins::metrics::reconciles;
use crate::support::{Bed, Operator, SOON, Settings};
use crate::torture::{Kind, differences, is_sound, last_write, rests_for, snapshot, writes};

mod values;

/// Number of objects that go through the changes side by side.
const LANES: usize = 6;

/// Maximum number of writes for each accepted change, including the change back: children, statuses and Events.
const WRITES: usize = 16;

/// Maximum number of writes for each new object.
const WRITES_OF_NEW_OBJECT: usize = 8;

/// Maximum number of Pods that an app waits for. More would take hours.
const MOST_PODS: u64 = 100;

/// Time in which nothing may be written at the end: three times the longest backoff, so that a write that is retried for
/// ever shows.
const REST: Duration = Duration::from_secs(3);

/// Reason and message of an object whose current spec the operator has observed, and whether the object is ready.
type State = (Readiness, String, String);

/// A kind under test.
struct Subject {
    kind: ApiResource,
    /// The workload with the kinds of the object and its children.
    workload: Kind,
    /// Minimum number of accepted changes, and of all.
    at_least: (usize, usize),
    /// Controller whose reconciles show that a spec is observed, for a kind whose status has no generation. The objects
    /// of such a kind change one after the other.
    counts_reconciles: Option<&'static str>,
    /// True if a changed object must equal a new object with the same spec: its children have no names of other objects
    /// and no history.
    equals_new_object: bool,
    /// Returns the spec of the object of this name.
    spec: fn(&Bed, &str, &str) -> Value,
    state: fn(&DynamicObject) -> State,
}

impl Subject {
    fn of<K>(workload: Kind, at_least: (usize, usize), spec: fn(&Bed, &str, &str) -> Value) -> Self
    where
        K: kube::Resource<DynamicType = ()> + HasReadyCondition + DeserializeOwned,
    {
        Self {
            kind: ApiResource::erase::<K>(&()),
            workload,
            at_least,
            counts_reconciles: None,
            equals_new_object: false,
            spec,
            state: state::<K>,
        }
    }

    /// Returns all objects and their children, without what shows how often they changed.
    async fn objects(&self, bed: &Bed) -> anyhow::Result<Value> {
        let namespaces = std::slice::from_ref(&bed.namespace);
        let mut objects = snapshot::take(bed, namespaces, &self.workload.resources()).await?;
        for object in objects.as_object_mut().unwrap().values_mut() {
            let object = object.as_object_mut().unwrap();
            object.retain(|name, _| name != "status" && name != "generation");
        }
        Ok(objects)
    }

    /// Returns the object of this name and its children, named as those of `lane`.
    async fn objects_of(&self, bed: &Bed, name: &str, lane: &str) -> anyhow::Result<Value> {
        let mut objects = self.objects(bed).await?;
        objects
            .as_object_mut()
            .unwrap()
            .retain(|key, _| key.contains(name));
        Ok(serde_json::from_str(
            &objects.to_string().replace(name, lane),
        )?)
    }

    async fn create(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        spec: &Value,
    ) -> kube::Result<DynamicObject> {
        let object = DynamicObject::new(name, &self.kind).data(json!({ "spec": spec }));
        api.create(&PostParams::default(), &object).await
    }

    fn lanes(&self) -> usize {
        match self.counts_reconciles {
            Some(_) => 1,
            None => LANES,
        }
    }

    fn changes(&self, base: &Value) -> Vec<Change> {
        let crds = controllers::crds();
        let crd = crds
            .iter()
            .find(|crd| crd.spec.names.kind == self.kind.kind);
        let schema = crd.unwrap().spec.versions[0].schema.as_ref().unwrap();
        let object = schema.open_api_v3_schema.as_ref().unwrap();
        let spec = &object.properties.as_ref().unwrap()["spec"];
        changes(spec, base)
    }
}

/// Returns the state of an object as its kind reports it.
fn state<K: HasReadyCondition + DeserializeOwned>(object: &DynamicObject) -> State {
    let typed: K = serde_json::from_value(serde_json::to_value(object).unwrap()).unwrap();
    let (readiness, reason) = typed.readiness();
    let condition = typed.ready_condition();
    let message = condition.map_or("", |condition| condition.message);
    (readiness, reason.to_owned(), message.to_owned())
}

/// Returns the name of the object of a lane: as long as that of a new object, because messages are cut.
fn lane(number: usize) -> String {
    format!("lane-{number:07}")
}

/// Object that goes through changes, one after the other.
struct Lane<'a> {
    bed: &'a Bed,
    subject: &'a Subject,
    operator: &'a Operator,
    api: Api<DynamicObject>,
    name: String,
    base: Value,
    /// State with the spec `base`.
    ready: State,
}

impl<'a> Lane<'a> {
    async fn start(
        bed: &'a Bed,
        operator: &'a Operator,
        subject: &'a Subject,
        receiver: &str,
        number: usize,
    ) -> Lane<'a> {
        let api = Api::namespaced_with(bed.client.clone(), &bed.namespace, &subject.kind);
        let name = lane(number);
        let base = (subject.spec)(bed, &name, receiver);
        subject.create(&api, &name, &base).await.unwrap();
        let ready = until(format!("{name} is ready"), SOON, async || {
            let state = (subject.state)(&api.get(&name).await?);
            anyhow::ensure!(state.0 == Readiness::True, "{state:?}");
            Ok(Some(state))
        });
        let ready = ready.await.unwrap();
        Lane {
            bed,
            subject,
            operator,
            api,
            name,
            base,
            ready,
        }
    }

    /// Makes the change and changes it back. Returns whether the apiserver accepted it, or what is wrong.
    async fn play(&self, change: &Change) -> Result<bool, String> {
        let patch = Patch::Merge(json!({ "spec": change.patch }));
        let params = PatchParams::default();
        let before = self.observed().await;
        let changed = match self.api.patch(&self.name, &params, &patch).await {
            Ok(changed) => changed,
            Err(error) => return explains(&error).map(|()| false),
        };
        let observed = self.observes(&changed, before).await;
        let equal = if self.subject.equals_new_object {
            self.equals_new_object(&changed.data["spec"]).await
        } else {
            Ok(())
        };
        let back = json!([{ "op": "replace", "path": "/spec", "value": self.base }]);
        let back = Patch::Json::<()>(serde_json::from_value(back).unwrap());
        let before = self.observed().await;
        let written = self.api.patch(&self.name, &params, &back).await;
        let written = written.map_err(|error| format!("cannot be changed back: {error}"))?;
        self.observes(&written, before).await?;
        self.reaches("is as before", |state| *state == self.ready)
            .await?;
        observed?;
        equal?;
        Ok(true)
    }

    /// Waits until the changed object has the state and the children of a new object with this spec. An object that is
    /// not ready keeps earlier children.
    async fn equals_new_object(&self, spec: &Value) -> Result<(), String> {
        let needs_many_pods = spec["size"].as_u64().is_some_and(|size| size > MOST_PODS);
        // An autoscaler does not act on 0 Pods, so it does nothing until somebody sets a size.
        let scales_no_pods = spec["autoscaling"].is_object() && self.base["size"] == 0;
        if needs_many_pods || scales_no_pods {
            return Ok(());
        }
        let (bed, subject, lane) = (self.bed, self.subject, &*self.name);
        let new = format!("new-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let created = subject.create(&self.api, &new, spec).await;
        created.map_err(|error| format!("is rejected in a new object: {error}"))?;
        let mut differs = Vec::new();
        let equal = until("the state of a new object", SOON, async || {
            let (changed, fresh) = (self.api.get(lane).await?, self.api.get(&new).await?);
            let is_settled = |object: &DynamicObject| subject.workload.has_settled(&object.data);
            if !is_settled(&changed) || !is_settled(&fresh) {
                return Ok(None);
            }
            let (state, expected) = ((subject.state)(&changed), (subject.state)(&fresh));
            let message = expected.2.replace(&new, lane);
            differs = differences(&json!([expected.1, message]), &json!([state.1, state.2]));
            if state.0 == Readiness::True {
                differs.extend(differences(
                    &subject.objects_of(bed, &new, lane).await?,
                    &subject.objects_of(bed, lane, lane).await?,
                ));
            }
            let is_reported = expected.0 != Readiness::Unknown;
            Ok((is_reported && differs.is_empty()).then_some(()))
        });
        let equal = equal
            .await
            .map_err(|error| format!("{error:#}: {differs:#?}"));
        let deleted = self.api.delete(&new, &DeleteParams::default()).await;
        deleted.map_err(|error| format!("{new} cannot be deleted: {error}"))?;
        equal
    }

    /// Waits until the operator has observed the spec of this object, which had the generation and the number of
    /// reconciles of `before` when it was written.
    async fn observes(
        &self,
        object: &DynamicObject,
        before: (Option<i64>, u64),
    ) -> Result<(), String> {
        let counts = self.subject.counts_reconciles.is_some();
        if counts && object.metadata.generation != before.0 {
            let reconciled = until("a reconcile", SOON, async || {
                Ok((self.observed().await.1 > before.1).then_some(()))
            });
            reconciled.await.map_err(|error| format!("{error:#}"))?;
        }
        let is_observed = |state: &State| {
            let explains = state.0 == Readiness::True || !state.2.is_empty();
            state.0 != Readiness::Unknown && !state.1.is_empty() && explains
        };
        self.reaches("observes the spec", is_observed).await
    }

    /// Returns the generation and the number of reconciles; neither for a kind whose status has the generation.
    async fn observed(&self) -> (Option<i64>, u64) {
        let Some(controller) = self.subject.counts_reconciles else {
            return (None, 0);
        };
        let object = self.api.get(&self.name).await.unwrap();
        let reconciles = reconciles(&self.operator.metrics().await, controller);
        (object.metadata.generation, reconciles)
    }

    async fn reaches(&self, what: &str, holds: impl Fn(&State) -> bool) -> Result<(), String> {
        let reached = until(what, SOON, async || {
            let state = (self.subject.state)(&self.api.get(&self.name).await?);
            anyhow::ensure!(holds(&state), "{state:?}");
            Ok(Some(()))
        });
        reached.await.map_err(|error| format!("{error:#}"))
    }
}

/// Returns an error unless a rejection says what to write.
fn explains(error: &kube::Error) -> Result<(), String> {
    let kube::Error::Api(status) = error else {
        return Err(format!("no answer: {error}"));
    };
    let opaque = [
        "failed rule",
        "budget",
        "internal error",
        "no such key",
        "no matching overload",
    ];
    let is_opaque = opaque.iter().any(|it| status.message.contains(it));
    if matches!(status.code, 400 | 403 | 422) && !is_opaque && status.message.len() > 20 {
        return Ok(());
    }
    Err(format!(
        "is rejected with {}: {}",
        status.code, status.message
    ))
}

/// Plays changes of a kind, and asserts that each ends well.
async fn survives(bed: &Bed, subject: Subject, settings: Settings, receiver: &str) {
    let (proxy, file) = bed.through_proxy().await;
    let mut operator = Operator::start(bed, settings.kubeconfig(file)).await;
    let base = (subject.spec)(bed, &lane(0), receiver);
    let all = subject.changes(&base);
    let both = pairs(&all, all.len() / 3 + 1);
    let played = [all, both].concat();
    let start = |number| Lane::start(bed, &operator, &subject, receiver, number);
    let lanes = join_all((0..subject.lanes()).map(start)).await;
    let objects = subject.objects(bed).await.unwrap();
    let before = proxy.count(&writes());
    let results = lanes.iter().enumerate().map(|(number, lane)| {
        let changes = played.iter().skip(number).step_by(lanes.len());
        async move {
            let mut results = Vec::new();
            for change in changes {
                results.push((change.name.clone(), lane.play(change).await));
            }
            results
        }
    });
    let results: Vec<_> = join_all(results).await.into_iter().flatten().collect();
    let failed: Vec<_> = results
        .iter()
        .filter(|(_, result)| result.is_err())
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let accepted = results.iter().filter(|(_, it)| *it == Ok(true)).count();
    let all = results.len();
    println!(
        "{}: {accepted} of {all} changes accepted",
        subject.kind.kind
    );
    let (least_accepted, least) = subject.at_least;
    assert!(
        accepted >= least_accepted && all >= least,
        "{accepted} of {all} changes are accepted, fewer than {least_accepted} of {least}"
    );
    drop(lanes);
    let written = proxy.count(&writes()) - before;
    let most = if subject.equals_new_object {
        WRITES + WRITES_OF_NEW_OBJECT
    } else {
        WRITES
    };
    assert!(
        written <= most * accepted,
        "{written} writes for {accepted} changes"
    );
    rests_for(REST, || last_write(&proxy)).await.unwrap();
    let mut differs = Vec::new();
    // The cluster may still delete children of new objects.
    let restored = until("objects as before the changes", SOON, async || {
        differs = differences(&objects, &subject.objects(bed).await?);
        Ok(differs.is_empty().then_some(()))
    });
    let restored = restored.await;
    assert!(restored.is_ok(), "{differs:#?}");
    is_sound(&mut operator).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contact_point_survives_generated_input() {
    let (bed, receiver) = (Bed::shared("input-point").await, Receiver::start().unwrap());
    bed.secret("token", "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw")
        .await;
    let subject = Subject::of::<ContactPoint>(
        Kind::ContactPoint,
        (50, 500),
        |_, _, receiver| json!({ "type": "Webhook", "webhookSpec": { "url": receiver } }),
    );
    survives(&bed, subject, Settings::default(), &receiver.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn tracked_field_survives_generated_input() {
    let (bed, receiver) = (Bed::shared("input-field").await, Receiver::start().unwrap());
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 0).await;
    let mut subject = Subject::of::<TrackedField>(Kind::ContactPoint, (40, 350), |bed, _, _| {
        let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
        json!({ "target": target, "field": "replicas", "contactPoint": "hook" })
    });
    subject.counts_reconciles = Some("trackedfield");
    survives(&bed, subject, Settings::default(), &receiver.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn tracked_field_set_survives_generated_input() {
    let (bed, receiver) = (Bed::shared("input-set").await, Receiver::start().unwrap());
    bed.webhook("hook", &receiver.url()).await;
    for number in 0..LANES {
        bed.deployment(&lane(number), 0).await;
    }
    let subject = Subject::of::<TrackedFieldSet>(
        Kind::TrackedFieldSet,
        (100, 700),
        |_, name, _| {
            let target = json!({ "kind": "Deployment", "names": { "include": [name] } });
            json!({ "target": target, "fields": ["replicas"], "template": { "contactPoint": "hook" } })
        },
    );
    survives(&bed, subject, Settings::default(), &receiver.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_map_sync_survives_generated_input() {
    let bed = Bed::shared("input-sync").await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
        .await;
    let subject = Subject::of::<ConfigMapSync>(Kind::ConfigMapSync, (15, 350), |bed, name, _| {
        json!({
            "sourceNamespace": bed.namespace, "configMapName": "settings",
            "destinationNamespace": bed.namespace, "destinationName": format!("{name}-copy"),
        })
    });
    survives(&bed, subject, Settings::default(), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn my_app_survives_generated_input() {
    let bed = Bed::shared("input-app").await;
    bed.accepts_pods().await;
    let mut subject = Subject::of::<MyApp>(
        Kind::MyApp,
        (20, 80),
        |_, _, _| json!({ "image": "nginx:1", "banner": "b" }),
    );
    subject.equals_new_object = true;
    survives(&bed, subject, Settings::default(), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn app_service_survives_generated_input() {
    let bed = Bed::shared("input-service").await;
    bed.accepts_pods().await;
    let mut subject = Subject::of::<AppService>(
        Kind::AppService,
        (200, 2000),
        // With optional fields, which changes remove.
        |_, _, _| {
            json!({
                "image": "nginx:1", "size": 0, "ports": [{ "port": 80 }],
                "env": [{ "name": "A", "value": "1" }],
                "resources": { "requests": { "cpu": "10m" }, "limits": { "memory": "64Mi" } },
                "ingress": { "host": "a.example.com", "class": "nginx" },
            })
        },
    );
    subject.equals_new_object = true;
    survives(&bed, subject, Settings::default(), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn my_ingress_survives_generated_input() {
    let (bed, aws) = (
        Bed::shared("input-ingress").await,
        Aws::start().await.unwrap(),
    );
    let subject = Subject::of::<MyIngress>(
        Kind::MyIngress,
        (30, 350),
        |_, _, _| json!({ "subnets": SUBNETS[..2] }),
    );
    survives(&bed, subject, Settings::default().aws(&aws), "").await;
    let balancers = aws.balancers().await.unwrap();
    assert_eq!(balancers.len(), LANES);
    for balancer in balancers {
        assert_eq!(balancer.subnets, SUBNETS[..2]);
        let mut tags = balancer.tags.keys();
        let is_ours = |key: &String| key == "ManagedBy" || key.contains("quartermaster.dev/");
        assert!(tags.all(is_ours), "{:?}", balancer.tags);
    }
}
