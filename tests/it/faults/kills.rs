//! The operator is killed repeatedly while fields change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write as _;
use std::ops::Bound::{Excluded, Included};
use std::time::{Duration, SystemTime};

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use testbed::receiver::Receiver;
use tokio::sync::watch;

use super::deliveries::deliveries;
use super::ledger::{Ledger, recorded_at, version};
use super::{assert_order, assert_repeats_bounded, bed_without_controllers, caught_up};
use crate::support::{ACCOUNT, Bed, Operator, SYSTEM, Settings};

/// Variable that repeats a failed run.
const SEED: &str = "QUARTERMASTER_TEST_SEED";

const POINTS: usize = 5;

struct Plan {
    fields: usize,
    changes: usize,
    kills: usize,
    /// Maximum lifetime of an operator.
    life: Duration,
    flags: &'static [&'static str],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn hundred_kills_lose_nothing() {
    let life = Duration::from_secs(1);
    run(
        "kills",
        Plan {
            fields: 50,
            changes: 1000,
            kills: 100,
            life,
            flags: &[],
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_kills_with_leader_election_lose_nothing() {
    // Each operator first waits until the previous operator's lease has expired.
    let flags = &[
        "--leader-elect",
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=100ms",
    ];
    run(
        "kills-elect",
        Plan {
            fields: 10,
            changes: 200,
            kills: 5,
            life: Duration::from_secs(7),
            flags,
        },
    )
    .await;
}

/// A change that the apiserver acknowledged.
struct Change {
    field: String,
    version: u64,
}

/// A life of the operator; times are since the epoch.
struct Life {
    from: Duration,
    to: Duration,
}

/// Returns a random number generator and prints its seed; a given seed repeats a run.
pub(super) fn seeded(name: &str) -> StdRng {
    let seed = std::env::var(SEED).map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    // The test harness does not capture this output, because a hanging run has to be repeatable too.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{name}: {SEED}={seed}").unwrap();
    StdRng::seed_from_u64(seed)
}

async fn run(name: &str, plan: Plan) {
    let mut random = seeded(name);
    let bed = bed_without_controllers(name).await;
    let receiver = Receiver::start().unwrap();
    for point in 0..POINTS {
        bed.webhook(
            &point_name(point),
            &format!("{}/{}", receiver.url(), point_name(point)),
        )
        .await;
    }
    for field in 0..plan.fields {
        bed.deployment(&field_name(field), 1).await;
        let point = point_name(field % POINTS);
        bed.track(
            &field_name(field),
            "Deployment",
            &field_name(field),
            "replicas",
            &point,
        )
        .await;
    }
    let ledger = Ledger::open(&bed);

    let (started, lives) = watch::channel(0);
    let writer = write(&bed, &plan, StdRng::seed_from_u64(random.random()), lives);
    let killer = live_and_die(&bed, &plan, random, started);
    let ((changes, newest), (lives, _operators)) = tokio::join!(writer, killer);
    caught_up(&bed, &ledger, &receiver, &newest).await;

    let deliveries = deliveries(&receiver);
    assert_order(&ledger, &deliveries);
    let repeated = assert_repeats_bounded(&deliveries);
    let covered = assert_no_change_missed(&ledger, &changes, &lives);
    assert!(covered > 0, "no change was followed by a later one");
    let entries: usize = ledger.fields().values().map(Vec::len).sum();
    let mut stderr = std::io::stderr();
    writeln!(
        stderr,
        "{name}: {} changes, {entries} entries, {} messages, {repeated} entries repeated; {covered} changes had to be seen",
        changes.len(),
        deliveries.len(),
    )
    .unwrap();
}

fn field_name(field: usize) -> String {
    format!("field-{field}")
}

fn point_name(point: usize) -> String {
    format!("point-{point}")
}

/// Changes fields at random, some several times in quick succession, evenly over the operator's lives.
async fn write(
    bed: &Bed,
    plan: &Plan,
    mut random: StdRng,
    mut lives: watch::Receiver<usize>,
) -> (Vec<Change>, HashMap<String, String>) {
    let mut changes = Vec::new();
    let mut newest: HashMap<String, i32> = (0..plan.fields)
        .map(|field| (field_name(field), 1))
        .collect();
    while changes.len() < plan.changes {
        let due = |lived: &usize| {
            *lived > plan.kills || changes.len() < plan.changes * lived / (plan.kills + 1)
        };
        lives.wait_for(due).await.unwrap();
        tokio::time::sleep(plan.life.mul_f64(random.random_range(0.0..0.15))).await;
        let field = field_name(random.random_range(0..plan.fields));
        for _ in 0..random.random_range(1..=6).min(plan.changes - changes.len()) {
            let replicas = (newest[&field] + random.random_range(0..2)) % 3 + 1;
            let patch = json!({ "spec": { "replicas": replicas } });
            let written = bed.patch::<Deployment>(&field, patch).await;
            newest.insert(field.clone(), replicas);
            let version = written.resource_version().unwrap().parse().unwrap();
            changes.push(Change {
                field: field.clone(),
                version,
            });
        }
    }
    (
        changes,
        newest
            .into_iter()
            .map(|(field, replicas)| (field, replicas.to_string()))
            .collect(),
    )
}

/// Starts the operator and kills it, again and again; the last one lives. Each life has a name that its messages carry.
/// The dead operators are kept for their logs.
async fn live_and_die(
    bed: &Bed,
    plan: &Plan,
    mut random: StdRng,
    started: watch::Sender<usize>,
) -> (Vec<Life>, Vec<Operator>) {
    let kubeconfig = bed
        .plane
        .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
        .await
        .unwrap();
    let (mut lives, mut operators) = (Vec::new(), Vec::new());
    for life in 0..=plan.kills {
        let mut settings = Settings::default()
            .kubeconfig(kubeconfig.clone())
            .flag(&format!("--cluster-name=life-{life}"));
        // The last operator has to live even on a slow machine, so it has the product's own lease times.
        let flags = if life < plan.kills {
            plan.flags
        } else {
            &plan.flags[..plan.flags.len().min(1)]
        };
        settings.flags.extend(flags.iter().map(ToString::to_string));
        let from = now();
        let mut operator = Operator::launch(bed, settings).await;
        if life == plan.kills {
            // The operator sees each of the changes that are left.
            operator.ready().await;
        }
        started.send_replace(life + 1);
        if life < plan.kills {
            tokio::time::sleep(plan.life.mul_f64(random.random_range(0.0..1.0))).await;
            operator.kill();
            lives.push(Life { from, to: now() });
        } else {
            lives.push(Life {
                from,
                to: Duration::MAX,
            });
        }
        operators.push(operator);
    }
    (lives, operators)
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
}

/// Asserts that between two entries of one field that were recorded in one life, every change is an entry. Returns the
/// number of those changes.
fn assert_no_change_missed(ledger: &Ledger, changes: &[Change], lives: &[Life]) -> usize {
    let mut made_by: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for change in changes {
        made_by
            .entry(&change.field)
            .or_default()
            .insert(change.version);
    }
    let mut covered = 0;
    for (field, entries) in &ledger.fields() {
        let recorded: HashSet<u64> = entries.iter().map(version).collect();
        for (number, life) in lives.iter().enumerate() {
            // Ids have whole milliseconds.
            let of_life = entries.iter().filter(|entry| {
                (life.from.as_millis()..=life.to.as_millis())
                    .contains(&recorded_at(entry).as_millis())
            });
            let of_life: Vec<u64> = of_life.map(version).collect();
            let (Some(first), Some(last)) = (of_life.iter().min(), of_life.iter().max()) else {
                continue;
            };
            for change in made_by
                .get(field.as_str())
                .into_iter()
                .flat_map(|made| made.range((Excluded(*first), Included(*last))))
            {
                assert!(
                    recorded.contains(change),
                    "{field}: life {number} has no entry of version {change}"
                );
                covered += 1;
            }
        }
    }
    covered
}
