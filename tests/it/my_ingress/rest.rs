//! Cost while nothing changes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;

const MANY: usize = 200;

/// Number of concurrent reconciles: the batch reads of earlier reconciles ended in the middle of them.
const UNDER_WAY: usize = 16;

#[tokio::test]
#[ignore = "long: run by make test-long"]
async fn reconcile_at_rest_costs_two_batched_reads_and_no_write() {
    let site = Site::new("rest").await;
    site.aws.provisioning(Duration::ZERO);
    let operator = site.operator().await;
    for number in 0..MANY {
        site.ingress(
            &format!("web-{number}"),
            json!({ "tags": { "team": "shop" } }),
        )
        .await;
    }
    for number in 0..MANY {
        site.ready(&format!("web-{number}")).await;
    }
    drop(operator);
    let since = site.bed.plane.audit().mark().await.unwrap();
    site.aws.clear();
    // The list needs several pages.
    site.aws.page_size(150);
    // Only the number of concurrent reconciles limits the calls to AWS. Each object is reconciled again, without a
    // trigger.
    let operator =
        Operator::start(&site.bed, site.settings().flag("--aws-read-period=200ms")).await;
    let arns_read = |calls: &[Arc<Call>]| -> Vec<String> {
        let members = calls.iter().flat_map(|call| call.params.clone());
        members
            .filter(|(name, _)| name.starts_with("ResourceArns."))
            .map(|(_, arn)| arn)
            .collect()
    };
    let all = |calls: &[Arc<Call>]| BTreeSet::from_iter(arns_read(calls)).len() == MANY;
    let calls = site.aws.wait_for(SOON, all).await.unwrap();
    let counted = counted(&calls);
    assert_eq!(
        counted.keys().collect::<Vec<_>>(),
        ["DescribeLoadBalancers", "DescribeTags"]
    );
    let reconciles = arns_read(&calls).len();
    assert!(
        counted["DescribeTags"] < reconciles,
        "{counted:?} for {reconciles}: reads are batched"
    );
    assert!(
        counted["DescribeLoadBalancers"] <= reconciles + UNDER_WAY,
        "{counted:?} for {reconciles}"
    );
    assert_eq!(site.writes(since).await, [""; 0]);

    // The operator reads AWS only while a MyIngress exists.
    drop(operator);
    let other = site.another("none").await;
    let began = Instant::now();
    let operator = other.operator().await;
    other
        .bed
        .create::<k8s_openapi::api::core::v1::ConfigMap>("any", json!({}))
        .await;
    let call_count = site
        .aws
        .calls()
        .iter()
        .filter(|call| call.at > began)
        .count();
    assert_eq!(
        (call_count, operator.probe("readyz").await.unwrap().0),
        (0, 200)
    );
}
