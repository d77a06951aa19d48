//! Has the Pod of a `MyApp` be as it is wanted.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Resource};
use qm_api::MyApp;
use qm_core::conditions::{self, READY};
use qm_runtime::children::{Child, Trouble};
use qm_runtime::drift::RECREATED;
use qm_runtime::ownership::{Claim, Owner};
use qm_runtime::reconciler::Outcome;
use qm_runtime::{Key, apply};
use tokio::time::Instant;
use tracing::debug;

use super::build::{self, Wanted};
use super::seen::{Life, Seen, Why};
use super::standing::{
    self, CONFLICT, NAMESPACE_TERMINATING, NODE_GONE, NODE_NOT_READY, REFUSED, Standing, Step,
};
use super::{Error, MyApps};

/// How often a Pod is made or asked for in one pass, because it comes and goes in between.
const TRIES: usize = 3;

/// What a pass came to.
pub struct Passed {
    /// What the `MyApp` says.
    pub standing: Standing,
    /// How the pass ends once that is written.
    pub end: Result<Outcome, Error>,
}

impl Passed {
    /// This is to be said, and it ends so.
    pub fn with(standing: Standing, outcome: Outcome) -> Self {
        Self {
            standing,
            end: Ok(outcome),
        }
    }
}

/// What was found under a Pod's name.
enum Found {
    /// We made it just now.
    Made(Child<Seen>),
    /// It is there.
    There(Child<Seen>),
    /// It comes and goes all the time.
    Unsteady,
}

/// What becomes of the node of a Pod.
enum Place {
    /// It is there, or nobody asked.
    There,
    /// It is there, and not ready: its own words.
    NotReady(String),
    /// It does not exist any more.
    Gone,
}

/// The Pod of this owner.
pub fn pod_of(owner: &Owner) -> Key {
    Key::new(owner.namespace(), &build::pod_name(owner.name()))
}

impl MyApps {
    /// Has the Pod be as it is wanted. At most one thing is done to it in a pass; the watch tells what came of that.
    pub(super) async fn settle(
        &self,
        key: &Key,
        app: &MyApp,
        owner: &Owner,
        wanted: &Wanted<'_>,
    ) -> Result<Passed, Error> {
        let child = match self
            .find(key, app, owner, wanted)
            .await
            .map_err(Error::WritePod)?
        {
            Found::There(child) => child,
            Found::Made(child) => {
                let replaced = self.note(key, |notes| std::mem::take(&mut notes.replaced));
                if !replaced
                    && app
                        .status
                        .as_ref()
                        .is_some_and(|status| status.pod_name.is_some())
                {
                    let words = format!("{} was gone, and is made again", child.key.name);
                    self.events
                        .normal(app.object_ref(&()), "Create", RECREATED, words);
                }
                return Ok(Passed::with(Standing::of(child.report), Outcome::Done));
            }
            Found::Unsteady => return Err(Error::PodUnsteady),
        };
        let lives = |uid: &str| self.apps.lives(uid);
        if owner.claim(&child.report.marks, lives) == Claim::Restored {
            self.apps
                .confirm(owner)
                .await
                .map_err(|error| Error::WritePod(error.into()))?;
        }
        match standing::step(owner, wanted, &child.report, lives) {
            Step::Leave(foreign) => {
                let why = Why::new(CONFLICT, self.pods.conflict(owner, &foreign, &child.key));
                // Nothing tells when it goes or is handed over: it has no mark of ours.
                Ok(Passed::with(Standing::not(why, None), Outcome::Waiting))
            }
            Step::Wait => Ok(self.wait(key, app, child).await),
            Step::Replace(differs) => {
                self.delete(key, &child).await?;
                let words = format!("{} is replaced: {differs}", child.key.name);
                self.events
                    .normal(app.object_ref(&()), "Delete", "Replaced", words);
                Ok(Passed::with(
                    Standing::terminating(child.report),
                    Outcome::Waiting,
                ))
            }
            Step::Retry => self.retry(key, child).await,
            Step::Mark(claim) => {
                let labels = [(build::APP, owner.name())];
                let labels: &[_] = if child.report.lacks_label() {
                    &labels
                } else {
                    &[]
                };
                let marked = self
                    .pods
                    .mark(owner, &child, &child.report.marks, labels)
                    .await
                    .map_err(Error::WritePod)?;
                if claim != Claim::Ours {
                    let words = format!("{} is taken over as it is", child.key.name);
                    self.events
                        .normal(app.object_ref(&()), "Adopt", "Adopted", words);
                }
                self.keep(key, app, marked).await
            }
            Step::Keep => self.keep(key, app, child).await,
        }
    }

    /// The Pod, made if there is none. Nothing is asked for that the watch shows. Where nothing was ever said it is made without
    /// a look, which cannot overwrite one either; later one that the watch does not show may well be there, and not be ours.
    async fn find(
        &self,
        key: &Key,
        app: &MyApp,
        owner: &Owner,
        wanted: &Wanted<'_>,
    ) -> Result<Found, Trouble> {
        let pod = pod_of(owner);
        let known = self.pods.child(&pod);
        let mut there = app.status.is_some();
        if let Some(known) = known {
            if self.believes(key, &known) {
                return Ok(Found::There(known));
            }
            there = true;
        }
        for _ in 0..TRIES {
            if !there && let Some(made) = self.pods.make(&build::pod(owner, wanted)).await? {
                return Ok(Found::Made(made));
            }
            let found = self.pods.ask(&pod).await?;
            self.note(key, |notes| (notes.believed, notes.doubted) = (None, None));
            if let Some(found) = found {
                return Ok(Found::There(found));
            }
            self.apps.confirm(owner).await?;
            there = false;
        }
        Ok(Found::Unsteady)
    }

    /// Whether what the watch shows of the Pod is believed: it may have failed to say something, and nobody would ever know.
    fn believes(&self, key: &Key, known: &Child<Seen>) -> bool {
        self.note(key, |notes| {
            let doubted = notes.doubted.as_ref() == Some(&state(known));
            !doubted && notes.believed.get_or_insert_with(Instant::now).elapsed() < self.resync
        })
    }

    /// A Pod that is as it is wanted.
    async fn keep(&self, key: &Key, app: &MyApp, child: Child<Seen>) -> Result<Passed, Error> {
        if child.report.life == Life::Ready {
            self.note(key, |notes| notes.looked = None);
            return Ok(Passed::with(Standing::of(child.report), Outcome::Done));
        }
        let Some(node) = child.report.node.clone() else {
            return Ok(Passed::with(Standing::of(child.report), Outcome::Done));
        };
        let standing = match self.place(key, app, &child, &node).await {
            Place::There => Standing::of(child.report),
            Place::NotReady(said) => Standing::node_not_ready(child.report, &node, &said),
            Place::Gone => {
                self.delete(key, &child).await?;
                Standing::node_gone(child.report, &node)
            }
        };
        Ok(Passed::with(standing, Outcome::Waiting))
    }

    /// A Pod that is being deleted. Its kubelet says when it is gone; if that does not, whoever reads this is told why.
    async fn wait(&self, key: &Key, app: &MyApp, child: Child<Seen>) -> Passed {
        let standing = match child.report.node.clone() {
            None => Standing::terminating(child.report),
            Some(node) => match self.place(key, app, &child, &node).await {
                Place::There => Standing::terminating(child.report),
                Place::NotReady(said) => Standing::node_not_ready(child.report, &node, &said),
                Place::Gone => Standing::node_gone(child.report, &node),
            },
        };
        // It may be one that no watch shows.
        Passed::with(standing, Outcome::Waiting)
    }

    /// A Pod that came to its end: it is deleted after a delay that grows from one to the next, unless this one lasted.
    async fn retry(&self, key: &Key, child: Child<Seen>) -> Result<Passed, Error> {
        let age = child
            .report
            .created
            .map(|created| Timestamp::now().duration_since(created));
        let lasted =
            age.is_some_and(|age| Duration::try_from(age).is_ok_and(|age| age > self.settled));
        let due = self.note(key, |notes| match &notes.due {
            Some((uid, due)) if *uid == child.uid => *due,
            _ => {
                if lasted {
                    self.retries.reset(key);
                }
                let due = Instant::now() + self.retries.next_delay(key);
                notes.due = Some((child.uid.clone(), due));
                due
            }
        });
        let left = due.saturating_duration_since(Instant::now());
        let standing = Standing::not(child.report.why.clone(), Some(child.report.clone()));
        if left > Duration::ZERO {
            return Ok(Passed::with(standing, Outcome::RequeueAfter(left)));
        }
        self.delete(key, &child).await?;
        Ok(Passed::with(standing, Outcome::Waiting))
    }

    /// Deletes the Pod. Unless the watch says what comes of that, it is asked for.
    async fn delete(&self, key: &Key, child: &Child<Seen>) -> Result<(), Error> {
        self.note(key, |notes| notes.doubted = Some(state(child)));
        self.pods.delete(child).await.map_err(Error::WritePod)?;
        self.note(key, |notes| notes.replaced = true);
        Ok(())
    }

    /// What becomes of the node of a Pod that is not ready. It is asked for once the Pod has stood still between two looks: as
    /// long as the Pod changes there is somebody who changes it.
    async fn place(&self, key: &Key, app: &MyApp, child: &Child<Seen>, node: &str) -> Place {
        let now = Some(state(child));
        let before = self.note(key, |notes| {
            std::mem::replace(&mut notes.looked, now.clone())
        });
        if before != now && !says(app, &[NODE_GONE, NODE_NOT_READY]) {
            return Place::There;
        }
        match Api::<Node>::all(self.client.clone()).get_opt(node).await {
            Ok(Some(found)) => standing::not_ready(&found).map_or(Place::There, Place::NotReady),
            Ok(None) => Place::Gone,
            Err(error) => {
                debug!(
                    node,
                    error = &error as &dyn std::error::Error,
                    "the node of the Pod could not be read"
                );
                Place::There
            }
        }
    }
}

/// What tells one state of a Pod from all others.
pub fn state(child: &Child<Seen>) -> (String, String) {
    (child.uid.clone(), child.version.clone())
}

/// What a pass came to in which the Pod could not be read or written: what the apiserver does not take, it may take later.
pub fn refused(trouble: Trouble, pod: Option<Seen>) -> Result<Passed, Error> {
    match trouble {
        Trouble::Refused { said, .. } if apply::is_terminating(&said) => {
            let why = Why::new(
                NAMESPACE_TERMINATING,
                "the namespace is being deleted: no Pod can be made",
            );
            Ok(Passed::with(Standing::not(why, None), Outcome::Waiting))
        }
        Trouble::Refused { .. } => {
            let standing = Standing::not(Why::new(REFUSED, trouble.to_string()), pod);
            Ok(Passed {
                standing,
                end: Err(Error::PodRefused(trouble.to_string())),
            })
        }
        trouble => Err(Error::WritePod(trouble)),
    }
}

/// Whether this is why a `MyApp` says that it is not well.
fn says(app: &MyApp, reasons: &[&str]) -> bool {
    let condition = app
        .status
        .as_ref()
        .and_then(|status| conditions::get(&status.conditions, READY));
    condition.is_some_and(|condition| reasons.contains(&condition.reason.as_str()))
}
