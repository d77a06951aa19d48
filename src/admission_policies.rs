//! Checks that the admission policies are in force: each policy and its binding exist, with the spec of this version.
//!
//! A missing policy rejects nothing, so only this check reveals it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::{Api, Client, ResourceExt};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use qm_runtime::manager::Manager;
use serde::Serialize;
use serde_json::Value;
use tracing::{info, warn};

use crate::cli::{POLICY_PREFIX, RunConfig};

/// Policies and bindings as this version installs them.
const SHIPPED: &str = include_str!("../deploy/admission_policies.yaml");

/// A policy and its binding, as shipped.
pub struct Shipped {
    /// Name of the policy, without the prefix of the installation.
    pub name: String,
    pub policy: ValidatingAdmissionPolicy,
    pub binding: ValidatingAdmissionPolicyBinding,
}

/// Returns the name of the policy's binding.
pub fn binding_name(policy: &str) -> String {
    format!("{policy}binding")
}

/// Returns the name of the policy for the authors of a kind.
pub fn policy_name(controller: &str) -> String {
    format!("{controller}-policy")
}

/// Returns every policy and its binding, as this version installs them.
pub fn shipped() -> Vec<Shipped> {
    // A test reads the same text, so this cannot fail.
    let objects: Vec<Value> = serde_saphyr::from_multiple(SHIPPED).unwrap_or_default();
    let (policies, bindings): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .partition(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let shipped = policies
        .into_iter()
        .zip(bindings)
        .filter_map(|(policy, binding)| {
            let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).ok()?;
            let binding = serde_json::from_value(binding).ok()?;
            let name = policy.name_any();
            let name = name
                .strip_prefix(POLICY_PREFIX)?
                .strip_prefix('-')?
                .to_owned();
            Some(Shipped {
                name,
                policy,
                binding,
            })
        });
    shipped.collect()
}

/// State of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyState {
    /// Policy and binding match the shipped ones, the younger of them since this time.
    InForce(Option<Timestamp>),
    /// Policy or binding is missing or differs from the shipped one.
    NotInForce(String),
    /// Policy or binding cannot be read.
    Unknown(String),
}

/// Compares a policy and its binding, which have these names, with the shipped ones. `operator_namespace`: namespace of
/// the `ServiceAccount` that the operator's policy binds, if known.
pub(crate) fn judge(
    shipped: &Shipped,
    name: &str,
    policy: Option<&ValidatingAdmissionPolicy>,
    binding: Option<&ValidatingAdmissionPolicyBinding>,
    operator_namespace: Option<&str>,
) -> PolicyState {
    let Some(policy) = policy else {
        return PolicyState::NotInForce(format!("ValidatingAdmissionPolicy {name} not found"));
    };
    let Some(binding) = binding else {
        let binding = binding_name(name);
        return PolicyState::NotInForce(format!(
            "ValidatingAdmissionPolicyBinding {binding} not found"
        ));
    };
    if !is_as_shipped(shipped.policy.spec.as_ref(), policy.spec.as_ref()) {
        return PolicyState::NotInForce(differs(&format!("ValidatingAdmissionPolicy {name}")));
    }
    let found = binding.spec.as_ref();
    let expected = shipped.binding.spec.clone().map(|mut spec| {
        spec.policy_name = Some(name.into());
        if let Some(param) = &mut spec.param_ref {
            let found = found
                .and_then(|spec| spec.param_ref.clone())
                .unwrap_or_default();
            // The installation names the ServiceAccount.
            param.name = found.name.or(param.name.take());
            param.namespace = operator_namespace.map(str::to_owned).or(found.namespace);
        }
        spec
    });
    if !is_as_shipped(expected.as_ref(), found) {
        let name = binding.name_any();
        return PolicyState::NotInForce(differs(&format!(
            "ValidatingAdmissionPolicyBinding {name}"
        )));
    }
    let since = [&policy.metadata, &binding.metadata]
        .map(|meta| meta.creation_timestamp.as_ref().map(|time| time.0));
    PolicyState::InForce(since.into_iter().max().flatten())
}

/// Returns the message about a difference. `kubectl apply` keeps fields that others added.
fn differs(what: &str) -> String {
    format!(
        "{what} differs from this version's: install it again, and if it still differs, delete it before"
    )
}

fn is_as_shipped<T: Serialize>(shipped: Option<&T>, found: Option<&T>) -> bool {
    without_defaults(shipped) == without_defaults(found)
}

fn without_defaults(spec: impl Serialize) -> Value {
    let mut value = serde_json::to_value(spec).unwrap_or_default();
    drop_defaults(&mut value);
    value
}

fn drop_defaults(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_defaults),
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_defaults);
            fields.retain(|name, value| match value {
                Value::Null => false,
                Value::Object(fields) => !fields.is_empty(),
                Value::Array(items) => !items.is_empty(),
                Value::String(text) => !matches!(
                    (&**name, &**text),
                    ("matchPolicy", "Equivalent") | ("scope", "*")
                ),
                _ => true,
            });
        }
        _ => {}
    }
}

/// Metrics of the admission policies.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetrics(Family<[(&'static str, String); 1], Gauge>);

impl PolicyMetrics {
    /// Creates metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "admission_policy_in_force",
            "1 while an admission policy and its binding exist as this version ships them, otherwise 0; absent while that is \
             unknown",
            metrics.0.clone(),
        );
        metrics
    }

    /// Records whether a policy is in force; `None` while that is unknown.
    pub fn set(&self, policy: &str, in_force: Option<bool>) {
        let labels = [("policy", policy.to_owned())];
        match in_force {
            Some(in_force) => _ = self.0.get_or_create(&labels).set(in_force.into()),
            None => _ = self.0.remove(&labels),
        }
    }
}

/// Adds the check to the manager.
pub(crate) fn add_to(manager: &mut Manager, config: &RunConfig) {
    if let Some(prefix) = config.policy_prefix.clone() {
        let check = PolicyCheck {
            client: manager.client.clone(),
            prefix,
            operator_namespace: config.runtime.operator_namespace.clone(),
            period: config.timings.policy_check_period,
            timeout: config.timings.api_timeout,
        };
        let metrics = manager.metrics.register(PolicyMetrics::register);
        manager.spawn("admission policy check", check.run(metrics));
    }
}

/// Check of the admission policies.
struct PolicyCheck {
    client: Client,
    /// Prefix of the policies' names.
    prefix: String,
    operator_namespace: String,
    /// Time between two checks.
    period: Duration,
    /// Timeout of one read.
    timeout: Duration,
}

impl PolicyCheck {
    /// Checks the policies immediately and then every `period`, logs each new state, and sets the metric.
    async fn run(self, metrics: PolicyMetrics) {
        let mut known = BTreeMap::new();
        loop {
            for shipped in shipped() {
                let name = format!("{}-{}", self.prefix, shipped.name);
                let state = self.read(&shipped, &name).await;
                metrics.set(
                    &shipped.name,
                    match &state {
                        PolicyState::InForce(_) => Some(true),
                        PolicyState::NotInForce(_) => Some(false),
                        PolicyState::Unknown(_) => None,
                    },
                );
                if known.get(&name) != Some(&state) {
                    log(&name, &state);
                    known.insert(name, state);
                }
            }
            tokio::time::sleep(self.period).await;
        }
    }

    async fn read(&self, shipped: &Shipped, name: &str) -> PolicyState {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        let binding = binding_name(name);
        let read = async { tokio::try_join!(policies.get_opt(name), bindings.get_opt(&binding)) };
        match tokio::time::timeout(self.timeout, read).await {
            Ok(Ok((policy, binding))) => judge(
                shipped,
                name,
                policy.as_ref(),
                binding.as_ref(),
                Some(&self.operator_namespace),
            ),
            Ok(Err(error)) => PolicyState::Unknown(qm_runtime::telemetry::causes(&error)),
            Err(_) => PolicyState::Unknown("the apiserver does not answer in time".into()),
        }
    }
}

fn log(name: &str, state: &PolicyState) {
    match state {
        PolicyState::InForce(_) => info!(policy = name, "admission policy is in force"),
        PolicyState::NotInForce(problem) => warn!(
            policy = name,
            problem,
            "admission policy is not in force; the permissions of authors may go unchecked"
        ),
        PolicyState::Unknown(error) => warn!(
            policy = name,
            error, "admission policy cannot be read; will retry"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const NAME: &str = "a-configmapsync-policy";

    /// Returns the state of the shipped policy with the apiserver's defaults, changed by `change`.
    fn state(change: impl FnOnce(&mut Value, &mut Value)) -> PolicyState {
        let shipped = shipped()
            .into_iter()
            .find(|shipped| shipped.name == "configmapsync-policy")
            .unwrap();
        let mut policy = serde_json::to_value(&shipped.policy).unwrap();
        policy["metadata"] = json!({ "name": NAME, "creationTimestamp": "2026-01-01T00:00:00Z" });
        policy["spec"]["matchConstraints"]["matchPolicy"] = "Equivalent".into();
        policy["spec"]["matchConstraints"]["namespaceSelector"] = json!({});
        policy["spec"]["matchConstraints"]["objectSelector"] = json!({});
        policy["spec"]["matchConstraints"]["resourceRules"][0]["scope"] = "*".into();
        let mut binding = serde_json::to_value(&shipped.binding).unwrap();
        binding["metadata"] = json!({ "name": format!("{NAME}binding"), "creationTimestamp": "2026-01-02T00:00:00Z" });
        binding["spec"]["policyName"] = NAME.into();
        change(&mut policy, &mut binding);
        let (policy, binding) = (
            serde_json::from_value(policy).unwrap(),
            serde_json::from_value(binding).unwrap(),
        );
        judge(
            &shipped,
            NAME,
            Some(&policy),
            Some(&binding),
            Some("system"),
        )
    }

    #[test]
    fn every_installed_policy_is_checked() {
        let installed = SHIPPED
            .matches("\nkind: ValidatingAdmissionPolicy\n")
            .count();
        assert!(installed > 1);
        let shipped = shipped();
        assert_eq!(shipped.len(), installed);
        for Shipped { name, binding, .. } in shipped {
            let policy = format!("{POLICY_PREFIX}-{name}");
            assert_eq!(binding.name_any(), binding_name(&policy));
            assert_eq!(binding.spec.unwrap().policy_name, Some(policy));
        }
    }

    #[test]
    fn policy_with_defaults_is_in_force_since_the_later_creation() {
        assert_eq!(
            state(|_, _| {}),
            PolicyState::InForce(Some("2026-01-02T00:00:00Z".parse().unwrap()))
        );
    }

    #[rstest]
    #[case::excluded(|policy: &mut Value, _: &mut Value| policy["spec"]["matchConstraints"]["excludeResourceRules"] = json!([{ "resources": ["*"] }]))]
    #[case::selected(|policy: &mut Value, _: &mut Value| policy["spec"]["matchConstraints"]["namespaceSelector"] = json!({ "matchLabels": { "a": "b" } }))]
    #[case::fails_open(|policy: &mut Value, _: &mut Value| policy["spec"]["failurePolicy"] = "Ignore".into())]
    #[case::rule_removed(|policy: &mut Value, _: &mut Value| { policy["spec"]["validations"].as_array_mut().unwrap().pop(); })]
    #[case::warns_only(|_: &mut Value, binding: &mut Value| binding["spec"]["validationActions"] = json!(["Warn"]))]
    #[case::narrowed(|_: &mut Value, binding: &mut Value| binding["spec"]["matchResources"] = json!({ "namespaceSelector": { "matchLabels": { "a": "b" } } }))]
    #[case::binds_another(|_: &mut Value, binding: &mut Value| binding["spec"]["policyName"] = "other".into())]
    fn different_policy_or_binding_is_not_in_force(#[case] change: fn(&mut Value, &mut Value)) {
        let state = state(change);
        assert!(
            matches!(&state, PolicyState::NotInForce(problem) if problem.contains("differs")),
            "{state:?}"
        );
    }
}
