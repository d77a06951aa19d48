//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, as child processes on loopback.
//!
//! The programs come from `hack/controlplane/build.sh`. They write only to one temporary folder. Folder and processes
//! end when the [`ControlPlane`] is dropped or this process ends.

pub mod audit;
mod certs;
pub mod kubeconfig;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::PostParams;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use self::audit::Audit;
use self::certs::Authority;
use self::servers::{Ports, Servers};
use crate::process::{Child, Folder, dies_with_its_thread, folder_of};
use crate::timing;

/// Longest time until a server is ready, on a machine that builds at the same time.
const READY_TIMEOUT: Duration = Duration::from_mins(5);

/// Timeout of one readiness check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval of readiness checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Limit of running control planes: two that tests share, and six of a test's own. Each takes up to a gigabyte of
/// memory.
static SLOTS: Semaphore = Semaphore::const_new(8);

/// Components to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// kube-controller-manager: Deployments, garbage collection, the `default` `ServiceAccount` of a namespace.
    pub controller_manager: bool,
    /// kube-scheduler: assigns Pods to nodes.
    pub scheduler: bool,
    /// kwok and one Node: its Pods become Running and Ready immediately, although nothing runs.
    pub kwok: bool,
    /// Further flags for kube-apiserver, after the testbed's own; the last of two equal flags wins.
    pub apiserver_flags: Vec<String>,
}

impl Default for Options {
    /// Returns options that run every component.
    fn default() -> Self {
        Self {
            controller_manager: true,
            scheduler: true,
            kwok: true,
            apiserver_flags: Vec::new(),
        }
    }
}

impl Options {
    /// Returns options for etcd and kube-apiserver alone. Without the controller-manager a namespace has no `default`
    /// `ServiceAccount`, and the apiserver rejects Pods.
    pub fn apiserver_only() -> Self {
        Self {
            controller_manager: false,
            scheduler: false,
            kwok: false,
            apiserver_flags: Vec::new(),
        }
    }
}

/// A running control plane. Dropping the control plane kills every server and removes their files.
pub struct ControlPlane {
    running: Mutex<Running>, // dropped before the folder: no process writes to the folder any more
    servers: Servers,
    authority: Authority,
    admin: Kubeconfig,
    folder: Folder,
    _slot: SemaphorePermit<'static>,
}

/// Stored data of a stopped control plane's etcd, with which others can start.
#[derive(Debug)]
pub struct Snapshot {
    folder: Folder,
}

/// The servers, in the order in which they are killed.
struct Running {
    clients: Vec<Child>,
    apiserver: Option<Child>,
    etcd: Child,
}

impl Running {
    fn all(&mut self) -> impl Iterator<Item = &mut Child> {
        self.clients
            .iter_mut()
            .chain(&mut self.apiserver)
            .chain([&mut self.etcd])
    }
}

impl ControlPlane {
    /// Starts the servers and waits until they are ready: `/readyz` is ok, and with a controller-manager, the namespace
    /// `default` has its `ServiceAccount`. At most eight control planes run in this process; a ninth waits until
    /// another stops.
    ///
    /// # Errors
    ///
    /// The programs cannot be built, or a server exits or is not ready in time (the error has the end of its log).
    pub async fn start(options: Options) -> Result<Self> {
        Self::start_with(options, None).await
    }

    /// Starts the servers as [`ControlPlane::start`] does, with a copy of the snapshot.
    ///
    /// # Errors
    ///
    /// As [`ControlPlane::start`].
    pub async fn start_from(snapshot: &Snapshot, options: Options) -> Result<Self> {
        Self::start_with(options, Some(snapshot)).await
    }

    async fn start_with(options: Options, snapshot: Option<&Snapshot>) -> Result<Self> {
        // The build may contain two TLS providers; other code may already have installed this one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let slot = SLOTS.acquire().await?;
        let binaries = binaries().await?;
        let folder = Folder::new()?;
        let servers = Servers {
            binaries,
            folder: folder.path().into(),
            ports: Ports::choose()?,
            apiserver_flags: options.apiserver_flags,
        };
        let authority = Authority::new()?;
        servers.write_files(&authority)?;
        let pair = authority.client("admin", &["system:masters"])?;
        let admin = kubeconfig::with_certificate(&servers.url(), &authority.pem(), "admin", &pair)?;
        kubeconfig::write(&admin, &servers.file("admin.kubeconfig"))?;
        if let Some(snapshot) = snapshot {
            snapshot.copy_to(&servers).await?;
        }

        let etcd = servers.etcd()?;
        let apiserver = Some(servers.apiserver()?);
        let plane = Self {
            running: Mutex::new(Running {
                clients: Vec::new(),
                apiserver,
                etcd,
            }),
            servers,
            authority,
            admin,
            folder,
            _slot: slot,
        };
        plane.apiserver_ready().await?;

        let client = plane.client().await?;
        if options.kwok {
            Api::all(client.clone())
                .create(&PostParams::default(), &node()?)
                .await?;
            let (policy, binding) = kubelet_policy()?;
            Api::all(client.clone())
                .create(&PostParams::default(), &policy)
                .await?;
            Api::all(client.clone())
                .create(&PostParams::default(), &binding)
                .await?;
            let file = plane.kubeconfig_for_user("kwok", &["system:masters"])?;
            plane.running().clients.push(plane.servers.kwok(&file)?);
        }
        if options.scheduler {
            let file = plane.kubeconfig_for_user("system:kube-scheduler", &[])?;
            plane
                .running()
                .clients
                .push(plane.servers.scheduler(&file)?);
        }
        if options.controller_manager {
            let file = plane.kubeconfig_for_user("system:kube-controller-manager", &[])?;
            plane
                .running()
                .clients
                .push(plane.servers.controller_manager(&file)?);
            let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
            plane
                .ready("kube-controller-manager", async || {
                    Ok(accounts.get_opt("default").await?.is_some())
                })
                .await?;
        }
        Ok(plane)
    }

    /// Returns a client with every permission. The client belongs to the runtime that calls this function, so each test
    /// makes its own.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up.
    pub async fn client(&self) -> Result<Client> {
        timing::begin();
        kubeconfig::client(&self.admin).await
    }

    /// Returns the apiserver's URL for clients: `https://127.0.0.1:PORT`.
    pub fn server_url(&self) -> String {
        self.servers.url()
    }

    /// Returns the CA certificate of the apiserver's certificate.
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// Returns the path of the kubeconfig with every permission.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.servers.file("admin.kubeconfig")
    }

    /// Returns the folder of kubectl and the servers' programs.
    pub fn binaries(&self) -> &Path {
        &self.servers.binaries
    }

    /// Writes a kubeconfig with a token of an existing `ServiceAccount`, valid for 24 h.
    ///
    /// # Errors
    ///
    /// The `ServiceAccount` does not exist.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf> {
        let config = kubeconfig::for_service_account(&self.admin, namespace, name).await?;
        self.write_kubeconfig(&config, &format!("{namespace}.{name}"))
    }

    /// Writes a kubeconfig with a client certificate for a user in at most two groups.
    ///
    /// # Errors
    ///
    /// There are more than two groups.
    pub fn kubeconfig_for_user(&self, name: &str, groups: &[&str]) -> Result<PathBuf> {
        let pair = self.authority.client(name, groups)?;
        let config = kubeconfig::with_certificate(&self.server_url(), &self.ca_pem(), name, &pair)?;
        self.write_kubeconfig(&config, name)
    }

    fn write_kubeconfig(&self, config: &Kubeconfig, of: &str) -> Result<PathBuf> {
        let file = self.servers.file(&format!(
            "{}-{}.kubeconfig",
            of.replace([':', '/'], "_"),
            uuid::Uuid::new_v4()
        ));
        kubeconfig::write(config, &file)?;
        Ok(file)
    }

    /// Returns kubectl as admin, without arguments. kubectl is killed when its handle is dropped, or when the thread
    /// that starts it ends.
    pub fn kubectl(&self) -> Command {
        let mut command =
            Command::from(dies_with_its_thread(self.servers.binaries.join("kubectl")));
        command
            .arg(format!(
                "--kubeconfig={}",
                self.admin_kubeconfig().display()
            ))
            // The user's own cache must not be used: kubectl caches by host and port, and a former control plane may
            // have had the same port.
            .arg(format!(
                "--cache-dir={}",
                self.servers.file("kubectl-cache").display()
            ))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl as admin, with `input` as standard input, and returns its output.
    ///
    /// # Errors
    ///
    /// kubectl fails; the error has its output.
    pub async fn run_kubectl(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = self.kubectl();
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that does not read its input closes it; its own output then explains the failure.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = child.wait_with_output().await?;
        ensure!(
            output.status.success(),
            "kubectl {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Returns the audit log.
    pub fn audit(&self) -> Audit {
        Audit::new(&self.servers.audit_log(), self.admin.clone())
    }

    /// Kills the apiserver with SIGKILL and returns once the process is dead. The stored data remain.
    ///
    /// # Errors
    ///
    /// The signal cannot be sent.
    pub fn kill_apiserver(&self) -> Result<()> {
        if let Some(mut apiserver) = self.running().apiserver.take() {
            apiserver.kill()?;
        }
        Ok(())
    }

    /// Starts the apiserver again after [`ControlPlane::kill_apiserver`], at the same address with the same
    /// certificates, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// The apiserver is running, or does not become ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        {
            let mut running = self.running();
            ensure!(running.apiserver.is_none(), "the apiserver is running");
            // The apiserver responds before it has read the permissions.
            self.audit().expect_refusals()?;
            running.apiserver = Some(self.servers.apiserver()?);
        }
        self.apiserver_ready().await
    }

    /// Sets whether etcd behaves as if its space were exhausted: it deletes and reads, but rejects every other write.
    ///
    /// # Errors
    ///
    /// etcd does not answer.
    pub async fn set_etcd_full(&self, is_full: bool) -> Result<()> {
        self.servers.set_etcd_full(is_full).await
    }

    /// Stops every server and keeps the stored data.
    ///
    /// # Errors
    ///
    /// etcd does not exit.
    pub async fn into_snapshot(self) -> Result<Snapshot> {
        let Self {
            running, folder, ..
        } = self;
        let Running {
            clients,
            apiserver,
            mut etcd,
        } = running.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop((clients, apiserver));
        etcd.terminate()?;
        etcd.wait(READY_TIMEOUT).await?;
        Ok(Snapshot { folder })
    }

    /// Kills every server and removes their files, as dropping does.
    pub fn stop(self) {
        drop(self);
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn apiserver_ready(&self) -> Result<()> {
        let client = self.client().await?;
        self.ready("kube-apiserver", async || {
            Ok(client
                .request_text(http::Request::get("/readyz").body(Vec::new())?)
                .await?
                == "ok")
        })
        .await
    }

    /// Repeats `check` until it returns true. On a timeout, the error has the end of the log of `server`.
    async fn ready(&self, server: &str, check: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let until = Instant::now() + READY_TIMEOUT;
        loop {
            let seen = timeout(CHECK_TIMEOUT, check()).await;
            if matches!(seen, Ok(Ok(true))) {
                return Ok(());
            }
            self.running().all().try_for_each(Child::check_running)?;
            if Instant::now() > until {
                let log = self
                    .running()
                    .all()
                    .find(|child| child.name() == server)
                    .map(|child| child.log_tail());
                bail!(
                    "{server} is not ready after {READY_TIMEOUT:?}: {seen:?}\n{}",
                    log.unwrap_or_default()
                );
            }
            sleep(CHECK_INTERVAL).await;
        }
    }
}

impl Snapshot {
    async fn copy_to(&self, servers: &Servers) -> Result<()> {
        // etcd's log is mostly zeros.
        let copied = Command::new("cp")
            .args(["--recursive", "--sparse=always"])
            .arg(self.folder.path().join(servers::DATA))
            .arg(servers.file(servers::DATA))
            .status()
            .await?;
        ensure!(copied.success(), "copying a snapshot failed ({copied})");
        Ok(())
    }
}

/// Returns the folder of the programs. Missing programs are built first: that takes about six minutes, with progress on
/// standard error.
///
/// # Errors
///
/// The programs cannot be built.
pub async fn binaries() -> Result<PathBuf> {
    folder_of("hack/controlplane/build.sh").await
}

/// Returns the Node, which kwok gives 1,000 cores and room for a million Pods.
fn node() -> Result<Node> {
    Ok(serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "node-1",
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": "node-1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
    }))?)
}

/// Name of the policy that denies kwok what a kubelet does not do.
pub const KUBELET_POLICY: &str = "kwok-deletes-terminating-pods";

/// Returns a policy by which kwok deletes only Pods that are being deleted. A kubelet names the Pod's UID; kwok, when
/// late, would delete the next Pod of the same name.
fn kubelet_policy() -> Result<(ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding)> {
    let policy = serde_json::json!({
        "metadata": { "name": KUBELET_POLICY },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"],
            }] },
            "matchConditions": [{ "name": "kwok", "expression": "request.userInfo.username == 'kwok'" }],
            "validations": [{ "expression": "has(oldObject.metadata.deletionTimestamp)", "message": "not terminating" }],
        },
    });
    let binding = serde_json::json!({
        "metadata": { "name": KUBELET_POLICY },
        "spec": { "policyName": KUBELET_POLICY, "validationActions": ["Deny"] },
    });
    Ok((
        serde_json::from_value(policy)?,
        serde_json::from_value(binding)?,
    ))
}
