//! The operator corrects the fields of the spec, after a change in AWS or of the spec, and does not touch other fields.

use super::*;

#[tokio::test]
async fn operator_settings_are_corrected_and_no_others() {
    let site = Site::new("drift").await;
    let _operator = site.operator().await;
    let groups = site.aws.security_groups();
    let spec = json!({ "securityGroups": [groups[0]], "ipAddressType": "dualstack", "tags": { "team": "shop" } });
    site.ingress("web", spec).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    assert_eq!(
        (made.security_groups.as_slice(), made.tags["team"].as_str()),
        (&groups[..1], "shop")
    );

    let arn = made.arn.as_str();
    site.aws
        .set_subnets(arn, &["subnet-def", "subnet-ghi"])
        .await
        .unwrap();
    site.aws
        .set_security_groups(arn, &[&*groups[1]])
        .await
        .unwrap();
    site.aws.set_ip_address_type(arn, "ipv4").await.unwrap();
    site.aws.tag(arn, "team", "them").await.unwrap();
    // A tag that the operator does not own.
    site.aws.tag(arn, "cost-centre", "7").await.unwrap();
    site.aws.protect(arn, true).await.unwrap();
    site.reconcile("web").await;
    let right = |load_balancer: &Balancer| {
        load_balancer.subnets == made.subnets
            && load_balancer.security_groups == made.security_groups
            && load_balancer.ip_address_type == "dualstack"
            && load_balancer.tags["team"] == "shop"
    };
    let corrected = site.becomes("web", "is corrected", right).await;
    assert_eq!(corrected.tags["cost-centre"], "7");
    assert!(corrected.deletion_protection);
    let event = site.bed.event("web", "Updated").await;
    assert!(
        event.starts_with(
            "Corrected tags, subnets, IP address type, security groups on load balancer web-alb"
        ),
        "{event}"
    );
}

/// Settings that the spec never had stay unchanged.
#[tokio::test]
async fn settings_outside_the_spec_are_unchanged() {
    let site = Site::new("unsaid").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let arn = site.balancer("web").await.unwrap().arn;
    let groups = site.aws.security_groups();
    site.aws
        .set_security_groups(&arn, &[&*groups[1]])
        .await
        .unwrap();
    site.aws
        .set_ip_address_type(&arn, "dualstack")
        .await
        .unwrap();
    site.aws.clear();
    site.reconcile("web").await;
    site.respec("web", json!({ "subnets": ["subnet-abc", "subnet-ghi"] }))
        .await;
    let moved = site
        .becomes("web", "has other subnets", |load_balancer| {
            load_balancer.subnets[1] == "subnet-ghi"
        })
        .await;
    assert_eq!(
        (
            moved.ip_address_type.as_str(),
            moved.security_groups.as_slice()
        ),
        ("dualstack", &groups[1..])
    );
    site.ready("web").await;
    assert_eq!(changing(&site.aws.calls()), ["SetSubnets"]);
}

/// AWS permits 50 tags, so the old ones have to go first.
#[tokio::test]
async fn all_tags_can_be_renamed_at_once() {
    let site = Site::new("renamed").await;
    let _operator = site.operator().await;
    let tags = |prefix: &str| -> BTreeMap<String, String> {
        (0..40)
            .map(|number| (format!("{prefix}{number}"), "x".into()))
            .collect()
    };
    site.ingress("web", json!({ "tags": tags("old") })).await;
    site.ready("web").await;
    let mut changed = json!(tags("new"));
    for old in tags("old").into_keys() {
        changed[old] = Value::Null;
    }
    site.respec("web", json!({ "tags": changed })).await;
    site.ready("web").await;
    let mut actual = site.balancer("web").await.unwrap().tags;
    actual.retain(|key, _| key.starts_with("old") || key.starts_with("new"));
    assert_eq!(actual, tags("new"));
}

/// A rejected correction does not block the others.
#[tokio::test]
async fn rejected_correction_blocks_no_other() {
    let site = Site::new("partly").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let group = site.aws.security_groups().remove(1);
    let spec = json!({ "subnets": ["subnet-abc", "subnet-0000"], "securityGroups": [group] });
    site.respec("web", spec).await;
    let message = site.has_reason("web", "SpecRejected").await;
    assert!(
        message.starts_with("AWS returned SubnetNotFound: "),
        "{message}"
    );
    assert_eq!(site.balancer("web").await.unwrap().security_groups, [group]);
    let event = site.bed.event("web", "Updated").await;
    assert!(
        event.starts_with("Corrected security groups on load balancer web-alb"),
        "{event}"
    );
}

#[tokio::test]
async fn every_change_of_the_spec_applies_and_reverts() {
    let site = Site::new("changes").await;
    let _operator = site.operator().await;
    let groups = site.aws.security_groups();
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    let three = ["subnet-abc", "subnet-def", "subnet-ghi"];
    site.respec("web", json!({ "subnets": three })).await;
    site.becomes("web", "has three subnets", |load_balancer| {
        load_balancer.subnets == three
    })
    .await;
    site.respec("web", json!({ "subnets": SUBNETS })).await;
    site.becomes("web", "has two subnets", |load_balancer| {
        load_balancer.subnets == SUBNETS
    })
    .await;
    site.respec("web", json!({ "ipAddressType": "dualstack" }))
        .await;
    site.becomes("web", "has both addresses", |load_balancer| {
        load_balancer.ip_address_type == "dualstack"
    })
    .await;
    site.respec("web", json!({ "ipAddressType": "ipv4" })).await;
    site.becomes("web", "has one address", |load_balancer| {
        load_balancer.ip_address_type == "ipv4"
    })
    .await;
    site.respec("web", json!({ "securityGroups": groups }))
        .await;
    site.becomes("web", "has two groups", |load_balancer| {
        load_balancer.security_groups.len() == 2
    })
    .await;
    site.respec("web", json!({ "securityGroups": [groups[1]] }))
        .await;
    site.becomes("web", "has the other group", |load_balancer| {
        load_balancer.security_groups == groups[1..]
    })
    .await;
    // The default security groups are no longer known.
    site.respec("web", json!({ "securityGroups": null })).await;
    site.ready("web").await;
    site.respec("web", json!({ "tags": { "a": "1", "b": "2" } }))
        .await;
    site.becomes("web", "has tags", |load_balancer| {
        load_balancer.tags.get("b").is_some_and(|b| b == "2")
    })
    .await;
    site.ready("web").await;
    site.aws.tag(&made.arn, "theirs", "x").await.unwrap();
    site.respec("web", json!({ "tags": { "a": "3", "b": null } }))
        .await;
    let tagged = site
        .becomes("web", "has one tag, changed", |load_balancer| {
            !load_balancer.tags.contains_key("b") && load_balancer.tags["a"] == "3"
        })
        .await;
    assert_eq!(tagged.tags["theirs"], "x");
    site.respec("web", json!({ "tags": null })).await;
    let bare = site
        .becomes("web", "has none", |load_balancer| {
            !load_balancer.tags.contains_key("a")
        })
        .await;
    assert_eq!(bare.security_groups, groups[1..]);
    let ready = site.ready("web").await;
    assert_eq!(ready.status.unwrap().alb.unwrap().managed_tag_keys, [""; 0]);
    assert_eq!(bare.arn, made.arn);

    // AWS rejects subnets outside the load balancer's VPC; the load balancer stays unchanged.
    site.respec("web", json!({ "subnets": testbed::aws::OTHER_SUBNETS }))
        .await;
    let message = site.has_reason("web", "SpecRejected").await;
    assert!(message.starts_with("AWS returned "), "{message}");
    assert_eq!(site.balancer("web").await.unwrap().subnets, SUBNETS);
    site.respec("web", json!({ "subnets": SUBNETS })).await;
    site.ready("web").await;
}
