//! From a spec to a target that is watched, and followed by the [`tracker`](super::tracker).

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use qm_api::TrackedField;
use qm_api::tracked_field::Target;
use qm_runtime::raw_object::RawObject;
use qm_runtime::reconciler::Trigger;
use qm_runtime::watch_hub::{ResourceName, WatchHub};
use qm_runtime::{Key, Scope};
use tokio_util::sync::CancellationToken;

use super::Error;
use super::field::Field;
use super::follower::{Asked, Whose};
use super::grants::{Grant, Grants};
use super::reads::{Answer, Lane, Reads};
use super::target::{Resolved, Resolver, TargetError, TargetKey};
use super::tracker::{AT_ONCE, Tracker};
use super::waiting::Waiting;

/// Targets of all `TrackedField`s: discovery, watches and reads.
pub struct Targets {
    /// Client for discovery and reads.
    pub client: Client,
    /// The cluster or the namespaces that the operator watches.
    pub scope: Scope,
    /// Whether a target has to lie in the namespace of its `TrackedField`.
    pub no_cross_namespace_refs: bool,
    /// State that the watches show.
    pub tracker: Arc<Tracker>,
    /// The watches.
    pub hub: WatchHub,
    /// The resources that may be tracked.
    pub grants: Arc<Grants>,
    /// Discovered resources.
    pub resolver: Resolver,
    /// Requests that run outside reconciles.
    pub reads: Reads,
    /// Wakes the reconcile that an answer concerns.
    pub wake: Trigger<TrackedField>,
    /// Time without confirmation after which a target is read.
    pub resync: Duration,
    /// Timeout of discovery and of a read.
    pub timeout: Duration,
    /// Cancelled once no new request may start.
    pub draining: CancellationToken,
}

/// What a `TrackedField` tracks, once its spec is understood.
pub(super) struct Tracked {
    pub(super) target: TargetKey,
    pub(super) api: Api<RawObject>,
    pub(super) shard: Option<String>,
}

/// Why nothing is tracked.
#[derive(Debug)]
pub(super) struct Untracked {
    pub(super) waiting: Waiting,
    /// The pass failed for it.
    pub(super) error: Option<Box<Error>>,
}

impl From<Waiting> for Untracked {
    fn from(waiting: Waiting) -> Self {
        Self {
            waiting,
            error: None,
        }
    }
}

impl From<Error> for Untracked {
    fn from(error: Error) -> Self {
        Self {
            waiting: Waiting::TargetUnreadable(error.to_string()),
            error: Some(Box::new(error)),
        }
    }
}

impl From<TargetError> for Untracked {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Discovery(_) => Error::Discovery(error).into(),
            _ => Waiting::ResourceMismatch(error.to_string()).into(),
        }
    }
}

impl Targets {
    /// Stops following for `key`.
    pub fn unfollow(&self, key: &Key) {
        if self.tracker.forget(key) {
            self.end_idle_watches();
        }
    }

    fn end_idle_watches(&self) {
        self.hub.retain(|resource| self.tracker.follows(resource));
        self.tracker.forget_watches();
    }

    /// Follows the target as soon as the object is cached, so that the first list of its watch already counts and no
    /// read is needed. The watch itself begins with [`Targets::watch`].
    pub fn follow(&self, object: &TrackedField) {
        let Ok(field) = Field::compile(&object.spec.target.kind, &object.spec.field) else {
            return;
        };
        let Some(resolved) = self.resolver.known(&object.spec.target) else {
            return;
        };
        if !self.is_granted(&resolved) {
            // The leader's reconcile records what was observed before it stops following.
            if !self.tracker.leads() {
                self.unfollow(&Key::of(object));
            }
            return;
        }
        if let Ok(tracked) = self.tracked(object, &resolved) {
            self.follow_as(object, &tracked, &field);
        }
    }

    fn follow_as(&self, object: &TrackedField, tracked: &Tracked, field: &Field) {
        let key = Key::of(object);
        if self.tracker.follow(
            &key,
            &Whose::of(object),
            &tracked.target,
            field,
            tracked.shard.clone(),
        ) {
            self.end_idle_watches();
        }
    }

    /// Ensures a watch of the target of `object`; if the resource is unknown, once discovery has answered.
    pub fn watch(self: &Arc<Self>, object: &Arc<TrackedField>) {
        if self.ensure(object) {
            return;
        }
        // An answer about a target that cannot be tracked anyway would only take turns with the true reason.
        let Target { kind, .. } = &object.spec.target;
        if Field::compile(kind, &object.spec.field).is_ok()
            && matches!(self.target(object), Ok(None))
        {
            self.reads
                .ask(self, object, Lane::discovery(&object.spec.target));
        }
    }

    /// Ensures a watch of the target of `object`, if its resource is known and in scope. Returns whether the resource
    /// is known.
    pub(super) fn ensure(&self, object: &TrackedField) -> bool {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.known(target) else {
            return false;
        };
        if self.reaches(object, resolved.place(target)).is_ok() && self.is_granted(&resolved) {
            self.hub.ensure(&resolved.resource, resolved.namespaced);
        }
        true
    }

    /// Checks that `object` may have a target in `namespace`, which is empty for a cluster-scoped one.
    fn reaches(&self, object: &TrackedField, namespace: &str) -> Result<(), Waiting> {
        if !self.scope.covers(namespace) {
            return Err(Waiting::OutOfScope {
                namespace: namespace.into(),
            });
        }
        if self.no_cross_namespace_refs && object.metadata.namespace.as_deref() != Some(namespace) {
            return Err(Waiting::CrossNamespace {
                namespace: namespace.into(),
            });
        }
        Ok(())
    }

    fn is_granted(&self, resolved: &Resolved) -> bool {
        self.grants.of(&ResourceName::from(&resolved.resource)) == Grant::Granted
    }

    fn tracked(&self, object: &TrackedField, resolved: &Resolved) -> Result<Tracked, Waiting> {
        let target = &object.spec.target;
        let namespace = resolved.place(target);
        if resolved.namespaced && namespace.is_empty() {
            let words = format!(
                "{} lie in namespaces: write target.namespace",
                resolved.resource.plural
            );
            return Err(Waiting::ResourceMismatch(words));
        }
        self.reaches(object, namespace)?;
        // A right in the namespace that is named is all that a policy asks its author for.
        if !resolved.namespaced && !target.namespace.is_empty() {
            let words = format!(
                "{} lie in no namespace: leave target.namespace out",
                resolved.resource.plural
            );
            return Err(Waiting::ResourceMismatch(words));
        }
        let resource = ResourceName::from(&resolved.resource);
        if let Grant::Missing(message) = self.grants.of(&resource) {
            return Err(Waiting::NotGranted(message));
        }
        let api = if resolved.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resolved.resource)
        } else {
            Api::all_with(self.client.clone(), &resolved.resource)
        };
        let shard = match &self.scope {
            Scope::Namespaces(_) if resolved.namespaced => Some(namespace.to_owned()),
            _ => None,
        };
        let key = TargetKey {
            resource,
            namespace: namespace.into(),
            name: target.name.clone(),
        };
        Ok(Tracked {
            target: key,
            api,
            shard,
        })
    }

    fn turn(&self, target: &Target) -> u64 {
        let discovered = target.api_version.clone().zip(target.resource.clone());
        discovered.map_or(0, |(api_version, plural)| {
            self.tracker.turn(&ResourceName {
                api_version,
                plural,
            })
        })
    }

    /// Returns the target without any request, `None` if only the apiserver knows its resource. The error says why the
    /// target cannot be tracked.
    fn target(&self, object: &TrackedField) -> Result<Option<(Tracked, Resolved)>, Untracked> {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.resolved(target, self.turn(target))? else {
            return Ok(None);
        };
        // No watch follows a mismatch, so no event would reveal a later change of the resource.
        let tracked = self
            .tracked(object, &resolved)
            .inspect_err(|_| self.resolver.forget(target))?;
        Ok(Some((tracked, resolved)))
    }

    /// Follows and watches the target, if its resource is known.
    pub(super) fn track(&self, object: &TrackedField) -> Result<Option<Tracked>, Untracked> {
        let field =
            Field::compile(&object.spec.target.kind, &object.spec.field).map_err(|error| {
                Waiting::Field {
                    reason: error.reason(),
                    message: error.to_string(),
                }
            })?;
        let Some((tracked, resolved)) = self.target(object)? else {
            return Ok(None);
        };
        self.follow_as(object, &tracked, &field);
        self.hub.ensure(&resolved.resource, resolved.namespaced);
        Ok(Some(tracked))
    }

    /// Requests a read of the target of `object`, or discovery if nothing is `tracked`; returns false if neither is
    /// needed. The answer wakes the reconcile.
    pub(super) fn ask(
        self: &Arc<Self>,
        object: &Arc<TrackedField>,
        tracked: Option<&Tracked>,
    ) -> bool {
        let key = Key::of(object.as_ref());
        let lane = match tracked {
            None => Lane::discovery(&object.spec.target),
            Some(tracked) if self.is_unread(&key) => {
                Lane::read(&tracked.target, self.tracker.is_put_off(&key))
            }
            Some(_) => {
                self.reads.needless(&key);
                return false;
            }
        };
        self.reads.ask(self, object, lane);
        true
    }

    /// Returns whether the target of `key` needs a read.
    pub(super) fn is_unread(&self, key: &Key) -> bool {
        self.tracker.unread(key, self.resync).is_some()
    }

    /// Asks the apiserver for the target's resource or state. Follows nothing: the spec may have changed by the time of
    /// the answer.
    pub(super) async fn look(
        &self,
        object: &TrackedField,
        lane: &Lane,
    ) -> Result<Answer, Untracked> {
        let target = &object.spec.target;
        if let Lane::Discovery(_) = lane {
            self.resolver
                .resolve(&self.client, target, self.turn(target))
                .await?;
            return Ok(Answer::Discovered);
        }
        let Some((tracked, _)) = self.target(object)? else {
            return Ok(Answer::Discovered);
        };
        let key = Key::of(object);
        if let Some(asked) = self.tracker.unread(&key, self.resync) {
            match tracked.api.get_opt(&target.name).await {
                Ok(found) => {
                    self.take(object, tracked.target, lane, asked, found)
                        .await?;
                }
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let message = status.message.clone();
                    return Err(Waiting::Forbidden {
                        resource: tracked.target.resource,
                        message,
                    }
                    .into());
                }
                Err(error) => return Err(Error::ReadTarget(error).into()),
            }
        }
        Ok(Answer::Read)
    }

    /// Takes the result of a read: large objects and expensive lookups apart from the async workers.
    async fn take(
        &self,
        object: &TrackedField,
        target: TargetKey,
        lane: &Lane,
        asked: Asked,
        found: Option<RawObject>,
    ) -> Result<(), Error> {
        let (key, whose) = (Key::of(object), Whose::of(object));
        let is_apart =
            |found: &RawObject| found.text_len() > AT_ONCE || matches!(lane, Lane::Apart(_));
        let found = match found {
            Some(found) if is_apart(&found) => found,
            found => {
                self.tracker.read(&key, &whose, &target, asked, found);
                return Ok(());
            }
        };
        let tracker = Arc::clone(&self.tracker);
        let permit = tracker
            .background
            .acquire()
            .await
            .map_err(Error::LookInto)?;
        // What has begun is not in vain if the request times out meanwhile.
        let read = tokio::spawn(async move {
            tracker
                .read_apart((&key, &whose), &target, asked, found, permit)
                .await
        });
        match read.await {
            Ok(taken) => taken.map_err(Error::LookInto),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(Error::LookInto(error.into())),
            },
        }
    }
}
