#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;
use serde_json_path::JsonPath;

use super::*;
use crate::controllers::tracked_field::field::query;
use crate::controllers::tracked_field::field::tests::any_json;

/// Counts the work of the library: the steps follow its source.
#[derive(Default)]
struct Counted {
    visited: u64,
    /// Number of levels through which matches of `..` were returned.
    rises: u64,
}

impl Counted {
    fn run<'a>(&mut self, steps: &[QueryStep], from: &'a Value) -> Vec<&'a Value> {
        let mut nodes = vec![from];
        for step in steps {
            let found = nodes.iter().flat_map(|node| {
                if step.descends {
                    self.descend(&step.select, node)
                } else {
                    self.select(&step.select, node)
                }
            });
            nodes = found.collect();
        }
        nodes
    }

    fn descend<'a>(&mut self, select: &QuerySelector, node: &'a Value) -> Vec<&'a Value> {
        let mut found = self.select(select, node);
        for child in children(node, usize::MAX) {
            let below = self.descend(select, child);
            self.rises += below.len() as u64;
            found.extend(below);
        }
        found
    }

    fn select<'a>(&mut self, select: &QuerySelector, node: &'a Value) -> Vec<&'a Value> {
        let text = query::text(&[QueryStep::child(select.clone())]);
        let found = JsonPath::parse(&format!("${text}"))
            .unwrap()
            .query(node)
            .all();
        self.visited += 1;
        match select {
            QuerySelector::Name(_) | QuerySelector::Index(_) => {}
            QuerySelector::All | QuerySelector::Slice(_) => self.visited += found.len() as u64,
            QuerySelector::Filter(filter) => {
                for child in children(node, usize::MAX) {
                    self.visited += 1;
                    let ends: Vec<_> = filter
                        .paths
                        .iter()
                        .map(|path| self.run(path, child))
                        .collect();
                    if filter.compares_trees {
                        let nodes =
                            |end: &[&Value]| end.iter().map(|value| nodes(value)).sum::<u64>();
                        self.visited += nodes(&ends[0]).min(nodes(&ends[2]));
                    }
                }
            }
        }
        found
    }
}

fn nodes(value: &Value) -> u64 {
    1 + children(value, usize::MAX)
        .into_iter()
        .map(nodes)
        .sum::<u64>()
}

fn addresses(values: &[&Value]) -> Vec<*const Value> {
    values
        .iter()
        .map(|value| std::ptr::from_ref(*value))
        .collect()
}

fn cost(field: &str, object: &Value) -> Cost {
    FieldSelector::compile("X", field)
        .unwrap()
        .cost(&mut Sizes::of(object))
}

fn any_path() -> impl Strategy<Value = String> {
    let step = prop::sample::select(vec![
        ".a",
        ".b",
        ".c",
        "[*]",
        ".*",
        "[0]",
        "[-1]",
        "[1:3]",
        "[::2]",
        "['a','b']",
        "['a.b']",
        "[0,1]",
        "[?(@.a)]",
        "[?(@.a==1)]",
        "[?(@.a==@.b)]",
        "[?(@.a.b!=@.c)]",
        "[?(@.a[*])]",
        "[?(@[*].b)]",
        "[?(@.*.*)]",
        "[?(@<=@.a)]",
    ]);
    (
        prop::collection::vec(step, 1..5),
        prop::option::of(0usize..4),
    )
        .prop_map(|(steps, descends)| {
            let steps = steps
                .iter()
                .enumerate()
                .map(|(index, step)| match descends {
                    Some(at) if at == index => format!("..{}", step.trim_start_matches('.')),
                    _ => (*step).to_owned(),
                });
            format!("{{{}}}", steps.collect::<String>())
        })
}

proptest! {
    /// The library visits what [`Counted`] counts, and never more than the estimate.
    #[test]
    fn no_lookup_visits_more_than_its_estimate(path in any_path(), part in any_json(), times in 0usize..100) {
        let object = json!({ "a": vec![part.clone(); times], "b": part, "c": { "a": { "b": part } } });
        let Ok(field) = FieldSelector::compile("X", &path) else { return Ok(()) };
        let FieldLookup::Paths(paths) = &field.0.select else { panic!("{path} is a path") };
        let (mut all, mut counted) = (Vec::new(), Counted::default());
        for path in paths {
            let found = counted.run(&path.steps, &object);
            prop_assert_eq!(addresses(&found), addresses(&path.query.query(&object).all()));
            all.extend(found);
        }
        let mut sizes = Sizes::of(&object);
        let cost = field.cost(&mut sizes);
        let took = counted.visited + counted.rises / LEVELS_PER_NODE;
        prop_assert!(took <= cost.visited, "{path} visits {took}, estimated {}", cost.visited);
        let written = sizes.written(&all, u64::MAX);
        prop_assert!(cost.written.is_none_or(|most| written <= most), "{path} writes {written}, estimated {cost:?}");
        prop_assert!(written >= all.iter().map(|value| nodes(value)).sum::<u64>());
    }
}

/// As many nodes as fit into an object, next to the usual fields.
fn huge() -> Value {
    let container = json!({ "name": "web", "image": "nginx:1", "args": vec![""; 100_000] });
    json!({ "spec": { "replicas": 3, "template": { "spec": { "containers": [container] } } } })
}

#[rstest]
#[case("{.spec.replicas}")]
#[case("{.spec.template.spec.containers[0].image}")]
#[case("{.spec.template.spec.containers[*].image}")]
#[case("{.spec.template.spec.containers[?(@.name==\"web\")].image}")]
#[case("{.spec.template.spec.containers[*]['name','image']}")]
#[case("{.spec.template.spec.containers[0].args[99999]}")]
#[case("{.spec.none[*].none}")]
fn path_to_few_nodes_is_cheap_in_any_object(#[case] path: &str) {
    let cost = cost(path, &huge());
    assert!(
        cost.visited < 50 && cost.written.unwrap() < 50,
        "{path}: {cost:?}"
    );
}

#[test]
fn path_of_names_is_estimated_without_a_walk_through_the_object() {
    let object = huge();
    let mut sizes = Sizes::of(&object);
    FieldSelector::compile("X", "{.spec.template.spec.containers[0].image}")
        .unwrap()
        .cost(&mut sizes);
    assert!(
        sizes.large.is_none() && sizes.walked() < 10,
        "{}",
        sizes.walked()
    );
}

#[rstest]
#[case("{..image}", 100_000)]
#[case("{.spec..['a','b','c','d','e','f','g','h','i','j','k','l','m','n','o','p']}", 16 * 100_000)]
#[case("{.spec.template.spec.containers[0].args[*]}", 100_000)]
#[case("{.spec.template.spec.containers[*].args[?(@.a)]}", 200_000)]
#[case("{..[?(@.a==@.b)]}", 100_000 * 4)]
fn path_through_all_nodes_costs_as_many(#[case] path: &str, #[case] least: u64) {
    let cost = cost(path, &huge());
    assert!(
        cost.visited >= least && cost.visited < 6 * least,
        "{path}: {cost:?}"
    );
}

#[test]
fn value_costs_its_written_size() {
    let object = json!({ "text": "x".repeat(80_000), "list": vec![0; 1000], "deep": [[[["x"]]]] });
    let written = |path: &str| cost(path, &object).written.unwrap();
    assert_eq!(written("{.none}"), 0);
    assert_eq!(written("{.text}"), 10_001);
    assert_eq!(written("{.list}"), 1001);
    assert_eq!(written("{['list','list','list']}"), 3003);
    assert_eq!(written("{.deep}"), 5);
    assert!(written("{$['list','text']}") == 11_002);
}
