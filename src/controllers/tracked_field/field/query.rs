//! A query of RFC 9535 as steps: text for the library that runs the query, shape for the estimate in `cost`.

use std::fmt;

/// Step of a query, with one selector. A union is several queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueryStep {
    /// The step selects in every node below, not in this node alone (`..`).
    pub(super) descends: bool,
    pub(super) select: QuerySelector,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QuerySelector {
    /// The member with that name.
    Name(Box<str>),
    /// The item at that index; a negative index counts from the end.
    Index(i64),
    /// Every member or item.
    All,
    /// A range of the items.
    Slice(Box<str>),
    /// The members or items that match.
    Filter(Box<QueryFilter>),
}

/// A filter, with paths from the member or item that it tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueryFilter {
    /// RFC 9535 text.
    pub(super) text: String,
    /// Paths that a test follows. A path that a test follows twice is listed twice.
    pub(super) paths: Vec<Vec<QueryStep>>,
    /// A test compares the values of two paths, which may be whole trees.
    pub(super) compares_trees: bool,
}

impl QueryStep {
    /// Returns a step to members or items of the node itself.
    pub(super) fn child(select: QuerySelector) -> Self {
        Self {
            descends: false,
            select,
        }
    }

    /// Returns whether the step leads from one node to one node at most.
    pub(super) fn is_singular(&self) -> bool {
        !self.descends
            && matches!(
                self.select,
                QuerySelector::Name(_) | QuerySelector::Index(_)
            )
    }
}

/// Writes steps one after the other, without the root.
pub(super) fn text(steps: &[QueryStep]) -> String {
    steps.iter().map(QueryStep::to_string).collect()
}

impl fmt::Display for QueryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.descends {
            f.write_str("..")?;
        }
        match &self.select {
            QuerySelector::Name(name) => write!(f, "[{}]", quote(name)),
            QuerySelector::Index(index) => write!(f, "[{index}]"),
            QuerySelector::All => f.write_str("[*]"),
            QuerySelector::Slice(slice) => write!(f, "[{slice}]"),
            QuerySelector::Filter(filter) => write!(f, "[?{}]", filter.text),
        }
    }
}

/// Returns a string literal of RFC 9535.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if c < ' ' => quoted.extend(["\\u00", &format!("{:02x}", u32::from(c))]),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}
