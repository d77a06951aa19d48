//! Readiness of an object: status and reason of its condition `Ready`.

/// Reason of an object whose current spec the operator has not observed yet.
pub const NOT_OBSERVED: &str = "NotObserved";
/// Reason of an object that is being deleted.
pub const TERMINATING: &str = "Terminating";

/// Status of the condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Readiness {
    /// The object is ready.
    True,
    /// The object is not ready.
    False,
    /// No status covers the object's current spec, or the operator is still finding out.
    Unknown,
}

impl Readiness {
    /// Reads the value of a condition's `status`.
    pub fn of(status: &str) -> Self {
        match status {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }

    /// Returns the value of a condition's `status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Readiness, and the reason of the condition `Ready`.
pub type ReadinessSummary<'a> = (Readiness, &'a str);

/// Returns the readiness of an object of this generation whose condition has this observed generation, status and
/// reason.
pub fn from_condition<'a>(
    generation: Option<i64>,
    condition: Option<(Option<i64>, &str, &'a str)>,
) -> ReadinessSummary<'a> {
    match condition {
        Some((observed, _, _)) if generation > observed => (Readiness::Unknown, NOT_OBSERVED),
        Some((_, status, reason)) => (Readiness::of(status), reason),
        None => (Readiness::Unknown, NOT_OBSERVED),
    }
}
