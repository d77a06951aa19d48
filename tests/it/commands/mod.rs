//! The subcommands that users run: the built program as a process, with a kubeconfig.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use qm_core::kind::KindInfo;
use quartermaster::controllers::KINDS;
use testbed::aws::{Aws, FOREIGN};
use testbed::process::Folder;
use testbed::receiver::Receiver;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::support::{Bed, Operator, SOON, Settings};

mod admission;
mod adopt;
mod blips;
mod deployed;
mod docs;
mod foreign;
mod frozen;
mod hints;
mod history;
mod matches;
mod reach;
mod shell;
mod status;
mod test;
mod uninstall;
mod unread;
mod without_operator;

/// Maximum duration of a command.
const TIMEOUT: Duration = Duration::from_mins(9);

/// Name of the user of [`user_with`].
const USER: &str = "limited";

/// Creates a user with a Role in the test's namespace, and returns the user's kubeconfig.
async fn user_with(bed: &Bed, verbs: &str, resources: &str) -> PathBuf {
    bed.kubectl(&["create", "serviceaccount", USER]).await;
    let (verbs, resources) = (format!("--verb={verbs}"), format!("--resource={resources}"));
    bed.kubectl(&["create", "role", USER, &verbs, &resources])
        .await;
    let (role, account) = (
        format!("--role={USER}"),
        format!("--serviceaccount={}:{USER}", bed.namespace),
    );
    bed.kubectl(&["create", "rolebinding", USER, &role, &account])
        .await;
    let file = bed
        .plane
        .kubeconfig_for_service_account(&bed.namespace, USER);
    file.await.unwrap()
}

/// Returns the resources of all kinds, as a Role of [`user_with`] names them.
fn all_kinds() -> String {
    let names: Vec<_> = KINDS.iter().map(KindInfo::crd_name).collect();
    names.join(",")
}

/// The result of a command.
#[derive(Debug)]
struct CommandResult {
    code: i32,
    out: String,
    err: String,
}

/// The program, and the environment of its commands.
struct Run {
    program: PathBuf,
    kubeconfig: PathBuf,
    env: Vec<(String, String)>,
}

impl Run {
    /// Runs commands as the admin of a control plane.
    fn on(bed: &Bed) -> Self {
        Self {
            program: env!("CARGO_BIN_EXE_quartermaster").into(),
            kubeconfig: bed.plane.admin_kubeconfig(),
            env: Vec::new(),
        }
    }

    /// Starts an operator in a namespace with the `ContactPoint` `hook`, whose receiver has accepted the test message.
    async fn beside_operator(name: &str) -> (Bed, Self, Receiver, Operator) {
        let bed = Bed::shared(name).await;
        let receiver = Receiver::start().unwrap();
        let operator = Operator::start(&bed, Settings::default()).await;
        bed.webhook("hook", &receiver.url()).await;
        bed.ready("hook").await;
        let run = Self::on(&bed);
        (bed, run, receiver, operator)
    }

    /// Sets the variables for AWS.
    fn aws(mut self, aws: &Aws) -> Self {
        self.env.extend(aws.env());
        self
    }

    /// Runs commands as another user.
    fn kubeconfig(mut self, file: PathBuf) -> Self {
        self.kubeconfig = file;
        self
    }

    /// Runs this program instead.
    fn program(mut self, program: &Path) -> Self {
        self.program = program.into();
        self
    }

    /// Sets `PATH` to one folder.
    fn path(self, folder: &Path) -> Self {
        self.env("PATH", &folder.display().to_string())
    }

    /// Sets a variable.
    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs a shell that finds this program and kubectl.
    fn shell(self, bed: &Bed) -> Self {
        let folders = [
            bed.plane.binaries(),
            Path::new(&self.program).parent().unwrap(),
        ];
        let path = format!(
            "{}:{}:/usr/bin:/bin",
            folders[0].display(),
            folders[1].display()
        );
        self.env("PATH", &path).program(Path::new("/bin/sh"))
    }

    fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig);
        for name in FOREIGN
            .into_iter()
            .chain(["POD_NAMESPACE", "AWS_REGION", "AWS_DEFAULT_REGION"])
        {
            command.env_remove(name);
        }
        command.envs(self.env.iter().cloned());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    async fn run(&self, arguments: &[&str]) -> CommandResult {
        let child = self.command(arguments).spawn().unwrap();
        let ended = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
        let output = ended
            .unwrap_or_else(|_| panic!("{arguments:?} does not end"))
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        CommandResult {
            code: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Runs a command to its end with a closed standard output.
    async fn run_unread(&self, arguments: &[&str]) -> i32 {
        let mut child = self.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let ended = tokio::time::timeout(TIMEOUT, child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("{arguments:?} does not end"))
            .unwrap()
            .code()
            .unwrap()
    }

    /// Starts a command.
    fn start(&self, arguments: &[&str]) -> Started {
        let mut child = self.command(arguments).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Started {
            child,
            lines,
            text: String::new(),
        }
    }

    /// Runs a command, checks its exit code, and returns what it printed.
    async fn ends(&self, code: i32, arguments: &[&str]) -> String {
        let result = self.run(arguments).await;
        assert_eq!(result.code, code, "{arguments:?}: {result:#?}");
        assert!(
            !result.out.contains('\u{1b}') && !result.err.contains('\u{1b}'),
            "no colours but on a terminal: {result:#?}"
        );
        format!("{}{}", result.out, result.err)
    }
}

/// A running command.
struct Started {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    text: String,
}

impl Started {
    /// Waits until the command prints a line with this text.
    async fn prints(&mut self, what: &str) {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.text.push_str(&line);
                self.text.push('\n');
                if line.contains(what) {
                    return;
                }
            }
            panic!("the command ended without {what}: {}", self.text);
        };
        let found = tokio::time::timeout(SOON, found).await;
        assert!(found.is_ok(), "no {what}: {}", self.text);
    }

    /// Waits for the end, checks the exit code, and returns everything printed.
    async fn ends(mut self, code: i32) -> String {
        let rest = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                self.text.push_str(&line);
                self.text.push('\n');
            }
            self.child.wait().await.unwrap()
        };
        let status = tokio::time::timeout(TIMEOUT, rest)
            .await
            .unwrap_or_else(|_| panic!("the command does not end"));
        assert_eq!(status.code(), Some(code), "{}", self.text);
        self.text
    }

    /// Sends a signal.
    async fn signal(&self, name: &str) {
        let id = self.child.id().unwrap().to_string();
        let sent = tokio::process::Command::new("kill")
            .args(["-s", name, &id])
            .status()
            .await
            .unwrap();
        assert!(sent.success());
    }
}

/// Creates a link with the name of a kubectl plugin, in a folder for `PATH`.
fn plugin() -> (Folder, PathBuf) {
    let folder = Folder::new().unwrap();
    let link = folder.path().join("kubectl-quartermaster");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quartermaster"), &link).unwrap();
    (folder, link)
}
