#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::stream::tests::{FakeResponse, Log, WatchRequest, api, object};
use super::*;
use crate::health::Probes;
use crate::testing::{PROGRAM, Widget};

/// Index that keeps the keys of objects, but not of those named `other`, and logs each call.
#[derive(Default)]
struct Names {
    kept: Mutex<BTreeSet<ObjectKey>>,
    calls: Mutex<Vec<String>>,
}

impl Names {
    fn log(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    /// Returns the calls since the last call of this function.
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Index<Widget> for Names {
    fn apply(&self, object: Widget) -> bool {
        self.log(format!("+{}", object.name_any()));
        let is_kept = object.name_any() != "other";
        if is_kept {
            self.kept.lock().unwrap().insert(ObjectKey::of(&object));
        }
        is_kept
    }

    fn delete(&self, key: &ObjectKey, last: Option<Widget>) {
        self.kept.lock().unwrap().remove(key);
        let by = if last.is_some() { "an event" } else { "a list" };
        self.log(format!("-{key} by {by}"));
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let kept = self.kept.lock().unwrap();
        kept.iter()
            .filter(|key| key.is_in(namespace))
            .cloned()
            .collect()
    }

    fn phase(&self, namespace: Option<&str>, phase: &WatchPhase) {
        self.log(format!("{} {phase:?}", namespace.unwrap_or("cluster")));
    }
}

struct Scene {
    names: Arc<Names>,
    sync: SyncState,
    commands: watch::Sender<WatchCommand>,
    availability: Availability,
}

/// Runs the watches of these namespaces.
fn run(apis: Vec<(Option<&str>, Api<Widget>)>) -> Scene {
    let (names, sync) = (Arc::<Names>::default(), SyncState::default());
    let commands = watch::Sender::<WatchCommand>::default();
    let availability = Availability::default();
    let watch = ResourceWatch {
        resource: ResourceName::from(&ApiResource::erase::<Widget>(&())),
        apis: apis
            .into_iter()
            .map(|(namespace, api)| (namespace.map(str::to_owned), api))
            .collect(),
        config: watcher::Config::default(),
        index: Arc::clone(&names) as Arc<dyn Index<Widget>>,
        sync: sync.clone(),
        metrics: Metrics::new(&PROGRAM),
        availability: availability.clone(),
        purpose: Purpose::Own,
        watchdog: Probes::new().watchdog("widgets", Duration::from_mins(1)),
    };
    tokio::spawn(watch.run(commands.subscribe()));
    Scene {
        names,
        sync,
        commands,
        availability,
    }
}

/// Returns an API whose lists show these names one after the other, and whose watch shows these events.
fn lists(names: &'static [&'static [&'static str]], events: Vec<Value>) -> Api<Widget> {
    let answer = move |request, before: usize| -> FakeResponse {
        let shown = match request {
            WatchRequest::List => names[before].iter().map(|name| object(name, "5")).collect(),
            _ => events.clone(),
        };
        (200, shown)
    };
    api(answer).0
}

const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn list_deletes_the_kept_objects_that_it_does_not_show() {
    let apis = vec![(Some("a"), lists(&[&["x", "other"], &["y"]], vec![]))];
    let scene = run(apis);
    scene.sync.synced().await;
    let elsewhere = ObjectKey::new("b", "x");
    scene.names.kept.lock().unwrap().insert(elsewhere.clone());
    assert_eq!(
        scene.names.calls(),
        ["a Listing { relist: 0 }", "+x", "+other", "a Listed"]
    );
    scene.commands.send_modify(|command| command.relist = 1);
    sleep(SOON).await;
    assert_eq!(
        scene.names.calls(),
        [
            "a Listing { relist: 1 }",
            "+y",
            "-a/x by a list",
            "a Listed"
        ]
    );
    assert_eq!(scene.sync.synced_relist(), Some(1));
    assert_eq!(scene.names.keys(Some("b")), [elsewhere]);
}

#[tokio::test(start_paused = true)]
async fn events_apply_and_delete() {
    let event = |kind: &str, name: &str| json!({ "type": kind, "object": object(name, "6") });
    let events = vec![event("ADDED", "y"), event("DELETED", "x")];
    let scene = run(vec![(None, lists(&[&["x"]], events))]);
    sleep(SOON).await;
    let all = scene.names.calls();
    assert_eq!(
        all,
        [
            "cluster Listing { relist: 0 }",
            "+x",
            "cluster Listed",
            "+y",
            "cluster Recovered",
            "-a/x by an event"
        ]
    );
}

/// Returns an API that denies three lists before one shows `y`.
fn denied_three_times() -> (Api<Widget>, Log) {
    api(|request, before| match (request, before) {
        (WatchRequest::List, 0..=2) => (403, vec![]),
        (WatchRequest::List, _) => (200, vec![object("y", "5")]),
        _ => (200, vec![]),
    })
}

#[tokio::test(start_paused = true)]
async fn denied_namespace_does_not_block_the_others() {
    let (denied, _) = denied_three_times();
    let scene = run(vec![
        (Some("a"), lists(&[&["x"]], vec![])),
        (Some("b"), denied),
    ]);
    let sync = &scene.sync;
    assert_eq!(sync.synced_relist(), None, "before the watch runs");
    sync.synced().await;
    assert_eq!(sync.unlisted(), [(Some("b".into()), "no".into())].into());
    assert_eq!(
        (sync.is_listed(), sync.denied()),
        (false, Some("no".into()))
    );
    while !sync.is_listed() {
        assert_eq!(
            sync.synced_relist(),
            Some(0),
            "the namespace stays denied until its list is complete"
        );
        sleep(SOON).await;
    }
    assert_eq!((sync.unlisted(), sync.denied()), ([].into(), None));
    let calls = scene.names.calls();
    let forbidden = calls
        .iter()
        .filter(|call| *call == "b Failed(Forbidden(\"no\"))");
    assert_eq!(forbidden.count(), 3, "{calls:?}");
}

/// A starting apiserver answers 403 until it has loaded RBAC.
#[tokio::test(start_paused = true)]
async fn starting_apiserver_denies_nothing() {
    let (denied, log) = denied_three_times();
    let scene = run(vec![(None, denied)]);
    scene.availability.end_outage();
    while !scene.sync.is_listed() {
        assert_eq!(scene.sync.denied(), None);
        sleep(SOON).await;
    }
    assert!(log.count(WatchRequest::List) > 3);
    let calls = scene.names.calls();
    assert!(!calls.iter().any(|it| it.contains("Failed")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn listed_namespace_stays_synced_when_its_watch_is_denied() {
    let (denied, _) = api(|request, _| match request {
        WatchRequest::List => (200, vec![]),
        _ => (403, vec![]),
    });
    let scene = run(vec![(None, denied)]);
    scene.sync.synced().await;
    while scene.sync.denied().is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(scene.sync.synced_relist(), Some(0));
    assert!(scene.sync.unlisted().is_empty() && !scene.sync.is_listed());
}

#[tokio::test(start_paused = true)]
async fn stopped_watch_empties_the_index() {
    let scene = run(vec![(None, lists(&[&["x"], &["x"]], vec![]))]);
    scene.sync.synced().await;
    scene.names.calls();
    let stop = |reason: Option<&str>| {
        let stop = reason.map(str::to_owned);
        scene.commands.send_modify(|command| command.stop = stop);
    };
    stop(Some("no CRD"));
    sleep(SOON).await;
    assert_eq!(
        scene.names.calls(),
        ["cluster Stopped(\"no CRD\")", "-a/x by a list"]
    );
    assert_eq!(scene.sync.synced_relist(), None);
    stop(None);
    scene.sync.synced().await;
    assert_eq!(
        scene.names.calls(),
        ["cluster Listing { relist: 0 }", "+x", "cluster Listed"]
    );
}

/// As on shutdown: a task that ends would end the process with an error.
#[tokio::test(start_paused = true)]
async fn watch_continues_without_a_sender_of_commands() {
    let scene = run(vec![(None, lists(&[&["x"]], vec![]))]);
    drop(scene.commands);
    scene.sync.synced().await;
    sleep(SOON).await;
    assert_eq!(scene.names.keys(None), [ObjectKey::new("a", "x")]);
}

#[tokio::test(start_paused = true)]
async fn transient_error_is_no_problem() {
    for (code, expected) in [(503, 0), (429, 0), (500, 1), (404, 1)] {
        let (failing, _) = api(move |request, before| match (request, before) {
            (WatchRequest::List, 0) => (code, vec![]),
            _ => (200, vec![]),
        });
        let scene = run(vec![(None, failing)]);
        scene.sync.synced().await;
        let calls = scene.names.calls();
        let failed = calls.iter().filter(|call| call.contains("Failed"));
        assert_eq!(failed.count(), expected, "{code}: {calls:?}");
    }
}
