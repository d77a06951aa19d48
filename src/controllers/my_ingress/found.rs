//! What AWS has of a balancer beside it, and whose that is.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource;
use qm_aws::listeners::{Group, Listener};
use qm_aws::{Balancer, Cloud, Fault, Tags};
use qm_runtime::ownership::{ADOPT_BY, Claim};

use super::tags::Mark;
use super::{MyIngresses, Pass};

/// Whose listeners and target groups are, by ARN: their tags say that.
#[derive(Clone)]
pub(super) struct Whose(BTreeMap<String, (Claim, Tags)>);

impl Whose {
    /// It is ours: to change, and to delete.
    pub fn is_ours(&self, arn: &str) -> bool {
        self.0
            .get(arn)
            .is_some_and(|(claim, _)| matches!(claim, Claim::Ours | Claim::Restored))
    }

    /// It is ours, or was handed to us.
    pub fn may_be_had(&self, arn: &str) -> bool {
        self.0
            .get(arn)
            .is_some_and(|(claim, _)| !matches!(claim, Claim::Foreign(_)))
    }

    /// AWS shows no tags of it: they may be shown late.
    pub fn is_bare(&self, arn: &str) -> bool {
        self.0.get(arn).is_none_or(|(_, tags)| tags.is_empty())
    }

    /// Those that are ours.
    pub fn ours(&self) -> impl Iterator<Item = &String> {
        self.0.keys().filter(|arn| self.is_ours(arn))
    }
}

/// What AWS has of a balancer beside it.
pub(super) struct Found {
    pub listeners: Vec<Listener>,
    /// The target groups that its listeners lead to.
    pub groups: Vec<Group>,
    pub whose: Whose,
}

impl Found {
    /// The listener of that port.
    pub fn listener(&self, port: u16) -> Option<&Listener> {
        self.listeners.iter().find(|there| there.port == port)
    }

    /// The ports that we have something for. `prefix` is what the names of our groups begin with.
    pub fn ports(&self, prefix: &str) -> BTreeSet<u16> {
        let listeners = self
            .listeners
            .iter()
            .filter(|it| self.whose.is_ours(&it.arn))
            .map(|it| it.port);
        let groups = self.groups.iter().filter(|it| self.whose.is_ours(&it.arn));
        listeners
            .chain(groups.filter_map(|it| it.name.strip_prefix(prefix)?.parse().ok()))
            .collect()
    }
}

impl<C: Cloud> MyIngresses<C> {
    pub(super) async fn found(&self, mark: &Mark<'_>, balancer: &Balancer) -> Result<Found, Fault> {
        let listeners = self.cloud.listeners(&balancer.arn).await?;
        let groups = self.cloud.groups(&balancer.arn).await?;
        let arns = listeners
            .iter()
            .map(|it| &it.arn)
            .chain(groups.iter().map(|it| &it.arn));
        let whose = self.whose(mark, arns.cloned().collect()).await?;
        Ok(Found {
            listeners,
            groups,
            whose,
        })
    }

    pub(super) async fn whose(&self, mark: &Mark<'_>, arns: Vec<String>) -> Result<Whose, Fault> {
        let tags = self.cloud.tags_of(&arns).await?;
        let claim = |tags: Tags| (mark.claim(&tags, |uid| self.ingresses.lives(uid)), tags);
        Ok(Whose(
            tags.into_iter()
                .map(|(arn, tags)| (arn, claim(tags)))
                .collect(),
        ))
    }

    /// Has a listener or target group that we may have bear our tags, and uses the consent.
    pub(super) async fn brand(
        &self,
        pass: &Pass,
        mark: &Mark<'_>,
        whose: &Whose,
        arn: &str,
    ) -> Result<(), Fault> {
        let Some((_, tags)) = whose.0.get(arn) else {
            return Ok(());
        };
        let missing: Tags = mark
            .tags()
            .into_iter()
            .filter(|(key, value)| tags.get(key) != Some(value))
            .collect();
        if !missing.is_empty() {
            self.cloud.add_tags(arn, &missing).await?;
        }
        if tags
            .get(ADOPT_BY)
            .is_some_and(|by| *by == mark.owner.path())
        {
            self.cloud
                .remove_tags(arn, &[ADOPT_BY.to_owned()].into())
                .await?;
            self.events.normal(
                pass.ingress.object_ref(&()),
                "Adopt",
                "Adopted",
                format!("{arn} was taken over"),
            );
        }
        Ok(())
    }
}
