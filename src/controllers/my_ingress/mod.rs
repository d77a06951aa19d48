//! `MyIngress`: what its load balancer is to be ([`build`]), whose one is ([`tags`]), what is said of it ([`standing`]), and the
//! doing (`settle`, and `ending` when it is deleted).

use std::collections::BTreeSet;
use std::convert::identity;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use qm_api::MyIngress;
use qm_api::my_ingress::{Alb, FINALIZER, GROUP, ListenerStatus};
use qm_aws::elb::Elb;
use qm_aws::{Balancer, Cloud, Fault};
use qm_core::conditions::READY;
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::cache::Touched;
use qm_runtime::events::Events;
use qm_runtime::manager::Manager;
use qm_runtime::owners::{Owners, Unconfirmed};
use qm_runtime::ownership::Owner;
use qm_runtime::reconciler::{Class, Failure, Outcome, Reconciler};
use qm_runtime::written::Written;
use qm_runtime::{Key, Scope, finalizer};
use tokio::sync::OnceCell;

use self::backends::Backends;
use self::routes::Look;
use self::standing::{OUT_OF_SCOPE, SPEC_INVALID, SUSPENDED, Standing};
use self::tags::Mark;
use crate::cli::Config;

pub(crate) use self::settle::unlike;

pub mod backends;
pub mod build;
mod dropping;
mod ending;
mod found;
mod listener;
mod listeners;
pub mod routes;
mod settle;
pub mod standing;
pub mod tags;
mod writing;

/// What the controller is called in logs and metrics.
pub const NAME: &str = "myingress";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<MyIngress>(
    NAME,
    &["bfce22e9140a395e"],
    DelegatedAccess::Nothing,
    &[
        Permission::namespaced(GROUP, &["myingresses"], &["get", "list", "patch", "watch"]),
        Permission::namespaced(GROUP, &["myingresses/status"], &["patch"]),
        // That of kube-system has the UID that tells clusters apart.
        Permission::cluster_scoped("", &["namespaces"], &["get"]),
        // What listeners lead to.
        Permission::cluster_scoped("", &["nodes"], &["list", "watch"]),
        Permission::namespaced("", &["services"], &["get", "list", "watch"]),
        EVENTS,
    ],
);
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/myingress";
/// The namespace that lives as long as its cluster.
pub(crate) const OF_THE_CLUSTER: &str = "kube-system";

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// AWS does not do what it is asked for.
    #[error(transparent)]
    Cloud(#[from] Fault),
    /// The object may be gone.
    #[error(transparent)]
    Owner(#[from] Unconfirmed),
    /// It is not known which cluster this is.
    #[error("namespace {OF_THE_CLUSTER}, whose UID tells clusters apart, could not be read: {0}")]
    ReadCluster(#[source] kube::Error),
    /// A Service that a listener leads to could not be read.
    #[error("Service {0} could not be read: {1}")]
    ReadService(String, #[source] kube::Error),
    /// The object itself could not be written.
    #[error("the status or the finalizer could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::Cloud(fault) => fault.class(),
            Self::ReadCluster(kube::Error::Api(said))
            | Self::ReadService(_, kube::Error::Api(said))
                if said.code == 403 =>
            {
                Class::Slow
            }
            Self::Owner(unconfirmed) => unconfirmed.class(),
            Self::ReadCluster(error) | Self::ReadService(_, error) | Self::WriteStatus(error) => {
                error.class()
            }
        }
    }
}

/// The controller.
pub struct MyIngresses<C> {
    client: Client,
    scope: Scope,
    ingresses: Owners<MyIngress>,
    backends: Arc<Backends>,
    cloud: C,
    cluster: OnceCell<String>,
    events: Events,
    written: Written<MyIngress>,
    /// Those that were well, and of which the last look failed.
    doubted: Mutex<BTreeSet<Key>>,
    resync: Duration,
    shown_within: Duration,
}

/// A pass over one of them.
struct Pass {
    ingress: Arc<MyIngress>,
    /// What is known of its balancer; none if AWS was never asked for one.
    alb: Option<Alb>,
    /// What is known of its listeners: of each port that anything may be there for.
    listeners: Vec<ListenerStatus>,
    /// The status says nothing of it: it is new, or was lost.
    unknown: bool,
}

impl Pass {
    /// The ports that anything may be there for.
    fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.listeners.iter().map(|it| it.port)
    }

    fn listener(&self, port: u16) -> Option<&ListenerStatus> {
        self.listeners.iter().find(|it| it.port == port)
    }

    /// When AWS was last asked to create something of that port.
    fn requested_at(&self, port: u16) -> Option<Time> {
        self.listener(port)?.requested_at.clone()
    }

    fn set_requested_at(&mut self, port: u16, at: Option<Time>) {
        if let Some(listener) = self.listeners.iter_mut().find(|it| it.port == port) {
            listener.requested_at = at;
        }
    }

    /// Whether all was well with what is asked for now.
    fn was_well(&self) -> bool {
        self.ingress.status.as_ref().is_some_and(|status| {
            let ready = status
                .conditions
                .iter()
                .any(|it| it.type_ == READY && it.status == "True");
            ready && status.observed_generation == self.ingress.metadata.generation
        })
    }

    /// How a listener is of whose targets no more is known than before.
    fn look(&self, port: u16, reason: &'static str, words: impl Into<String>) -> Look {
        let before = self.listener(port).cloned().unwrap_or_default();
        let count = |count: u32| usize::try_from(count).unwrap_or_default();
        let look = Look {
            healthy: count(before.healthy),
            total: count(before.total),
            ..Look::default()
        };
        Look {
            port,
            reason,
            words: words.into(),
            ..look
        }
    }
}

/// Hands the controller in.
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let ingresses = manager.kind::<MyIngress>(&KIND);
    let (store, trigger) = (ingresses.store.clone(), ingresses.trigger.clone());
    let backends = Arc::new(Backends::new(trigger.clone()));
    let (newest, others) = (manager.watches.clone(), manager.others.clone());
    let nodes = vec![(None, Api::all(manager.client.clone()))];
    manager.look::<Node, _>(nodes, &newest, &backends.wanted, &backends, identity);
    let services = manager.scope.places(&manager.client);
    manager.look::<PartialObjectMeta<Service>, _>(
        services,
        &others,
        &backends.wanted,
        &backends,
        identity,
    );
    let timings = &config.timings;
    let (resync, shown_within) = (timings.aws_resync, timings.aws_shown_within);
    let controller = Arc::new(MyIngresses {
        client: manager.client.clone(),
        scope: manager.scope.clone(),
        backends,
        ingresses: Owners::new(manager.client.clone(), store.clone()),
        cloud: Elb::new(
            manager.fence.clone(),
            manager.metrics.clone(),
            &timings.aws(),
        ),
        cluster: OnceCell::new(),
        events: manager.events(NAME),
        written: Written::new(trigger.clone()),
        doubted: Mutex::default(),
        resync,
        shown_within,
    });
    let told = Arc::clone(&controller);
    manager.control(
        ingresses,
        controller,
        Vec::new(),
        move |touched, all_seen| match touched {
            Touched::Present(ingress) => {
                let key = Key::of(ingress.as_ref());
                if told.scope == Scope::Cluster {
                    told.backends.follow(&key, &ingress);
                }
                if all_seen && !told.written.knows(&key, &ingress) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(ingress) => {
                let key = Key::of(ingress.as_ref());
                told.gone(&key);
                trigger.wake(&key);
                // One of the same name in another namespace may have waited for the balancer's.
                for other in store
                    .state()
                    .iter()
                    .filter(|other| other.name_any() == *key.name)
                {
                    trigger.wake(&Key::of(other.as_ref()));
                }
            }
        },
    );
    Ok(())
}

impl<C: Cloud> MyIngresses<C> {
    fn api(&self, ingress: &MyIngress) -> Api<MyIngress> {
        Api::namespaced(
            self.client.clone(),
            &ingress.namespace().unwrap_or_default(),
        )
    }

    /// Why it is not for this operator, if it is not.
    fn out_of_scope(&self, ingress: &MyIngress) -> Option<String> {
        let reaches = self.scope == Scope::Cluster || ingress.spec.listeners.is_empty();
        (!reaches).then(|| {
            "spec.listeners lead to the cluster's nodes, which needs an operator without --watch-namespace: take them out, and \
             make listeners by other means"
                .into()
        })
    }

    /// UID of this cluster.
    async fn cluster(&self) -> Result<&str, Error> {
        let read = async || {
            let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let namespace = namespaces
                .get_metadata(OF_THE_CLUSTER)
                .await
                .map_err(Error::ReadCluster)?;
            // The apiserver gives every object one.
            namespace
                .metadata
                .uid
                .ok_or(Error::Owner(Unconfirmed::Gone))
        };
        self.cluster.get_or_try_init(read).await.map(String::as_str)
    }

    /// Whether AWS may still come to show a balancer that it was asked for.
    fn may_yet_appear(&self, alb: &Alb) -> bool {
        is_within(self.shown_within, alb.requested_at.as_ref())
    }

    /// Has the finalizer be there before anything is in AWS.
    async fn guard(&self, pass: &mut Pass) -> Result<(), Error> {
        let api = self.api(&pass.ingress);
        let guarded = finalizer::put(
            &self.written,
            &api,
            MANAGER,
            Arc::clone(&pass.ingress),
            FINALIZER,
        );
        pass.ingress = guarded.await.map_err(Error::WriteStatus)?;
        Ok(())
    }

    /// The balancer of that name, as far as AWS shows. Where it is not the one that the status names, that one is looked for
    /// in the right place: its ARN proves nothing but region and account.
    async fn find(&self, pass: &Pass, name: &str) -> Result<Option<Balancer>, Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        let Some(arn) = alb.arn.as_deref() else {
            return Ok(self.cloud.find(name).await?);
        };
        let region = self.cloud.region().await?;
        if let Some(theirs) = qm_aws::region_of(arn).filter(|theirs| *theirs != region) {
            return Err(Fault::in_another_region(
                arn,
                theirs,
                &region,
                &Key::of(pass.ingress.as_ref()),
            )
            .into());
        }
        let found = self.cloud.find(name).await?;
        let account = match &found {
            Some(balancer) => qm_aws::account_of(&balancer.arn).map(Into::into),
            None if self.may_yet_appear(&alb) => None,
            None => Some(self.cloud.account().await?),
        };
        match (qm_aws::account_of(arn), account) {
            (Some(theirs), Some(asked)) if theirs != asked => {
                Err(
                    Fault::in_another_account(arn, theirs, &asked, &Key::of(pass.ingress.as_ref()))
                        .into(),
                )
            }
            _ => Ok(found),
        }
    }

    async fn act(&self, pass: &mut Pass, owner: &Owner) -> Result<(Standing, Outcome), Error> {
        let mark = Mark {
            owner,
            cluster: self.cluster().await?,
        };
        let wanted = build::wanted(&pass.ingress, &mark);
        self.settle(pass, &mark, &wanted).await
    }
}

/// Whether that was so short a time ago. The clock of who wrote it down may be ahead of ours.
fn is_within(time: Duration, asked: Option<&Time>) -> bool {
    asked.is_some_and(|asked| now().0.duration_since(asked.0).unsigned_abs() < time)
}

/// Now, as exact as the API keeps it.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

impl<C: Cloud> Reconciler for MyIngresses<C> {
    type Object = MyIngress;
    type Error = Error;

    async fn reconcile(&self, ingress: Arc<MyIngress>) -> Result<Outcome, Error> {
        let ingress = self.written.newest(&Key::of(ingress.as_ref()), ingress);
        let Some(owner) = Owner::of(ingress.as_ref()) else {
            return Ok(Outcome::Done);
        };
        let guarded = finalizer::is_on(ingress.as_ref(), FINALIZER);
        let alb = ingress
            .status
            .as_ref()
            .and_then(|status| status.alb.clone());
        let listeners = ingress
            .status
            .as_ref()
            .map(|status| status.listeners.clone())
            .unwrap_or_default();
        let unknown = alb.is_none();
        let mut pass = Pass {
            ingress,
            alb,
            listeners,
            unknown,
        };
        if pass.ingress.metadata.deletion_timestamp.is_some() {
            return if guarded {
                self.finish(&mut pass, &owner).await
            } else {
                Ok(Outcome::Done)
            };
        }
        let blocked = if pass.ingress.spec.suspend.unwrap_or_default() {
            Some((
                SUSPENDED,
                "spec.suspend is true: the load balancer is left alone".into(),
            ))
        } else {
            let refused = build::check(&pass.ingress)
                .err()
                .map(|words| (SPEC_INVALID, words));
            refused.or_else(|| {
                self.out_of_scope(&pass.ingress)
                    .map(|words| (OUT_OF_SCOPE, words))
            })
        };
        if let Some((reason, words)) = blocked {
            self.write(&pass, &Standing::not(pass.alb.clone(), reason, words))
                .await?;
            return Ok(Outcome::Done);
        }
        let came = self.act(&mut pass, &owner).await;
        self.close(&pass, came).await
    }

    /// Nobody tells of what changes in AWS.
    fn resync(&self, _: Duration) -> Duration {
        self.resync
    }

    fn gone(&self, key: &Key) {
        self.backends.forget(key);
        self.doubted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
        self.written.forget(key);
    }
}
