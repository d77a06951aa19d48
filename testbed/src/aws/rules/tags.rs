//! Tags. moto allows ten and checks no characters; AWS allows fifty.

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::layer::Layer;
use super::super::state::{State, Tags};
use super::super::xml::Element;
use super::existing::{balancer_not_found, group_not_found, listener_not_found};
use super::params::{MAX_NAMES, missing};

/// Limit of tags on a resource.
const MAX_TAGS: usize = 50;

pub(super) fn check_count(count: usize) -> Result<(), AwsErrorResponse> {
    if count > MAX_TAGS {
        let message = format!("The maximum number of tags for a resource is {MAX_TAGS}");
        return Err(AwsErrorResponse::new("TooManyTags", message));
    }
    Ok(())
}

/// Returns the tags in the call.
pub(super) fn desired(form: &Form) -> Result<Tags, AwsErrorResponse> {
    let mut tags = Tags::new();
    for mut tag in form.members("Tags") {
        let (key, value) = (
            tag.remove("Key").unwrap_or_default(),
            tag.remove("Value").unwrap_or_default(),
        );
        check("key", &key, 1, 128)?;
        check("value", &value, 0, 256)?;
        if key.to_lowercase().starts_with("aws:") {
            let message =
                format!("The tag key '{key}' cannot begin with 'aws:', which is reserved");
            return Err(AwsErrorResponse::invalid(message));
        }
        if tags.contains_key(&key) {
            let message = format!("Tag key '{key}' was specified more than once");
            return Err(AwsErrorResponse::new("DuplicateTagKeys", message));
        }
        tags.insert(key, value);
    }
    Ok(tags)
}

fn check(what: &str, text: &str, min: usize, max: usize) -> Result<(), AwsErrorResponse> {
    let allowed = |character: char| {
        character.is_alphanumeric() || character.is_whitespace() || "_.:/=+-@".contains(character)
    };
    if (min..=max).contains(&text.chars().count()) && text.chars().all(allowed) {
        return Ok(());
    }
    Err(AwsErrorResponse::invalid(format!(
        "1 validation error detected: Value '{text}' at 'tags.member.{what}' failed to satisfy constraint: Member must \
         satisfy regular expression pattern: ^([\\p{{L}}\\p{{Z}}\\p{{N}}_.:/=+\\-@]*)$ and have a length between {min} \
         and {max}"
    )))
}

/// Returns the resources that a call names, all of which must exist. With `shown`, describes must also show them.
fn resources(state: &State, form: &Form, shown: bool) -> Result<Vec<String>, AwsErrorResponse> {
    let arns = form.list("ResourceArns");
    if arns.is_empty() {
        return Err(missing("ResourceArns"));
    }
    if arns.len() > MAX_NAMES {
        return Err(AwsErrorResponse::invalid(format!(
            "Cannot have more than {MAX_NAMES} resources described"
        )));
    }
    for arn in &arns {
        let (there, not_found) = if arn.contains(":loadbalancer/") {
            let message = format!("Load balancer '{arn}' not found");
            (
                state.balancers.contains_key(arn),
                balancer_not_found(message),
            )
        } else if arn.contains(":targetgroup/") {
            (state.groups.contains_key(arn), group_not_found(arn))
        } else if arn.contains(":listener/") {
            (state.listeners.contains_key(arn), listener_not_found())
        } else {
            return Err(AwsErrorResponse::invalid(format!(
                "'{arn}' must be in ARN format"
            )));
        };
        let found = if shown { state.is_shown(arn) } else { there };
        if !found {
            return Err(not_found);
        }
    }
    Ok(arns)
}

pub(super) fn add(layer: &Layer, form: &Form) -> CallResult {
    let mut state = layer.state();
    let new = desired(form)?;
    if new.is_empty() {
        return Err(missing("Tags"));
    }
    let arns = resources(&state, form, false)?;
    for arn in &arns {
        let former = state.tags.get(arn).cloned().unwrap_or_default();
        let more = new.keys().filter(|key| !former.contains_key(*key)).count();
        check_count(former.len() + more)?;
    }
    for arn in arns {
        state.set_tags(&arn, new.clone());
    }
    Ok(Vec::new())
}

pub(super) fn remove(layer: &Layer, form: &Form) -> CallResult {
    let mut state = layer.state();
    let keys = form.list("TagKeys");
    if keys.is_empty() {
        return Err(missing("TagKeys"));
    }
    for arn in resources(&state, form, false)? {
        state
            .tags
            .entry(arn)
            .or_default()
            .retain(|key, _| !keys.contains(key));
    }
    Ok(Vec::new())
}

pub(super) fn describe(layer: &Layer, form: &Form) -> CallResult {
    let state = layer.state();
    let descriptions = resources(&state, form, true)?.into_iter().map(|arn| {
        let tags = state.shown_tags(&arn).into_iter();
        let tags =
            tags.map(|(key, value)| vec![Element::text("Key", key), Element::text("Value", value)]);
        vec![
            Element::text("ResourceArn", &arn),
            Element::list("Tags", tags),
        ]
    });
    Ok(vec![Element::list(
        "TagDescriptions",
        descriptions.collect::<Vec<_>>(),
    )])
}
