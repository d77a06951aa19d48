//! The values of the Helm chart, as the chart's README and the reference have them.
//!
//! A description is the comment before the value's key in `values.yaml` that begins with `# -- `, as in helm-docs.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::markdown::cell;
use crate::files::{GenerateError, read};

const VALUES: &str = "charts/quartermaster/values.yaml";
const SCHEMA: &str = "charts/quartermaster/values.schema.json";
const CHART: &str = "charts/quartermaster/Chart.yaml";

const PAGE: &str = "\
# Chart values

Every value of the chart in `charts/quartermaster`. `values.schema.json` checks them: Helm refuses an unknown value, and one of
another type. A value with a flag in its description sets that [flag](flags.md); empty means the flag's default.
";

const README: &str = "
## Install

No image is published yet, so the first install builds one:
[Install with Helm](../../docs/install/helm.md) has the whole procedure.

```sh
helm install quartermaster charts/quartermaster -n quartermaster-system --create-namespace --set image.repository=YOUR.REGISTRY/quartermaster,image.tag=TAG
```

The chart installs CRDs, permissions, admission policies, a Deployment with two replicas, a Service for metrics and a NetworkPolicy.
The CRDs and their resources stay when the release is uninstalled: see `crds.keep`.

- [Upgrade and roll back](../../docs/how-to/upgrade-and-roll-back.md)
- [Uninstall](../../docs/operate/uninstall.md)
- [Permissions](../../docs/security/permissions.md)
- [Flags](../../docs/reference/flags.md)

## Values

A value with a flag in its description sets that flag; empty means the flag's default.

";

/// A row of the table of values.
#[derive(Debug, PartialEq)]
pub(crate) struct ChartValue {
    pub path: String,
    pub type_: String,
    pub default: String,
    pub description: String,
}

/// Returns the page of the reference.
pub fn page(root: &Path) -> Result<String, GenerateError> {
    let mut page = PAGE.to_owned();
    let mut section = String::new();
    for value in values(root)? {
        let of = value.path.split('.').next().unwrap_or_default();
        // Single values come first, under no heading of their own.
        let heading = if value.path.contains('.') {
            of
        } else {
            "General"
        };
        if heading != section {
            if !page.contains(&format!("\n## {heading}\n")) {
                // Writing to a String does not fail.
                let _ = write!(page, "\n## {heading}\n\n{HEAD}");
            }
            heading.clone_into(&mut section);
        }
        page.push_str(&row(&value));
    }
    Ok(page)
}

const HEAD: &str =
    "| Key | Type | Default | Description |\n|-----|------|---------|-------------|\n";

/// Returns the README of the chart.
pub fn readme(root: &Path) -> Result<String, GenerateError> {
    let chart: Value = parse(root, CHART)?;
    let text = |field: &str| chart[field].as_str().unwrap_or_default().to_owned();
    let mut readme = format!(
        "# {}\n\n{}.\n\nChart version {}, for operator version {}. Requires Kubernetes `{}`.\n{README}{HEAD}",
        text("name"),
        text("description"),
        text("version"),
        text("appVersion"),
        text("kubeVersion"),
    );
    for value in values(root)? {
        readme.push_str(&row(&value));
    }
    Ok(readme)
}

fn row(value: &ChartValue) -> String {
    format!(
        "| {} | {} | `{}` | {} |\n",
        value.path,
        value.type_,
        cell(&value.default),
        cell(&value.description)
    )
}

fn parse(root: &Path, path: &str) -> Result<Value, GenerateError> {
    serde_saphyr::from_str(&read(root, path)?).map_err(|error| GenerateError::Parse {
        path: path.into(),
        source: Box::new(error),
    })
}

/// Returns every value: those without a key below, in the order of the file, single ones first.
pub(crate) fn values(root: &Path) -> Result<Vec<ChartValue>, GenerateError> {
    let (text, defaults) = (read(root, VALUES)?, parse(root, VALUES)?);
    let schema: Value = serde_json::from_str(&read(root, SCHEMA)?)?;
    let mut values = Vec::new();
    let (mut parents, mut description) = (Vec::<(usize, &str)>::new(), String::new());
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(comment) = content.strip_prefix('#') {
            match comment.strip_prefix(" -- ") {
                Some(begin) => begin.clone_into(&mut description),
                None if !description.is_empty() => {
                    description.push(' ');
                    description.push_str(comment.trim());
                }
                None => {}
            }
            continue;
        }
        let Some((key, _)) = content.split_once(':').filter(|_| is_key(content)) else {
            continue;
        };
        parents.retain(|(of, _)| *of < indent);
        parents.push((indent, key));
        let keys: Vec<_> = parents.iter().map(|(_, key)| *key).collect();
        let default = keys.iter().fold(&defaults, |value, key| &value[*key]);
        let of = keys
            .iter()
            .fold(&schema, |schema, key| &schema["properties"][*key]);
        if default.is_null() || of.is_null() {
            // A key within a value, such as one of a list.
            parents.pop();
            continue;
        }
        let description = std::mem::take(&mut description);
        if of["properties"].is_object() {
            continue;
        }
        values.push(ChartValue {
            path: keys.join("."),
            type_: type_of(of),
            default: default.to_string(),
            description,
        });
    }
    let (single, grouped): (Vec<_>, Vec<_>) =
        values.into_iter().partition(|it| !it.path.contains('.'));
    Ok(single.into_iter().chain(grouped).collect())
}

fn is_key(content: &str) -> bool {
    content.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Returns the type of a value as helm-docs names it.
fn type_of(schema: &Value) -> String {
    if schema["enum"].is_array() {
        return "string".into();
    }
    let type_ = match &schema["type"] {
        Value::Array(types) => &types[0],
        type_ => type_,
    };
    let name = match type_.as_str().unwrap_or_default() {
        "boolean" => "bool",
        "integer" => "int",
        "array" => "list",
        other => other,
    };
    name.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::BTreeSet;

    use super::*;

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    /// Returns the paths of the values that the schema has.
    fn paths(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
        let Some(properties) = schema["properties"].as_object() else {
            into.insert(path.to_owned());
            return;
        };
        for (name, schema) in properties {
            paths(
                schema,
                format!("{path}.{name}").trim_start_matches('.'),
                into,
            );
        }
    }

    #[test]
    fn every_value_has_a_type_and_a_description() {
        let values = values(root()).unwrap();
        for ChartValue {
            path,
            type_,
            description,
            ..
        } in &values
        {
            assert!(!type_.is_empty(), "{path}");
            assert!(
                description.ends_with('.')
                    && description.starts_with(|c: char| c.is_uppercase() || c == '`'),
                "{path}: write a comment `# -- ` before it: {description:?}"
            );
        }
        let (mut expected, schema) = (BTreeSet::new(), read(root(), SCHEMA).unwrap());
        paths(&serde_json::from_str(&schema).unwrap(), "", &mut expected);
        // For charts that have this one as a part.
        expected.retain(|path| path != "global" && path != "enabled");
        let found: BTreeSet<_> = values.into_iter().map(|it| it.path).collect();
        assert_eq!(found, expected);
    }
}
