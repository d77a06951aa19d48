//! Two replicas, stale standbys, receivers that reject, an apiserver that rejects an outcome, and kills, all at random.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use qm_api::tracked_field::{Delivery, Entry};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use testbed::proxy::{Ending, Fault, Match, Proxy, Times, Verb};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use super::deliveries::deliveries;
use super::kills::seeded;
use super::ledger::Ledger;
use super::replicas::candidate;
use super::{assert_order, bed_without_controllers};
use crate::support::{Bed, Operator, SOON};

const FIELDS: usize = 12;
const POINTS: usize = 3;
const KILLS: usize = 4;
/// `TrackedField` whose status writes are rejected for a while.
const REFUSED: &str = "field-0";
/// `TrackedField` whose messages are rejected until the end, whatever else the receiver accepts.
const POISONOUS: &str = "field-11";
/// Number of rejections, above the limit after which the operator continues without the object.
const REFUSALS: u64 = 8;

struct Replica {
    operator: Operator,
    proxy: Proxy,
}

impl Replica {
    async fn start(bed: &Bed, life: usize) -> Self {
        let (proxy, file) = bed.through_proxy().await;
        Self {
            operator: Operator::start(bed, candidate(life).kubeconfig(file)).await,
            proxy,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn two_replicas_under_random_faults_deliver_or_truly_fail_every_change() {
    let mut random = seeded("campaign");
    let mut split = || StdRng::seed_from_u64(random.random());
    let bed = bed_without_controllers("campaign").await;
    let receiver = Receiver::start().unwrap();
    for point in 0..POINTS {
        bed.webhook(
            &point_name(point),
            &format!("{}/{}", receiver.url(), point_name(point)),
        )
        .await;
    }
    for field in (0..FIELDS).map(field_name) {
        bed.deployment(&field, 1).await;
    }
    let ledger = Ledger::open(&bed);
    let mut leader = Replica::start(&bed, 0).await;
    leader.operator.leads().await;
    for field in 0..FIELDS {
        let name = field_name(field);
        bed.track(
            &name,
            "Deployment",
            &name,
            "replicas",
            &point_name(field % POINTS),
        )
        .await;
    }
    for field in (0..FIELDS).map(field_name) {
        bed.delivered(&field, &[("Created", Some("1"))]).await;
    }

    let over = AtomicBool::new(false);
    let (mut stale, refusing, writing) = (split(), split(), split());
    let kills = async {
        for life in 1..=KILLS {
            let standby = Replica::start(&bed, life).await;
            if life == KILLS / 2 {
                refuse_outcomes(&leader.proxy).await;
            }
            disturb(&standby.proxy, &mut stale).await;
            leader.operator.kill();
            standby.operator.leads().await;
            leader = standby;
        }
        over.store(true, Ordering::Relaxed);
    };
    let (newest, (), ()) = tokio::join!(
        write(&bed, writing, &over),
        refuse(&receiver, refusing, &over),
        kills
    );

    caught_up(&bed, &ledger, &newest).await;
    let deliveries = deliveries(&receiver);
    assert_order(&ledger, &deliveries);
    assert_alternating(&ledger);
    assert_failed_truly(&ledger, &receiver);
    let repeated = assert_acceptances_bounded(&receiver);
    let entries: Vec<_> = ledger.fields().into_values().flatten().collect();
    let failed = entries
        .iter()
        .filter(|entry| entry.delivery == Some(Delivery::Failed))
        .count();
    let mut stderr = std::io::stderr();
    writeln!(
        stderr,
        "campaign: {} entries, {failed} failed, {repeated} repeated",
        entries.len()
    )
    .unwrap();
}

fn field_name(field: usize) -> String {
    format!("field-{field}")
}

fn point_name(point: usize) -> String {
    format!("point-{point}")
}

/// Sets fields to 1 and 2 in turn, often twice in immediate succession, until `over`. Returns the newest values.
async fn write(bed: &Bed, mut random: StdRng, over: &AtomicBool) -> HashMap<String, String> {
    let mut newest: HashMap<_, _> = (0..FIELDS).map(|field| (field_name(field), 1)).collect();
    while !over.load(Ordering::Relaxed) {
        let field = field_name(random.random_range(0..FIELDS));
        for _ in 0..random.random_range(1..=2) {
            let value = 3 - newest[&field];
            bed.scale(&field, value).await;
            newest.insert(field.clone(), value);
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..300))).await;
    }
    newest
        .into_iter()
        .map(|(field, value)| (field, value.to_string()))
        .collect()
}

/// Makes each path accept everything but the poisonous messages, or answer everything with 403 or 410, until `over`;
/// then all accept everything.
async fn refuse(receiver: &Receiver, mut random: StdRng, over: &AtomicBool) {
    receiver.at_text(
        &format!("\"{POISONOUS}\""),
        Reply::status(StatusCode::FORBIDDEN),
    );
    while !over.load(Ordering::Relaxed) {
        let path = format!("/{}", point_name(random.random_range(0..POINTS)));
        let status =
            [StatusCode::OK, StatusCode::FORBIDDEN, StatusCode::GONE][random.random_range(0..3)];
        receiver.at_path(&path, Reply::status(status));
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1000))).await;
    }
    receiver.behave();
}

/// Rejects some status writes of one object by the leader, and waits for the first.
async fn refuse_outcomes(proxy: &Proxy) {
    let writes = Match::verb(Verb::Patch)
        .resource("trackedfields")
        .subresource("status")
        .name(REFUSED);
    let rejection = Fault::status(StatusCode::FORBIDDEN);
    let order = proxy.inject(writes, Times::First(REFUSALS), rejection);
    order.wait_for_hits(1, SOON).await.unwrap();
}

/// Cuts the standby's watch of the targets for some seconds, answers it with 410, or lets it show stale state.
async fn disturb(proxy: &Proxy, random: &mut StdRng) {
    let targets = || Match::watch("deployments");
    let pause = async |random: &mut StdRng| {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1500))).await;
    };
    for _ in 0..random.random_range(1..=3) {
        match random.random_range(0..3) {
            0 => {
                proxy.end_watches(&targets(), Ending::Gone);
            }
            1 => {
                proxy.inject(
                    targets(),
                    Times::First(random.random_range(1..=3)),
                    Fault::Gone,
                );
                proxy.end_watches(&targets(), Ending::MidEvent);
            }
            _ => {
                let frozen = proxy.freeze(targets());
                pause(random).await;
                frozen.cancel();
                proxy.end_watches(&targets(), Ending::Gone);
            }
        }
        pause(random).await;
    }
    // In half of the cases the standby has not recovered when it begins to lead.
    if random.random_bool(0.5) {
        proxy.inject(targets(), Times::First(3), Fault::Gone);
        proxy.end_watches(&targets(), Ending::Gone);
    }
}

/// Waits until each history ends with the newest value and no entry waits.
async fn caught_up(bed: &Bed, ledger: &Ledger, newest: &HashMap<String, String>) {
    let caught_up = until(
        "every field's newest value is recorded, and nothing waits",
        SOON,
        async || {
            for (field, value) in newest {
                let history = bed.history(field).await;
                let last = history.last().and_then(|entry| entry.value.as_deref());
                anyhow::ensure!(
                    last == Some(value),
                    "{field} ends with {last:?}, not {value}"
                );
                let waiting = history.iter().filter(|entry| entry.is_pending()).count();
                anyhow::ensure!(waiting == 0, "{field}: {waiting} entries wait");
                anyhow::ensure!(
                    ledger.fields()[field].last() == history.last(),
                    "our own watch of {field} lags behind"
                );
            }
            Ok(Some(()))
        },
    );
    caught_up.await.unwrap();
}

/// Asserts that successive values differ. Each field has two values, so no change was lost between two entries, and
/// none was invented.
fn assert_alternating(ledger: &Ledger) {
    for (field, entries) in ledger.fields() {
        for pair in entries.windows(2).filter(|pair| pair[1].merged.is_none()) {
            assert_ne!(
                pair[0].value, pair[1].value,
                "{field}: two successive entries have the same value: {pair:?}"
            );
        }
    }
}

/// Answered request, with the ids of its entries.
struct Attempt {
    path: String,
    sender: String,
    status: Option<StatusCode>,
    ids: Vec<String>,
}

fn attempts(receiver: &Receiver) -> Vec<Attempt> {
    let requests = receiver.requests();
    let attempts = requests.iter().map(|request| {
        let body = request.json().unwrap();
        let texts = |ids: &serde_json::Value| {
            ids.as_array()
                .map(|ids| ids.iter().map(ToString::to_string).collect())
        };
        let ids: Vec<String> = texts(&body["ids"]).unwrap_or_else(|| vec![body["id"].to_string()]);
        let ids = ids
            .into_iter()
            .map(|id| id.trim_matches('"').to_owned())
            .collect();
        let sender = body["cluster"].as_str().unwrap_or_default().to_owned();
        Attempt {
            path: request.path.clone(),
            sender,
            status: request.answered,
            ids,
        }
    });
    attempts.collect()
}

/// Asserts that each `Failed` entry names its last answer and was rejected twice by one sender, with another message
/// accepted in between; and that every other entry was accepted.
fn assert_failed_truly(ledger: &Ledger, receiver: &Receiver) {
    let attempts = attempts(receiver);
    for entry in ledger.fields().into_values().flatten() {
        let id = entry.id.as_deref().unwrap();
        let of_it = |attempt: &&Attempt| attempt.ids.iter().any(|other| other == id);
        let accepted = attempts.iter().filter(of_it).any(is_accepted);
        match entry.delivery {
            Some(Delivery::Failed) => assert_is_true(&entry, &attempts),
            _ => assert!(accepted, "never accepted: {entry:?}"),
        }
    }
}

fn is_accepted(attempt: &Attempt) -> bool {
    attempt.status.is_some_and(|status| status.is_success())
}

fn assert_is_true(entry: &Entry, attempts: &[Attempt]) {
    let id = entry.id.as_deref().unwrap();
    let reason = entry.reason.as_deref().unwrap_or_default();
    let of_it =
        |attempt: &Attempt| attempt.ids.iter().any(|other| other == id) && !is_accepted(attempt);
    let Some(last) = attempts.iter().rposition(of_it) else {
        panic!("failed, but never refused: {entry:?}")
    };
    // A new leader knows of no earlier rejection.
    let first = attempts
        .iter()
        .position(|attempt| of_it(attempt) && attempt.sender == attempts[last].sender)
        .unwrap();
    let status = attempts[last].status.unwrap();
    assert!(
        reason.contains(status.as_str()),
        "the last answer was {status}: {entry:?}"
    );
    assert_eq!(
        attempts[last].ids.len(),
        1,
        "a digest accuses no entry: {entry:?}"
    );
    let mut between = attempts[first..last]
        .iter()
        .filter(|attempt| attempt.path == attempts[last].path);
    assert!(
        between.any(is_accepted),
        "no message was accepted since the first rejection: {entry:?}"
    );
}

/// Asserts that an entry is accepted again only if its sender died with the request that carried the entry (the
/// sender's last one to that contact point), or if the apiserver rejected the entry's outcome, once for each sender.
/// Returns the number of repetitions.
fn assert_acceptances_bounded(receiver: &Receiver) -> usize {
    let deliveries: Vec<_> = deliveries(receiver)
        .into_iter()
        .filter(|request| request.accepted)
        .collect();
    let mut last: HashMap<(&str, &str), usize> = HashMap::new();
    for (at, request) in deliveries.iter().enumerate() {
        last.insert((&request.path, &request.sender), at);
    }
    let (mut accepted_count, mut repeated): (HashMap<&str, usize>, HashSet<&str>) =
        (HashMap::new(), HashSet::new());
    for (at, request) in deliveries.iter().enumerate() {
        for entry in &request.entries {
            let Some(before) = accepted_count.insert(&entry.id, at) else {
                continue;
            };
            let (path, sender) = (&deliveries[before].path, &deliveries[before].sender);
            assert_ne!(
                *sender, request.sender,
                "accepted twice from one sender: {entry:?}"
            );
            let died_with_it = last[&(path.as_str(), sender.as_str())] == before;
            assert!(
                died_with_it || entry.field == REFUSED,
                "{entry:?} was sent again, but {sender} continued after it"
            );
            repeated.insert(&entry.id);
        }
    }
    repeated.len()
}
