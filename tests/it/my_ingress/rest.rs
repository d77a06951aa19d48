//! What it costs while nothing changes.

use std::time::Duration;

use super::*;

const MANY: usize = 200;

/// What the documentation says of a steady pass.
const READS: usize = 2;

/// How many passes run at once: what they had asked before was forgotten in the middle of them.
const UNDER_WAY: usize = 16;

#[tokio::test]
async fn two_reads_each_and_no_write() {
    let site = Site::new("rest").await;
    site.aws.provisioning(Duration::ZERO);
    let operator = Operator::start(&site.bed, site.settings().flag("--aws-resync=5s")).await;
    for number in 0..MANY {
        site.ingress(&format!("web-{number}"), json!({ "tags": { "team": "shop" } })).await;
    }
    for number in 0..MANY {
        site.ready(&format!("web-{number}")).await;
    }
    let since = site.bed.plane.audit().mark().await.unwrap();
    site.aws.clear();
    // Each is looked at again, all on their own.
    let names = |calls: &[Arc<Call>]| {
        let asked = calls.iter().filter_map(|call| call.params.get("Names.member.1").cloned());
        asked.collect::<std::collections::BTreeSet<_>>().len()
    };
    let calls = site.aws.wait_for(SOON * 2, |calls| names(calls) == MANY).await.unwrap();
    let counted = counted(&calls);
    assert_eq!(counted.keys().collect::<Vec<_>>(), ["DescribeLoadBalancers", "DescribeTags"]);
    let described = counted["DescribeLoadBalancers"];
    assert!(counted["DescribeTags"] <= described * (READS - 1) + UNDER_WAY, "{counted:?}");
    assert_eq!(site.writes(since).await, [""; 0]);

    // Nobody asks before there is one, and nobody once there is none.
    drop(operator);
    let other = site.another(site.bed.plane.clone(), "none").await;
    site.aws.clear();
    let operator = other.operator().await;
    other.bed.create::<k8s_openapi::api::core::v1::ConfigMap>("any", json!({})).await;
    assert_eq!((site.aws.calls().len(), operator.probe("readyz").await.unwrap().0), (0, 200));
}
