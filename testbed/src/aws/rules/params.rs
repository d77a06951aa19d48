//! Parameters of calls and their checks, and pages of results.

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::state::State;
use super::super::xml::Element;

/// Returns a required parameter.
pub(super) fn required<'a>(form: &'a Form, name: &str) -> Result<&'a str, AwsErrorResponse> {
    form.get(name).ok_or_else(|| missing(name))
}

pub(super) fn missing(name: &str) -> AwsErrorResponse {
    AwsErrorResponse::invalid(format!("The request must contain the parameter {name}"))
}

/// Checks a parameter with a fixed set of values.
pub(super) fn one_of(form: &Form, name: &str, choice: &[&str]) -> Result<(), AwsErrorResponse> {
    match form.get(name) {
        Some(value) if !choice.contains(&value) => {
            let mut member = name.to_owned();
            if let Some(first) = member.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            let choice = choice.join(", ");
            Err(AwsErrorResponse::invalid(format!(
                "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must \
                 satisfy enum value set: [{choice}]"
            )))
        }
        _ => Ok(()),
    }
}

/// Limit of names in one describe.
pub(super) const MAX_NAMES: usize = 20;

/// Returns the list's items, at most [`MAX_NAMES`].
pub(super) fn named(form: &Form, list: &str, what: &str) -> Result<Vec<String>, AwsErrorResponse> {
    let items = form.list(list);
    if items.len() > MAX_NAMES {
        let count = items.len();
        return Err(AwsErrorResponse::invalid(format!(
            "Up to {MAX_NAMES} {what} can be described at a time, but {count} were specified"
        )));
    }
    Ok(items)
}

/// Returns one page of a list: the items after `Marker`, as many as `PageSize` and the server allow, and `NextMarker`.
pub(super) fn page(
    state: &State,
    form: &Form,
    list: &str,
    key: &str,
    items: Vec<Element>,
) -> CallResult {
    let size = match form.get("PageSize").map(str::parse::<usize>) {
        None => state.page,
        Some(Ok(size @ 1..=400)) => size.min(state.page),
        Some(_) => {
            return Err(AwsErrorResponse::invalid(
                "The page size must be between 1 and 400",
            ));
        }
    };
    let start = match form.get("Marker") {
        None => 0,
        Some(marker) => match items.iter().position(|item| item.get(key) == marker) {
            Some(at) => at + 1,
            None => {
                return Err(AwsErrorResponse::invalid(format!(
                    "Invalid marker: {marker}"
                )));
            }
        },
    };
    let more = items.len() > start + size;
    let items: Vec<Element> = items.into_iter().skip(start).take(size).collect();
    let marker = items
        .last()
        .filter(|_| more)
        .map(|item| Element::text("NextMarker", item.get(key)));
    Ok([Element::with(list, items)]
        .into_iter()
        .chain(marker)
        .collect())
}

/// Returns the only list of a result of moto.
pub(in crate::aws) fn members(result: Vec<Element>) -> Vec<Element> {
    result
        .into_iter()
        .next()
        .map(|list| list.children)
        .unwrap_or_default()
}

/// Checks a name: at most 32 letters, digits and hyphens, with no hyphen at either end.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), AwsErrorResponse> {
    if name.len() > 32 {
        return Err(AwsErrorResponse::invalid(format!(
            "The {what} name '{name}' cannot be longer than '32' characters"
        )));
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return Err(AwsErrorResponse::invalid(format!(
            "The {what} name '{name}' can only contain characters that are alphanumeric characters or hyphens(-)"
        )));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err(AwsErrorResponse::invalid(format!(
            "The {what} name '{name}' cannot begin or end with a hyphen(-)"
        )));
    }
    Ok(())
}
