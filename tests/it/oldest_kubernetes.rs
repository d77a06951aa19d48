//! The oldest supported Kubernetes: today's apiserver with the features and the limits of that version.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use qm_api::{AppService, ConfigMapSync, MyApp, MyIngress, TrackedFieldSet};
use serde_json::{Value, json};
use testbed::aws::Aws;
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;
use testbed::{ControlPlane, Options};

use crate::support::{Bed, Operator, Plane, SOON, Settings, install};

/// Number of Deployments: more than the first page of a list has.
const DEPLOYMENTS: usize = 25;

/// Answer to `/version`: an emulated version changes the features, and not the version that the apiserver reports.
fn version() -> Fault {
    let unused = [
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    let mut version = json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0" });
    for field in unused {
        version[field] = "".into();
    }
    Fault::Respond(version.to_string())
}

/// Creates an object of each kind, and what they need.
async fn create_all(bed: &Bed) {
    let spec = |spec: Value| json!({ "spec": spec });
    bed.track("field", "Deployment", "web-0", "replicas", "hook")
        .await;
    let target = json!({ "kind": "Deployment", "names": { "include": ["web-1*"] } });
    let set =
        json!({ "target": target, "fields": ["replicas"], "template": { "contactPoint": "hook" } });
    bed.create::<TrackedFieldSet>("set", spec(set)).await;
    let service = json!({ "size": 1, "image": "nginx", "ports": [{ "port": 80 }] });
    bed.create::<AppService>("service", spec(service)).await;
    bed.create::<MyApp>("app", spec(json!({ "image": "nginx" })))
        .await;
    let subnets = json!({ "subnets": ["subnet-abc", "subnet-def"] });
    bed.create::<MyIngress>("ingress", spec(subnets)).await;
    bed.create::<ConfigMap>("settings", json!({ "data": { "colour": "green" } }))
        .await;
    let sync = json!({
        "sourceNamespace": bed.namespace, "destinationNamespace": "default", "configMapName": "settings",
    });
    bed.create::<ConfigMapSync>("sync", spec(sync)).await;
}

/// Binds the Pods of the apps to the node, as a scheduler does. Today's scheduler waits for APIs that this version lacks.
async fn bind_pods(bed: &Bed, number: usize) {
    let api: Api<Pod> = bed.api();
    let pods = until("the apps have Pods", SOON, async || {
        let pods = api.list(&ListParams::default()).await?.items;
        Ok((pods.len() == number).then_some(pods))
    });
    for pod in pods.await.unwrap() {
        let name = pod.name_any();
        let target = json!({ "kind": "Node", "name": "node-1" });
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name }, "target": target,
        });
        let _: Value = api
            .create_subresource("binding", &name, &PostParams::default(), &binding)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn oldest_supported_kubernetes_runs_every_kind() {
    let options = Options {
        apiserver_flags: vec!["--emulated-version=1.33".into()],
        scheduler: false,
        ..Options::default()
    };
    let plane = ControlPlane::start(options).await.unwrap();
    // The apiserver checks the cost of each rule anew only if the CRDs are applied here.
    install(&plane).await;
    let bed = Bed::on(Plane::Own(Arc::new(plane)), "oldest").await;
    let (receiver, aws) = (Receiver::start().unwrap(), Aws::start().await.unwrap());
    for number in 0..DEPLOYMENTS {
        bed.deployment(&format!("web-{number}"), 0).await;
    }
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let asked = Match::any().and(|request| request.path == "/version");
    let reported = proxy.inject(asked, Times::Always, version());
    let settings = Settings::default().kubeconfig(kubeconfig).aws(&aws);
    let mut operator = Operator::start(&bed, settings.whole_cluster()).await;

    bed.webhook("hook", &receiver.url()).await;
    create_all(&bed).await;
    bind_pods(&bed, 2).await;
    let objects = [
        "contactpoint/hook",
        "trackedfieldset/set",
        "appservice/service",
        "myapp/app",
        "myingress/ingress",
        "configmapsync/sync",
    ];
    let ready = ["wait", "--for=condition=Ready", "--timeout=600s"];
    bed.kubectl(&[&ready[..], &objects].concat()).await;
    bed.delivered("field", &[("Created", Some("0"))]).await;

    let deployments = Match::verb(Verb::List).resource("deployments");
    let pages = deployments
        .clone()
        .and(|request| request.query.contains("limit=10"));
    let next = deployments.and(|request| request.query.contains("continue="));
    assert!(proxy.count(&pages) > 0 && proxy.count(&next) > 0);
    let streamed = Match::any().and(|request| request.query.contains("sendInitialEvents=true"));
    assert_eq!(proxy.count(&streamed), 0);
    bed.scale("web-0", 2).await;
    let mut expected = vec![("Created", Some("0")), ("Updated", Some("2"))];
    bed.delivered("field", &expected).await;

    // A newer apiserver rejects streamed lists if its administrator has disabled them.
    reported.cancel();
    proxy.forget();
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.scale("web-0", 3).await;
    expected.push(("Updated", Some("3")));
    bed.delivered("field", &expected).await;
    assert!(proxy.count(&streamed) > 0 && proxy.count(&next) > 0);
}
