//! Page of the fields of a kind, from its CRD.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::markdown::{cell, code};

/// Fields of Kubernetes' own types, which its documentation describes.
const KUBERNETES: [&str; 5] = [
    "spec.env",
    "spec.envFrom",
    "spec.livenessProbe",
    "spec.readinessProbe",
    "spec.startupProbe",
];

struct FieldRow<'a> {
    path: String,
    schema: &'a JSONSchemaProps,
    required: bool,
}

pub fn page(crd: &CustomResourceDefinition, kind_page: &str) -> String {
    let names = &crd.spec.names;
    let version = &crd.spec.versions[0];
    let none = JSONSchemaProps::default();
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref())
        .unwrap_or(&none);
    let short = names
        .short_names
        .iter()
        .flatten()
        .map(|name| code(name))
        .collect::<Vec<_>>()
        .join(", ");
    let mut page = format!(
        "# {kind}: fields\n\n{}\n\n`{}/{}`, plural `{}`, short name {short}, category `quartermaster`. `kubectl explain {}.spec` prints \
         the same descriptions. Behaviour and examples: [{kind}](../kinds/{kind_page}). Reasons: [Reasons](reasons.md#{}).\n\n\
         Lengths count characters. A rule over several fields applies when an object is created and when one of these fields changes, so an \
         object that is older than the rule can still be labelled, suspended and deleted.\n",
        schema.description.as_deref().unwrap_or_default(),
        crd.spec.group,
        version.name,
        names.plural,
        names.singular.as_deref().unwrap_or(&names.plural),
        names.kind.to_lowercase(),
        kind = names.kind,
    );
    let mut fields = Vec::new();
    walk("", schema, false, &mut fields);
    for (heading, part) in [("Spec", "spec"), ("Status", "status")] {
        // Writing to a String does not fail.
        let _ = write!(
            page,
            "\n## {heading}\n\n| field | type | bounds | default | description |\n| --- | --- | --- | --- | --- |\n"
        );
        for field in fields
            .iter()
            .filter(|field| field.path.starts_with(part) && field.path != part)
        {
            page.push_str(&row(field));
        }
    }
    page.push_str(
        "\n## Columns\n\nOf `kubectl get`.\n\n| column | value | |\n| --- | --- | --- |\n",
    );
    for column in version.additional_printer_columns.iter().flatten() {
        let wide = if column.priority.unwrap_or_default() > 0 {
            "with `-o wide`"
        } else {
            ""
        };
        let (name, path) = (column.name.to_uppercase(), code(&cell(&column.json_path)));
        let _ = writeln!(page, "| {name} | {path} | {wide} |");
    }
    page.push_str("\n## Validation errors\n\nEach message says what to write instead.\n");
    for (message, paths) in messages(&fields) {
        let _ = write!(page, "\n- {}\n  ({paths})", code(message));
    }
    page.push('\n');
    page
}

fn walk<'a>(path: &str, schema: &'a JSONSchemaProps, required: bool, into: &mut Vec<FieldRow<'a>>) {
    into.push(FieldRow {
        path: path.to_owned(),
        schema,
        required,
    });
    // Kubernetes documents conditions too.
    if path.ends_with("conditions") || KUBERNETES.contains(&path) {
        return;
    }
    for (name, property) in schema.properties.iter().flatten() {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        walk(
            &below,
            property,
            schema.required.iter().flatten().any(|it| it == name),
            into,
        );
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items
        && items.properties.is_some()
    {
        walk(&format!("{path}[]"), items, false, into);
    }
}

fn row(field: &FieldRow) -> String {
    let schema = field.schema;
    let (what, default) = without_default(schema.description.as_deref().unwrap_or_default());
    let bounds = bounds(field).join("; ");
    format!(
        "| `{}` | {} | {bounds} | {} | {} |\n",
        field.path,
        kind_of(schema),
        cell(default),
        cell(&what)
    )
}

/// Splits the sentence `Defaults to X.` off a description, and returns `X` beside the rest.
fn without_default(description: &str) -> (String, &str) {
    let begin = "Defaults to ";
    let Some((before, rest)) = description.split_once(begin) else {
        return (description.to_owned(), "");
    };
    let (default, after) = rest
        .split_once(". ")
        .unwrap_or((rest.trim_end_matches('.'), ""));
    (format!("{before}{after}").trim().to_owned(), default)
}

fn kind_of(schema: &JSONSchemaProps) -> String {
    if schema.x_kubernetes_int_or_string == Some(true) {
        return "integer or string".into();
    }
    match (&schema.items, &schema.additional_properties) {
        (Some(JSONSchemaPropsOrArray::Schema(items)), _) => format!("list of {}s", kind_of(items)),
        (_, Some(JSONSchemaPropsOrBool::Schema(values))) => format!("map of {}s", kind_of(values)),
        _ => schema.type_.clone().unwrap_or_else(|| "any".into()),
    }
}

fn bounds(field: &FieldRow) -> Vec<String> {
    let schema = field.schema;
    let mut bounds = Vec::new();
    if field.required {
        bounds.push("required".to_owned());
    }
    #[allow(clippy::cast_possible_truncation)] // the bounds are whole numbers
    let whole = |number: Option<f64>| number.map(|number| number as i64);
    bounds.extend(range(whole(schema.minimum), whole(schema.maximum), ""));
    bounds.extend(range(schema.min_length, schema.max_length, " characters"));
    bounds.extend(range(schema.min_items, schema.max_items, " items"));
    bounds.extend(range(
        schema.min_properties,
        schema.max_properties,
        " entries",
    ));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        bounds.extend(range(
            items.min_length,
            items.max_length,
            " characters each",
        ));
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &schema.additional_properties {
        bounds.extend(range(
            values.min_length,
            values.max_length,
            " characters each",
        ));
    }
    match (
        schema.x_kubernetes_list_type.as_deref(),
        &schema.x_kubernetes_list_map_keys,
    ) {
        (Some("map"), Some(keys)) => bounds.push(format!("each {} once", code(&keys.join(", ")))),
        (Some("set"), _) => bounds.push("each once".into()),
        _ => {}
    }
    let formats = schema
        .enum_
        .iter()
        .flatten()
        .map(|word| code(word.0.as_str().unwrap_or_default()));
    let formats = formats.collect::<Vec<_>>().join(", ");
    bounds.extend((!formats.is_empty()).then_some(formats));
    bounds
}

fn range(least: Option<i64>, most: Option<i64>, of: &str) -> Option<String> {
    match (least, most) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}{of}")),
        (Some(least), None) => Some(format!("{least} or more{of}")),
        (None, Some(most)) => Some(format!("at most {most}{of}")),
        (None, None) => None,
    }
}

/// Returns each message, in the order of the fields, with its fields.
fn messages<'a>(fields: &[FieldRow<'a>]) -> Vec<(&'a str, String)> {
    let mut order = Vec::new();
    let mut paths = BTreeMap::<&str, Vec<String>>::new();
    for field in fields {
        for rule in field.schema.x_kubernetes_validations.iter().flatten() {
            let message = rule.message.as_deref().unwrap_or_default();
            if !order.contains(&message) {
                order.push(message);
            }
            let path = if field.path.is_empty() {
                "the object".to_owned()
            } else {
                code(&field.path)
            };
            let of = paths.entry(message).or_default();
            if !of.contains(&path) {
                of.push(path);
            }
        }
    }
    order
        .into_iter()
        .map(|message| (message, paths[message].join(", ")))
        .collect()
}
