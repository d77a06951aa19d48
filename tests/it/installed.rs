//! Installations around the operator: missing or old CRDs, CRDs that are deleted while the operator runs; few
//! permissions.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use serde_json::json;
use testbed::Options;
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{
    Bed, Operator, SOON, SYSTEM, Settings, actions_and_values, changes, condition,
};

const ORIGINAL: &str = include_str!("crds/original.yaml");

/// Returns the CRD of this plural among these manifests.
fn crd(manifests: &str, plural: &str) -> String {
    let name = format!("name: {plural}.tg.azamaton.ru");
    manifests
        .split("---\n")
        .find(|manifest| manifest.contains(&name))
        .unwrap()
        .to_owned()
}

/// Waits until `/readyz` has this line.
async fn readyz(operator: &Operator, line: &str) {
    readyz_within(SOON, operator, line).await;
}

async fn readyz_within(deadline: Duration, operator: &Operator, line: &str) {
    let found = until(format!("/readyz has {line:?}"), deadline, async || {
        let (code, text) = operator.probe("readyz").await?;
        anyhow::ensure!(text.lines().any(|found| found == line), "{code}: {text}");
        anyhow::ensure!(code == 200 || text.contains("not ready"), "{code}: {text}");
        Ok(Some(()))
    });
    found.await.unwrap();
}

#[tokio::test]
async fn operator_follows_crds_that_are_created_and_deleted() {
    let options = Options {
        controller_manager: true,
        ..Options::apiserver_only()
    };
    let bed = Bed::on_own_plane_with(options, "crds").await;
    let shipped_crds = xtask::crds_yaml().unwrap();
    let both = [
        "delete",
        "crd",
        "contactpoints.tg.azamaton.ru",
        "trackedfields.tg.azamaton.ru",
    ];
    bed.kubectl(&both).await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    readyz(
        &operator,
        "[+]contactpoint absent: CRD contactpoints.tg.azamaton.ru is not installed",
    )
    .await;
    readyz(
        &operator,
        "[+]trackedfield absent: CRD trackedfields.tg.azamaton.ru is not installed",
    )
    .await;

    // The CRD of one kind is created, and works without the other.
    let receiver = Receiver::start().unwrap();
    bed.apply(&crd(&shipped_crds, "contactpoints")).await;
    readyz(&operator, "[+]contactpoint synced").await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;

    // The original program's CRD prunes the operator's fields: the operator does not touch its objects.
    bed.apply(&crd(ORIGINAL, "trackedfields")).await;
    let expected = "CRD trackedfields.tg.azamaton.ru belongs to another program: install this program's CRDs \
                 (quartermaster crds | kubectl apply --server-side --force-conflicts -f -)";
    readyz(&operator, &format!("[+]trackedfield absent: {expected}")).await;
    bed.deployment("web", 3).await;
    until("the original's kind is served", SOON, async || {
        let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
        let spec = json!({ "target": target, "contactPoint": "hook", "field": "replicas" });
        let object = json!({ "metadata": { "name": "old" }, "spec": spec });
        bed.api::<TrackedField>()
            .create(
                &Default::default(),
                &serde_json::from_value(object.clone())?,
            )
            .await?;
        Ok(Some(()))
    })
    .await
    .unwrap();
    let original_status = json!({ "status": [{ "time": "2025-02-11T20:44:21Z", "action": "Created", "value": "1" }] });
    bed.api::<TrackedField>()
        .patch_status(
            "old",
            &Default::default(),
            &kube::api::Patch::Merge(&original_status),
        )
        .await
        .unwrap();
    let since = bed.plane.audit().mark().await.unwrap();
    bed.webhook("marker", &receiver.url()).await;
    bed.ready("marker").await;
    let writes = bed.plane.audit().writes(since).await.unwrap();
    assert!(
        !writes
            .keys()
            .any(|subject| subject.resource.starts_with("trackedfields")),
        "{writes:?}"
    );

    // The operator treats a CRD of another version in the same way.
    let other = crd(&shipped_crds, "trackedfields");
    let digest = other
        .lines()
        .find(|line| line.contains("quartermaster.dev/schema"))
        .unwrap()
        .to_owned();
    bed.apply(&other.replace(&digest, "    quartermaster.dev/schema: \"0123\""))
        .await;
    let ours_is = digest.split(": ").nth(1).unwrap().trim_matches(['"', '\'']);
    let expected = format!(
        "CRD trackedfields.tg.azamaton.ru has schema 0123, not {ours_is}: install this version's CRDs (quartermaster \
         crds | kubectl apply --server-side --force-conflicts -f -)"
    );
    readyz(&operator, &format!("[+]trackedfield absent: {expected}")).await;

    // The current CRD: objects of the original program are adopted, with one message for the net change.
    bed.apply(&crd(&shipped_crds, "trackedfields")).await;
    readyz(&operator, "[+]trackedfield synced").await;
    let taken_over = |field: &TrackedField| {
        let history = field.history().unwrap();
        actions_and_values(&history) == [("Created", Some("1")), ("Updated", Some("3"))]
            && history[1].delivery == Some(Delivery::Delivered)
    };
    bed.until("old", "is adopted", taken_over).await;
    let values = |receiver: &Receiver| {
        changes(receiver)
            .iter()
            .map(|change| change["value"].as_str().unwrap_or("gone").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&receiver), ["3"]);

    // The CRD is deleted while the operator runs, and recreated.
    bed.kubectl(&["delete", "crd", "trackedfields.tg.azamaton.ru"])
        .await;
    readyz(
        &operator,
        "[+]trackedfield absent: CRD trackedfields.tg.azamaton.ru is not installed",
    )
    .await;
    bed.scale("web", 4).await;
    bed.webhook("another", &receiver.url()).await;
    bed.ready("another").await;
    bed.apply(&crd(&shipped_crds, "trackedfields")).await;
    readyz(&operator, "[+]trackedfield synced").await;
    bed.track("new", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("new", &[("Created", Some("4"))]).await;

    // The CRD of the other kind is deleted: entries wait, and the status says so.
    bed.kubectl(&["delete", "crd", "contactpoints.tg.azamaton.ru"])
        .await;
    readyz(
        &operator,
        "[+]contactpoint absent: CRD contactpoints.tg.azamaton.ru is not installed",
    )
    .await;
    bed.scale("web", 5).await;
    let expected = "ContactPointNotReady: \"hook\": this operator does not serve contact points: CRD \
                 contactpoints.tg.azamaton.ru is not installed";
    bed.waiting("new", expected).await;
    assert_eq!(values(&receiver), ["3", "4"]);
    bed.apply(&crd(&shipped_crds, "contactpoints")).await;
    readyz(&operator, "[+]contactpoint synced").await;
    until("the kind is served again", SOON, async || {
        bed.api::<ContactPoint>().list(&Default::default()).await?;
        Ok(Some(()))
    })
    .await
    .unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.delivered("new", &[("Created", Some("4")), ("Updated", Some("5"))])
        .await;
    bed.waiting("new", "").await;
    assert!(!operator.logs().contains("panicked"));
    operator.child().check_running().unwrap();
    few_permissions(&bed, &receiver).await;

    // The namespace is deleted with all of its objects, and meanwhile rejects Events.
    bed.kubectl(&["delete", "namespace", &bed.namespace]).await;
    let logs = operator.logs();
    for message in [
        "an Event was not written\"",
        "\"level\":\"error\"",
        "panicked",
    ] {
        assert!(
            !logs.contains(message),
            "{message}: {}",
            operator.child().log_tail()
        );
    }
    operator.child().check_running().unwrap();
}

const LEAN: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: lean}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: lean}
rules:
- {apiGroups: [tg.azamaton.ru], resources: [contactpoints, trackedfields], verbs: [get, list, watch, patch]}
- {apiGroups: [tg.azamaton.ru], resources: [contactpoints/status, trackedfields/status], verbs: [patch, update]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: lean}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: lean}
subjects: [{kind: ServiceAccount, name: lean}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lean-crds}
rules:
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], resourceNames: [contactpoints.tg.azamaton.ru, trackedfields.tg.azamaton.ru], verbs: [get, list, watch]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [quartermaster-tracker-role], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lean-crds}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lean-crds}
subjects: [{kind: ServiceAccount, name: lean, namespace: NAMESPACE}]
";

const MORE: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: NAME}
rules:
- {apiGroups: ['GROUP'], resources: [RESOURCE], verbs: [VERBS]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: NAME}
subjects: [{kind: ServiceAccount, name: lean}]
";

/// Runs in a single namespace, with Roles there and no cluster-wide object but the two CRDs. The operator names each
/// missing permission, and uses it once granted.
async fn few_permissions(owner: &Bed, receiver: &Receiver) {
    let bed = Bed::on(owner.plane.clone(), "lean").await;
    bed.apply(&LEAN.replace("NAMESPACE", &bed.namespace)).await;
    let kubeconfig = bed
        .plane
        .kubeconfig_for_service_account(&bed.namespace, "lean")
        .await
        .unwrap();
    let settings = Settings::default()
        .kubeconfig(kubeconfig)
        .flag("--poll-max=200ms")
        // Removed permissions may take effect a moment later.
        .flag("--secret-refresh-period=1s")
        .flag("--controllers=contactpoint,trackedfield");
    let operator = Operator::start(&bed, settings).await;
    readyz(&operator, "[+]contactpoint synced").await;
    readyz(&operator, "[+]trackedfield synced").await;
    bed.deployment("web", 1).await;
    bed.secret("url", &receiver.url()).await;
    let from = json!({ "urlFrom": { "secretName": "url", "key": "token" } });
    bed.point("hook", json!({ "type": "Webhook", "webhookSpec": from }))
        .await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let (_, message) = condition(&bed.not_ready("hook", "SecretForbidden").await);
    assert!(
        message.contains(&bed.namespace) && message.contains("grant it get on secrets there"),
        "{message}"
    );
    let message = bed.waiting("it", "Forbidden: ").await;
    assert!(
        message.contains("deployments") && message.contains("[get, list, watch]"),
        "{message}"
    );

    let grant = async |name: &str, group: &str, resource: &str, verbs: &str| {
        let role = MORE
            .replace("NAME", name)
            .replace("GROUP", group)
            .replace("RESOURCE", resource);
        bed.apply(&role.replace("VERBS", verbs)).await;
    };
    grant("secrets", "", "secrets", "get").await;
    bed.ready("hook").await;
    grant("targets", "apps", "deployments", "get, list, watch").await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("it", "").await;
    bed.scale("web", 2).await;
    bed.delivered("it", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;

    // Objects of the operator's namespace that it may not read count as missing.
    let token = json!({ "secretName": "nowhere", "key": "token" });
    let spec = json!({ "type": "Telegram", "apiToken": token, "telegramSpec": { "chatId": 1 } });
    bed.point("chat", spec).await;
    let (_, message) = condition(&bed.not_ready("chat", "SecretNotFound").await);
    assert!(message.contains(SYSTEM), "{message}");

    // A removed permission is reported too.
    bed.kubectl(&["delete", "rolebinding", "secrets"]).await;
    bed.patch::<Secret>("url", json!({ "metadata": { "labels": { "a": "b" } } }))
        .await;
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": "1" } } }),
    )
    .await;
    bed.not_ready("hook", "SecretForbidden").await;
    grant("secrets", "", "secrets", "get").await;
    bed.ready("hook").await;
    assert!(!operator.logs().contains("panicked"));
}

/// The operator retries a forbidden watch after half a minute at the latest.
const RETRIED: Duration = Duration::from_secs(90);

/// If one of two namespaces grants no permissions, the operator serves the other, and `/readyz` names the missing
/// permissions and their namespace.
#[tokio::test]
async fn namespace_without_permissions_blocks_no_other() {
    let bed = Bed::shared("gives").await;
    let other = Bed::on(bed.plane.clone(), "refuses").await;
    let receiver = Receiver::start().unwrap();
    let subject = (
        "kind: ServiceAccount, name: lean}",
        format!(
            "kind: ServiceAccount, name: lean, namespace: {}}}",
            bed.namespace
        ),
    );
    let targets = MORE
        .replace("NAME", "targets")
        .replace("GROUP", "apps")
        .replace("RESOURCE", "deployments");
    let targets = targets.replace("VERBS", "get, list, watch");
    bed.apply(&LEAN.replace("NAMESPACE", &bed.namespace)).await;
    bed.apply(&targets).await;
    other.apply(&targets.replace(subject.0, &subject.1)).await;
    for bed in [&bed, &other] {
        bed.webhook("hook", &receiver.url()).await;
        bed.deployment("web", 1).await;
        bed.track("it", "Deployment", "web", "replicas", "hook")
            .await;
    }
    let kubeconfig = bed
        .plane
        .kubeconfig_for_service_account(&bed.namespace, "lean")
        .await
        .unwrap();
    let both = format!("--watch-namespace={},{}", bed.namespace, other.namespace);
    let operator =
        Operator::launch(&bed, Settings::default().kubeconfig(kubeconfig).flag(&both)).await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    for (kind, plural) in [
        ("contactpoint", "contactpoints"),
        ("trackedfield", "trackedfields"),
    ] {
        let expected = format!(
            "[-]{kind} not synced in {0}: {plural}.tg.azamaton.ru is forbidden: User \
             \"system:serviceaccount:{1}:lean\" cannot list resource \"{plural}\" in API group \"tg.azamaton.ru\" in \
             the namespace \"{0}\"",
            other.namespace, bed.namespace
        );
        readyz(&operator, &expected).await;
    }

    // Only the first kind is listed: nothing is known of the other, so it is not reported as missing.
    let fields = MORE
        .replace("NAME", "fields")
        .replace("GROUP", "tg.azamaton.ru");
    let fields = fields
        .replace("RESOURCE", "trackedfields, trackedfields/status")
        .replace("VERBS", "get, list, watch, patch");
    other.apply(&fields.replace(subject.0, &subject.1)).await;
    readyz_within(RETRIED, &operator, "[+]trackedfield synced").await;
    let message = other.waiting("it", "ContactPointNotReady: ").await;
    assert!(
        message.contains("does not serve contact points") && message.contains("forbidden"),
        "{message}"
    );

    other
        .apply(
            &LEAN
                .replace(subject.0, &subject.1)
                .replace("NAMESPACE", &bed.namespace),
        )
        .await;
    readyz_within(RETRIED, &operator, "[+]contactpoint synced").await;
    other.delivered("it", &[("Created", Some("1"))]).await;
    other.waiting("it", "").await;
    assert!(!operator.logs().contains("panicked"));
}
