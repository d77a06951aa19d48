//! etcd is out of space: the apiserver reads, deletes most objects, and rejects every other write.

use std::collections::BTreeMap;
use std::time::Instant;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use qm_api::{AppService, ConfigMapSync, MyApp};
use serde_json::json;
use testbed::proxy::{Fault, Match, Point, Then, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;
use tokio::sync::watch;

use super::deliveries::deliveries;
use super::{assert_no_repeats, bed_on_own_plane};
use crate::support::{Operator, SOON, Settings, changes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_waits_for_space_in_etcd_and_loses_nothing() {
    let bed = bed_on_own_plane("full").await;
    let destination = format!("{}-two", bed.namespace);
    let object = json!({ "metadata": { "name": destination } });
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    let object = serde_json::from_value(object).unwrap();
    namespaces
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("target", 1).await;
    bed.track("field", "Deployment", "target", "replicas", "hook")
        .await;
    let port = json!({ "name": "http", "port": 80, "targetPort": 8080 });
    let app = json!({ "spec": { "size": 1, "image": "nginx", "ports": [port] } });
    bed.create::<AppService>("web", app).await;
    bed.create::<ServiceAccount>("default", json!({})).await;
    let app = json!({ "spec": { "image": "nginx:1.29" } });
    bed.create::<MyApp>("shell", app).await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
        .await;
    let sync = json!({
        "sourceNamespace": bed.namespace,
        "configMapName": "settings",
        "destinationNamespaces": [destination],
    });
    bed.create::<ConfigMapSync>("sync", json!({ "spec": sync }))
        .await;
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default().whole_cluster().kubeconfig(file);
    let mut operator = Operator::start(&bed, settings).await;
    let copies: Api<ConfigMap> = Api::namespaced(bed.client.clone(), &destination);
    let children_exist = async || {
        until("every child exists", SOON, async || {
            let exists = bed.api::<Deployment>().get_opt("web").await?.is_some()
                && bed.api::<Service>().get_opt("web").await?.is_some()
                && bed.api::<Pod>().get_opt("shell-pod").await?.is_some()
                && copies.get_opt("settings").await?.is_some();
            Ok(exists.then_some(()))
        })
        .await
        .unwrap();
    };
    children_exist().await;
    bed.delivered("field", &[("Created", Some("1"))]).await;

    // The apiserver writes to a Pod before it deletes the Pod, so this Pod is deleted while etcd has space.
    let (is_full, _) = watch::channel(false);
    let until_full = {
        let is_full = is_full.clone();
        Fault::hook(Point::Before, move |_| {
            let mut is_full = is_full.subscribe();
            async move {
                is_full.wait_for(|full| *full).await.unwrap();
                Then::GoOn
            }
        })
    };
    let pods = Match::verb(Verb::Create).resource("pods");
    let waiting = proxy.inject(pods, Times::Nth(1), until_full);
    bed.delete::<Pod>("shell-pod").await;
    waiting.wait_for_hits(1, SOON).await.unwrap();
    bed.plane.set_etcd_full(true).await.unwrap();
    is_full.send_replace(true);
    let full = Instant::now();
    bed.delete::<Deployment>("web").await;
    copies
        .delete("settings", &DeleteParams::default())
        .await
        .unwrap();
    bed.delete::<Deployment>("target").await;
    // Rejected writes of each object, by resource and name.
    let rejected = || {
        let mut rejected = BTreeMap::<String, u32>::new();
        for seen in proxy.requests() {
            if seen.answer() == Some(StatusCode::INTERNAL_SERVER_ERROR) {
                let request = &seen.request;
                let name = request.name.as_deref().unwrap_or_default();
                *rejected
                    .entry(format!("{} {name}", request.resource))
                    .or_default() += 1;
            }
        }
        rejected.retain(|object, _| !object.starts_with("events"));
        rejected
    };
    let objects = [
        "deployments web",
        "pods shell-pod",
        "configmaps settings",
        "trackedfields field",
    ];
    until("each write is rejected several times", SOON, async || {
        let rejected = rejected();
        let missing = objects.iter().find(|it| rejected.get(**it) < Some(&4));
        anyhow::ensure!(missing.is_none(), "{missing:?}: {rejected:?}");
        Ok(Some(()))
    })
    .await
    .unwrap();
    // Backoffs of 50 ms, doubled up to a second.
    let seconds = u32::try_from(full.elapsed().as_secs()).unwrap();
    let rejected = rejected();
    assert!(
        rejected.values().all(|count| *count < 20 + 3 * seconds),
        "in {seconds} s: {rejected:?}"
    );
    assert_eq!(
        changes(&receiver).len(),
        1,
        "nothing is sent that no status holds"
    );

    let outages = || {
        operator
            .logs()
            .matches("apiserver stores no writes")
            .count()
    };
    until("the operator reports the outage", SOON, async || {
        Ok((outages() > 0).then_some(()))
    })
    .await
    .unwrap();

    bed.plane.set_etcd_full(false).await.unwrap();
    children_exist().await;
    bed.delivered("field", &[("Created", Some("1")), ("Deleted", None)])
        .await;
    assert_no_repeats(&deliveries(&receiver));
    assert_eq!(outages(), 1, "it is reported once");
    assert!(operator.child().ended().unwrap().is_none());
}
