//! Cost of a lookup, in nodes that it visits, estimated before it runs: the library that runs a query cannot be
//! interrupted.
//!
//! An estimate is an upper bound. It follows a query step by step through the object while the query has reached few
//! nodes, and then uses the sizes of the subtrees that the query can reach. A path of names costs its length, however
//! large the object is.

use std::collections::HashMap;

use serde_json::Value;

use super::query::{QueryFilter, QuerySelector, QueryStep};
use super::{FieldLookup, FieldSelector, PORTS};

/// Bytes of a value that cost as much as a node: values are written as JSON and hashed.
const BYTES_PER_NODE: u64 = 8;
/// Levels through which the library returns a match of `..` at the cost of one node: each level copies a pointer.
const LEVELS_PER_NODE: u64 = 16;
/// Maximum number of nodes that an estimate follows one by one.
const MAX_FOLLOWED: usize = 64;
/// Number of nodes above which a subtree is counted only once.
const LARGE_SUBTREE: u64 = 64;

/// Returns the cost of writing a node, without the nodes below.
fn cost_of(value: &Value) -> u64 {
    let bytes = match value {
        Value::String(text) => text.len(),
        Value::Object(members) => members.keys().map(String::len).sum(),
        _ => 0,
    };
    1 + bytes as u64 / BYTES_PER_NODE
}

/// Size of a subtree, with its root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    nodes: u64,
    /// The cost of writing the nodes.
    written: u64,
    /// The levels below the first.
    height: u64,
}

impl Size {
    fn beside(self, other: Self) -> Self {
        let (nodes, written) = (self.nodes + other.nodes, self.written + other.written);
        Self {
            nodes,
            written,
            height: self.height.max(other.height),
        }
    }
}

/// Sizes of the subtrees of one object. The first size of a list or an object takes one walk through the whole object.
pub(crate) struct Sizes<'a> {
    object: &'a Value,
    /// Sizes by address: the object is borrowed, so its nodes do not move.
    large: Option<HashMap<*const Value, Size>>,
    /// The nodes that estimates have walked, without the walk through the whole object.
    walked: u64,
}

impl<'a> Sizes<'a> {
    /// Creates sizes that have walked nothing yet.
    pub(crate) fn of(object: &'a Value) -> Self {
        Self {
            object,
            large: None,
            walked: 0,
        }
    }

    /// Returns the number of nodes that estimates have walked, without the walk through the whole object.
    pub(crate) fn walked(&self) -> u64 {
        self.walked
    }

    /// Returns the cost of writing these nodes, or some cost above `most`.
    pub(crate) fn written(&mut self, values: &[&'a Value], most: u64) -> u64 {
        let mut written: u64 = 0;
        for value in values {
            written = written.saturating_add(self.size(value).written);
            if written > most {
                break;
            }
        }
        written
    }

    /// Returns the size of a node of the object.
    fn size(&mut self, value: &'a Value) -> Size {
        if child_count(value) == 0 {
            self.walked += 1;
            return Size {
                nodes: 1,
                written: cost_of(value),
                height: 0,
            };
        }
        let large = self.large.get_or_insert_with(|| {
            let mut large = HashMap::new();
            count(self.object, &mut large);
            large
        });
        if let Some(size) = large.get(&std::ptr::from_ref(value)) {
            return *size;
        }
        let size = count(value, large);
        self.walked += size.nodes;
        size
    }
}

/// Counts a subtree, and stores the sizes of its large subtrees.
fn count(value: &Value, large: &mut HashMap<*const Value, Size>) -> Size {
    let mut size = Size {
        nodes: 1,
        written: cost_of(value),
        height: 0,
    };
    let mut add = |below: &Value| {
        let below = count(below, large);
        size.nodes += below.nodes;
        size.written += below.written;
        size.height = size.height.max(below.height + 1);
    };
    match value {
        Value::Array(items) => items.iter().for_each(&mut add),
        Value::Object(members) => members.values().for_each(&mut add),
        _ => {}
    }
    if size.nodes > LARGE_SUBTREE {
        large.insert(std::ptr::from_ref(value), size);
    }
    size
}

/// The nodes that a query has reached.
enum Reached<'a> {
    /// At most these nodes.
    These(Vec<&'a Value>),
    /// At most `count` nodes, in subtrees with this total size.
    Among { count: u64, size: Size },
}

/// The cost of a query so far.
struct CostWalk<'s, 'a> {
    sizes: &'s mut Sizes<'a>,
    reached: Reached<'a>,
    /// True if some reached nodes may be below others.
    nested: bool,
    cost: u64,
}

/// An upper bound of the cost of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The nodes that the lookup visits.
    pub(crate) visited: u64,
    /// The cost of [writing](Sizes::written) the value, if known before the lookup.
    pub(crate) written: Option<u64>,
}

impl FieldSelector {
    /// Returns the number of steps that lead from one node to several. Estimating a path without such steps visits few
    /// nodes.
    pub(crate) fn branches(&self) -> usize {
        fn count(steps: &[QueryStep]) -> usize {
            let branches = |step: &QueryStep| match &step.select {
                QuerySelector::Filter(filter) => {
                    1 + filter.paths.iter().map(|path| count(path)).sum::<usize>()
                }
                _ => usize::from(!step.is_singular()),
            };
            steps.iter().map(branches).sum()
        }
        match &self.0.select {
            FieldLookup::Paths(paths) => paths.iter().map(|path| count(&path.steps)).sum(),
            FieldLookup::Replicas | FieldLookup::Image(..) | FieldLookup::TargetPort(_) => 0,
        }
    }

    /// Returns the cost of finding the field in the object of `sizes`.
    pub(crate) fn cost(&self, sizes: &mut Sizes<'_>) -> Cost {
        let list = |pointer: &str, object: &Value| {
            let list = object.pointer(pointer).and_then(Value::as_array);
            pointer.split('/').count() as u64 + list.map_or(0, Vec::len) as u64
        };
        let visited = match &self.0.select {
            FieldLookup::Replicas => 2,
            FieldLookup::Image(containers, _) => list(containers.0, sizes.object),
            FieldLookup::TargetPort(_) => list(PORTS, sizes.object),
            FieldLookup::Paths(paths) => {
                let none = Cost {
                    visited: 0,
                    written: Some(0),
                };
                return paths
                    .iter()
                    .map(|path| of_steps(&path.steps, sizes))
                    .fold(none, Cost::and);
            }
        };
        Cost {
            visited,
            written: Some(sizes.written(&self.matches(sizes.object), u64::MAX)),
        }
    }
}

impl Cost {
    /// Returns the part of the cost that is known before the lookup.
    pub(crate) fn known(self) -> u64 {
        self.visited.saturating_add(self.written.unwrap_or(0))
    }

    fn and(self, other: Self) -> Self {
        Self {
            visited: self.visited.saturating_add(other.visited),
            written: self
                .written
                .zip(other.written)
                .map(|(one, other)| one.saturating_add(other)),
        }
    }
}

fn of_steps(steps: &[QueryStep], sizes: &mut Sizes<'_>) -> Cost {
    let reached = Reached::These(vec![sizes.object]);
    let mut walk = CostWalk {
        sizes,
        reached,
        nested: false,
        cost: 1,
    };
    for step in steps {
        walk.step(step);
    }
    let CostWalk {
        sizes,
        reached,
        cost,
        ..
    } = walk;
    let written = match reached {
        Reached::These(nodes) => Some(sizes.written(&nodes, u64::MAX)),
        Reached::Among { .. } => None,
    };
    Cost {
        visited: cost,
        written,
    }
}

impl<'a> CostWalk<'_, 'a> {
    fn pay(&mut self, nodes: u64) {
        self.cost = self.cost.saturating_add(nodes);
    }

    fn step(&mut self, step: &QueryStep) {
        if step.descends {
            return self.descend(&step.select);
        }
        match std::mem::replace(&mut self.reached, Reached::These(Vec::new())) {
            Reached::These(nodes) => self.follow(&nodes, &step.select),
            Reached::Among { count, size } => self.spread(count, size, &step.select),
        }
    }

    /// Follows a step from each of a few nodes.
    fn follow(&mut self, nodes: &[&'a Value], select: &QuerySelector) {
        let mut next = Vec::new();
        let mut many = 0;
        for node in nodes {
            self.pay(1);
            self.sizes.walked += 1;
            let found = match (select, node) {
                (QuerySelector::Name(name), Value::Object(members)) => {
                    members.get(&**name).into_iter().collect()
                }
                (QuerySelector::Index(index), Value::Array(items)) => {
                    item(items, *index).into_iter().collect()
                }
                (QuerySelector::Slice(_), Value::Array(_))
                | (QuerySelector::All | QuerySelector::Filter(_), _) => {
                    let children = children(node, MAX_FOLLOWED);
                    self.sizes.walked += children.len() as u64;
                    let count = child_count(node);
                    self.pay(count);
                    if let QuerySelector::Filter(filter) = select {
                        let size = self.sizes.size(node);
                        self.filter(filter, count, size);
                    }
                    if children.len() as u64 == count {
                        children
                    } else {
                        many += count;
                        continue;
                    }
                }
                _ => Vec::new(),
            };
            next.extend(found);
        }
        let found = next.len() as u64 + many;
        self.reached = if found <= MAX_FOLLOWED as u64 {
            Reached::These(next)
        } else {
            Reached::Among {
                count: found,
                size: self.together(nodes),
            }
        };
    }

    /// Returns the total size of the subtrees of these nodes, which do not overlap unless they are nested.
    fn together(&mut self, nodes: &[&'a Value]) -> Size {
        let sizes = nodes.iter().map(|node| self.sizes.size(node));
        sizes.fold(Size::default(), Size::beside)
    }

    /// Takes a step from each of `count` nodes in subtrees of this size.
    fn spread(&mut self, count: u64, size: Size, select: &QuerySelector) {
        self.pay(count);
        let count = match select {
            QuerySelector::Name(_) | QuerySelector::Index(_) => count,
            QuerySelector::All | QuerySelector::Slice(_) => {
                self.pay(size.nodes);
                size.nodes
            }
            QuerySelector::Filter(filter) => {
                self.pay(size.nodes);
                self.filter(filter, size.nodes, size);
                size.nodes
            }
        };
        self.reached = Reached::Among { count, size };
    }

    /// Tests `count` nodes of subtrees of this size.
    fn filter(&mut self, filter: &QueryFilter, count: u64, size: Size) {
        for path in &filter.paths {
            // A step reaches each node from one other node at most, so no step finds more nodes than there are.
            let mut reached = count;
            for step in path {
                self.pay(reached);
                if !step.is_singular() {
                    self.pay(size.nodes);
                    reached = size.nodes;
                }
            }
        }
        self.pay(count);
        if filter.compares_trees {
            // A node is compared once for each tree that contains it.
            let times = if self.nested { size.height + 1 } else { 1 };
            self.pay(size.nodes.saturating_mul(times));
        }
    }

    /// Takes a step from each node below the reached ones.
    fn descend(&mut self, select: &QuerySelector) {
        let size = match &self.reached {
            Reached::These(nodes) => {
                let nodes = nodes.clone();
                self.together(&nodes)
            }
            Reached::Among { size, .. } => *size,
        };
        self.nested = true;
        // The library returns each match through every level above the match.
        self.pay(size.nodes.saturating_mul(size.height) / LEVELS_PER_NODE);
        self.spread(size.nodes, size, select);
    }
}

fn item(items: &[Value], index: i64) -> Option<&Value> {
    let offset = usize::try_from(index.unsigned_abs()).ok()?;
    if index < 0 {
        items.get(items.len().checked_sub(offset)?)
    } else {
        items.get(offset)
    }
}

fn child_count(value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.len() as u64,
        Value::Object(members) => members.len() as u64,
        _ => 0,
    }
}

/// Returns the first `most` members or items.
fn children(value: &Value, most: usize) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().take(most).collect(),
        Value::Object(members) => members.values().take(most).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
