//! Sources and destinations that cannot be copied, and their conditions: other destinations get their copies.

use std::time::Duration;

use http::StatusCode;
use testbed::proxy::{Fault, Match, Times, Verb};

use super::*;

/// An admission webhook does not answer for some namespaces, which are more than the operator writes to at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_destinations_block_no_other() {
    let shop = Shop::shared("hanging").await;
    let names: Vec<_> = (0..16).map(|number| format!("a{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).chain(["z"]).collect();
    let mut destinations = Vec::new();
    for name in &names {
        destinations.push(shop.open(name, json!({})).await);
    }
    let last = &destinations[16];
    let (proxy, file) = shop.bed.through_proxy().await;
    let prefix = shop.other_namespace("a");
    let hanging = Match::writes().resource("configmaps").and(move |request| {
        let namespace = request.namespace.as_deref();
        namespace.is_some_and(|it| it.starts_with(&prefix))
    });
    proxy.inject(
        hanging,
        Times::Always,
        Fault::Delay(Duration::from_hours(1)),
    );
    let settings = shop.serving(&names).kubeconfig(file);
    let _operator = Operator::start(&shop.bed, settings).await;
    let data = json!({ "a": "1" });
    shop.map(&shop.bed.namespace, "settings", json!({ "data": data }))
        .await;
    shop.sync("s", json!({ "destinationNamespaces": destinations }))
        .await;
    shop.copied(last, "settings", data).await;
    let message = shop.reads("s", "WriteFailed").await;
    assert!(message.contains("1 of 17 copies match"), "{message}");
}

/// The writes end before the runtime drops the reconcile, although the apiserver answers the read of the source late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_destination_is_reported_after_a_slow_read_of_the_source() {
    let shop = Shop::shared("slow-source").await;
    let destination = shop.open("a", json!({})).await;
    let (proxy, file) = shop.bed.through_proxy().await;
    let maps =
        |matching: Match, namespace: &str| matching.resource("configmaps").namespace(namespace);
    let reads = maps(Match::verb(Verb::Get), &shop.bed.namespace);
    proxy.inject(reads, Times::Always, Fault::Delay(Duration::from_secs(5)));
    let writes = maps(Match::writes(), &destination);
    proxy.inject(writes, Times::Always, Fault::Hang);
    let settings = shop.serving(&["a"]).kubeconfig(file);
    let settings = settings.flag("--reconcile-timeout=12s");
    let _operator = Operator::start(&shop.bed, settings).await;
    let data = json!({ "data": { "a": "1" } });
    shop.map(&shop.bed.namespace, "settings", data).await;
    shop.sync("s", json!({ "destinationNamespaces": [destination] }))
        .await;
    shop.reads("s", "WriteFailed").await;
}

#[tokio::test]
async fn quota_in_one_namespace_blocks_no_other() {
    let shop = Shop::shared("quota").await;
    let (full, free) = (
        shop.open("full", json!({})).await,
        shop.open("free", json!({})).await,
    );
    let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "q", "namespace": full },
        "spec": { "hard": { "count/configmaps": "0" } } });
    shop.bed
        .plane
        .run_kubectl(&["apply", "-f", "-"], &quota.to_string())
        .await
        .unwrap();
    until("the quota counts", SOON, async || {
        let used = [
            "-n",
            &full,
            "get",
            "quota",
            "q",
            "-o",
            "jsonpath={.status.used}",
        ];
        Ok(shop
            .bed
            .plane
            .run_kubectl(&used, "")
            .await?
            .contains("count/configmaps")
            .then_some(()))
    })
    .await
    .unwrap();
    let _operator = shop.operator(&["full", "free"]).await;
    shop.map(
        &shop.bed.namespace,
        "settings",
        json!({ "data": { "a": "1" } }),
    )
    .await;
    shop.sync("s", json!({ "destinationNamespaces": [full, free] }))
        .await;
    shop.copied(&free, "settings", json!({ "a": "1" })).await;
    let words = shop.reads("s", "QuotaExceeded").await;
    assert!(
        words.starts_with(&format!(
            "1 of 2 copies match the source; {full}: QuotaExceeded"
        )),
        "{words}"
    );
    assert!(
        words.contains("exceeded quota: q"),
        "the apiserver's own message: {words}"
    );
    shop.edit(
        &shop.bed.namespace,
        "settings",
        json!({ "data": { "a": "2" } }),
    )
    .await;
    shop.copied(&free, "settings", json!({ "a": "2" })).await;
    shop.bed
        .plane
        .run_kubectl(&["-n", &full, "delete", "quota", "q"], "")
        .await
        .unwrap();
    shop.copied(&full, "settings", json!({ "a": "2" })).await;
    shop.reads("s", "Synced").await;
}

/// The article's sample, whose field names are spelled with capitals against its own types.
const SAMPLE: &str = r#"apiVersion: apps.bixbite.io/v1
kind: ConfigMapSync
metadata:
  labels:
    app.kubernetes.io/name: configmapsync
    app.kubernetes.io/instance: configmapsync-sample
    app.kubernetes.io/part-of: configmapsync
    app.kubernetes.io/managed-by: kustomize
    app.kubernetes.io/created-by: configmapsync
  name: configmapsync-sample
spec:
  SourceNamespace: "sourceNamespace"
  DestinationNamespace: "destinationNamespace"
  ConfigMapName: "configMapName"
"#;

#[tokio::test]
async fn sample_of_the_article_is_reported() {
    let shop = Shop::shared("article").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    let apply = async |manifest: &str| {
        shop.bed
            .plane
            .run_kubectl(&["-n", &here, "apply", "-f", "-"], manifest)
            .await
    };
    let refused = format!("{:#}", apply(SAMPLE).await.unwrap_err());
    for field in ["SourceNamespace", "DestinationNamespace", "ConfigMapName"] {
        assert!(
            refused.contains(&format!("unknown field \"spec.{field}\"")),
            "{refused}"
        );
    }
    let mended = SAMPLE
        .replace("SourceN", "sourceN")
        .replace("DestinationN", "destinationN")
        .replace("ConfigMapName:", "configMapName:");
    apply(&mended).await.unwrap();
    let words = shop.reads("configmapsync-sample", "SpecInvalid").await;
    assert!(
        words.contains("sourceNamespace") && words.contains("lower-case"),
        "{words}"
    );
    let real = mended
        .replace("\"sourceNamespace\"", &here)
        .replace("\"destinationNamespace\"", &far)
        .replace("\"configMapName\"", "settings");
    apply(&real).await.unwrap();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
    let columns = shop.bed.kubectl(&["get", "cmsync"]).await;
    let columns = columns.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        columns.starts_with(
            "NAME SOURCE CONFIGMAP COPIES READY REASON LAST-SYNC AGE configmapsync-sample"
        ),
        "{columns}"
    );
}

#[tokio::test]
async fn destination_outside_the_scope_or_of_kubernetes_is_rejected() {
    let shop = Shop::shared("outside").await;
    let _operator = shop.operator(&[]).await;
    for (name, spec, reason, words) in [
        (
            "out",
            json!({ "destinationNamespace": "elsewhere" }),
            "OutOfScope",
            "namespace \"elsewhere\"",
        ),
        (
            "selector",
            json!({ "destinationNamespaceSelector": {} }),
            "OutOfScope",
            "--watch-namespace",
        ),
    ] {
        shop.sync(name, spec).await;
        let message = shop.reads(name, reason).await;
        assert!(message.contains(words), "{message}");
    }
}

/// A typo in one entry does not end the copies of the others.
#[tokio::test]
async fn rejected_destination_blocks_no_other() {
    let shop = Shop::shared("refused").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    shop.map(
        &shop.bed.namespace,
        "settings",
        json!({ "data": { "a": "1" } }),
    )
    .await;
    shop.sync("s", json!({ "destinationNamespaces": [far, "elsewhere"] }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
    let words = shop.reads("s", "OutOfScope").await;
    assert!(
        words.starts_with("1 of 2 copies match the source; elsewhere: OutOfScope: "),
        "{words}"
    );
    shop.assert_at_rest("s").await;
    shop.drop(&far, "settings").await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
}

/// A write that one namespace rejects does not block the others, nor does a forbidden deletion.
#[tokio::test]
async fn forbidding_namespace_blocks_no_other() {
    let shop = Shop::shared("forbidden").await;
    let (shut, free) = (
        shop.open("shut", json!({})).await,
        shop.open("free", json!({})).await,
    );
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let watched = format!("--watch-namespace={here},{shut},{free}");
    let _operator = Operator::start(
        &shop.bed,
        Settings::default().kubeconfig(file).flag(&watched),
    )
    .await;
    let forbid = |verb| {
        let there = Match::verb(verb).resource("configmaps").namespace(&shut);
        proxy.inject(there, Times::Always, Fault::status(StatusCode::FORBIDDEN))
    };
    let order = forbid(Verb::Create);
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespaces": [shut, free] }))
        .await;
    shop.copied(&free, "settings", json!({ "a": "1" })).await;
    let words = shop.reads("s", "Forbidden").await;
    assert!(
        words.starts_with(&format!(
            "1 of 2 copies match the source; {shut}: Forbidden"
        )),
        "{words}"
    );
    order.cancel();
    shop.copied(&shut, "settings", json!({ "a": "1" })).await;
    shop.reads("s", "Synced").await;

    let order = forbid(Verb::Delete);
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationNamespaces": [free] } }))
        .await;
    let words = shop.reads("s", "Forbidden").await;
    assert!(
        words.starts_with(&format!(
            "1 of 1 copies match the source; {shut}: Forbidden"
        )),
        "{words}"
    );
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.copied(&free, "settings", json!({ "a": "2" })).await;
    // The rejected deletion does not block the other deletion, but the sync stays until the copy is deleted.
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.is_deleted(&free, "settings").await;
    shop.bed
        .until("s", "names the blocker", |sync: &ConfigMapSync| {
            let status = sync.status.as_ref().unwrap();
            status.conditions[0]
                .message
                .contains(&format!("the copy in {shut} cannot be deleted"))
        })
        .await;
    order.cancel();
    shop.is_deleted(&shut, "settings").await;
    shop.ended("s").await;
}

/// The condition names what the operator tries: a copy that stays is released, and not deleted.
#[tokio::test]
async fn copy_that_cannot_be_released_keeps_a_deleted_sync() {
    let shop = Shop::shared("unreleased").await;
    let shut = shop.open("shut", json!({})).await;
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let _operator = Operator::start(&shop.bed, shop.serving(&["shut"]).kubeconfig(file)).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    let spec = json!({ "destinationNamespace": shut, "deletionPolicy": "Orphan" });
    shop.sync("s", spec).await;
    shop.reads("s", "Synced").await;
    let writes = Match::writes().resource("configmaps").namespace(&shut);
    let order = proxy.inject(writes, Times::Always, Fault::status(StatusCode::FORBIDDEN));
    shop.bed.delete::<ConfigMapSync>("s").await;
    let message = shop.reads("s", "Forbidden").await;
    assert!(
        message.contains(&format!("the copy in {shut} cannot be released: ")),
        "{message}"
    );
    order.cancel();
    shop.ended("s").await;
    let copy = shop.copied(&shut, "settings", json!({ "a": "1" })).await;
    assert!(!copy.labels().contains_key(OWNER_LABEL));
}

/// A watched namespace is deleted together with the operator's Role in it.
#[tokio::test]
async fn lost_namespace_does_not_keep_a_deleted_sync() {
    let shop = Shop::shared("lost").await;
    let (far, lost) = (
        shop.open("far", json!({})).await,
        shop.open("lost", json!({})).await,
    );
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let watched = format!("--watch-namespace={here},{far},{lost}");
    let settings = Settings::default().kubeconfig(file).flag(&watched);
    let _operator = Operator::start(&shop.bed, settings).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    for (name, to) in [("one", json!([far])), ("both", json!([far, lost]))] {
        let spec = json!({ "destinationNamespaces": to, "destinationName": name });
        shop.sync(name, spec).await;
        shop.copied(&far, name, json!({ "a": "1" })).await;
    }
    shop.copied(&lost, "both", json!({ "a": "1" })).await;
    let lists = Match::verb(Verb::List)
        .resource("configmaps")
        .namespace(&lost);
    let order = proxy.inject(lists, Times::Always, Fault::status(StatusCode::FORBIDDEN));
    for name in ["one", "both"] {
        shop.bed.delete::<ConfigMapSync>(name).await;
        shop.is_deleted(&far, name).await;
    }
    shop.ended("one").await;
    shop.reads("both", "Forbidden").await;
    order.cancel();
    shop.ended("both").await;
    shop.is_deleted(&lost, "both").await;
}

/// The operator retries failed deletions, even while there is no source.
#[tokio::test]
async fn failed_deletion_is_retried() {
    let shop = Shop::shared("later").await;
    let (one, two) = (
        shop.open("one", json!({})).await,
        shop.open("two", json!({})).await,
    );
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let settings = shop
        .serving(&["one", "two"])
        .kubeconfig(file)
        .flag("--backoff-max=200ms");
    let _operator = Operator::start(&shop.bed, settings).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespaces": [one, two] }))
        .await;
    shop.reads("s", "Synced").await;
    let failing = || {
        let there = Match::verb(Verb::Delete).resource("configmaps");
        proxy.inject(
            there,
            Times::First(2),
            Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
        )
    };
    let order = failing();
    shop.drop(&here, "settings").await;
    shop.reads("s", "SourceNotFound").await;
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationNamespaces": [one] } }))
        .await;
    shop.is_deleted(&two, "settings").await;
    assert_eq!(order.hits(), 2);
    shop.reads("s", "SourceNotFound").await;
    let order = failing();
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    shop.is_deleted(&one, "settings").await;
    assert_eq!(order.hits(), 2);
}
