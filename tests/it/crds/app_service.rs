//! `AppService`, field by field.

use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{CustomResourceExt, Error, ResourceExt};
use qm_api::AppService;
use quartermaster::controllers;
use serde_json::{Value, json};
use testbed::control_plane::{ControlPlane, Options};
use testbed::wait::until;

use super::{Case, check, create, every_field_has_a_case, install, served, wait_until};
use crate::support::{SOON, create_large, delete_large, only_large_test, patch_large};

fn with(more: &str) -> String {
    format!("{{size: 1, image: i, {more}}}")
}

fn port(rest: &str) -> String {
    with(&format!("ports: [{{port: 80, {rest}}}]"))
}

fn ports(ports: &str) -> String {
    with(&format!("ports: [{ports}]"))
}

fn scaled(autoscaling: &str) -> String {
    with(&format!(
        "autoscaling: {{{autoscaling}}}, resources: {{requests: {{cpu: 100m}}}}"
    ))
}

fn ingress(rest: &str) -> String {
    with(&format!("ports: [{{port: 80}}], ingress: {{{rest}}}"))
}

const IMAGE: &str = "spec.image: |write an image without spaces";
const PORT_NAME: &str = "spec.ports[0].name: |write a port's name";
const TARGET: &str =
    "spec.ports[0].targetPort: |write targetPort as a number from 1 to 65535, or as a name";
const NAMED: &str = "spec.ports: |with several ports, each port needs a name";
const TWICE: &str = "spec.ports: |the same port is listed twice";
const SECRET: &str = "|write the name of a Secret";
const HOST: &str = "spec.ingress.host: |write a host name";
const NEEDS_CPU: &str =
    "spec: |autoscaling compares CPU usage with the CPU request: add resources.requests.cpu";
const ABOVE_LIMIT: &str = "spec.resources: |write requests that are not above their limits";
const CPU_ABOVE_ZERO: &str =
    "spec: |autoscaling compares CPU usage with the CPU request: write a CPU request above zero";
const HANDLER: &str = "|write one of exec, httpGet, tcpSocket and grpc";
const THRESHOLD: &str = "Probe.successThreshold: |write successThreshold: 1, or remove it";
const VARIABLE: &str =
    "spec.env[0].name: |write a name of printable ASCII characters without '=', such as LOG_LEVEL";
const SOURCE: &str = "spec.env[0].valueFrom: |write one of configMapKeyRef, secretKeyRef, fieldRef and resourceFieldRef";
const PATH: &str = "spec.ingress.path: |write a path that begins with '/'";

#[rustfmt::skip] // one line a case
#[allow(clippy::too_many_lines)]
fn cases() -> Vec<Case> {
    let long = |n: usize| "a".repeat(n);
    let many = |n: usize| (1..=n).map(|n| format!("{{port: {n}, name: p{n}}}")).collect::<Vec<_>>().join(", ");
    vec![
        // the document's
        ("{size: 2, image: 'nginx:1.7.9', ports: [{port: 80, targetPort: 80, nodePort: 30002}]}".into(), ""),
        ("{}".into(), "spec.size: |Required value"),
        ("{size: 1}".into(), "spec.image: |Required value"),
        ("{image: i}".into(), "spec.size: |Required value"),
        // size
        ("{size: 0, image: i}".into(), ""),
        ("{size: 2147483647, image: i}".into(), ""),
        ("{size: 2147483648, image: i}".into(), "spec.size: |less than or equal to 2147483647"),
        ("{size: -1, image: i}".into(), "spec.size: |greater than or equal to 0"),
        ("{size: '1', image: i}".into(), "spec.size: |integer"),
        ("{size: 1.5, image: i}".into(), "spec.size: |integer"),
        // image
        ("{size: 1, image: 'registry.example.com:5000/a/b@sha256:0123'}".into(), ""),
        (format!("{{size: 1, image: {}}}", long(1024)), ""),
        (format!("{{size: 1, image: {}}}", long(1025)), "spec.image: |Too long"),
        ("{size: 1, image: ''}".into(), "spec.image: |at least 1"),
        ("{size: 1, image: ' i'}".into(), IMAGE),
        ("{size: 1, image: \"i\\n\"}".into(), IMAGE),
        // ports
        (with("ports: []"), ""),
        (with("ports: null"), ""),
        (ports("{}"), "spec.ports[0].port: |Required value"),
        (ports("{port: 1}"), ""),
        (ports("{port: 65535}"), ""),
        (ports("{port: 0}"), "spec.ports[0].port: |greater than or equal to 1"),
        (ports("{port: 65536}"), "spec.ports[0].port: |less than or equal to 65535"),
        (ports("{port: http}"), "spec.ports[0].port: |integer"),
        (ports(&many(64)), ""),
        (ports(&many(65)), "spec.ports: |Too many"),
        (ports("{port: 80}, {port: 81}"), NAMED),
        (ports("{port: 80, name: a}, {port: 81, name: ''}"), NAMED),
        (ports("{port: 80, name: a}, {port: 81, name: b}"), ""),
        (ports("{port: 80, name: a}, {port: 81, name: a}"), "spec.ports: |two ports have the same name"),
        (ports("{port: 80, name: a}, {port: 80, name: b}"), TWICE),
        (ports("{port: 80, name: a, protocol: ''}, {port: 80, name: b, protocol: TCP}"), TWICE),
        (ports("{port: 80, name: a, protocol: UDP}, {port: 80, name: b, protocol: UDP}"), TWICE),
        (ports("{port: 53, name: a}, {port: 53, name: b, protocol: UDP}"), ""),
        // ports[].name
        (port("name: http"), ""),
        (port("name: ''"), ""),
        (port(&format!("name: {}", long(63))), ""),
        (port(&format!("name: {}", long(64))), "spec.ports[0].name: |Too long"),
        (port("name: Http"), PORT_NAME),
        (port("name: a.b"), PORT_NAME),
        (port("name: -a"), PORT_NAME),
        // ports[].targetPort
        (port("targetPort: 1"), ""),
        (port("targetPort: 65535"), ""),
        (port("targetPort: 0"), ""),
        (port("targetPort: ''"), ""),
        (port("targetPort: http"), ""),
        (port("targetPort: 8-a"), ""),
        (port(&format!("targetPort: {}", long(15))), ""),
        (port(&format!("targetPort: {}", long(16))), TARGET),
        (port("targetPort: 65536"), TARGET),
        (port("targetPort: -1"), TARGET),
        (port("targetPort: 5000000000"), TARGET),
        (port("targetPort: '80'"), TARGET),
        (port("targetPort: Http"), TARGET),
        (port("targetPort: a--b"), TARGET),
        (port("targetPort: -a"), TARGET),
        (port("targetPort: a-"), TARGET),
        (port("targetPort: 1-2"), TARGET),
        (port("targetPort: é"), TARGET),
        (port("targetPort: a_b"), TARGET),
        (port("targetPort: 1.5"), "spec.ports[0].targetPort"),
        (ports("{port: 1, name: a, targetPort: http}, {port: 2, name: b, targetPort: http}"), ""),
        (ports("{port: 1, name: a, targetPort: 80}, {port: 2, name: b, targetPort: 80, protocol: UDP}"), ""),
        (ports("{port: 1, name: a, targetPort: http}, {port: 2, name: b, targetPort: http, protocol: UDP}"), "spec.ports: |a targetPort's name means one port of one protocol"),
        // ports[].nodePort
        (port("nodePort: 0"), ""),
        (port("nodePort: 65535"), ""),
        (port("nodePort: 65536"), "spec.ports[0].nodePort: |less than or equal to 65535"),
        (port("nodePort: -1"), "spec.ports[0].nodePort: |greater than or equal to 0"),
        (ports("{port: 1, name: a, nodePort: 30000}, {port: 2, name: b, nodePort: 30000}"), "spec.ports: |the same nodePort is listed twice"),
        (ports("{port: 1, name: a, nodePort: 30000}, {port: 1, name: b, nodePort: 30000, protocol: UDP}"), ""),
        (ports("{port: 1, name: a, nodePort: 0}, {port: 2, name: b, nodePort: 0}"), ""),
        // ports[].protocol
        (port("protocol: UDP"), ""),
        (port("protocol: SCTP"), ""),
        (port("protocol: ''"), ""),
        (port("protocol: tcp"), "spec.ports[0].protocol: |write protocol: TCP, UDP or SCTP"),
        (port(&format!("protocol: {}", long(33))), "spec.ports[0].protocol: |Too long"),
        // ports[].appProtocol
        (port("appProtocol: http"), ""),
        (port("appProtocol: kubernetes.io/h2c"), ""),
        (port("appProtocol: a b"), "spec.ports[0].appProtocol: |write a protocol's name"),
        (port(&format!("appProtocol: {}", long(318))), "spec.ports[0].appProtocol: |Too long"),
        // serviceType
        (with("serviceType: NodePort"), ""),
        (with("serviceType: LoadBalancer"), ""),
        (with("serviceType: ExternalName"), "spec.serviceType: |write serviceType: NodePort, ClusterIP or LoadBalancer"),
        (with(&format!("serviceType: {}", long(33))), "spec.serviceType: |Too long"),
        (with("serviceType: ClusterIP, ports: [{port: 80}]"), ""),
        (with("serviceType: ClusterIP, ports: [{port: 80, nodePort: 0}]"), ""),
        (with("serviceType: ClusterIP, ports: [{port: 80, nodePort: 30000}]"), "spec: |serviceType: ClusterIP has no ports on the nodes: remove nodePort"),
        // env
        (with("env: [{name: A, value: b}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), ""),
        (with(&format!("env: [{{name: A, value: {}}}]", long(32_768))), ""),
        (with(&format!("env: [{{name: A, value: {}}}, {{name: B, value: {}}}]", long(32_768), long(28_478))), ""),
        (with(&format!("env: [{{name: A, value: {}}}, {{name: B, value: {}}}]", long(32_768), long(28_479))), "spec.env: |env may have 61440 bytes in all"),
        (with(&format!("env: [{{name: A, value: {}}}]", "\u{e4}".repeat(30_700))), "spec.env: |env may have 61440 bytes in all"),
        (with(&format!("env: [{{name: A, value: {}}}]", long(32_769))), "spec.env[0].value: |Too long"),
        (with(&format!("env: [{{name: {}}}]", long(254))), "spec.env[0].name: |Too long"),
        (with(&format!("env: [{}]", (0..512).map(|n| format!("{{name: V{n}, value: v}}")).collect::<Vec<_>>().join(", "))), ""),
        (with(&format!("env: [{}]", (0..513).map(|n| format!("{{name: V{n}}}")).collect::<Vec<_>>().join(", "))), "spec.env: |Too many"),
        (with(&format!("env: [{}]", (0..200).map(|n| format!("{{name: V{n}, valueFrom: {{secretKeyRef: {{name: {}, key: k}}}}}}", long(253))).collect::<Vec<_>>().join(", "))), "spec.env: |env may have 61440 bytes in all"),
        (with(&format!("env: [{}]", (0..300).map(|n| format!("{{name: VARIABLE_{n}, valueFrom: {{secretKeyRef: {{name: database-credentials, key: key-{n}}}}}}}")).collect::<Vec<_>>().join(", "))), ""),
        (with("env: [{value: b}]"), "spec.env[0].name: |Required value"),
        (with("env: [{name: A, value: 1}]"), "spec.env[0].value: |string"),
        (with("env: [{name: A}, {name: A}]"), "spec.env[1]: |Duplicate value"),
        (with("env: [{name: a.b-c/d e}, {name: '~', value: ''}]"), ""),
        (with("env: [{name: ''}]"), VARIABLE),
        (with("env: [{name: A=B, value: c}]"), VARIABLE),
        (with("env: [{name: \u{e4}}]"), VARIABLE),
        (with("env: [{name: \"A\\n\"}]"), VARIABLE),
        (with("env: [{name: A, value: '', valueFrom: {configMapKeyRef: {name: c, key: k}}}]"), ""),
        (with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]"), ""),
        (with("env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), "spec.env[0]: |write value or valueFrom, not both"),
        (with("env: [{name: A, valueFrom: {}}]"), SOURCE),
        (with("env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]"), SOURCE),
        (with("env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: c, key: k}}}]"), SOURCE),
        (with("env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}, resourceFieldRef: {resource: limits.cpu}}}]"), SOURCE),
        // envFrom
        (with("envFrom: [{configMapRef: {name: c}}, {prefix: P_, secretRef: {name: s, optional: true}}]"), ""),
        (with(&format!("envFrom: [{}]", vec!["{configMapRef: {name: c}}"; 32].join(", "))), ""),
        (with(&format!("envFrom: [{}]", vec!["{configMapRef: {name: c}}"; 33].join(", "))), "spec.envFrom: |Too many"),
        (with(&format!("envFrom: [{{configMapRef: {{name: {}}}}}]", long(254))), "spec.envFrom[0].configMapRef.name: |Too long"),
        (with("envFrom: [{configMapRef: c}]"), "spec.envFrom[0].configMapRef: |object"),
        // resources
        (with("resources: {requests: {cpu: 100m, memory: 1Gi}, limits: {cpu: 2, nvidia.com/gpu: 1}}"), ""),
        (with("resources: {requests: {cpu: '0.5', memory: 1.5Gi, example.com/a: '1e3', example.com/b: '+1', example.com/c: 100u}}"), ""),
        (with("resources: {requests: {memory: 256MB}}"), "spec.resources.requests.memory: |should match"),
        (with("resources: {limits: {cpu: 1 core}}"), "spec.resources.limits.cpu: |should match"),
        (with("resources: {requests: {cpu: true}}"), "spec.resources.requests.cpu: |integer,string"),
        (with(&format!("resources: {{limits: {{cpu: {}}}}}", long(65))), "spec.resources.limits.cpu: |Too long"),
        (with(&format!("resources: {{limits: {{{}}}}}", (0..17).map(|n| format!("r{n}: 1")).collect::<Vec<_>>().join(", "))), "spec.resources.limits: |Too many"),
        (with(&format!("resources: {{limits: {{{}/a: 1}}}}", long(316))), "spec.resources.limits: |write the name of a resource"),
        (with("resources: {requests: {ephemeral-storage: 1Gi, hugepages-2Mi: 4Mi, memory: 1Gi, example.com/a: 1}}"), ""),
        (with("resources: {requests: {cpus: '1'}}"), "spec.resources.requests: |a container has no resource of this name: write cpu, memory, ephemeral-storage"),
        (with("resources: {limits: {cpu: 1, hugepages: 1}}"), "spec.resources.limits: |a container has no resource of this name"),
        (with("resources: {limits: {'': 1}}"), "spec.resources.limits: |a container has no resource of this name"),
        (with("resources: {requests: {cpu: 1000m, memory: 1G, example.com/a: '2'}, limits: {cpu: 1, memory: 1Gi, example.com/a: 2}}"), ""),
        (with("resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, ephemeral-storage: 1}}"), ""),
        (with("resources: {requests: {cpu: '2'}, limits: {cpu: '1'}}"), ABOVE_LIMIT),
        (with("resources: {requests: {cpu: 2}, limits: {cpu: 1}}"), ABOVE_LIMIT),
        (with("resources: {requests: {cpu: 1}, limits: {cpu: 999m}}"), ABOVE_LIMIT),
        (with("resources: {requests: {cpu: 1001m}, limits: {cpu: 1}}"), ABOVE_LIMIT),
        (with("resources: {requests: {cpu: 100m, memory: 1Gi}, limits: {cpu: 1, memory: 1G}}"), ABOVE_LIMIT),
        (with("resources: {requests: {example.com/a: 2}, limits: {example.com/a: 1}}"), ABOVE_LIMIT),
        // probes
        (with("livenessProbe: {httpGet: {port: 80, path: /live}, periodSeconds: 3}"), ""),
        (with("livenessProbe: {httpGet: {path: /live}}"), "spec.livenessProbe.httpGet.port: |Required value"),
        (with("ports: [{port: 80, targetPort: http}], readinessProbe: {tcpSocket: {port: http}}"), ""),
        (with("ports: [{port: 80, targetPort: http}], livenessProbe: {httpGet: {port: http}}, startupProbe: {httpGet: {port: http}}"), ""),
        (with("readinessProbe: {tcpSocket: {port: http}}"), "spec: |readinessProbe names a port that the container does not have: write the port's number, or"),
        (with("ports: [{port: 80, name: http}], livenessProbe: {httpGet: {port: http}}"), "spec: |livenessProbe names a port"),
        (with("ports: [{port: 80, targetPort: http}], startupProbe: {httpGet: {port: https}}"), "spec: |startupProbe names a port"),
        (with(&format!("livenessProbe: {{exec: {{command: [{}]}}}}", vec!["a"; 64].join(", "))), ""),
        (with(&format!("livenessProbe: {{exec: {{command: [{}]}}}}", vec!["a"; 65].join(", "))), "spec.livenessProbe.exec.command: |Too many"),
        (with(&format!("livenessProbe: {{exec: {{command: [{}]}}}}", long(4097))), "spec.livenessProbe.exec.command: |a probe's command may have 4096 bytes"),
        (with(&format!("livenessProbe: {{httpGet: {{port: 1, path: /{}}}}}", long(1024))), "spec.livenessProbe.httpGet.path: |Too long"),
        (with(&format!("livenessProbe: {{httpGet: {{port: 1, httpHeaders: [{{name: A, value: {}}}]}}}}", long(4096))), "spec.livenessProbe.httpGet.httpHeaders: |a probe's headers may have 4096 bytes"),
        (with("livenessProbe: {grpc: {port: 1}, successThreshold: 1}, startupProbe: {tcpSocket: {port: 1}, successThreshold: 1}"), ""),
        (with("readinessProbe: {exec: {command: [a]}, successThreshold: 2}"), ""),
        (with("livenessProbe: {httpGet: {port: 1}, successThreshold: 2}"), THRESHOLD),
        (with("startupProbe: {httpGet: {port: 1}, successThreshold: 2}"), THRESHOLD),
        (with("livenessProbe: {}"), HANDLER),
        (with("readinessProbe: {periodSeconds: 3}"), HANDLER),
        (with("startupProbe: {failureThreshold: 30}"), HANDLER),
        (with("livenessProbe: {httpGet: {port: 1}, tcpSocket: {port: 1}}"), HANDLER),
        (with("readinessProbe: {exec: {command: [a]}, grpc: {port: 1}}"), HANDLER),
        (with("startupProbe: {exec: {command: [a]}, httpGet: {port: 1}, tcpSocket: {port: 1}, grpc: {port: 1}}"), HANDLER),
        (with("readinessProbe: {periodSeconds: '3'}"), "spec.readinessProbe.periodSeconds: |integer"),
        (with("startupProbe: {exec: {command: [test, -f, /ready]}}"), ""),
        (with("startupProbe: {exec: {command: test}}"), "spec.startupProbe.exec.command: |array"),
        // imagePullPolicy
        (with("imagePullPolicy: Always"), ""),
        (with("imagePullPolicy: Never"), ""),
        (with("imagePullPolicy: always"), "spec.imagePullPolicy: |write imagePullPolicy: Always, IfNotPresent or Never"),
        // command, args
        (with("command: [sh, -c], args: ['echo $(A)']"), ""),
        (with("command: sh"), "spec.command: |array"),
        (with("args: [1]"), "spec.args[0]: |string"),
        (with(&format!("command: [sh, -c, {}]", long(32_764))), ""),
        (with(&format!("command: [sh, -c, {}]", long(32_766))), "spec.command: |command may have 32768 bytes in all"),
        (with(&format!("args: [{}, {}]", long(32_768), long(16_384))), ""),
        (with(&format!("args: [{}, {}]", long(32_768), long(16_385))), "spec.args: |args may have 49152 bytes in all"),
        (with(&format!("args: [{}]", long(32_769))), "spec.args[0]: |Too long"),
        (with(&format!("args: [{}]", vec!["a"; 512].join(", "))), ""),
        (with(&format!("args: [{}]", vec!["a"; 513].join(", "))), "spec.args: |Too many"),
        (with(&format!("command: [{}]", vec!["a"; 513].join(", "))), "spec.command: |Too many"),
        // serviceAccountName, imagePullSecrets
        (with("podSecurity: Restricted"), ""),
        (with("podSecurity: Baseline"), ""),
        (with("podSecurity: Privileged"), "spec.podSecurity: |write podSecurity: Restricted, or podSecurity: Baseline"),
        (with("podOverrides: {}"), ""),
        (with("podOverrides: null"), ""),
        (with("podOverrides: {spec: {containers: [{name: logs, image: l}], volumes: [{name: v, emptyDir: {}}]}}"), ""),
        (with("podOverrides: {spec: {contaienrs: [[{}], 1, a]}}"), ""), // the operator says it
        (with(&format!("podOverrides: {{metadata: {{annotations: {{a: {}}}}}}}", long(300_000))), ""), // likewise
        (with("podOverrides: []"), "spec.podOverrides: |object"),
        (with("podOverrides: 'spec: {}'"), "spec.podOverrides: |object"),
        (with("serviceAccountName: runner.a"), ""),
        (with("serviceAccountName: ''"), "spec.serviceAccountName: |write the name of a ServiceAccount"),
        (with(&format!("serviceAccountName: {}", long(254))), "spec.serviceAccountName: |Too long"),
        (with("imagePullSecrets: [{name: a}, {name: b}]"), ""),
        (with("imagePullSecrets: [{name: a}, {name: a}]"), "spec.imagePullSecrets[1]: |Duplicate value"),
        (with(&format!("imagePullSecrets: [{}]", (0..33).map(|n| format!("{{name: s{n}}}")).collect::<Vec<_>>().join(", "))), "spec.imagePullSecrets: |Too many"),
        (with("imagePullSecrets: [{}]"), "spec.imagePullSecrets[0].name: |Required value"),
        (with("imagePullSecrets: [{name: A}]"), SECRET),
        // autoscaling
        (scaled("max: 1"), ""),
        (scaled("min: 2, max: 2, cpu: 1"), ""),
        (scaled("max: 3, cpu: 10000"), ""),
        (with("autoscaling: {max: 1}, resources: {limits: {cpu: 100m}}"), ""),
        (with("autoscaling: {max: 1}"), NEEDS_CPU),
        (with("autoscaling: {max: 1}, resources: {requests: {memory: 1Gi}, limits: {memory: 1Gi}}"), NEEDS_CPU),
        (with("autoscaling: {max: 1}, resources: {requests: {cpu: 1n}}"), ""),
        (with("autoscaling: {max: 1}, resources: {requests: {cpu: 1}, limits: {cpu: 2}}"), ""),
        (with("resources: {requests: {cpu: 0}}"), ""),
        (with("autoscaling: {max: 1}, resources: {requests: {cpu: 0}}"), CPU_ABOVE_ZERO),
        (with("autoscaling: {max: 1}, resources: {requests: {cpu: 0m}, limits: {cpu: 1}}"), CPU_ABOVE_ZERO),
        (with("autoscaling: {max: 1}, resources: {requests: {memory: 1Gi}, limits: {cpu: '0'}}"), CPU_ABOVE_ZERO),
        (with("autoscaling: {}"), "spec.autoscaling.max: |Required value"),
        (with("autoscaling: {max: 0}"), "spec.autoscaling.max: |greater than or equal to 1"),
        (with("autoscaling: {min: 0, max: 2}"), "spec.autoscaling.min: |greater than or equal to 1"),
        (with("autoscaling: {min: 3, max: 2}"), "spec.autoscaling: |write a max that is not below min"),
        (with("autoscaling: {max: 2147483648}"), "spec.autoscaling.max: |less than or equal to 2147483647"),
        (with("autoscaling: {max: 2, cpu: 0}"), "spec.autoscaling.cpu: |greater than or equal to 1"),
        (with("autoscaling: {max: 2, cpu: 10001}"), "spec.autoscaling.cpu: |less than or equal to 10000"),
        // ingress
        (ingress(""), ""),
        (with("ingress: {}"), "spec: |ingress leads to the first TCP port: add one"),
        (with("ports: [{port: 53, protocol: UDP}], ingress: {}"), "spec: |ingress leads to the first TCP port: add one"),
        (with("ports: [], ingress: {}"), "spec: |ingress leads to the first TCP port: add one"),
        (ingress("host: app.example.com"), ""),
        (ingress("host: '*.example.com'"), ""),
        (ingress("host: ''"), HOST),
        (ingress("host: App.example.com"), HOST),
        (ingress("host: 'app.example.com:80'"), HOST),
        (ingress("host: 10.0.0.1"), HOST),
        (ingress("host: '*'"), HOST),
        (ingress(&format!("host: {}", long(254))), "spec.ingress.host: |Too long"),
        (ingress("class: nginx"), ""),
        (ingress("class: 'a b'"), "spec.ingress.class: |write the name of an IngressClass"),
        (ingress("path: /"), ""),
        (ingress("path: /api/v1"), ""),
        (ingress("path: api"), PATH),
        (ingress("path: /a//b"), PATH),
        (ingress("path: /a/../b"), PATH),
        (ingress("path: /a/."), PATH),
        (ingress("path: '/a?b=c'"), PATH),
        (ingress(&format!("path: /{}", long(1024))), "spec.ingress.path: |Too long"),
        (ingress("tls: {secretName: cert}"), ""),
        (ingress("tls: {}"), "spec.ingress.tls.secretName: |Required value"),
        (ingress("tls: {secretName: A}"), SECRET),
        // suspend; a null is the same as nothing
        (with("suspend: true"), ""),
        (with("suspend: null, env: null, autoscaling: null"), ""),
        (with("suspend: 1"), "spec.suspend: |boolean"),
    ]
}

#[tokio::test]
async fn app_service_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    let kind = AppService::api_resource();
    check(&client, &kind, &cases()).await;
    let foreign_fields = [
        "env",
        "envFrom",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
    ];
    every_field_has_a_case("AppService", &foreign_fields, &cases());

    let spec = json!({ "size": 1, "image": "i" });
    for (name, accepted) in [
        ("a".to_owned(), true),
        ("a-1".to_owned(), true),
        ("a".repeat(63), true),
        ("a".repeat(64), false),
        ("1a".to_owned(), false),
        ("a.b".to_owned(), false),
    ] {
        match create(&client, &kind, &name, Some(&spec), true).await {
            Ok(_) => assert!(accepted, "{name} is accepted"),
            Err(error) => assert!(
                !accepted && error.contains("the Service has this name too"),
                "{name}: {error}"
            ),
        }
    }
    let refused = create(&client, &kind, "bare", None, true)
        .await
        .unwrap_err();
    assert!(refused.contains("write a spec"), "{refused}");
}

/// The app was stored before the CRD had the rule.
#[tokio::test]
async fn autoscaled_app_older_than_the_cpu_rule_can_be_changed() {
    let plane = ControlPlane::start(Options::apiserver_only())
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    let kind = AppService::api_resource();
    let spec = json!({ "size": 1, "image": "i", "autoscaling": { "max": 2 } });
    let shipped = controllers::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "AppService");
    let mut older = serde_json::to_value(shipped.unwrap()).unwrap();
    let rules = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        ["x-kubernetes-validations"];
    let before = rules.as_array().unwrap().len();
    let is_new = |rule: &Value| {
        rule["message"]
            .as_str()
            .unwrap()
            .contains("request: add resources.requests.cpu")
    };
    rules.as_array_mut().unwrap().retain(|rule| !is_new(rule));
    assert_eq!(rules.as_array().unwrap().len(), before - 1);
    plane
        .run_kubectl(&["apply", "-f", "-"], &older.to_string())
        .await
        .unwrap();
    wait_until("the older CRD is served", async || {
        create(&client, &kind, "older", Some(&spec), false)
            .await
            .is_ok()
    })
    .await;
    install(&plane).await;
    wait_until("the rule binds", async || {
        create(&client, &kind, "newer", Some(&spec), true)
            .await
            .is_err()
    })
    .await;

    let apps: Api<AppService> = Api::default_namespaced(client.clone());
    let patched = async |patch: Value| {
        apps.patch("older", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    patched(json!({ "metadata": { "labels": { "a": "b" }, "finalizers": ["example.com/held"] } }))
        .await
        .unwrap();
    patched(json!({ "spec": { "suspend": true, "image": "j", "size": 3 } }))
        .await
        .unwrap();
    let status = Patch::Merge(json!({ "status": { "replicas": 1 } }));
    apps.patch_status("older", &PatchParams::default(), &status)
        .await
        .unwrap();
    let refused = patched(json!({ "spec": { "autoscaling": { "max": 3 } } }))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("add resources.requests.cpu"), "{refused}");
    apps.delete("older", &DeleteParams::default())
        .await
        .unwrap();
    assert!(
        patched(json!({ "metadata": { "finalizers": null } }))
            .await
            .unwrap()
            .finalizers()
            .is_empty()
    );
}

/// Lists of the largest size, under the former CRD that bounded none of them: 1.3 MB. Then apps that break one rule
/// each.
#[tokio::test]
#[ignore = "long: run by make test-long"]
async fn app_older_than_the_list_bounds_can_be_suspended_and_deleted() {
    let _guard = only_large_test().await;
    let plane = ControlPlane::start(Options::apiserver_only())
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    let kind = AppService::api_resource();
    let shipped = controllers::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == "AppService");
    let mut older = serde_json::to_value(shipped.unwrap()).unwrap();
    without_bounds(
        &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
    );
    plane
        .run_kubectl(&["apply", "-f", "-"], &older.to_string())
        .await
        .unwrap();
    let text = |bytes: usize| "a".repeat(bytes);
    let probe = |port: &str| json!({ "exec": { "command": vec!["a"; 100_000] }, "tcpSocket": { "port": port } });
    let specs = [
        ("args", json!({ "args": vec!["a"; 300_000] })),
        ("long-args", json!({ "args": [text(1_300_000)] })),
        ("command", json!({ "command": vec!["a"; 300_000] })),
        (
            "env",
            json!({ "env": (0..30_000).map(|n| json!({ "name": format!("V{n}"), "value": "v" })).collect::<Vec<_>>() }),
        ),
        (
            "long-env",
            json!({ "env": [{ "name": "A", "value": text(1_300_000) }] }),
        ),
        (
            "env-from",
            json!({ "envFrom": vec![json!({ "configMapRef": { "name": "c" } }); 20_000] }),
        ),
        (
            "probes",
            json!({ "livenessProbe": probe("a"), "readinessProbe": probe("b"), "startupProbe": probe("c") }),
        ),
        (
            "headers",
            json!({ "livenessProbe": { "httpGet": { "port": 1, "httpHeaders": vec![json!({ "name": "a", "value": "b" }); 30_000] } } }),
        ),
        (
            "limits",
            json!({ "resources": { "limits": (0..30_000).map(|n| (format!("r{n}"), json!(1))).collect::<serde_json::Map<_, _>>() } }),
        ),
        (
            "ports",
            json!({ "ports": vec![json!({ "port": 80, "name": "a", "nodePort": 30_000, "targetPort": "a" }); 5000] }),
        ),
        (
            "request",
            json!({ "resources": { "requests": { "cpu": "2" }, "limits": { "cpu": 1 } } }),
        ),
        (
            "resource-name",
            json!({ "resources": { "requests": { "cpus": "1" } } }),
        ),
        (
            "no-handler",
            json!({ "livenessProbe": { "periodSeconds": 3 }, "readinessProbe": {} }),
        ),
        (
            "threshold",
            json!({ "startupProbe": { "tcpSocket": { "port": 1 }, "successThreshold": 2 } }),
        ),
        ("env-name", json!({ "env": [{ "name": "A=B" }] })),
        (
            "env-source",
            json!({ "env": [{ "name": "A", "value": "b", "valueFrom": {} }] }),
        ),
        (
            "zero-cpu",
            json!({ "autoscaling": { "max": 2 }, "resources": { "requests": { "cpu": 0 } } }),
        ),
        (
            "probe-port",
            json!({ "livenessProbe": { "httpGet": { "port": "http" } }, "ports": [{ "port": 80 }] }),
        ),
    ];
    let apps: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let mut old = Vec::new();
    for (name, mut spec) in specs {
        spec["size"] = 1.into();
        spec["image"] = "i".into();
        let app = DynamicObject::new(name, &kind).data(json!({ "spec": spec }));
        create_large(&apps, &app).await;
        old.push((name, spec));
    }
    install(&plane).await;

    for (name, spec) in old {
        let today = async || {
            create(&client, &kind, "today", Some(&spec), true)
                .await
                .is_err()
        };
        wait_until(&format!("{name} is refused"), today).await;
        let patched = async |patch: Value| patch_large(&apps, name, &Patch::Merge(patch)).await;
        patched(
            json!({ "metadata": { "labels": { "a": "b" }, "finalizers": ["example.com/held"] } }),
        )
        .await;
        patched(json!({ "spec": { "suspend": true, "image": "j", "size": 3 } })).await;
        let status = Patch::Merge(json!({ "status": { "replicas": 1, "selector": "app=a" } }));
        until(
            format!("the status of {name} is written"),
            SOON,
            async || {
                let params = PatchParams::default();
                Ok(Some(apps.patch_status(name, &params, &status).await?))
            },
        )
        .await
        .unwrap();
        delete_large(&apps, name).await;
        let freed = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        until(format!("{name} is deleted"), SOON, async || {
            match apps
                .patch_metadata(name, &PatchParams::default(), &freed)
                .await
            {
                Err(Error::Api(status)) if status.is_not_found() => Ok(Some(())),
                answer => Ok(answer.map(|_| None)?),
            }
        })
        .await
        .unwrap();
    }
}

/// Removes every bound and rule from a schema.
fn without_bounds(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        for bound in [
            "maxItems",
            "maxLength",
            "maxProperties",
            "x-kubernetes-validations",
        ] {
            // A field may have the name of a bound.
            if !schema.get(bound).is_some_and(Value::is_object) {
                schema.remove(bound);
            }
        }
        schema.values_mut().for_each(without_bounds);
    } else if let Some(items) = schema.as_array_mut() {
        items.iter_mut().for_each(without_bounds);
    }
}

/// A spec without `podOverrides` stays within 256 KiB by the bounds of its other fields, if its texts need no escapes.
#[tokio::test]
async fn largest_accepted_app_service_has_less_than_256_kib() {
    let client = served().await;
    let (name, kind) = ("a".repeat(253), AppService::api_resource());
    let filled = |items: usize, bytes: usize| {
        let mut texts = vec!["a".repeat(bytes / items); items];
        texts[0].push_str(&"a".repeat(bytes % items));
        json!(texts)
    };
    let probe = json!({
        "httpGet": { "host": name, "path": format!("/{}", "a".repeat(1023)), "port": 65535, "scheme": "HTTPS",
            "httpHeaders": (0..64).map(|_| json!({ "name": "a", "value": "a".repeat(39) })).collect::<Vec<_>>() },
    });
    let of_resource = |n: usize| (format!("example.com/{n:0>305}"), json!("1".repeat(64)));
    let resources = |()| (0..12).map(of_resource).collect::<serde_json::Map<_, _>>();
    let spec = json!({
        "size": 1, "image": "a".repeat(1024), "command": filled(512, 32_768), "args": filled(512, 49_152),
        "env": [{ "name": "A", "value": "a".repeat(32_768) }, { "name": "B", "value": "b".repeat(28_478) }],
        "envFrom": vec![json!({ "prefix": name, "configMapRef": { "name": name, "optional": false },
            "secretRef": { "name": name, "optional": false } }); 32],
        "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
        "resources": { "requests": resources(()), "limits": resources(()) },
        "ports": (10_000..10_064).map(|n| json!({ "name": format!("{n:0>63}"), "port": n, "nodePort": n + 20_000,
            "targetPort": format!("port-name-{n}"), "protocol": "TCP", "appProtocol": format!("{}/{}", "a".repeat(200), "a".repeat(116)) })).collect::<Vec<_>>(),
        "imagePullSecrets": (0..32).map(|n| json!({ "name": format!("{n:0>253}") })).collect::<Vec<_>>(),
        "serviceAccountName": name,
        "ingress": { "host": name, "class": name, "path": format!("/{}", "a".repeat(1023)), "tls": { "secretName": name } },
    });
    let bytes = spec.to_string().len();
    let created = create(&client, &kind, "largest", Some(&spec), true).await;
    assert!(created.is_ok(), "{created:?}");
    assert!((230 << 10..256 << 10).contains(&bytes), "{bytes} bytes");
}
