//! From a spec to a target that is watched, and followed by the [`tracker`](super::tracker).

use kube::Api;
use kube::core::DynamicObject;

use super::field::Field;
use super::follower::Whose;
use super::target::{Resolved, TargetError, TargetKey};
use super::waiting::Waiting;
use super::{Error, TrackedFields};
use crate::api::TrackedField;
use crate::api::tracked_field::Target;
use crate::notify::Transport;
use crate::runtime::watch_hub::ResourceName;
use crate::runtime::{Key, Scope};

/// What a `TrackedField` tracks, once its spec is understood.
pub(super) struct Tracked {
    pub(super) target: TargetKey,
    pub(super) api: Api<DynamicObject>,
    pub(super) shard: Option<String>,
    /// The read and the watch of the target disagree, which may pass.
    pub(super) doubted: bool,
}

/// Why nothing is tracked.
pub(super) struct Untracked {
    pub(super) waiting: Waiting,
    /// The pass failed for it.
    pub(super) error: Option<Error>,
}

impl From<Waiting> for Untracked {
    fn from(waiting: Waiting) -> Self {
        Self { waiting, error: None }
    }
}

impl From<Error> for Untracked {
    fn from(error: Error) -> Self {
        Self { waiting: Waiting::TargetUnreadable(error.to_string()), error: Some(error) }
    }
}

impl<T: Transport> TrackedFields<T> {
    pub(super) fn unfollow(&self, key: &Key) {
        if self.tracker.forget(key) {
            self.end_idle_watches();
        }
    }

    fn end_idle_watches(&self) {
        self.hub.retain(|resource| self.tracker.follows(resource));
        self.tracker.forget_watches();
    }

    /// Follows the target as soon as the object is cached, so that the first list of its watch already counts and
    /// nothing need be read. The watch itself begins with [`TrackedFields::watch`].
    pub fn follow(&self, object: &TrackedField) {
        let Ok(field) = Field::compile(&object.spec.target.kind, &object.spec.field) else { return };
        let Some(resolved) = self.resolver.known(&object.spec.target) else { return };
        if let Ok(tracked) = self.tracked(object, &resolved) {
            self.follow_as(object, &tracked, &field);
        }
        if let Ok(history) = object.history()
            && let Some(last) = history.last()
        {
            self.tracker.told(&Key::of(object), &Whose::of(object), last);
        }
    }

    fn follow_as(&self, object: &TrackedField, tracked: &Tracked, field: &Field) {
        let key = Key::of(object);
        if self.tracker.follow(&key, &Whose::of(object), &tracked.target, field, tracked.shard.clone()) {
            self.end_idle_watches();
        }
    }

    /// Sees to it that the target of `object` is watched.
    pub fn watch(&self, object: &TrackedField) {
        let target = &object.spec.target;
        if let Some(resolved) = self.resolver.known(target)
            && self.scope.covers(resolved.place(target))
        {
            self.hub.ensure(&resolved.resource, resolved.namespaced);
        }
    }

    fn tracked(&self, object: &TrackedField, resolved: &Resolved) -> Result<Tracked, Waiting> {
        let target = &object.spec.target;
        let namespace = resolved.place(target);
        if resolved.namespaced && namespace.is_empty() {
            let words = format!("{} lie in namespaces: write target.namespace", resolved.resource.plural);
            return Err(Waiting::ResourceMismatch(words));
        }
        if !self.scope.covers(namespace) {
            return Err(Waiting::OutOfScope { namespace: namespace.into() });
        }
        // A right in the namespace that is named is all that a policy asks its author for.
        if !resolved.namespaced && !target.namespace.is_empty() {
            let words = format!("{} lie in no namespace: leave target.namespace out", resolved.resource.plural);
            return Err(Waiting::ResourceMismatch(words));
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
            resource: ResourceName::from(&resolved.resource),
            namespace: namespace.into(),
            name: target.name.clone(),
        };
        Ok(Tracked { target: key, api, shard, doubted: false })
    }

    async fn resolve(&self, target: &Target) -> Result<Resolved, TargetError> {
        let discovered = target.api_version.clone().zip(target.resource.clone());
        let turn =
            discovered.map_or(0, |(api_version, plural)| self.tracker.turn(&ResourceName { api_version, plural }));
        self.resolver.resolve(&self.client, target, turn).await
    }

    /// Whether the target can be followed and watched without asking what it is.
    pub fn knows(&self, object: &TrackedField) -> bool {
        self.resolver.known(&object.spec.target).is_some()
    }

    /// Asks what the target is, then follows and watches it. That it cannot be is the pass's to say.
    pub async fn learn(&self, object: &TrackedField) {
        if self.resolve(&object.spec.target).await.is_ok() {
            self.follow(object);
            self.watch(object);
        }
    }

    /// Sees to it that the target is followed; `Err` says why it cannot be.
    pub(super) async fn track(&self, key: &Key, object: &TrackedField) -> Result<Tracked, Untracked> {
        let target = &object.spec.target;
        let field = Field::compile(&target.kind, &object.spec.field)
            .map_err(|error| Waiting::Field { reason: error.reason(), message: error.to_string() })?;
        let resolved = match self.resolve(target).await {
            Ok(resolved) => resolved,
            Err(error @ TargetError::Discovery(_)) => return Err(Error::Discovery(error).into()),
            Err(error) => return Err(Waiting::ResourceMismatch(error.to_string()).into()),
        };
        // What does not fit is not watched, so that nothing would ever tell that it is something else by now.
        let tracked = self.tracked(object, &resolved).inspect_err(|_| self.resolver.forget(target));
        let mut tracked = tracked?;
        self.follow_as(object, &tracked, &field);
        self.hub.ensure(&resolved.resource, resolved.namespaced);
        if let Some(asked) = self.tracker.unread(key, self.terms.resync) {
            match tracked.api.get_opt(&target.name).await {
                Ok(found) => {
                    let whose = Whose::of(object);
                    tracked.doubted = !self.tracker.read(key, &whose, &tracked.target, asked, found.as_ref());
                }
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let message = status.message.clone();
                    return Err(Waiting::Forbidden { resource: tracked.target.resource, message }.into());
                }
                Err(error) => return Err(Error::ReadTarget(error).into()),
            }
        }
        Ok(tracked)
    }
}
