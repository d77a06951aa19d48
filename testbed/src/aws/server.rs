//! The server, as tests use and control it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;

use super::account::{ACCESS_KEY, REGION};
use super::faults::{self, Deed, Fault, On, Order, Times};
use super::gate::{Door, Gate, Point};
use super::layer::{Call, Layer};
use super::moto::Moto;
use super::network::Network;
use super::state::State;
use crate::serve::{Server, serve_http};

/// The server. Clones are the same server; it ends with the last.
#[derive(Clone)]
pub struct Aws {
    pub(super) layer: Arc<Layer>,
    server: Arc<Server>,
}

impl Aws {
    /// Starts on a free port of 127.0.0.1, with the network of [`super::SUBNETS`] and [`super::OTHER_SUBNETS`]. moto is installed first
    /// if it is not there yet.
    ///
    /// # Errors
    /// moto cannot be installed, or does not start.
    pub async fn start() -> Result<Self> {
        let moto = Moto::start().await?;
        let (moto, network) = crate::serve::runtime()?
            .spawn(async move { Network::make(&moto).await.map(|network| (moto, network)) })
            .await??;
        let layer = Arc::new(Layer::new(moto, State::new(network)));
        let server = serve_http(None, {
            let layer = layer.clone();
            move |arrived| layer.clone().handle(arrived)
        })?;
        Ok(Self {
            layer,
            server: Arc::new(server),
        })
    }

    /// The endpoint.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// The environment of a process that is to use it. It must not have those of [`super::FOREIGN`] besides.
    pub fn env(&self) -> Vec<(String, String)> {
        let nothing = self
            .layer
            .moto
            .folder()
            .join("no-such-file")
            .display()
            .to_string();
        let variables = [
            ("AWS_ENDPOINT_URL", self.url()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_DEFAULT_REGION", REGION.to_owned()), // other SDKs and the CLI ask for this one
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "nobody-checks-this".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("AWS_CONFIG_FILE", nothing.clone()),
            ("AWS_SHARED_CREDENTIALS_FILE", nothing),
        ];
        variables
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    /// All calls of the `ELBv2` API so far that have come to their end, in that order.
    pub fn calls(&self) -> Vec<Arc<Call>> {
        self.layer.journal.all()
    }

    /// All calls, once `enough` says yes to them; an error after `deadline`.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Call>]) -> bool,
    ) -> Result<Vec<Arc<Call>>> {
        self.layer.journal.wait_for(deadline, enough).await
    }

    /// Has each later call told as it comes to its end, besides the journal.
    pub fn on_call(&self, listener: impl Fn(&Call) + Send + Sync + 'static) {
        self.layer.journal.listen(listener);
    }

    /// Forgets the calls so far.
    pub fn clear(&self) {
        self.layer.journal.clear();
    }

    /// Does this to calls that match. Where several orders match, each counts the call; they are carried out in the order
    /// in which they were given, until one ends it.
    pub fn fault(&self, on: On, times: Times, fault: Fault) -> Order {
        self.layer.plan.order(on, times, Deed::Fault(fault))
    }

    /// Holds the call of this number (the first is 1), counted from now among those that match.
    pub fn gate(&self, on: On, number: u64, point: Point) -> Gate {
        let door = Arc::new(Door::new());
        let order = self
            .layer
            .plan
            .order(on, Times::Nth(number), Deed::Gate(point, door.clone()));
        Gate::new(door, order)
    }

    /// Whether every call is answered 503.
    pub fn down(&self, down: bool) {
        self.layer.down.store(down, Ordering::SeqCst);
    }

    /// Takes back every fault, gate, [`Self::hide_new`], [`Self::late_tags`] and [`Self::linger`], and is up again.
    pub fn behave(&self) {
        faults::clear(&self.layer.plan);
        self.down(false);
        self.hide_new(Duration::ZERO);
        self.late_tags(Duration::ZERO);
        self.linger(Duration::ZERO);
    }

    /// Describes do not show balancers, target groups and listeners that are made from now on before they are so old; nor
    /// does `DescribeTags`. With zero, what is hidden now is shown at once.
    pub fn hide_new(&self, age: Duration) {
        self.layer.state().hide(age);
    }

    /// `DescribeTags` shows balancers, target groups and listeners that are made from now on without any tag before they
    /// are so old, also without tags that were added since. With zero, what is late now is shown at once.
    pub fn late_tags(&self, age: Duration) {
        self.layer.state().delay_tags(age);
    }

    /// `DescribeLoadBalancers` and `DescribeTags` show balancers that are deleted from now on for so long after, as they
    /// were, and none can be made of their names. Other calls do not find them. With zero, what is shown so now is gone at
    /// once.
    pub fn linger(&self, age: Duration) {
        self.layer.state().linger(age);
    }

    /// How long balancers are `provisioning` (200 ms from the start on).
    pub fn provisioning(&self, time: Duration) {
        self.layer.state().times.provisioning = Some(time);
    }

    /// Whether balancers are `provisioning` for as long as it stays so; otherwise 200 ms.
    pub fn keep_provisioning(&self, keep: bool) {
        self.layer.state().times.provisioning = (!keep).then_some(Duration::from_millis(200));
    }

    /// How long a new target is `initial` (200 ms from the start on), and how long one that was deregistered is `draining`
    /// (500 ms from the start on).
    pub fn target_times(&self, initial: Duration, draining: Duration) {
        let mut state = self.layer.state();
        (state.times.initial, state.times.draining) = (initial, draining);
    }

    /// How many items a describe answers at most at once (400 from the start on).
    pub fn page_size(&self, items: usize) {
        self.layer.state().page = items.clamp(1, 400);
    }

    /// Whether the subnets have IPv6 ranges (they have): without them there is no dualstack.
    pub fn ipv6(&self, has: bool) {
        self.layer.state().ipv6 = has;
    }

    /// Makes an access key known, or a known one expired or good.
    pub fn access_key(&self, id: &str, expired: bool) {
        self.layer.state().keys.insert(id.to_owned(), expired);
    }
}
