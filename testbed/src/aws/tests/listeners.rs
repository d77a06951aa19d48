use super::*;

fn forward<'a>(params: &[(&'a str, &'a str)], group: &'a str) -> Vec<(&'a str, &'a str)> {
    let action = [
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", group),
    ];
    params.iter().copied().chain(action).collect()
}

#[tokio::test]
async fn created_group_has_its_settings_and_defaults() {
    let aws = shared().await;
    let (name, vpc) = (fresh("web"), aws.vpc());
    let params = [
        ("Name", name.as_str()),
        ("Protocol", "HTTP"),
        ("Port", "30080"),
        ("VpcId", &vpc),
        ("HealthCheckPath", "/healthz"),
        ("Tags.member.1.Key", "owner"),
        ("Tags.member.1.Value", "me"),
    ];
    let arn = ok(aws, "CreateTargetGroup", &params)
        .await
        .get("TargetGroupArn")
        .to_owned();
    let found = async || {
        aws.target_groups()
            .await
            .unwrap()
            .into_iter()
            .find(|group| group.arn == arn)
    };
    let group = found().await.unwrap();
    assert_eq!(
        (
            group.name.as_str(),
            group.port,
            group.health_check_path.as_str()
        ),
        (&*name, 30080, "/healthz")
    );
    assert_eq!(
        (
            group.protocol.as_str(),
            group.target_type.as_str(),
            &group.vpc
        ),
        ("HTTP", "instance", &vpc)
    );
    assert_eq!(
        (
            group.tags["owner"].as_str(),
            group.health_check_port.as_str()
        ),
        ("me", "traffic-port")
    );
    assert_eq!(
        ok(aws, "CreateTargetGroup", &params)
            .await
            .get("TargetGroupArn"),
        arn
    );
    for (param, value) in [
        ("Port", "30081"),
        ("HealthCheckPath", "/"),
        ("Protocol", "HTTPS"),
        ("TargetType", "ip"),
    ] {
        let other: Vec<_> = params
            .into_iter()
            .filter(|(name, _)| *name != param)
            .chain([(param, value)])
            .collect();
        assert_eq!(
            refused(aws, "CreateTargetGroup", &other).await,
            "DuplicateTargetGroupName",
            "{param}"
        );
    }
    let change = [
        ("TargetGroupArn", arn.as_str()),
        ("HealthCheckPath", "/ready"),
    ];
    assert_eq!(
        ok(aws, "ModifyTargetGroup", &change)
            .await
            .get("HealthCheckPath"),
        "/ready"
    );
    assert_eq!(
        refused(aws, "CreateTargetGroup", &params).await,
        "DuplicateTargetGroupName"
    );
    assert_eq!(found().await.unwrap().health_check_path, "/ready");
    for query in [
        ("Names.member.1", name.as_str()),
        ("TargetGroupArns.member.1", &arn),
    ] {
        assert_eq!(
            ok(aws, "DescribeTargetGroups", &[query])
                .await
                .get("TargetGroupName"),
            name
        );
    }
    ok(aws, "DeleteTargetGroup", &[("TargetGroupArn", &arn)]).await;
    assert_eq!(found().await, None);
    ok(aws, "DeleteTargetGroup", &[("TargetGroupArn", &arn)]).await;
    let gone = [
        ("TargetGroupArns.member.1", &*arn),
        ("Names.member.1", &*name),
    ];
    for query in gone {
        assert_eq!(
            refused(aws, "DescribeTargetGroups", &[query]).await,
            "TargetGroupNotFound"
        );
    }
    assert_eq!(
        refused(aws, "ModifyTargetGroup", &change).await,
        "TargetGroupNotFound"
    );
}

#[tokio::test]
async fn invalid_groups_are_rejected() {
    let aws = shared().await;
    let vpc = aws.vpc();
    let good = [
        ("Name", "good"),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("VpcId", vpc.as_str()),
    ];
    let too_long = "a".repeat(33);
    let cases = [
        ("Name", ""),
        ("Name", "-a"),
        ("Name", "a.b"),
        ("Name", &too_long),
        ("Protocol", ""),
        ("Protocol", "TCP"),
        ("Port", "0"),
        ("Port", "65536"),
        ("Port", ""),
        ("VpcId", "vpc-nowhere"),
        ("VpcId", ""),
        ("TargetType", "pod"),
        ("HealthCheckPath", "healthz"),
        ("HealthCheckProtocol", "GRPC"),
    ];
    for (param, value) in cases {
        let other: Vec<_> = good
            .into_iter()
            .filter(|(name, _)| *name != param)
            .chain([(param, value)])
            .collect();
        assert_eq!(
            refused(aws, "CreateTargetGroup", &other).await,
            "ValidationError",
            "{param}={value}"
        );
    }
    assert!(
        aws.target_groups()
            .await
            .unwrap()
            .iter()
            .all(|group| group.name != "good")
    );
}

#[tokio::test]
async fn listener_forwards_to_its_group() {
    let aws = shared().await;
    let arn = balancer(aws, &fresh("listen")).await;
    let (one, two) = (group(aws).await, group(aws).await);
    let plain = [
        ("LoadBalancerArn", arn.as_str()),
        ("Protocol", "HTTP"),
        ("Port", "80"),
    ];
    let made = ok(aws, "CreateListener", &forward(&plain, &one)).await;
    let listener = made.get("ListenerArn").to_owned();
    assert_eq!(
        (made.get("SslPolicy"), made.only().members("Certificates")),
        ("", &[][..])
    );
    let action = &made.only().members("DefaultActions")[0];
    let config = &action
        .child("ForwardConfig")
        .unwrap()
        .members("TargetGroups")[0];
    assert_eq!(
        (action.get("TargetGroupArn"), config.get("TargetGroupArn")),
        (&*one, &*one)
    );
    // An identical call returns the same listener; a different one on its port is rejected.
    assert_eq!(
        ok(aws, "CreateListener", &forward(&plain, &one))
            .await
            .get("ListenerArn"),
        listener
    );
    assert_eq!(
        refused(aws, "CreateListener", &forward(&plain, &two)).await,
        "DuplicateListener"
    );
    let used_by = async |group: &str| {
        let groups = aws.target_groups().await.unwrap();
        groups
            .into_iter()
            .find(|one| one.arn == group)
            .unwrap()
            .balancers
    };
    assert_eq!(
        (used_by(&one).await, used_by(&two).await),
        (vec![arn.clone()], Vec::new())
    );
    assert_eq!(
        refused(aws, "DeleteTargetGroup", &[("TargetGroupArn", &one)]).await,
        "ResourceInUse"
    );
    // The listener moves to the other group, so the first group is free.
    ok(
        aws,
        "ModifyListener",
        &forward(&[("ListenerArn", &listener)], &two),
    )
    .await;
    assert_eq!(
        (used_by(&one).await, used_by(&two).await),
        (Vec::new(), vec![arn.clone()])
    );
    ok(aws, "DeleteTargetGroup", &[("TargetGroupArn", &one)]).await;
    let on_it = ok(aws, "DescribeTargetGroups", &[("LoadBalancerArn", &arn)]).await;
    assert_eq!(
        (
            on_it.get("TargetGroupArn"),
            on_it.only().members("LoadBalancerArns").len()
        ),
        (&*two, 1)
    );
    let shown = ok(aws, "DescribeListeners", &[("LoadBalancerArn", &arn)]).await;
    assert_eq!(
        (shown.get("ListenerArn"), shown.get("Port")),
        (&*listener, "80")
    );
    ok(
        aws,
        "ModifyListener",
        &[("ListenerArn", &listener), ("Port", "81")],
    )
    .await;
    let there = aws.listeners(&arn).await.unwrap();
    assert_eq!(
        (there.len(), there[0].port, &there[0].target_group),
        (1, 81, &two)
    );
    ok(aws, "CreateListener", &forward(&plain, &two)).await;
    let taken = [("ListenerArn", listener.as_str()), ("Port", "80")];
    assert_eq!(
        refused(aws, "ModifyListener", &taken).await,
        "DuplicateListener"
    );
    ok(aws, "DeleteListener", &[("ListenerArn", &listener)]).await;
    assert_eq!(
        refused(aws, "DeleteListener", &[("ListenerArn", &listener)]).await,
        "ListenerNotFound"
    );
    // Listeners are deleted with their load balancer; groups remain.
    aws.delete(&arn).await.unwrap();
    assert_eq!(used_by(&two).await, Vec::<String>::new());
    assert!(aws.listeners(&arn).await.unwrap().is_empty());
    assert_eq!(
        refused(aws, "DescribeListeners", &[("LoadBalancerArn", &arn)]).await,
        "LoadBalancerNotFound"
    );
    assert_eq!(
        refused(
            aws,
            "DescribeListeners",
            &[("ListenerArns.member.1", &listener)]
        )
        .await,
        "ListenerNotFound"
    );
}

#[tokio::test]
async fn https_listener_has_certificate_and_policy() {
    let aws = shared().await;
    let arn = balancer(aws, &fresh("tls")).await;
    let group = group(aws).await;
    let (certificate, other) = (
        aws.certificate().await.unwrap(),
        aws.certificate().await.unwrap(),
    );
    let base = [
        ("LoadBalancerArn", arn.as_str()),
        ("Protocol", "HTTPS"),
        ("Port", "443"),
    ];
    let with = |extra: &[(&'static str, &'static str)]| {
        forward(&base, &group)
            .into_iter()
            .chain(extra.iter().copied())
            .collect::<Vec<_>>()
    };
    let certificate_param = "Certificates.member.1.CertificateArn";
    assert_eq!(
        refused(aws, "CreateListener", &with(&[])).await,
        "ValidationError"
    );
    let nowhere = with(&[(
        certificate_param,
        "arn:aws:acm:us-east-1:123456789012:certificate/nowhere",
    )]);
    assert_eq!(
        refused(aws, "CreateListener", &nowhere).await,
        "CertificateNotFound"
    );
    let mut good = with(&[("SslPolicy", "ELBSecurityPolicy-Nowhere")]);
    good.push((certificate_param, &certificate));
    assert_eq!(
        refused(aws, "CreateListener", &good).await,
        "SSLPolicyNotFound"
    );
    good.retain(|(name, _)| *name != "SslPolicy");
    let listener = ok(aws, "CreateListener", &good)
        .await
        .get("ListenerArn")
        .to_owned();
    let there = async || aws.listeners(&arn).await.unwrap().remove(0);
    assert_eq!(
        there().await.certificates,
        std::slice::from_ref(&certificate)
    );
    assert!(there().await.ssl_policy.starts_with("ELBSecurityPolicy-"));
    let policy = "ELBSecurityPolicy-TLS13-1-2-2021-06";
    let change = [
        ("ListenerArn", listener.as_str()),
        (certificate_param, &other),
        ("SslPolicy", policy),
    ];
    ok(aws, "ModifyListener", &change).await;
    assert_eq!(
        (there().await.certificates, there().await.ssl_policy),
        (vec![other], policy.to_owned())
    );
    let unknown = [
        ("ListenerArn", listener.as_str()),
        (certificate_param, "arn:aws:acm:nowhere"),
    ];
    assert_eq!(
        refused(aws, "ModifyListener", &unknown).await,
        "CertificateNotFound"
    );
    ok(
        aws,
        "ModifyListener",
        &[("ListenerArn", &listener), ("Protocol", "HTTP")],
    )
    .await;
    assert_eq!(
        (
            there().await.protocol.as_str(),
            there().await.certificates.len()
        ),
        ("HTTP", 0)
    );
    // Changing back needs both settings that ended with HTTPS.
    let back = [
        ("ListenerArn", listener.as_str()),
        ("Protocol", "HTTPS"),
        (certificate_param, &certificate),
        ("SslPolicy", policy),
    ];
    for missing in ["SslPolicy", certificate_param] {
        let rest: Vec<_> = back
            .into_iter()
            .filter(|(name, _)| *name != missing)
            .collect();
        assert_eq!(
            refused(aws, "ModifyListener", &rest).await,
            "ValidationError",
            "{missing}"
        );
    }
    assert_eq!(
        refused(aws, "ModifyListener", &back[..2]).await,
        "ValidationError"
    );
    assert_eq!(there().await.protocol, "HTTP");
    ok(aws, "ModifyListener", &back).await;
    let now = there().await;
    assert_eq!(
        (now.protocol.as_str(), now.ssl_policy.as_str()),
        ("HTTPS", policy)
    );
    assert_eq!(now.certificates, std::slice::from_ref(&certificate));
    // The listener has both settings now.
    ok(aws, "ModifyListener", &back[..2]).await;
    assert_eq!(there().await.ssl_policy, policy);
}

#[tokio::test]
async fn invalid_listeners_are_rejected() {
    let aws = shared().await;
    let (arn, other) = (
        balancer(aws, &fresh("refused")).await,
        balancer(aws, &fresh("refused")).await,
    );
    let (free, taken) = (group(aws).await, group(aws).await);
    aws.create_listener(&other, 80, &taken).await.unwrap();
    let (name, vpc) = (fresh("foreign"), aws.other_vpc());
    let params = [
        ("Name", name.as_str()),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("VpcId", vpc.as_str()),
    ];
    let foreign = ok(aws, "CreateTargetGroup", &params)
        .await
        .get("TargetGroupArn")
        .to_owned();
    let gone = group(aws).await;
    ok(aws, "DeleteTargetGroup", &[("TargetGroupArn", &gone)]).await;
    let group_param = "DefaultActions.member.1.TargetGroupArn";
    let good = forward(
        &[
            ("LoadBalancerArn", &arn),
            ("Protocol", "HTTP"),
            ("Port", "80"),
        ],
        &free,
    );
    let cases = [
        ("Protocol", "TCP", "ValidationError"),
        ("Port", "0", "ValidationError"),
        ("SslPolicy", "ELBSecurityPolicy-2016-08", "ValidationError"),
        (
            "Certificates.member.1.CertificateArn",
            "arn",
            "ValidationError",
        ),
        (group_param, &gone, "TargetGroupNotFound"),
        (group_param, &foreign, "InvalidConfigurationRequest"),
        (group_param, &taken, "TargetGroupAssociationLimit"),
        (
            "LoadBalancerArn",
            &format!("{arn}0"),
            "LoadBalancerNotFound",
        ),
    ];
    for (param, value, code) in cases {
        let other: Vec<_> = good
            .iter()
            .copied()
            .filter(|(name, _)| *name != param)
            .chain([(param, value)])
            .collect();
        assert_eq!(
            refused(aws, "CreateListener", &other).await,
            code,
            "{param}={value}"
        );
    }
    assert_eq!(
        refused(aws, "CreateListener", &good[..3]).await,
        "ValidationError"
    );
    assert_eq!(
        refused(aws, "DescribeListeners", &[]).await,
        "ValidationError"
    );
    assert!(aws.listeners(&arn).await.unwrap().is_empty());
}

async fn group(aws: &Aws) -> String {
    aws.create_target_group(&fresh("group"), 80).await.unwrap()
}
