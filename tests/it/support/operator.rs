//! The operator under test.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::Context as _;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, PostParams};
use kube::core::{NamespaceResourceScope, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::ControlPlane;
use testbed::aws::{Aws, FOREIGN};
use testbed::kubelet::{self, Container};
use testbed::process::{Child, Folder, Program};
use testbed::proxy::Injection;
use testbed::wait::until;

use super::{ACCOUNT, Bed, Plane, SOON, SYSTEM};

/// Flags that differ from the defaults in tests: short delays, and a detailed log.
const FOR_TESTS: [&str; 11] = [
    "--log-level=info,quartermaster=trace,qm_=trace",
    "--backoff-min=50ms",
    "--backoff-max=1s",
    "--stopped-retry-period=1s",
    "--poll-min=50ms",
    "--set-status-period=100ms",
    "--poll-max=500ms",
    "--slow-backoff-min=100ms",
    "--slow-backoff-max=1s",
    "--aws-read-period=5ms",
    "--aws-write-period=5ms",
];

/// Settings of an operator. The defaults suit most tests: one namespace, no election, short delays.
#[derive(Clone, Default)]
pub struct Settings {
    /// Further flags; they override those of this module.
    pub flags: Vec<String>,
    /// Kubeconfig in place of the one with the `ServiceAccount`'s permissions.
    pub kubeconfig: Option<PathBuf>,
    /// Whether the operator watches the whole cluster, and not only the test's namespace.
    pub whole_cluster: bool,
    /// Program in place of the tests' own build, with the delays and the log level that users have.
    pub as_shipped: Option<PathBuf>,
    /// Program in place of the tests' own build, with the tests' delays.
    pub program: Option<PathBuf>,
    /// Further environment variables.
    pub env: Vec<(String, String)>,
}

impl Settings {
    /// Sets the URL of the Bot API.
    pub fn telegram(mut self, url: &str) -> Self {
        self.flags.push(format!("--telegram-api-url={url}"));
        self
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the variables for AWS.
    pub fn aws(mut self, aws: &Aws) -> Self {
        self.env.extend(aws.env());
        self
    }

    /// Elects a leader, whose Lease lasts for `lease` seconds. The product's own 9 s end a leader that waits for the
    /// apiserver of a slow machine; a failover takes as long as the Lease.
    pub fn leader_election(self, lease: u32) -> Self {
        self.flag("--leader-elect")
            .flag(&format!("--leader-elect-lease-duration={lease}s"))
            .flag(&format!("--leader-elect-renew-deadline={}s", lease * 3 / 4))
    }

    pub fn kubeconfig(mut self, file: PathBuf) -> Self {
        self.kubeconfig = Some(file);
        self
    }

    /// Runs this program, with users' defaults.
    pub fn shipped(mut self, program: PathBuf) -> Self {
        self.as_shipped = Some(program);
        self
    }

    /// Watches the whole cluster.
    pub fn whole_cluster(mut self) -> Self {
        self.whole_cluster = true;
        self
    }
}

/// A running operator. Dropping it kills the process and searches the logs for values that tests put into Secrets.
pub struct Operator {
    child: Child,
    program: PathBuf,
    kubeconfig: PathBuf,
    flags: Vec<String>,
    env: Vec<(String, String)>,
    starts: u32,
    folder: Folder,
}

impl Operator {
    /// Starts an operator and waits until it is ready.
    pub async fn start(bed: &Bed, settings: Settings) -> Self {
        let operator = Self::launch(bed, settings).await;
        operator.ready().await;
        operator
    }

    /// Starts an operator. On a shared control plane, operators with leader election use a Lease with the namespace's
    /// name, unless a flag names another one.
    pub async fn launch(bed: &Bed, mut settings: Settings) -> Self {
        let elects = settings.flags.iter().any(|flag| flag == "--leader-elect");
        let named = |flag: &String| flag.starts_with("--leader-election-id=");
        if elects && matches!(bed.plane, Plane::Shared(_)) && !settings.flags.iter().any(named) {
            let lease = format!("--leader-election-id={}", bed.namespace);
            settings = settings.flag(&lease);
        }
        let kubeconfig = match settings.kubeconfig {
            Some(file) => file,
            None => bed
                .plane
                .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
                .await
                .unwrap(),
        };
        let lease = settings
            .flags
            .iter()
            .find_map(|flag| flag.strip_prefix("--leader-election-id="));
        if let Some(lease) = lease {
            grant_lease(bed, lease).await;
        }
        let mut flags = [
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
            "--log-format=json",
            "--webhook-allow-loopback",
            "--webhook-quote-private",
        ]
        .map(str::to_owned)
        .to_vec();
        if settings.as_shipped.is_none() {
            flags.extend(FOR_TESTS.map(str::to_owned));
        }
        flags.push(format!("--operator-namespace={SYSTEM}"));
        if !settings.whole_cluster {
            flags.push(format!("--watch-namespace={}", bed.namespace));
        }
        flags.insert(0, "run".into());
        // The test's flags replace those of this module.
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        flags.retain(|flag| !settings.flags.iter().any(|given| name(given) == name(flag)));
        flags.extend(settings.flags);
        let folder = Folder::new().unwrap();
        let program = settings
            .as_shipped
            .or(settings.program)
            .unwrap_or_else(|| env!("CARGO_BIN_EXE_quartermaster").into());
        let child = spawn(&program, &kubeconfig, &flags, &settings.env, &folder, 1);
        Self {
            child,
            program,
            kubeconfig,
            flags,
            env: settings.env,
            starts: 1,
            folder,
        }
    }

    /// Starts a process for each Pod of this Deployment, as a kubelet would, and waits until all are ready.
    pub async fn installed(plane: &ControlPlane, namespace: &str, deployment: &str) -> Vec<Self> {
        Self::installed_of(plane, namespace, deployment, |_| {
            Some(env!("CARGO_BIN_EXE_quartermaster").into())
        })
        .await
    }

    /// Starts the same processes with the program in each Pod's image, as `program_of` returns it.
    pub async fn installed_of(
        plane: &ControlPlane,
        namespace: &str,
        deployment: &str,
        program_of: impl Fn(&str) -> Option<PathBuf>,
    ) -> Vec<Self> {
        let mut operators = Vec::new();
        for Container {
            image,
            args,
            env,
            kubeconfig,
            ..
        } in kubelet::deployed(plane, namespace, deployment, SOON)
            .await
            .unwrap()
        {
            let program =
                program_of(&image).unwrap_or_else(|| panic!("nobody has published {image}"));
            let folder = Folder::new().unwrap();
            let child = spawn(&program, &kubeconfig, &args, &env, &folder, 1);
            operators.push(Self {
                child,
                program,
                kubeconfig,
                flags: args,
                env,
                starts: 1,
                folder,
            });
        }
        for operator in &operators {
            operator.ready().await;
        }
        operators
    }

    /// Starts the operator again after it ended.
    pub fn restart(&mut self) {
        self.starts += 1;
        self.child = spawn(
            &self.program,
            &self.kubeconfig,
            &self.flags,
            &self.env,
            &self.folder,
            self.starts,
        );
    }

    /// Sets the program of the next restart, and returns the current one.
    pub fn replace_program(&mut self, program: PathBuf) -> PathBuf {
        std::mem::replace(&mut self.program, program)
    }

    /// Waits until this replica leads.
    pub async fn leads(&self) {
        let is_leading = |line: &str| {
            line.starts_with("leader_election_master_status{") && line.ends_with("} 1")
        };
        until("the replica leads", SOON, async || {
            let metrics = self.metrics().await;
            Ok(metrics.lines().any(is_leading).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Waits until the operator has reported that it may not list one of its kinds, and has requested the list again
    /// since.
    pub async fn reports_denied_list(&self, denied: &Injection) {
        until("the operator reports a denied list", SOON, async || {
            let is_report = |line: &str| line.contains("where the operator may list it");
            Ok(self.logs().lines().any(is_report).then_some(()))
        })
        .await
        .unwrap();
        denied.wait_for_hits(denied.hits() + 1, SOON).await.unwrap();
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Returns the process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the whole log.
    pub fn logs(&self) -> String {
        (1..=self.starts)
            .map(|start| std::fs::read_to_string(log(&self.folder, start)).unwrap_or_default())
            .collect()
    }

    /// Waits until `/readyz` succeeds.
    pub async fn ready(&self) {
        let ready = until("the operator is ready", SOON, async || {
            let (code, text) = self.probe("readyz").await?;
            anyhow::ensure!(code == 200, "{code}: {text}");
            Ok(Some(()))
        })
        .await;
        ready.unwrap_or_else(|error| panic!("{error:#}\n{}", self.child.log_tail()));
    }

    /// Requests `/livez` or `/readyz`.
    pub async fn probe(&self, path: &str) -> anyhow::Result<(u16, String)> {
        get(&format!(
            "http://{}/{path}",
            self.address("--health-probe-bind-address")?
        ))
        .await
    }

    /// Returns the metrics.
    pub async fn metrics(&self) -> String {
        self.try_metrics().await.unwrap()
    }

    /// Returns the metrics, or an error while the process starts.
    pub async fn try_metrics(&self) -> anyhow::Result<String> {
        let address = self.address("--metrics-bind-address")?;
        Ok(get(&format!("http://{address}/metrics")).await?.1)
    }

    /// Returns the listen address from the log.
    pub fn address(&self, flag: &str) -> anyhow::Result<String> {
        let text = self.child.log_text()?;
        let mut lines = text
            .lines()
            .rev()
            .filter(|line| line.contains("listening for") && line.contains(flag));
        let line = lines.next().context("it does not listen yet")?;
        let line: Value = serde_json::from_str(line)?;
        Ok(line["address"].as_str().context("no address")?.to_owned())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let ended = self.child.kill();
        if std::thread::panicking() {
            eprintln!("The operator's log ends with:\n{}", self.child.log_tail());
        } else {
            ended.unwrap();
            super::secret_search::search(&self.logs());
        }
    }
}

/// Returns the value of the first series with this prefix, whose rest is the value.
pub fn series(metrics: &str, start: &str) -> Option<f64> {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(start)?.trim().parse().ok())
}

/// Grants a Lease of another name, because the shipped permission names the usual Lease. Returns once the permission
/// applies.
async fn grant_lease(bed: &Bed, name: &str) {
    let role = format!("lease-{name}");
    let resource = json!({ "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get", "update"] });
    grant::<Role>(
        bed,
        json!({ "metadata": { "name": role }, "rules": [resource] }),
    )
    .await;
    let of_role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role });
    let account = json!({ "kind": "ServiceAccount", "namespace": SYSTEM, "name": ACCOUNT });
    grant::<RoleBinding>(
        bed,
        json!({ "metadata": { "name": role }, "roleRef": of_role, "subjects": [account] }),
    )
    .await;
    let update = json!({ "namespace": SYSTEM, "group": "coordination.k8s.io", "resource": "leases", "name": name, "verb": "update" });
    let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
        "user": format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}"), "resourceAttributes": update } }))
    .unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(bed.client.clone());
    until(
        "the permission for the Lease takes effect",
        SOON,
        async || {
            let reviewed = reviews.create(&PostParams::default(), &review).await?;
            Ok(reviewed
                .status
                .is_some_and(|status| status.allowed)
                .then_some(()))
        },
    )
    .await
    .unwrap();
}

/// Creates an object in the operator's namespace, unless another replica has already created the object.
async fn grant<K>(bed: &Bed, object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let api = Api::<K>::namespaced(bed.client.clone(), SYSTEM);
    let object = serde_json::from_value(object).unwrap();
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(error)) if error.reason == "AlreadyExists" => {}
        created => drop(created.unwrap()),
    }
}

fn log(folder: &Folder, start: u32) -> PathBuf {
    folder.path().join(format!("operator-{start}.log"))
}

fn spawn(
    program: &Path,
    kubeconfig: &Path,
    flags: &[String],
    env: &[(String, String)],
    folder: &Folder,
    start: u32,
) -> Child {
    let program = Program::new(program)
        .args(flags)
        .env("KUBECONFIG", kubeconfig)
        .env_remove("POD_NAMESPACE");
    // Variables of this machine point to a real account.
    let program = FOREIGN.iter().fold(program, Program::env_remove);
    let program = env
        .iter()
        .fold(program, |program, (name, value)| program.env(name, value));
    program.spawn(log(folder, start)).unwrap()
}

async fn get(url: &str) -> anyhow::Result<(u16, String)> {
    /// All tests share the client, because a new one reads the system's certificates. The client keeps no connection,
    /// which would belong to the runtime of one test.
    static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| {
        let client = reqwest::Client::builder().no_proxy().timeout(SOON);
        client.pool_max_idle_per_host(0).build().unwrap()
    });
    let answer = CLIENT.get(url).send().await?;
    Ok((answer.status().as_u16(), answer.text().await?))
}
