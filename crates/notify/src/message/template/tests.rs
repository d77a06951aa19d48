#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use rstest::rstest;

use qm_api::common::MAX_TEMPLATE;
use qm_api::tracked_field::ChangedBy;

use super::*;
use crate::fixtures::updated;
use crate::message::{BODY, Body, check_body};

fn view() -> View {
    View::of(&updated("1", "3"), Some("prod"))
}

fn body(source: &str, view: &View, entries: &[View], text: &str) -> Result<String, String> {
    Ok(Body::new(source)?
        .render("1", view, entries, text)?
        .to_string())
}

#[rstest]
#[case(
    "{{ kind }} {{ namespace }}/{{ name }} {{ field }}",
    "Deployment default/nginx replicas"
)]
#[case("{{ previous }} -> {{ value }} ({{ action }})", "1 -> 3 (Updated)")]
#[case("{{ id }} {{ time }} {{ cluster }}", "e1 2026-01-02T03:04:05Z prod")]
#[case(
    "{{ trackedFieldNamespace }}/{{ trackedField }}",
    "team/replicas-of-nginx"
)]
#[case("{% if value|int > previous|int %}up{% else %}down{% endif %}", "up")]
#[case("{{ merged }}{{ firstValue }}{{ truncated }}", "1")]
#[case("{% if firstValue is none %}single{% endif %}", "single")]
#[case("{% set a = name ~ '!' %}{{ a|upper }}", "NGINX!")]
#[case("{% with a = value|int + 1 %}{{ a }}{% endwith %}", "4")]
#[case("{{ name|replace('n', 'm')|truncate(3) }}", "mg…")]
#[case("{{ ('a\"<' ~ value)|tojson }}", r#""a\"<3""#)]
#[case("{{ (previous or 'nothing') if not missing else 'gone' }}", "1")]
#[case("{{ 'a&b=c +\u{e9}\n' | urlencode }}", "a%26b%3Dc%20%2B%C3%A9%0A")]
#[case("{{ firstValue | urlencode }}{{ (value | int) | urlencode }}", "3")]
#[case("{{ name[:2] }}{{ [name, kind]|first }}", "ngnginx")]
#[case("{{ name[::-1] }}{{ name[3:1:-1] }}", "xnignni")]
#[case("{{ name[9:][::-1] }}{{ name[9:][5:-7:-1] }}", "")]
#[case("{% raw %}{{ x }}{% endraw %}", "{{ x }}")]
fn template_renders(#[case] template: &str, #[case] expected: &str) {
    assert_eq!(check_template(template), Ok(()));
    assert_eq!(message(template, &view()), Ok(expected.into()));
}

#[rstest]
#[case("{{ context.owner }}", "@team")]
#[case("{{ context.none | default('nobody') }}", "nobody")]
#[case(
    "{% if changedBy %}{{ changedBy.manager }} {{ changedBy.subresource }}{% endif %}",
    "kube-controller-manager scale"
)]
fn context_and_writer_are_variables(#[case] template: &str, #[case] expected: &str) {
    let view = View {
        context: [("owner".into(), "@team".into())].into(),
        changed_by: Some(Box::new(ChangedBy {
            manager: "kube-controller-manager".into(),
            operation: Some("Update".into()),
            subresource: Some("scale".into()),
            time: None,
        })),
        ..view()
    };
    assert_eq!(message(template, &view), Ok(expected.into()));
    assert!(
        view.text()
            .contains("\nChanged by: kube-controller-manager (scale)")
    );
    let after_a_failed_entry = View {
        previous: None,
        ..view.clone()
    };
    assert!(after_a_failed_entry.text().contains("\nChanged by: "));
    let recreated = View {
        action: "Created".into(),
        ..view.clone()
    };
    assert!(recreated.text().contains("\nChanged by: "));
    let first = View {
        action: "Created".into(),
        ..after_a_failed_entry
    };
    assert!(!first.text().contains("Changed by"));
}

#[rstest]
#[case("{{ value", "line 1: ")]
#[case("a\nb {% if %}", "line 2: ")]
#[case(
    "{{ vale }}",
    "line 1: there is no variable `vale`; there are action, changedBy, cluster"
)]
#[case("{{ text }}", "no variable `text`")]
#[case(
    "{{ value|shout }}",
    "there is no filter `shout`; there are abs, capitalize"
)]
#[case("{{ value is odd }}", "there is no test `odd`")]
#[case("{{ range(10) }}", "a function or method is not available")]
#[case("{{ value.upper() }}", "a function or method is not available")]
#[case("{{ 'x' * 100000000 }}", "`*` is not available")]
#[case("{% include 'x' %}", "line 1: ")]
#[case("{% macro a() %}{% endmacro %}", "line 1: ")]
#[case(
    "{% filter upper %}x{% endfilter %}",
    "a filter block is not available"
)]
#[case("{% set x %}x{% endset %}", "a set block is not available")]
#[case(
    "{% for a in [1] recursive %}{% endfor %}",
    "a recursive loop is not available"
)]
fn invalid_template_is_rejected_by_the_check(#[case] template: &str, #[case] expected: &str) {
    let error = check_template(template).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

/// The CRDs limit the characters.
#[test]
fn template_of_wide_characters_may_be_as_long_as_one_of_letters() {
    let wide = "\u{1f514}".repeat(MAX_TEMPLATE);
    assert_eq!(check_template(&wide), Ok(()));
    assert_eq!(check_body(&wide), Ok(()));
}

#[test]
fn unlimited_growth_is_rejected_by_the_check() {
    let doubling = "{% set a = value %}".to_owned() + &"{% set a = a ~ a %}".repeat(30) + "{{ a }}";
    let open = |template: String, _| template + "{% for a in [1, 2, 3, 4, 5, 6, 7, 8] %}";
    let nested = (0..9).fold(String::new(), open) + "x" + &"{% endfor %}".repeat(9);
    let by_loops = (0..30).fold(String::from("{% for a in [value] %}"), |template, _| {
        template + "{% for a in [a ~ a] %}"
    }) + "{{ a }}"
        + &"{% endfor %}".repeat(31);
    let replacing = "{{ ".to_owned() + "value" + &"|replace('', value)".repeat(45) + " }}";
    for template in [
        doubling,
        nested,
        by_loops,
        replacing,
        "x".repeat(cost::MAX_SOURCE + 1),
    ] {
        let error = message(&template, &view()).unwrap_err();
        assert!(
            error.contains("could exceed the memory limit")
                || error.contains("longer than")
                || error.contains("more than"),
            "{error}"
        );
    }
    let long = View {
        value: Some("é".repeat(512)),
        ..view()
    };
    assert!(
        message("{{ value|replace('', value) }}", &long)
            .unwrap_err()
            .contains("replace produces more than")
    );
}

#[test]
fn deep_nesting_is_an_error_without_a_crash() {
    let deep = |open: &str, close: &str, depth: usize| {
        format!(
            "{{{{ {}value{} }}}}",
            open.repeat(depth),
            close.repeat(depth)
        )
    };
    for depth in [50, 99, 140, 149, 150, 290, 5000] {
        let chain = (0..depth).map(|_| "{% elif 1 %}").collect::<String>();
        for template in [
            deep("(", ")", depth),
            deep("[", "]", depth),
            deep("{1:", "}", depth),
            deep("-", "", depth),
            deep("not ", "", depth),
            deep("name if ", " else name", depth),
            deep("", ".value", depth),
            deep("", "|trim", depth),
            deep("", " ~ 'x'", depth),
            deep("", "[0", depth),
            "{% if 1 %}".repeat(depth) + &"{% endif %}".repeat(depth),
            "{% for a in entries %}".repeat(depth) + &"{% endfor %}".repeat(depth),
            format!("{{% if 1 %}}{chain}{{% endif %}}"),
        ] {
            let rendered = body(&template, &view(), &[view()], "text");
            assert!(depth < 300 || rendered.is_err(), "{template}");
        }
    }
}

#[test]
fn body_has_the_text_and_all_entries() {
    let (one, two) = (
        view(),
        View {
            value: Some("4".into()),
            ..view()
        },
    );
    let template = "{% for e in entries %}{{ loop.index }}:{{ e.name }}={{ e.value }} {% endfor %}{{ text|tojson }}";
    assert_eq!(check_body(template), Ok(()));
    assert_eq!(
        body(template, &one, &[one.clone(), two], "a\nb"),
        Ok(r#"1:nginx=3 2:nginx=4 "a\nb""#.into())
    );
    assert_eq!(check_body("{{ entries|tojson }}"), Ok(()));
    assert_eq!(
        check_body("{% for a in [1, 2] %}{{ text|tojson }}{% endfor %}"),
        Ok(())
    );
    assert!(
        check_body(
            "{% for a in entries %}{% for b in entries %}{{ text }}{% endfor %}{% endfor %}"
        )
        .is_err()
    );
}

#[test]
fn urlencode_needs_a_text_and_counts_threefold() {
    for (template, problem) in [
        (
            "{{ entries | urlencode }}",
            "urlencode needs a text: write tojson before it",
        ),
        ("{{ context.owner | urlencode }}", "undefined value"),
    ] {
        let error = body(template, &view(), &[view()], "text").unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    let text = "&".repeat(MESSAGE_LIMITS.output);
    let encoded = body("{{ text | urlencode }}", &view(), &[], &text).unwrap();
    assert_eq!(encoded.len(), 3 * text.len());
    let repeated =
        |filters: usize| check_body(&format!("{{{{ text{} }}}}", " | urlencode".repeat(filters)));
    assert_eq!(repeated(4), Ok(()));
    assert!(
        repeated(6)
            .unwrap_err()
            .contains("could exceed the memory limit")
    );
}

#[test]
fn body_is_limited() {
    let text = "x".repeat(MESSAGE_LIMITS.output);
    let error = body(&"{{ text }}".repeat(9), &view(), &[view()], &text).unwrap_err();
    assert_eq!(error, format!("the result has more than {BODY} bytes"));
}

proptest! {
    /// A template that passes the check neither panics nor exceeds its limits.
    #[test]
    fn any_checked_template_stays_within_limits(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "{{ ", " }}", "{% if ", "{% endif %}", "{% for a in ", "{% endfor %}", "{% set a = ", " %}", "value", "name",
                " ~ ", " + ", "|upper", "|tojson", "|urlencode", "|replace('', name)", "[", "]", "a", "'x'", "3", "entries", "|length",
                "|truncate(2)", ".value", " is none", "{#", "#}", "|default(name)", " and ", "-", "(", ")", "é\n",
            ]),
            0..40,
        ),
    ) {
        let template: String = parts.concat();
        if let Ok(text) = message(&template, &view()) {
            prop_assert!(text.len() <= super::super::TextLimit::WEBHOOK.max());
        }
        let _ = body(&template, &view(), &[view()], "text");
    }

    #[test]
    fn any_text_can_be_checked(template in "\\PC{0,200}") {
        let _ = check_body(&template);
    }
}
