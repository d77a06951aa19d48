//! The end of a `MyIngress`: its balancer goes before it does.

use kube::Resource;
use qm_api::my_ingress::FINALIZER;
use qm_aws::{Balancer, Cloud, Fault, fault};
use qm_runtime::finalizer;
use qm_runtime::ownership::{Claim, Owner};
use qm_runtime::reconciler::{Class, Outcome};

use super::standing::{DELETING, DELETION_PROTECTED, Standing};
use super::tags::Mark;
use super::{Error, MANAGER, MyIngresses, Pass, build};

/// As with the balancer, so with its target groups.
const GROUPS_MAY_APPEAR: &str =
    "AWS was asked for a target group a moment ago, and may show it yet: it is deleted then";

impl<C: Cloud> MyIngresses<C> {
    /// It is being deleted: the finalizer goes once the balancer is gone.
    pub(super) async fn finish(&self, pass: &mut Pass, owner: &Owner) -> Result<Outcome, Error> {
        if let Some(came) = self.delete(pass, owner).await.transpose() {
            return self.close(pass, came).await;
        }
        let api = self.api(&pass.ingress);
        finalizer::take(&api, MANAGER, pass.ingress.as_ref(), FINALIZER)
            .await
            .map_err(Error::WriteStatus)?;
        Ok(Outcome::Done)
    }

    /// Deletes the balancer; none once it is gone.
    async fn delete(
        &self,
        pass: &mut Pass,
        owner: &Owner,
    ) -> Result<Option<(Standing, Outcome)>, Error> {
        let alb = pass.alb.clone().unwrap_or_default();
        let mark = &Mark {
            owner,
            cluster: self.cluster().await?,
        };
        let name = build::name(&pass.ingress);
        let deleting = |words: &str| {
            Ok(Some((
                Standing::not(Some(alb.clone()), DELETING, words),
                Outcome::Waiting,
            )))
        };
        let Some(balancer) = self.find(pass, &name).await? else {
            if self.may_yet_appear(&alb) {
                return deleting(
                    "AWS was asked for the load balancer a moment ago, and may show it yet: it is deleted then",
                );
            }
            if !self.drop_all_groups(pass, mark, false).await? {
                return deleting(GROUPS_MAY_APPEAR);
            }
            if let Some(arn) = &alb.arn {
                let words = format!("AWS shows no load balancer {name} any more; there was {arn}");
                self.events
                    .normal(pass.ingress.object_ref(&()), "Delete", "Gone", words);
            }
            return Ok(None);
        };
        let Some(tags) = self.cloud.tags(&balancer.arn).await? else {
            return deleting("AWS does not show yet whose the load balancer is");
        };
        if !matches!(
            mark.claim(&tags, |uid| self.ingresses.lives(uid)),
            Claim::Ours | Claim::Restored
        ) {
            if tags.is_empty() && self.may_yet_appear(&alb) {
                return deleting("AWS does not show yet whose the load balancer is");
            }
            if !self.drop_all_groups(pass, mark, true).await? {
                return deleting(GROUPS_MAY_APPEAR);
            }
            if alb.arn.as_ref() == Some(&balancer.arn) {
                let words = format!(
                    "load balancer {} has lost our tags: it is left as it is",
                    balancer.arn
                );
                self.events
                    .warning(pass.ingress.object_ref(&()), "Delete", "LeftBehind", words);
            }
            return Ok(None);
        }
        // What the cache shows may be of the past, and the balancer that of one who has the name now.
        self.ingresses.confirm(owner).await?;
        match self.cloud.delete(&balancer.arn).await {
            Err(fault) if fault.class == Class::Slow => {
                return self.stay(pass, mark, &balancer, fault).await.map(Some);
            }
            deleted => deleted?,
        }
        if self
            .cloud
            .find(&name)
            .await?
            .is_some_and(|shown| shown.arn == balancer.arn)
        {
            return deleting("AWS deletes the load balancer");
        }
        if !self.drop_all_groups(pass, mark, false).await? {
            return deleting(GROUPS_MAY_APPEAR);
        }
        let words = format!("load balancer {name} was deleted: {}", balancer.arn);
        self.events
            .normal(pass.ingress.object_ref(&()), "Delete", "Deleted", words);
        Ok(None)
    }

    /// It may not be deleted, and serves on: traffic follows the nodes until somebody lets it go.
    async fn stay(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        balancer: &Balancer,
        fault: Fault,
    ) -> Result<(Standing, Outcome), Error> {
        let fault = if is_protected(&fault) {
            protected(fault, &balancer.arn, mark)
        } else {
            fault
        };
        // A spec that was not read says nothing about the listeners.
        if pass.ingress.spec.oversized.is_some() {
            return Err(fault.into());
        }
        match self.stand(pass, mark, balancer).await {
            Ok((_, Outcome::Waiting)) => Ok((
                Standing::refused(pass.alb.clone(), &fault),
                Outcome::Waiting,
            )),
            // That it may not go is what somebody has to mend first.
            Ok(_) | Err(Error::Cloud(_)) => Err(fault.into()),
            Err(error) => Err(error),
        }
    }
}

/// AWS has the same code for other things that it does not allow.
fn is_protected(fault: &Fault) -> bool {
    fault.is(fault::NOT_PERMITTED) && fault.message.to_lowercase().contains("deletion protection")
}

fn protected(fault: Fault, arn: &str, mark: &Mark<'_>) -> Fault {
    let message = format!(
        "the load balancer may not be deleted ({}); to let it go: {} modify-load-balancer-attributes --load-balancer-arn {arn} \
         --attributes Key=deletion_protection.enabled,Value=false && {}",
        fault.message,
        qm_aws::command(arn),
        mark.again(),
    );
    Fault {
        reason: DELETION_PROTECTED,
        message,
        ..fault
    }
}
