//! Adds the controllers of the kinds that share the outbox and the watches of targets: `ContactPoint`, `TrackedField` and
//! `TrackedFieldSet`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use qm_notify::client::{self, HttpSender};
use qm_notify::metrics::DeliveryMetrics;
use qm_notify::queue::{Outbox, RetryPolicy};
use qm_runtime::ObjectKey;
use qm_runtime::backoff::BackoffPolicy;
use qm_runtime::leader::Fence;
use qm_runtime::manager::{KindHandles, Manager};
use qm_runtime::watch::WatchHub;
use tokio::sync::SetOnce;

use super::contact_point::endpoint::SecretSource;
use super::contact_point::{self, ContactPoints};
use super::tracked_field::contact_points::ContactPointView;
use super::tracked_field::grants::Grants;
use super::tracked_field::requests::TargetRequests;
use super::tracked_field::resolver::Resolver;
use super::tracked_field::targets::Targets;
use super::tracked_field::tracker::Tracker;
use super::tracked_field::when::ParsedWhens;
use super::tracked_field::{self, TrackedFields};
use super::tracked_field_set::child::LiveChild;
use super::tracked_field_set::index::SetIndex;
use super::tracked_field_set::metrics::SetMetrics;
use super::tracked_field_set::{self, TrackedFieldSets};
use crate::cli::RunConfig;

/// Maximum time for which `TrackedField`s wait until the sets are listed.
const MAX_WAIT_FOR_SETS: Duration = Duration::from_secs(10);

/// Adds the controllers.
pub(super) fn add_to(manager: &mut Manager, config: &RunConfig) -> anyhow::Result<()> {
    let points = manager.kind::<ContactPoint>(&contact_point::KIND);
    let mut fields = manager.kind::<TrackedField>(&tracked_field::KIND);
    let timings = config.timings.clone();
    let metrics = manager.metrics.register(DeliveryMetrics::register);
    let outbox = Outbox::new(
        HttpSender::new(sender(config, manager.fence.clone())).map_err(anyhow::Error::msg)?,
        RetryPolicy {
            backoff: BackoffPolicy {
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
    manager.wait_on_shutdown({
        let outbox = Arc::clone(&outbox);
        async move { outbox.drain().await }
    });
    let sets = manager.kind::<TrackedFieldSet>(&tracked_field_set::KIND);
    let set_index = Arc::new(SetIndex::new(
        manager.scope.clone(),
        manager.namespaces_sync.clone(),
        sets.trigger.clone(),
    ));
    let tracker = Arc::new(Tracker::new(
        fields.trigger.clone(),
        !manager.settings.leader_elect,
    ));
    manager.spawn("inspection of large objects", {
        let tracker = Arc::clone(&tracker);
        async move { tracker.inspect_queue().await }
    });
    let grants = Arc::new(Grants::new(&config.tracker_role));
    let hub = WatchHub::new(
        manager.client.clone(),
        manager.scope.clone(),
        manager.streaming_watch_config.clone(),
        set_index.new_index(Tracker::new_index(&tracker)),
        manager.metrics.clone(),
        manager.availability.clone(),
        manager.tasks.clone(),
        manager.watchdog("targets"),
    );
    let targets = Arc::new(Targets {
        controller: tracked_field::NAME,
        client: manager.client.clone(),
        scope: manager.scope.clone(),
        no_cross_namespace_refs: config.no_cross_namespace_refs,
        tracker,
        sets: set_index.clone(),
        hub,
        grants: Arc::clone(&grants),
        resolver: Resolver::default(),
        requests: TargetRequests::default(),
        trigger: fields.trigger.clone(),
        sync_period: timings.sync_period,
        timeout: timings.reconcile_timeout,
        draining: manager.draining.clone(),
    });
    // A TrackedField would report an uncached contact point as missing and, before the tracker role is read, a resource
    // as not granted.
    let grants_known = follow_grants(manager, &grants, &targets, &fields, &sets);
    let contact_point_view = Arc::new(ContactPointView {
        points: points.objects.clone(),
        cache: points.cache.clone(),
        outbox: Arc::clone(&outbox),
    });
    let points_synced = points.cache.clone().synced();
    let sets_synced = sets.cache.clone().synced();
    let after = async move {
        points_synced.await;
        // A set reports problems instead of its children, which report them themselves while the sets cannot be listed.
        let _ = tokio::time::timeout(MAX_WAIT_FOR_SETS, sets_synced).await;
        grants_known.wait().await;
    }
    .boxed()
    .shared();
    let contact_points = ContactPoints {
        source: SecretSource::new(
            manager.client.clone(),
            manager.settings.operator_namespace.clone(),
            config.notifications.shared_secrets,
        ),
        cluster: config.cluster_name.clone(),
        outbox: Arc::clone(&outbox),
        reread: timings.secret_refresh_period,
        points: points.objects.clone(),
        cache: points.cache.clone(),
        announced: Mutex::default(),
        fields: fields.objects.clone(),
        field_trigger: fields.trigger.clone(),
        sets: sets.objects.clone(),
        set_trigger: sets.trigger.clone(),
        configs: Mutex::default(),
    };
    let tracked_fields = TrackedFields {
        targets: Arc::clone(&targets),
        sets: sets.objects.clone(),
        contact_points: Arc::clone(&contact_point_view),
        outbox,
        whens: ParsedWhens::default(),
        metrics,
        renew_event: timings.event_renewal,
        cluster: config.cluster_name.clone(),
        availability: manager.availability.clone(),
    };
    let (field_store, fields_cache) = (fields.objects.clone(), fields.cache.clone());
    let fields_synced = fields_cache.clone().synced();
    manager.add_controller(points, |_| Ok(contact_points))?;
    let after_sets = after.clone();
    manager.add_controller(sets, |setup| {
        // A set that does not know a TrackedField would create it again.
        setup.after = async move {
            after_sets.await;
            fields_synced.await;
        }
        .boxed();
        if set_index.namespaces_sync.is_some() {
            let (manager, needed) = (&mut *setup.manager, &setup.watch_needed);
            manager.watch_namespaces(needed, Arc::clone(&set_index));
        }
        let metrics = setup.manager.metrics.register(SetMetrics::register);
        let children = setup.children_of_kind(&mut fields, LiveChild::of, &[]);
        // The children come first: a set that the index wakes must not find a deleted child among them, which would
        // stay in its plan.
        fields.add_observer(Arc::clone(&set_index));
        Ok(TrackedFieldSets {
            index: set_index,
            children,
            sets: setup.objects.clone(),
            tracked_fields: field_store,
            tracked_fields_cache: fields_cache,
            targets,
            contact_points: contact_point_view,
            metrics,
            sync_period: timings.sync_period,
            status_interval: timings.set_status_period,
            states: Mutex::default(),
            reported: Mutex::default(),
        })
    })?;
    manager.add_controller(fields, |setup| {
        setup.after = after.boxed();
        Ok(tracked_fields)
    })
}

/// Follows the tracker role, on every replica. The result is set once the role is known or not needed.
fn follow_grants(
    manager: &mut Manager,
    grants: &Arc<Grants>,
    targets: &Arc<Targets>,
    fields: &KindHandles<TrackedField>,
    sets: &KindHandles<TrackedFieldSet>,
) -> Arc<SetOnce<()>> {
    if !manager.settings.runs(tracked_field::NAME) {
        return Arc::new(SetOnce::new_with(Some(())));
    }
    let known = Arc::new(SetOnce::new());
    let is_known = Arc::clone(&known);
    let targets = Arc::clone(targets);
    let store = fields.objects.clone();
    let (sets, set_trigger) = (sets.objects.clone(), sets.trigger.clone());
    let changed = move || {
        targets.grants_changed(&store.all());
        for set in sets.all() {
            set_trigger.wake(&ObjectKey::of(set.as_ref()));
        }
        // Later calls have no effect.
        let _ = is_known.set(());
    };
    let follow = grants.follow(
        manager.client.clone(),
        &manager.watch_config,
        &manager.metrics,
        manager.availability.clone(),
        changed,
    );
    manager.spawn("tracker role watch", follow);
    known
}

/// Returns the configuration of the sender, which sends only while `fence` is open.
fn sender(config: &RunConfig, fence: Fence) -> client::SenderConfig {
    let settings = &config.notifications;
    client::SenderConfig {
        telegram_api_url: settings.telegram_api_url.clone(),
        cluster_name: config.cluster_name.clone(),
        webhook_proxy: settings.webhook_proxy.clone(),
        allow_loopback: settings.allow_loopback,
        deny_cidrs: settings.deny.clone(),
        allow_ports: settings.allow_ports.clone(),
        own_addresses: settings.own_addresses.clone(),
        quote_private: settings.quote_private,
        attempt_timeout: config.timings.send_timeout,
        max_retry_after: config.timings.retry_after_max,
        fence,
        lookup: settings.dns.clone().lookup(),
        ..client::SenderConfig::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::Parser;
    use tokio::time::{Instant, advance};

    use super::*;
    use crate::cli::{Cli, Command};

    /// `notify::client` tests that each request checks the fence.
    #[tokio::test(start_paused = true)]
    async fn sender_sends_only_under_the_lease() {
        let Command::Run(flags) = Cli::try_parse_from(["quartermaster", "run"])
            .unwrap()
            .command
        else {
            panic!()
        };
        let config = flags.config(&[contact_point::NAME]).unwrap();
        let fence = Fence::shut();
        let sent = sender(&config, fence.clone()).fence;
        assert!(!sent.is_open(), "before the first renewal");
        fence.renewed(Instant::now(), Duration::from_secs(6));
        assert!(sent.is_open());
        advance(Duration::from_secs(6)).await;
        assert!(!sent.is_open(), "not renewed in time");
        fence.renewed(Instant::now(), Duration::from_secs(6));
        assert!(sent.is_open());
        fence.close();
        assert!(!sent.is_open(), "lost");
    }
}
