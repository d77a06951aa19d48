//! The part of JSON Schema that the receivers' schemas use (<https://json-schema.org/draft/2020-12>).

use serde_json::Value;

/// Returns every violation of `schema` by `value`, with its path.
///
/// # Panics
/// Panics at a keyword that this function does not know: the schema would demand more than the test checks.
pub fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, value, "$", &mut found);
    found
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        other => panic!("type {other}"),
    }
}

fn check(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    let keywords = schema.as_object().unwrap();
    for (keyword, rule) in keywords {
        let size = || usize::try_from(rule.as_u64().unwrap()).unwrap();
        let characters = value.as_str().map(|text| text.chars().count());
        let items = value.as_array();
        let is_met = match keyword.as_str() {
            "$schema" | "title" | "$comment" => true,
            "type" => is_type(rule.as_str().unwrap(), value),
            "const" => value == rule,
            "enum" => rule.as_array().unwrap().contains(value),
            "minLength" => characters.is_none_or(|count| count >= size()),
            "maxLength" => characters.is_none_or(|count| count <= size()),
            "minItems" => items.is_none_or(|items| items.len() >= size()),
            "maxItems" => items.is_none_or(|items| items.len() <= size()),
            "items" => {
                for (index, item) in items.into_iter().flatten().enumerate() {
                    check(rule, item, &format!("{path}[{index}]"), found);
                }
                true
            }
            "required" => value.as_object().is_none_or(|object| {
                let mut names = rule.as_array().unwrap().iter();
                names.all(|name| object.contains_key(name.as_str().unwrap()))
            }),
            "properties" => {
                for (name, property) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(property, value, &format!("{path}.{name}"), found);
                    }
                }
                true
            }
            "additionalProperties" => {
                assert_eq!(rule, false);
                let known = &keywords["properties"];
                value
                    .as_object()
                    .is_none_or(|object| object.keys().all(|name| known.get(name).is_some()))
            }
            other => panic!("{path}: keyword {other}"),
        };
        if !is_met {
            found.push(format!("{path}: {keyword} {rule}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(json!({ "type": "object" }), json!([]))]
    #[case(json!({ "type": "string" }), json!(1))]
    #[case(json!({ "const": null }), json!(0))]
    #[case(json!({ "enum": ["a", "b"] }), json!("c"))]
    #[case(json!({ "minLength": 1 }), json!(""))]
    #[case(json!({ "maxLength": 2 }), json!("äöü"))]
    #[case(json!({ "minItems": 1 }), json!([]))]
    #[case(json!({ "maxItems": 1 }), json!([1, 2]))]
    #[case(json!({ "items": { "type": "string" } }), json!(["a", 1]))]
    #[case(json!({ "required": ["a"] }), json!({ "b": 1 }))]
    #[case(json!({ "properties": { "a": { "maxLength": 1 } } }), json!({ "a": "bc" }))]
    #[case(json!({ "properties": { "a": {} }, "additionalProperties": false }), json!({ "b": 1 }))]
    fn each_keyword_is_checked(#[case] schema: Value, #[case] value: Value) {
        assert_eq!(violations(&schema, &value).len(), 1);
    }

    #[test]
    fn matching_value_has_no_violation() {
        let schema = json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "type": "array", "minItems": 1, "items": { "maxLength": 3 } } },
        });
        assert_eq!(
            violations(&schema, &json!({ "a": ["äöü", ""] })),
            Vec::<String>::new()
        );
    }
}
