//! Where each reason and each Event is told of: an index of the tables in the pages of the kinds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::markdown::anchor;

const BEGIN: &str = "\
# Reasons and Events

Each reason of a condition `Ready`, of a TrackedField's annotation `quartermaster.dev/waiting`, and of an Event, and where it is
explained. How to find out which one it is: [Troubleshooting](../troubleshooting.md).

| reason | explained at |
| --- | --- |
";

/// Of these kinds: each with its page and that page's name.
pub fn page(kinds: &[(String, String, String)]) -> String {
    let mut index = BTreeMap::<String, Vec<String>>::new();
    for (kind, page, name) in kinds {
        for (word, heading, is_event) in rows(page) {
            let of = if is_event {
                format!("{kind} (Event)")
            } else {
                kind.clone()
            };
            let link = format!("[{of}](../{name}#{})", anchor(&heading));
            index.entry(word).or_default().push(link);
        }
    }
    let mut page = BEGIN.to_owned();
    for (word, links) in index {
        // Writing to a String does not fail.
        let _ = writeln!(page, "| `{word}` | {} |", links.join(", "));
    }
    page
}

/// The first word of each row of the tables whose first column is `reason` or `event`, with the heading above, and whether it is
/// an Event's.
fn rows(page: &str) -> Vec<(String, String, bool)> {
    let (mut heading, mut column, mut rows) = (String::new(), None, Vec::new());
    for line in page.lines() {
        if line.starts_with('#') {
            line.trim_start_matches('#').trim().clone_into(&mut heading);
        }
        let Some(first) = line
            .strip_prefix("| ")
            .and_then(|line| line.split(" |").next())
        else {
            column = None;
            continue;
        };
        match (
            column,
            first
                .strip_prefix('`')
                .and_then(|word| word.split('`').next()),
        ) {
            (None, _) => column = Some(first),
            (Some("reason"), Some(word)) => rows.push((word.to_owned(), heading.clone(), false)),
            (Some("event"), Some(word)) => rows.push((word.to_owned(), heading.clone(), true)),
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_column_and_named_by_its_heading() {
        let text = "## Its reasons\n\n| reason | what |\n| --- | --- |\n| `Ready` | `x` |\n| another one | y |\n\n\
                    | event | when |\n| --- | --- |\n| `Gone` | z |\n\n| field | what |\n| --- | --- |\n| `spec` | |\n";
        let found = page(&[("MyApp".into(), text.into(), "my-app.md".into())]);
        let table = found.strip_prefix(BEGIN).unwrap_or_default();
        assert_eq!(
            table,
            "| `Gone` | [MyApp (Event)](../my-app.md#its-reasons) |\n| `Ready` | [MyApp](../my-app.md#its-reasons) |\n"
        );
    }
}
