//! Objects that the original programs' CRDs accepted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::crds::wait_until;

const ORIGINAL: &str = include_str!("../original.yaml");

/// Returns specs in YAML: the original CRD accepted each, and today's rejects each.
pub fn contact_points() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let telegram =
        |token: &str, more: &str| format!("{{type: Telegram, apiToken: {{{token}}}, {more}}}");
    let webhook = |url: &str, header: &str, more: &str| {
        format!(
            "{{type: Webhook, apiToken: {{secretName: s, key: k}}, webhookSpec: {{url: '{url}', headerName: '{header}'}}, \
             {more}}}"
        )
    };
    let s = "secretName: s, key: k";
    vec![
        format!("{{type: Slack, apiToken: {{{s}}}}}"),
        format!("{{type: {}, apiToken: {{{s}}}}}", long(100)),
        telegram(s, ""),
        telegram(s, "telegramSpec: {chatId: 0}"),
        telegram(
            s,
            "telegramSpec: {chatId: 1}, webhookSpec: {url: https://h, headerName: X-A}",
        ),
        telegram("secretName: '', key: ''", "telegramSpec: {chatId: 1}"),
        telegram("secretName: A_B, key: k", "telegramSpec: {chatId: 1}"),
        telegram("secretName: s, key: a b", "telegramSpec: {chatId: 1}"),
        telegram(
            &format!("secretName: {}, key: {}", long(300), long(300)),
            "telegramSpec: {chatId: 1}",
        ),
        format!("{{type: Webhook, apiToken: {{{s}}}}}"),
        webhook("", "", ""),
        webhook("https://h", "", ""),
        webhook("https://h", "X-A", "telegramSpec: {chatId: 1}"),
        webhook("ftp://h", "X-A", ""),
        webhook("h", "X-A", ""),
        webhook("https://user:password@h", "X-A", ""),
        webhook("https://h/#part", "X-A", ""),
        webhook(&format!("https://h/{}", long(3000)), "X-A", ""),
        webhook("https://h", "X A", ""),
        webhook("https://h", "Host", ""),
        webhook("https://h", &long(200), ""),
    ]
}

pub fn tracked_fields() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let all = |point: &str, field: &str, kind: &str, namespace: &str, name: &str| {
        format!(
            "{{contactPoint: '{point}', field: '{field}', \
             target: {{kind: '{kind}', namespace: '{namespace}', name: '{name}'}}}}"
        )
    };
    vec![
        all("Telegram", "replicas", "Deployment", "default", "a"),
        all(&long(300), "replicas", "Deployment", "default", "a"),
        all("cp", "strategy", "Deployment", "default", "a"),
        all("cp", "{range .a}", "Deployment", "default", "a"),
        all("cp", &long(2000), "Deployment", "default", "a"),
        all("cp", "replicas", "Secret", "default", "a"),
        all("cp", "replicas", "secret", "default", "a"),
        all("cp", "replicas", "DaemonSet", "default", "a"),
        all("cp", "replicas", "apps/Deployment", "default", "a"),
        all("cp", "replicas", &long(100), "default", "a"),
        all("cp", "replicas", "Deployment", "", "a"),
        all("cp", "replicas", "Deployment", "Default", "a"),
        all("cp", "replicas", "Deployment", &long(100), "a"),
        all("cp", "replicas", "Deployment", "default", "A"),
        all("cp", "replicas", "Deployment", "default", "a/b"),
        all("cp", "replicas", "Deployment", "default", &long(300)),
        all("cp", "image", "Service", "default", "a"),
        all("cp", "targetPort", "Deployment", "default", "a"),
    ]
}

/// The original program copied none of them.
pub fn config_map_syncs() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let sync = |from: &str, name: &str, to: &str| {
        format!(
            "{{sourceNamespace: '{from}', configMapName: '{name}', destinationNamespace: '{to}'}}"
        )
    };
    vec![
        sync("", "", ""),
        sync("a", "c", "a"),
        sync("a", "c", ""),
        sync("a", "", "b"),
        sync("a/b", "c", "b"),
        sync("a", "c", "b c"),
        sync("a", "c d", "b"),
        sync(&long(64), "c", "b"),
        sync("a", &long(254), "b"),
        sync("a", "c", &long(64)),
    ]
}

/// The apiserver would have rejected the program's Service and Deployment for most of these; the objects exist anyway.
pub fn app_services() -> Vec<String> {
    let long = |n: usize| "a".repeat(n);
    let ports = |ports: &str| format!("{{size: 1, image: i, ports: [{ports}]}}");
    let port = |rest: &str| ports(&format!("{{port: 80, {rest}}}"));
    let many = (1..=65)
        .map(|n| format!("{{port: {n}, name: p{n}}}"))
        .collect::<Vec<_>>()
        .join(", ");
    vec![
        "{size: 1, image: ''}".into(),
        "{size: 1, image: 'a b'}".into(),
        format!("{{size: 1, image: {}}}", long(2000)),
        ports("{port: 0}"),
        ports("{port: 65536}"),
        ports(&many),
        ports("{port: 80}, {port: 81}"),
        ports("{port: 80, name: a}, {port: 81, name: a}"),
        ports("{port: 80, name: a}, {port: 80, name: b}"),
        ports("{port: 80, name: a, nodePort: 30000}, {port: 81, name: b, nodePort: 30000}"),
        ports(
            "{port: 53, name: a, targetPort: dns}, {port: 53, name: b, targetPort: dns, protocol: UDP}",
        ),
        port("name: Http"),
        port(&format!("name: {}", long(64))),
        port("targetPort: 5000000000"),
        port("targetPort: Http"),
        port(&format!("targetPort: {}", long(200))),
        port("nodePort: -1"),
        port("protocol: tcp"),
        port(&format!("protocol: {}", long(100))),
        port("appProtocol: a b"),
        port(&format!("appProtocol: {}", long(400))),
        // So many pairs that the rules over them would exceed the cost limit of a rule.
        ports(&vec!["{port: 80, name: a, nodePort: 30000, targetPort: a}"; 5000].join(", ")),
    ]
}

/// Returns names and specs; the original's had no status.
pub fn my_apps() -> Vec<(String, String)> {
    let banner = |banner: &str| format!("{{image: nginx, banner: \"{banner}\"}}");
    let specs = [
        "{}".into(),
        "{banner: hello}".into(),
        "{image: ''}".into(),
        "{image: a b}".into(),
        format!("{{image: {}}}", "a".repeat(2000)),
        banner(&"a".repeat(130_000)),
        banner(&"\u{e4}".repeat(70_000)),
        banner(r"a\0b"),
    ];
    let numbered = specs
        .into_iter()
        .enumerate()
        .map(|(number, spec)| (format!("ma-{number}"), spec));
    let named = [
        ("ma.dot".into(), "{image: nginx}".into()),
        ("a".repeat(64), "{image: nginx}".into()),
    ];
    numbered.chain(named).collect()
}

/// Returns names and specs. The document shows no CRD; the status that its program wrote shows what the CRD must have
/// accepted.
pub fn my_ingresses() -> Vec<(String, String)> {
    let many: Vec<_> = (0..20).map(|number| format!("subnet-{number}")).collect();
    let specs = [
        "{}".into(),
        "{subnets: []}".into(),
        "{subnets: [subnet-abc]}".into(),
        "{subnets: [subnet-abc, subnet-abc]}".into(),
        "{subnets: [one, two], scheme: internal}".into(),
        format!("{{subnets: [{}, b]}}", many.join(", ")),
        "{subnets: [subnet-abc, subnet-def], scheme: public}".into(),
    ];
    let numbered = specs
        .into_iter()
        .enumerate()
        .map(|(number, spec)| (format!("mi-{number}"), spec));
    let named = ["mi.dot", "internal", &"a".repeat(29)].map(|name| {
        (
            name.to_owned(),
            "{subnets: [subnet-abc, subnet-def]}".to_owned(),
        )
    });
    numbered.chain(named).collect()
}

/// Installs the original's CRDs and waits until they are served.
pub async fn install_original(client: &Client, subresource: bool) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for text in ORIGINAL.split("---\n") {
        let mut crd: CustomResourceDefinition = serde_saphyr::from_str(text).unwrap();
        if crd.spec.names.kind == "TrackedField" && !subresource {
            crd.spec.versions[0].subresources = None;
        }
        api.create(&PostParams::default(), &crd).await.unwrap();
        let name = crd.name_any();
        wait_until("the original CRD is served", async || {
            let conditions = api
                .get(&name)
                .await
                .unwrap()
                .status
                .and_then(|s| s.conditions)
                .unwrap_or_default();
            conditions
                .iter()
                .any(|c| c.type_ == "Established" && c.status == "True")
        })
        .await;
    }
}

pub async fn store(
    client: &Client,
    kind: &ApiResource,
    name: &str,
    yaml: Option<&str>,
    status: &Value,
    by_subresource: bool,
) {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), "default", kind);
    let mut object = DynamicObject::new(name, kind);
    object.data = json!({ "status": status });
    if let Some(yaml) = yaml {
        object.data["spec"] = serde_saphyr::from_str(yaml).unwrap();
    }
    // Right after its CRD the apiserver may answer 429 or 404 for a moment.
    wait_until(&format!("{name} is stored"), async || {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => true,
            Err(kube::Error::Api(error)) if error.code == 429 || error.code == 404 => false,
            Err(error) => panic!("the original CRD refuses {yaml:?}: {error}"),
        }
    })
    .await;
    if by_subresource {
        let patch = json!({ "status": status });
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
}
