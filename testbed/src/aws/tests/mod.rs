#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod balancers;
mod faults;
mod gates;
mod listeners;
mod network;
mod settings;
mod tags;
mod targets;
mod visibility;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::StatusCode;
use tokio::sync::OnceCell;

use super::form::Form;
use super::xml::Element;
use super::{ACCESS_KEY, Aws, Outcome, REGION, SUBNETS};
use crate::wait;

const DEADLINE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_hours(1);

/// Returns a server for tests that change no setting and inject no fault.
async fn shared() -> &'static Aws {
    static SHARED: OnceCell<Aws> = OnceCell::const_new();
    SHARED
        .get_or_init(async || Aws::start().await.unwrap())
        .await
}

/// Returns a name that no other test uses.
fn fresh(prefix: &str) -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Response that a client got: the HTTP status, and the body's XML if any.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    xml: Element,
}

impl Answer {
    /// Returns the error code.
    fn code(&self) -> &str {
        self.xml
            .child("Error")
            .map(|error| error.get("Code"))
            .unwrap_or_default()
    }

    fn message(&self) -> &str {
        self.xml
            .child("Error")
            .map(|error| error.get("Message"))
            .unwrap_or_default()
    }

    /// Returns the only item of the only list.
    fn only(&self) -> &Element {
        match self.items() {
            [only] => only,
            items => panic!("{} items in {:?}", items.len(), self.xml),
        }
    }

    /// Returns the items of the result's first list.
    fn items(&self) -> &[Element] {
        assert_eq!(self.status, StatusCode::OK, "{:?}", self.xml);
        &self.result().children[0].children
    }

    fn result(&self) -> &Element {
        &self.xml.children[0]
    }

    fn get(&self, name: &str) -> &str {
        self.only().get(name)
    }
}

static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // Each test has its own runtime, so it must not reuse another test's connection.
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
});

fn signature(key: &str, region: &str, service: &str) -> String {
    format!(
        "AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/{service}/aws4_request, SignedHeaders=host, Signature=0"
    )
}

/// Calls the API as a client does; fails if there is no response.
async fn call(aws: &Aws, action: &str, params: &[(&str, &str)]) -> reqwest::Result<Answer> {
    call_as(
        aws,
        Some(&signature(ACCESS_KEY, REGION, "elasticloadbalancing")),
        action,
        params,
    )
    .await
}

async fn call_as(
    aws: &Aws,
    authorization: Option<&str>,
    action: &str,
    params: &[(&str, &str)],
) -> reqwest::Result<Answer> {
    let mut request = CLIENT
        .post(aws.url())
        .body(Form::elb(action, params).encode());
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let answer = request.send().await?;
    let status = answer.status();
    let xml = Element::parse(&answer.text().await?).unwrap_or_default();
    Ok(Answer { status, xml })
}

async fn ok(aws: &Aws, action: &str, params: &[(&str, &str)]) -> Answer {
    let answer = call(aws, action, params).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{action}: {:?}", answer.xml);
    answer
}

/// Returns the error code of a call that AWS rejects with HTTP 400.
async fn refused(aws: &Aws, action: &str, params: &[(&str, &str)]) -> String {
    let answer = call(aws, action, params).await.unwrap();
    assert_eq!(
        answer.status,
        StatusCode::BAD_REQUEST,
        "{action}: {:?}",
        answer.xml
    );
    answer.code().to_owned()
}

/// Creates a load balancer in the first two subnets and returns its ARN.
async fn balancer(aws: &Aws, name: &str) -> String {
    aws.create(name, &SUBNETS[..2], "internet-facing", &[])
        .await
        .unwrap()
}

const TWO: [(&str, &str); 2] = [
    ("Subnets.member.1", "subnet-abc"),
    ("Subnets.member.2", "subnet-def"),
];

/// Returns these parameters and two subnets.
fn in_two<'a>(params: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    params.iter().copied().chain(TWO).collect()
}

async fn state_of(aws: &Aws, arn: &str) -> String {
    let answer = ok(
        aws,
        "DescribeLoadBalancers",
        &[("LoadBalancerArns.member.1", arn)],
    )
    .await;
    answer.only().child("State").unwrap().get("Code").to_owned()
}
