//! Deletion of listeners: whatever happens in between, none of their resources stays, and no unowned resource is
//! deleted.

use kube::api::ListParams;
use rstest::rstest;
use testbed::aws::{Fault, On, Point, Times};

use super::kills::kill_at_call;
use super::nodes::{assert_never_without_targets, http};
use super::*;
use crate::support::kill_at_each_write;

impl Site {
    /// Waits until nothing but these target groups is left.
    async fn nothing_remains(&self, but: &[&str]) {
        // Each page has a single group.
        self.aws.page_size(1);
        self.bed.delete::<MyIngress>("web").await;
        self.is_deleted("web").await;
        self.aws.page_size(400);
        let left: Vec<_> = self
            .groups()
            .await
            .into_iter()
            .map(|group| group.name)
            .collect();
        assert_eq!(left, but);
    }

    async fn with_listener(&self) {
        self.ingress("web", json!({ "listeners": [http(80, "shop")] }))
            .await;
        self.ready("web").await;
    }

    /// A listener is created, replaced by another, and deleted with its load balancer, without remains. Returns the
    /// state before the end.
    async fn life_of_a_listener(&self, node_port: u16) -> Value {
        self.service("shop", node_port).await;
        self.with_listener().await;
        self.respec("web", json!({ "listeners": [http(81, "shop")] }))
            .await;
        self.ready("web").await;
        let (listening, groups) = (self.listening().await, self.groups().await);
        assert_eq!((listening.len(), groups.len()), (1, 1));
        assert_eq!(listening[0].target_group, groups[0].arn);
        let nodes = self
            .nodes()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len();
        let arrives = async || Ok((self.aws.route("web-alb", 81).len() == nodes).then_some(()));
        until("the listener leads to all nodes", SOON, arrives)
            .await
            .unwrap();
        assert_eq!(self.aws.balancers().await.unwrap().len(), 1);
        let ports: Vec<_> = self.status().await.iter().map(|it| it.port).collect();
        self.bed.delete::<MyIngress>("web").await;
        self.is_deleted("web").await;
        assert_eq!(
            (
                self.aws.balancers().await.unwrap().len(),
                self.groups().await.len()
            ),
            (0, 0)
        );
        assert_never_without_targets(&self.aws.calls());
        json!([ports, listening[0].port])
    }
}

#[tokio::test]
async fn groups_are_deleted_with_the_load_balancer() {
    let site = Site::with_nodes("ends", &["i-1"]).await;
    let _operator = site.reaching().await;
    site.service("shop", 30_080).await;
    let foreign_group = site.aws.create_target_group("theirs", 80).await.unwrap();
    // AWS keeps the listener for a while after its deletion.
    site.with_listener().await;
    let busy = Fault::code(
        "ResourceInUse",
        "Target group is currently in use by a listener or a rule",
    );
    let order = site
        .aws
        .fault(On::action("DeleteTargetGroup"), Times::First(3), busy);
    site.nothing_remains(&["theirs"]).await;
    assert_eq!(
        (order.hits(), site.aws.balancers().await.unwrap().len()),
        (3, 0)
    );
    site.bed.event("web", "AlreadyDeleted").await;
    assert_eq!(
        site.bed.events("web", "AlreadyDeleted").await.len(),
        1,
        "once, however often a group is requested"
    );

    // A user deleted the load balancer.
    site.with_listener().await;
    site.aws
        .delete(&site.balancer("web").await.unwrap().arn)
        .await
        .unwrap();
    site.nothing_remains(&["theirs"]).await;

    // The load balancer was recreated, and another time in another network.
    site.with_listener().await;
    let group = site
        .groups()
        .await
        .into_iter()
        .find(|group| group.arn != foreign_group)
        .unwrap();
    site.aws
        .delete(&site.balancer("web").await.unwrap().arn)
        .await
        .unwrap();
    site.reconcile("web").await;
    site.becomes("web", "exists", |_| true).await;
    site.ready("web").await;
    until("the port has a listener", SOON, async || {
        Ok((site.listening().await.len() == 1).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(site.listening().await[0].target_group, group.arn);
    site.respec("web", json!({ "suspend": true })).await;
    site.has_reason("web", "Suspended").await;
    site.aws
        .delete(&site.balancer("web").await.unwrap().arn)
        .await
        .unwrap();
    let other = json!({ "suspend": null, "subnets": testbed::aws::OTHER_SUBNETS });
    site.respec("web", other).await;
    // The node is outside that network.
    site.has_reason("web", "TargetsRejected").await;
    let moved = site
        .groups()
        .await
        .into_iter()
        .find(|group| group.arn != foreign_group)
        .unwrap();
    assert_eq!(
        (&moved.name, moved.vpc),
        (&group.name, site.aws.other_vpc())
    );
    site.nothing_remains(&["theirs"]).await;

    // A load balancer that is no longer owned stays, with its listeners and groups.
    site.with_listener().await;
    let arn = site.balancer("web").await.unwrap().arn;
    for tag in ["quartermaster.dev/cluster", "quartermaster.dev/owner-uid"] {
        site.aws.untag(&arn, tag).await.unwrap();
    }
    let kept = site.listening().await[0].target_group.clone();
    let kept = site
        .groups()
        .await
        .into_iter()
        .find(|group| group.arn == kept)
        .unwrap()
        .name;
    let mut left = ["theirs", &*kept];
    left.sort_unstable();
    site.nothing_remains(&left).await;
    assert_eq!(site.aws.route("web-alb", 80), [("i-1".to_owned(), 30_080)]);
}

/// A load balancer whose deletion is rejected keeps serving, and its targets follow the nodes.
#[tokio::test]
async fn protected_load_balancer_follows_the_nodes() {
    let site = Site::with_nodes("serves", &["i-1", "i-2"]).await;
    let _operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.with_listener().await;
    site.aws
        .protect(&site.balancer("web").await.unwrap().arn, true)
        .await
        .unwrap();
    site.bed.delete::<MyIngress>("web").await;
    site.has_reason("web", "DeletionProtected").await;
    site.node("i-3").await;
    site.delete_node("i-1").await;
    site.arrives(80, &[("i-2", 30_080), ("i-3", 30_080)]).await;
    site.has_reason("web", "DeletionProtected").await;
    site.aws
        .protect(&site.balancer("web").await.unwrap().arn, false)
        .await
        .unwrap();
    site.reconcile("web").await;
    site.is_deleted("web").await;
    assert_eq!(
        (
            site.aws.balancers().await.unwrap().len(),
            site.groups().await.len()
        ),
        (0, 0)
    );
}

/// Each call is rejected once or for longer than the longest backoff, or its answer is lost: the end state is the same
/// as without faults.
#[rstest]
#[case::throttled(Fault::Throttled, 1)]
#[ignore = "long: run by make test-long"]
#[case::throttled_for_long(Fault::Throttled, 7)]
#[case::failing(Fault::internal_failure(), 1)]
#[ignore = "long: run by make test-long"]
#[case::failing_for_long(Fault::internal_failure(), 7)]
#[case::cut_after(Fault::CutAfter, 1)]
#[tokio::test]
async fn each_call_is_retried_after_faults(#[case] fault: Fault, #[case] times: u64) {
    let site = Site::with_nodes("faults", &["i-1", "i-2"]).await;
    let _operator = site.reaching().await;
    let calls = [
        "DescribeListeners",
        "DescribeTargetGroups",
        "DescribeTargetHealth",
        "CreateTargetGroup",
        "ModifyTargetGroup",
        "RegisterTargets",
        "DeregisterTargets",
        "CreateListener",
        "ModifyListener",
        "DeleteListener",
        "DeleteTargetGroup",
    ];
    let orders = calls.map(|call| {
        site.aws
            .fault(On::action(call), Times::First(times), fault.clone())
    });
    site.service("shop", 30_080).await;
    site.ingress(
        "web",
        json!({ "listeners": [http(80, "shop"), http(81, "shop")] }),
    )
    .await;
    site.arrives(80, &[("i-1", 30_080), ("i-2", 30_080)]).await;
    site.arrives(81, &[("i-1", 30_080), ("i-2", 30_080)]).await;
    site.ready("web").await;
    site.delete_node("i-2").await;
    site.arrives(80, &[("i-1", 30_080)]).await;
    let mut secure = http(80, "shop");
    (secure["protocol"], secure["healthCheckPath"]) = (json!("HTTPS"), json!("/healthz"));
    secure["certificateArn"] = site.aws.certificate().await.unwrap().into();
    site.respec("web", json!({ "listeners": [secure] })).await;
    site.ready("web").await;
    let listening = site.listening().await;
    assert_eq!(
        (
            listening.len(),
            &*listening[0].protocol,
            site.groups().await.len()
        ),
        (1, "HTTPS", 1)
    );
    assert_never_without_targets(&site.aws.calls());
    site.nothing_remains(&[]).await;
    for (call, order) in calls.iter().zip(orders) {
        assert_eq!(order.hits(), times, "{call}");
    }
}

/// A port is half created when its operator dies, and removed from the spec when the next one starts.
#[tokio::test]
async fn abandoned_port_leaves_nothing() {
    let site = Site::with_nodes("half", &["i-1"]).await;
    site.service("shop", 30_080).await;
    let gate = site
        .aws
        .gate(On::action("CreateListener"), 1, Point::Before);
    let mut operator = site.reaching().await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    gate.reached(SOON).await.unwrap();
    operator.kill();
    gate.cut();
    assert_eq!(
        (site.groups().await.len(), site.listening().await.len()),
        (1, 0)
    );
    site.respec("web", json!({ "listeners": null })).await;
    operator.restart();
    site.ready("web").await;
    assert_eq!(site.groups().await, []);
    site.nothing_remains(&[]).await;
}

/// After a restore from a backup the object has another UID: the operator recognises objects of its predecessor by
/// their name.
#[tokio::test]
async fn objects_older_than_a_restore_are_owned() {
    let site = Site::with_nodes("restored", &["i-1"]).await;
    let operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.with_listener().await;
    drop(operator);
    let (listener, group) = (
        site.listening().await.remove(0),
        site.groups().await.remove(0),
    );
    let load_balancer = site.balancer("web").await.unwrap();
    for arn in [&load_balancer.arn, &listener.arn, &group.arn] {
        site.aws
            .tag(
                arn,
                "quartermaster.dev/owner-uid",
                "00000000-0000-0000-0000-000000000000",
            )
            .await
            .unwrap();
    }
    // The status is lost as well, and the spec replaces the port.
    site.bed
        .patch::<MyIngress>(
            "web",
            json!({ "spec": { "listeners": [http(81, "shop")] } }),
        )
        .await;
    let lost = kube::api::Patch::Merge(json!({ "status": null }));
    site.bed
        .api::<MyIngress>()
        .patch_status("web", &kube::api::PatchParams::default(), &lost)
        .await
        .unwrap();
    let _operator = site.reaching().await;
    site.ready("web").await;
    let ports: Vec<_> = site
        .listening()
        .await
        .into_iter()
        .map(|it| it.port)
        .collect();
    assert_eq!((ports, site.groups().await.len()), (vec![81], 1));
    site.nothing_remains(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn kill_at_any_call_leaves_nothing_behind() {
    let nodes = ["i-1", "i-2"];
    // Each of the two has its own control plane, and they run side by side: the operators use all of it.
    let sites = [
        Site::with_nodes("before", &nodes).await,
        Site::with_nodes("after", &nodes).await,
    ];
    let calls = kill_at_each_write(&[Point::Before, Point::After], async |point, call| {
        let site = &sites[usize::from(point == Point::After)];
        let site = site.another("killed").await;
        site.aws.clear();
        // Each Service has another port.
        let node_port = 30_100 + u16::try_from(call % 1000).unwrap();
        Box::pin(kill_at_call(
            &site,
            site.settings().whole_cluster(),
            point,
            call,
            site.life_of_a_listener(node_port),
        ))
        .await
    });
    let calls = Box::pin(calls).await;
    // Calls for the load balancer, and for each port: three reads, group, tags, targets, listener; listener and group
    // again.
    assert!(calls.iter().all(|calls| *calls >= 30), "{calls:?} calls");
}

/// Kills the operator at each write to Kubernetes. The points follow each other: in parallel, this test and another one
/// with two control planes could wait for each other's second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn kill_at_any_write_leaves_nothing_behind() {
    use testbed::proxy::{Match, Point};
    let site = Site::with_nodes("written", &["i-1", "i-2"]).await;
    // Each Service has another port.
    for (point, first) in [(Point::AfterApplied, 30_200), (Point::AfterAnswer, 30_300)] {
        let points = [point];
        let writes = kill_at_each_write(&points, async |point, write| {
            let site = site.another("killed").await;
            site.aws.clear();
            let node_port = first + u16::try_from(write.min(99)).unwrap();
            let scene = site.life_of_a_listener(node_port);
            let (settings, writes) = (
                site.settings().whole_cluster(),
                Match::writes().except_resource("events"),
            );
            Box::pin(crate::support::kill_at_write(
                &site.bed, settings, writes, point, write, scene,
            ))
            .await
        });
        let writes = Box::pin(writes).await;
        // The finalizer, the request, each port when it is named and when it is requested, Ready twice, the finalizer.
        assert!(writes[0] >= 8, "{writes:?} writes");
    }
}
