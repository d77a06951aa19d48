use super::super::OTHER_SUBNETS;
use super::*;

async fn set(aws: &Aws, action: &str, arn: &str, params: &[(&str, &str)]) -> Answer {
    let params: Vec<_> = params
        .iter()
        .copied()
        .chain([("LoadBalancerArn", arn)])
        .collect();
    call(aws, action, &params).await.unwrap()
}

#[tokio::test]
async fn set_subnets_checks_and_changes_subnets() {
    let aws = shared().await;
    let name = fresh("subnets");
    let arn = balancer(aws, &name).await;
    let to = async |subnets: &[&str]| {
        let names: Vec<String> = (1..=subnets.len())
            .map(|at| format!("Subnets.member.{at}"))
            .collect();
        let params: Vec<_> = names
            .iter()
            .map(String::as_str)
            .zip(subnets.iter().copied())
            .collect();
        set(aws, "SetSubnets", &arn, &params).await
    };
    let answer = to(&["subnet-def", "subnet-ghi"]).await;
    let shown: Vec<&str> = answer
        .items()
        .iter()
        .map(|zone| zone.get("SubnetId"))
        .collect();
    assert_eq!(shown, ["subnet-def", "subnet-ghi"]);
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().subnets,
        ["subnet-def", "subnet-ghi"]
    );
    assert_eq!(to(&["subnet-def"]).await.code(), "ValidationError");
    assert_eq!(
        to(&["subnet-def", "subnet-nowhere"]).await.code(),
        "SubnetNotFound"
    );
    assert_eq!(
        to(&["subnet-def", OTHER_SUBNETS[0]]).await.code(),
        "InvalidConfigurationRequest"
    );
    assert_eq!(
        to(&OTHER_SUBNETS).await.code(),
        "InvalidConfigurationRequest"
    );
    assert_eq!(
        to(&["subnet-def", "subnet-def"]).await.code(),
        "InvalidConfigurationRequest"
    );
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().subnets,
        ["subnet-def", "subnet-ghi"]
    );
    aws.set_subnets(&arn, &SUBNETS).await.unwrap();
    assert_eq!(aws.balancer(&name).await.unwrap().unwrap().subnets, SUBNETS);
}

#[tokio::test]
async fn set_security_groups_checks_and_changes_groups() {
    let aws = shared().await;
    let name = fresh("groups");
    let arn = balancer(aws, &name).await;
    let mut two = aws.security_groups();
    two.sort();
    let wanted = [
        ("SecurityGroups.member.1", two[1].as_str()),
        ("SecurityGroups.member.2", two[0].as_str()),
    ];
    let answer = set(aws, "SetSecurityGroups", &arn, &wanted).await;
    assert_eq!(answer.items().len(), 2);
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().security_groups,
        two
    );
    let foreign = aws.foreign_security_group();
    let cases = [
        ("sg-nowhere", "InvalidSecurityGroup"),
        (foreign.as_str(), "InvalidConfigurationRequest"),
    ];
    for (group, code) in cases {
        assert_eq!(
            set(
                aws,
                "SetSecurityGroups",
                &arn,
                &[("SecurityGroups.member.1", group)]
            )
            .await
            .code(),
            code
        );
    }
    assert_eq!(
        set(aws, "SetSecurityGroups", &arn, &[]).await.code(),
        "ValidationError"
    );
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().security_groups,
        two
    );
    let default = aws.default_security_group();
    aws.set_security_groups(&arn, &[&default]).await.unwrap();
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().security_groups,
        [default]
    );
}

#[tokio::test]
async fn set_ip_address_type_checks_and_changes_type() {
    let aws = Aws::start().await.unwrap();
    let arn = balancer(&aws, "one").await;
    let to = async |kind| set(&aws, "SetIpAddressType", &arn, &[("IpAddressType", kind)]).await;
    assert_eq!(
        to("dualstack").await.result().get("IpAddressType"),
        "dualstack"
    );
    assert_eq!(
        aws.balancer("one").await.unwrap().unwrap().ip_address_type,
        "dualstack"
    );
    assert_eq!(to("ipv6").await.code(), "ValidationError");
    assert_eq!(to("").await.code(), "ValidationError");
    aws.set_ip_address_type(&arn, "ipv4").await.unwrap();
    aws.ipv6(false);
    assert_eq!(to("dualstack").await.code(), "InvalidConfigurationRequest");
    let params = in_two(&[("Name", "two"), ("IpAddressType", "dualstack")]);
    assert_eq!(
        refused(&aws, "CreateLoadBalancer", &params).await,
        "InvalidConfigurationRequest"
    );
    assert_eq!(
        aws.balancer("one").await.unwrap().unwrap().ip_address_type,
        "ipv4"
    );
}

#[tokio::test]
async fn changes_of_missing_load_balancer_are_rejected() {
    let aws = shared().await;
    let arn = balancer(aws, &fresh("gone")).await;
    aws.delete(&arn).await.unwrap();
    let changes = [
        "SetSubnets",
        "SetSecurityGroups",
        "SetIpAddressType",
        "ModifyLoadBalancerAttributes",
    ];
    for action in changes
        .into_iter()
        .chain(["DescribeLoadBalancerAttributes"])
    {
        assert_eq!(
            set(aws, action, &arn, &TWO).await.code(),
            "LoadBalancerNotFound",
            "{action}"
        );
        assert_eq!(
            set(aws, action, "arn:aws:what", &TWO).await.code(),
            "ValidationError",
            "{action}"
        );
    }
}
