//! Several entries in one text.

use super::{Limit, MAX_ENTRIES, View, template};
use crate::Item;

/// A text, and how many entries it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// What to send. Never empty, never over the limit.
    pub text: String,
    /// How many of the entries it carries, from the first. At least one, if there is one.
    pub taken: usize,
}

/// The text of one entry: its template's, or the default message when it has none, when the template fails or says
/// nothing, or when the message is to be `plain`.
pub fn entry_text(item: &Item, view: &View, plain: bool) -> String {
    templated(item, view, plain).unwrap_or_else(|| view.text())
}

fn templated(item: &Item, view: &View, plain: bool) -> Option<String> {
    let template = item.template.as_deref().filter(|_| !plain)?;
    match template::message(template, view) {
        Ok(text) if !text.trim().is_empty() => Some(text),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(
                namespace = item.namespace,
                name = item.name,
                error,
                "the template failed: the default message is sent"
            );
            None
        }
    }
}

/// As many of `items` as fit into one text of `limit`, in their order. One alone is its full message, cut if it is too
/// long by itself; several are a digest: a line each (a template's own text where there is one) below a first line that
/// says how many changes they are.
pub fn render(items: &[Item], cluster: Option<&str>, plain: bool, limit: Limit) -> Rendered {
    if items.len() > 1 {
        let offered = &items[..items.len().min(MAX_ENTRIES)];
        // The widest header there can be: the count in the end is the same or smaller.
        let mut room = limit
            .max()
            .saturating_sub(limit.measure(&header(offered, cluster)));
        let mut lines = String::new();
        let mut taken = 0;
        for item in offered {
            let view = View::of(item, cluster);
            let line = templated(item, &view, plain).unwrap_or_else(|| view.line());
            let needed = limit.measure(&line) + 1;
            if needed > room {
                break;
            }
            room -= needed;
            lines.push('\n');
            lines.push_str(&line);
            taken += 1;
        }
        if taken > 1 {
            return Rendered {
                text: header(&items[..taken], cluster) + &lines,
                taken,
            };
        }
    }
    let text = items
        .first()
        .map(|item| entry_text(item, &View::of(item, cluster), plain))
        .unwrap_or_default();
    Rendered {
        text: limit.cut(&text).into_owned(),
        taken: items.len().min(1),
    }
}

fn header(items: &[Item], cluster: Option<&str>) -> String {
    let changes = items.iter().fold(0_u64, |sum, item| {
        sum.saturating_add(item.entry.merged.unwrap_or(1).max(1))
    });
    match cluster {
        Some(cluster) => format!("{changes} changes in {cluster}"),
        None => format!("{changes} changes"),
    }
}
