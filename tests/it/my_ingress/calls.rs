//! Calls of AWS and their possible errors, compared with AWS's own model of its API.

use std::collections::BTreeSet;

use qm_aws::action::{AwsAction, GROUP_PREFIX};
use qm_aws::error::CODES;
use testbed::aws;

use super::nodes::http;
use super::*;

/// botocore has the model from which AWS generates its SDKs.
#[tokio::test]
async fn every_error_of_the_api_is_in_the_table() {
    let model = aws::api_model().await.unwrap();
    let shapes = model["shapes"].as_object().unwrap();
    let errors: BTreeSet<_> = shapes
        .values()
        .filter_map(|shape| shape["error"]["code"].as_str())
        .collect();
    let known: BTreeSet<_> = CODES.iter().map(|(code, ..)| *code).collect();
    assert!(errors.len() > 40, "{errors:?}");
    let missing: Vec<_> = errors.difference(&known).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The policy of the documentation allows these actions: the operator uses each, and no other. Actions without a
/// permission do not count.
#[tokio::test]
async fn called_actions_match_the_policy() {
    let site = Site::with_nodes("calls", &["i-1", "i-2"]).await;
    let _operator = site.reaching().await;
    let group = site.aws.security_groups().remove(0);
    site.ingress("web", json!({ "tags": { "a": "1" } })).await;
    site.ready("web").await;
    let three = ["subnet-abc", "subnet-def", "subnet-ghi"];
    let all = json!({ "subnets": three, "securityGroups": [group], "ipAddressType": "dualstack", "tags": { "a": null, "b": "2" } });
    site.respec("web", all).await;
    site.ready("web").await;
    site.service("shop", 30_080).await;
    site.respec("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.ready("web").await;
    assert!(
        site.groups()
            .await
            .iter()
            .all(|group| group.name.starts_with(GROUP_PREFIX))
    );
    let mut secure = http(80, "shop");
    secure["protocol"] = "HTTPS".into();
    secure["certificateArn"] = site.aws.certificate().await.unwrap().into();
    secure["healthCheckPath"] = "/healthz".into();
    site.respec("web", json!({ "listeners": [secure] })).await;
    site.ready("web").await;
    let calls = site.aws.calls().len();
    site.delete_node("i-2").await;
    let deregistered =
        |calls: &[Arc<Call>]| calls.iter().any(|call| call.action == "DeregisterTargets");
    assert!(
        !deregistered(&site.aws.calls()[..calls]),
        "a security group that stays is not removed"
    );
    site.aws.wait_for(SOON, deregistered).await.unwrap();
    site.respec("web", json!({ "listeners": null })).await;
    site.ready("web").await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    let called: BTreeSet<_> = counted(&site.aws.calls()).into_keys().collect();
    let granted = AwsAction::ALL
        .into_iter()
        .filter(|action| *action != AwsAction::GetCallerIdentity);
    let granted: BTreeSet<_> = granted.map(|action| action.name().to_owned()).collect();
    assert_eq!(called, granted);
}
