//! Finalizes a `ConfigMapSync`: deletes or orphans the copies before the apiserver deletes the sync.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use qm_api::ConfigMapSync;
use qm_api::common::OWNER_UID;
use qm_runtime::ObjectKey;
use qm_runtime::controller::Context;
use qm_runtime::error::{Error, FORBIDDEN, Result};
use qm_runtime::outcome::Outcome;
use qm_runtime::pages::all_pages;

use super::status::CopyProblem;
use super::{ConfigMapSyncs, CopyTotals, blocked, with_error};

impl ConfigMapSyncs {
    /// Deletes or orphans all copies. Returns `None` once the sync owns none.
    pub(super) async fn delete_copies(
        &self,
        cx: &mut Context<ConfigMapSync>,
    ) -> Result<Option<Outcome>> {
        let copies = match self.list_copies(cx).await {
            Ok(copies) => copies,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Ok(Some(blocked(cx, FORBIDDEN, status.message.clone())));
            }
            Err(error) => return Err(Error::api("the copies could not be listed")(error)),
        };
        let CopyTotals {
            has_written,
            problems,
            error,
        } = CopyTotals::of(self.delete_or_orphan(cx, copies).await);
        self.record_writes(cx, has_written);
        let Some(first) = problems.into_iter().next() else {
            return Ok(None);
        };
        let CopyProblem {
            namespace,
            reason,
            message,
        } = first;
        let message = format!("the copy in {namespace} cannot be deleted: {message}");
        with_error(blocked(cx, reason, message), true, error).map(Some)
    }

    /// Returns the copies that the sync may own: those in the cache, and those that the apiserver lists, because a
    /// watch may be behind.
    async fn list_copies(&self, cx: &Context<ConfigMapSync>) -> kube::Result<BTreeSet<ObjectKey>> {
        // The label of a copy that was restored from a backup may have an earlier sync's UID, so the list omits it.
        self.index.ready().await;
        let mut copies: BTreeSet<_> = self.copies.owned_keys(cx).into_iter().collect();
        // In the sync's own namespace an owner reference proves ownership too. A list by the label omits a copy without
        // the label, and the garbage collector would delete a copy that is to stay.
        let here = self.plan(&cx.object).ok();
        let here = here.filter(|_| cx.object.spec.orphans());
        copies.extend(here.map(|plan| ObjectKey::new(&cx.key.namespace, &plan.name)));
        let owned = format!("{OWNER_UID}={}", cx.owner.uid());
        let apis = self.scope.apis::<PartialObjectMeta<ConfigMap>>(cx.client());
        for (_, api) in apis {
            let (api, params) = (&api, ListParams::default().labels(&owned));
            let list = |page| async move { api.list(&page).await };
            copies.extend(all_pages(params, list, |copy| ObjectKey::of(&copy)).await?);
        }
        Ok(copies)
    }
}
