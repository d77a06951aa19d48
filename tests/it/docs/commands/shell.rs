//! A user's shell: kubectl, helm and quartermaster on the `PATH`, a kubeconfig, and a checkout.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use testbed::aws::Aws;
use testbed::process::{Child, Folder, Program};
use testbed::wait::until;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::tool;
use crate::support::{Plane, SOON};

/// `cargo run -- ARGUMENTS` runs the built program, and the other subcommands do nothing.
const CARGO: &str = "#!/bin/sh
case $* in run*' -- '*) ;; *) exit 0 ;; esac
while [ \"$1\" != -- ]; do shift; done
shift
exec quartermaster \"$@\"
";

/// Removes the installation. The namespace and the CRDs stay, because their deletion takes long; the CRDs as a release
/// of the chart would have left them.
const ANOTHER_CLUSTER: &str = "#!/bin/sh
set -eu
helm list -A -o json | jq -r '.[] | .name + \" -n \" + .namespace' | while read -r release; do
  helm uninstall $release </dev/null
done
kubectl kustomize config/default |
  awk 'BEGIN { RS = \"---\\n\"; ORS = RS } !/kind: (Namespace|CustomResourceDefinition)\\n/' >all.yaml
kubectl delete --ignore-not-found -f all.yaml
for crd in $(kubectl get crd -o name); do
  kubectl label --overwrite $crd app.kubernetes.io/managed-by=Helm
  kubectl annotate --overwrite $crd meta.helm.sh/release-name=quartermaster meta.helm.sh/release-namespace=quartermaster-system
done
";

/// Files in the checkout of a user who has built nothing.
const CHECKOUT: [&str; 8] = [
    "Makefile",
    "Cargo.toml",
    "charts",
    "config",
    "deploy",
    "example",
    "hack",
    "tests",
];

/// A shell with its own home and working folder.
pub struct Shell {
    folder: Folder,
    env: BTreeMap<String, String>,
    lasting: Vec<Child>,
}

/// The result of a command.
#[derive(Debug)]
pub struct CommandResult {
    /// Whether the exit code is 0.
    pub well: bool,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Shell {
    /// Returns a shell for this cluster, with these fakes of Telegram and AWS.
    pub async fn new(plane: &Plane, telegram: &str, aws: &Aws) -> Self {
        let folder = Folder::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let text = |path: PathBuf| path.display().to_string();
        for name in ["bin", "home", "checkout"] {
            fs::create_dir(at(name)).unwrap();
        }
        for name in CHECKOUT {
            symlink(
                Path::new(env!("CARGO_MANIFEST_DIR")).join(name),
                at("checkout").join(name),
            )
            .unwrap();
        }
        symlink(plane.binaries().join("kubectl"), at("bin/kubectl")).unwrap();
        symlink(tool("helm").await, at("bin/helm")).unwrap();
        symlink(env!("CARGO_BIN_EXE_quartermaster"), at("bin/quartermaster")).unwrap();
        for (name, script) in [("cargo", CARGO), ("another-cluster", ANOTHER_CLUSTER)] {
            fs::write(at("bin").join(name), script).unwrap();
            fs::set_permissions(at("bin").join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        fs::copy(plane.admin_kubeconfig(), at("kubeconfig")).unwrap();
        let mut env: BTreeMap<_, _> = aws.env().into_iter().collect();
        let user = |name: &str| std::env::var(name).ok();
        // `make` asks for Rust's version, which rustup looks up in the user's home.
        let rustup = user("RUSTUP_HOME").or(user("HOME").map(|home| home + "/.rustup"));
        for (name, value) in [
            (
                "PATH",
                format!("{}:{}", text(at("bin")), user("PATH").unwrap()),
            ),
            ("RUSTUP_HOME", rustup.unwrap_or_default()),
            ("HOME", text(at("home"))),
            ("KUBECONFIG", text(at("kubeconfig"))),
            ("LC_ALL", "C.UTF-8".into()),
            // An operator that a page starts.
            ("QUARTERMASTER_TELEGRAM_API_URL", telegram.into()),
            ("QUARTERMASTER_METRICS_BIND_ADDRESS", "127.0.0.1:0".into()),
            (
                "QUARTERMASTER_HEALTH_PROBE_BIND_ADDRESS",
                "127.0.0.1:0".into(),
            ),
        ] {
            env.insert(name.into(), value);
        }
        Self {
            folder,
            env,
            lasting: Vec::new(),
        }
    }

    /// Runs shell text to its end.
    pub async fn run(&self, text: &str) -> CommandResult {
        let mut command = Command::new("bash");
        command
            .args(["-c", &format!("set -o pipefail\n{text}")])
            .stdin(Stdio::null());
        Self::result_of(self.with_environment(command).output().await.unwrap())
    }

    /// Runs shell text in a terminal, in which the user answers yes.
    pub async fn agree(&self, text: &str) -> CommandResult {
        let mut command = Command::new("script");
        command
            .args(["-qec", text, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.with_environment(command).spawn().unwrap();
        let mut terminal = child.stdin.take().unwrap();
        terminal.write_all(b"yes\n").await.unwrap();
        let result = Self::result_of(child.wait_with_output().await.unwrap());
        drop(terminal); // open until now, because its end would end the terminal's input
        result
    }

    fn with_environment(&self, mut command: Command) -> Command {
        command
            .current_dir(self.folder.path().join("checkout"))
            .env_clear()
            .envs(&self.env)
            .kill_on_drop(true);
        command
    }

    fn result_of(output: std::process::Output) -> CommandResult {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        CommandResult {
            well: output.status.success(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Starts a command that runs until Ctrl-C, and waits for its first output.
    pub async fn start(&mut self, text: &str) {
        let log = self
            .folder
            .path()
            .join(format!("lasting-{}.log", self.lasting.len()));
        let program = Program::new("env").arg("-i").args(
            self.env
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        let program = program
            .args(["bash", "-c", text])
            .current_dir(self.folder.path().join("checkout"));
        let child = program.spawn(log).unwrap();
        let first_output = until(format!("{text} prints something"), SOON, async || {
            Ok((!child.log_text()?.trim().is_empty()).then_some(()))
        });
        first_output.await.unwrap();
        self.lasting.push(child);
    }

    /// Returns the output of that command.
    pub fn output(&self) -> String {
        self.lasting.iter().map(Child::log_tail).collect()
    }

    /// Ends that command, which must have run until now.
    pub fn end(&mut self) {
        for mut child in self.lasting.drain(..) {
            child.check_running().unwrap();
            child.kill().unwrap();
        }
    }
}
