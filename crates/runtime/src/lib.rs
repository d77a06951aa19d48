//! Runtime of a Kubernetes operator: watches and caches, children and their drift, leader election, the write fence,
//! metrics, probes and logs around the controllers. The runtime does not depend on a kind; `examples/` has an operator.

#![warn(missing_docs)]

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::sync::Arc;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use qm_core::kind::Kind;
use qm_core::shared;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep_until};

pub mod availability;
pub mod background;
pub mod backoff;
pub mod cache;
pub mod child_cache;
pub mod children;
pub mod client;
pub mod cluster;
pub mod controller;
mod drain;
pub mod drift;
pub mod error;
mod event_dedup;
pub mod events;
mod field_set;
pub mod fields;
pub mod finalizer;
pub mod health;
pub mod leader;
pub mod managed_fields;
pub mod manager;
pub mod metrics;
pub mod metrics_server;
pub mod nesting;
pub mod objects;
#[cfg(target_os = "linux")]
pub mod open_files;
pub mod outcome;
mod own_writes;
pub mod ownership;
pub mod pages;
pub mod prelude;
pub mod raw_object;
pub mod reconciled_kind;
mod runner;
mod server;
pub mod settings;
pub mod signals;
pub mod tasks;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod trigger;
pub mod watch;
pub mod write;

/// Namespace and name of an object. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace of the object.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Creates the key of `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: shared::text(namespace),
            name: shared::text(name),
        }
    }

    /// Returns the key of a namespaced object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self::new(
            object.meta().namespace.as_deref().unwrap_or_default(),
            object.meta().name.as_deref().unwrap_or_default(),
        )
    }

    /// Returns whether the object is in `namespace`; `None` is all namespaces.
    pub fn is_in(&self, namespace: Option<&str>) -> bool {
        namespace.is_none_or(|namespace| *self.namespace == *namespace)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// UID of an object, generation of its spec, and its last reconcile request. The runner resets the object's delays when
/// one of them changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecRevision {
    /// UID of the object: another object may have its name and generation.
    pub uid: Option<String>,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// Value of the `requested-at` annotation.
    pub requested_at: Option<String>,
}

impl SpecRevision {
    /// Returns the revision of `object`.
    pub fn of<K: Kind>(object: &K) -> Self {
        Self {
            uid: object.uid(),
            generation: object.meta().generation,
            requested_at: object.annotations().get(K::NAMES.requested_at).cloned(),
        }
    }
}

/// Namespaces that the operator watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchScope {
    /// All namespaces, and cluster-scoped objects.
    Cluster,
    /// The listed namespaces.
    Namespaces(Vec<String>),
}

impl WatchScope {
    /// Creates the scope of these namespaces; without any, the scope is the whole cluster.
    pub fn of(namespaces: &BTreeSet<String>) -> Self {
        if namespaces.is_empty() {
            Self::Cluster
        } else {
            Self::Namespaces(namespaces.iter().cloned().collect())
        }
    }

    /// Returns whether the operator watches `namespace`, which is empty for cluster-scoped objects.
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespaces(names) => names.iter().any(|name| name == namespace),
        }
    }

    /// Returns the namespaces to watch; `None` is all namespaces.
    pub fn namespaces(&self) -> Vec<Option<String>> {
        match self {
            Self::Cluster => vec![None],
            Self::Namespaces(names) => names.iter().cloned().map(Some).collect(),
        }
    }

    /// Returns the namespaces to watch, each with its API of a namespaced kind.
    pub fn apis<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
        &self,
        client: &Client,
    ) -> Vec<(Option<String>, Api<K>)> {
        let apis = self.namespaces().into_iter().map(|namespace| {
            let api = match &namespace {
                Some(namespace) => Api::namespaced(client.clone(), namespace),
                None => Api::all(client.clone()),
            };
            (namespace, api)
        });
        apis.collect()
    }
}

/// Returns the first 64 bits of a SHA-256, in hexadecimal.
pub fn short_digest(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes)
        .iter()
        .take(8)
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Returns whether `one` is a later resourceVersion of an object than `other`. The resourceVersions of one object are
/// increasing numbers (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
pub(crate) fn is_newer(one: Option<&str>, other: Option<&str>) -> bool {
    version(one) > version(other)
}

/// Returns a resourceVersion as a number; 0 without one.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Waits until this time; forever without a time.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
