//! Faults in watches.

use super::*;

#[tokio::test]
async fn frozen_watch_holds_events_until_thawed() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let mut watch = client.watch().await;
        let mut other = client.watch().await;
        upstream.send_event("ADDED", "one");
        assert_eq!(watch.name().await, "one");
        assert_eq!(other.name().await, "one");
        assert_eq!(proxy.running_watches(&Match::watch("pods")), 2);

        let elsewhere = proxy.freeze(Match::watch("services"));
        let frozen = proxy.freeze(Match::watch("pods"));
        upstream.send_event("MODIFIED", "two");
        upstream.send_event("MODIFIED", "three");
        upstream.send_event(BOOKMARK, "");
        let end = json!({ "metadata": { "name": "end", "annotations": { LIST_END: "true" } } });
        upstream.send_object(BOOKMARK, &end);
        upstream.send_event("MODIFIED", "four");
        frozen.wait_for_hits(8, SOON).await.unwrap();
        // Other requests still work.
        assert_eq!(client.get(PODS).await.unwrap().status(), 200);
        let quiet = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
        assert!(quiet.is_err(), "{quiet:?}");
        frozen.cancel();
        for name in ["two", "three", "", "end", "four"] {
            assert_eq!(
                (watch.name().await, other.name().await),
                (name.to_owned(), name.to_owned())
            );
        }
        assert_eq!(
            frozen.hits(),
            8,
            "only the bookmark that ends a list is a hit"
        );
        assert_eq!(elsewhere.hits(), 0);
        drop((watch, other));
        let deadline = Instant::now() + SOON;
        while proxy.running_watches(&Match::any()) > 0 {
            assert!(Instant::now() < deadline, "a watch outlives its client");
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn hidden_events_are_dropped() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let hiding = proxy.hide(Match::watch("pods"), |event| {
            event.kind == "DELETED" || event.name == "b"
        });
        let mut watch = client.watch().await;
        for (kind, name) in [
            ("ADDED", "a"),
            ("ADDED", "b"),
            ("DELETED", "a"),
            ("ADDED", "c"),
        ] {
            upstream.send_event(kind, name);
        }
        assert_eq!(
            (watch.name().await, watch.name().await),
            ("a".to_owned(), "c".to_owned())
        );
        assert_eq!(hiding.hits(), 2);
        hiding.cancel();
        upstream.send_event("ADDED", "b");
        assert_eq!(watch.name().await, "b");
    })
    .await;
}

#[tokio::test]
async fn watch_ends_cleanly_midway_or_with_410() {
    both(async |builder| {
        let (upstream, proxy, client) = start(builder);
        let pods = Match::watch("pods");
        let mut watch = client.watch().await;
        assert_eq!(
            proxy.end_watches(&Match::watch("services"), Ending::Clean),
            0
        );
        assert_eq!(proxy.end_watches(&pods, Ending::Clean), 1);
        assert_eq!(watch.next().await.unwrap(), Value::Null);

        let mut watch = client.watch().await;
        assert_eq!(proxy.end_watches(&pods, Ending::MidEvent), 1);
        assert!(watch.next().await.is_err());
        assert!(
            watch.1.starts_with(b"{\"type\":\"MODIFIED\""),
            "{:?}",
            watch.1
        );

        let mut watch = client.watch().await;
        upstream.send_event("ADDED", "one");
        assert_eq!(watch.name().await, "one");
        assert_eq!(proxy.end_watches(&pods, Ending::Gone), 1);
        let error = watch.next().await.unwrap();
        assert_eq!(
            (&error["type"], &error["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
        assert_eq!(watch.next().await.unwrap(), Value::Null);

        let before = upstream.received();
        proxy.inject(Match::any(), Times::First(2), Fault::Gone);
        let mut watch = client.watch().await;
        assert_eq!(watch.next().await.unwrap()["object"]["reason"], "Expired");
        assert_eq!(watch.next().await.unwrap(), Value::Null);
        assert_eq!(client.get(PODS).await.unwrap().status(), 410);
        assert_eq!(upstream.received(), before);
    })
    .await;
}
