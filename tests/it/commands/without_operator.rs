//! `quartermaster uninstall` after the deletion of the operator, alone or together with its CRDs.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use qm_api::{ConfigMapSync, MyApp, MyIngress};
use rstest::rstest;
use serde_json::json;
use testbed::proxy::{Fault, Match, Point, Proxy, Then, Times, Verb};
use testbed::wait::until;

use super::uninstall::{ALL, Scene};
use super::{Run, all_kinds, user_with};
use crate::support::{Bed, Operator, SOON, SYSTEM, Settings};

#[tokio::test]
async fn uninstall_deletes_the_rest_while_no_operator_runs() {
    let shared = Bed::shared("gone").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-gone").await;
    let operator = Operator::start(&scene.bed, scene.settings()).await;
    scene.all_ready().await;
    drop(operator);
    let run = Run::on(&scene.bed);
    let here = scene.bed.namespace.as_str();
    let arguments = [
        "uninstall",
        "-n",
        here,
        "--yes",
        "--stalled-after=2s",
        "--timeout=100s",
        "--leader-election-id=nobody",
    ];
    let (_folder, plugin) = super::plugin();
    let output = Run::on(&scene.bed)
        .program(&plugin)
        .ends(1, &arguments)
        .await;
    let mut left = scene.remaining().await;
    left.sort();
    assert_eq!(
        left,
        ["configmapsyncs/sync", "myingresses/web"],
        "objects that need no operator are deleted: {output}"
    );
    assert!(
        output.contains("the operator has not deleted the load balancer in AWS yet"),
        "{output}"
    );
    assert!(
        output.contains("Cannot tell whether the operator is running: Lease"),
        "{output}"
    );
    assert!(
        output.contains(&format!(
            "kubectl quartermaster uninstall --without-operator -n {here}"
        )),
        "{output}"
    );

    // The command continues once the operator is back.
    let _operator = Operator::start(&scene.bed, scene.settings()).await;
    run.ends(0, &["uninstall", "-n", here, "--yes"]).await;
    assert_eq!(
        (scene.remaining().await, scene.children().await),
        (vec![], vec![])
    );
}

/// The state of an operator without `--leader-elect` is not known.
#[tokio::test]
async fn without_operator_needs_a_proof_and_keeps_every_copy() {
    let shared = Bed::shared("alone").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-alone").await;
    let operator = Operator::start(&scene.bed, scene.settings()).await;
    scene.all_ready().await;
    let (bed, here) = (&scene.bed, scene.bed.namespace.as_str());
    let run = Run::on(bed);
    let guess = [
        "uninstall",
        "-n",
        here,
        "--yes",
        "--without-operator",
        "--leader-election-id=alone",
    ];
    let arguments = [&guess[..], &["--operator-namespace=quartermaster-system"]].concat();

    // The user guesses, or may not read the Lease.
    let output = run.ends(1, &guess).await;
    assert!(
        output.contains(
            "Lease quartermaster-system/alone does not exist, but the operator may run in another namespace"
        ),
        "{output}"
    );
    // The namespace of the command's own Pod proves nothing.
    let output = Run::on(bed)
        .env("POD_NAMESPACE", here)
        .ends(1, &guess)
        .await;
    assert!(
        output.contains(&format!(
            "Lease {here}/alone does not exist, but the operator may run in another namespace"
        )),
        "{output}"
    );
    let file = user_with(bed, "*", &all_kinds()).await;
    let output = Run::on(bed).kubeconfig(file).ends(1, &arguments).await;
    assert!(
        output.contains("once it has stopped: the Lease of the operator could not be read: leases")
            && output.contains("cannot get resource \"leases\""),
        "{output}"
    );
    assert_eq!(
        (scene.remaining().await.len(), scene.children().await),
        (7, ALL.to_vec())
    );

    drop(operator);
    let output = run.ends(0, &arguments).await;
    assert!(
        output.contains("The operator is not running (Lease quartermaster-system/alone): the Lease does not exist.\n"),
        "{output}"
    );
    let line = output
        .lines()
        .find(|line| line.starts_with("ConfigMapSync"))
        .unwrap();
    assert!(line.ends_with("copies stay"), "{output}");
    assert_eq!(scene.remaining().await, [""; 0]);
    let children = scene.children().await;
    assert!(
        ["copy", "copy here", "balancer"]
            .iter()
            .all(|child| children.contains(child)),
        "{children:?}"
    );
    // The garbage collector does not delete the copy later.
    let copy: ConfigMap = bed.api().get("copy").await.unwrap();
    assert_eq!(copy.owner_references(), []);
}

/// `kubectl delete -f deploy/` deletes the operator and the CRDs together.
#[tokio::test]
async fn without_operator_frees_objects_after_everything_was_deleted_at_once() {
    let first = Bed::on_own_plane("way-out").await;
    // While no object exists, one may still be created, and its operator may have another Lease.
    let output = Run::on(&first)
        .ends(1, &["uninstall", "--purge", "--without-operator", "--yes"])
        .await;
    assert!(
        output.contains("the operator may run in another namespace"),
        "{output}"
    );
    let scene = Scene::on(first.plane.clone(), "way-out-one").await;
    let settings = Settings::default()
        .aws(&scene.aws)
        .whole_cluster()
        .flag("--leader-elect");
    let mut operator = Operator::start(&scene.bed, settings).await;
    scene.all_ready().await;
    let run = Run::on(&scene.bed);

    // The command refuses while the operator runs.
    let output = run
        .ends(1, &["uninstall", "--without-operator", "--yes"])
        .await;
    assert!(
        output.contains("the operator is running (") && output.contains("omit --without-operator"),
        "{output}"
    );
    assert_eq!(scene.remaining().await.len(), 7);

    // The command refuses while objects may belong to another operator, which has its own Lease.
    let flags = ["--leader-elect", "--leader-election-id=other"];
    let other = Operator::start(
        &first,
        flags.into_iter().fold(Settings::default(), Settings::flag),
    )
    .await;
    let lease = [
        "get",
        "lease",
        "other",
        "-n",
        SYSTEM,
        "--ignore-not-found",
        "-o",
        "name",
    ];
    until("the other leads", SOON, async || {
        Ok((!scene.bed.plane.run_kubectl(&lease, "").await?.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    operator.kill();
    let output = run
        .ends(1, &["uninstall", "--without-operator", "--yes"])
        .await;
    assert!(
        output.contains(&format!(
            "another operator is running (Lease {SYSTEM}/other)"
        )),
        "{output}"
    );
    assert_eq!(scene.remaining().await.len(), 7);
    let foreign =
        json!({ "metadata": { "finalizers": ["example.com/theirs", "quartermaster.dev/copies"] } });
    scene.bed.patch::<ConfigMapSync>("sync", foreign).await;
    let crds = xtask::crds_yaml().unwrap();
    scene
        .bed
        .plane
        .run_kubectl(&["delete", "--wait=false", "-f", "-"], &crds)
        .await
        .unwrap();
    let stuck = |it: &MyIngress| it.metadata.deletion_timestamp.is_some();
    scene.bed.until("web", "stays Terminating", stuck).await;

    // The note precedes the question.
    until(
        "the list has a note about the Lease without renewals",
        SOON,
        async || {
            let output = run.ends(2, &["uninstall"]).await;
            Ok([
                "The operator may have stopped: ",
                "The operator is not running: ",
            ]
            .iter()
            .any(|it| output.contains(it))
            .then_some(()))
        },
    )
    .await
    .unwrap();

    // Without flags, the command prints the blockers and the one command.
    let output = run
        .ends(1, &["uninstall", "--yes", "--stalled-after=1s"])
        .await;
    assert!(
        output.contains("The operator is not running: ")
            && output.contains("quartermaster uninstall --without-operator"),
        "{output}"
    );

    // The command lists the objects that it keeps, and removes only the operator's finalizers.
    let uid = scene
        .bed
        .api::<ConfigMapSync>()
        .get("sync")
        .await
        .unwrap()
        .uid()
        .unwrap();
    let arn = scene.aws.balancer("web-alb").await.unwrap().unwrap().arn;
    // Without a Lease, as after the deletion of its namespace, the user has to give the namespace.
    scene
        .bed
        .plane
        .run_kubectl(&["delete", "lease", "quartermaster", "-n", SYSTEM], "")
        .await
        .unwrap();
    let output = run
        .ends(1, &["uninstall", "--without-operator", "--yes"])
        .await;
    assert!(
        output.contains("the operator may run in another namespace")
            && output.contains("--operator-namespace=NAMESPACE"),
        "{output}"
    );
    let here = [
        "-n",
        &scene.bed.namespace,
        "--operator-namespace=quartermaster-system",
    ];
    let output = run
        .ends(
            1,
            &[&["uninstall", "--without-operator", "--yes"], &here[..]].concat(),
        )
        .await;
    let expected = format!(
        "Lease {SYSTEM}/quartermaster does not exist, but another operator is running (Lease {SYSTEM}/other)"
    );
    assert!(
        output.contains(&expected) && output.contains("--leader-election-id=NAME"),
        "{output}"
    );
    drop(other);
    scene
        .bed
        .plane
        .run_kubectl(&["delete", "lease", "other", "-n", SYSTEM], "")
        .await
        .unwrap();
    assert!(
        scene
            .remaining()
            .await
            .contains(&"configmapsyncs/sync".to_owned())
    );
    let alone = [
        "uninstall",
        "--without-operator",
        "--operator-namespace=quartermaster-system",
        "--yes",
    ];
    let output = run
        .ends(1, &[&alone[..], &["--timeout=10s"]].concat())
        .await;
    let copies =
        format!("kubectl delete configmaps --all-namespaces -l quartermaster.dev/owner-uid={uid}");
    assert!(
        output.contains("\nThese objects stay; delete them by hand:\n") && output.contains(&copies),
        "{output}"
    );
    assert!(
        output.contains(&format!("delete-load-balancer --load-balancer-arn {arn}")),
        "{output}"
    );
    let sync = scene.bed.api::<ConfigMapSync>().get("sync").await.unwrap();
    assert_eq!(sync.finalizers(), ["example.com/theirs"]);
    assert!(
        output.contains("example.com/theirs: the program that set the finalizer")
            && !output.contains("Remaining: myingress"),
        "{output}"
    );
    let none = json!({ "metadata": { "finalizers": null } });
    scene.bed.patch::<ConfigMapSync>("sync", none).await;

    let done = run.ends(0, &alone).await;
    assert!(
        done.contains("already being deleted") || done.starts_with("There is nothing"),
        "{done}"
    );
    let left = scene.bed.kubectl(&["get", "crds", "-o", "name"]).await;
    assert_eq!(left, "", "the CRDs are deleted");
    let children = scene.children().await;
    assert!(
        children.contains(&ALL[0]) && children.contains(&ALL[5]),
        "{children:?}"
    );

    // The printed commands delete the rest.
    let delete = copies.strip_prefix("kubectl ").unwrap();
    scene
        .bed
        .plane
        .run_kubectl(&delete.split(' ').collect::<Vec<_>>(), "")
        .await
        .unwrap();
    until("no copy is left", SOON, async || {
        Ok((!scene.children().await.contains(&"copy")).then_some(()))
    })
    .await
    .unwrap();
}

/// With a namespace, the Role of an operator with `--watch-namespace` is deleted.
#[tokio::test]
async fn remedy_is_named_for_a_namespace_that_is_being_deleted() {
    let bed = Bed::shared("going").await;
    let here = bed.namespace.as_str();
    let guarded = json!({ "metadata": { "finalizers": ["quartermaster.dev/copies"] }, "spec": {
        "sourceNamespace": here, "configMapName": "settings", "destinationNamespace": here, "destinationName": "copy" } });
    bed.create::<ConfigMapSync>("sync", guarded).await;
    let run = Run::on(&bed);
    let lease = "--leader-election-id=going";
    bed.delete::<ConfigMapSync>("sync").await;
    let way_out = format!("quartermaster uninstall --without-operator -n {here} {lease}");
    let output = run.ends(0, &["status", "-n", here, lease]).await;
    assert!(
        output.contains("the copies in other namespaces yet") && !output.contains(&way_out),
        "{output}"
    );
    bed.kubectl(&["delete", "namespace", here, "--wait=false"])
        .await;
    let output = run.ends(0, &["status", "-n", here, lease]).await;
    assert!(
        output.contains(&format!("namespace {here} is being deleted")) && output.contains(&way_out),
        "{output}"
    );
    let output = run
        .ends(
            1,
            &[
                "uninstall",
                "-n",
                here,
                lease,
                "--yes",
                "--stalled-after=1s",
            ],
        )
        .await;
    assert!(
        output.contains(&format!("namespace {here} is being deleted")) && output.contains(&way_out),
        "{output}"
    );
    let of_that = format!("--operator-namespace={SYSTEM}");
    run.ends(
        0,
        &[
            "uninstall",
            "--without-operator",
            "-n",
            here,
            lease,
            &of_that,
            "--yes",
        ],
    )
    .await;
    assert!(
        bed.api::<ConfigMapSync>()
            .get_opt("sync")
            .await
            .unwrap()
            .is_none()
    );
}

/// Between the restarts of a crashing Pod, no operator seems to run.
#[rstest]
#[case::before_the_first_release(Match::verb(Verb::List).resource("leases"), &["first", "second"])]
#[case::after_the_first_release(Match::verb(Verb::Patch).resource("configmapsyncs"), &["second"])]
#[tokio::test]
async fn without_operator_stops_when_the_operator_is_back(
    #[case] then: Match,
    #[case] left: &[&str],
) {
    let bed = Bed::shared("back").await;
    let here = bed.namespace.clone();
    let lease = |holder: &str, renewed: &str| json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 1, "renewTime": renewed } });
    bed.create::<Lease>("back", lease("old", "2026-01-01T00:00:00.000000Z"))
        .await;
    let finalizer = "quartermaster.dev/copies";
    let sync = json!({ "metadata": { "finalizers": [finalizer] }, "spec": {
        "sourceNamespace": here, "configMapName": "settings", "destinationNamespace": here, "destinationName": "copy" } });
    bed.create::<ConfigMapSync>("first", sync.clone()).await;

    // The proxy needs a client with a token.
    bed.kubectl(&["create", "serviceaccount", "boss"]).await;
    let account = format!("--serviceaccount={here}:boss");
    bed.kubectl(&[
        "create",
        "rolebinding",
        "boss",
        "--clusterrole=cluster-admin",
        &account,
    ])
    .await;
    let direct = bed
        .plane
        .kubeconfig_for_service_account(&here, "boss")
        .await
        .unwrap();
    let proxy = Proxy::for_kubeconfig(&std::fs::read_to_string(&direct).unwrap()).unwrap();
    let file = direct.with_extension("proxied");
    proxy.write_kubeconfig(&direct, &file).unwrap();
    let bed = Arc::new(bed);
    let back = lease("new", "2026-01-01T00:01:00.000000Z");
    let comes = Fault::hook(Point::AfterApplied, {
        let bed = Arc::clone(&bed);
        move |_| {
            let (bed, back, sync) = (Arc::clone(&bed), back.clone(), sync.clone());
            async move {
                bed.patch::<Lease>("back", back).await;
                bed.create::<ConfigMapSync>("second", sync).await;
                Then::GoOn
            }
        }
    });
    let returned = proxy.inject(then, Times::First(1), comes);
    let lease = [
        "--leader-election-id=back",
        &format!("--operator-namespace={here}"),
    ];
    let run = Run::on(&bed).kubeconfig(file);
    let output = run
        .ends(
            1,
            &[
                &["uninstall", "--without-operator", "-n", &here, "--yes"],
                &lease[..],
            ]
            .concat(),
        )
        .await;
    assert!(
        output.contains("The operator is not running (Lease ") && returned.hits() == 1,
        "{output}"
    );
    let expected = format!(
        "the operator is running (new holds Lease {here}/back) and removes its finalizers itself"
    );
    assert!(
        output.contains(&expected) && output.contains("omit --without-operator"),
        "{output}"
    );
    let all = bed
        .api::<ConfigMapSync>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let kept = all
        .iter()
        .filter(|it| it.finalizers() == [finalizer] && it.metadata.deletion_timestamp.is_none());
    assert_eq!(
        kept.map(ResourceExt::name_any).collect::<Vec<_>>(),
        left,
        "{output}"
    );
}

/// A reconcile in progress could have the children deleted, and without a Lease it is not known whether one is in
/// progress.
#[tokio::test]
async fn keep_children_waits_for_an_operator_in_an_unknown_state() {
    let bed = Bed::shared("kept").await;
    let (run, here) = (Run::on(&bed), bed.namespace.as_str());
    bed.create::<MyApp>("web", json!({ "spec": { "image": "nginx:1" } }))
        .await;
    let keep = [
        "uninstall",
        "-n",
        here,
        "--keep-children",
        "--yes",
        "--stalled-after=4s",
        "--leader-election-id=kept",
    ];
    let output = run.ends(1, &keep).await;
    let blocked = format!(
        "Remaining: myapp/web in {here}\n  the operator has not observed spec.suspend yet\n"
    );
    assert!(
        output.contains("Objects with its finalizers stay until the operator runs.")
            && output.contains(&blocked),
        "{output}"
    );
    let app: MyApp = bed.api().get("web").await.unwrap();
    assert_eq!(
        (app.spec.suspend, app.metadata.deletion_timestamp),
        (Some(true), None)
    );
    let undo = format!(
        "\nThese objects were changed but not deleted. To undo the changes:\n  kubectl patch myapps.demo.rtfm.co.ua/web -n {here} --type=merge -p \
         '{{\"spec\":{{\"suspend\":null}}}}'\n"
    );
    assert!(output.ends_with(&undo), "{output}");

    let (_, command) = output
        .split_once("remove its finalizers: ")
        .unwrap_or_else(|| panic!("{output}"));
    let command = command.split(" (NAMESPACE is").next().unwrap();
    assert_eq!(
        command,
        format!(
            "quartermaster uninstall --without-operator --keep-children -n {here} --operator-namespace=NAMESPACE \
             --leader-election-id=kept"
        )
    );
    let command = command.replace("=NAMESPACE", &format!("={SYSTEM}"));
    let shell = Run::on(&bed).shell(&bed);
    shell.ends(0, &["-c", &format!("{command} --yes")]).await;
    assert!(bed.api::<MyApp>().get_opt("web").await.unwrap().is_none());
}
