//! What moto does not know, or gets wrong: since when a balancer is there and how it is, tags, targets and their
//! health, which listener forwards to which group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::network::Network;
use super::xml::Element;

pub(super) type Tags = BTreeMap<String, String>;

/// A target: its id and port.
pub(super) type Target = (String, u16);

pub(super) struct State {
    pub(super) network: Network,
    /// All by ARN.
    pub(super) balancers: BTreeMap<String, Balancer>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) listeners: BTreeMap<String, Listener>,
    pub(super) tags: BTreeMap<String, Tags>,
    pub(super) shown: BTreeMap<String, Shown>,
    pub(super) deleted: BTreeMap<String, Deleted>,
    pub(super) certificates: BTreeSet<String>,
    /// Instance id -> where it runs.
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) times: Times,
    /// How many items a describe answers at once, at most.
    pub(super) page: usize,
    /// Subnets have IPv6 ranges.
    pub(super) ipv6: bool,
    /// Access keys -> whether they are expired.
    pub(super) keys: BTreeMap<String, bool>,
}

/// How long things take.
pub(super) struct Times {
    /// A new balancer; none: until it is released.
    pub(super) provisioning: Option<Duration>,
    /// Until describes show what is new.
    pub(super) hidden: Duration,
    /// Until `DescribeTags` shows the tags of what is new.
    pub(super) late_tags: Duration,
    /// Until describes do not show a deleted balancer any more.
    pub(super) linger: Duration,
    /// Until a new target has passed its health checks.
    pub(super) initial: Duration,
    /// Until a target that was deregistered is gone.
    pub(super) draining: Duration,
}

pub(super) struct Balancer {
    pub(super) name: String,
    pub(super) vpc: String,
    pub(super) zones: BTreeSet<String>,
    pub(super) created: Instant,
    /// What a test says: the state, and its reason.
    pub(super) forced: Option<(String, String)>,
    pub(super) protected: bool,
}

pub(super) struct Group {
    pub(super) name: String,
    /// Its parameters with their defaults, as they would be sent.
    pub(super) settings: BTreeMap<String, String>,
    pub(super) targets: BTreeMap<Target, Registered>,
    /// What a test says of a target's health: the state, and its reason.
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
    /// All that it was made of, but the tags, as it was sent.
    pub(super) settings: BTreeMap<String, String>,
    /// Since when it forwards to its groups.
    pub(super) since: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    pub(super) zone: String,
    pub(super) running: bool,
}

/// From when on describes show what was made.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) from: Instant,
    pub(super) tags_from: Instant,
}

/// A balancer that was deleted, as it was.
pub(super) struct Deleted {
    pub(super) name: String,
    /// As moto and the rules described it.
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

    /// A balancer's state, and its reason.
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

    /// The balancers whose listeners forward to this group.
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

    /// A balancer is gone, and its listeners with it.
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
