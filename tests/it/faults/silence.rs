//! An apiserver that does not answer, and stalled watches.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use testbed::proxy::{BOOKMARK, Ending, Fault, Match, Times, Verb};
use testbed::wait::until;
use tokio::sync::Semaphore;

use super::{Scene, scene};
use crate::support::{Operator, SOON, Settings};

impl Scene {
    async fn assert_alive(&self) {
        let (code, text) = self.operator.probe("livez").await.unwrap();
        assert_eq!(code, 200, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_reconcile_is_cancelled_and_blocks_no_other() {
    let scene = scene(
        "hangs",
        &["web", "other"],
        &["--reconcile-timeout=2s", "--api-timeout=1h"],
    )
    .await;
    let writes = Match::verb(Verb::Patch)
        .resource("trackedfields")
        .subresource("status")
        .name("web");
    let hanging = scene.proxy.inject(writes, Times::Always, Fault::Hang);
    scene.bed.scale("web", 2).await;
    hanging.wait_for_hits(1, SOON).await.unwrap();
    scene.bed.scale("other", 2).await;
    scene
        .bed
        .delivered("other", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    // Longer than a hang that the operator tolerates: each hanging reconcile is cancelled before.
    for hits in 2..=4 {
        hanging.wait_for_hits(hits, SOON).await.unwrap();
        scene.assert_alive().await;
    }
    hanging.cancel();
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_answer_are_retried() {
    let scene = scene("mute", &["web", "other"], &["--api-timeout=1s"]).await;
    let hanging = scene.proxy.inject(Match::any(), Times::Always, Fault::Hang);
    scene.bed.scale("web", 2).await;
    hanging.wait_for_hits(3, SOON).await.unwrap();
    // Now the watches, too, get no answer.
    scene.proxy.end_watches(&Match::any(), Ending::MidEvent);
    let watches = scene.proxy.count(&Match::watch("deployments"));
    scene.bed.scale("other", 2).await;
    let retried = until("the watch is requested again and again", SOON, async || {
        Ok((scene.proxy.count(&Match::watch("deployments")) > watches + 1).then_some(()))
    });
    retried.await.unwrap();
    scene.assert_alive().await;
    hanging.cancel();
    for name in ["web", "other"] {
        scene
            .bed
            .delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
    }
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_without_renewals_exits_and_another_takes_the_lease() {
    let elect = [
        "--leader-elect",
        "--leader-elect-lease-duration=20s",
        "--leader-elect-renew-deadline=15s",
    ];
    let mut scene = scene("lease", &["web", "other"], &elect).await;
    let blocked = scene.proxy.inject(
        Match::writes().resource("leases"),
        Times::Always,
        Fault::Hang,
    );
    let ended = scene.operator.child().wait(SOON).await.unwrap();
    assert_eq!(
        ended.code(),
        Some(1),
        "{}",
        scene.operator.child().log_tail()
    );
    assert!(blocked.hits() > 0, "the process exited for another reason");
    scene.bed.scale("web", 2).await;
    // This operator reaches the apiserver directly.
    let _next = Operator::start(&scene.bed, Settings::default().leader_election(20)).await;
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_watches_are_counted_and_restarted() {
    let scene = scene("silent", &["web", "other"], &["--watch-timeout=2s"]).await;
    // The apiserver ends each watch after two seconds, and the operator does not notice.
    let frozen = scene.proxy.freeze_running(Match::verb(Verb::Watch));
    scene.bed.scale("web", 2).await;
    scene.bed.deployment("new", 1).await;
    scene
        .bed
        .track("new", "Deployment", "new", "replicas", "hook")
        .await;
    scene
        .bed
        .webhook("new", &format!("{}/new", scene.receiver.url()))
        .await;
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.bed.delivered("new", &[("Created", Some("1"))]).await;
    scene.bed.ready("new").await;
    assert!(frozen.hits() > 0, "they were never silent");
    let counted = until("a silent watch counts as failed", SOON, async || {
        let metrics = scene.operator.try_metrics().await?;
        let failures = "quartermaster_watch_failures_total{";
        let mut failures = metrics.lines().filter(|line| line.starts_with(failures));
        Ok(failures.any(|line| !line.ends_with(" 0")).then_some(()))
    });
    counted.await.unwrap();
    scene.assert_sent_in_order();
}

/// A read that disagrees with the watch wins only after five seconds without a watch event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_that_lags_behind_reads_loses_no_value() {
    let scene = scene("lags", &["web"], &["--sync-period=1s"]).await;
    let allowed = Arc::new(Semaphore::new(0));
    let held = Fault::hold(&allowed);
    let reads = Match::verb(Verb::Get).resource("deployments").name("web");
    let reads = scene.proxy.inject(reads, Times::Always, held);
    let frozen = scene.proxy.freeze(Match::watch("deployments"));
    for replicas in [2, 3] {
        scene.bed.scale("web", replicas).await;
    }
    frozen.wait_for_hits(2, SOON).await.unwrap();
    reads.wait_for_hits(1, SOON).await.unwrap();
    allowed.add_permits(1);
    // The operator has processed the first answer. The second one comes after the watch has caught up.
    reads.wait_for_hits(2, SOON).await.unwrap();
    frozen.cancel();
    let mut expected = vec![("Created", Some("1"))];
    expected.extend([("Updated", Some("2")), ("Updated", Some("3"))]);
    scene.bed.delivered("web", &expected).await;
    reads.cancel();
    allowed.add_permits(Semaphore::MAX_PERMITS);
    // The next value shows that the later answers changed nothing.
    scene.bed.scale("web", 4).await;
    expected.push(("Updated", Some("4")));
    scene.bed.delivered("web", &expected).await;
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_missing_from_a_watch_is_found_in_time() {
    let scene = scene("hidden", &["web", "other"], &["--sync-period=3s"]).await;
    let watches = Match::watch("deployments");
    let begun = scene.proxy.count(&watches);
    let hidden = scene
        .proxy
        .hide(watches.clone(), |event| event.kind != BOOKMARK);
    scene.bed.scale("web", 2).await;
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.bed.delete::<Deployment>("web").await;
    scene
        .bed
        .delivered(
            "web",
            &[
                ("Created", Some("1")),
                ("Updated", Some("2")),
                ("Deleted", None),
            ],
        )
        .await;
    hidden.wait_for_hits(2, SOON).await.unwrap();
    assert_eq!(
        (hidden.hits(), scene.proxy.count(&watches)),
        (2, begun),
        "no watch and no list showed it"
    );
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_list_is_restarted() {
    let scene = scene("gone", &["web", "other"], &[]).await;
    let watches = Match::verb(Verb::Watch);
    let expired = scene
        .proxy
        .inject(watches.clone(), Times::First(9), Fault::Gone);
    let hidden = scene
        .proxy
        .hide(watches.clone(), |event| event.kind != BOOKMARK);
    for replicas in [2, 3] {
        scene.bed.scale("web", replicas).await;
    }
    hidden.wait_for_hits(2, SOON).await.unwrap();
    hidden.cancel();
    scene.proxy.end_watches(&watches, Ending::Gone);
    expired.wait_for_hits(9, SOON).await.unwrap();
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("3"))])
        .await;
    scene
        .bed
        .delivered("other", &[("Created", Some("1"))])
        .await;
    scene.assert_sent_in_order();
}
