//! Listeners: traffic reaches each node, at the Service's current port.

use k8s_openapi::api::core::v1::Service;
use testbed::aws::{Fault, Listener, On, TargetGroup, Times};

use super::nodes::{EXCLUDED, assert_never_without_targets, http};
use super::ownership::run_adopt_commands;
use super::*;

#[tokio::test]
async fn traffic_follows_the_nodes() {
    let site = Site::with_nodes("nodes", &["i-1", "i-2"]).await;
    let _operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.arrives(80, &[("i-1", 30_080), ("i-2", 30_080)]).await;
    site.ready("web").await;
    site.has_listener_status(&[(80, 2, 2, "")]).await;

    site.node("i-3").await;
    site.arrives(80, &[("i-1", 30_080), ("i-2", 30_080), ("i-3", 30_080)])
        .await;
    site.has_listener_status(&[(80, 3, 3, "")]).await;
    site.exclude("i-2", true).await;
    site.arrives(80, &[("i-1", 30_080), ("i-3", 30_080)]).await;
    site.delete_node("i-1").await;
    site.arrives(80, &[("i-3", 30_080)]).await;
    site.has_listener_status(&[(80, 1, 1, "")]).await;
    site.exclude("i-2", false).await;
    site.arrives(80, &[("i-2", 30_080), ("i-3", 30_080)]).await;

    // The last nodes are excluded: their targets stay.
    site.exclude("i-2", true).await;
    site.arrives(80, &[("i-3", 30_080)]).await;
    site.delete_node("i-3").await;
    let message = site.has_reason("web", "NoNodes").await;
    assert!(message.contains(EXCLUDED), "{message}");
    site.has_listener_status(&[(80, 1, 1, "NoNodes")]).await;
    site.arrives(80, &[("i-3", 30_080)]).await;
    site.exclude("i-2", false).await;
    site.arrives(80, &[("i-2", 30_080)]).await;
    site.ready("web").await;

    // An instance that ended before its node does not block the others.
    site.aws.end_instance("i-2");
    site.node("i-4").await;
    site.arrives(80, &[("i-4", 30_080)]).await;
    site.ready("web").await;
    site.has_listener_status(&[(80, 1, 2, "")]).await;
    assert_never_without_targets(&site.aws.calls());
    // Later reconciles do not repeat the Event.
    for _ in 0..2 {
        site.aws.clear();
        site.reconcile("web").await;
        let is_rejected = |call: &Arc<Call>| call.code() == Some("InvalidTarget");
        site.aws
            .wait_for(SOON, |calls| calls.iter().any(is_rejected))
            .await
            .unwrap();
    }
    site.respec("web", json!({ "tags": { "last": "event" } }))
        .await;
    let notes = async |reason: &str, part: &str| {
        let events = site.bed.events("web", reason).await.into_iter();
        let notes = events.filter_map(|event| event.note);
        notes.filter(|note| note.contains(part)).count()
    };
    until("the last Event is written", SOON, async || {
        Ok((notes("Updated", "Corrected tags").await == 1).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(notes("TargetsRejected", "AWS rejected some nodes").await, 1);
}

/// Starts an operator, and a listener with a target at node port 30080 of each of two nodes.
async fn serving(name: &str) -> (Site, Operator) {
    let site = Site::with_nodes(name, &["i-1", "i-2"]).await;
    let operator = site.reaching().await;
    site.service("shop", 30_080).await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    site.arrives(80, &[("i-1", 30_080), ("i-2", 30_080)]).await;
    site.ready("web").await;
    (site, operator)
}

/// Kubernetes may give a node port that a Service released to another Service.
#[tokio::test]
async fn targets_are_removed_after_the_service_released_their_node_port() {
    let (site, _operator) = serving("released").await;
    let at = |port: u16| [("i-1", port), ("i-2", port)];
    site.bed.delete::<Service>("shop").await;
    site.has_reason("web", "ServiceNotFound").await;
    site.arrives(80, &[]).await;
    site.has_listener_status(&[(80, 0, 0, "ServiceNotFound")])
        .await;
    assert_eq!(site.listening().await.len(), 1, "the listener itself stays");

    site.service("shop", 30_081).await;
    site.arrives(80, &at(30_081)).await;
    site.ready("web").await;
    let inside =
        json!({ "spec": { "type": "ClusterIP", "ports": [{ "port": 80, "nodePort": null }] } });
    site.bed.patch::<Service>("shop", inside).await;
    let message = site.has_reason("web", "NoNodePort").await;
    assert!(message.contains("type: NodePort"), "{message}");
    site.arrives(80, &[]).await;
    site.has_listener_status(&[(80, 0, 0, "NoNodePort")]).await;

    // No target remains either while no node can get traffic.
    let outside =
        json!({ "spec": { "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30_082 }] } });
    site.bed.patch::<Service>("shop", outside).await;
    site.arrives(80, &at(30_082)).await;
    site.ready("web").await;
    for node in ["i-1", "i-2"] {
        site.exclude(node, true).await;
    }
    site.has_reason("web", "NoNodes").await;
    site.arrives(80, &at(30_082)).await;
    let moved = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_083 }] } });
    site.bed.patch::<Service>("shop", moved).await;
    site.arrives(80, &[]).await;
}

/// AWS limits the number of targets, so those of the new node port do not fit beside those of the old one.
#[tokio::test]
async fn targets_of_a_released_node_port_are_removed_although_no_more_fit() {
    let (site, _operator) = serving("full").await;
    let at = |port: u16| [("i-1", port), ("i-2", port)];
    let full = Fault::code("TooManyTargets", "You've reached the limit on targets");
    let full = site
        .aws
        .fault(On::action("RegisterTargets"), Times::Always, full);
    let moved = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_081 }] } });
    site.bed.patch::<Service>("shop", moved).await;
    site.arrives(80, &[]).await;
    site.has_reason("web", "QuotaExceeded").await;
    full.cancel();
    site.reconcile("web").await;
    site.arrives(80, &at(30_081)).await;
    site.ready("web").await;
}

#[tokio::test]
async fn traffic_follows_the_service_and_the_spec() {
    let site = Site::with_nodes("services", &["i-1", "i-2"]).await;
    let operator = site.reaching().await;
    let at = |port: u16| [("i-1", port), ("i-2", port)];
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    let message = site.has_reason("web", "ServiceNotFound").await;
    assert!(message.contains("Service shop does not exist"), "{message}");
    assert_eq!(
        (site.listening().await.len(), site.groups().await.len()),
        (0, 0),
        "nothing that leads nowhere"
    );
    site.service("shop", 30_080).await;
    site.arrives(80, &at(30_080)).await;
    site.ready("web").await;

    // Another node port.
    let ports = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_081 }] } });
    site.bed.patch::<Service>("shop", ports).await;
    site.arrives(80, &at(30_081)).await;
    site.ready("web").await;
    site.has_listener_status(&[(80, 2, 2, "")]).await;

    // No matching port: the node port still belongs to the Service, so its targets stay.
    let ports = json!({ "spec": { "ports": [{ "port": 81, "nodePort": 30_081 }] } });
    site.bed.patch::<Service>("shop", ports).await;
    let message = site.has_reason("web", "ServicePortNotFound").await;
    assert!(
        message.contains("has no TCP port 80: it has 81"),
        "{message}"
    );
    site.arrives(80, &at(30_081)).await;
    let ports = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_082 }] } });
    site.bed.patch::<Service>("shop", ports).await;
    site.arrives(80, &at(30_082)).await;
    site.ready("web").await;

    // A second listener, and a change of the first one's port.
    site.service("api", 30_090).await;
    site.respec(
        "web",
        json!({ "listeners": [http(80, "shop"), http(8080, "api")] }),
    )
    .await;
    site.arrives(8080, &at(30_090)).await;
    site.arrives(80, &at(30_082)).await;
    site.has_listener_status(&[(80, 2, 2, ""), (8080, 2, 2, "")])
        .await;
    site.respec(
        "web",
        json!({ "listeners": [http(81, "shop"), http(8080, "api")] }),
    )
    .await;
    site.arrives(81, &at(30_082)).await;
    site.arrives(80, &[]).await;
    site.ready("web").await;
    assert_eq!(
        site.listening()
            .await
            .iter()
            .map(|it| it.port)
            .collect::<Vec<_>>(),
        [81, 8080]
    );
    assert_eq!(site.groups().await.len(), 2);
    site.has_listener_status(&[(81, 2, 2, ""), (8080, 2, 2, "")])
        .await;

    // Both lead to other Services.
    site.respec(
        "web",
        json!({ "listeners": [http(81, "api"), http(8080, "shop")] }),
    )
    .await;
    site.arrives(81, &at(30_090)).await;
    site.arrives(8080, &at(30_082)).await;
    site.ready("web").await;

    // While the MyIngress is suspended nothing changes; then all listeners are deleted.
    site.respec("web", json!({ "suspend": true, "listeners": null }))
        .await;
    site.has_reason("web", "Suspended").await;
    assert_eq!(
        (site.listening().await.len(), site.groups().await.len()),
        (2, 2)
    );
    site.respec("web", json!({ "suspend": null })).await;
    site.ready("web").await;
    assert_eq!(
        (site.listening().await.len(), site.groups().await.len()),
        (0, 0)
    );
    assert_eq!(site.status().await, []);
    assert_never_without_targets(&site.aws.calls());

    // A load balancer without listeners costs no more than before.
    drop(operator);
    site.aws.clear();
    let _operator = site.reaching().await;
    let looked = |calls: &[Arc<Call>]| calls.len() >= 2;
    let calls = site.aws.wait_for(SOON, looked).await.unwrap();
    site.reconcile("web").await;
    site.aws
        .wait_for(SOON, |now| now.len() >= calls.len() + 2)
        .await
        .unwrap();
    assert_eq!(
        counted(&site.aws.calls()).keys().collect::<Vec<_>>(),
        ["DescribeLoadBalancers", "DescribeTags"]
    );
}

#[tokio::test]
async fn listener_settings_are_corrected_and_no_others() {
    let site = Site::with_nodes("listeners", &["i-1"]).await;
    let operator = site.reaching().await;
    site.service("shop", 30_080).await;
    let tls = async || site.aws.certificate().await.unwrap();
    let (first, second) = (tls().await, tls().await);
    site.ingress("web", json!({ "listeners": [http(443, "shop")] }))
        .await;
    site.arrives(443, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    let made = site.listening().await.remove(0);
    let group = site.groups().await.remove(0);
    assert_eq!(
        (group.health_check_path.as_str(), group.tags == made.tags),
        ("/", true)
    );
    assert_eq!(made.tags, site.balancer("web").await.unwrap().tags);
    let arn = site.balancer("web").await.unwrap().arn;
    let becomes = async |what: &str, is: &dyn Fn(&Listener, &TargetGroup) -> bool| {
        until(what, SOON, async || {
            let (listeners, groups) = (site.listening().await, site.groups().await);
            let listener = listeners
                .iter()
                .find(|listener| listener.port == 443)
                .unwrap();
            let group = groups.iter().find(|it| it.arn == group.arn).unwrap();
            assert_eq!(listener.arn, made.arn);
            Ok(is(listener, group).then_some(()))
        })
        .await
        .unwrap();
    };

    // HTTPS with one policy and then another, another certificate, another path, and back to the first.
    let secure = |certificate: &str, policy: Value, path: Value| {
        let mut listener = http(443, "shop");
        listener["protocol"] = "HTTPS".into();
        listener["certificateArn"] = certificate.into();
        (listener["sslPolicy"], listener["healthCheckPath"]) = (policy, path);
        listener
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        json!({ "listeners": [listener] })
    };
    let (old, new) = (
        "ELBSecurityPolicy-TLS-1-2-2017-01",
        "ELBSecurityPolicy-TLS13-1-2-2021-06",
    );
    site.respec("web", secure(&first, Value::Null, Value::Null))
        .await;
    becomes("HTTPS", &|it, _| {
        it.protocol == "HTTPS" && it.certificates == [first.clone()]
    })
    .await;
    site.respec("web", secure(&first, json!(old), Value::Null))
        .await;
    becomes("the policy", &|it, _| it.ssl_policy == old).await;
    site.respec("web", secure(&second, json!(old), json!("/healthz")))
        .await;
    becomes("the other certificate", &|it, _| {
        it.certificates == [second.clone()]
    })
    .await;
    becomes("the path", &|_, group| {
        group.health_check_path == "/healthz"
    })
    .await;
    // Without the field the policy stays.
    site.respec("web", secure(&second, Value::Null, json!("/healthz")))
        .await;
    site.ready("web").await;
    becomes("the policy still", &|it, _| it.ssl_policy == old).await;
    site.arrives(443, &[("i-1", 30_080)]).await;

    // Another client changes the operator's objects, and creates its own.
    let foreign_group = site.aws.create_target_group("theirs", 80).await.unwrap();
    site.respec("web", secure(&second, json!(new), json!("/healthz")))
        .await;
    becomes("the new policy", &|it, _| it.ssl_policy == new).await;
    let action = [
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", &*foreign_group),
    ];
    let modify = [
        &[("ListenerArn", &*made.arn), ("SslPolicy", old)],
        &action[..],
    ]
    .concat();
    site.aws.ask("ModifyListener", &modify).await.unwrap();
    let path = [
        ("TargetGroupArn", &*group.arn),
        ("HealthCheckPath", "/theirs"),
        ("HealthCheckIntervalSeconds", "15"),
    ];
    site.aws.ask("ModifyTargetGroup", &path).await.unwrap();
    let targets = [
        ("TargetGroupArn", &*group.arn),
        ("Targets.member.1.Id", "i-1"),
        ("Targets.member.1.Port", "30080"),
    ];
    site.aws.ask("DeregisterTargets", &targets).await.unwrap();
    let foreign = site
        .aws
        .create_listener(&arn, 9000, &foreign_group)
        .await
        .unwrap();
    site.reconcile("web").await;
    becomes("is corrected", &|it, group| {
        it.target_group == group.arn
            && it.ssl_policy == new
            && group.health_check_path == "/healthz"
    })
    .await;
    site.arrives(443, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    let updated_event = site.bed.event("web", "Updated").await;
    assert!(updated_event.contains("port 443"), "{updated_event}");

    // A foreign listener blocks the port: the operator reports the listener and does not touch it.
    site.respec(
        "web",
        json!({ "listeners": [http(443, "shop"), http(9000, "shop")] }),
    )
    .await;
    let message = site.has_reason("web", "Conflict").await;
    assert!(message.contains("port 9000"), "{message}");
    becomes("HTTP", &|it, _| it.protocol == "HTTP").await;
    site.has_listener_status(&[(443, 1, 1, ""), (9000, 0, 0, "Conflict")])
        .await;
    site.respec("web", json!({ "listeners": [http(443, "shop")] }))
        .await;
    site.ready("web").await;
    let left = site.listening().await;
    let left = left.iter().find(|it| it.port == 9000).unwrap();
    assert_eq!(
        (&left.arn, &left.target_group, left.tags.len()),
        (&foreign, &foreign_group, 0)
    );
    // A foreign group with the name that the operator would use is a conflict too.
    let name = site
        .groups()
        .await
        .iter()
        .find(|it| it.arn == group.arn)
        .unwrap()
        .name
        .replace("-443", "-81");
    let squatter = site.aws.create_target_group(&name, 80).await.unwrap();
    site.respec(
        "web",
        json!({ "listeners": [http(443, "shop"), http(81, "shop")] }),
    )
    .await;
    let message = site.has_reason("web", "Conflict").await;
    assert!(message.contains(&name), "{message}");
    site.respec("web", json!({ "listeners": [http(443, "shop")] }))
        .await;
    site.ready("web").await;
    assert!(
        site.groups()
            .await
            .iter()
            .any(|it| it.arn == squatter && it.tags.is_empty())
    );

    // A tag lets the operator adopt both.
    site.respec(
        "web",
        json!({ "listeners": [http(443, "shop"), http(9000, "shop"), http(81, "shop")] }),
    )
    .await;
    let message = until("both are in the way", SOON, async || {
        let message = site.has_reason("web", "Conflict").await;
        Ok((message.contains(&foreign) && message.contains(&squatter)).then_some(message))
    });
    run_adopt_commands(&site, &message.await.unwrap()).await;
    site.arrives(9000, &[("i-1", 30_080)]).await;
    site.arrives(81, &[("i-1", 30_080)]).await;
    site.ready("web").await;
    for arn in [&foreign, &squatter] {
        until("the Event is emitted", SOON, async || {
            let updated_event = site.bed.events("web", "Adopted").await;
            Ok(updated_event
                .iter()
                .any(|event| {
                    event
                        .note
                        .as_ref()
                        .is_some_and(|message| message.contains(arn))
                })
                .then_some(()))
        })
        .await
        .unwrap();
    }
    let adopted = site.listening().await;
    assert!(
        adopted.iter().all(|it| it.tags == made.tags) && adopted.iter().any(|it| it.arn == foreign)
    );
    assert_eq!(
        site.groups()
            .await
            .iter()
            .find(|it| it.arn == squatter)
            .unwrap()
            .tags,
        made.tags
    );
    // The operator owns them: it corrects their tags, and deletes them with their ports.
    for arn in [&foreign, &squatter] {
        site.aws.untag(arn, "ManagedBy").await.unwrap();
    }
    site.reconcile("web").await;
    until("they bear our tags again", SOON, async || {
        let listeners = site.listening().await;
        let listener = listeners.iter().find(|it| it.arn == foreign).unwrap();
        let groups = site.groups().await;
        let group = groups.iter().find(|it| it.arn == squatter).unwrap();
        Ok((listener.tags == made.tags && group.tags == made.tags).then_some(()))
    })
    .await
    .unwrap();
    site.respec("web", json!({ "listeners": [http(443, "shop")] }))
        .await;
    site.ready("web").await;
    assert!(!site.groups().await.iter().any(|it| it.arn == squatter));
    assert!(!site.listening().await.iter().any(|it| it.arn == foreign));

    // AWS rejects one listener: the other works.
    let mut bad = secure(
        "arn:aws:acm:us-east-1:123456789012:certificate/none",
        Value::Null,
        Value::Null,
    );
    bad["listeners"]
        .as_array_mut()
        .unwrap()
        .push(http(82, "shop"));
    site.respec("web", bad).await;
    let message = site.has_reason("web", "SpecRejected").await;
    assert!(
        message.starts_with("port 443: AWS returned CertificateNotFound"),
        "{message}"
    );
    site.arrives(82, &[("i-1", 30_080)]).await;
    let ingress: MyIngress = site.bed.api().get("web").await.unwrap();
    assert!(ingress.status.unwrap().alb.unwrap().dns.is_some());
    site.respec("web", json!({ "listeners": [http(443, "shop")] }))
        .await;
    site.ready("web").await;

    // At rest the operator makes this many calls, and no write.
    site.has_listener_status(&[(443, 1, 1, "")]).await;
    drop(operator);
    site.respec(
        "web",
        json!({ "listeners": [http(443, "shop"), http(444, "shop")] }),
    )
    .await;
    let operator = Operator::start(
        &site.bed,
        site.settings().whole_cluster().flag("--aws-sync-period=2s"),
    )
    .await;
    site.has_listener_status(&[(443, 1, 1, ""), (444, 1, 1, "")])
        .await;
    site.ready("web").await;
    let since = site.bed.plane.audit().mark().await.unwrap();
    site.aws.clear();
    let looked = |calls: &[Arc<Call>]| {
        calls
            .iter()
            .filter(|it| it.action == "DescribeLoadBalancers")
            .count()
            >= 3
    };
    site.aws.wait_for(SOON, looked).await.unwrap();
    drop(operator);
    let calls = site.aws.calls();
    let starts: Vec<_> = (0..calls.len())
        .filter(|at| calls[*at].action == "DescribeLoadBalancers")
        .collect();
    let reconcile: Vec<_> = calls[starts[1]..starts[2]]
        .iter()
        .map(|call| call.action.as_str())
        .collect();
    let expected = [
        "DescribeLoadBalancers",
        "DescribeTags",
        "DescribeListeners",
        "DescribeTargetGroups",
        "DescribeTags",
        "DescribeTargetHealth",
        "DescribeTargetHealth",
    ];
    assert_eq!(reconcile, expected);
    assert_eq!(site.writes(since).await, [""; 0]);
}

#[tokio::test]
async fn unhealthy_targets_are_reported_with_the_needed_rule() {
    let site = Site::with_nodes("health", &["i-1", "i-2"]).await;
    let _operator = site.reaching().await;
    let groups = site.aws.security_groups();
    site.service("shop", 30_080).await;
    site.aws.target_times(
        std::time::Duration::from_hours(1),
        std::time::Duration::ZERO,
    );
    site.ingress(
        "web",
        json!({ "listeners": [http(80, "shop")], "securityGroups": groups }),
    )
    .await;
    let message = site.has_reason("web", "TargetsInitial").await;
    assert!(message.contains("port 80"), "{message}");
    let group = site.groups().await.remove(0);
    for id in ["i-1", "i-2"] {
        site.aws
            .health(&group.arn, id, "unhealthy", "Target.Timeout")
            .unwrap();
    }
    let message = site.has_reason("web", "TargetsUnhealthy").await;
    let mut named = groups.clone();
    named.sort();
    assert!(message.contains("(Target.Timeout"), "{message}");
    assert!(
        message.contains(&format!("allows TCP 30080 from {}", named.join(", "))),
        "{message}"
    );
    site.has_listener_status(&[(80, 0, 2, "TargetsUnhealthy")])
        .await;
    // Another node port: at no moment does a listener lead nowhere.
    let ports = json!({ "spec": { "ports": [{ "port": 80, "nodePort": 30_081 }] } });
    site.bed.patch::<Service>("shop", ports).await;
    site.arrives(80, &[("i-1", 30_081), ("i-2", 30_081)]).await;
    assert_never_without_targets(&site.aws.calls());
    // A single healthy target is enough.
    site.aws.health(&group.arn, "i-2", "healthy", "").unwrap();
    site.ready("web").await;
    site.has_listener_status(&[(80, 1, 2, "")]).await;
    site.bed.event("web", "Ready").await;
    site.aws.health(&group.arn, "i-1", "healthy", "").unwrap();
    site.reconcile("web").await;
    site.has_listener_status(&[(80, 2, 2, "")]).await;
    assert_eq!(
        site.bed.events("web", "Ready").await.len(),
        1,
        "another count is no news"
    );
}

#[tokio::test]
async fn namespaced_operator_reports_missing_access_to_nodes() {
    let site = Site::new("scoped").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({ "listeners": [http(80, "shop")] }))
        .await;
    let message = site.has_reason("web", "OutOfScope").await;
    assert!(message.contains("--watch-namespace"), "{message}");
    assert_eq!(site.aws.calls().len(), 0);
    site.respec("web", json!({ "listeners": null })).await;
    site.ready("web").await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
}
