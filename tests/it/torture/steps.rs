//! The steps of a workload, which its checkpoints end, and the events of the operator's watches in each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use testbed::proxy::{ApiRequest, BOOKMARK, Fault, Match, Point, Proxy, Then, Times, Verb};

use crate::support::Bed;

/// Numbers of events by watch and step.
pub type Events = BTreeMap<(String, usize), u64>;

/// The current step, and the events so far.
#[derive(Clone, Default)]
pub struct Steps {
    current: Arc<AtomicUsize>,
    events: Arc<Mutex<Events>>,
    /// The step of each watch's first request; 0 before the workload.
    opened: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Steps {
    /// Returns the number of the step, from 1; 0 before the workload.
    pub fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub fn begin_next(&self) -> usize {
        self.current.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts the events that the operator behind this proxy gets, and notes when it opens each watch.
    pub fn observe(&self, bed: &Bed, proxy: &Proxy) {
        let (steps, namespace) = (self.clone(), bed.namespace.clone());
        let note = Fault::hook(Point::Before, move |request| {
            let name = watch_name(&request, &namespace);
            let mut opened = steps.opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.entry(name).or_insert_with(|| steps.current());
            async { Then::GoOn }
        });
        proxy.inject(Match::verb(Verb::Watch), Times::Always, note);
        let (steps, namespace) = (self.clone(), bed.namespace.clone());
        proxy.on_event(Match::verb(Verb::Watch), move |event| {
            if event.kind != BOOKMARK {
                let place = (watch_name(&event.request, &namespace), steps.current());
                let mut events = steps.events.lock().unwrap_or_else(PoisonError::into_inner);
                *events.entry(place).or_default() += 1;
            }
        });
    }

    /// Returns the step in which each watch was opened; 0 before the workload.
    pub fn opened(&self) -> BTreeMap<String, usize> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.clone()
    }

    /// Returns the events of the workload's steps.
    pub fn events(&self) -> Events {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = std::mem::take(&mut *events);
        events.retain(|(_, step), _| *step > 0);
        events
    }
}

/// Returns the name of a watch: the resource, and which of the workload's namespaces if it is not the first.
pub fn watch_name(request: &ApiRequest, namespace: &str) -> String {
    let watched = request.namespace.as_deref().unwrap_or_default();
    match watched.strip_prefix(namespace) {
        Some(suffix) if !suffix.is_empty() => {
            format!("{}{}", request.resource, suffix.replacen('-', ".", 1))
        }
        _ => request.resource.clone(),
    }
}

/// Matches the watch of this name.
pub fn watch(name: &str, bed: &Bed) -> Match {
    let (name, namespace) = (name.to_owned(), bed.namespace.clone());
    Match::verb(Verb::Watch).and(move |request| watch_name(request, &namespace) == name)
}

/// Matches the watch of this name, and the lists of its objects.
pub fn watch_and_lists(name: &str, bed: &Bed) -> Match {
    let (name, namespace) = (name.to_owned(), bed.namespace.clone());
    Match::any().and(move |request| {
        matches!(request.verb, Verb::Watch | Verb::List) && watch_name(request, &namespace) == name
    })
}

/// Matches the lists of the watch of this name that may be old.
pub fn old_lists(name: &str, bed: &Bed) -> Match {
    let watch = watch(name, bed);
    Match::any().and(move |request| may_be_old(request) && watch.matches(request))
}

/// Returns whether the apiserver may answer the request with a list from its cache, which may be old.
fn may_be_old(request: &ApiRequest) -> bool {
    request.verb == Verb::Watch
        && request.query.contains("sendInitialEvents=true")
        && request.query.split('&').any(|it| it == "resourceVersion=0")
}

/// Returns the names of the watches whose lists may be old.
pub fn with_old_lists(bed: &Bed, proxy: &Proxy) -> BTreeSet<String> {
    let requests = proxy.requests();
    let lists = requests.iter().filter(|it| may_be_old(&it.request));
    lists
        .map(|it| watch_name(&it.request, &bed.namespace))
        .collect()
}
