#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use proptest::prelude::*;
use qm_api::tracked_field::{ChangeAction, Truncation};
use rstest::rstest;

use super::*;
use crate::OutgoingEntry;
use crate::fixtures::{item, updated};

fn text(item: &OutgoingEntry, cluster: Option<&str>) -> String {
    render(
        std::slice::from_ref(item),
        cluster,
        None,
        false,
        TextLimit::TELEGRAM,
    )
    .text
}

#[test]
fn default_message_starts_with_the_four_specified_lines() {
    insta::assert_snapshot!(text(&updated("1", "3"), None), @"
    Resource kind: Deployment
    Name: nginx
    Status: Updated
    Value: 3
    Namespace: default
    Previous: 1
    ");
}

#[test]
fn created_entry_has_no_previous_value() {
    insta::assert_snapshot!(text(&item(ChangeAction::Created, Some("1"), None), None), @"
    Resource kind: Deployment
    Name: nginx
    Status: Created
    Value: 1
    Namespace: default
    ");
}

#[test]
fn deleted_entry_has_minus_one() {
    let deleted = item(ChangeAction::Deleted, None, updated("1", "3").entry.into());
    insta::assert_snapshot!(text(&deleted, Some("prod")), @"
    Resource kind: Deployment
    Name: nginx
    Status: Deleted
    Value: -1
    Namespace: default
    Previous: 3
    Cluster: prod
    ");
}

#[test]
fn entry_after_a_deletion_has_no_previous_value() {
    let deleted = item(ChangeAction::Deleted, None, None).entry;
    assert!(
        !text(&item(ChangeAction::Created, Some("1"), Some(deleted)), None).contains("Previous")
    );
}

#[test]
fn missing_is_not_empty() {
    let mut missing = item(
        ChangeAction::Updated,
        None,
        Some(item(ChangeAction::Created, Some(""), None).entry),
    );
    missing.entry.missing = true;
    insta::assert_snapshot!(text(&missing, None), @"
    Resource kind: Deployment
    Name: nginx
    Status: Updated
    Value: (not set)
    Namespace: default
    Previous:
    ");
    let back = item(ChangeAction::Updated, Some(""), Some(missing.entry));
    assert!(
        text(&back, None).contains("\nValue: \n")
            && text(&back, None).ends_with("\nPrevious: (not set)")
    );
}

#[test]
fn truncated_value_has_its_length() {
    let mut cut = updated("1", &"x".repeat(10));
    cut.entry.truncated = Some(Truncation {
        length: 900_000,
        sha256: "00".into(),
    });
    assert!(text(&cut, None).contains("Value: xxxxxxxxxx… (the first 10 of 900000 bytes)\n"));
}

#[test]
fn merged_entry_has_its_number_of_changes() {
    let mut merged = updated("1", "9");
    merged.entry.merged = Some(7);
    merged.entry.first_value = Some("2".into());
    assert!(text(&merged, None).ends_with("Merged: 7 changes, the first value 2, the last 9"));
    assert_eq!(
        View::of(&merged, None).digest_line(),
        "Deployment default/nginx replicas: 1 -> 9 (7 changes)"
    );
}

/// The first change is a deletion, removes the field, or has another subject.
#[test]
fn merged_entry_without_a_first_value_has_only_the_last() {
    let deleted = item(ChangeAction::Deleted, None, None).entry;
    let mut merged = item(ChangeAction::Created, Some("3"), Some(deleted));
    merged.entry.merged = Some(3);
    assert!(text(&merged, None).ends_with("\nMerged: 3 changes, the last value 3"));
}

#[test]
fn cluster_scoped_resource_has_no_namespace_line() {
    let mut item = updated("1", "2");
    item.entry.subject = Some(crate::fixtures::subject(
        "Node",
        "",
        "n1",
        "{.spec.unschedulable}",
    ));
    assert!(!text(&item, None).contains("Namespace"));
    assert_eq!(
        View::of(&item, None).digest_line(),
        "Node n1 {.spec.unschedulable}: 1 -> 2"
    );
}

#[test]
fn digest_has_a_line_per_entry() {
    let mut templated = updated("3", "4");
    templated.template = Some("{{ name }} runs {{ value }}".into());
    let mut merged = updated("4", "9");
    merged.entry.merged = Some(5);
    let items = [
        item(ChangeAction::Created, Some("1\n2"), None),
        updated("1", "3"),
        templated,
        merged,
        item(ChangeAction::Deleted, None, updated("4", "9").entry.into()),
    ];
    let digest = render(&items, Some("prod"), None, false, TextLimit::TELEGRAM);
    insta::assert_snapshot!(digest.text, @"
    9 changes in prod
    Deployment default/nginx replicas: Created 1 2
    Deployment default/nginx replicas: 1 -> 3
    nginx runs 4
    Deployment default/nginx replicas: 4 -> 9 (5 changes)
    Deployment default/nginx replicas: Deleted
    ");
    assert_eq!(digest.carried, 5);
    // A plain message uses no templates.
    assert!(
        render(&items, None, None, true, TextLimit::TELEGRAM)
            .text
            .contains("\nDeployment default/nginx replicas: 3 -> 4\n")
    );
}

#[test]
fn footer_is_the_last_line_of_every_text() {
    let footer = Some("Owner: <shop> & \"co\"");
    let text = |items: &[OutgoingEntry]| {
        let rendered = render(items, Some("prod"), footer, false, TextLimit::TELEGRAM);
        assert_eq!(rendered.carried, items.len());
        rendered.text
    };
    let (one, mut templated) = (updated("1", "3"), updated("3", "4"));
    templated.template = Some("{{ name }} runs {{ value }}".into());
    for text in [
        text(std::slice::from_ref(&one)),
        text(std::slice::from_ref(&templated)),
        text(&[one, templated]),
        ready(Some("prod"), footer),
    ] {
        let (before, last) = text.rsplit_once('\n').unwrap();
        assert_eq!(last, "Owner: <shop> & \"co\"");
        assert!(!before.is_empty() && !before.ends_with('\n'), "{text}");
    }
    assert_eq!(ready(None, Some("a")), "Contact point is ready\na");
}

#[test]
fn footer_survives_the_truncation_of_a_long_message() {
    let mut long = updated("1", "3");
    long.template = Some("x".repeat(5000).into());
    let footer = "😀".repeat(256);
    let rendered = render(&[long], None, Some(&footer), false, TextLimit::TELEGRAM);
    assert_eq!(TextLimit::TELEGRAM.measure(&rendered.text), 4096);
    assert!(rendered.text.ends_with(&format!("x…\n{footer}")));
}

#[rstest]
#[case::fails("{{ value.x.y }}")]
#[case::renders_nothing("{% if false %}x{% endif %}  ")]
#[case::does_not_parse("{{ value")]
#[case::grows("{% for a in entries %}{% endfor %}")]
#[case::unknown("{{ vale }}")]
#[case::divides("{{ 1 // 0 }}")]
fn failing_template_is_replaced_by_the_default_message(#[case] template: &str) {
    let mut broken = updated("1", "3");
    broken.template = Some(template.into());
    assert_eq!(text(&broken, None), text(&updated("1", "3"), None));
}

#[test]
fn single_long_message_is_truncated() {
    let mut long = updated("1", "3");
    long.template = Some("😀".repeat(3000).into());
    let rendered = render(
        &[long.clone(), updated("1", "3")],
        None,
        None,
        false,
        TextLimit::TELEGRAM,
    );
    assert_eq!(rendered.carried, 1);
    assert_eq!(rendered.text, "😀".repeat(2047) + "…");
    assert_eq!(TextLimit::TELEGRAM.measure(&rendered.text), 4095);
}

#[test]
fn digest_has_a_maximum_number_of_entries() {
    let items = vec![updated("1", "3"); 500];
    assert_eq!(
        render(&items, None, None, false, TextLimit::Bytes(usize::MAX)).carried,
        MAX_ENTRIES
    );
}

fn any_item() -> impl Strategy<Value = OutgoingEntry> {
    let value = prop_oneof![
        Just(String::new()),
        "[a-z0-9]{1,20}",
        "\\PC{0,300}",
        "(😀|é|\n){0,700}"
    ];
    (
        value.clone(),
        prop::option::of(value.clone()),
        prop::option::of(value),
        any::<bool>(),
        0_u64..9,
    )
        .prop_map(|(new, old, template, deleted, merged)| {
            let mut item = match old {
                Some(old) => updated(&old, &new),
                None => item(
                    if deleted {
                        ChangeAction::Deleted
                    } else {
                        ChangeAction::Created
                    },
                    Some(&new),
                    None,
                ),
            };
            item.template = template.map(Arc::from);
            item.entry.merged = (merged > 1).then_some(merged);
            item
        })
}

proptest! {
    #[test]
    fn text_is_within_the_limit_and_no_entry_is_lost(
        items in prop::collection::vec(any_item(), 1..60),
        limit in prop_oneof![Just(TextLimit::TELEGRAM), (64_usize..6000).prop_map(TextLimit::Utf16), (64_usize..6000).prop_map(TextLimit::Bytes)],
        cluster in prop::option::of("[a-z]{1,20}"),
        footer in prop::option::of("[a-z\"<&]{1,30}|(😀){1,12}"),
    ) {
        let (cluster, footer) = (cluster.as_deref(), footer.as_deref());
        let mut rest = &items[..];
        while !rest.is_empty() {
            let rendered = render(rest, cluster, footer, false, limit);
            prop_assert!((1..=rest.len()).contains(&rendered.carried));
            prop_assert!(!rendered.text.trim().is_empty());
            let body = match footer {
                Some(footer) => rendered.text.strip_suffix(&format!("\n{footer}")).unwrap(),
                None => &rendered.text,
            };
            prop_assert!(!body.trim().is_empty());
            let length = match limit {
                TextLimit::Utf16(_) => rendered.text.encode_utf16().count(),
                TextLimit::Bytes(_) => rendered.text.len(),
            };
            prop_assert!(length <= limit.max(), "{length} of {limit:?}");
            if rendered.carried > 1 {
                // Entries keep their order: one entry less yields the same lines but the last.
                let fewer = render(&rest[..rendered.carried - 1], cluster, footer, false, limit);
                prop_assert_eq!(fewer.carried, rendered.carried - 1);
                if fewer.carried > 1 {
                    let body_lines = |text: &str| text.split_once('\n').map(|(_, lines)| lines.to_owned()).unwrap();
                    let fewer = fewer.text.strip_suffix(footer.unwrap_or_default()).unwrap();
                    prop_assert!(body_lines(&rendered.text).starts_with(&body_lines(fewer)));
                }
            }
            rest = &rest[rendered.carried..];
        }
    }

    #[test]
    fn truncation_keeps_characters_whole(text in "\\PC{0,200}|(😀|é){0,200}", max in 3_usize..300) {
        for limit in [TextLimit::Utf16(max), TextLimit::Bytes(max)] {
            let cut = limit.truncate(&text);
            prop_assert!(limit.measure(&cut) <= max);
            if limit.measure(&text) > max {
                let kept = cut.strip_suffix('…').unwrap();
                prop_assert!(text.starts_with(kept));
                // The text is at most one character shorter than the limit allows.
                prop_assert!(limit.measure(&cut) + 4 > max);
            } else {
                prop_assert_eq!(&*cut, &text);
            }
        }
    }
}

/// Asserts that the text has no character that breaks a line, nor any of the special characters of `nasty`.
fn assert_harmless(nasty: &str, text: &str) {
    let is_special = |char: &char| !char.is_ascii_graphic() && !matches!(char, ' ' | '\n');
    let special: Vec<_> = nasty.chars().filter(is_special).collect();
    let is_harmful = |char: char| special.contains(&char) || (char != '\n' && breaks_line(char));
    assert!(!text.contains(is_harmful), "{text:?}");
}

/// Characters that start another line or change the direction become spaces in messages; events and templates get the
/// original value.
#[test]
fn value_cannot_forge_a_line() {
    let nasty = "1\nNamespace: prod\r\u{2028}Status: Deleted\u{202e}\u{2066}\u{2069}\u{61c}\u{85}x";
    let one = updated(nasty, nasty);
    let text = text(&one, None);
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("Namespace: "))
            .count(),
        1,
        "{text}"
    );
    assert_harmless(nasty, &text);
    assert_eq!(text.lines().count(), 6, "{text:?}");
    let digest = render(
        &[one.clone(), one.clone()],
        None,
        None,
        false,
        TextLimit::TELEGRAM,
    )
    .text;
    assert_eq!(digest.lines().count(), 3, "{digest:?}");
    assert_harmless(nasty, &digest);
    assert_eq!(View::of(&one, None).value.as_deref(), Some(nasty));
    let templated = OutgoingEntry {
        template: Some("{{ value }}".into()),
        ..one
    };
    assert_eq!(
        render(&[templated], None, None, false, TextLimit::TELEGRAM).text,
        nasty
    );
}
