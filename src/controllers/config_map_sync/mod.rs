//! `ConfigMapSync`: copies of a `ConfigMap` in other namespaces.
//!
//! [`plan`] lists the desired copies, [`copy`] computes their content and how an existing one is made to match, and
//! [`status`] reports the results. Watch events ([`index`]) wake the syncs that they concern. The copies are listed
//! (`lists`) and deleted before their sync is (`finalize`).

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::PartialObjectMeta;
use qm_api::ConfigMapSync;
use qm_api::config_map_sync::{ConfigMapSyncStatus, GROUP};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_core::time::whole_seconds;
use qm_runtime::children::{Children, Ensured};
use qm_runtime::controller::{Context, Controller};
use qm_runtime::drift::Advice;
use qm_runtime::error::{Class, Error, FORBIDDEN, NAMESPACE_TERMINATING, Result, WRITE_FAILED};
use qm_runtime::manager::Manager;
use qm_runtime::outcome::{Outcome, Progress, Requeue};
use qm_runtime::raw_object::{LARGE, RawObject};
use qm_runtime::{ObjectKey, WatchScope};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use self::copy::DesiredCopy;
use self::index::{NamespacePresence, SyncIndex};
use self::lists::CopyLists;
use self::plan::{CopyPlan, PlanError};
use self::status::{CopyProblem, CopySummary, LOOP, SOURCE_NOT_FOUND};
use self::turns::Turns;
use super::reasons::NAMESPACE_NOT_FOUND;
use crate::cli::RunConfig;

pub mod copy;
mod finalize;
pub mod index;
mod lists;
pub mod plan;
pub mod status;
mod turns;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "configmapsync";
pub const KIND: KindInfo = KindInfo::of::<ConfigMapSync>(
    NAME,
    &["b43bdc1f689dc8aa", "5cc7bb5d397f4e42"],
    DelegatedAccess::ConfigMaps,
    &[
        Permission::namespaced(
            GROUP,
            &["configmapsyncs"],
            &["get", "list", "patch", "watch"],
        ),
        Permission::namespaced(GROUP, &["configmapsyncs/status"], &["patch"]),
        // Required where admission checks owner references that block the owner's deletion.
        Permission::namespaced(GROUP, &["configmapsyncs/finalizers"], &["update"]),
        Permission::namespaced(
            "",
            &["configmaps"],
            &["create", "delete", "get", "list", "update", "watch"],
        ),
        Permission::cluster_scoped("", &["namespaces"], &["list", "watch"]),
        EVENTS,
    ],
)
// Apps are deleted before the ConfigMaps that they read.
.with_uninstall_rank(60);

/// Changes to make instead of editing a copy, by field.
const ADVICE: Advice = &[("", "change the source instead")];
/// Maximum number of concurrent writes of the copies of one sync.
const MAX_CONCURRENT_WRITES: usize = 16;
/// Maximum number of copies in memory, over all syncs: memory holds each several times, as read, as sent and as
/// returned. The copies of a large source are written one at a time, and only one large source is in memory: with many
/// short keys, a `ConfigMap` of 1 MiB takes 10 MB.
const MAX_COPIES_IN_MEMORY: usize = 6;
/// Maximum time of the requests of one copy. An admission webhook may take 30 s, and must not block other copies.
const COPY_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a sync that waits for its turn or for lists tries again, if the sync that is next is deleted.
const TURN_RETRY: Duration = Duration::from_secs(30);

const UNREADABLE: &str = "the source could not be read";

pub(crate) struct ConfigMapSyncs {
    scope: WatchScope,
    /// True if copies may go to the namespaces of Kubernetes itself.
    allow_protected: bool,
    no_cross_namespace_refs: bool,
    /// Time after which the runtime drops a reconcile, and the results of its writes with it. The writes of all copies
    /// end after two thirds of this time, and the removals that follow them shortly before its end.
    timeout: Duration,
    index: Arc<SyncIndex>,
    copies: Children<ConfigMap, ()>,
    lists: CopyLists,
    /// Permits for copies in memory.
    copy_permits: Semaphore,
    turns: Turns,
    /// Time of each sync's last write of copies, if the sync's status does not have that time yet.
    unrecorded: Mutex<HashMap<ObjectKey, Time>>,
    /// The copies of each sync whose last requests took too long.
    slow: Mutex<HashMap<ObjectKey, BTreeSet<ObjectKey>>>,
}

/// Totals of the results of several copies.
#[derive(Default)]
struct CopyTotals {
    has_written: bool,
    problems: Vec<CopyProblem>,
    error: Option<Error>,
}

/// Adds the controller.
pub(super) fn add_to(manager: &mut Manager, config: &RunConfig) -> anyhow::Result<()> {
    manager.add(|setup| {
        let cache = setup.child_cache();
        let index = Arc::new(SyncIndex::new(
            &setup.manager.scope,
            setup.manager.namespaces_sync.clone(),
            Arc::clone(&cache),
            setup.trigger.clone(),
        ));
        let copies = setup.children_by_metadata(cache, index.map_lists.clone(), ADVICE);
        let watch_needed = &setup.watch_needed;
        let manager = &mut *setup.manager;
        let streaming = manager.streaming_watch_config.clone();
        let maps = manager.scope.apis(&manager.client);
        manager.watch_resource::<PartialObjectMeta<ConfigMap>>(
            maps,
            &streaming,
            watch_needed,
            &index,
            &index.map_lists,
        );
        if index.namespace_lists.is_some() {
            manager.watch_namespaces(watch_needed, Arc::clone(&index));
        }
        Ok(ConfigMapSyncs {
            scope: manager.scope.clone(),
            lists: CopyLists::new(manager.scope.clone(), setup.trigger.clone()),
            allow_protected: config.allow_protected_destinations,
            no_cross_namespace_refs: config.no_cross_namespace_refs,
            timeout: config.timings.reconcile_timeout,
            index,
            copies,
            copy_permits: Semaphore::new(MAX_COPIES_IN_MEMORY),
            turns: Turns::new(setup.trigger.clone()),
            unrecorded: Mutex::default(),
            slow: Mutex::default(),
        })
    })
}

impl Controller for ConfigMapSyncs {
    type Kind = ConfigMapSync;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = copy::FIELD_MANAGER;

    async fn reconcile(&self, cx: &mut Context<ConfigMapSync>) -> Result<Outcome> {
        let started = Instant::now();
        let plan = match self.plan(&cx.object) {
            Ok(plan) => plan,
            Err(error) => {
                return Ok(Outcome {
                    progress: Progress::Stalled,
                    ..blocked(cx, error.reason(), error.to_string())
                });
            }
        };
        cx.add_finalizer().await?;
        self.index.ready().await;
        if plan.selects()
            && let Some(why) = self.index.namespaces_unknown()
        {
            let message = format!("the selected namespaces are unknown: {why}");
            return Ok(blocked(cx, FORBIDDEN, message));
        }
        if let Some(links) = self.index.older_syncs_in_loop(&cx.key) {
            let message = status::closed_loop(&cx.key, &links);
            return Ok(blocked(cx, LOOP, message));
        }
        let destinations = self.index.destinations(&plan);
        let desired: BTreeSet<ObjectKey> = destinations
            .iter()
            .map(|(namespace, _)| ObjectKey::new(namespace, &plan.name))
            .collect();
        let maps = RawObject::api::<ConfigMap>(cx.client().clone(), &plan.source.namespace);
        let read = maps.get_opt(&plan.source.name).await;
        let is_large = matches!(&read, Ok(Some(source)) if source.decoded_size() > LARGE);
        if !is_large {
            self.turns.leave(&cx.key);
        }
        let read = match read {
            Ok(Some(source)) => source,
            Ok(None) => return self.without_source(cx, &plan, &desired, started).await,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Ok(blocked(cx, FORBIDDEN, status.message.clone()));
            }
            Err(error) => return Err(Error::api(UNREADABLE)(error)),
        };
        let turn = is_large.then(|| self.turns.take(&cx.key));
        if let Some(None) = turn {
            return Ok(Outcome::unchanged().requeue(Requeue::InFlight(TURN_RETRY)));
        }
        let decoded = read.decode_as::<ConfigMap>();
        let mut source =
            decoded.map_err(|error| Error::api(UNREADABLE)(kube::Error::SerdeError(error)))?;
        drop(read);
        source.metadata.managed_fields = None;
        let deadline = started + self.timeout * 2 / 3;
        let digest = copy::digest(&source, &cx.object.spec, &cx.owner);
        let destinations = destinations
            .into_iter()
            .map(|(namespace, presence)| (ObjectKey::new(&namespace, &plan.name), presence));
        let destinations = self.slow_last(&cx.key, destinations.collect(), |(copy, _)| copy);
        let ensured = destinations.into_iter().map(|(key, presence)| {
            let copy = DesiredCopy {
                key,
                source: &source,
                spec: &cx.object.spec,
                owner: &cx.owner,
                digest: &digest,
            };
            self.ensure(cx, copy, presence, deadline)
        });
        let max_concurrent = if is_large { 1 } else { MAX_CONCURRENT_WRITES };
        let mut results = run_sorted(ensured, max_concurrent).await;
        let matching: BTreeSet<_> = results
            .iter()
            .filter(|(_, result)| result.is_ok())
            .map(|(copy, _)| copy.clone())
            .collect();
        let owned = self.copies.owned_keys(cx);
        let removals = self.remove_undesired(cx, &plan, owned, &desired, &matching, started);
        let (removed, kept) = removals.await;
        results.extend(removed);
        let CopyTotals {
            has_written,
            mut problems,
            error,
        } = CopyTotals::of(results);
        problems.extend(plan.rejected.iter().map(|(namespace, error)| CopyProblem {
            namespace: namespace.clone(),
            reason: error.reason().into(),
            message: error.to_string(),
        }));
        let is_unknown = self.index.namespaces_unknown().is_some();
        let is_polled = problems
            .iter()
            .any(|it| is_unknown || status::is_polled(&it.reason));
        let summary = CopySummary {
            destinations: desired.len() + plan.rejected.len(),
            matching: matching.len(),
            kept,
            problems,
        };
        self.record_writes(cx, has_written);
        let mut outcome =
            status::outcome(&mut cx.status, &summary, whole_seconds(Timestamp::now()));
        if is_polled {
            outcome.requeue = Requeue::Poll;
        }
        let is_reported = cx.is_failing || has_lasting(&summary.problems);
        with_error(outcome, error, is_reported)
    }

    async fn finalize(&self, cx: &mut Context<ConfigMapSync>) -> Result<Option<Outcome>> {
        self.delete_copies(cx).await
    }

    fn may_own(&self, status: &ConfigMapSyncStatus) -> bool {
        // The original program, which sets no generation, also recorded a time.
        status.last_sync_time.is_some() && status.observed_generation.is_some()
    }

    fn fill_status(&self, cx: &mut Context<ConfigMapSync>) {
        if cx.object.spec.suspend.unwrap_or_default() {
            // The number of copies is unknown.
            (cx.status.destinations, cx.status.copies) = (None, None);
        }
    }

    fn on_applied(&self, sync: &Arc<ConfigMapSync>, _is_listed: bool) {
        // A sync that is being deleted copies nothing, and the admission policy does not check changes of its spec.
        let is_deleted = sync.metadata.deletion_timestamp.is_some();
        let plan = self.plan(sync).ok().filter(|_| !is_deleted);
        let key = ObjectKey::of(sync.as_ref());
        if plan.is_none() || sync.spec.suspend.unwrap_or_default() {
            self.turns.leave(&key);
        }
        self.index.follow(&key, sync, plan);
    }

    fn forget(&self, key: &ObjectKey) {
        self.index.forget(key);
        self.lists.forget(key);
        self.turns.leave(key);
        self.unrecorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
        self.slow
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

impl ConfigMapSyncs {
    fn plan(&self, sync: &ConfigMapSync) -> Result<CopyPlan, PlanError> {
        let namespace = sync.metadata.namespace.as_deref();
        let only = namespace.filter(|_| self.no_cross_namespace_refs);
        CopyPlan::of(&sync.spec, &self.scope, self.allow_protected, only)
    }

    /// Ends the reconcile of a sync whose source does not exist. The copies stay, except those that the spec no longer
    /// asks for.
    async fn without_source(
        &self,
        cx: &mut Context<ConfigMapSync>,
        plan: &CopyPlan,
        desired: &BTreeSet<ObjectKey>,
        started: Instant,
    ) -> Result<Outcome> {
        let ObjectKey { namespace, name } = &plan.source;
        let message = if self.index.lacks_source_namespace(plan) {
            format!(
                "namespace {namespace} of ConfigMap {name} does not exist: correct spec.sourceNamespace, or create both \
                 (existing copies are kept)"
            )
        } else {
            format!(
                "ConfigMap {} does not exist: create it (existing copies are kept)",
                plan.source
            )
        };
        let owned = self.copies.owned_keys(cx);
        let existing = owned.iter().filter(|copy| desired.contains(copy));
        let existing = existing.cloned().collect();
        let removals = self.remove_undesired(cx, plan, owned, desired, &existing, started);
        let (removed, _) = removals.await;
        let CopyTotals {
            has_written,
            problems,
            error,
        } = CopyTotals::of(removed);
        self.record_writes(cx, has_written);
        let mut outcome = blocked(cx, SOURCE_NOT_FOUND, message);
        if !problems.is_empty() {
            outcome.requeue = Requeue::Poll;
        }
        with_error(outcome, error, true)
    }

    /// Deletes or orphans the copies of `owned` that the spec no longer asks for, once their replacements exist. Returns
    /// the result for each copy, and how many stay.
    async fn remove_undesired(
        &self,
        cx: &Context<ConfigMapSync>,
        plan: &CopyPlan,
        owned: Vec<ObjectKey>,
        desired: &BTreeSet<ObjectKey>,
        existing: &BTreeSet<ObjectKey>,
        started: Instant,
    ) -> (Vec<(ObjectKey, Result<bool>)>, usize) {
        let undesired = owned
            .into_iter()
            .filter(|copy| !desired.contains(copy) && !plan.withholds(&copy.namespace));
        let (kept, removed): (Vec<_>, Vec<_>) =
            undesired.partition(|copy| plan::must_stay(copy, desired, existing));
        let removed = self.delete_or_orphan(cx, removed, started).await;
        (removed, kept.len())
    }

    /// Deletes these copies, or removes the ownership of those that stay: a former copy that is now the source stays, too.
    /// A copy that fails does not block the others. `started`: start of the reconcile.
    async fn delete_or_orphan(
        &self,
        cx: &Context<ConfigMapSync>,
        copies: impl IntoIterator<Item = ObjectKey>,
        started: Instant,
    ) -> Vec<(ObjectKey, Result<bool>)> {
        let spec = &cx.object.spec;
        let source = ObjectKey::new(&spec.source_namespace, &spec.config_map_name);
        let stays = |copy: &ObjectKey| spec.orphans() || *copy == source;
        let deadline = started + self.timeout * 11 / 12;
        let copies = self.slow_last(&cx.key, copies.into_iter().collect(), |copy| copy);
        let removed = copies.into_iter().map(|copy| async move {
            let requests = async {
                if stays(&copy) {
                    self.copies.disown(cx, &copy).await
                } else {
                    self.copies.delete_owned(cx, &copy).await
                }
            };
            let result = self.limited(&cx.key, &copy, deadline, requests).await;
            (copy, result)
        });
        run_sorted(removed, MAX_CONCURRENT_WRITES).await
    }

    /// Moves the copies whose last requests took too long to the end, so that they do not take the time of the others.
    fn slow_last<T>(
        &self,
        sync: &ObjectKey,
        mut copies: Vec<T>,
        key: impl Fn(&T) -> &ObjectKey,
    ) -> Vec<T> {
        let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slow) = slow.get(sync) {
            copies.sort_by_key(|copy| slow.contains(key(copy)));
        }
        copies
    }

    /// Makes the requests of one copy, once the memory for it is free. They end after [`COPY_TIMEOUT`], and at the
    /// deadline.
    async fn limited<T>(
        &self,
        sync: &ObjectKey,
        copy: &ObjectKey,
        deadline: Instant,
        requests: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Ok(_permit) = timeout_at(deadline, self.copy_permits.acquire()).await else {
            return Err(late("other copies took too long"));
        };
        let result = timeout(COPY_TIMEOUT, timeout_at(deadline, requests)).await;
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(Ok(result)) = result else {
            slow.entry(sync.clone()).or_default().insert(copy.clone());
            return Err(late(
                "the apiserver, or an admission webhook, took too long",
            ));
        };
        if let Some(copies) = slow.get_mut(sync) {
            copies.remove(copy);
        }
        result
    }

    /// Makes one copy match; returns whether anything was written.
    async fn ensure(
        &self,
        cx: &Context<ConfigMapSync>,
        copy: DesiredCopy<'_>,
        presence: NamespacePresence,
        deadline: Instant,
    ) -> (ObjectKey, Result<bool>) {
        let result = match presence {
            NamespacePresence::Missing => Err(Error::other(
                Class::Waiting,
                NAMESPACE_NOT_FOUND,
                format!("create namespace {}", copy.key.namespace),
            )),
            NamespacePresence::Terminating => Err(Error::other(
                Class::Waiting,
                NAMESPACE_TERMINATING,
                "the namespace is being deleted",
            )),
            NamespacePresence::Exists if self.copies.is_up_to_date(&copy.key, copy.digest) => {
                Ok(false)
            }
            NamespacePresence::Exists => {
                let requests = self.write(cx, &copy);
                self.limited(&cx.key, &copy.key, deadline, requests).await
            }
        };
        (copy.key, result)
    }

    async fn write(&self, cx: &Context<ConfigMapSync>, copy: &DesiredCopy<'_>) -> Result<bool> {
        let mut ensured = self.copies.ensure(cx, copy).await?;
        if let Ensured::Deleted(..) = ensured {
            // A deleted ConfigMap no longer exists, unless another client has added a finalizer, so the copy can be
            // created at once.
            ensured = self.copies.ensure(cx, copy).await?;
        }
        match ensured {
            Ensured::Kept(_) | Ensured::Waits(_) => Ok(false),
            Ensured::Terminating(_) | Ensured::Deleted(..) => {
                Err(Error::Terminating("the copy".into()))
            }
            Ensured::Created(_) | Ensured::Adopted(_) | Ensured::Updated(_) => Ok(true),
        }
    }

    /// Sets `lastSyncTime`, also for writes of an earlier reconcile whose status could not be written.
    fn record_writes(&self, cx: &mut Context<ConfigMapSync>, has_written: bool) {
        let mut unrecorded = self
            .unrecorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if has_written {
            unrecorded.insert(cx.key.clone(), whole_seconds(Timestamp::now()));
        }
        let written = cx.object.status.as_ref();
        let written = written.and_then(|status| status.last_sync_time.as_ref());
        if unrecorded.get(&cx.key) == written {
            unrecorded.remove(&cx.key);
        } else if let Some(time) = unrecorded.get(&cx.key) {
            cx.status.last_sync_time = Some(time.clone());
        }
    }
}

impl CopyTotals {
    fn of(results: Vec<(ObjectKey, Result<bool>)>) -> Self {
        let mut totals = Self::default();
        for (copy, result) in results {
            let error = match result {
                Ok(has_written) => {
                    totals.has_written |= has_written;
                    continue;
                }
                Err(error) => error,
            };
            let (class, reason) = error.classify();
            let reason = if error.is_not_found() {
                NAMESPACE_NOT_FOUND.into()
            } else if matches!(class, Class::Waiting | Class::Terminal) {
                reason
            } else {
                WRITE_FAILED.into()
            };
            let is_retried = reason == WRITE_FAILED;
            let message = match error.status().filter(|_| !is_retried) {
                Some(status) => status.message.clone(),
                None => error.to_string(),
            };
            totals.problems.push(CopyProblem {
                namespace: copy.namespace.to_string(),
                reason,
                message,
            });
            // A conflict alone is never reported.
            if is_retried && totals.error.as_ref().is_none_or(Error::is_stale) {
                totals.error = Some(error);
            }
        }
        totals
    }
}

fn late(message: &'static str) -> Error {
    Error::other(Class::Transient, WRITE_FAILED, message)
}

/// Runs the writes of copies, at most `max_concurrent` at a time, and returns their results sorted by copy.
async fn run_sorted<T>(
    writes: impl Iterator<Item = impl Future<Output = (ObjectKey, T)>>,
    max_concurrent: usize,
) -> Vec<(ObjectKey, T)> {
    let results = stream::iter(writes).buffer_unordered(max_concurrent);
    let mut results: Vec<_> = results.collect().await;
    results.sort_by(|(one, _), (other, _)| one.cmp(other));
    results
}

/// Returns the outcome of a sync that copied nothing.
fn blocked(
    cx: &mut Context<ConfigMapSync>,
    reason: impl Into<Cow<'static, str>>,
    message: impl Into<String>,
) -> Outcome {
    let outcome = status::blocked(&mut cx.status, reason, message);
    if status::is_polled(&outcome.reason) {
        outcome.requeue(Requeue::Poll)
    } else {
        outcome
    }
}

/// Returns whether there is a problem besides the requests that are retried.
fn has_lasting(problems: &[CopyProblem]) -> bool {
    problems.iter().any(|it| it.reason != WRITE_FAILED)
}

/// Ends a reconcile with an outcome, and the error that is retried. With an error, the outcome `is_reported` only if the
/// sync was failing already, or has more to report: a single failed request is not reported.
fn with_error(outcome: Outcome, error: Option<Error>, is_reported: bool) -> Result<Outcome> {
    match error {
        Some(error) if is_reported => Err(error.with_outcome(outcome)),
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    fn conflict() -> Error {
        Error::Stale("the copy has changed".into())
    }

    #[rstest]
    #[case::first(vec![late("a")], false, false)]
    #[case::second(vec![late("a")], true, true)]
    #[case::before_a_conflict(vec![late("a"), conflict()], true, true)]
    #[case::after_a_conflict(vec![conflict(), late("a")], true, true)]
    fn failed_request_is_reported_once_it_repeats(
        #[case] errors: Vec<Error>,
        #[case] is_failing: bool,
        #[case] is_reported: bool,
    ) {
        let copy = ObjectKey::new("shop", "copy");
        let results = errors.into_iter().map(|error| (copy.clone(), Err(error)));
        let totals = CopyTotals::of(results.collect());
        assert!(totals.problems.iter().all(|it| it.reason == WRITE_FAILED));
        let outcome = Outcome::failed(WRITE_FAILED, "0 of 1 copies match");
        let error = with_error(outcome, totals.error, is_failing).unwrap_err();
        let has_outcome = matches!(error, Error::WithOutcome { .. });
        assert_eq!((has_outcome, error.is_stale()), (is_reported, false));
    }

    /// Another client may change one copy at each attempt.
    #[test]
    fn lasting_conflict_of_one_copy_hides_no_problem_of_another() {
        let rejected = Error::other(Class::Terminal, "Forbidden", "denied");
        let results = [("a", conflict()), ("b", rejected)];
        let results = results.map(|(name, error)| (ObjectKey::new("shop", name), Err(error)));
        let totals = CopyTotals::of(results.into());
        assert!(has_lasting(&totals.problems));
        assert!(!has_lasting(&totals.problems[..1]));
    }
}
