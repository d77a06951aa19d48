//! The table, and the arithmetic of its figures.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One line of the table.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Line {
    /// What was measured.
    pub what: String,
    /// What is promised.
    pub must: String,
    /// What was found.
    pub measured: String,
    /// What a bare watch that posts at once takes, or what else there is to compare with.
    pub floor: String,
    /// Whether the promise is kept; none where nothing is promised.
    pub kept: Option<bool>,
}

impl Line {
    /// Something that is promised.
    pub fn promise(what: impl Into<String>, must: &str, measured: String, kept: bool) -> Self {
        Self { what: what.into(), must: must.into(), measured, floor: String::new(), kept: Some(kept) }
    }

    /// Something that is good to know.
    pub fn note(what: impl Into<String>, measured: String) -> Self {
        Self { what: what.into(), measured, ..Self::default() }
    }

    /// Beside what to see it.
    pub fn floor(mut self, floor: impl Into<String>) -> Self {
        self.floor = floor.into();
        self
    }

    /// A row that could not be measured.
    pub fn broken(row: &str) -> Self {
        Self { what: row.into(), measured: "could not be measured".into(), kept: Some(false), ..Self::default() }
    }

    fn cells(&self) -> [&str; 5] {
        let verdict = match self.kept {
            Some(true) => "kept",
            Some(false) => "MISSED",
            None => "",
        };
        [&self.what, &self.must, &self.measured, &self.floor, verdict]
    }
}

/// The lines as a table in Markdown, aligned for a terminal.
pub fn table(lines: &[Line]) -> String {
    let mut rows = vec![["what", "must", "measured", "floor, same run", "verdict"]];
    rows.extend(lines.iter().map(Line::cells));
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
        if index == 0 {
            widths.iter().for_each(|width| {
                let _ = write!(text, "| {:-<width$} ", "");
            });
            text.push_str("|\n");
        }
    }
    text
}

/// Milliseconds from one thing to another; less than nothing where the other was first.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<f64>);

impl FromIterator<f64> for Latencies {
    fn from_iter<I: IntoIterator<Item = f64>>(milliseconds: I) -> Self {
        let mut sorted: Vec<f64> = milliseconds.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }
}

impl Latencies {
    /// The value that this share of all does not exceed (nearest rank).
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The middle.
    pub fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// What one in a hundred exceeds.
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// For people.
    pub fn words(&self) -> String {
        format!(
            "p50 {:.1} ms, p99 {:.1} ms, max {:.0} ms (n {})",
            self.p50(),
            self.p99(),
            self.quantile(1.0),
            self.0.len()
        )
    }
}

/// All the times, for people, and the greatest.
pub fn times(times: &[Duration]) -> String {
    let each: Vec<String> = times.iter().map(|time| format!("{:.2}", time.as_secs_f64())).collect();
    format!("{} s", each.join(", "))
}

/// The middle of some times.
pub fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
