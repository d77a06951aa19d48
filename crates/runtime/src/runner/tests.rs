#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::ResourceExt as _;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::health::Probes;
use crate::testing::{PROGRAM, Widget};

#[tokio::test(start_paused = true)]
async fn queue_counts_what_is_due_and_what_runs() {
    let second = Duration::from_secs(1);
    let (mut work, start) = (Work::<_, ()>::new(Duration::ZERO), Instant::now());
    let depth =
        |work: &Work<&str, ()>, at: Instant| (work.state(at).depth, work.state(at).unfinished);
    let reconcile = |work: &mut Work<&'static str, ()>, at| match work.next(at, 1, false) {
        Some(NextStep::Reconcile {
            object,
            waited,
            timed,
        }) => Some((object, waited, timed)),
        _ => None,
    };
    assert!(
        work.triggered("a", start) && !work.triggered("a", start),
        "once while it waits"
    );
    assert!(work.triggered("b", start));
    assert_eq!(depth(&work, start), (2, Duration::ZERO));
    assert_eq!(
        reconcile(&mut work, start + second),
        Some(("a", second, false))
    );
    assert_eq!(depth(&work, start + 3 * second), (1, 2 * second));
    assert!(
        work.triggered("a", start + 3 * second),
        "again while it runs"
    );
    work.ended("a", Some(start + 60 * second));
    let five = start + 5 * second;
    assert_eq!(reconcile(&mut work, five), Some(("b", 5 * second, false)));
    work.ended("b", Some(start + 90 * second));
    assert_eq!(
        reconcile(&mut work, five),
        Some(("a", 2 * second, false)),
        "woken before the clock"
    );
    work.ended("a", Some(start + 60 * second));
    assert_eq!(depth(&work, start + 59 * second).0, 0);
    assert_eq!(depth(&work, start + 60 * second).0, 1, "by the clock");
    assert_eq!(
        reconcile(&mut work, start + 61 * second),
        Some(("a", second, true))
    );
    assert_eq!(reconcile(&mut work, start + 61 * second), None);
}

/// Reconciles come between the writes, and the newest status keeps the place of the first one that waits.
#[tokio::test(start_paused = true)]
async fn status_is_written_once_in_its_interval() {
    let (second, start) = (Duration::from_secs(1), Instant::now());
    let mut work = Work::<_, u32>::new(5 * second);
    let update = |work: &mut Work<&'static str, u32>, at: Instant, number: u32| {
        work.triggered("a", at);
        assert!(matches!(
            work.next(at, 1, false),
            Some(NextStep::Reconcile { .. })
        ));
        let position = work.take_status_update(&"a").map(|it| it.position);
        let pending = PendingStatus {
            update: number,
            position: position.unwrap_or_else(|| work.status_position(&"a", at, Duration::ZERO)),
            requeue: None,
            span: Span::none(),
            token: InFlight::default().token(),
        };
        work.objects.entry("a").or_default().update = Some(Box::new(pending));
        work.ended("a", None);
    };
    let written = |work: &mut Work<&'static str, u32>, at: Instant| match work.next(at, 1, false) {
        Some(NextStep::WriteStatus(object, pending)) => {
            work.status_written(&object, at);
            work.ended(object, None);
            Some(pending.update)
        }
        _ => None,
    };
    update(&mut work, start, 1);
    assert_eq!(written(&mut work, start), Some(1), "the first one at once");
    update(&mut work, start + second, 2);
    assert_eq!(written(&mut work, start + second), None);
    update(&mut work, start + 2 * second, 3);
    assert_eq!(work.next_due(start + 2 * second), Some(start + 5 * second));
    assert_eq!(written(&mut work, start + 5 * second), Some(3));
    update(&mut work, start + 20 * second, 4);
    assert_eq!(written(&mut work, start + 20 * second), Some(4));
    update(&mut work, start + 21 * second, 5);
    let closed = work.next(start + 21 * second, 1, true);
    assert!(
        matches!(closed, Some(NextStep::WriteStatus("a", _))),
        "on shutdown"
    );
}

fn failure(status: serde_json::Value) -> Failure {
    let source = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
    Failure {
        class: Class::of(&source),
        error: Error::api("not written")(source),
    }
}

fn conflict() -> Failure {
    failure(json!({ "status": "Failure", "message": "", "reason": "Conflict", "code": 409 }))
}

/// Controller whose reconciles fail with this status, or succeed without one; it records the start of each.
#[derive(Default)]
struct Failing {
    status: Mutex<Option<serde_json::Value>>,
    began: Mutex<Vec<Instant>>,
}

impl Failing {
    fn count(&self) -> usize {
        self.began.lock().unwrap().len()
    }
}

impl Reconcile for Failing {
    type Object = Widget;
    type StatusUpdate = ();

    async fn reconcile(&self, _: Arc<Widget>, _: &mut Option<()>) -> Result<Requeue, Failure> {
        self.began.lock().unwrap().push(Instant::now());
        match &*self.status.lock().unwrap() {
            Some(status) => Err(failure(status.clone())),
            None => Ok(Requeue::OnChange),
        }
    }

    async fn write_status(&self, (): ()) -> Result<Option<Duration>, Failure> {
        Ok(None)
    }
}

/// Duration of a step of the controllers below.
const STEP_TIME: Duration = Duration::from_millis(10);

/// Controller whose reconciles take a while and trigger the next one at once, as under load; it counts those of
/// each object.
struct Busy {
    trigger: Trigger<Widget>,
    counts: Mutex<HashMap<String, u32>>,
}

impl Reconcile for Busy {
    type Object = Widget;
    type StatusUpdate = ();

    async fn reconcile(&self, object: Arc<Widget>, _: &mut Option<()>) -> Result<Requeue, Failure> {
        sleep(STEP_TIME).await;
        *self
            .counts
            .lock()
            .unwrap()
            .entry(object.name_any())
            .or_default() += 1;
        self.trigger.wake(&ObjectKey::of(object.as_ref()));
        Ok(Requeue::OnChange)
    }

    async fn write_status(&self, (): ()) -> Result<Option<Duration>, Failure> {
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn no_object_starves_under_load() {
    const OBJECTS: usize = 50;
    let trigger = Trigger::default();
    let busy = Arc::new(Busy {
        trigger: trigger.clone(),
        counts: Mutex::default(),
    });
    let objects = filled(OBJECTS);
    let runner = runner(busy.clone(), limits(2), &Availability::default());
    let running = tokio::spawn(async move {
        runner.run(objects, trigger).await;
    });
    sleep(Duration::from_secs(10)).await;
    running.abort();
    let counts = busy.counts.lock().unwrap();
    let (least, most) = (
        counts.values().min().unwrap(),
        counts.values().max().unwrap(),
    );
    assert!(
        counts.len() == OBJECTS && most - least <= 1,
        "{least} to {most} reconciles, of {} objects",
        counts.len()
    );
}

/// A request that is in flight after the reconcile may fail each time, so the delays must keep growing.
#[test]
fn unfinished_reconcile_does_not_reset_the_delays() {
    let failing = Arc::new(Failing::default());
    let runner = runner(failing, growing_limits(), &Availability::default());
    let key = ObjectKey::new("a", "x");
    for least in [1, 2, 4] {
        for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
            assert!(backoffs.next_delay(&key) >= Duration::from_secs(least));
        }
        runner.succeeded(&key, Requeue::InFlight(Duration::ZERO));
    }
    runner.succeeded(&key, Requeue::OnChange);
    for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
        assert!(backoffs.next_delay(&key) <= Duration::from_secs(2));
    }
}

/// Deleted and created again between two looks, an object differs from its predecessor in the UID alone.
#[tokio::test(start_paused = true)]
async fn recreated_object_does_not_inherit_the_backoff() {
    let failing = Arc::new(Failing {
        status: Mutex::new(Some(unavailable())),
        ..Failing::default()
    });
    let runner = runner(failing, growing_limits(), &Availability::default());
    let key = ObjectKey::new("n", "x");
    let mut object = widget("x");
    object.metadata.generation = Some(1);
    object.metadata.uid = Some("first".into());
    let mut delay = Duration::ZERO;
    for _ in 0..6 {
        delay = runner
            .reconcile_unless_paused(&key, Arc::new(object.clone()))
            .await;
    }
    assert!(delay >= Duration::from_secs(16), "{delay:?}");
    object.metadata.uid = Some("second".into());
    let delay = runner.reconcile_unless_paused(&key, Arc::new(object)).await;
    assert!(delay <= Duration::from_secs(2), "{delay:?}");
}

fn unavailable() -> serde_json::Value {
    json!({ "status": "Failure", "message": "", "reason": "ServiceUnavailable", "code": 503 })
}

/// Returns limits whose delays are an hour.
fn limits(concurrency: u16) -> ReconcileLimits {
    let hour = Duration::from_hours(1);
    let policy = BackoffPolicy {
        min: hour,
        max: hour,
    };
    ReconcileLimits {
        concurrency,
        timeout: hour,
        failed: policy,
        slow: policy,
        waiting: policy,
        sync_period: hour * 24,
        max_status_delay: Duration::ZERO,
        status_interval: Duration::ZERO,
    }
}

/// Returns limits whose delays grow from a second to an hour.
fn growing_limits() -> ReconcileLimits {
    let policy = BackoffPolicy {
        min: Duration::from_secs(1),
        max: Duration::from_hours(1),
    };
    ReconcileLimits {
        failed: policy,
        slow: policy,
        waiting: policy,
        ..limits(1)
    }
}

fn runner<R: Reconcile>(
    reconciler: Arc<R>,
    limits: ReconcileLimits,
    availability: &Availability,
) -> Runner<R> {
    Runner::new(
        "test",
        reconciler,
        limits,
        &Metrics::new(&PROGRAM),
        availability.clone(),
        Probes::new().watchdog("test", limits.sync_period),
        InFlight::default(),
    )
}

/// Returns that many objects.
fn filled(number: usize) -> Objects<Widget> {
    let objects = Objects::default();
    for number in 0..number {
        objects.insert(widget(&format!("o-{number}")));
    }
    objects
}

fn widget(name: &str) -> Widget {
    let mut object = Widget::default();
    (object.metadata.name, object.metadata.namespace) = (Some(name.into()), Some("n".into()));
    object
}

/// Runs a controller of `objects` objects whose failures are retried after an hour.
fn run(
    objects: usize,
    status: serde_json::Value,
    availability: &Availability,
) -> (Arc<Failing>, Trigger<Widget>) {
    let objects = filled(objects);
    let reconciler = Arc::new(Failing {
        status: Mutex::new(Some(status)),
        ..Failing::default()
    });
    let runner = runner(reconciler.clone(), limits(16), availability);
    let trigger = Trigger::default();
    let woken = trigger.clone();
    tokio::spawn(async move {
        runner.run(objects, woken).await;
    });
    (reconciler, trigger)
}

#[tokio::test(start_paused = true)]
async fn failed_objects_are_retried_spread_after_an_outage() {
    const OBJECTS: usize = 3000;
    let availability = Availability::default();
    let (failing, _trigger) = run(OBJECTS, unavailable(), &availability);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(failing.count(), OBJECTS);
    *failing.status.lock().unwrap() = None;
    let back = Instant::now();
    availability.end_outage();
    sleep(Duration::from_mins(10)).await;
    let began: Vec<_> = failing.began.lock().unwrap()[OBJECTS..]
        .iter()
        .map(|at| *at - back)
        .collect();
    assert_eq!(began.len(), OBJECTS, "each once");
    assert!(
        began
            .iter()
            .all(|at| *at <= RECOVERY_SPREAD + Duration::from_secs(1)),
        "{:?}",
        began.last()
    );
    for second in 0..RECOVERY_SPREAD.as_secs() {
        let within = began.iter().filter(|at| at.as_secs() == second).count();
        assert!(within <= OBJECTS / 6, "{within} in second {second}");
    }
    availability.end_outage();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(
        failing.count(),
        2 * OBJECTS,
        "none that succeeded is retried"
    );
}

/// The failed objects are retried one by one until a write succeeds, then all of them.
#[tokio::test(start_paused = true)]
async fn failed_objects_are_retried_soon_after_writes_succeed_again() {
    const OBJECTS: usize = 300;
    let availability = Availability::default();
    let (failing, _trigger) = run(OBJECTS, unavailable(), &availability);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(failing.count(), OBJECTS, "the backoff is long");
    availability.begin_write_outage();
    sleep(Duration::from_mins(10)).await;
    let canaries = failing.count() - OBJECTS;
    assert!(
        (70..160).contains(&canaries),
        "{canaries} retries in ten minutes"
    );
    *failing.status.lock().unwrap() = None;
    sleep(SINGLE_RETRY_INTERVAL + Duration::from_secs(1)).await;
    availability.answered(true, Some(200), None);
    sleep(RECOVERY_SPREAD + Duration::from_secs(1)).await;
    let count = failing.count();
    assert!(
        count >= 2 * OBJECTS + canaries && count <= 2 * OBJECTS + canaries + 4,
        "{count}"
    );
    sleep(Duration::from_mins(10)).await;
    assert_eq!(failing.count(), count, "none that succeeded is retried");
}

#[rstest]
#[case::no_space(500, "etcdserver: mvcc: database space exceeded", true)]
#[case::unavailable(503, "", true)]
#[case::a_webhook(
    500,
    "Internal error occurred: failed calling webhook \"a.b.c\"",
    false
)]
#[case::invalid(422, "", false)]
fn apiserver_error_differs_from_a_webhook_error(
    #[case] code: u16,
    #[case] message: &str,
    #[case] failed: bool,
) {
    let status = json!({ "status": "Failure", "message": message, "reason": "", "code": code });
    assert_eq!(
        is_server_error(&serde_json::from_value(status).unwrap()),
        failed
    );
}

/// An apiserver that stores nothing fails the writes of any object.
#[rstest]
#[case::transient(Class::Transient, 1)]
#[case::about_the_object(Class::Waiting, 0)]
#[tokio::test]
async fn server_error_that_the_controller_explains_is_no_failed_write(
    #[case] class: Class,
    #[case] expected: u32,
) {
    let availability = Availability::default();
    let runner = runner(Arc::new(Failing::default()), limits(1), &availability);
    availability.answered(true, Some(500), None);
    let status =
        json!({ "status": "Failure", "message": "", "reason": "InternalError", "code": 500 });
    let failure = Failure {
        class,
        ..failure(status)
    };
    runner.failed(&ObjectKey::new("n", "x"), &failure, None);
    assert_eq!(availability.failed_writes(), expected);
}

#[tokio::test(start_paused = true)]
async fn apiserver_that_flaps_does_not_defeat_the_backoff() {
    let availability = Availability::default();
    let (failing, _trigger) = run(1, unavailable(), &availability);
    for _ in 0..3600 / 5 {
        sleep(Duration::from_secs(5)).await;
        availability.end_outage();
    }
    let count = failing.count();
    assert!((10..40).contains(&count), "{count} reconciles in an hour");
    let began = failing.began.lock().unwrap().clone();
    let last = began
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .next_back()
        .unwrap();
    assert!(last > Duration::from_mins(2), "the pauses grow: {last:?}");
}

#[rstest]
#[case::in_the_body(Some(20), None)]
#[case::in_the_header_alone(None, Some(20))]
#[tokio::test(start_paused = true)]
async fn retry_after_is_kept_for_every_trigger(
    #[case] body: Option<u32>,
    #[case] header: Option<u64>,
) {
    let availability = Availability::default();
    availability.answered(true, Some(429), header.map(Duration::from_secs));
    let mut status =
        json!({ "status": "Failure", "message": "", "reason": "TooManyRequests", "code": 429 });
    if let Some(seconds) = body {
        status["details"] = json!({ "retryAfterSeconds": seconds });
    }
    let (failing, trigger) = run(1, status, &availability);
    for _ in 0..15 {
        sleep(Duration::from_secs(1)).await;
        trigger.wake(&ObjectKey::new("n", "o-0"));
        availability.end_outage();
    }
    assert_eq!(failing.count(), 1);
    sleep(Duration::from_secs(10)).await;
    assert!(failing.count() > 1, "what woke it is not forgotten");
}

/// The apiserver asked for a pause during the reconcile, but the error shows only the later conflict.
#[test]
fn retry_after_is_kept_when_a_later_conflict_hides_it() {
    let availability = Availability::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let runner = runner(
            Arc::new(Failing::default()),
            growing_limits(),
            &availability,
        );
        let key = ObjectKey::new("n", "x");
        let pause = Duration::from_secs(5);
        availability.answered(true, Some(429), Some(pause));
        let (_, action) = runner.failed(&key, &conflict(), None);
        assert_eq!(action, pause);
        let before = availability.paused_until();
        let (_, action) = runner.failed(&key, &conflict(), before);
        assert_ne!(action, pause, "the pause was another object's");
        // This pause may be another object's, too.
        availability.answered(true, Some(429), Some(Duration::from_mins(30)));
        let (_, action) = runner.failed(&key, &conflict(), before);
        assert_eq!(action, UNPROVEN_PAUSE);
    });
}

/// Controller whose statuses count the reconciles of their objects. The controller records the steps.
struct Counting<const CAN_WAIT: bool> {
    steps: Mutex<Vec<(Duration, String)>>,
    since: Instant,
    counts: Mutex<HashMap<String, u32>>,
    /// Duration of the first reconcile of object `o-0`.
    first: Duration,
    /// Number of writes that fail before one succeeds.
    failures: Mutex<u32>,
}

impl<const CAN_WAIT: bool> Counting<CAN_WAIT> {
    fn step(&self, what: String) {
        self.steps
            .lock()
            .unwrap()
            .push((self.since.elapsed(), what));
    }

    /// Returns the steps of objects other than `o-0`, in order.
    fn steps(&self) -> Vec<String> {
        let steps = self.steps.lock().unwrap();
        let steps = steps.iter().map(|(_, what)| what.clone());
        steps.filter(|what| !what.contains("o-0")).collect()
    }

    /// Returns when the step was taken.
    fn at(&self, step: &str) -> Option<Duration> {
        let steps = self.steps.lock().unwrap();
        steps
            .iter()
            .find(|(_, what)| what == step)
            .map(|(at, _)| *at)
    }
}

const MAX_STATUS_DELAY: Duration = Duration::from_secs(5);

impl<const CAN_WAIT: bool> Reconcile for Counting<CAN_WAIT> {
    type Object = Widget;
    type StatusUpdate = String;

    async fn reconcile(
        &self,
        object: Arc<Widget>,
        update: &mut Option<String>,
    ) -> Result<Requeue, Failure> {
        let name = object.name_any();
        let count = {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            *count
        };
        self.step(format!("reconcile {name} {count}"));
        let is_first = name == "o-0" && count == 1;
        sleep(if is_first { self.first } else { STEP_TIME }).await;
        *update = Some(format!("{name} {count}"));
        Ok(Requeue::OnChange)
    }

    async fn write_status(&self, update: String) -> Result<Option<Duration>, Failure> {
        self.step(format!("write {update}"));
        sleep(STEP_TIME).await;
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(failure(unavailable()));
        }
        Ok(None)
    }
}

/// A running controller of [`Counting`].
struct Fixture<const CAN_WAIT: bool> {
    counting: Arc<Counting<CAN_WAIT>>,
    trigger: Trigger<Widget>,
    objects: Objects<Widget>,
    in_flight: InFlight,
}

impl<const CAN_WAIT: bool> Fixture<CAN_WAIT> {
    fn start(objects: usize, concurrency: u16, first: Duration, failures: u32) -> Self {
        let counting = Arc::new(Counting {
            steps: Mutex::default(),
            since: Instant::now(),
            counts: Mutex::default(),
            first,
            failures: Mutex::new(failures),
        });
        let policy = BackoffPolicy {
            min: Duration::from_secs(1),
            max: Duration::from_hours(1),
        };
        let limits = ReconcileLimits {
            failed: policy,
            max_status_delay: if CAN_WAIT {
                MAX_STATUS_DELAY
            } else {
                Duration::ZERO
            },
            ..limits(concurrency)
        };
        let runner = runner(counting.clone(), limits, &Availability::default());
        let (trigger, in_flight) = (Trigger::default(), runner.in_flight.clone());
        let objects = filled(objects);
        tokio::spawn(runner.run(objects.clone(), trigger.clone()));
        Self {
            counting,
            trigger,
            objects,
            in_flight,
        }
    }

    fn wake(&self, name: &str) {
        self.trigger.wake(&ObjectKey::new("n", name));
    }
}

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn children_come_before_statuses() {
    const OBJECTS: usize = 40;
    let fixture = Fixture::<true>::start(OBJECTS, 4, STEP_TIME, 0);
    sleep(MINUTE).await;
    let steps = fixture.counting.steps.lock().unwrap();
    assert_eq!(steps.len(), 2 * OBJECTS, "each object has one of each");
    let (reconciles, writes) = steps.split_at(OBJECTS);
    assert!(
        reconciles
            .iter()
            .all(|(_, what)| what.starts_with("reconcile"))
            && writes.iter().all(|(_, what)| what.starts_with("write")),
        "{steps:?}"
    );
    assert!(
        writes[OBJECTS - 1].0 < STEP_TIME * 20 + Burst::PAUSE,
        "nothing else pauses in between: {steps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn statuses_of_many_new_objects_wait_until_no_more_arrive() {
    const OBJECTS: usize = 40;
    let fixture = Fixture::<true>::start(0, 4, STEP_TIME, 0);
    for number in 1..=OBJECTS {
        let name = format!("n-{number}");
        fixture.objects.insert(widget(&name));
        fixture.wake(&name);
        // The controller is idle before the next object arrives.
        sleep(STEP_TIME * 5).await;
    }
    sleep(MINUTE).await;
    let steps = fixture.counting.steps.lock().unwrap();
    let last = steps
        .iter()
        .rposition(|(_, what)| what.starts_with("reconcile"));
    let last = last.unwrap();
    let waited: Vec<_> = steps[last + 1..].iter().map(|(at, _)| *at).collect();
    assert_eq!(
        waited.len(),
        OBJECTS - (Burst::MIN_OBJECTS - 1),
        "{steps:?}"
    );
    let pause = waited[0].saturating_sub(steps[last].0);
    assert!(
        pause >= Burst::PAUSE && pause < Burst::PAUSE + STEP_TIME,
        "{pause:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn status_is_written_at_once_unless_an_object_is_new() {
    let fixture = Fixture::<true>::start(2, 4, STEP_TIME, 0);
    sleep(MINUTE).await;
    assert_eq!(fixture.counting.at("write o-1 1"), Some(STEP_TIME));
    fixture.wake("o-1");
    sleep(STEP_TIME / 2).await;
    fixture.wake("o-0");
    sleep(MINUTE).await;
    assert_eq!(
        fixture.counting.at("write o-1 2"),
        Some(MINUTE + STEP_TIME),
        "although another object is reconciled"
    );
    for _ in 0..2 {
        fixture.wake("o-1");
        sleep(STEP_TIME / 2).await;
    }
    sleep(MINUTE).await;
    let steps = fixture.counting.steps();
    let steps: Vec<_> = steps[4..].iter().map(String::as_str).collect();
    let expected = [
        "reconcile o-1 3",
        "write o-1 3",
        "reconcile o-1 4",
        "write o-1 4",
    ];
    assert_eq!(steps, expected, "although the object is due again");
}

#[tokio::test(start_paused = true)]
async fn statuses_wait_while_reconciles_wait() {
    let fixture = Fixture::<true>::start(4, 1, STEP_TIME, 0);
    sleep(MINUTE).await;
    let before = fixture.counting.steps().len();
    for name in ["o-1", "o-2", "o-3"] {
        fixture.wake(name);
    }
    sleep(MINUTE).await;
    let steps = fixture.counting.steps();
    let is_reconcile = |what: &String| what.starts_with("reconcile");
    let reconciles = steps[before..].iter().take_while(|what| is_reconcile(what));
    assert_eq!(reconciles.count(), 3, "{steps:?}");
    assert_eq!(steps.len(), before + 6);
}

#[tokio::test(start_paused = true)]
async fn newest_status_replaces_a_waiting_one() {
    let first = Duration::from_secs(1);
    let fixture = Fixture::<true>::start(2, 4, first, 0);
    for _ in 0..3 {
        sleep(first / 4).await;
        fixture.wake("o-1");
    }
    sleep(MINUTE).await;
    let reconciles = (1..=4).map(|count| format!("reconcile o-1 {count}"));
    let steps: Vec<_> = reconciles.chain(["write o-1 4".to_owned()]).collect();
    assert_eq!(fixture.counting.steps(), steps);
    assert_eq!(fixture.counting.at("write o-1 4"), Some(first));
}

#[tokio::test(start_paused = true)]
async fn replaced_status_does_not_wait_for_longer() {
    let fixture = Fixture::<true>::start(2, 4, MINUTE, 0);
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        fixture.wake("o-1");
    }
    let written = fixture.counting.at("write o-1 6");
    assert_eq!(written, Some(Duration::from_secs(5) + STEP_TIME));
}

#[tokio::test(start_paused = true)]
async fn constant_load_starves_no_status() {
    const OBJECTS: usize = 3000;
    let longest = MAX_STATUS_DELAY;
    let fixture = Fixture::<true>::start(OBJECTS, 2, STEP_TIME, 0);
    sleep(MINUTE).await;
    let steps = fixture.counting.steps.lock().unwrap();
    let mut ended = HashMap::new();
    for (at, what) in &*steps {
        match what.split(' ').collect::<Vec<_>>()[..] {
            ["reconcile", name, _] => _ = ended.entry(name).or_insert(*at + STEP_TIME),
            [_, name, _] => {
                let ended = ended.remove(name).unwrap();
                assert!(*at <= ended + longest + 2 * STEP_TIME, "{what} at {at:?}");
            }
            _ => panic!("{what}"),
        }
    }
    assert!(ended.is_empty(), "every status is written");
}

#[tokio::test(start_paused = true)]
async fn status_that_a_later_step_relies_on_neither_waits_nor_merges() {
    let fixture = Fixture::<false>::start(2, 4, MINUTE, 0);
    sleep(STEP_TIME / 2).await;
    fixture.wake("o-1");
    sleep(MINUTE).await;
    let steps = [
        "reconcile o-1 1",
        "write o-1 1",
        "reconcile o-1 2",
        "write o-1 2",
    ];
    assert_eq!(fixture.counting.steps(), steps);
    assert_eq!(fixture.counting.at("write o-1 1"), Some(STEP_TIME));
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_retried_with_backoff() {
    let fixture = Fixture::<true>::start(2, 4, STEP_TIME, 6);
    sleep(MINUTE).await;
    let at = |count| {
        fixture
            .counting
            .at(&format!("reconcile o-1 {count}"))
            .unwrap()
    };
    assert!(at(2) >= at(1) + Duration::from_secs(1), "the first delay");
    assert!(at(3) >= at(2) + Duration::from_secs(2), "the delays grow");
    let steps = fixture.counting.steps();
    assert_eq!(steps.last().unwrap(), "write o-1 4", "{steps:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_status_of_a_deleted_object_is_dropped() {
    let first = Duration::from_secs(1);
    let fixture = Fixture::<true>::start(2, 4, first, 0);
    sleep(first / 2).await;
    fixture.objects.remove(&ObjectKey::of(&widget("o-1")));
    fixture.wake("o-1");
    sleep(MINUTE).await;
    assert_eq!(fixture.counting.steps(), ["reconcile o-1 1"]);
    assert!(fixture.counting.at("write o-0 1").is_some());
    fixture.in_flight.close();
    fixture.in_flight.wait().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_writes_waiting_statuses() {
    let first = Duration::from_secs(1);
    let fixture = Fixture::<true>::start(3, 2, first, 0);
    sleep(first / 2).await;
    fixture.in_flight.close();
    fixture.wake("o-1");
    fixture.in_flight.wait().await;
    assert!(fixture.counting.since.elapsed() <= first + 2 * STEP_TIME);
    let steps = [
        "reconcile o-1 1",
        "reconcile o-2 1",
        "write o-1 1",
        "write o-2 1",
    ];
    let mut taken = fixture.counting.steps();
    taken.sort();
    assert_eq!(taken, steps, "no reconcile begins");
    assert!(fixture.counting.at("write o-0 1").is_some());
}

#[tokio::test(start_paused = true)]
async fn shutdown_of_an_idle_controller_writes_a_waiting_status() {
    const OBJECTS: usize = Burst::MIN_OBJECTS;
    let fixture = Fixture::<true>::start(OBJECTS + 1, 2, STEP_TIME, 0);
    while fixture.counting.steps().len() < OBJECTS {
        sleep(STEP_TIME).await;
    }
    sleep(STEP_TIME).await;
    let closed = Instant::now();
    fixture.in_flight.close();
    fixture.in_flight.wait().await;
    assert!(closed.elapsed() < Burst::PAUSE / 2, "at once");
    assert_eq!(fixture.counting.steps().len(), 2 * OBJECTS);
}
