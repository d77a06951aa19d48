//! Namespaces that are being deleted: a Role in one of them goes before the objects that it is for.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use crate::cli::LeaseOf;
use crate::cli::commands::Cluster;

/// Of these namespaces those that are being deleted, with what gets objects out that only an operator lets go. Of one that may
/// not be read nothing is said.
pub async fn ways_out(
    client: &Client,
    namespaces: BTreeSet<&str>,
    lease: &LeaseOf,
    cluster: &Cluster,
) -> BTreeMap<String, String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut ways = BTreeMap::new();
    for namespace in namespaces {
        let read = api.get_metadata_opt(namespace).await.ok().flatten();
        if read.is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
            ways.insert(namespace.to_owned(), way_out(namespace, lease, cluster));
        }
    }
    ways
}

fn way_out(namespace: &str, lease: &LeaseOf, cluster: &Cluster) -> String {
    let flags = lease.flags();
    let command = cluster.command(&format!(
        "quartermaster uninstall --without-operator -n {namespace}{flags}"
    ));
    format!(
        "namespace {namespace} is being deleted: an operator with --watch-namespace has lost its Role there. Stop it, take its \
         finalizers away ({command}), and start it again"
    )
}
