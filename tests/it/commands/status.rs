//! `quartermaster status`.

use qm_api::{ConfigMapSync, TrackedField, TrackedFieldSet};
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use super::{Run, plugin};
use crate::support::{Bed, Operator, SOON, Settings};

async fn report(run: &Run, namespace: &str) -> Value {
    serde_json::from_str(
        &run.ends(0, &["status", "-n", namespace, "-o", "json"])
            .await,
    )
    .unwrap()
}

#[tokio::test]
async fn status_shows_every_object_and_its_problem() {
    let bed = Bed::shared("status").await;
    let run = Run::on(&bed);
    let here = bed.namespace.as_str();
    let empty = run.ends(0, &["status", "-n", here]).await;
    assert!(
        empty.starts_with(&format!(
            "There are no Quartermaster objects in namespace {here} yet"
        )),
        "{empty}"
    );

    // The operator has not started yet.
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    // Other operators on this control plane may have Leases.
    let unseen = run
        .ends(0, &["status", "-n", here, "--leader-election-id=nobody"])
        .await;
    assert!(
        unseen
            .lines()
            .any(|line| line.contains("contactpoint/hook") && line.contains("NotObserved")),
        "{unseen}"
    );
    assert!(
        unseen.contains("Cannot tell whether the operator is running: Lease"),
        "{unseen}"
    );

    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    bed.track("lost", "Deployment", "nowhere", "replicas", "hook")
        .await;
    bed.waiting("lost", "TargetNotFound").await;
    receiver.always(Reply::status(http::StatusCode::SERVICE_UNAVAILABLE));
    bed.scale("web", 2).await;
    bed.scale("web", 3).await;
    let printed = until("two changes wait", SOON, async || {
        let report = report(&run, here).await;
        Ok((report["summary"]["undelivered"] == 2).then_some(report))
    });
    let report = printed.await.unwrap();
    assert_eq!(
        report["summary"]["oldestUndelivered"],
        format!("{here}/replicas")
    );
    assert_eq!(report["missingCRDs"], json!([]));
    let of = |name: &str| {
        report["objects"]
            .as_array()
            .unwrap()
            .iter()
            .find(|object| object["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&of("hook")["kind"], &of("hook")["state"]),
        (&json!("ContactPoint"), &json!("Ready"))
    );
    assert_eq!(
        (&of("lost")["state"], &of("lost")["reason"]),
        (&json!("NotReady"), &json!("TargetNotFound"))
    );
    assert_eq!(of("replicas")["oldestUndelivered"]["value"], "2");

    let table = run.ends(0, &["status", "--namespace", here]).await;
    let line = |title: &str| {
        table
            .lines()
            .find(|line| line.contains(title))
            .unwrap_or_else(|| panic!("{table}"))
    };
    assert!(line("contactpoint/hook").contains("Ready"), "{table}");
    assert!(
        line("trackedfield/lost").contains("NotReady")
            && line("trackedfield/lost").contains("TargetNotFound")
    );
    assert!(
        table.contains("Oldest undelivered message: trackedfield/replicas in "),
        "{table}"
    );
    assert!(
        table.contains("Updated \"2\", for ") && table.contains("; 2 changes wait in all"),
        "{table}"
    );
    assert!(
        table.contains(&format!(
            "\ntrackedfield/lost in {here}: TargetNotFound\n  "
        )),
        "{table}"
    );

    // Errors are escaped, too.
    let output = run
        .ends(1, &["status", "--context", "no\u{1b}[2Jsuch"])
        .await;
    assert!(
        output.starts_with("error: ") && output.contains(r"no\u{1b}[2Jsuch"),
        "{output}"
    );

    // The program as a plugin of kubectl, by either name.
    let (folder, link) = plugin();
    let help = run.program(&link).ends(0, &["status", "--help"]).await;
    assert!(
        help.contains("Usage: kubectl quartermaster status"),
        "{help}"
    );
    assert!(
        help.contains("\n  kubectl quartermaster status -n shop --watch\n"),
        "{help}"
    );
    let kubectl = Run::on(&bed)
        .program(&bed.plane.binaries().join("kubectl"))
        .path(folder.path());
    let all = kubectl.ends(0, &["quartermaster", "status", "-A"]).await;
    assert!(
        all.lines()
            .any(|line| line.starts_with(here) && line.contains("trackedfield/lost")),
        "{all}"
    );
}

/// No operator runs, because it would remove the finalizer.
#[tokio::test]
async fn status_shows_blockers_of_deletions() {
    let bed = Bed::shared("deleting").await;
    let (run, here) = (Run::on(&bed), bed.namespace.as_str());
    let finalizers = ["quartermaster.dev/copies", "example.com/theirs"];
    let spec = json!({ "sourceNamespace": here, "destinationNamespace": "default", "configMapName": "settings" });
    bed.create::<ConfigMapSync>(
        "sync",
        json!({ "metadata": { "finalizers": finalizers }, "spec": spec }),
    )
    .await;
    bed.kubectl(&[
        "delete",
        "configmapsyncs.apps.bixbite.io",
        "sync",
        "--wait=false",
    ])
    .await;
    let text = run.ends(0, &["status", "-n", here]).await;
    let blocked = format!(
        "\nconfigmapsync/sync in {here}: Terminating\n  quartermaster.dev/copies: the operator has not deleted the \
         copies in other namespaces yet; an operator that excludes this kind or namespace (--controllers, --watch-namespace) \
         never will\n  example.com/theirs: the program that set the finalizer must remove it; "
    );
    assert!(
        text.contains(&blocked)
            && text.contains("\n1 object: 0 ready, 0 not ready, 1 terminating\n"),
        "{text}"
    );
    let report = report(&run, here).await;
    assert_eq!(
        report["objects"][0]["blockers"].as_array().map(Vec::len),
        Some(2),
        "{report}"
    );
    bed.patch::<ConfigMapSync>("sync", json!({ "metadata": { "finalizers": null } }))
        .await;
}

#[tokio::test]
async fn status_watch_shows_changes() {
    let bed = Bed::shared("watch").await;
    let run = Run::on(&bed);
    let arguments = ["status", "-n", &bed.namespace, "--watch", "--interval=50ms"];
    let mut watch = run.start(&arguments);
    watch.prints("There are no Quartermaster objects").await;
    bed.webhook("first", "http://127.0.0.1:1").await;
    watch.prints("contactpoint/first").await;
    bed.webhook("second", "http://127.0.0.1:1").await;
    watch.prints("contactpoint/second").await;
}

/// CRDs and the leader belong to the whole cluster, so the test has its own control plane.
#[tokio::test]
async fn status_shows_missing_crds_and_the_leader() {
    let options = testbed::Options {
        controller_manager: true,
        ..testbed::Options::apiserver_only()
    };
    let bed = Bed::on_own_plane_with(options, "absent").await;
    let run = Run::on(&bed);
    bed.kubectl(&["delete", "crd", "myingresses.demo.rtfm.co.ua"])
        .await;
    let operator = Operator::start(
        &bed,
        Settings::default().flag("--leader-elect").whole_cluster(),
    )
    .await;
    until("the operator leads", SOON, async || {
        let text = run.ends(0, &["status"]).await;
        Ok(text.contains("The operator is running: ").then_some(()))
    })
    .await
    .unwrap();
    let text = run.ends(0, &["status"]).await;
    assert!(
        text.contains("Not installed: myingresses.demo.rtfm.co.ua"),
        "{text}"
    );
    drop(operator);
    // The operator has died, which shows before it is certain.
    until("the Lease is overdue", SOON, async || {
        let text = run.ends(0, &["status"]).await;
        Ok((text.contains("The operator is running: ")
            && text.contains(" is the leader, last renewed "))
        .then_some(()))
    })
    .await
    .unwrap();

    // The message names the missing permission.
    let nobody = run.kubeconfig(bed.plane.kubeconfig_for_user("nobody", &[]).unwrap());
    let output = nobody.ends(1, &["status"]).await;
    assert!(
        output.contains("cannot list resource \"contactpoints\" in API group \"tg.azamaton.ru\""),
        "{output}"
    );
}

#[tokio::test]
async fn healthy_children_of_a_set_are_one_line() {
    let (bed, run, _receiver, _operator) = Run::beside_operator("status-set").await;
    let here = bed.namespace.as_str();
    for name in ["a", "b", "c"] {
        bed.deployment(name, 1).await;
    }
    bed.track("alone", "Deployment", "a", "image", "hook").await;
    bed.delivered("alone", &[("Created", Some("nginx:latest"))])
        .await;
    let spec = json!({ "target": { "kind": "Deployment" }, "fields": ["replicas"], "template": { "contactPoint": "hook" } });
    bed.create::<TrackedFieldSet>("all", json!({ "spec": spec }))
        .await;
    let shown = async |what: &str| {
        let what = what.to_owned();
        let printed = until(what.clone(), SOON, async || {
            let table = run.ends(0, &["status", "-n", here]).await;
            anyhow::ensure!(table.contains(&what), "{table}");
            Ok(Some(table))
        });
        printed.await.unwrap()
    };
    let table = shown(&format!(
        "\n\nTrackedFields of the set all in {here}: 3 ready\n"
    ))
    .await;
    let line = |table: &str, title: &str| {
        let line = table.lines().find(|line| line.contains(title));
        line.unwrap_or_else(|| panic!("{title}: {table}"))
            .to_owned()
    };
    assert!(
        line(&table, "trackedfieldset/all").contains("Ready"),
        "{table}"
    );
    assert!(
        line(&table, "trackedfield/alone").contains("Ready"),
        "{table}"
    );
    assert!(!table.contains("trackedfield/all-"), "{table}");
    assert!(
        table.contains("\n6 objects: 6 ready, 0 not ready\n"),
        "{table}"
    );

    // A child with a problem of its own is shown.
    let children = bed.api::<TrackedField>();
    let children = children.list(&kube::api::ListParams::default()).await;
    let children = children.unwrap().items.into_iter();
    let child = |target: &str| {
        let mut of_target = children.clone().filter(|it| it.spec.target.name == target);
        of_target
            .find_map(|it| it.metadata.name.filter(|name| name.starts_with("all-")))
            .unwrap()
    };
    let (muted, ill) = (child("a"), child("c"));
    bed.patch::<TrackedField>(&muted, json!({ "spec": { "suspend": true } }))
        .await;
    shown(&format!(
        "\nTrackedFields of the set all in {here}: 2 ready, 1 suspended\n"
    ))
    .await;
    bed.patch::<TrackedField>(&ill, json!({ "spec": { "template": "{% if %}" } }))
        .await;
    // The row of the set; the message is below the table.
    let row = format!("{here}   trackedfield/{ill} ");
    let table = shown(&row).await;
    assert!(line(&table, &row).contains("TemplateInvalid"), "{table}");
    assert!(
        table.contains(&format!(
            "\nTrackedFields of the set all in {here}: 1 ready, 1 suspended\n"
        )),
        "{table}"
    );
    let report = report(&run, here).await;
    let objects = report["objects"].as_array().unwrap();
    let of_set = objects.iter().filter(|it| it["set"] == "all");
    assert_eq!(of_set.count(), 3, "{report:#}");
}
