//! Lookups of the fields of one state of an object, within a budget.
//!
//! Cheap lookups run inline. The others run in the background, or are rejected: the library that runs a path cannot be
//! interrupted, so each path is estimated before it runs.

#![allow(clippy::mutable_key_type)] // a field is hashed and compared by its text

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use qm_api::tracked_field::ChangedBy;
use qm_notify::history::{Details, ObservedField, ObservedValue};
use qm_runtime::nesting::{OBJECT_LEVELS, is_deeper};
use qm_runtime::raw_object::{MAX_DECODED, RawObject, TooLarge};
use qm_runtime::tasks;
use serde_json::Value;
use tracing::warn;

use super::field::cost::{Cost, Sizes};
use super::field::{FieldSelector, Selectors};

/// Maximum number of nodes that the lookups of all fields of one state of an object may visit.
pub(crate) const BUDGET: u64 = 2_000_000;
/// Maximum number of nodes that all lookups of one state of an object visit on a thread that has other work.
const MAX_INLINE_NODES: u64 = 100_000;
/// Maximum number of nodes that one inline lookup visits.
const MAX_INLINE_LOOKUP_NODES: u64 = 20_000;
/// Maximum size of a value of the context, in bytes.
const MAX_CONTEXT_BYTES: usize = 256;

/// Result of a lookup; `V` is the value, or the value with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup<V = ObservedValue> {
    Found(V),
    /// The lookup is too expensive for this thread.
    Deferred,
    /// The lookup is too expensive for the budget.
    Rejected(Estimate),
}

/// Approximate number of nodes that a rejected lookup would visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate(Option<u64>);

impl Estimate {
    /// The object has too many fields to estimate all of them.
    pub(crate) const UNKNOWN: Self = Self(None);

    /// Rounds up to two digits, so that the estimate stays the same while the object hardly changes.
    pub(crate) fn of(nodes: u64) -> Self {
        let unit = 10_u64.pow(nodes.checked_ilog10().unwrap_or(0).saturating_sub(1));
        Self(Some(nodes.div_ceil(unit).saturating_mul(unit)))
    }

    /// Returns the nodes, if known.
    #[cfg(test)]
    pub(crate) fn nodes(self) -> Option<u64> {
        self.0
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(nodes) => write!(
                f,
                "the lookup takes about {} steps in this object",
                grouped(nodes)
            )?,
            None => f.write_str(
                "this object has too many TrackedFields, so the cost of this path was not estimated",
            )?,
        }
        write!(
            f,
            "; all TrackedFields of one object together may take {} steps: write names and indexes in place of .. and \
             *, such as {{.spec.template.spec.containers[0].image}}",
            grouped(BUDGET)
        )
    }
}

/// Writes a number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

/// Why the field of an object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// The object has more levels than the operator keeps.
    #[error("nests deeper than {OBJECT_LEVELS} levels: flatten it")]
    TooDeep,
    /// The decoded object takes more memory than the operator allows.
    #[error("takes more than {} MiB of memory once it is decoded: shorten it", MAX_DECODED >> 20)]
    TooLarge,
    /// The object is not valid JSON.
    #[error("cannot be read: {0}")]
    NotJson(String),
    /// The lookup of the field is too expensive.
    #[error("{0}")]
    TooExpensive(Estimate),
}

/// Thread that runs lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupMode {
    /// A thread that has other work.
    Inline,
    /// The thread for expensive lookups.
    Background,
}

/// Result of all lookups in one state of an object.
pub(super) type LookupResults = Result<FoundFields, Unreadable>;

/// Results of the lookups in an object.
#[derive(Default)]
pub(super) struct FoundFields {
    fields: HashMap<FieldSelector, Lookup>,
    /// Writers of the tracked fields whose value is new.
    changed_by: HashMap<FieldSelector, Box<ChangedBy>>,
}

/// Lookups in one state of an object.
#[derive(Clone, Default)]
pub(super) struct Lookups {
    fields: Vec<FieldSelector>,
    requested: HashSet<FieldSelector>,
    /// Known values of the requested tracked fields: the writer of a value is looked up only if the value is new.
    known: HashMap<FieldSelector, Option<ObservedValue>>,
}

impl Lookups {
    /// Adds a tracked field and its context; `known` is the field's newest known value. Fields that are not requested
    /// only count towards the budget.
    pub(super) fn add(
        &mut self,
        selectors: &Selectors,
        known: Option<&ObservedValue>,
        requested: bool,
    ) {
        for field in selectors.all() {
            self.fields.push(field.clone());
            if requested {
                self.requested.insert(field.clone());
            }
        }
        if requested {
            self.known
                .entry(selectors.field.clone())
                .and_modify(|before| {
                    if before.as_ref() != known {
                        *before = None;
                    }
                })
                .or_insert_with(|| known.cloned());
        }
    }

    /// Decodes the object and looks up the fields.
    pub(super) fn run(&self, object: &RawObject, mode: LookupMode) -> LookupResults {
        let whole = decoded(object)?;
        let is_requested = |field: &FieldSelector| self.requested.contains(field);
        let fields = look_up(&whole, self.fields.clone(), is_requested, mode);
        let is_new = |field: &FieldSelector, known: Option<&ObservedValue>| match fields.get(field)
        {
            Some(Lookup::Found(ObservedValue::Missing)) | None => false,
            Some(Lookup::Found(value)) => known != Some(value),
            Some(_) => false,
        };
        let changed_by = self
            .known
            .iter()
            .filter_map(|(field, known)| {
                let changed_by = is_new(field, known.as_ref())
                    .then(|| field.changed_by(&whole))
                    .flatten()?;
                Some((field.clone(), Box::new(changed_by)))
            })
            .collect();
        Ok(FoundFields { fields, changed_by })
    }

    /// Returns the results of `run`. If it panics, defers every lookup until a read: a panic fails a read for one
    /// `TrackedField` alone, and a watch for all of them.
    pub(super) fn or_deferred(self, run: impl FnOnce(&Self) -> LookupResults) -> LookupResults {
        catch_unwind(AssertUnwindSafe(|| run(&self))).unwrap_or_else(|panic| {
            warn!(
                panic = tasks::panic_message(&*panic),
                "lookups in a watched object panicked; will read it again"
            );
            self.deferred()
        })
    }

    /// Defers every lookup until a read.
    #[allow(clippy::unnecessary_wraps)] // same type as `run`
    pub(super) fn deferred(self) -> LookupResults {
        let deferred = self
            .requested
            .into_iter()
            .map(|field| (field, Lookup::Deferred));
        Ok(FoundFields {
            fields: deferred.collect(),
            ..FoundFields::default()
        })
    }
}

impl FoundFields {
    /// Returns the value of a tracked field with its details; `None` if the field was not looked up. A rejected path of
    /// the context has no value, because the context must not hold back the change.
    pub(super) fn of(&self, selectors: &Selectors) -> Option<Lookup<ObservedField>> {
        let value = match self.fields.get(&selectors.field)? {
            Lookup::Found(value) => value.clone(),
            Lookup::Deferred => return Some(Lookup::Deferred),
            Lookup::Rejected(estimate) => return Some(Lookup::Rejected(*estimate)),
        };
        let mut context = BTreeMap::new();
        for (name, field) in &selectors.context {
            let text = match self.fields.get(field) {
                // A path that was added during the lookups needs a read.
                Some(Lookup::Deferred) | None => return Some(Lookup::Deferred),
                Some(Lookup::Found(value)) => value.text().unwrap_or_default(),
                Some(Lookup::Rejected(_)) => "",
            };
            let end = text.floor_char_boundary(MAX_CONTEXT_BYTES);
            context.insert(name.clone(), text[..end].to_owned());
        }
        let changed_by = self.changed_by.get(&selectors.field).cloned();
        let has_details = !context.is_empty() || changed_by.is_some();
        let details = has_details.then(|| {
            Box::new(Details {
                context,
                changed_by,
            })
        });
        Some(Lookup::Found(ObservedField { value, details }))
    }
}

/// Decodes an object for lookups.
fn decoded(object: &RawObject) -> Result<Value, Unreadable> {
    match object.decode() {
        Ok(Ok(whole)) => bounded(whole),
        Ok(Err(TooLarge)) => Err(Unreadable::TooLarge),
        Err(error) => Err(Unreadable::NotJson(error.to_string())),
    }
}

fn bounded(mut whole: Value) -> Result<Value, Unreadable> {
    if !is_deeper(&whole, OBJECT_LEVELS) {
        return Ok(whole);
    }
    // `managedFields` name every field of the object a few levels deeper, and anyone who may write the object may put
    // anything into them.
    if let Some(metadata) = whole.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if is_deeper(&whole, OBJECT_LEVELS) {
        Err(Unreadable::TooDeep)
    } else {
        Ok(whole)
    }
}

/// Looks up the `requested` fields, each one once, and cheap ones first. All other fields count towards the budget too,
/// so that the same lookups are rejected, whatever is requested. Paths with few branching steps are estimated first, so
/// that a path of names is estimated before any number of other paths use up the budget of estimates.
pub(super) fn look_up(
    object: &Value,
    mut fields: Vec<FieldSelector>,
    requested: impl Fn(&FieldSelector) -> bool,
    mode: LookupMode,
) -> HashMap<FieldSelector, Lookup> {
    fields.sort_unstable_by(|one, other| {
        (one.branches(), one.text()).cmp(&(other.branches(), other.text()))
    });
    fields.dedup();
    let mut sizes = Sizes::of(object);
    let mut estimated: Vec<(Cost, FieldSelector)> = Vec::with_capacity(fields.len());
    let mut lookups = HashMap::with_capacity(fields.len());
    let (mut inline_left, most_estimating, not_estimated) = match mode {
        LookupMode::Inline => (MAX_INLINE_NODES, MAX_INLINE_NODES, Lookup::Deferred),
        LookupMode::Background => (u64::MAX, BUDGET, Lookup::Rejected(Estimate::UNKNOWN)),
    };
    for field in fields {
        // Estimates cost time, too.
        if sizes.walked() <= most_estimating {
            estimated.push((field.cost(&mut sizes), field));
        } else if requested(&field) {
            lookups.insert(field, not_estimated.clone());
        }
    }
    estimated.sort_by_key(|(cost, _)| cost.known());
    let mut left = BUDGET;
    for (cost, field) in estimated {
        let Some(rest) = left.checked_sub(cost.known()) else {
            if requested(&field) {
                lookups.insert(field, Lookup::Rejected(Estimate::of(cost.known())));
            }
            continue;
        };
        left = rest;
        let lookup = match mode {
            LookupMode::Inline if !requested(&field) => continue,
            LookupMode::Inline => {
                let most = inline_left.min(MAX_INLINE_LOOKUP_NODES);
                if let Ok((value, spent)) = within(object, &field, cost, &mut sizes, most) {
                    inline_left -= spent;
                    Lookup::Found(value)
                } else {
                    inline_left =
                        inline_left.saturating_sub(cost.visited.min(MAX_INLINE_LOOKUP_NODES));
                    Lookup::Deferred
                }
            }
            // The cost of writing the value may be known only now.
            LookupMode::Background => match within(
                object,
                &field,
                cost,
                &mut sizes,
                left.saturating_add(cost.known()),
            ) {
                Ok((value, spent)) => {
                    left = left.saturating_add(cost.known()).saturating_sub(spent);
                    Lookup::Found(value)
                }
                Err(cost) => Lookup::Rejected(Estimate::of(cost)),
            },
        };
        if requested(&field) {
            lookups.insert(field, lookup);
        }
    }
    lookups
}

/// Looks up a field if the lookup and writing its value cost `most` at most. Returns the value and the cost, or the
/// cost alone.
fn within<'a>(
    object: &'a Value,
    field: &FieldSelector,
    cost: Cost,
    sizes: &mut Sizes<'a>,
    most: u64,
) -> Result<(ObservedValue, u64), u64> {
    if cost.known() > most {
        return Err(cost.known());
    }
    let matches = field.matches(object);
    let written = cost
        .written
        .unwrap_or_else(|| sizes.written(&matches, most));
    let cost = cost.visited.saturating_add(written);
    if cost > most {
        Err(cost)
    } else {
        Ok((ObservedValue::of_matches(&matches), cost))
    }
}

#[cfg(test)]
mod tests;
