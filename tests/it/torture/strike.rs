//! The strike of a case: the fault at its place.

use std::sync::{self, Arc, PoisonError};
use std::time::Duration;

use testbed::aws::{self, Aws, Gate};
use testbed::proxy::{self, ApiRequest, Injection, Match, Point, Proxy, Then, Times};
use tokio::sync::{Mutex, watch};

use super::case::{Case, Fault, Place};
use super::scene::Scene;
use super::staleness::StaleWatch;
use crate::support::{Bed, Operator, SOON, Trap};

/// Duration of a lasting fault: three times the longest backoff of the operators under test.
pub const LASTING: Duration = Duration::from_secs(3);

/// Returns the operator's writes. Reviews are created but change nothing, and Leases are no result of a reconcile.
pub fn writes() -> Match {
    Match::writes().and(is_write)
}

/// Returns whether a request may change something.
pub fn is_write(request: &ApiRequest) -> bool {
    request.verb.is_write()
        && request.resource != "leases"
        && !request.group.ends_with("authorization.k8s.io")
        && !request.group.ends_with("authentication.k8s.io")
}

/// Returns the verb and resource of a write, or the action of AWS, once it came.
type Request = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A fault that waits for its place.
pub struct Strike {
    means: Means,
    /// The write or call that is struck.
    request: Request,
    /// True once the fault is over.
    over: watch::Sender<bool>,
}

enum Means {
    Kill(Trap),
    KillCall(Gate),
    Once(Injection),
    Lasting {
        first: Injection,
        others: Arc<sync::Mutex<Option<Injection>>>,
    },
    LastingCalls(Injection),
    Stale(Box<StaleWatch>),
}

impl Strike {
    /// Prepares the fault of a case.
    pub fn prepare(
        case: &Case,
        counted: fn(&ApiRequest) -> bool,
        bed: &Bed,
        proxies: &[Proxy],
        aws: Option<&Aws>,
    ) -> Self {
        // Before the fault, which may cut the connection.
        let request: Request = match (&case.place, aws) {
            (Place::Write(number), _) => note_write(*number, counted, &proxies[0]),
            (Place::Call(number), Some(aws)) => {
                let (aws, index) = (aws.clone(), usize::try_from(*number).unwrap() - 1);
                Box::new(move || Some(aws.calls().get(index)?.action.clone()))
            }
            _ => Box::new(|| None),
        };
        let means = match (&case.place, aws) {
            (Place::Call(_), None) => panic!("{case}: the kind calls no AWS"),
            (Place::Call(number), Some(aws)) => of_call(case.fault, *number, aws),
            (Place::Write(number), _) => of_write(case.fault, *number, counted, &proxies[0]),
            (Place::Watch(watch, step), _) => {
                // The last replica is the standby, if there is one.
                let proxy = &proxies[proxies.len() - 1];
                Means::Stale(Box::new(StaleWatch::new(
                    case.fault, watch, *step, bed, proxy,
                )))
            }
        };
        Self {
            means,
            request,
            over: watch::Sender::new(false),
        }
    }

    /// Strikes when the workload is at the place, and returns once the fault is over.
    pub async fn act(&self, scene: &Scene<'_>, replicas: &Mutex<&mut [Operator]>) {
        match &self.means {
            Means::Kill(trap) => {
                trap.reached().await;
                let operator = &mut replicas.lock().await[0];
                trap.spring(operator).await;
                operator.restart();
            }
            Means::KillCall(gate) => {
                // A call that never comes ends the wait with the case.
                while gate.reached(SOON).await.is_err() {}
                let operator = &mut replicas.lock().await[0];
                operator.kill();
                gate.cut();
                operator.restart();
            }
            Means::Once(injection) => hit(injection).await,
            Means::Lasting { first, others } => {
                hit(first).await;
                tokio::time::sleep(LASTING).await;
                cancel(others);
            }
            Means::LastingCalls(injection) => {
                hit(injection).await;
                tokio::time::sleep(LASTING).await;
                injection.cancel();
            }
            Means::Stale(stale) => stale.act(scene, &mut replicas.lock().await).await,
        }
        self.over.send_replace(true);
    }

    /// Begins a step of the workload.
    pub async fn begin_step(&self, step: usize, scene: &Scene<'_>) {
        if let Means::Stale(stale) = &self.means {
            stale.begin_step(step, scene).await;
        }
    }

    /// Ends a step of the workload, whose state is reached: waits until the fault of this step is over. Returns whether
    /// a fault struck in this step.
    pub async fn end_step(&self, step: usize) -> bool {
        let Means::Stale(stale) = &self.means else {
            return false;
        };
        if !stale.end_step(step) {
            return false;
        }
        self.over.subscribe().wait_for(|over| *over).await.unwrap();
        stale.has_struck()
    }

    /// Returns whether the fault has struck.
    pub fn has_struck(&self) -> bool {
        match &self.means {
            Means::Stale(stale) => stale.has_struck(),
            Means::Kill(trap) => trap.was_reached(),
            Means::KillCall(gate) => gate.was_reached(),
            Means::Once(injection)
            | Means::Lasting {
                first: injection, ..
            }
            | Means::LastingCalls(injection) => injection.hits() > 0,
        }
    }

    /// Returns the write or call that was struck: verb and resource, or action of AWS.
    pub fn request(&self) -> Option<String> {
        (self.request)()
    }

    /// Waits until a fault that has struck is over.
    pub async fn wait_until_over(&self) {
        if self.has_struck() {
            let mut over = self.over.subscribe();
            over.wait_for(|over| *over).await.unwrap();
        }
    }

    /// Returns the number of requests that a lasting fault rejected.
    pub fn rejected(&self) -> u64 {
        match &self.means {
            Means::Lasting { first, others } => {
                let others = others.lock().unwrap_or_else(PoisonError::into_inner);
                first.hits() + others.as_ref().map_or(0, Injection::hits)
            }
            Means::LastingCalls(injection) => injection.hits(),
            _ => 0,
        }
    }
}

/// Notes the write of this number.
fn note_write(number: u64, counted: fn(&ApiRequest) -> bool, proxy: &Proxy) -> Request {
    let noted = Arc::<sync::Mutex<Option<String>>>::default();
    let request = Arc::clone(&noted);
    let hook = proxy::Fault::hook(Point::Before, move |request| {
        let text = format!("{:?} {}", request.verb, request.resource);
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        async { Then::GoOn }
    });
    proxy.inject(writes().and(counted), Times::Nth(number), hook);
    Box::new(move || {
        let noted = request.lock().unwrap_or_else(PoisonError::into_inner);
        noted.clone()
    })
}

pub async fn hit(injection: &Injection) {
    // A request that never comes ends the wait with the case.
    while injection.wait_for_hits(1, SOON).await.is_err() {}
}

fn cancel(injection: &sync::Mutex<Option<Injection>>) {
    if let Some(injection) = &*injection.lock().unwrap_or_else(PoisonError::into_inner) {
        injection.cancel();
    }
}

fn of_write(fault: Fault, number: u64, counted: fn(&ApiRequest) -> bool, proxy: &Proxy) -> Means {
    let nth = Times::Nth(number);
    let writes = || writes().and(counted);
    if let Some(point) = fault.kills_at() {
        return Means::Kill(Trap::set(proxy, writes(), point, number));
    }
    match fault {
        Fault::Once(answer) => Means::Once(proxy.inject(writes(), nth, answer.of_apiserver())),
        Fault::Lasting(answer) => {
            let others = Arc::<sync::Mutex<Option<Injection>>>::default();
            let hook = {
                let (proxy, others) = (proxy.clone(), Arc::clone(&others));
                proxy::Fault::hook(Point::Before, move |request| {
                    let injection =
                        proxy.inject(repetitions(request), Times::Always, answer.of_apiserver());
                    *others.lock().unwrap_or_else(PoisonError::into_inner) = Some(injection);
                    async { Then::GoOn }
                })
            };
            proxy.inject(writes(), nth, hook);
            let first = proxy.inject(writes(), nth, answer.of_apiserver());
            Means::Lasting { first, others }
        }
        Fault::LostAnswer => {
            let lost = proxy::Fault::LoseAnswer(proxy::Lost::Cut);
            Means::Once(proxy.inject(writes(), nth, lost))
        }
        _ => panic!("{fault} is no fault of a write"),
    }
}

/// Matches the writes that do the same as this one.
fn repetitions(of: ApiRequest) -> Match {
    Match::writes().and(move |request| {
        (
            request.verb,
            &request.group,
            &request.resource,
            &request.subresource,
        ) == (of.verb, &of.group, &of.resource, &of.subresource)
            && (&request.namespace, &request.name) == (&of.namespace, &of.name)
    })
}

fn of_call(fault: Fault, number: u64, aws: &Aws) -> Means {
    let once = |fault| Means::Once(aws.fault(aws::On::all(), Times::Nth(number), fault));
    let gate = |point| Means::KillCall(aws.gate(aws::On::all(), number, point));
    match fault {
        Fault::KillBefore => gate(aws::Point::Before),
        Fault::KillApplied => gate(aws::Point::After),
        Fault::Once(answer) => once(answer.of_aws()),
        Fault::Lasting(answer) => {
            let from = Times::From(number);
            Means::LastingCalls(aws.fault(aws::On::all(), from, answer.of_aws()))
        }
        Fault::LostAnswer => once(aws::Fault::CutAfter),
        _ => panic!("{fault} is no fault of a call"),
    }
}
