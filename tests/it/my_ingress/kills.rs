//! The operator is killed at each call of AWS while it adopts a load balancer, before the call is sent and after AWS has
//! processed it. Faults at each call and write: `crate::every_write`.

use testbed::aws::{On, Point};

use super::*;
use crate::support::{kill_at_each_write, restart_during};

/// Plays `scene` with an operator that is killed at this call, and restarted. Returns whether the call happened, and
/// the scene's result.
pub(super) async fn kill_at_write<T>(
    site: &Site,
    settings: Settings,
    point: Point,
    call: u64,
    scene: impl Future<Output = T>,
) -> (bool, T) {
    let gate = site.aws.gate(On::all(), call, point);
    let kill = async |operator: &mut Operator| {
        gate.reached(SOON * 10).await.unwrap();
        operator.kill();
        gate.cut();
    };
    let given = restart_during(Operator::launch(&site.bed, settings).await, kill, scene).await;
    (gate.was_reached(), given)
}

/// Returns a load balancer's tags without UIDs.
fn plain(load_balancer: &Balancer) -> Value {
    let tags: BTreeMap<_, _> = load_balancer
        .tags
        .iter()
        .filter(|(key, _)| !key.contains("quartermaster.dev/o"))
        .collect();
    json!([
        load_balancer.subnets,
        load_balancer.security_groups.len(),
        load_balancer.ip_address_type,
        tags
    ])
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
                plain(&load_balancer)
            };
            let happened =
                Box::pin(kill_at_write(&site, site.settings(), point, call, scene)).await;
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
