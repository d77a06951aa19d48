//! `quartermaster adopt`.

use http::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::Api;
use kube::{Resource as _, ResourceExt as _};
use qm_api::{ConfigMapSync, MyApp, MyIngress};
use serde_json::{Value, json};
use testbed::aws::{Aws, SUBNETS};
use testbed::process::Folder;
use testbed::proxy::{Fault, Match, Proxy, Times, Verb};

use super::{Run, USER, user_with};
use crate::support::{Bed, Operator, Settings};

/// Resources of which a user needs to read and annotate objects to adopt them.
const ADOPTER_RESOURCES: &str =
    "configmaps,configmapsyncs.apps.bixbite.io,myapps.demo.rtfm.co.ua,myingresses.demo.rtfm.co.ua";

fn reads(status: &Value, reason: &str) -> bool {
    status["conditions"][0]["reason"] == reason
}

/// The original programs leave copies and a Pod without the ownership label, and a load balancer with their tag.
#[tokio::test]
async fn adopt_shows_unowned_objects_and_allows_their_adoption() {
    let bed = Bed::shared("adopt").await;
    let far = Bed::on(bed.plane.clone(), "adopt-far").await;
    let aws = Aws::start().await.unwrap();
    let run = Run::on(&bed).aws(&aws);
    let (here, there) = (bed.namespace.as_str(), far.namespace.as_str());
    let nothing = run.ends(0, &["adopt", "-n", here]).await;
    assert_eq!(nothing, "There is nothing to adopt.\n");

    // Copies of document 001's program, one of them outdated, and ConfigMaps with another owner.
    let content = json!({ "data": { "a": "1" } });
    for name in ["settings", "theirs", "chart", "stamped", "fresh"] {
        bed.create::<ConfigMap>(name, content.clone()).await;
        let spec = json!({ "sourceNamespace": here, "destinationNamespace": there, "configMapName": name });
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    }
    let copy = far
        .create::<ConfigMap>("settings", json!({ "data": { "a": "0" } }))
        .await;
    let marks = json!({ "labels": { "quartermaster.dev/owner-uid": "u" }, "annotations": { "quartermaster.dev/owner": "x/y\nto do so: rm" } });
    far.create::<ConfigMap>("theirs", json!({ "metadata": marks, "data": { "a": "1" } }))
        .await;
    let uid = json!({ "labels": { "quartermaster.dev/owner-uid": "u" } });
    far.create::<ConfigMap>("stamped", json!({ "metadata": uid, "data": { "a": "1" } }))
        .await;
    let helm = json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } });
    far.create::<ConfigMap>("chart", json!({ "metadata": helm, "data": { "a": "1" } }))
        .await;
    // Two resources need this object.
    for (name, source) in [("one", "settings"), ("other", "theirs")] {
        let spec = json!({ "sourceNamespace": here, "destinationNamespace": there, "configMapName": source,
            "destinationName": "both" });
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    }
    let both = far.create::<ConfigMap>("both", content.clone()).await;
    // Pods of document 003's program, one of them with another image; the program's load balancer; a foreign one.
    let app: MyApp = bed
        .create("app", json!({ "spec": { "image": "nginx:latest" } }))
        .await;
    let spec = json!({ "containers": [{ "name": "app", "image": "nginx:latest" }] });
    bed.accepts_pods().await;
    let pod: Pod = bed
        .create(
            "app-pod",
            json!({ "metadata": { "labels": { "app": "app" } }, "spec": spec }),
        )
        .await;
    bed.create::<MyApp>("old", json!({ "spec": { "image": "nginx:latest" } }))
        .await;
    let spec = json!({ "containers": [{ "name": "old", "image": "redis" }] });
    let old: Pod = bed
        .create(
            "old-pod",
            json!({ "metadata": { "labels": { "app": "old" } }, "spec": spec }),
        )
        .await;
    for (name, manager) in [("kopf", "kopf"), ("tf", "terraform")] {
        bed.create::<MyIngress>(name, json!({ "spec": { "subnets": SUBNETS[..2] } }))
            .await;
        let tags = [("ManagedBy", manager)];
        aws.create(
            &format!("{name}-alb"),
            &SUBNETS[..2],
            "internet-facing",
            &tags,
        )
        .await
        .unwrap();
    }
    aws.clear();

    // Before the operator first starts, the command prints the plan and changes nothing.
    let plan = run.ends(0, &["adopt", "-n", here]).await;
    let line = |what: &str| {
        plan.lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{plan}"))
            .to_owned()
    };
    let offered = |what: &str| !line(what).starts_with("  ");
    assert!(
        offered(&format!("configmap {there}/settings"))
            && line("/settings")
                .contains("differs from its source: the operator overwrites its content"),
        "{plan}"
    );
    assert!(
        offered(&format!("pod {here}/app-pod")) && offered("load balancer kopf-alb"),
        "{plan}"
    );
    assert!(
        !offered(&format!("configmap {there}/theirs"))
            && line("/theirs").ends_with(r"it belongs to x/y\nto do so: rm"),
        "{plan}"
    );
    assert!(line("/chart").ends_with("it is managed by Helm"), "{plan}");
    assert!(
        line("/stamped").ends_with("it belongs to the resource with the UID u"),
        "{plan}"
    );
    assert!(
        line("/app-pod").ends_with("keeps running unchanged"),
        "{plan}"
    );
    let why = "its image is redis, and the spec says nginx:latest: the operator deletes and recreates it; adopted only if you name the owner";
    assert!(line("/old-pod").ends_with(why), "{plan}");
    let want = format!(
        "configmapsync/one in {here} and configmapsync/other in {here} need it: name the one that adopts it"
    );
    assert_eq!(plan.matches(&want).count(), 2, "{plan}");
    assert!(
        line("load balancer tf-alb").ends_with("it is managed by terraform"),
        "{plan}"
    );
    let named = format!(
        "2 objects may change on adoption, so name their owners: quartermaster adopt --yes configmapsync/settings myapp/old -n {here}\n"
    );
    let can = format!("2 objects can be adopted: quartermaster adopt --yes -n {here}\n");
    assert!(plan.ends_with(&format!("{can}{named}")), "{plan}");
    assert!(aws.calls().iter().all(|call| call.is_read()));
    assert_eq!(
        far.api::<ConfigMap>()
            .get("settings")
            .await
            .unwrap()
            .resource_version(),
        copy.resource_version()
    );

    let done = run.ends(0, &["adopt", "-n", here, "--yes"]).await;
    assert_eq!(done.matches("\nallowed ").count(), 2, "{done}");
    assert!(done.ends_with(&named), "{done}");
    assert_eq!(
        far.api::<ConfigMap>()
            .get("settings")
            .await
            .unwrap()
            .resource_version(),
        copy.resource_version()
    );
    // The printed command works unchanged; a name decides between two resources.
    let (_, command) = named.trim_end().split_once(": ").unwrap();
    let done = Run::on(&bed)
        .aws(&aws)
        .shell(&bed)
        .ends(0, &["-c", command])
        .await;
    assert_eq!(done.matches("\nallowed ").count(), 2, "{done}");
    let done = run
        .ends(0, &["adopt", "-n", here, "--yes", "cmsync/other"])
        .await;
    assert!(
        done.ends_with(&format!(
            "allowed configmapsync/other in {here} to adopt configmap {there}/both\n"
        )),
        "{done}"
    );
    let output = run
        .ends(1, &["adopt", "-n", here, "--yes", "cmsync/none"])
        .await;
    assert!(
        output.contains(&format!(
            "there is no configmapsync/none in namespace {here}"
        )),
        "{output}"
    );
    let again = run.ends(0, &["adopt", "-n", here, "--yes"]).await;
    let (cluster, rest) = again.split_once("\n\n").unwrap();
    assert!(cluster.starts_with("Cluster: context "), "{again}");
    assert!(
        rest.starts_with("There is nothing to adopt.\n\nUnchanged:\n"),
        "{again}"
    );

    let flag = format!("--watch-namespace={here},{there}");
    let _operator = Operator::start(&bed, Settings::default().aws(&aws).flag(&flag)).await;
    let synced = |sync: &ConfigMapSync| reads(&json!(sync.status), "Synced");
    bed.until("settings", "is synced", synced).await;
    let adopted = far.api::<ConfigMap>().get("settings").await.unwrap();
    assert_eq!(
        (adopted.uid(), adopted.data.as_ref().unwrap()["a"].as_str()),
        (copy.uid(), "1")
    );
    bed.until("app", "has its Pod", |app: &MyApp| {
        app.status
            .as_ref()
            .is_some_and(|status| status.pod_name.is_some())
    })
    .await;
    let adopted: Pod = bed.api().get("app-pod").await.unwrap();
    assert_eq!(adopted.uid(), pod.uid());
    assert_eq!(
        adopted.meta().owner_references.as_ref().unwrap()[0].uid,
        app.uid().unwrap()
    );
    let made = |pod: &Pod| {
        pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("nginx:latest")
    };
    let recreated: Pod = bed.until("old-pod", "is recreated", made).await;
    assert_ne!(recreated.uid(), old.uid());
    assert_eq!(
        far.api::<ConfigMap>().get("both").await.unwrap().uid(),
        both.uid()
    );
    bed.until("kopf", "is ready", |it: &MyIngress| {
        reads(&json!(it.status), "Ready")
    })
    .await;
    for (name, reason) in [
        ("theirs", "Conflict"),
        ("chart", "Conflict"),
        ("stamped", "Conflict"),
        ("one", "Conflict"),
    ] {
        bed.until(name, reason, |sync: &ConfigMapSync| {
            reads(&json!(sync.status), reason)
        })
        .await;
    }
}

/// The operator runs, and the user has few permissions.
#[tokio::test]
async fn missing_permission_is_named_and_the_rest_is_adopted() {
    let bed = Bed::shared("adopt-few").await;
    let far = Bed::on(bed.plane.clone(), "adopt-shut").await;
    let (here, there) = (bed.namespace.as_str(), far.namespace.as_str());
    let flag = format!("--watch-namespace={here},{there}");
    let _operator = Operator::start(&bed, Settings::default().flag(&flag)).await;
    for namespace in [&bed, &far] {
        namespace
            .create::<ConfigMap>("copy", json!({ "data": {} }))
            .await;
    }
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
        .await;
    let spec = json!({ "sourceNamespace": here, "destinationNamespaces": [here, there], "configMapName": "settings",
        "destinationName": "copy" });
    bed.create::<ConfigMapSync>("s", json!({ "spec": spec }))
        .await;
    bed.until("s", "conflicts", |sync: &ConfigMapSync| {
        reads(&json!(sync.status), "Conflict")
    })
    .await;
    let user = user_with(&bed, "get,list,patch", ADOPTER_RESOURCES).await;
    let run = Run::on(&bed).kubeconfig(user);
    let output = run
        .ends(1, &["adopt", "-n", here, "--yes", "cmsync/s"])
        .await;
    assert!(
        output.contains(&format!(
            "allowed configmapsync/s in {here} to adopt configmap {here}/copy\n"
        )),
        "{output}"
    );
    assert!(
        output.contains("could not be read: configmaps \"copy\" is forbidden"),
        "{output}"
    );
    let maps: Api<ConfigMap> = bed.api();
    bed.until("copy", "is adopted", |map: &ConfigMap| {
        map.data.as_ref().is_some_and(|data| !data.is_empty())
    })
    .await;
    assert!(
        maps.get("copy")
            .await
            .unwrap()
            .labels()
            .contains_key("quartermaster.dev/owner-uid")
    );
}

/// An unreadable source leaves open whether adoption overwrites the copy.
#[tokio::test]
async fn copy_with_an_unreadable_source_has_to_be_named() {
    let bed = Bed::shared("adopt-blind").await;
    let far = Bed::on(bed.plane.clone(), "adopt-blind-far").await;
    let (here, there) = (bed.namespace.as_str(), far.namespace.as_str());
    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
        .await;
    let copy = far
        .create::<ConfigMap>("settings", json!({ "data": { "a": "mine" } }))
        .await;
    let spec = json!({ "sourceNamespace": here, "destinationNamespace": there, "configMapName": "settings" });
    far.create::<ConfigMapSync>("s", json!({ "spec": spec }))
        .await;
    // The user may write the copy, but not read its source.
    let user = user_with(&far, "get,list,patch", ADOPTER_RESOURCES).await;
    let proxy = Proxy::for_kubeconfig(&std::fs::read_to_string(&user).unwrap()).unwrap();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("kubeconfig");
    proxy.write_kubeconfig(&user, &file).unwrap();
    let run = Run::on(&bed).kubeconfig(file);

    let source = Match::verb(Verb::Get)
        .resource("configmaps")
        .namespace(here);
    for (fault, expected) in [
        (
            None,
            format!(
                "configmaps \"settings\" is forbidden: User \"system:serviceaccount:{there}:{USER}\""
            ),
        ),
        (
            Some(Fault::status(StatusCode::SERVICE_UNAVAILABLE)),
            "the source could not be read, so the operator may replace this copy: ".into(),
        ),
    ] {
        let order = fault.map(|fault| proxy.inject(source.clone(), Times::Always, fault));
        let output = run.ends(1, &["adopt", "-n", there, "--yes"]).await;
        let line = output
            .lines()
            .find(|line| line.contains(&format!("configmap {there}/settings")))
            .unwrap();
        assert!(
            line.contains(&expected) && line.ends_with("; adopted only if you name the owner"),
            "{output}"
        );
        assert!(
            !output.contains("allowed configmapsync")
                && output.contains("adopt --yes configmapsync/s -n"),
            "{output}"
        );
        let live = far.api::<ConfigMap>().get("settings").await.unwrap();
        assert_eq!(live.resource_version(), copy.resource_version(), "{output}");
        assert!(order.is_none_or(|order| order.hits() == 1), "{output}");
    }
    // Naming the resource is consent.
    let output = run
        .ends(1, &["adopt", "-n", there, "--yes", "cmsync/s"])
        .await;
    assert!(
        output.contains(&format!(
            "allowed configmapsync/s in {there} to adopt configmap {there}/settings\n"
        )),
        "{output}"
    );
}
