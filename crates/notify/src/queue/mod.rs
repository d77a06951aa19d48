//! The outbox: a queue of waiting messages for each contact point.
//!
//! [`lines`] chooses the next request, [`answers`] interprets answers; [`worker`] waits and sends, one request at a
//! time for each contact point. The entries live in the `TrackedField`s, whose reconciles offer Pending entries, take
//! the outcomes and record them. A queue sends its next request only after every outcome of its last one is in status,
//! so a kill at any instant repeats at most the entries of one request. If the apiserver keeps refusing an object's
//! status, the queue goes on without that object, and sends nothing more of it until its outcomes are recorded.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::line::Offer;
use qm_api::tracked_field::Entry;
use qm_api::{ContactPoint, TrackedField};
use qm_runtime::backoff::Policy;
use qm_runtime::trigger::Trigger;
use qm_runtime::{Key, short_digest};

use self::lines::Lines;
use super::{Endpoint, Transport};
use crate::history::{Now, Outcome};
use crate::metrics::DeliveryMetrics;

mod answers;
mod flights;
mod line;
mod lines;
#[cfg(test)]
mod tests;
mod worker;

/// How long a line waits before it tries again.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// After an answer that may be different next time.
    pub retry: Policy,
    /// After one that will not be until somebody mends something.
    pub stopped: Duration,
    /// Age at the start of an attempt from which an entry expires if the attempt fails.
    pub max_age: Duration,
}

/// The test message of one configuration of a contact point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestMessage {
    /// Identity of the configuration.
    pub configuration: String,
    /// Accepted test messages so far.
    pub accepted: AcceptedTests,
}

/// Test messages that the receivers of a contact point accepted, as its status keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedTests {
    /// Number over all configurations; each acceptance gives the next test message a new id, also where a configuration
    /// returns.
    pub count: i64,
    /// A stopped receiver accepted a test message, and no entry since. People see test messages, so no second one is
    /// sent, by this process or the next.
    pub while_stopped: bool,
}

impl TestMessage {
    /// Returns the message id, by which a receiver recognizes a repetition.
    fn id(&self) -> String {
        format!(
            "test-{}",
            short_digest(format!("{}/{}", self.configuration, self.accepted.count))
        )
    }
}

/// State on which a refused status write depends: the write is retried as soon as the state changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Generation of the object.
    pub generation: Option<i64>,
    /// Somebody's request for a reconcile.
    pub requested_at: Option<String>,
    /// Number of apiserver outages that have ended.
    pub apiserver_returns: u64,
}

/// How a contact point's receiver took what was last sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was sent yet, to this endpoint.
    Untried,
    /// It took it.
    Taken {
        /// Where Telegram moved the chat.
        migrated_to: Option<i64>,
    },
    /// It may take it later.
    Retrying(String),
    /// It takes nothing until somebody mends something.
    Stopped {
        /// The condition's reason.
        reason: &'static str,
        /// What happened.
        message: String,
    },
}

/// What a contact point's line may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The test message, and nothing else until the contact point's status says that it is ready.
    Test,
    /// Whatever waits.
    Open,
    /// The status says stopped: the oldest waiting message, or the test message, shows whether the receiver is fixed.
    Probe,
}

/// The lines of all contact points.
pub struct Outbox<T> {
    transport: T,
    lines: Mutex<Lines>,
    patience: Patience,
    metrics: DeliveryMetrics,
    fields: Trigger<TrackedField>,
    points: Trigger<ContactPoint>,
    draining: CancellationToken,
    landing: Notify,
    /// Cancelled when also what is being sent is given up.
    ended: CancellationToken,
}

impl<T: Transport> Outbox<T> {
    /// No line yet. `fields` and `points` wake the passes that a change concerns; nothing new is sent once `draining`
    /// is cancelled.
    pub fn new(
        transport: T,
        patience: Patience,
        metrics: DeliveryMetrics,
        fields: Trigger<TrackedField>,
        points: Trigger<ContactPoint>,
        draining: CancellationToken,
    ) -> Arc<Self> {
        let lines = Mutex::new(Lines::new(patience));
        let (landing, ended) = (Notify::new(), CancellationToken::new());
        let outbox = Arc::new(Self {
            transport,
            lines,
            patience,
            metrics,
            fields,
            points,
            draining,
            landing,
            ended,
        });
        let shown = Arc::downgrade(&outbox);
        outbox
            .metrics
            .show_oldest_pending(move || shown.upgrade()?.lines().oldest_since());
        outbox
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the line of `point` send to `endpoint`. With another configuration than before, the line begins anew with
    /// `stage`; with the same one, what is known of the receiver stays.
    pub fn configure(
        self: &Arc<Self>,
        point: &Key,
        endpoint: Endpoint,
        stage: Stage,
        test: TestMessage,
    ) {
        let mut lines = self.lines();
        if let Some(changed) = lines.configure(point, endpoint, stage, test) {
            tokio::spawn(worker::run(Arc::clone(self), point.clone(), changed));
        }
    }

    /// The status of `point` says that it is ready: what waits may go.
    pub fn open(&self, point: &Key) {
        self.lines().open(point);
    }

    /// Has the line of `point` send nothing until it is configured again.
    pub fn close(&self, point: &Key) {
        self.lines().close(point);
    }

    /// The contact point is gone.
    pub fn remove(&self, point: &Key) {
        self.lines().remove(point);
    }

    /// Has the line of `point` try again now, whatever it waits for.
    pub fn retry_now(&self, point: &Key) {
        self.lines().retry_now(point, Instant::now());
    }

    /// How the receiver of `point` took what was last sent.
    pub fn standing(&self, point: &Key) -> Standing {
        self.lines().standing(point)
    }

    /// Returns the test messages that receivers of `point` accepted.
    pub fn tests_accepted(&self, point: &Key) -> AcceptedTests {
        self.lines().tests_accepted(point)
    }

    /// Returns why messages to `point` have failed more than once in a row, if any wait.
    pub fn failing(&self, point: &Key) -> Option<String> {
        self.lines().failing(point)
    }

    /// What is pending in an object waits in the line of `point`, in place of what was offered for it before.
    pub fn offer(&self, point: &Key, offer: Offer) {
        let field = Key::of(offer.object.as_ref());
        self.change_waiting(&field, Some(point), |lines| lines.offer(point, offer));
    }

    /// `object` is cached: what waits of it in this very state needs no copy of its own.
    pub fn cached(&self, object: &Arc<TrackedField>) {
        self.lines().cached(object);
    }

    /// Nothing of `field` waits any more: it is gone, or suspended.
    pub fn withdraw(&self, field: &Key, gone: bool) {
        let mut point = None;
        self.change_waiting(field, None, |lines| {
            point = if gone {
                lines.no_longer_left_out(field)
            } else {
                None
            };
            lines.withdraw(field, gone)
        });
        if let Some(point) = point {
            self.points.wake(&point);
        }
    }

    /// Changes by `change` what waits of `field`, in its line or that of `point`. Wakes each contact point whose status says
    /// that messages wait, and none does any more, or the reverse.
    fn change_waiting(
        &self,
        field: &Key,
        point: Option<&Key>,
        change: impl FnOnce(&mut Lines) -> i64,
    ) {
        let mut lines = self.lines();
        let points: BTreeSet<_> = lines
            .place(field)
            .into_iter()
            .chain(point)
            .cloned()
            .collect();
        let before: Vec<_> = points
            .into_iter()
            .map(|point| (lines.failing(&point).is_some(), point))
            .collect();
        let change = change(&mut lines);
        let changed = before
            .into_iter()
            .filter(|(was, point)| lines.failing(point).is_some() != *was);
        let changed: Vec<_> = changed.map(|(_, point)| point).collect();
        drop(lines);
        self.metrics.pending_changed(change);
        for point in &changed {
            self.points.wake(point);
        }
    }

    /// Whether anything of `field` is offered.
    pub fn holds(&self, field: &Key) -> bool {
        self.lines().holds(field)
    }

    /// Outcomes of entries of `field` that do not stand in its status yet, by entry id.
    pub fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        self.lines().outcomes(field)
    }

    /// These outcomes stand in the status of `field`.
    pub fn recorded(&self, field: &Key, ids: &[(String, Outcome)]) {
        let point = self.lines().recorded(field, ids);
        self.landing.notify_waiters();
        if let Some(point) = point {
            self.points.wake(&point);
        }
    }

    /// Records that the apiserver refused to write the status of `field`, which sends to `point`, with this code and
    /// message. After five refusals the others go on without `field`.
    pub fn write_rejected(
        &self,
        field: &Key,
        point: &Key,
        said: (u16, &str),
        circumstances: Circumstances,
    ) {
        let newly_left_out =
            self.lines()
                .write_rejected(field, point, said, circumstances, Instant::now());
        if newly_left_out {
            self.landing.notify_waiters();
            self.points.wake(point);
        }
    }

    /// Returns how long to wait before the status of `field` is written again, if the apiserver refused the last write
    /// and the next one is not due.
    pub fn rejected_write_due(
        &self,
        field: &Key,
        circumstances: &Circumstances,
    ) -> Option<Duration> {
        self.lines()
            .rejected_write_due(field, circumstances, Instant::now())
    }

    /// Returns why the contact points go on without `field`, if they do.
    pub fn left_out(&self, field: &Key) -> Option<String> {
        self.lines().left_out(field)
    }

    /// Returns the `TrackedField`s that `point` goes on without, with the causes.
    pub fn left_out_of(&self, point: &Key) -> Vec<(Key, String)> {
        self.lines().left_out_of(point)
    }

    /// Updates the ages of the entries of `field` from its status; `held`: they are suspended from now on. Returns how
    /// long entries have been suspended, by id.
    pub fn observe(
        &self,
        field: &Key,
        history: &[Entry],
        held: bool,
        now: Now,
    ) -> BTreeMap<String, Duration> {
        self.lines().observe(field, history, held, now)
    }

    /// Ids of entries of `field` that are being sent, or whose outcome is not recorded.
    pub fn in_flight(&self, field: &Key) -> HashSet<String> {
        self.lines().in_flight(field)
    }

    /// Waits until nothing is in the air: no answer is awaited, and every outcome stands in status. What still is when
    /// this is dropped is given up.
    pub async fn land(&self) {
        let _ended = self.ended.clone().drop_guard();
        loop {
            let landing = self.landing.notified();
            if self.lines().nothing_flies() {
                return;
            }
            landing.await;
        }
    }
}
