//! Has the balancer listen where it is to, and lead to the nodes.
//!
//! The order never leaves a listener pointing at nothing: a target group has its targets before a listener leads to it, new
//! targets come before old ones go, and a target group goes after its listener.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Resource};

use super::routes::{self, Look};
use super::settle::stands;
use super::standing::{FAILED, LISTENER_CONFLICT, PROVISIONING, Standing};
use super::tags::Mark;
use super::{Error, MyIngresses, Pass};
use crate::api::my_ingress::{Listener, ListenerStatus};
use crate::cloud::action::GROUP_PREFIX;
use crate::cloud::listeners::{self, Group, Health, Target, WantedGroup, WantedListener};
use crate::cloud::{Balancer, Cloud, Fault, fault};
use crate::runtime::ownership::Claim;
use crate::runtime::reconciler::{Class, Outcome};
use crate::runtime::short_digest;

/// What AWS has of a balancer beside it.
struct Found {
    listeners: Vec<listeners::Listener>,
    groups: Vec<Group>,
    /// ARNs of those that are ours.
    ours: BTreeSet<String>,
}

impl Found {
    /// The ports that we have something for.
    fn ports(&self, prefix: &str) -> BTreeSet<u16> {
        let listeners = self.listeners.iter().filter(|it| self.ours.contains(&it.arn)).map(|it| it.port);
        let groups = self.groups.iter().filter(|it| self.ours.contains(&it.arn));
        listeners.chain(groups.filter_map(|it| it.name.strip_prefix(prefix)?.parse().ok())).collect()
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
        if standing.reason == FAILED || (pass.ingress.spec.listeners.is_empty() && pass.listeners.is_empty()) {
            return Ok((standing, outcome));
        }
        pass.alb.clone_from(&standing.alb);
        let looks = self.listen(pass, mark, balancer).await?;
        if standing.reason == PROVISIONING {
            return Ok((standing, outcome));
        }
        if let Some(ill) = looks.iter().find(|look| !look.reason.is_empty()) {
            return Ok((Standing::not(standing.alb, ill.reason, ill.words.clone()), Outcome::Waiting));
        }
        let outcome = if looks.iter().any(|look| look.changes) { Outcome::Waiting } else { outcome };
        Ok((standing, outcome))
    }

    /// Has the balancer listen as the spec says. How each listener is.
    async fn listen(&self, pass: &mut Pass, mark: &Mark<'_>, balancer: &Balancer) -> Result<Vec<Look>, Error> {
        let wanted = pass.ingress.spec.listeners.clone();
        let ports: BTreeSet<u16> = wanted.iter().map(|listener| listener.port).collect();
        let known: BTreeSet<u16> = pass.listeners.iter().map(|listener| listener.port).collect();
        if !ports.is_subset(&known) {
            // Known before anything of it is there, or nobody would ever take it away again.
            let new = ports.difference(&known).map(|port| ListenerStatus { port: *port, ..ListenerStatus::default() });
            let all = pass.listeners.iter().cloned().chain(new).collect();
            self.note_listeners(pass, all).await?;
        }
        // Nobody looks at the nodes for one without listeners.
        let instances = if wanted.is_empty() { Ok(BTreeSet::new()) } else { self.backends.instances().await };
        let found = self.found(mark, balancer).await?;
        let (mut looks, mut failed) = (Vec::new(), None);
        for listener in &wanted {
            let service = self.service(pass, listener).await?;
            let route = routes::find(service.as_ref(), listener, &instances);
            match self.serve(pass, mark, balancer, &found, listener, route).await {
                Ok(look) => looks.push(look),
                Err(fault) if fault.class == Class::Conflict => return Err(fault.into()),
                // One that AWS refuses holds up no other.
                Err(fault) => {
                    looks.push(Look::not(listener.port, fault.reason, ""));
                    let message = format!("port {}: {}", listener.port, fault.message);
                    failed.get_or_insert(Fault { message, ..fault });
                }
            }
        }
        let mut all: Vec<_> = looks.iter().map(Look::status).collect();
        let had = found.ports(&prefix(mark)).into_iter().chain(known).collect::<BTreeSet<_>>();
        for port in had.difference(&ports) {
            if let Err(fault) = self.drop_listener(pass, mark, &found, *port).await {
                all.extend(pass.listeners.iter().find(|it| it.port == *port).cloned());
                failed.get_or_insert(fault);
            }
        }
        pass.listeners = all;
        match failed {
            Some(fault) => Err(fault.into()),
            None => Ok(looks),
        }
    }

    /// The Service that a listener leads to.
    async fn service(&self, pass: &Pass, listener: &Listener) -> Result<Option<Service>, Error> {
        let (namespace, name) = (pass.ingress.metadata.namespace.as_deref(), &listener.service.name);
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace.unwrap_or_default());
        services.get_opt(name).await.map_err(|error| Error::ReadService(name.clone(), error))
    }

    async fn found(&self, mark: &Mark<'_>, balancer: &Balancer) -> Result<Found, Fault> {
        let listeners = self.cloud.listeners(&balancer.arn).await?;
        let groups = self.cloud.groups(&balancer.arn).await?;
        let arns = listeners.iter().map(|it| &it.arn).chain(groups.iter().map(|it| &it.arn));
        let ours = self.ours(mark, arns.cloned().collect()).await?;
        Ok(Found { listeners, groups, ours })
    }

    /// Those of them whose tags prove that they are ours.
    async fn ours(&self, mark: &Mark<'_>, arns: Vec<String>) -> Result<BTreeSet<String>, Fault> {
        if arns.is_empty() {
            return Ok(BTreeSet::new());
        }
        let tags = self.cloud.tags_of(&arns).await?;
        let proved = |tags: &_| matches!(mark.claim(tags, |uid| self.lives(uid)), Claim::Ours | Claim::Restored);
        Ok(tags.into_iter().filter(|(_, tags)| proved(tags)).map(|(arn, _)| arn).collect())
    }

    /// Serves one listener.
    async fn serve(
        &self,
        pass: &Pass,
        mark: &Mark<'_>,
        balancer: &Balancer,
        found: &Found,
        listener: &Listener,
        route: Result<BTreeSet<Target>, routes::Problem>,
    ) -> Result<Look, Fault> {
        let port = listener.port;
        let conflict = |words| Ok(Look::not(port, LISTENER_CONFLICT, words));
        let there = found.listeners.iter().find(|there| there.port == port);
        if there.is_some_and(|there| !found.ours.contains(&there.arn)) {
            return conflict(format!(
                "port {port} of the load balancer has a listener that is not ours, which is left alone: delete it, or choose \
                 another port"
            ));
        }
        let route = match route {
            Ok(route) => route,
            // What is there stays as it is: it may be right again in a moment.
            Err(problem) => return Ok(Look::not(port, problem.reason(), problem.to_string())),
        };
        let name = format!("{}{port}", prefix(mark));
        let Some(group) = self.group(mark, balancer, found, listener, &name).await? else {
            return conflict(format!("target group {name}, which port {port} needs, is not ours: delete it"));
        };
        if group.health_check_path != listener.health_check_path() {
            self.cloud.set_health_check(&group.arn, listener.health_check_path()).await?;
        }
        let registered = self.cloud.targets(&group.arn).await?;
        let change = routes::change(&registered, &route);
        let added = self.register(&group, &registered, &route, change.add).await?;
        let wanted = WantedListener {
            port,
            protocol: listener.protocol().into(),
            certificate: listener.certificate_arn.clone(),
            ssl_policy: listener.ssl_policy.clone(),
            group: group.arn.clone(),
        };
        match there {
            None => {
                self.cloud.create_listener(&balancer.arn, &wanted, &mark.tags()).await?;
                self.tell(pass, format!("load balancer listens on port {port}"));
            }
            Some(there) if differs(there, &wanted) => {
                self.cloud.modify_listener(&there.arn, &wanted).await?;
                self.tell(pass, format!("listener of port {port} put right"));
            }
            Some(_) => {}
        }
        if !change.remove.is_empty() {
            self.cloud.deregister(&group.arn, &change.remove).await?;
        }
        let look = routes::look(port, &registered, &(&route - &added.refused), &balancer.security_groups);
        let changes = look.changes || added.any || !change.hold.is_empty();
        Ok(Look { total: route.len(), changes, ..look })
    }

    /// The target group of a listener, made if there is none; none where somebody else has its name.
    async fn group(
        &self,
        mark: &Mark<'_>,
        balancer: &Balancer,
        found: &Found,
        listener: &Listener,
        name: &str,
    ) -> Result<Option<Group>, Fault> {
        if let Some(group) = found.groups.iter().find(|group| group.name == name) {
            return Ok(found.ours.contains(&group.arn).then(|| group.clone()));
        }
        if let Some(group) = self.cloud.group(name).await? {
            if self.ours(mark, vec![group.arn.clone()]).await?.is_empty() {
                return Ok(None);
            }
            if group.vpc == balancer.vpc {
                return Ok(Some(group));
            }
            // It is that of a balancer of ours which somebody deleted.
            self.cloud.delete_group(&group.arn).await?;
        }
        let wanted = WantedGroup {
            name: name.into(),
            vpc: balancer.vpc.clone(),
            // Each target has its own.
            port: 80,
            health_check_path: listener.health_check_path().into(),
            tags: mark.tags(),
        };
        let group = self.cloud.create_group(&wanted).await?;
        // The answer may be somebody else's group that has these very settings.
        let ours = self.ours(mark, vec![group.arn.clone()]).await?;
        Ok(ours.contains(&group.arn).then_some(group))
    }

    /// Adds these targets, but for those that AWS will not have: an instance that ended a moment before its node does.
    async fn register(
        &self,
        group: &Group,
        registered: &[Health],
        route: &BTreeSet<Target>,
        mut add: BTreeSet<Target>,
    ) -> Result<Added, Fault> {
        let mut refused = BTreeSet::new();
        while !add.is_empty() {
            let fault = match self.cloud.register(&group.arn, &add).await {
                Ok(()) => return Ok(Added { any: true, refused }),
                Err(fault) => fault,
            };
            let named: BTreeSet<_> = add.iter().filter(|it| names(&fault.message, &it.instance)).cloned().collect();
            let left = &add - &named;
            let others = left.len() + registered.iter().filter(|it| route.contains(&it.target)).count();
            if !fault.is(fault::INVALID_TARGET) || named.is_empty() || others == 0 {
                return Err(fault);
            }
            refused.extend(named);
            add = left;
        }
        Ok(Added { any: false, refused })
    }

    /// Takes away what a port had.
    async fn drop_listener(&self, pass: &Pass, mark: &Mark<'_>, found: &Found, port: u16) -> Result<(), Fault> {
        for listener in found.listeners.iter().filter(|it| it.port == port && found.ours.contains(&it.arn)) {
            self.cloud.delete_listener(&listener.arn).await?;
            self.tell(pass, format!("load balancer listens on port {port} no more"));
        }
        let Some(group) = self.cloud.group(&format!("{}{port}", prefix(mark))).await? else { return Ok(()) };
        for arn in self.ours(mark, vec![group.arn]).await? {
            self.cloud.delete_group(&arn).await?;
        }
        Ok(())
    }

    /// Takes all target groups away, once the balancer is gone; where it was `left`, but for those that it leads to.
    pub(super) async fn drop_all_groups(&self, pass: &Pass, mark: &Mark<'_>, left: bool) -> Result<(), Error> {
        if pass.ingress.spec.listeners.is_empty() && pass.listeners.is_empty() {
            return Ok(());
        }
        // Their names are those of whoever has ours now.
        self.confirm(pass).await?;
        let groups = self.cloud.groups_named(&prefix(mark)).await?;
        for arn in self.ours(mark, groups.into_iter().map(|group| group.arn).collect()).await? {
            match self.cloud.delete_group(&arn).await {
                Err(fault) if left && fault.is(fault::IN_USE) => {}
                deleted => deleted?,
            }
        }
        Ok(())
    }

    fn tell(&self, pass: &Pass, words: String) {
        self.events.normal(pass.ingress.object_ref(&()), "Update", "Updated", words);
    }
}

/// What came of it that targets were to be added.
struct Added {
    /// Some were.
    any: bool,
    /// AWS will not have these.
    refused: BTreeSet<Target>,
}

/// What the names of all target groups of a `MyIngress` begin with: AWS has one of each name in an account and region. It is
/// the same after a restore from a backup.
fn prefix(mark: &Mark<'_>) -> String {
    let digest = short_digest(format!("{}/{}", mark.cluster, mark.owner.path()));
    format!("{GROUP_PREFIX}{digest}-")
}

/// Whether the words name this instance, and not one whose ID goes on.
fn names(words: &str, instance: &str) -> bool {
    words.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == instance)
}

/// What is not said is nobody's business.
fn differs(there: &listeners::Listener, wanted: &WantedListener) -> bool {
    there.protocol != wanted.protocol
        || there.certificate != wanted.certificate
        || (wanted.ssl_policy.is_some() && there.ssl_policy != wanted.ssl_policy)
        || there.group.as_ref() != Some(&wanted.group)
}
