//! AWS shows late what it was asked for: nothing is made twice, nothing is forgotten.

use std::time::Duration;

use super::nodes::http;
use super::*;

const FOR_NOW: Duration = Duration::from_hours(1);

impl Site {
    /// One whose balancer is shown, and whose listener is asked for and is not.
    async fn with_a_late_listener(name: &str) -> (Self, Operator) {
        let site = Self::with_nodes(name, &["i-1"]).await;
        let operator = site.reaching().await;
        site.service("shop", 30_080).await;
        site.ingress("web", json!({})).await;
        site.ready("web").await;
        site.aws.hide_new(FOR_NOW);
        site.respec("web", json!({ "listeners": [http(80, "shop")] }))
            .await;
        let words = site.says("web", "TargetsInitial").await;
        assert!(words.contains("does not show it yet"), "{words}");
        assert_eq!(site.groups().await.len(), 1);
        (site, operator)
    }

    async fn no_group_is_left(&self) {
        until("the group is gone", SOON, async || {
            Ok(self.groups().await.is_empty().then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn a_listener_that_is_shown_late_is_made_once() {
    let (site, _operator) = Site::with_a_late_listener("late-listener").await;
    site.aws.hide_new(Duration::ZERO);
    site.arrives(80, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    assert_eq!(
        (site.listening().await.len(), site.groups().await.len()),
        (1, 1)
    );
    assert_eq!(counted(&site.aws.calls())["CreateListener"], 1);
    let told = site.bed.events("web", "TargetsInitial").await;
    assert!(
        told.iter()
            .all(|event| event.type_.as_deref() == Some("Normal")),
        "it passes by itself"
    );
}

#[tokio::test]
async fn a_group_that_is_not_shown_yet_goes_with_its_listener() {
    let (site, _operator) = Site::with_a_late_listener("late-group").await;
    site.respec("web", json!({ "listeners": null })).await;
    site.ready("web").await;
    assert_eq!(site.status().await.len(), 1, "there may be something of it");
    site.aws.hide_new(Duration::ZERO);
    site.no_group_is_left().await;
    site.tells(&[]).await;
}

#[tokio::test]
async fn a_group_that_is_not_shown_yet_goes_with_its_balancer() {
    let (site, _operator) = Site::with_a_late_listener("late-end").await;
    site.bed.delete::<MyIngress>("web").await;
    let words = site.says("web", "Terminating").await;
    assert!(words.contains("target group"), "{words}");
    site.aws.hide_new(Duration::ZERO);
    site.gone("web").await;
    assert_eq!(site.groups().await, []);
}

/// Whose it is shows late, too.
#[tokio::test]
async fn tags_that_are_shown_late() {
    let site = Site::with_nodes("late-tags", &["i-1"]).await;
    let _operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.aws.late_tags(FOR_NOW);
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.becomes("web", "is there", |_| true).await;
    site.aws.late_tags(Duration::ZERO);
    site.arrives(80, &[("i-1", 30_080)]).await;
    site.ready("web").await;

    site.aws.late_tags(FOR_NOW);
    site.respec(
        "web",
        json!({ "listeners": [http(80, "shop"), http(81, "shop")] }),
    )
    .await;
    site.says("web", "TargetsInitial").await;
    site.bed.delete::<MyIngress>("web").await;
    site.says("web", "Terminating").await;
    site.aws.late_tags(Duration::ZERO);
    site.gone("web").await;
    assert_eq!(
        (
            site.aws.balancers().await.unwrap().len(),
            site.groups().await.len()
        ),
        (0, 0)
    );

    // Deleted before it is known whose it is.
    site.aws.late_tags(FOR_NOW);
    site.ingress("web", json!({})).await;
    site.becomes("web", "is there", |_| true).await;
    site.bed.delete::<MyIngress>("web").await;
    let words = site.says("web", "Terminating").await;
    assert!(words.contains("whose"), "{words}");
    site.aws.late_tags(Duration::ZERO);
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// AWS shows a balancer for a while yet that it was asked to delete.
#[tokio::test]
async fn the_finalizer_stays_until_the_balancer_is_gone() {
    let site = Site::new("lingers").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws.linger(FOR_NOW);
    site.bed.delete::<MyIngress>("web").await;
    let words = site.says("web", "Terminating").await;
    assert_eq!(words, "AWS deletes the load balancer");
    site.aws.linger(Duration::ZERO);
    site.gone("web").await;
    site.bed.event("web", "AlreadyDeleted").await;
}
