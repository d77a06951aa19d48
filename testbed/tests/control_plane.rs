//! The control plane behaves as tests of the operator expect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use testbed::control_plane::audit::Subject;
use testbed::wait::until;
use testbed::{ControlPlane, Options};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Returns the shared control plane for one test at a time, because one test kills the apiserver.
async fn plane() -> (&'static ControlPlane, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
    let alone = ALONE.lock().await;
    let start = || ControlPlane::start(Options::default());
    let plane = SHARED.get_or_try_init(start).await;
    (plane.expect("a control plane"), alone)
}

fn subject(user: &str, verb: &str, resource: &str, namespace: &str, name: &str) -> Subject {
    let [user, verb, resource, namespace, name] =
        [user, verb, resource, namespace, name].map(String::from);
    Subject {
        user,
        verb,
        group: String::new(),
        resource,
        namespace,
        name,
    }
}

#[tokio::test]
async fn deployment_becomes_available_and_is_deleted_with_its_pods() {
    let (plane, _alone) = plane().await;
    plane
        .run_kubectl(&["create", "namespace", "deploys"], "")
        .await
        .unwrap();
    plane
        .run_kubectl(
            &[
                "-n=deploys",
                "create",
                "deployment",
                "web",
                "--image=web:1",
                "--replicas=3",
            ],
            "",
        )
        .await
        .unwrap();
    plane
        .run_kubectl(
            &[
                "-n=deploys",
                "wait",
                "--for=condition=Available",
                "--timeout=600s",
                "deployment/web",
            ],
            "",
        )
        .await
        .unwrap();
    let ready = plane
        .run_kubectl(
            &[
                "-n=deploys",
                "get",
                "deployment",
                "web",
                "-o=jsonpath={.status.readyReplicas}",
            ],
            "",
        )
        .await
        .unwrap();
    assert_eq!(ready, "3");
    // kwok may delete Pods only because somebody else does.
    let delete = ["-n=deploys", "delete", "pods", "--all", "--dry-run=server"];
    let as_kwok = ["--as=kwok", "--as-group=system:masters"];
    let delete = [delete.as_slice(), &as_kwok].concat();
    until("kwok may not delete", Duration::from_mins(1), async || {
        let denied = plane.run_kubectl(&delete, "").await.err();
        Ok(denied.filter(|error| error.to_string().contains("not terminating")))
    })
    .await
    .unwrap();
    plane
        .run_kubectl(&["delete", "namespace", "deploys", "--timeout=600s"], "")
        .await
        .unwrap();
}

#[tokio::test]
async fn stored_objects_survive_an_apiserver_kill() {
    let (plane, _alone) = plane().await;
    assert!(
        plane.start_apiserver().await.is_err(),
        "the apiserver is running"
    );
    plane
        .run_kubectl(&["create", "namespace", "kept"], "")
        .await
        .unwrap();
    plane
        .run_kubectl(
            &[
                "-n=kept",
                "create",
                "configmap",
                "kept",
                "--from-literal=a=b",
            ],
            "",
        )
        .await
        .unwrap();
    let address = plane.server_url().replace("https://", "");

    plane.kill_apiserver().unwrap();
    let refused = tokio::net::TcpStream::connect(&address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    plane.start_apiserver().await.unwrap();
    let value = plane
        .run_kubectl(
            &[
                "-n=kept",
                "get",
                "configmap",
                "kept",
                "-o=jsonpath={.data.a}",
            ],
            "",
        )
        .await
        .unwrap();
    assert_eq!(value, "b");
    // The other servers have reconnected too.
    plane
        .run_kubectl(
            &["-n=kept", "create", "deployment", "web", "--image=web:1"],
            "",
        )
        .await
        .unwrap();
    plane
        .run_kubectl(
            &[
                "-n=kept",
                "wait",
                "--for=condition=Available",
                "--timeout=600s",
                "deployment/web",
            ],
            "",
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn audit_log_records_user_of_each_write() {
    let (plane, _alone) = plane().await;
    plane
        .run_kubectl(&["create", "namespace", "audited"], "")
        .await
        .unwrap();
    plane
        .run_kubectl(
            &[
                "-n=audited",
                "create",
                "rolebinding",
                "writers",
                "--clusterrole=edit",
                "--group=writers",
            ],
            "",
        )
        .await
        .unwrap();
    let alice = plane
        .kubeconfig_for_user("alice", &["writers", "readers"])
        .unwrap();
    let alice = format!("--kubeconfig={}", alice.display());
    let bob = format!(
        "--kubeconfig={}",
        plane.kubeconfig_for_user("bob", &[]).unwrap().display()
    );
    let whoami = plane
        .run_kubectl(
            &[&alice, "auth", "whoami", "-o=jsonpath={.status.userInfo}"],
            "",
        )
        .await
        .unwrap();
    let whoami: serde_json::Value = serde_json::from_str(&whoami).unwrap();
    assert_eq!(whoami["username"], "alice");
    assert_eq!(
        whoami["groups"],
        serde_json::json!(["writers", "readers", "system:authenticated"])
    );

    let audit = plane.audit();
    let before = audit.mark().await.unwrap();
    let run = async |args: &[&str]| plane.run_kubectl(args, "").await;
    run(&[&alice, "-n=audited", "create", "configmap", "one"])
        .await
        .unwrap();
    run(&[
        &alice,
        "-n=audited",
        "patch",
        "configmap",
        "one",
        "-p={\"data\":{\"a\":\"1\"}}",
    ])
    .await
    .unwrap();
    let between = audit.mark().await.unwrap();
    run(&[
        &alice,
        "-n=audited",
        "patch",
        "configmap",
        "one",
        "-p={\"data\":{\"a\":\"2\"}}",
    ])
    .await
    .unwrap();
    run(&[&alice, "-n=audited", "get", "configmaps"])
        .await
        .unwrap();
    run(&[
        &alice,
        "-n=audited",
        "get",
        "configmaps",
        "--watch",
        "--request-timeout=5s",
    ])
    .await
    .ok();
    let refused = run(&[&bob, "-n=audited", "create", "configmap", "two"])
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("forbidden"), "{refused}");

    let by = |user: &'static str| move |subject: &Subject| subject.user == user;
    let mut writes = audit.writes(before).await.unwrap();
    writes.retain(|subject, _| by("alice")(subject) || by("bob")(subject));
    let expected = [
        (
            subject("alice", "create", "configmaps", "audited", "one"),
            1,
        ),
        (subject("alice", "patch", "configmaps", "audited", "one"), 2),
        (subject("bob", "create", "configmaps", "audited", ""), 1),
    ];
    assert_eq!(writes, expected.into());

    let mut later = audit.writes(between).await.unwrap();
    later.retain(|subject, _| by("alice")(subject));
    assert_eq!(
        later,
        [(subject("alice", "patch", "configmaps", "audited", "one"), 1)].into()
    );

    let requests = audit.requests(before).await.unwrap();
    let count = |expected: &Subject| {
        requests
            .iter()
            .filter(|request| request.subject == *expected)
            .count()
    };
    assert_eq!(
        count(&subject("alice", "watch", "configmaps", "audited", "")),
        1,
        "{requests:#?}"
    );
    // A request for the list, and one for the start of the watch.
    assert_eq!(
        count(&subject("alice", "list", "configmaps", "audited", "")),
        2,
        "{requests:#?}"
    );
    let bobs = requests
        .iter()
        .find(|request| by("bob")(&request.subject) && request.subject.is_write())
        .unwrap();
    assert_eq!(bobs.code, 403);
}

#[tokio::test]
async fn service_account_has_only_its_own_permissions() {
    let (plane, _alone) = plane().await;
    let setup = r"
apiVersion: v1
kind: Namespace
metadata: {name: accounts}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: accounts}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: accounts}
rules: [{apiGroups: [''], resources: [configmaps], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: accounts}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: accounts}]
";
    plane.run_kubectl(&["apply", "-f=-"], setup).await.unwrap();
    let file = plane
        .kubeconfig_for_service_account("accounts", "reader")
        .await
        .unwrap();
    let reader = format!("--kubeconfig={}", file.display());
    // The kubeconfig selects the account's own namespace.
    plane
        .run_kubectl(&[&reader, "get", "configmaps"], "")
        .await
        .unwrap();
    for forbidden in [
        ["get", "secrets", "-n=accounts"],
        ["get", "configmaps", "-n=default"],
    ] {
        let error = plane
            .run_kubectl(&[&[reader.as_str()], &forbidden[..]].concat(), "")
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains(r#"User "system:serviceaccount:accounts:reader" cannot list"#),
            "{error}"
        );
    }
    let error = plane
        .kubeconfig_for_service_account("accounts", "nobody")
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("\"nobody\" not found"),
        "{error:#}"
    );
}
