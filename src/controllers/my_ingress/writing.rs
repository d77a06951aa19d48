//! Writes down how it stands: in the status, and in Events where that is news.

use std::sync::PoisonError;

use kube::Resource;
use qm_api::my_ingress::Alb;
use qm_aws::Cloud;
use qm_core::conditions::{self, READY};
use qm_runtime::Key;
use qm_runtime::owners::Unconfirmed;
use qm_runtime::reconciler::{Class, Failure, Outcome};

use super::standing::{self, FORBIDDEN, Standing};
use super::{Error, MANAGER, MyIngresses, Pass, now, settle};

impl<C: Cloud> MyIngresses<C> {
    /// Writes down what is known of the balancer, and leaves the rest of the status: what AWS is asked for next must be known
    /// whatever becomes of us.
    pub(super) async fn note(&self, pass: &mut Pass, alb: Alb) -> Result<(), Error> {
        pass.alb = Some(alb);
        self.note_all(pass).await
    }

    /// The same of all that is known.
    pub(super) async fn note_all(&self, pass: &mut Pass) -> Result<(), Error> {
        let mut status = pass.ingress.status.clone().unwrap_or_default();
        status.alb.clone_from(&pass.alb);
        status.listeners.clone_from(&pass.listeners);
        if status.conditions.is_empty() {
            // Nobody has to wait for the first word until all is done.
            let generation = pass.ingress.metadata.generation.unwrap_or_default();
            let standing = settle::appearing(pass.alb.clone().unwrap_or_default());
            status = standing.status(Some(&status), &pass.listeners, generation, now());
        }
        if pass.ingress.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api = self.api(&pass.ingress);
        let written = self
            .written
            .status(&api, MANAGER, &pass.ingress, &status)
            .await
            .map_err(Error::WriteStatus)?;
        pass.ingress = written.ok_or(Unconfirmed::Gone)?;
        Ok(())
    }

    /// Writes the status.
    pub(super) async fn write(&self, pass: &Pass, standing: &Standing) -> Result<(), Error> {
        let ingress = &pass.ingress;
        let generation = ingress.metadata.generation.unwrap_or_default();
        let status = standing.status(ingress.status.as_ref(), &pass.listeners, generation, now());
        let api = self.api(ingress);
        let written = self
            .written
            .status(&api, MANAGER, ingress, &status)
            .await
            .map_err(Error::WriteStatus)?;
        if written.is_none() {
            return Ok(());
        }
        let before = ingress
            .status
            .as_ref()
            .map(|before| &*before.conditions)
            .unwrap_or_default();
        if let Some(now) = conditions::news(before, &status.conditions, READY) {
            let well = now.status == "True" || standing::PASSING.contains(&now.reason.as_str());
            self.events.standing(
                well,
                ingress.object_ref(&()),
                "Balance",
                &now.reason,
                now.message.clone(),
            );
        }
        Ok(())
    }

    /// Whether it is nothing yet: one that was well is not called ill for one call that failed.
    fn is_hiccup(&self, pass: &Pass, came: &Result<(Standing, Outcome), Error>) -> bool {
        let key = Key::of(pass.ingress.as_ref());
        let mut doubted = self.doubted.lock().unwrap_or_else(PoisonError::into_inner);
        match came {
            Err(Error::Cloud(fault)) if fault.class == Class::Transient => {
                doubted.insert(key) && pass.was_well()
            }
            _ => {
                doubted.remove(&key);
                false
            }
        }
    }

    /// Writes down what came of a pass.
    pub(super) async fn close(
        &self,
        pass: &Pass,
        came: Result<(Standing, Outcome), Error>,
    ) -> Result<Outcome, Error> {
        if self.is_hiccup(pass, &came) {
            return came.map(|(_, outcome)| outcome);
        }
        let (standing, outcome) = match came {
            Ok((standing, outcome)) => (standing, Ok(outcome)),
            Err(Error::Cloud(fault)) if fault.class != Class::Conflict => (
                Standing::refused(pass.alb.clone(), &fault),
                Err(Error::Cloud(fault)),
            ),
            Err(error @ (Error::ReadCluster(_) | Error::ReadService(..)))
                if error.class() == Class::Slow =>
            {
                (
                    Standing::not(pass.alb.clone(), FORBIDDEN, error.to_string()),
                    Err(error),
                )
            }
            Err(error) => return Err(error),
        };
        self.write(pass, &standing).await?;
        outcome
    }
}
