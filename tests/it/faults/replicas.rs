//! Two replicas, one of which acts: the leader is frozen until its lease has expired, or is terminated.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::RETRY_AFTER;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use rstest::rstest;
use serde_json::json;
use testbed::proxy::{Fault, Lost, Match, Point, Proxy, Then, Times, Verb};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use super::deliveries::deliveries;
use super::flood::{maps, set_map, track_map};
use super::ledger::Ledger;
use super::{
    assert_no_repeats, assert_order, assert_repeats_bounded, bed_on_own_plane,
    bed_without_controllers, caught_up,
};
use crate::support::{ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings};

const FIELDS: usize = 12;
const POINTS: usize = 3;
const ROUNDS: usize = 3;
/// Another account with the same permissions: the audit log then tells the replicas apart.
const OTHER: &str = "quartermaster-other";

struct Scene {
    receiver: Receiver,
    ledger: Ledger,
    bed: Bed,
}

/// The control plane has no other operator in its audit log.
async fn scene(name: &str) -> Scene {
    let bed = bed_on_own_plane(name).await;
    let receiver = Receiver::start().unwrap();
    for point in 0..POINTS {
        bed.webhook(
            &format!("point-{point}"),
            &format!("{}/point-{point}", receiver.url()),
        )
        .await;
    }
    for field in 0..FIELDS {
        let name = field_name(field);
        bed.deployment(&name, 1).await;
        bed.track(
            &name,
            "Deployment",
            &name,
            "replicas",
            &format!("point-{}", field % POINTS),
        )
        .await;
    }
    let account = format!("--serviceaccount={SYSTEM}:{OTHER}");
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    kubectl(&["-n", SYSTEM, "create", "serviceaccount", OTHER]).await;
    for role in [
        "quartermaster-manager-role",
        "quartermaster-tracker-targets-role",
    ] {
        let name = format!("other-{role}");
        kubectl(&[
            "create",
            "clusterrolebinding",
            &name,
            &format!("--clusterrole={role}"),
            &account,
        ])
        .await;
    }
    let role = "--role=quartermaster-leader-election-role";
    kubectl(&[
        "-n",
        SYSTEM,
        "create",
        "rolebinding",
        "other-leader-election",
        role,
        &account,
    ])
    .await;
    let ledger = Ledger::open(&bed);
    Scene {
        receiver,
        ledger,
        bed,
    }
}

fn field_name(field: usize) -> String {
    format!("field-{field}")
}

impl Scene {
    /// Starts replica number `life`: replicas use the two accounts in turn.
    async fn replica(&self, life: usize) -> Operator {
        let file = self
            .bed
            .plane
            .kubeconfig_for_service_account(SYSTEM, account(life))
            .await
            .unwrap();
        // Work in flight at a shutdown has enough time even on a slow machine.
        Operator::start(
            &self.bed,
            candidate(life)
                .kubeconfig(file)
                .flag("--graceful-shutdown-timeout=10s"),
        )
        .await
    }

    /// Changes fields one after the other until `enough`. Returns the newest values.
    async fn write(&self, enough: &AtomicBool) -> HashMap<String, String> {
        let mut newest = HashMap::new();
        for replicas in 2.. {
            for field in (0..FIELDS).map(field_name) {
                self.bed.scale(&field, replicas).await;
                newest.insert(field, replicas.to_string());
            }
            if enough.load(Ordering::Relaxed) {
                break;
            }
        }
        newest
    }

    /// Waits until replica `life` has sent a message, and then another one.
    async fn until_replica_sends(&self, life: usize) {
        let sender = format!("life-{life}");
        let by = || {
            deliveries(&self.receiver)
                .iter()
                .filter(|request| request.sender == sender)
                .count()
        };
        let before = by();
        until(format!("{sender} sends something"), SOON, async || {
            Ok((by() > before + POINTS).then_some(()))
        })
        .await
        .unwrap();
    }
}

fn account(life: usize) -> &'static str {
    if life.is_multiple_of(2) {
        ACCOUNT
    } else {
        OTHER
    }
}

/// Returns the settings of replica number `life`.
pub(crate) fn candidate(life: usize) -> Settings {
    Settings::default()
        .flag(&format!("--cluster-name=life-{life}"))
        .leader_election(20)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_frozen_past_its_lease_writes_nothing_more() {
    let scene = scene("frozen").await;
    let enough = AtomicBool::new(false);
    let freezes = async {
        let mut leader = scene.replica(0).await;
        leader.leads().await;
        for life in 0..ROUNDS {
            let standby = scene.replica(life + 1).await;
            scene.until_replica_sends(life).await;
            leader.child().freeze().unwrap();
            standby.leads().await;
            scene.until_replica_sends(life + 1).await;

            let mark = scene.bed.plane.audit().mark().await.unwrap();
            let thawed = Instant::now();
            leader.child().thaw().unwrap();
            let ended = leader.child().wait(SOON).await.unwrap();
            assert_eq!(
                ended.code(),
                Some(1),
                "the process exits by itself: {}",
                leader.child().log_tail()
            );
            assert_wrote_nothing(&scene, life, mark).await;
            assert_sent_one_each(&scene, life, thawed);
            leader = standby;
        }
        enough.store(true, Ordering::Relaxed);
        leader
    };
    let (newest, _last) = tokio::join!(scene.write(&enough), freezes);
    caught_up(&scene.bed, &scene.ledger, &scene.receiver, &newest).await;
    let deliveries = deliveries(&scene.receiver);
    assert_order(&scene.ledger, &deliveries);
    assert_repeats_bounded(&deliveries);
}

/// Asserts that since `mark` no write of this replica took effect, except for one Event.
async fn assert_wrote_nothing(
    scene: &Scene,
    life: usize,
    mark: testbed::control_plane::audit::Mark,
) {
    let user = format!("system:serviceaccount:{SYSTEM}:{}", account(life));
    let requests = scene.bed.plane.audit().requests(mark).await.unwrap();
    let (events, objects): (Vec<_>, Vec<_>) = requests
        .into_iter()
        .filter(|request| {
            request.subject.user == user && request.subject.is_write() && request.code < 300
        })
        .partition(|request| request.subject.resource == "events");
    assert!(
        objects.is_empty(),
        "replica {life} wrote after its lease: {objects:?}"
    );
    assert!(
        events.len() <= 1,
        "replica {life} wrote Events after its lease: {events:?}"
    );
}

/// Asserts that since `thawed` this replica sent each contact point at most one request, the one in preparation.
fn assert_sent_one_each(scene: &Scene, life: usize, thawed: Instant) {
    let mut sent = HashSet::new();
    for request in scene
        .receiver
        .requests()
        .iter()
        .filter(|request| request.at > thawed)
    {
        if request.json().unwrap()["cluster"] == format!("life-{life}") {
            assert!(
                sent.insert(request.path.clone()),
                "replica {life} sent twice to {}",
                request.path
            );
        }
    }
}

/// An attempt that was pending when the process was frozen is due when the process continues, before the process knows
/// that it lost the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_frozen_past_its_lease_sends_nothing_more() {
    const AFTER: u64 = 5;
    let bed = bed_without_controllers("thawed").await;
    // Each message has a receiver with an open connection, so that sending takes only a moment.
    let receivers: Vec<Receiver> = (0..40).map(|_| Receiver::start().unwrap()).collect();
    let mut leader = Operator::start(&bed, candidate(0)).await;
    leader.leads().await;
    bed.deployment("web", 1).await;
    for (at, receiver) in receivers.iter().enumerate() {
        bed.webhook(&format!("point-{at}"), &receiver.url()).await;
    }
    for (at, receiver) in receivers.iter().enumerate() {
        bed.ready(&format!("point-{at}")).await;
        receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE).header(RETRY_AFTER, AFTER));
        bed.track(
            &format!("it-{at}"),
            "Deployment",
            "web",
            "replicas",
            &format!("point-{at}"),
        )
        .await;
    }
    until("each was postponed", SOON, async || {
        let metrics = leader.metrics().await;
        let line = "quartermaster_delivery_attempts_total{type=\"webhook\",outcome=\"retried\"} ";
        let put_off = metrics
            .lines()
            .find_map(|it| it.strip_prefix(line))
            .map(str::parse::<usize>);
        Ok(put_off
            .transpose()?
            .filter(|count| *count >= receivers.len()))
    })
    .await
    .unwrap();
    leader.child().freeze().unwrap();
    let frozen = Instant::now();
    receivers.iter().for_each(Receiver::behave);
    let standby = Operator::start(&bed, candidate(1)).await;
    standby.leads().await;
    for at in 0..receivers.len() {
        bed.delivered(&format!("it-{at}"), &[("Created", Some("1"))])
            .await;
    }
    let due = async || Ok((frozen.elapsed() > Duration::from_secs(AFTER)).then_some(()));
    until("the postponed attempts are due", SOON, due)
        .await
        .unwrap();
    receivers.iter().for_each(Receiver::forget);
    leader.child().thaw().unwrap();
    let ended = leader.child().wait(SOON).await.unwrap();
    assert_eq!(
        ended.code(),
        Some(1),
        "the process exits by itself: {}",
        leader.child().log_tail()
    );
    // By then all messages of the other replica have arrived.
    bed.scale("web", 2).await;
    for at in 0..receivers.len() {
        bed.delivered(
            &format!("it-{at}"),
            &[("Created", Some("1")), ("Updated", Some("2"))],
        )
        .await;
    }
    let late = receivers
        .iter()
        .flat_map(deliveries)
        .filter(|request| request.sender == "life-0")
        .count();
    assert_eq!(late, 0, "sent without the lease");
}

/// A cache shows entries as Pending that another replica has delivered since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_with_a_stale_cache_repeats_nothing() {
    let bed = bed_without_controllers("lags").await;
    let receiver = Receiver::start().unwrap();
    let ledger = Ledger::open(&bed);
    let mut leader = Operator::start(&bed, candidate(0)).await;
    leader.leads().await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.refuse().await.unwrap();
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.waiting("it", "DeliveryFailing").await;
    // The cache of this replica shows that state, and continues to do so.
    let (proxy, file) = bed.through_proxy().await;
    let standby = Operator::start(&bed, candidate(1).kubeconfig(file)).await;
    let frozen = proxy.freeze(Match::watch("trackedfields"));
    receiver.accept().await.unwrap();
    bed.delivered("it", &[("Created", Some("1"))]).await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    leader.kill();
    standby.leads().await;
    let listed = Match::verb(Verb::List).resource("trackedfields");
    until(
        "the replica has listed the waiting entries, or sent them",
        SOON,
        async || Ok((proxy.count(&listed) > 1 || deliveries(&receiver).len() > 1).then_some(())),
    )
    .await
    .unwrap();
    bed.scale("web", 2).await;
    bed.delivered("it", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    let deliveries = deliveries(&receiver);
    assert_order(&ledger, &deliveries);
    assert_no_repeats(&deliveries);
}

/// The operator discovers this kind, unlike the three that every cluster has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standby_observes_changes_while_nobody_leads() {
    let bed = bed_without_controllers("warm").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let mut leader = Operator::start(&bed, candidate(0)).await;
    leader.leads().await;
    track_map(&bed, "map", "1").await;
    bed.delivered("map", &[("Created", Some("1"))]).await;
    let standby = Operator::start(&bed, candidate(1).flag("--log-level=debug")).await;
    let listed = |line: &str| line.contains("\"listed\"") && line.contains("\"maps\"");
    until("the replica has listed", SOON, async || {
        Ok(standby.logs().lines().any(listed).then_some(()))
    })
    .await
    .unwrap();
    leader.child().freeze().unwrap();
    for value in ["2", "3"] {
        set_map(&maps(&bed), "map", value).await;
    }
    standby.leads().await;
    // The net change between two leaders' reconciles gives one entry.
    bed.delivered("map", &[("Created", Some("1")), ("Updated", Some("3"))])
        .await;
}

/// A renewal is applied and its answer lost, and then the lease changes between the leader's reads and writes: each of
/// these writes meets 409, and the lease still names the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_keeps_leading_when_its_renewals_meet_conflicts() {
    const EDITS: u64 = 6;
    const LEASE: &str = "edited";
    let (_bed, proxy, mut leader, renewals, api) = leading(LEASE, 100).await;
    let spec = async || api.get(LEASE).await.unwrap().spec.unwrap();
    let before = spec().await;

    let lost = proxy.inject(
        renewals.clone(),
        Times::First(1),
        Fault::LoseAnswer(Lost::Cut),
    );
    lost.wait_for_hits(1, SOON).await.unwrap();
    let edit = {
        let api = api.clone();
        move |_| {
            let api = api.clone();
            async move {
                let note = json!({ "metadata": { "annotations": { "edited": uuid::Uuid::new_v4().to_string() } } });
                api.patch(LEASE, &PatchParams::default(), &Patch::Merge(&note))
                    .await
                    .unwrap();
                Then::GoOn
            }
        }
    };
    let edits = proxy.inject(
        renewals,
        Times::First(EDITS),
        Fault::hook(Point::Before, edit),
    );
    edits.wait_for_hits(EDITS, SOON).await.unwrap();
    let last = spec().await;
    until(
        "the lease is renewed after the last edit",
        SOON,
        async || {
            leader.child().check_running()?;
            Ok((spec().await.renew_time > last.renew_time).then_some(()))
        },
    )
    .await
    .unwrap();
    let after = spec().await;
    assert_eq!(after.holder_identity, before.holder_identity);
    assert_eq!(after.lease_transitions, before.lease_transitions);
    assert!(leader.metrics().await.contains(&leads(LEASE)));
}

/// Returns the series of a replica that holds this lease.
fn leads(lease: &str) -> String {
    format!("leader_election_master_status{{name=\"{lease}\"}} 1")
}

/// Starts an operator that leads through a proxy, with its own lease of `seconds`. Returns it, the match of requests
/// that renew the lease, and the lease.
async fn leading(lease: &str, seconds: u32) -> (Bed, Proxy, Operator, Match, Api<Lease>) {
    let bed = Bed::shared(lease).await;
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .kubeconfig(file)
        .leader_election(seconds)
        .flag(&format!("--leader-election-id={lease}"));
    let operator = Operator::start(&bed, settings).await;
    until("the replica leads", SOON, async || {
        let leads = operator.metrics().await.contains(&leads(lease));
        Ok(leads.then_some(()))
    })
    .await
    .unwrap();
    let renewals = Match::verb(Verb::Update).resource("leases").name(lease);
    let api = Api::namespaced(bed.client.clone(), SYSTEM);
    (bed, proxy, operator, renewals, api)
}

/// Waits until the lease is renewed again; it is still the first acquisition.
async fn renewed(api: &Api<Lease>, lease: &str, leader: &mut Operator) {
    let spec = async || api.get(lease).await.map(|lease| lease.spec.unwrap());
    let before = spec().await.unwrap();
    let after = until("the lease is renewed", SOON, async || {
        leader.child().check_running()?;
        let now = spec().await?;
        Ok((now.renew_time > before.renew_time).then_some(now))
    });
    let after = after.await.unwrap();
    assert_eq!(after.holder_identity, before.holder_identity);
    assert_eq!(after.lease_transitions, before.lease_transitions);
}

/// Two renewals arrive late, when the leader has sent the next ones: both carry the resourceVersion that the leader
/// knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_keeps_leading_when_two_of_its_renewals_arrive_late() {
    let (_bed, proxy, mut leader, renewals, api) = leading("late", 100).await;
    let late = proxy.inject(
        renewals.clone(),
        Times::First(2),
        Fault::Late(Duration::from_millis(700)),
    );
    late.wait_for_hits(2, SOON).await.unwrap();
    let after = proxy.inject(renewals, Times::Always, Fault::Delay(Duration::ZERO));
    after.wait_for_hits(6, SOON).await.unwrap();
    renewed(&api, "late", &mut leader).await;
}

/// A proxy sends each renewal twice, or loses each answer: the lease shows that the leader has renewed it.
#[rstest]
#[case::duplicated("twice", Fault::Repeat)]
#[case::unanswered("unanswered", Fault::LoseAnswer(Lost::Cut))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_keeps_leading_when_no_answer_confirms_its_renewals(
    #[case] lease: &str,
    #[case] fault: Fault,
) {
    /// The renew deadline of a Lease of 20 s.
    const DEADLINE: Duration = Duration::from_secs(15);
    let (_bed, proxy, mut leader, renewals, api) = leading(lease, 20).await;
    let faults = proxy.inject(renewals, Times::Always, fault);
    faults.wait_for_hits(1, SOON).await.unwrap();
    let since = Instant::now();
    let past = async || {
        leader.child().check_running()?;
        Ok((since.elapsed() > DEADLINE * 5 / 4).then_some(()))
    };
    until("the renew deadline has passed", SOON, past)
        .await
        .unwrap();
    renewed(&api, lease, &mut leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_leader_releases_its_lease() {
    let scene = scene("handover").await;
    let enough = AtomicBool::new(false);
    let handovers = async {
        let mut leader = scene.replica(0).await;
        leader.leads().await;
        for life in 0..ROUNDS {
            let standby = scene.replica(life + 1).await;
            scene.until_replica_sends(life).await;
            leader.child().terminate().unwrap();
            let ended = leader.child().wait(SOON).await.unwrap();
            assert_eq!(
                ended.code(),
                Some(0),
                "the process exits with 0: {}",
                leader.child().log_tail()
            );
            standby.leads().await;
            scene.until_replica_sends(life + 1).await;
            leader = standby;
        }
        enough.store(true, Ordering::Relaxed);
        leader
    };
    let (newest, _last) = tokio::join!(scene.write(&enough), handovers);
    caught_up(&scene.bed, &scene.ledger, &scene.receiver, &newest).await;
    let deliveries = deliveries(&scene.receiver);
    assert_order(&scene.ledger, &deliveries);
    assert_no_repeats(&deliveries);
}
