//! Finalizes a `ConfigMapSync`: deletes or orphans the copies before the apiserver deletes the sync.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::core::{PartialObjectMeta, Status};
use qm_api::ConfigMapSync;
use qm_api::common::OWNER_UID;
use qm_runtime::ObjectKey;
use qm_runtime::controller::Context;
use qm_runtime::error::{Error, FORBIDDEN, Result};
use qm_runtime::outcome::Outcome;
use qm_runtime::pages::all_pages;
use tracing::warn;

use super::status::CopyProblem;
use super::{ConfigMapSyncs, CopyTotals, blocked, with_error};

impl ConfigMapSyncs {
    /// Deletes or orphans all copies. Returns `None` once the sync owns none.
    pub(super) async fn delete_copies(
        &self,
        cx: &mut Context<ConfigMapSync>,
    ) -> Result<Option<Outcome>> {
        let listed = self.list_copies(cx).await;
        let (copies, forbidden) = listed.map_err(Error::api("the copies could not be listed"))?;
        let CopyTotals {
            has_written,
            problems,
            error,
        } = CopyTotals::of(self.delete_or_orphan(cx, copies).await);
        self.record_writes(cx, has_written);
        if let Some(first) = problems.into_iter().next() {
            let CopyProblem {
                namespace,
                reason,
                message,
            } = first;
            let message = format!("the copy in {namespace} cannot be deleted: {message}");
            return with_error(blocked(cx, reason, message), true, error).map(Some);
        }
        Ok(forbidden.map(|status| blocked(cx, FORBIDDEN, status.message.clone())))
    }

    /// Returns the copies that the sync may own: those in the cache, and those that the apiserver lists, because a
    /// watch may be behind. Also returns the answer for a namespace that may have a copy but must not be listed.
    async fn list_copies(
        &self,
        cx: &Context<ConfigMapSync>,
    ) -> kube::Result<(BTreeSet<ObjectKey>, Option<Box<Status>>)> {
        // The label of a copy that was restored from a backup may have an earlier sync's UID, so the list omits it.
        self.index.ready().await;
        let mut copies: BTreeSet<_> = self.copies.owned_keys(cx).into_iter().collect();
        let mut forbidden = None;
        let owned = format!("{OWNER_UID}={}", cx.owner.uid());
        let apis = self.scope.apis::<PartialObjectMeta<ConfigMap>>(cx.client());
        for (namespace, api) in apis {
            let (api, params) = (&api, ListParams::default().labels(&owned));
            let list = |page| async move { api.list(&page).await };
            match all_pages(params, list, |copy| ObjectKey::of(&copy)).await {
                Ok(listed) => copies.extend(listed),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    // A watched namespace that was deleted, with the operator's Role in it, must not block the syncs of
                    // the others.
                    let may_have_copy = namespace.as_ref().is_none_or(|namespace| {
                        cx.object.spec.may_reach(namespace)
                            || copies.iter().any(|copy| *copy.namespace == **namespace)
                    });
                    if may_have_copy {
                        forbidden.get_or_insert(status);
                    } else {
                        warn!(
                            namespace,
                            error = status.message,
                            "copies cannot be listed; the ConfigMapSync names no copy there"
                        );
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // In the sync's own namespace an owner reference proves ownership too. A list by the label omits a copy without
        // the label, and the garbage collector would delete a copy that is to stay.
        let here = self.plan(&cx.object).ok();
        let here = here.filter(|_| cx.object.spec.orphans());
        copies.extend(here.map(|plan| ObjectKey::new(&cx.key.namespace, &plan.name)));
        Ok((copies, forbidden))
    }
}
