//! Output of the Helm chart for its values.

use std::path::Path;

use serde_json::json;

use super::equivalence::{assert_alerts_are_of_the_job_of, kustomized};
use super::*;
use crate::support::SYSTEM;
use crate::support::tool;

pub const CHART: &str = "charts/quartermaster";

/// Labels that only Helm's users expect.
const HELMS_OWN: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

/// Returns helm, and builds it if it is missing.
pub async fn helm() -> &'static str {
    tool("helm").await
}

/// Runs helm template; returns whether helm succeeded, and its output.
pub async fn template(values: &[&str]) -> (bool, String) {
    let fixed = ["template", "quartermaster", CHART, "--namespace", SYSTEM];
    result_of(
        &tree_command(helm().await)
            .args(fixed)
            .args(values)
            .output()
            .await
            .unwrap(),
    )
}

/// Returns the objects that the chart renders with these values.
pub async fn rendered(values: &[&str]) -> BTreeMap<String, Value> {
    let (done, output) = template(values).await;
    assert!(done, "{values:?}: {output}");
    objects(&output)
}

/// Removes the metadata that only Helm's users expect.
fn plain(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(plain),
        Value::Object(fields) => {
            for field in ["labels", "matchLabels", "selector", "annotations"] {
                let Some(labels) = fields.get_mut(field).and_then(Value::as_object_mut) else {
                    continue;
                };
                labels.retain(|key, _| {
                    !HELMS_OWN.contains(&key.as_str()) && key != "helm.sh/resource-policy"
                });
                if labels.is_empty() {
                    fields.remove(field);
                }
            }
            fields.values_mut().for_each(plain);
        }
        _ => {}
    }
}

#[tokio::test]
async fn default_values_render_config_default() {
    let plained = |objects: BTreeMap<String, Value>| {
        objects.into_iter().map(|(name, mut object)| {
            plain(&mut object);
            (name, object)
        })
    };
    let from_chart: BTreeMap<_, _> = plained(rendered(&[]).await).collect();
    let mut from_kustomize: BTreeMap<_, _> = plained(kustomized("config/default").await).collect();
    // helm creates it by itself: --create-namespace.
    assert!(
        from_kustomize
            .remove(&format!("v1 Namespace -/{SYSTEM}"))
            .is_some()
    );
    assert_eq!(
        from_chart.keys().collect::<Vec<_>>(),
        from_kustomize.keys().collect::<Vec<_>>()
    );
    for (name, object) in &from_chart {
        assert_eq!(object, &from_kustomize[name], "{name}");
    }
}

#[tokio::test]
async fn chart_passes_lint() {
    let (done, output) = result_of(
        &tree_command(helm().await)
            .args(["lint", "--strict", CHART])
            .output()
            .await
            .unwrap(),
    );
    assert!(done, "{output}");
}

/// The apiserver accepts the output of the chart: no rejection, and no unknown field.
#[tokio::test]
async fn apiserver_accepts_the_chart_with_any_values() {
    let Bed {
        plane, namespace, ..
    } = Bed::shared("chart").await;
    let everything = format!(
        "fullnameOverride=other,replicas=3,image.repository=r.example.com/q,image.digest=sha256:{},priorityClassName=high,\
         image.pullSecrets[0].name=pull,nodeSelector.disk=ssd,tolerations[0].operator=Exists,podLabels.a=b,podAnnotations.c=d,\
         affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].key=metadata.name,\
         affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].operator=In,\
         affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchFields[0].values={{n}},extraEnvFrom[0].secretRef.name=aws,\
         topologySpread.constraints[0].maxSkew=2,topologySpread.constraints[0].topologyKey=zone,\
         topologySpread.constraints[0].whenUnsatisfiable=ScheduleAnyway,extraVolumes[0].name=v,extraVolumes[0].secret.secretName=s,\
         extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/v,serviceAccount.annotations.role=arn,aws.region=eu-central-1,\
         extraEnv[0].name=A,extraEnv[0].value=b,metrics.certSecret=certificate,networkPolicy.egress.enabled=true,networkPolicy.egress.to[0].ports[0].port=443,networkPolicy.egress.to[0].to[0].ipBlock.cidr=10.0.0.1/32",
        "0".repeat(64)
    );
    let nothing = "crds.install=false,rbac.create=false,rbac.userRoles=false,serviceAccount.create=false,serviceAccount.name=mine,\
                   admissionPolicies.enabled=false,networkPolicy.enabled=false,podDisruptionBudget.enabled=false,metrics.enabled=false,\
                   topologySpread.enabled=false";
    let some = format!("watchNamespaces={{{namespace}}},controllers={{*,-myingress}},replicas=1");
    let long = "release-with-a-quartermaster"; // 28
    let odd = "rbac.tracked=null,podLabels.control-plane=mine";
    for (release, values) in [
        (long, "replicas=2"),
        ("dry", &*everything),
        ("dry", nothing),
        ("dry", &some),
        ("dry", odd),
    ] {
        let fixed = [
            "template",
            release,
            CHART,
            "--namespace",
            &namespace,
            "--set",
            values,
        ];
        let output = tree_command(helm().await)
            .args(fixed)
            .output()
            .await
            .unwrap();
        let (done, manifests) = result_of(&output);
        assert!(done, "{manifests}");
        let dry = [
            "create",
            "--dry-run=server",
            "--validate=strict",
            "-o",
            "name",
            "-f",
            "-",
        ];
        // The apply changes existing objects of the test's own installation.
        let crds = manifests
            .split("---\n")
            .filter(|it| !it.contains("kind: CustomResourceDefinition"));
        let output = plane
            .run_kubectl(&dry, &crds.collect::<Vec<_>>().join("---\n"))
            .await
            .unwrap();
        assert!(output.contains("deployment.apps/"), "{output}");
    }
}

#[tokio::test]
async fn network_policy_of_metrics_is_replaced_by_a_value() {
    let from = async |value: &str| {
        let rendered = rendered(&["--set", value]).await;
        let (_, policy) = rendered
            .iter()
            .find(|(name, _)| name.contains(" NetworkPolicy "))
            .unwrap();
        policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"].clone()
    };
    assert_eq!(
        from("replicas=2").await,
        json!({ "matchLabels": { "metrics": "enabled" } })
    );
    let own = "networkPolicy.metricsFrom.matchLabels.team=monitoring";
    assert_eq!(
        from(own).await,
        json!({ "matchLabels": { "team": "monitoring" } })
    );
}

/// Without a Lease that shows a running operator, a lack of progress is no reason to end.
#[tokio::test]
async fn uninstall_job_waits_for_an_operator_without_a_lease() {
    let waits = async |values: &str| {
        let rendered = rendered(&["--set", &format!("crds.keep=false{values}")]).await;
        let (_, job) = rendered
            .iter()
            .find(|(name, _)| name.contains(" Job "))
            .unwrap();
        let args = job["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap()
            .clone();
        args.contains(&"--stalled-after=4m".into())
    };
    assert!(!waits("").await);
    assert!(
        !waits(",rbac.create=false").await,
        "the Job reads the Lease with its own Role"
    );
    assert!(waits(",replicas=1,leaderElection.enabled=false").await);
}

/// The Job that uninstalls may read the Lease of the operator, and nothing else.
#[tokio::test]
async fn uninstall_job_reads_the_lease() {
    for (values, name) in [
        ("", "quartermaster"),
        (",leaderElection.id=mine,rbac.create=false", "mine"),
    ] {
        let rendered = rendered(&["--set", &format!("crds.keep=false{values}")]).await;
        let named = |kind: &str| {
            format!("rbac.authorization.k8s.io/v1 {kind} {SYSTEM}/quartermaster-uninstall")
        };
        let read = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get"] }]);
        assert_eq!(rendered[&named("Role")]["rules"], read, "{values}");
        assert_eq!(
            rendered[&named("RoleBinding")]["roleRef"]["name"],
            "quartermaster-uninstall",
            "{values}"
        );
    }
}

/// helm prints this at its end.
#[tokio::test]
async fn notes_match_the_values() {
    let notes_in = async |namespace: &str, values: &str| {
        let fixed = [
            "install",
            "quartermaster",
            CHART,
            "-n",
            namespace,
            "--dry-run=client",
            "--set",
            values,
        ];
        let (done, output) = result_of(
            &tree_command(helm().await)
                .args(fixed)
                .output()
                .await
                .unwrap(),
        );
        assert!(done, "{output}");
        output.split_once("\nNOTES:\n").unwrap().1.to_owned()
    };
    let notes = async |values: &str| notes_in(SYSTEM, values).await;
    let (example, metrics) = (
        "kubectl apply -f example/example_appservice.yaml",
        "--clusterrole=quartermaster-metrics-reader",
    );
    let label = "kubectl label namespace NAMESPACE metrics=enabled";
    let plain = notes("replicas=2").await;
    for expected in [
        example,
        metrics,
        label,
        "kubectl get quartermaster -A",
        "quartermaster uninstall --purge",
    ] {
        assert!(plain.contains(expected), "{expected}: {plain}");
    }
    // The examples are in another namespace, and objects of others are not the user's own.
    let some = notes("watchNamespaces={a,b}").await;
    for expected in [
        "kubectl get quartermaster -n b\n",
        "quartermaster uninstall -n a\n  quartermaster uninstall -n b\n",
    ] {
        assert!(some.contains(expected), "{expected}: {some}");
    }
    // The Lease may have another namespace and name, which `uninstall` needs to see that the operator runs.
    let lease = "--operator-namespace=ops --leader-election-id=mine";
    for (values, expected) in [
        (
            "watchNamespaces={a}",
            format!("quartermaster uninstall -n a {lease}\n"),
        ),
        (
            "replicas=2",
            format!("quartermaster uninstall --purge {lease}\n"),
        ),
        // Other releases may use the CRDs of this one.
        (
            "crds.install=false",
            format!("quartermaster uninstall {lease}\n"),
        ),
    ] {
        let output = notes_in("ops", &format!("leaderElection.id=mine,{values}")).await;
        assert!(output.contains(&expected), "{expected}: {output}");
    }
    assert!(
        !some.contains(example) && !some.contains("--purge"),
        "{some}"
    );
    for open in [
        "metrics.secure=false",
        "metrics.enabled=false",
        "rbac.create=false",
    ] {
        assert!(!notes(open).await.contains(metrics), "{open}");
    }
    assert!(!notes("networkPolicy.enabled=false").await.contains(label));
    let warning =
        "deletes every object of Quartermaster's kinds in every namespace, and then the CRDs";
    assert!(
        notes("crds.keep=false")
            .await
            .contains(&format!("{warning}."))
    );
    let some = notes("crds.keep=false,watchNamespaces={a}").await;
    assert!(
        some.contains(&format!("{warning}, also the objects of\nother releases.")),
        "{some}"
    );
}

#[tokio::test]
async fn monitor_selects_the_service() {
    for (values, scheme, tls) in [
        ("", "https", json!({ "insecureSkipVerify": true })),
        (
            ",metrics.certSecret=mine",
            "https",
            json!({
                "serverName": format!("{DEPLOYMENT}-metrics-service.{SYSTEM}.svc"),
                "ca": { "secret": { "name": "mine", "key": "ca.crt" } },
            }),
        ),
        (",metrics.secure=false", "http", Value::Null),
    ] {
        let rendered = rendered(&[
            "--set",
            &format!("metrics.serviceMonitor.enabled=true{values}"),
        ])
        .await;
        let one = |kind: &str| {
            rendered
                .iter()
                .find(|(name, _)| name.contains(&format!(" {kind} ")))
                .unwrap()
                .1
        };
        let service = one("Service");
        assert_eq!(service["spec"]["ports"][0]["name"], scheme);
        let monitor = &one("ServiceMonitor")["spec"];
        for (key, value) in monitor["selector"]["matchLabels"].as_object().unwrap() {
            assert_eq!(&service["metadata"]["labels"][key], value, "{key}");
        }
        let endpoint = &monitor["endpoints"][0];
        assert_eq!(
            (endpoint["port"].as_str(), &endpoint["tlsConfig"]),
            (Some(scheme), &tls)
        );
        assert_eq!(endpoint["scheme"].as_str().unwrap_or("http"), scheme);
        assert_eq!(endpoint["bearerTokenFile"].is_string(), scheme == "https");
    }
}

#[tokio::test]
async fn certificate_is_mounted_at_the_path_of_the_flag() {
    let deployment = &rendered(&[
        "--set",
        "metrics.certSecret=mine,extraVolumes[0].name=v,extraVolumeMounts[0].name=v",
    ])
    .await[&format!("apps/v1 Deployment {SYSTEM}/{DEPLOYMENT}")];
    let pod = &deployment["spec"]["template"]["spec"];
    let (volumes, container) = (pod["volumes"].as_array().unwrap(), &pod["containers"][0]);
    assert_eq!(
        volumes[0],
        json!({ "name": "metrics-certs", "secret": { "secretName": "mine" } })
    );
    let mounts = container["volumeMounts"].as_array().unwrap();
    let path = mounts[0]["mountPath"].as_str().unwrap();
    assert!(
        container["args"]
            .as_array()
            .unwrap()
            .contains(&format!("--metrics-cert-path={path}").into())
    );
    assert_eq!(
        (volumes.len(), mounts.len(), &mounts[0]["name"]),
        (2, 2, &volumes[0]["name"])
    );
}

#[tokio::test]
async fn alerts_select_the_service_and_link_their_pages() {
    let rendered = async |values: &str| {
        let fixed = [
            "template",
            "other",
            CHART,
            "--namespace",
            "ops",
            "--set",
            values,
        ];
        let (done, output) = result_of(
            &tree_command(helm().await)
                .args(fixed)
                .output()
                .await
                .unwrap(),
        );
        assert!(done, "{output}");
        objects(&output)
    };
    let one = |rendered: &BTreeMap<String, Value>, kind: &str| {
        rendered
            .iter()
            .find(|(name, _)| name.contains(&format!(" {kind} ")))
            .map(|(_, object)| object.clone())
    };
    assert_eq!(
        one(&rendered("replicas=2").await, "PrometheusRule"),
        None,
        "the chart needs the Prometheus operator"
    );
    let values =
        "metrics.prometheusRule.enabled=true,metrics.prometheusRule.labels.release=prometheus";
    let plain = rendered(values).await;
    let (rules, service) = (
        one(&plain, "PrometheusRule").unwrap(),
        one(&plain, "Service").unwrap(),
    );
    assert_eq!(rules["metadata"]["labels"]["release"], "prometheus");
    assert_alerts_are_of_the_job_of(&rules, &service);
    let page = |rules: &Value| {
        rules["spec"]["groups"][0]["rules"][0]["annotations"]["runbook_url"].clone()
    };
    let pages = rules.to_string().matches("runbook_url").count();
    assert_eq!(pages, 0, "the location of the pages is unknown");
    let elsewhere = format!(
        "{values},metrics.prometheusRule.runbookBaseURL=https://docs.example.com/runbooks/"
    );
    let rules = one(&rendered(&elsewhere).await, "PrometheusRule").unwrap();
    assert_eq!(
        page(&rules),
        "https://docs.example.com/runbooks/QuartermasterDown.md"
    );
    // The chart leaves Prometheus' own templates alone.
    let expected = rules["spec"]["groups"][0]["rules"][2]["annotations"]["summary"]
        .as_str()
        .unwrap();
    assert!(expected.contains("{{ $labels.controller }}"), "{expected}");
}

#[tokio::test]
async fn dashboard_is_that_of_the_repository() {
    let rendered = rendered(&["--set", "metrics.dashboard.enabled=true"]).await;
    let dashboard = &rendered[&format!("v1 ConfigMap {SYSTEM}/quartermaster-dashboard")];
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let rendered_dashboard: Value =
        serde_json::from_str(dashboard["data"]["quartermaster.json"].as_str().unwrap()).unwrap();
    let from_chart =
        std::fs::read_to_string(Path::new(ROOT).join("config/grafana/quartermaster.json")).unwrap();
    assert_eq!(
        rendered_dashboard,
        serde_json::from_str::<Value>(&from_chart).unwrap()
    );
}
