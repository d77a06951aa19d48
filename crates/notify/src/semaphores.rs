//! Semaphores by key, such as one of each namespace.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use tokio::sync::Semaphore;

/// Returns the semaphore of `key`. A new one has this number of permits, and lasts as long as a task waits for a permit
/// or holds one.
pub(crate) fn semaphore_of<K: Eq + Hash>(
    semaphores: &mut HashMap<K, Weak<Semaphore>>,
    key: K,
    permits: usize,
) -> Arc<Semaphore> {
    if let Some(known) = semaphores.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    if semaphores.len() == semaphores.capacity() {
        // Only before the map would grow, so that a request does not visit those of all others.
        semaphores.retain(|_, semaphore| semaphore.strong_count() > 0);
    }
    let semaphore = Arc::new(Semaphore::new(permits));
    semaphores.insert(key, Arc::downgrade(&semaphore));
    semaphore
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semaphores_without_tasks_do_not_accumulate() {
        let mut semaphores = HashMap::new();
        let used = semaphore_of(&mut semaphores, 0, 2);
        for key in 1..1000 {
            semaphore_of(&mut semaphores, key, 2);
        }
        assert!(semaphores.len() < 10, "{}", semaphores.len());
        let again = semaphore_of(&mut semaphores, 0, 2);
        assert!(Arc::ptr_eq(&used, &again));
        assert_eq!(again.available_permits(), 2);
    }
}
