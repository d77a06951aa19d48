//! Receivers that hang, break or reject: others are not blocked, nothing is lost, and waiting entries are sent as soon
//! as the receiver recovers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use http::{HeaderValue, StatusCode};
use qm_api::TrackedField;
use qm_api::tracked_field::Delivery;
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::tls::Authority;
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings, accepted, changes};

/// Maximum number of entries in one request.
const MOST: usize = 100;

async fn track_long(bed: &Bed, name: &str, target: &str, point: &str) {
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": target });
    let spec = json!({ "target": target, "contactPoint": point, "field": "replicas", "historyLimit": 200 });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

/// Returns the ids that a receiver got, by `TrackedField`, in order.
fn ids_by_field(receiver: &Receiver) -> BTreeMap<String, Vec<String>> {
    let mut ids = BTreeMap::<String, Vec<String>>::new();
    for change in changes(receiver) {
        let field = change["trackedField"].as_str().unwrap().to_owned();
        ids.entry(field)
            .or_default()
            .push(change["id"].as_str().unwrap().to_owned());
    }
    ids
}

/// Creates a contact point whose receiver has to answer within this many seconds. Other receivers get more time, for
/// slow machines.
async fn webhook_with_timeout(bed: &Bed, name: &str, url: &str, seconds: Option<u32>) {
    let webhook = json!({ "url": url, "timeoutSeconds": seconds });
    bed.point(name, json!({ "type": "Webhook", "webhookSpec": webhook }))
        .await;
}

#[tokio::test]
async fn hanging_receiver_delays_no_other_and_gets_digests_later() {
    const FIELDS: usize = 5;
    const CHANGES: usize = 60;
    let bed = Bed::shared("hangs").await;
    let (slow, quick) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let operator = Operator::start(&bed, Settings::default()).await;
    webhook_with_timeout(&bed, "slow", &slow.url(), Some(2)).await;
    bed.webhook("quick", &quick.url()).await;
    bed.ready("slow").await;
    bed.ready("quick").await;
    slow.always(Reply::hang());
    slow.forget();
    let began = Instant::now();
    for field in 0..FIELDS {
        bed.deployment(&format!("web-{field}"), 0).await;
        track_long(
            &bed,
            &format!("slow-{field}"),
            &format!("web-{field}"),
            "slow",
        )
        .await;
        track_long(
            &bed,
            &format!("quick-{field}"),
            &format!("web-{field}"),
            "quick",
        )
        .await;
        // A change before the first observation would not be recorded.
        for name in [format!("slow-{field}"), format!("quick-{field}")] {
            let seen = |field: &TrackedField| !field.history().unwrap().is_empty();
            bed.until(&name, "the first value", seen).await;
        }
    }
    let changed = (0..FIELDS).map(|field| {
        let bed = &bed;
        async move {
            for replicas in 1..CHANGES {
                bed.scale(&format!("web-{field}"), i32::try_from(replicas).unwrap())
                    .await;
            }
        }
    });
    join_all(changed).await;

    // All entries of the other receiver arrive while this one still hangs.
    let all = |receiver: &Receiver| ids_by_field(receiver).values().map(Vec::len).sum::<usize>();
    quick
        .wait_for(2 * SOON, |_| all(&quick) >= FIELDS * CHANGES)
        .await
        .unwrap();
    assert!(changes(&slow).is_empty());
    let hung = slow.requests();
    assert!(hung.iter().all(|request| request.answered.is_none()));
    // Requests come one at a time, each as long as its timeout and identical, not one for every change.
    let most = began.elapsed().as_secs() / 2 + 1;
    assert!(
        u64::try_from(hung.len()).unwrap() <= most,
        "{} requests where one at a time are {most}",
        hung.len()
    );
    assert!(
        hung.iter().all(|request| request.body == hung[0].body),
        "another request while one hangs"
    );
    let waiting = bed
        .waiting("slow-0", "DeliveryFailing: \"slow\": no answer within 2 s")
        .await;
    assert_eq!(
        format!(
            "DeliveryFailing: {}",
            bed.event("slow-0", "DeliveryFailing").await
        ),
        waiting
    );
    bed.ready("slow").await;
    let pending = format!("quartermaster_entries_pending {}", FIELDS * CHANGES);
    let all_wait = async || {
        Ok(operator
            .metrics()
            .await
            .lines()
            .any(|line| line == pending)
            .then_some(()))
    };
    until(&pending, SOON, all_wait).await.unwrap();

    slow.behave();
    slow.wait_for(SOON, |_| all(&slow) >= FIELDS * CHANGES)
        .await
        .unwrap();
    for field in 0..FIELDS {
        for (point, receiver) in [("slow", &slow), ("quick", &quick)] {
            let name = format!("{point}-{field}");
            let delivered = |field: &TrackedField| {
                let history = field.history().unwrap();
                history.len() == CHANGES
                    && history
                        .iter()
                        .all(|entry| entry.delivery == Some(Delivery::Delivered))
            };
            let history = bed
                .until(&name, "all delivered", delivered)
                .await
                .history()
                .unwrap();
            let ids: Vec<_> = history.into_iter().map(|entry| entry.id.unwrap()).collect();
            assert_eq!(ids_by_field(receiver)[&name], ids, "each once, in order");
        }
        bed.waiting(&format!("slow-{field}"), "").await;
    }
    let sizes: Vec<usize> = accepted(&slow)
        .iter()
        .map(|request| {
            request.json().unwrap()["entries"]
                .as_array()
                .map_or(1, Vec::len)
        })
        .collect();
    assert!(sizes.iter().all(|size| *size <= MOST), "{sizes:?}");
    assert!(
        sizes.len() <= 6,
        "digests, not a request for each: {sizes:?}"
    );
    for request in accepted(&slow) {
        let data = request.json().unwrap();
        let Some(entries) = data["entries"].as_array() else {
            continue;
        };
        assert_eq!(
            request.header("ce-type"),
            Some("dev.quartermaster.trackedfield.digest")
        );
        let ids: Vec<&Value> = entries.iter().map(|entry| &entry["id"]).collect();
        assert_eq!(
            data["ids"].as_array().unwrap().iter().collect::<Vec<_>>(),
            ids
        );
    }
}

/// Hanging receivers delay no other receiver, however many hang and however long.
#[tokio::test]
async fn many_hanging_receivers_delay_no_other() {
    const POINTS: usize = 20;
    let bed = Bed::shared("many").await;
    let (slow, quick) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    // Longer than this test: no hanging request makes way for another.
    let _operator = Operator::start(&bed, Settings::default().flag("--send-timeout=1h")).await;
    slow.always(Reply::hang());
    for point in 0..POINTS {
        bed.webhook(&format!("slow-{point}"), &format!("{}/{point}", slow.url()))
            .await;
    }
    let all = |requests: &[Arc<Request>]| {
        requests
            .iter()
            .map(|request| &request.path)
            .collect::<BTreeSet<_>>()
            .len()
            == POINTS
    };
    slow.wait_for(SOON, all).await.unwrap();
    bed.webhook("quick", &quick.url()).await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "quick")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    assert_eq!(
        slow.requests().len(),
        POINTS,
        "each receiver still hangs in its first request"
    );
}

/// Network errors: each is retried, reported with its cause, and needs no action once it is fixed.
#[tokio::test]
async fn broken_connections_are_reported_and_retried() {
    let bed = Bed::shared("broken").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.deployment("web", 1).await;
    let cases = [
        ("hangs", Some(Reply::hang()), "no answer within 1 s"),
        (
            "slow",
            Some(Reply::ok().after(Duration::from_secs(20))),
            "no answer within 1 s",
        ),
        ("resets", Some(Reply::reset()), "the connection failed"),
        (
            "junk",
            Some(Reply::status(StatusCode::BAD_GATEWAY).body(vec![b'j'; 10 * 1024 * 1024])),
            "(502 jjj",
        ),
        (
            "binary",
            Some(Reply::status(StatusCode::BAD_GATEWAY).body(vec![0xff; 64])),
            "(502 ",
        ),
        ("refuses", None, "cannot connect: "),
    ];
    let scenes =
        cases.map(|(name, reply, expected)| (name, reply, expected, Receiver::start().unwrap()));
    join_all(scenes.iter().map(|(name, reply, expected, receiver)| {
        let bed = &bed;
        async move {
            webhook_with_timeout(
                bed,
                name,
                &receiver.url(),
                expected.contains("within 1 s").then_some(1),
            )
            .await;
            bed.ready(name).await;
            match reply {
                Some(reply) => receiver.always(reply.clone()),
                None => receiver.refuse().await.unwrap(),
            }
            bed.track(name, "Deployment", "web", "replicas", name).await;
            let waiting = bed.waiting(name, "DeliveryFailing: ").await;
            assert!(waiting.contains(expected), "{name}: {waiting}");
            assert!(waiting.len() < 600, "{name}: {} bytes", waiting.len());
            bed.event(name, "DeliveryFailing").await;
            assert!(bed.ready(name).await.status.unwrap().ready);
            receiver.behave();
            if reply.is_none() {
                receiver.accept().await.unwrap();
            }
            bed.delivered(name, &[("Created", Some("1"))]).await;
            bed.waiting(name, "").await;
            // A receiver that answers too late has accepted the entry each time, with the same id.
            let ids: BTreeSet<_> = changes(receiver)
                .iter()
                .map(|change| change["id"].to_string())
                .collect();
            assert_eq!(ids.len(), 1, "{name}");
        }
    }))
    .await;

    // A 2xx answer counts, whatever its body is.
    for (name, reply) in [
        ("good-junk", Reply::junk(10 * 1024 * 1024)),
        ("good-half", Reply::junk(1024 * 1024).cut_midway()),
        ("good-202", Reply::status(StatusCode::ACCEPTED)),
        (
            "good-299",
            Reply::status(StatusCode::from_u16(299).unwrap()),
        ),
    ] {
        let receiver = Receiver::start().unwrap();
        receiver.always(reply);
        bed.webhook(name, &receiver.url()).await;
        bed.track(name, "Deployment", "web", "replicas", name).await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
        assert_eq!(
            receiver.requests().len(),
            2,
            "{name}: the test message and the entry, once"
        );
    }
}

/// The contact point is not tested yet: the condition names the problem, and clears without action.
#[tokio::test]
async fn failed_test_message_is_reported_as_unreachable() {
    let bed = Bed::shared("untested").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let identity = Authority::new("nobody's")
        .unwrap()
        .server(&["127.0.0.1"])
        .unwrap();
    let tls = Receiver::start_tls(&identity, None).unwrap();
    let plain = Receiver::start().unwrap();
    let hangs = Receiver::start().unwrap();
    hangs.always(Reply::hang());
    let cases = [
        ("unknown-authority", tls.url(), "cannot connect: "),
        (
            "tls-to-plain",
            plain.url().replace("http:", "https:"),
            "cannot connect: ",
        ),
        (
            "plain-to-tls",
            tls.url().replace("https:", "http:"),
            "the connection failed",
        ),
        ("hangs", hangs.url(), "no answer within 1 s"),
        (
            "no-such-name",
            "http://receiver.invalid/".to_owned(),
            "cannot connect: ",
        ),
    ];
    for (name, url, expected) in &cases {
        webhook_with_timeout(
            &bed,
            name,
            url,
            expected.contains("within 1 s").then_some(1),
        )
        .await;
    }
    for (name, _, expected) in &cases {
        let point = bed.not_ready(name, "Unreachable").await;
        let (_, message) = crate::support::condition(&point);
        assert!(
            message.contains(expected) && message.ends_with("; the operator retries"),
            "{name}: {message}"
        );
        let status = point.status.unwrap();
        assert!(
            status.initialized && status.last_test.is_none(),
            "{name}: an attempt, but no test"
        );
    }
    hangs.behave();
    bed.ready("hangs").await;
}

/// A webhook's Retry-After delays only its contact point.
#[tokio::test]
async fn retry_after_of_a_webhook_is_kept() {
    let bed = Bed::shared("after").await;
    let (busy, other) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("busy", &busy.url()).await;
    bed.webhook("other", &other.url()).await;
    bed.ready("busy").await;
    bed.ready("other").await;
    let in_three = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(4);
    let date = jiff::fmt::rfc2822::DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&in_three)
        .unwrap();
    let later = |value: &str| {
        let value = HeaderValue::from_str(value).unwrap();
        Reply::status(StatusCode::SERVICE_UNAVAILABLE).header(http::header::RETRY_AFTER, value)
    };
    busy.next(1, later("2"));
    busy.next(1, later(&date));
    bed.deployment("web", 1).await;
    bed.track("busy", "Deployment", "web", "replicas", "busy")
        .await;
    bed.track("other", "Deployment", "web", "replicas", "other")
        .await;
    bed.delivered("other", &[("Created", Some("1"))]).await;
    bed.delivered("busy", &[("Created", Some("1"))]).await;
    let at: Vec<Instant> = busy
        .requests()
        .iter()
        .skip(1)
        .map(|request| request.at)
        .collect();
    assert_eq!(at.len(), 3, "no attempt in between");
    assert!(
        at[1] - at[0] >= Duration::from_secs(2),
        "{:?}",
        at[1] - at[0]
    );
    let arrived = busy.requests()[3].time;
    // The date has whole seconds.
    assert!(
        jiff::Timestamp::try_from(arrived).unwrap().as_second() >= in_three.as_second(),
        "{arrived:?}, {date}"
    );
}

/// The deletion of a `TrackedField` drops its undelivered entries.
#[tokio::test]
async fn entries_of_a_deleted_tracked_field_are_dropped() {
    let bed = Bed::shared("dropped").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.refuse().await.unwrap();
    bed.deployment("web", 1).await;
    for name in ["goes", "stays"] {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.waiting(name, "DeliveryFailing: ").await;
    }
    bed.delete::<TrackedField>("goes").await;
    let pending = async |count: &str| {
        until(format!("pending {count}"), SOON, async || {
            let line = format!("quartermaster_entries_pending {count}");
            Ok(operator
                .metrics()
                .await
                .lines()
                .any(|found| found == line)
                .then_some(()))
        })
        .await
        .unwrap();
    };
    pending("1").await;
    bed.scale("web", 2).await;
    receiver.accept().await.unwrap();
    bed.delivered("stays", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    assert!(
        changes(&receiver)
            .iter()
            .all(|change| change["trackedField"] == "stays")
    );
    pending("0").await;
}
