//! Ownership of load balancers: the operator never changes, deletes or claims an unowned one.

use testbed::aws::{On, Point, REGION};
use testbed::proxy::{Fault, Match, Then, Times, Verb};

use super::*;
use crate::pins::metrics::reconciles;

const UID: &str = "quartermaster.dev/owner-uid";
const CLUSTER: &str = "quartermaster.dev/cluster";
const ADOPT_BY: &str = "quartermaster.dev/adopt-by";

type Tags<'a> = &'a [(&'a str, &'a str)];

/// Runs the commands in a condition's message, word for word.
pub(super) async fn run_adopt_commands(site: &Site, message: &str) {
    for commands in message.split("to adopt it: ").skip(1) {
        let commands = commands.split("; ").next().unwrap();
        let (aws, kubectl) = commands.split_once(" && ").unwrap();
        let aws: Vec<_> = aws.split(' ').collect();
        assert_eq!(
            aws[..6],
            [
                "aws",
                "--region",
                REGION,
                "elbv2",
                "add-tags",
                "--resource-arns"
            ]
        );
        assert_eq!(aws[7], "--tags");
        let (key, value) = aws[8]
            .strip_prefix("Key=")
            .unwrap()
            .split_once(",Value=")
            .unwrap();
        site.aws.tag(aws[6], key, value).await.unwrap();
        let now = uuid::Uuid::new_v4().to_string();
        let again = kubectl
            .strip_prefix("kubectl ")
            .unwrap()
            .replace("\"$(date +%s)\"", &now);
        site.bed
            .plane
            .run_kubectl(&again.split(' ').collect::<Vec<_>>(), "")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn foreign_load_balancer_is_unchanged_until_adoption() {
    let site = Site::new("foreign").await;
    let _operator = site.operator().await;
    let owner = site.path("a");
    let cases: [(&str, Tags<'_>, &str); 5] = [
        ("untagged", &[], "is not owned"),
        ("kopf", &[("ManagedBy", "kopf")], "is not owned"),
        (
            "byname",
            &[
                ("ManagedBy", "quartermaster"),
                ("quartermaster.dev/owner", &owner),
            ],
            "is not owned",
        ),
        (
            "elsewhere",
            &[
                (CLUSTER, "other"),
                (UID, "u"),
                ("quartermaster.dev/owner", "shop/elsewhere"),
            ],
            "of cluster other",
        ),
        ("promised", &[(ADOPT_BY, "shop/another")], "is not owned"),
    ];
    for (name, tags, whose) in cases {
        // The adopted load balancer has other settings, so that the operator also corrects them.
        let subnets = ["subnet-abc", "subnet-ghi"];
        let arn = site
            .aws
            .create(&format!("{name}-alb"), &subnets, "internet-facing", tags)
            .await
            .unwrap();
        let before = site.balancer(name).await.unwrap();
        site.aws.clear();
        site.ingress(name, json!({})).await;
        let message = site.has_reason(name, "Conflict").await;
        assert!(message.contains(whose), "{message}");
        site.reconcile(name).await;
        site.aws
            .wait_for(SOON, |calls| calls.len() >= 4)
            .await
            .unwrap();
        // A third read begins after the second has ended.
        site.reconcile(name).await;
        site.aws
            .wait_for(SOON, |calls| calls.len() >= 6)
            .await
            .unwrap();
        site.has_reason(name, "Conflict").await;
        assert_eq!(changing(&site.aws.calls()), [""; 0], "{name}");
        let ingress: MyIngress = site.bed.api().get(name).await.unwrap();
        let alb = ingress.status.unwrap().alb.unwrap();
        assert_eq!(
            (alb.arn, alb.dns),
            (None, None),
            "the status leaves out a foreign load balancer"
        );

        run_adopt_commands(&site, &message).await;
        site.ready(name).await;
        let after = site.balancer(name).await.unwrap();
        assert_eq!(
            (after.arn.as_str(), after.dns.as_str()),
            (arn.as_str(), before.dns.as_str())
        );
        assert_eq!(
            (after.tags["ManagedBy"].as_str(), after.tags.get(ADOPT_BY)),
            ("quartermaster", None)
        );
        assert_eq!(after.tags["quartermaster.dev/owner"], site.path(name));
        assert_eq!(after.subnets, SUBNETS);
        let event = site.bed.event(name, "Adopted").await;
        assert!(event.contains(&arn), "{event}");
    }
}

#[tokio::test]
async fn load_balancer_without_tags_is_unowned() {
    let site = Site::new("stripped").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();

    // The operator restores tags that prove nothing.
    for key in ["ManagedBy", "quartermaster.dev/owner"] {
        site.aws.untag(&made.arn, key).await.unwrap();
        site.reconcile("web").await;
        let whole = site
            .becomes("web", "has its tags again", |load_balancer| {
                load_balancer.tags == made.tags
            })
            .await;
        assert_eq!(whole.arn, made.arn);
    }
    for key in made.tags.keys() {
        site.aws.untag(&made.arn, key).await.unwrap();
    }
    site.aws.clear();
    site.reconcile("web").await;
    let message = site.has_reason("web", "Conflict").await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    assert_eq!(changing(&site.aws.calls()), [""; 0]);
    assert_eq!(site.balancer("web").await.unwrap().tags, BTreeMap::new());

    // An ARN in a status proves nothing either, nor do the tags of the original program.
    let status = json!({ "alb": { "arn": made.arn, "dns": made.dns }, "create_ingress": { "alb-arn": made.arn } });
    let kopf = json!({ "kopf.zalando.org/last-handled-configuration": "{}\n" });
    let spec = json!({ "subnets": SUBNETS, "suspend": true });
    let _: MyIngress = site
        .bed
        .create(
            "web",
            json!({ "metadata": { "annotations": kopf }, "spec": spec }),
        )
        .await;
    site.has_reason("web", "Suspended").await;
    let patch = kube::api::Patch::Merge(json!({ "status": status }));
    site.bed
        .api::<MyIngress>()
        .patch_status("web", &Default::default(), &patch)
        .await
        .unwrap();
    site.respec("web", json!({ "suspend": false })).await;
    assert_eq!(site.has_reason("web", "Conflict").await, message);
    assert_eq!(changing(&site.aws.calls()), [""; 0]);
    run_adopt_commands(&site, &message).await;
    site.ready("web").await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// Starts an operator that watches the namespaces of both.
async fn operator_of_both(site: &Site, other: &Site) -> Operator {
    let (first, second) = (&site.bed.namespace, &other.bed.namespace);
    let flag = format!("--watch-namespace={first},{second}");
    Operator::start(&site.bed, site.settings().flag(&flag)).await
}

#[tokio::test]
async fn second_of_two_objects_with_one_name_is_rejected() {
    let site = Site::new("first").await;
    let other = site.another("second").await;
    let _operator = operator_of_both(&site, &other).await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    site.aws.clear();
    other.ingress("web", json!({})).await;
    let message = other.has_reason("web", "NameTaken").await;
    assert!(
        message.starts_with(&format!(
            "MyIngress {} owns load balancer web-alb",
            site.path("web")
        )),
        "{message}"
    );
    // The second MyIngress is deleted without a trace, ...
    other.bed.delete::<MyIngress>("web").await;
    other.is_deleted("web").await;
    assert_eq!(changing(&site.aws.calls()), [""; 0]);
    assert_eq!(
        site.aws.balancers().await.unwrap(),
        std::slice::from_ref(&made)
    );
    // ... or gets the name once the first is deleted.
    other.ingress("web", json!({})).await;
    other.has_reason("web", "NameTaken").await;
    site.bed.delete::<MyIngress>("web").await;
    other.ready("web").await;
    assert_ne!(other.balancer("web").await.unwrap().arn, made.arn);
}

/// A deleted MyIngress waits for no name.
#[tokio::test]
async fn deleted_objects_with_one_name_do_not_wake_each_other() {
    let site = Site::new("kept").await;
    let other = site.another("kept-too").await;
    let operator = operator_of_both(&site, &other).await;
    let kept = json!({ "metadata": { "finalizers": ["example.com/kept"] } });
    for it in [&site, &other] {
        it.ingress("web", json!({ "suspend": true })).await;
        it.bed.patch::<MyIngress>("web", kept.clone()).await;
        it.bed.delete::<MyIngress>("web").await;
    }
    site.ingress("next", json!({ "suspend": true })).await;
    site.has_reason("next", "Suspended").await;
    let reconciles = reconciles(&operator.metrics().await, "myingress");
    assert!(reconciles < 100, "{reconciles} reconciles");
    for bed in [&site.bed, &other.bed] {
        let freed = json!({ "metadata": { "finalizers": null } });
        bed.patch::<MyIngress>("web", freed).await;
    }
}

/// AWS answers a creation with an existing load balancer of that name and those settings, whoever created it.
#[tokio::test]
async fn load_balancer_created_meanwhile_is_not_claimed() {
    let site = Site::new("between").await;
    let gate = site
        .aws
        .gate(On::action("CreateLoadBalancer"), 1, Point::Before);
    let _operator = Operator::start(
        &site.bed,
        site.settings().flag("--aws-consistency-window=2s"),
    )
    .await;
    site.ingress("web", json!({})).await;
    gate.reached(SOON).await.unwrap();
    let foreign = site
        .aws
        .create("web-alb", &SUBNETS, "internet-facing", &[])
        .await
        .unwrap();
    gate.release();
    site.has_reason("web", "Conflict").await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    let left = site.aws.balancers().await.unwrap();
    assert_eq!(
        (left.len(), &left[0].arn, left[0].tags.len()),
        (1, &foreign, 0)
    );
    assert_eq!(changing(&site.aws.calls()), ["CreateLoadBalancer"]);
}

/// The operator does not claim back a load balancer that is tagged for another owner.
#[tokio::test]
async fn owned_load_balancer_moves_to_another_owner() {
    let site = Site::new("handed").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let arn = site.balancer("web").await.unwrap().arn;
    site.aws.tag(&arn, ADOPT_BY, "another/web").await.unwrap();
    site.aws
        .tag(&arn, "quartermaster.dev/owner", "somebody")
        .await
        .unwrap();
    site.reconcile("web").await;
    let whole = |load_balancer: &Balancer| {
        load_balancer.tags["quartermaster.dev/owner"] == site.path("web")
    };
    let looked_at = site.becomes("web", "has its tags again", whole).await;
    assert_eq!(looked_at.tags[ADOPT_BY], "another/web");
}

/// The cache shows a deleted object: the operator creates nothing for it.
#[tokio::test]
async fn deleted_object_creates_nothing() {
    let site = Site::new("gone").await;
    let (proxy, file) = site.bed.through_proxy().await;
    let api: Api<MyIngress> = site.bed.api();
    let noted = Match::verb(Verb::Patch)
        .resource("myingresses")
        .subresource("status");
    let reached = Arc::new(tokio::sync::Notify::new());
    let hook = {
        let (reached, api) = (Arc::clone(&reached), api.clone());
        Fault::hook(testbed::proxy::Point::Before, move |_| {
            let (reached, api) = (Arc::clone(&reached), api.clone());
            async move {
                let none = kube::api::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                api.delete("web", &Default::default()).await.unwrap();
                api.patch("web", &Default::default(), &none).await.unwrap();
                reached.notify_one();
                Then::GoOn
            }
        })
    };
    let order = proxy.inject(noted, Times::First(1), hook);
    let _operator = Operator::start(&site.bed, site.settings().kubeconfig(file)).await;
    site.ingress("web", json!({})).await;
    reached.notified().await;
    site.is_deleted("web").await;
    site.ingress("marker", json!({})).await;
    site.ready("marker").await;
    assert_eq!(order.hits(), 1);
    let made: Vec<_> = site
        .aws
        .balancers()
        .await
        .unwrap()
        .into_iter()
        .map(|load_balancer| load_balancer.name)
        .collect();
    assert_eq!(made, ["marker-alb"]);
}

/// In another region, the operator neither recreates nor forgets the load balancer.
#[tokio::test]
async fn other_region_changes_nothing() {
    let site = Site::new("region").await;
    let mut operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    operator.kill();
    drop(operator);
    let moved = Operator::start(&site.bed, site.settings().env("AWS_REGION", "eu-central-1")).await;
    let message = site.has_reason("web", "RegionMismatch").await;
    assert!(message.contains("is not in eu-central-1"), "{message}");
    site.bed.delete::<MyIngress>("web").await;
    site.reconcile("web").await;
    site.has_reason("web", "RegionMismatch").await;
    drop(moved);
    let _operator = site.operator().await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// In another account, no load balancer has the name, or a foreign one.
#[tokio::test]
async fn other_account_changes_nothing() {
    let (site, other) = (Site::new("account").await, Aws::start().await.unwrap());
    let operator = site.operator().await;
    let taken = other
        .create("taken-alb", &SUBNETS, "internet-facing", &[])
        .await
        .unwrap();
    let names = ["web", "taken"];
    for name in names {
        site.ingress(name, json!({})).await;
        site.ready(name).await;
    }
    drop(operator);
    let moved = Operator::start(&site.bed, Settings::default().aws(&other)).await;
    for name in names {
        let message = site.has_reason(name, "AccountMismatch").await;
        let account = taken.split(':').nth(4).unwrap();
        let made = site.balancer(name).await.unwrap();
        assert!(
            message.starts_with(&format!("{} is not in {account}, the account", made.arn)),
            "{message}"
        );
        site.bed.delete::<MyIngress>(name).await;
        site.has_reason(name, "AccountMismatch").await;
    }
    assert_eq!(changing(&other.calls()), [""; 0]);
    drop(moved);
    let _operator = site.operator().await;
    for name in names {
        site.is_deleted(name).await;
    }
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// All UIDs are new after a restore from a backup, and the status is lost.
#[tokio::test]
async fn ownership_is_restored_after_a_backup() {
    let site = Site::new("restored").await;
    let operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    drop(operator);
    site.bed.delete::<MyIngress>("web").await;
    site.bed
        .patch::<MyIngress>("web", json!({ "metadata": { "finalizers": null } }))
        .await;
    site.is_deleted("web").await;
    let restored = site.ingress("web", json!({})).await;
    let _operator = site.operator().await;
    site.ready("web").await;
    let taken = site.balancer("web").await.unwrap();
    assert_eq!(
        (taken.arn, &taken.tags[UID]),
        (made.arn, &restored.uid().unwrap())
    );
}

/// The immutable scheme is checked before any tag is written.
#[tokio::test]
async fn other_scheme_prevents_adoption() {
    let site = Site::new("scheme").await;
    let _operator = site.operator().await;
    let adopt = [(ADOPT_BY, &*site.path("web"))];
    site.aws
        .create("web-alb", &SUBNETS, "internal", &adopt)
        .await
        .unwrap();
    site.ingress("web", json!({})).await;
    let message = site.has_reason("web", "Incompatible").await;
    assert!(
        message.starts_with("the scheme of load balancer web-alb is internal"),
        "{message}"
    );
    assert_eq!(changing(&site.aws.calls()), [""; 0]);
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    site.ingress("web", json!({ "scheme": "internal" })).await;
    site.ready("web").await;
}
