//! No process outlives its parent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testbed::process::{Child, Folder, Program};
use testbed::wait;
use tokio::sync::Mutex;

const DEADLINE: Duration = Duration::from_secs(20);
const STARTING: Duration = Duration::from_mins(2);

/// Returns the processes whose command line contains `text`.
fn processes_with(text: &str) -> Vec<String> {
    let commands = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let bytes = fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
    });
    commands.filter(|command| command.contains(text)).collect()
}

/// Signals only this process; [`Child::kill`] signals its group too.
fn signal_alone(signal: &str, id: u32) {
    assert!(
        Command::new("/bin/sh")
            .args(["-c", &format!("kill -{signal} {id}")])
            .status()
            .unwrap()
            .success()
    );
}

/// Starts `testbed cluster` through `starter`; returns the child and the control plane's folder, once ready.
async fn cluster(starter: Program, log: &Path) -> (Child, PathBuf) {
    let mut child = starter.spawn(log).unwrap();
    let kubeconfig = wait::until("a control plane", STARTING, async || {
        child.check_running().unwrap();
        Ok(child
            .log_text()?
            .lines()
            .find_map(|line| line.strip_prefix("export KUBECONFIG=").map(PathBuf::from)))
    });
    let folder = kubeconfig.await.unwrap().parent().unwrap().to_path_buf();
    let running = processes_with(folder.to_str().unwrap());
    for server in [
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
    ] {
        assert!(
            running
                .iter()
                .any(|command| command.contains(&format!("/{server} "))),
            "no {server} in {running:#?}"
        );
    }
    (child, folder)
}

async fn wait_until_removed(folder: &Path) {
    wait::until(
        "the servers to end and their folder to be removed",
        DEADLINE,
        async || {
            let left = processes_with(folder.to_str().unwrap());
            anyhow::ensure!(left.is_empty(), "{left:#?}");
            anyhow::ensure!(!folder.exists(), "{} still exists", folder.display());
            Ok(Some(()))
        },
    )
    .await
    .unwrap();
}

fn testbed() -> &'static str {
    env!("CARGO_BIN_EXE_testbed")
}

/// Lock that allows one control plane at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn killed_command_leaves_no_server() {
    let _alone = ALONE.lock().await;
    let own = Folder::new().unwrap();
    let (mut child, folder) = cluster(
        Program::new(testbed()).arg("cluster"),
        &own.path().join("log"),
    )
    .await;
    signal_alone("KILL", child.id());
    child.wait(DEADLINE).await.unwrap();
    wait_until_removed(&folder).await;
}

#[tokio::test]
async fn command_with_killed_parent_leaves_no_server() {
    let _alone = ALONE.lock().await;
    let own = Folder::new().unwrap();
    let shell = Program::new("/bin/sh").args(["-c", "\"$0\" cluster & wait", testbed()]);
    let (mut child, folder) = cluster(shell, &own.path().join("log")).await;
    signal_alone("KILL", child.id());
    child.wait(DEADLINE).await.unwrap();
    wait_until_removed(&folder).await;
}

#[tokio::test]
async fn ctrl_c_ends_command_and_leaves_no_server() {
    let _alone = ALONE.lock().await;
    let own = Folder::new().unwrap();
    let out = own.path().join("kubeconfig");
    fs::write(&out, "of a former control plane").unwrap();
    let command = Program::new(testbed())
        .arg("cluster")
        .arg("--kubeconfig-out")
        .arg(&out);
    let mut child = command.spawn(own.path().join("log")).unwrap();
    let server = wait::until("the kubeconfig", STARTING, async || {
        child.check_running().unwrap();
        let text = fs::read_to_string(&out)?;
        let config: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        Ok(config.and_then(|config| {
            config["clusters"][0]["cluster"]["server"]
                .as_str()
                .map(String::from)
        }))
    })
    .await
    .unwrap();
    let port = format!("--secure-port={}", server.rsplit_once(':').unwrap().1);
    let apiservers = processes_with(&port);
    let [apiserver] = apiservers.as_slice() else {
        panic!("{apiservers:#?}")
    };
    let policy = apiserver
        .split(' ')
        .find_map(|arg| arg.strip_prefix("--audit-policy-file="))
        .unwrap();
    let folder = Path::new(policy).parent().unwrap();

    signal_alone("INT", child.id());
    let status = child.wait(DEADLINE).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(!folder.exists());
    wait_until_removed(folder).await;
}

/// The kernel's rule concerns the thread that starts a child, and a test's thread ends with its test.
#[tokio::test]
async fn child_outlives_the_thread_that_started_it() {
    let own = Folder::new().unwrap();
    let log = own.path().join("log");
    let thread = std::thread::spawn(move || {
        let child = Program::new("sleep").arg("60").spawn(log).unwrap();
        let command = format!("/proc/{}/comm", child.id());
        // The shell has made its request to the kernel before it executes `sleep`.
        while fs::read_to_string(&command).unwrap().trim_end() != "sleep" {
            std::thread::yield_now();
        }
        (child, fs::read_link("/proc/thread-self").unwrap())
    });
    let (mut child, thread) = thread.join().unwrap();
    let thread = Path::new("/proc").join(thread);
    wait::until("the thread's end", DEADLINE, async || {
        Ok((!thread.exists()).then_some(()))
    })
    .await
    .unwrap();
    child.freeze().unwrap();
    wait::until("the child to stop", DEADLINE, async || {
        Ok((state(&child) == 'T').then_some(()))
    })
    .await
    .unwrap();
    child.check_running().unwrap();
}

/// Returns the state as in `proc_pid_stat(5)`: R, S, T ...
fn state(child: &Child) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[tokio::test]
async fn child_obeys_freeze_thaw_terminate_and_kill() {
    let own = Folder::new().unwrap();
    let script = "trap 'echo bye $WORD; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let start = || {
        Program::new("sh")
            .args(["-c", script])
            .env("WORD", "now")
            .spawn(own.path().join("log"))
            .unwrap()
    };
    let mut child = start();
    wait::until("the trap", DEADLINE, async || {
        Ok(child.log_text()?.contains("ready").then_some(()))
    })
    .await
    .unwrap();
    child.freeze().unwrap();
    wait::until("the child to stop", DEADLINE, async || {
        Ok((state(&child) == 'T').then_some(()))
    })
    .await
    .unwrap();
    child.terminate().unwrap();
    let error = child.wait(Duration::from_millis(50)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("sh has not ended within 50ms\nready"),
        "{error}"
    );
    child.thaw().unwrap();
    assert_eq!(child.wait(DEADLINE).await.unwrap().code(), Some(3));
    assert_eq!(child.log_text().unwrap(), "ready\nbye now\n");
    assert!(
        child.terminate().is_err(),
        "another process may have its id by now"
    );

    let mut child = start();
    child.freeze().unwrap();
    let status = child.kill().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
}

#[tokio::test]
async fn dropped_child_kills_its_own_children() {
    let own = Folder::new().unwrap();
    let log = own.path().join("log");
    let seconds = format!("6{}", std::process::id()); // distinguishes these processes from any other
    let child = Program::new("sh")
        .args(["-c", &format!("sleep {seconds} & wait")])
        .spawn(&log)
        .unwrap();
    let sleeping = format!("sleep {seconds} ");
    let found = async |expected: bool| {
        let seen = processes_with(&sleeping)
            .iter()
            .any(|command| command.starts_with("sleep"));
        Ok((seen == expected).then_some(()))
    };
    wait::until("the grandchild", DEADLINE, async || found(true).await)
        .await
        .unwrap();
    drop(child);
    wait::until("the end of the grandchild", DEADLINE, async || {
        found(false).await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn missing_program_is_named_in_the_log() {
    let own = Folder::new().unwrap();
    let mut child = Program::new("no-such-program")
        .spawn(own.path().join("log"))
        .unwrap();
    assert_eq!(child.wait(DEADLINE).await.unwrap().code(), Some(127));
    assert!(
        child.log_text().unwrap().contains("no-such-program"),
        "{}",
        child.log_tail()
    );
}
