//! Paths of a `TrackedField` compared with `kubectl -o jsonpath`, in which users try out their paths.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, Output};

use quartermaster::controllers::tracked_field::field::FieldSelector;
use serde_json::{Value, json};

const DEPLOYMENT: &[&str] = &[
    "{.spec.replicas}",
    "{$.spec.replicas}",
    "{@.spec.replicas}",
    "{ .spec.replicas }",
    "{.spec .replicas}",
    "{['spec']['replicas']}",
    "{['spec.replicas']}",
    "{.spec.paused}",
    "{.spec.none}",
    "{.spec.none.deeper}",
    "{.spec.replicas.deeper}",
    "{.spec.selector}",
    "{.spec.template.spec.containers[0].image}",
    "{.spec.template.spec.containers[-1].image}",
    "{.spec.template.spec.containers[0].ports}",
    "{.spec.template.spec.containers[0].resources.limits.memory}",
    "{.spec.template.spec.containers[0].env[0].value}",
    "{.spec.template.spec.containers[0].command}",
    "{.spec.template.spec.containers[*].image}",
    "{.spec.template.spec.containers[0:2].image}",
    "{.spec.template.spec.containers[1:].image}",
    "{.spec.template.spec.containers[:-1].image}",
    "{.spec.template.spec.containers[-2:].image}",
    "{.spec.template.spec.containers[::2].image}",
    "{.spec.template.spec.containers[0,2].image}",
    "{.spec.template.spec.containers[0, 1]['name','image']}",
    "{.spec.template.spec.containers[*]['name', 'resources.limits.memory']}",
    "{.spec.template.spec.containers[?(@.name==\"app\")].image}",
    "{.spec.template.spec.containers[?(@.name=='app')].image}",
    "{.spec.template.spec.containers[?( @.name == 'app' )].image}",
    "{.spec.template.spec.containers[?(.name=='app')].image}",
    "{.spec.template.spec.containers[?(@.name!='app')].image}",
    "{.spec.template.spec.containers[?(@.image==\"it's \\\"odd\\\"\")].name}",
    "{.spec.template.spec.containers[?(@.stdin==true)].name}",
    "{.spec.template.spec.containers[?(@.resources.limits)].name}",
    "{.spec.template.spec.containers[?(@.resources.limits.memory!='1Gi')].name}",
    "{.spec.template.spec.containers[?(@.name==@.image)].name}",
    "{.spec.template.spec.containers[0].ports[?(@.containerPort>80)].name}",
    "{.spec.template.spec.containers[0].ports[?(@.containerPort<=80)].name}",
    "{.spec.template.spec.containers[0].ports[?(@.containerPort==8080)].name}",
    "{.spec.template.spec.containers[?(@.name==\"none\")].image}",
    "{.metadata.labels.app\\.kubernetes\\.io/name}",
    "{.metadata.annotations.quartermaster\\.dev/x}",
    "{.metadata.annotations['quartermaster\\.dev/x']}",
    "{.metadata.annotations['quartermaster.dev/x']}",
    "{.metadata.annotations.with-dash_and:colon}",
    "{..containerPort}",
    "{.spec..image}",
    "{..limits.memory}",
    "{..ports[0].containerPort}",
    "{..ports[?(@.name==\"web\")].containerPort}",
];

const SERVICE: &[&str] = &[
    "{.spec.ports[0].targetPort}",
    "{.spec.ports[1].targetPort}",
    "{.spec.ports[*].port}",
    "{.spec.ports[?(@.name==\"web\")].targetPort}",
    "{.spec.ports[?(@.port==81)].targetPort}",
    "{.spec.ports[?(@.nodePort)].name}",
    "{.spec.selector}",
    "{.spec.selector.*}",
    "{.spec.clusterIP}",
];

const CONFIG_MAP: &[&str] = &[
    "{.data.key}",
    "{.data.empty}",
    "{.data.missing}",
    "{.data.app\\.properties}",
    "{.data['app\\.properties']}",
    "{.data['app.properties']}",
    "{.data.unicode}",
    "{.data.number}",
    "{.data.lines}",
    "{.data}",
    "{.binaryData}",
    "{.other.null}",
    "{.other.false}",
    "{.other.fraction}",
    "{.other.large}",
    "{.other.negative}",
    "{.other.list}",
    "{.other.list[2]}",
    "{.other.list[2].a}",
    "{.other.list[3][1]}",
    "{.other.list[3][*]}",
    "{.other.nothing}",
    "{.other.none}",
];

/// Paths that both kubectl and the operator reject.
const REFUSED: &[&str] = &[
    "{.data.key",
    "{\"key",
    "{.data[key]}",
    "{.data.key b}",
    "{.other.list[::-1]}",
    "{.other.list[?(@.a==)]}",
];

/// Indices out of range: kubectl fails, but for a tracked field the value is only missing for now.
const OUT_OF_RANGE: &[&str] = &[
    "{.other.list[9]}",
    "{.other.list[-9]}",
    "{.data[0]}",
    "{.other.list[9].a}",
];

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "web",
            "labels": {"app.kubernetes.io/name": "web"},
            "annotations": {"quartermaster.dev/x": "a b", "with-dash_and:colon": "c"},
        },
        "spec": {
            "replicas": 3,
            "paused": false,
            "selector": {"matchLabels": {"tier": "front", "app": "web"}},
            "template": {"spec": {"containers": [
                {
                    "name": "app",
                    "image": "nginx:1",
                    "stdin": true,
                    "command": ["sh", "-c", "exit 0"],
                    "env": [{"name": "EMPTY", "value": ""}],
                    "ports": [{"name": "web", "containerPort": 80}, {"name": "admin", "containerPort": 8080}],
                    "resources": {"limits": {"memory": "1Gi"}},
                },
                {"name": "side", "image": "it's \"odd\"", "resources": {"limits": {"memory": "2Gi"}}},
                {"name": "same", "image": "same"},
            ]}},
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "None", "ports": [
            {"name": "web", "port": 80, "targetPort": 8080},
            {"name": "admin", "port": 81, "targetPort": "admin", "nodePort": 30001},
        ]},
    })
}

fn config_map() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": {
            "key": "value",
            "empty": "",
            "app.properties": "a=b",
            "unicode": "привет €",
            "number": "1",
            "lines": "one\ntwo\n",
        },
        "binaryData": {"z": "AA==", "a": "AQ=="},
        // A real ConfigMap does not have this field, which holds every JSON type; kubectl's local mode accepts the
        // field.
        "other": {
            "null": null,
            "false": false,
            "fraction": 1.5,
            "large": 12_345_678_901_234_i64,
            "negative": -7,
            "list": [1, "two", {"b": 1, "a": 2}, [true, null]],
            "nothing": {},
            "none": [],
        },
    })
}

/// An object in a file that kubectl reads without any server.
struct Subject {
    kubectl: PathBuf,
    file: PathBuf,
    kind: String,
    object: Value,
}

impl Subject {
    fn new(test: &str, mut object: Value) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/hack/controlplane/build.sh");
        let built = Command::new("bash")
            .arg(script)
            .output()
            .expect("bash runs");
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        let folder = String::from_utf8(built.stdout).expect("a path");
        // `kubectl annotate --local` adds this to its output.
        object["metadata"]["annotations"]["local"] = "yes".into();
        let kind = object["kind"].as_str().expect("a kind").to_owned();
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{test}-{}.json", std::process::id()));
        std::fs::write(&file, object.to_string()).expect("the object is written");
        Self {
            kubectl: PathBuf::from(folder.trim()).join("kubectl"),
            file,
            kind,
            object,
        }
    }

    fn kubectl(&self, path: &str) -> Output {
        Command::new(&self.kubectl)
            .args([
                "annotate",
                "--local",
                "--overwrite",
                "local=yes",
                "-o",
                &format!("jsonpath={path}"),
                "-f",
            ])
            .arg(&self.file)
            .env_remove("KUBECONFIG")
            .output()
            .expect("kubectl runs")
    }

    /// Returns the field as the operator reads it; empty when it is missing, as in kubectl's output.
    fn operator_text(&self, path: &str) -> String {
        let field =
            FieldSelector::compile(&self.kind, path).unwrap_or_else(|error| panic!("{error}"));
        field
            .extract(&self.object)
            .text()
            .unwrap_or_default()
            .to_owned()
    }

    fn agrees_on(&self, paths: &[&str]) {
        let mut differences = Vec::new();
        for path in paths {
            let output = self.kubectl(path);
            let printed = String::from_utf8(output.stdout).expect("UTF-8");
            let found = self.operator_text(path);
            let error = String::from_utf8_lossy(&output.stderr);
            if !output.status.success()
                || (found != printed && spaced(&found).as_ref() != Some(&printed))
            {
                differences.push(format!(
                    "{path}: kubectl {printed:?} {error}, operator {found:?}"
                ));
            }
        }
        assert!(differences.is_empty(), "{} {:#?}", self.kind, differences);
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Returns a JSON list as kubectl prints several matches.
fn spaced(list: &str) -> Option<String> {
    let list: Vec<Value> = serde_json::from_str(list).ok()?;
    let print = |item: &Value| {
        item.as_str()
            .map_or_else(|| item.to_string(), str::to_owned)
    };
    (list.len() > 1).then(|| list.iter().map(print).collect::<Vec<_>>().join(" "))
}

#[test]
fn paths_of_a_deployment_match_kubectl() {
    Subject::new("deployment", deployment()).agrees_on(DEPLOYMENT);
}

#[test]
fn paths_of_a_service_match_kubectl() {
    Subject::new("service", service()).agrees_on(SERVICE);
}

#[test]
fn paths_of_a_config_map_match_kubectl() {
    Subject::new("config-map", config_map()).agrees_on(CONFIG_MAP);
}

#[test]
fn paths_that_kubectl_rejects_are_rejected() {
    let subject = Subject::new("refused", config_map());
    for path in REFUSED {
        let output = subject.kubectl(path);
        assert!(
            !output.status.success(),
            "{path}: kubectl accepts it: {output:?}"
        );
        FieldSelector::compile("ConfigMap", path).expect_err(path);
    }
}

#[test]
fn index_out_of_range_is_missing_and_no_error() {
    let subject = Subject::new("out-of-range", config_map());
    for path in OUT_OF_RANGE {
        assert!(
            !subject.kubectl(path).status.success(),
            "{path}: kubectl accepts it"
        );
        let field =
            FieldSelector::compile("ConfigMap", path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(field.extract(&subject.object).text(), None, "{path}");
    }
}
