#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write as _;

use serde_json::json;

use super::*;

fn field(path: &str) -> FieldSelector {
    FieldSelector::compile("Deployment", path).unwrap()
}

fn found(text: &str) -> Lookup {
    Lookup::Found(ObservedValue::Text(text.into()))
}

/// Returns a Deployment with `args` arguments.
fn deployment(args: usize) -> Value {
    let containers = json!([{ "name": "web", "image": "nginx:1", "args": vec![""; args] }]);
    json!({ "spec": { "replicas": 3, "template": { "spec": { "containers": containers } } } })
}

/// Returns a union of 16 paths through every node for each of `numbers`.
fn hostile(numbers: impl Iterator<Item = usize>) -> Vec<FieldSelector> {
    let path = |number| {
        let names = (0..16).fold(String::new(), |mut names, name| {
            write!(
                names,
                "{}'n{number}-{name}'",
                if name == 0 { "" } else { "," }
            )
            .unwrap();
            names
        });
        field(&format!("{{..[{names}]}}"))
    };
    numbers.map(path).collect()
}

fn all(
    object: &Value,
    fields: &[FieldSelector],
    mode: LookupMode,
) -> HashMap<FieldSelector, Lookup> {
    look_up(object, fields.to_vec(), |_| true, mode)
}

#[test]
fn ordinary_fields_are_found_inline_beside_hostile_ones() {
    let object = deployment(200_000);
    let ordinary = [
        "replicas",
        "image",
        "image:web",
        "{.spec.replicas}",
        "{.spec.template.spec.containers[*].image}",
    ]
    .map(field);
    let mut fields = hostile(0..100);
    fields.extend(ordinary.clone());
    for mode in [LookupMode::Inline, LookupMode::Background] {
        let lookups = all(&object, &fields, mode);
        assert_eq!(lookups.len(), 105);
        for (field, value) in ordinary
            .iter()
            .zip(["3", "nginx:1", "nginx:1", "3", "nginx:1"])
        {
            assert_eq!(lookups[field], found(value), "{} {mode:?}", field.text());
        }
        for field in &fields[..100] {
            let Lookup::Rejected(estimate) = lookups[field] else {
                panic!("{mode:?} {:?}", lookups[field])
            };
            assert!(estimate.nodes().unwrap() > 16 * 200_000, "{estimate:?}");
        }
    }
}

#[test]
fn expensive_lookup_is_deferred_and_found_in_the_background() {
    let object = deployment(50_000);
    let path = field("{..image}");
    assert_eq!(
        all(&object, std::slice::from_ref(&path), LookupMode::Inline)[&path],
        Lookup::Deferred
    );
    assert_eq!(
        all(&object, std::slice::from_ref(&path), LookupMode::Background)[&path],
        found("nginx:1")
    );
    let small = deployment(500);
    assert_eq!(
        all(&small, std::slice::from_ref(&path), LookupMode::Inline)[&path],
        found("nginx:1")
    );
}

/// The bound of one thread's work for one state of an object.
#[test]
fn inline_lookups_are_bounded_together() {
    let object = deployment(5_000);
    let fields: Vec<_> = (0..1000)
        .map(|number| field(&format!("{{..n{number}}}")))
        .collect();
    let lookups = all(&object, &fields, LookupMode::Inline);
    let found = lookups
        .values()
        .filter(|lookup| matches!(lookup, Lookup::Found(_)))
        .count();
    assert!((1..=20).contains(&found), "{found}");
    assert!(lookups.values().any(|lookup| *lookup == Lookup::Deferred));
    assert!(
        lookups
            .values()
            .any(|lookup| matches!(lookup, Lookup::Rejected(_)))
    );
}

/// The budget is the same while another state of the object is looked up for one field alone.
#[test]
fn budget_rejects_the_same_lookups_whichever_are_requested() {
    let object = deployment(50_000);
    let fields: Vec<_> = (0..60)
        .map(|number| field(&format!("{{..n{number:02}}}")))
        .collect();
    let whole = all(&object, &fields, LookupMode::Background);
    let refused = whole
        .values()
        .filter(|lookup| matches!(lookup, Lookup::Rejected(_)))
        .count();
    assert!((1..60).contains(&refused), "{refused}");
    for requested in fields.iter().step_by(7) {
        let one = look_up(
            &object,
            fields.clone(),
            |field| field == requested,
            LookupMode::Background,
        );
        assert_eq!(one.len(), 1);
        assert_eq!(one[requested], whole[requested]);
    }
    for (field, lookup) in all(&object, &fields, LookupMode::Inline) {
        assert_eq!(
            matches!(lookup, Lookup::Rejected(_)),
            matches!(whole[&field], Lookup::Rejected(_))
        );
    }
}

/// The cost of writing a value is known only after its lookup.
#[test]
fn budget_counts_the_values_of_lookups_that_are_not_requested() {
    let object = json!({ "a": vec![vec![vec![0; 10]; 10]; 2_000], "b": 1 });
    let fields: Vec<_> = [
        "{.a[*][*]}",
        "{.a[:][*]}",
        "{.a[*][:]}",
        "{.a[:][:]}",
        "{.a[0:][*]}",
    ]
    .into_iter()
    .map(field)
    .collect();
    let whole = all(&object, &fields, LookupMode::Background);
    let refused = whole
        .values()
        .filter(|lookup| matches!(lookup, Lookup::Rejected(_)))
        .count();
    assert!((1..5).contains(&refused), "{whole:?}");
    for requested in &fields {
        let one = look_up(
            &object,
            fields.clone(),
            |field| field == requested,
            LookupMode::Background,
        );
        assert_eq!(one[requested], whole[requested]);
    }
}

#[test]
fn value_that_is_too_large_to_write_is_rejected() {
    let object = json!({ "text": "x".repeat(1_400_000), "list": vec![vec![json!(0); 1000]; 300] });
    let union = |name: &str| {
        field(&format!(
            "{{[{}]}}",
            vec![format!("'{name}'"); 16].join(",")
        ))
    };
    for path in [union("text"), union("list")] {
        for mode in [LookupMode::Inline, LookupMode::Background] {
            assert!(
                matches!(
                    all(&object, std::slice::from_ref(&path), mode)[&path],
                    Lookup::Rejected(_)
                ),
                "{mode:?}"
            );
        }
    }
    let one = field("{.text}");
    assert_eq!(
        all(&object, std::slice::from_ref(&one), LookupMode::Inline)[&one],
        Lookup::Deferred
    );
    assert!(matches!(
        all(&object, std::slice::from_ref(&one), LookupMode::Background)[&one],
        Lookup::Found(_)
    ));
    // The matches are known only after the lookup.
    let nested = (0..100).fold(json!(vec![0; 20_000]), |inner, _| json!([inner]));
    let path = field("{..*}");
    assert!(matches!(
        all(&nested, std::slice::from_ref(&path), LookupMode::Background)[&path],
        Lookup::Rejected(_)
    ));
}

/// The work of estimates is bounded for any number of fields.
#[test]
fn estimates_are_bounded_together() {
    let lists: Vec<_> = (0..64).map(|_| json!(vec![json!([0]); 30])).collect();
    let object = json!({ "a": lists });
    // A space may come before a dot.
    let path = |number| field(&format!("{{ .a[*][?(@.n{number})][*]}}"));
    let mut fields: Vec<_> = (0..2000).map(path).collect();
    let ordinary = [
        "replicas",
        "image",
        "{.spec.replicas}",
        "{.spec.template.spec.containers[*].image}",
    ]
    .map(field);
    fields.extend(ordinary.clone());
    let mut object = object;
    object["spec"] = deployment(1)["spec"].take();
    for (mode, not_estimated) in [
        (LookupMode::Background, Lookup::Rejected(Estimate::UNKNOWN)),
        (LookupMode::Inline, Lookup::Deferred),
    ] {
        let lookups = all(&object, &fields, mode);
        assert_eq!(lookups.len(), 2004);
        let unknown = lookups
            .values()
            .filter(|lookup| **lookup == not_estimated)
            .count();
        assert!((1..2000).contains(&unknown), "{unknown}");
        for (field, value) in ordinary.iter().zip(["3", "nginx:1", "3", "nginx:1"]) {
            assert_eq!(lookups[field], found(value), "{} {mode:?}", field.text());
        }
    }
}

/// The nodes of a lookup are counted up to the bound.
#[test]
fn count_of_written_nodes_ends_at_the_bound() {
    let object = json!({ "a": vec![vec![0; 60]; 10_000] });
    let field = field("{.a[*]}");
    let mut sizes = Sizes::of(&object);
    let matches = field.matches(&object);
    assert_eq!(sizes.written(&matches, u64::MAX), 610_000);
    let before = sizes.walked();
    assert!((20_001..20_100).contains(&sizes.written(&matches, 20_000)));
    assert!(
        sizes.walked() - before < 20_100,
        "{}",
        sizes.walked() - before
    );
}

#[test]
fn estimate_has_two_digits() {
    let of = |nodes| Estimate::of(nodes).nodes().unwrap();
    assert_eq!(
        [0, 7, 42, 999, 1_234_567, 11_000_001].map(of),
        [0, 7, 42, 1000, 1_300_000, 12_000_000]
    );
    assert_eq!(of(u64::MAX), u64::MAX);
    let message = Estimate::of(11_000_001).to_string();
    assert!(
        message.starts_with("the lookup takes about 12,000,000 steps in this object; "),
        "{message}"
    );
    assert!(
        message.contains("may take 2,000,000 steps: write names"),
        "{message}"
    );
}

#[test]
fn lookups_that_panic_in_a_watched_object_are_deferred_until_a_read() {
    let selectors = Selectors {
        field: field("replicas"),
        context: Vec::new(),
    };
    let mut lookups = Lookups::default();
    lookups.add(&selectors, None, true);
    let found = lookups.or_deferred(|_| panic!("boom")).unwrap();
    assert_eq!(found.of(&selectors), Some(Lookup::Deferred));
}

#[test]
fn context_that_was_added_during_the_lookups_needs_a_read() {
    let looked_up = FoundFields {
        fields: [(field("replicas"), found("3"))].into(),
        ..FoundFields::default()
    };
    let mut selectors = Selectors {
        field: field("replicas"),
        context: Vec::new(),
    };
    assert!(matches!(
        looked_up.of(&selectors),
        Some(Lookup::Found(ObservedField { .. }))
    ));
    selectors
        .context
        .push(("owner".into(), field("{.metadata.name}")));
    assert!(matches!(looked_up.of(&selectors), Some(Lookup::Deferred)));
}
