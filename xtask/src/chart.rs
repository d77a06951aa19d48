//! Generates the chart's files: CRDs, policies, the roles for users and the permissions of each controller from the
//! code; alerts and the dashboard from `config/`.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::rbac::v1::PolicyRule;
use qm_core::kind::{KindInfo, Permission};
use quartermaster::controllers::{self, KINDS};
use serde::Serialize;
use serde_json::Value;

use super::files::{File, GenerateError, generated, read, yaml};
use super::{policies, rbac};

/// Files from `config/`: the alerts, as Prometheus reads them, and the dashboard.
const ALERTS: (&str, &str) = ("config/prometheus/rule.yaml", "prometheus/rules.yaml");
const DASHBOARD: (&str, &str) = (
    "config/grafana/quartermaster.json",
    "grafana/quartermaster.json",
);

/// Permissions, in the form that the chart's template of roles reads.
#[derive(Serialize)]
struct ChartPermissions {
    controllers: BTreeMap<&'static str, ControllerPermissions>,
    crds: Vec<String>,
    /// Names of the policies, without the release's prefix.
    policies: Vec<String>,
}

/// Permissions of one controller.
#[derive(Serialize)]
struct ControllerPermissions {
    /// Permissions in every namespace that the operator watches.
    namespaced: Vec<PolicyRule>,
    /// Further permissions if the operator watches the whole cluster.
    cluster: Vec<PolicyRule>,
    /// Further permissions if the operator watches some namespaces.
    beside: Vec<PolicyRule>,
}

/// Returns every generated file of the chart: its path in `files/`, and its text.
pub fn files(root: &Path) -> Result<Vec<File>, GenerateError> {
    let controllers = KINDS
        .iter()
        .map(|kind| (kind.controller, of(kind)))
        .collect();
    let permissions = ChartPermissions {
        controllers,
        crds: KINDS.iter().map(KindInfo::crd_name).collect(),
        policies: policies::names(),
    };
    let mut files = vec![(
        "permissions.yaml".to_owned(),
        generated(&yaml(&permissions)?),
    )];
    for (kind, crd) in KINDS.iter().zip(controllers::crds()) {
        files.push((
            format!("crd/{}.yaml", kind.controller),
            generated(&yaml(&crd)?),
        ));
    }
    let (source, name) = ALERTS;
    let alerts: Value =
        serde_saphyr::from_str(&read(root, source)?).map_err(|error| GenerateError::Parse {
            path: source.into(),
            source: Box::new(error),
        })?;
    files.push((name.into(), generated(&yaml(&alerts["spec"])?)));
    let (source, name) = DASHBOARD;
    files.push((name.into(), read(root, source)?));
    let people = rbac::for_people().into_iter().map(|file| ("people", file));
    let policies = policies::objects(rbac::NAMESPACE, rbac::SERVICE_ACCOUNT)
        .into_iter()
        .map(|file| ("policy", file));
    for (folder, (name, object)) in people.chain(policies) {
        files.push((format!("{folder}/{name}.yaml"), generated(&yaml(&object)?)));
    }
    Ok(files)
}

fn of(kind: &KindInfo) -> ControllerPermissions {
    let (inside, outside): (Vec<_>, Vec<_>) = kind
        .permissions
        .iter()
        .partition(|permission| permission.namespaced);
    ControllerPermissions {
        namespaced: inside.into_iter().map(rbac::policy).collect(),
        cluster: outside.iter().copied().map(rbac::policy).collect(),
        beside: outside.into_iter().filter_map(beside).collect(),
    }
}

/// Returns the permission without the verbs that list: flags name the namespaces, and listeners, which need nodes, need
/// an operator of the whole cluster.
fn beside(permission: &Permission) -> Option<PolicyRule> {
    permission.verbs.contains(&"get").then(|| PolicyRule {
        verbs: vec!["get".into()],
        ..rbac::policy(permission)
    })
}
