use super::*;

#[tokio::test]
async fn new_load_balancer_is_hidden_from_describes() {
    let aws = Aws::start().await.unwrap();
    let old = balancer(&aws, "old").await;
    aws.hide_new(LONG);
    let made = ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "new")])).await;
    let new = made.get("LoadBalancerArn").to_owned();
    assert_eq!(
        ok(&aws, "DescribeLoadBalancers", &[])
            .await
            .get("LoadBalancerArn"),
        old
    );
    let hidden: [(&str, &str, &str); 5] = [
        ("DescribeLoadBalancers", "Names.member.1", "new"),
        ("DescribeLoadBalancers", "LoadBalancerArns.member.1", &new),
        ("DescribeTags", "ResourceArns.member.1", &new),
        ("DescribeListeners", "LoadBalancerArn", &new),
        ("DescribeTargetGroups", "LoadBalancerArn", &new),
    ];
    for (action, param, value) in hidden {
        assert_eq!(
            refused(&aws, action, &[(param, value)]).await,
            "LoadBalancerNotFound",
            "{action}"
        );
    }
    // Creating the hidden load balancer again returns it, and calls that name its ARN can change it.
    let again = ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "new")])).await;
    assert_eq!(again.get("LoadBalancerArn"), new);
    aws.tag(&new, "key", "value").await.unwrap();
    assert_eq!(aws.balancers().await.unwrap().len(), 2);
    aws.hide_new(Duration::ZERO);
    ok(&aws, "DescribeTags", &[("ResourceArns.member.1", &new)]).await;
    aws.hide_new(Duration::from_millis(100));
    let newer = balancer(&aws, "newer").await;
    let shown = async || {
        let answer = call(
            &aws,
            "DescribeLoadBalancers",
            &[("LoadBalancerArns.member.1", &newer)],
        )
        .await?;
        Ok((answer.status == StatusCode::OK).then_some(()))
    };
    wait::until("the load balancer to be shown", DEADLINE, shown)
        .await
        .unwrap();
}

/// Returns the error codes of these describes; empty for a success.
async fn codes(aws: &Aws, queries: &[(&str, &str, &str)]) -> Vec<String> {
    let mut codes = Vec::new();
    for (action, param, value) in queries {
        let answer = call(aws, action, &[(*param, *value)]).await.unwrap();
        assert!(
            [StatusCode::OK, StatusCode::BAD_REQUEST].contains(&answer.status),
            "{action}: {}",
            answer.status
        );
        codes.push(answer.code().to_owned());
    }
    codes
}

#[tokio::test]
async fn new_groups_and_listeners_are_hidden_from_describes() {
    let aws = Aws::start().await.unwrap();
    let arn = balancer(&aws, "web").await;
    let old = aws.create_target_group("old", 80).await.unwrap();
    let old_listener = aws.create_listener(&arn, 80, &old).await.unwrap();
    aws.hide_new(LONG);
    let new = aws.create_target_group("new", 81).await.unwrap();
    let listener = aws.create_listener(&arn, 81, &new).await.unwrap();
    let queries = [
        ("DescribeTargetGroups", "Names.member.1", "new"),
        (
            "DescribeTargetGroups",
            "TargetGroupArns.member.1",
            new.as_str(),
        ),
        ("DescribeTags", "ResourceArns.member.1", &new),
        ("DescribeListeners", "ListenerArns.member.1", &listener),
        ("DescribeTags", "ResourceArns.member.1", &listener),
    ];
    let (group_missing, listener_missing) = ("TargetGroupNotFound", "ListenerNotFound");
    assert_eq!(
        codes(&aws, &queries).await,
        [
            group_missing,
            group_missing,
            group_missing,
            listener_missing,
            listener_missing
        ]
    );
    let both = [
        ("ListenerArns.member.1", old_listener.as_str()),
        ("ListenerArns.member.2", &listener),
    ];
    assert_eq!(
        refused(&aws, "DescribeListeners", &both).await,
        listener_missing
    );
    // Lists omit the hidden resources.
    let of_balancer = [("LoadBalancerArn", arn.as_str())];
    assert_eq!(
        ok(&aws, "DescribeTargetGroups", &[])
            .await
            .get("TargetGroupArn"),
        old
    );
    assert_eq!(
        ok(&aws, "DescribeTargetGroups", &of_balancer)
            .await
            .get("TargetGroupArn"),
        old
    );
    assert_eq!(
        ok(&aws, "DescribeListeners", &of_balancer)
            .await
            .get("ListenerArn"),
        old_listener
    );
    // Creating hidden resources again returns them.
    assert_eq!(aws.create_target_group("new", 81).await.unwrap(), new);
    assert_eq!(
        aws.create_target_group("new", 82).await.unwrap_err().code,
        "DuplicateTargetGroupName"
    );
    assert_eq!(aws.create_listener(&arn, 81, &new).await.unwrap(), listener);
    // Calls that name their ARNs can change hidden resources.
    aws.add_instance("i-1", 'a');
    ok(
        &aws,
        "RegisterTargets",
        &[("TargetGroupArn", &new), ("Targets.member.1.Id", "i-1")],
    )
    .await;
    assert_eq!(aws.targets(&new).len(), 1);
    aws.tag(&new, "key", "value").await.unwrap();
    aws.tag(&listener, "key", "value").await.unwrap();
    ok(
        &aws,
        "ModifyListener",
        &[("ListenerArn", &listener), ("Port", "82")],
    )
    .await;
    // Views that bypass the rules show hidden resources.
    assert_eq!(
        (
            aws.target_groups().await.unwrap().len(),
            aws.listeners(&arn).await.unwrap().len()
        ),
        (2, 2)
    );
    aws.hide_new(Duration::ZERO);
    assert_eq!(codes(&aws, &queries).await, [""; 5]);
    assert_eq!(ok(&aws, "DescribeTargetGroups", &[]).await.items().len(), 2);
    assert_eq!(
        ok(&aws, "DescribeTargetGroups", &of_balancer)
            .await
            .items()
            .len(),
        2
    );
    assert_eq!(
        ok(&aws, "DescribeListeners", &of_balancer)
            .await
            .items()
            .len(),
        2
    );
    // Hidden resources can be deleted.
    aws.hide_new(LONG);
    let newest = aws.create_target_group("newest", 80).await.unwrap();
    let on_it = aws.create_listener(&arn, 83, &newest).await.unwrap();
    ok(&aws, "DeleteListener", &[("ListenerArn", &on_it)]).await;
    ok(&aws, "DeleteTargetGroup", &[("TargetGroupArn", &newest)]).await;
    assert_eq!(
        (
            aws.target_groups().await.unwrap().len(),
            aws.listeners(&arn).await.unwrap().len()
        ),
        (2, 2)
    );
    // Hidden resources appear when their time is up.
    aws.hide_new(Duration::from_millis(100));
    let late = aws.create_target_group("late", 80).await.unwrap();
    let late_listener = aws.create_listener(&arn, 84, &late).await.unwrap();
    let queries = [
        ("DescribeTargetGroups", "Names.member.1", "late"),
        (
            "DescribeListeners",
            "ListenerArns.member.1",
            late_listener.as_str(),
        ),
    ];
    let shown = async || Ok((codes(&aws, &queries).await == [""; 2]).then_some(()));
    wait::until("the resources to be shown", DEADLINE, shown)
        .await
        .unwrap();
}

/// Returns the tags that `DescribeTags` shows of these resources.
async fn tags_of(aws: &Aws, arns: &[&str]) -> Vec<Vec<(String, String)>> {
    let names: Vec<String> = (1..=arns.len())
        .map(|at| format!("ResourceArns.member.{at}"))
        .collect();
    let params: Vec<_> = names
        .iter()
        .map(String::as_str)
        .zip(arns.iter().copied())
        .collect();
    let answer = ok(aws, "DescribeTags", &params).await;
    assert_eq!(
        answer
            .items()
            .iter()
            .map(|item| item.get("ResourceArn"))
            .collect::<Vec<_>>(),
        arns
    );
    let pair = |tag: &Element| (tag.get("Key").to_owned(), tag.get("Value").to_owned());
    answer
        .items()
        .iter()
        .map(|item| item.members("Tags").iter().map(pair).collect())
        .collect()
}

/// Creates a load balancer, a target group and a listener with these names and the tag `owner`.
async fn tagged(aws: &Aws, name: &str) -> [String; 3] {
    let vpc = aws.vpc();
    let tag = [
        ("Tags.member.1.Key", "owner"),
        ("Tags.member.1.Value", "me"),
    ];
    let arn = aws
        .create(name, &SUBNETS[..2], "internal", &[("owner", "me")])
        .await
        .unwrap();
    let mut params = vec![
        ("Name", name),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("VpcId", &vpc),
    ];
    params.extend(tag);
    let group = ok(aws, "CreateTargetGroup", &params)
        .await
        .get("TargetGroupArn")
        .to_owned();
    let mut params = vec![
        ("LoadBalancerArn", arn.as_str()),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", &group),
    ];
    params.extend(tag);
    let listener = ok(aws, "CreateListener", &params)
        .await
        .get("ListenerArn")
        .to_owned();
    [arn, group, listener]
}

#[tokio::test]
async fn new_tags_are_shown_late() {
    let aws = Aws::start().await.unwrap();
    let owner = vec![("owner".to_owned(), "me".to_owned())];
    let old = tagged(&aws, "old").await;
    aws.late_tags(LONG);
    let new = tagged(&aws, "new").await;
    let all: Vec<&str> = old.iter().chain(&new).map(String::as_str).collect();
    let mut expected = vec![owner.clone(); 3];
    expected.resize(6, Vec::new());
    assert_eq!(tags_of(&aws, &all).await, expected);
    // Describes show the resources themselves completely.
    let shown = ok(&aws, "DescribeLoadBalancers", &[("Names.member.1", "new")]).await;
    assert_eq!(shown.get("LoadBalancerArn"), new[0]);
    assert_eq!(
        ok(&aws, "DescribeTargetGroups", &[("Names.member.1", "new")])
            .await
            .get("TargetGroupArn"),
        new[1]
    );
    assert_eq!(
        aws.balancer("new").await.unwrap().unwrap().tags["owner"],
        "me"
    );
    // A tag added meanwhile is late too, and is kept.
    aws.tag(&new[1], "added", "since").await.unwrap();
    assert_eq!(tags_of(&aws, &[&new[1]]).await, [Vec::new()]);
    aws.late_tags(Duration::ZERO);
    expected = vec![owner.clone(); 6];
    expected[4] = vec![("added".to_owned(), "since".to_owned()), owner[0].clone()];
    assert_eq!(tags_of(&aws, &all).await, expected);
    aws.late_tags(Duration::from_millis(100));
    let late = tagged(&aws, "late").await;
    let late: Vec<&str> = late.iter().map(String::as_str).collect();
    let in_time = async || Ok((tags_of(&aws, &late).await == vec![owner.clone(); 3]).then_some(()));
    wait::until("the tags to be shown", DEADLINE, in_time)
        .await
        .unwrap();
}

#[tokio::test]
async fn deleted_load_balancer_lingers_in_describes() {
    let aws = Aws::start().await.unwrap();
    aws.provisioning(Duration::ZERO);
    let [old, _, listener] = tagged(&aws, "old").await;
    let other = balancer(&aws, "other").await;
    let by_name = [("Names.member.1", "old")];
    let by_arn = [("LoadBalancerArns.member.1", old.as_str())];
    let delete = [("LoadBalancerArn", old.as_str())];
    let was = ok(&aws, "DescribeLoadBalancers", &by_name)
        .await
        .only()
        .clone();
    let tags = tags_of(&aws, &[&old, &other]).await;
    assert_eq!(
        (was.child("State").unwrap().get("Code"), tags[0].len()),
        ("active", 1)
    );
    aws.linger(LONG);
    ok(&aws, "DeleteLoadBalancer", &delete).await;
    for query in [&by_name, &by_arn] {
        assert_eq!(*ok(&aws, "DescribeLoadBalancers", query).await.only(), was);
    }
    let all = async || {
        let shown = ok(&aws, "DescribeLoadBalancers", &[]).await;
        shown
            .items()
            .iter()
            .map(|item| item.get("LoadBalancerName").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(all().await, ["other", "old"]);
    let both = [("Names.member.1", "old"), ("Names.member.2", "other")];
    assert_eq!(
        ok(&aws, "DescribeLoadBalancers", &both).await.items().len(),
        2
    );
    let page = ok(
        &aws,
        "DescribeLoadBalancers",
        &[("PageSize", "1"), ("Marker", &other)],
    )
    .await;
    assert_eq!(page.get("LoadBalancerArn"), old);
    assert_eq!(tags_of(&aws, &[&old, &other]).await, tags);
    // The lingering load balancer no longer exists.
    assert_eq!(aws.balancers().await.unwrap().len(), 1);
    for action in [
        "DescribeListeners",
        "DescribeTargetGroups",
        "DescribeLoadBalancerAttributes",
    ] {
        assert_eq!(
            refused(&aws, action, &delete).await,
            "LoadBalancerNotFound",
            "{action}"
        );
    }
    assert_eq!(
        refused(
            &aws,
            "DescribeListeners",
            &[("ListenerArns.member.1", &listener)]
        )
        .await,
        "ListenerNotFound"
    );
    assert_eq!(
        aws.tag(&old, "key", "value").await.unwrap_err().code,
        "LoadBalancerNotFound"
    );
    ok(&aws, "DeleteLoadBalancer", &delete).await;
    // A lingering load balancer's name is taken, even for an identical create.
    let duplicate = aws
        .create("old", &SUBNETS[..2], "internal", &[("owner", "me")])
        .await
        .unwrap_err();
    assert_eq!(duplicate.code, "DuplicateLoadBalancerName");
    aws.linger(Duration::ZERO);
    assert_eq!(all().await, ["other"]);
    for query in [&by_name, &by_arn] {
        assert_eq!(
            refused(&aws, "DescribeLoadBalancers", query).await,
            "LoadBalancerNotFound"
        );
    }
    assert_eq!(
        refused(&aws, "DescribeTags", &[("ResourceArns.member.1", &old)]).await,
        "LoadBalancerNotFound"
    );
    let again = balancer(&aws, "old").await;
    assert_ne!(again, old);
    // Lingering ends when its time is up, and frees the name.
    aws.linger(Duration::from_millis(100));
    ok(&aws, "DeleteLoadBalancer", &[("LoadBalancerArn", &again)]).await;
    let gone = async || Ok((all().await == ["other"]).then_some(()));
    wait::until("the load balancer to disappear", DEADLINE, gone)
        .await
        .unwrap();
    assert_ne!(balancer(&aws, "old").await, again);
}

#[tokio::test]
async fn hidden_load_balancer_stays_hidden_when_deleted() {
    let aws = Aws::start().await.unwrap();
    aws.hide_new(LONG);
    aws.linger(LONG);
    let arn = balancer(&aws, "web").await;
    aws.delete(&arn).await.unwrap();
    assert_eq!(
        refused(&aws, "DescribeLoadBalancers", &[("Names.member.1", "web")]).await,
        "LoadBalancerNotFound"
    );
    assert!(
        ok(&aws, "DescribeLoadBalancers", &[])
            .await
            .items()
            .is_empty()
    );
    let taken = in_two(&[("Name", "web")]);
    assert_eq!(
        refused(&aws, "CreateLoadBalancer", &taken).await,
        "DuplicateLoadBalancerName"
    );
    aws.hide_new(Duration::ZERO);
    assert_eq!(
        ok(&aws, "DescribeLoadBalancers", &[])
            .await
            .get("LoadBalancerArn"),
        arn
    );
    aws.behave();
    assert!(
        ok(&aws, "DescribeLoadBalancers", &[])
            .await
            .items()
            .is_empty()
    );
}

#[tokio::test]
async fn describes_show_everything_after_behave() {
    let aws = Aws::start().await.unwrap();
    aws.hide_new(LONG);
    aws.late_tags(LONG);
    let hidden = tagged(&aws, "web").await;
    let hidden: Vec<&str> = hidden.iter().map(String::as_str).collect();
    aws.behave();
    let later = tagged(&aws, "later").await;
    let all: Vec<&str> = hidden
        .into_iter()
        .chain(later.iter().map(String::as_str))
        .collect();
    assert!(tags_of(&aws, &all).await.iter().all(|tags| tags.len() == 1));
}
