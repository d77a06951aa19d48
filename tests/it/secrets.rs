//! Secrets: namespaces in which the operator reads them, messages about unusable ones, and texts that must not appear.

use std::sync::{Arc, OnceLock};

use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use qm_api::ContactPoint;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::bot_api::{Chat, Kind};
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::Receiver;
use testbed::tls::Authority;

use crate::support::{
    Bed, CHAT, LIMIT, Operator, Peak, SOON, SYSTEM, Settings, TOKEN, bot_api, create_large,
    only_large_test,
};

fn telegram_spec(secret: &str, key: &str) -> Value {
    let spec = json!({ "type": "Telegram", "telegramSpec": { "chatId": CHAT }, "apiToken": { "secretName": secret, "key": key } });
    json!({ "spec": spec })
}

fn condition_message(point: &ContactPoint) -> String {
    point.status.as_ref().unwrap().conditions[0].message.clone()
}

/// Creates a Secret of base64, because some values are not text.
async fn secret_of(bed: &Bed, name: &str, bytes: &[u8]) {
    let data = k8s_openapi::ByteString(bytes.to_vec());
    bed.create::<Secret>(name, json!({ "data": { "token": data } }))
        .await;
}

#[tokio::test]
async fn invalid_token_is_reported_without_its_value() {
    let bed = Bed::shared("tokens").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    let cases: [(&str, &[u8], &str); 6] = [
        (
            "newline",
            b"12345678:SECRETSECRETSECRET\n",
            "ends with a space or a newline",
        ),
        ("bytes", b"12345678:SECRET\xff\xfe", "not UTF-8"),
        ("shape", b"SECRETSECRETSECRET", "digits, a colon"),
        ("inner", b"12345678:SECRET\r\nSECRET", "digits, a colon"),
        ("empty", b"", "digits, a colon"),
        ("long", &[b'1'; 9000], "9000 bytes; store at most 8192"),
    ];
    for (name, bytes, expected) in cases {
        secret_of(&bed, name, bytes).await;
        bed.create::<ContactPoint>(name, telegram_spec(name, "token"))
            .await;
        let point = bed.not_ready(name, "SecretInvalid").await;
        assert!(
            !point.status.as_ref().unwrap().initialized,
            "no attempt was made"
        );
        let message = condition_message(&point);
        assert!(
            message.contains(expected)
                && message.contains(&format!("{name:?}"))
                && !message.contains("SECRET"),
            "{message}"
        );
    }
    assert!(telegram.rejected().is_empty());
    bed.patch::<Secret>("newline", json!({ "stringData": { "token": TOKEN } }))
        .await;
    bed.ready("newline").await;

    // In memory, a Secret of many keys takes many times its size.
    let keys = (0..5000).map(|key| (key.to_string(), json!("")));
    let mut data: serde_json::Map<_, _> = keys.collect();
    data.insert("token".into(), TOKEN.into());
    bed.create::<Secret>("many", json!({ "stringData": data }))
        .await;
    bed.create::<ContactPoint>("many", telegram_spec("many", "token"))
        .await;
    let message = condition_message(&bed.not_ready("many", "SecretInvalid").await);
    assert!(message.contains("Secret of its own"), "{message}");

    // The value of a header has its own rules.
    let receiver = Receiver::start().unwrap();
    secret_of(&bed, "header", b"SECRET\nX-Other: 1").await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": receiver.url(), "headerName": "X-Token" },
        "apiToken": { "secretName": "header", "key": "token" },
    });
    bed.create::<ContactPoint>("header", json!({ "spec": spec }))
        .await;
    let message = condition_message(&bed.not_ready("header", "SecretInvalid").await);
    assert!(
        message.contains("newline") && !message.contains("SECRET"),
        "{message}"
    );
    assert!(receiver.requests().is_empty());
}

/// Each of the Secrets is as large as the apiserver stores, most of it names of keys.
#[tokio::test]
#[ignore = "long: run by make test-long"]
async fn large_secrets_of_many_contact_points_stay_below_the_memory_limit() {
    let _guard = only_large_test().await;
    let bed = Bed::without_controllers("heavy").await;
    let receiver = Receiver::start().unwrap();
    let (url, key) = (receiver.url(), "k".repeat(32));
    let ca = Authority::new("ours").unwrap();
    let ca = ca.ca_pem();
    let references = ["url", "token", "key", "ca.crt"];
    for name in references {
        let names = (0..4_900).map(|number| (format!("{number:0>200}"), json!("")));
        let mut data: serde_json::Map<_, _> = names.collect();
        data.insert("rest".into(), "x".repeat(300 * 1024).into());
        let value = match name {
            "url" => &*url,
            "ca.crt" => ca,
            _ => &*key,
        };
        data.insert(name.into(), value.into());
        let metadata = json!({ "name": name.replace('.', "-") });
        let secret = json!({ "metadata": metadata, "stringData": data });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        create_large(&bed.api(), &secret).await;
    }
    let at = |name: &str| json!({ "secretName": name, "key": name });
    let spec = json!({ "type": "Webhook", "apiToken": at("token"), "webhookSpec": { "urlFrom": at("url"),
        "headerName": "X-Token", "signingKey": at("key"), "tls": { "secretName": "ca-crt" } } });
    for number in 0..16 {
        bed.create::<ContactPoint>(&format!("cp{number}"), json!({ "spec": spec }))
            .await;
    }
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let peak = Peak::watch(operator.child().id());
    for number in 0..16 {
        bed.ready(&format!("cp{number}")).await;
    }
    let peak = peak.end();
    println!("peak of RssAnon, large Secrets: {peak:.1} MiB");
    assert!(peak < LIMIT * 0.75, "{peak} MiB");
}

#[tokio::test]
async fn missing_secret_or_key_is_reported_with_its_namespace() {
    let bed = Bed::shared("missing").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.create::<ContactPoint>("cp", telegram_spec("bot", "token"))
        .await;
    let point = bed.not_ready("cp", "SecretNotFound").await;
    assert!(!point.status.as_ref().unwrap().initialized);
    let message = condition_message(&point);
    assert!(
        message.contains(&format!("{:?}", bed.namespace))
            && message.contains(&format!("{SYSTEM:?}")),
        "{message}"
    );
    bed.create::<Secret>("bot", json!({ "stringData": { "tokem": TOKEN } }))
        .await;
    let message = condition_message(&bed.not_ready("cp", "SecretKeyMissing").await);
    assert!(
        message.contains("no key \"token\"; it has tokem"),
        "{message}"
    );
    assert_eq!(bed.event("cp", "SecretKeyMissing").await, message);
    bed.patch::<Secret>("bot", json!({ "stringData": { "token": TOKEN } }))
        .await;
    bed.ready("cp").await;
    assert_eq!(telegram.messages().len(), 1);
}

#[tokio::test]
async fn unreadable_secret_is_reported_and_changes_nothing() {
    let bed = Bed::shared("unreadable").await;
    let telegram = bot_api();
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--secret-refresh-period=200ms")
        .kubeconfig(file);
    let _operator = Operator::start(&bed, settings).await;
    bed.telegram("good", TOKEN, CHAT).await;
    let good = bed.ready("good").await;

    let secrets = Match::verb(Verb::Get).resource("secrets");
    let refused = proxy.inject(
        secrets.clone().name("good-token"),
        Times::Always,
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    proxy.inject(
        secrets.name("new-token"),
        Times::Always,
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    bed.telegram("new", TOKEN, CHAT).await;
    let new = bed.not_ready("new", "SecretUnreadable").await;
    assert!(
        !new.status.as_ref().unwrap().initialized,
        "no attempt was made"
    );
    assert_eq!(
        bed.event("new", "SecretUnreadable").await,
        condition_message(&new)
    );
    assert!(
        condition_message(&new).contains("could not be read"),
        "{}",
        condition_message(&new)
    );
    refused.wait_for_hits(3, SOON).await.unwrap();
    assert_eq!(
        bed.ready("good").await.metadata.resource_version,
        good.metadata.resource_version
    );
    proxy.behave();
    bed.ready("new").await;
}

/// A restarted operator has no endpoint until it has read the Secret.
#[tokio::test]
async fn unreadable_secret_is_reported_after_a_restart() {
    let bed = Bed::shared("unreadable").await;
    let telegram = bot_api();
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .telegram(&telegram.url())
        .kubeconfig(file);
    let mut operator = Operator::start(&bed, settings).await;
    bed.telegram("cp", TOKEN, CHAT).await;
    bed.ready("cp").await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "cp").await;
    bed.delivered("it", &[("Created", Some("1"))]).await;

    proxy.inject(
        Match::verb(Verb::Get).resource("secrets"),
        Times::Always,
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    operator.kill();
    operator.restart();
    bed.not_ready("cp", "SecretUnreadable").await;
    bed.scale("web", 2).await;
    bed.waiting("it", "ContactPointNotReady: \"cp\": SecretUnreadable: ")
        .await;
    proxy.behave();
    bed.ready("cp").await;
    let all = [("Created", Some("1")), ("Updated", Some("2"))];
    bed.delivered("it", &all).await;
    assert_eq!(telegram.messages().len(), 3, "one of them is a test");
}

#[tokio::test]
async fn former_receiver_gets_nothing_while_the_secret_of_the_new_spec_is_unreadable() {
    let bed = Bed::shared("unreadable").await;
    let (former, new) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    bed.secret("former", &former.url()).await;
    bed.secret("new", &new.url()).await;
    let from = |secret: &str| json!({ "urlFrom": { "secretName": secret, "key": "token" } });
    let spec = json!({ "type": "Webhook", "webhookSpec": from("former") });
    bed.point("hook", spec).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;

    proxy.inject(
        Match::verb(Verb::Get).resource("secrets").name("new"),
        Times::Always,
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    let spec = json!({ "webhookSpec": from("new") });
    bed.patch::<ContactPoint>("hook", json!({ "spec": spec }))
        .await;
    bed.not_ready("hook", "SecretUnreadable").await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.waiting("it", "ContactPointNotReady: \"hook\": SecretUnreadable: ")
        .await;
    proxy.behave();
    bed.delivered("it", &[("Created", Some("1"))]).await;
    assert_eq!((former.requests().len(), new.requests().len()), (1, 2));
}

/// The operator's own writes do not make the operator read a contact point's Secrets again: it reads them for the test
/// message and for the answer.
#[tokio::test]
async fn status_write_causes_no_read_of_a_secret() {
    let bed = Bed::shared("reads").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    // The test freezes the watch from the test message on, because the watch event often arrives before the answer to a
    // write.
    let frozen = Arc::new(OnceLock::new());
    let (freeze, at) = (proxy.clone(), Arc::clone(&frozen));
    receiver.on_request(move |_| {
        at.get_or_init(|| freeze.freeze(Match::watch("contactpoints")));
    });
    bed.secret("url", &receiver.url()).await;
    let from = json!({ "urlFrom": { "secretName": "url", "key": "token" } });
    bed.point("hook", json!({ "type": "Webhook", "webhookSpec": from }))
        .await;
    bed.ready("hook").await;
    bed.event("hook", "Ready").await;
    let frozen = frozen.get().unwrap();
    frozen.wait_for_hits(1, SOON).await.unwrap();
    frozen.cancel();
    // When the next contact point is ready, the operator has handled the first one's events.
    bed.webhook("marker", &receiver.url()).await;
    bed.ready("marker").await;
    assert_eq!(
        proxy.count(&Match::verb(Verb::Get).resource("secrets").name("url")),
        2
    );
}

/// An answer of the apiserver that is not a valid Secret may still contain a Secret's values.
#[tokio::test]
async fn answer_that_is_no_secret_is_never_quoted() {
    let bed = Bed::shared("malformed").await;
    let telegram = bot_api();
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--log-level=trace")
        .kubeconfig(file);
    let operator = Operator::start(&bed, settings).await;
    let metadata = json!({ "name": "bot-token", "namespace": bed.namespace });
    // The answer has the right shape except for one field, and the decoder's error quotes that field.
    let malformed =
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": TOKEN });
    let secret = Match::verb(Verb::Get).resource("secrets").name("bot-token");
    let fault = proxy.inject(secret, Times::Always, Fault::Respond(malformed.to_string()));
    bed.telegram("bot", TOKEN, CHAT).await;
    let point = bed.not_ready("bot", "SecretUnreadable").await;
    assert!(
        condition_message(&point).contains("the response is not a Secret"),
        "{}",
        condition_message(&point)
    );
    fault.wait_for_hits(3, SOON).await.unwrap();
    let event = bed.event("bot", "SecretUnreadable").await;
    for (source, text) in [
        ("status", json!(point).to_string()),
        ("Event", event),
        ("metrics", operator.metrics().await),
        ("log", operator.logs()),
    ] {
        assert!(!text.contains("ABCDEFU"), "the {source} holds the token");
    }
    fault.cancel();
    bed.ready("bot").await;
}

/// Creates a Secret in the operator's namespace, which the test deletes at the end.
async fn shared_secret(bed: &Bed, name: &str, labels: Value, data: Value) -> Api<Secret> {
    let api: Api<Secret> = Api::namespaced(bed.client.clone(), SYSTEM);
    let secret = json!({ "metadata": { "name": name, "labels": labels }, "stringData": data });
    api.create(
        &PostParams::default(),
        &serde_json::from_value(secret).unwrap(),
    )
    .await
    .unwrap();
    api
}

/// A Secret that the owner's annotations exclude counts as missing; nothing is sent with it.
#[tokio::test]
async fn shared_secret_is_not_used_beyond_what_its_owner_allows() {
    let bed = Bed::shared("allowed").await;
    let telegram = bot_api();
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--shared-secrets=labelled");
    let _operator = Operator::start(&bed, settings).await;
    let name = |what: &str| format!("{}-{what}", bed.namespace);
    let (namespaces, chats) = (
        "quartermaster.dev/allowed-namespaces",
        "quartermaster.dev/allowed-chats",
    );
    let both = format!("elsewhere, {}", bed.namespace);
    let cases = [
        ("namespace", json!({ namespaces: both }), true),
        ("chat", json!({ chats: format!("@news,{CHAT}") }), true),
        ("other-namespace", json!({ namespaces: "elsewhere" }), false),
        ("no-namespace", json!({ namespaces: "" }), false),
        (
            "other-chat",
            json!({ namespaces: both, chats: "-4242" }),
            false,
        ),
        ("no-chat", json!({ chats: "" }), false),
    ];
    let api: Api<Secret> = Api::namespaced(bed.client.clone(), SYSTEM);
    let labels = json!({ "quartermaster.dev/shared": "true" });
    for (what, annotations, _) in &cases {
        let metadata = json!({ "name": name(what), "labels": labels, "annotations": annotations });
        let secret = json!({ "metadata": metadata, "stringData": { "token": TOKEN } });
        api.create(
            &PostParams::default(),
            &serde_json::from_value(secret).unwrap(),
        )
        .await
        .unwrap();
        bed.create::<ContactPoint>(what, telegram_spec(&name(what), "token"))
            .await;
    }
    // A webhook has no chat.
    let webhook = json!({ "url": receiver.url(), "headerName": "X-Token" });
    let token = json!({ "secretName": name("chat"), "key": "token" });
    bed.point(
        "webhook",
        json!({ "type": "Webhook", "webhookSpec": webhook, "apiToken": token }),
    )
    .await;
    bed.create::<ContactPoint>("nowhere", telegram_spec(&name("nowhere"), "token"))
        .await;
    let missing = condition_message(&bed.not_ready("nowhere", "SecretNotFound").await)
        .replace(&name("nowhere"), "SECRET");
    for (what, _, allowed) in &cases {
        if *allowed {
            bed.ready(what).await;
        } else {
            let message = condition_message(&bed.not_ready(what, "SecretNotFound").await);
            assert_eq!(message.replace(&name(what), "SECRET"), missing, "{what}");
        }
    }
    bed.not_ready("webhook", "SecretNotFound").await;
    assert_eq!(
        (telegram.messages().len(), receiver.requests().len()),
        (2, 0)
    );
    assert!(telegram.rejected().is_empty());
    for (what, ..) in cases {
        api.delete(&name(what), &DeleteParams::default())
            .await
            .unwrap();
    }
}

/// A chat that became a supergroup stays allowed under its old number. A status that names another chat does not allow
/// that chat.
#[tokio::test]
async fn allowed_chat_that_telegram_moved_stays_allowed() {
    const OLD: i64 = -4_343;
    const NEW: i64 = -1_001_234_567_891;
    let bed = Bed::shared("allowed-moved").await;
    let telegram = bot_api();
    telegram.add_chat(Chat::new(Kind::Group, OLD).unwrap());
    telegram.add_chat(Chat::new(Kind::Supergroup, NEW).unwrap());
    let mut operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    let secret = format!("{}-bot", bed.namespace);
    let metadata = json!({ "name": secret, "annotations": { "quartermaster.dev/allowed-chats": OLD.to_string() } });
    let api: Api<Secret> = Api::namespaced(bed.client.clone(), SYSTEM);
    let shared = json!({ "metadata": metadata, "stringData": { "token": TOKEN } });
    api.create(
        &PostParams::default(),
        &serde_json::from_value(shared).unwrap(),
    )
    .await
    .unwrap();
    let spec = json!({ "type": "Telegram", "telegramSpec": { "chatId": OLD }, "apiToken": { "secretName": secret, "key": "token" } });
    bed.point("group", spec).await;
    bed.ready("group").await;
    telegram.add_chat(Chat::new(Kind::Group, OLD).unwrap().upgraded_to(NEW));
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "group")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    let moved = |id| {
        move |point: &ContactPoint| {
            point
                .status
                .as_ref()
                .is_some_and(|it| it.migrated_to_chat_id == Some(id))
        }
    };
    bed.until("group", "the new chat", moved(NEW)).await;
    operator.kill();
    // A user with permissions for the status would let the bot write into another chat.
    let points: Api<ContactPoint> = Api::namespaced(bed.client.clone(), &bed.namespace);
    let forged = json!({ "status": { "migratedToChatId": CHAT } });
    points
        .patch_status("group", &PatchParams::default(), &Patch::Merge(forged))
        .await
        .unwrap();
    operator.restart();
    bed.scale("web", 2).await;
    bed.delivered(
        "replicas",
        &[("Created", Some("1")), ("Updated", Some("2"))],
    )
    .await;
    let chats: Vec<_> = telegram
        .messages()
        .iter()
        .map(|message| message.chat_id)
        .collect();
    assert_eq!(chats, [OLD, NEW, NEW]);
    api.delete(&secret, &DeleteParams::default()).await.unwrap();
}

#[rstest]
#[case::telegram("telegram", [true, false, false])]
#[case::labelled("labelled", [true, false, true])]
#[case::off("off", [false, false, false])]
#[tokio::test]
async fn secrets_of_the_operator_namespace_are_shared_as_configured(
    #[case] mode: &str,
    #[case] ready: [bool; 3],
) {
    let bed = Bed::shared("shared").await;
    let telegram = bot_api();
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag(&format!("--shared-secrets={mode}"));
    let _operator = Operator::start(&bed, settings).await;
    let name = |what: &str| format!("{}-{what}", bed.namespace);
    let both = json!({ "token": TOKEN });
    let secrets = shared_secret(&bed, &name("plain"), json!({}), both.clone()).await;
    shared_secret(
        &bed,
        &name("marked"),
        json!({ "quartermaster.dev/shared": "true" }),
        both,
    )
    .await;
    shared_secret(
        &bed,
        &name("bad"),
        json!({ "quartermaster.dev/shared": "true" }),
        json!({ "token": "no token" }),
    )
    .await;
    let webhook = |secret: String| {
        let webhook = json!({ "url": receiver.url(), "headerName": "X-Token" });
        json!({ "spec": { "type": "Webhook", "webhookSpec": webhook, "apiToken": { "secretName": secret, "key": "token" } } })
    };
    bed.create::<ContactPoint>("telegram", telegram_spec(&name("plain"), "token"))
        .await;
    bed.create::<ContactPoint>("webhook-plain", webhook(name("plain")))
        .await;
    bed.create::<ContactPoint>("webhook-marked", webhook(name("marked")))
        .await;
    for (point, ready) in ["telegram", "webhook-plain", "webhook-marked"]
        .into_iter()
        .zip(ready)
    {
        if ready {
            let status = json!(bed.ready(point).await.status).to_string();
            for what in ["plain", "marked"] {
                let uid = secrets
                    .get(&name(what))
                    .await
                    .unwrap()
                    .metadata
                    .uid
                    .unwrap();
                assert!(
                    !status.contains(&uid),
                    "{point} reports objects of others: {status}"
                );
            }
        } else {
            bed.not_ready(point, "SecretNotFound").await;
        }
    }

    // In the operator's namespace, without the key, without a token in it: each case reads like a missing Secret.
    bed.create::<ContactPoint>("nowhere", telegram_spec(&name("nowhere"), "token"))
        .await;
    bed.create::<ContactPoint>("no-key", telegram_spec(&name("plain"), "other"))
        .await;
    bed.create::<ContactPoint>("no-token", telegram_spec(&name("bad"), "token"))
        .await;
    let mut messages = Vec::new();
    for (point, secret) in [
        ("nowhere", "nowhere"),
        ("no-key", "plain"),
        ("no-token", "bad"),
    ] {
        let message = condition_message(&bed.not_ready(point, "SecretNotFound").await);
        messages.push(message.replace(&name(secret), "SECRET"));
    }
    assert!(
        messages.iter().all(|message| *message == messages[0]),
        "{messages:#?}"
    );
    for what in ["plain", "marked", "bad"] {
        secrets
            .delete(&name(what), &DeleteParams::default())
            .await
            .unwrap();
    }
}
