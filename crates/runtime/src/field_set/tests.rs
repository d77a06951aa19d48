#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Returns whether an element identifies an item: the definition that the indexes follow.
fn identifies(element: &str, item: &Value) -> bool {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    if let Some(value) = element.strip_prefix("v:") {
        return parsed(value) == *item;
    }
    let Some(Value::Object(keys)) = element.strip_prefix("k:").map(parsed) else {
        return false;
    };
    keys.iter()
        .all(|(name, value)| item.get(name).map_or(value == "TCP", |item| item == value))
}

fn any_value() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!("TCP"),
        json!("a"),
        json!(80),
        json!(80.0),
        json!(0.0),
        json!(-0.0),
        json!(null),
    ])
}

fn any_object() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["name", "port", "protocol"]);
    prop::collection::btree_map(name, any_value(), 0..4).prop_map(|object| json!(object))
}

fn any_item() -> impl Strategy<Value = Value> {
    prop_oneof![4 => any_object(), 1 => any_value()]
}

fn any_element() -> impl Strategy<Value = String> {
    let other = ["k:[1]", "k:{", "v:", "v:{", "i:0", ".", "f:name", ""];
    prop_oneof![
        6 => any_object().prop_map(|keys| format!("k:{keys}")),
        1 => any_object().prop_map(|keys| format!("k: {keys:#}")),
        1 => any_item().prop_map(|item| format!("v:{item}")),
        1 => prop::sample::select(other.map(str::to_owned).to_vec()),
    ]
}

/// Returns a set with these elements.
fn set(elements: &[String]) -> Value {
    let fields = elements.iter().map(|name| (name.clone(), json!({})));
    Value::Object(fields.collect())
}

proptest! {
    #[test]
    fn items_are_those_that_an_element_identifies(
        elements in prop::collection::vec(any_element(), 0..6),
        items in prop::collection::vec(any_item(), 0..6),
    ) {
        let found = IdentifiedItems::new(elements.iter().map(String::as_str), &items);
        for element in &elements {
            let expected: Vec<_> = items.iter().filter(|item| identifies(element, item)).collect();
            prop_assert_eq!(found.get(element), expected, "{}", element);
        }
        let others: Vec<_> = items
            .iter()
            .filter(|item| !elements.iter().any(|element| identifies(element, item)))
            .collect();
        prop_assert_eq!(found.others(), others);
    }

    #[test]
    fn element_of_an_item_is_the_first_that_identifies_it(
        sets in prop::collection::vec(prop::collection::vec(any_element(), 0..6), 0..3),
        item in any_item(),
    ) {
        let sets: Vec<_> = sets.iter().map(|elements| set(elements)).collect();
        let sets: Vec<_> = sets.iter().collect();
        let all: Vec<&String> = sets
            .iter()
            .filter_map(|set| set.as_object())
            .flat_map(Map::keys)
            .filter(|element| element.starts_with("k:"))
            .collect();
        let keys = all
            .iter()
            .find_map(|element| serde_json::from_str::<Map<String, Value>>(&element[2..]).ok());
        let elements = ListElements::new(&sets);
        prop_assert_eq!(elements.is_some(), keys.is_some());
        if let (Some(elements), Some(keys)) = (elements, keys) {
            let names: Vec<_> = keys.keys().cloned().collect();
            prop_assert_eq!(elements.keys(), names);
            let element = elements.of(&item);
            match all.iter().find(|element| identifies(element, &item)) {
                Some(first) => prop_assert_eq!(&element, *first),
                None => prop_assert!(identifies(&element, &item), "{}", element),
            }
        }
    }
}

/// A writer can store any elements, each with other keys.
#[test]
fn invented_keys_do_not_multiply_the_lookups() {
    let cost = |count: usize| {
        let invented = (0..count).map(|at| format!("k:{{\"{at}\":0}}"));
        let elements: Vec<_> = ["k:{\"name\":\"a\"}".to_owned()]
            .into_iter()
            .chain(invented)
            .collect();
        let items: Vec<_> = (0..count)
            .map(|at| json!({ "name": "a", format!("{at}"): 0 }))
            .collect();
        visits(|| {
            let found = IdentifiedItems::new(elements.iter().map(String::as_str), &items);
            assert_eq!(found.get("k:{\"name\":\"a\"}").len(), count);
        })
    };
    assert!(cost(512) <= 2 * cost(256));
}
