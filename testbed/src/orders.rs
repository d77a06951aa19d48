//! What is ordered to be done to requests on their way: to which of them, how often, and how often it was.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

use crate::journal::lock;

/// To which of the matching requests, counted from the moment of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// All of them.
    Always,
    /// The first so many.
    First(u64),
    /// Only this one; the first is 1.
    Nth(u64),
}

impl Times {
    fn includes(self, count: u64) -> bool {
        match self {
            Self::Always => true,
            Self::First(first) => count <= first,
            Self::Nth(nth) => count == nth,
        }
    }
}

/// An order that stands until it is taken back, by hand: dropping this does nothing.
#[derive(Clone)]
pub struct Order {
    hits: watch::Sender<u64>,
    take_back: Arc<dyn Fn() + Send + Sync>,
}

impl Order {
    pub(crate) fn new(
        hits: watch::Sender<u64>,
        take_back: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            hits,
            take_back: Arc::new(take_back),
        }
    }

    /// How often it was carried out.
    pub fn hits(&self) -> u64 {
        *self.hits.borrow()
    }

    /// Waits until it was carried out so often; an error after `deadline`.
    pub async fn wait_for_hits(&self, hits: u64, deadline: Duration) -> anyhow::Result<()> {
        let mut seen = self.hits.subscribe();
        tokio::time::timeout(deadline, seen.wait_for(|seen| *seen >= hits))
            .await
            .with_context(|| format!("{} of {hits} hits within {deadline:?}", self.hits()))??;
        Ok(())
    }

    /// Takes it back: what a frozen watch held comes at once.
    pub fn take_back(&self) {
        (self.take_back)();
    }
}

/// All that is ordered: what is to match, and what is done.
pub(crate) struct Orders<M, D>(Mutex<Standing<M, D>>);

struct Standing<M, D> {
    last_id: u64,
    orders: Vec<Ordered<M, D>>,
}

struct Ordered<M, D> {
    id: u64,
    matching: M,
    times: Times,
    seen: u64,
    deed: D,
    hits: watch::Sender<u64>,
}

impl<M, D> Default for Orders<M, D> {
    fn default() -> Self {
        Self(Mutex::new(Standing {
            last_id: 0,
            orders: Vec::new(),
        }))
    }
}

impl<M: Send + 'static, D: Clone + Send + 'static> Orders<M, D> {
    pub(crate) fn order(self: &Arc<Self>, matching: M, times: Times, deed: D) -> Order {
        let hits = watch::Sender::new(0);
        let mut standing = lock(&self.0);
        standing.last_id += 1;
        let id = standing.last_id;
        standing.orders.push(Ordered {
            id,
            matching,
            times,
            seen: 0,
            deed,
            hits: hits.clone(),
        });
        let all = self.clone();
        Order::new(hits, move || {
            lock(&all.0).orders.retain(|order| order.id != id);
        })
    }

    /// Takes all back; what would have been done.
    pub(crate) fn clear(&self) -> Vec<D> {
        let orders = std::mem::take(&mut lock(&self.0).orders);
        orders.into_iter().map(|order| order.deed).collect()
    }

    /// What is done to a request that `matches`, in the order in which it was ordered.
    pub(crate) fn decide(&self, matches: impl Fn(&M) -> bool) -> Vec<D> {
        let mut deeds = Vec::new();
        for order in lock(&self.0)
            .orders
            .iter_mut()
            .filter(|order| matches(&order.matching))
        {
            order.seen += 1;
            if order.times.includes(order.seen) {
                order.hits.send_modify(|hits| *hits += 1);
                deeds.push(order.deed.clone());
            }
        }
        deeds
    }
}
