//! AWS shows created objects late: the operator creates nothing twice, and forgets nothing.

use std::time::Duration;

use super::nodes::http;
use super::*;

const FOR_NOW: Duration = Duration::from_hours(1);

impl Site {
    /// Prepares a load balancer that AWS shows, with a listener that is requested and not shown.
    async fn with_a_late_listener(name: &str) -> (Self, Operator) {
        let site = Self::with_nodes(name, &["i-1"]).await;
        let operator = site.reaching().await;
        site.service("shop", 30_080).await;
        site.ingress("web", json!({})).await;
        site.ready("web").await;
        site.aws.hide_new(FOR_NOW);
        site.respec("web", json!({ "listeners": [http(80, "shop")] }))
            .await;
        let message = site.has_reason("web", "TargetsInitial").await;
        assert!(message.contains("does not show them yet"), "{message}");
        assert_eq!(site.groups().await.len(), 1);
        (site, operator)
    }

    async fn assert_no_groups_remain(&self) {
        until("the group is deleted", SOON, async || {
            Ok(self.groups().await.is_empty().then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn late_listener_is_created_once() {
    let (site, _operator) = Site::with_a_late_listener("late-listener").await;
    site.aws.hide_new(Duration::ZERO);
    site.arrives(80, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    assert_eq!(
        (site.listening().await.len(), site.groups().await.len()),
        (1, 1)
    );
    assert_eq!(counted(&site.aws.calls())["CreateListener"], 1);
    let events = site.bed.events("web", "TargetsInitial").await;
    assert!(
        events
            .iter()
            .all(|event| event.type_.as_deref() == Some("Normal")),
        "the delay needs no action"
    );
}

#[tokio::test]
async fn late_group_is_deleted_with_its_listener() {
    let (site, _operator) = Site::with_a_late_listener("late-group").await;
    site.respec("web", json!({ "listeners": null })).await;
    site.ready("web").await;
    assert_eq!(
        site.status().await.len(),
        1,
        "AWS may still have objects of the listener"
    );
    site.aws.hide_new(Duration::ZERO);
    site.assert_no_groups_remain().await;
    site.has_listener_status(&[]).await;
}

#[tokio::test]
async fn late_group_is_deleted_with_its_load_balancer() {
    let (site, _operator) = Site::with_a_late_listener("late-end").await;
    site.bed.delete::<MyIngress>("web").await;
    let message = site.has_reason("web", "Terminating").await;
    assert!(message.contains("target group"), "{message}");
    site.aws.hide_new(Duration::ZERO);
    site.is_deleted("web").await;
    assert_eq!(site.groups().await, []);
}

/// AWS shows the tags late, too.
#[tokio::test]
async fn late_tags_prove_ownership() {
    let site = Site::with_nodes("late-tags", &["i-1"]).await;
    let _operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.aws.late_tags(FOR_NOW);
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.becomes("web", "exists", |_| true).await;
    site.aws.late_tags(Duration::ZERO);
    site.arrives(80, &[("i-1", 30_080)]).await;
    site.ready("web").await;

    site.aws.late_tags(FOR_NOW);
    site.respec(
        "web",
        json!({ "listeners": [http(80, "shop"), http(81, "shop")] }),
    )
    .await;
    site.has_reason("web", "TargetsInitial").await;
    site.bed.delete::<MyIngress>("web").await;
    site.has_reason("web", "Terminating").await;
    site.aws.late_tags(Duration::ZERO);
    site.is_deleted("web").await;
    assert_eq!(
        (
            site.aws.balancers().await.unwrap().len(),
            site.groups().await.len()
        ),
        (0, 0)
    );

    // The MyIngress is deleted before the load balancer's owner is known.
    site.aws.late_tags(FOR_NOW);
    site.ingress("web", json!({})).await;
    site.becomes("web", "exists", |_| true).await;
    site.bed.delete::<MyIngress>("web").await;
    let message = site.has_reason("web", "Terminating").await;
    assert!(message.contains("does not show the tags"), "{message}");
    site.aws.late_tags(Duration::ZERO);
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// AWS still shows a deleted load balancer for a while.
#[tokio::test]
async fn finalizer_stays_until_the_load_balancer_is_deleted() {
    let site = Site::new("lingers").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws.linger(FOR_NOW);
    site.bed.delete::<MyIngress>("web").await;
    let message = site.has_reason("web", "Terminating").await;
    assert_eq!(message, "AWS is deleting the load balancer");
    site.aws.linger(Duration::ZERO);
    site.is_deleted("web").await;
    // A reconcile that read the load balancer before it went deletes it again; a later one finds nothing to delete.
    until("an Event of the deletion", SOON, async || {
        let mut events = site.bed.events("web", "AlreadyDeleted").await;
        events.extend(site.bed.events("web", "Deleted").await);
        Ok(events.pop())
    })
    .await
    .unwrap();
}
