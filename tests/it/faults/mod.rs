//! Guarantees that hold when processes are killed, connections cut, answers lost and receivers down.

use std::collections::HashMap;

use qm_api::tracked_field::Entry;
use testbed::Options;
use testbed::proxy::Proxy;
use testbed::receiver::Receiver;
use testbed::wait::until;
use tokio::sync::OnceCell;

use self::deliveries::{Delivery, deliveries};
use self::ledger::Ledger;
use crate::support::{Bed, Operator, SOON, Settings, fill_tracker_role};

mod answers;
mod apiserver;
mod campaign;
mod deliveries;
mod flood;
mod full_etcd;
mod hanging;
mod kills;
mod ledger;
mod outages;
pub mod replicas;
mod rest;
mod silence;
mod standby;
mod watches;

/// Group of a kind whose objects may have any size, and which the operator watches as whole objects.
const MAPS: &str = "maps.example.com";

/// Returns a namespace where no controller creates the Pods of the many Deployments.
async fn bed_without_controllers(name: &str) -> Bed {
    static SERVED: OnceCell<()> = OnceCell::const_new();
    let bed = Bed::without_controllers(name).await;
    SERVED.get_or_init(|| serve_maps(&bed)).await;
    bed
}

/// Creates the namespace on the test's own control plane.
async fn bed_on_own_plane(name: &str) -> Bed {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), name).await;
    serve_maps(&bed).await;
    bed
}

async fn serve_maps(bed: &Bed) {
    let crd = format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: maps.{MAPS}}}\n\
         spec: {{group: {MAPS}, scope: Namespaced, names: {{plural: maps, kind: Map}}, versions: [{{name: v1, served: true, \
         storage: true, schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}}}]}}"
    );
    bed.apply(&crd).await;
    bed.kubectl(&[
        "wait",
        "--for=condition=Established",
        &format!("crd/maps.{MAPS}"),
        "--timeout=600s",
    ])
    .await;
    fill_tracker_role(&bed.plane, &[(MAPS, "maps")]).await;
}

/// An operator behind a proxy, which sends changes of Deployments to one receiver.
struct Scene {
    receiver: Receiver,
    ledger: Ledger,
    proxy: Proxy,
    operator: Operator,
    bed: Bed,
}

impl Scene {
    /// Asserts that entries arrived in order, and none twice.
    fn assert_sent_in_order(&self) {
        let deliveries = deliveries(&self.receiver);
        assert_order(&self.ledger, &deliveries);
        assert_no_repeats(&deliveries);
    }
}

/// Prepares a scene in which each of the Deployments has one replica, and the receiver has these entries.
async fn scene(name: &str, deployments: &[&str], flags: &[&str]) -> Scene {
    let bed = bed_without_controllers(name).await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    for name in deployments {
        bed.deployment(name, 1).await;
        bed.track(name, "Deployment", name, "replicas", "hook")
            .await;
    }
    let ledger = Ledger::open(&bed);
    let (proxy, file) = bed.through_proxy().await;
    let settings = flags
        .iter()
        .fold(Settings::default().kubeconfig(file), |settings, flag| {
            settings.flag(flag)
        });
    let operator = Operator::start(&bed, settings).await;
    for name in deployments {
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    Scene {
        receiver,
        ledger,
        proxy,
        operator,
        bed,
    }
}

/// Waits until the receiver accepted every entry that a status ever held, and every status says so.
async fn caught_up(
    bed: &Bed,
    ledger: &Ledger,
    receiver: &Receiver,
    newest: &HashMap<String, String>,
) {
    let caught_up = until(
        "every entry is delivered, the newest values among them",
        SOON,
        async || {
            for (field, version) in newest {
                let history = bed.history(field).await;
                let last = history.last().and_then(|entry| entry.value.as_deref());
                anyhow::ensure!(
                    last == Some(version),
                    "{field} ends with {last:?}, not {version}"
                );
                let waiting = history.iter().filter(|entry| entry.is_pending()).count();
                anyhow::ensure!(waiting == 0, "{field}: {waiting} entries wait");
                let (last_stored, seen) = (history.last(), ledger.fields().remove(field));
                let id = |entry: Option<&Entry>| entry.and_then(|entry| entry.id.clone());
                anyhow::ensure!(
                    id(seen.unwrap_or_default().last()) == id(last_stored),
                    "our own watch of {field} lags behind"
                );
            }
            let undelivered = ledger.undelivered(&deliveries(receiver));
            anyhow::ensure!(
                undelivered.is_empty(),
                "never sent, although a status held them: {undelivered:?}"
            );
            Ok(Some(()))
        },
    );
    caught_up.await.unwrap();
}

/// Asserts that each field's entries arrived in the order of its status.
fn assert_order(ledger: &Ledger, deliveries: &[Delivery]) {
    for (field, entries) in ledger.fields() {
        let stood: Vec<&str> = entries
            .iter()
            .filter_map(|entry| entry.id.as_deref())
            .collect();
        let mut arrived: Vec<&str> = Vec::new();
        for entry in deliveries
            .iter()
            .flat_map(|request| &request.entries)
            .filter(|entry| entry.field == field)
        {
            if !arrived.contains(&entry.id.as_str()) {
                arrived.push(&entry.id);
            }
        }
        assert_eq!(arrived, stood, "the order of {field}");
    }
}

/// Asserts that no entry was sent twice.
fn assert_no_repeats(deliveries: &[Delivery]) {
    let mut times: HashMap<&str, usize> = HashMap::new();
    for entry in deliveries.iter().flat_map(|request| &request.entries) {
        *times.entry(&entry.id).or_default() += 1;
    }
    times.retain(|_, times| *times > 1);
    assert!(times.is_empty(), "sent more than once: {times:?}");
}

/// Asserts that an entry is repeated only if its sender died or froze with the request that carried the entry, the
/// sender's last one to that contact point. Senders are called `life-1`, `life-2` and so on. Returns the number of
/// repeated entries.
fn assert_repeats_bounded(deliveries: &[Delivery]) -> usize {
    let mut last: HashMap<(&str, &str), usize> = HashMap::new();
    for (at, request) in deliveries.iter().enumerate() {
        last.insert((&request.path, &request.sender), at);
    }
    let life = |at: usize| -> usize { deliveries[at].sender["life-".len()..].parse().unwrap() };
    let mut arrived: HashMap<&str, usize> = HashMap::new();
    let mut repeated = 0;
    for (at, request) in deliveries.iter().enumerate() {
        for entry in &request.entries {
            let Some(before) = arrived.insert(&entry.id, at) else {
                continue;
            };
            assert_ne!(
                life(before),
                life(at),
                "sent twice by one sender: {entry:?}"
            );
            // A request that a frozen sender had in flight comes after those of its successor.
            let older = if life(before) < life(at) { before } else { at };
            let sender = deliveries[older].sender.as_str();
            assert_eq!(
                last[&(request.path.as_str(), sender)],
                older,
                "{entry:?} was sent again, but {sender} continued after its delivery"
            );
            repeated += 1;
        }
    }
    repeated
}
