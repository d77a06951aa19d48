//! Admission policies: authors cannot use the operator to exceed their own permissions, and the operator itself only
//! changes objects that it owns.
//!
//! A client that creates an object, or changes its `spec`, must have the permissions that the operator then uses for
//! the object. Metadata, status and deletion require nothing: an author who lost a permission can still label and
//! delete an object. A check of one verb costs 350,000 of the 1,000,000 units that the apiserver allows one expression
//! (and 10,000,000 one policy), so an expression checks at most two.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ParamKind, ParamRef,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID};
use qm_api::tracked_field::BUILT_IN_KINDS;
use qm_core::kind::{DelegatedAccess, KindInfo};
use quartermaster::admission_policies::{Shipped, binding_name, policy_name};
use quartermaster::controllers::KINDS;
use serde_json::{Value, json};

use super::objects::{file, meta};

/// The API group of the policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// A permission that the author of an object must have. Conditions, namespaces and names are CEL expressions, in which
/// `variables.spec` is the object's spec, or `{}` without one.
#[derive(Clone, Copy)]
struct Check<'a> {
    /// Condition under which the object does not need the permission.
    unless: Option<&'a str>,
    /// Verbs, at most two.
    verbs: &'a [&'a str],
    group: &'a str,
    resource: &'a str,
    /// Resource and group as kubectl writes them: `deployments.apps`.
    what: &'a str,
    /// Namespace; `''` is every namespace, or none for a cluster-scoped resource.
    namespace: &'a str,
    /// Name of the object; `None` for all objects.
    name: Option<&'a str>,
    /// Reason for the permission, and what to do without it, in plain text.
    because: &'a str,
}

/// Common values of checks.
const CHECK: Check<'static> = Check {
    unless: None,
    verbs: &[],
    group: "",
    resource: "",
    what: "",
    namespace: HERE,
    name: None,
    because: "",
};

/// Returns the names of all policies, without the prefix of an installation.
pub fn names() -> Vec<String> {
    let kinds = KINDS
        .iter()
        .filter(|kind| has_author_policy(kind))
        .map(|kind| kind.controller);
    kinds.chain([OPERATOR]).map(policy_name).collect()
}

const OPERATOR: &str = "operator";

fn all(params: &ParamRef) -> Vec<Shipped> {
    let params = ParamRef {
        // While the ServiceAccount does not exist, the policy binds no client and must not block the others.
        parameter_not_found_action: Some("Allow".into()),
        ..params.clone()
    };
    let authors = KINDS
        .iter()
        .filter_map(|kind| Some(with_binding(kind.controller, authors(kind)?, None)));
    authors
        .chain([with_binding(OPERATOR, operator(), Some(params))])
        .collect()
}

/// Returns all policies and their bindings, each with the name of its file. The operator runs as this `ServiceAccount`.
pub fn objects(namespace: &str, account: &str) -> Vec<(String, Value)> {
    let params = ParamRef {
        name: Some(account.into()),
        namespace: Some(namespace.into()),
        ..ParamRef::default()
    };
    let files = all(&params).into_iter().flat_map(
        |Shipped {
             name,
             policy,
             binding,
         }| {
            let name = name.replace('-', "_");
            [
                file(&name, &policy),
                file(&format!("{name}_binding"), &binding),
            ]
        },
    );
    files.collect()
}

/// Returns whether authors of this kind need permissions: those that the operator uses for them.
pub fn has_author_policy(kind: &KindInfo) -> bool {
    authors(kind).is_some()
}

/// Returns the configuration of the names that kustomize must change. The operator's name is in a reference, because
/// kustomize cannot change a name within an expression.
pub fn kustomize_config() -> Value {
    let binding = |path: &str| json!([{ "group": GROUP, "kind": "ValidatingAdmissionPolicyBinding", "path": path }]);
    json!({
        "nameReference": [
            { "group": GROUP, "kind": "ValidatingAdmissionPolicy", "fieldSpecs": binding("spec/policyName") },
            { "version": "v1", "kind": "ServiceAccount", "fieldSpecs": binding("spec/paramRef") },
        ],
    })
}

fn with_binding(
    name: &str,
    spec: ValidatingAdmissionPolicySpec,
    params: Option<ParamRef>,
) -> Shipped {
    let name = policy_name(name);
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: meta(&binding_name(&name)),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(name.clone()),
            param_ref: params,
            validation_actions: Some(vec!["Deny".into()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: meta(&name),
        spec: Some(spec),
        status: None,
    };
    Shipped {
        name,
        policy,
        binding,
    }
}

/// Returns the policy for authors of this kind; `None` if no Kubernetes permission covers what the operator does for
/// them.
fn authors(kind: &KindInfo) -> Option<ValidatingAdmissionPolicySpec> {
    let validated = |checks: &[Check]| checks.iter().map(Check::validation).collect();
    let (more, validations) = match kind.delegated_access {
        DelegatedAccess::ConfigMaps => (config_map_sync_variables(), validated(&config_map_sync())),
        DelegatedAccess::Targets => (target_variables(), validated(&tracked_field())),
        DelegatedAccess::SelectedTargets => (selected_target_variables(), tracked_field_set()),
        DelegatedAccess::Secrets => (contact_point_variables(), validated(&contact_point())),
        DelegatedAccess::Children(optional) => (Vec::new(), children(kind, optional)),
        DelegatedAccess::Nothing => return None,
    };
    let resource = kind.resource();
    let mut variables = vec![variable("spec", "object.?spec.orValue({})")];
    variables.extend(more);
    Some(ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".into()),
        match_constraints: Some(on(
            [(&*resource.group, &*resource.plural)],
            &["CREATE", "UPDATE"],
        )),
        // The operator does not act on the spec of an object that is being deleted.
        match_conditions: Some(vec![condition(
            "acts",
            "request.operation == 'CREATE' \
             || (!has(object.metadata.deletionTimestamp) && object.?spec != oldObject.?spec)",
        )]),
        variables: Some(variables),
        validations: Some(validations),
        ..ValidatingAdmissionPolicySpec::default()
    })
}

impl Check<'_> {
    fn validation(&self) -> Validation {
        let Self {
            unless,
            verbs,
            group,
            resource,
            namespace,
            name,
            because,
            ..
        } = self;
        let named = name
            .map(|name| format!(".name({name})"))
            .unwrap_or_default();
        let checks = verbs.iter().map(|verb| {
            format!(
                "authorizer.group({group}).resource({resource}).namespace({namespace}){named}.check('{verb}').allowed()"
            )
        });
        let check = checks.collect::<Vec<_>>().join(" && ");
        let expression = match unless {
            None => check,
            Some(unless) if verbs.len() == 1 => format!("{unless} || {check}"),
            Some(unless) => format!("{unless} || ({check})"),
        };
        let verbs = verbs.join(" and ");
        Validation {
            expression,
            // Fallback, if the evaluation of `message_expression` fails.
            message: Some(format!("the permission to {verbs} is missing: {because}")),
            message_expression: Some(self.message()),
            reason: Some("Forbidden".into()),
        }
    }

    /// Returns the CEL expression of the message: user, missing permissions, namespace, and what to do.
    fn message(&self) -> String {
        let mut given = vec!["request.userInfo.username".to_owned()];
        let literal = self
            .what
            .strip_prefix('\'')
            .and_then(|what| what.strip_suffix('\''));
        let thing = literal.unwrap_or_else(|| {
            given.push(self.what.into());
            "%s"
        });
        let name = self.name.map_or("", |name| {
            given.push(name.into());
            " \"%s\""
        });
        let scope = if self.namespace == HERE {
            given.push(HERE.into());
            "in namespace \"%s\""
        } else {
            given.push(format!(
                "{0} == '' ? 'in every namespace' : 'in namespace \"' + {0} + '\"'",
                self.namespace
            ));
            "%s"
        };
        let (verbs, because) = (self.verbs.join(" and "), self.because);
        format!(
            "'user \"%s\" may not {verbs} {thing}{name} {scope}: {because}'.format([{}])",
            given.join(", ")
        )
    }
}

/// The object's own namespace.
const HERE: &str = "request.namespace";

/// The content of copies is the source's, so their author needs permission to write them directly.
fn config_map_sync() -> Vec<Check<'static>> {
    let map = Check {
        group: "''",
        resource: "'configmaps'",
        what: "'configmaps'",
        ..CHECK
    };
    let copy = Check {
        namespace: "variables.destination",
        because: "a ConfigMapSync writes only where its author may: in the one namespace that it names, in every namespace if it \
                  names several or selects them. Ask for that permission, or name another destination",
        ..map
    };
    vec![
        Check {
            verbs: &["get"],
            namespace: "variables.spec.?sourceNamespace.orValue('')",
            name: Some("variables.spec.?configMapName.orValue('')"),
            because: "a ConfigMapSync copies only what its author may read. Ask for that permission, or name another source",
            ..map
        },
        Check {
            verbs: &["create"],
            ..copy
        },
        Check {
            verbs: &["patch"],
            name: Some("variables.copy"),
            ..copy
        },
        Check {
            verbs: &["delete"],
            name: Some("variables.copy"),
            ..copy
        },
    ]
}

/// A single name is one namespace. Everything else counts as every namespace, even a value that the operator rejects.
fn config_map_sync_variables() -> Vec<Variable> {
    vec![
        variable(
            "destinations",
            "[variables.spec.?destinationNamespace.orValue('')].filter(name, name != '') \
             + variables.spec.?destinationNamespaces.orValue([])",
        ),
        variable(
            "destination",
            "variables.spec.?destinationNamespaceSelector.hasValue() || variables.destinations.size() != 1 ? '' \
             : variables.destinations[0]",
        ),
        variable(
            "copy",
            "variables.spec.?destinationName.orValue(variables.spec.?configMapName.orValue(''))",
        ),
    ]
}

fn tracked_field() -> Vec<Check<'static>> {
    vec![Check {
        verbs: &["get"],
        group: "variables.group",
        resource: "variables.resource",
        what: TARGET_RESOURCE,
        namespace: "variables.target.?namespace.orValue('')",
        name: Some("variables.target.?name.orValue('')"),
        because: "a TrackedField reports only what its author may read. Ask for that permission, or name another target",
        ..CHECK
    }]
}

/// Returns group and plural as the operator resolves them: from the table of the few kinds that need no `apiVersion`,
/// or from the spec. A target with neither is never tracked, and only an author with all permissions may write it.
fn target_variables() -> Vec<Variable> {
    let known =
        BUILT_IN_KINDS.map(|it| format!("'{}': ['{}', '{}']", it.kind, it.group, it.plural));
    vec![
        variable("target", "variables.spec.?target.orValue({})"),
        variable(
            "given",
            "has(variables.target.apiVersion) && has(variables.target.resource)",
        ),
        variable(
            "known",
            &format!(
                "{{{}}}[?variables.target.?kind.orValue('')].orValue(['*', '*'])",
                known.join(", ")
            ),
        ),
        variable(
            "group",
            "!variables.given ? variables.known[0] \
             : variables.target.apiVersion.contains('/') ? variables.target.apiVersion.split('/')[0] : ''",
        ),
        variable(
            "resource",
            "variables.given ? variables.target.resource : variables.known[1]",
        ),
    ]
}

/// Maximum number of namespaces that a set may name.
const PLACES: usize = 10;

/// A set reports what its author could list and watch, and creates what its author could create.
fn tracked_field_set() -> Vec<Validation> {
    let create = Check {
        verbs: &["create"],
        group: "'tg.azamaton.ru'",
        resource: "'trackedfields'",
        what: "'trackedfields.tg.azamaton.ru'",
        because: "a TrackedFieldSet creates only what its author may create. Ask for that permission",
        ..CHECK
    };
    let read = |place: usize| {
        Check {
            unless: Some(&format!("variables.places.size() <= {place}")),
            verbs: &["list", "watch"],
            group: "variables.group",
            resource: "variables.resource",
            what: TARGET_RESOURCE,
            namespace: &format!("variables.places[{place}]"),
            name: None,
            because: "a TrackedFieldSet reports only what its author may list and watch. Ask for both permissions, or name \
                      other namespaces in spec.target.namespaces.names",
        }
        .validation()
    };
    std::iter::once(create.validation())
        .chain((0..PLACES).map(read))
        .collect()
}

fn selected_target_variables() -> Vec<Variable> {
    let mut variables = target_variables();
    variables.push(variable(
        "places",
        "variables.target.?namespaces.?selector.hasValue() ? [''] \
         : variables.target.?namespaces.?names.orValue([request.namespace])",
    ));
    variables
}

/// CEL expression of a target's resource and group as kubectl writes them.
const TARGET_RESOURCE: &str =
    "variables.resource + (variables.group == '' ? '' : '.' + variables.group)";

/// An author who chooses where a Secret is sent can read the Secret.
fn contact_point() -> Vec<Check<'static>> {
    let secret = Check {
        verbs: &["get"],
        group: "''",
        resource: "'secrets'",
        what: "'secrets'",
        because: "a ContactPoint sends only what its author may read, and looks for it in this namespace first. Ask for that \
                  permission, or name another Secret",
        ..CHECK
    };
    vec![
        Check {
            unless: Some("variables.token == ''"),
            name: Some("variables.token"),
            ..secret
        },
        Check {
            unless: Some("variables.url == ''"),
            name: Some("variables.url"),
            ..secret
        },
        Check {
            unless: Some("variables.signingKey == ''"),
            name: Some("variables.signingKey"),
            ..secret
        },
        Check {
            unless: Some("variables.tls == ''"),
            name: Some("variables.tls"),
            ..secret
        },
    ]
}

fn contact_point_variables() -> Vec<Variable> {
    vec![
        variable("token", "variables.spec.?apiToken.?secretName.orValue('')"),
        variable(
            "url",
            "variables.spec.?webhookSpec.?urlFrom.?secretName.orValue('')",
        ),
        variable(
            "signingKey",
            "variables.spec.?webhookSpec.?signingKey.?secretName.orValue('')",
        ),
        variable(
            "tls",
            "variables.spec.?webhookSpec.?tls.?secretName.orValue('')",
        ),
    ]
}

/// The author needs permission to create each of the objects directly. `optional` has the resources that the spec may leave
/// out, and their fields.
fn children(kind: &KindInfo, optional: &[(&str, &str)]) -> Vec<Validation> {
    let kind_name = kind.resource().kind;
    let article = if kind_name.starts_with(['A', 'E', 'I', 'O', 'U']) {
        "an"
    } else {
        "a"
    };
    let check = |(group, resource): (&str, &str)| {
        let field = optional.iter().find(|(name, _)| *name == resource);
        let field = field.map(|(_, field)| field);
        let unless = field.map(|field| format!("!has(variables.spec.{field})"));
        let or_without = field.map_or(String::new(), |field| format!(", or leave {field} out"));
        let what = format!("{resource}.{group}");
        Check {
            unless: unless.as_deref(),
            verbs: &["create"],
            group: &format!("'{group}'"),
            resource: &format!("'{resource}'"),
            what: &format!("'{}'", what.trim_end_matches('.')),
            because: &format!(
                "{article} {kind_name} creates only what its author may create. Ask for that permission{or_without}"
            ),
            ..CHECK
        }
        .validation()
    };
    kind.created_resources().map(check).collect()
}

/// Limits the operator's writes to its own resources and the objects that it creates for others. The operator may
/// change an existing object only if the object has the ownership label or a controller of the operator's kinds, as in
/// `runtime::ownership`, or if its editor allows adoption. Only the operator can tell whether the owner exists.
fn operator() -> ValidatingAdmissionPolicySpec {
    let made: BTreeSet<_> = KINDS.iter().flat_map(KindInfo::created_resources).collect();
    let owners: Vec<_> = KINDS
        .iter()
        .map(KindInfo::resource)
        .map(|it| format!("'{} {}'", it.group, it.kind))
        .collect();
    let expression = format!(
        "'{OWNER_UID}' in variables.metadata.?labels.orValue({{}}) || (request.operation != 'CREATE' \
         && ('{ADOPT_BY}' in variables.metadata.?annotations.orValue({{}}) \
         || variables.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false) \
         && owner.apiVersion.split('/')[0] + ' ' + owner.kind in variables.owners))) || {}",
        annotates_a_tracked_field()
    );
    let because = format!(
        "the object has neither the label {OWNER_UID} nor a Quartermaster resource as its controller, and no annotation {ADOPT_BY} \
         allows its adoption"
    );
    ValidatingAdmissionPolicySpec {
        failure_policy: Some("Fail".into()),
        param_kind: Some(ParamKind {
            api_version: Some("v1".into()),
            kind: Some("ServiceAccount".into()),
        }),
        match_constraints: Some(on(made, &["CREATE", "UPDATE", "DELETE"])),
        match_conditions: Some(vec![condition(
            "the-operator",
            "request.userInfo.username == 'system:serviceaccount:' + params.metadata.namespace + ':' + params.metadata.name",
        )]),
        variables: Some(
            [
                variable(
                    "metadata",
                    "request.operation == 'CREATE' ? object.metadata : oldObject.metadata",
                ),
                variable("owners", &format!("[{}]", owners.join(", "))),
            ]
            .into_iter()
            .chain(pod_variables())
            .collect(),
        ),
        validations: Some(
            std::iter::once(operator_rule(&expression, "change", &because))
                .chain(PODS.iter().map(|(allowed, because)| {
                    operator_rule(&format!("!variables.runs || {allowed}"), "run", because)
                }))
                .collect(),
        ),
        ..ValidatingAdmissionPolicySpec::default()
    }
}

/// The operator reports in an annotation why any `TrackedField` waits, also one that it does not own.
fn annotates_a_tracked_field() -> String {
    let same = [
        "spec",
        "metadata.?labels",
        "metadata.?ownerReferences",
        "metadata.?finalizers",
        &format!("metadata.?annotations[?'{ADOPT_BY}']"),
        &format!("metadata.?annotations[?'{OWNER}']"),
    ]
    .map(|field| format!("dyn(object).{field} == dyn(oldObject).{field}"));
    format!(
        "(request.operation == 'UPDATE' && request.resource.resource == 'trackedfields' && {})",
        same.join(" && ")
    )
}

/// Limits on Pods that the operator creates, each with its reason. A stolen token of the operator must not allow more
/// than the Pods of an `AppService` or a `MyApp`. The policy sees Pods after mutation, so additions of a service mesh
/// must pass: an init container with capabilities, another user, more volumes. The author chooses the `ServiceAccount`
/// of a Deployment.
const PODS: &[(&str, &str)] = &[
    (
        "(!(request.namespace in ['kube-system', 'kube-public', 'kube-node-lease']) \
         && request.namespace != params.metadata.namespace)",
        "the operator runs no Pod in kube-system, kube-public, kube-node-lease and its own namespace",
    ),
    (
        "!['hostNetwork', 'hostPID', 'hostIPC'].exists(field, field in variables.pod && variables.pod[field])",
        "the operator runs no Pod with hostNetwork, hostPID or hostIPC",
    ),
    (
        "!variables.pod.?volumes.orValue([]).exists(volume, has(volume.hostPath))",
        "the operator runs no Pod with a hostPath volume",
    ),
    (
        "!variables.containers.exists(container, container.?ports.orValue([]).exists(port, \
         port.?hostPort.orValue(0) != 0))",
        "the operator runs no Pod with a hostPort",
    ),
    (
        "!variables.containers.exists(container, container.?securityContext.?privileged.orValue(false))",
        "the operator runs no privileged container",
    ),
    (
        "request.resource.resource != 'pods' || variables.pod.?serviceAccountName.orValue('default') == 'default'",
        "the operator creates Pods only with the ServiceAccount default",
    ),
];

/// Returns the Pod of a write, if the Pod differs from the previous one: metadata and status of an existing Pod may
/// change, and a Deployment may be scaled.
fn pod_variables() -> [Variable; 3] {
    [
        variable(
            "pod",
            "request.resource.resource == 'pods' ? dyn(object).spec : dyn(object).spec.template.spec",
        ),
        variable(
            "containers",
            "variables.pod.containers + variables.pod.?initContainers.orValue([])",
        ),
        variable(
            "runs",
            "request.operation != 'DELETE' && request.resource.resource in ['pods', 'deployments'] \
             && (request.operation == 'CREATE' || (request.resource.resource == 'pods' \
             ? dyn(object).spec != dyn(oldObject).spec : dyn(object).spec.template != dyn(oldObject).spec.template))",
        ),
    ]
}

fn operator_rule(expression: &str, verb: &str, because: &str) -> Validation {
    Validation {
        expression: expression.into(),
        message: Some(format!("the operator may not {verb} this: {because}")),
        message_expression: Some(format!(
            "'the operator may not {verb} %s \"%s\" in namespace \"%s\": {because}'\
             .format([request.resource.resource, variables.metadata.?name.orValue(''), request.namespace])"
        )),
        reason: Some("Forbidden".into()),
    }
}

/// Returns rules for these resources, each with its group, in every version.
fn on<'a>(
    resources: impl IntoIterator<Item = (&'a str, &'a str)>,
    operations: &[&str],
) -> MatchResources {
    let rule = |(group, resource): (&str, &str)| NamedRuleWithOperations {
        api_groups: Some(vec![group.into()]),
        api_versions: Some(vec!["*".into()]),
        operations: Some(operations.iter().map(ToString::to_string).collect()),
        resources: Some(vec![resource.into()]),
        // The default, written out: kubectl apply compares lists of rules as a whole, and would find a change each
        // time.
        scope: Some("*".into()),
        ..NamedRuleWithOperations::default()
    };
    MatchResources {
        resource_rules: Some(resources.into_iter().map(rule).collect()),
        ..MatchResources::default()
    }
}

fn variable(name: &str, expression: &str) -> Variable {
    Variable {
        name: name.into(),
        expression: expression.into(),
    }
}

fn condition(name: &str, expression: &str) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression: expression.into(),
    }
}
