//! The set of the command line: from the cluster, or from a file.

use std::io::Read as _;
use std::path::Path;
use std::{fs, io};

use anyhow::{Context as _, bail, ensure};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use qm_api::TrackedFieldSet;
use qm_api::spec_size::StoredSpec as _;
use serde_json::Value;

use super::super::{FailedRequest, find, has_code};
use crate::cli::commands::MatchesArgs;
use crate::controllers::tracked_field_set::status::check;

const KIND: &str = "TrackedFieldSet";

/// Returns the set. A set from a file gets the metadata of the stored set of its name, if there is one, because UID and
/// age decide which children it owns.
pub(super) async fn load(client: &Client, args: &MatchesArgs) -> anyhow::Result<TrackedFieldSet> {
    let default = client.default_namespace();
    let Some(file) = &args.file else {
        let namespace = args.namespace.as_deref().unwrap_or(default);
        let name = args.name.as_deref().unwrap_or_default();
        let set: TrackedFieldSet = find::get(client, namespace, name, &args.cluster).await?;
        check_spec(&set).with_context(|| format!("tfs/{name} in {namespace}"))?;
        return Ok(set);
    };
    let shown = file.display();
    let mut set = parse(&read(file)?).with_context(|| format!("{shown}"))?;
    let named = set.metadata.namespace.take();
    if let (Some(flag), Some(named)) = (&args.namespace, &named) {
        ensure!(
            flag == named,
            "{shown}: the set is in namespace {named}: leave out -n {flag}"
        );
    }
    let namespace = named.as_ref().or(args.namespace.as_ref());
    let namespace = namespace.map_or(default, String::as_str);
    let name = set.metadata.name.take().unwrap_or_default();
    let api: Api<TrackedFieldSet> = Api::namespaced(client.clone(), namespace);
    let stored = match api.get_metadata_opt(&name).await {
        // The CRD is not installed.
        Err(error) if has_code(&error, 404) => None,
        stored => stored.map_err(FailedRequest::from)?,
    };
    set.metadata = stored.map_or_else(
        || ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        |stored| stored.metadata,
    );
    Ok(set)
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs::read_to_string(file).with_context(|| format!("{}", file.display()))
}

/// Parses YAML or JSON with one set.
fn parse(text: &str) -> anyhow::Result<TrackedFieldSet> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text)?;
    let objects: Vec<_> = objects.into_iter().filter(|it| !it.is_null()).collect();
    let [object] = &*objects else {
        bail!("write one {KIND}: the file has {} objects", objects.len());
    };
    ensure!(
        object["kind"] == KIND,
        "write a {KIND}: the file has kind: {}",
        object["kind"]
    );
    let set: TrackedFieldSet = serde_json::from_value(object.clone())?;
    ensure!(set.metadata.name.is_some(), "write metadata.name");
    set.spec.check_size().map_err(anyhow::Error::msg)?;
    if let Some(path) = unknown(&object["spec"], &serde_json::to_value(&set.spec)?) {
        bail!("unknown field spec{path}: correct its name, or remove it");
    }
    ensure!(
        !set.spec.fields.is_empty(),
        "write spec.fields, such as fields: [image]"
    );
    ensure!(
        !set.spec.template.contact_point.is_empty(),
        "write spec.template.contactPoint, the name of a ContactPoint"
    );
    check_spec(&set)?;
    Ok(set)
}

/// Checks the spec as the operator does. The operator creates nothing for a set that fails.
fn check_spec(set: &TrackedFieldSet) -> anyhow::Result<()> {
    check(&set.spec).map_err(|outcome| anyhow::anyhow!("{}: {}", outcome.reason, outcome.message))
}

/// Returns the path of a field of `written` that the parsed set lacks, if any. A misspelt selector would select every
/// resource.
fn unknown(written: &Value, known: &Value) -> Option<String> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match written {
        Value::Object(fields) => fields.iter().find_map(|(name, value)| {
            let path = match known.get(name) {
                None => (!is_empty(value)).then(String::new),
                Some(known) => unknown(value, known),
            };
            path.map(|rest| format!(".{name}{rest}"))
        }),
        Value::Array(items) => items.iter().enumerate().find_map(|(at, value)| {
            let path = unknown(value, known.get(at)?)?;
            Some(format!("[{at}]{path}"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    const HEAD: &str =
        "apiVersion: tg.azamaton.ru/v1\nkind: TrackedFieldSet\nmetadata: {name: a}\n";

    #[rstest]
    #[case::valid(
        "spec: {target: {kind: Deployment, selector: {}, names: {include: [], exclude: [a]}, namespaces: {selector: {matchExpressions: [{key: a, operator: Exists}]}}}, fields: [image], template: {contactPoint: hook, context: {a: '{.a}'}}}",
        None
    )]
    #[case::unknown(
        "spec: {target: {kind: Deployment, selecter: {matchLabels: {a: b}}}, fields: [image], template: {contactPoint: hook}}",
        Some("unknown field spec.target.selecter: correct its name, or remove it")
    )]
    #[case::deep(
        "spec: {target: {kind: Deployment, namespaces: {selector: {matchExpressions: [{key: a, operator: Exists, value: [b]}]}}}, fields: [image], template: {contactPoint: hook}}",
        Some(
            "unknown field spec.target.namespaces.selector.matchExpressions[0].value: correct its name, or remove it"
        )
    )]
    #[case::without_fields(
        "spec: {target: {kind: Deployment}, template: {contactPoint: hook}}",
        Some("write spec.fields, such as fields: [image]")
    )]
    #[case::without_contact_point(
        "spec: {target: {kind: Deployment}, fields: [image]}",
        Some("write spec.template.contactPoint, the name of a ContactPoint")
    )]
    #[case::two(
        "---\nkind: ConfigMap\n",
        Some("write one TrackedFieldSet: the file has 2 objects")
    )]
    fn file_has_one_set_of_known_fields(#[case] rest: &str, #[case] message: Option<&str>) {
        let parsed = parse(&format!("{HEAD}{rest}"));
        assert_eq!(
            parsed.err().map(|error| error.to_string()).as_deref(),
            message
        );
    }

    #[rstest]
    #[case("", "write one TrackedFieldSet: the file has 0 objects")]
    #[case(
        "kind: ConfigMap",
        "write a TrackedFieldSet: the file has kind: \"ConfigMap\""
    )]
    fn another_file_is_rejected(#[case] text: &str, #[case] message: &str) {
        assert_eq!(parse(text).unwrap_err().to_string(), message);
    }

    #[rstest]
    #[case::field("fields: [imag], template: {contactPoint: hook}", "FieldNotFound: ")]
    #[case::context(
        "fields: [image], template: {contactPoint: hook, context: {owner: '{.a['}}",
        "PathInvalid: spec.template.context.owner: \"{.a[\": "
    )]
    #[case::when(
        "fields: [image], template: {contactPoint: hook, when: 'a ='}",
        "WhenInvalid: spec.template.when: "
    )]
    fn invalid_spec_is_named(#[case] rest: &str, #[case] expected: &str) {
        let spec = format!("spec: {{target: {{kind: Deployment}}, {rest}}}");
        let error = parse(&format!("{HEAD}{spec}")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
