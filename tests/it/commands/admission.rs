//! Reports of missing and changed admission policies, and of the objects that they never checked.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::wait::until;

use super::Run;
use crate::support::{Bed, Operator, SOON, Settings};

const POLICY: &str = "quartermaster-configmapsync-policy";
const BINDING: &str = "quartermaster-configmapsync-policybinding";

async fn shows(operator: &Operator, policy: &str, in_force: u8) {
    let line = format!("quartermaster_admission_policy_in_force{{policy=\"{policy}\"}} {in_force}");
    until(format!("metrics have {line}"), SOON, async || {
        Ok(operator
            .metrics()
            .await
            .lines()
            .any(|printed| printed == line)
            .then_some(()))
    })
    .await
    .unwrap();
}

async fn status(run: &Run) -> Value {
    serde_json::from_str(&run.ends(0, &["status", "-A", "-o", "json"]).await).unwrap()
}

fn states(report: &Value) -> Vec<(&str, &str)> {
    report["admissionPolicies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| {
            (
                policy["name"].as_str().unwrap(),
                policy["state"].as_str().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn status_reports_missing_and_changed_policies_and_older_objects() {
    let bed = Bed::on_own_plane("policies").await;
    let run = Run::on(&bed);
    let operator = Operator::start(
        &bed,
        Settings::default().flag("--policy-check-period=200ms"),
    )
    .await;
    let policies = xtask::policies::names();
    for policy in &policies {
        shows(&operator, policy, 1).await;
    }
    let report = status(&run).await;
    let in_force = states(&report);
    assert!(
        in_force.len() == policies.len() && in_force.iter().all(|(_, state)| *state == "InForce"),
        "{report}"
    );
    assert_eq!(report["unchecked"], json!([]));

    // The binding only warns.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(bed.client.clone());
    let actions =
        |actions: Value| Patch::Merge(json!({ "spec": { "validationActions": actions } }));
    bindings
        .patch(BINDING, &PatchParams::default(), &actions(json!(["Warn"])))
        .await
        .unwrap();
    shows(&operator, "configmapsync-policy", 0).await;
    bindings
        .patch(BINDING, &PatchParams::default(), &actions(json!(["Deny"])))
        .await
        .unwrap();
    shows(&operator, "configmapsync-policy", 1).await;

    // The binding is missing while a user creates an object.
    let shipped = bindings.get(BINDING).await.unwrap();
    bindings
        .delete(BINDING, &DeleteParams::default())
        .await
        .unwrap();
    shows(&operator, "configmapsync-policy", 0).await;
    shows(&operator, "myapp-policy", 1).await;
    assert!(
        operator.logs().contains("admission policy is not in force"),
        "{}",
        operator.logs()
    );
    let spec = json!({ "sourceNamespace": bed.namespace, "configMapName": "a", "destinationNamespace": bed.namespace, "destinationName": "b" });
    bed.create::<ConfigMapSync>("older", json!({ "spec": spec }))
        .await;
    let report = status(&run).await;
    assert!(
        states(&report).contains(&("configmapsync-policy", "NotInForce")),
        "{report}"
    );
    let table = run.ends(0, &["status", "-A"]).await;
    assert!(
        table.contains(&format!(
            "ValidatingAdmissionPolicyBinding {BINDING} not found"
        )),
        "{table}"
    );

    // Creation in the same second counts as older, too.
    let mut again = serde_json::to_value(shipped).unwrap();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "managedFields",
    ] {
        again["metadata"].as_object_mut().unwrap().remove(field);
    }
    bindings
        .create(&Default::default(), &serde_json::from_value(again).unwrap())
        .await
        .unwrap();
    shows(&operator, "configmapsync-policy", 1).await;
    let report = status(&run).await;
    assert!(
        states(&report).iter().all(|(_, state)| *state == "InForce"),
        "{report}"
    );
    let older = json!([{ "kind": "ConfigMapSync", "namespace": bed.namespace, "name": "older" }]);
    assert_eq!(report["unchecked"], older);
    let table = run.ends(0, &["status", "-A"]).await;
    assert!(
        table.contains("1 object is older than the admission policies"),
        "{table}"
    );
    assert!(
        table.contains(&format!("configmapsync/older in {}", bed.namespace)),
        "{table}"
    );

    // The policy is deleted, and not only its binding.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(bed.client.clone());
    policies
        .delete(POLICY, &DeleteParams::default())
        .await
        .unwrap();
    shows(&operator, "configmapsync-policy", 0).await;
}
