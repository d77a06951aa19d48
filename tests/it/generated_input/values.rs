//! Values derived from a schema: inside and beyond each bound, of each wrong type, and in pairs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::{Value, json};

/// A merge patch of a spec, named by the field and the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub name: String,
    pub patch: Value,
}

impl Change {
    fn field(&self) -> &str {
        self.name.split('=').next().unwrap_or_default()
    }
}

/// Texts that a field may confuse with syntax of its own.
const ODD_TEXTS: [&str; 10] = [
    "",
    " ",
    "a",
    "A_B",
    "Ä€😀",
    "a\u{0}b",
    "a\nb",
    "../..",
    "{{ x",
    "-",
];

/// Returns every change of one field of a spec with this schema and the value `base`.
pub fn changes(schema: &JSONSchemaProps, base: &Value) -> Vec<Change> {
    let mut all = Vec::new();
    for (name, schema) in schema.properties.iter().flatten() {
        let base = base.get(name).unwrap_or(&Value::Null);
        let removed = (!base.is_null()).then_some(Value::Null);
        let mut fresh: Vec<Value> = Vec::new();
        for value in removed.into_iter().chain(values(schema, base)) {
            if !fresh.contains(&value) {
                fresh.push(value);
            }
        }
        all.extend(fresh.into_iter().map(|value| Change {
            name: format!("{name}={}", brief(&value)),
            patch: json!({ name: value }),
        }));
        all.extend(changes(schema, base).into_iter().map(|inner| Change {
            name: format!("{name}.{}", inner.name),
            patch: json!({ name: inner.patch }),
        }));
    }
    all
}

/// Returns pairs of changes of different fields, in which each change is once first and once second, `distance` apart.
pub fn pairs(changes: &[Change], distance: usize) -> Vec<Change> {
    let seconds = changes.iter().cycle().skip(distance);
    let pairs = changes.iter().zip(seconds);
    pairs
        .filter(|(first, second)| first.field() != second.field())
        .map(|(first, second)| {
            let mut patch = first.patch.clone();
            merge(&mut patch, &second.patch);
            let name = format!("{} & {}", first.name, second.name);
            Change { name, patch }
        })
        .collect()
}

fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

/// Shows a value in at most 40 characters.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}... ({} bytes)", &text[..end], text.len()),
        None => text,
    }
}

/// Returns values of a field: valid and invalid ones.
fn values(schema: &JSONSchemaProps, base: &Value) -> Vec<Value> {
    let is_either = schema.x_kubernetes_int_or_string == Some(true);
    let mut values = match schema.type_.as_deref() {
        _ if is_either => [integers(schema), texts(schema)].concat(),
        Some("string") => texts(schema),
        Some("integer") => integers(schema),
        Some("boolean") => vec![json!(true), json!(false), json!("true")],
        Some("array") => lists(schema, base),
        _ => match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(item)) => maps(schema, item),
            _ => vec![json!({}), json!("x"), json!([])],
        },
    };
    values.extend(schema.enum_.iter().flatten().map(|it| it.0.clone()));
    values
}

fn texts(schema: &JSONSchemaProps) -> Vec<Value> {
    let mut values: Vec<_> = ODD_TEXTS.iter().map(|it| json!(it)).collect();
    if let Some(longest) = schema.max_length.and_then(|it| usize::try_from(it).ok()) {
        values.extend([json!("a".repeat(longest)), json!("a".repeat(longest + 1))]);
    }
    values.extend([json!(7), json!(true), json!({ "a": 1 }), json!(["a"])]);
    let rules = schema.x_kubernetes_validations.iter().flatten();
    values.extend(rules.flat_map(|rule| quoted(&rule.rule)));
    values
}

/// Returns the texts in a rule, such as the values that it permits.
fn quoted(rule: &str) -> impl Iterator<Item = Value> {
    rule.split('\'').skip(1).step_by(2).map(|it| json!(it))
}

#[allow(clippy::cast_possible_truncation)] // bounds of integers are integers
fn integers(schema: &JSONSchemaProps) -> Vec<Value> {
    let mut values = vec![
        json!(0),
        json!(1),
        json!(-1),
        json!(i32::MAX),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(1.5),
        json!("1"),
    ];
    for bound in [schema.minimum, schema.maximum].into_iter().flatten() {
        let bound = bound as i64;
        values
            .extend([bound.saturating_sub(1), bound, bound.saturating_add(1)].map(|it| json!(it)));
    }
    values
}

fn lists(schema: &JSONSchemaProps, base: &Value) -> Vec<Value> {
    let mut values = vec![json!([]), json!("x"), json!({}), json!([null])];
    let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items else {
        return values;
    };
    let sample = base.get(0).cloned().unwrap_or_else(|| sample(item));
    values.extend([json!([sample]), json!([sample, sample])]);
    if let Some(most) = schema.max_items.and_then(|it| usize::try_from(it).ok()) {
        let keys = schema.x_kubernetes_list_map_keys.as_deref();
        let items = |count| -> Value {
            (0..count)
                .map(|number| numbered(&sample, keys.unwrap_or_default(), number))
                .collect()
        };
        values.extend([items(most), items(most + 1)]);
    }
    values.extend(
        self::values(item, &sample)
            .into_iter()
            .map(|it| json!([it])),
    );
    for change in changes(item, &sample) {
        let mut changed = sample.clone();
        merge(&mut changed, &change.patch);
        values.push(json!([changed]));
    }
    values
}

/// Returns an item of a list that differs from those of other numbers, as a set or a map of these keys requires.
fn numbered(sample: &Value, keys: &[String], number: usize) -> Value {
    match sample {
        Value::String(text) => json!(format!("{text}{number}")),
        Value::Number(first) => json!(first.as_u64().unwrap_or_default() + number as u64),
        Value::Object(_) => {
            let mut item = sample.clone();
            for key in keys {
                item[key] = numbered(&item[key], &[], number);
            }
            item
        }
        other => other.clone(),
    }
}

fn maps(schema: &JSONSchemaProps, item: &JSONSchemaProps) -> Vec<Value> {
    let sample = sample(item);
    let mut values = vec![json!({}), json!("x"), json!([])];
    for key in ["a", "", "a b", "A", "Ä", "a/b", "cpu", "x-y.z/0"] {
        values.push(json!({ key: sample }));
    }
    values.push(json!({ "k".repeat(400): sample }));
    if let Some(most) = schema
        .max_properties
        .and_then(|it| usize::try_from(it).ok())
    {
        let entries = |count| -> Value {
            (0..count)
                .map(|number| (format!("k{number}"), sample.clone()))
                .collect()
        };
        values.extend([entries(most), entries(most + 1)]);
    }
    values.extend(
        self::values(item, &sample)
            .into_iter()
            .map(|it| json!({ "a": it })),
    );
    values
}

/// Returns a value of the type of a schema, with the required fields.
fn sample(schema: &JSONSchemaProps) -> Value {
    if let Some(first) = schema.enum_.iter().flatten().next() {
        return first.0.clone();
    }
    match schema.type_.as_deref() {
        Some("integer") => json!(1),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => {
            let fields = schema.properties.iter().flatten();
            let required = schema.required.iter().flatten().collect::<Vec<_>>();
            fields
                .filter(|(name, _)| required.contains(name))
                .map(|(name, schema)| (name.clone(), sample(schema)))
                .collect()
        }
        _ => json!("a"),
    }
}
