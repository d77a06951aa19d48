//! Calls of libraries that run the users' expressions and templates.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a call of a library, and turns a panic into an error: a panic would end the operator for every user. `what`
/// names the user's text, such as "expression".
///
/// # Errors
/// Returns the error message for the user.
pub(crate) fn without_panic<T>(what: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| format!("the {what} cannot be evaluated: simplify it"))
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_an_error() {
        let problem = "the template cannot be evaluated: simplify it".to_owned();
        assert_eq!(
            without_panic("template", || -> usize { panic!("boom") }),
            Err(problem)
        );
        assert_eq!(without_panic("template", || 1), Ok(1));
    }
}
