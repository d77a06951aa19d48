//! `quartermaster matches`: the resources that a `TrackedFieldSet` selects, and the `TrackedField` of each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use qm_api::tracked_field::TargetReference;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::ObjectKey;
use qm_runtime::pages::all_pages;
use qm_runtime::watch::ResourceName;
use serde_json::json;

use self::plan::{MatchPlan, MatchState, MatchedField, Stored};
use super::objects::pages;
use super::printer::{Cell, Printer, count};
use super::{FailedRequest, has_code};
use crate::cli::commands::{MatchesArgs, Output};
use crate::controllers::tracked_field::resolver::{Resolved, Resolver, TargetError};
use crate::controllers::tracked_field_set::child::{Seniority, seniority};
use crate::controllers::tracked_field_set::selection::{SelectedNamespaces, Selection};
use crate::controllers::tracked_field_set::status::how_to_track_all;

mod load;
mod names;
mod plan;

const COLUMNS: [&str; 5] = ["NAMESPACE", "NAME", "FIELD", "STATE", "TRACKEDFIELD"];

pub(crate) async fn run(
    client: Client,
    args: &MatchesArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let set = load::load(&client, args).await?;
    let namespace = set.namespace().unwrap_or_default();
    let target = &set.spec.target;
    let resolved = resolve(&client, &target.reference("", "")).await?;
    let resource = ResourceName::from(&resolved.resource);
    let selection = Selection::new(target, resource, resolved.namespaced, &namespace)
        .map_err(anyhow::Error::msg)?;
    let targets = targets(&client, &selection, &resolved).await?;
    let fields = fields(&client, &namespace).await?;
    let seniorities = seniorities(&client, &namespace).await?;
    let problems = names::problems(&client, &set, &targets).await?;
    let plan = plan::plan(&set, &selection.resource, targets, &fields, &seniorities);
    match args.output {
        Output::Json => {
            let summary = json!({ "targets": plan.targets, "leftOut": plan.left_out, "maxTargets": plan.max_targets });
            let shown = json!({ "namespace": namespace, "name": set.name_any(), "matches": plan.matches, "problems": problems, "summary": summary });
            out.json(&shown)?;
        }
        Output::Table => print(&set, &plan, &problems, out)?,
    }
    Ok(if plan.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn resolve(client: &Client, target: &TargetReference) -> anyhow::Result<Resolved> {
    let resolver = Resolver::default();
    resolver
        .resolve(client, target, 0)
        .await
        .map_err(|error| match error {
            TargetError::Discovery(error) => anyhow::Error::from(FailedRequest::from(error))
                .context("the apiserver's list of resources could not be read"),
            error => error.into(),
        })
}

/// Lists the selected resources.
async fn targets(
    client: &Client,
    selection: &Selection,
    resolved: &Resolved,
) -> anyhow::Result<BTreeSet<ObjectKey>> {
    let plural = &selection.resource.plural;
    let namespaces = match selection.namespaces {
        SelectedNamespaces::Labelled(_) => namespaces(client).await?,
        SelectedNamespaces::Named(_) | SelectedNamespaces::Cluster => BTreeMap::new(),
    };
    let mut targets = BTreeSet::new();
    for api in selection.apis(client, &resolved.resource) {
        let keep = |object: PartialObjectMeta<DynamicObject>| {
            let key = ObjectKey::of(&object);
            let labels = namespaces.get(&*key.namespace);
            let is_selected = selection.reaches(&key.namespace, labels)
                && selection.matches(&key.name, object.labels());
            if is_selected {
                targets.insert(key);
            }
        };
        let list = async |page| api.list_metadata(&page).await;
        all_pages(selection.list_params(), list, keep)
            .await
            .map_err(FailedRequest::from)
            .with_context(|| format!("the {plural} could not be listed"))?;
    }
    Ok(targets)
}

/// Lists the labels of all namespaces.
async fn namespaces(client: &Client) -> anyhow::Result<BTreeMap<String, BTreeMap<String, String>>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let list = async |page| api.list_metadata(&page).await;
    let convert = |namespace: PartialObjectMeta<Namespace>| {
        let labels = namespace.metadata.labels.clone();
        (namespace.name_any(), labels.unwrap_or_default())
    };
    let listed = all_pages(ListParams::default(), list, convert).await;
    let listed = listed
        .map_err(FailedRequest::from)
        .context("the namespaces could not be listed")?;
    Ok(listed.into_iter().collect())
}

/// Lists the `TrackedField`s of `namespace`; none if their CRD is not installed.
async fn fields(client: &Client, namespace: &str) -> anyhow::Result<Vec<Stored>> {
    let api: Api<TrackedField> = Api::namespaced(client.clone(), namespace);
    match pages(&api, |field: TrackedField| Stored::of(&field)).await {
        Err(error) if has_code(&error, 404) => Ok(Vec::new()),
        listed => listed
            .map_err(FailedRequest::from)
            .context("the trackedfields could not be listed"),
    }
}

/// Lists the sets of `namespace`, and returns the seniority of each.
async fn seniorities(
    client: &Client,
    namespace: &str,
) -> anyhow::Result<HashMap<ObjectKey, Seniority>> {
    let api: Api<TrackedFieldSet> = Api::namespaced(client.clone(), namespace);
    let list = async |page| api.list_metadata(&page).await;
    let convert =
        |set: PartialObjectMeta<TrackedFieldSet>| (ObjectKey::of(&set), seniority(&set.metadata));
    match all_pages(ListParams::default(), list, convert).await {
        Err(error) if has_code(&error, 404) => Ok(HashMap::new()),
        listed => Ok(listed
            .map_err(FailedRequest::from)
            .context("the trackedfieldsets could not be listed")?
            .into_iter()
            .collect()),
    }
}

fn print(
    set: &TrackedFieldSet,
    plan: &MatchPlan,
    problems: &[String],
    out: &mut Printer,
) -> io::Result<()> {
    if !plan.matches.is_empty() {
        let rows: Vec<_> = plan.matches.iter().map(row).collect();
        out.table(&COLUMNS, &rows)?;
        out.line("")?;
    }
    if set.spec.suspend == Some(true) {
        out.line("The set is suspended: the operator creates and deletes nothing.")?;
    }
    for problem in problems {
        out.line(problem)?;
    }
    out.line(totals(set, plan))
}

fn row(found: &MatchedField) -> Vec<Cell> {
    vec![
        (&found.namespace).into(),
        (&found.name).into(),
        (&found.field).into(),
        Cell::new(format!("{:?}", found.state), found.state.colour()),
        (&found.tracked_field).into(),
    ]
}

fn totals(set: &TrackedFieldSet, plan: &MatchPlan) -> String {
    let mut text = count(plan.targets, "resource matches", "resources match");
    let mut separator = ": ";
    for state in MatchState::ALL {
        let number = plan.number(state);
        if number > 0 && state != MatchState::LeftOut {
            text = format!("{text}{separator}{number} {}", state.adjective());
            separator = ", ";
        }
    }
    if plan.left_out > 0 {
        text = format!(
            "{text}; {} left out: {}",
            count(plan.left_out, "resource is", "resources are"),
            how_to_track_all(&set.spec, plan.needed_targets)
        );
    }
    text
}
