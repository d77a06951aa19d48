//! `ContactPoint`: its Secrets are read ([`endpoint`]), its line of the outbox is set up, and what its receiver said
//! becomes its status ([`standing`]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::ContactPoint;
use qm_api::common::REQUESTED_AT;
use qm_api::contact_point::{ContactPointStatus, LastTest};
use qm_api::tracked_field::GROUP;
use qm_core::conditions::{self, READY};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_notify::Transport;
use qm_notify::queue::{AcceptedTests, Outbox, Stage, TestMessage};
use qm_runtime::events::Events;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::reconciler::{Class, Failure, Reconciler, Requeue};
use qm_runtime::written::Written;
use qm_runtime::{Key, short_digest};

use self::endpoint::{Blocked, Gathered, Source};

pub mod endpoint;
pub mod standing;

/// What the controller is called in logs and metrics.
pub const NAME: &str = "contactpoint";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<ContactPoint>(
    NAME,
    &["3f83b85ecb61610d"],
    DelegatedAccess::Secrets,
    &[
        Permission::namespaced(GROUP, &["contactpoints"], &["list", "watch"]),
        Permission::namespaced(GROUP, &["contactpoints/status"], &["patch"]),
        // By name only, never listed.
        Permission::namespaced("", &["secrets"], &["get"]),
        EVENTS,
    ],
);
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/contactpoint";

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Secret could not be read.
    #[error(transparent)]
    ReadSecret(Blocked),
    /// The status could not be written.
    #[error("the status could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::ReadSecret(_) => Class::Transient,
            Self::WriteStatus(error) => error.class(),
        }
    }
}

/// The controller.
pub struct ContactPoints<T> {
    /// Talks to the apiserver.
    pub client: Client,
    /// Where Secrets are looked for.
    pub source: Source,
    /// The lines.
    pub outbox: Arc<Outbox<T>>,
    /// Where Events go.
    pub events: Events,
    /// A Secret in use is read again after this.
    pub reread: Duration,
    /// What was written last.
    pub written: Written<ContactPoint>,
    /// What the line of each contact point was set up with.
    pub set_up: Mutex<HashMap<Key, SetUp>>,
}

/// What a line was set up with.
pub struct SetUp {
    /// UID of the `ContactPoint`.
    uid: Option<String>,
    tested: LastTest,
    requested_at: Option<String>,
    /// The line may send.
    is_open: bool,
}

impl<T: Transport> ContactPoints<T> {
    fn set_ups(&self) -> MutexGuard<'_, HashMap<Key, SetUp>> {
        self.set_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, key: &Key) {
        if let Some(set_up) = self.set_ups().get_mut(key) {
            set_up.is_open = false;
        }
        self.outbox.close(key);
    }

    /// Sets up the line, unless it is so already.
    fn set_up(&self, key: &Key, point: &ContactPoint, gathered: Gathered) -> LastTest {
        let tested = LastTest {
            spec: standing::digest(&point.spec),
            secrets: gathered.secrets,
        };
        let requested_at = point.annotations().get(REQUESTED_AT).cloned();
        let mut set_ups = self.set_ups();
        let known = set_ups.get(key);
        if known.is_none_or(|known| {
            !known.is_open || known.tested != tested || known.uid != point.uid()
        }) {
            let stage = stage(point.status.as_ref(), &tested);
            let test = test_message(point, &tested);
            self.outbox.configure(key, gathered.endpoint, stage, test);
        }
        if known.is_some_and(|known| known.requested_at != requested_at) {
            self.outbox.retry_now(key);
        }
        set_ups.insert(
            key.clone(),
            SetUp {
                uid: point.uid(),
                tested: tested.clone(),
                requested_at,
                is_open: true,
            },
        );
        tested
    }

    async fn write(
        &self,
        key: &Key,
        point: &ContactPoint,
        status: ContactPointStatus,
    ) -> Result<(), Error> {
        let api: Api<ContactPoint> = Api::namespaced(self.client.clone(), &key.namespace);
        let written = self
            .written
            .status(&api, MANAGER, point, &status)
            .await
            .map_err(Error::WriteStatus)?;
        let before = point
            .status
            .as_ref()
            .map(|before| &*before.conditions)
            .unwrap_or_default();
        if written.is_some()
            && let Some(now) = conditions::news(before, &status.conditions, READY)
        {
            let well = status.ready || now.reason == SUSPENDED;
            self.events.standing(
                well,
                point.object_ref(&()),
                "Test",
                &now.reason,
                now.message.clone(),
            );
        }
        Ok(())
    }
}

/// Returns the test message. The same object, spec and Secrets give the same id, even after a restart, until a receiver
/// accepts the message.
fn test_message(point: &ContactPoint, tested: &LastTest) -> TestMessage {
    let LastTest { spec, secrets } = tested;
    let configuration = format!(
        "{}/{spec}/{}",
        point.uid().unwrap_or_default(),
        secrets.join(",")
    );
    let status = point.status.as_ref();
    let accepted = AcceptedTests {
        count: status
            .and_then(|status| status.tests_accepted)
            .unwrap_or_default(),
        // Another configuration may be tested once more.
        while_stopped: status.is_some_and(|it| {
            it.last_test.as_ref() == Some(tested) && it.tested_while_stopped == Some(true)
        }),
    };
    TestMessage {
        configuration: short_digest(configuration),
        accepted,
    }
}

/// How a line starts: an endpoint that was tested before is not tested again.
fn stage(status: Option<&ContactPointStatus>, tested: &LastTest) -> Stage {
    match status {
        Some(status) if standing::known_well(status, tested) => Stage::Open,
        Some(status) if status.last_test.as_ref() == Some(tested) => Stage::Probe,
        _ => Stage::Test,
    }
}

impl<T: Transport> Reconciler for ContactPoints<T> {
    type Object = ContactPoint;
    type Error = Error;

    async fn reconcile(&self, point: Arc<ContactPoint>) -> Result<Requeue, Error> {
        let key = Key::of(point.as_ref());
        let point = self.written.newest(&key, point);
        if point.meta().deletion_timestamp.is_some() {
            self.gone(&key);
            return Ok(Requeue::OnChange);
        }
        let now = Time(jiff::Timestamp::now());
        let generation = point.metadata.generation.unwrap_or_default();
        if point.spec.suspend.unwrap_or_default() {
            self.close(&key);
            let spec = standing::digest(&point.spec);
            let mut status =
                standing::suspended(point.status.as_ref(), &spec, generation, now.clone());
            standing::name_left_out(&mut status, &self.outbox.left_out_of(&key), generation, now);
            self.write(&key, &point, status).await?;
            return Ok(Requeue::OnChange);
        }
        match endpoint::gather(&self.source, &point).await {
            Ok(gathered) => {
                let tested = self.set_up(&key, &point, gathered);
                let (standing, tests) =
                    (self.outbox.standing(&key), self.outbox.tests_accepted(&key));
                let before = point.status.as_ref();
                let is_failing = self.outbox.failing(&key).is_some();
                let status = standing::status(
                    before,
                    &standing,
                    is_failing,
                    &tested,
                    tests,
                    generation,
                    now.clone(),
                );
                if let Some(mut status) = status.or_else(|| before.cloned()) {
                    standing::name_left_out(
                        &mut status,
                        &self.outbox.left_out_of(&key),
                        generation,
                        now,
                    );
                    let ready = status.ready;
                    self.write(&key, &point, status).await?;
                    if ready {
                        self.outbox.open(&key);
                    }
                }
                // Not all of them at once.
                Ok(Requeue::After(
                    self.reread.mul_f64(rand::random_range(1.0..1.2)),
                ))
            }
            Err(blocked) => {
                // That passes by itself: what is known stands, and the line goes on.
                let passing = matches!(blocked, Blocked::SecretUnreadable(_));
                if !passing {
                    self.close(&key);
                }
                if !passing || standing::unsaid(point.status.as_ref()) {
                    let (reason, words) = (blocked.reason(), blocked.to_string());
                    let spec = standing::digest(&point.spec);
                    let before = point.status.as_ref();
                    let mut status =
                        standing::blocked(before, &spec, reason, &words, generation, now.clone());
                    standing::name_left_out(
                        &mut status,
                        &self.outbox.left_out_of(&key),
                        generation,
                        now,
                    );
                    self.write(&key, &point, status).await?;
                }
                match blocked {
                    Blocked::SecretUnreadable(_) => Err(Error::ReadSecret(blocked)),
                    Blocked::SpecInvalid(_) => Ok(Requeue::OnChange),
                    _ => Ok(Requeue::Poll),
                }
            }
        }
    }

    fn gone(&self, key: &Key) {
        self.set_ups().remove(key);
        self.outbox.remove(key);
        self.written.forget(key);
    }
}
