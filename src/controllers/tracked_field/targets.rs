//! Resolves the target of a spec, watches the target for the [`Tracker`], and reads what the watch cannot show.
//!
//! Requests about targets run outside reconciles: an apiserver that hangs for one kind, because of a conversion webhook
//! or an aggregated API, must not block delivery outcomes or reconciles of other kinds.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use kube::api::ListParams;
use kube::core::ObjectMeta;
use kube::{Api, Client, Resource};
use qm_api::TrackedField;
use qm_api::tracked_field::{Initial, StoredHistory, TargetReference};
use qm_core::shared;
use qm_runtime::error::Error;
use qm_runtime::pages::all_pages;
use qm_runtime::raw_object::RawObject;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{ResourceName, WatchHub};
use qm_runtime::{ObjectKey, WatchScope, tasks, telemetry};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error};

use super::field::Selectors;
use super::follower::FollowIdentity;
use super::grants::{Grant, Grants};
use super::requests::{
    Answer, FAILED_LIST_PERIOD, MAX_SINGLE_READS, OBJECT_PERIOD, RequestGroup, TargetRequests,
    TrackError, unreadable,
};
use super::resolver::{Resolved, Resolver, TargetKey, is_watched_by_metadata};
use super::tracker::{MAX_INLINE_BYTES, ReadTickets, Tracker};
use super::waiting::WaitingReason;

/// Maximum number of woken followers with an answer to take or a change to record. A list then wakes no further one.
const MAX_WOKEN: usize = 32;
/// Interval at which a list checks whether woken followers have recorded their changes.
const WAKE_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time for which a list waits for woken followers; see [`Woken`].
const MAX_WAKE_PAUSE: Duration = Duration::from_secs(1);

/// Targets of all `TrackedField`s: discovery, watches and reads.
pub struct Targets {
    /// Name of the controller, in spans.
    pub controller: &'static str,
    /// Client for discovery and reads.
    pub client: Client,
    /// The cluster or the namespaces that the operator watches.
    pub scope: WatchScope,
    /// True if a target must be in the namespace of its `TrackedField`.
    pub(crate) no_cross_namespace_refs: bool,
    /// State that the watches show.
    pub(crate) tracker: Arc<Tracker>,
    pub(crate) sets: Arc<dyn Sets>,
    pub(crate) hub: WatchHub,
    /// The resources that may be tracked.
    pub grants: Arc<Grants>,
    /// Discovered resources.
    pub(crate) resolver: Resolver,
    /// Requests that run outside reconciles.
    pub(crate) requests: TargetRequests,
    /// Wakes the `TrackedField` that gets an answer.
    pub trigger: Trigger<TrackedField>,
    /// Time without confirmation after which a target is read.
    pub sync_period: Duration,
    /// Timeout of discovery and of a read.
    pub timeout: Duration,
    /// Cancelled once no new request may start.
    pub draining: CancellationToken,
}

/// The target of a `TrackedField` with a valid spec.
pub(super) struct FollowedTarget {
    pub(super) target: TargetKey,
    pub(super) api: Api<RawObject>,
    /// Namespace of the watch that shows the target; `None` is all namespaces, or a cluster-scoped resource.
    pub(super) watched_namespace: Option<String>,
}

/// View of the `TrackedFieldSet`s: the resources that they select, and the `TrackedField`s that they own.
pub(crate) trait Sets: Send + Sync {
    /// Returns whether a set selects objects of `resource`.
    fn selects(&self, resource: &ResourceName) -> bool;

    /// Forgets the watch of `resource`, which has stopped.
    fn forget_watch(&self, resource: &ResourceName);

    /// Returns the set that owns a `TrackedField`.
    fn owner(&self, field: &ObjectKey) -> Option<ObjectKey>;
}

impl Targets {
    /// Stops following for `key`.
    pub(crate) fn unfollow(&self, key: &ObjectKey) {
        if self.tracker.forget(key) {
            self.end_idle_watches();
        }
    }

    /// Stops the watches of resources without a followed target that no set selects either.
    pub(crate) fn end_idle_watches(&self) {
        let is_needed =
            |resource: &ResourceName| self.tracker.follows(resource) || self.sets.selects(resource);
        self.hub.retain(is_needed, |resource| {
            self.tracker.forget_watch(resource);
            self.sets.forget_watch(resource);
        });
    }

    /// Follows the target as soon as the object is cached, so that the first list of its watch already counts and no
    /// read is needed. The watch itself begins with [`Targets::watch`].
    pub fn follow(&self, object: &TrackedField) {
        let Ok(selectors) = Selectors::compile(&object.spec) else {
            return;
        };
        let Some(resolved) = self.resolver.known(&object.spec.target) else {
            return;
        };
        if !self.is_granted(&resolved) {
            // The leader's reconcile records what was observed before it stops following.
            if !self.tracker.leads() {
                self.unfollow(&ObjectKey::of(object));
            }
            return;
        }
        if let Ok(tracked) = self.tracked(object, &resolved) {
            self.follow_as(object, &tracked, &selectors);
        }
    }

    fn follow_as(&self, object: &TrackedField, tracked: &FollowedTarget, selectors: &Selectors) {
        let key = ObjectKey::of(object);
        if self.tracker.follow(
            &key,
            &FollowIdentity::of(object),
            &tracked.target,
            selectors,
            tracked.watched_namespace.clone(),
        ) {
            self.end_idle_watches();
        }
    }

    /// Ensures a watch of the target of `object`; if the resource is unknown, once discovery has answered.
    pub fn watch(self: &Arc<Self>, object: &Arc<TrackedField>) {
        if self.watch_if_known(object) {
            return;
        }
        // Discovery for a target that cannot be tracked would only make the reason alternate.
        if Selectors::compile(&object.spec).is_ok() && matches!(self.target(object), Ok(None)) {
            self.start_request(object, RequestGroup::discovery(&object.spec.target));
        }
    }

    /// Follows and watches the targets of all `fields` after a change of the resources that may be tracked, and wakes
    /// the fields.
    pub fn grants_changed(self: &Arc<Self>, fields: &[Arc<TrackedField>]) {
        // Every target is followed before a watch begins, so that the first list counts for all of them.
        for field in fields {
            self.follow(field);
        }
        for field in fields {
            self.watch(field);
            self.trigger.wake(&ObjectKey::of(field.as_ref()));
        }
    }

    /// Ensures a watch of the target of `object`, if its resource is known and in scope. Returns whether the resource
    /// is known.
    pub(super) fn watch_if_known(&self, object: &TrackedField) -> bool {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.known(target) else {
            return false;
        };
        let namespace = resolved.namespace_of(target);
        if self.reaches(&object.metadata, namespace).is_ok() && self.is_granted(&resolved) {
            self.ensure_watch(&resolved);
        }
        true
    }

    /// Checks that the object with this metadata may have a target in `namespace`, which is empty for a cluster-scoped
    /// target.
    pub(crate) fn reaches(
        &self,
        object: &ObjectMeta,
        namespace: &str,
    ) -> Result<(), WaitingReason> {
        if !self.scope.covers(namespace) {
            return Err(WaitingReason::OutOfScope {
                namespace: namespace.into(),
            });
        }
        if self.no_cross_namespace_refs && object.namespace.as_deref() != Some(namespace) {
            return Err(WaitingReason::CrossNamespace {
                namespace: namespace.into(),
            });
        }
        Ok(())
    }

    /// Ensures a watch of the resource.
    pub(crate) fn ensure_watch(&self, resolved: &Resolved) {
        let name = ResourceName::from(&resolved.resource);
        let metadata_only = is_watched_by_metadata(&name);
        let namespaced = resolved.namespaced;
        self.hub
            .ensure(&resolved.resource, namespaced, metadata_only);
    }

    fn is_granted(&self, resolved: &Resolved) -> bool {
        self.grants.of(&ResourceName::from(&resolved.resource)) == Grant::Granted
    }

    fn tracked(
        &self,
        object: &TrackedField,
        resolved: &Resolved,
    ) -> Result<FollowedTarget, WaitingReason> {
        let target = &object.spec.target;
        let namespace = resolved.namespace_of(target);
        if resolved.namespaced && namespace.is_empty() {
            let message = format!(
                "{} are namespaced: write target.namespace",
                resolved.resource.plural
            );
            return Err(WaitingReason::ResourceMismatch(message));
        }
        self.reaches(&object.metadata, namespace)?;
        // Admission policies only check that the author has permissions in the named namespace.
        if !resolved.namespaced && !target.namespace.is_empty() {
            let message = format!(
                "{} are cluster-scoped: remove target.namespace",
                resolved.resource.plural
            );
            return Err(WaitingReason::ResourceMismatch(message));
        }
        let resource = ResourceName::from(&resolved.resource);
        if let Grant::Missing(message) = self.grants.of(&resource) {
            return Err(WaitingReason::NotGranted(message));
        }
        let api = resolved.api(&self.client, resolved.namespaced.then_some(namespace));
        let watched_namespace = match &self.scope {
            WatchScope::Namespaces(_) if resolved.namespaced => Some(namespace.to_owned()),
            _ => None,
        };
        let key = TargetKey::new(&resource, namespace, &target.name);
        Ok(FollowedTarget {
            target: key,
            api,
            watched_namespace,
        })
    }

    /// Returns the epoch of the watch of the target's resource, see [`Tracker::epoch`].
    pub fn epoch(&self, target: &TargetReference) -> u64 {
        let discovered = target.api_version.clone().zip(target.resource.clone());
        discovered.map_or(0, |(api_version, plural)| {
            self.tracker.epoch(&ResourceName {
                api_version: shared::text(&api_version),
                plural: shared::text(&plural),
            })
        })
    }

    /// Returns the target without any request, `None` if only the apiserver knows its resource. The error says why the
    /// target cannot be tracked.
    fn target(
        &self,
        object: &TrackedField,
    ) -> Result<Option<(FollowedTarget, Resolved)>, TrackError> {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.resolved(target, self.epoch(target))? else {
            return Ok(None);
        };
        // No watch follows a mismatch, so no event would reveal a later change of the resource.
        let tracked = self
            .tracked(object, &resolved)
            .inspect_err(|_| self.resolver.forget(target))?;
        Ok(Some((tracked, resolved)))
    }

    /// Follows and watches the target, if its resource is known.
    pub(super) fn track(
        &self,
        object: &TrackedField,
    ) -> Result<Option<FollowedTarget>, TrackError> {
        let selectors = Selectors::compile(&object.spec).map_err(|error| WaitingReason::Field {
            reason: error.reason(),
            message: error.message("spec.context"),
        })?;
        let Some((tracked, resolved)) = self.target(object)? else {
            return Ok(None);
        };
        self.follow_as(object, &tracked, &selectors);
        self.ensure_watch(&resolved);
        Ok(Some(tracked))
    }

    /// Requests a read of the target of `object`, or discovery if nothing is `tracked`; returns false if neither is
    /// needed. The answer wakes the reconcile.
    pub(super) fn request(
        self: &Arc<Self>,
        object: &Arc<TrackedField>,
        tracked: Option<&FollowedTarget>,
    ) -> bool {
        let key = ObjectKey::of(object.as_ref());
        let group = match tracked {
            None => RequestGroup::discovery(&object.spec.target),
            Some(tracked) if self.is_unread(&key) => {
                match RequestGroup::read(&tracked.target, self.tracker.is_deferred(&key)) {
                    RequestGroup::Reads(resource) if self.is_listed(object, tracked) => {
                        RequestGroup::List(resource, tracked.watched_namespace.clone())
                    }
                    group => group,
                }
            }
            Some(_) => {
                self.requests.not_needed(&key);
                return false;
            }
        };
        self.start_request(object, group);
        true
    }

    fn start_request(self: &Arc<Self>, object: &Arc<TrackedField>, group: RequestGroup) {
        if self.requests.request(object, group.clone()) {
            tokio::spawn(run(Arc::clone(self), group));
        }
    }

    /// Returns whether the target of `key` needs a read.
    pub(super) fn is_unread(&self, key: &ObjectKey) -> bool {
        self.tracker.needs_read(key, self.sync_period)
    }

    /// Returns whether a list reads the target of `object`, with others that the same watch shows.
    fn is_listed(&self, object: &TrackedField, tracked: &FollowedTarget) -> bool {
        let resource = &tracked.target.resource;
        // With `spec.initial: Quiet` the first value is not sent, so its read can wait for the list.
        let is_gathered = Initial::of(object) == Initial::Quiet
            && object.status.as_ref().is_none_or(StoredHistory::is_empty)
            && self.requests.gathers(resource);
        let count = || {
            let watched_namespace = tracked.watched_namespace.as_deref();
            let limit = MAX_SINGLE_READS + 1;
            self.tracker
                .unread_of(resource, watched_namespace, self.sync_period, limit)
                .count()
        };
        is_gathered || self.requests.exceeds_single_reads(resource, count)
    }

    /// Reads all objects of `resource` in `watched_namespace` that need it with one list; `resolved` is the resource.
    /// Returns the followers.
    async fn list(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
        resolved: &Resolved,
    ) -> Result<Vec<ObjectKey>, TrackError> {
        let mut tickets =
            self.tracker
                .unread_of(resource, watched_namespace, self.sync_period, usize::MAX);
        let keys: Vec<_> = tickets.keys().cloned().collect();
        let api: Api<RawObject> = resolved.api(&self.client, watched_namespace);
        let list = |page: ListParams| {
            let api = api.clone();
            async move {
                // The timeout applies to each page: the time for all pages grows with the number of objects.
                timeout(self.timeout, api.list(&page))
                    .await
                    .unwrap_or_else(|_| Err(kube::Error::Service(no_answer(self.timeout).into())))
            }
        };
        let read = |object: RawObject| self.tracker.read_listed(resource, &mut tickets, object);
        match all_pages(ListParams::default(), list, read).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let (resource, message) = (resource.clone(), status.message.clone());
                return Err(WaitingReason::Forbidden { resource, message }.into());
            }
            Err(error) => return Err(Error::api("the targets could not be listed")(error).into()),
        }
        self.tracker.read_unlisted(&tickets);
        Ok(keys)
    }

    /// Wakes a follower that a list has read. Reconciles after other changes wait in the same queue, so the call first
    /// waits while too many of the followers woken before have an answer to take or a change to record.
    async fn wake(&self, key: ObjectKey, woken: &mut Woken) {
        let latest = Instant::now() + woken.max_pause;
        while woken.keys.len() >= MAX_WOKEN {
            woken.keys.retain(|key| {
                self.requests.has_answer(key) || self.tracker.has_buffered_changes(key)
            });
            if woken.keys.len() < MAX_WOKEN {
                break;
            }
            if Instant::now() >= latest {
                woken.keys.clear();
                // While the apiserver rejects status writes, a pause for each few followers would hold up the next list.
                woken.max_pause /= 2;
                break;
            }
            sleep(WAKE_PAUSE).await;
        }
        self.trigger.wake(&key);
        woken.keys.push(key);
    }

    /// Asks the apiserver for the target's resource or state. Follows nothing: the spec may have changed by the time of
    /// the answer.
    pub(super) async fn inspect(
        &self,
        object: &TrackedField,
        group: &RequestGroup,
    ) -> Result<Answer, TrackError> {
        let target = &object.spec.target;
        if let RequestGroup::Discovery(_) = group {
            self.resolver
                .resolve(&self.client, target, self.epoch(target))
                .await?;
            return Ok(Answer::Discovered);
        }
        let Some((tracked, _)) = self.target(object)? else {
            return Ok(Answer::Discovered);
        };
        let key = ObjectKey::of(object);
        if let Some(tickets) = self.tracker.unread(&key, self.sync_period) {
            match tracked.api.get_opt(&target.name).await {
                Ok(found) => {
                    self.accept_read(key, tracked.target, group, tickets, found)
                        .await?;
                }
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let message = status.message.clone();
                    return Err(WaitingReason::Forbidden {
                        resource: tracked.target.resource,
                        message,
                    }
                    .into());
                }
                Err(error) => return Err(Error::api("the target could not be read")(error).into()),
            }
        }
        Ok(Answer::Read)
    }

    /// Accepts the result of a read that `requester` requested. Large objects are decoded, and expensive lookups run,
    /// in the background, not on an async worker.
    async fn accept_read(
        &self,
        requester: ObjectKey,
        target: TargetKey,
        group: &RequestGroup,
        tickets: ReadTickets,
        found: Option<RawObject>,
    ) -> Result<(), Error> {
        let needs_background = |found: &RawObject| {
            found.text_len() > MAX_INLINE_BYTES || matches!(group, RequestGroup::Background(_))
        };
        let found = match found {
            Some(found) if needs_background(&found) => found,
            found => {
                self.tracker.read(&target, &tickets, found);
                self.tracker.wake_others(&tickets, &requester);
                return Ok(());
            }
        };
        let tracker = Arc::clone(&self.tracker);
        let permit = tracker.background.acquire().await.map_err(not_inspected)?;
        // Work that has begun must not be lost if the request times out meanwhile.
        let read = tokio::spawn(async move {
            let read = tracker
                .read_in_background(&target, &tickets, found, permit)
                .await;
            tracker.wake_others(&tickets, &requester);
            read
        });
        match read.await {
            Ok(taken) => taken.map_err(not_inspected),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(not_inspected(error)),
            },
        }
    }
}

fn not_inspected(error: impl Display) -> Error {
    unreadable(format!("the target could not be inspected: {error}"))
}

fn no_answer(limit: Duration) -> String {
    format!("the apiserver did not answer within {limit:?}")
}

fn unanswered(limit: Duration) -> Error {
    unreadable(format!(
        "the target could not be read: {}",
        no_answer(limit)
    ))
}

/// Followers that a list has woken.
struct Woken {
    /// Followers that may not have taken their answer or recorded their changes yet.
    keys: Vec<ObjectKey>,
    /// Maximum time to wait for these followers. Each timeout halves this time.
    max_pause: Duration,
}

impl Default for Woken {
    fn default() -> Self {
        Self {
            keys: Vec::with_capacity(MAX_WOKEN),
            max_pause: MAX_WAKE_PAUSE,
        }
    }
}

/// Sends the requests of a group: lists for all of them, or one by one.
async fn run(targets: Arc<Targets>, group: RequestGroup) {
    let requests = async {
        match &group {
            RequestGroup::List(resource, watched_namespace) => {
                run_lists(&targets, &group, resource, watched_namespace.as_deref()).await;
            }
            group => run_each(&targets, group).await,
        }
    };
    tokio::select! {
        () = requests => {}
        () = targets.draining.cancelled() => {}
    }
}

/// Answers the requests of a group with lists of the resource.
async fn run_lists(
    targets: &Targets,
    group: &RequestGroup,
    resource: &ResourceName,
    watched_namespace: Option<&str>,
) {
    loop {
        targets.requests.gathered(resource).await;
        let requests = targets.requests.drain_group(group);
        let first = requests.first().map(|(_, object)| &object.spec.target);
        let Some(target) = first else {
            return;
        };
        let read = match targets.resolver.known(target) {
            Some(resolved) => {
                let permits = targets.requests.permits(group, false);
                let Ok(_permit) = permits.acquire_owned().await else {
                    return;
                };
                let list = targets.list(resource, watched_namespace, &resolved);
                match AssertUnwindSafe(list).catch_unwind().await {
                    Ok(read) => read.map(Some),
                    Err(panic) => {
                        let panic = tasks::panic_message(&*panic);
                        let (api_version, plural) = (&*resource.api_version, &*resource.plural);
                        error!(
                            panic,
                            apiVersion = api_version,
                            resource = plural,
                            "list of the targets panicked; will retry"
                        );
                        Err(not_inspected(panic).into())
                    }
                }
            }
            // Another request has made the operator forget the resource: the next reconcile asks for it.
            None => Ok(None),
        };
        let has_failed = read.is_err();
        let leads = targets.tracker.leads();
        let mut woken = Woken::default();
        for (number, object) in requests {
            let key = ObjectKey::of(object.as_ref());
            let answer = match &read {
                Ok(None) => Some(Ok(Answer::Discovered)),
                Ok(Some(_)) if targets.tracker.is_deferred(&key) => None,
                Ok(Some(_)) => Some(Ok(Answer::Read)),
                Err(error) => Some(Err(error.repeated())),
            };
            match answer {
                Some(answer) if leads => targets.requests.answered(&key, number, Ok(answer)),
                _ => targets.requests.drop_request(&key, number),
            };
            targets.wake(key, &mut woken).await;
        }
        // The list has also read targets that nobody requested.
        for key in read.ok().flatten().unwrap_or_default() {
            if targets.tracker.has_news(&key) {
                targets.wake(key, &mut woken).await;
            }
        }
        if has_failed {
            sleep(FAILED_LIST_PERIOD).await;
        }
    }
}

/// Sends the requests of a group one by one.
async fn run_each(targets: &Arc<Targets>, group: &RequestGroup) {
    while let Some((number, object)) = targets.requests.next(group) {
        let key = ObjectKey::of(object.as_ref());
        let reads_object = matches!(group, RequestGroup::Object(_) | RequestGroup::Background(_))
            && targets.is_unread(&key);
        let permits = targets.requests.permits(group, reads_object);
        let Ok(permit) = permits.acquire_owned().await else {
            return;
        };
        let limit = targets.timeout;
        let span = telemetry::background_span(
            targets.controller,
            &TrackedField::group(&()),
            &TrackedField::kind(&()),
            &key,
        );
        let inspection = timeout(limit, targets.inspect(&object, group)).instrument(span);
        let answer = AssertUnwindSafe(inspection).catch_unwind().await;
        drop(permit);
        let answer =
            answer.map(|in_time| in_time.unwrap_or_else(|_| Err(unanswered(limit).into())));
        if let Err(panic) = &answer {
            error!(panic = tasks::panic_message(&**panic), trackedField = %key, "request about the target panicked; will retry");
        }
        if targets.tracker.leads() {
            if targets.requests.answered(&key, number, answer) {
                targets.trigger.wake(&key);
            }
        } else if targets.requests.drop_request(&key, number) {
            // A standby does not reconcile, so the target is followed here.
            targets.follow(&object);
            targets.watch_if_known(&object);
        }
        if reads_object {
            sleep(OBJECT_PERIOD).await;
        }
    }
}

#[cfg(test)]
mod tests;
