//! Journal of the requests to a server, in order: tests wait for entries, the demo prints them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

type Listener<T> = Box<dyn Fn(&T) + Send + Sync>;

/// A growing list that can be awaited.
pub(crate) struct Journal<T> {
    items: Mutex<Vec<Arc<T>>>,
    listeners: Mutex<Vec<Listener<T>>>,
    length: watch::Sender<usize>,
}

impl<T> Default for Journal<T> {
    fn default() -> Self {
        Self {
            items: Mutex::default(),
            listeners: Mutex::default(),
            length: watch::Sender::new(0),
        }
    }
}

impl<T> Journal<T> {
    pub(crate) fn push(&self, item: T) -> Arc<T> {
        let item = Arc::new(item);
        // The lock is held while the item is added, so that listeners see the order of the list.
        let listeners = lock(&self.listeners);
        let length = {
            let mut items = lock(&self.items);
            items.push(item.clone());
            items.len()
        };
        for listener in listeners.iter() {
            listener(&item);
        }
        self.length.send_replace(length);
        item
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.items).clone()
    }

    pub(crate) fn clear(&self) {
        lock(&self.items).clear();
        self.length.send_replace(0);
    }

    pub(crate) fn listen(&self, listener: impl Fn(&T) + Send + Sync + 'static) {
        lock(&self.listeners).push(Box::new(listener));
    }

    /// Returns all items once `enough` accepts them; fails after `deadline`.
    pub(crate) async fn wait_for(
        &self,
        deadline: Duration,
        mut enough: impl FnMut(&[Arc<T>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<T>>> {
        let mut length = self.length.subscribe();
        let waiting = async {
            loop {
                length.borrow_and_update();
                let items = self.all();
                if enough(&items) || length.changed().await.is_err() {
                    return items;
                }
            }
        };
        tokio::time::timeout(deadline, waiting)
            .await
            .with_context(|| format!("not seen within {deadline:?}; {} arrived", self.all().len()))
    }
}

/// Locks a mutex even if another test's predicate panicked: the guarded value is consistent between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
