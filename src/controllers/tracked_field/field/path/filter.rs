//! Filters: `?(@.name=="x")` or `?(@.name)`.

use super::{Parser, Result};
use crate::controllers::tracked_field::field::query::{self, QueryFilter, QueryStep, quote};

/// Side of a filter.
enum Side {
    Literal(String),
    Path {
        steps: Vec<QueryStep>,
        singular: bool,
    },
}

impl Parser<'_> {
    /// Parses a filter after its question mark, up to the closing bracket.
    pub(super) fn filter(&mut self) -> Result<QueryFilter> {
        const SHAPE: &str = "a filter is written [?(@.name==\"x\")]: one comparison (== != < <= > >=), or [?(@.name)] \
                             for those that have the field";
        if self.in_filter {
            return Err("a filter cannot contain another filter: write one comparison".into());
        }
        if !self.eat('(') {
            return Err(SHAPE.into());
        }
        self.in_filter = true;
        let left = self
            .side()
            .map_err(|problem| format!("{problem} ({SHAPE})"))?;
        self.skip_spaces();
        let operator = ["==", "!=", "<=", ">=", "<", ">"]
            .into_iter()
            .find(|o| self.rest.starts_with(o));
        let filter = if let Some(operator) = operator {
            self.rest = &self.rest[operator.len()..];
            let right = self
                .side()
                .map_err(|problem| format!("{problem} ({SHAPE})"))?;
            compare(&left, operator, &right)?
        } else {
            match left {
                Side::Path { steps, .. } => QueryFilter {
                    text: relative(&steps),
                    paths: vec![steps],
                    compares_trees: false,
                },
                Side::Literal(_) => return Err(SHAPE.into()),
            }
        };
        self.skip_spaces();
        if !self.eat(')') {
            return Err(SHAPE.into());
        }
        self.in_filter = false;
        Ok(filter)
    }

    fn side(&mut self) -> Result<Side> {
        self.skip_spaces();
        match self.peek() {
            Some(end @ ('\'' | '"')) => self.literal(end),
            Some('+' | '-' | '0'..='9') => {
                let end = self
                    .rest
                    .find(|c: char| !"+-.0123456789".contains(c))
                    .unwrap_or(self.rest.len());
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                number(text).map(Side::Literal)
            }
            Some('@' | '$' | '.' | '[') => {
                if !self.eat('@') {
                    self.eat('$');
                }
                let steps = self.steps(false)?;
                match <[_; 1]>::try_from(steps.queries) {
                    Ok([path]) => Ok(Side::Path {
                        steps: path,
                        singular: steps.singular,
                    }),
                    Err(_) => Err("a filter cannot list several names: write one".into()),
                }
            }
            _ => {
                for word in ["true", "false"] {
                    if let Some(rest) = self.rest.strip_prefix(word) {
                        self.rest = rest;
                        return Ok(Side::Literal(word.into()));
                    }
                }
                Err(self.unexpected())
            }
        }
    }

    fn literal(&mut self, end: char) -> Result<Side> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None => return Err(self.unexpected()),
                Some(next) if next == end => return Ok(Side::Literal(quote(&text))),
                Some('\\') => text.push(match self.next() {
                    Some(escaped @ ('\\' | '\'' | '"')) => escaped,
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    _ => return Err(
                        "in quoted text, a backslash must precede \\, a quote, n, r or t: write \\\\ for a backslash"
                            .into(),
                    ),
                }),
                Some(other) => text.push(other),
            }
        }
    }
}

/// Returns a comparison, which matches only if both sides exist, as in kubectl. By the RFC, two missing sides are
/// equal.
fn compare(left: &Side, operator: &str, right: &Side) -> Result<QueryFilter> {
    let mut filter = QueryFilter {
        text: String::new(),
        paths: Vec::new(),
        compares_trees: true,
    };
    for side in [left, right] {
        match side {
            Side::Path {
                singular: false, ..
            } => {
                return Err("a filter compares single values: write names and indexes in it, not * or a slice".into());
            }
            Side::Path { steps, .. } => {
                filter.text.extend([&relative(steps), " && "]);
                // The first path tests existence, the second compares.
                filter.paths.extend([steps.clone(), steps.clone()]);
            }
            Side::Literal(_) => filter.compares_trees = false,
        }
    }
    let text = |side: &Side| match side {
        Side::Path { steps, .. } => relative(steps),
        Side::Literal(literal) => literal.clone(),
    };
    filter.text.extend([&text(left), operator, &text(right)]);
    Ok(filter)
}

fn relative(steps: &[QueryStep]) -> String {
    format!("@{}", query::text(steps))
}

/// Returns a number as JSON writes it (no plus sign, no leading zeros).
fn number(text: &str) -> Result<String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Ok(whole.to_string());
    }
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() => Ok(format!("{float}")),
        _ => Err(format!("{text} is not a number")),
    }
}
