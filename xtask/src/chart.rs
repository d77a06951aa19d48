//! What the Helm chart takes from the code: CRDs, policies, the roles for people, and which controller needs which rights; and
//! out of `config/`: alerts and the dashboard.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::rbac::v1::PolicyRule;
use qm_core::kind::{KindInfo, Permission};
use quartermaster::registry::{self, KINDS};
use serde::Serialize;
use serde_json::Value;

use super::yaml::{Error, generated, yaml};
use super::{policies, rbac};

/// What is written by hand in `config/` and taken over: the alerts, as Prometheus itself reads them, and the dashboard.
const ALERTS: (&str, &str) = ("config/prometheus/rule.yaml", "prometheus/rules.yaml");
const DASHBOARD: (&str, &str) = (
    "config/grafana/quartermaster.json",
    "grafana/quartermaster.json",
);

/// Rights, as the chart's template of roles reads them.
#[derive(Serialize)]
struct Rights {
    controllers: BTreeMap<&'static str, OfController>,
    crds: Vec<String>,
    /// Without what the release puts before them.
    policies: Vec<String>,
}

/// What one controller needs.
#[derive(Serialize)]
struct OfController {
    /// In every namespace that it acts in.
    namespaced: Vec<PolicyRule>,
    /// Beside them, where that is all of them.
    cluster: Vec<PolicyRule>,
    /// Beside them, where it is some.
    beside: Vec<PolicyRule>,
}

/// Every generated file of the chart: its path in `files/`, and its text. `read` gives the text of a file of the tree.
pub fn files(
    read: &impl Fn(&Path) -> Result<String, Error>,
) -> Result<Vec<(String, String)>, Error> {
    let controllers = KINDS
        .iter()
        .map(|kind| (kind.controller, of(kind)))
        .collect();
    let rights = Rights {
        controllers,
        crds: KINDS.iter().map(KindInfo::crd_name).collect(),
        policies: policies::names(),
    };
    let mut files = vec![("rights.yaml".to_owned(), generated(&yaml(&rights)?))];
    for (kind, crd) in KINDS.iter().zip(registry::crds()) {
        files.push((
            format!("crd/{}.yaml", kind.controller),
            generated(&yaml(&crd)?),
        ));
    }
    let (source, name) = ALERTS;
    let alerts: Value =
        serde_saphyr::from_str(&read(Path::new(source))?).map_err(|error| Error::Read {
            path: source.into(),
            source: Box::new(error),
        })?;
    files.push((name.into(), generated(&yaml(&alerts["spec"])?)));
    let (source, name) = DASHBOARD;
    files.push((name.into(), read(Path::new(source))?));
    let people = rbac::for_people().into_iter().map(|file| ("people", file));
    let policies = policies::objects(rbac::NAMESPACE, rbac::SERVICE_ACCOUNT)
        .into_iter()
        .map(|file| ("policy", file));
    for (folder, (name, object)) in people.chain(policies) {
        files.push((format!("{folder}/{name}.yaml"), generated(&yaml(&object)?)));
    }
    Ok(files)
}

fn of(kind: &KindInfo) -> OfController {
    let (inside, outside): (Vec<_>, Vec<_>) =
        kind.permissions.iter().partition(|right| right.namespaced);
    OfController {
        namespaced: inside.into_iter().map(rbac::policy).collect(),
        cluster: outside.iter().copied().map(rbac::policy).collect(),
        beside: outside.into_iter().filter_map(beside).collect(),
    }
}

/// Nothing is listed: which namespaces there are is said, and listeners on nodes are for an operator of the whole cluster.
fn beside(right: &Permission) -> Option<PolicyRule> {
    right.verbs.contains(&"get").then(|| {
        let named = right
            .resources
            .contains(&"namespaces")
            .then(|| vec!["kube-system".to_owned()]);
        PolicyRule {
            verbs: vec!["get".into()],
            resource_names: named,
            ..rbac::policy(right)
        }
    })
}
