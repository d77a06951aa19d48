//! Table of figures, and their arithmetic.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// A line of the table: a figure, its promised limit and its floor.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    what: String,
    unit: String,
    measured: Option<f64>,
    must: Option<Must>,
    floor: Option<f64>,
    note: String,
}

/// Promised limit of a figure.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Must {
    /// Less than this limit.
    Below(f64),
    /// At most this limit.
    AtMost(f64),
    /// At least this limit.
    AtLeast(f64),
}

impl Line {
    /// Creates a figure without a promise.
    pub fn new(what: &str, measured: f64, unit: &str) -> Self {
        let (what, unit) = (what.into(), unit.into());
        // JSON cannot represent NaN.
        let measured = Some(measured).filter(|measured| measured.is_finite());
        Self {
            what,
            unit,
            measured,
            must: None,
            floor: None,
            note: String::new(),
        }
    }

    /// Creates the line of a row that could not be measured.
    pub fn broken(row: &str) -> Self {
        Self {
            note: "could not be measured".into(),
            ..Self::new(row, f64::NAN, "")
        }
    }

    /// Promises a figure below the limit.
    pub fn below(self, limit: f64) -> Self {
        Self {
            must: Some(Must::Below(limit)),
            ..self
        }
    }

    /// Promises a figure of at most the limit.
    pub fn at_most(self, limit: f64) -> Self {
        Self {
            must: Some(Must::AtMost(limit)),
            ..self
        }
    }

    /// Promises a figure of at least the limit.
    pub fn at_least(self, limit: f64) -> Self {
        Self {
            must: Some(Must::AtLeast(limit)),
            ..self
        }
    }

    /// Sets the floor, in the same unit, if there is one.
    pub fn floor(self, floor: impl Into<Option<f64>>) -> Self {
        Self {
            floor: floor.into().filter(|floor| floor.is_finite()),
            ..self
        }
    }

    /// Sets the note.
    pub fn note(self, note: impl Into<String>) -> Self {
        Self {
            note: note.into(),
            ..self
        }
    }

    /// Returns whether the promise is broken; a promised figure that could not be measured is missed.
    pub fn missed(&self) -> bool {
        match (self.must, self.measured) {
            (None, measured) => measured.is_none(),
            (Some(_), None) => true,
            (Some(Must::Below(limit)), Some(measured)) => measured >= limit,
            (Some(Must::AtMost(limit)), Some(measured)) => measured > limit,
            (Some(Must::AtLeast(limit)), Some(measured)) => measured < limit,
        }
    }

    fn cells(&self) -> [String; 7] {
        let with_unit = |value: f64| {
            format!("{} {}", number(value), self.unit)
                .trim_end()
                .to_owned()
        };
        let must = match self.must {
            None => String::new(),
            Some(Must::Below(limit)) => format!("< {}", with_unit(limit)),
            Some(Must::AtMost(limit)) => format!("<= {}", with_unit(limit)),
            Some(Must::AtLeast(limit)) => format!(">= {}", with_unit(limit)),
        };
        let ratio = match (self.measured, self.floor) {
            (Some(measured), Some(floor)) if floor > 0.0 => number(measured / floor),
            _ => String::new(),
        };
        let verdict = match (self.missed(), self.must) {
            (true, _) => "MISSED",
            (false, Some(_)) => "kept",
            (false, None) => "",
        };
        let cell = |value: Option<f64>| value.map(with_unit).unwrap_or_default();
        [
            self.what.clone(),
            must,
            cell(self.measured),
            cell(self.floor),
            ratio,
            verdict.into(),
            self.note.clone(),
        ]
    }
}

/// Formats a number with a fraction to three digits: more would be noise.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        _ if value.fract() == 0.0 => 0,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats the lines as a Markdown table, aligned for a terminal, with numbers to the right.
pub fn table(lines: &[Line]) -> String {
    const TITLES: [&str; 7] = [
        "figure", "promise", "measured", "floor", "ratio", "verdict", "note",
    ];
    const TO_THE_RIGHT: std::ops::RangeInclusive<usize> = 1..=4;
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(lines.iter().map(Line::cells));
    let mut widths = [0; TITLES.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let _ = if TO_THE_RIGHT.contains(&column) {
                write!(text, "| {cell:>width$} ")
            } else {
                write!(text, "| {cell:width$} ")
            };
        }
        text.push_str("|\n");
        if index == 0 {
            for (column, width) in widths.into_iter().enumerate() {
                let end = if TO_THE_RIGHT.contains(&column) {
                    ":"
                } else {
                    "-"
                };
                let _ = write!(text, "| {:-<dashes$}{end} ", "", dashes = width - 1);
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Measurements of one figure, in any unit.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<f64>);

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }
}

impl Sample {
    /// Joins two samples.
    pub fn and(self, other: Self) -> Self {
        self.0.into_iter().chain(other.0).collect()
    }

    /// Returns the number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value that this share of the measurements does not exceed (nearest rank); NaN for an empty sample.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    fn quantile(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or(f64::NAN)
    }

    /// Returns the median.
    pub fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the 99th percentile.
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    /// Returns the maximum.
    pub fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// Lists the measurements in ascending order.
    pub fn list(&self) -> String {
        let each: Vec<String> = self.0.iter().map(|value| number(*value)).collect();
        each.join(", ")
    }
}
