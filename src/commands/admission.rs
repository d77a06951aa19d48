//! Whether the admission policies are in force, and which objects are older than they are.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;

use super::objects::Object;
use super::{is, words};
use crate::admission_policies::{PolicyState, Shipped, judge, policy_name, shipped};
use crate::registry::KINDS;

/// Label of everything that is installed.
const INSTALLED: &str = "app.kubernetes.io/name=quartermaster";

/// One admission policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Name, without the installation's prefix.
    pub name: String,
    /// `InForce`, `NotInForce` or `Unknown`.
    pub state: &'static str,
    /// Why it is not in force, or why that is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the younger of policy and binding was created.
    #[serde(skip)]
    since: Option<jiff::Timestamp>,
}

/// An object that no policy has checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // each is what its name says
pub struct Unchecked {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// Reads the policies of all installations.
///
/// # Errors
/// The apiserver cannot be asked.
pub async fn read(client: &Client) -> anyhow::Result<Vec<Policy>> {
    let installed = ListParams::default().labels(INSTALLED);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let shipped = shipped().into_iter();
    match futures::try_join!(policies.list(&installed), bindings.list(&installed)) {
        Ok((policies, bindings)) => Ok(shipped
            .map(|one| of(&one, &policies.items, &bindings.items))
            .collect()),
        Err(error) if is(&error, 403) => {
            let message = words(&error);
            let unknown = |one: Shipped| Policy {
                name: one.name,
                state: "Unknown",
                message: message.clone(),
                since: None,
            };
            Ok(shipped.map(unknown).collect())
        }
        Err(error) => anyhow::bail!(
            "the admission policies could not be listed: {}",
            words(&error)
        ),
    }
}

/// The state of one policy: of several installations the best.
fn of(
    shipped: &Shipped,
    policies: &[ValidatingAdmissionPolicy],
    bindings: &[ValidatingAdmissionPolicyBinding],
) -> Policy {
    let is_one = |name: &str| {
        name.strip_suffix(&shipped.name)
            .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
    };
    let mut found = None;
    for policy in policies.iter().filter(|policy| is_one(&policy.name_any())) {
        let name = policy.name_any();
        let binds = |binding: &&ValidatingAdmissionPolicyBinding| {
            binding
                .spec
                .as_ref()
                .and_then(|spec| spec.policy_name.as_ref())
                == Some(&name)
        };
        for binding in bindings.iter().filter(binds).map(Some).chain([None]) {
            let state = judge(shipped, &name, Some(policy), binding, None);
            if matches!(state, PolicyState::InForce(_)) {
                return policy_of(shipped, state);
            }
            found.get_or_insert(state);
        }
    }
    let missing = || {
        PolicyState::NotInForce(format!(
            "ValidatingAdmissionPolicy ...-{} not found",
            shipped.name
        ))
    };
    policy_of(shipped, found.unwrap_or_else(missing))
}

fn policy_of(shipped: &Shipped, state: PolicyState) -> Policy {
    let (state, message, since) = match state {
        PolicyState::InForce(since) => ("InForce", String::new(), since),
        PolicyState::NotInForce(problem) => ("NotInForce", problem, None),
        PolicyState::Unknown(error) => ("Unknown", error, None),
    };
    Policy {
        name: shipped.name.clone(),
        state,
        message,
        since,
    }
}

/// The objects that are older than the policy of their kind, which has therefore never checked their creation.
pub fn unchecked(policies: &[Policy], objects: &[Object]) -> Vec<Unchecked> {
    let is_older = |object: &&Object| {
        let kind = KINDS
            .iter()
            .find(|kind| kind.resource().kind == object.kind);
        let name = kind.map(|kind| policy_name(kind.controller));
        let since = policies
            .iter()
            .find(|policy| Some(&policy.name) == name.as_ref())
            .and_then(|policy| policy.since);
        // Times of creation have whole seconds.
        since.is_some_and(|since| object.created.is_some_and(|created| created <= since))
    };
    let unchecked = |object: &Object| Unchecked {
        kind: object.kind.clone(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    };
    objects.iter().filter(is_older).map(unchecked).collect()
}
