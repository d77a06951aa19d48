//! `AppService`: what was written is checked ([`validate`]), its objects are built ([`build`]) and put into the cluster
//! ([`settle`]), and what became of them is its status ([`standing`], [`pods`]).

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;
use kube::core::ApiResource;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::AppService;
use qm_api::app_service::{AppServiceStatus, GROUP, OLD_SPEC};
use qm_api::common::NAMES;
use qm_core::conditions::READY;
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::cache::Touched;
use qm_runtime::children::{Children, Trouble, Writer};
use qm_runtime::drift::CONTESTED;
use qm_runtime::events::Events;
use qm_runtime::manager::Manager;
use qm_runtime::owners::Owners;
use qm_runtime::ownership::Owner;
use qm_runtime::reconciler::{Class, Failure, Outcome, Reconciler};
use qm_runtime::told::Told;
use qm_runtime::written::Written;
use qm_runtime::{Key, apply};
use tracing::warn;

use self::pods::Pod;
use self::settle::{FORBIDDEN, Part, Problem, Running};
use self::standing::{InactiveScaling, PROGRESSING, Rollout, SUSPENDED, Served, Standing};
use crate::cli::Config;
use crate::controllers::pod;

pub mod build;
pub mod pods;
pub mod settle;
pub mod standing;
pub mod validate;

/// What the controller is called in logs and metrics.
pub const NAME: &str = "appservice";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<AppService>(
    NAME,
    &["d1b3460d30273576"],
    DelegatedAccess::Deployments,
    &[
        // Patched: the original program's annotation is taken away.
        Permission::namespaced(GROUP, &["appservices"], &["get", "list", "patch", "watch"]),
        Permission::namespaced(GROUP, &["appservices/status"], &["patch"]),
        // Asked for where owner references that block the owner's deletion are checked.
        Permission::namespaced(GROUP, &["appservices/finalizers"], &["update"]),
        // Never deleted; but OwnerReferencesPermissionEnforcement lets nobody else set its owner.
        Permission::namespaced("apps", &["deployments"], COMES_AND_GOES),
        Permission::namespaced("", &["services"], COMES_AND_GOES),
        Permission::namespaced("autoscaling", &["horizontalpodautoscalers"], COMES_AND_GOES),
        Permission::namespaced("networking.k8s.io", &["ingresses"], COMES_AND_GOES),
        Permission::namespaced("", &["pods"], &["list"]),
        EVENTS,
    ],
);
/// What is done to a child that an app may lose again.
const COMES_AND_GOES: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/appservice";
/// How many Pods of an app are asked why they do not run.
const PODS: u32 = 200;

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The apiserver does not take an object as it is.
    #[error("{0}")]
    Rejected(String),
    /// An object could not be read or written.
    #[error(transparent)]
    Unwritten(#[from] Trouble),
    /// The Pods could not be listed.
    #[error("the Pods could not be listed: {0}")]
    ListPods(#[source] kube::Error),
    /// The annotation of the original program could not be taken away.
    #[error("the annotation {OLD_SPEC} could not be taken away: {0}")]
    RemoveOldSpec(#[source] kube::Error),
    /// The status could not be written.
    #[error("the status could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::Rejected(_) => Class::Terminal,
            Self::Unwritten(trouble) => trouble.class(),
            Self::ListPods(error) | Self::RemoveOldSpec(error) | Self::WriteStatus(error) => {
                error.class()
            }
        }
    }
}

/// The controller.
pub struct AppServices {
    client: Client,
    apps: Owners<AppService>,
    deployments: Arc<Children<Deployment, Running>>,
    services: Arc<Children<Service, Served>>,
    autoscalers: Arc<Children<HorizontalPodAutoscaler, Option<InactiveScaling>>>,
    ingresses: Arc<Children<Ingress, ()>>,
    events: Events,
    written: Written<AppService>,
    told: Told,
    scaling_grace: Duration,
}

/// Hands the controller in.
///
/// # Errors
/// None.
#[allow(clippy::unnecessary_wraps)] // as every start function
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let apps = manager.kind::<AppService>(&KIND);
    let wake = || {
        let trigger = apps.trigger.clone();
        move |key: &Key| trigger.wake(key)
    };
    let events = manager.events(NAME);
    let corrected = manager.metrics.drift_corrections(NAME);
    let writer = Writer {
        names: &NAMES,
        manager: MANAGER,
        events: events.clone(),
        corrected,
        advice: settle::ADVICE,
    };
    let controller = Arc::new(AppServices {
        client: manager.client.clone(),
        apps: Owners::new(manager.client.clone(), apps.store.clone()),
        deployments: Children::new(manager, &writer, Running::of, wake()),
        services: Children::with_quirks(
            manager,
            &writer,
            Served::of,
            settle::SERVICE_QUIRKS,
            wake(),
        ),
        autoscalers: Children::new(manager, &writer, InactiveScaling::of, wake()),
        ingresses: Children::new(manager, &writer, |_| (), wake()),
        events,
        written: Written::new(apps.trigger.clone()),
        told: Told::default(),
        scaling_grace: config.timings.scaling_inactive_grace_period,
    });
    let (told, trigger) = (Arc::clone(&controller), apps.trigger.clone());
    manager.control(
        apps,
        controller,
        Vec::new(),
        move |touched, all_seen| match touched {
            Touched::Present(app) => {
                told.want();
                let key = Key::of(app.as_ref());
                // Otherwise told of again once all have been seen.
                if all_seen && !told.written.knows(&key, &app) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(app) => {
                let key = Key::of(app.as_ref());
                told.gone(&key);
                trigger.wake(&key);
            }
        },
    );
    Ok(())
}

impl AppServices {
    /// A replica that stands by watches what it will act on.
    fn want(&self) {
        self.deployments.want();
        self.services.want();
        self.autoscalers.want();
        self.ingresses.want();
    }

    fn api(&self, key: &Key) -> Api<AppService> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// The app without the original program's annotation, which is not read.
    async fn without_old_spec(
        &self,
        key: &Key,
        app: Arc<AppService>,
    ) -> Result<Arc<AppService>, Error> {
        if !app.annotations().contains_key(OLD_SPEC) {
            return Ok(app);
        }
        let api = self.api(key);
        let removed = [(OLD_SPEC, None)].into();
        let without = apply::annotate(&api, MANAGER, app.as_ref(), &removed);
        self.written
            .object(key, without)
            .await
            .map_err(Error::RemoveOldSpec)
    }

    /// What the Pods say of why they do not run.
    async fn trouble(&self, key: &Key) -> Result<Option<pod::Trouble>, Error> {
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let api: Api<Pod> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let mut page = ListParams::default()
            .labels(&format!("{}={}", build::APP, key.name))
            .limit(PODS);
        let mut asked = 0;
        loop {
            let pods = api.list(&page).await.map_err(Error::ListPods)?;
            // Pages come in the order of names, so the first Pod with a problem is in the first such page.
            let trouble = pods::trouble(&key.name, &pods);
            asked += pods.items.len();
            page.continue_token = pods.metadata.continue_.filter(|token| !token.is_empty());
            if trouble.is_some() || page.continue_token.is_none() || asked >= PODS as usize {
                return Ok(trouble);
            }
        }
    }

    async fn write(
        &self,
        key: &Key,
        app: &AppService,
        status: AppServiceStatus,
        said: bool,
    ) -> Result<(), Error> {
        match self
            .written
            .status(&self.api(key), MANAGER, app, &status)
            .await
        {
            Ok(None) => Ok(()),
            Ok(Some(_)) => {
                self.tell(key, app, app.status.as_ref(), &status, said);
                Ok(())
            }
            // An object whose scale is below zero has no status: Kubernetes lets nothing be written of it but its scale.
            Err(kube::Error::Api(refusal)) if refusal.code == 422 && app.spec.size < 0 => {
                // Nothing remembers what was said last but what was told.
                self.tell(key, app, None, &status, false);
                Err(Error::Rejected(refusal.message))
            }
            Err(error) => Err(Error::WriteStatus(error)),
        }
    }

    /// An Event for each change of the reason, and for each change of the words where they are `said` by us or the apiserver:
    /// those of Pods and Deployments name what comes and goes, and are told once. A rollout is told by its end.
    fn tell(
        &self,
        key: &Key,
        app: &AppService,
        before: Option<&AppServiceStatus>,
        status: &AppServiceStatus,
        said: bool,
    ) {
        let Some(now) = status.condition(READY) else {
            return;
        };
        let reason = now.reason.as_deref().unwrap_or_default();
        if reason == PROGRESSING {
            return;
        }
        let well = now.status == "True";
        let generation = app.metadata.generation.unwrap_or_default();
        let news = self.told.is_news(key, generation, well, reason) || said;
        let then = before.and_then(|before| before.condition(READY));
        let same = then.is_some_and(|then| {
            then.reason == now.reason && (!said || then.message == now.message)
        });
        if same || !news {
            return;
        }
        let note = now.message.clone().unwrap_or_default();
        if reason == FORBIDDEN {
            warn!(cause = note, "a child may not be written; will retry");
        }
        self.events.standing(
            well || reason == SUSPENDED,
            app.object_ref(&()),
            "Run",
            reason,
            note,
        );
    }
}

impl Reconciler for AppServices {
    type Object = AppService;
    type Error = Error;

    async fn reconcile(&self, app: Arc<AppService>) -> Result<Outcome, Error> {
        let key = Key::of(app.as_ref());
        let mut app = self.written.newest(&key, app);
        // What it has goes after it, by its owner references.
        let (None, Some(owner)) = (&app.metadata.deletion_timestamp, Owner::of(app.as_ref()))
        else {
            return Ok(Outcome::Done);
        };
        // The original program, which never wrote a status, left its annotation.
        let before = app.status.as_ref();
        let stood = before.and_then(|status| status.condition(READY));
        let contested = stood.filter(|ready| ready.reason.as_deref() == Some(CONTESTED));
        let owner = owner
            .fresh(before.is_none() && !app.annotations().contains_key(OLD_SPEC))
            .handled(before.and_then(|status| status.observed_generation))
            .contested(contested.and_then(|ready| ready.message.clone()));
        // Also where nothing is to be written: what there is stands in the status.
        self.deployments.ready().await;
        self.services.ready().await;
        let problem = if app.spec.suspend.unwrap_or_default() {
            Some(Problem::Suspended)
        } else {
            app = self.without_old_spec(&key, app).await?;
            match validate::check(&app) {
                // It holds four kinds of objects: too much for the stack of every pass.
                Ok(checked) => Box::pin(self.settle(&owner, &key, &app, &checked)).await?,
                Err(words) => Some(Problem::SpecInvalid(words)),
            }
        };
        let foreign =
            |it| matches!(&problem, Some(Problem::Conflict { parts, .. }) if parts.contains(&it));
        let rollout = self
            .deployments
            .report(&key, &key)
            .filter(|_| !foreign(Part::Deployment));
        let rollout = rollout.map(|running| running.rollout);
        let served = self
            .services
            .report(&key, &key)
            .filter(|_| !foreign(Part::Service));
        // Before its Deployment's controller has seen it, there are no Pods that could say anything.
        let asks = problem.is_none()
            && rollout
                .as_ref()
                .is_some_and(|rollout| rollout.seen && !rollout.is_complete());
        let trouble = if asks {
            self.trouble(&key).await
        } else {
            Ok(None)
        };
        let (trouble, unlisted) =
            trouble.map_or_else(|error| (None, Some(error)), |trouble| (trouble, None));
        let standing = match &problem {
            Some(problem) => Standing::not_ready(problem.reason(), problem.to_string()),
            None => rollout
                .as_ref()
                .unwrap_or(&Rollout::default())
                .standing(&key, trouble),
        };
        let generation = app.metadata.generation.unwrap_or_default();
        let now = Time(jiff::Timestamp::now());
        let scales = problem.is_none() && app.spec.autoscaling.is_some();
        let inactive = self
            .autoscalers
            .report(&key, &key)
            .flatten()
            .filter(|_| scales);
        let available = rollout.as_ref().and_then(Rollout::available_since);
        let (standing, grace) =
            standing.with_scaling(inactive.as_ref(), available, self.scaling_grace, now.0);
        let status = standing::status(
            app.status.as_ref(),
            &key.name,
            rollout,
            served,
            &standing,
            generation,
            now,
        );
        self.write(&key, &app, status, problem.is_some()).await?;
        match (problem, unlisted) {
            (Some(problem), _) => problem.outcome(),
            (None, Some(error)) => Err(error),
            (None, None) if asks => Ok(Outcome::Waiting),
            (None, None) => Ok(grace.map_or(Outcome::Done, Outcome::RequeueAfter)),
        }
    }

    fn gone(&self, key: &Key) {
        self.deployments.forget(key);
        self.services.forget(key);
        self.autoscalers.forget(key);
        self.ingresses.forget(key);
        self.written.forget(key);
        self.told.forget(key);
    }
}
