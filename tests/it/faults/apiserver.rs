//! The apiserver is killed while fields change.

use std::collections::HashMap;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use qm_api::TrackedField;
use serde_json::json;
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::deliveries::deliveries;
use super::ledger::Ledger;
use super::{assert_no_repeats, assert_order, bed_on_own_plane, caught_up};
use crate::support::{Operator, SOON, Settings};

const FIELDS: usize = 10;
const ROUNDS: i32 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn changes_survive_restarts_of_the_apiserver_under_load() {
    let bed = bed_on_own_plane("apiserver").await;
    let receiver = Receiver::start().unwrap();
    for point in ["a", "b"] {
        bed.webhook(point, &format!("{}/{point}", receiver.url()))
            .await;
    }
    let names: Vec<String> = (0..FIELDS).map(|field| format!("field-{field}")).collect();
    for (number, name) in names.iter().enumerate() {
        bed.deployment(name, 1).await;
        bed.track(
            name,
            "Deployment",
            name,
            "replicas",
            if number % 2 == 0 { "a" } else { "b" },
        )
        .await;
        // The test's own watch is cut with all others: the status must still hold the entries that it misses.
        bed.patch::<TrackedField>(name, json!({ "spec": { "historyLimit": 200 } }))
            .await;
    }
    let ledger = Ledger::open(&bed);
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let (done, mut rounds) = tokio::sync::watch::channel(0);
    let writes = async {
        for round in 1..=ROUNDS {
            for name in &names {
                // Each write is retried until it succeeds: while the apiserver is down nobody can change anything.
                until("the change is written", SOON, async || {
                    let patch = Patch::Merge(json!({ "spec": { "replicas": 1 + round } }));
                    bed.api::<Deployment>()
                        .patch(name, &PatchParams::default(), &patch)
                        .await?;
                    Ok(Some(()))
                })
                .await
                .unwrap();
            }
            done.send_replace(round);
        }
    };
    let kills = async {
        for kill in 1..=3 {
            rounds
                .wait_for(|round| *round >= kill * ROUNDS / 4)
                .await
                .unwrap();
            bed.plane.kill_apiserver().unwrap();
            assert_eq!(
                operator.probe("livez").await.unwrap().0,
                200,
                "the operator survives the outage of the apiserver"
            );
            bed.plane.start_apiserver().await.unwrap();
        }
    };
    tokio::join!(writes, kills);
    let newest: HashMap<_, _> = names
        .iter()
        .map(|name| (name.clone(), (1 + ROUNDS).to_string()))
        .collect();
    caught_up(&bed, &ledger, &receiver, &newest).await;
    let deliveries = deliveries(&receiver);
    assert_order(&ledger, &deliveries);
    assert_no_repeats(&deliveries);
    assert!(
        operator.child().ended().unwrap().is_none(),
        "the operator never exited"
    );
    // No failed try leaves a trace: the operator works as before.
    bed.scale(&names[0], 1).await;
    let prompt = receiver.wait_for(SOON, |requests| {
        requests
            .last()
            .is_some_and(|request| request.json().unwrap()["value"] == "1")
    });
    prompt.await.unwrap();
}
