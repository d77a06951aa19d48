//! Reads and writes copies, one at a time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::ConfigMapSync;
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_runtime::drift::{Advice, Correction, Drift};
use qm_runtime::owners::{Owners, Unconfirmed};
use qm_runtime::ownership::{Claim, Owner};
use qm_runtime::seen::Look;
use qm_runtime::{Key, apply, fields, managed_fields};
use tokio::sync::Semaphore;

use super::MANAGER;
use super::copy::{self, Step};
use super::index::Index;
use super::standing::Reason;

/// How often a copy that changes under the pass is looked at once more.
const TRIES: usize = 3;

/// Changes to make instead of editing a copy, by field.
pub const ADVICE: Advice = &[("", "change the source instead")];

/// How much content is held for copies that are written at the same moment, in KiB. Each is held several times over: as it
/// was read, as it is sent, as it is answered.
const ROOM: usize = 6 * 1024;

/// The copies of all syncs.
pub struct Copies {
    client: Client,
    index: Arc<Index>,
    syncs: Owners<ConfigMapSync>,
    room: Semaphore,
    drift: Drift,
}

/// Why a copy is not as its source.
#[derive(Debug)]
pub enum Trouble {
    /// That stays so until somebody does something.
    Snag {
        /// The condition's reason.
        reason: Reason,
        /// What is wrong, and what to do.
        words: String,
    },
    /// The sync may be gone.
    Owner(Unconfirmed),
    /// It is worth another try.
    Failed(kube::Error),
}

impl Trouble {
    /// One that stays.
    pub fn snag(reason: Reason, words: String) -> Self {
        Self::Snag { reason, words }
    }
}

impl From<Unconfirmed> for Trouble {
    fn from(unconfirmed: Unconfirmed) -> Self {
        Self::Owner(unconfirmed)
    }
}

impl From<kube::Error> for Trouble {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(said) = &error else {
            return Self::Failed(error);
        };
        let going = apply::is_terminating(said);
        let reason = match said.code {
            404 => Reason::NamespaceNotFound,
            403 if going => Reason::NamespaceTerminating,
            403 if said.message.contains("exceeded quota") => Reason::QuotaExceeded,
            403 => Reason::Forbidden,
            400 | 413 | 422 => Reason::Refused,
            _ if apply::is_denied(said) => Reason::Refused,
            _ => return Self::Failed(error),
        };
        Self::Snag {
            reason,
            words: said.message.clone(),
        }
    }
}

impl Copies {
    /// None is written yet.
    pub fn new(
        client: Client,
        index: Arc<Index>,
        syncs: Owners<ConfigMapSync>,
        drift: Drift,
    ) -> Self {
        Self {
            client,
            index,
            syncs,
            room: Semaphore::new(ROOM),
            drift,
        }
    }

    fn api(&self, copy: &Key) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &copy.namespace)
    }

    /// Has the copy be as the source, which `digest` stands for; whether anything was written.
    pub async fn settle(
        &self,
        owner: &Owner,
        spec: &ConfigMapSyncSpec,
        source: &ConfigMap,
        digest: &str,
        key: &Key,
    ) -> Result<bool, Trouble> {
        let mut there = match self.index.copies.look(key, digest) {
            Look::Fine => return Ok(false),
            Look::Unknown => !owner.is_fresh(),
            Look::Going | Look::Other => true,
        };
        let _asking = self.index.copies.asking(key);
        // Never closed; and without room the pass would only be slower.
        let _room = self.room.acquire_many(kibibytes(source)).await;
        let api = self.api(key);
        let mut tries = 0..TRIES;
        loop {
            let last = tries.next().is_none();
            let answers = Api::namespaced(self.client.clone(), &key.namespace);
            if !there
                && let Some(created) =
                    apply::create(&answers, MANAGER, &copy::new(source, spec, owner, key)).await?
            {
                // A new owner's name may be that of a former one, whose copies went with it.
                if self.index.copies.take_lost(key) && !owner.is_fresh() {
                    self.drift
                        .recreated(owner, key, &format!("ConfigMap {key}"));
                }
                self.index.right(key, &created, digest);
                return Ok(true);
            }
            let Some(live) = api.get_opt(&key.name).await? else {
                self.index.copies.missing(key);
                if last {
                    return Err(comes_and_goes());
                }
                there = false;
                continue;
            };
            match owner.claim(live.meta(), |uid| self.syncs.lives(uid)) {
                Claim::Foreign(foreign) => {
                    let words = owner.conflict(&foreign, "configmaps", &key.namespace, &key.name);
                    return Err(Trouble::snag(Reason::Conflict, words));
                }
                Claim::Restored => self.syncs.confirm(owner).await?,
                Claim::Ours | Claim::HandedOver => {}
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(Trouble::snag(
                    Reason::Terminating,
                    "the copy is being deleted; it is made again once it is gone".into(),
                ));
            }
            let written = match copy::step(source, spec, owner, &live) {
                Step::Nothing => {
                    self.index.right(key, &live, digest);
                    return Ok(false);
                }
                Step::Replace(desired) => {
                    let mut desired = *desired;
                    // The apiserver keeps its own.
                    desired.meta_mut().managed_fields = None;
                    apply::replace(&api, MANAGER, &desired).await.map(Some)
                }
                Step::Recreate => self
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
                    self.index.right(key, &written, digest);
                    // The copy matched this desired state before, so somebody has changed it since.
                    if before.is_some_and(|before| before.desired == digest) {
                        self.report_correction(owner, key, digest, &live, &written);
                    }
                    return Ok(true);
                }
                Ok(None) => there = false,
                Err(kube::Error::Api(said)) if matches!(said.code, 404 | 409) && !last => {
                    there = true;
                }
                Err(kube::Error::Api(said)) if said.code == 404 => return Err(comes_and_goes()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn report_correction(
        &self,
        owner: &Owner,
        key: &Key,
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

    /// What is ours; also what was that of one of our name which is gone.
    pub fn those(&self, owner: &Owner) -> Vec<Key> {
        let path = Key::new(owner.namespace(), owner.name());
        self.index.copies.those(|copy| {
            copy.owner_uid == owner.uid()
                || (copy.owner.as_ref() == Some(&path) && !self.syncs.lives(&copy.owner_uid))
        })
    }

    /// Deletes a copy that is ours, or takes its mark off; whether there was one.
    pub async fn release(
        &self,
        owner: &Owner,
        spec: &ConfigMapSyncSpec,
        key: &Key,
    ) -> Result<bool, Trouble> {
        let api = self.api(key);
        for last in [false, false, true] {
            let Some(live) = api.get_opt(&key.name).await? else {
                return Ok(false);
            };
            let claim = owner.claim(live.meta(), |uid| self.syncs.lives(uid));
            let ours = matches!(claim, Claim::Ours | Claim::Restored);
            if !ours || live.meta().deletion_timestamp.is_some() {
                return Ok(false);
            }
            if claim == Claim::Restored {
                self.syncs.confirm(owner).await?;
            }
            let done = if spec.orphans() {
                let mut orphan = live.clone();
                owner.unmark(orphan.meta_mut());
                orphan.meta_mut().managed_fields = None;
                apply::replace(&api, MANAGER, &orphan).await.map(drop)
            } else {
                self.index.copies.delete(&api, key, &live).await
            };
            match done {
                Err(kube::Error::Api(said)) if said.code == 409 && !last => {}
                Err(kube::Error::Api(said)) if said.code == 404 => return Ok(false),
                done => return Ok(done.map(|()| true)?),
            }
        }
        Ok(false)
    }
}

/// Somebody makes and deletes it all the time; the next pass has another look.
fn comes_and_goes() -> Trouble {
    Trouble::snag(Reason::Terminating, "the copy comes and goes".into())
}

/// Size of the content, at least 1 and at most [`ROOM`].
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
    use kube::client::Body;
    use kube::runtime::{reflector, watcher};
    use prometheus_client::metrics::counter::Counter;
    use qm_runtime::Scope;
    use qm_runtime::events::Events;
    use qm_runtime::reconciler::Trigger;
    use qm_runtime::settings::Timings;
    use serde_json::{Value, json};

    use super::*;

    /// Answers reads with `live`; gives what was asked for.
    async fn released(live: Value) -> (bool, Vec<Method>) {
        let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let index = Arc::new(Index::new(
            &Scope::Cluster,
            Duration::from_mins(30),
            Trigger::default(),
        ));
        let (syncs, mut shown) = reflector::store::<ConfigMapSync>();
        let other =
            json!({ "metadata": { "namespace": "sync", "name": "o", "uid": "other" }, "spec": {} });
        shown.apply_watcher_event(&watcher::Event::Apply(
            serde_json::from_value(other).unwrap(),
        ));
        let client = Client::new(service, "n");
        let events = Events::new(client.clone(), "test", "qm-0").0;
        let drift = Drift::new(&Timings::default(), events, Counter::default(), ADVICE);
        let copies = Copies::new(client.clone(), index, Owners::new(client, syncs), drift);
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" }, "spec": {} });
        let sync: ConfigMapSync = serde_json::from_value(sync).unwrap();
        let owner = Owner::of(&sync).unwrap();
        let key = Key::new("far", "c");
        let release = copies.release(&owner, &sync.spec, &key);
        let mut asked = Vec::new();
        let answer = async {
            while let Some((request, answer)) = apiserver.next_request().await {
                asked.push(request.method().clone());
                answer.send_response(Response::new(serde_json::to_vec(&live).unwrap().into()));
            }
        };
        let done = tokio::select! {
            done = release => done.unwrap(),
            () = answer => panic!("the client is gone"),
        };
        (done, asked)
    }

    fn live(label: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "namespace": "far", "name": "c", "uid": "1",
            "resourceVersion": "7", "labels": { "quartermaster.dev/owner-uid": label } } })
    }

    /// It was listed as ours; then somebody else took it over.
    #[tokio::test]
    async fn a_copy_that_lost_its_mark_in_the_meantime_is_not_deleted() {
        assert_eq!(
            released(live("u")).await,
            (true, vec![Method::GET, Method::DELETE])
        );
        assert_eq!(released(live("other")).await, (false, vec![Method::GET]));
    }
}
