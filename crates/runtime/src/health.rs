//! `/livez` and `/readyz`.
//!
//! Liveness covers only the loops of the process, never the apiserver: a restart fixes a deadlock, not a network.
//! Readiness means that the caches of every kind are synced, so a standby is ready too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::server::{self, Limits};

/// State of a kind's caches, as the probes report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KindReadiness {
    /// The CRD is missing or incompatible, or the controller is off; with the reason. Other kinds work without it.
    Absent(String),
    /// The caches are not synced yet.
    Syncing,
    /// The apiserver denies the lists in these namespaces (`None` is all namespaces), for these reasons. All other
    /// caches are synced.
    PartiallySynced(BTreeMap<Option<String>, String>),
    /// The caches are synced.
    Synced,
}

/// State that the probes report. Cheap to clone.
#[derive(Clone, Default)]
pub struct Probes(Arc<Mutex<ProbeState>>);

#[derive(Default)]
struct ProbeState {
    /// True once every kind is set; not ready before.
    is_started: bool,
    kinds: BTreeMap<&'static str, KindReadiness>,
    loops: Vec<Loop>,
    /// Number of the next step of any loop: steps are numbered in the order in which they begin.
    next_step: u64,
}

struct Loop {
    name: String,
    max_age: Duration,
    steps: BTreeMap<u64, Instant>,
}

impl Probes {
    /// Creates the state without a kind or loop: live, not ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the state of every kind is set. Until then, `/readyz` is not ready.
    pub(crate) fn set_started(&self) {
        self.state().is_started = true;
    }

    /// Sets the state of a kind.
    pub(crate) fn set(&self, kind: &'static str, state: KindReadiness) {
        self.state().kinds.insert(kind, state);
    }

    /// Adds a loop, none of whose steps may take longer than `max_age`.
    pub fn watchdog(&self, name: impl Into<String>, max_age: Duration) -> Watchdog {
        let mut inner = self.state();
        inner.loops.push(Loop {
            name: name.into(),
            max_age,
            steps: BTreeMap::new(),
        });
        Watchdog {
            probes: self.clone(),
            index: inner.loops.len() - 1,
        }
    }

    /// Returns whether no loop is stuck, and one line for each.
    pub fn live(&self) -> (bool, String) {
        let inner = self.state();
        let mut report = ProbeReport::default();
        for Loop {
            name,
            max_age,
            steps,
        } in &inner.loops
        {
            // Steps are numbered in order, so the first is the oldest.
            match steps.values().next().map(Instant::elapsed) {
                Some(age) if age > *max_age => {
                    let (age, max) = (age.as_secs_f64(), max_age.as_secs_f64());
                    report.line(
                        false,
                        name,
                        format_args!("stuck in one step for {age:.1}s (limit {max}s)"),
                    );
                }
                Some(_) => report.line(true, name, format_args!("busy")),
                None => report.line(true, name, format_args!("waiting for work")),
            }
        }
        report.finish("live")
    }

    /// Returns whether the caches of every present kind are synced, and one line for each kind.
    pub fn ready(&self) -> (bool, String) {
        let inner = self.state();
        let mut report = ProbeReport::default();
        if !inner.is_started {
            report.line(false, "controllers", format_args!("not started"));
        }
        for (kind, state) in &inner.kinds {
            match state {
                KindReadiness::Synced => report.line(true, kind, format_args!("synced")),
                KindReadiness::Syncing => report.line(false, kind, format_args!("not synced")),
                KindReadiness::PartiallySynced(denied) => {
                    let namespaces = denied.iter().map(|(namespace, why)| match namespace {
                        Some(namespace) => format!("in {namespace}: {why}"),
                        None => format!("in the cluster: {why}"),
                    });
                    let namespaces: Vec<_> = namespaces.collect();
                    report.line(
                        false,
                        kind,
                        format_args!("not synced {}", namespaces.join("; ")),
                    );
                }
                KindReadiness::Absent(why) => {
                    report.line(true, kind, format_args!("absent: {why}"));
                }
            }
        }
        report.finish("ready")
    }

    fn state(&self) -> MutexGuard<'_, ProbeState> {
        // No holder of the lock panics between two changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watchdog of one loop.
#[derive(Clone)]
pub struct Watchdog {
    probes: Probes,
    index: usize,
}

impl Watchdog {
    /// Starts a step, which lasts until the guard is dropped. Steps of one loop may overlap; a loop without a step
    /// waits for work and is not stuck.
    #[must_use = "the step lasts until this is dropped"]
    pub fn busy(&self) -> StepGuard {
        let mut inner = self.probes.state();
        let number = inner.next_step;
        inner.next_step += 1;
        if let Some(this) = inner.loops.get_mut(self.index) {
            this.steps.insert(number, Instant::now());
        }
        StepGuard {
            watchdog: self.clone(),
            number,
        }
    }
}

/// Guard of a step.
pub struct StepGuard {
    watchdog: Watchdog,
    number: u64,
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        if let Some(this) = self
            .watchdog
            .probes
            .state()
            .loops
            .get_mut(self.watchdog.index)
        {
            this.steps.remove(&self.number);
        }
    }
}

/// Response of a probe, in the apiserver's format.
#[derive(Default)]
struct ProbeReport {
    failed: bool,
    lines: String,
}

impl ProbeReport {
    fn line(&mut self, is_ok: bool, name: &str, detail: std::fmt::Arguments<'_>) {
        self.failed |= !is_ok;
        let sign = if is_ok { '+' } else { '-' };
        // Writing to a String cannot fail.
        let _ = writeln!(self.lines, "[{sign}]{name} {detail}");
    }

    fn finish(self, what: &str) -> (bool, String) {
        let not = if self.failed { "not " } else { "" };
        (!self.failed, format!("{}{not}{what}\n", self.lines))
    }
}

/// Serves `/livez` (also as `/healthz`) and `/readyz` forever.
pub async fn serve(listener: TcpListener, probes: Probes) {
    let answer = move |path: &str| {
        let (is_ok, body) = match path {
            "/livez" | "/healthz" => probes.live(),
            "/readyz" => probes.ready(),
            _ => return server::not_found(),
        };
        let status = if is_ok {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        server::text(status, body)
    };
    let handler = Box::new(move |head: Parts| ready(answer(head.uri.path())).boxed());
    server::serve(listener, Limits::TRUSTED, server::plain(), handler).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn ready_once_every_present_kind_is_synced() {
        let probes = Probes::new();
        assert_eq!(
            probes.ready(),
            (false, "[-]controllers not started\nnot ready\n".into())
        );
        probes.set("gadget", KindReadiness::Synced);
        let body = "[-]controllers not started\n[+]gadget synced\nnot ready\n";
        assert_eq!(probes.ready(), (false, body.into()));
        probes.set("widget", KindReadiness::Syncing);
        probes.set_started();
        probes.set(
            "thing",
            KindReadiness::Absent("no CRD things.example.com".into()),
        );
        let body = "[+]gadget synced\n[+]thing absent: no CRD things.example.com\n\
            [-]widget not synced\nnot ready\n";
        assert_eq!(probes.ready(), (false, body.into()));
        probes.set("widget", KindReadiness::Synced);
        let (ready, body) = probes.ready();
        assert!(ready, "{body}");
        assert!(
            body.ends_with("\nready\n") && body.contains("[+]thing absent"),
            "{body}"
        );
        probes.set("thing", KindReadiness::Syncing);
        assert!(!probes.ready().0, "a CRD that arrives later is waited for");
        let denied = [
            (Some("a".to_owned()), "no".to_owned()),
            (Some("b".to_owned()), "no permission".to_owned()),
        ];
        probes.set("thing", KindReadiness::PartiallySynced(denied.into()));
        let (ready, body) = probes.ready();
        assert!(
            !ready && body.contains("[-]thing not synced in a: no; in b: no permission\n"),
            "{body}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn loop_is_stuck_when_a_step_takes_too_long() {
        let probes = Probes::new();
        assert_eq!(probes.live(), (true, "live\n".into()));
        let watchdog = probes.watchdog("widget", Duration::from_mins(1));
        let advance = tokio::time::advance;
        advance(Duration::from_hours(1)).await;
        assert_eq!(
            probes.live(),
            (true, "[+]widget waiting for work\nlive\n".into())
        );

        let old = watchdog.busy();
        advance(Duration::from_secs(50)).await;
        let new = watchdog.busy();
        assert_eq!(probes.live(), (true, "[+]widget busy\nlive\n".into()));
        advance(Duration::from_secs(11)).await;
        let body = "[-]widget stuck in one step for 61.0s (limit 60s)\nnot live\n";
        assert_eq!(probes.live(), (false, body.into()));
        drop(old);
        assert!(probes.live().0, "the remaining step is 11 s old");
        drop(new);
        advance(Duration::from_hours(1)).await;
        assert!(probes.live().0);
    }

    #[tokio::test]
    async fn server_answers_each_probe() {
        let probes = Probes::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, probes.clone()));
        let get = |path: &'static str| async move {
            let response = reqwest::get(format!("http://{address}{path}"))
                .await
                .unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        assert_eq!(get("/livez").await, (200, "live\n".into()));
        assert_eq!(get("/healthz").await.0, 200);
        assert_eq!(get("/readyz").await.0, 503);
        probes.set("gadget", KindReadiness::Synced);
        probes.set_started();
        assert_eq!(
            get("/readyz").await,
            (200, "[+]gadget synced\nready\n".into())
        );
        assert_eq!(get("/other").await.0, 404);
        server.abort();
    }
}
