//! `ConfigMapSync`: what is copied, what is put right, what is left alone.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use quartermaster::api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings};

mod content;

/// A test's namespaces: that of the syncs and of the source, and others.
pub struct Shop {
    pub bed: Bed,
}

impl Shop {
    /// On the control plane that tests share.
    pub async fn shared(name: &str) -> Self {
        Self { bed: Bed::shared(name).await }
    }

    /// Name of another namespace of this test.
    pub fn far(&self, name: &str) -> String {
        format!("{}-{name}", self.bed.namespace)
    }

    /// Makes another namespace.
    pub async fn open(&self, name: &str, labels: Value) -> String {
        let name = self.far(name);
        let object = json!({ "metadata": { "name": name, "labels": labels } });
        let object: Namespace = serde_json::from_value(object).unwrap();
        Api::all(self.bed.client.clone()).create(&PostParams::default(), &object).await.unwrap();
        name
    }

    /// An operator for the test's own namespace and these others.
    pub async fn operator(&self, others: &[&str]) -> Operator {
        let settings = others.iter().fold(Settings::default(), |settings, name| {
            settings.flag(&format!("--watch-namespace={},{}", self.bed.namespace, self.far(name)))
        });
        Operator::start(&self.bed, settings).await
    }

    /// The `ConfigMap`s of a namespace.
    pub fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.bed.client.clone(), namespace)
    }

    /// A `ConfigMap`, given all but its name.
    pub async fn map(&self, namespace: &str, name: &str, mut rest: Value) -> ConfigMap {
        rest["metadata"]["name"] = name.into();
        self.maps(namespace).create(&PostParams::default(), &serde_json::from_value(rest).unwrap()).await.unwrap()
    }

    /// Merges a patch into a `ConfigMap`.
    pub async fn edit(&self, namespace: &str, name: &str, patch: Value) -> ConfigMap {
        self.maps(namespace).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap()
    }

    /// Deletes a `ConfigMap`.
    pub async fn drop(&self, namespace: &str, name: &str) {
        self.maps(namespace).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A sync of `settings` from the test's own namespace.
    pub async fn sync(&self, name: &str, mut spec: Value) -> ConfigMapSync {
        for (field, value) in [("sourceNamespace", &*self.bed.namespace), ("configMapName", "settings")] {
            if spec[field].is_null() {
                spec[field] = value.into();
            }
        }
        self.bed.create(name, json!({ "spec": spec })).await
    }

    /// Waits until a `ConfigMap` is as `look` wants it.
    pub async fn until(&self, namespace: &str, name: &str, what: &str, look: impl Fn(&ConfigMap) -> bool) -> ConfigMap {
        let maps = self.maps(namespace);
        let found = until(format!("{namespace}/{name} {what}"), SOON, async || {
            Ok(maps.get_opt(name).await?.filter(|map| look(map)))
        });
        found.await.unwrap()
    }

    /// Waits until a copy has exactly this data.
    pub async fn copied(&self, namespace: &str, name: &str, data: Value) -> ConfigMap {
        let wanted = serde_json::from_value(data.clone()).unwrap();
        self.until(namespace, name, &format!("has {data}"), |map| map.data.clone().unwrap_or_default() == wanted).await
    }

    /// Waits until there is no such `ConfigMap`.
    pub async fn gone(&self, namespace: &str, name: &str) {
        let maps = self.maps(namespace);
        until(format!("{namespace}/{name} is gone"), SOON, async || {
            Ok(maps
                .get_opt(name)
                .await?
                .filter(|map| map.metadata.deletion_timestamp.is_none())
                .is_none()
                .then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until the condition of a sync has this reason; gives its words.
    pub async fn reads(&self, sync: &str, reason: &str) -> String {
        let ready = |sync: &ConfigMapSync| {
            let status = sync.status.as_ref()?;
            let fits = status.observed_generation == sync.metadata.generation;
            status.conditions.first().filter(|condition| fits && condition.reason == reason).cloned()
        };
        let found = self.bed.until(sync, reason, |sync: &ConfigMapSync| ready(sync).is_some()).await;
        ready(&found).unwrap().message
    }
}

/// That nobody writes is shown by what is stored: two reads around a marker that the operator had to act on.
pub fn version(object: &impl ResourceExt) -> String {
    object.resource_version().unwrap()
}
