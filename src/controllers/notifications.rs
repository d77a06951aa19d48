//! Starts the two kinds that tell people of changes: they share the outbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use qm_api::{ContactPoint, TrackedField};
use qm_notify::Transport;
use qm_notify::client::{self, Sender};
use qm_notify::metrics::DeliveryMetrics;
use qm_notify::queue::{Outbox, Patience};
use qm_runtime::Key;
use qm_runtime::backoff::Policy;
use qm_runtime::cache::Touched;
use qm_runtime::health::State;
use qm_runtime::leader::Fence;
use qm_runtime::manager::{Manager, Phase, Watched};
use qm_runtime::reconciler::{Reconciler, Trigger};
use qm_runtime::watch_hub::WatchHub;
use qm_runtime::written::Written;

use super::contact_point::{self, ContactPoints, endpoint::Source};
use super::tracked_field::grants::Grants;
use super::tracked_field::reads::Reads;
use super::tracked_field::tracker::Tracker;
use super::tracked_field::{self, Targets, Terms, TrackedFields, target::Resolver};
use crate::cli::Config;

/// Hands both controllers in.
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let points = manager.kind::<ContactPoint>(&contact_point::KIND);
    let fields = manager.kind::<TrackedField>(&tracked_field::KIND);
    let timings = config.timings.clone();
    let metrics = manager.metrics.register(DeliveryMetrics::register);
    let outbox = Outbox::new(
        Sender::new(sender(config, manager.fence.clone())).map_err(anyhow::Error::msg)?,
        Patience {
            retry: Policy {
                min: timings.backoff_min,
                max: timings.backoff_max,
            },
            stopped: timings.stopped_retry_period,
            max_age: timings.delivery_max_age,
        },
        metrics.clone(),
        fields.trigger.clone(),
        points.trigger.clone(),
        manager.draining.clone(),
    );
    manager.land({
        let outbox = Arc::clone(&outbox);
        async move { outbox.land().await }
    });
    let contact_points = Arc::new(ContactPoints {
        client: manager.client.clone(),
        source: Source {
            client: manager.client.clone(),
            operator_namespace: manager.settings.operator_namespace.clone(),
            shared: config.notifications.shared_secrets,
        },
        outbox: Arc::clone(&outbox),
        events: manager.events(contact_point::NAME),
        reread: timings.secret_refresh_period,
        written: Written::new(points.trigger.clone()),
        set_up: Mutex::default(),
    });
    let tracker = Arc::new(Tracker::new(
        fields.trigger.clone(),
        !manager.settings.leader_elect,
    ));
    manager.spawn("lookups in large objects", {
        let tracker = Arc::clone(&tracker);
        async move { tracker.look_into_queue().await }
    });
    let grants = Arc::new(Grants::new(&config.tracker_role));
    let hub = WatchHub::new(
        manager.client.clone(),
        manager.scope.clone(),
        manager.others.clone(),
        Arc::clone(&tracker) as _,
        manager.metrics.clone(),
        manager.tasks.clone(),
        manager.watchdog("targets"),
    );
    let targets = Arc::new(Targets {
        client: manager.client.clone(),
        scope: manager.scope.clone(),
        no_cross_namespace_refs: config.no_cross_namespace_refs,
        tracker,
        hub,
        grants: Arc::clone(&grants),
        resolver: Resolver::default(),
        reads: Reads::default(),
        wake: fields.trigger.clone(),
        resync: timings.sync_period,
        timeout: timings.reconcile_timeout,
        draining: manager.draining.clone(),
    });
    let tracked_fields = Arc::new(TrackedFields {
        client: manager.client.clone(),
        targets,
        points: points.store.clone(),
        points_phase: points.phase.clone(),
        outbox,
        events: manager.events(tracked_field::NAME),
        metrics,
        terms: Terms {
            renew_event: timings.event_renewal,
            resync: timings.sync_period,
        },
        cluster: config.cluster_name.clone(),
        written: Written::new(fields.trigger.clone()),
        availability: manager.availability.clone(),
        told: Mutex::new(HashMap::new()),
    });

    let told_of_point = told_of_point(Arc::clone(&contact_points), &points, &fields);
    let told_of_field = told_of_field(Arc::clone(&tracked_fields), fields.trigger.clone());
    // A contact point that is not cached yet must not be taken for one that does not exist.
    // Nor must a target that the tracker role grants be taken for one that it does not.
    let settled = vec![
        points.phase.clone(),
        follow_grants(manager, &grants, &tracked_fields, &fields),
    ];
    manager.control(points, contact_points, Vec::new(), told_of_point);
    manager.control(fields, tracked_fields, settled, told_of_field);
    Ok(())
}

/// Follows the tracker role, on every replica. The phase ends once the role is known.
fn follow_grants<T: Transport>(
    manager: &mut Manager,
    grants: &Arc<Grants>,
    controller: &Arc<TrackedFields<T>>,
    fields: &Watched<TrackedField>,
) -> Phase {
    let (known, phase) = Phase::until();
    if !manager.settings.runs(tracked_field::NAME) {
        // A sender that is gone ends the phase.
        return phase;
    }
    let targets = Arc::clone(&controller.targets);
    let (store, trigger) = (fields.store.clone(), fields.trigger.clone());
    let changed = move || {
        let fields = store.state();
        for field in &fields {
            targets.follow(field);
        }
        for field in &fields {
            targets.watch(field);
            trigger.wake(&Key::of(field.as_ref()));
        }
        known.send_replace(State::Synced);
    };
    let follow = grants.follow(
        manager.client.clone(),
        &manager.watches,
        &manager.metrics,
        changed,
    );
    manager.spawn("the watch of the tracker role", follow);
    phase
}

fn told_of_point<T: Transport>(
    controller: Arc<ContactPoints<T>>,
    points: &Watched<ContactPoint>,
    fields: &Watched<TrackedField>,
) -> impl Fn(Touched<ContactPoint>, bool) + Send + Sync + use<T> {
    let (points, trigger) = (points.store.clone(), points.trigger.clone());
    let (fields, dependants) = (fields.store.clone(), fields.trigger.clone());
    move |touched, all_seen| {
        let (point, gone) = match touched {
            // Told of again once all have been seen.
            Touched::Present(_) if !all_seen => return,
            Touched::Present(point) => (point, false),
            Touched::Gone(point) => (point, true),
        };
        let key = Key::of(point.as_ref());
        if gone {
            controller.gone(&key);
        }
        // Our own write is news to those who send there only.
        if gone || !controller.written.knows(&key, &point) {
            trigger.wake(&key);
        }
        for field in fields.state() {
            if concerns(&point, &field, &points) {
                dependants.wake(&Key::of(field.as_ref()));
            }
        }
    }
}

fn told_of_field<T: Transport>(
    controller: Arc<TrackedFields<T>>,
    trigger: Trigger<TrackedField>,
) -> impl Fn(Touched<TrackedField>, bool) + Send + Sync {
    move |touched, all_seen| match touched {
        Touched::Present(field) => {
            let key = Key::of(field.as_ref());
            controller.targets.follow(&field);
            // Otherwise told of again once all have been seen.
            if all_seen {
                controller.targets.watch(&field);
                if controller.written.knows(&key, &field) {
                    controller.outbox.cached(&field);
                } else {
                    trigger.wake(&key);
                }
            }
        }
        Touched::Gone(field) => {
            controller.gone(&Key::of(field.as_ref()));
            trigger.wake(&Key::of(field.as_ref()));
        }
    }
}

/// Whoever sends there waits for it, or has to say that it is gone; whoever names a contact point that there is not
/// names the nearest instead.
fn concerns(point: &ContactPoint, field: &TrackedField, points: &Store<ContactPoint>) -> bool {
    let (name, namespace) = (
        &field.spec.contact_point,
        field.namespace().unwrap_or_default(),
    );
    point.namespace().is_some_and(|its| its == namespace)
        && (*name == point.name_any()
            || points
                .get(&ObjectRef::new(name).within(&namespace))
                .is_none())
}

/// How it is sent by these flags, and only while `fence` is held.
fn sender(config: &Config, fence: Fence) -> client::Config {
    let settings = &config.notifications;
    client::Config {
        telegram_api_url: settings.telegram_api_url.clone(),
        cluster_name: config.cluster_name.clone(),
        webhook_proxy: settings.webhook_proxy.clone(),
        allow_loopback: settings.allow_loopback,
        deny_cidrs: settings.deny.clone(),
        allow_ports: settings.allow_ports.clone(),
        own_addresses: settings.own_addresses.clone(),
        quote_private: settings.quote_private,
        attempt_timeout: config.timings.send_timeout,
        retry_after_cap: config.timings.retry_after_max,
        held: Arc::new(move || fence.held()),
        lookup: settings.dns.clone().lookup(),
        ..client::Config::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::time::Duration;

    use clap::Parser;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::cli::{Cli, Command};

    /// That it is asked before each request is shown where requests are sent (`notify::client`).
    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_but_under_the_lease() {
        let Command::Run(flags) = Cli::try_parse_from(["quartermaster", "run"])
            .unwrap()
            .command
        else {
            panic!()
        };
        let config = flags.config(&[contact_point::NAME]).unwrap();
        let fence = Fence::shut();
        let held = sender(&config, fence.clone()).held;
        assert!(!held(), "before the first renewal");
        fence.renewed(Instant::now(), Duration::from_secs(6));
        assert!(held());
        advance(Duration::from_secs(6)).await;
        assert!(!held(), "not renewed in time");
        fence.renewed(Instant::now(), Duration::from_secs(6));
        assert!(held());
        fence.close();
        assert!(!held(), "lost");
    }
}
