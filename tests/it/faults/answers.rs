//! Lost answers of the apiserver, rejections, and conflicts: nothing is lost, sent twice or recorded twice.

use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use qm_api::TrackedField;
use serde_json::json;
use testbed::proxy::{ApiErrorResponse, Fault, Lost, Match, Times, Verb};
use testbed::wait::until;

use super::deliveries::deliveries;
use super::{Scene, scene};
use crate::support::SOON;

/// Returns every way in which a request can fail.
fn faults() -> Vec<Fault> {
    let mut faults = vec![
        Fault::Cut,
        Fault::LoseAnswer(Lost::Cut),
        Fault::LoseAnswer(Lost::Hang),
        Fault::LoseAnswer(Lost::Answer(StatusCode::CONFLICT.into())),
        Fault::LoseAnswer(Lost::Answer(StatusCode::GATEWAY_TIMEOUT.into())),
        Fault::Answer(ApiErrorResponse {
            retry_after: Some(1),
            ..StatusCode::TOO_MANY_REQUESTS.into()
        }),
    ];
    faults.extend(
        [401, 403, 409, 500, 503, 504]
            .map(|code| Fault::status(StatusCode::from_u16(code).unwrap())),
    );
    faults
}

fn status_writes(resource: &str) -> Match {
    Match::verb(Verb::Patch)
        .resource(resource)
        .subresource("status")
}

impl Scene {
    /// Asserts that every entry that a status ever held was sent once, in order, and nothing else.
    async fn assert_sent_once(&self) {
        until("every entry is sent", SOON, async || {
            Ok(self
                .ledger
                .undelivered(&deliveries(&self.receiver))
                .is_empty()
                .then_some(()))
        })
        .await
        .unwrap();
        self.assert_sent_in_order();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_sent_once_after_any_fault_of_a_status_write() {
    let scene = scene("answers", &["web"], &["--api-timeout=1s"]).await;
    let mut replicas = 1;
    let mut expected = vec![("Created", "1".to_owned())];
    // The first write after a change records Pending, the second Delivered.
    for times in [Times::Nth(1), Times::Nth(2), Times::First(4)] {
        for fault in faults() {
            replicas += 1;
            let order = scene
                .proxy
                .inject(status_writes("trackedfields"), times, fault);
            scene.bed.scale("web", replicas).await;
            expected.push(("Updated", replicas.to_string()));
            let history: Vec<_> = expected
                .iter()
                .map(|(action, value)| (*action, Some(value.as_str())))
                .collect();
            scene.bed.delivered("web", &history).await;
            assert!(order.hits() > 0, "the fault never happened");
            order.cancel();
        }
    }
    scene.assert_sent_once().await;
}

/// Each entry has another object than the one before, so versions do not tell what is recorded already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_survive_lost_answers_while_the_target_is_recreated() {
    let scene = scene("anew", &["web"], &[]).await;
    let bed = &scene.bed;
    let mut expected = vec![("Created", Some("1"))];
    for fault in [
        Fault::LoseAnswer(Lost::Cut),
        Fault::LoseAnswer(Lost::Answer(StatusCode::CONFLICT.into())),
    ] {
        // All changes come at once, so that one write records a deletion and the changes around it.
        let frozen = scene.proxy.freeze(Match::watch("deployments"));
        bed.scale("web", 2).await;
        bed.delete::<Deployment>("web").await;
        bed.deployment("web", 1).await;
        bed.scale("web", 3).await;
        frozen.wait_for_hits(4, SOON).await.unwrap();
        let lost = scene
            .proxy
            .inject(status_writes("trackedfields"), Times::First(4), fault);
        frozen.cancel();
        expected.extend([
            ("Updated", Some("2")),
            ("Deleted", None),
            ("Created", Some("1")),
            ("Updated", Some("3")),
        ]);
        bed.delivered("web", &expected).await;
        lost.wait_for_hits(2, SOON).await.unwrap();
        lost.cancel();
    }
    scene.assert_sent_once().await;
}

/// Scales `web` twice while its status cannot be written, and then tracks `field`, which has this value.
async fn respec_with_unrecorded_changes(name: &str, field: &str, value: Option<&str>) {
    let scene = scene(name, &["web", "marker"], &[]).await;
    let bed = &scene.bed;
    let refusal = Fault::status(StatusCode::SERVICE_UNAVAILABLE);
    let refused = scene.proxy.inject(
        status_writes("trackedfields").name("web"),
        Times::Always,
        refusal,
    );
    bed.scale("web", 2).await;
    bed.scale("web", 3).await;
    bed.scale("marker", 2).await;
    bed.delivered("marker", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    refused.wait_for_hits(1, SOON).await.unwrap();
    bed.patch::<TrackedField>("web", json!({ "spec": { "field": field } }))
        .await;
    refused.cancel();
    let mut expected = vec![
        ("Created", Some("1")),
        ("Updated", Some("2")),
        ("Updated", Some("3")),
    ];
    expected.extend(value.map(|value| ("Created", Some(value))));
    bed.delivered("web", &expected).await;
    scene.assert_sent_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrecorded_change_outlives_a_change_of_the_spec() {
    respec_with_unrecorded_changes("respec", "image", Some("nginx:latest")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrecorded_change_outlives_the_end_of_tracking() {
    respec_with_unrecorded_changes("untracked", "{.spec[}", None).await;
}

/// Neither the cache nor the answers show what was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_survive_lost_answers_while_the_cache_lags() {
    let scene = scene("lags", &["web"], &[]).await;
    let mut expected = vec![("Created", "1".to_owned())];
    let frozen = scene.proxy.freeze(Match::watch("trackedfields"));
    for replicas in 2..=5 {
        let lost = scene.proxy.inject(
            status_writes("trackedfields"),
            Times::First(1),
            Fault::LoseAnswer(Lost::Cut),
        );
        scene.bed.scale("web", replicas).await;
        expected.push(("Updated", replicas.to_string()));
        let history: Vec<_> = expected
            .iter()
            .map(|(action, value)| (*action, Some(value.as_str())))
            .collect();
        scene.bed.delivered("web", &history).await;
        lost.wait_for_hits(1, SOON).await.unwrap();
        lost.cancel();
    }
    frozen.cancel();
    scene.bed.scale("web", 9).await;
    expected.push(("Updated", "9".to_owned()));
    let history: Vec<_> = expected
        .iter()
        .map(|(action, value)| (*action, Some(value.as_str())))
        .collect();
    scene.bed.delivered("web", &history).await;
    scene.assert_sent_once().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_message_is_sent_once_after_any_fault_of_the_status() {
    let scene = scene("tested", &["web"], &["--api-timeout=1s"]).await;
    for (number, fault) in faults().into_iter().enumerate() {
        let name = format!("hook-{number}");
        let order = scene.proxy.inject(
            status_writes("contactpoints").name(&name),
            Times::First(2),
            fault,
        );
        scene
            .bed
            .webhook(&name, &format!("{}/{name}", scene.receiver.url()))
            .await;
        scene.bed.ready(&name).await;
        assert!(order.hits() > 0, "the fault never happened");
        order.cancel();
        // Entries of fields there follow the test message, which was sent once.
        let field = scene
            .bed
            .track(&name, "Deployment", "web", "replicas", &name)
            .await;
        scene
            .bed
            .delivered(&field.metadata.name.unwrap(), &[("Created", Some("1"))])
            .await;
        let path = format!("/{name}");
        let requests = scene
            .receiver
            .requests()
            .into_iter()
            .filter(|request| request.path == path)
            .count();
        assert_eq!(requests, 2, "one test message and one entry");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritable_status_is_retried_with_backoff() {
    const WINDOW: Duration = Duration::from_secs(5);
    let scene = scene("never", &["web"], &["--backoff-max=5m"]).await;
    let mut replicas = 1;
    let mut expected = vec!["1".to_owned()];
    for code in [
        StatusCode::CONFLICT,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::FORBIDDEN,
    ] {
        replicas += 1;
        let refused = scene.proxy.inject(
            status_writes("trackedfields"),
            Times::Always,
            Fault::status(code),
        );
        scene.bed.scale("web", replicas).await;
        expected.push(replicas.to_string());
        refused.wait_for_hits(3, SOON).await.unwrap();
        tokio::time::sleep(WINDOW).await;
        // The backoff begins at 50 ms and doubles; each reconcile after a conflict has up to four tries.
        assert!(refused.hits() <= 40, "{code}: {} tries", refused.hits());
        assert_eq!(scene.operator.probe("livez").await.unwrap().0, 200);
        refused.cancel();
        let requested = json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": code.as_str() } } });
        scene.bed.patch::<TrackedField>("web", requested).await;
        let history: Vec<_> = expected.iter().map(|value| Some(value.as_str())).collect();
        scene
            .bed
            .until("web", "the message arrives", |field: &TrackedField| {
                let entries = field.history().unwrap();
                entries
                    .iter()
                    .map(|entry| entry.value.as_deref())
                    .eq(history.iter().copied())
            })
            .await;
    }
    scene.assert_sent_once().await;
}
