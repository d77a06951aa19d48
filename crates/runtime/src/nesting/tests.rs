#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use http_body_util::Full;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::{DynamicObject, ObjectList, PartialObjectMeta, WatchEvent};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

/// Returns `levels` nested objects or arrays around a number.
fn nested(levels: usize, open: &str, close: &str) -> String {
    format!("{}1{}", open.repeat(levels), close.repeat(levels))
}

fn filtered(text: &str, chunk: usize) -> String {
    let mut filter = NestingFilter::default();
    let kept: Vec<u8> = text
        .as_bytes()
        .chunks(chunk)
        .flat_map(|chunk| filter.pass(Bytes::copy_from_slice(chunk)))
        .collect();
    String::from_utf8(kept).unwrap()
}

#[rstest]
#[case::objects("{\"a\":", "}", "{}")]
#[case::arrays("[", "]", "[]")]
#[case::mixed("{\"a\":[", "]}", "[]")]
fn answer_keeps_its_upper_levels(#[case] open: &str, #[case] close: &str, #[case] last: &str) {
    let steps = open.len() - open.replace(['{', '['], "").len();
    for levels in [
        2, 59, 60, 61, 100, 119, 120, 121, 127, 128, 200, 5_000, 100_000,
    ] {
        let text = nested(levels / steps, open, close);
        let kept = filtered(&text, 7);
        let value: Value =
            serde_json::from_str(&kept).unwrap_or_else(|error| panic!("{levels}: {error}"));
        let levels = levels / steps * steps;
        if levels < KEPT_LEVELS {
            assert_eq!(kept, text);
            assert!(is_deeper(&value, levels - 1) && !is_deeper(&value, levels));
        } else {
            assert!(
                kept.contains(last)
                    && is_deeper(&value, KEPT_LEVELS - 1)
                    && !is_deeper(&value, KEPT_LEVELS)
            );
        }
    }
}

#[rstest]
#[case::usual("2026-11-30T12:00:00Z", "2026-11-30T12:00:00Z")]
#[case::last_that_is_decoded("9999-12-30T21:59:59Z", "9999-12-20T21:59:59Z")]
#[case::last("9999-12-31T23:59:59Z", "9999-12-21T23:59:59Z")]
#[case::last_february_of_a_century("9900-03-30T00:00:00Z", "9900-03-20T00:00:00Z")]
#[case::earlier("9399-12-31T00:00:00Z", "9399-12-31T00:00:00Z")]
#[case::five_digits("10000-01-01T11:59:59Z", "1000-01-01T11:59:59Z")]
#[case::before_0("-0001-12-31T12:00:00Z", "0001-12-31T12:00:00Z")]
fn every_time_of_managed_fields_is_decoded(#[case] time: &str, #[case] expected: &str) {
    let object = format!(
        r#"{{"metadata":{{"name":"time","annotations":{{"time":"{time}"}},"managedFields":[
        {{"manager":"time","time":"{time}","fieldsV1":{{"time":"{time}"}}}}, {{"manager":"m","time" : "{time}"}}]}}}}"#
    );
    for chunk in [1, 5, 1_000] {
        let kept = filtered(&object, chunk);
        let read: PartialObjectMeta<ConfigMap> = serde_json::from_str(&kept).unwrap();
        let metadata = read.metadata;
        assert_eq!(metadata.annotations.unwrap()["time"], time);
        for entry in metadata.managed_fields.unwrap() {
            assert_eq!(entry.time.unwrap().0.to_string(), expected);
            let fields = entry
                .fields_v1
                .map_or_else(|| time.into(), |fields| fields.0["time"].clone());
            assert_eq!(fields, time);
        }
    }
}

/// An object with too many levels counts as too deep in a list, in a watch and alone; an object with fewer levels is
/// unchanged.
#[rstest]
fn truncated_object_is_too_deep(
    #[values(90, 94, 95, 110, 116, 117, 118, 130, 5_000)] levels: usize,
) {
    let value = nested(levels, "{\"a\":", "}");
    let object = format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{{"name":"x","resourceVersion":"7",
        "managedFields":[{{"manager":"m","fieldsV1":{value}}}]}},"spec":{value}}}"#
    )
    .replace('\n', "");
    let alone: DynamicObject = serde_json::from_str(&filtered(&object, 11)).unwrap();
    let list = format!(
        r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"9"}},"items":[{object}]}}"#
    );
    let list: ObjectList<DynamicObject> = serde_json::from_str(&filtered(&list, 11)).unwrap();
    let watch = format!(r#"{{"type":"ADDED","object":{object}}}"#);
    let WatchEvent::Added(watched) = serde_json::from_str(&filtered(&watch, 11)).unwrap() else {
        panic!()
    };
    for read in [&alone, &list.items[0], &watched] {
        assert_eq!(read.metadata.resource_version.as_deref(), Some("7"));
        let whole = serde_json::to_value(read).unwrap();
        assert_eq!(
            is_deeper(&whole["spec"], OBJECT_LEVELS - 1),
            levels >= OBJECT_LEVELS
        );
        if levels < OBJECT_LEVELS {
            assert_eq!(whole["spec"].to_string(), value);
        }
    }
}

/// Returns an object with `managedFields` of this JSON.
fn managed(entries: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"x","managedFields" : [{{"manager":"m","fieldsV1":{entries}}}],"uid":"1"}},"spec":{{"a":[{{}}]}}}}"#
    )
}

#[rstest]
#[case::objects(&format!("{{{}\"z\":{{}}}}", format!("\"f:a\":{},", nested(50, "{\"a\":", "}")).repeat(3_000)))]
#[case::empty_objects(&format!("{{{}\"z\":{{}}}}", "\"f:a\":{},".repeat(150_000)))]
#[case::arrays(&format!("[{}1]", format!("{},", nested(90, "[", "]")).repeat(8_000)))]
#[case::numbers(&format!("[{}1]", "0, ".repeat(400_000)))]
fn forged_managed_fields_are_truncated(#[case] entries: &str) {
    let kept = filtered(&managed(entries), 11);
    let value: Value = serde_json::from_str(&kept).unwrap();
    assert!((10_000..entries.len()).contains(&kept.len()));
    let [objects, members, values] = ["{\"", "\":", ","].map(|it| kept.matches(it).count());
    let size = objects * MAP_BYTES + members * MEMBER_BYTES + values * VALUE_BYTES;
    assert!(size < MAX_MANAGED_FIELDS + 10_000, "{size} bytes");
    assert_eq!(value["metadata"]["managedFields"][0]["manager"], "m");
    assert_eq!(value["metadata"]["uid"], "1");
    assert_eq!(value["spec"], json!({ "a": [{}] }));
}

#[rstest]
#[case::many_keys(&managed(&format!("{{{}\"z\":{{}}}}", "\"f:a\":{},".repeat(40_000))))]
#[case::another_field(&format!(r#"{{"fields":[{}1]}}"#, "0,".repeat(400_000)))]
#[case::a_value(&format!(r#"["managedFields",[{}1]]"#, "0,".repeat(400_000)))]
#[case::a_longer_name(&format!(r#"{{"managedFieldsX":[{}1]}}"#, "0,".repeat(400_000)))]
fn other_data_passes(#[case] text: &str) {
    assert!(filtered(text, 1000) == text);
}

#[test]
fn watch_goes_on_after_a_deep_object() {
    let deep = format!(
        r#"{{"type":"ADDED","object":{}}}"#,
        nested(5_000, "{\"a\":", "}")
    );
    let next = r#"{"type":"BOOKMARK","object":{"a":"}]\"{["}}"#;
    let lines = filtered(&format!("{deep}\n{next}\n"), 1000);
    assert_eq!(lines.lines().nth(1), Some(next));
}

#[tokio::test]
async fn only_json_is_filtered() {
    let deep = nested(200, "[", "]");
    for (content, kept) in [
        (Some("text/plain"), true),
        (Some("application/json;g=x"), false),
        (None, false),
    ] {
        let body = Full::new(Bytes::from(deep.clone())).map_err(|never| match never {});
        let mut response: Response<Box<DynBody>> = Response::new(Box::new(body));
        if let Some(content) = content {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, content.parse().unwrap());
        }
        let read = bounded(response)
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(read == deep.as_bytes(), kept, "{content:?}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        r#"[\\"{}\[\],:a€]{0,8}"#.prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 64, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(r#"[\\"{}\[\]a]{0,4}"#, inner, 0..4)
                .prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn shallow_json_passes_as_it_is(value in any_json(), chunk in 1_usize..9) {
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            prop_assert_eq!(filtered(&text, chunk), text);
        }
    }

    /// Strings contain brackets and quotes at every depth, including depths that are removed.
    #[test]
    fn deep_json_stays_json(value in any_json(), levels in 100_usize..140, chunk in 1_usize..9) {
        let text = format!("{}{value}{}", "{\"a\":[".repeat(levels / 2), "]}".repeat(levels / 2));
        let read: Value = serde_json::from_str(&filtered(&text, chunk)).unwrap();
        prop_assert!(!is_deeper(&read, KEPT_LEVELS));
        let whole: Value = serde_json::Deserializer::from_str(&text).into_iter().next().unwrap().unwrap_or(Value::Null);
        prop_assert!(whole.is_null() || is_deeper(&whole, KEPT_LEVELS - 1) || whole == read);
    }

    #[test]
    fn filter_never_panics(text in r#"[\\"{}\[\]a]{0,64}"#, chunk in 1_usize..9) {
        filtered(&text, chunk);
    }
}
