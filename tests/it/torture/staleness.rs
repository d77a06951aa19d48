//! The strike of a case at a watch: a view of the cluster that is stale during one step of the workload.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use testbed::proxy::{self, BOOKMARK, Ending, Injection, LIST_END, Match, Proxy, Times};
use tokio::sync::watch;

use super::case::{Fault, Staleness};
use super::scene::{Scene, is_sound};
use super::steps;
use super::strike::hit;
use crate::support::{Bed, Operator, SOON};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Before,
    During,
    After,
}

/// A watch that becomes stale.
pub struct StaleWatch {
    view: Staleness,
    /// True if the leader is killed after the step.
    fails_over: bool,
    step: usize,
    watch: Match,
    /// The watch, and the lists in pages that begin it.
    watch_and_lists: Match,
    /// The lists of the watch that may be old.
    lists: Match,
    /// Proxy of the replica with the stale view.
    proxy: Proxy,
    phase: watch::Sender<Phase>,
    /// Injection of the step, unless the list is old.
    injection: OnceLock<Injection>,
    /// Answer to a list, before the step.
    old_list: OnceLock<String>,
    has_struck: AtomicBool,
}

impl StaleWatch {
    pub fn new(fault: Fault, watch: &str, step: usize, bed: &Bed, proxy: &Proxy) -> Self {
        let (view, fails_over) = match fault {
            Fault::Stale(view) => (view, false),
            Fault::StaleStandby(view) => (view, true),
            _ => panic!("{fault} is no fault of a watch"),
        };
        Self {
            view,
            fails_over,
            step,
            watch: steps::watch(watch, bed),
            watch_and_lists: steps::watch_and_lists(watch, bed),
            lists: steps::old_lists(watch, bed),
            proxy: proxy.clone(),
            phase: watch::Sender::new(Phase::Before),
            injection: OnceLock::new(),
            old_list: OnceLock::new(),
            has_struck: AtomicBool::new(false),
        }
    }

    pub fn has_struck(&self) -> bool {
        self.has_struck.load(Ordering::Relaxed)
    }

    pub async fn begin_step(&self, step: usize, scene: &Scene<'_>) {
        if step != self.step {
            return;
        }
        // Events of the step before must not count.
        scene.calms_down().await;
        let watch = self.watch.clone();
        let injection = match self.view {
            Staleness::Frozen if self.fails_over => Some(self.proxy.freeze_running(watch)),
            Staleness::Frozen | Staleness::Expired | Staleness::Gap | Staleness::Forbidden => {
                Some(self.proxy.freeze(watch))
            }
            Staleness::Hidden(number) => {
                let seen = AtomicU64::new(0);
                Some(self.proxy.hide(watch, move |event| {
                    event.kind != BOOKMARK && seen.fetch_add(1, Ordering::Relaxed) + 1 == number
                }))
            }
            Staleness::OldList => {
                if let Some(list) = self.read_list(scene).await {
                    self.old_list.get_or_init(|| list);
                }
                None
            }
        };
        if let Some(injection) = injection {
            self.injection.get_or_init(|| injection);
        }
        self.phase.send_replace(Phase::During);
    }

    /// Ends the step, if it is the one with the fault; returns whether it is.
    pub fn end_step(&self, step: usize) -> bool {
        if step == self.step {
            self.phase.send_replace(Phase::After);
        }
        step == self.step
    }

    async fn wait_for(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        phases.wait_for(|it| *it >= phase).await.unwrap();
    }

    /// Makes the watch stale. Returns once nothing is stale any more, and a new leader leads.
    pub async fn act(&self, scene: &Scene<'_>, replicas: &mut [Operator]) {
        self.wait_for(Phase::During).await;
        let Some(injection) = self.injection.get() else {
            return self.serve_old_list(scene, replicas).await;
        };
        tokio::select! {
            biased;
            () = hit(injection) => self.has_struck.store(true, Ordering::Relaxed),
            () = self.wait_for(Phase::After) => return injection.cancel(),
        }
        let forbidden =
            (self.view == Staleness::Forbidden).then(|| self.proxy.forbid(&self.watch_and_lists));
        let lasts = self.view != Staleness::Expired;
        if lasts && self.fails_over {
            self.fail_over(replicas).await;
        }
        if lasts {
            scene.calms_down().await;
        }
        match self.view {
            Staleness::Hidden(_) if !self.fails_over => {
                injection.cancel();
                self.expire();
            }
            // The proxy drops the events that it has held back.
            Staleness::Expired | Staleness::Gap => self.expire(),
            _ => {}
        }
        if let Some(forbidden) = forbidden {
            forbidden.cancel();
        }
        injection.cancel();
        if !lasts && self.fails_over {
            self.fail_over(replicas).await;
        }
    }

    async fn fail_over(&self, replicas: &mut [Operator]) {
        self.wait_for(Phase::After).await;
        is_sound(&mut replicas[0]).unwrap();
        replicas[0].kill();
        replicas[1].leads().await;
    }

    fn expire(&self) {
        self.proxy.end_watches(&self.watch, Ending::Gone);
    }

    /// Reads what the apiserver answers to a list of the watch; `None` if the operator has no such watch yet.
    async fn read_list(&self, scene: &Scene<'_>) -> Option<String> {
        let requests = self.proxy.requests();
        let mut lists = requests.iter().map(|it| &it.request);
        let list = lists.rfind(|it| self.lists.matches(it))?;
        // The watch ends after this time, in which a slow machine may not send the whole list.
        for seconds in [1, 4, 16] {
            let ends_soon = |pair: &str| match pair.split_once('=') {
                Some(("timeoutSeconds", _)) => format!("timeoutSeconds={seconds}"),
                _ => pair.to_owned(),
            };
            let query: Vec<_> = list.query.split('&').map(ends_soon).collect();
            let request = http::Request::get(format!("{}?{}", list.path, query.join("&")));
            let request = request.body(Vec::new()).unwrap();
            let answer = scene.bed.client.request_text(request).await.unwrap();
            if let Some((objects, rest)) = answer.split_once(LIST_END)
                && let Some((end, _)) = rest.split_once('\n')
            {
                return Some(format!("{objects}{LIST_END}{end}\n"));
            }
        }
        panic!("no list of {}", list.path);
    }

    /// Serves the list from before the step, and what came since once the operator rests.
    async fn serve_old_list(&self, scene: &Scene<'_>, replicas: &mut [Operator]) {
        self.wait_for(Phase::After).await;
        let Some(list) = self.old_list.get() else {
            return;
        };
        self.has_struck.store(true, Ordering::Relaxed);
        let later = self.proxy.freeze(self.watch.clone());
        let answer = proxy::Fault::Respond(list.clone());
        let old = self.proxy.inject(self.lists.clone(), Times::Always, answer);
        self.expire();
        old.wait_for_hits(1, SOON)
            .await
            .unwrap_or_else(|error| panic!("no list: {error:#}"));
        if self.fails_over {
            // The new leader may list again.
            self.fail_over(replicas).await;
        }
        scene.calms_down().await;
        old.cancel();
        later.cancel();
    }
}
