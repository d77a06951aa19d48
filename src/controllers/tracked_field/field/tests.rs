#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use qm_api::tracked_field::KEPT_BYTES;
use qm_api::tracked_field::WORDS;
use rstest::rstest;
use serde_json::json;

use super::*;

fn text(text: &str) -> ObservedValue {
    ObservedValue::Text(text.into())
}

fn deployment() -> Value {
    json!({
        "kind": "Deployment",
        "metadata": {"name": "web", "annotations": {"quartermaster.dev/x": "y"}},
        "spec": {"replicas": 3, "paused": false, "template": {"spec": {"containers": [
            {"name": "app", "image": "nginx:1", "env": [{"name": "EMPTY", "value": ""}]},
            {"name": "side", "image": "envoy:2"},
        ]}}},
    })
}

fn service() -> Value {
    json!({"spec": {"ports": [
        {"name": "web", "port": 80, "targetPort": 8080},
        {"name": "admin", "port": 81, "targetPort": "admin"},
        {"name": "same", "port": 82},
    ]}})
}

#[rstest]
#[case("Deployment", "replicas", text("3"))]
#[case("StatefulSet", "replicas", text("3"))]
#[case("Deployment", "image", text("nginx:1"))]
#[case("StatefulSet", "image:side", text("envoy:2"))]
#[case("DaemonSet", "image", text("nginx:1"))]
#[case("Job", "images", text(r#"["nginx:1","envoy:2"]"#))]
#[case("Deployment", "image:none", ObservedValue::Missing)]
#[case("Deployment", "{.spec.replicas}", text("3"))]
#[case("Deployment", "{spec.replicas}", text("3"))]
#[case("Deployment", "{.spec.paused}", text("false"))]
#[case(
    "Deployment",
    "{.spec.template.spec.containers[0].env[0].value}",
    text("")
)]
#[case(
    "Deployment",
    "{.spec.template.spec.containers[0].env[7].value}",
    ObservedValue::Missing
)]
#[case(
    "Deployment",
    "{.spec.template.spec.containers[*].image}",
    text(r#"["nginx:1","envoy:2"]"#)
)]
#[case(
    "Deployment",
    r"{.metadata.annotations.quartermaster\.dev/x}",
    text("y")
)]
fn fields_of_workloads(#[case] kind: &str, #[case] field: &str, #[case] expected: ObservedValue) {
    assert_eq!(
        FieldSelector::compile(kind, field)
            .unwrap()
            .extract(&deployment()),
        expected
    );
}

#[test]
fn images_of_a_cron_job_are_in_its_job_template() {
    let template = |images: &[&str]| {
        let containers: Vec<_> = images
            .iter()
            .map(|image| json!({ "image": image }))
            .collect();
        json!({ "spec": { "jobTemplate": { "spec": { "template": { "spec": { "containers": containers } } } } } })
    };
    let value = |field: &str, object: &Value| {
        FieldSelector::compile("CronJob", field)
            .unwrap()
            .extract(object)
    };
    let two = template(&["a:1", "b:1"]);
    assert_eq!(value("image", &two), text("a:1"));
    assert_eq!(value("images", &two), text(r#"["a:1","b:1"]"#));
    assert_eq!(value("images", &template(&["a:1"])), text("a:1"));
    assert_eq!(value("images", &template(&[])), ObservedValue::Missing);
}

#[rstest]
#[case("targetPort", text("8080"))]
#[case("targetPort:web", text("8080"))]
#[case("targetPort:admin", text("admin"))]
#[case("targetPort:same", text("82"))]
#[case("targetPort:none", ObservedValue::Missing)]
fn ports_of_services(#[case] field: &str, #[case] expected: ObservedValue) {
    assert_eq!(
        FieldSelector::compile("Service", field)
            .unwrap()
            .extract(&service()),
        expected
    );
}

/// Conditions, Events and annotations have the message.
#[rstest]
#[case::word("replicas\u{1}")]
#[case::path("{.a\u{1}")]
fn error_quotes_the_beginning_of_a_long_field(#[case] field: &str) {
    let field = field.repeat(400);
    let error = FieldSelector::compile("Deployment", &field).unwrap_err();
    assert!(error.to_string().len() < 1500, "{error}");
}

#[test]
fn missing_empty_false_and_null_are_distinct() {
    let object = json!({"empty": "", "no": false, "null": null, "none": [], "nothing": {}});
    let all: Vec<ObservedValue> = ["missing", "empty", "no", "null", "none", "nothing"]
        .map(|name| {
            FieldSelector::compile("X", &format!("{{.{name}}}"))
                .unwrap()
                .extract(&object)
        })
        .into();
    let expected = [
        ObservedValue::Missing,
        text(""),
        text("false"),
        text("null"),
        text("[]"),
        text("{}"),
    ];
    assert_eq!(all, expected);
}

#[test]
fn keys_are_sorted_regardless_of_their_order_in_the_object() {
    let object: Value =
        serde_json::from_str(r#"{"a": {"z": 1, "b": {"y": 2, "x": 3}, "a": [{"d": 1, "c": 2}]}}"#)
            .unwrap();
    let value = FieldSelector::compile("X", "{.a}")
        .unwrap()
        .extract(&object);
    assert_eq!(
        value,
        text(r#"{"a":[{"c":2,"d":1}],"b":{"x":3,"y":2},"z":1}"#)
    );
}

#[test]
fn long_values_are_truncated_between_characters_and_compared_whole() {
    let field = FieldSelector::compile("X", "{.a}").unwrap();
    let value = |text: String| field.extract(&json!({"a": text}));
    assert_eq!(value("x".repeat(1024)), text(&"x".repeat(1024)));

    let long = format!("x{}", "я".repeat(600));
    let cut = value(long.clone());
    assert_eq!(cut.text().unwrap(), &long[..1023]);
    assert_eq!(cut.truncation().unwrap().length, 1201);
    assert_eq!(value(long.clone()), cut);
    assert_ne!(value(format!("{long}!")), cut);

    let known = value("a".repeat(1_000_000));
    assert_eq!(
        known.truncation().unwrap().sha256,
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    );
    assert_eq!(known.text().unwrap().len(), KEPT_BYTES);
    assert_eq!(known.truncation().unwrap().length, 1_000_000);
}

#[rstest]
#[case(
    "Service",
    "replicas",
    "FieldNotFound",
    "targetPort, targetPort:PORT or a JSONPath"
)]
#[case(
    "Deployment",
    "targetPort",
    "FieldNotFound",
    "replicas, image, image:CONTAINER, images or a JSONPath"
)]
#[case("Deployment", "targetPort:web", "FieldNotFound", "replicas")]
#[case("Deployment", "replica", "FieldNotFound", "write replicas, image")]
#[case("Deployment", "", "FieldNotFound", "write replicas, image")]
#[case("Deployment", "replicas:x", "FieldNotFound", "write replicas, image")]
#[case(
    "Ingress",
    "image",
    "FieldNotFound",
    "Ingress has no field \"image\": write a JSONPath in braces"
)]
#[case("Deployment", "image:", "PathInvalid", "write image:NAME, or image")]
#[case("Service", "targetPort:", "PathInvalid", "write targetPort:NAME")]
#[case(
    "Deployment",
    ".spec.replicas",
    "PathInvalid",
    "write a JSONPath in braces: {.spec.replicas}"
)]
#[case(
    "Deployment",
    "$.spec.replicas",
    "PathInvalid",
    "write a JSONPath in braces: {.spec.replicas}"
)]
#[case(
    "Deployment",
    "spec.replicas",
    "PathInvalid",
    "write a JSONPath in braces: {.spec.replicas}"
)]
#[case(
    "X",
    "{range .items[*]}{.name}{end}",
    "PathInvalid",
    "[*].image}; several matches give a JSON list"
)]
#[case("X", "{end}", "PathInvalid", "{range} and {end} are not supported")]
#[case("X", "{.a}{.b}", "PathInvalid", "several expressions")]
#[case("X", "{.a} {.b}", "PathInvalid", "several expressions")]
#[case("X", "a: {.a}", "PathInvalid", "text around the braces")]
#[case("X", "{.a}!", "PathInvalid", "text around the braces")]
#[case("X", "{.a", "PathInvalid", "ends too early")]
#[case("X", "}", "PathInvalid", "text around")]
#[case("X", "{}", "PathInvalid", "names no field")]
#[case("X", "{.}", "PathInvalid", "name is missing")]
#[case("X", "{@}", "PathInvalid", "names no field")]
#[case("X", "{.a.}", "PathInvalid", "name is missing")]
#[case("X", "{..}", "PathInvalid", "name is missing")]
#[case("X", "{..a..b}", "PathInvalid", "`..` may appear only once")]
#[case("X", "{\"a\"}", "PathInvalid", "is not understood")]
#[case("X", "{.a b}", "PathInvalid", "is not understood")]
#[case("X", "{.a[]}", "PathInvalid", "brackets hold")]
#[case("X", "{.a[b]}", "PathInvalid", "brackets hold")]
#[case("X", "{.a[0}", "PathInvalid", "bracket is missing")]
#[case("X", "{.a[::0]}", "PathInvalid", "step of a slice")]
#[case("X", "{.a['b..c']}", "PathInvalid", "empty name")]
#[case("X", "{.a['b}", "PathInvalid", "ends too early")]
#[case(
    "X",
    "{.a[?@.b==1]}",
    "PathInvalid",
    "a filter is written [?(@.name==\"x\")]"
)]
#[case("X", "{.a[?(@.b=1)]}", "PathInvalid", "a filter is written")]
#[case("X", "{.a[?(@.b==1 && @.c==2)]}", "PathInvalid", "a filter is written")]
#[case("X", "{.a[?(@.b[*]==1)]}", "PathInvalid", "compares single values")]
#[case(
    "X",
    "{.a[?(@.b[?(@.c)])]}",
    "PathInvalid",
    "cannot contain another filter"
)]
#[case(
    "X",
    "{.a[0,1,2,3][0,1,2,3][0,1]}",
    "PathInvalid",
    "combine to more than 16 paths"
)]
fn errors_say_what_to_write(
    #[case] kind: &str,
    #[case] field: &str,
    #[case] reason: &str,
    #[case] expected: &str,
) {
    let error = FieldSelector::compile(kind, field).unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn field_that_is_too_long_is_rejected() {
    let error = FieldSelector::compile("X", &format!("{{.{}}}", "a".repeat(5000))).unwrap_err();
    assert!(error.to_string().len() < 400, "{error}");
    assert_eq!(error.reason(), "PathInvalid");
}

#[test]
fn filter_with_a_missing_side_does_not_match() {
    let object = json!({"l": [{"a": 1}, {"b": 2}, {"a": 3, "b": 3}]});
    let value = |field: &str| FieldSelector::compile("X", field).unwrap().extract(&object);
    assert_eq!(value("{.l[?(@.a!=1)].b}"), text("3"));
    assert_eq!(value("{.l[?(@.a==@.b)].a}"), text("3"));
    assert_eq!(value("{.l[?(@.c!=@.d)]}"), ObservedValue::Missing);
}

/// Any JSON value, some levels deep.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-c]|\\PC{0,5}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(field in any::<String>(), object in any_json()) {
        for field in [field.clone(), format!("{{{field}}}"), format!("image:{field}")] {
            if let Ok(field) = FieldSelector::compile("Deployment", &field) {
                field.extract(&object);
            }
        }
    }

    #[test]
    fn nothing_panics_on_path_like_input(
        field in r#"\{(\.|\.\.|\[|\]|[a-c]|\*|[0-9]|-|:|,|'|"|\\|\?|\(|\)|@|\$|==|!=|<| ){0,20}\}"#,
        object in any_json(),
    ) {
        if let Ok(field) = FieldSelector::compile("X", &field) {
            field.extract(&object);
        }
    }

    /// Any key can be named: with special characters escaped, only that key is found.
    #[test]
    fn any_name_can_be_escaped(name in "[^\r\n]{1,12}") {
        let escaped: String = name.chars().flat_map(|c| ['\\', c]).collect();
        let object = json!({"a": {name: 1, "\u{1}other": 2}});
        for field in [format!("{{.a.{escaped}}}"), format!("{{.a['{escaped}']}}")] {
            prop_assert_eq!(FieldSelector::compile("X", &field).unwrap().extract(&object), text("1"));
        }
    }

    /// A kept value is bounded, a prefix of the whole value, and equal exactly when the whole values are.
    #[test]
    fn kept_values_represent_whole_values(a in "[ab€]{0,3}", b in "[ab€]{0,3}", times in 0usize..800) {
        let observe = |part: &str| ObservedValue::of_text(&part.repeat(times));
        prop_assert_eq!(observe(&a) == observe(&b), a.repeat(times) == b.repeat(times));
        let kept = observe(&a);
        prop_assert!(kept.text().unwrap().len() <= KEPT_BYTES);
        prop_assert!(a.repeat(times).starts_with(kept.text().unwrap()));
        prop_assert_eq!(kept.truncation().is_some(), a.repeat(times).len() > KEPT_BYTES);
    }

    #[test]
    fn values_are_written_as_json(object in any_json()) {
        let field = FieldSelector::compile("X", "{.a}").unwrap();
        let observed = field.extract(&json!({"a": object}));
        if observed.truncation().is_none() {
            let expected = object.as_str().map_or_else(|| object.to_string(), str::to_owned);
            prop_assert_eq!(observed.text().unwrap(), expected);
        }
    }
}

/// The operator accepts exactly the words that admission accepts.
#[rstest]
#[case("Deployment")]
#[case("StatefulSet")]
#[case("DaemonSet")]
#[case("Job")]
#[case("CronJob")]
#[case("Service")]
#[case("Ingress")]
#[case("HorizontalPodAutoscaler")]
#[case("NetworkPolicy")]
fn word_compiles_for_the_kinds_that_admission_accepts(#[case] kind: &str) {
    for (word, placeholder, kinds) in WORDS {
        assert_eq!(
            FieldSelector::compile(kind, word).is_ok(),
            kinds.contains(&kind),
            "{kind} {word}"
        );
        let named = FieldSelector::compile(kind, &format!("{word}:web"));
        assert_eq!(
            named.is_ok(),
            placeholder.is_some() && kinds.contains(&kind),
            "{kind} {word}:web"
        );
    }
}

#[rstest]
#[case::field("{.a[", json!({}), "\"{.a[\": ")]
#[case::context("{.a}", json!({ "owner": "{.b[" }), "spec.context.owner: \"{.b[\": ")]
fn invalid_field_of_the_context_is_named(
    #[case] field: &str,
    #[case] context: Value,
    #[case] expected: &str,
) {
    let target = json!({ "kind": "ConfigMap", "namespace": "a", "name": "b" });
    let spec =
        json!({ "target": target, "field": field, "contactPoint": "hook", "context": context });
    let error = Selectors::compile(&serde_json::from_value(spec).unwrap()).unwrap_err();
    let message = error.message("spec.context");
    assert_eq!(error.reason(), "PathInvalid");
    assert!(message.starts_with(expected), "{message}");
}
