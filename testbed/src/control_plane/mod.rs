//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, as child processes on loopback.
//!
//! The programs come from `hack/controlplane/build.sh`. All they write is in one temporary folder, which is gone, like
//! they are, when the [`ControlPlane`] is dropped or this process ends.

pub mod audit;
mod certs;
pub mod kubeconfig;
mod servers;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
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

/// How long a server may take to be ready, on a machine that builds at the same time.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long one look may take.
const LOOK: Duration = Duration::from_secs(2);

/// How often something waited for is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Two that tests share, and two of a test's own: what the memory and the cores of a small machine bear.
static SLOTS: Semaphore = Semaphore::const_new(4);

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// kube-controller-manager: Deployments, garbage collection, the `default` `ServiceAccount` of a namespace.
    pub controller_manager: bool,
    /// kube-scheduler: gives Pods a node.
    pub scheduler: bool,
    /// kwok, and one Node: Pods on it are Running and Ready at once, though nothing runs.
    pub kwok: bool,
    /// More flags for kube-apiserver, after the testbed's own; the last of two equal ones counts.
    pub apiserver_flags: Vec<String>,
}

impl Default for Options {
    /// Everything.
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
    /// etcd and kube-apiserver alone. Without the controller-manager a namespace has no `default` `ServiceAccount`, and
    /// Pods are refused.
    pub fn apiserver_only() -> Self {
        Self {
            controller_manager: false,
            scheduler: false,
            kwok: false,
            apiserver_flags: Vec::new(),
        }
    }
}

/// A running control plane. Dropping it kills every server and removes all they wrote.
pub struct ControlPlane {
    running: Mutex<Running>, // dropped before the folder: nobody writes to it any more
    servers: Servers,
    authority: Authority,
    admin: Kubeconfig,
    folder: Folder,
    _slot: SemaphorePermit<'static>,
}

/// What etcd of a stopped control plane stored, for others to start with.
#[derive(Debug)]
pub struct Snapshot {
    folder: Folder,
}

/// The servers, in the order in which they are to be killed.
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
    /// `default` has its `ServiceAccount`. No more than four run at once in this process; a fifth waits for an end.
    ///
    /// # Errors
    /// The programs cannot be built, or a server ends or is not ready in time (the end of its log is in the error).
    pub async fn start(options: Options) -> Result<Self> {
        Self::start_with(options, None).await
    }

    /// Starts the servers as [`ControlPlane::start`] does, on a copy of what the snapshot stored.
    ///
    /// # Errors
    /// As [`ControlPlane::start`].
    pub async fn start_from(snapshot: &Snapshot, options: Options) -> Result<Self> {
        Self::start_with(options, Some(snapshot)).await
    }

    async fn start_with(options: Options, snapshot: Option<&Snapshot>) -> Result<Self> {
        // Two TLS providers may be compiled in; somebody else may have chosen this one before.
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
                .create(&kube::api::PostParams::default(), &node()?)
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

    /// A client with every right. It belongs to the runtime that it is made in: each test makes its own.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub async fn client(&self) -> Result<Client> {
        timing::begin();
        kubeconfig::client(&self.admin).await
    }

    /// Where a client reaches the apiserver: `https://127.0.0.1:PORT`.
    pub fn server_url(&self) -> String {
        self.servers.url()
    }

    /// The certificate that the apiserver's is signed with.
    pub fn ca_pem(&self) -> String {
        self.authority.pem()
    }

    /// The kubeconfig with every right.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.servers.file("admin.kubeconfig")
    }

    /// The folder with kubectl and the servers' programs.
    pub fn binaries(&self) -> &Path {
        &self.servers.binaries
    }

    /// Writes a kubeconfig with a token of an existing `ServiceAccount`, good for 24 h.
    ///
    /// # Errors
    /// There is no such `ServiceAccount`.
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
    /// There are more groups.
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

    /// kubectl as admin, to be given arguments. It is killed when its handle is dropped, or the thread that starts it
    /// ends.
    pub fn kubectl(&self) -> Command {
        let mut command =
            Command::from(dies_with_its_thread(self.servers.binaries.join("kubectl")));
        command
            .arg(format!(
                "--kubeconfig={}",
                self.admin_kubeconfig().display()
            ))
            // Not the user's own: it is kept by host and port, and a former control plane may have had this one's.
            .arg(format!(
                "--cache-dir={}",
                self.servers.file("kubectl-cache").display()
            ))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs kubectl as admin, with `input` as standard input, and returns what it printed.
    ///
    /// # Errors
    /// It fails; what it said is the error.
    pub async fn run_kubectl(&self, args: &[&str], input: &str) -> Result<String> {
        let mut command = self.kubectl();
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that does not read its input closes it; what it then says is the error to tell.
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

    /// Who asked the apiserver for what.
    pub fn audit(&self) -> Audit {
        Audit::new(&self.servers.audit_log(), self.admin.clone())
    }

    /// Kills the apiserver with SIGKILL; returns once it is dead. What is stored stays.
    ///
    /// # Errors
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
    /// It is running, or it does not become ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        {
            let mut running = self.running();
            ensure!(running.apiserver.is_none(), "the apiserver is running");
            // It answers before it has read which rights there are.
            self.audit().expect_refusals()?;
            running.apiserver = Some(self.servers.apiserver()?);
        }
        self.apiserver_ready().await
    }

    /// Stops every server, and keeps what they stored.
    ///
    /// # Errors
    /// etcd does not end.
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
        etcd.wait(PATIENCE).await?;
        Ok(Snapshot { folder })
    }

    /// Kills every server and removes what they wrote, as dropping it does.
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

    /// Looks until `look` says yes. `server` is whose log tells why it never did.
    async fn ready(&self, server: &str, look: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = timeout(LOOK, look()).await;
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
                    "{server} is not ready after {PATIENCE:?}: {seen:?}\n{}",
                    log.unwrap_or_default()
                );
            }
            sleep(LOOK_EVERY).await;
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

/// The folder with the programs. They are built if they are not there yet: about six minutes, with progress on standard
/// error.
///
/// # Errors
/// They cannot be built.
pub async fn binaries() -> Result<PathBuf> {
    folder_of("hack/controlplane/build.sh").await
}

/// kwok gives it 1,000 cores and room for a million Pods.
fn node() -> Result<Node> {
    Ok(serde_json::from_value(serde_json::json!({
        "metadata": {
            "name": "node-1",
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": "node-1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
    }))?)
}
