//! The end of a `ConfigMapSync`: its copies go, or are let go, before it does.

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;

use super::standing::{Came, Reason};
use super::{AT_ONCE, ConfigMapSyncs, Error, MANAGER};
use crate::api::ConfigMapSync;
use crate::api::config_map_sync::FINALIZER;
use crate::runtime::ownership::{OWNER_UID, Owner};
use crate::runtime::reconciler::Outcome;
use crate::runtime::{Key, apply};

/// How many copies a list holds at once.
const PAGE: u32 = 500;

impl ConfigMapSyncs {
    /// It is being deleted: its copies go before it does.
    pub(super) async fn finish(&self, key: &Key, sync: &ConfigMapSync, owner: &Owner) -> Result<Outcome, Error> {
        if !sync.finalizers().iter().any(|name| name == FINALIZER) {
            return Ok(Outcome::Done);
        }
        if let Err(error) = self.release(sync, owner).await {
            let refusal = match &error {
                Error::WriteCopy(copy, kube::Error::Api(said)) if said.code == 403 => {
                    format!("copy {copy} cannot be deleted: {}", said.message)
                }
                Error::ListCopies(kube::Error::Api(said)) if said.code == 403 => said.message.clone(),
                _ => return Err(error),
            };
            self.write(key, sync, &Came::Blocked { reason: Reason::Forbidden, words: refusal }, false).await?;
            return Ok(Outcome::Waiting);
        }
        let left: Vec<_> = sync.finalizers().iter().map(String::as_str).filter(|name| *name != FINALIZER).collect();
        match apply::finalizers(&self.api(key), MANAGER, sync, &left).await {
            Ok(_) => Ok(Outcome::Done),
            Err(kube::Error::Api(said)) if said.code == 404 => Ok(Outcome::Done),
            Err(error) => Err(Error::WriteStatus(error)),
        }
    }

    /// Deletes every copy, or takes the mark off it. They are listed anew until there is none left: what a watch shows may
    /// be the past.
    async fn release(&self, sync: &ConfigMapSync, owner: &Owner) -> Result<(), Error> {
        let ours = format!("{OWNER_UID}={}", sync.uid().unwrap_or_default());
        loop {
            // Its owner reference is a mark too: without the label it is not listed, and would go after its owner.
            let here = self.plan(sync).ok().filter(|_| sync.spec.orphans());
            let here = here.map(|plan| Key::new(owner.namespace(), &plan.name));
            let mut left: Vec<_> = here.into_iter().collect();
            for (_, api) in self.scope.places::<PartialObjectMeta<ConfigMap>>(&self.client) {
                let mut page = ListParams::default().labels(&ours).limit(PAGE);
                loop {
                    let list = api.list(&page).await.map_err(Error::ListCopies)?;
                    left.extend(
                        list.items.iter().filter(|copy| copy.metadata.deletion_timestamp.is_none()).map(Key::of),
                    );
                    match list.metadata.continue_.filter(|token| !token.is_empty()) {
                        Some(token) => page.continue_token = Some(token),
                        None => break,
                    }
                }
            }
            let released = left.into_iter().map(|copy| async move {
                let result = self.copies.release(owner, &sync.spec, &copy).await;
                result.map_err(|error| Error::WriteCopy(copy, error))
            });
            // One that cannot be released holds up no other.
            let released: Vec<_> = stream::iter(released).buffer_unordered(AT_ONCE).collect().await;
            let released = released.into_iter().collect::<Result<Vec<_>, _>>()?;
            // What has our label and a controller of its own is not ours.
            if !released.contains(&true) {
                return Ok(());
            }
        }
    }
}
