//! Reads and writes copies, one at a time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Resource, ResourceExt};
use qm_api::ConfigMapSync;
use qm_runtime::child_cache::ChildLookup;
use qm_runtime::controller::Context;
use qm_runtime::drift::{Advice, Correction, Drift};
use qm_runtime::error::{CHILD_TERMINATING, CONFLICT, Error, message, rejection};
use qm_runtime::ownership::{Owner, Ownership};
use qm_runtime::{ObjectKey, apply, fields, managed_fields};
use tokio::sync::Semaphore;

use super::copy::{self, CopyStep};
use super::index::Index;
use super::status::NAMESPACE_NOT_FOUND;

/// Field manager of the controller's writes.
pub const MANAGER: &str = "quartermaster/configmapsync";
/// Number of reads of a copy that changes during the reconcile.
const TRIES: usize = 3;

/// Changes to make instead of editing a copy, by field.
pub const ADVICE: Advice = &[("", "change the source instead")];

/// Maximum size of the content of copies that are written at the same time, in KiB. Memory has each content several
/// times: as read, as sent and as answered.
const ROOM: usize = 6 * 1024;

/// The copies of all syncs.
pub struct CopyStore {
    index: Arc<Index>,
    room: Semaphore,
    drift: Drift,
}

/// Why a copy does not match its source.
#[derive(Debug)]
pub enum CopyError {
    /// Somebody has to do something first.
    Blocked {
        /// The condition's reason.
        reason: &'static str,
        /// The problem, and what to do.
        message: String,
    },
    /// The reconcile retries.
    Failed(Error),
}

impl CopyError {
    /// Somebody has to do something first.
    pub fn blocked(reason: &'static str, message: impl Into<String>) -> Self {
        Self::Blocked {
            reason,
            message: message.into(),
        }
    }

    fn of(key: &ObjectKey, error: kube::Error) -> Self {
        let reason = match &error {
            kube::Error::Api(status) if status.code == 404 => NAMESPACE_NOT_FOUND,
            kube::Error::Api(status)
                if matches!(status.code, 400 | 403 | 413 | 422) || apply::is_denied(status) =>
            {
                rejection(status)
            }
            _ => {
                let what = format!("copy {key} could not be read or written");
                return Self::Failed(Error::api(what)(error));
            }
        };
        Self::blocked(reason, message(&error))
    }
}

impl From<Error> for CopyError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl CopyStore {
    /// Creates a store without copies.
    pub fn new(index: Arc<Index>, drift: Drift) -> Self {
        Self {
            index,
            room: Semaphore::new(ROOM),
            drift,
        }
    }

    fn api(cx: &Context<ConfigMapSync>, copy: &ObjectKey) -> Api<ConfigMap> {
        Api::namespaced(cx.client().clone(), &copy.namespace)
    }

    /// Makes the copy match the source, whose digest is `digest`; returns whether anything was written.
    pub async fn ensure(
        &self,
        cx: &Context<ConfigMapSync>,
        source: &ConfigMap,
        digest: &str,
        key: &ObjectKey,
    ) -> Result<bool, CopyError> {
        let (owner, spec) = (&cx.owner, &cx.object.spec);
        let of_copy = |error| CopyError::of(key, error);
        let mut may_exist = match self.index.copies.lookup(key, digest) {
            ChildLookup::UpToDate => return Ok(false),
            ChildLookup::Unknown => !owner.is_fresh(),
            ChildLookup::Terminating | ChildLookup::Unconfirmed => true,
        };
        let _asking = self.index.copies.begin_read(key);
        // The semaphore is never closed.
        let _room = self.room.acquire_many(kibibytes(source)).await;
        let api = Self::api(cx, key);
        let mut tries = 0..TRIES;
        loop {
            let last = tries.next().is_none();
            let answers = Api::namespaced(cx.client().clone(), &key.namespace);
            if !may_exist
                && let Some(created) =
                    apply::create(&answers, MANAGER, &copy::new(source, spec, owner, key))
                        .await
                        .map_err(of_copy)?
            {
                // A new owner may have the name of a former one, which was deleted with its copies.
                if self.index.copies.take_lost(key) && !owner.is_fresh() {
                    self.drift
                        .recreated(owner, key, &format!("ConfigMap {key}"));
                }
                self.index.record_match(key, &created, digest);
                return Ok(true);
            }
            let Some(live) = api.get_opt(&key.name).await.map_err(of_copy)? else {
                self.index.copies.record_missing(key);
                if last {
                    return Err(keeps_changing());
                }
                may_exist = false;
                continue;
            };
            match cx.ownership(live.meta()) {
                Ownership::Foreign(foreign) => {
                    let message =
                        owner.conflict_message(&foreign, "configmaps", &key.namespace, &key.name);
                    return Err(CopyError::blocked(CONFLICT, message));
                }
                Ownership::Restored => cx.confirm_owner().await?,
                Ownership::Owned | Ownership::Adoptable => {}
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(CopyError::blocked(
                    CHILD_TERMINATING,
                    "the copy is being deleted; the operator recreates it afterwards",
                ));
            }
            let written = match copy::step(source, spec, owner, &live) {
                CopyStep::Nothing => {
                    self.index.record_match(key, &live, digest);
                    return Ok(false);
                }
                CopyStep::Replace(desired) => {
                    let mut desired = *desired;
                    // The apiserver keeps its own.
                    desired.meta_mut().managed_fields = None;
                    apply::replace(&api, MANAGER, &desired).await.map(Some)
                }
                CopyStep::Recreate => self
                    .index
                    .copies
                    .delete(&api, key, &live)
                    .await
                    .map(|()| None),
            };
            match written {
                Ok(Some(written)) => {
                    let before = self
                        .index
                        .copies
                        .matched(key, &live.uid().unwrap_or_default());
                    self.index.record_match(key, &written, digest);
                    // The copy matched this desired state before, so another client has changed it since.
                    if before.is_some_and(|before| before.desired == digest) {
                        self.report_correction(owner, key, digest, &live, &written);
                    }
                    return Ok(true);
                }
                Ok(None) => may_exist = false,
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) && !last => {
                    may_exist = true;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Err(keeps_changing()),
                Err(error) => return Err(of_copy(error)),
            }
        }
    }

    fn report_correction(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        digest: &str,
        before: &ConfigMap,
        after: &ConfigMap,
    ) {
        // Serialization cannot fail: both objects came from JSON.
        let values = |map| {
            fields::all(&fields::content(
                &serde_json::to_value(map).unwrap_or_default(),
            ))
        };
        let observed = values(before);
        let changed = observed.differences(&values(after));
        let managed = before
            .metadata
            .managed_fields
            .as_deref()
            .unwrap_or_default();
        let manager = managed_fields::last_writer(managed, MANAGER, &changed);
        let what = format!("ConfigMap {key}");
        self.drift.corrected(
            owner,
            key,
            &Correction {
                what: &what,
                fields: &changed,
                before: &observed,
                manager,
                digest,
            },
        );
    }

    /// Returns the copies that the sync owns, and those of an earlier sync of its name that no longer exists.
    pub fn owned(&self, cx: &Context<ConfigMapSync>) -> Vec<ObjectKey> {
        self.index.copies.keys_where(|copy| {
            copy.owner_uid == cx.owner.uid()
                || (copy.owner.as_ref() == Some(&cx.key) && !cx.owners().exists(&copy.owner_uid))
        })
    }

    /// Deletes a copy that the sync owns, or removes its ownership if it is to stay; returns whether there was one.
    pub async fn release(
        &self,
        cx: &Context<ConfigMapSync>,
        key: &ObjectKey,
    ) -> Result<bool, CopyError> {
        let of_copy = |error| CopyError::of(key, error);
        let api = Self::api(cx, key);
        for is_last in [false, false, true] {
            let Some(live) = api.get_opt(&key.name).await.map_err(of_copy)? else {
                return Ok(false);
            };
            let claim = cx.ownership(live.meta());
            let is_owned = matches!(claim, Ownership::Owned | Ownership::Restored);
            if !is_owned || live.meta().deletion_timestamp.is_some() {
                return Ok(false);
            }
            if claim == Ownership::Restored {
                cx.confirm_owner().await?;
            }
            let released = if cx.object.spec.orphans() {
                let mut orphan = live.clone();
                cx.owner.clear_ownership(orphan.meta_mut());
                orphan.meta_mut().managed_fields = None;
                apply::replace(&api, MANAGER, &orphan).await.map(drop)
            } else {
                self.index.copies.delete(&api, key, &live).await
            };
            match released {
                Err(kube::Error::Api(status)) if status.code == 409 && !is_last => {}
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
                released => return released.map(|()| true).map_err(of_copy),
            }
        }
        Ok(false)
    }
}

/// Reports that another client creates and deletes the copy again and again; the next reconcile reads the copy again.
fn keeps_changing() -> CopyError {
    CopyError::blocked(CHILD_TERMINATING, "the copy keeps being recreated")
}

/// Returns the size of the content in KiB, at least 1 and at most [`ROOM`].
fn kibibytes(map: &ConfigMap) -> u32 {
    let text = map
        .data
        .iter()
        .flatten()
        .map(|(name, value)| name.len() + value.len());
    let bytes = map
        .binary_data
        .iter()
        .flatten()
        .map(|(name, value)| name.len() + value.0.len());
    let size = text.chain(bytes).sum::<usize>() / 1024;
    u32::try_from(size.clamp(1, ROOM)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::time::Duration;

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::{reflector, watcher};
    use prometheus_client::metrics::counter::Counter;
    use qm_runtime::WatchScope;
    use qm_runtime::controller::KindContext;
    use qm_runtime::events::Events;
    use qm_runtime::settings::Timings;
    use qm_runtime::trigger::Trigger;
    use serde_json::{Value, json};

    use super::*;

    /// Answers reads with `live`; returns the requests.
    async fn released(live: Value) -> (bool, Vec<Method>) {
        let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let index = Arc::new(Index::new(
            &WatchScope::Cluster,
            Duration::from_mins(30),
            Trigger::default(),
        ));
        let (syncs, mut writer) = reflector::store::<ConfigMapSync>();
        let other =
            json!({ "metadata": { "namespace": "sync", "name": "o", "uid": "other" }, "spec": {} });
        writer.apply_watcher_event(&watcher::Event::Apply(
            serde_json::from_value(other).unwrap(),
        ));
        let client = Client::new(service, "n");
        let events = Events::new(client.clone(), "test", "qm-0").0;
        let drift = Drift::new(
            &Timings::default(),
            events.clone(),
            Counter::default(),
            ADVICE,
        );
        let copies = CopyStore::new(index, drift);
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" }, "spec": {} });
        let sync: ConfigMapSync = serde_json::from_value(sync).unwrap();
        let owner = Owner::of(&sync).unwrap();
        let key = ObjectKey::new("far", "c");
        let kind = KindContext::new(client, MANAGER, syncs, Trigger::default(), events);
        let cx = Context::new(kind, Arc::new(sync), owner);
        let release = copies.release(&cx, &key);
        let mut requests = Vec::new();
        let answer = async {
            while let Some((request, answer)) = apiserver.next_request().await {
                requests.push(request.method().clone());
                answer.send_response(Response::new(serde_json::to_vec(&live).unwrap().into()));
            }
        };
        let done = tokio::select! {
            done = release => done.unwrap(),
            () = answer => panic!("the client was dropped"),
        };
        (done, requests)
    }

    fn live(label: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "far", "name": "c", "uid": "1",
            "resourceVersion": "7", "labels": { "quartermaster.dev/owner-uid": label } } })
    }

    /// The copy was listed as owned; then another sync adopted it.
    #[tokio::test]
    async fn copy_that_was_adopted_meanwhile_is_not_deleted() {
        assert_eq!(
            released(live("u")).await,
            (true, vec![Method::GET, Method::DELETE])
        );
        assert_eq!(released(live("other")).await, (false, vec![Method::GET]));
    }
}
