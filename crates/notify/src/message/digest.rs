//! Texts of one or several entries.

use super::view::with_footer;
use super::{MAX_ENTRIES, TextLimit, View, template};
use crate::OutgoingEntry;

/// Text of one or several entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// Text to send. Never empty, never over the limit.
    pub text: String,
    /// Number of entries in the text, from the first; at least one, if there is one.
    pub carried: usize,
}

/// Returns the message of one entry, truncated to `limit`, with the contact point's footer.
pub(crate) fn entry_text(
    item: &OutgoingEntry,
    view: &View,
    footer: Option<&str>,
    plain: bool,
    limit: TextLimit,
) -> String {
    let text = body(item, view, plain);
    let text = limit.before(footer).truncate(&text).into_owned();
    with_footer(text, footer)
}

/// Returns the text of one entry: from its template, or the default message if there is no template, the template fails
/// or renders nothing, or the message must be `plain`.
fn body(item: &OutgoingEntry, view: &View, plain: bool) -> String {
    templated(item, view, plain).unwrap_or_else(|| view.text())
}

fn templated(item: &OutgoingEntry, view: &View, plain: bool) -> Option<String> {
    let template = item.template.as_deref().filter(|_| !plain)?;
    match template::message(template, view) {
        Ok(text) if !text.trim().is_empty() => Some(text),
        Ok(_) => None,
        Err(error) => {
            tracing::debug!(
                namespace = item.namespace,
                name = item.name,
                error,
                "template failed; sending default message"
            );
            None
        }
    }
}

/// Renders as many of `items` as fit into one text of `limit`, in their order. A single entry gets its full message,
/// truncated if necessary. Several entries get a digest: a header with the number of changes and one line per entry (a
/// template's text if there is one). The contact point's footer is the last line.
pub fn render(
    items: &[OutgoingEntry],
    cluster: Option<&str>,
    footer: Option<&str>,
    plain: bool,
    limit: TextLimit,
) -> Rendered {
    if items.len() > 1 {
        let candidates = &items[..items.len().min(MAX_ENTRIES)];
        // The longest possible header: the final count is the same or smaller.
        let mut room = limit
            .before(footer)
            .max()
            .saturating_sub(limit.measure(&header(candidates, cluster)));
        let mut lines = String::new();
        let mut carried = 0;
        for item in candidates {
            let view = View::of(item, cluster);
            let line = templated(item, &view, plain).unwrap_or_else(|| view.digest_line());
            let needed = limit.measure(&line) + 1;
            if needed > room {
                break;
            }
            room -= needed;
            lines.push('\n');
            lines.push_str(&line);
            carried += 1;
        }
        if carried > 1 {
            return Rendered {
                text: with_footer(header(&items[..carried], cluster) + &lines, footer),
                carried,
            };
        }
    }
    let text = items
        .first()
        .map(|item| entry_text(item, &View::of(item, cluster), footer, plain, limit))
        .unwrap_or_default();
    Rendered {
        text,
        carried: items.len().min(1),
    }
}

fn header(items: &[OutgoingEntry], cluster: Option<&str>) -> String {
    let changes = items.iter().fold(0_u64, |sum, item| {
        sum.saturating_add(item.entry.merged.unwrap_or(1).max(1))
    });
    match cluster {
        Some(cluster) => format!("{changes} changes in {cluster}"),
        None => format!("{changes} changes"),
    }
}
