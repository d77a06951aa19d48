//! Prints tables, lines and JSON. Characters from the cluster that a terminal would obey are escaped.

use std::env;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

/// Maximum length of a printed value, in characters.
const MAX_VALUE: usize = 60;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Colour {
    #[default]
    Plain,
    Green,
    Yellow,
    Red,
    Dim,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Green => "\u{1b}[32m",
            Self::Yellow => "\u{1b}[33m",
            Self::Red => "\u{1b}[31m",
            Self::Dim => "\u{1b}[2m",
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell(String, Colour);

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>, colour: Colour) -> Self {
        Self(escape(text.as_ref()), colour)
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Colour::Plain)
    }
}

/// Prints to a terminal, a file or a pipe.
pub struct Printer {
    out: Box<dyn Write>,
    is_terminal: bool,
    has_colours: bool,
    ignores_errors: bool,
}

impl Printer {
    /// Creates a printer. A terminal gets colours, unless its user set `NO_COLOR`.
    pub fn new(out: impl Write + 'static, is_terminal: bool) -> Self {
        Self {
            out: Box::new(out),
            is_terminal,
            has_colours: qm_runtime::telemetry::colours(
                is_terminal,
                env::var_os("NO_COLOR").as_deref(),
            ),
            ignores_errors: false,
        }
    }

    /// Ignores write errors: a command that changes a cluster must not stop halfway because the reader of its output
    /// has exited.
    pub(crate) fn ignoring_errors(self) -> Self {
        Self {
            ignores_errors: true,
            ..self
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Prints one line. A newline in `text` is escaped: otherwise a message from the cluster could pass for this
    /// program's own.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.raw(&(escape(text.as_ref()) + "\n"))
    }

    /// Prints an empty line and these lines, unless there are none.
    pub(crate) fn paragraph<T: AsRef<str>>(
        &mut self,
        lines: impl IntoIterator<Item = T>,
    ) -> io::Result<()> {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_some() {
            self.line("")?;
        }
        lines.try_for_each(|line| self.line(line))
    }

    /// Prints an empty line, `head`, and `lines` indented; nothing if there are no lines.
    pub(crate) fn section(&mut self, head: &str, lines: &[String]) -> io::Result<()> {
        let indented = lines.iter().map(|line| format!("  {line}"));
        let head = (!lines.is_empty()).then(|| head.to_owned());
        self.paragraph(head.into_iter().chain(indented))
    }

    /// Prints a table. A column is as wide as its widest cell.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<Cell>]) -> io::Result<()> {
        self.raw(&draw(head, rows, self.has_colours))
    }

    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.raw(&(escape_json(&serde_json::to_string_pretty(value)?) + "\n"))
    }

    /// Prints `text` without escaping it.
    pub(crate) fn raw(&mut self, text: &str) -> io::Result<()> {
        let result = self
            .out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush());
        if result.is_err() && self.ignores_errors {
            self.out = Box::new(io::sink());
            return Ok(());
        }
        result
    }

    /// Clears the screen of a terminal.
    pub(crate) fn clear_screen(&mut self) -> io::Result<()> {
        if self.is_terminal {
            self.raw("\u{1b}[2J\u{1b}[H")?;
        }
        Ok(())
    }
}

/// Returns the text of a table.
pub(crate) fn draw(head: &[&str], rows: &[Vec<Cell>], has_colours: bool) -> String {
    let head: Vec<_> = head.iter().map(|name| Cell::from(*name)).collect();
    let mut widths = vec![0; head.len()];
    for row in [&head].into_iter().chain(rows) {
        for (width, Cell(text, _)) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let mut table = String::new();
    for row in [&head].into_iter().chain(rows) {
        let mut line = String::new();
        for (Cell(text, colour), width) in row.iter().zip(&widths) {
            let padding = " ".repeat(width - text.chars().count());
            let (on, off) = if has_colours && *colour != Colour::Plain {
                (colour.code(), "\u{1b}[0m")
            } else {
                ("", "")
            };
            let _ = write!(line, "{on}{text}{off}{padding}   ");
        }
        table += line.trim_end();
        table.push('\n');
    }
    table
}

/// Escapes control characters, which a terminal obeys, and characters that hide text.
pub(crate) fn escape(text: &str) -> String {
    replace_unprintable(text, |c| c.escape_default().to_string())
}

/// Escapes the same characters as JSON does. Newlines are layout: JSON escapes those of its strings.
fn escape_json(json: &str) -> String {
    replace_unprintable(json, |c| match c {
        '\n' => "\n".into(),
        c => format!("\\u{:04x}", u32::from(c)),
    })
}

/// Replaces control characters, and those that change the direction of text, separate lines or have no width.
fn replace_unprintable(text: &str, replacement: impl Fn(char) -> String) -> String {
    let mut replaced = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control()
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        {
            replaced += &replacement(c);
        } else {
            replaced.push(c);
        }
    }
    replaced
}

/// Returns `value`, truncated to what fits into a line.
pub(crate) fn shorten(value: &str) -> String {
    if value.chars().count() <= MAX_VALUE {
        return value.to_owned();
    }
    format!("{}…", value.chars().take(MAX_VALUE - 1).collect::<String>())
}

/// Formats `time` to the second.
pub(crate) fn format_time(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(time);
    whole.to_string().replace('T', " ")
}

/// Formats the time since `time`.
pub(crate) fn format_age(time: Timestamp) -> String {
    let age = Timestamp::now().duration_since(time);
    format_duration(age.try_into().unwrap_or_default())
}

/// Formats `duration` in its two largest units, as kubectl does.
fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0..2) => format!("{seconds}s"),
        (0, 0, 2..10) if !seconds.is_multiple_of(60) => format!("{minutes}m{}s", seconds % 60),
        (0, 0..3, _) => format!("{minutes}m"),
        (0, 3..8, _) if !minutes.is_multiple_of(60) => format!("{hours}h{}m", minutes % 60),
        (0..2, _, _) => format!("{hours}h"),
        (2..8, _, _) if !hours.is_multiple_of(24) => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

/// Returns `1 copy` or `2 copies`.
pub(crate) fn count(number: usize, singular: &str, plural: &str) -> String {
    let noun = if number == 1 { singular } else { plural };
    format!("{number} {noun}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::{Arc, Mutex};

    use rstest::rstest;

    use super::*;

    #[test]
    fn columns_are_aligned_with_and_without_colours() {
        let rows = [
            vec!["a".into(), Cell::new("Ready", Colour::Green), "".into()],
            vec!["bé".into(), Cell::new("no", Colour::Red), "x y".into()],
        ];
        assert_eq!(
            draw(&["N", "STATE", "WHY"], &rows, false),
            "N    STATE   WHY\na    Ready\nbé   no      x y\n"
        );
        let coloured = draw(&["N", "STATE", "WHY"], &rows, true);
        assert!(
            coloured.contains("bé   \u{1b}[31mno\u{1b}[0m      x y\n"),
            "{coloured:?}"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            escape("a\u{1b}[2Jb\n\u{202e}é"),
            "a\\u{1b}[2Jb\\n\\u{202e}é"
        );
        assert_eq!(escape("ng\u{200b}inx\u{feff}"), "ng\\u{200b}inx\\u{feff}");
        let row = [vec![Cell::from("\u{1b}[31m")]];
        assert!(!draw(&["A"], &row, false).contains('\u{1b}'));
    }

    #[test]
    fn newlines_are_escaped() {
        #[derive(Clone, Default)]
        struct Buffer(Arc<Mutex<Vec<u8>>>);
        impl Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let buffer = Buffer::default();
        let mut printer = Printer::new(buffer.clone(), true);
        printer
            .line("it belongs to x/y\n\nto do so: curl\r\u{2028}")
            .unwrap();
        printer.table(&["A"], &[vec!["b\nc".into()]]).unwrap();
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "it belongs to x/y\\n\\nto do so: curl\\r\\u{2028}\nA\nb\\nc\n"
        );
    }

    #[test]
    fn json_is_escaped_and_keeps_its_value() {
        let value = serde_json::json!({ "a": ["x\u{9b}2J\u{202e}\n\u{1b}é", 1] });
        let text = escape_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(
            text.contains(r"x\u009b2J\u202e\n\u001bé") && text.lines().count() == 6,
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn printer_ignores_write_errors_if_told_to() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(
            Printer::new(Closed, false).line("a").unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        let mut printer = Printer::new(Closed, false).ignoring_errors();
        printer.line("a").unwrap();
        printer.table(&["A"], &[]).unwrap();
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(125, "2m5s")]
    #[case(180, "3m")]
    #[case(7_200, "120m")]
    #[case(11_100, "3h5m")]
    #[case(90_000, "25h")]
    #[case(180_000, "2d2h")]
    #[case(864_000, "10d")]
    fn durations_are_formatted_like_kubectl(#[case] seconds: u64, #[case] text: &str) {
        assert_eq!(format_duration(Duration::from_secs(seconds)), text);
    }
}
