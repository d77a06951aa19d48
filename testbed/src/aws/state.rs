//! State that moto does not know or gets wrong: age and state of load balancers, tags, targets and their health, and
//! which listener forwards to which group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::network::Network;
use super::xml::Element;

pub(super) type Tags = BTreeMap<String, String>;

/// Id and port of a target.
pub(super) type Target = (String, u16);

pub(super) struct State {
    pub(super) network: Network,
    /// Load balancers by ARN, like the maps below.
    pub(super) balancers: BTreeMap<String, Balancer>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) listeners: BTreeMap<String, Listener>,
    pub(super) tags: BTreeMap<String, Tags>,
    pub(super) shown: BTreeMap<String, Shown>,
    pub(super) deleted: BTreeMap<String, Deleted>,
    pub(super) certificates: BTreeSet<String>,
    /// Location of each instance, by id.
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) times: Times,
    /// Largest number of items in one describe.
    pub(super) page: usize,
    /// Whether the subnets have IPv6 ranges.
    pub(super) ipv6: bool,
    /// Whether each access key is expired.
    pub(super) keys: BTreeMap<String, bool>,
}

/// Durations of states.
pub(super) struct Times {
    /// Age at which a load balancer becomes active; `None` until the test releases it.
    pub(super) provisioning: Option<Duration>,
    /// Age at which describes show new resources.
    pub(super) hidden: Duration,
    /// Age at which `DescribeTags` shows tags of new resources.
    pub(super) late_tags: Duration,
    /// Time until describes stop showing a deleted load balancer.
    pub(super) linger: Duration,
    /// Time until a new target finishes its initial health checks.
    pub(super) initial: Duration,
    /// Time until a deregistered target disappears.
    pub(super) draining: Duration,
}

pub(super) struct Balancer {
    pub(super) name: String,
    pub(super) vpc: String,
    pub(super) zones: BTreeSet<String>,
    pub(super) created: Instant,
    /// State and reason that a test sets.
    pub(super) forced: Option<(String, String)>,
    pub(super) protected: bool,
}

pub(super) struct Group {
    pub(super) name: String,
    /// The group's parameters with their defaults, as in a call.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) targets: BTreeMap<Target, Registered>,
    /// State and reason of a target's health that a test sets.
    pub(super) forced: BTreeMap<String, (String, String)>,
}

pub(super) struct Registered {
    pub(super) since: Instant,
    pub(super) leaving: Option<Instant>,
}

pub(super) struct Listener {
    pub(super) balancer: String,
    pub(super) port: u16,
    pub(super) protocol: String,
    pub(super) groups: Vec<String>,
    /// Parameters of the listener except tags, as in the call.
    pub(super) settings: BTreeMap<String, String>,
    /// Time since which the listener forwards to its groups.
    pub(super) since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) zone: String,
    pub(super) running: bool,
}

/// Time from which describes show a new resource.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) from: Instant,
    pub(super) tags_from: Instant,
}

/// A deleted load balancer, before its deletion.
pub(super) struct Deleted {
    pub(super) name: String,
    /// Description by moto and the rules.
    pub(super) description: Element,
    pub(super) tags: Tags,
    pub(super) shown: Shown,
    pub(super) until: Instant,
}

impl State {
    pub(super) fn new(network: Network) -> Self {
        Self {
            network,
            balancers: BTreeMap::new(),
            groups: BTreeMap::new(),
            listeners: BTreeMap::new(),
            tags: BTreeMap::new(),
            shown: BTreeMap::new(),
            deleted: BTreeMap::new(),
            certificates: BTreeSet::new(),
            instances: BTreeMap::new(),
            times: Times {
                provisioning: Some(Duration::from_millis(200)),
                hidden: Duration::ZERO,
                late_tags: Duration::ZERO,
                linger: Duration::ZERO,
                initial: Duration::from_millis(200),
                draining: Duration::from_millis(500),
            },
            page: 400,
            ipv6: true,
            keys: BTreeMap::from([(super::ACCESS_KEY.to_owned(), false)]),
        }
    }

    pub(super) fn balancer_named(&self, name: &str) -> Option<(&String, &Balancer)> {
        self.balancers
            .iter()
            .find(|(_, balancer)| balancer.name == name)
    }

    /// Returns a load balancer's state and reason.
    pub(super) fn balancer_state(&self, balancer: &Balancer) -> (String, String) {
        if let Some(forced) = &balancer.forced {
            return forced.clone();
        }
        let ready = self
            .times
            .provisioning
            .is_some_and(|takes| balancer.created.elapsed() >= takes);
        (
            if ready { "active" } else { "provisioning" }.to_owned(),
            String::new(),
        )
    }

    /// Returns the load balancers whose listeners forward to this group.
    pub(super) fn balancers_of(&self, group: &str) -> BTreeSet<String> {
        let forwarding = self
            .listeners
            .values()
            .filter(|listener| listener.groups.iter().any(|arn| arn == group));
        forwarding
            .map(|listener| listener.balancer.clone())
            .collect()
    }

    pub(super) fn set_tags(&mut self, arn: &str, tags: Tags) {
        self.tags.entry(arn.to_owned()).or_default().extend(tags);
    }

    /// Forgets a load balancer and its listeners.
    pub(super) fn forget_balancer(&mut self, arn: &str) {
        self.balancers.remove(arn);
        self.forget(arn);
        let gone: Vec<String> = self
            .listeners
            .iter()
            .filter(|(_, listener)| listener.balancer == arn)
            .map(|(arn, _)| arn.clone())
            .collect();
        for listener in gone {
            self.forget_listener(&listener);
        }
    }

    pub(super) fn forget_listener(&mut self, arn: &str) {
        self.listeners.remove(arn);
        self.forget(arn);
    }

    pub(super) fn forget_group(&mut self, arn: &str) {
        self.groups.remove(arn);
        self.forget(arn);
    }

    fn forget(&mut self, arn: &str) {
        self.tags.remove(arn);
        self.shown.remove(arn);
    }
}
