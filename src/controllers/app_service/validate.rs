//! Validates an `AppService` into an [`App`] that can be built. The CRD has the same rules, but an older object may
//! break them.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodTemplateSpec, Probe, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use qm_api::AppService;
use qm_api::app_service::{
    AppServiceSpec, INGRESS_NEEDS_A_PORT, NAME_RULE, NODE_PORT_NOT_ALLOWED, NODE_PORTS_UNIQUE,
    ONE_PROTOCOL_PER_NAME, PORT_NAMES_REQUIRED, PORT_NAMES_UNIQUE, PORTS_UNIQUE, PodOverrides,
    Port, Raw, TCP, TargetPort,
};
use qm_api::my_app::{BAD_PROFILE, BASELINE, RESTRICTED};
use qm_api::spec_size::StoredSpec as _;
use serde::de::DeserializeOwned;

use super::overrides;

/// Label that selects the Pods, as in the original program.
pub(crate) const APP_LABEL: &str = "app";
/// Default type of the Service.
const NODE_PORT: &str = "NodePort";
/// Type of a Service without ports on the nodes.
const CLUSTER_IP: &str = "ClusterIP";

/// An app whose objects can be built.
#[derive(Clone, Debug, PartialEq)]
pub struct App<'a> {
    /// Name of the app and of all its objects.
    pub name: &'a str,
    pub namespace: String,
    pub spec: &'a AppServiceSpec,
    /// Number of Pods.
    pub size: i32,
    pub ports: Vec<ServicePort>,
    /// Type of the Service.
    pub(crate) service_type: &'a str,
    pub env: Vec<EnvVar>,
    /// Environment from `ConfigMaps` and Secrets.
    pub env_from: Vec<EnvFromSource>,
    pub(crate) liveness: Option<Probe>,
    pub readiness: Option<Probe>,
    pub(crate) startup: Option<Probe>,
    /// Changes of the Pod template.
    pub overrides: Option<Box<PodTemplateSpec>>,
}

/// Validates an `AppService`.
///
/// # Errors
/// Returns the problem, and what to write instead.
pub fn check(app: &AppService) -> Result<App<'_>, String> {
    let spec = &app.spec;
    spec.check_size()?;
    let name = app.metadata.name.as_deref().unwrap_or_default();
    // The apiserver checks the other rules of names when the operator writes the Service.
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || name.len() > 63 || name.contains('.')
    {
        return Err(format!("metadata.name: {NAME_RULE}"));
    }
    if spec.image.is_empty() {
        return Err("spec.image: write an image, such as nginx:1.27".into());
    }
    let service_type = spec.service_type.as_deref().unwrap_or(NODE_PORT);
    if service_type == CLUSTER_IP && spec.ports.iter().any(|port| port.node_port().is_some()) {
        return Err(format!("spec: {NODE_PORT_NOT_ALLOWED}"));
    }
    if spec.ingress.is_some() && !spec.ports.iter().any(|port| port.protocol() == TCP) {
        return Err(format!("spec: {INGRESS_NEEDS_A_PORT}"));
    }
    if spec
        .pod_security
        .as_deref()
        .is_some_and(|profile| ![RESTRICTED, BASELINE].contains(&profile))
    {
        return Err(format!("spec.podSecurity: {BAD_PROFILE}"));
    }
    check_ports(&spec.ports).map_err(|rule| format!("spec.ports: {rule}"))?;
    Ok(App {
        name,
        namespace: app.namespace().unwrap_or_default(),
        spec,
        size: number("spec.size", spec.size, 0, i32::MAX)?,
        ports: spec
            .ports
            .iter()
            .enumerate()
            .map(|(at, port)| service_port(at, port))
            .collect::<Result<_, _>>()?,
        service_type,
        env: spec
            .env
            .iter()
            .map(|env| parse("spec.env", env))
            .collect::<Result<_, _>>()?,
        env_from: spec
            .env_from
            .iter()
            .map(|env| parse("spec.envFrom", env))
            .collect::<Result<_, _>>()?,
        liveness: spec
            .liveness_probe
            .as_ref()
            .map(|probe| parse("spec.livenessProbe", probe))
            .transpose()?,
        readiness: spec
            .readiness_probe
            .as_ref()
            .map(|probe| parse("spec.readinessProbe", probe))
            .transpose()?,
        startup: spec
            .startup_probe
            .as_ref()
            .map(|probe| parse("spec.startupProbe", probe))
            .transpose()?,
        overrides: spec
            .pod_overrides
            .as_ref()
            .map(|changes| pod_overrides(name, changes))
            .transpose()?,
    })
}

fn pod_overrides(name: &str, stored: &PodOverrides) -> Result<Box<PodTemplateSpec>, String> {
    let template = Box::new(stored.template()?);
    overrides::check(&template, (APP_LABEL, name))?;
    Ok(template)
}

/// Returns the first rule about several ports that these ports break.
fn check_ports(ports: &[Port]) -> Result<(), &'static str> {
    if ports.len() > 1 && ports.iter().any(|port| port.name.is_empty()) {
        return Err(PORT_NAMES_REQUIRED);
    }
    for (at, port) in ports.iter().enumerate() {
        let before = &ports[..at];
        let same_protocol = |other: &&Port| other.protocol() == port.protocol();
        if before
            .iter()
            .any(|other| !port.name.is_empty() && other.name == port.name)
        {
            return Err(PORT_NAMES_UNIQUE);
        }
        if before
            .iter()
            .filter(same_protocol)
            .any(|other| other.port == port.port)
        {
            return Err(PORTS_UNIQUE);
        }
        if port.node_port().is_some()
            && before
                .iter()
                .filter(same_protocol)
                .any(|other| other.node_port() == port.node_port())
        {
            return Err(NODE_PORTS_UNIQUE);
        }
        if matches!(port.target(), Some(TargetPort::Name(_)))
            && before
                .iter()
                .any(|other| other.target() == port.target() && other.protocol() != port.protocol())
        {
            return Err(ONE_PROTOCOL_PER_NAME);
        }
    }
    Ok(())
}

fn service_port(at: usize, port: &Port) -> Result<ServicePort, String> {
    let field = |name: &str| format!("spec.ports[{at}].{name}");
    let number_of_port = number(&field("port"), port.port, 1, 65535)?;
    let target = match port.target() {
        None => IntOrString::Int(number_of_port),
        Some(TargetPort::Number(target)) => {
            IntOrString::Int(number(&field("targetPort"), *target, 1, 65535)?)
        }
        Some(TargetPort::Name(target)) => IntOrString::String(target.clone()),
    };
    Ok(ServicePort {
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        port: number_of_port,
        target_port: Some(target),
        node_port: port
            .node_port()
            .map(|port| number(&field("nodePort"), port, 1, 65535))
            .transpose()?,
        protocol: Some(port.protocol().to_owned()),
        app_protocol: port.app_protocol.clone(),
    })
}

fn number(field: &str, value: i64, min: i32, max: i32) -> Result<i32, String> {
    let number = i32::try_from(value)
        .ok()
        .filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{field}: write a number from {min} to {max}"))
}

fn parse<T: DeserializeOwned>(field: &str, raw: &Raw<T>) -> Result<T, String> {
    raw.parse().map_err(|error| format!("{field}: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::needless_pass_by_value
    )]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn app(name: &str, spec: Value) -> AppService {
        let metadata = json!({ "namespace": "shop", "name": name });
        let object = json!({ "apiVersion": "kosmos.io/v1", "kind": "AppService", "metadata": metadata, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn with(field: &str, value: Value) -> Value {
        let mut spec = json!({ "size": 1, "image": "i" });
        spec[field] = value;
        spec
    }

    /// The original CRD accepts these specs.
    #[rstest]
    #[case::size(with("size", json!(-1)), "spec.size: write a number from 0 to 2147483647")]
    #[case::beyond_32_bits(with("size", json!(3_000_000_000_i64)), "spec.size: write a number")]
    #[case::image(with("image", json!("")), "spec.image: write an image")]
    #[case::port(with("ports", json!([{ "port": 0 }])), "spec.ports[0].port: write a number from 1 to 65535")]
    #[case::target(with("ports", json!([{ "port": 1, "targetPort": 65536 }])), "spec.ports[0].targetPort: write a number")]
    #[case::node_port(with("ports", json!([{ "port": 1, "nodePort": -1 }])), "spec.ports[0].nodePort: write a number")]
    #[case::unnamed(with("ports", json!([{ "port": 1 }, { "port": 2, "name": "b" }])), "spec.ports: with several ports, each port needs a name")]
    #[case::one_name(with("ports", json!([{ "port": 1, "name": "b" }, { "port": 2, "name": "b" }])), "spec.ports: two ports have the same name")]
    #[case::one_port(with("ports", json!([{ "port": 1, "name": "a", "protocol": "TCP" }, { "port": 1, "name": "b" }])), "spec.ports: the same port is listed twice")]
    #[case::one_node_port(with("ports", json!([{ "port": 1, "name": "a", "nodePort": 7 }, { "port": 2, "name": "b", "nodePort": 7 }])), "spec.ports: the same nodePort is listed twice")]
    #[case::one_target_name(with("ports", json!([{ "port": 1, "name": "a", "targetPort": "x" }, { "port": 1, "name": "b", "targetPort": "x", "protocol": "UDP" }])), "spec.ports: a targetPort's name")]
    #[case::cluster_ip(json!({ "size": 1, "image": "i", "serviceType": "ClusterIP", "ports": [{ "port": 1, "nodePort": 7 }] }), "spec: serviceType: ClusterIP has no ports on the nodes")]
    #[case::ingress(with("ingress", json!({})), "spec: ingress leads to the first TCP port: add one")]
    #[case::ingress_over_udp(json!({ "size": 1, "image": "i", "ingress": {}, "ports": [{ "port": 53, "protocol": "UDP" }] }), "spec: ingress leads to the first TCP port")]
    #[case::probe(with("livenessProbe", json!({ "httpGet": { "port": 5_000_000_000_i64 } })), "spec.livenessProbe: invalid value")]
    #[case::overrides(with("podOverrides", json!({ "spec": { "contaienrs": [] } })), "spec.podOverrides.spec.contaienrs: unknown field")]
    #[case::overridden_selector(with("podOverrides", json!({ "metadata": { "labels": { "app": "b" } } })), "spec.podOverrides.metadata.labels[app]: remove it, or write app: web")]
    #[case::nothing(json!({}), "spec.image: write an image")]
    fn invalid_older_object_is_rejected(#[case] spec: Value, #[case] expected: &str) {
        let app = app("web", spec);
        let message = check(&app).unwrap_err();
        assert!(message.starts_with(expected), "{message}");
    }

    #[rstest]
    #[case("1web")]
    #[case("web.two")]
    #[case(&"a".repeat(64))]
    fn name_that_no_service_may_have_is_rejected(#[case] name: &str) {
        let app = app(name, json!({ "size": 1, "image": "i" }));
        assert!(
            check(&app)
                .unwrap_err()
                .starts_with("metadata.name: the Service has this name too")
        );
    }

    #[test]
    fn equal_numbers_of_two_protocols_are_valid() {
        let ports = json!([
            { "port": 53, "name": "a", "nodePort": 30053 },
            { "port": 53, "name": "b", "nodePort": 30053, "protocol": "UDP" },
        ]);
        assert_eq!(
            check(&app("web", with("ports", ports)))
                .unwrap()
                .ports
                .len(),
            2
        );
    }
}
