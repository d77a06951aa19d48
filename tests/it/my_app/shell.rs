//! The built command, run by real shells as the kubelet would start it: the banner is printed unchanged and runs
//! nothing, and as process 1 the command exits on SIGTERM.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Container;
use proptest::prelude::*;
use qm_api::MyApp;
use qm_runtime::ownership::Owner;
use quartermaster::controllers::my_app::build;
use rstest::rstest;
use serde_json::json;
use testbed::process::Folder;

use crate::support::SOON;

/// Time after which a process counts as one that does not exit: an exit takes some milliseconds.
const STAYS: Duration = Duration::from_millis(500);

/// Document 003's command, word for word.
const DOCUMENTS: &str = "if [ -n \"$BANNER\" ]; then echo \"$BANNER\"; fi\nexec sleep infinity\n";

/// Returns the container of a `MyApp` with this banner.
fn container(banner: &str) -> Container {
    let app: MyApp = serde_json::from_value(json!({
        "apiVersion": "demo.rtfm.co.ua/v1",
        "kind": "MyApp",
        "metadata": { "namespace": "default", "name": "web", "uid": "1" },
        "spec": { "image": "nginx", "banner": banner },
    }))
    .unwrap();
    let pod = build::pod(&Owner::of(&app).unwrap(), &build::validate(&app).unwrap());
    pod.spec.unwrap().containers.remove(0)
}

/// Expands `$(NAME)` as the kubelet does in env values, command and args: `$$` is `$`, an unknown name stays unchanged,
/// and so does a `$` before anything else.
/// <https://github.com/kubernetes/kubernetes/blob/v1.36.0/third_party/forked/golang/expansion/expand.go>
fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match after.chars().next() {
            Some('$') => {
                expanded.push('$');
                &after[1..]
            }
            Some('(') => {
                if let Some((name, rest)) = after[1..].split_once(')') {
                    let value = variables
                        .get(name)
                        .cloned()
                        .unwrap_or_else(|| format!("$({name})"));
                    expanded.push_str(&value);
                    rest
                } else {
                    expanded.push_str("$(");
                    &after[1..]
                }
            }
            _ => {
                expanded.push('$');
                after
            }
        };
    }
    expanded + rest
}

/// Returns the command line that the kubelet starts for a container, and its variables in addition to these.
fn started(
    container: &Container,
    given: &[(&str, &str)],
) -> (Vec<String>, BTreeMap<String, String>) {
    let mut variables: BTreeMap<_, _> = given
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    for variable in container.env.iter().flatten() {
        let value = expand(variable.value.as_deref().unwrap_or_default(), &variables);
        variables.insert(variable.name.clone(), value);
    }
    let arguments = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten());
    (
        arguments.map(|word| expand(word, &variables)).collect(),
        variables,
    )
}

/// Returns the content of the banner variable after the kubelet's expansion.
fn expanded(banner: &str) -> String {
    let given = [
        ("HOME", "/root"),
        ("KUBERNETES_PORT", "tcp"),
        ("BANNER", "none"),
    ];
    started(&container(banner), &given)
        .1
        .remove("BANNER")
        .unwrap()
}

#[rstest]
#[case("$(HOME)")]
#[case("$$")]
#[case("$(X")]
#[case("$")]
#[case("$$(HOME) $$$$ $(BANNER) $ä $(KUBERNETES_PORT)$")]
fn kubelet_expands_nothing(#[case] banner: &str) {
    assert_eq!(expanded(banner), banner);
    // Without the operator's doubling the kubelet would expand these, except for text that it never changes.
    let given = [
        ("HOME", "/root"),
        ("KUBERNETES_PORT", "tcp"),
        ("BANNER", "none"),
    ];
    let variables = given
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(
        expand(banner, &variables) == banner,
        ["$(X", "$"].contains(&banner)
    );
}

/// The reimplemented rule, with the examples of the kubelet's own tests.
#[rstest]
#[case("$(VAR_A)", "A")]
#[case("$$(VAR_A)", "$(VAR_A)")]
#[case("$$$(VAR_A)", "$A")]
#[case("foo$(VAR_A)bar", "fooAbar")]
#[case("$(VAR_DNE)", "$(VAR_DNE)")]
#[case("$VAR_A)", "$VAR_A)")]
#[case("$(VAR_A", "$(VAR_A")]
#[case("$(VAR_A)$", "A$")]
#[case("$?_boo_$!", "$?_boo_$!")]
#[case("$$$$$$", "$$$")]
fn expansion_matches_the_kubelet(#[case] text: &str, #[case] expanded: &str) {
    assert_eq!(
        expand(text, &[("VAR_A".to_owned(), "A".to_owned())].into()),
        expanded
    );
}

proptest! {
    #[test]
    fn kubelet_expands_nothing_of_any_banner(banner in r"[$()AHOME\PC]{0,40}") {
        prop_assert_eq!(expanded(&banner), banner);
    }
}

#[test]
fn kubelet_keeps_the_command() {
    let (arguments, _) = started(&container("x"), &[]);
    assert_eq!(arguments, ["/bin/sh", "-c", build::SCRIPT]);
}

/// Returns the shells of this machine: `/bin/sh`, and those that images have.
fn shells() -> Vec<Vec<PathBuf>> {
    let mut shells = vec![vec![PathBuf::from("/bin/sh")]];
    shells.extend(
        ["dash", "bash"]
            .iter()
            .filter_map(|name| found(name))
            .map(|shell| vec![shell]),
    );
    shells.extend(found("busybox").map(|busybox| vec![busybox, "sh".into()]));
    shells
}

/// Returns the path of a program of this machine.
fn found(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| file.exists())
}

/// A process of the command as process 1 of its own PID namespace; the process ends with this value.
struct First {
    unshare: Child,
    out: Option<thread::JoinHandle<Vec<u8>>>,
}

impl First {
    fn start(
        shell: &[PathBuf],
        arguments: &[String],
        variables: &BTreeMap<String, String>,
    ) -> Self {
        let mut command = Command::new(found("unshare").expect("util-linux's unshare"));
        command
            .args(["--pid", "--fork", "--kill-child", "--"])
            .args(shell)
            .args(&arguments[1..]);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        let mut unshare = command.spawn().unwrap();
        let mut pipe = unshare.stdout.take().unwrap();
        let out = thread::spawn(move || {
            let mut out = Vec::new();
            pipe.read_to_end(&mut out).unwrap();
            out
        });
        Self {
            unshare,
            out: Some(out),
        }
    }

    /// Returns the id of the first process in the namespace.
    fn id(&self) -> Option<String> {
        let id = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }

    /// Waits until the first process, or a child of it, is `sleep`: the banner has been printed by then.
    fn sleeps(&self) {
        let until = Instant::now() + SOON;
        let name =
            |id: &str| std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        loop {
            let first = self.id();
            let children = |id: &str| {
                std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
                    .unwrap_or_default()
            };
            if let Some(first) = &first {
                let sleeps = |id: &str| ["sleep\n", "busybox\n"].contains(&name(id).as_str());
                if name(first) == "sleep\n" || children(first).split_whitespace().any(sleeps) {
                    return;
                }
            }
            assert!(
                Instant::now() < until,
                "the command does not sleep (may this user unshare a PID namespace?)"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn terminate(&self) {
        let status = Command::new("kill")
            .args(["-TERM", &self.id().unwrap()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Returns the exit code if the process exits within `patience`.
    fn leaves(&mut self, patience: Duration) -> Option<i32> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.unshare.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > until {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns all output until the end.
    fn printed(&mut self) -> String {
        String::from_utf8(self.out.take().unwrap().join().unwrap()).unwrap()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // The kill ends the child, too.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Returns banners that a shell, `echo`, `printf` or the kubelet could interpret.
fn banners(marker: &Path) -> Vec<String> {
    let marker = marker.display();
    vec![
        "This pod was created by MyApp operator \u{1F680}".into(),
        format!(
            "$(touch {marker}) `touch {marker}` '; touch {marker}; ' \"; touch {marker}; \" \n touch {marker}\n"
        ),
        format!("\"$(touch {marker})\" && touch {marker} || ${{IFS}} > {marker}"),
        "-n".into(),
        "-e \\n \\t \\c \\0101 \\\\ %s %d %% %n".into(),
        "'quotes' \"double\" \\\" $HOME $(HOME) $$ $(X ${PATH} * ? [a-z] ~ ! #".into(),
        "two\nlines\n\nand an empty one\n".into(),
        " \t leading and trailing \t ".into(),
        "\u{1b}[31mred\u{1b}[0m \r bell \u{7} \u{fffd} \u{202e}".into(),
        format!("{}\u{1F680}end", "0123456789 $(HOME) \u{e4}\n".repeat(5000)),
        "$".repeat(120_000),
    ]
}

#[test]
fn banner_is_printed_unchanged_and_runs_nothing() {
    let folder = Folder::new().unwrap();
    let marker = folder.path().join("ran");
    let banners = banners(&marker);
    assert!(
        banners
            .iter()
            .any(|banner| banner.len() > 100_000 && banner.contains("$("))
    );
    for shell in shells() {
        for banner in &banners {
            let (arguments, variables) = started(&container(banner), &[("HOME", "/root")]);
            let mut first = First::start(&shell, &arguments, &variables);
            first.sleeps();
            first.terminate();
            assert_eq!(first.leaves(SOON), Some(0), "{shell:?}");
            let printed = first.printed();
            assert!(
                printed == format!("{banner}\n"),
                "{shell:?}: {banner:.80?} is printed as {printed:.80?}"
            );
            assert!(!marker.exists(), "{shell:?}: {banner:.80?} ran something");
        }
        let (arguments, variables) = started(&container(""), &[]);
        let mut first = First::start(&shell, &arguments, &variables);
        first.sleeps();
        first.terminate();
        assert_eq!(
            (first.leaves(SOON), first.printed()),
            (Some(0), String::new()),
            "no banner, no line"
        );
    }
}

/// The exit on SIGTERM saves the 30 s of grace when a Pod is replaced. Document 003's command does not exit, because
/// process 1 gets only signals for which it has a handler.
#[test]
fn command_exits_on_sigterm_as_process_1_unlike_that_of_the_document() {
    for shell in shells() {
        let (arguments, variables) = started(&container("hello"), &[]);
        let mut first = First::start(&shell, &arguments, &variables);
        first.sleeps();
        first.terminate();
        assert_eq!(first.leaves(SOON), Some(0), "{shell:?}");

        let documents = ["/bin/sh", "-c", DOCUMENTS].map(str::to_owned);
        let mut first = First::start(&shell, &documents, &variables);
        first.sleeps();
        first.terminate();
        assert_eq!(first.leaves(STAYS), None, "{shell:?}");
    }
}

/// An image without `sleep`, or one whose `sleep` is killed: the container ends, and restarts with a growing delay.
#[test]
fn command_exits_without_sleep() {
    for shell in shells().into_iter().filter(|shell| shell.len() == 1) {
        let (arguments, mut variables) = started(&container("hello"), &[]);
        variables.insert("PATH".into(), "/nowhere".into());
        let mut first = First::start(&shell, &arguments, &variables);
        assert_eq!(first.leaves(SOON), Some(127), "{shell:?}");
        assert_eq!(first.printed(), "hello\n");
    }
}
