//! The check that a status tells the truth when it first says Ready for a spec.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kube::api::{Api, ListParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use testbed::aws::Aws;
use testbed::proxy::{Fault, Match, Point, Proxy, Then, Times, Verb};

use super::workloads::Reader;
use super::{Kind, differences};
use crate::support::Bed;

/// The specs for which the statuses of a run said Ready, and what then differed.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// The UID and the generation of each object that was ready.
    ready: BTreeSet<(String, i64)>,
    /// Number of the workload's step.
    step: usize,
    /// Number of checks.
    checked: usize,
    untrue: Vec<String>,
}

impl Readiness {
    /// Checks each status that the operator behind this proxy writes. The operator gets the answer after the check, so
    /// it cannot repair a child meanwhile.
    pub fn check(&self, kind: Kind, bed: &Bed, proxy: &Proxy, aws: Option<&Aws>) {
        let Some(resource) = kind.reports_readiness() else {
            return;
        };
        let statuses = Match::verb(Verb::Patch)
            .resource(&resource.plural)
            .subresource("status")
            .namespace(&bed.namespace);
        let reader = Arc::new(Reader {
            client: bed.client.clone(),
            namespace: bed.namespace.clone(),
            aws: aws.cloned(),
        });
        let readiness = self.clone();
        let hook = Fault::hook(Point::AfterApplied, move |request| {
            let (reader, readiness) = (Arc::clone(&reader), readiness.clone());
            let resource = resource.clone();
            async move {
                let api: Api<DynamicObject> =
                    Api::namespaced_with(reader.client.clone(), &reader.namespace, &resource);
                let name = request.name.unwrap_or_default();
                // The object may be gone.
                if let Ok(Some(object)) = api.get_opt(&name).await
                    && let Some(ready) = ready(&object)
                    && let Some(step) = readiness.begins(ready)
                {
                    let compared = kind.expected_and_found(&reader, &object.data["spec"]).await;
                    let differs = match compared {
                        Ok((expected, found)) => differences(&expected, &found),
                        Err(error) => vec![format!("{error:#}")],
                    };
                    readiness.ends(step, differs);
                }
                Then::GoOn
            }
        });
        proxy.inject(statuses, Times::Always, hook);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the step if the object was not ready with this spec before.
    fn begins(&self, ready: (String, i64)) -> Option<usize> {
        let mut inner = self.lock();
        inner.ready.insert(ready).then_some(inner.step)
    }

    /// Records what differs, unless the workload has changed something since.
    fn ends(&self, step: usize, differs: Vec<String>) {
        let mut inner = self.lock();
        if step == inner.step {
            inner.checked += 1;
            inner.untrue.extend(differs);
        }
    }

    /// Begins a step of the workload, which may damage children: the current specs are not checked any more.
    pub async fn begin_step(&self, kind: Kind, bed: &Bed) {
        let Some(resource) = kind.reports_readiness() else {
            return;
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(bed.client.clone(), &bed.namespace, &resource);
        let objects = api.list(&ListParams::default()).await.unwrap();
        let mut inner = self.lock();
        inner.ready.extend(objects.iter().filter_map(ready));
        inner.step += 1;
    }

    pub fn assert_true(&self) {
        let untrue = &self.lock().untrue;
        assert!(
            untrue.is_empty(),
            "a status says Ready, but the children differ from the spec:\n{}",
            untrue.join("\n")
        );
    }

    /// Returns the number of checks.
    pub fn checked(&self) -> usize {
        self.lock().checked
    }
}

/// Returns the UID and the generation of an object whose status says Ready for its current spec.
pub fn ready(object: &DynamicObject) -> Option<(String, i64)> {
    let status = &object.data["status"];
    let (uid, generation) = (object.metadata.uid.clone()?, object.metadata.generation?);
    let conditions = status["conditions"].as_array()?;
    let is_true = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
    let is_current = status["observedGeneration"] == json!(generation);
    (is_current && conditions.iter().any(is_true)).then_some((uid, generation))
}
