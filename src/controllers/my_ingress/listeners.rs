//! Has the balancer listen where it is to, one listener after the other ([`super::listener`]), and nowhere else
//! ([`super::dropping`]).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use qm_api::my_ingress::{Listener, ListenerStatus};
use qm_aws::{Balancer, Cloud, Fault};
use qm_runtime::reconciler::{Class, Outcome};

use super::listener::Scene;
use super::routes::{self, Look};
use super::settle::stands;
use super::standing::{CREATING, FAILED, PROVISIONING, Standing};
use super::tags::Mark;
use super::{Error, MyIngresses, Pass, is_within, now};

/// How all listeners are.
struct Looks {
    each: Vec<Look>,
    /// The most urgent of what AWS refuses.
    failed: Option<Fault>,
    /// It will soon be otherwise, by itself.
    changes: bool,
}

impl Looks {
    fn fail(&mut self, fault: Fault) {
        let urgency = |fault: &Fault| match fault.class {
            Class::Transient | Class::Conflict => 0,
            Class::Slow => 1,
            Class::Terminal => 2,
        };
        if self
            .failed
            .as_ref()
            .is_none_or(|before| urgency(&fault) < urgency(before))
        {
            self.failed = Some(fault);
        }
    }
}

impl<C: Cloud> MyIngresses<C> {
    /// The balancer is ours, and as it is wanted: has it listen, too.
    pub(super) async fn stand(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        balancer: &Balancer,
    ) -> Result<(Standing, Outcome), Error> {
        let (standing, outcome) = stands(pass.alb.clone().unwrap_or_default(), balancer);
        let none =
            !pass.unknown && pass.ingress.spec.listeners.is_empty() && pass.listeners.is_empty();
        if standing.reason == FAILED || none {
            return Ok((standing, outcome));
        }
        pass.alb.clone_from(&standing.alb);
        let Looks {
            each,
            failed,
            changes,
        } = self.listen(pass, mark, balancer).await?;
        // What somebody has to do something about comes first.
        let (passing, ill): (Vec<_>, Vec<_>) = each
            .iter()
            .filter(|look| !look.words.is_empty())
            .partition(|look| look.changes);
        let ill: Vec<_> = ill.into_iter().chain(passing).collect();
        let words = ill
            .iter()
            .map(|look| look.words.as_str())
            .collect::<Vec<_>>()
            .join("; ");
        let failed = failed.map(|fault| {
            let all = [fault.message.as_str(), &words]
                .into_iter()
                .filter(|words| !words.is_empty());
            Fault {
                message: all.collect::<Vec<_>>().join("; "),
                ..fault
            }
        });
        match failed {
            Some(fault) if changes && fault.class != Class::Transient => {
                return Ok((Standing::refused(standing.alb, &fault), Outcome::Waiting));
            }
            Some(fault) => return Err(fault.into()),
            None => {}
        }
        if standing.reason == PROVISIONING {
            return Ok((standing, outcome));
        }
        let outcome = if changes { Outcome::Waiting } else { outcome };
        match ill.first() {
            Some(first) => Ok((Standing::not(standing.alb, first.reason, words), outcome)),
            None => Ok((standing, outcome)),
        }
    }

    /// Has the balancer listen as the spec says.
    async fn listen(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        balancer: &Balancer,
    ) -> Result<Looks, Error> {
        let wanted = pass.ingress.spec.listeners.clone();
        let ports: BTreeSet<u16> = wanted.iter().map(|listener| listener.port).collect();
        let found = &self.found(mark, balancer).await?;
        let had: BTreeSet<_> = found
            .ports(&mark.groups())
            .into_iter()
            .chain(pass.ports())
            .collect();
        // Known before anything of it is there, or nobody would ever take it away again.
        self.know(pass, &ports | &had).await?;
        // Nobody looks at the nodes for one without listeners.
        let instances = if wanted.is_empty() {
            Ok(BTreeSet::new())
        } else {
            self.backends.instances().await
        };
        let mut all = Looks {
            each: Vec::new(),
            failed: None,
            changes: false,
        };
        let scene = Scene {
            mark,
            balancer,
            found,
        };
        for listener in &wanted {
            let service = self.service(pass, listener).await?;
            let route = routes::find(service.as_ref(), listener, &instances);
            match self
                .serve(pass, &scene, listener, service.as_ref(), route)
                .await
            {
                Ok(look) => {
                    all.changes |= look.changes;
                    all.each.push(look);
                }
                // One that AWS refuses holds up no other.
                Err(Error::Cloud(fault)) if fault.is_of_one() => {
                    all.each.push(pass.look(listener.port, fault.reason, ""));
                    let message = format!("port {}: {}", listener.port, fault.message);
                    all.fail(Fault { message, ..fault });
                }
                Err(error) => return Err(error),
            }
        }
        let mut left = Vec::new();
        for port in had.difference(&ports) {
            match self.drop_listener(pass, mark, found, *port).await {
                Ok(true) => {}
                Ok(false) => {
                    all.changes = true;
                    left.extend(pass.listener(*port).cloned());
                }
                Err(fault) => {
                    let before = pass.listener(*port).cloned();
                    left.extend(before.map(|it| ListenerStatus {
                        healthy: 0,
                        reason: fault.reason.into(),
                        ..it
                    }));
                    all.fail(fault);
                }
            }
        }
        pass.listeners = all
            .each
            .iter()
            .map(|look| look.status(pass.requested_at(look.port)))
            .chain(left)
            .collect();
        Ok(all)
    }

    /// Has the status name all these ports.
    async fn know(&self, pass: &mut Pass, ports: BTreeSet<u16>) -> Result<(), Error> {
        let new: Vec<_> = ports.difference(&pass.ports().collect()).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        let new = new.into_iter().map(|port| ListenerStatus {
            port,
            reason: CREATING.into(),
            ..ListenerStatus::default()
        });
        pass.listeners.extend(new);
        self.note_all(pass).await
    }

    /// Writes down that AWS is about to be asked for something of that port. Once in a while is enough.
    pub(super) async fn announce(&self, pass: &mut Pass, port: u16) -> Result<(), Error> {
        if is_within(self.shown_within / 2, pass.requested_at(port).as_ref()) {
            return Ok(());
        }
        pass.set_requested_at(port, Some(now()));
        self.note_all(pass).await
    }

    /// Whether AWS may still come to show something of that port that it was asked for.
    pub(super) fn may_yet_show(&self, pass: &Pass, port: u16) -> bool {
        is_within(self.shown_within, pass.requested_at(port).as_ref())
    }

    /// The Service that a listener leads to.
    async fn service(&self, pass: &Pass, listener: &Listener) -> Result<Option<Service>, Error> {
        let (namespace, name) = (
            pass.ingress.metadata.namespace.as_deref(),
            &listener.service.name,
        );
        let services: Api<Service> =
            Api::namespaced(self.client.clone(), namespace.unwrap_or_default());
        services
            .get_opt(name)
            .await
            .map_err(|error| Error::ReadService(name.clone(), error))
    }
}
