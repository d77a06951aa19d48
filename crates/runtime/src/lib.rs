//! What surrounds the controllers of an operator and kube does not give: watches and caches, children and their drift, leader
//! election, the write fence, metrics, probes, logs.

#![warn(missing_docs)]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use sha2::{Digest, Sha256};

pub mod apply;
pub mod availability;
pub mod background;
pub mod backoff;
pub mod cache;
pub mod children;
pub mod client;
pub mod cluster;
pub mod controller;
pub mod crds;
pub mod drain;
pub mod drift;
pub mod error;
mod event_dedup;
pub mod events;
pub mod feed;
mod field_set;
pub mod fields;
pub mod finalizer;
pub mod health;
pub mod leader;
pub mod managed_fields;
pub mod manager;
pub mod metrics;
pub mod nesting;
pub mod outcome;
pub mod owners;
pub mod ownership;
mod pages;
pub mod raw_object;
pub mod reconciler;
pub mod seen;
pub mod settings;
pub mod setup;
pub mod signals;
pub mod tasks;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod watch_hub;
pub mod watching;
pub mod written;

/// Version in the user agent, the metrics and the traces.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Threads for blocking work, mainly lookups of the names of the apiserver, Telegram and AWS.
pub const BLOCKING_THREADS: usize = 16;

/// Namespace and name of an object of ours. Cheap to clone: it is a key in many maps.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of a namespaced object.
    pub fn of(object: &impl ResourceExt) -> Self {
        Self::new(
            object.meta().namespace.as_deref().unwrap_or_default(),
            object.meta().name.as_deref().unwrap_or_default(),
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What part of the cluster this operator serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Cluster,
    /// These namespaces.
    Namespaces(Vec<String>),
}

impl Scope {
    /// These namespaces; none of them means everything.
    pub fn of(namespaces: &BTreeSet<String>) -> Self {
        if namespaces.is_empty() {
            Self::Cluster
        } else {
            Self::Namespaces(namespaces.iter().cloned().collect())
        }
    }

    /// Whether an object of `namespace` is served. The empty namespace is that of cluster-scoped objects.
    pub fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespaces(names) => names.iter().any(|name| name == namespace),
        }
    }

    /// One place for each watch that serves this scope; `None` is the whole cluster.
    pub fn shards(&self) -> Vec<Option<String>> {
        match self {
            Self::Cluster => vec![None],
            Self::Namespaces(names) => names.iter().cloned().map(Some).collect(),
        }
    }

    /// Those places, as a kind that lives in namespaces is asked for there.
    pub fn places<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
        &self,
        client: &Client,
    ) -> Vec<(Option<String>, Api<K>)> {
        let places = self.shards().into_iter().map(|shard| {
            let api = match &shard {
                Some(namespace) => Api::namespaced(client.clone(), namespace),
                None => Api::all(client.clone()),
            };
            (shard, api)
        });
        places.collect()
    }
}

/// The first 64 bits of a SHA-256, in hexadecimal.
pub fn short_digest(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes)
        .iter()
        .take(8)
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Whether `one` is a later version of an object than `other`. The versions of one object in one cluster are numbers
/// that grow (<https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>).
pub fn is_newer(one: Option<&str>, other: Option<&str>) -> bool {
    version(one) > version(other)
}

/// A resourceVersion as a number; 0 where there is none.
pub fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
