//! `MyIngress`, field by field.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{CustomResourceExt, Error};
use qm_api::MyIngress;
use serde_json::{Value, json};

use super::{Case, check, create, every_field_has_a_case, served};

fn subnets(subnets: &str) -> String {
    format!("{{subnets: [{subnets}]}}")
}

fn and(more: &str) -> String {
    format!("{{subnets: [subnet-abc, subnet-def], {more}}}")
}

fn tag(key: &str, value: &str) -> String {
    and(&format!("tags: {{\"{key}\": \"{value}\"}}"))
}

/// Returns a listener with a port, a Service and these fields.
fn listener(more: &str) -> String {
    listeners(&format!(
        "{{port: 80, service: {{name: shop, port: 80}}, {more}}}"
    ))
}

fn listeners(listeners: &str) -> String {
    and(&format!("listeners: [{listeners}]"))
}

fn leads_to(service: &str) -> String {
    listeners(&format!("{{port: 80, service: {service}}}"))
}

const CERTIFICATE: &str = "spec.listeners[0]: |protocol: HTTPS needs certificateArn";
const BAD_SERVICE: &str = "spec.listeners[0].service.name: |write the name of a Service";
const BAD_PATH: &str = "spec.listeners[0].healthCheckPath: |write a path that begins with /";
const TOO_FEW: &str = "spec: |give at least two subnets";
const BAD_SUBNET: &str =
    "spec.subnets: |write the IDs of subnets, such as subnet-0123456789abcdef0";
const BAD_SCHEME: &str = "spec.scheme: |write scheme: internet-facing";
const BAD_GROUP: &str = "spec.securityGroups: |write the IDs of security groups";
const BAD_ADDRESSES: &str = "spec.ipAddressType: |write ipAddressType: ipv4";
const BAD_TAG: &str = "spec.tags: |write tags of letters, digits";
const RESERVED_TAG: &str = "spec.tags: |choose other keys";

#[rustfmt::skip] // one line a case
fn cases() -> Vec<Case> {
    let many = |n: usize| (0..n).map(|number| format!("subnet-{number}")).collect::<Vec<_>>().join(", ");
    let groups = |n: usize| (0..n).map(|number| format!("sg-{number}")).collect::<Vec<_>>().join(", ");
    let one = |port| format!("{{port: {port}, service: {{name: shop, port: 80}}}}");
    let ports = |n: usize| (1..=n).map(one).collect::<Vec<_>>().join(", ");
    let tags = |n: usize| (0..n).map(|number| format!("t{number}: v")).collect::<Vec<_>>().join(", ");
    vec![
        // subnets
        (subnets("subnet-abc, subnet-def"), ""), // the document's
        (subnets("subnet-0123456789abcdef0, subnet-0a"), ""),
        (subnets(&many(16)), ""),
        (subnets(&many(17)), "spec.subnets: |Too many"),
        ("{}".into(), TOO_FEW),
        ("{scheme: internal}".into(), TOO_FEW),
        (subnets(""), TOO_FEW),
        (subnets("subnet-abc"), TOO_FEW),
        (subnets("subnet-abc, subnet-abc"), "spec.subnets: |remove the duplicate"),
        (subnets("subnet-abc, vpc-1"), BAD_SUBNET),
        (subnets("subnet-abc, subnet-"), BAD_SUBNET),
        (subnets("subnet-abc, subnet-A b"), BAD_SUBNET),
        (subnets(&format!("subnet-abc, subnet-{}", "a".repeat(57))), ""),
        (subnets(&format!("subnet-abc, subnet-{}", "a".repeat(58))), "spec.subnets[1]: |Too long"),
        ("{subnets: subnet-abc}".into(), "spec.subnets: |array"),
        // scheme
        (and("scheme: internet-facing"), ""),
        (and("scheme: internal"), ""),
        (and("scheme: ''"), ""),
        (and("scheme: public"), BAD_SCHEME),
        (and(&format!("scheme: {}", "a".repeat(65))), "spec.scheme: |Too long"),
        // securityGroups
        (and("securityGroups: [sg-0123456789abcdef0]"), ""),
        (and("securityGroups: []"), ""),
        (and(&format!("securityGroups: [{}]", groups(16))), ""),
        (and(&format!("securityGroups: [{}]", groups(17))), "spec.securityGroups: |Too many"),
        (and("securityGroups: [default]"), BAD_GROUP),
        (and("securityGroups: [sg-1, sg-1]"), "spec.securityGroups: |remove the duplicate"),
        // ipAddressType
        (and("ipAddressType: ipv4"), ""),
        (and("ipAddressType: dualstack, scheme: internal"), ""),
        (and("ipAddressType: dualstack-without-public-ipv4"), ""),
        (and("ipAddressType: dualstack-without-public-ipv4, scheme: internal"), "spec: |needs scheme: internet-facing"),
        (and("ipAddressType: ipv6"), BAD_ADDRESSES),
        (and("ipAddressType: ''"), BAD_ADDRESSES),
        // tags
        (tag("team", "shop"), ""),
        (tag("example.com/team", ""), ""),
        (tag(&"a".repeat(128), &"v".repeat(256)), ""),
        (tag(&"a".repeat(129), "v"), "spec.tags: |write tags whose keys have 1 to 128 characters"),
        (tag("", "v"), "spec.tags: |write tags whose keys have 1 to 128 characters"),
        (tag("a", &"v".repeat(257)), "spec.tags.a: |Too long"),
        (tag("aws:a", "v"), RESERVED_TAG),
        (tag("AWS:a", "v"), RESERVED_TAG),
        (tag("\u{e4}\u{1F10B} _.:/=+-@", "\u{e4} _.:/=+-@"), ""),
        (tag("a;b", "v"), BAD_TAG),
        (tag("a", "v;"), BAD_TAG),
        (tag("ManagedBy", "me"), RESERVED_TAG),
        (tag("elbv2.k8s.aws/cluster", "c"), RESERVED_TAG),
        (tag("k8s.aws/x", "c"), RESERVED_TAG),
        (tag("kubernetes.io/cluster/c", "owned"), RESERVED_TAG),
        (tag("Ingress.K8s.aws/stack", "c"), RESERVED_TAG),
        (tag("notk8s.aws/x", "c"), ""),
        (tag("quartermaster.dev/owner-uid", "u"), RESERVED_TAG),
        (and(&format!("tags: {{{}}}", tags(40))), ""),
        (and(&format!("tags: {{{}}}", tags(41))), "spec.tags: |Too many"),
        // listeners
        (and("listeners: []"), ""),
        (listeners("{port: 80, service: {name: shop, port: 8080}}"), ""),
        (listeners(&ports(8)), ""),
        (listeners(&ports(9)), "spec.listeners: |Too many"),
        (listeners(&format!("{}, {{port: 1, service: {{name: shop, port: 2}}}}", ports(2))), "spec.listeners[2]: |Duplicate"),
        (listeners("{service: {name: shop, port: 80}}"), "spec.listeners[0].port: |Required"),
        (listeners("{port: 80}"), "spec.listeners[0].service: |Required"),
        (listeners("{port: 65535, service: {name: shop, port: 65535}}"), ""),
        (listeners("{port: 65536, service: {name: shop, port: 80}}"), "spec.listeners[0].port: |less than or equal to 65535"),
        (listeners("{port: 0, service: {name: shop, port: 80}}"), "spec.listeners[0].port: |greater than or equal to 1"),
        (leads_to("{name: shop, port: 65536}"), "spec.listeners[0].service.port: |less than or equal to 65535"),
        (leads_to("{name: shop, port: 0}"), "spec.listeners[0].service.port: |greater than or equal to 1"),
        (leads_to("{name: shop}"), "spec.listeners[0].service.port: |Required"),
        (leads_to("{port: 80}"), "spec.listeners[0].service.name: |Required"),
        (leads_to("{name: '', port: 80}"), BAD_SERVICE),
        (leads_to("{name: 1shop, port: 80}"), ""),
        (leads_to("{name: Shop, port: 80}"), BAD_SERVICE),
        (leads_to("{name: a.b, port: 80}"), BAD_SERVICE),
        (leads_to(&format!("{{name: {}, port: 80}}", "a".repeat(63))), ""),
        (leads_to(&format!("{{name: {}, port: 80}}", "a".repeat(64))), "spec.listeners[0].service.name: |Too long"),
        (listener("protocol: HTTP"), ""),
        (listener("protocol: TCP"), "spec.listeners[0].protocol: |write protocol: HTTP, or"),
        (listener("protocol: ''"), "spec.listeners[0].protocol: |write protocol: HTTP, or"),
        (listener(&format!("protocol: {}", "a".repeat(17))), "spec.listeners[0].protocol: |Too long"),
        (listener("protocol: HTTPS, certificateArn: 'arn:aws:acm:a:1:certificate/1'"), ""),
        (listener(&format!("protocol: HTTPS, certificateArn: 'arn:{}'", "a".repeat(2044))), ""),
        (listener(&format!("protocol: HTTPS, certificateArn: 'arn:{}'", "a".repeat(2045))), "spec.listeners[0].certificateArn: |Too long"),
        (listener("protocol: HTTPS, certificateArn: shop"), "spec.listeners[0].certificateArn: |write the ARN of a certificate"),
        (listener("protocol: HTTPS"), CERTIFICATE),
        (listener("protocol: HTTP, certificateArn: 'arn:1'"), CERTIFICATE),
        (listener("certificateArn: 'arn:1'"), CERTIFICATE),
        (listener("protocol: HTTPS, certificateArn: 'arn:1', sslPolicy: ELBSecurityPolicy-TLS13-1-2-2021-06"), ""),
        (listener(&format!("protocol: HTTPS, certificateArn: 'arn:1', sslPolicy: {}", "a".repeat(128))), ""),
        (listener(&format!("protocol: HTTPS, certificateArn: 'arn:1', sslPolicy: {}", "a".repeat(129))), "spec.listeners[0].sslPolicy: |Too long"),
        (listener("protocol: HTTPS, certificateArn: 'arn:1', sslPolicy: ''"), "spec.listeners[0].sslPolicy: |at least 1"),
        (listener("sslPolicy: a"), "spec.listeners[0]: |sslPolicy needs protocol: HTTPS"),
        (listener("protocol: HTTP, sslPolicy: a"), "spec.listeners[0]: |sslPolicy needs protocol: HTTPS"),
        (listener("healthCheckPath: /"), ""),
        (listener("healthCheckPath: '/healthz?full=1'"), ""),
        (listener("healthCheckPath: healthz"), BAD_PATH),
        (listener("healthCheckPath: ''"), BAD_PATH),
        (listener("healthCheckPath: '/a b'"), BAD_PATH),
        (listener("healthCheckPath: \"/a\\n\""), BAD_PATH),
        (listener(&format!("healthCheckPath: /{}", "a".repeat(1023))), ""),
        (listener(&format!("healthCheckPath: /{}", "a".repeat(1024))), "spec.listeners[0].healthCheckPath: |Too long"),
        // suspend
        (and("suspend: true"), ""),
        (and("suspend: 'true'"), "spec.suspend: |boolean"),
    ]
}

#[tokio::test]
async fn my_ingress_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    let kind = MyIngress::api_resource();
    check(&client, &kind, &cases()).await;
    every_field_has_a_case("MyIngress", &[], &cases());

    // The load balancer has the same name, with a suffix.
    let spec = json!({ "subnets": ["subnet-1", "subnet-2"] });
    let (longest, longer) = ("a".repeat(28), "a".repeat(29));
    for (name, accepted) in [
        ("a", true),
        ("0-a", true),
        (&longest, true),
        (&longer, false),
        ("a.b", false),
        ("internal", false),
        ("internal-a", false),
        ("internals", true),
    ] {
        match create(&client, &kind, name, Some(&spec), true).await {
            Ok(_) => assert!(accepted, "{name} is accepted"),
            Err(error) => assert!(
                !accepted && error.contains("choose a name of at most 28"),
                "{name}: {error}"
            ),
        }
    }

    // The scheme is immutable, with the field or without.
    let api = Api::<DynamicObject>::default_namespaced_with(client.clone(), &kind);
    create(&client, &kind, "facing", Some(&spec), false)
        .await
        .unwrap();
    let mut internal = spec.clone();
    internal["scheme"] = "internal".into();
    create(&client, &kind, "inside", Some(&internal), false)
        .await
        .unwrap();
    for (name, scheme, accepted) in [
        ("facing", json!("internet-facing"), true),
        ("facing", Value::Null, true),
        ("facing", json!("internal"), false),
        ("inside", Value::Null, false),
        ("inside", json!("internet-facing"), false),
        ("inside", json!("internal"), true),
    ] {
        let patch = json!({ "spec": { "scheme": scheme } });
        match api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(Error::Api(error)) => {
                assert!(
                    !accepted && error.message.contains("recreate this MyIngress"),
                    "{}",
                    error.message
                );
            }
            patched => assert!(patched.is_ok() && accepted, "{name} {scheme}"),
        }
    }
    // The scheme cannot be changed by removing the spec either.
    let bare = Patch::Merge(json!({ "spec": null }));
    let Err(Error::Api(error)) = api.patch("inside", &PatchParams::default(), &bare).await else {
        panic!()
    };
    assert!(error.message.contains("write a spec"), "{}", error.message);
}
