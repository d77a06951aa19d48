//! More changes than an outbox holds, and a value larger than a status allows.

use std::time::Duration;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use serde_json::json;
use testbed::proxy::{Fault, Lost, Match, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::deliveries::deliveries;
use super::ledger::Ledger;
use super::{MAPS, assert_no_repeats, bed_on_own_plane, bed_without_controllers};
use crate::support::{ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings};

const CHANGES: u64 = 5000;
const KIB: usize = 1024;
/// Maximum size of a status: pending entries and all other entries.
const MOST: usize = (512 + 256) * KIB;

/// Returns the API of the objects of [`MAPS`] in the test's namespace.
pub(super) fn maps(bed: &Bed) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk(MAPS, "v1", "Map");
    Api::namespaced_with(
        bed.client.clone(),
        &bed.namespace,
        &ApiResource::from_gvk_with_plural(&gvk, "maps"),
    )
}

/// Creates a `Map` and tracks its field `.data.value`.
pub(super) async fn track_map(bed: &Bed, name: &str, value: &str) {
    let map = json!({ "apiVersion": format!("{MAPS}/v1"), "kind": "Map", "metadata": { "name": name }, "data": { "value": value } });
    let map: DynamicObject = serde_json::from_value(map).unwrap();
    // Right after its CRD the apiserver may answer 429 or 404 for a moment.
    let maps = maps(bed);
    let made = until("the map exists", SOON, async || {
        Ok(maps.create(&PostParams::default(), &map).await.map(Some)?)
    });
    made.await.unwrap();
    let target = json!({
        "apiVersion": format!("{MAPS}/v1"), "kind": "Map", "resource": "maps", "namespace": bed.namespace, "name": name,
    });
    let spec = json!({ "target": target, "contactPoint": "hook", "field": "{.data.value}" });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

pub(super) async fn set_map(maps: &Api<DynamicObject>, name: &str, value: &str) {
    let patch = Patch::Merge(json!({ "data": { "value": value } }));
    maps.patch_metadata(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Returns the value after this many changes: almost long enough to be truncated.
fn long(change: u64) -> String {
    format!("{change} {}", "x".repeat(1000))
}

fn change(value: Option<&str>) -> u64 {
    value.unwrap().split(' ').next().unwrap().parse().unwrap()
}

async fn all_delivered(bed: &Bed, name: &str, last: &str) {
    let delivered = until(
        format!("{name} ends with {last:.10}, all of it delivered"),
        SOON,
        async || {
            let history = bed.history_with_last(name, last).await?;
            anyhow::ensure!(!history.iter().any(Entry::is_pending), "something waits");
            Ok(Some(()))
        },
    );
    delivered.await.unwrap();
}

/// Asserts that each sent entry counts the changes since the previous entry, so that together the entries count every
/// change once and in order. Returns the number of changes that were merged into others.
fn assert_counts(receiver: &Receiver, name: &str, changes: u64) -> u64 {
    let deliveries = deliveries(receiver);
    assert_no_repeats(&deliveries);
    let (mut counted, mut entries) = (0, 0);
    for entry in deliveries
        .iter()
        .filter(|request| request.accepted)
        .flat_map(|request| &request.entries)
    {
        if entry.field == name {
            counted += entry.changes;
            entries += 1;
            // The creation is the first change, to the value 0.
            assert_eq!(
                change(entry.value.as_deref()) + 1,
                counted,
                "{entry:?} has the wrong number of changes"
            );
        }
    }
    assert_eq!(counted, changes + 1);
    counted - entries
}

fn status_writes() -> Match {
    Match::verb(Verb::Patch)
        .resource("trackedfields")
        .subresource("status")
}

async fn metric(operator: &Operator, name: &str) -> u64 {
    let metrics = operator.metrics().await;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .unwrap();
    line.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn five_thousand_changes_survive_an_outage_of_the_receiver() {
    let bed = bed_on_own_plane("flood").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let huge = |change: u64| format!("{change}{}", "y".repeat(900_000));
    track_map(&bed, "small", "0").await;
    track_map(&bed, "huge", &huge(0)).await;
    let ledger = Ledger::open(&bed);
    let (proxy, file) = bed.through_proxy().await;
    // The apiserver needs longest for a long status, and should spend its time on the changes.
    proxy.inject(
        status_writes(),
        Times::Always,
        Fault::Delay(Duration::from_millis(500)),
    );
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    all_delivered(&bed, "small", "0").await;
    let mark = bed.plane.audit().mark().await.unwrap();
    receiver.refuse().await.unwrap();
    let maps = maps(&bed);
    for change in 1..=CHANGES {
        set_map(&maps, "small", &change.to_string()).await;
        if change % 500 == 0 {
            set_map(&maps, "huge", &huge(change)).await;
            // More than 4 MiB of large objects that wait for a busy CPU are read once, as they are then.
            let recorded = &huge(change)[..1024];
            until("the change is recorded", SOON, async || {
                bed.history_with_last("huge", recorded).await.map(Some)
            })
            .await
            .unwrap();
        }
    }
    let message = bed.event("small", "EntriesMerged").await;
    assert!(
        message.contains("merged waiting changes with their neighbours"),
        "{message}"
    );
    let memory = metric(&operator, "process_resident_memory_bytes").await;
    receiver.accept().await.unwrap();

    all_delivered(&bed, "small", &CHANGES.to_string()).await;
    all_delivered(&bed, "huge", &huge(CHANGES)[..1024]).await;
    let merged = assert_counts(&receiver, "small", CHANGES);
    assert_eq!(
        metric(&operator, "quartermaster_entries_merged_total").await,
        merged
    );
    let deliveries: Vec<_> = deliveries(&receiver)
        .into_iter()
        .flat_map(|request| request.entries)
        .collect();
    let truncated: Vec<_> = deliveries
        .iter()
        .filter(|entry| entry.field == "huge")
        .map(|it| (&*it.action, it.length))
        .collect();
    assert_eq!(
        (truncated.len(), truncated[0], truncated[10]),
        (11, ("Created", Some(900_001)), ("Updated", Some(900_004))),
        "{truncated:?}"
    );

    let largest = ledger.largest("small");
    assert!(
        largest > 100 * KIB,
        "the status never reached its limits: {largest}"
    );
    assert!(largest <= MOST, "{largest} bytes of status");
    assert!(ledger.largest("huge") < 32 * KIB);
    let user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let refused: Vec<_> = bed
        .plane
        .audit()
        .requests(mark)
        .await
        .unwrap()
        .into_iter()
        .filter(|request| {
            request.subject.user == user && request.subject.is_write() && request.code >= 300
        })
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    // Ten times the limit of the outbox, in an unoptimised build: the benches measure the real use.
    assert!(memory < 100 * 1024 * 1024, "{memory} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_changes_survive_rejected_status_writes() {
    let bed = bed_without_controllers("unwritten").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    track_map(&bed, "small", &long(0)).await;
    let ledger = Ledger::open(&bed);
    let (proxy, file) = bed.through_proxy().await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    all_delivered(&bed, "small", &long(0)).await;

    let maps = maps(&bed);
    // The operator writes once without an answer; later writes are rejected.
    let lost = proxy.inject(
        status_writes(),
        Times::First(1),
        Fault::LoseAnswer(Lost::Cut),
    );
    set_map(&maps, "small", &long(1)).await;
    lost.wait_for_hits(1, SOON).await.unwrap();
    let refused = proxy.inject(
        status_writes(),
        Times::Always,
        Fault::status(http::StatusCode::SERVICE_UNAVAILABLE),
    );
    for change in 2..=1000 {
        set_map(&maps, "small", &long(change)).await;
    }
    refused
        .wait_for_hits(refused.hits() + 2, SOON + Duration::from_secs(1))
        .await
        .unwrap();
    refused.cancel();

    all_delivered(&bed, "small", &long(1000)).await;
    let merged = assert_counts(&receiver, "small", 1000);
    assert!(merged > 400, "the bounds were never reached");
    assert_eq!(
        metric(&operator, "quartermaster_entries_merged_total").await,
        merged
    );
    bed.event("small", "EntriesMerged").await;
    let largest = ledger.largest("small");
    assert!(
        largest > 400 * KIB && largest <= MOST,
        "{largest} bytes of status"
    );
}
