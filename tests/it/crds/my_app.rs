//! `MyApp`, field by field.

use kube::CustomResourceExt;
use qm_api::MyApp;
use serde_json::json;

use super::{Case, check, create, every_field_has_a_case, served};

fn image(image: &str) -> String {
    format!("{{image: \"{image}\"}}")
}

fn banner(banner: &str) -> String {
    format!("{{image: nginx, banner: \"{banner}\"}}")
}

fn and(more: &str) -> String {
    format!("{{image: nginx, {more}}}")
}

const NO_IMAGE: &str = "spec: |add image: what the Pod runs";
const BAD_IMAGE: &str = "spec.image: |write one image without spaces";
const LONG_BANNER: &str = "spec.banner: |shorten the banner: it may have 120000 bytes";
const BAD_PROFILE: &str = "spec.podSecurity: |write podSecurity: Restricted";

#[rustfmt::skip] // one line a case
fn cases() -> Vec<Case> {
    vec![
        // image
        (image("nginx:latest"), ""),
        (image("registry.example.com:5000/team/app@sha256:0123"), ""),
        (image(&"a".repeat(1024)), ""),
        (image(&"a".repeat(1025)), "spec.image: |Too long"),
        (image(""), NO_IMAGE),
        ("{}".into(), NO_IMAGE),
        ("{banner: hello}".into(), NO_IMAGE),
        (image("a b"), BAD_IMAGE),
        (image(" a"), BAD_IMAGE),
        (image(r"a\n"), BAD_IMAGE),
        ("{image: 5}".into(), "spec.image: |string"),
        // banner
        (banner("This pod was created by MyApp operator \u{1F680}"), ""),
        (banner(""), ""),
        (banner(r"two\nlines \u0001 \u001b \ufffd $(HOME)"), ""),
        (banner(&"a".repeat(120_000)), ""),
        (banner(&"a".repeat(120_001)), "spec.banner: |Too long"),
        (banner(&"\u{e4}".repeat(60_000)), ""),
        (banner(&"\u{e4}".repeat(60_001)), LONG_BANNER),
        (banner(&"\u{1F680}".repeat(30_000)), ""),
        (banner(&"\u{1F680}".repeat(30_001)), LONG_BANNER),
        (banner(r"a\0b"), "spec.banner: |take the NUL characters out"),
        // podSecurity and suspend
        (and("podSecurity: Restricted"), ""),
        (and("podSecurity: Baseline"), ""),
        (and("podSecurity: null"), ""),
        (and("podSecurity: restricted"), BAD_PROFILE),
        (and("podSecurity: ''"), BAD_PROFILE),
        (and("podSecurity: Privileged"), BAD_PROFILE),
        (and(&format!("podSecurity: {}", "a".repeat(65))), "spec.podSecurity: |Too long"),
        (and("suspend: true"), ""),
        (and("suspend: 'true'"), "spec.suspend: |boolean"),
    ]
}

#[tokio::test]
async fn my_app_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    let kind = MyApp::api_resource();
    check(&client, &kind, &cases()).await;
    every_field_has_a_case("MyApp", &[], &cases());

    // The Pod's container has the same name.
    let spec = json!({ "image": "nginx" });
    for (name, accepted) in [
        ("a", true),
        ("0-a", true),
        (&"a".repeat(63), true),
        (&"a".repeat(64), false),
        ("a.b", false),
    ] {
        let result = create(&client, &kind, name, Some(&spec), true).await;
        match result {
            Ok(_) => assert!(accepted, "{name} is accepted"),
            Err(result) => assert!(
                !accepted && result.contains("take a name of at most 63"),
                "{name}: {result}"
            ),
        }
    }
}
