//! What we wrote last, while the cache does not show it yet.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use qm_core::kind::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::trigger::Trigger;
use super::{Key, apply, is_newer};

/// The last state of each object that our own write brought about, until the cache has caught up: a pass that decided
/// on an older one would repeat itself.
pub struct Written<K: Resource> {
    trigger: Trigger<K>,
    objects: Mutex<HashMap<Key, Arc<K>>>,
    /// What the cache showed of objects whose write is under way.
    under_way: Mutex<HashMap<Key, Option<Arc<K>>>>,
}

impl<K: Resource<DynamicType = ()> + 'static> Written<K> {
    /// `trigger` wakes the pass over an object that somebody else changed while we wrote it.
    pub fn new(trigger: Trigger<K>) -> Self {
        Self {
            trigger,
            objects: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    /// Writes `status`, computed from `object`, unless that is what it has; gives the object as it then is, if it was written.
    /// One that is gone has none.
    ///
    /// # Errors
    /// What the apiserver answers, 409 among it: the object has changed since.
    pub async fn status(
        &self,
        api: &Api<K>,
        manager: &str,
        object: &K,
        status: &K::Status,
    ) -> kube::Result<Option<Arc<K>>>
    where
        K: Kind
            + HasStatus<Status: Serialize + DeserializeOwned + PartialEq>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        if object.status() == Some(status) {
            return Ok(None);
        }
        match self
            .object(
                &Key::of(object),
                apply::status(api, manager, object, status),
            )
            .await
        {
            Err(kube::Error::Api(said)) if said.code == 404 => Ok(None),
            written => written.map(Some),
        }
    }

    /// Has `write` write the object of this key; gives it as it then is.
    ///
    /// # Errors
    /// Those of `write`.
    pub async fn object(
        &self,
        key: &Key,
        write: impl Future<Output = kube::Result<K>>,
    ) -> kube::Result<Arc<K>> {
        let _writing = self.writing(key);
        Ok(self.wrote(key, write.await?))
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Key, Arc<K>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<Key, Option<Arc<K>>>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// An object is about to be written, until this value goes. The cache may show what comes of it before the answer is
    /// there: until then nothing of the object is news, and its pass is woken in the end if something was.
    fn writing<'a>(&'a self, key: &'a Key) -> Writing<'a, K> {
        self.under_way().insert(key.clone(), None);
        Writing { written: self, key }
    }

    /// The newer of what is cached and what we wrote.
    pub fn newest(&self, key: &Key, cached: Arc<K>) -> Arc<K> {
        let mut objects = self.objects();
        match objects.get(key) {
            Some(ours) if ours.uid() == cached.uid() && newer(ours.as_ref(), cached.as_ref()) => {
                Arc::clone(ours)
            }
            _ => {
                objects.remove(key);
                cached
            }
        }
    }

    /// We wrote `object`.
    pub fn wrote(&self, key: &Key, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.objects().insert(key.clone(), Arc::clone(&object));
        object
    }

    /// Whether this state of an object, as the cache shows it, is the one that we brought about, or an older one.
    pub fn knows(&self, key: &Key, cached: &Arc<K>) -> bool {
        if let Some(shown) = self.under_way().get_mut(key) {
            *shown = Some(Arc::clone(cached));
            return true;
        }
        let mut objects = self.objects();
        let Some(ours) = objects.get_mut(key) else {
            return false;
        };
        if ours.uid() != cached.uid() || newer(cached.as_ref(), ours.as_ref()) {
            return false;
        }
        if !newer(ours.as_ref(), cached.as_ref()) {
            // The next pass may be long in coming: no second copy until then.
            *ours = Arc::clone(cached);
        }
        true
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.objects().remove(key);
    }
}

/// A write that is under way.
struct Writing<'a, K: Resource<DynamicType = ()> + 'static> {
    written: &'a Written<K>,
    key: &'a Key,
}

impl<K: Resource<DynamicType = ()> + 'static> Drop for Writing<'_, K> {
    fn drop(&mut self) {
        let shown = self.written.under_way().remove(self.key).flatten();
        if shown.is_some_and(|shown| !self.written.knows(self.key, &shown)) {
            self.written.trigger.wake(self.key);
        }
    }
}

fn newer(one: &impl Resource, other: &impl Resource) -> bool {
    is_newer(
        one.meta().resource_version.as_deref(),
        other.meta().resource_version.as_deref(),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(uid: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    #[test]
    fn our_own_write_is_known_again_and_kept_once() {
        let (written, key) = (Written::new(Trigger::default()), Key::new("a", "x"));
        let ours = Arc::downgrade(&written.wrote(&key, object("1", "7")));
        assert!(
            written.knows(&key, &Arc::new(object("1", "6"))),
            "an older state is no news"
        );
        assert!(ours.upgrade().is_some(), "the cache has not caught up");
        let cached = Arc::new(object("1", "7"));
        assert!(written.knows(&key, &cached));
        assert!(ours.upgrade().is_none(), "the cache's copy is enough");
        assert!(
            written.knows(&key, &cached),
            "shown again, it is still no news"
        );
        assert!(!written.knows(&key, &Arc::new(object("1", "8"))));
        assert!(!written.knows(&key, &Arc::new(object("2", "7"))));
    }

    /// The watch may be faster than the answer.
    #[test]
    fn what_is_shown_while_it_is_written_is_judged_once_that_is_done() {
        let trigger = Trigger::default();
        let mut woken = trigger.open();
        let (written, key) = (Written::new(trigger), Key::new("a", "x"));
        for (ours, shown, news) in [("7", "7", false), ("8", "7", false), ("8", "9", true)] {
            let writing = written.writing(&key);
            assert!(written.knows(&key, &Arc::new(object("1", shown))));
            written.wrote(&key, object("1", ours));
            drop(writing);
            assert_eq!(
                woken.try_recv().is_ok(),
                news,
                "{ours} written, {shown} shown"
            );
        }
        let other = Key::new("a", "y");
        let writing = written.writing(&other);
        assert!(written.knows(&other, &Arc::new(object("1", "3"))));
        drop(writing);
        assert!(
            woken.try_recv().is_ok(),
            "the write failed, and something came"
        );
        assert!(
            !written.knows(&other, &Arc::new(object("1", "4"))),
            "nothing is under way any more"
        );
    }

    #[test]
    fn the_newest_is_decided_on() {
        let (written, key) = (Written::new(Trigger::default()), Key::new("a", "x"));
        written.wrote(&key, object("1", "7"));
        let version = |cached| {
            written
                .newest(&key, Arc::new(cached))
                .metadata
                .resource_version
                .clone()
                .unwrap()
        };
        assert_eq!(version(object("1", "6")), "7");
        assert_eq!(version(object("1", "8")), "8");
        assert_eq!(
            version(object("1", "6")),
            "6",
            "once the cache has caught up nothing is kept"
        );
    }
}
