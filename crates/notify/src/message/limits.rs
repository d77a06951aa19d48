//! Limits of messages.

use std::borrow::Cow;

/// Maximum length of a webhook's body, in bytes.
pub const BODY: usize = 256 * 1024;

/// Maximum number of entries in a digest; rendering more would take too long.
pub const MAX_ENTRIES: usize = 100;

/// Maximum length of a text, in the unit that its receiver counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLimit {
    /// UTF-16 code units, as Telegram counts.
    Utf16(usize),
    /// Bytes of UTF-8.
    Bytes(usize),
}

impl TextLimit {
    /// Limit of a Telegram text: 4096 UTF-16 code units (<https://core.telegram.org/bots/api#sendmessage>).
    pub const TELEGRAM: Self = Self::Utf16(4096);
    /// Limit of a webhook's text, in bytes. Escaped in JSON (six bytes per byte at worst), the text stays within a body
    /// of 256 KiB.
    pub const WEBHOOK: Self = Self::Bytes(32 * 1024);

    /// Returns the limit in its unit.
    pub const fn max(self) -> usize {
        match self {
            Self::Utf16(max) | Self::Bytes(max) => max,
        }
    }

    /// Returns the length of `text` in this limit's unit.
    pub fn measure(self, text: &str) -> usize {
        match self {
            Self::Utf16(_) => text.chars().map(char::len_utf16).sum(),
            Self::Bytes(_) => text.len(),
        }
    }

    /// Returns the limit of a text that this footer follows on a line of its own.
    pub(crate) fn before(self, footer: Option<&str>) -> Self {
        let taken = footer.map_or(0, |footer| self.measure(footer) + 1);
        match self {
            Self::Utf16(max) => Self::Utf16(max.saturating_sub(taken)),
            Self::Bytes(max) => Self::Bytes(max.saturating_sub(taken)),
        }
    }

    /// Truncates `text` to the limit, with a final ellipsis. Characters stay whole.
    pub fn truncate(self, text: &str) -> Cow<'_, str> {
        const ELLIPSIS: &str = "…";
        if self.measure(text) <= self.max() {
            return text.into();
        }
        let room = self.max().saturating_sub(self.measure(ELLIPSIS));
        let mut used = 0;
        let end = text.char_indices().find_map(|(at, char)| {
            used += self.measure(char.encode_utf8(&mut [0; 4]));
            (used > room).then_some(at)
        });
        format!("{}{ELLIPSIS}", &text[..end.unwrap_or(text.len())]).into()
    }
}
