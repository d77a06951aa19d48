//! The end of a `ConfigMapSync`: its copies go, or are let go, before it does.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use qm_api::ConfigMapSync;
use qm_api::config_map_sync::FINALIZER;
use qm_runtime::ownership::{OWNER_UID, Owner};
use qm_runtime::reconciler::Requeue;
use qm_runtime::{Key, finalizer};

use super::standing::{Came, Reason, Snag};
use super::{ConfigMapSyncs, Done, Error, MANAGER};

/// How many copies a list holds at once.
const PAGE: u32 = 500;

impl ConfigMapSyncs {
    /// It is being deleted: its copies go before it does.
    pub(super) async fn finish(
        &self,
        key: &Key,
        sync: &ConfigMapSync,
        owner: &Owner,
    ) -> Result<Requeue, Error> {
        if !finalizer::is_on(sync, FINALIZER) {
            return Ok(Requeue::OnChange);
        }
        let left = self.left(sync, owner).await;
        let done = match left {
            Ok(left) => self.release(owner, sync, left).await,
            Err(kube::Error::Api(said)) if said.code == 403 => {
                let came = Came::Blocked {
                    reason: Reason::Forbidden,
                    words: said.message.clone(),
                };
                self.write(key, sync, &came, false).await?;
                return Ok(Requeue::Poll);
            }
            Err(error) => return Err(Error::ListCopies(error)),
        };
        let Done {
            wrote,
            snags,
            failure,
        } = Done::of(done);
        if let Some(Snag {
            namespace,
            reason,
            words,
        }) = snags.into_iter().next()
        {
            let words = format!("the copy in {namespace} cannot be taken away: {words}");
            self.write(key, sync, &Came::Blocked { reason, words }, wrote)
                .await?;
            return failure.map_or(Ok(Requeue::Poll), Err);
        }
        finalizer::take(&self.api(key), MANAGER, sync, FINALIZER)
            .await
            .map_err(Error::WriteStatus)?;
        Ok(Requeue::OnChange)
    }

    /// All copies that may be ours. They are listed anew: what a watch shows may be the past.
    async fn left(&self, sync: &ConfigMapSync, owner: &Owner) -> kube::Result<BTreeSet<Key>> {
        // What was restored from a backup has another label.
        self.index.ready().await;
        let mut left: BTreeSet<_> = self.ours(owner).into_iter().collect();
        // In its own namespace an owner reference is a mark too: without the label it is not listed, and would go after its owner.
        let here = self.plan(sync).ok().filter(|_| sync.spec.orphans());
        left.extend(here.map(|plan| Key::new(owner.namespace(), &plan.name)));
        let ours = format!("{OWNER_UID}={}", owner.uid());
        for (_, api) in self
            .scope
            .places::<PartialObjectMeta<ConfigMap>>(&self.client)
        {
            let mut page = ListParams::default().labels(&ours).limit(PAGE);
            loop {
                let list = api.list(&page).await?;
                left.extend(list.items.iter().map(Key::of));
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page.continue_token = Some(token),
                    None => break,
                }
            }
        }
        Ok(left)
    }
}
