//! Stale state: the operator's cache lags behind, or another replica leads by now.

use k8s_openapi::api::core::v1::Service;
use testbed::proxy::{Ending, Fault, Match, Point, Then, Times, Verb};
use tokio::sync::Notify;

use super::nodes::{assert_never_without_targets, http};
use super::*;

/// The `MyIngress` that now has the name also owns the load balancer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_deletion_deletes_nothing() {
    let site = Site::new("past").await;
    let (proxy, file) = site.bed.through_proxy().await;
    let _operator = Operator::start(&site.bed, site.settings().kubeconfig(file)).await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    site.aws.protect(&made.arn, true).await.unwrap();
    site.bed.delete::<MyIngress>("web").await;
    site.has_reason("web", "DeletionProtected").await;

    let frozen = proxy.freeze(Match::watch("myingresses"));
    site.bed
        .patch::<MyIngress>("web", json!({ "metadata": { "finalizers": null } }))
        .await;
    site.is_deleted("web").await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    let new = site.ingress("web", json!({})).await;
    site.aws
        .tag(
            &made.arn,
            "quartermaster.dev/owner-uid",
            &new.uid().unwrap(),
        )
        .await
        .unwrap();
    proxy.forget();
    site.aws.protect(&made.arn, false).await.unwrap();
    let existence_read = Match::verb(Verb::Get).resource("myingresses").name("web");
    until(
        "the operator has read whether the cached object exists",
        SOON,
        async || {
            Ok(
                (proxy.count(&existence_read) > 0 || site.balancer("web").await.is_none())
                    .then_some(()),
            )
        },
    )
    .await
    .unwrap();
    frozen.cancel();
    site.ready("web").await;
    assert_eq!(site.balancer("web").await.unwrap().arn, made.arn);
}

/// The operator does not restore its ownership from the `MyIngress` that has the name now, although in the cache no
/// object has the UID of the tag.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_object_restores_no_ownership() {
    let site = Site::new("restored-past").await;
    let (proxy, file) = site.bed.through_proxy().await;
    let _operator = Operator::start(
        &site.bed,
        site.settings()
            .kubeconfig(file)
            .flag("--aws-sync-period=1s"),
    )
    .await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    let frozen = proxy.freeze(Match::watch("myingresses"));
    site.respec("web", json!({ "suspend": true })).await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    site.bed.delete::<MyIngress>("web").await;
    site.bed
        .patch::<MyIngress>("web", json!({ "metadata": { "finalizers": null } }))
        .await;
    site.is_deleted("web").await;
    let new = site.ingress("web", json!({})).await.uid().unwrap();
    let existence_read = Match::verb(Verb::Get).resource("myingresses").name("web");
    proxy.forget();
    site.aws
        .tag(&made.arn, "quartermaster.dev/owner-uid", &new)
        .await
        .unwrap();
    let bears =
        async || site.balancer("web").await.unwrap().tags["quartermaster.dev/owner-uid"].clone();
    until(
        "the operator has read whether the cached object exists",
        SOON,
        async || Ok((proxy.count(&existence_read) > 0 || bears().await != new).then_some(())),
    )
    .await
    .unwrap();
    assert_eq!(bears().await, new);
    frozen.cancel();
    site.ready("web").await;
    assert_eq!(bears().await, new);
}

/// A Service is deleted while its watch shows nothing, and the next list lacks it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_follow_a_deletion_of_the_service_in_a_gap() {
    let site = Site::with_nodes("missed", &["i-1"]).await;
    let (proxy, file) = site.bed.through_proxy().await;
    let settings = site.settings().whole_cluster().kubeconfig(file);
    let _operator = Operator::start(&site.bed, settings).await;
    site.service("shop", 30_080).await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.arrives(80, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    let watch = Match::watch("services");
    let gap = proxy.hide(watch.clone(), |_| true);
    site.bed.delete::<Service>("shop").await;
    gap.wait_for_hits(1, SOON).await.unwrap();
    gap.cancel();
    proxy.end_watches(&watch, Ending::Gone);
    site.has_reason("web", "ServiceNotFound").await;
    site.arrives(80, &[]).await;
}

/// The operator is frozen between the record of the intent in the status and the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_continues_the_creation() {
    let site = Site::new("leaders").await;
    let candidate = || site.settings().leader_election(20);
    let (proxy, file) = site.bed.through_proxy().await;
    let mut leader = Operator::start(&site.bed, candidate().kubeconfig(file)).await;
    until("the operator leads", SOON, async || {
        let led = format!(
            "leader_election_master_status{{name=\"{}\"}} 1",
            site.bed.namespace
        );
        Ok(leader.metrics().await.contains(&led).then_some(()))
    })
    .await
    .unwrap();
    let note = Match::verb(Verb::Patch)
        .resource("myingresses")
        .subresource("status");
    let thawed = Arc::new(Notify::new());
    let frozen = {
        let thawed = Arc::clone(&thawed);
        let wait = move |_| {
            let thawed = Arc::clone(&thawed);
            async move {
                thawed.notified().await;
                Then::GoOn
            }
        };
        proxy.inject(
            note,
            Times::First(1),
            Fault::hook(Point::AfterApplied, wait),
        )
    };
    site.ingress("web", json!({})).await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    leader.child().freeze().unwrap();
    let _next = Operator::start(&site.bed, candidate()).await;
    site.ready("web").await;
    thawed.notify_one();
    leader.child().thaw().unwrap();
    leader.child().wait(SOON).await.unwrap();
    assert_eq!(counted(&site.aws.calls())["CreateLoadBalancer"], 1);
}

/// The watch of Services or nodes is frozen and thawed, loses its events and gets a 410, or is forbidden for a while,
/// and the operator reconciles meanwhile: at no moment is a listener without targets, and in the end they follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_follow_after_a_stale_view_of_services_or_nodes() {
    let site = Site::with_nodes("backends", &["i-1"]).await;
    let (proxy, file) = site.bed.through_proxy().await;
    let settings = site.settings().whole_cluster().kubeconfig(file);
    let _operator = Operator::start(&site.bed, settings).await;
    let (mut node, mut port) = (1, 30_080);
    site.service("shop", port).await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.arrives(80, &[("i-1", port)]).await;
    site.ready("web").await;
    let resources = ["services", "nodes"];
    let views = ["frozen", "gap", "forbidden"];
    for (resource, view) in resources
        .into_iter()
        .flat_map(|resource| views.map(|view| (resource, view)))
    {
        let watch = Match::watch(resource);
        let order = match view {
            "frozen" => proxy.freeze(watch.clone()),
            "gap" => proxy.hide(watch.clone(), |_| true),
            _ => proxy.forbid(&Match::watches_and_lists(resource)),
        };
        if resource == "services" {
            port += 1;
            let ports = json!({ "spec": { "ports": [{ "port": 80, "nodePort": port }] } });
            site.bed.patch::<Service>("shop", ports).await;
        } else {
            node += 1;
            site.node(&format!("i-{node}")).await;
            site.delete_node(&format!("i-{}", node - 1)).await;
        }
        order.wait_for_hits(1, SOON).await.unwrap();
        let before = site.aws.calls().len();
        site.reconcile("web").await;
        until("the operator reads the targets", SOON, async || {
            let calls = site.aws.calls();
            let mut since = calls[before..].iter();
            Ok(since
                .any(|call| call.action == "DescribeTargetHealth")
                .then_some(()))
        })
        .await
        .unwrap();
        order.cancel();
        if view == "gap" {
            proxy.end_watches(&watch, Ending::Gone);
        }
        site.arrives(80, &[(&format!("i-{node}"), port)]).await;
        site.ready("web").await;
    }
    assert_never_without_targets(&site.aws.calls());
}
