//! Texts of messages: the default text, a user's template, a digest of several entries, and their limits.

mod body;
pub mod digest;
mod limits;
pub mod template;
mod view;

pub(crate) use body::escape_markup;
pub use body::{Body, RenderedBody, TokenFormat, check_body};
pub(crate) use digest::entry_text;
pub use digest::{Rendered, render};
pub use limits::{BODY, MAX_ENTRIES, TextLimit};
pub use template::check_template;
pub(crate) use view::breaks_line;
pub(crate) use view::entry_id;
pub use view::{DELETED, View};

/// Text of a test message.
pub const READY: &str = "Contact point is ready";
/// Returns the text of a test message, with `--cluster-name` on a second line and the contact point's footer on the last.
pub fn ready(cluster: Option<&str>, footer: Option<&str>) -> String {
    let text = match cluster {
        Some(cluster) => format!("{READY}\n{}", view::cluster_line(cluster)),
        None => READY.to_owned(),
    };
    view::with_footer(text, footer)
}

#[cfg(test)]
mod tests;
