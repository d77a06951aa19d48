//! Finalizes a `ConfigMapSync`: deletes or orphans the copies before the apiserver deletes the sync.

use std::collections::BTreeSet;

use qm_api::ConfigMapSync;
use qm_runtime::ObjectKey;
use qm_runtime::controller::Context;
use qm_runtime::error::{Error, FORBIDDEN, Result};
use qm_runtime::outcome::{Outcome, Requeue};
use tokio::time::Instant;
use tracing::warn;

use super::lists::ListedCopies;
use super::status::CopyProblem;
use super::{ConfigMapSyncs, CopyTotals, TURN_RETRY, blocked, has_lasting, with_error};

impl ConfigMapSyncs {
    /// Deletes or orphans all copies. Returns `None` once the sync owns none.
    pub(super) async fn delete_copies(
        &self,
        cx: &mut Context<ConfigMapSync>,
    ) -> Result<Option<Outcome>> {
        let started = Instant::now();
        let listed = self.list_copies(cx).await;
        let listed = listed.map_err(Error::api("the copies could not be listed"))?;
        let Some((copies, forbidden)) = listed else {
            return Ok(Some(
                Outcome::unchanged().requeue(Requeue::InFlight(TURN_RETRY)),
            ));
        };
        let CopyTotals {
            has_written,
            problems,
            error,
        } = CopyTotals::of(self.delete_or_orphan(cx, copies, started).await);
        self.record_writes(cx, has_written);
        let is_reported = cx.is_failing || has_lasting(&problems);
        if let Some(first) = problems.into_iter().next() {
            let CopyProblem {
                namespace,
                reason,
                message,
            } = first;
            let ending = if cx.object.spec.orphans() {
                "released"
            } else {
                "deleted"
            };
            let message = format!("the copy in {namespace} cannot be {ending}: {message}");
            let outcome = blocked(cx, reason, message).requeue(Requeue::Poll);
            return with_error(outcome, error, is_reported).map(Some);
        }
        Ok(forbidden.map(|message| blocked(cx, FORBIDDEN, message)))
    }

    /// Returns the copies that the sync may own: those in the cache, and those that the apiserver lists, because a
    /// watch may be behind. Also returns the answer for a namespace that may have a copy but must not be listed.
    /// Returns `None` while the sync waits for the lists.
    async fn list_copies(
        &self,
        cx: &Context<ConfigMapSync>,
    ) -> kube::Result<Option<(BTreeSet<ObjectKey>, Option<String>)>> {
        self.index.ready().await;
        let listed = self
            .lists
            .list(cx.client(), &cx.key, cx.owner.uid())
            .await?;
        let Some(ListedCopies {
            mut copies,
            forbidden: unlisted,
        }) = listed
        else {
            return Ok(None);
        };
        // The label of a copy that was restored from a backup may have an earlier sync's UID, so the list omits it.
        copies.extend(self.copies.owned_keys(cx));
        let mut forbidden = None;
        for (namespace, message) in unlisted {
            // A watched namespace that was deleted, with the operator's Role in it, must not block the syncs of the
            // others.
            let may_have_copy = namespace.as_ref().is_none_or(|namespace| {
                cx.object.spec.may_reach(namespace)
                    || copies.iter().any(|copy| *copy.namespace == **namespace)
            });
            if may_have_copy {
                forbidden.get_or_insert(message);
            } else {
                warn!(
                    namespace,
                    error = message,
                    "copies cannot be listed; the ConfigMapSync names no copy there"
                );
            }
        }
        // In the sync's own namespace an owner reference proves ownership too. A list by the label omits a copy without
        // the label, and the garbage collector would delete a copy that is to stay.
        let here = self.plan(&cx.object).ok();
        let here = here.filter(|_| cx.object.spec.orphans());
        copies.extend(here.map(|plan| ObjectKey::new(&cx.key.namespace, &plan.name)));
        Ok(Some((copies, forbidden)))
    }
}
