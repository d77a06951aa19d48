//! An upgrade from an earlier version of this chart, with objects of every kind.
//!
//! `earlier/quartermaster.tgz` is what an earlier version would have been: the chart of commit ccf4fbf, its first, with
//! the CRDs of commit f5eaac6, the last that differ from today's (in all kinds but `TrackedField`). Made by `git
//! archive ccf4fbf:charts/quartermaster`, unpacked into `quartermaster/`, `config/crd/bases` of f5eaac6 put over
//! `files/crd`, `AppService`'s two rules on `targetPort` left out (Kubernetes 1.33 never accepted them), and packed
//! with tar and gzip.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use qm_core::kind::KindInfo;
use serde_json::json;
use testbed::kubelet;

use super::chart::CHART;
use super::helm::Site;
use super::*;
use crate::support::{Operator, SOON, SYSTEM};

/// Image repository of this test.
const REPOSITORY: &str = "registry.example.com/quartermaster";
/// The digest has precedence over a tag.
const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

/// The guide whose commands this test runs.
const GUIDE: &str = "docs/how-to/upgrade-and-roll-back.md";

const EARLIER: &str = "tests/it/install/earlier/quartermaster.tgz";

#[tokio::test]
async fn objects_of_an_earlier_chart_stay_and_become_ready() {
    let site = Site::new().await;
    let bed = &site.bed;
    let values = site.outside();
    let image = format!("image.repository={REPOSITORY},image.tag=earlier,image.digest={DIGEST}");
    let install = [
        "install",
        "quartermaster",
        EARLIER,
        "-n",
        SYSTEM,
        "--create-namespace",
        "--set-string",
        &values,
    ];
    site.done(&[&install[..], &["--set", &image]].concat())
        .await;
    assert_eq!(older_crds(bed).await.len(), controllers::KINDS.len());
    create_examples(bed).await;
    for (object, status) in stopped_halfway() {
        let status = json!({ "status": status }).to_string();
        bed.kubectl(&[
            "patch",
            object,
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ])
        .await;
    }
    let before = reports_of_all(&site).await;
    let earlier_kinds = served_kinds(bed).await.len();
    assert_eq!(before.len(), earlier_kinds);

    as_documented(&site, "crds.install=true", CHART, "today").await;
    assert_eq!(older_crds(bed).await, [""; 0]);
    assert_eq!(reports_of_all(&site).await, before);
    let example = format!("{ROOT}/example/example_trackedfieldset.yaml");
    bed.kubectl(&["apply", "-f", &example]).await;

    let program_of = |image: &str| {
        (image == format!("{REPOSITORY}:today")).then(|| env!("CARGO_BIN_EXE_quartermaster").into())
    };
    let operators = Operator::installed_of(&bed.plane, SYSTEM, DEPLOYMENT, program_of).await;
    wait_for_conditions(bed).await;
    bed.delivered(
        "nginx-deployment-replicas",
        &[("Created", Some("3")), ("Updated", Some("1"))],
    )
    .await;
    bed.waiting("nginx-deployment-replicas", "").await;
    // A waiting entry is sent once, sent entries are not repeated, and the contact point is not tested again.
    let texts: Vec<_> = site
        .telegram
        .messages()
        .iter()
        .map(|message| message.text.clone())
        .collect();
    assert!(
        texts.len() == 1 && texts[0].contains("Value: 1\n") && texts[0].contains("Previous: 3"),
        "{texts:?}"
    );
    let specs = |reported: Reports| {
        reported
            .into_iter()
            .map(|(object, reported)| (object, reported["spec"].clone()))
            .collect::<Vec<_>>()
    };
    let mut after = reports_of_all(&site).await;
    after.retain(|object, _| before.contains_key(object));
    assert_eq!(specs(after), specs(before));

    // Back to the earlier program, under today's CRDs.
    drop(operators);
    as_documented(&site, "crds.install=false", EARLIER, "earlier").await;
    let pods = kubelet::deployed(&bed.plane, SYSTEM, DEPLOYMENT, SOON)
        .await
        .unwrap();
    assert!(
        pods.iter()
            .all(|pod| pod.image == format!("{REPOSITORY}:earlier")),
        "{pods:?}"
    );
    assert_eq!(older_crds(bed).await, [""; 0]);
}

/// Runs the command of the guide that has this value, with a chart and a tag.
async fn as_documented(site: &Site, value: &str, chart: &str, tag: &str) {
    let page = std::fs::read_to_string(GUIDE).unwrap();
    let command = page
        .lines()
        .map(str::trim_start)
        .find(|line| line.starts_with("helm upgrade ") && line.contains(value))
        .unwrap();
    let command = command
        .replace(CHART, chart)
        .replace("=NEW", &format!("={tag}"))
        .replace("=OLD", &format!("={tag}"));
    site.done(&command.split(' ').skip(1).collect::<Vec<_>>())
        .await;
}

/// `kubectl apply -k config/default` alone names an image that nobody has published.
#[tokio::test]
async fn overlay_of_the_guide_names_the_given_image() {
    let rendered = super::equivalence::overlay_of(GUIDE).await;
    let deployment = &rendered[&format!("apps/v1 Deployment {SYSTEM}/{DEPLOYMENT}")];
    assert_eq!(
        deployment["spec"]["template"]["spec"]["containers"][0]["image"],
        "YOUR.REGISTRY/quartermaster:NEW"
    );
}

/// Returns the CRDs that differ from this version's.
async fn older_crds(bed: &Bed) -> Vec<String> {
    let api: Api<CustomResourceDefinition> = Api::all(bed.client.clone());
    let mut older = Vec::new();
    for today in controllers::crds() {
        let Some(there) = api.get_opt(&today.name_any()).await.unwrap() else {
            older.push(today.name_any());
            continue;
        };
        let schema = |crd: &CustomResourceDefinition| {
            (
                crd.annotations().get("quartermaster.dev/schema").cloned(),
                crd.spec.versions[0].schema.clone(),
            )
        };
        if schema(&there) != schema(&today) {
            older.push(there.name_any());
        }
    }
    older
}

/// Specs and reported statuses of objects, by kind and name.
type Reports = BTreeMap<String, Value>;

/// Returns the reports of all objects of the operator's kinds.
async fn reports_of_all(site: &Site) -> Reports {
    let kinds = served_kinds(&site.bed).await;
    let kinds: Vec<_> = kinds.into_iter().map(KindInfo::crd_name).collect();
    let all: Value = serde_json::from_str(
        &site
            .kubectl(&["get", &kinds.join(","), "-A", "-o", "json"])
            .await,
    )
    .unwrap();
    let reported = |object: &Value| {
        let reported = json!({ "uid": object["metadata"]["uid"], "spec": object["spec"], "status": object["status"] });
        (named(object.clone()).0, reported)
    };
    all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(reported)
        .collect()
}

/// Returns the statuses of the examples that an earlier operator wrote before it was stopped: the contact point is
/// tested, a message waits, and the rest is in progress.
fn stopped_halfway() -> Vec<(&'static str, Value)> {
    let now = Timestamp::now().to_string();
    let conditions = |status: &str, reason: &str| json!([{ "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": now }]);
    let under_way = conditions("False", "Progressing");
    let entry = |action: &str, value: &str, delivery: &str| {
        json!({ "time": now, "action": action, "value": value, "delivery": delivery, "id": format!("an-earlier-{value}"),
            "subject": "Deployment/default/nginx/replicas" })
    };
    vec![
        (
            "cp/telegram-cp",
            json!({ "initialized": true, "ready": true, "conditions": conditions("True", "Ready") }),
        ),
        (
            "tf/nginx-deployment-replicas",
            json!([
                entry("Created", "3", "Delivered"),
                entry("Updated", "1", "Pending")
            ]),
        ),
        (
            "cmsync/configmapsync-sample",
            json!({ "lastSyncTime": now, "copies": 0, "conditions": under_way }),
        ),
        (
            "appsvc/appservice-sample",
            json!({ "replicas": 2, "unavailableReplicas": 2, "conditions": under_way }),
        ),
        (
            "myapp/example-app",
            json!({ "podName": "example-app-pod", "phase": "Pending", "ready": false, "conditions": under_way }),
        ),
        ("myingress/myapp", json!({ "conditions": under_way })),
    ]
}
