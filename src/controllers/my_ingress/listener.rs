//! Has one listener be there, and lead to the nodes.
//!
//! The order never leaves it pointing at nothing: a target group has its targets before a listener leads to it, and new targets
//! come before old ones go.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube::Resource;
use qm_api::my_ingress::Listener;
use qm_aws::listeners::{self, Group, Health, Target, WantedGroup, WantedListener};
use qm_aws::{Balancer, Cloud, Fault, fault};

use super::found::{Found, Whose};
use super::routes::{self, Look, Problem};
use super::standing::LISTENER_CONFLICT;
use super::tags::Mark;
use super::{Error, MyIngresses, Pass};

/// The policy that AWS gives an HTTPS listener which is created without one. One that becomes HTTPS has to be given one
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_ModifyListener.html>).
const DEFAULT_POLICY: &str = "ELBSecurityPolicy-2016-08";

/// What all listeners of a balancer have in common.
pub(super) struct Scene<'a> {
    pub mark: &'a Mark<'a>,
    pub balancer: &'a Balancer,
    pub found: &'a Found,
}

/// A target group that is looked for.
enum Had {
    /// It is ours, or may be.
    Group(Group, Whose),
    /// Somebody else has its name.
    Foreign(Group),
    /// AWS was asked for it, and does not show it, or whose it is, yet.
    NotShown,
}

/// What came of it that targets were to be added.
struct Added {
    /// Some were.
    any: bool,
    /// AWS will not have these ...
    refused: BTreeSet<Target>,
    /// ... and said so.
    fault: Option<Fault>,
}

impl<C: Cloud> MyIngresses<C> {
    /// Serves one listener.
    pub(super) async fn serve(
        &self,
        pass: &mut Pass,
        scene: &Scene<'_>,
        listener: &Listener,
        service: Option<&Service>,
        route: Result<BTreeSet<Target>, Problem>,
    ) -> Result<Look, Error> {
        let Scene {
            mark,
            balancer,
            found,
        } = scene;
        let port = listener.port;
        let there = found.listener(port);
        if let Some(foreign) = there.filter(|there| !found.whose.may_be_had(&there.arn)) {
            if found.whose.is_bare(&foreign.arn) && self.may_yet_show(pass, port) {
                return Ok(Look::appearing(port));
            }
            let words = format!(
                "port {port} of the load balancer has a listener that is not ours, which is left alone: choose another port, delete \
                 it, or, {}",
                mark.hand_over(&foreign.arn)
            );
            return Ok(pass.look(port, LISTENER_CONFLICT, words));
        }
        let route = match route {
            Ok(route) => route,
            // Targets that still lead to the Service stay: the Service may be valid again in a moment.
            Err(problem) => {
                let look = pass.look(port, problem.reason(), format!("port {port}: {problem}"));
                let empty = self.release(pass, scene, port, service).await?;
                return Ok(if empty {
                    Look {
                        healthy: 0,
                        total: 0,
                        ..look
                    }
                } else {
                    look
                });
            }
        };
        let (group, whose) = match self.group(pass, scene, listener).await? {
            Had::Group(group, whose) => (group, whose),
            Had::NotShown => return Ok(Look::appearing(port)),
            Had::Foreign(group) => {
                let words = format!(
                    "target group {}, which port {port} needs, is not ours: delete it, or, {}",
                    group.name,
                    mark.hand_over(&group.arn)
                );
                return Ok(pass.look(port, LISTENER_CONFLICT, words));
            }
        };
        self.brand(pass, mark, &whose, &group.arn).await?;
        if group.health_check_path != listener.health_check_path() {
            self.cloud
                .set_health_check(&group.arn, listener.health_check_path())
                .await?;
        }
        let mut registered = self.cloud.targets(&group.arn).await?;
        let change = routes::change(&registered, &route);
        let added = self
            .register(&group, &registered, &route, change.add.clone())
            .await?;
        if let Some(fault) = &added.fault {
            let words = format!("port {port}: AWS does not have all nodes for targets: {fault}");
            self.events
                .warning(pass.ingress.object_ref(&()), "Update", fault.reason, words);
        }
        let turned = self.lead(pass, scene, listener, there, &group).await?;
        if !change.remove.is_empty() {
            self.cloud.deregister(&group.arn, &change.remove).await?;
        }
        // What AWS said of these was said before.
        registered.retain(|it| !turned && !change.add.contains(&it.target));
        let look = routes::look(
            port,
            &registered,
            &(&route - &added.refused),
            &balancer.security_groups,
        );
        let changes = look.changes || added.any || !change.hold.is_empty();
        Ok(Look {
            total: route.len(),
            changes,
            ..look
        })
    }

    /// Removes the targets of a listener that no longer lead to its Service. Returns whether no target remains.
    async fn release(
        &self,
        pass: &Pass,
        Scene { mark, found, .. }: &Scene<'_>,
        port: u16,
        service: Option<&Service>,
    ) -> Result<bool, Error> {
        let name = mark.group(port);
        // No traffic reaches a group that no listener leads to.
        let Some(group) = found.groups.iter().find(|group| group.name == name) else {
            return Ok(false);
        };
        if !found.whose.is_ours(&group.arn) {
            return Ok(false);
        }
        let registered = self.cloud.targets(&group.arn).await?;
        let released = routes::released(service, &registered);
        let active = registered.iter().filter(|it| !it.is_draining()).count();
        if !released.is_empty() {
            self.cloud.deregister(&group.arn, &released).await?;
            let words = format!(
                "removed {} targets of port {port}: the Service released their node port",
                released.len()
            );
            self.events
                .normal(pass.ingress.object_ref(&()), "Update", "Updated", words);
        }
        Ok(active == released.len())
    }

    /// Has the listener lead to the group; whether it led elsewhere, or there was none.
    async fn lead(
        &self,
        pass: &mut Pass,
        scene: &Scene<'_>,
        listener: &Listener,
        there: Option<&listeners::Listener>,
        group: &Group,
    ) -> Result<bool, Error> {
        let port = listener.port;
        let mut wanted = WantedListener {
            port,
            protocol: listener.protocol().into(),
            certificate: listener.certificate_arn.clone(),
            ssl_policy: listener.ssl_policy.clone(),
            group: group.arn.clone(),
        };
        let tell = |pass: &Pass, words: String| {
            self.events
                .normal(pass.ingress.object_ref(&()), "Update", "Updated", words);
        };
        let Some(there) = there else {
            self.announce(pass, port).await?;
            self.cloud
                .create_listener(&scene.balancer.arn, &wanted, &scene.mark.tags())
                .await?;
            tell(pass, format!("load balancer listens on port {port}"));
            return Ok(true);
        };
        self.brand(pass, scene.mark, &scene.found.whose, &there.arn)
            .await?;
        if !differs(there, &wanted) {
            return Ok(false);
        }
        if wanted.protocol == "HTTPS" && there.protocol != "HTTPS" {
            wanted
                .ssl_policy
                .get_or_insert_with(|| DEFAULT_POLICY.into());
        }
        self.cloud.modify_listener(&there.arn, &wanted).await?;
        tell(pass, format!("listener of port {port} put right"));
        Ok(there.group.as_ref() != Some(&group.arn))
    }

    /// The target group of a listener, made if there is none.
    async fn group(
        &self,
        pass: &mut Pass,
        scene: &Scene<'_>,
        listener: &Listener,
    ) -> Result<Had, Error> {
        let Scene {
            mark,
            balancer,
            found,
        } = scene;
        let (port, name) = (listener.port, mark.group(listener.port));
        let there = match found.groups.iter().find(|group| group.name == name) {
            Some(led_to) => Some((led_to.clone(), found.whose.clone())),
            None => match self.cloud.group(&name).await? {
                Some(group) => {
                    let whose = self.whose(mark, vec![group.arn.clone()]).await?;
                    Some((group, whose))
                }
                None => None,
            },
        };
        if let Some((group, whose)) = there {
            if !whose.may_be_had(&group.arn) {
                let late = whose.is_bare(&group.arn) && self.may_yet_show(pass, port);
                return Ok(if late {
                    Had::NotShown
                } else {
                    Had::Foreign(group)
                });
            }
            if group.vpc == balancer.vpc {
                return Ok(Had::Group(group, whose));
            }
            if !whose.is_ours(&group.arn) {
                return Ok(Had::Foreign(group));
            }
            // It is that of a balancer of ours which somebody deleted.
            self.cloud.delete_group(&group.arn).await?;
        }
        let wanted = WantedGroup {
            name,
            vpc: balancer.vpc.clone(),
            // Each target has its own.
            port: 80,
            health_check_path: listener.health_check_path().into(),
            tags: mark.tags(),
        };
        let before = pass.requested_at(port);
        self.announce(pass, port).await?;
        let group = self
            .cloud
            .create_group(&wanted)
            .await
            .inspect_err(|fault| {
                if fault.undone {
                    pass.set_requested_at(port, before);
                }
            })?;
        // The answer may be somebody else's group that has these very settings.
        match self.whose(mark, vec![group.arn.clone()]).await {
            Ok(whose) if whose.is_ours(&group.arn) => Ok(Had::Group(group, whose)),
            Ok(whose) if !whose.is_bare(&group.arn) => Ok(Had::Foreign(group)),
            Err(fault) if !fault.is(fault::GROUP_NOT_FOUND) => Err(fault.into()),
            _ => Ok(Had::NotShown),
        }
    }

    /// Adds these targets, but for those that AWS will not have: an instance that ended a moment before its node does.
    async fn register(
        &self,
        group: &Group,
        registered: &[Health],
        route: &BTreeSet<Target>,
        mut add: BTreeSet<Target>,
    ) -> Result<Added, Fault> {
        let (mut refused, mut said) = (BTreeSet::new(), None);
        let stay = registered
            .iter()
            .filter(|it| !it.is_draining() && route.contains(&it.target))
            .count();
        while !add.is_empty() {
            let fault = match self.cloud.register(&group.arn, &add).await {
                Ok(()) => {
                    return Ok(Added {
                        any: true,
                        refused,
                        fault: said,
                    });
                }
                Err(fault) => fault,
            };
            let named: BTreeSet<_> = add
                .iter()
                .filter(|it| names(&fault.message, &it.instance))
                .cloned()
                .collect();
            let left = &add - &named;
            if !fault.is(fault::INVALID_TARGET) || named.is_empty() || left.len() + stay == 0 {
                return Err(fault);
            }
            refused.extend(named);
            (add, said) = (left, Some(fault));
        }
        Ok(Added {
            any: false,
            refused,
            fault: said,
        })
    }
}

/// Whether the words name this instance, and not one whose ID goes on.
fn names(words: &str, instance: &str) -> bool {
    words
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .any(|word| word == instance)
}

/// What is not said is nobody's business.
fn differs(there: &listeners::Listener, wanted: &WantedListener) -> bool {
    there.protocol != wanted.protocol
        || there.certificate != wanted.certificate
        || (wanted.ssl_policy.is_some() && there.ssl_policy != wanted.ssl_policy)
        || there.group.as_ref() != Some(&wanted.group)
}
