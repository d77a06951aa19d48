//! `ConfigMapSync`: where the copies are to be ([`plan`]), what each is to be ([`copy`]), and what came of it ([`standing`]).
//! What the watches show ([`index`]) wakes whom it concerns. At its end its copies go before it does (`ending`).

use std::collections::{BTreeSet, HashMap};
use std::convert::identity;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use qm_api::ConfigMapSync;
use qm_api::config_map_sync::{FINALIZER, GROUP};
use qm_core::conditions::{self, READY};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::cache::Touched;
use qm_runtime::drift::Drift;
use qm_runtime::events::Events;
use qm_runtime::manager::Manager;
use qm_runtime::owners::{Owners, Unconfirmed};
use qm_runtime::ownership::Owner;
use qm_runtime::reconciler::{Class, Failure, Reconciler, Requeue};
use qm_runtime::written::Written;
use qm_runtime::{Key, Scope, finalizer};
use tracing::warn;

use self::copies::{Copies, Trouble};
use self::index::{Index, Presence};
use self::plan::{Plan, Refused};
use self::standing::{Came, Reason, Snag};
use crate::cli::Config;

pub mod copies;
pub mod copy;
mod ending;
pub mod index;
pub mod plan;
pub mod standing;

/// What the controller is called in logs and metrics.
pub const NAME: &str = "configmapsync";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<ConfigMapSync>(
    NAME,
    &["bf180d03b0470198"],
    DelegatedAccess::ConfigMaps,
    &[
        Permission::namespaced(
            GROUP,
            &["configmapsyncs"],
            &["get", "list", "patch", "watch"],
        ),
        Permission::namespaced(GROUP, &["configmapsyncs/status"], &["patch"]),
        // Asked for where owner references that block the owner's deletion are checked.
        Permission::namespaced(GROUP, &["configmapsyncs/finalizers"], &["update"]),
        Permission::namespaced(
            "",
            &["configmaps"],
            &["create", "delete", "get", "list", "update", "watch"],
        ),
        Permission::cluster_scoped("", &["namespaces"], &["list", "watch"]),
        EVENTS,
    ],
);
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/configmapsync";

/// How many copies of one sync are written at once.
const AT_ONCE: usize = 16;

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source could not be read.
    #[error("the source could not be read: {0}")]
    ReadSource(#[source] kube::Error),
    /// A copy could not be read or written.
    #[error("copy {0} could not be written: {1}")]
    WriteCopy(Key, #[source] kube::Error),
    /// The object may be gone.
    #[error(transparent)]
    Owner(Unconfirmed),
    /// The copies could not be listed.
    #[error("the copies could not be listed: {0}")]
    ListCopies(#[source] kube::Error),
    /// The object itself could not be written.
    #[error("the status or the finalizer could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::ReadSource(error)
            | Self::WriteCopy(_, error)
            | Self::ListCopies(error)
            | Self::WriteStatus(error) => error.class(),
            Self::Owner(unconfirmed) => unconfirmed.class(),
        }
    }
}

/// Whether anything was written for a copy.
type Served = Result<bool, Trouble>;

/// What a pass did.
struct Pass {
    came: Came,
    wrote: bool,
    /// Whether no watch tells when it is over.
    asks: bool,
    /// What is worth another try.
    failure: Option<Error>,
}

/// What came of several copies.
#[derive(Default)]
struct Done {
    wrote: bool,
    snags: Vec<Snag>,
    failure: Option<Error>,
}

impl Done {
    fn of(copies: Vec<(Key, Served)>) -> Self {
        let mut all = Self::default();
        for (copy, result) in copies {
            let (reason, words) = match result {
                Ok(written) => {
                    all.wrote |= written;
                    continue;
                }
                Err(Trouble::Snag { reason, words }) => (reason, words),
                Err(Trouble::Failed(error)) => {
                    let words = error.to_string();
                    all.failure = Some(Error::WriteCopy(copy.clone(), error));
                    (Reason::WriteFailed, words)
                }
                Err(Trouble::Owner(unconfirmed)) => {
                    let words = unconfirmed.to_string();
                    all.failure = Some(Error::Owner(unconfirmed));
                    (Reason::WriteFailed, words)
                }
            };
            all.snags.push(Snag {
                namespace: copy.namespace.to_string(),
                reason,
                words,
            });
        }
        all
    }
}

/// The controller.
pub struct ConfigMapSyncs {
    client: Client,
    scope: Scope,
    /// Copies may be written where Kubernetes itself lives.
    protected: bool,
    no_cross_namespace_refs: bool,
    index: Arc<Index>,
    copies: Copies,
    events: Events,
    written: Written<ConfigMapSync>,
    /// When something was last written of which no status tells yet.
    unsaid: Mutex<HashMap<Key, Time>>,
}

/// Hands the controller in.
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let syncs = manager.kind::<ConfigMapSync>(&KIND);
    let resync = config.timings.resync;
    let index = Arc::new(Index::new(&manager.scope, resync, syncs.trigger.clone()));
    let (newest, others) = (manager.watches.clone(), manager.others.clone());
    manager.look::<PartialObjectMeta<ConfigMap>, _>(
        manager.scope.places(&manager.client),
        &others,
        &index.wanted,
        &index,
        identity,
    );
    if manager.scope == Scope::Cluster {
        let everywhere = vec![(None, Api::all(manager.client.clone()))];
        manager.look::<PartialObjectMeta<Namespace>, _>(
            everywhere,
            &newest,
            &index.wanted,
            &index,
            identity,
        );
    }
    let owners = Owners::new(manager.client.clone(), syncs.store.clone());
    let events = manager.events(NAME);
    let corrected = manager.metrics.drift_corrections(NAME);
    let drift = Drift::new(
        &manager.settings.timings,
        events.clone(),
        corrected,
        copies::ADVICE,
    );
    let controller = Arc::new(ConfigMapSyncs {
        client: manager.client.clone(),
        scope: manager.scope.clone(),
        protected: config.protected_destinations,
        no_cross_namespace_refs: config.no_cross_namespace_refs,
        copies: Copies::new(manager.client.clone(), Arc::clone(&index), owners, drift),
        index,
        events,
        written: Written::new(syncs.trigger.clone()),
        unsaid: Mutex::default(),
    });
    let (told, trigger) = (Arc::clone(&controller), syncs.trigger.clone());
    manager.control(
        syncs,
        controller,
        Vec::new(),
        move |touched, all_seen| match touched {
            Touched::Present(sync) => {
                let key = Key::of(sync.as_ref());
                told.index.follow(&key, &sync, told.plan(&sync).ok());
                if all_seen && !told.written.knows(&key, &sync) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(sync) => {
                let key = Key::of(sync.as_ref());
                told.gone(&key);
                trigger.wake(&key);
            }
        },
    );
    Ok(())
}

impl ConfigMapSyncs {
    fn plan(&self, sync: &ConfigMapSync) -> Result<Plan, Refused> {
        let only = sync
            .metadata
            .namespace
            .as_deref()
            .filter(|_| self.no_cross_namespace_refs);
        Plan::of(&sync.spec, &self.scope, self.protected, only)
    }

    fn api(&self, key: &Key) -> Api<ConfigMapSync> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Copies what is to be copied.
    async fn sync(
        &self,
        key: &Key,
        sync: &ConfigMapSync,
        owner: &Owner,
        plan: &Plan,
    ) -> Result<Pass, Error> {
        let blocked = |reason: Reason, words| {
            let asks = reason.is_asked_for_again();
            Ok(Pass {
                came: Came::Blocked { reason, words },
                wrote: false,
                asks,
                failure: None,
            })
        };
        self.index.ready().await;
        if plan.selects()
            && let Some(why) = self.index.blind()
        {
            return blocked(
                Reason::Forbidden,
                format!("the namespaces that the selector means are not known: {why}"),
            );
        }
        if let Some(links) = self.index.closes_loop(key) {
            return blocked(Reason::Loop, standing::closed_loop(key, &links));
        }
        let destinations = self.index.destinations(plan);
        let wanted: BTreeSet<Key> = destinations
            .iter()
            .map(|(namespace, _)| Key::new(namespace, &plan.name))
            .collect();
        let source: Api<ConfigMap> = Api::namespaced(self.client.clone(), &plan.source.namespace);
        let source = match source.get_opt(&plan.source.name).await {
            Ok(Some(source)) => source,
            Ok(None) => {
                let message = if self.index.lacks_source_namespace(plan) {
                    let Key {
                        namespace, name, ..
                    } = &plan.source;
                    format!(
                        "namespace {namespace} of ConfigMap {name} does not exist: correct spec.sourceNamespace, or create \
                         both (existing copies are kept)"
                    )
                } else {
                    format!(
                        "ConfigMap {} does not exist: create it (existing copies are kept)",
                        plan.source
                    )
                };
                let ours = self.ours(owner);
                let there = ours
                    .iter()
                    .filter(|copy| wanted.contains(copy))
                    .cloned()
                    .collect();
                let (cleared, _) = self.clear(owner, sync, ours, &wanted, &there).await;
                let Done {
                    wrote,
                    snags,
                    failure,
                } = Done::of(cleared);
                let came = Came::Blocked {
                    reason: Reason::SourceNotFound,
                    words: message,
                };
                return Ok(Pass {
                    came,
                    wrote,
                    asks: !snags.is_empty(),
                    failure,
                });
            }
            Err(kube::Error::Api(said)) if said.code == 403 => {
                return blocked(Reason::Forbidden, said.message.clone());
            }
            Err(error) => return Err(Error::ReadSource(error)),
        };
        let digest = copy::digest(&source, &sync.spec, owner);
        let serve = |(namespace, presence): (String, Presence)| {
            let copy = Key::new(&namespace, &plan.name);
            self.serve(owner, sync, &source, &digest, copy, presence)
        };
        let mut done: Vec<_> = stream::iter(destinations.into_iter().map(serve))
            .buffered(AT_ONCE)
            .collect()
            .await;
        let right = done
            .iter()
            .filter(|(_, result)| result.is_ok())
            .map(|(copy, _)| copy.clone())
            .collect();
        let (cleared, stay) = self
            .clear(owner, sync, self.ours(owner), &wanted, &right)
            .await;
        done.extend(cleared);
        let Done {
            wrote,
            mut snags,
            failure,
        } = Done::of(done);
        snags.extend(plan.refused.iter().map(|(namespace, refused)| Snag {
            namespace: namespace.clone(),
            reason: reason(refused),
            words: refused.to_string(),
        }));
        let blind = self.index.blind().is_some();
        let asks = snags
            .iter()
            .any(|snag| blind || snag.reason.is_asked_for_again());
        Ok(Pass {
            came: Came::Copied {
                destinations: wanted.len() + plan.refused.len(),
                right: right.len(),
                stay,
                snags,
            },
            wrote,
            asks,
            failure,
        })
    }

    /// The copies that it has, wanted or not.
    fn ours(&self, owner: &Owner) -> Vec<Key> {
        self.copies.those(owner)
    }

    /// Takes away what of `ours` is not wanted any more, once what takes its place is `there`; of each copy, whether there was
    /// one, and how many stay.
    async fn clear(
        &self,
        owner: &Owner,
        sync: &ConfigMapSync,
        ours: Vec<Key>,
        wanted: &BTreeSet<Key>,
        there: &BTreeSet<Key>,
    ) -> (Vec<(Key, Served)>, usize) {
        let others = ours.into_iter().filter(|copy| !wanted.contains(copy));
        let (stay, go): (Vec<_>, Vec<_>) =
            others.partition(|copy| plan::stays(copy, wanted, there));
        (self.release(owner, sync, go).await, stay.len())
    }

    /// Deletes these copies, or takes the mark off them. One that cannot be released holds up no other.
    async fn release(
        &self,
        owner: &Owner,
        sync: &ConfigMapSync,
        copies: impl IntoIterator<Item = Key>,
    ) -> Vec<(Key, Served)> {
        let released = copies.into_iter().map(|copy| async move {
            let result = self.copies.release(owner, &sync.spec, &copy).await;
            (copy, result)
        });
        stream::iter(released).buffered(AT_ONCE).collect().await
    }

    /// Serves one destination; whether anything was written.
    async fn serve(
        &self,
        owner: &Owner,
        sync: &ConfigMapSync,
        source: &ConfigMap,
        digest: &str,
        copy: Key,
        presence: Presence,
    ) -> (Key, Served) {
        let result = match presence {
            Presence::Missing => Err(Trouble::snag(
                Reason::NamespaceNotFound,
                format!("create namespace {}", copy.namespace),
            )),
            Presence::Going => Err(Trouble::snag(
                Reason::NamespaceTerminating,
                "the namespace is being deleted".into(),
            )),
            Presence::There => {
                self.copies
                    .settle(owner, &sync.spec, source, digest, &copy)
                    .await
            }
        };
        (copy, result)
    }

    fn unsaid(&self) -> MutexGuard<'_, HashMap<Key, Time>> {
        self.unsaid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(
        &self,
        key: &Key,
        sync: &ConfigMapSync,
        came: &Came,
        wrote: bool,
    ) -> Result<(), Error> {
        let now = Time(jiff::Timestamp::now());
        if wrote {
            self.unsaid().insert(key.clone(), now.clone());
        }
        let wrote = self.unsaid().get(key).cloned();
        let generation = sync.metadata.generation.unwrap_or_default();
        let status = standing::status(sync.status.as_ref(), came, wrote, generation, now);
        let written = self
            .written
            .status(&self.api(key), MANAGER, sync, &status)
            .await
            .map_err(Error::WriteStatus)?;
        if written.is_none() {
            return Ok(());
        }
        self.unsaid().remove(key);
        let before = sync
            .status
            .as_ref()
            .map(|before| &*before.conditions)
            .unwrap_or_default();
        if let Some(now) = conditions::news(before, &status.conditions, READY) {
            let well = now.status == "True" || now.reason == Reason::Suspended.to_string();
            if now.reason == Reason::Forbidden.to_string() {
                warn!(
                    cause = now.message,
                    "a ConfigMap may not be read or written; will retry"
                );
            }
            self.events.standing(
                well,
                sync.object_ref(&()),
                "Copy",
                &now.reason,
                now.message.clone(),
            );
        }
        Ok(())
    }
}

fn reason(refused: &Refused) -> Reason {
    match refused {
        Refused::SpecInvalid(_) => Reason::SpecInvalid,
        Refused::OutOfScope(_) => Reason::OutOfScope,
        Refused::DestinationRefused(_) => Reason::DestinationRefused,
    }
}

impl Reconciler for ConfigMapSyncs {
    type Object = ConfigMapSync;
    type Error = Error;

    async fn reconcile(&self, sync: Arc<ConfigMapSync>) -> Result<Requeue, Error> {
        let key = Key::of(sync.as_ref());
        let sync = self.written.newest(&key, sync);
        let Some(owner) = Owner::of(sync.as_ref()) else {
            return Ok(Requeue::OnChange);
        };
        let owner = owner.fresh(sync.status.is_none());
        if sync.meta().deletion_timestamp.is_some() {
            return self.finish(&key, &sync, &owner).await;
        }
        let plan = if sync.spec.suspend.unwrap_or_default() {
            Err((
                Reason::Suspended,
                "nothing is copied while spec.suspend is true".into(),
            ))
        } else {
            self.plan(&sync)
                .map_err(|refused| (reason(&refused), refused.to_string()))
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err((reason, words)) => {
                self.write(&key, &sync, &Came::Blocked { reason, words }, false)
                    .await?;
                return Ok(Requeue::OnChange);
            }
        };
        let api = self.api(&key);
        let guarded = finalizer::put(&self.written, &api, MANAGER, sync, FINALIZER);
        let sync = guarded.await.map_err(Error::WriteStatus)?;
        let Pass {
            came,
            wrote,
            asks,
            failure,
        } = self.sync(&key, &sync, &owner, &plan).await?;
        self.write(&key, &sync, &came, wrote).await?;
        match failure {
            Some(failure) => Err(failure),
            None if asks => Ok(Requeue::Poll),
            None => Ok(Requeue::OnChange),
        }
    }

    fn gone(&self, key: &Key) {
        self.index.forget(key);
        self.written.forget(key);
        self.unsaid().remove(key);
    }
}
