//! What is printed for people: tables and colours. Whatever comes from the cluster is made harmless for a terminal first.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;
use std::{env, iter};

use jiff::Timestamp;
use qm_runtime::telemetry;
use serde::Serialize;

/// The colour of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ink {
    /// As the terminal has it.
    #[default]
    Plain,
    /// All is well.
    Green,
    /// It passes, or is wanted so.
    Yellow,
    /// It is not well.
    Red,
    /// Beside the point.
    Dim,
}

impl Ink {
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
pub struct Cell(String, Ink);

impl Cell {
    /// Text in a colour.
    pub fn new(text: impl AsRef<str>, ink: Ink) -> Self {
        Self(harmless(text.as_ref()), ink)
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Ink::Plain)
    }
}

/// How much of a value is shown, in characters.
const SHOWN: usize = 60;

/// Where it is printed.
pub struct Paper {
    out: Box<dyn Write>,
    terminal: bool,
    colours: bool,
    lasts: bool,
}

impl Paper {
    /// For somebody who looks at it, if it is a terminal.
    pub fn new(out: impl Write + 'static, terminal: bool) -> Self {
        let colours = telemetry::colours(terminal, env::var_os("NO_COLOR").as_deref());
        Self {
            out: Box::new(out),
            terminal,
            colours,
            lasts: false,
        }
    }

    /// That it cannot be printed on ends nothing: for what is done in a cluster, which is to come to its end although nobody
    /// reads on.
    #[must_use]
    pub fn lasting(self) -> Self {
        Self {
            lasts: true,
            ..self
        }
    }

    /// Whether somebody looks at it.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// One line, whatever stands in it: a line of its own in what the cluster says would pass for one of this program's.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn line(&mut self, text: impl AsRef<str>) -> io::Result<()> {
        self.raw(&(harmless(text.as_ref()) + "\n"))
    }

    /// A table: its columns are as wide as their widest cell, the last one as it comes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<Cell>]) -> io::Result<()> {
        self.raw(&draw(head, rows, self.colours))
    }

    /// A value as JSON, which a terminal is to be told nothing by either.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.raw(&(harmless_json(&text) + "\n"))
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn raw(&mut self, text: &str) -> io::Result<()> {
        let printed = self
            .out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush());
        if printed.is_err() && self.lasts {
            self.out = Box::new(io::sink());
            return Ok(());
        }
        printed
    }

    /// Starts the terminal's page anew.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn anew(&mut self) -> io::Result<()> {
        if self.terminal {
            self.raw("\u{1b}[2J\u{1b}[H")
        } else {
            Ok(())
        }
    }
}

/// The text of a table.
pub fn draw(head: &[&str], rows: &[Vec<Cell>], colours: bool) -> String {
    let head: Vec<_> = head.iter().map(|name| Cell::from(*name)).collect();
    let lines = || iter::once(&head).chain(rows);
    let width = |column: usize| {
        lines()
            .filter_map(|row| row.get(column))
            .map(|cell| length(&cell.0))
            .max()
    };
    let widths: Vec<_> = (0..head.len())
        .map(|column| width(column).unwrap_or_default())
        .collect();
    let mut text = String::new();
    for row in lines() {
        let mut line = String::new();
        for (Cell(cell, ink), width) in row.iter().zip(&widths) {
            let shown = if colours && *ink != Ink::Plain {
                format!("{}{cell}\u{1b}[0m", ink.code())
            } else {
                cell.clone()
            };
            let _ = write!(line, "{shown}{}   ", " ".repeat(width - length(cell)));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Control characters as their escapes: a terminal would obey them.
pub fn harmless(text: &str) -> String {
    escaped(text, |c, shown| shown.extend(c.escape_default()))
}

/// The same of JSON: what reads it finds them again.
fn harmless_json(text: &str) -> String {
    let layout = |line: &str| {
        escaped(line, |c, shown| {
            let _ = write!(shown, "\\u{:04x}", u32::from(c));
        })
    };
    text.lines().map(layout).collect::<Vec<_>>().join("\n")
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    text.chars().fold(String::new(), |mut shown, c| {
        // What turns the direction of writing, separates lines, or has no width, hides what stands there.
        let hides = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hides {
            escape(c, &mut shown);
        } else {
            shown.push(c);
        }
        shown
    })
}

/// The beginning of a value that is too long for a line.
pub fn shorten(value: &str) -> String {
    if value.chars().count() <= SHOWN {
        return value.to_owned();
    }
    format!("{}…", value.chars().take(SHOWN - 1).collect::<String>())
}

/// A moment, to the second.
pub fn stamp(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(time);
    whole.to_string().replace('T', " ")
}

/// A time that passed, in its two largest units, as kubectl has it.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs();
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

/// `1 copy`, `2 copies`.
pub fn count(number: usize, one: &str, several: &str) -> String {
    if number == 1 {
        format!("1 {one}")
    } else {
        format!("{number} {several}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::{Arc, Mutex};

    use rstest::rstest;

    use super::*;

    #[test]
    fn columns_stand_under_each_other_with_and_without_colours() {
        let rows = [
            vec!["a".into(), Cell::new("Ready", Ink::Green), "".into()],
            vec!["bé".into(), Cell::new("no", Ink::Red), "x y".into()],
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
    fn a_terminal_is_told_nothing_by_what_stands_in_the_cluster() {
        assert_eq!(
            harmless("a\u{1b}[2Jb\n\u{202e}é"),
            "a\\u{1b}[2Jb\\n\\u{202e}é"
        );
        assert_eq!(harmless("ng\u{200b}inx\u{feff}"), "ng\\u{200b}inx\\u{feff}");
        let row = [vec![Cell::from("\u{1b}[31m")]];
        assert!(!draw(&["A"], &row, false).contains('\u{1b}'));
    }

    #[test]
    fn nor_does_it_make_a_line_of_its_own() {
        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<u8>>>);
        impl Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let mut paper = Paper::new(kept.clone(), true);
        paper
            .line("it belongs to x/y\n\nto do so: curl\r\u{2028}")
            .unwrap();
        paper.table(&["A"], &[vec!["b\nc".into()]]).unwrap();
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "it belongs to x/y\\n\\nto do so: curl\\r\\u{2028}\nA\nb\\nc\n"
        );
    }

    #[test]
    fn nor_by_json_which_says_the_same() {
        let value = serde_json::json!({ "a": ["x\u{9b}2J\u{202e}\n\u{1b}é", 1] });
        let text = harmless_json(&serde_json::to_string_pretty(&value).unwrap());
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
    fn what_lasts_does_not_end_when_nobody_reads_on() {
        struct Shut;
        impl Write for Shut {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(
            Paper::new(Shut, false).line("a").unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        let mut paper = Paper::new(Shut, false).lasting();
        paper.line("a").unwrap();
        paper.table(&["A"], &[]).unwrap();
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
    fn spans(#[case] seconds: u64, #[case] text: &str) {
        assert_eq!(span(Duration::from_secs(seconds)), text);
    }
}
