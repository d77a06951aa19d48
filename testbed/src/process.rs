//! Long-lived child processes that cannot outlive this one.
//!
//! A child dies with this process however this process ends, even after SIGKILL, because the kernel kills it
//! (`PR_SET_PDEATHSIG`, through util-linux's `setpriv`). The kernel watches the *thread* that started the child, and
//! the thread of a test ends with its test. Therefore a starter thread that lives as long as the process starts every
//! child. The starter thread also ends this process when *its* parent ends (a test binary whose `cargo test` was
//! killed).
//!
//! Children belong to no async runtime: each `#[tokio::test]` has its own runtime, and children outlive it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{LazyLock, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::timing;

/// Interval of checks for an ended child or an ended parent.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Time that this process has to exit by itself once its parent ended; then it exits with code 1.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Script of a shell that dies with this process; `$0` is this process's id. The check closes the gap between the fork
/// and the request to the kernel, in which this process may have died unnoticed.
const IF_PARENT_LIVES: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

static PARENT: LazyLock<u32> = LazyLock::new(parent_id);
static STARTER: OnceLock<mpsc::Sender<Start>> = OnceLock::new();

struct Start {
    command: Command,
    reply: mpsc::SyncSender<io::Result<std::process::Child>>,
}

/// Returns a command whose process is killed when the thread that starts it ends: for short work that the thread waits
/// for.
pub(crate) fn dies_with_its_thread(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "--",
            "/bin/sh",
            "-c",
            IF_PARENT_LIVES,
        ])
        .arg(std::process::id().to_string())
        .arg(program);
    command
}

/// A program to start, similar to [`std::process::Command`].
#[derive(Debug)]
pub struct Program {
    name: String,
    command: Command,
}

impl Program {
    /// Returns a program. `program` is a path, or a name that is looked up in the child's `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut command = dies_with_its_thread(program);
        command.process_group(0); // only the parent handles Ctrl-C
        let name = Path::new(program)
            .file_name()
            .unwrap_or(program)
            .to_string_lossy()
            .into_owned();
        Self { name, command }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable; the others are inherited.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(key);
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Starts the program. Standard output and error are appended to the file `log`; standard input is empty. A program
    /// that cannot be executed becomes a child that exits immediately with code 126 or 127 and has the reason in its
    /// log.
    ///
    /// # Errors
    ///
    /// The log cannot be opened, or there is no `setpriv`.
    pub fn spawn(mut self, log: impl Into<PathBuf>) -> anyhow::Result<Child> {
        let log = log.into();
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening {}", log.display()))?;
        self.command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let inner = start(self.command)
            .with_context(|| format!("starting {} (through util-linux's setpriv)", self.name))?;
        Ok(Child {
            name: self.name,
            log,
            inner,
        })
    }
}

/// Returns the folder that a script of the project prints as its only line when its work is done. The script's progress
/// goes to standard error.
pub(crate) async fn folder_of(script: &str) -> anyhow::Result<PathBuf> {
    let output = tokio::process::Command::new("bash")
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("..")
                .join(script),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped()) // `output` would also capture standard error, which shows the progress
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("running {script}"))?
        .wait_with_output()
        .await?;
    anyhow::ensure!(
        output.status.success(),
        "{script} failed ({})",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?.trim_end().into())
}

/// Lets the long-lived thread start `command`.
fn start(command: Command) -> io::Result<std::process::Child> {
    let starter = STARTER.get_or_init(|| {
        let (sender, starts) = mpsc::channel();
        LazyLock::force(&PARENT);
        // If the thread does not start, its end of the channel is dropped, which the receive below reports.
        let _ = thread::Builder::new()
            .name("starter".into())
            .spawn(move || serve(&starts));
        sender
    });
    let (reply, answer) = mpsc::sync_channel(1);
    starter
        .send(Start { command, reply })
        .map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}

fn serve(starts: &mpsc::Receiver<Start>) {
    let mut orphaned_at: Option<Instant> = None;
    loop {
        if let Ok(Start { mut command, reply }) = starts.recv_timeout(CHECK_INTERVAL * 10) {
            // If the caller no longer waits, nobody uses the child, so it is dropped.
            if let Err(mpsc::SendError(Ok(mut child))) = reply.send(command.spawn()) {
                let _ = child.kill().and_then(|()| child.wait());
            }
        }
        if parent_id() != *PARENT
            && orphaned_at.get_or_insert_with(Instant::now).elapsed() > EXIT_TIMEOUT
        {
            eprintln!("testbed: the parent process ended, so this one ends too");
            std::process::exit(1);
        }
    }
}

/// Waits until this process's parent ends. Call this function early, because the first call looks up the parent. A
/// process that has started any child exits by itself 5 s after its parent.
pub async fn parent_ended() {
    let parent = *PARENT;
    while parent_id() == parent {
        tokio::time::sleep(CHECK_INTERVAL * 10).await;
    }
}

/// A running child in its own process group. Dropping the child kills the group with SIGKILL.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    inner: std::process::Child,
}

impl Child {
    /// Returns the program's file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id of the program itself.
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the path of the log, which holds standard output and error.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the log's content so far.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn log_text(&self) -> io::Result<String> {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the exit status, if the child ended.
    ///
    /// # Errors
    ///
    /// As [`std::process::Child::try_wait`].
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.inner.try_wait()
    }

    /// Sends SIGKILL to the whole group and returns once the child is dead. Does nothing if the child ended before.
    ///
    /// # Errors
    ///
    /// The signal cannot be sent.
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        kill_process_group(self.pid()?, Signal::KILL)?;
        self.inner.wait()
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    ///
    /// The child has already ended.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Stops the child with SIGSTOP until [`Child::thaw`].
    ///
    /// # Errors
    ///
    /// The child has already ended.
    pub fn freeze(&mut self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues the child with SIGCONT after [`Child::freeze`].
    ///
    /// # Errors
    ///
    /// The child has already ended.
    pub fn thaw(&mut self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until the child ends by itself.
    ///
    /// # Errors
    ///
    /// The child does not end within `deadline`; the error has the last lines of its log.
    pub async fn wait(&mut self, deadline: Duration) -> anyhow::Result<ExitStatus> {
        let until = Instant::now() + deadline;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > until {
                bail!(
                    "{} has not ended within {deadline:?}\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Checks that the child is running.
    ///
    /// # Errors
    ///
    /// The child has ended; the error has the exit status and the last lines of its log.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => bail!("{} has ended ({status})\n{}", self.name, self.log_tail()),
        }
    }

    /// Returns the last lines of the log, for an error message.
    pub fn log_tail(&self) -> String {
        let text = self.log_text().unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // The id of an ended child may belong to another process by now.
        if self.ended()?.is_some() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} has ended", self.name),
            ));
        }
        Ok(kill_process(self.pid()?, signal)?)
    }

    fn pid(&self) -> io::Result<Pid> {
        i32::try_from(self.inner.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("a process id out of range"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Killing fails only if the child has already ended.
        let _ = self.kill();
    }
}

/// A folder of this process that is removed when it is dropped, and also when this process is killed.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    janitor: std::process::Child,
}

impl Folder {
    /// Creates an empty folder under the system's temporary folder, readable by this user only.
    ///
    /// # Errors
    ///
    /// The folder cannot be created.
    pub fn new() -> anyhow::Result<Self> {
        timing::begin();
        let path = tempfile::Builder::new()
            .prefix("quartermaster-")
            .tempdir()?
            .keep();
        // The janitor's standard input ends when this process does. Dying servers may still be writing at that moment.
        let janitor = Command::new("/bin/sh")
            .args(["-c", r#"read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$0" && exit; sleep 0.2; done"#])
            .arg(&path)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { path, janitor })
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `wait` first closes the janitor's standard input.
        let _ = self.janitor.wait();
    }
}
