//! `quartermaster uninstall`: all objects of our kinds go, in an order that tells nobody of it, while the operator runs; what
//! holds one up is named ([`target`]). It ends by itself, within `--timeout`, whatever the cluster does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::{Api, Client};
use qm_core::kind::KindInfo;
use qm_runtime::signals::Signals;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use self::asked::Asked;
use self::crds::Crd;
use self::target::{Children, How, ORDER, Step, Target, is_ours};
use super::lease::{self, Looks, Operator};
use super::paper::Paper;
use super::{MANAGER, going, is, objects, words, words_of_list};
use crate::cli::commands::{Cluster, UninstallArgs};

mod asked;
mod begin;
mod crds;
mod said;
pub mod target;
mod ways;

/// How often it is looked whether all is gone.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long an object may take to go before that is told; and how long a cluster that does not answer is left alone.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// How many objects are deleted at once.
const AT_ONCE: usize = 16;
/// How many objects are named.
const NAMED: usize = 50;
/// The exit code when nothing was done because nobody has said yes.
const USAGE: u8 = 2;

/// What a round left.
#[derive(Default)]
struct Left {
    /// How many objects there were at its beginning: only a round that finds none is the last.
    seen: usize,
    targets: Vec<Target>,
    /// Why something could not be done, by UID.
    troubles: BTreeMap<String, String>,
    /// Troubles that time does not mend: a right is missing.
    forbidden: usize,
}

/// How it stands after a round.
struct Standing {
    left: Left,
    /// The CRDs that go and are still there.
    crds: Vec<Crd>,
    operator: Operator,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            left: Left::default(),
            crds: Vec::new(),
            operator: Operator::Unknown("nobody looked".into()),
        }
    }
}

/// What time does not mend.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// What time may mend: the apiserver has too much to do, or is about to be there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Busy(String);

/// Deletes them in the cluster that is called so.
///
/// # Errors
/// The cluster cannot be asked, or does not let itself be.
pub async fn run(
    client: Client,
    called: &str,
    args: &UninstallArgs,
    out: &mut Paper,
) -> anyhow::Result<ExitCode> {
    let how = How {
        keep_children: args.keep_children,
        without_operator: args.without_operator,
    };
    let uninstall = Uninstall {
        client,
        args,
        how,
        foreign: RefCell::default(),
        unseen: RefCell::default(),
        asked: RefCell::default(),
    };
    let mut signals = Signals::new()?;
    let begun = tokio::select! {
        begun = uninstall.begin(called, out) => Some(begun?),
        () = signals.next() => None,
    };
    match begun {
        Some(ControlFlow::Continue((looks, deadline))) => {
            uninstall.delete(looks, deadline, signals, out).await
        }
        Some(ControlFlow::Break(code)) => Ok(code),
        None => {
            out.line("")?;
            out.line("Interrupted: nothing was deleted.")?;
            Ok(ExitCode::from(USAGE))
        }
    }
}

/// Whether another object has its name by now.
fn is_another(error: &kube::Error) -> bool {
    is(error, 422) && words(error).contains("metadata.uid")
}

/// What was said, in these words, when something was asked for.
fn told(error: &kube::Error, words: &str) -> anyhow::Error {
    let busy = [429, 503, 504].into_iter().any(|code| is(error, code));
    if busy {
        Busy(words.into()).into()
    } else {
        anyhow::anyhow!(words.to_owned())
    }
}

struct Uninstall<'a> {
    client: Client,
    args: &'a UninstallArgs,
    how: How,
    /// The kinds whose CRDs are another program's: neither they nor their objects are ours to delete.
    foreign: RefCell<BTreeSet<String>>,
    /// Why that is not known, where CRDs may not be read.
    unseen: RefCell<Option<String>>,
    asked: RefCell<Asked>,
}

impl Uninstall<'_> {
    fn namespace(&self) -> Option<&str> {
        self.args.scope.namespace()
    }

    fn cluster(&self) -> &Cluster {
        &self.args.scope.cluster
    }

    fn place(&self) -> String {
        self.namespace().map_or_else(String::new, |namespace| {
            format!(" in namespace {namespace}")
        })
    }

    /// All objects there are, in their order.
    async fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let mut targets = Vec::new();
        for controller in ORDER {
            targets.extend(self.targets_of(controller).await?);
        }
        Ok(targets)
    }

    async fn targets_of(&self, controller: &str) -> anyhow::Result<Vec<Target>> {
        let ours = |kind: &&KindInfo| !self.foreign.borrow().contains(&kind.crd_name());
        let Some(kind) = objects::kind(controller).filter(ours) else {
            return Ok(Vec::new());
        };
        let listed = objects::list(&self.client, kind, self.namespace(), |object| {
            Target::of(kind, &object)
        })
        .await;
        let listed = listed.map_err(|error| told(&error, &words_of_list(&error, self.namespace())));
        Ok(listed
            .with_context(|| format!("the {} could not be listed", kind.resource().plural))?
            .unwrap_or_default())
    }

    /// Deletes them, until all is gone, nothing moves any more, or somebody has it stop.
    async fn delete(
        &self,
        looks: Looks,
        deadline: Instant,
        mut signals: Signals,
        out: &mut Paper,
    ) -> anyhow::Result<ExitCode> {
        let mut standing = Standing::default();
        let gone = tokio::select! {
            came = self.rounds(looks, deadline, &mut standing, out) => Some(came),
            () = signals.next() => None,
        };
        match gone {
            Some(Ok(true)) => return self.done(out),
            Some(Err(error)) => {
                self.undone(out)?;
                return Err(error);
            }
            Some(Ok(false)) => {}
            None => {
                out.line("")?;
                out.line("Interrupted: run it again; it goes on where it was.")?;
                self.undone(out)?;
                return Ok(ExitCode::FAILURE);
            }
        }
        let stuck = standing
            .left
            .targets
            .iter()
            .filter(|target| target.needs_operator());
        let namespaces = stuck.map(|target| &*target.object.namespace).collect();
        let ways =
            going::ways_out(&self.client, namespaces, &self.args.lease, self.cluster()).await;
        self.failed(&standing, ways, out)
    }

    /// Goes round until all is gone, nothing moves any more, or it is time to end; whether all is gone.
    async fn rounds(
        &self,
        mut looks: Looks,
        deadline: Instant,
        standing: &mut Standing,
        out: &mut Paper,
    ) -> anyhow::Result<bool> {
        let mut told: HashMap<String, (Instant, String)> = HashMap::new();
        let mut last: (Vec<(String, String)>, Instant) = (Vec::new(), Instant::now());
        let mut silent = String::new();
        loop {
            let round = async {
                // Before the objects: whoever is seen to act is waited for.
                let operator = looks.look(
                    lease::read(&self.client, &self.args.lease.key()).await,
                    Instant::now(),
                );
                let left = self.round(&operator).await?;
                let crds = if left.seen == 0 {
                    self.purge().await?
                } else {
                    Vec::new()
                };
                anyhow::Ok(Standing {
                    left,
                    crds,
                    operator,
                })
            };
            let began = Instant::now();
            let Ok(came) = timeout_at(deadline, round).await else {
                return Ok(false);
            };
            *standing = match came {
                Ok(came) => came,
                Err(error) if error.is::<Refused>() => return Err(error),
                // All could be listed before: an apiserver that is away for a moment ends nothing.
                Err(error) => {
                    begin::away(&error, &mut silent, out)?;
                    sleep_until(deadline.min(Instant::now() + TELL_AFTER)).await;
                    continue;
                }
            };
            silent.clear();
            let Standing {
                left,
                crds,
                operator,
            } = &*standing;
            let now = Instant::now();
            if left.seen == 0 && crds.is_empty() {
                return Ok(true);
            }
            let state: Vec<_> = left
                .targets
                .iter()
                .map(|it| (it.uid.clone(), it.version.clone()))
                .collect();
            if state != last.0 {
                last = (state, now);
            }
            for target in left.targets.iter().take(NAMED) {
                let held = left
                    .troubles
                    .get(&target.uid)
                    .cloned()
                    .unwrap_or_else(|| target.held(self.how, self.cluster()).join("; "));
                let (since, said) = told
                    .entry(target.uid.clone())
                    .or_insert_with(|| (now, String::new()));
                if now.duration_since(*since) > TELL_AFTER && *said != held && !held.is_empty() {
                    out.line(format!("waiting for {}: {held}", target.title()))?;
                    *said = held;
                }
            }
            let only_operator = !left.targets.is_empty()
                && left
                    .targets
                    .iter()
                    .all(|it| it.deleting && it.needs_operator());
            let stalled = only_operator
                && !operator.may_run()
                && now.duration_since(last.1) > self.args.stalled_after;
            let forbidden = left.forbidden > 0 && left.forbidden == left.targets.len();
            if stalled || forbidden {
                return Ok(false);
            }
            sleep_until(deadline.min(Instant::now() + LOOK_EVERY.max(began.elapsed() * 2))).await;
        }
    }

    /// Does what can be done about each object, kind by kind; gives those that are left.
    async fn round(&self, operator: &Operator) -> anyhow::Result<Left> {
        let mut left = Left::default();
        for controller in ORDER {
            let targets = self.targets_of(controller).await?;
            if self.how.without_operator && !targets.is_empty() {
                self.still_gone(operator)?;
            }
            left.seen += targets.len();
            let done = stream::iter(targets)
                .map(|target| self.act(target, operator))
                .buffered(AT_ONCE);
            for (target, came) in done.collect::<Vec<_>>().await {
                match came {
                    Ok(true) => continue,
                    Ok(false) => {}
                    // Changed in the meantime: it is looked at anew.
                    Err(error) if is(&error, 409) || is_another(&error) => {}
                    Err(error) => {
                        left.forbidden += usize::from(is(&error, 403));
                        left.troubles.insert(target.uid.clone(), words(&error));
                    }
                }
                left.targets.push(target);
            }
        }
        Ok(left)
    }

    /// What was proved at the beginning holds until the end: an operator that is back is to take away what is its own.
    fn still_gone(&self, operator: &Operator) -> anyhow::Result<()> {
        match operator {
            // Its Lease may go after it.
            Operator::Stopped(_) | Operator::Absent(_) => Ok(()),
            Operator::Unread(why) => Err(Busy(why.clone()).into()),
            back => ways::unproved(back, &self.args.lease)
                .map_or(Ok(()), |why| Err(Refused(why).into())),
        }
    }

    /// Does what can be done about it, until only others can; whether it is gone.
    async fn act(&self, mut target: Target, operator: &Operator) -> (Target, kube::Result<bool>) {
        // Suspended, let go, deleted.
        for _ in 0..3 {
            let patient = target.suspended
                && self
                    .asked
                    .borrow_mut()
                    .patient(&target.uid, operator, Instant::now());
            let step = target.step(self.how, patient);
            self.asked.borrow_mut().does(&target, step);
            let came = match step {
                Step::Wait => return (target, Ok(false)),
                Step::Suspend => {
                    self.patch(&target, json!({ "spec": { "suspend": true } }))
                        .await
                }
                Step::KeepCopies => {
                    self.patch(&target, json!({ "spec": { "deletionPolicy": "Orphan" } }))
                        .await
                }
                Step::LetGo => {
                    let left: Vec<_> = target
                        .finalizers
                        .iter()
                        .filter(|name| !is_ours(name))
                        .collect();
                    self.patch(&target, json!({ "metadata": { "finalizers": left } }))
                        .await
                }
                Step::Delete(children) => {
                    let came = self.remove(&target, children).await;
                    if came.is_ok() {
                        self.asked.borrow_mut().goes(&target.uid);
                    }
                    return (target, came);
                }
            };
            if let Err(kube::Error::Api(_)) = &came {
                self.asked.borrow_mut().refused(&target, step);
            }
            match came {
                Ok(object) => {
                    target = Target::of(target.kind, &object);
                    if target.deleting && target.finalizers.is_empty() {
                        return (target, Ok(true));
                    }
                }
                Err(error) if is(&error, 404) => {
                    self.asked.borrow_mut().goes(&target.uid);
                    return (target, Ok(true));
                }
                Err(error) => return (target, Err(error)),
            }
        }
        (target, Ok(false))
    }

    fn api(&self, target: &Target) -> Api<DynamicObject> {
        objects::api(&self.client, target.kind, Some(&target.object.namespace))
    }

    /// Changes that very version of it.
    async fn patch(&self, target: &Target, mut patch: Value) -> kube::Result<DynamicObject> {
        patch["metadata"]["uid"] = target.uid.clone().into();
        patch["metadata"]["resourceVersion"] = target.version.clone().into();
        let parameters = PatchParams {
            field_manager: Some(MANAGER.into()),
            ..PatchParams::default()
        };
        self.api(target)
            .patch(&target.object.name, &parameters, &Patch::Merge(&patch))
            .await
    }

    /// Deletes it; whether it is gone at once.
    async fn remove(&self, target: &Target, children: Children) -> kube::Result<bool> {
        // What is to stay was seen to for this version.
        let version = self.how.keep_children.then(|| target.version.clone());
        let parameters = DeleteParams {
            propagation_policy: Some(match children {
                Children::Background => PropagationPolicy::Background,
                Children::Foreground => PropagationPolicy::Foreground,
                Children::Orphan => PropagationPolicy::Orphan,
            }),
            preconditions: Some(Preconditions {
                uid: Some(target.uid.clone()),
                resource_version: version,
            }),
            ..DeleteParams::default()
        };
        match self
            .api(target)
            .delete(&target.object.name, &parameters)
            .await
        {
            Ok(came) => Ok(came.right().is_some()),
            Err(error) if is(&error, 404) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
