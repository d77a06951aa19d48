//! Every manifest of the pages is applied, and every command run, as by a reader of one page after the other; their
//! output is compared with the page. A fence whose commands cannot run here says why: `norun="REASON"`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use page::{Command, Step, steps};
use qm_core::kind::KindInfo;
use quartermaster::controllers;
use rstest::rstest;
use shell::{CommandResult, Shell};
use stage::{Scene, Stage};
use testbed::aws::Aws;
use testbed::bot_api::{BotApi, Chat, Kind};
use testbed::wait::until;
use testbed::{ControlPlane, Options};

use super::{pages, root};
use crate::support::{Bed, Operator, Plane, SOON, Settings, bot_api, install};

mod output;
mod page;
mod shell;
mod stage;

/// Maximum duration of one command: longer than the `--timeout` of any.
const TIMEOUT: Duration = Duration::from_mins(10);

/// Commands that run until Ctrl-C.
const LASTING: [&str; 2] = ["make run", "quartermaster status -n shop --watch"];

/// Commands that ask for confirmation.
const ASKS: [&str; 3] = [
    "quartermaster uninstall",
    "quartermaster uninstall --keep-children",
    "quartermaster uninstall --without-operator --operator-namespace=quartermaster-system",
];

/// Returns the pages with steps, by name (`kinds/my-app`): the first page first, then those that need no new
/// installation.
fn steps_by_page() -> Vec<(String, Vec<Step>)> {
    let mut walked: Vec<_> = pages()
        .into_iter()
        .map(|(path, text)| {
            let path = path.with_extension("");
            let name = path
                .strip_prefix(root().join("docs"))
                .or_else(|_| path.strip_prefix(root()));
            (name.unwrap().to_string_lossy().into_owned(), steps(&text))
        })
        .filter(|(_, steps)| !steps.is_empty())
        .collect();
    walked.sort_by_key(|(name, _)| {
        (
            name != "quickstart",
            !Stage::of(name).installed,
            name.clone(),
        )
    });
    walked
}

#[test]
fn every_exception_is_on_a_page() {
    let commands: BTreeSet<String> = steps_by_page()
        .into_iter()
        .flat_map(|(_, steps)| steps)
        .filter_map(|step| match step {
            Step::Command(command) => Some(command.text),
            Step::Manifest(_) => None,
        })
        .collect();
    assert!(commands.len() > 60, "{}", commands.len());
    for command in LASTING.into_iter().chain(ASKS) {
        assert!(
            commands.contains(command),
            "no page has the command {command}"
        );
    }
}

/// The parts of each kind of pages that run side by side, each in its own cluster.
const PARTS: usize = 2;

#[rstest]
#[case::in_an_installed_cluster(true, 0)]
#[case::in_another_installed_cluster(true, 1)]
#[ignore = "long: run by make test-long"]
#[case::in_a_new_cluster(false, 0)]
#[ignore = "long: run by make test-long"]
#[case::in_another_new_cluster(false, 1)]
#[tokio::test]
async fn every_page_works_as_described(#[case] installed: bool, #[case] part: usize) {
    let plane = Plane::Own(Arc::new(
        ControlPlane::start(Options::default()).await.unwrap(),
    ));
    let bed = Bed {
        client: plane.client().await.unwrap(),
        plane,
        namespace: "default".into(),
    };
    let (telegram, aws) = (bot_api(), Aws::start().await.unwrap());
    telegram.add_chat(Chat::new(Kind::Supergroup, -1_001_234_567_890).unwrap());
    let only = std::env::var("QUARTERMASTER_TEST_PAGE").unwrap_or_default();
    let mut walk = Walk {
        bed,
        telegram,
        aws,
        there: Installation::Nothing,
    };
    let mut ran = 0;
    let pages = steps_by_page()
        .into_iter()
        .filter(|(name, _)| Stage::of(name).installed == installed)
        .enumerate()
        .filter(|(place, _)| place % PARTS == part);
    for (_, (name, steps)) in pages {
        if only.is_empty() || only == name {
            ran += walk.page(&name, &steps).await;
        }
    }
    assert!(ran > 15 || !only.is_empty(), "{ran}");
}

/// A reader on the way from page to page.
struct Walk {
    bed: Bed,
    telegram: BotApi,
    aws: Aws,
    there: Installation,
}

/// Current installation.
#[derive(PartialEq)]
enum Installation {
    Nothing,
    /// CRDs, permissions and policies.
    Installed,
    /// A page has changed the installation.
    Something,
}

impl Walk {
    /// Runs all steps of a page. Returns the number of commands.
    async fn page(&mut self, name: &str, steps: &[Step]) -> usize {
        let began = Instant::now();
        let stage = Stage::of(name);
        let mut shell = Shell::new(&self.bed.plane, &self.telegram.url(), &self.aws).await;
        if self.there != Installation::Installed || !stage.installed {
            if self.there != Installation::Nothing {
                self.run(&shell, name, "another-cluster").await;
            }
            if stage.installed {
                install(&self.bed.plane).await;
            }
        }
        if !stage.installed {
            // A page may remove its installation while the operator runs.
            self.bed.plane.audit().expect_refusals().unwrap();
        }
        self.there = if stage.installed {
            Installation::Installed
        } else {
            Installation::Something
        };

        let (mut ran, mut scenes, mut operator) = (0, stage.scenes.iter().peekable(), None);
        self.scene(&shell, name, &stage, scenes.next().unwrap(), &mut operator)
            .await;
        for step in steps {
            let command = match step {
                Step::Manifest(manifest) => {
                    let apply = format!(
                        "kubectl apply -f - <<'YAML'\n{}YAML",
                        stage.written(manifest)
                    );
                    self.run(&shell, name, &apply).await;
                    continue;
                }
                Step::Command(command) => command,
            };
            let first_line = command.text.lines().next().unwrap_or_default();
            if let Some(scene) = scenes.next_if(|scene| scene.before == first_line) {
                self.scene(&shell, name, &stage, scene, &mut operator).await;
            }
            let started_at = Instant::now();
            self.command(&mut shell, name, command, &stage).await;
            println!("{:5.1} s  {first_line}", started_at.elapsed().as_secs_f32());
            ran += 1;
        }
        assert_eq!(
            scenes.next(),
            None,
            "{name}: the page has no such command, in this order"
        );
        let started_at = Instant::now();
        shell.end();
        self.clean_up(&shell, name, operator.is_some()).await;
        println!("{:5.1} s  to tidy up", started_at.elapsed().as_secs_f32());
        println!(
            "{name}: {ran} commands in {:.1} s",
            began.elapsed().as_secs_f32()
        );
        ran
    }

    /// Prepares the state that the stage describes.
    async fn scene(
        &self,
        shell: &Shell,
        page: &str,
        stage: &Stage,
        scene: &Scene,
        operator: &mut Option<Operator>,
    ) {
        let started_at = Instant::now();
        self.run(
            shell,
            page,
            &stage.written(&format!("set -eu\n{}", scene.text)),
        )
        .await;
        println!(
            "{:5.1} s  what is there before {}",
            started_at.elapsed().as_secs_f32(),
            scene.before
        );
        if let Some(runs) = scene.operator {
            *operator = None;
            if runs {
                let settings = Settings::default()
                    .whole_cluster()
                    .telegram(&self.telegram.url())
                    .aws(&self.aws);
                *operator = Some(Operator::start(&self.bed, settings).await);
            }
        }
    }

    /// Runs a command, and compares its output with the page.
    async fn command(&self, shell: &mut Shell, page: &str, command: &Command, stage: &Stage) {
        let text = stage.written(&command.text);
        if LASTING.contains(&&*command.text) {
            shell.start(&text).await;
            return;
        }
        let printed: Vec<_> = command
            .printed
            .iter()
            .map(|line| stage.written(line))
            .collect();
        let run = async || {
            if ASKS.contains(&&*command.text) {
                shell.agree(&text).await
            } else {
                shell.run(&text).await
            }
        };
        let succeeded = |result: &CommandResult| {
            result.well && (printed.is_empty() || output::matches_page(&printed, &result.out))
        };
        let mut result = tokio::time::timeout(TIMEOUT, run())
            .await
            .unwrap_or_else(|_| panic!("{page}: {text} does not end"));
        if only_reads(&text) && !succeeded(&result) {
            // The output may still be on its way.
            let _ = until("the output matches the page", SOON, async || {
                result = run().await;
                Ok(succeeded(&result).then_some(()))
            })
            .await;
        }
        assert!(
            result.well,
            "{page}: {text}\n{}{}\n{}",
            result.out,
            result.err,
            shell.output()
        );
        assert!(
            succeeded(&result),
            "{page}: {text}\nshown:\n{}\nprinted:\n{}{}",
            printed.join("\n"),
            result.out,
            result.err
        );
        for (chat, message) in &command.messages {
            let (chat, message) = (stage.written(chat), stage.written(message));
            until(
                format!("{page}: chat {chat} has received {message:?}"),
                SOON,
                async || {
                    let all = self.telegram.messages();
                    Ok(all
                        .iter()
                        .any(|it| it.chat_id.to_string() == chat && it.text == message)
                        .then_some(()))
                },
            )
            .await
            .unwrap();
        }
    }

    /// Runs text that must succeed.
    async fn run(&self, shell: &Shell, page: &str, text: &str) {
        let result = tokio::time::timeout(TIMEOUT, shell.run(text)).await;
        let result = result.unwrap_or_else(|_| panic!("{page}: {text} does not end"));
        assert!(result.well, "{page}: {text}\n{}{}", result.out, result.err);
    }

    /// Removes the objects that the page created, in namespaces that stay. Kubernetes' garbage collector discovers new
    /// CRDs only half a minute later, so the test does not wait for it.
    async fn clean_up(&self, shell: &Shell, page: &str, operator: bool) {
        let text = "set -eu
            # No pipe: grep -q may end before kubectl, whose failed write would skip the deletions.
            if [ -n \"$(kubectl get crd -o name)\" ]; then
              RELEASE
              kubectl delete KINDS --all --all-namespaces --timeout=30s
            fi
            for namespace in $(kubectl get namespaces -o name | grep -v -e kube- -e quartermaster-system); do
              kubectl delete --all -n ${namespace#*/} --wait=false deploy,sts,svc,hpa,ingress,pods,cronjobs,configmaps,secrets
            done";
        let nobody = "kubectl get KINDS -A -o json | jq '.items[].metadata.finalizers = []' | kubectl replace -f -";
        let kinds = controllers::KINDS
            .iter()
            .map(KindInfo::crd_name)
            .collect::<Vec<_>>()
            .join(",");
        let text = text
            .replace("RELEASE", if operator { "" } else { nobody })
            .replace("KINDS", &kinds);
        self.run(shell, page, &text).await;
    }
}

/// Returns whether the command may be repeated until it shows the expected state.
fn only_reads(text: &str) -> bool {
    let words: Vec<_> = text.split_whitespace().collect();
    let reads = ["get", "describe", "events", "status", "history", "matches"]
        .iter()
        .any(|word| words.contains(word));
    let writes = ["apply", "create", "patch", "delete", "annotate", "run"]
        .iter()
        .any(|word| words.contains(word));
    reads && !writes
}

#[test]
fn reading_commands_may_be_repeated() {
    assert!(
        only_reads("kubectl get tf -A") && only_reads("quartermaster status -o json | jq .summary")
    );
    assert!(!only_reads(
        "kubectl get secret a -o json | kubectl create -f -"
    ));
    assert!(!only_reads("kubectl apply -f example/"));
}

/// No stage exists without its page.
#[test]
fn every_stage_belongs_to_a_page() {
    let pages: BTreeSet<String> = steps_by_page().into_iter().map(|(name, _)| name).collect();
    let mut folders = vec![root().join("tests/it/docs/commands/stages")];
    let stages = folders[0].clone();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&stages).unwrap().with_extension("");
            assert!(
                pages.contains(&*name.to_string_lossy()),
                "{}",
                path.display()
            );
        }
    }
}
