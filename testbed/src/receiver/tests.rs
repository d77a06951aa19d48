#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode, header};

use super::{Pace, Receiver, Reply};
use crate::tls::Authority;

const SOON: Duration = Duration::from_secs(5);

fn client() -> reqwest::Client {
    client_for(reqwest::Client::builder())
}

fn client_for(builder: reqwest::ClientBuilder) -> reqwest::Client {
    builder
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(SOON)
        .build()
        .unwrap()
}

async fn post(client: &reqwest::Client, url: &str) -> reqwest::Result<reqwest::Response> {
    client.post(url).body("hello").send().await
}

async fn status(client: &reqwest::Client, url: &str) -> StatusCode {
    post(client, url).await.unwrap().status()
}

#[tokio::test]
async fn request_is_recorded_with_the_time_of_its_head() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let lines = seen.clone();
    receiver.on_request(move |request| lines.lock().unwrap().push(request.path.clone()));
    let before = Instant::now();
    let url = format!("{}/hook?a=b", receiver.url());
    client
        .post(&url)
        .header("X-Token", "secret")
        .body("hello")
        .send()
        .await
        .unwrap();
    let first = Instant::now();
    client.post(&url).body("again").send().await.unwrap();
    let requests = receiver
        .wait_for(SOON, |requests| requests.len() == 2)
        .await
        .unwrap();
    let request = &requests[0];
    assert_eq!(
        (request.method.as_str(), &*request.path, &*request.query),
        ("POST", "/hook", "a=b")
    );
    assert_eq!(
        (request.header("x-token"), &*request.text()),
        (Some("secret"), "hello")
    );
    assert_eq!(request.answered, Some(StatusCode::OK));
    assert!(before <= request.at && request.at <= first);
    // The second request of a kept connection has its own time.
    assert!(requests[1].at >= first);
    assert!(!format!("{request:?}").contains("secret"));
    assert_eq!(*seen.lock().unwrap(), ["/hook", "/hook"]);
}

#[tokio::test]
async fn request_time_precedes_its_body() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let receiver = Receiver::start().unwrap();
    let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", receiver.port()))
        .await
        .unwrap();
    socket
        .write_all(
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n",
        )
        .await
        .unwrap();
    let mut answer = [0; 25];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    let head_was_read = Instant::now();
    socket.write_all(b"x").await.unwrap();
    let requests = receiver
        .wait_for(SOON, |requests| requests.len() == 1)
        .await
        .unwrap();
    assert!(requests[0].at <= head_was_read);
}

#[tokio::test]
async fn reply_for_next_precedes_path_and_path_precedes_default() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    receiver.always(Reply::status(StatusCode::IM_A_TEAPOT));
    receiver.at_path("/gone", Reply::status(StatusCode::GONE));
    receiver.next(
        1,
        Reply::redirect(HeaderValue::from_static("http://127.0.0.1:1/")),
    );
    receiver.next(
        2,
        Reply::status(StatusCode::BAD_GATEWAY)
            .header(header::RETRY_AFTER, 7)
            .body("no"),
    );
    let gone = format!("{}/gone", receiver.url());
    let redirected = post(&client, &gone).await.unwrap();
    assert_eq!(
        (redirected.status(), &redirected.headers()["location"]),
        (StatusCode::FOUND, &"http://127.0.0.1:1/".parse().unwrap())
    );
    assert_eq!(status(&client, &gone).await, 502);
    let second = post(&client, &gone).await.unwrap();
    assert_eq!(second.headers()["retry-after"], "7");
    assert_eq!(second.text().await.unwrap(), "no");
    assert_eq!(status(&client, &gone).await, 410);
    assert_eq!(status(&client, &receiver.url()).await, 418);
    receiver.behave();
    assert_eq!(status(&client, &gone).await, 200);
}

#[tokio::test]
async fn receiver_answers_every_status() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    for code in 300..600 {
        receiver.always(Reply::status(StatusCode::from_u16(code).unwrap()));
        assert_eq!(status(&client, &receiver.url()).await, code);
    }
}

#[tokio::test]
async fn receiver_hangs_until_client_times_out() {
    let receiver = Receiver::start().unwrap();
    let impatient = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    receiver.always(Reply::hang());
    assert!(
        post(&impatient, &receiver.url())
            .await
            .unwrap_err()
            .is_timeout()
    );
    let requests = receiver
        .wait_for(SOON, |requests| !requests.is_empty())
        .await
        .unwrap();
    assert_eq!(requests[0].answered, None);
}

#[tokio::test]
async fn receiver_resets_before_and_within_a_response() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    receiver.always(Reply::reset());
    let error = post(&client, &receiver.url()).await.unwrap_err();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    assert!(cause.to_string().contains("reset"), "{cause}");
    receiver.always(Reply::ok().body("a whole answer").cut_midway());
    let mut answer = post(&client, &receiver.url()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "a whole");
    assert!(answer.chunk().await.is_err());
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn receiver_refuses_and_returns_on_the_same_port() {
    // Without a pool: whether a kept connection is already known to be dead depends on timing.
    let client = client_for(reqwest::Client::builder().pool_max_idle_per_host(0));
    let receiver = Receiver::start().unwrap();
    let url = receiver.url();
    assert_eq!(status(&client, &url).await, 200);
    for _ in 0..3 {
        receiver.refuse().await.unwrap();
        assert!(post(&client, &url).await.unwrap_err().is_connect());
        receiver.accept().await.unwrap();
        assert_eq!(status(&client, &url).await, 200);
    }
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn junk_has_its_length() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    receiver.always(Reply::junk(10 << 20));
    assert_eq!(
        post(&client, &receiver.url())
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .len(),
        10 << 20
    );
}

#[tokio::test]
async fn rate_limit_rejects_excess_requests() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    receiver.pace(Some(Pace::PerSecond(2)));
    let mut answers = Vec::new();
    // On a slow machine a second may be over before the third request.
    while answers
        .last()
        .is_none_or(|answer: &reqwest::Response| answer.status() == 200)
    {
        answers.push(post(&client, &receiver.url()).await.unwrap());
    }
    let last = answers.pop().unwrap();
    assert!(answers.len() >= 2);
    assert_eq!(
        (last.status().as_u16(), &last.headers()["retry-after"]),
        (429, &"1".parse().unwrap())
    );
}

#[tokio::test]
async fn one_at_a_time_serializes_requests() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    receiver.pace(Some(Pace::OneAtATime(Duration::from_millis(60))));
    let begun = Instant::now();
    let url = receiver.url();
    futures::future::join_all((0..3).map(|_| post(&client, &url))).await;
    assert!(begun.elapsed() >= Duration::from_millis(180));
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn https_receiver_requires_client_certificate_if_asked() {
    let authority = Authority::new("receivers").unwrap();
    let root = reqwest::Certificate::from_pem(authority.ca_pem().as_bytes()).unwrap();
    let trusting = || reqwest::Client::builder().tls_certs_only([root.clone()]);
    let identity = authority.server(&["127.0.0.1"]).unwrap();
    let receiver = Receiver::start_tls(&identity, None).unwrap();
    assert!(receiver.url().starts_with("https://"));
    assert_eq!(status(&client_for(trusting()), &receiver.url()).await, 200);
    assert!(post(&client(), &receiver.url()).await.is_err());
    receiver.always(Reply::reset());
    assert!(
        post(&client_for(trusting()), &receiver.url())
            .await
            .is_err()
    );

    let strict = Receiver::start_tls(&identity, Some(authority.ca_pem())).unwrap();
    assert!(post(&client_for(trusting()), &strict.url()).await.is_err());
    let known = authority.client("operator").unwrap();
    let known =
        reqwest::Identity::from_pem(format!("{}{}", known.cert_pem, known.key_pem).as_bytes())
            .unwrap();
    assert_eq!(
        status(&client_for(trusting().identity(known)), &strict.url()).await,
        200
    );
    assert_eq!(strict.requests().len(), 1);
}

#[tokio::test]
async fn wait_timeout_reports_number_of_requests() {
    let receiver = Receiver::start().unwrap();
    post(&client(), &receiver.url()).await.unwrap();
    let error = receiver
        .wait_for(Duration::from_millis(20), |requests| requests.len() > 1)
        .await
        .unwrap_err();
    assert!(error.to_string().ends_with("1 arrived"), "{error}");
}

#[tokio::test]
async fn receiver_handles_many_requests_in_time() {
    let (receiver, client) = (Receiver::start().unwrap(), client());
    let url = receiver.url();
    let begun = Instant::now();
    futures::future::join_all((0..16).map(|_| async {
        for _ in 0..125 {
            post(&client, &url).await.unwrap();
        }
    }))
    .await;
    assert_eq!(receiver.requests().len(), 2000);
    // At least about 33 requests a second, even if other builds keep this machine busy.
    assert!(begun.elapsed() < 12 * SOON, "{:?}", begun.elapsed());
}

#[test]
fn receiver_outlives_the_runtime_that_started_it() {
    let start = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let receiver = start().block_on(async { Receiver::start().unwrap() });
    assert_eq!(start().block_on(status(&client(), &receiver.url())), 200);
    let url = receiver.url();
    drop(receiver);
    // The server's task ends a moment later; a late connection is closed without a response.
    assert!(start().block_on(post(&client(), &url)).is_err());
}
