//! Has the balancer listen where it is to, and lead to the nodes.
//!
//! The order never leaves a listener pointing at nothing: a target group has its targets before a listener leads to it, new
//! targets come before old ones go, and a target group goes after its listener.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use sha2::{Digest, Sha256};

use super::standing::LISTENER_CONFLICT;
use super::tags::Mark;
use super::{Error, MyIngresses, Pass, routes};
use crate::api::my_ingress::{Listener, ListenerStatus};
use crate::cloud::action::GROUP_PREFIX;
use crate::cloud::{Balancer, Cloud};
use crate::cloud::listeners::{self, Group, Target, WantedGroup, WantedListener};
use crate::runtime::ownership::Claim;

/// What the names of all target groups of a `MyIngress` begin with: AWS has one of each name in an account and region.
pub fn prefix(uid: &str) -> String {
    let digest = Sha256::digest(uid.as_bytes());
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("{GROUP_PREFIX}{hex}-")
}

/// What AWS has of a balancer beside it.
struct Found {
    listeners: Vec<listeners::Listener>,
    groups: Vec<Group>,
    /// ARNs of those that are ours.
    ours: BTreeSet<String>,
}

impl<C: Cloud> MyIngresses<C> {
    /// Has the balancer listen as the spec says. What came of each listener.
    pub(super) async fn listen(
        &self,
        pass: &mut Pass,
        mark: &Mark<'_>,
        balancer: &Balancer,
    ) -> Result<Vec<ListenerStatus>, Error> {
        let wanted = pass.ingress.spec.listeners.clone();
        let known: BTreeSet<u16> = pass.listeners.iter().map(|listener| listener.port).collect();
        if wanted.is_empty() && known.is_empty() {
            return Ok(Vec::new());
        }
        let ports: BTreeSet<u16> = wanted.iter().map(|listener| listener.port).collect();
        if !ports.is_subset(&known) {
            // Known before anything of it is there, or nobody would ever take it away again.
            let new = ports.difference(&known).map(|port| ListenerStatus { port: *port, ..ListenerStatus::default() });
            let all = pass.listeners.iter().cloned().chain(new).collect();
            self.note_listeners(pass, all).await?;
        }
        let found = self.found(mark, balancer).await?;
        let instances = self.backends.instances().await;
        let mut came = Vec::new();
        for listener in &wanted {
            let route = routes::find(&self.service(pass, listener).await?, listener, &instances);
            came.push(self.serve(mark, balancer, &found, listener, route).await?);
        }
        for port in known.difference(&ports) {
            self.drop_listener(mark, &found, *port).await?;
        }
        Ok(came)
    }

    /// The Service that a listener leads to.
    async fn service(&self, pass: &Pass, listener: &Listener) -> Result<Option<Service>, Error> {
        let namespace = pass.ingress.metadata.namespace.as_deref().unwrap_or_default();
        get(&self.client, namespace, &listener.service.name).await.map_err(Error::ReadService)
    }

    async fn found(&self, mark: &Mark<'_>, balancer: &Balancer) -> Result<Found, Error> {
        let listeners = self.cloud.listeners(&balancer.arn).await?;
        let groups = self.cloud.groups(&balancer.arn).await?;
        let arns = listeners.iter().map(|it| &it.arn).chain(groups.iter().map(|it| &it.arn));
        let ours = self.ours(mark, arns.cloned().collect()).await?;
        Ok(Found { listeners, groups, ours })
    }

    /// Those of them whose tags prove that they are ours.
    async fn ours(&self, mark: &Mark<'_>, arns: Vec<String>) -> Result<BTreeSet<String>, Error> {
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
        mark: &Mark<'_>,
        balancer: &Balancer,
        found: &Found,
        listener: &Listener,
        route: Result<BTreeSet<Target>, routes::Problem>,
    ) -> Result<ListenerStatus, Error> {
        let port = listener.port;
        let there = found.listeners.iter().find(|there| there.port == port);
        if there.is_some_and(|there| !found.ours.contains(&there.arn)) {
            let message = format!("somebody else's listener is on port {port} of the load balancer: delete it, or choose another port");
            return Ok(ListenerStatus { port, reason: LISTENER_CONFLICT.into(), message, ..ListenerStatus::default() });
        }
        let route = match route {
            Ok(route) => route,
            // What is there stays as it is: it may be there again in a moment.
            Err(problem) => {
                let (reason, message) = (problem.reason().into(), problem.to_string());
                return Ok(ListenerStatus { port, reason, message, ..ListenerStatus::default() });
            }
        };
        let Some(group) = self.group(mark, balancer, found, listener).await? else {
            let message = format!("somebody else's target group has the name that port {port} needs");
            return Ok(ListenerStatus { port, reason: LISTENER_CONFLICT.into(), message, ..ListenerStatus::default() });
        };
        if group.health_check_path != listener.health_check_path() {
            self.cloud.set_health_check(&group.arn, listener.health_check_path()).await?;
        }
        let registered = self.cloud.targets(&group.arn).await?;
        let (add, remove) = routes::difference(&registered, &route);
        if !add.is_empty() {
            self.cloud.register(&group.arn, &add).await?;
        }
        let wanted = WantedListener {
            port,
            protocol: listener.protocol().into(),
            certificate: listener.certificate_arn.clone(),
            ssl_policy: listener.ssl_policy.clone(),
            group: group.arn.clone(),
        };
        match there {
            None => self.cloud.create_listener(&balancer.arn, &wanted, &mark.tags()).await?,
            Some(there) if differs(there, &wanted) => self.cloud.modify_listener(&there.arn, &wanted).await?,
            Some(_) => {}
        }
        if !remove.is_empty() {
            self.cloud.deregister(&group.arn, &remove).await?;
        }
        Ok(routes::status(port, &registered, &route, balancer))
    }

    /// The target group of a listener, made if there is none; none where somebody else has its name.
    async fn group(
        &self,
        mark: &Mark<'_>,
        balancer: &Balancer,
        found: &Found,
        listener: &Listener,
    ) -> Result<Option<Group>, Error> {
        let name = format!("{}{}", prefix(mark.owner.uid()), listener.port);
        if let Some(group) = found.groups.iter().find(|group| group.name == name) {
            return Ok(found.ours.contains(&group.arn).then(|| group.clone()));
        }
        let group = match self.cloud.group(&name).await? {
            Some(group) => group,
            None => {
                let wanted = WantedGroup {
                    name,
                    vpc: balancer.vpc.clone(),
                    port: 80,
                    health_check_path: listener.health_check_path().into(),
                    tags: mark.tags(),
                };
                self.cloud.create_group(&wanted).await?
            }
        };
        let ours = self.ours(mark, vec![group.arn.clone()]).await?;
        Ok(ours.contains(&group.arn).then_some(group))
    }

    /// Takes away what a port had.
    async fn drop_listener(&self, mark: &Mark<'_>, found: &Found, port: u16) -> Result<(), Error> {
        for listener in found.listeners.iter().filter(|it| it.port == port && found.ours.contains(&it.arn)) {
            self.cloud.delete_listener(&listener.arn).await?;
        }
        let name = format!("{}{port}", prefix(mark.owner.uid()));
        if let Some(group) = self.cloud.group(&name).await? {
            self.drop_groups(mark, vec![group]).await?;
        }
        Ok(())
    }

    /// Takes all target groups away, once the balancer is gone.
    pub(super) async fn drop_all_groups(&self, mark: &Mark<'_>) -> Result<(), Error> {
        let groups = self.cloud.groups_named(&prefix(mark.owner.uid())).await?;
        self.drop_groups(mark, groups).await
    }

    async fn drop_groups(&self, mark: &Mark<'_>, groups: Vec<Group>) -> Result<(), Error> {
        let ours = self.ours(mark, groups.iter().map(|group| group.arn.clone()).collect()).await?;
        for arn in &ours {
            self.cloud.delete_group(arn).await?;
        }
        Ok(())
    }
}

async fn get(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Service>> {
    Api::namespaced(client.clone(), namespace).get_opt(name).await
}

/// What is not said is nobody's business.
fn differs(there: &listeners::Listener, wanted: &WantedListener) -> bool {
    there.protocol != wanted.protocol
        || there.certificate != wanted.certificate
        || wanted.ssl_policy.is_some() && there.ssl_policy != wanted.ssl_policy
        || there.group.as_ref() != Some(&wanted.group)
}
