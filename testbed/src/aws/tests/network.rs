use std::time::Instant;

use super::super::FOREIGN;
use super::*;

#[tokio::test]
async fn alias_replaces_subnet_id() {
    let aws = Aws::start().await.unwrap();
    aws.alias("subnet-mine", "subnet-abc").unwrap();
    aws.alias("subnet-other", "subnet-nowhere").unwrap_err();
    let former = in_two(&[("Name", "one")]);
    assert_eq!(
        refused(&aws, "CreateLoadBalancer", &former).await,
        "SubnetNotFound"
    );
    let tags = [("key", "subnet-mine")];
    aws.create("one", &["subnet-mine", "subnet-ghi"], "internal", &tags)
        .await
        .unwrap();
    let answer = ok(&aws, "DescribeLoadBalancers", &[]).await;
    let subnets: Vec<_> = answer
        .only()
        .members("AvailabilityZones")
        .iter()
        .map(|zone| zone.get("SubnetId"))
        .collect();
    assert_eq!(subnets, ["subnet-mine", "subnet-ghi"]);
    assert!(answer.get("DNSName").starts_with("internal-one-"));
    assert_eq!(
        aws.balancer("one").await.unwrap().unwrap().tags["key"],
        "subnet-mine"
    );
}

#[tokio::test]
async fn accounts_do_not_share_resources() {
    let (one, other) = (Aws::start().await.unwrap(), Aws::start().await.unwrap());
    let arn = balancer(&one, "web").await;
    assert!(other.balancers().await.unwrap().is_empty());
    assert_ne!(balancer(&other, "web").await, arn);
    assert_ne!(one.vpc(), other.vpc());
}

#[tokio::test]
async fn calls_of_other_services_reach_moto() {
    let aws = Aws::start().await.unwrap();
    let body = Form::of("2016-11-15", "DescribeVpcs", &[]).encode();
    let request = CLIENT
        .post(aws.url())
        .header("authorization", signature(ACCESS_KEY, REGION, "ec2"))
        .body(body);
    let text = request.send().await.unwrap().text().await.unwrap();
    assert!(text.contains(&aws.vpc()) && text.contains(&aws.other_vpc()));
    assert!(aws.calls().is_empty());
}

#[tokio::test]
async fn environment_selects_only_this_server() {
    let aws = Aws::start().await.unwrap();
    let env = aws.env();
    assert!(env.contains(&("AWS_ENDPOINT_URL".to_owned(), aws.url())));
    assert!(
        env.iter()
            .all(|(name, _)| !FOREIGN.contains(&name.as_str()))
    );
    for (name, value) in env.iter().filter(|(name, _)| name.ends_with("_FILE")) {
        assert!(!std::path::Path::new(value).exists(), "{name}");
    }
}

/// Two reads for each of 200 load balancers must not take minutes; the bound is far above a slow machine's time.
#[tokio::test]
async fn server_reads_two_hundred_load_balancers_in_time() {
    let aws = Aws::start().await.unwrap();
    let began = Instant::now();
    for at in 0..200 {
        balancer(&aws, &format!("web-{at}")).await;
    }
    let made = began.elapsed();
    for at in 0..200 {
        let name = format!("web-{at}");
        let arn = ok(&aws, "DescribeLoadBalancers", &[("Names.member.1", &name)]).await;
        ok(
            &aws,
            "DescribeTags",
            &[("ResourceArns.member.1", arn.get("LoadBalancerArn"))],
        )
        .await;
    }
    let read = began.elapsed().checked_sub(made).unwrap();
    println!("200 balancers: made in {made:?}, 400 reads in {read:?}");
    assert_eq!(
        ok(&aws, "DescribeLoadBalancers", &[]).await.items().len(),
        200
    );
    assert!(
        began.elapsed() < Duration::from_mins(10),
        "made in {made:?}, 400 reads in {read:?}"
    );
}
