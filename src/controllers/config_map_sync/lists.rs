//! Lists of the copies of syncs that are being deleted. One list of each watched namespace serves all syncs that wait:
//! otherwise, the deletion of many syncs would list every namespace once for each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt as _};
use qm_api::ConfigMapSync;
use qm_api::common::OWNER_UID;
use qm_runtime::pages::all_pages;
use qm_runtime::trigger::Trigger;
use qm_runtime::{ObjectKey, WatchScope};

/// Maximum number of syncs that share a list: their UIDs are a part of its URL.
const MAX_SYNCS: usize = 100;
/// Maximum number of namespaces that are listed at once.
const MAX_CONCURRENT_LISTS: usize = 16;

pub(super) struct CopyLists {
    scope: WatchScope,
    state: Mutex<CopyListsState>,
    trigger: Trigger<ConfigMapSync>,
}

#[derive(Default)]
struct CopyListsState {
    is_listing: bool,
    /// UIDs of the syncs that wait for a list.
    waiting: BTreeMap<ObjectKey, String>,
    /// UIDs and copies of the syncs that have waited and are woken.
    listed: HashMap<ObjectKey, (String, ListedCopies)>,
}

/// Copies of one sync that the lists showed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ListedCopies {
    /// Copies whose label has the sync's UID.
    pub copies: BTreeSet<ObjectKey>,
    /// Namespaces that the operator must not list, `None` for all, with the apiserver's messages.
    pub forbidden: BTreeMap<Option<String>, String>,
}

/// Guard of running lists. Its end triggers a reconcile of a sync that still waits.
struct RunningLists<'a>(&'a CopyLists);

impl CopyLists {
    pub(super) fn new(scope: WatchScope, trigger: Trigger<ConfigMapSync>) -> Self {
        Self {
            scope,
            state: Mutex::default(),
            trigger,
        }
    }

    /// Lists the copies of a sync, and of other syncs that wait. Returns `None` while other lists run, which may have
    /// begun before the last write of this sync's copies. The sync is then reconciled later, because a reconcile that
    /// waits would hold the place of other syncs.
    pub(super) async fn list(
        &self,
        client: &Client,
        sync: &ObjectKey,
        uid: &str,
    ) -> kube::Result<Option<ListedCopies>> {
        let batch = {
            let mut state = self.state();
            let listed = state.listed.remove(sync);
            if let Some((_, listed)) = listed.filter(|(of, _)| of == uid) {
                return Ok(Some(listed));
            }
            if state.is_listing {
                state.waiting.insert(sync.clone(), uid.to_owned());
                return Ok(None);
            }
            state.is_listing = true;
            state.waiting.remove(sync);
            let others = state.waiting.iter().take(MAX_SYNCS - 1);
            let mut batch: BTreeMap<_, _> = others
                .map(|(other, uid)| (other.clone(), uid.clone()))
                .collect();
            batch.insert(sync.clone(), uid.to_owned());
            batch
        };
        let _running = RunningLists(self);
        let uids: Vec<_> = batch.values().map(String::as_str).collect();
        let mut listed = self.list_namespaces(client, &uids).await?;
        let own = listed.remove(uid).unwrap_or_default();
        let mut state = self.state();
        let mut woken = Vec::new();
        for (other, uid) in batch {
            // A sync that does not wait any more is this one, or was deleted.
            if state.waiting.get(&other) == Some(&uid) {
                state.waiting.remove(&other);
                let copies = listed.remove(&uid).unwrap_or_default();
                state.listed.insert(other.clone(), (uid, copies));
                woken.push(other);
            }
        }
        drop(state);
        self.trigger.wake_all(&woken);
        Ok(Some(own))
    }

    /// Returns the copies of each of these UIDs.
    async fn list_namespaces(
        &self,
        client: &Client,
        uids: &[&str],
    ) -> kube::Result<HashMap<String, ListedCopies>> {
        let owned = format!("{OWNER_UID} in ({})", uids.join(","));
        let params = ListParams::default().labels(&owned);
        let apis = self.scope.apis::<PartialObjectMeta<ConfigMap>>(client);
        let lists = apis.into_iter().map(|(namespace, api)| {
            let params = params.clone();
            async move {
                let api = &api;
                let list = |page| async move { api.list(&page).await };
                let convert = |copy: PartialObjectMeta<ConfigMap>| {
                    let uid = copy.labels().get(OWNER_UID).cloned();
                    (uid.unwrap_or_default(), ObjectKey::of(&copy))
                };
                match all_pages(params, list, convert).await {
                    Ok(copies) => Ok((namespace, Ok(copies))),
                    Err(kube::Error::Api(status)) if status.code == 403 => {
                        Ok((namespace, Err(status.message.clone())))
                    }
                    Err(error) => Err(error),
                }
            }
        });
        let lists = stream::iter(lists).buffer_unordered(MAX_CONCURRENT_LISTS);
        let lists: Vec<_> = lists.try_collect().await?;
        let none = uids
            .iter()
            .map(|uid| ((*uid).to_owned(), ListedCopies::default()));
        let mut listed: HashMap<_, _> = none.collect();
        for (namespace, answer) in lists {
            match answer {
                Ok(copies) => {
                    for (uid, copy) in copies {
                        if let Some(of) = listed.get_mut(&uid) {
                            of.copies.insert(copy);
                        }
                    }
                }
                Err(message) => {
                    for of in listed.values_mut() {
                        of.forbidden.insert(namespace.clone(), message.clone());
                    }
                }
            }
        }
        Ok(listed)
    }

    /// Forgets a deleted sync.
    pub(super) fn forget(&self, sync: &ObjectKey) {
        let mut state = self.state();
        let has_waited = state.waiting.remove(sync).is_some();
        state.listed.remove(sync);
        // The sync may have been woken to begin the next list.
        if has_waited && !state.is_listing {
            self.wake_next(&state);
        }
    }

    /// Triggers a reconcile of a sync that waits.
    fn wake_next(&self, state: &CopyListsState) {
        if let Some(next) = state.waiting.keys().next() {
            self.trigger.wake(next);
        }
    }

    fn state(&self) -> MutexGuard<'_, CopyListsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningLists<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_listing = false;
        self.0.wake_next(&state);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future::ready;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    use futures::poll;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc::UnboundedReceiver;
    use tower::{BoxError, service_fn};

    use super::*;

    const NAMESPACES: [&str; 2] = ["a", "b"];

    /// Lists of an apiserver in which each sync has a copy in each namespace.
    struct Fixture {
        lists: CopyLists,
        woken: UnboundedReceiver<ObjectKey>,
        client: Client,
        /// Status code of the answers for namespace `b`.
        code: Arc<AtomicU16>,
        /// Number of UIDs in each request.
        requests: Arc<Mutex<Vec<usize>>>,
    }

    impl Fixture {
        fn new() -> Self {
            let code = Arc::new(AtomicU16::new(200));
            let requests = Arc::new(Mutex::new(Vec::new()));
            let serve = {
                let (code, requests) = (Arc::clone(&code), Arc::clone(&requests));
                move |request: Request<Body>| {
                    let query = request.uri().query().unwrap_or_default().as_bytes();
                    let mut parameters = form_urlencoded::parse(query);
                    let (_, selector) = parameters
                        .find(|(name, _)| name == "labelSelector")
                        .unwrap();
                    let (label, uids) = selector.split_once(" in ").unwrap();
                    assert_eq!(label, OWNER_UID);
                    let uids: Vec<_> = uids.trim_matches(['(', ')']).split(',').collect();
                    requests.lock().unwrap().push(uids.len());
                    let namespace = request.uri().path().split('/').nth(4).unwrap();
                    let code = match namespace {
                        "b" => code.load(Ordering::Relaxed),
                        _ => 200,
                    };
                    let answer = if code == 200 {
                        let copy = |uid: &&str| {
                            let labels = json!({ OWNER_UID: uid });
                            json!({ "metadata": { "namespace": namespace, "name": uid, "labels": labels } })
                        };
                        let items: Vec<_> = uids.iter().map(copy).collect();
                        json!({ "metadata": {}, "items": items })
                    } else {
                        json!({ "status": "Failure", "message": "denied", "reason": "", "code": code })
                    };
                    let answer = Body::from(answer.to_string().into_bytes());
                    let answer = Response::builder().status(code).body(answer);
                    ready(answer.map_err(BoxError::from))
                }
            };
            let trigger = Trigger::default();
            let woken = trigger.open();
            let scope = WatchScope::Namespaces(NAMESPACES.map(str::to_owned).into());
            Self {
                lists: CopyLists::new(scope, trigger),
                woken,
                client: Client::new(service_fn(serve), "default"),
                code,
                requests,
            }
        }

        /// Lists the copies of a sync, whose UID is its name.
        async fn list(&self, sync: &ObjectKey) -> kube::Result<Option<ListedCopies>> {
            self.lists.list(&self.client, sync, &sync.name).await
        }
    }

    fn sync(number: usize) -> ObjectKey {
        ObjectKey::new("shop", &format!("u{number:03}"))
    }

    fn copies(sync: &ObjectKey, namespaces: &[&str]) -> BTreeSet<ObjectKey> {
        let copy = |namespace: &&str| ObjectKey::new(namespace, &sync.name);
        namespaces.iter().map(copy).collect()
    }

    #[tokio::test]
    async fn one_list_of_each_namespace_serves_the_syncs_that_wait() {
        const SYNCS: usize = 250;
        let mut fixture = Fixture::new();
        {
            let first = sync(0);
            let mut listing = pin!(fixture.list(&first));
            assert!(poll!(listing.as_mut()).is_pending());
            for number in 1..SYNCS {
                let listed = fixture.list(&sync(number)).await.unwrap();
                assert_eq!(listed, None, "the list may have begun too early");
            }
            let listed = listing.await.unwrap().unwrap();
            assert_eq!(listed.copies, copies(&first, &NAMESPACES));
        }
        let mut served = 1;
        while let Ok(sync) = fixture.woken.try_recv() {
            let listed = fixture.list(&sync).await.unwrap().unwrap();
            assert_eq!(listed.copies, copies(&sync, &NAMESPACES));
            served += 1;
        }
        assert_eq!(served, SYNCS);
        let requests = fixture.requests.lock().unwrap();
        assert_eq!(*requests, [1, 1, 100, 100, 100, 100, 49, 49]);
    }

    #[tokio::test]
    async fn failed_or_dropped_list_lets_the_next_sync_list() {
        let mut fixture = Fixture::new();
        let (first, second, third, deleted) = (sync(1), sync(2), sync(3), sync(0));
        {
            let mut dropped = pin!(fixture.list(&first));
            assert!(poll!(dropped.as_mut()).is_pending());
            for waiting in [&deleted, &second, &third] {
                assert_eq!(fixture.list(waiting).await.unwrap(), None);
            }
            fixture.lists.forget(&deleted);
        }
        assert_eq!(fixture.woken.try_recv(), Ok(second.clone()));
        fixture.code.store(500, Ordering::Relaxed);
        fixture.list(&second).await.unwrap_err();
        assert_eq!(fixture.woken.try_recv(), Ok(third.clone()));
        fixture.code.store(403, Ordering::Relaxed);
        let listed = fixture.list(&third).await.unwrap().unwrap();
        let forbidden = BTreeMap::from([(Some("b".to_owned()), "denied".to_owned())]);
        assert_eq!(listed.forbidden, forbidden);
        assert_eq!(listed.copies, copies(&third, &["a"]));
        assert!(fixture.woken.try_recv().is_err());
    }

    #[tokio::test]
    async fn deleted_sync_that_was_to_list_lets_the_next_one_list() {
        let mut fixture = Fixture::new();
        let (first, deleted, last) = (sync(1), sync(2), sync(3));
        {
            let mut dropped = pin!(fixture.list(&first));
            assert!(poll!(dropped.as_mut()).is_pending());
            for waiting in [&deleted, &last] {
                assert_eq!(fixture.list(waiting).await.unwrap(), None);
            }
        }
        assert_eq!(fixture.woken.try_recv(), Ok(deleted.clone()));
        fixture.lists.forget(&deleted);
        assert_eq!(fixture.woken.try_recv(), Ok(last));
    }
}
