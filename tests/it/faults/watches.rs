//! Watches that end, and missing events.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use qm_api::{ContactPoint, TrackedField};
use testbed::proxy::{BOOKMARK, Ending, Fault, Match, Point, Seen, Then, Times, Verb};
use testbed::wait::until;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Scene, caught_up, scene};
use crate::support::SOON;

impl Scene {
    /// Ends the watch of the Deployments and waits until there is a new one.
    async fn end(&self, ending: Ending) {
        self.watches().await;
        assert_eq!(
            self.proxy.end_watches(&Match::watch("deployments"), ending),
            1
        );
        self.watches().await;
    }

    /// Waits until one watch of the Deployments runs: a requested watch may not be answered yet.
    async fn watches(&self) {
        let one = until("one watch of Deployments runs", SOON, async || {
            Ok((self.proxy.running_watches(&Match::watch("deployments")) == 1).then_some(()))
        });
        one.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_watch_misses_nothing() {
    let scene = scene("resumed", &["web"], &[]).await;
    let mut expected = vec!["1".to_owned()];
    let writes = async {
        for replicas in (2..=3).cycle().take(300) {
            scene.bed.scale("web", replicas).await;
        }
    };
    let cuts = async {
        for ending in [Ending::Clean, Ending::MidEvent]
            .into_iter()
            .cycle()
            .take(10)
        {
            scene.end(ending).await;
        }
    };
    tokio::join!(writes, cuts);
    expected.extend(
        (2..=3)
            .cycle()
            .take(300)
            .map(|replicas| replicas.to_string()),
    );
    caught_up(
        &scene.bed,
        &scene.ledger,
        &scene.receiver,
        &HashMap::from([("web".into(), "3".into())]),
    )
    .await;
    let values: Vec<_> = scene.ledger.fields()["web"]
        .iter()
        .filter_map(|entry| entry.value.clone())
        .collect();
    assert_eq!(values, expected, "every change is an entry");
    scene.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gap_of_a_watch_gives_one_entry_for_the_net_change() {
    let scene = scene("gap", &["web"], &[]).await;
    let bed = &scene.bed;
    let mut expected = vec![("Created", Some("1"))];
    // A -> B -> C with B never seen; a change and its reversal; a deletion with a recreation; a deletion.
    for step in ["net", "back", "anew", "gone"] {
        let hidden = scene
            .proxy
            .hide(Match::watch("deployments"), |event| event.kind != BOOKMARK);
        match step {
            "net" => {
                bed.scale("web", 2).await;
                bed.scale("web", 5).await;
                expected.push(("Updated", Some("5")));
                hidden.wait_for_hits(2, SOON).await.unwrap();
            }
            "back" => {
                bed.scale("web", 6).await;
                bed.scale("web", 5).await;
                hidden.wait_for_hits(2, SOON).await.unwrap();
            }
            "anew" => {
                bed.delete::<Deployment>("web").await;
                bed.deployment("web", 5).await;
                expected.push(("Created", Some("5")));
                hidden.wait_for_hits(2, SOON).await.unwrap();
            }
            _ => {
                bed.scale("web", 7).await;
                bed.delete::<Deployment>("web").await;
                expected.push(("Deleted", None));
                hidden.wait_for_hits(2, SOON).await.unwrap();
            }
        }
        hidden.cancel();
        scene.end(Ending::Gone).await;
        bed.delivered("web", &expected).await;
        if step != "gone" {
            // A marker: by its arrival the operator has processed the list.
            bed.scale("web", 9).await;
            expected.push(("Updated", Some("9")));
            bed.delivered("web", &expected).await;
            bed.scale("web", 5).await;
            expected.push(("Updated", Some("5")));
            bed.delivered("web", &expected).await;
        }
    }
    scene.assert_sent_in_order();
}

/// A `TrackedField` whose deletion the watch has yet to show cannot be annotated, which is no failure to retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_to_a_deleted_field_is_not_retried() {
    let scene = scene("late-deletion", &["web", "other"], &[]).await;
    let bed = &scene.bed;
    let late = scene.proxy.freeze(Match::watch("trackedfields"));
    bed.delete::<TrackedField>("web").await;
    late.wait_for_hits(1, SOON).await.unwrap();
    scene.proxy.forget();
    bed.delete::<ContactPoint>("hook").await;
    // A marker: retries would come before.
    bed.waiting("other", "ContactPointNotFound").await;
    bed.webhook("hook", &scene.receiver.url()).await;
    bed.scale("other", 2).await;
    bed.delivered("other", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    let annotated = Match::verb(Verb::Patch)
        .resource("trackedfields")
        .subresource("")
        .name("web");
    assert!(scene.proxy.count(&annotated) > 0);
    let metrics = scene.operator.metrics().await;
    let errors = "controller_runtime_reconcile_errors_total{controller=\"trackedfield\"}";
    let errors = metrics.lines().find(|line| line.starts_with(errors));
    assert!(errors.is_none_or(|line| line.ends_with(" 0")), "{errors:?}");
    late.cancel();
}

/// A target that is tracked before it exists is read with the result 404, which arrives late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_older_than_the_watch_deletes_nothing() {
    let scene = scene("overtaken", &["web"], &[]).await;
    let bed = &scene.bed;
    let (requested, answered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let late = Fault::hook(Point::AfterApplied, {
        let (requested, answered) = (Arc::clone(&requested), Arc::clone(&answered));
        move |_| {
            let (requested, answered) = (Arc::clone(&requested), Arc::clone(&answered));
            async move {
                requested.notify_one();
                answered.notified().await;
                Then::GoOn
            }
        }
    });
    scene.proxy.inject(
        Match::verb(Verb::Get).resource("deployments").name("late"),
        Times::First(1),
        late,
    );
    bed.track("late", "Deployment", "late", "replicas", "hook")
        .await;
    timeout(SOON, requested.notified())
        .await
        .expect("a target that joins a running watch is read");
    bed.deployment("late", 1).await;
    // A marker: by its arrival the operator has processed the earlier watch events.
    bed.scale("web", 2).await;
    bed.delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    answered.notify_one();
    until("the target is read once more", SOON, async || {
        Ok((scene
            .proxy
            .count(&Match::verb(Verb::Get).resource("deployments").name("late"))
            == 2)
            .then_some(()))
    })
    .await
    .unwrap();
    bed.scale("late", 2).await;
    bed.delivered("late", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.assert_sent_in_order();
}

/// An apiserver that lags behind the others must not show an object of the operator in a state before the operator's
/// own write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_objects_are_listed_up_to_date() {
    let scene = scene("newest", &["web"], &[]).await;
    let requested = |resource: &'static str| {
        let seen = scene.proxy.requests();
        let of = move |seen: &Arc<Seen>| {
            seen.request.resource == resource && seen.request.name.is_none()
        };
        seen.iter()
            .filter(|seen| of(seen))
            .map(|seen| (seen.request.verb, seen.request.query.clone()))
            .collect::<Vec<_>>()
    };
    for resource in ["contactpoints", "trackedfields"] {
        // Once for the start, and once more after the watch was cut.
        for lists in 1..=2 {
            let listed = until(
                format!("{resource} are listed {lists} times, then watched"),
                SOON,
                async || {
                    let requested = requested(resource);
                    let all = requested
                        .iter()
                        .filter(|(verb, _)| *verb == Verb::List)
                        .count();
                    Ok(
                        (all == lists && scene.proxy.running_watches(&Match::watch(resource)) == 1)
                            .then_some(requested),
                    )
                },
            );
            for (verb, query) in listed.await.unwrap() {
                let newest = verb != Verb::List || !query.contains("resourceVersion");
                assert!(
                    newest && !query.contains("sendInitialEvents"),
                    "{verb:?} {resource}?{query}"
                );
            }
            scene
                .proxy
                .end_watches(&Match::watch(resource), Ending::Gone);
        }
    }
    scene.bed.scale("web", 2).await;
    scene
        .bed
        .delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    scene.assert_sent_in_order();
}
