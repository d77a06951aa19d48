//! `ContactPoint`, field by field.

use kube::CustomResourceExt;
use qm_api::ContactPoint;

use super::{Case, check, every_field_has_a_case, served};

const TOKEN: &str = "apiToken: {secretName: s, key: k}";

fn telegram(chat: &str) -> String {
    format!("{{type: Telegram, {TOKEN}, telegramSpec: {{chatId: {chat}}}}}")
}

fn telegram_and(more: &str) -> String {
    format!("{{type: Telegram, {TOKEN}, telegramSpec: {{chatId: 1}}, {more}}}")
}

fn webhook(spec: &str) -> String {
    format!("{{type: Webhook, webhookSpec: {{{spec}}}}}")
}

fn url(url: &str) -> String {
    webhook(&format!("url: '{url}'"))
}

/// Returns a webhook with a URL and these fields.
fn with(more: &str) -> String {
    webhook(&format!("url: https://h, {more}"))
}

fn header(name: &str) -> String {
    format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h, headerName: \"{name}\"}}}}")
}

/// Returns a webhook with its token in the body and these fields.
fn in_body(more: &str) -> String {
    format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h, tokenIn: Body, {more}}}}}")
}

fn headers(headers: &str) -> String {
    with(&format!("headers: {{{headers}}}"))
}

fn secret(name: &str, key: &str) -> String {
    format!(
        "{{type: Telegram, telegramSpec: {{chatId: 1}}, apiToken: {{secretName: \"{name}\", key: \"{key}\"}}}}"
    )
}

const NO_TYPE: &str = "spec.type: |write type: Telegram or type: Webhook";
const NO_CHAT: &str = "spec: |type: Telegram needs a chat: add telegramSpec";
const NO_TOKEN: &str = "spec: |type: Telegram needs the bot's token: add apiToken";
const NO_URL: &str = "spec: |type: Webhook needs an endpoint: add webhookSpec";
const BAD_CHAT: &str = "spec.telegramSpec.chatId: |write the chat's number without quotes";
const BAD_URL: &str = "spec.webhookSpec.url: |write a whole http or https URL";
const CREDENTIALS: &str = "spec.webhookSpec.url: |remove the credentials from the URL";
const BAD_HEADER: &str = "spec.webhookSpec.headerName: |write a header's name";
const RESERVED: &str = "spec.webhookSpec.headerName: |choose another name";
const BAD_SECRET: &str = "spec.apiToken.secretName: |write the name of a Secret";
const BAD_KEY: &str = "spec.apiToken.key: |write a key of the Secret's data";
const BAD_FOOTER: &str = "spec.footer: |write one line of text, without control characters";
const NO_WEBHOOK: &str = "spec: |type: Telegram takes no webhookSpec: remove it";
const NO_TELEGRAM: &str = "spec: |type: Webhook takes no telegramSpec: remove it";

#[rustfmt::skip] // one line a case
#[allow(clippy::too_many_lines)]
fn cases() -> Vec<Case> {
    let long = |n: usize| "a".repeat(n);
    vec![
        // type
        (telegram("1"), ""),
        (url("https://h"), ""),
        ("{}".into(), "spec.type: |Required value"),
        ("{type: ''}".into(), NO_TYPE),
        ("{type: telegram}".into(), NO_TYPE),
        ("{type: Slack}".into(), NO_TYPE),
        (format!("{{type: {}}}", long(65)), "spec.type: |Too long"),
        // a kind of point and its spec belong together
        (format!("{{type: Telegram, {TOKEN}}}"), NO_CHAT),
        (format!("{{type: Telegram, {TOKEN}, telegramSpec: {{}}}}"), NO_CHAT),
        ("{type: Telegram, telegramSpec: {chatId: 1}}".into(), NO_TOKEN),
        ("{type: Webhook}".into(), NO_URL),
        (webhook(""), NO_URL),
        (webhook("url: ''"), NO_URL),
        (telegram_and("webhookSpec: {url: '', headerName: ''}"), ""),
        (telegram_and("webhookSpec: {}"), ""),
        (telegram_and("webhookSpec: {headers: {}}"), ""),
        (telegram_and("webhookSpec: {url: https://h}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {headerName: X-A}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {headers: {X-A: b}}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {urlFrom: {secretName: s, key: k}}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {body: b}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {body: b, contentType: a/b}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {signingKey: {secretName: s, key: k}}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {timeoutSeconds: 1}"), NO_WEBHOOK),
        (telegram_and("webhookSpec: {tls: {secretName: s}}"), NO_WEBHOOK),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {chatId: 0}}".into(), ""),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {}}".into(), ""),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {chatId: 1}}".into(), NO_TELEGRAM),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {chatId: '@channel'}}".into(), NO_TELEGRAM),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {messageThreadId: 1}}".into(), NO_TELEGRAM),
        ("{type: Webhook, webhookSpec: {url: https://h}, telegramSpec: {disableNotification: true}}".into(), NO_TELEGRAM),
        // telegramSpec.chatId
        (telegram("12345678"), ""),
        (telegram("-1001234567890"), ""),
        (telegram("9223372036854775807"), ""),
        (telegram("-9223372036854775808"), ""),
        (telegram("9223372036854775808"), "spec.telegramSpec.chatId"),
        (telegram("1e20"), "spec.telegramSpec.chatId"),
        (telegram("0"), NO_CHAT),
        (telegram("1.5"), "spec.telegramSpec.chatId"),
        (telegram("true"), "spec.telegramSpec.chatId"),
        (telegram("''"), BAD_CHAT),
        (telegram("'-1001234567890'"), BAD_CHAT),
        (telegram("channel"), BAD_CHAT),
        (telegram("'@abcd'"), BAD_CHAT),
        (telegram("'@abcde'"), ""),
        (telegram("'@a_b_1'"), ""),
        (telegram("'@my-channel'"), BAD_CHAT),
        (telegram(&format!("'@{}'", long(32))), ""),
        (telegram(&format!("'@{}'", long(33))), "spec.telegramSpec.chatId: |Too long"),
        // telegramSpec, the rest
        (telegram("1, messageThreadId: 1"), ""),
        (telegram("1, messageThreadId: 0"), "spec.telegramSpec.messageThreadId: |greater than or equal to 1"),
        (telegram("1, disableNotification: true"), ""),
        (telegram("1, disableNotification: 'yes'"), "spec.telegramSpec.disableNotification: |boolean"),
        // apiToken
        (secret("telegram-cp-token", "token"), ""),
        (secret("a.b-c.0", "._-Aa0"), ""),
        (secret(&long(253), &long(253)), ""),
        (secret("", "k"), BAD_SECRET),
        (secret("Token", "k"), BAD_SECRET),
        (secret("default/token", "k"), BAD_SECRET),
        (secret("-a", "k"), BAD_SECRET),
        (secret(&long(254), "k"), "spec.apiToken.secretName: |Too long"),
        (secret("s", ""), BAD_KEY),
        (secret("s", "a b"), BAD_KEY),
        (secret("s", "a/b"), BAD_KEY),
        (secret("s", &long(254)), "spec.apiToken.key: |Too long"),
        ("{type: Telegram, telegramSpec: {chatId: 1}, apiToken: {secretName: s}}".into(), "spec.apiToken.key: |Required value"),
        ("{type: Telegram, telegramSpec: {chatId: 1}, apiToken: {key: k}}".into(), "spec.apiToken.secretName: |Required value"),
        (format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h}}}}"), "spec: |add webhookSpec.headerName"),
        (with("headerName: X-A"), "spec: |webhookSpec.headerName carries apiToken: add apiToken"),
        (with("headerName: ''"), ""),
        // webhookSpec.url
        (url("http://receiver.default.svc:8080/in?a=b&c=%20d"), ""),
        (url("HTTPS://Example.COM"), ""),
        (url("http://[2001:db8::1]:8080/"), ""),
        (url("http://10.0.0.1"), ""),
        (url("https://example.com/?at=a@b"), ""),
        (url("https://example.com/a@b"), ""),
        (url("https://пример.рф/в"), ""),
        (url("https://h:65535"), ""),
        (url("https://h:65536"), BAD_URL),
        (url("https://h:0"), BAD_URL),
        (url("https://h:"), BAD_URL),
        (url("h.example.com"), BAD_URL),
        (url("//h.example.com"), BAD_URL),
        (url("ftp://h"), BAD_URL),
        (url("file:///etc/passwd"), BAD_URL),
        (url("https:h"), BAD_URL),
        (url("https://"), BAD_URL),
        (url("https:///path"), BAD_URL),
        (url("https://:8080"), BAD_URL),
        (url("https://?a"), BAD_URL),
        (url(" https://h"), BAD_URL),
        (url("https://h/a b"), BAD_URL),
        (webhook(r#"url: "https://h/\n""#), BAD_URL),
        (webhook(r#"url: "https://h/\u007f""#), BAD_URL),
        (url(r"https://h\@evil.example.com"), BAD_URL),
        (url("https://user:password@h"), CREDENTIALS),
        (url("https://token@h/in"), CREDENTIALS),
        (url("https://@h"), CREDENTIALS),
        (url("https://h/#part"), "spec.webhookSpec.url: |remove the fragment"),
        (url(&format!("https://h/{}", long(2038))), ""),
        (url(&format!("https://h/{}", long(2039))), "spec.webhookSpec.url: |Too long"),
        // webhookSpec.urlFrom
        (webhook("urlFrom: {secretName: s, key: k}"), ""),
        (webhook("url: '', urlFrom: {secretName: s, key: k}"), ""),
        (with("urlFrom: {secretName: s, key: k}"), "spec.webhookSpec: |give url or urlFrom, not both"),
        (webhook("urlFrom: {secretName: S, key: k}"), "spec.webhookSpec.urlFrom.secretName: |write the name of a Secret"),
        // webhookSpec.headerName
        (header("Authorization"), ""),
        (header("x_!#$%&'*+-.^`|~9"), ""),
        (header("X-Content-Type"), ""),
        (header(&long(128)), ""),
        (header(&long(129)), "spec.webhookSpec.headerName: |Too long"),
        (header("X A"), BAD_HEADER),
        (header("X-A:"), BAD_HEADER),
        (header(":authority"), BAD_HEADER),
        (header("X-Ä"), BAD_HEADER),
        (header(r"X-A\r\nB"), BAD_HEADER),
        (header("Host"), RESERVED),
        (header("connection"), RESERVED),
        (header("Keep-Alive"), RESERVED),
        (header("TE"), RESERVED),
        (header("Trailer"), RESERVED),
        (header("transfer-ENCODING"), RESERVED),
        (header("Upgrade"), RESERVED),
        (header("Content-Length"), RESERVED),
        (header("Content-Type"), RESERVED),
        (header("Proxy-Authorization"), RESERVED),
        (header("ce-id"), RESERVED),
        (header("Webhook-Signature"), RESERVED),
        (header("Idempotency-Key"), RESERVED),
        (header("User-Agent"), RESERVED),
        // webhookSpec.headers
        (headers("X-A: ''"), ""),
        (headers(r#"X-A: "b\tc d~", X-B: "!""#), ""),
        (headers(&(0..32).map(|n| format!("X-{n}: a")).collect::<Vec<_>>().join(", ")), ""),
        (headers(&(0..33).map(|n| format!("X-{n}: a")).collect::<Vec<_>>().join(", ")), "spec.webhookSpec.headers: |Too many"),
        (headers(&format!("{}: a", long(128))), ""),
        (headers(&format!("{}: a", long(129))), "spec.webhookSpec.headers: |write a header's name"),
        (headers("'': a"), "spec.webhookSpec.headers: |write a header's name"),
        (headers("X A: a"), "spec.webhookSpec.headers: |write a header's name"),
        (headers("content-type: a"), "spec.webhookSpec.headers: |a body's type goes into contentType"),
        (headers("Host: a"), "spec.webhookSpec.headers: |choose another name"),
        (headers("X-A: a, x-a: b"), "spec.webhookSpec.headers: |is listed twice"),
        (headers(&format!("X-A: {}", long(2048))), ""),
        (headers(&format!("X-A: {}", long(2049))), "spec.webhookSpec.headers.X-A: |Too long"),
        (headers(r#"X-A: "a\nb""#), "spec.webhookSpec.headers: |printable ASCII on one line"),
        (headers("X-A: ü"), "spec.webhookSpec.headers: |printable ASCII on one line"),
        (headers("X-A: 1"), "spec.webhookSpec.headers.X-A: |string"),
        (format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h, headerName: X-A, headers: {{x-a: b}}}}}}"), "spec.webhookSpec: |headers repeats headerName"),
        // webhookSpec.body and contentType
        (with("body: '{\"text\": {{ text | tojson }}}'"), ""),
        (with(&format!("body: {}", long(8192))), ""),
        (with(&format!("body: {}", long(8193))), "spec.webhookSpec.body: |Too long"),
        (with("body: ''"), "spec.webhookSpec.body: |at least 1"),
        (with("body: a, contentType: text/plain"), ""),
        (with("body: a, contentType: 'application/vnd.x+json; charset=utf-8'"), ""),
        (with("contentType: text/plain"), "spec.webhookSpec: |contentType needs body: add body"),
        (with("body: a, contentType: json"), "spec.webhookSpec.contentType: |write a media type"),
        (with(r#"body: a, contentType: "text/plain\nX-A: b""#), "spec.webhookSpec.contentType: |write a media type"),
        (with(&format!("body: a, contentType: a/{}", long(127))), "spec.webhookSpec.contentType: |Too long"),
        // webhookSpec.tokenIn
        (in_body("body: '{{ token }}'"), ""),
        (in_body("body: '{{ token }}', headerName: X-A"), "spec.webhookSpec: |tokenIn: Body sends no token in a header: remove headerName"),
        (in_body("body: '{{ token }}', headerName: ''"), ""),
        (in_body("headerName: X-A"), "spec.webhookSpec: |tokenIn: Body needs body: add a body with {{ token }}"),
        (with("body: '{{ token }}', tokenIn: Body"), "spec: |webhookSpec.tokenIn: Body needs a token: add apiToken"),
        (with("tokenIn: Header"), ""),
        (format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h, tokenIn: Header, headerName: X-A}}}}"), ""),
        (format!("{{type: Webhook, {TOKEN}, webhookSpec: {{url: https://h, tokenIn: Header}}}}"), "spec: |add webhookSpec.headerName"),
        (with("tokenIn: ''"), "spec.webhookSpec.tokenIn: |write tokenIn: Header or tokenIn: Body"),
        (with("tokenIn: body"), "spec.webhookSpec.tokenIn: |write tokenIn: Header or tokenIn: Body"),
        (with(&format!("tokenIn: {}", long(65))), "spec.webhookSpec.tokenIn: |Too long"),
        (telegram_and("webhookSpec: {tokenIn: Header}"), NO_WEBHOOK),
        // webhookSpec, the rest
        (with("signingKey: {secretName: s, key: k}"), ""),
        (with("signingKey: {secretName: s}"), "spec.webhookSpec.signingKey.key: |Required value"),
        (with("timeoutSeconds: 1"), ""),
        (with("timeoutSeconds: 30"), ""),
        (with("timeoutSeconds: 0"), "spec.webhookSpec.timeoutSeconds: |greater than or equal to 1"),
        (with("timeoutSeconds: 31"), "spec.webhookSpec.timeoutSeconds: |less than or equal to 30"),
        (with("timeoutSeconds: 1.5"), "spec.webhookSpec.timeoutSeconds: |integer"),
        (with("tls: {secretName: receiver-tls}"), ""),
        (with("tls: {}"), "spec.webhookSpec.tls.secretName: |Required value"),
        (with("tls: {secretName: a_b}"), "spec.webhookSpec.tls.secretName: |write the name of a Secret"),
        // digestSeconds
        (telegram_and("digestSeconds: 0"), ""),
        (telegram_and("digestSeconds: 300"), ""),
        (telegram_and("digestSeconds: -1"), "spec.digestSeconds: |greater than or equal to 0"),
        (telegram_and("digestSeconds: 301"), "spec.digestSeconds: |less than or equal to 300"),
        (telegram_and("digestSeconds: 1.5"), "spec.digestSeconds: |integer"),
        (telegram_and("digestSeconds: '30'"), "spec.digestSeconds: |integer"),
        // footer
        (telegram_and("footer: a"), ""),
        (telegram_and("footer: 'Owner: <shop> & co, https://runbooks.example.com/shop#1'"), ""),
        (telegram_and(&format!("footer: {}", "😀".repeat(256))), ""),
        (telegram_and(&format!("footer: {}", long(257))), "spec.footer: |Too long"),
        (telegram_and("footer: ''"), "spec.footer: |at least 1"),
        (telegram_and("footer: ' '"), BAD_FOOTER),
        (telegram_and(r#"footer: "a\nb""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\tb""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u0000b""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u007fb""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u0085b""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u2028b""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u202eb""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u2066b""#), BAD_FOOTER),
        (telegram_and(r#"footer: "a\u061cb""#), BAD_FOOTER),
        (telegram_and("footer: 1"), "spec.footer: |string"),
        // suspend; a null is the same as nothing
        (telegram_and("suspend: true"), ""),
        (telegram_and("suspend: null, webhookSpec: null"), ""),
        (telegram("null"), NO_CHAT),
        (telegram_and("suspend: 1"), "spec.suspend: |boolean"),
    ]
}

#[tokio::test]
async fn contact_point_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    let kind = ContactPoint::api_resource();
    check(&client, &kind, &cases()).await;
    every_field_has_a_case("ContactPoint", &[], &cases());
    let refused = super::create(&client, &kind, "bare", None, true)
        .await
        .unwrap_err();
    assert!(refused.contains("write a spec"), "{refused}");
}
