//! Command lines of the servers.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use uuid::Uuid;

use super::audit;
use super::certs::Authority;
use crate::process::{Child, Program};

/// The lowest port to choose; see [`free_ports`].
const LOWEST_PORT: u16 = 10_000;

/// The folder of etcd's data.
pub(super) const DATA: &str = "etcd";

/// The environment variable with further flags for every apiserver, separated by spaces.
const FURTHER_FLAGS: &str = "TESTBED_APISERVER_FLAGS";

/// Folder of the programs, and folder of all their files.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) binaries: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) ports: Ports,
    pub(super) apiserver_flags: Vec<String>,
}

/// Ports of the listening servers.
#[derive(Debug)]
pub(super) struct Ports {
    etcd: u16,
    etcd_peer: u16,
    pub(super) apiserver: u16,
    controller_manager: u16,
    scheduler: u16,
}

impl Ports {
    pub(super) fn choose() -> Result<Self> {
        let [etcd, etcd_peer, apiserver, controller_manager, scheduler] = free_ports()?;
        Ok(Self {
            etcd,
            etcd_peer,
            apiserver,
            controller_manager,
            scheduler,
        })
    }
}

/// Returns unused ports on loopback, from below the range that the kernel assigns to outgoing connections. Within that
/// range, a client that keeps dialling a killed apiserver's port eventually gets that very port, connects to itself,
/// and blocks the apiserver's restart. A process chooses each port once: until a server binds its port, and while it
/// restarts, the port looks unused to other control planes.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    static CHOSEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end = range
        .split_whitespace()
        .next()
        .and_then(|low| low.parse().ok())
        .unwrap_or(32_768_u16);
    let size = u128::from(end.max(LOWEST_PORT + 1_000) - LOWEST_PORT);
    let mut ports = Vec::new();
    for _ in 0..1_000 {
        let port = LOWEST_PORT + u16::try_from(Uuid::new_v4().as_u128() % size)?;
        let is_new = CHOSEN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(port);
        if is_new && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
        if let Some(ports) = ports.first_chunk::<N>() {
            return Ok(*ports);
        }
    }
    bail!("no {N} free ports from {LOWEST_PORT} on")
}

impl Servers {
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the path of the apiserver's audit log. In the folder that [`audit::KEPT_IN`] names, the log outlives the
    /// servers.
    pub(super) fn audit_log(&self) -> PathBuf {
        let name = self
            .folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        match std::env::var_os(audit::KEPT_IN) {
            Some(folder) => Path::new(&folder).join(format!("{name}.log")),
            None => self.file("audit.log"),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.ports.apiserver)
    }

    /// Writes the files that the servers read. All keys are in the folder, which only this user can read.
    pub(super) fn write_files(&self, authority: &Authority) -> Result<()> {
        let server = authority.server()?;
        let accounts = rcgen::KeyPair::generate()?;
        let write = |name: &str, content: &str| std::fs::write(self.file(name), content);
        write("ca.crt", &authority.pem())?;
        write("apiserver.crt", &server.certificate)?;
        write("apiserver.key", &server.key)?;
        write("service-accounts.key", &accounts.serialize_pem())?;
        write("service-accounts.pub", &accounts.public_key_pem())?;
        write("audit-policy.yaml", audit::POLICY)?;
        self.audit_log()
            .parent()
            .map_or(Ok(()), fs::create_dir_all)?;
        Ok(())
    }

    pub(super) fn etcd(&self) -> Result<Child> {
        let (client, peer) = (local(self.ports.etcd), local(self.ports.etcd_peer));
        self.program("etcd")
            .arg(flag("data-dir", self.file(DATA)))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}"))
            .args(["--unsafe-no-fsync", "--log-level=warn"])
            .spawn(self.file("etcd.log"))
    }

    /// Activates or deactivates the alarm that etcd raises when its quota is exhausted.
    pub(super) async fn set_etcd_full(&self, is_full: bool) -> Result<()> {
        let action = if is_full { "ACTIVATE" } else { "DEACTIVATE" };
        let alarm = serde_json::json!({ "action": action, "alarm": "NOSPACE" }).to_string();
        let url = format!("{}/v3/maintenance/alarm", local(self.ports.etcd));
        let request = http::Request::post(url).body(Full::new(Bytes::from(alarm)))?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let status = client.request(request).await?.status();
        ensure!(status.is_success(), "etcd answers {status}");
        Ok(())
    }

    pub(super) fn apiserver(&self) -> Result<Child> {
        self.program("kube-apiserver")
            // More memory for less time.
            .env("GOGC", "400")
            .arg(format!("--etcd-servers={}", local(self.ports.etcd)))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={}", self.ports.apiserver))
            .arg(flag("tls-cert-file", self.file("apiserver.crt")))
            .arg(flag("tls-private-key-file", self.file("apiserver.key")))
            .arg(flag("client-ca-file", self.file("ca.crt")))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(flag(
                "service-account-key-file",
                self.file("service-accounts.pub"),
            ))
            .arg(flag(
                "service-account-signing-key-file",
                self.file("service-accounts.key"),
            ))
            .args([
                "--service-cluster-ip-range=10.0.0.0/16",
                "--authorization-mode=RBAC",
            ])
            .args(["--endpoint-reconciler-type=none", "--allow-privileged"])
            // OpenShift also runs this plugin: setting blockOwnerDeletion needs a permission.
            .arg("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")
            .arg(flag("audit-policy-file", self.file("audit-policy.yaml")))
            .arg(flag("audit-log-path", self.audit_log()))
            .arg("--audit-log-maxsize=0") // no rotation, because marks are offsets in the file
            .args(further_flags())
            .args(&self.apiserver_flags)
            .spawn(self.file("kube-apiserver.log"))
    }

    pub(super) fn controller_manager(&self, kubeconfig: &Path) -> Result<Child> {
        self.program("kube-controller-manager")
            .args(three_kubeconfigs(kubeconfig))
            .args([
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                "--use-service-account-credentials",
            ])
            .arg(format!("--secure-port={}", self.ports.controller_manager))
            .arg(flag(
                "service-account-private-key-file",
                self.file("service-accounts.key"),
            ))
            .arg(flag("root-ca-file", self.file("ca.crt")))
            .args([
                "--controllers=*",
                "--kube-api-qps=400",
                "--kube-api-burst=800",
            ])
            // kwok's node sends no heartbeat, and would become not ready after 50 s.
            .arg("--node-monitor-grace-period=24h")
            .spawn(self.file("kube-controller-manager.log"))
    }

    pub(super) fn scheduler(&self, kubeconfig: &Path) -> Result<Child> {
        self.program("kube-scheduler")
            .args(three_kubeconfigs(kubeconfig))
            .args(["--bind-address=127.0.0.1", "--leader-elect=false"])
            .arg(format!("--secure-port={}", self.ports.scheduler))
            .spawn(self.file("kube-scheduler.log"))
    }

    pub(super) fn kwok(&self, kubeconfig: &Path) -> Result<Child> {
        let stages = self.file("kwok-stages.yaml");
        let all =
            fs::read_to_string(self.binaries.join("kwok-stages.yaml")).context("kwok's stages")?;
        fs::write(&stages, without_the_end_of_jobs(&all)).context("kwok's stages")?;
        self.program("kwok")
            .arg(flag("kubeconfig", kubeconfig))
            .arg(flag("config", stages))
            .args(["--manage-all-nodes=true", "--cidr=10.244.0.0/16"])
            .spawn(self.file("kwok.log"))
    }

    /// Returns a program in the folder, with the folder as home: no file of the user is read or written.
    fn program(&self, name: &str) -> Program {
        Program::new(self.binaries.join(name))
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
    }
}

/// Removes the stage that completes Jobs: a Job that started is not done, and [`crate::kubelet::end`] sets its result.
fn without_the_end_of_jobs(stages: &str) -> String {
    stages
        .split_inclusive("---\n")
        .filter(|stage| !stage.contains("\n  name: pod-complete\n"))
        .collect()
}

/// Returns the flags in the environment variable [`FURTHER_FLAGS`].
fn further_flags() -> Vec<String> {
    let flags = std::env::var(FURTHER_FLAGS).unwrap_or_default();
    flags.split_whitespace().map(str::to_owned).collect()
}

fn local(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

fn flag(name: &str, file: impl AsRef<Path>) -> String {
    format!("--{name}={}", file.as_ref().display())
}

fn three_kubeconfigs(file: &Path) -> [String; 3] {
    [
        "kubeconfig",
        "authentication-kubeconfig",
        "authorization-kubeconfig",
    ]
    .map(|name| flag(name, file))
}
