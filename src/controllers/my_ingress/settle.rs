//! Has the balancer be there, and be as it is wanted.

use std::collections::BTreeSet;

use kube::Resource;
use qm_api::my_ingress::Alb;
use qm_aws::{Balancer, Cloud, Fault, Tags, Wanted};
use qm_runtime::ownership::{ADOPT_BY, Claim, OWNER};
use qm_runtime::reconciler::Outcome;

use super::standing::{CONFLICT, CREATING, NAME_TAKEN, NOT_ALIKE, PROVISIONING, Standing};
use super::tags::Mark;
use super::{Error, MyIngresses, Pass, now};

impl<C: Cloud> MyIngresses<C> {
    /// Has the balancer be as it is wanted.
    pub(super) async fn settle(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        wanted: &Wanted,
    ) -> Result<(Standing, Outcome), Error> {
        match self.find(pass, &wanted.name).await? {
            Some(balancer) => self.look(pass, mark, wanted, balancer, false).await,
            None => self.create(pass, mark, wanted).await,
        }
    }

    /// There is none of that name, as far as AWS shows.
    async fn create(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        wanted: &Wanted,
    ) -> Result<(Standing, Outcome), Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        if alb.arn.is_some() && self.may_yet_appear(&alb) {
            return Ok((appearing(alb), Outcome::Waiting));
        }
        self.guard(pass).await?;
        // Known to whoever comes after us, however this ends.
        let before = pass.alb.clone();
        let tag_keys = alb
            .tag_keys
            .into_iter()
            .chain(keys(pass))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let asked = Alb {
            requested_at: Some(now()),
            tag_keys,
            ..Alb::default()
        };
        self.note(pass, asked.clone()).await?;
        let created = self.cloud.create(wanted).await.inspect_err(|fault| {
            if fault.undone {
                pass.alb.clone_from(&before);
            }
        })?;
        pass.alb = Some(Alb {
            arn: Some(created.arn.clone()),
            ..asked
        });
        pass.unknown = false;
        // The answer may be somebody else's balancer that has these very settings.
        self.look(pass, mark, wanted, created, true).await
    }

    /// There is one of that name, which is what an attempt to create it gave if it is `new`.
    async fn look(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        wanted: &Wanted,
        balancer: Balancer,
        new: bool,
    ) -> Result<(Standing, Outcome), Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        let Some(tags) = self.cloud.tags(&balancer.arn).await? else {
            return Ok((appearing(alb), Outcome::Waiting));
        };
        let lives = |uid: &str| self.ingresses.lives(uid);
        let claim = mark.claim(&tags, lives);
        // The tags of a new one may be shown late too.
        let outcome = if self.may_yet_appear(&alb) {
            Outcome::Waiting
        } else {
            Outcome::Done
        };
        // Of what is not ours nothing is said but that: whether there is one of ours is looked at anew when this one ends.
        // That it was once is not forgotten: it is left behind then.
        let arn = alb.arn.clone().filter(|arn| *arn == balancer.arn);
        let unknown = Alb {
            requested_at: alb.requested_at.clone(),
            arn,
            ..Alb::default()
        };
        let refused = |reason, words| Ok((Standing::not(Some(unknown), reason, words), outcome));
        if let Claim::Foreign(foreign) = &claim {
            let may_live = |uid: &str, namespace: &str| {
                self.ingresses.lives(uid) || !self.scope.covers(namespace)
            };
            return match mark.sibling(foreign, &tags, may_live) {
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
                Claim::Ours => Ok((
                    Standing::not(Some(known(alb, &balancer)), NOT_ALIKE, words),
                    Outcome::Done,
                )),
                _ => refused(NOT_ALIKE, words),
            };
        }
        if claim == Claim::Restored {
            // Whether a UID lives is decided from the cache, which may be of the past.
            self.ingresses.confirm(mark.owner).await?;
        }
        self.guard(pass).await?;
        pass.alb = Some(known(alb, &balancer));
        let mut changed = Vec::new();
        // First, because the tags say whose it is.
        let came = match self.tag(pass, &balancer, &tags, wanted).await {
            Ok(tagged) => {
                changed.extend(tagged.then_some("tags"));
                Ok(self.put_right(&balancer, wanted, &mut changed).await)
            }
            Err(error) => Err(error),
        };
        let event = |action, reason, words| {
            self.events
                .normal(pass.ingress.object_ref(&()), action, reason, words);
        };
        if claim != Claim::Ours {
            event(
                "Adopt",
                "Adopted",
                format!(
                    "load balancer {} was taken over: {}",
                    wanted.name, balancer.arn
                ),
            );
        } else if new {
            event(
                "Create",
                "Created",
                format!(
                    "load balancer {} was created: {}",
                    wanted.name, balancer.arn
                ),
            );
        } else if !changed.is_empty() {
            event(
                "Update",
                "Updated",
                format!(
                    "{} of load balancer {} put right",
                    changed.join(", "),
                    wanted.name
                ),
            );
        }
        match came? {
            Ok(()) => self.stand(pass, mark, &balancer).await,
            Err(fault) => {
                if fault.is_of_one() {
                    // Traffic follows the nodes all the same.
                    self.stand(pass, mark, &balancer).await?;
                }
                Err(fault.into())
            }
        }
    }

    /// Has it be as it is wanted, as far as AWS lets that be: one refusal does not keep the rest from it. What was `changed`.
    async fn put_right(
        &self,
        balancer: &Balancer,
        wanted: &Wanted,
        changed: &mut Vec<&'static str>,
    ) -> Result<(), Fault> {
        let Wanted {
            subnets,
            security_groups,
            ..
        } = wanted;
        let addresses = wanted
            .ip_address_type
            .as_ref()
            .filter(|addresses| balancer.ip_address_type != **addresses);
        // Subnets of another kind may only do for fewer addresses.
        let fewer = |addresses: &&String| **addresses == "ipv4";
        let mut came = Vec::new();
        let mut did = |what: &'static str, result: Result<(), Fault>| {
            if result.is_ok() {
                changed.push(what);
            }
            came.push(result);
        };
        if let Some(addresses) = addresses.filter(fewer) {
            did(
                "IP address type",
                self.cloud
                    .set_ip_address_type(&balancer.arn, addresses)
                    .await,
            );
        }
        if balancer.subnets != *subnets {
            did(
                "subnets",
                self.cloud.set_subnets(&balancer.arn, subnets).await,
            );
        }
        if let Some(addresses) = addresses.filter(|addresses| !fewer(addresses)) {
            did(
                "IP address type",
                self.cloud
                    .set_ip_address_type(&balancer.arn, addresses)
                    .await,
            );
        }
        if !security_groups.is_empty() && balancer.security_groups != *security_groups {
            did(
                "security groups",
                self.cloud
                    .set_security_groups(&balancer.arn, security_groups)
                    .await,
            );
        }
        came.into_iter().collect()
    }

    /// Has it have the tags that are wanted; whether it had not.
    async fn tag(
        &self,
        pass: &mut Pass,
        balancer: &Balancer,
        tags: &Tags,
        wanted: &Wanted,
    ) -> Result<bool, Error> {
        let mut alb = pass.alb.clone().unwrap_or_default();
        let (had, wants): (BTreeSet<_>, BTreeSet<_>) =
            (alb.tag_keys.iter().cloned().collect(), keys(pass).collect());
        let missing: Tags = wanted
            .tags
            .iter()
            .filter(|(key, value)| tags.get(*key) != Some(value))
            .map(own)
            .collect();
        if !wants.is_subset(&had) {
            // Known before they are there, or nobody would ever take them away again.
            alb.tag_keys = had.union(&wants).cloned().collect();
            self.note(pass, alb.clone()).await?;
        }
        if !missing.is_empty() {
            self.cloud.add_tags(&balancer.arn, &missing).await?;
        }
        // Another's consent is for them to use.
        let used = tags
            .get(ADOPT_BY)
            .is_some_and(|by| Some(by) == wanted.tags.get(OWNER));
        let dropped = had
            .difference(&wants)
            .map(String::as_str)
            .chain(used.then_some(ADOPT_BY));
        let extra: BTreeSet<_> = dropped
            .filter(|key| tags.contains_key(*key) && !wanted.tags.contains_key(*key))
            .map(Into::into)
            .collect();
        if !extra.is_empty() {
            self.cloud.remove_tags(&balancer.arn, &extra).await?;
        }
        alb.tag_keys = wants.into_iter().collect();
        pass.alb = Some(alb);
        Ok(!missing.is_empty() || !extra.is_empty())
    }
}

/// It is ours.
pub(super) fn stands(alb: Alb, balancer: &Balancer) -> (Standing, Outcome) {
    let mut standing = Standing::of(alb, balancer);
    if standing.ready {
        // It was shown for so long that it is not shown late any more.
        standing.alb.as_mut().map(|alb| alb.requested_at.take());
    }
    let outcome = if standing.reason == PROVISIONING {
        Outcome::Waiting
    } else {
        Outcome::Done
    };
    (standing, outcome)
}

pub(super) fn appearing(alb: Alb) -> Standing {
    Standing::not(
        Some(alb),
        CREATING,
        "AWS was asked for the load balancer, and does not show it yet",
    )
}

fn known(alb: Alb, balancer: &Balancer) -> Alb {
    Standing::of(alb, balancer).alb.unwrap_or_default()
}

/// Keys of the tags of the spec.
fn keys(pass: &Pass) -> impl Iterator<Item = String> + '_ {
    pass.ingress.spec.tags.keys().cloned()
}

fn own((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// What nobody can change of a balancer, where it is not as it is wanted.
pub fn unlike(balancer: &Balancer, wanted: &Wanted) -> Option<String> {
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
