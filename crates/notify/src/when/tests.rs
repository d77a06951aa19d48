#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use qm_api::tracked_field::ChangedBy;
use rstest::rstest;

use super::*;
use crate::fixtures::{item, updated};

/// Evaluates the expression for a change of an image.
fn evaluate(source: &str) -> Result<bool, String> {
    let item = updated(
        "registry.example.com:5000/web:v1.28.3",
        "registry.example.com:5000/web:v1.29.0-rc1@sha256:0123",
    );
    let mut entry = item.entry;
    entry.context = [("owner".into(), "@team".into())].into();
    entry.changed_by = Some(Box::new(ChangedBy {
        manager: "kubectl-edit".into(),
        operation: Some("Update".into()),
        subresource: None,
        time: entry.time.clone(),
    }));
    When::parse(source)?.evaluate(&entry, item.previous.as_ref())
}

fn of_values(source: &str, previous: &str, value: &str) -> Result<bool, String> {
    let item = updated(previous, value);
    When::parse(source)?.evaluate(&item.entry, item.previous.as_ref())
}

#[rstest]
#[case("action == 'Updated'", true)]
#[case("action in ['Created', 'Deleted']", false)]
#[case(
    "kind == \"Deployment\" && __namespace__ == 'default' && name == 'nginx' && field == 'replicas'",
    true
)]
#[case(
    "value.contains('web') && !value.startsWith('web') && previous.endsWith('3')",
    true
)]
#[case("size(value) > 10 ? missing : true", false)]
#[case("value.matches('v1[.]2[0-9]')", true)]
#[case("value.matches('^(a?){200}b')", false)]
#[case("action == 'Created' || value != previous", true)]
#[case("matches(value, '^v1')", false)]
#[case("tag(value) == 'v1.29.0-rc1' && tag(previous) == 'v1.28.3'", true)]
#[case("version(tag(value)).major != version(tag(previous)).major", false)]
#[case("version(tag(value)).minor > version(tag(previous)).minor", true)]
#[case("version(tag(value)).pre != ''", true)]
#[case(
    "context.owner == '@team' && has(context.owner) && !has(context.other)",
    true
)]
#[case("context['owner'] == '@team'", true)]
#[case(
    "changedBy.manager == 'kubectl-edit' && changedBy.subresource == null",
    true
)]
#[case(
    "changedBy.operation == 'Update' && changedBy.time == '2026-01-02T03:04:05Z'",
    true
)]
// Only the variable has to be escaped.
#[case("has(context.namespace) || __namespace__ == 'namespace'", false)]
#[case("previous != null", true)]
// The examples of the documentation.
#[case("action != 'Created'", true)]
#[case(
    "action != 'Updated' || version(tag(value)).major != version(tag(previous)).major",
    false
)]
#[case("changedBy == null || changedBy.subresource != 'scale'", true)]
#[case(
    "int('3') + 1 == 4 && double('1.5') < 2.0 && string(7) == '7' && -1 < 0",
    true
)]
fn expression_has_a_result(#[case] source: &str, #[case] expected: bool) {
    assert_eq!(evaluate(source), Ok(expected));
}

#[rstest]
#[case("number(value) < number(previous)", "3", "2", true)]
#[case("number(value) < number(previous)", "3", "10", false)]
#[case("number(value) > number(previous)", "512Mi", "2Gi", true)]
#[case("number(value) == 0.5", "1", "500m", true)]
#[case("number(value) == 1000.0", "1", "1k", true)]
#[case("number(value) == 1e3", "1", "1e3", true)]
#[case("number(value) > 3 && number(value) < 5.5", "1", "5", true)]
#[case("number(value) >= 2.0 * number(previous)", "4", "8", true)]
#[case("value != null && number(value) > number('1Gi')", "1", "1025Mi", true)]
#[case(
    "changedBy == null || changedBy.subresource != 'scale'",
    "1",
    "2",
    true
)]
fn numbers_and_quantities_are_compared(
    #[case] source: &str,
    #[case] previous: &str,
    #[case] value: &str,
    #[case] expected: bool,
) {
    assert_eq!(of_values(source, previous, value), Ok(expected));
}

#[rstest]
#[case::does_not_parse("action ==", "line 1, column")]
#[case::reserved(
    "namespace == 'shop'",
    "column 1: reserved identifier: namespace; write __namespace__"
)]
#[case::two_lines("action ==\n  ==", "line 2, column")]
#[case::unknown_variable(
    "valu == '1'",
    "line 1, column 1: unknown variable valu: write value, or another of __namespace__, action"
)]
#[case::other_case("Value == '1'", "unknown variable Value: write value")]
#[case::word(
    "action == Updated",
    "column 11: unknown variable Updated: quote it: 'Updated'"
)]
#[case::lower_case_word("name == web", "or quote it: 'web'")]
#[case::constant("missing == True", "unknown variable True: write true")]
#[case::none("previous == None", "unknown variable None: write null")]
#[case::unknown_later(
    "action == 'Updated' && labels.a == 'b'",
    "line 1, column 24: unknown variable labels"
)]
#[case::unknown_after_the_same_word(
    "context.mail == 'mail' && // mail\n 'é' == mail",
    "line 2, column 9: unknown variable mail"
)]
#[case::unknown_function("now() > 1", "column 1: unknown function now: write one of contains")]
#[case::other_case_of_a_function(
    "value.startswith('v1')",
    "unknown function startswith: write startsWith, or another of contains"
)]
#[case::not_as_a_function("not(missing)", "unknown function not: write !")]
#[case::unknown_method(
    "context.split == '' || value.split('/')[0] == ''",
    "column 30: unknown function split"
)]
#[case::type_is_no_function("type(value) == string", "unknown function type")]
#[case::one_equals_sign(
    "action = 'Updated'",
    "line 1, column 8: Syntax error: mismatched input '=' expecting <EOF>; write =="
)]
#[case::and("missing and true", "; write &&")]
#[case::and_in_brackets("(missing AND true)", "; write &&")]
#[case::or("'é' == value\n or missing", "; write ||")]
#[case::one_ampersand("missing & true", "; write &&")]
#[case::one_bar("missing | true", "; write ||")]
#[case::not("missing || not missing", "; write !")]
#[case::not_in(
    "value not in ['1']",
    "; write ! before the comparison, such as !(value in"
)]
#[case::has("has(previous) && true", "; write previous != null")]
#[case::has_without_a_name("has('a')", "; write a member, such as has(context.owner)")]
#[case::curly_quotes("action == \u{201c}Updated\u{201d}", "; write straight quotes")]
#[case::single_curly_quotes("action == \u{2018}Updated\u{2019}", "; write straight quotes")]
#[case::comprehension(
    "[1].all(it, it > 0)",
    "all, exists, exists_one, filter and map are not available"
)]
#[case::map("{'a': 1}.a == 1", "maps and messages are not available")]
#[case::bytes("b'a' == b'a'", "bytes are not available")]
#[case::pattern_is_no_literal(
    "value.matches(previous)",
    "matches needs its regular expression as a string"
)]
#[case::pattern_is_invalid("value.matches('(')", "the regular expression \"(\": ")]
#[case::pattern_is_large("value.matches('(a{1000}){1000}')", "the regular expression")]
// Each regular expression alone is accepted.
#[case::patterns_are_large(
    "value.matches('(a?){200}b') || value.matches('(a?){200}b')",
    "the regular expression \"(a?){200}b\": "
)]
fn invalid_expression_says_what_to_write(#[case] source: &str, #[case] expected: &str) {
    let error = evaluate(source).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[rstest]
#[case::string("value == 0", "value is a string: write '0', or number(value) == 0")]
#[case::unequal(
    "previous != -1.5",
    "previous is a string: write '-1.5', or number(previous) != -1.5"
)]
#[case::bool("value == true", "value is a string: write 'true'")]
#[case::order("value > 3", "value is a string: write number(value) > 3")]
#[case::literal_is_first("3 <= value", "value is a string: write 3 <= number(value)")]
#[case::list_item(
    "value in ['1', 2]",
    "value is a string: write '2', or number(value) in [...]"
)]
#[case::list("value == ['1']", "value is not a list: write value in [...]")]
#[case::unequal_list("value != ['1']", "value is not a list: write !(value in [...])")]
#[case::in_a_string("'1' in value", "value is a string: write value.contains('1')")]
#[case::in_a_number("'1' in 1", "1 is not a list: write ==")]
#[case::context("context.limit == 1", "write '1', or number(context.limit) == 1")]
#[case::member(
    "context['limit'] == 1",
    "context['limit'] is a string: write '1', or number(context['limit']) == 1"
)]
#[case::changed_by(
    "changedBy.subresource == 1",
    "changedBy.subresource is a string: write '1'"
)]
#[case::function(
    "tag(value) == 1.28",
    "tag(value) is a string: write '1.28', or number(tag(value)) == 1.28"
)]
#[case::version(
    "version(tag(value)).major == '1'",
    "version(tag(value)).major is a number: write 1"
)]
#[case::version_text("version(value).pre == 1", "version(value).pre is a string: write '1'")]
#[case::number("number(value) == '3'", "number(value) is a number: write 3")]
#[case::quantity(
    "number(value) > '2Gi'",
    "number(value) is a number: write number('2Gi')"
)]
#[case::size("size(value) > '3'", "size(value) is a number: write 3")]
#[case::number_in("number(value) in [1, '2']", "number(value) is a number: write 2")]
#[case::variables("value == number(previous)", "write number(value) == number(previous)")]
#[case::literals(
    "'a' == 1",
    "'a' is a string and 1 is a number: write number('a') == 1"
)]
#[case::sum("value + 'Gi' == 1", "(...) is a string")]
#[case::choice("(missing ? '' : value) == 0", "(...) is a string")]
#[case::missing(
    "missing == 'true'",
    "missing is a bool: write true or false, without quotes"
)]
#[case::has(
    "has(context.a) == '1'",
    "has(context.a) is a bool: write true or false"
)]
#[case::control_characters("action == 'a\\n\\'b'", "action is never 'a\\n\\'b': write")]
#[case::missing_number(
    "missing == 1",
    "missing is a bool and 1 is a number: compare values of one type"
)]
#[case::missing_value(
    "missing == value",
    "missing is a bool and value is a string: compare values of one type"
)]
#[case::map(
    "changedBy == 'helm'",
    "changedBy has several members: use one, such as changedBy.manager"
)]
#[case::version_map("version(value) == '1'", "such as version(value).major")]
#[case::method_of_a_map(
    "changedBy != null && changedBy.matches('helm')",
    "line 1, column 32: changedBy has several members: use one, such as changedBy.manager"
)]
#[case::method_of_a_number(
    "size(value).startsWith('1')",
    "size(value) is a number: startsWith needs a string: write string(size(value))"
)]
#[case::method_of_a_list("['1'].matches('1')", "[...] is a list: matches needs a string")]
#[case::function_of_a_bool(
    "number(missing) > 1.0",
    "missing is a bool: number needs a string: write string(missing)"
)]
#[case::unknown_member(
    "changedBy != null && changedBy.managr == 'a'",
    "line 1, column 32: changedBy has no managr: write manager, or another of manager, operation"
)]
#[case::unknown_part_of_a_version(
    "version(value).mjor == 1",
    "column 16: version(value) has no mjor: write major, or another of major, minor, patch, pre"
)]
#[case::member_of_a_string(
    "value.image == 'a'",
    "column 7: value is a string without parts: compare it whole, or write value.contains('...')"
)]
#[case::index_of_a_string("value[0] == '1'", "value is a string without parts")]
#[case::kind_number("kind == 0", "kind is a string: write '0'")]
#[case::namespace("__namespace__ != 1", "__namespace__ is a string: write '1'")]
#[case::action(
    "action == 'updated'",
    "action is never 'updated': write 'Created', 'Updated' or 'Deleted'"
)]
#[case::action_is_first(
    "'Update' != action",
    "action is never 'Update': write 'Created', 'Updated'"
)]
#[case::action_in(
    "action in ['Created', 'deleted']",
    "action is never 'deleted': write 'Created'"
)]
#[case::action_number("action == 0", "action is never 0: write 'Created'")]
#[case::kind(
    "kind == 'deployment'",
    "kind is never 'deployment': write 'Deployment'"
)]
#[case::kind_in(
    "!(kind in ['Job', 'CronJOB'])",
    "kind is never 'CronJOB': write 'CronJob'"
)]
#[case::kind_elsewhere("kind == 'configmap'", "kind is never 'configmap': write 'ConfigMap'")]
fn comparison_that_is_never_true_says_what_to_write(#[case] source: &str, #[case] expected: &str) {
    let error = When::parse(source).unwrap_err();
    assert!(error.contains(expected), "{error}");
    assert!(error.starts_with("line 1, column "), "{error}");
}

#[rstest]
#[case("value == null || previous != null || changedBy == null")]
#[case("value in [null, '1'] || changedBy.subresource == null")]
#[case("value > '3' && value != previous && name == field")]
#[case("number(value) == 3 && number(value) in [1, 2.0] && size(value) == 1u")]
#[case("kind == 'Rollout' || kind == 'deploymentX' || kind in ['Pod', 'certificate']")]
#[case("context == null || 'owner' in context || [1, 'a'][0] == value")]
#[case("missing == false && (value == '1') == (previous == '2')")]
#[case("version(value) == version(previous) && action == previous")]
#[case("(missing ? null : value) == '1' && value + previous == '12'")]
fn comparison_of_one_type_or_with_null_is_accepted(#[case] source: &str) {
    assert_eq!(When::parse(source).map(|_| ()), Ok(()));
}

#[rstest]
#[case("value", "string")]
#[case("1", "number")]
#[case("true ? 'a' : 'b'", "string")]
#[case("[true]", "list")]
#[case("changedBy", "map")]
fn expression_whose_result_is_no_bool_is_refused(#[case] source: &str, #[case] type_: &str) {
    let error = When::parse(source).unwrap_err();
    assert_eq!(
        error,
        format!("the result is {type_}, not bool: write a comparison, such as action == 'Updated'")
    );
}

#[test]
fn problem_of_a_comparison_has_its_position() {
    let source =
        "value in ['=='] && // 1 < 2\n  'é' != value &&\n 'é' < value && value == 1 && value == 2";
    let error = When::parse(source).unwrap_err();
    assert!(
        error.starts_with("line 3, column 23: value is a string"),
        "{error}"
    );
}

#[rstest]
#[case::no_bool("value > '' ? context.mail : missing", "there is no mail")]
#[case::no_single_image(
    "tag('[\"a:1\",\"b:2\"]') == '1'",
    "is not an image: track image, or image:CONTAINER, in place of images"
)]
#[case::other_types("[1, 'a'][0] > 'x'", "convert the operands to one type")]
#[case::no_number(
    "number(value) > 3.0",
    "number: \"registry.example.com:5000/web:v1.29.0-rc1@sha256:0123\" is not a number"
)]
#[case::no_version("version(value).major == 1", "is not a version such as v1.29.0-rc1")]
#[case::no_context(
    "context.mail == ''",
    "write has(...) before it, such as has(context.mail) &&"
)]
#[case::division("1 / 0 == 1", "division by zero")]
#[case::no_argument("tag() == ''", "a function got 0 arguments and needs 1")]
fn expression_without_a_result_says_why(#[case] source: &str, #[case] expected: &str) {
    let error = evaluate(source).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

/// The arrow below each expression points to the token that the message names.
#[rstest]
#[case("number(value) > 3.0", "^")]
#[case("value == '' || number(value) > 3.0", "               ^")]
#[case(
    "number('1') > 0.0 && number('2') > 0.0 && number(kind) > 0.0",
    "                                          ^"
)]
#[case("number(value.contains('x') ? value : name) > 1.0", "^")]
#[case(
    "value != 'number(' && [kind, 'number'][2] == ''",
    "                                      ^"
)]
#[case(
    "has(context.mail) || context.mail == ''",
    "                             ^"
)]
#[case("-1 < 0 && 3 - 1 / 0 == 1", "                ^")]
#[case("1 - -9223372036854775807 - 5 > 0 && !(value == '')", "  ^")]
#[case("value in ['1'] || 1 % 0 in [1]", "                    ^")]
#[case("missing ? false : version(name).major > 1", "                  ^")]
#[case(
    "value == kind ? true : value && true",
    "                             ^"
)]
#[case("name.contains(tag()) || true == false", "              ^")]
fn expression_without_a_result_has_the_position_of_its_failure(
    #[case] source: &str,
    #[case] arrow: &str,
) {
    let error = evaluate(source).unwrap_err();
    let position = format!("line 1, column {}: ", arrow.len());
    assert!(error.starts_with(&position), "{source}: {error}");
}

#[test]
fn first_and_deleted_entries_have_no_previous_or_no_value() {
    let created = item(ChangeAction::Created, Some("1"), None).entry;
    let deleted = item(ChangeAction::Deleted, None, None).entry;
    let evaluate = |source: &str, entry: &Entry, previous: Option<&Entry>| {
        When::parse(source).unwrap().evaluate(entry, previous)
    };
    assert_eq!(evaluate("previous == null", &created, None), Ok(true));
    assert_eq!(
        evaluate("previous == null", &created, Some(&deleted)),
        Ok(true)
    );
    assert_eq!(
        evaluate("value == null", &deleted, Some(&created)),
        Ok(true)
    );
    let limit = "value != null && number(value) > number('1Gi')";
    assert_eq!(evaluate(limit, &deleted, Some(&created)), Ok(false));
    let major = "action != 'Updated' || version(value).major > 1";
    assert_eq!(evaluate(major, &deleted, Some(&created)), Ok(true));
    let decrease = "action == 'Updated' && number(value) < number(previous)";
    assert_eq!(evaluate(decrease, &created, None), Ok(false));
}

#[rstest]
#[case(
    "number(previous) > 1.0",
    "number: previous is null: write previous != null && ... before it"
)]
#[case(
    "previous != null || number(value) > 1.0",
    "previous and value are null: write previous != null && value != null &&"
)]
#[case("tag(value) == ''", "tag: value is null: write value != null &&")]
#[case("value > '3'", "value is null")]
#[case("value.contains('3')", "value is null")]
#[case("value.matches('3')", "value is null")]
#[case(
    "changedBy.manager == 'helm'",
    "changedBy is null: write changedBy != null &&"
)]
#[case("tag(null) == ''", "tag: the argument is null: write a test before it")]
fn null_variable_is_named(#[case] source: &str, #[case] expected: &str) {
    let entry = item(ChangeAction::Created, None, None).entry;
    let error = When::parse(source)
        .unwrap()
        .evaluate(&entry, None)
        .unwrap_err();
    assert!(error.contains(expected), "{error}");
}

/// The library's own error would have the whole value, in random order.
#[test]
fn argument_of_another_type_is_named() {
    let mut entry = item(ChangeAction::Updated, Some("3"), None).entry;
    entry.context = [("owner".into(), "@team".into())].into();
    let when = When::parse("(missing ? value : context).matches('3')").unwrap();
    let error = when.evaluate(&entry, None).unwrap_err();
    assert_eq!(
        error,
        "line 1, column 29: matches: needs a string, such as value, and got map"
    );
}

#[test]
fn joined_values_are_too_long_for_a_regular_expression() {
    let long = "a".repeat(KEPT_BYTES);
    let matches = |values: usize| {
        let joined = vec!["value"; values].join("+");
        of_values(&format!("({joined}).matches('a$')"), "", &long)
    };
    assert_eq!(matches(1), Ok(true));
    let error = matches(2).unwrap_err();
    assert_eq!(
        error,
        "line 1, column 15: matches: the string is longer than 1024 bytes: join fewer values"
    );
}

#[test]
fn size_of_an_expression_is_bounded() {
    let levels = |levels: usize| format!("0 == {}1", "1+".repeat(levels - 1));
    let parts = |parts: usize| format!("0 in [{}]", vec!["1"; parts - 3].join(","));
    let length = |length: usize| format!("value == '{}'", "a".repeat(length - 11));
    // Parentheses alone are no level of the tree.
    let grouped = format!("{}true{}", "(".repeat(250), ")".repeat(250));
    for source in [levels(32), parts(128), length(512), grouped] {
        assert_eq!(When::parse(&source).map(|_| ()), Ok(()), "{source}");
    }
    let nested = format!("{}1{}", "-(".repeat(33), ")".repeat(33));
    for source in [levels(33), parts(129), nested, "[".repeat(99)] {
        let error = When::parse(&source).unwrap_err();
        assert!(
            error.starts_with("the expression has more than 128 parts"),
            "{error}"
        );
    }
    let error = When::parse(&length(513)).unwrap_err();
    assert_eq!(
        error,
        "the expression is longer than 512 characters: shorten it"
    );
}

/// The parser, the check, the interpreter and the destructor recurse. A worker's stack has 2 MiB, and a reconcile is
/// deep already.
#[test]
fn no_nesting_overflows_the_stack_or_takes_long() {
    const STACK: usize = 512 * 1024;
    /// Returns the largest expression of these parts, of at most 512 characters.
    fn nested(open: &str, inner: &str, close: &str) -> String {
        let levels = (MAX_LENGTH - inner.len()) / (open.len() + close.len());
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    }
    let largest = [
        ("(", "true", ")"),
        ("(", "", ""),
        ("((1)+", "1", ")"),
        ("!", "true", ""),
        ("-", "1", ""),
        ("!-", "1", ""),
        ("-(", "1", ")"),
        ("!(", "true", ")"),
        ("[", "1", "]"),
        ("[", "", ""),
        ("{1:", "1", "}"),
        ("a{b:", "1", "}"),
        ("a[", "1", "]"),
        ("true?true:", "true", ""),
        ("1?1:", "1", ""),
        ("1?", "1", ":1"),
        ("(1?", "1", ":1)"),
        ("1+", "1", ""),
        ("1+(", "1", ")"),
        ("1||", "true", ""),
        ("1==", "1", ""),
        ("", "value", ".a"),
        ("", "value", "[0]"),
        ("", "value", ".f()"),
        ("", "value", ".map(a,a)"),
        ("[1].map(a,", "a", ")"),
        ("[1].exists_one(a,", "a", ")"),
        ("has(a.b)&&", "true", ""),
        ("size(", "value", ")"),
        ("string(", "value", ")"),
        ("'", "", ""),
        ("1,", "1", ""),
        (")", "", ""),
        ("?", "", ""),
        ("\u{1F600}", "", ""),
    ];
    // The deepest ones that are accepted, which are evaluated too.
    let deepest = |open: &str, inner: &str, close: &str| {
        format!("{}{inner}{}", open.repeat(30), close.repeat(30))
    };
    let deepest = [
        deepest("true==", "true", ""),
        deepest("!(", "true", ")"),
        deepest("-(", "1", ")") + " == 1",
        deepest("1+(", "1", ")") + " == 1",
        deepest("[", "1", "]") + " == []",
        deepest("true&&(", "true", ")"),
        deepest("false?true:", "true", ""),
        deepest("(true?", "true", ":true)"),
        deepest("string(", "value", ")") + " == ''",
        deepest("[1][", "0", "]"),
    ];
    for source in &deepest {
        assert_eq!(When::parse(source).map(|_| ()), Ok(()), "{source}");
    }
    let largest = largest.map(|(open, inner, close)| nested(open, inner, close));
    for source in deepest.into_iter().chain(largest) {
        let text = source.clone();
        let run = move || {
            let item = updated(&"1".repeat(KEPT_BYTES), &"2".repeat(KEPT_BYTES));
            let begin = Instant::now();
            if let Ok(when) = When::parse(&text) {
                let _ = when.evaluate(&item.entry, item.previous.as_ref());
            }
            begin.elapsed()
        };
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(run);
        let elapsed = thread.unwrap().join().unwrap();
        println!("{elapsed:?} {source}");
        assert!(elapsed < Duration::from_secs(1), "{elapsed:?} for {source}");
    }
}

proptest! {
    #[test]
    fn no_expression_panics(source in "[a-z0-9 .()!&|<>=+*/?:'\"\\[\\]{},%-]{0,80}") {
        if let Ok(when) = When::parse(&source) {
            let item = updated("1", "2");
            let _ = when.evaluate(&item.entry, item.previous.as_ref());
        }
    }

    #[test]
    fn functions_take_any_text(text in "\\PC{0,40}") {
        for source in ["number(value) > 1.0", "tag(value) == ''", "version(value).major > 1"] {
            let _ = of_values(source, "1", &text);
        }
    }
}
