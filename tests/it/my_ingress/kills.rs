//! The operator is killed at each call of AWS, before the call is sent and after AWS has processed it: in the end there
//! is exactly one load balancer, or none.

use testbed::aws::{On, Point};

use super::*;
use crate::support::{kill_at_each_write, restart_during};

/// Plays `scene` with an operator that is killed at this call, and restarted. Returns whether the call happened, and
/// the scene's result.
pub(super) async fn kill_at_call<T>(
    site: &Site,
    settings: Settings,
    point: Point,
    call: u64,
    scene: impl Future<Output = T>,
) -> (bool, T) {
    let gate = site.aws.gate(On::all(), call, point);
    let kill = async |operator: &mut Operator| {
        gate.reached(SOON).await.unwrap();
        operator.kill();
        gate.cut();
    };
    let given = restart_during(Operator::launch(&site.bed, settings).await, kill, scene).await;
    (gate.was_reached(), given)
}

/// Returns what must not differ from run to run.
fn comparable(site: &Site, load_balancer: &Balancer) -> Value {
    let tags: BTreeMap<_, _> = load_balancer
        .tags
        .iter()
        .filter(|(key, _)| !key.contains("quartermaster.dev/o"))
        .collect();
    let groups = load_balancer.security_groups.iter();
    let groups = groups.map(|id| site.aws.security_group_name(id));
    json!([
        load_balancer.subnets,
        groups.collect::<Vec<_>>(),
        load_balancer.ip_address_type,
        tags
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_call_leaves_one_load_balancer_or_none() {
    let site = Site::new("killed").await;
    let calls = kill_at_each_write(&[Point::Before, Point::After], async |point, call| {
        // Each of the two has its own AWS, and they run side by side.
        let site = match point {
            Point::Before => site.another("killed").await,
            Point::After => Site::new("killed").await,
        };
        site.aws.provisioning(std::time::Duration::ZERO);
        let scene = async {
            site.ingress("web", json!({ "tags": { "team": "a" } }))
                .await;
            site.ready("web").await;
            let group = site.aws.security_groups().remove(0);
            let third = ["subnet-abc", "subnet-def", "subnet-ghi"];
            let changed = json!({ "subnets": third, "securityGroups": [group], "ipAddressType": "dualstack" });
            let mut changed = changed;
            changed["tags"] = json!({ "team": null, "stage": "test" });
            site.respec("web", changed).await;
            site.ready("web").await;
            let load_balancers = site.aws.balancers().await.unwrap();
            assert_eq!(load_balancers.len(), 1);
            site.bed.delete::<MyIngress>("web").await;
            site.is_deleted("web").await;
            assert_eq!(site.aws.balancers().await.unwrap(), []);
            comparable(&site, &load_balancers[0])
        };
        Box::pin(kill_at_call(&site, site.settings(), point, call, scene)).await
    });
    let calls = Box::pin(calls).await;
    // Describe, create, describe tags; describe tags, two for tags, three for attributes; describe tags, describe,
    // delete, describe.
    assert!(calls.iter().all(|calls| *calls >= 14), "{calls:?} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_during_adoption_completes_the_adoption() {
    let site = Site::new("killed").await;
    site.aws.provisioning(std::time::Duration::ZERO);
    for point in [Point::Before, Point::After] {
        let points = [point];
        let calls = kill_at_each_write(&points, async |point, call| {
            let site = site.another("killed").await;
            let adopt = [
                ("ManagedBy", "kopf"),
                ("quartermaster.dev/adopt-by", &*site.path("web")),
            ];
            let arn = site
                .aws
                .create("web-alb", &SUBNETS, "internet-facing", &adopt)
                .await
                .unwrap();
            let scene = async {
                site.ingress("web", json!({})).await;
                site.ready("web").await;
                let load_balancer = site.balancer("web").await.unwrap();
                assert_eq!(load_balancer.arn, arn);
                assert_eq!(
                    load_balancer.tags["quartermaster.dev/owner"],
                    site.path("web")
                );
                comparable(&site, &load_balancer)
            };
            let happened = Box::pin(kill_at_call(&site, site.settings(), point, call, scene)).await;
            site.aws.delete(&arn).await.unwrap();
            happened
        });
        let calls = Box::pin(calls).await;
        assert!(
            calls[0] >= 4,
            "describe, read tags, add tags, remove the consent: {calls:?}"
        );
    }
}
