use super::super::OTHER_SUBNETS;
use super::*;

#[tokio::test]
async fn load_balancer_is_created_described_and_deleted() {
    let aws = Aws::start().await.unwrap();
    aws.keep_provisioning(true);
    let params = [
        ("Name", "nginx-alb"),
        ("Tags.member.1.Key", "ManagedBy"),
        ("Tags.member.1.Value", "kopf"),
    ];
    let made = ok(&aws, "CreateLoadBalancer", &in_two(&params)).await;
    let arn = made.get("LoadBalancerArn").to_owned();
    let dns = made.get("DNSName").to_owned();
    assert!(
        dns.starts_with("nginx-alb-") && dns.ends_with(".us-east-1.elb.amazonaws.com"),
        "{dns}"
    );
    let zones: Vec<&str> = made
        .only()
        .members("AvailabilityZones")
        .iter()
        .map(|zone| zone.get("SubnetId"))
        .collect();
    assert_eq!(zones, SUBNETS[..2]);
    assert_eq!(state_of(&aws, &arn).await, "provisioning");
    aws.keep_provisioning(false);
    let active = async || Ok((state_of(&aws, &arn).await == "active").then_some(()));
    wait::until("the load balancer to be active", DEADLINE, active)
        .await
        .unwrap();
    let there = aws.balancer("nginx-alb").await.unwrap().unwrap();
    let expected = super::super::Balancer {
        name: "nginx-alb".to_owned(),
        arn: arn.clone(),
        dns: dns.clone(),
        scheme: "internet-facing".to_owned(),
        state: "active".to_owned(),
        vpc: aws.vpc(),
        subnets: SUBNETS[..2].iter().map(ToString::to_string).collect(),
        security_groups: vec![aws.default_security_group()],
        ip_address_type: "ipv4".to_owned(),
        tags: [("ManagedBy".to_owned(), "kopf".to_owned())].into(),
        deletion_protection: false,
    };
    assert_eq!(there, expected);
    aws.set_state("nginx-alb", "failed", "no capacity").unwrap();
    assert_eq!(state_of(&aws, &arn).await, "failed");
    ok(&aws, "DeleteLoadBalancer", &[("LoadBalancerArn", &arn)]).await;
    assert!(aws.balancers().await.unwrap().is_empty());
    ok(&aws, "DeleteLoadBalancer", &[("LoadBalancerArn", &arn)]).await;
    assert_eq!(
        refused(&aws, "DescribeTags", &[("ResourceArns.member.1", &arn)]).await,
        "LoadBalancerNotFound"
    );
    // Another load balancer with the same name gets another address.
    let again = ok(
        &aws,
        "CreateLoadBalancer",
        &in_two(&[("Name", "nginx-alb")]),
    )
    .await;
    assert_ne!(
        (again.get("LoadBalancerArn"), again.get("DNSName")),
        (arn.as_str(), dns.as_str())
    );
    let actions: Vec<String> = aws
        .calls()
        .iter()
        .filter(|call| !call.is_read())
        .map(|call| call.action.clone())
        .collect();
    let create = "CreateLoadBalancer";
    assert_eq!(
        actions,
        [create, "DeleteLoadBalancer", "DeleteLoadBalancer", create]
    );
    assert_eq!(aws.calls()[0].params["Tags.member.1.Value"], "kopf");
    assert_eq!(
        aws.calls()[0].answer,
        Outcome::Answered {
            http: 200,
            code: None
        }
    );
    aws.clear();
    assert!(aws.calls().is_empty());
}

#[tokio::test]
async fn identical_create_returns_existing_load_balancer() {
    let aws = shared().await;
    let name = fresh("same");
    let arn = aws
        .create(
            &name,
            &["subnet-abc", "subnet-def"],
            "internal",
            &[("owner", "me")],
        )
        .await
        .unwrap();
    let again = [
        ("Name", name.as_str()),
        ("Scheme", "internal"),
        ("Subnets.member.1", "subnet-def"),
        ("Subnets.member.2", "subnet-abc"),
        ("Tags.member.1.Key", "owner"),
        ("Tags.member.1.Value", "you"),
    ];
    assert_eq!(
        ok(aws, "CreateLoadBalancer", &again)
            .await
            .get("LoadBalancerArn"),
        arn
    );
    assert_eq!(
        aws.balancer(&name).await.unwrap().unwrap().tags["owner"],
        "me"
    );
    let group = aws.security_groups().remove(0);
    let differences = [
        ("Scheme", "internet-facing"),
        ("Subnets.member.2", "subnet-ghi"),
        ("Subnets.member.3", "subnet-ghi"),
        ("IpAddressType", "dualstack"),
        ("SecurityGroups.member.1", &group),
        ("Type", "network"),
    ];
    for difference in differences {
        let other: Vec<_> = again
            .into_iter()
            .filter(|(name, _)| *name != difference.0)
            .chain([difference])
            .collect();
        assert_eq!(
            refused(aws, "CreateLoadBalancer", &other).await,
            "DuplicateLoadBalancerName",
            "{difference:?}"
        );
    }
    let of_that_name =
        |all: Vec<super::super::Balancer>| all.into_iter().filter(|one| one.name == name).count();
    assert_eq!(of_that_name(aws.balancers().await.unwrap()), 1);
}

#[tokio::test]
async fn invalid_create_is_rejected() {
    let aws = shared().await;
    aws.add_subnet("subnet-same-zone", 'a').await.unwrap();
    let foreign = aws.foreign_security_group();
    let (longest, too_long) = (format!("a{:031}", 1), format!("a{:032}", 1));
    let validation = "ValidationError";
    let configuration = "InvalidConfigurationRequest";
    let of = |name: &'static str, value| ("good", vec![(name, value)]);
    let names = ["", "-a", "a-", "a_b", "ä", "internal-a", &too_long];
    let mut cases: Vec<(_, Vec<(&str, &str)>, &str)> = names
        .iter()
        .map(|name| (*name, Vec::new(), validation))
        .collect();
    let wrong = [
        (of("Scheme", "external"), validation),
        (of("Type", "classic"), validation),
        (of("IpAddressType", "ipv6"), validation),
        (of("Subnets.member.2", "subnet-nowhere"), "SubnetNotFound"),
        (of("Subnets.member.2", OTHER_SUBNETS[1]), configuration),
        (of("Subnets.member.2", "subnet-same-zone"), configuration),
        (of("Subnets.member.2", "subnet-abc"), configuration),
        (
            of("SecurityGroups.member.1", "sg-nowhere"),
            "InvalidSecurityGroup",
        ),
        (of("SecurityGroups.member.1", &foreign), configuration),
    ];
    cases.extend(
        wrong
            .into_iter()
            .map(|((name, params), code)| (name, params, code)),
    );
    for (name, changes, code) in cases {
        let mut params = in_two(&[("Name", name)]);
        params.extend(changes); // the last of two equal parameters wins
        assert_eq!(
            refused(aws, "CreateLoadBalancer", &params).await,
            code,
            "{params:?}"
        );
    }
    let one = [("Name", "good"), ("Subnets.member.1", "subnet-abc")];
    assert_eq!(refused(aws, "CreateLoadBalancer", &one).await, validation);
    assert_eq!(
        refused(aws, "CreateLoadBalancer", &one[..1]).await,
        validation
    );
    assert!(aws.balancer("good").await.unwrap().is_none());
    ok(aws, "CreateLoadBalancer", &in_two(&[("Name", &longest)])).await;
    assert_eq!(refused(aws, "CutLoadBalancer", &[]).await, "InvalidAction");
}

#[tokio::test]
async fn protected_load_balancer_is_not_deleted() {
    let aws = shared().await;
    let name = fresh("protected");
    let arn = balancer(aws, &name).await;
    aws.protect(&arn, true).await.unwrap();
    assert_eq!(
        refused(aws, "DeleteLoadBalancer", &[("LoadBalancerArn", &arn)]).await,
        "OperationNotPermitted"
    );
    assert!(
        aws.balancer(&name)
            .await
            .unwrap()
            .unwrap()
            .deletion_protection
    );
    let attributes = ok(
        aws,
        "DescribeLoadBalancerAttributes",
        &[("LoadBalancerArn", &arn)],
    )
    .await;
    let protection = attributes
        .items()
        .iter()
        .find(|one| one.get("Key") == "deletion_protection.enabled")
        .unwrap();
    assert_eq!(protection.get("Value"), "true");
    aws.protect(&arn, false).await.unwrap();
    aws.delete(&arn).await.unwrap();
    assert!(aws.balancer(&name).await.unwrap().is_none());
}

#[tokio::test]
async fn describe_selects_by_name_arn_and_page() {
    let aws = Aws::start().await.unwrap();
    let mut arns = Vec::new();
    for name in ["a", "b", "c"] {
        arns.push(balancer(&aws, name).await);
    }
    let two = ok(
        &aws,
        "DescribeLoadBalancers",
        &[("Names.member.1", "c"), ("Names.member.2", "a")],
    )
    .await;
    assert_eq!(two.items().len(), 2);
    for missing in [
        ("Names.member.2", "nowhere"),
        ("LoadBalancerArns.member.1", &format!("{}0", arns[0])),
    ] {
        let mut params = vec![missing];
        params.extend(
            missing
                .0
                .starts_with("Names")
                .then_some(("Names.member.1", "a")),
        );
        assert_eq!(
            refused(&aws, "DescribeLoadBalancers", &params).await,
            "LoadBalancerNotFound"
        );
    }
    let mut shown = Vec::new();
    let mut marker = String::new();
    for _ in 0..2 {
        let page = ok(
            &aws,
            "DescribeLoadBalancers",
            &[("PageSize", "2"), ("Marker", &marker)],
        )
        .await;
        shown.extend(
            page.items()
                .iter()
                .map(|item| item.get("LoadBalancerArn").to_owned()),
        );
        page.result().get("NextMarker").clone_into(&mut marker);
    }
    assert_eq!((shown, marker.as_str()), (arns.clone(), ""));
    let all = ok(&aws, "DescribeLoadBalancers", &[("PageSize", "3")]).await;
    assert_eq!((all.items().len(), all.result().get("NextMarker")), (3, ""));
    aws.page_size(1);
    let page = ok(&aws, "DescribeLoadBalancers", &[]).await;
    assert_eq!(
        (
            page.get("LoadBalancerName"),
            page.result().get("NextMarker")
        ),
        ("a", arns[0].as_str())
    );
    let names: Vec<String> = (1..=21).map(|at| format!("Names.member.{at}")).collect();
    let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "a")).collect();
    assert_eq!(
        refused(&aws, "DescribeLoadBalancers", &many).await,
        "ValidationError"
    );
    ok(&aws, "DescribeLoadBalancers", &many[..20]).await;
    for wrong in [
        ("PageSize", "0"),
        ("PageSize", "401"),
        ("Marker", "nowhere"),
        ("LoadBalancerArns.member.1", "arn"),
    ] {
        assert_eq!(
            refused(&aws, "DescribeLoadBalancers", &[wrong]).await,
            "ValidationError",
            "{wrong:?}"
        );
    }
}

#[tokio::test]
async fn concurrent_creates_make_one_load_balancer() {
    let aws = shared().await;
    let name = fresh("race");
    let params = in_two(&[("Name", &name)]);
    let calls = (0..8).map(|_| call(aws, "CreateLoadBalancer", &params));
    let answers = futures::future::try_join_all(calls).await.unwrap();
    let arns: std::collections::BTreeSet<_> = answers
        .iter()
        .map(|answer| answer.get("LoadBalancerArn"))
        .collect();
    assert_eq!(arns.len(), 1);
}
