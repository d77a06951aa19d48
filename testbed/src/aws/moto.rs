//! moto's server, as a child process that stores load balancers, target groups, listeners and their network.
//!
//! moto takes a second to start and 200 MB, so one server serves this whole process, with an account for each fake.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::REGION;
use super::answer::{AwsErrorResponse, CallResult};
use super::form::Form;
use super::xml::Element;
use crate::journal::lock;
use crate::process::{Child, Folder, Program, folder_of};
use crate::wait;

/// Longest start time, on a machine that builds at the same time.
const START_TIMEOUT: Duration = Duration::from_mins(5);

const EC2_VERSION: &str = "2016-11-15";

/// The moto process, which dies with this process.
struct Running {
    child: Mutex<Child>, // dropped before the folder: no process writes to the folder any more
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
    folder: Folder,
}

/// An account at the moto server.
pub(super) struct Moto {
    running: &'static Running,
    account: HeaderValue,
}

impl Running {
    /// Starts moto on a free port of 127.0.0.1 and waits until it listens.
    async fn start() -> Result<Self> {
        let program = install().await?.join("bin").join("moto_server");
        let folder = Folder::new()?;
        let mut program = Program::new(program)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .env("PYTHONUNBUFFERED", "1");
        // Ignores the user's own AWS settings, and does not let all fakes share one account.
        for name in [
            "AWS_PROFILE",
            "AWS_DEFAULT_PROFILE",
            "MOTO_ACCOUNT_ID",
            "PYTHONHOME",
            "PYTHONPATH",
        ] {
            program = program.env_remove(name);
        }
        for name in ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"] {
            program = program.env(name, "/dev/null");
        }
        let mut child = program.spawn(folder.path().join("moto.log"))?;
        let base = wait::until("moto's address in its log", START_TIMEOUT, async || {
            child.check_running()?;
            Ok(address(&child.log_text()?))
        })
        .await
        .with_context(|| child.log_tail())?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self {
            child: Mutex::new(child),
            base,
            client,
            folder,
        })
    }
}

impl Moto {
    /// Returns a new account, and starts moto if necessary.
    pub(super) async fn start() -> Result<Self> {
        static RUNNING: OnceCell<Running> = OnceCell::const_new();
        static LAST: AtomicU32 = AtomicU32::new(0);
        let running = RUNNING.get_or_try_init(Running::start).await?;
        let account = format!(
            "{:012}",
            123_456_789_000 + u64::from(LAST.fetch_add(1, Ordering::Relaxed))
        );
        Ok(Self {
            running,
            account: account.parse()?,
        })
    }

    /// Returns a folder that lives as long as this process.
    pub(super) fn folder(&self) -> &'static Path {
        self.running.folder.path()
    }

    /// Calls the `ELBv2` API and returns the children of the result.
    pub(super) async fn elb(&self, form: &Form) -> CallResult {
        let (status, answer) = self
            .query("elasticloadbalancing", form)
            .await
            .map_err(|error| AwsErrorResponse::broken(&error))?;
        if status.is_success() {
            return Ok(answer
                .children
                .into_iter()
                .next()
                .map(|result| result.children)
                .unwrap_or_default());
        }
        let error = answer.child("Error").unwrap_or(&answer);
        Err(AwsErrorResponse::with_status(
            status.as_u16(),
            error.get("Code"),
            error.get("Message"),
        ))
    }

    /// Calls the EC2 API and returns the response.
    pub(super) async fn ec2(&self, action: &str, params: &[(&str, &str)]) -> Result<Element> {
        let (status, answer) = self
            .query("ec2", &Form::of(EC2_VERSION, action, params))
            .await?;
        ensure!(
            status.is_success(),
            "moto refuses {action} ({status}): {answer:?}"
        );
        Ok(answer)
    }

    /// Creates a certificate in moto and returns its ARN.
    pub(super) async fn certificate(&self, domain: &str) -> Result<String> {
        let mut headers = signed_headers("acm")?;
        headers.insert(
            "x-amz-target",
            HeaderValue::from_static("CertificateManager.RequestCertificate"),
        );
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-amz-json-1.1"),
        );
        let body = serde_json::json!({"DomainName": domain}).to_string();
        let (status, body) = self.send(Method::POST, "/", headers, body.into()).await?;
        let answer: serde_json::Value = serde_json::from_slice(&body)?;
        let arn = answer["CertificateArn"].as_str().map(ToOwned::to_owned);
        arn.with_context(|| format!("moto gives no certificate ({status}): {answer}"))
    }

    async fn query(&self, service: &str, form: &Form) -> Result<(StatusCode, Element)> {
        let mut headers = signed_headers(service)?;
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        let (status, body) = self
            .send(Method::POST, "/", headers, form.encode().into())
            .await?;
        let text = String::from_utf8_lossy(&body);
        let answer =
            Element::parse(&text).with_context(|| format!("moto's answer ({status}): {text}"))?;
        Ok((status, answer))
    }

    /// Forwards any request unchanged.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes)> {
        let Running {
            child,
            base,
            client,
            ..
        } = self.running;
        let uri: Uri = format!("{base}{path}").parse()?;
        let mut request = Request::new(Full::new(body));
        (
            *request.method_mut(),
            *request.uri_mut(),
            *request.headers_mut(),
        ) = (method, uri, headers);
        request
            .headers_mut()
            .insert("x-moto-account-id", self.account.clone());
        let answer = match client.request(request).await {
            Ok(answer) => answer,
            Err(error) => {
                lock(child).check_running()?;
                return Err(error).context("moto does not answer");
            }
        };
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }
}

/// Returns headers with a signature. moto reads only the service in the signature's scope.
fn signed_headers(service: &str) -> Result<HeaderMap> {
    let scope = format!(
        "{}/20260101/{REGION}/{service}/aws4_request",
        super::ACCESS_KEY
    );
    let value = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    Ok(HeaderMap::from_iter([(
        header::AUTHORIZATION,
        HeaderValue::try_from(value)?,
    )]))
}

/// Returns the address that moto chose and logged.
fn address(log: &str) -> Option<String> {
    let (_, after) = log.split_once("Running on ")?;
    let (address, _) = after.split_once(char::is_whitespace)?;
    Some(address.to_owned())
}

/// Returns AWS's own model of its `ELBv2` API, as botocore ships it: operations, shapes, errors.
///
/// # Errors
///
/// moto, which brings botocore, cannot be installed or does not run.
pub async fn api_model() -> Result<serde_json::Value> {
    let python = install().await?.join("bin").join("python");
    let print = "import botocore.loaders, json; \
        print(json.dumps(botocore.loaders.create_loader().load_service_model('elbv2', 'service-2')))";
    let output = Command::new(python)
        .args(["-c", print])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

async fn install() -> Result<PathBuf> {
    folder_of("hack/moto/install.sh").await
}
