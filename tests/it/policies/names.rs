//! The installed policies: the apiserver's type checks, and the policies' names.

use std::fs;
use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::{Api, ListParams};
use quartermaster::controllers;
use serde_json::Value;
use testbed::control_plane::KUBELET_POLICY;
use testbed::process::Folder;
use testbed::wait::until;

use crate::support::{Bed, SOON};

/// Kinds without a Kubernetes permission that corresponds to the operator's work for them.
const WITHOUT: [&str; 1] = ["myingress"];

#[tokio::test]
async fn every_kind_has_a_policy_without_type_errors() {
    let bed = Bed::shared("policy-names").await;
    let policies = Api::<ValidatingAdmissionPolicy>::all(bed.client.clone());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(bed.client.clone());
    let kinds = controllers::KINDS
        .iter()
        .map(|kind| kind.controller)
        .filter(|kind| !WITHOUT.contains(kind));
    let mut expected: Vec<_> = kinds
        .chain(["operator"])
        .map(|kind| format!("quartermaster-{kind}-policy"))
        .collect();
    expected.sort();
    let mut found = Vec::new();
    for binding in bindings.list(&ListParams::default()).await.unwrap() {
        let spec = binding.spec.unwrap();
        assert_eq!(spec.validation_actions.unwrap(), ["Deny"]);
        assert!(spec.match_resources.is_none());
        found.push(spec.policy_name.unwrap());
    }
    found.retain(|name| name != KUBELET_POLICY);
    found.sort();
    assert_eq!(found, expected);
    for name in expected {
        // The controller-manager checks the policy's types against those of its resources.
        let checked = until(format!("{name} is checked"), SOON, async || {
            let policy = policies.get(&name).await?;
            let generation = policy.metadata.generation;
            Ok(policy
                .status
                .filter(|status| status.observed_generation == generation))
        });
        let warnings = checked
            .await
            .unwrap()
            .type_checking
            .and_then(|checking| checking.expression_warnings);
        assert_eq!(warnings.unwrap_or_default(), [], "{name}");
        let spec = policies.get(&name).await.unwrap().spec.unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"), "{name}");
        // 350,000 of 10,000,000 each, and at most two in each expression.
        let checks = |text: &str| text.matches(".check(").count();
        let each: Vec<_> = spec
            .validations
            .unwrap()
            .iter()
            .map(|validation| checks(&validation.expression))
            .collect();
        assert!(
            each.iter().all(|checks| *checks <= 2) && each.iter().sum::<usize>() <= 28,
            "{name}: {each:?}"
        );
    }
}

/// Another prefix and another namespace, as in a user's overlay.
#[tokio::test]
async fn kustomize_changes_the_names_everywhere() {
    let bed = Bed::shared("policy-kustomize").await;
    let folder = Folder::new().unwrap();
    let up = "../".repeat(
        fs::canonicalize(folder.path())
            .unwrap()
            .components()
            .count()
            - 1,
    );
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let base = |name: &str| {
        format!(
            "- {up}{}\n",
            config
                .join(name)
                .display()
                .to_string()
                .trim_start_matches('/')
        )
    };
    let overlay = format!(
        "namespace: theirs\nnamePrefix: x-\nresources:\n{}{}",
        base("rbac"),
        base("policy")
    );
    fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
    let text = bed
        .kubectl(&["kustomize", &folder.path().display().to_string()])
        .await;
    let objects: Vec<Value> = text
        .split("---\n")
        .map(|object| serde_saphyr::from_str(object).unwrap())
        .collect();
    let of = |kind: &str| {
        objects
            .iter()
            .filter(move |object| object["kind"] == kind)
            .cloned()
            .collect::<Vec<_>>()
    };
    let policies: Vec<_> = of("ValidatingAdmissionPolicy")
        .iter()
        .map(|it| it["metadata"]["name"].clone())
        .collect();
    let bindings = of("ValidatingAdmissionPolicyBinding");
    assert!(
        bindings.len() == policies.len() && policies.len() == xtask::policies::names().len(),
        "{policies:?}"
    );
    for binding in &bindings {
        let name = &binding["spec"]["policyName"];
        assert!(
            policies.contains(name) && name.as_str().unwrap().starts_with("x-"),
            "{name}"
        );
    }
    let params: Vec<_> = bindings
        .iter()
        .map(|it| &it["spec"]["paramRef"])
        .filter(|params| !params.is_null())
        .collect();
    assert_eq!(params.len(), 1);
    assert_eq!(
        (&params[0]["name"], &params[0]["namespace"]),
        (&"x-controller-manager".into(), &"theirs".into())
    );
    let accounts = of("ServiceAccount");
    assert_eq!(accounts[0]["metadata"]["name"], params[0]["name"]);
    // Nothing else has the name.
    let named = text.lines().filter(|line| {
        line.contains("system:serviceaccount") && line.contains("controller-manager")
    });
    assert_eq!(named.count(), 0);
}
