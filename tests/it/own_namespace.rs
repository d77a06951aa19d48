//! With `--no-cross-namespace-refs` the operator acts in a resource's own namespace only, whatever admission accepted.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use qm_api::{ConfigMapSync, ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::Receiver;

use crate::support::{Bed, Operator, SYSTEM, Settings, TOKEN, bot_api, changes};

const FLAG: &str = "--no-cross-namespace-refs";
const OWN: &str = "track an object in the namespace of this resource";

#[tokio::test]
async fn references_to_another_namespace_are_out_of_scope_with_no_cross_namespace_refs() {
    let bed = Bed::on_own_plane("own").await;
    let far = format!("{}-far", bed.namespace);
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": far } })).unwrap();
    Api::all(bed.client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let there = Bed {
        plane: bed.plane.clone(),
        client: bed.client.clone(),
        namespace: far.clone(),
    };
    let system = Bed {
        plane: bed.plane.clone(),
        client: bed.client.clone(),
        namespace: SYSTEM.into(),
    };
    let receiver = Receiver::start().unwrap();
    let telegram = bot_api();
    let settings = Settings::default()
        .whole_cluster()
        .telegram(&telegram.url());
    let _operator = Operator::start(
        &bed,
        settings
            .flag("--shared-secrets=telegram")
            .flag("--no-cross-namespace-refs"),
    )
    .await;

    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    there.deployment("web", 7).await;
    for (name, target, expected) in [
        (
            "far",
            json!({ "kind": "Deployment", "namespace": far, "name": "web" }),
            format!(
                "the target is in namespace {far:?}, which --no-cross-namespace-refs forbids: {OWN}"
            ),
        ),
        (
            "cluster",
            json!({ "apiVersion": "v1", "kind": "Namespace", "resource": "namespaces", "name": far }),
            format!("the target is cluster-scoped, which --no-cross-namespace-refs forbids: {OWN}"),
        ),
    ] {
        let spec = json!({ "target": target, "contactPoint": "hook", "field": "{.metadata.name}" });
        bed.create::<TrackedField>(name, json!({ "spec": spec }))
            .await;
        let waiting = bed.waiting(name, "OutOfScope").await;
        assert_eq!(waiting, format!("OutOfScope: {expected}"));
    }

    let map = json!({ "data": { "a": "1" } });
    there.create::<ConfigMap>("settings", map.clone()).await;
    bed.create::<ConfigMap>("settings", map).await;
    let here = bed.namespace.as_str();
    let sync = async |name: &str, from: &str, to: Value| {
        let mut spec = json!({ "sourceNamespace": from, "configMapName": "settings", "destinationName": format!("copy-{name}") });
        spec.as_object_mut()
            .unwrap()
            .extend(to.as_object().unwrap().clone());
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    };
    sync("from", &far, json!({ "destinationNamespace": here })).await;
    sync("to", here, json!({ "destinationNamespace": far })).await;
    sync(
        "several",
        here,
        json!({ "destinationNamespaces": [here, far] }),
    )
    .await;
    sync(
        "selected",
        here,
        json!({ "destinationNamespaceSelector": {} }),
    )
    .await;
    for name in ["from", "to", "several", "selected"] {
        let reads = |sync: &ConfigMapSync| {
            let conditions = sync
                .status
                .as_ref()
                .map(|status| &*status.conditions)
                .unwrap_or_default();
            conditions.first().is_some_and(|ready| {
                ready.reason == "OutOfScope"
                    || (ready.message.contains(FLAG) && ready.message.contains("OutOfScope"))
            })
        };
        bed.until(name, "reads OutOfScope", reads).await;
    }

    // A token of the operator's namespace is shared without the flag.
    system
        .create::<Secret>("bot", json!({ "stringData": { "token": TOKEN } }))
        .await;
    let spec = json!({ "type": "Telegram", "telegramSpec": { "chatId": 1 }, "apiToken": { "secretName": "bot", "key": "token" } });
    bed.create::<ContactPoint>("bot", json!({ "spec": spec }))
        .await;
    bed.not_ready("bot", "SecretNotFound").await;

    // References within the namespace work; their effects come after those of all objects above.
    bed.deployment("web", 3).await;
    bed.track("near", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("near", &[("Created", Some("3"))]).await;
    sync("near", here, json!({ "destinationNamespace": here })).await;
    bed.until("near", "is copied", |sync: &ConfigMapSync| {
        sync.status
            .as_ref()
            .is_some_and(|status| status.copies == Some(1))
    })
    .await;
    let maps = there
        .api::<ConfigMap>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let names: Vec<_> = maps
        .iter()
        .filter_map(|map| map.metadata.name.as_deref())
        .filter(|name| *name != "kube-root-ca.crt")
        .collect();
    assert_eq!(
        names,
        ["settings"],
        "nothing was copied to another namespace"
    );
    let copies = bed
        .api::<ConfigMap>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert!(
        !copies
            .iter()
            .any(|map| map.metadata.name.as_deref() == Some("copy-from")),
        "nothing was copied from another namespace"
    );
    assert_eq!(
        changes(&receiver).len(),
        1,
        "only the change within the namespace was sent"
    );
}
