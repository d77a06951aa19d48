//! Document 003's sample, with the `apiVersion` that the document omits.

use super::*;

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/config/samples/demo_v1_myingress.yaml"
);

#[tokio::test]
async fn document_003_works_as_printed() {
    let bed = Bed::on_own_plane("myingress").await;
    let site = Site {
        bed,
        aws: Aws::start().await.unwrap(),
    };
    let kubectl =
        async |arguments: &[&str]| site.bed.plane.run_kubectl(arguments, "").await.unwrap();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    site.aws.keep_provisioning(true);
    let operator = Operator::start(&site.bed, site.settings().whole_cluster()).await;
    assert_eq!(
        kubectl(&["apply", "-f", SAMPLE]).await.trim(),
        "myingress.demo.rtfm.co.ua/myapp created"
    );

    // The load balancer exists, and does not work yet.
    kubectl(&[
        "wait",
        "--for=jsonpath={.status.alb.state}=provisioning",
        "mying/myapp",
        "--timeout=600s",
    ])
    .await;
    let made = site.balancer("myapp").await.unwrap();
    let of = |path: &str| format!("jsonpath={{{path}}}");
    assert_eq!(
        kubectl(&["get", "mying/myapp", "-o", &of(".status.alb.dns")]).await,
        made.dns
    );
    assert_eq!(
        kubectl(&["get", "mying/myapp", "-o", &of(".status.alb.arn")]).await,
        made.arn
    );
    let row = line(&kubectl(&["get", "myingresses"]).await);
    assert!(row.contains("NAME DNS STATE READY REASON AGE"), "{row}");
    assert!(
        row.contains(&format!(
            "myapp {} provisioning False Provisioning",
            made.dns
        )),
        "{row}"
    );
    assert_eq!(
        (made.scheme.as_str(), made.ip_address_type.as_str()),
        ("internet-facing", "ipv4")
    );
    assert_eq!(made.subnets, SUBNETS);
    assert_eq!(made.security_groups, [site.aws.default_security_group()]);
    let uid = async |kind: &str, name: &str| {
        kubectl(&["get", kind, name, "-o", &of(".metadata.uid")]).await
    };
    let tags = [
        ("ManagedBy", "quartermaster".to_owned()),
        (
            "quartermaster.dev/cluster",
            uid("namespace", "kube-system").await,
        ),
        ("quartermaster.dev/owner", "default/myapp".to_owned()),
        ("quartermaster.dev/owner-uid", uid("mying", "myapp").await),
    ];
    assert_eq!(
        made.tags,
        tags.map(|(key, value)| (key.to_owned(), value)).into()
    );

    site.aws.keep_provisioning(false);
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "mying/myapp",
        "--timeout=600s",
    ])
    .await;
    let row = line(&kubectl(&["get", "mying"]).await);
    assert!(
        row.contains(&format!("myapp {} active True Ready", made.dns)),
        "{row}"
    );
    let all = kubectl(&["get", "quartermaster", "-A"]).await;
    assert!(all.contains("myingress.demo.rtfm.co.ua/myapp"), "{all}");
    assert_eq!(
        site.balancer("myapp").await.unwrap().arn,
        made.arn,
        "the load balancer was created once"
    );

    kubectl(&["delete", "-f", SAMPLE, "--timeout=600s"]).await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
    for reason in ["Created", "Ready", "Deleted"] {
        let events = kubectl(&[
            "events",
            "--for=mying/myapp",
            "-o",
            "jsonpath={.items[*].reason}",
        ])
        .await;
        assert_eq!(
            events.split(' ').filter(|events| *events == reason).count(),
            1,
            "{reason} in {events}"
        );
    }
    let metrics = operator.metrics().await;
    let line = "quartermaster_aws_requests_total{action=\"CreateLoadBalancer\",code=\"OK\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}
