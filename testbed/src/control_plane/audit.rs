//! The apiserver's audit log: each request and its user.
//!
//! The log has one line for each request (`Metadata` level,
//! <https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/>), and a second one for a watch. The policy omits
//! nothing, so that tests can count reads as well as writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use kube::config::Kubeconfig;
use serde::Deserialize;
use uuid::Uuid;

pub(super) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// The environment variable that names a folder for the logs of all control planes.
pub const KEPT_IN: &str = "TESTBED_AUDIT_LOGS";

/// Replaces `log` in the name of the file that announces denials in the log of the same name.
const DENIALS_EXTENSION: &str = "refuses";

/// Longest time until the line of an answered request is in the log.
const LINE_TIMEOUT: Duration = Duration::from_mins(1);

/// Reads a control plane's audit log.
#[derive(Debug, Clone)]
pub struct Audit {
    path: PathBuf,
    admin: Kubeconfig,
}

/// A position in the log, and the time when the mark was requested. A request that the apiserver received earlier and
/// answered later has its line after the position, but an earlier time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    at: u64,
    time: Timestamp,
}

/// Subject of one request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// The user, such as `admin` or `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The verb: get, list, watch, create, update, patch, delete or deletecollection; get or post for a non-resource
    /// path.
    pub verb: String,
    /// The API group; empty for core and for a non-resource path.
    pub group: String,
    /// The plural, followed by the subresource if any: `deployments`, `pods/status`. Empty for other paths.
    pub resource: String,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// The name; empty for lists and watches, and for a create that was rejected before its body was read.
    pub name: String,
}

impl Subject {
    /// Returns whether the request may change something. Reviews (of access, of tokens) are created but change nothing.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        ) && !matches!(
            self.group.as_str(),
            "authentication.k8s.io" | "authorization.k8s.io"
        ) && self.resource != "serviceaccounts/token"
    }
}

/// A request. A watch counts when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Subject of the request.
    pub subject: Subject,
    /// HTTP status of the response.
    pub code: u16,
    /// Whether the user lacked the permission. Another rejection may have the same status.
    pub lacked_right: bool,
    /// Time when the apiserver received the request.
    pub time: Timestamp,
    /// The client's user agent.
    pub user_agent: String,
}

impl Audit {
    pub(super) fn new(path: &Path, admin: Kubeconfig) -> Self {
        Self {
            path: path.into(),
            admin,
        }
    }

    /// Announces to readers of the log that the apiserver may deny granted permissions for a while, because a test
    /// removes a permission.
    ///
    /// # Errors
    ///
    /// The file beside the log cannot be written.
    pub fn expect_refusals(&self) -> Result<()> {
        Ok(std::fs::write(
            self.path.with_extension(DENIALS_EXTENSION),
            "",
        )?)
    }

    /// Returns a mark. Marking sends one request as `admin` (a get of a non-resource path).
    ///
    /// # Errors
    ///
    /// The apiserver does not respond.
    pub async fn mark(&self) -> Result<Mark> {
        let from = std::fs::metadata(&self.path)?.len();
        let mark = Uuid::new_v4().to_string();
        let request = http::Request::get(format!("/version?mark={mark}")).body(Vec::new())?;
        super::kubeconfig::client(&self.admin)
            .await?
            .request_text(request)
            .await?;
        let until = Instant::now() + LINE_TIMEOUT;
        loop {
            let text = self.read(from, None)?;
            let (mut at, mut lines) = (
                from,
                text.split_inclusive('\n')
                    .filter(|line| line.ends_with('\n')),
            );
            let own = lines.find(|line| {
                at += line.len() as u64;
                line.contains(&mark)
            });
            if let Some(request) = own.map(parse).transpose()?.flatten() {
                return Ok(Mark {
                    at,
                    time: request.time,
                });
            }
            if Instant::now() > until {
                bail!(
                    "the mark is not in the audit log {} after {LINE_TIMEOUT:?}",
                    self.path.display()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns every request received between `since` and now, in the order of the responses (for watches, of their
    /// start).
    ///
    /// # Errors
    ///
    /// The apiserver does not respond, or a line cannot be parsed.
    pub async fn requests(&self, since: Mark) -> Result<Vec<Request>> {
        let until = self.mark().await?;
        let text = self.read(since.at, Some(until.at))?;
        let requests = text.lines().filter_map(|line| parse(line).transpose());
        requests
            .filter(|request| {
                request
                    .as_ref()
                    .map_or(true, |request| request.time > since.time)
            })
            .collect()
    }

    /// Returns the number of writes by subject, including rejected ones.
    ///
    /// # Errors
    ///
    /// As [`Audit::requests`].
    pub async fn writes(&self, since: Mark) -> Result<BTreeMap<Subject, usize>> {
        let mut counts = BTreeMap::new();
        for request in self.requests(since).await? {
            if request.subject.is_write() {
                *counts.entry(request.subject).or_default() += 1;
            }
        }
        Ok(counts)
    }

    fn read(&self, from: u64, until: Option<u64>) -> Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        let length = until.map_or(u64::MAX, |until| until.saturating_sub(from));
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the logs in this folder that were written to since that time.
///
/// # Errors
///
/// The folder cannot be read.
pub fn logs(folder: &Path, since: Timestamp) -> Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        let is_log = file
            .path()
            .extension()
            .is_some_and(|extension| extension == "log");
        if is_log && Timestamp::try_from(file.metadata()?.modified()?)? >= since {
            logs.push(file.path());
        }
    }
    Ok(logs)
}

/// Returns whether this log may contain denials of granted permissions: [`Audit::expect_refusals`].
pub fn refuses(log: &Path) -> bool {
    log.with_extension(DENIALS_EXTENSION).exists()
}

/// Returns every request in this log of a stopped control plane.
///
/// # Errors
///
/// The file cannot be read, or a line cannot be parsed.
pub fn kept(log: &Path) -> Result<Vec<Request>> {
    let mut lines = BufReader::new(File::open(log)?);
    let (mut requests, mut line) = (Vec::new(), Vec::new());
    // A kill -9 may leave a last line without an end.
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        requests.extend(parse(&String::from_utf8_lossy(&line))?);
        line.clear();
    }
    Ok(requests)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    response_status: Option<ResponseStatus>,
    request_received_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// Parses a line. Returns `None` for the second line of a watch, and for the rest of a line that a killed apiserver
/// left.
fn parse(line: &str) -> Result<Option<Request>> {
    // After a kill -9 in the middle of a line, the next apiserver appends its first line to that line.
    let Some(start) = line.rfind(r#"{"kind":"Event""#) else {
        return Ok(None);
    };
    let event: Event = serde_json::from_str(&line[start..])
        .with_context(|| format!("in the audit log: {}", &line[start..]))?;
    let code = event.response_status.map_or(0, |status| status.code);
    if event.stage == "ResponseComplete" && event.verb == "watch" && code < 400 {
        return Ok(None);
    }
    let ObjectRef {
        api_group: group,
        mut resource,
        subresource,
        namespace,
        name,
    } = event.object_ref;
    if !subresource.is_empty() {
        resource = format!("{resource}/{subresource}");
    }
    Ok(Some(Request {
        subject: Subject {
            user: event.user.username,
            verb: event.verb,
            group,
            resource,
            namespace,
            name,
        },
        code,
        lacked_right: event
            .annotations
            .get("authorization.k8s.io/decision")
            .is_some_and(|decision| decision == "forbid"),
        time: event.request_received_timestamp,
        user_agent: event.user_agent,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn line(stage: &str, verb: &str, code: u16) -> String {
        [
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":""#,
            stage,
            r#"","requestURI":"/x","verb":""#,
            verb,
            r#"","user":{"username":"alice","groups":["system:authenticated"]},"sourceIPs":["127.0.0.1"],"#,
            r#""userAgent":"kubectl","objectRef":{"resource":"deployments","namespace":"ns","name":"web","#,
            r#""apiGroup":"apps","apiVersion":"v1","subresource":"scale"},"responseStatus":{"metadata":{},"code":"#,
            &code.to_string(),
            r#"},"requestReceivedTimestamp":"2026-01-02T03:04:05.123456Z","#,
            r#""stageTimestamp":"2026-01-02T03:04:05.130000Z"}"#,
        ]
        .concat()
    }

    #[test]
    fn audit_line_becomes_a_request() {
        let request = parse(&line("ResponseComplete", "patch", 200))
            .unwrap()
            .unwrap();
        assert_eq!(
            request.subject,
            Subject {
                user: "alice".into(),
                verb: "patch".into(),
                group: "apps".into(),
                resource: "deployments/scale".into(),
                namespace: "ns".into(),
                name: "web".into(),
            }
        );
        assert!(request.subject.is_write());
        assert_eq!(request.code, 200);
    }

    #[test]
    fn logs_of_earlier_runs_are_ignored() {
        let folder = crate::process::Folder::new().unwrap();
        let (old, new) = (folder.path().join("old.log"), folder.path().join("new.log"));
        let now = Timestamp::now();
        std::fs::write(&new, "").unwrap();
        std::fs::write(&old, "").unwrap();
        let hour_ago = now - jiff::SignedDuration::from_hours(1);
        File::options()
            .write(true)
            .open(&old)
            .unwrap()
            .set_modified(hour_ago.into())
            .unwrap();
        std::fs::write(new.with_extension(DENIALS_EXTENSION), "").unwrap();
        let minute_ago = now - jiff::SignedDuration::from_mins(1);
        assert_eq!(
            logs(folder.path(), minute_ago).unwrap(),
            std::slice::from_ref(&new)
        );
        assert!(refuses(&new) && !refuses(&old));
    }

    #[test]
    fn truncated_last_line_is_no_request() {
        let folder = crate::process::Folder::new().unwrap();
        let log = folder.path().join("audit.log");
        let whole = line("ResponseComplete", "create", 201).replace("alice", "älice");
        let second_byte = whole.find('ä').unwrap() + 1;
        for cut in [1, 20, second_byte, whole.len() - 1, whole.len()] {
            let left = [whole.as_bytes(), b"\n", &whole.as_bytes()[..cut]].concat();
            std::fs::write(&log, &left).unwrap();
            assert_eq!(kept(&log).unwrap().len(), 1, "{cut} bytes left");
            std::fs::write(&log, [&left, whole.as_bytes(), b"\n"].concat()).unwrap();
            assert_eq!(
                kept(&log).unwrap().len(),
                2,
                "{cut} bytes left, and a start after the kill"
            );
        }
    }

    #[test]
    fn watch_counts_once() {
        assert!(
            parse(&line("ResponseStarted", "watch", 200))
                .unwrap()
                .is_some()
        );
        assert!(
            parse(&line("ResponseComplete", "watch", 200))
                .unwrap()
                .is_none()
        );
        assert!(
            parse(&line("ResponseComplete", "watch", 403))
                .unwrap()
                .is_some(),
            "a rejected watch never starts"
        );
    }

    #[test]
    fn truncated_line_hides_no_other() {
        let whole = line("ResponseComplete", "create", 201);
        let joined = format!("{}{whole}", &whole[..100]);
        assert_eq!(parse(&joined).unwrap(), parse(&whole).unwrap());
        assert!(parse(&format!("{}{whole}", &whole[..5])).unwrap().is_some());
    }
}
