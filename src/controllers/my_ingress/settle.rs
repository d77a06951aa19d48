//! Has the balancer be there, and be as it is wanted.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;

use super::standing::{CONFLICT, CREATING, NAME_TAKEN, NOT_ALIKE, PROVISIONING, Standing};
use super::tags::Mark;
use super::{Error, MyIngresses, Pass};
use crate::api::my_ingress::Alb;
use crate::cloud::{Balancer, Cloud, Fault, Tags, Wanted};
use crate::runtime::ownership::{ADOPT_BY, Claim};
use crate::runtime::reconciler::Outcome;

impl<C: Cloud> MyIngresses<C> {
    /// Has the balancer be as it is wanted.
    pub(super) async fn settle(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        wanted: &Wanted,
    ) -> Result<(Standing, Outcome), Error> {
        match self.cloud.find(&wanted.name).await? {
            Some(balancer) => self.look(pass, mark, wanted, balancer).await,
            None => self.create(pass, mark, wanted).await,
        }
    }

    /// There is none of that name, as far as AWS shows.
    async fn create(&self, pass: &mut Pass, mark: &Mark<'_>, wanted: &Wanted) -> Result<(Standing, Outcome), Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        if alb.arn.is_some() && self.may_yet_appear(&alb) {
            return Ok((appearing(alb), Outcome::Waiting));
        }
        // Known to whoever comes after us, however this ends.
        let before = pass.alb.clone();
        let asked = Alb { requested_at: Some(Time(Timestamp::now())), tag_keys: keys(pass), ..Alb::default() };
        self.note(pass, asked.clone()).await?;
        let created = self.cloud.create(wanted).await.inspect_err(|fault| {
            if fault.undone {
                pass.alb.clone_from(&before);
            }
        })?;
        // The answer may be somebody else's balancer that has these very settings.
        let Some(tags) = self.cloud.tags(&created.arn).await? else {
            let alb = Alb { arn: Some(created.arn), ..asked };
            return Ok((appearing(alb), Outcome::Waiting));
        };
        match mark.claim(&tags, |uid| self.lives(uid)) {
            Claim::Ours => {
                let words = format!("load balancer {} was created: {}", wanted.name, created.arn);
                self.events.normal(pass.ingress.object_ref(&()), "Create", "Created", words);
                self.stand(pass, mark, asked, &created).await
            }
            _ => self.look(pass, mark, wanted, created).await,
        }
    }

    /// There is one of that name.
    async fn look(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        wanted: &Wanted,
        balancer: Balancer,
    ) -> Result<(Standing, Outcome), Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        let Some(tags) = self.cloud.tags(&balancer.arn).await? else {
            return Ok((appearing(alb), Outcome::Waiting));
        };
        let lives = |uid: &str| self.lives(uid);
        let claim = mark.claim(&tags, lives);
        // Of what is not ours nothing is said but that: whether there is one of ours is looked at anew when this one ends.
        let refused = |reason, words| Ok((Standing::not(Some(Alb::default()), reason, words), Outcome::Done));
        if let Claim::Foreign(foreign) = &claim {
            return match mark.sibling(foreign, &tags, lives) {
                Some(sibling) => refused(
                    NAME_TAKEN,
                    format!(
                        "load balancer {} is that of MyIngress {sibling}, and AWS has one of each name in an account and region: \
                         create this MyIngress anew under another name",
                        wanted.name
                    ),
                ),
                None => refused(CONFLICT, mark.conflict(&balancer, &wanted.name, &tags)),
            };
        }
        if let Some(words) = unlike(&balancer, wanted) {
            return match claim {
                Claim::Ours => Ok((Standing::not(Some(known(alb, &balancer)), NOT_ALIKE, words), Outcome::Done)),
                _ => refused(NOT_ALIKE, words),
            };
        }
        let alb = self.tag(pass, &balancer, &tags, wanted).await?;
        if claim != Claim::Ours {
            let words = format!("load balancer {} was taken over: {}", wanted.name, balancer.arn);
            self.events.normal(pass.ingress.object_ref(&()), "Adopt", "Adopted", words);
        }
        self.put_right(pass, &balancer, wanted).await?;
        self.stand(pass, mark, alb, &balancer).await
    }

    /// Has it have the tags that are wanted; gives what is to be known of it.
    async fn tag(&self, pass: &mut Pass, balancer: &Balancer, tags: &Tags, wanted: &Wanted) -> Result<Alb, Error> {
        let mut alb = known(pass.alb.clone().unwrap_or_default(), balancer);
        let (had, wants): (BTreeSet<_>, BTreeSet<_>) =
            (alb.tag_keys.iter().cloned().collect(), keys(pass).into_iter().collect());
        let missing: Tags = wanted.tags.iter().filter(|(key, value)| tags.get(*key) != Some(value)).map(own).collect();
        if !wants.is_subset(&had) {
            // Known before they are there, or nobody would ever take them away again.
            alb.tag_keys = had.union(&wants).cloned().collect();
            self.note(pass, alb.clone()).await?;
        }
        if !missing.is_empty() {
            self.cloud.add_tags(&balancer.arn, &missing).await?;
        }
        let dropped = had.difference(&wants).map(String::as_str).chain([ADOPT_BY]);
        let extra: BTreeSet<_> =
            dropped.filter(|key| tags.contains_key(*key) && !wanted.tags.contains_key(*key)).map(Into::into).collect();
        if !extra.is_empty() {
            self.cloud.remove_tags(&balancer.arn, &extra).await?;
        }
        alb.tag_keys = wants.into_iter().collect();
        Ok(alb)
    }

    /// Has it have the subnets, groups and addresses that are wanted.
    async fn put_right(&self, pass: &Pass, balancer: &Balancer, wanted: &Wanted) -> Result<(), Fault> {
        let Wanted { subnets, security_groups, ip_address_type, .. } = wanted;
        let mut changed = Vec::new();
        let addresses = balancer.ip_address_type != *ip_address_type;
        // Subnets of another kind may only do for fewer addresses.
        let fewer = ip_address_type == "ipv4";
        if addresses && fewer {
            self.cloud.set_ip_address_type(&balancer.arn, ip_address_type).await?;
        }
        if balancer.subnets != *subnets {
            self.cloud.set_subnets(&balancer.arn, subnets).await?;
            changed.push("subnets");
        }
        if addresses && !fewer {
            self.cloud.set_ip_address_type(&balancer.arn, ip_address_type).await?;
        }
        if addresses {
            changed.push("IP address type");
        }
        if !security_groups.is_empty() && balancer.security_groups != *security_groups {
            self.cloud.set_security_groups(&balancer.arn, security_groups).await?;
            changed.push("security groups");
        }
        if !changed.is_empty() {
            let words = format!("{} of load balancer {} put right", changed.join(", "), wanted.name);
            self.events.normal(pass.ingress.object_ref(&()), "Update", "Updated", words);
        }
        Ok(())
    }
}

/// It is ours.
pub(super) fn stands(alb: Alb, balancer: &Balancer) -> (Standing, Outcome) {
    let mut standing = Standing::of(alb, balancer);
    if standing.ready {
        // It was shown for so long that it is not shown late any more.
        standing.alb.as_mut().map(|alb| alb.requested_at.take());
    }
    let outcome = if standing.reason == PROVISIONING { Outcome::Waiting } else { Outcome::Done };
    (standing, outcome)
}

fn appearing(alb: Alb) -> Standing {
    Standing::not(Some(alb), CREATING, "AWS was asked for the load balancer, and does not show it yet")
}

fn known(alb: Alb, balancer: &Balancer) -> Alb {
    Standing::of(alb, balancer).alb.unwrap_or_default()
}

/// Keys of the tags of the spec.
fn keys(pass: &Pass) -> Vec<String> {
    pass.ingress.spec.tags.keys().cloned().collect()
}

fn own((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// What nobody can change of a balancer, where it is not as it is wanted.
fn unlike(balancer: &Balancer, wanted: &Wanted) -> Option<String> {
    if balancer.kind != "application" {
        return Some(format!(
            "load balancer {} is of type {}, and only application ones are looked after: delete it, or create this MyIngress anew \
             under another name",
            wanted.name, balancer.kind
        ));
    }
    (balancer.scheme != wanted.scheme).then(|| {
        format!(
            "load balancer {} is {}, and nobody can change that: create this MyIngress anew with scheme: {}, or delete the load \
             balancer",
            wanted.name, balancer.scheme, balancer.scheme
        )
    })
}
