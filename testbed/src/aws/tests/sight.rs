use super::*;

#[tokio::test]
async fn a_new_balancer_is_not_shown_yet() {
    let aws = Aws::start().await.unwrap();
    let old = balancer(&aws, "old").await;
    aws.hide_new(LONG);
    let made = ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "new")])).await;
    let new = made.get("LoadBalancerArn").to_owned();
    assert_eq!(ok(&aws, "DescribeLoadBalancers", &[]).await.get("LoadBalancerArn"), old);
    let hidden: [(&str, &str, &str); 5] = [
        ("DescribeLoadBalancers", "Names.member.1", "new"),
        ("DescribeLoadBalancers", "LoadBalancerArns.member.1", &new),
        ("DescribeTags", "ResourceArns.member.1", &new),
        ("DescribeListeners", "LoadBalancerArn", &new),
        ("DescribeTargetGroups", "LoadBalancerArn", &new),
    ];
    for (action, param, value) in hidden {
        assert_eq!(refused(&aws, action, &[(param, value)]).await, "LoadBalancerNotFound", "{action}");
    }
    // Whoever makes it again gets it, and whoever knows it can change it.
    let again = ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "new")])).await;
    assert_eq!(again.get("LoadBalancerArn"), new);
    aws.tag(&new, "key", "value").await.unwrap();
    assert_eq!(aws.balancers().await.unwrap().len(), 2);
    aws.hide_new(Duration::ZERO);
    ok(&aws, "DescribeTags", &[("ResourceArns.member.1", &new)]).await;
    aws.hide_new(Duration::from_millis(100));
    let newer = balancer(&aws, "newer").await;
    let shown = async || {
        let answer = call(&aws, "DescribeLoadBalancers", &[("LoadBalancerArns.member.1", &newer)]).await?;
        Ok((answer.status == StatusCode::OK).then_some(()))
    };
    wait::until("it to be shown", DEADLINE, shown).await.unwrap();
}

/// The codes of the answers to these describes; empty where it is not refused.
async fn codes(aws: &Aws, asked: &[(&str, &str, &str)]) -> Vec<String> {
    let mut codes = Vec::new();
    for (action, param, value) in asked {
        let answer = call(aws, action, &[(*param, *value)]).await.unwrap();
        assert!([StatusCode::OK, StatusCode::BAD_REQUEST].contains(&answer.status), "{action}: {}", answer.status);
        codes.push(answer.code().to_owned());
    }
    codes
}

#[tokio::test]
async fn nor_are_new_groups_and_listeners() {
    let aws = Aws::start().await.unwrap();
    let arn = balancer(&aws, "web").await;
    let old = aws.create_target_group("old", 80).await.unwrap();
    let old_listener = aws.create_listener(&arn, 80, &old).await.unwrap();
    aws.hide_new(LONG);
    let new = aws.create_target_group("new", 81).await.unwrap();
    let listener = aws.create_listener(&arn, 81, &new).await.unwrap();
    let asked = [
        ("DescribeTargetGroups", "Names.member.1", "new"),
        ("DescribeTargetGroups", "TargetGroupArns.member.1", new.as_str()),
        ("DescribeTags", "ResourceArns.member.1", &new),
        ("DescribeListeners", "ListenerArns.member.1", &listener),
        ("DescribeTags", "ResourceArns.member.1", &listener),
    ];
    let (group_gone, listener_gone) = ("TargetGroupNotFound", "ListenerNotFound");
    assert_eq!(codes(&aws, &asked).await, [group_gone, group_gone, group_gone, listener_gone, listener_gone]);
    let both = [("ListenerArns.member.1", old_listener.as_str()), ("ListenerArns.member.2", &listener)];
    assert_eq!(refused(&aws, "DescribeListeners", &both).await, listener_gone);
    // Lists are without them.
    let of_balancer = [("LoadBalancerArn", arn.as_str())];
    assert_eq!(ok(&aws, "DescribeTargetGroups", &[]).await.get("TargetGroupArn"), old);
    assert_eq!(ok(&aws, "DescribeTargetGroups", &of_balancer).await.get("TargetGroupArn"), old);
    assert_eq!(ok(&aws, "DescribeListeners", &of_balancer).await.get("ListenerArn"), old_listener);
    // Whoever makes them again gets them.
    assert_eq!(aws.create_target_group("new", 81).await.unwrap(), new);
    assert_eq!(aws.create_target_group("new", 82).await.unwrap_err().code, "DuplicateTargetGroupName");
    assert_eq!(aws.create_listener(&arn, 81, &new).await.unwrap(), listener);
    // Whoever knows them can change them.
    aws.add_instance("i-1", 'a');
    ok(&aws, "RegisterTargets", &[("TargetGroupArn", &new), ("Targets.member.1.Id", "i-1")]).await;
    assert_eq!(aws.targets(&new).len(), 1);
    aws.tag(&new, "key", "value").await.unwrap();
    aws.tag(&listener, "key", "value").await.unwrap();
    ok(&aws, "ModifyListener", &[("ListenerArn", &listener), ("Port", "82")]).await;
    // They are there for whoever looks past the rules.
    assert_eq!((aws.target_groups().await.unwrap().len(), aws.listeners(&arn).await.unwrap().len()), (2, 2));
    aws.hide_new(Duration::ZERO);
    assert_eq!(codes(&aws, &asked).await, [""; 5]);
    assert_eq!(ok(&aws, "DescribeTargetGroups", &[]).await.items().len(), 2);
    assert_eq!(ok(&aws, "DescribeTargetGroups", &of_balancer).await.items().len(), 2);
    assert_eq!(ok(&aws, "DescribeListeners", &of_balancer).await.items().len(), 2);
    // What is hidden can be deleted.
    aws.hide_new(LONG);
    let newest = aws.create_target_group("newest", 80).await.unwrap();
    let on_it = aws.create_listener(&arn, 83, &newest).await.unwrap();
    ok(&aws, "DeleteListener", &[("ListenerArn", &on_it)]).await;
    ok(&aws, "DeleteTargetGroup", &[("TargetGroupArn", &newest)]).await;
    assert_eq!((aws.target_groups().await.unwrap().len(), aws.listeners(&arn).await.unwrap().len()), (2, 2));
    // In time they are shown by themselves.
    aws.hide_new(Duration::from_millis(100));
    let late = aws.create_target_group("late", 80).await.unwrap();
    let late_listener = aws.create_listener(&arn, 84, &late).await.unwrap();
    let asked = [
        ("DescribeTargetGroups", "Names.member.1", "late"),
        ("DescribeListeners", "ListenerArns.member.1", late_listener.as_str()),
    ];
    let shown = async || Ok((codes(&aws, &asked).await == [""; 2]).then_some(()));
    wait::until("them to be shown", DEADLINE, shown).await.unwrap();
}
