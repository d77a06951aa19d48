//! The server, as tests use and control it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;

use super::account::{ACCESS_KEY, REGION};
use super::faults::{self, Fault, Injection, Intervention, On, Times};
use super::gate::{Door, Gate, Point};
use super::layer::{Call, Layer};
use super::moto::Moto;
use super::network::Network;
use super::state::State;
use crate::serve::{Server, serve_http};

/// The fake AWS server. Clones share the server, which stops with the last clone.
#[derive(Clone)]
pub struct Aws {
    pub(super) layer: Arc<Layer>,
    server: Arc<Server>,
}

impl Aws {
    /// Starts on a free port of 127.0.0.1, with the network of [`super::SUBNETS`] and [`super::OTHER_SUBNETS`].
    /// Installs moto first if necessary.
    ///
    /// # Errors
    ///
    /// moto cannot be installed, or does not start.
    pub async fn start() -> Result<Self> {
        let moto = Moto::start().await?;
        let (moto, network) = crate::serve::runtime()?
            .spawn(async move { Network::create(&moto).await.map(|network| (moto, network)) })
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

    /// Returns the endpoint.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Returns the environment of a process that uses this server. Remove the variables of [`super::FOREIGN`] from the
    /// process.
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
            ("AWS_DEFAULT_REGION", REGION.to_owned()), // read by other SDKs and the CLI
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

    /// Returns all finished calls of the `ELBv2` API, in the order in which they finished.
    pub fn calls(&self) -> Vec<Arc<Call>> {
        self.layer.journal.all()
    }

    /// Returns all calls once `enough` accepts them; fails after `deadline`.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Call>]) -> bool,
    ) -> Result<Vec<Arc<Call>>> {
        self.layer.journal.wait_for(deadline, enough).await
    }

    /// Calls `listener` for each later call when the call finishes.
    pub fn on_call(&self, listener: impl Fn(&Call) + Send + Sync + 'static) {
        self.layer.journal.listen(listener);
    }

    /// Forgets the calls so far.
    pub fn clear(&self) {
        self.layer.journal.clear();
    }

    /// Injects a fault into matching calls. Where several injections match, each counts the call; they apply in the order
    /// of injection, until one ends the call.
    pub fn fault(&self, on: On, times: Times, fault: Fault) -> Injection {
        self.layer
            .plan
            .inject(on, times, Intervention::Fault(fault))
    }

    /// Holds the call with this number (from 1), counted from now among matching calls.
    pub fn gate(&self, on: On, number: u64, point: Point) -> Gate {
        let door = Arc::new(Door::new());
        let injection = self.layer.plan.inject(
            on,
            Times::Nth(number),
            Intervention::Gate(point, door.clone()),
        );
        Gate::new(door, injection)
    }

    /// Sets whether every call gets 503.
    pub fn down(&self, down: bool) {
        self.layer.down.store(down, Ordering::SeqCst);
    }

    /// Removes every fault, gate, [`Self::hide_new`], [`Self::late_tags`] and [`Self::linger`], and ends an outage.
    pub fn behave(&self) {
        faults::clear(&self.layer.plan);
        self.down(false);
        self.hide_new(Duration::ZERO);
        self.late_tags(Duration::ZERO);
        self.linger(Duration::ZERO);
    }

    /// Hides load balancers, target groups and listeners created from now on from describes and `DescribeTags`, until
    /// they reach this age. Zero shows hidden resources immediately.
    pub fn hide_new(&self, age: Duration) {
        self.layer.state().hide(age);
    }

    /// Hides the tags of load balancers, target groups and listeners created from now on from `DescribeTags`, until
    /// they reach this age; tags added meanwhile are hidden too. Zero shows hidden tags immediately.
    pub fn late_tags(&self, age: Duration) {
        self.layer.state().delay_tags(age);
    }

    /// Keeps load balancers deleted from now on in `DescribeLoadBalancers` and `DescribeTags` for this long, unchanged.
    /// Their names stay taken meanwhile, and other calls do not find them. Zero removes lingering load balancers
    /// immediately.
    pub fn linger(&self, age: Duration) {
        self.layer.state().linger(age);
    }

    /// Sets how long load balancers are `provisioning` (initially 200 ms).
    pub fn provisioning(&self, time: Duration) {
        self.layer.state().times.provisioning = Some(time);
    }

    /// Keeps load balancers `provisioning` while `keep` is true; otherwise they are `provisioning` for 200 ms.
    pub fn keep_provisioning(&self, keep: bool) {
        self.layer.state().times.provisioning = (!keep).then_some(Duration::from_millis(200));
    }

    /// Sets how long a new target is `initial` (initially 200 ms), and how long a deregistered one is `draining`
    /// (initially 500 ms).
    pub fn target_times(&self, initial: Duration, draining: Duration) {
        let mut state = self.layer.state();
        (state.times.initial, state.times.draining) = (initial, draining);
    }

    /// Sets the largest number of items in one describe (initially 400).
    pub fn page_size(&self, items: usize) {
        self.layer.state().page = items.clamp(1, 400);
    }

    /// Sets whether the subnets have IPv6 ranges (initially true); without them dualstack is rejected.
    pub fn ipv6(&self, has: bool) {
        self.layer.state().ipv6 = has;
    }

    /// Adds an access key, or sets whether a known key is expired.
    pub fn access_key(&self, id: &str, expired: bool) {
        self.layer.state().keys.insert(id.to_owned(), expired);
    }
}
