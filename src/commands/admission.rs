//! The state of the admission policies, and the objects that are older than the policies.

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use super::objects::ObjectSummary;
use super::{FailedRequest, has_code, message};
use crate::admission_policies::{self as policies, Shipped};
use crate::admission_policies::{PolicyState, judge};
use crate::controllers::KINDS;

/// Label of every object of an installation.
const INSTALLED: &str = "app.kubernetes.io/name=quartermaster";

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policy {
    /// Name without the installation's prefix.
    name: String,
    /// `InForce`, `NotInForce` or `Unknown`.
    pub(crate) state: &'static str,
    /// Reason why the policy is not in force, or why the state is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    /// Creation time of the younger of policy and binding.
    #[serde(skip)]
    since: Option<jiff::Timestamp>,
}

impl Policy {
    fn new(shipped: &Shipped, state: PolicyState) -> Self {
        let (state, message, since) = match state {
            PolicyState::InForce(since) => ("InForce", String::new(), since),
            PolicyState::NotInForce(problem) => ("NotInForce", problem, None),
            PolicyState::Unknown(error) => ("Unknown", error, None),
        };
        Self {
            name: shipped.name.clone(),
            state,
            message,
            since,
        }
    }
}

/// An object whose creation no policy has checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unchecked {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Reads the policies of all installations.
pub(crate) async fn read(client: &Client) -> anyhow::Result<Vec<Policy>> {
    let installed = ListParams::default().labels(INSTALLED);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let read = match futures::try_join!(policies.list(&installed), bindings.list(&installed)) {
        Ok(read) => Ok(read),
        Err(error) if has_code(&error, 403) => Err(message(&error)),
        Err(error) => {
            return Err(FailedRequest::from(error))
                .context("the admission policies could not be listed");
        }
    };
    let policy = |shipped: &Shipped| {
        let state = match &read {
            Ok((policies, bindings)) => best_state(shipped, &policies.items, &bindings.items),
            Err(message) => PolicyState::Unknown(message.clone()),
        };
        Policy::new(shipped, state)
    };
    Ok(policies::shipped().iter().map(policy).collect())
}

/// Returns the state of one policy, the best one of several installations. Of several in force, the one that has checked
/// objects for longest is the best.
fn best_state(
    shipped: &Shipped,
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> PolicyState {
    let is_policy = |name: &str| {
        let prefix = name.strip_suffix(&shipped.name);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
    };
    let (mut in_force, mut other) = (Vec::new(), None);
    for policy in policies.iter().filter(|it| is_policy(&it.name_any())) {
        let name = policy.name_any();
        let binds = |binding: &&ValidatingAdmissionPolicyBinding| {
            let spec = binding.spec.as_ref();
            spec.is_some_and(|spec| spec.policy_name.as_ref() == Some(&name))
        };
        for binding in bindings.iter().filter(binds).map(Some).chain([None]) {
            match judge(shipped, &name, Some(policy), binding, None) {
                PolicyState::InForce(since) => in_force.push(since),
                state => other = other.or(Some(state)),
            }
        }
    }
    if let Some(since) = in_force.into_iter().min() {
        return PolicyState::InForce(since);
    }
    let not_found = format!("ValidatingAdmissionPolicy ...-{} not found", shipped.name);
    other.unwrap_or(PolicyState::NotInForce(not_found))
}

/// Returns the objects that are older than the policy of their kind, which has never checked their creation.
pub(crate) fn unchecked(policies: &[Policy], objects: &[ObjectSummary]) -> Vec<Unchecked> {
    let is_older = |object: &&ObjectSummary| {
        let mut kinds = KINDS.iter();
        let kind = kinds.find(|kind| kind.resource().kind == object.kind);
        let name = kind.map(|kind| policies::policy_name(kind.controller));
        let policy = policies.iter().find(|it| Some(&it.name) == name.as_ref());
        let since = policy.and_then(|policy| policy.since);
        // Creation times have whole seconds.
        since.is_some_and(|since| object.created.is_some_and(|created| created <= since))
    };
    let unchecked = |object: &ObjectSummary| Unchecked {
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    };
    objects.iter().filter(is_older).map(unchecked).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    /// Returns a release's policy and its binding, created at this time.
    fn installed(
        shipped: &Shipped,
        release: &str,
        created: Timestamp,
    ) -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
        let name = format!("{release}-{}", shipped.name);
        let (mut policy, mut binding) = (shipped.policy.clone(), shipped.binding.clone());
        policy.metadata.name = Some(name.clone());
        policy.metadata.creation_timestamp = Some(Time(created));
        binding.metadata.name = Some(policies::binding_name(&name));
        binding.metadata.creation_timestamp = Some(Time(created));
        binding.spec.as_mut().unwrap().policy_name = Some(name);
        (policy, binding)
    }

    #[test]
    fn policy_is_in_force_since_the_oldest_release() {
        let [older, newer] = [100, 200].map(|second| Timestamp::from_second(second).unwrap());
        for shipped in policies::shipped() {
            // In the order in which the apiserver lists them.
            let (policies, bindings): (Vec<_>, Vec<_>) = [("billing", newer), ("shop", older)]
                .map(|(release, created)| installed(&shipped, release, created))
                .into_iter()
                .unzip();
            let state = best_state(&shipped, &policies, &bindings);
            assert_eq!(state, PolicyState::InForce(Some(older)), "{}", shipped.name);
        }
    }
}
