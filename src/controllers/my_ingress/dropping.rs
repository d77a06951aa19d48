//! Takes away what is not wanted any more of listeners: the listener first, then its target group.

use kube::Resource;
use qm_aws::listeners::Listener;
use qm_aws::{Cloud, Fault, fault};
use qm_runtime::reconciler::Class;

use super::found::Found;
use super::standing::LISTENER_CONFLICT;
use super::tags::Mark;
use super::{Error, MyIngresses, Pass};

impl<C: Cloud> MyIngresses<C> {
    /// Takes away what a port had; whether there is nothing of it any more.
    pub(super) async fn drop_listener(
        &self,
        pass: &Pass,
        mark: &Mark<'_>,
        found: &Found,
        port: u16,
    ) -> Result<bool, Fault> {
        let there = found.listener(port);
        if let Some(listener) = there.filter(|it| found.whose.is_ours(&it.arn)) {
            self.cloud.delete_listener(&listener.arn).await?;
            let words = format!("load balancer listens on port {port} no more");
            self.events
                .normal(pass.ingress.object_ref(&()), "Update", "Updated", words);
        }
        let name = mark.group(port);
        let Some(group) = self.cloud.group(&name).await? else {
            return Ok(!self.may_yet_show(pass, port));
        };
        let whose = self.whose(mark, vec![group.arn.clone()]).await?;
        if !whose.is_ours(&group.arn) {
            return Ok(!(whose.is_bare(&group.arn) && self.may_yet_show(pass, port)));
        }
        let holds =
            |it: &&Listener| it.group.as_ref() == Some(&group.arn) && !found.whose.is_ours(&it.arn);
        if let Some(holder) = found.listeners.iter().find(holds) {
            let words = format!(
                "target group {name} is not wanted any more, and a listener that is not ours leads to it: delete the listener of port {}",
                holder.port
            );
            return Err(Fault::unsent(Class::Slow, LISTENER_CONFLICT, words));
        }
        self.cloud.delete_group(&group.arn).await?;
        Ok(true)
    }

    /// Takes all target groups away, once the balancer is gone; where it was `left`, but for those that it leads to. Whether
    /// there are none any more.
    pub(super) async fn drop_all_groups(
        &self,
        pass: &Pass,
        mark: &Mark<'_>,
        left: bool,
    ) -> Result<bool, Error> {
        if !pass.unknown && pass.ingress.spec.listeners.is_empty() && pass.listeners.is_empty() {
            return Ok(true);
        }
        let groups = self.cloud.groups_named(&mark.groups()).await?;
        let whose = self
            .whose(mark, groups.iter().map(|group| group.arn.clone()).collect())
            .await?;
        // As with the balancer: their names are those of whoever has ours now.
        self.ingresses.confirm(mark.owner).await?;
        for arn in whose.ours() {
            match self.cloud.delete_group(arn).await {
                Err(fault) if left && fault.is(fault::IN_USE) => {}
                deleted => deleted?,
            }
        }
        let shown = |port: u16| {
            groups
                .iter()
                .any(|it| it.name == mark.group(port) && !whose.is_bare(&it.arn))
        };
        Ok(pass
            .listeners
            .iter()
            .all(|it| shown(it.port) || !self.may_yet_show(pass, it.port)))
    }
}
