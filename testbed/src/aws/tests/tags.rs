use super::*;

/// Returns numbered tags of this range.
fn tags(from: usize, to: usize) -> Vec<(String, String)> {
    let tags = (1..).zip(from..=to);
    tags.flat_map(|(at, tag)| {
        [
            (format!("Tags.member.{at}.Key"), format!("key-{tag}")),
            (format!("Tags.member.{at}.Value"), format!("value-{tag}")),
        ]
    })
    .collect()
}

async fn add(aws: &Aws, arn: &str, tags: &[(String, String)]) -> Answer {
    let mut params: Vec<_> = tags
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    params.push(("ResourceArns.member.1", arn));
    call(aws, "AddTags", &params).await.unwrap()
}

#[tokio::test]
async fn tags_work_for_every_kind_of_resource() {
    let aws = shared().await;
    let arn = balancer(aws, &fresh("tags")).await;
    let group = aws.create_target_group(&fresh("tags"), 80).await.unwrap();
    let listener = aws.create_listener(&arn, 80, &group).await.unwrap();
    for arn in [&arn, &group, &listener] {
        aws.tag(arn, "kubernetes.io/name", "a b+c=d:e/@")
            .await
            .unwrap();
        aws.tag(arn, "other", "").await.unwrap();
        let answer = ok(aws, "DescribeTags", &[("ResourceArns.member.1", arn)]).await;
        let tags: Vec<_> = answer
            .only()
            .members("Tags")
            .iter()
            .map(|tag| (tag.get("Key"), tag.get("Value")))
            .collect();
        assert_eq!(tags, [("kubernetes.io/name", "a b+c=d:e/@"), ("other", "")]);
        aws.untag(arn, "other").await.unwrap();
        aws.untag(arn, "never-there").await.unwrap();
        let answer = ok(aws, "DescribeTags", &[("ResourceArns.member.1", arn)]).await;
        assert_eq!(answer.only().members("Tags").len(), 1);
    }
    let groups = aws.target_groups().await.unwrap();
    assert_eq!(
        groups.iter().find(|one| one.arn == group).unwrap().tags["kubernetes.io/name"],
        "a b+c=d:e/@"
    );
    assert_eq!(
        aws.listeners(&arn).await.unwrap()[0].tags["kubernetes.io/name"],
        "a b+c=d:e/@"
    );
    aws.delete(&arn).await.unwrap();
    for (gone, code) in [
        (&arn, "LoadBalancerNotFound"),
        (&listener, "ListenerNotFound"),
    ] {
        let both = [
            ("ResourceArns.member.1", group.as_str()),
            ("ResourceArns.member.2", gone),
        ];
        assert_eq!(refused(aws, "DescribeTags", &both).await, code);
        assert_eq!(aws.tag(gone, "key", "value").await.unwrap_err().code, code);
        assert_eq!(aws.untag(gone, "key").await.unwrap_err().code, code);
    }
}

#[tokio::test]
async fn tags_beyond_fifty_are_rejected() {
    let aws = shared().await;
    let name = fresh("fifty");
    let arn = balancer(aws, &name).await;
    assert_eq!(add(aws, &arn, &tags(1, 50)).await.status, StatusCode::OK);
    assert_eq!(add(aws, &arn, &tags(51, 51)).await.code(), "TooManyTags");
    assert_eq!(add(aws, &arn, &tags(50, 50)).await.status, StatusCode::OK);
    assert_eq!(aws.balancer(&name).await.unwrap().unwrap().tags.len(), 50);
    let many = tags(1, 51);
    let many: Vec<_> = many
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let (name, vpc) = (fresh("many"), aws.vpc());
    let create: Vec<_> = in_two(&[("Name", &name)])
        .into_iter()
        .chain(many.clone())
        .collect();
    assert_eq!(
        refused(aws, "CreateLoadBalancer", &create).await,
        "TooManyTags"
    );
    let params = [
        ("Name", name.as_str()),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("VpcId", &vpc),
    ];
    let create: Vec<_> = params.into_iter().chain(many).collect();
    assert_eq!(
        refused(aws, "CreateTargetGroup", &create).await,
        "TooManyTags"
    );
}

#[tokio::test]
async fn invalid_tags_are_rejected() {
    let aws = shared().await;
    let name = fresh("bad-tags");
    let arn = balancer(aws, &name).await;
    let (long, too_long) = ("k".repeat(128), "k".repeat(129));
    let cases = [
        ("", "v"),
        ("aws:key", "v"),
        ("AWS:key", "v"),
        ("k#", "v"),
        (&too_long, "v"),
        ("k", "v;"),
    ];
    for (key, value) in cases.into_iter().chain([("k", &*"v".repeat(257))]) {
        assert_eq!(
            aws.tag(&arn, key, value).await.unwrap_err().code,
            "ValidationError",
            "{key}={value}"
        );
    }
    aws.tag(&arn, &long, &"v".repeat(256)).await.unwrap();
    let mut twice = tags(1, 2);
    twice[2].1 = "key-1".to_owned();
    assert_eq!(add(aws, &arn, &twice).await.code(), "DuplicateTagKeys");
    assert_eq!(add(aws, &arn, &[]).await.code(), "ValidationError");
    assert_eq!(
        add(aws, "what", &tags(1, 1)).await.code(),
        "ValidationError"
    );
    assert_eq!(refused(aws, "DescribeTags", &[]).await, "ValidationError");
    assert_eq!(
        refused(aws, "RemoveTags", &[("ResourceArns.member.1", &arn)]).await,
        "ValidationError"
    );
    let names: Vec<String> = (1..=21)
        .map(|at| format!("ResourceArns.member.{at}"))
        .collect();
    let many: Vec<(&str, &str)> = names
        .iter()
        .map(|name| (name.as_str(), arn.as_str()))
        .collect();
    assert_eq!(refused(aws, "DescribeTags", &many).await, "ValidationError");
    ok(aws, "DescribeTags", &many[..20]).await;
    assert_eq!(aws.balancer(&name).await.unwrap().unwrap().tags.len(), 1);
}
