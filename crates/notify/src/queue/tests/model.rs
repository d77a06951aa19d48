//! Invariants under any responses of a receiver and any changes of pending entries: one request at a time, the order of
//! each `TrackedField`, an outcome for each entry, and no failure after a single refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use proptest::prelude::*;

use super::*;

const FIELDS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Receiver {
    Accepts,
    /// The receiver refuses every message.
    Refuses(Refusal),
    /// The receiver refuses poisonous entries, never a test message.
    RefusesSome(Refusal),
    /// The receiver refuses every entry, never a test message.
    RefusesEntries(Refusal),
    IsDown,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Record {
        field: usize,
        templated: bool,
    },
    Receiver(Receiver),
    /// Number of requests, or of pauses while the queue waits.
    Run(u8),
    Suspend(usize),
    Resume(usize),
    /// Somebody requests an attempt.
    RetryNow,
    /// Somebody requests a test message.
    RequestTest,
    /// The contact point is suspended and resumed.
    Pause,
}

fn any_refusal() -> impl Strategy<Value = Refusal> {
    prop_oneof![
        Just(Refusal::Rejected),
        Just(Refusal::Forbidden),
        Just(Refusal::Gone)
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let receiver = prop_oneof![
        2 => Just(Receiver::Accepts),
        2 => any_refusal().prop_map(Receiver::Refuses),
        3 => any_refusal().prop_map(Receiver::RefusesSome),
        1 => any_refusal().prop_map(Receiver::RefusesEntries),
        1 => Just(Receiver::IsDown),
    ];
    prop_oneof![
        6 => (0..FIELDS, prop::bool::weighted(0.2)).prop_map(|(field, templated)| Step::Record { field, templated }),
        2 => receiver.prop_map(Step::Receiver),
        5 => (1_u8..12).prop_map(Step::Run),
        1 => (0..FIELDS).prop_map(Step::Suspend),
        1 => (0..FIELDS).prop_map(Step::Resume),
        1 => Just(Step::RetryNow),
        1 => Just(Step::RequestTest),
        1 => Just(Step::Pause),
    ]
}

#[derive(Default)]
struct Field {
    pending: Vec<String>,
    suspended: bool,
    templated: bool,
}

struct Model {
    queue: TestQueue,
    receiver: Receiver,
    fields: Vec<Field>,
    last_id: usize,
    /// Entries refused alone, with the number of messages accepted before.
    refused: BTreeMap<String, usize>,
    /// Entries that go alone after a refusal.
    alone: BTreeSet<String>,
    accepted: usize,
    tests_since_entry: usize,
    /// Number of requested test messages.
    tests_requested: usize,
    is_test_requested: bool,
    outcomes: BTreeMap<String, DeliveryOutcome>,
    recorded: BTreeSet<String>,
    poisonous: fn(usize, usize) -> bool,
    /// Second argument of `poisonous`.
    poison: usize,
}

impl Model {
    fn new() -> Self {
        let fields = (0..FIELDS).map(|_| Field::default()).collect();
        Self {
            queue: TestQueue::open(),
            receiver: Receiver::Accepts,
            fields,
            last_id: 0,
            refused: BTreeMap::new(),
            alone: BTreeSet::new(),
            accepted: 0,
            tests_since_entry: 0,
            tests_requested: 0,
            is_test_requested: false,
            outcomes: BTreeMap::new(),
            recorded: BTreeSet::new(),
            poisonous: |id, every| id.is_multiple_of(every),
            poison: 3,
        }
    }

    fn enqueue(&mut self, at: usize) {
        let of = &self.fields[at];
        let name = format!("f{at}");
        if of.suspended {
            self.queue.queues.dequeue(&key(&name));
            return;
        }
        let ids: Vec<&str> = of.pending.iter().map(String::as_str).collect();
        let mut object = field(&name, &ids).as_ref().clone();
        std::sync::Arc::make_mut(&mut object.spec.notification).template =
            of.templated.then(|| "{{ value }}".into());
        self.queue
            .queues
            .enqueue(&key("p"), pending_of(&Arc::new(object)), self.queue.now);
    }

    fn is_poisonous(&self, id: &str) -> bool {
        (self.poisonous)(id.parse().unwrap(), self.poison)
    }

    fn respond(&self, request: &DeliveryRequest) -> Result<SendReceipt, Refusal> {
        let accepted = Ok(SendReceipt {
            accepted: request.entries.len(),
            migrated_to: None,
        });
        match self.receiver {
            Receiver::Refuses(reason) => Err(reason),
            Receiver::RefusesSome(reason) if request.ids().any(|id| self.is_poisonous(id)) => {
                Err(reason)
            }
            Receiver::RefusesEntries(reason) if !request.is_test() => Err(reason),
            _ => accepted,
        }
    }

    /// Runs one request or one pause; returns false if the queue is idle.
    fn run(&mut self) -> Result<bool, TestCaseError> {
        match self.queue.queues.next(&key("p"), self.queue.now) {
            QueueStep::Wait(None) => return Ok(false),
            QueueStep::Wait(Some(until)) => {
                prop_assert!(until > self.queue.now, "the worker would spin");
                self.queue.now = until;
                return Ok(true);
            }
            QueueStep::Stopped => return Ok(true),
            QueueStep::Send => {}
        }
        let request = self.queue.start().unwrap();
        let was_requested = mem::take(&mut self.is_test_requested);
        prop_assert!(
            !was_requested || request.is_test(),
            "a requested test message goes first"
        );
        prop_assert!(self.queue.start().is_none(), "one request at a time");
        for (at, of) in self.fields.iter().enumerate() {
            let name = key(&format!("f{at}"));
            let picked: Vec<_> = request
                .entries
                .iter()
                .filter(|entry| entry.key.field == name)
                .map(|entry| &*entry.key.id)
                .collect();
            let expected: Vec<_> = of
                .pending
                .iter()
                .map(String::as_str)
                .take(picked.len())
                .collect();
            prop_assert_eq!(picked, expected, "in order, from the oldest");
        }
        if request.entries.len() > 1 {
            prop_assert!(
                request.ids().all(|id| !self.alone.contains(id)),
                "a refused entry goes alone"
            );
        }
        if matches!(self.receiver, Receiver::IsDown) {
            self.queue.respond(&request, Err(retry("503")));
            prop_assert!(self.queue.is_waiting());
            return Ok(true);
        }
        match self.respond(&request) {
            Ok(sent) => {
                self.queue.respond(&request, Ok(sent));
                self.accepted += 1;
                self.tests_since_entry = if request.is_test() {
                    self.tests_since_entry + usize::from(!was_requested)
                } else {
                    0
                };
                prop_assert!(self.tests_since_entry <= 1, "people see a test message");
            }
            Err(reason) => {
                self.queue.refuse(&request, reason);
                let template = !request.plain
                    && request
                        .entries
                        .iter()
                        .any(|entry| entry.object.spec.notification.template.is_some());
                if let [entry] = request.entries.as_slice() {
                    let failed = self
                        .queue
                        .queues
                        .outcomes(&entry.key.field)
                        .iter()
                        .any(|(id, _)| *id == *entry.key.id);
                    if failed {
                        prop_assert!(!template, "the default text was not tried");
                        let before = self.refused.get(&*entry.key.id).copied();
                        prop_assert!(
                            before.is_some_and(|before| before < self.accepted),
                            "the entry was refused only once"
                        );
                    }
                    self.refused
                        .entry(entry.key.id.to_string())
                        .or_insert(self.accepted);
                    // The default text goes next. An entry that is suspended before then was not refused itself.
                    if !(template && matches!(reason, Refusal::Rejected)) {
                        self.alone.insert(entry.key.id.to_string());
                    }
                }
            }
        }
        self.record()?;
        Ok(true)
    }

    /// Records the outcomes, as reconciles do.
    fn record(&mut self) -> Result<(), TestCaseError> {
        for at in 0..FIELDS {
            let name = key(&format!("f{at}"));
            let outcomes = self.queue.queues.outcomes(&name);
            if outcomes.is_empty() {
                continue;
            }
            prop_assert!(self.queue.is_waiting(), "an outcome is not recorded");
            for (id, outcome) in &outcomes {
                prop_assert!(
                    self.outcomes.insert(id.clone(), outcome.clone()).is_none(),
                    "the entry had an outcome"
                );
                prop_assert_eq!(&self.fields[at].pending.remove(0), id);
            }
            self.enqueue(at);
            self.queue.queues.recorded(&name, &outcomes);
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Record { field, templated } => {
                self.last_id += 1;
                let id = format!("{:05}", self.last_id);
                self.recorded.insert(id.clone());
                self.fields[field].pending.push(id);
                self.fields[field].templated = templated;
                self.enqueue(field);
            }
            Step::Receiver(receiver) => self.receiver = receiver,
            Step::Run(times) => {
                for _ in 0..times {
                    if !self.run()? {
                        break;
                    }
                }
            }
            Step::Suspend(at) | Step::Resume(at) => {
                self.fields[at].suspended = matches!(step, Step::Suspend(_));
                self.enqueue(at);
            }
            Step::Pause => {
                self.queue.queues.close(&key("p"));
                prop_assert!(!self.run()?, "a closed queue sends nothing");
                self.queue
                    .configure("p", InitialState::Open, TestMessage::default());
            }
            Step::RequestTest => {
                self.tests_requested += 1;
                self.is_test_requested = true;
                let requested_at = self.tests_requested.to_string();
                self.queue
                    .queues
                    .request_test(&key("p"), &requested_at, self.queue.now);
            }
            Step::RetryNow => {
                if self
                    .fields
                    .iter()
                    .all(|field| field.suspended || field.pending.is_empty())
                {
                    self.tests_since_entry = 0;
                }
                self.queue.queues.retry_now(&key("p"), self.queue.now);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_any_responses(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut model = Model::new();
        for step in steps {
            model.step(step)?;
        }
        // All entries are delivered in the end, within one pause for each request.
        model.receiver = Receiver::Accepts;
        for at in 0..FIELDS {
            model.step(Step::Resume(at))?;
        }
        let mut rounds = 0;
        while model.run()? {
            rounds += 1;
            prop_assert!(rounds < 500, "the queue does not come to rest");
            if model.fields.iter().all(|field| field.pending.is_empty()) {
                break;
            }
        }
        prop_assert_eq!(model.outcomes.keys().cloned().collect::<BTreeSet<_>>(), model.recorded);
        prop_assert!(model.queue.queues.is_idle());
    }

    #[test]
    fn poisonous_entry_delays_the_others_by_at_most_one_retry_period(
        entries in prop::collection::vec(0..FIELDS, 1..40),
        poison in 1_usize..40,
        reason in any_refusal(),
    ) {
        let mut model = Model::new();
        model.receiver = Receiver::RefusesSome(reason);
        (model.poisonous, model.poison) = (|id, poison| id == poison, poison);
        for field in entries {
            model.step(Step::Record { field, templated: false })?;
        }
        let start = model.queue.now;
        let mut rounds = 0;
        while model.fields.iter().any(|field| !field.pending.is_empty()) {
            prop_assert!(model.run()?, "the queue came to rest");
            rounds += 1;
            prop_assert!(rounds < 200);
        }
        prop_assert!(model.queue.now - start <= RETRY_POLICY.stopped, "{:?}", model.queue.now - start);
        for (id, outcome) in &model.outcomes {
            prop_assert_eq!(matches!(outcome, DeliveryOutcome::Delivered), !model.is_poisonous(id), "{}", id);
        }
    }
}
