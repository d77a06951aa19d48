//! `MyApp`: what its Pod is to be ([`build`]), what it is ([`seen`]), what is to be done and said about
//! it ([`standing`]), and the doing (`settle`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource};
use prometheus_client::metrics::counter::Counter;
use qm_api::MyApp;
use qm_api::common::NAMES;
use qm_api::my_app::GROUP;
use qm_core::conditions::{self, READY};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::Key;
use qm_runtime::backoff::{Backoffs, Policy};
use qm_runtime::cache::Touched;
use qm_runtime::children::{Children, Trouble, Writer};
use qm_runtime::events::Events;
use qm_runtime::manager::Manager;
use qm_runtime::owners::Owners;
use qm_runtime::ownership::{Claim, Owner};
use qm_runtime::reconciler::{Class, Failure, Outcome, Reconciler};
use qm_runtime::told::Told;
use qm_runtime::written::Written;
use tokio::time::Instant;

use self::seen::{Seen, Why};
use self::settle::Passed;
use self::standing::{SUSPENDED, Standing};
use crate::cli::Config;

pub mod build;
pub mod seen;
mod settle;
pub mod standing;

/// What the controller is called in logs and metrics.
pub const NAME: &str = "myapp";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<MyApp>(
    NAME,
    &["e4684006046c7e16"],
    DelegatedAccess::Pods,
    &[
        Permission::namespaced(GROUP, &["myapps"], &["get", "list", "watch"]),
        Permission::namespaced(GROUP, &["myapps/status"], &["patch"]),
        // Asked for where owner references that block the owner's deletion are checked.
        Permission::namespaced(GROUP, &["myapps/finalizers"], &["update"]),
        // Only its metadata is ever patched.
        Permission::namespaced(
            "",
            &["pods"],
            &["create", "delete", "get", "list", "patch", "watch"],
        ),
        // Whether the node of a Pod that is not ready is still there.
        Permission::cluster_scoped("", &["nodes"], &["get"]),
        EVENTS,
    ],
);
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/myapp";

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The apiserver does not take the Pod as it is, or what is done to it: a quota, a policy. That may change at any time.
    #[error("{0}")]
    PodRefused(String),
    /// The Pod could not be read or written.
    #[error(transparent)]
    WritePod(Trouble),
    /// The Pod came and went while it was looked at.
    #[error("the Pod changes all the time")]
    PodUnsteady,
    /// The status could not be written.
    #[error("the status could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::PodRefused(_) => Class::Transient,
            Self::WritePod(trouble) => trouble.class(),
            Self::PodUnsteady => Class::Conflict,
            Self::WriteStatus(error) => error.class(),
        }
    }
}

/// The controller.
pub struct MyApps {
    client: Client,
    apps: Owners<MyApp>,
    pods: Arc<Children<Pod, Seen>>,
    events: Events,
    written: Written<MyApp>,
    /// Delays before a Pod that came to its end is made again.
    retries: Backoffs<Key>,
    /// A Pod that lived longer than this did not fail at once.
    settled: Duration,
    resync: Duration,
    notes: Mutex<HashMap<Key, Notes>>,
    told: Told,
}

/// What is kept of a `MyApp` that its status does not say. Nothing is lost with it but time.
#[derive(Default)]
struct Notes {
    /// The Pod that was not ready when it was looked at last: UID and resourceVersion.
    looked: Option<(String, String)>,
    /// Since when the watch's word for the Pod is believed.
    believed: Option<Instant>,
    /// The Pod, as the watch showed it, that is not what is there: UID and resourceVersion.
    doubted: Option<(String, String)>,
    /// The Pod was deleted, to be made again.
    replaced: bool,
    /// UID of the Pod that came to its end, and when it is to be deleted.
    due: Option<(String, Instant)>,
}

/// Hands the controller in.
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let apps = manager.kind::<MyApp>(&KIND);
    let trigger = apps.trigger.clone();
    let timings = &config.timings;
    let (policy, resync) = (
        Policy {
            min: timings.retry_min,
            max: timings.retry_max,
        },
        timings.resync,
    );
    let events = manager.events(NAME);
    // Pods are never applied, so there is no drift to count.
    let writer = Writer {
        names: &NAMES,
        manager: MANAGER,
        events: events.clone(),
        corrected: Counter::default(),
        advice: &[],
    };
    let pods = Children::new(manager, &writer, Seen::of, {
        let trigger = trigger.clone();
        move |owner| trigger.wake(owner)
    });
    let controller = Arc::new(MyApps {
        client: manager.client.clone(),
        apps: Owners::new(manager.client.clone(), apps.store.clone()),
        pods,
        events,
        written: Written::new(trigger.clone()),
        retries: Backoffs::new(policy),
        settled: policy.max,
        resync,
        notes: Mutex::default(),
        told: Told::default(),
    });
    let told = {
        let controller = Arc::clone(&controller);
        move |touched: Touched<MyApp>, all_seen: bool| match touched {
            Touched::Present(app) => {
                controller.pods.want();
                let key = Key::of(app.as_ref());
                // Otherwise told of again once all have been seen.
                if all_seen && !controller.written.knows(&key, &app) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(app) => {
                let key = Key::of(app.as_ref());
                controller.gone(&key);
                trigger.wake(&key);
            }
        }
    };
    manager.control(apps, controller, Vec::new(), told);
    Ok(())
}

impl MyApps {
    fn note<T>(&self, key: &Key, act: impl FnOnce(&mut Notes) -> T) -> T {
        act(self
            .notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key.clone())
            .or_default())
    }

    async fn pass(&self, key: &Key, app: &MyApp, owner: &Owner) -> Result<Passed, Error> {
        let known = || {
            self.pods
                .child(&settle::pod_of(owner))
                .map(|child| child.report)
        };
        let pod = || {
            known()
                .filter(|seen| owner.claim(&seen.marks, |uid| self.apps.lives(uid)) == Claim::Ours)
        };
        if app.spec.suspend.unwrap_or_default() {
            return Ok(Passed::with(Standing::suspended(pod()), Outcome::Done));
        }
        match build::validate(app) {
            Ok(wanted) => match self.settle(key, app, owner, &wanted).await {
                Err(Error::WritePod(trouble)) => {
                    let child = self.pods.child(&settle::pod_of(owner));
                    self.note(key, |notes| {
                        notes.doubted = child.as_ref().map(settle::state);
                    });
                    settle::refused(trouble, pod())
                }
                passed => passed,
            },
            Err(invalid) => Ok(Passed::with(
                Standing::invalid(invalid, pod()),
                Outcome::Done,
            )),
        }
    }

    async fn write(&self, key: &Key, app: &MyApp, standing: &Standing) -> Result<(), Error> {
        let generation = app.metadata.generation.unwrap_or_default();
        let status = standing.status(app.status.as_ref(), generation, Time(Timestamp::now()));
        let api: Api<MyApp> = Api::namespaced(self.client.clone(), &key.namespace);
        let written = self
            .written
            .status(&api, MANAGER, app, &status)
            .await
            .map_err(Error::WriteStatus)?;
        if written.is_some() {
            self.tell(key, app, standing);
        }
        Ok(())
    }

    /// An Event for each reason that lasts, once, and one when all is well again.
    fn tell(&self, key: &Key, app: &MyApp, standing: &Standing) {
        let Why { reason, message } = &standing.why;
        let then = app
            .status
            .as_ref()
            .and_then(|before| conditions::get(&before.conditions, READY));
        let then = then.map(|then| Why::new(&then.reason, &then.message));
        let same = then.as_ref().is_some_and(|then| then.reason == *reason);
        let was_ill = self.told.anything(key)
            || then.is_some_and(|then| then.reason != READY && then.is_news());
        let news = if standing.ready {
            was_ill
        } else {
            standing.why.is_news()
        };
        let generation = app.metadata.generation.unwrap_or_default();
        if news && self.told.is_news(key, generation, standing.ready, reason) && !same {
            let well = standing.ready || reason == SUSPENDED;
            self.events
                .standing(well, app.object_ref(&()), "Run", reason, message.clone());
        }
    }
}

impl Reconciler for MyApps {
    type Object = MyApp;
    type Error = Error;

    async fn reconcile(&self, app: Arc<MyApp>) -> Result<Outcome, Error> {
        let key = Key::of(app.as_ref());
        let app = self.written.newest(&key, app);
        // Its Pod goes after it: the garbage collector sees to that.
        if app.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let Some(owner) = Owner::of(app.as_ref()) else {
            return Ok(Outcome::Done);
        };
        self.pods.ready().await;
        let Passed { standing, end } = self.pass(&key, &app, &owner).await?;
        self.write(&key, &app, &standing).await?;
        end
    }

    fn gone(&self, key: &Key) {
        self.pods
            .forget(&Key::new(&key.namespace, &build::pod_name(&key.name)));
        self.retries.reset(key);
        self.written.forget(key);
        self.told.forget(key);
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}
