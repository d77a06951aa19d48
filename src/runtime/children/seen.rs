//! What is kept of children: whether each is as it is wanted, and what its owner reports of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::runtime::Key;

/// What is kept of the children of one kind.
pub struct Seen<S> {
    state: Mutex<State<S>>,
    listed: watch::Sender<bool>,
}

struct State<S> {
    known: HashMap<Key, Known<S>>,
    /// Looked for, and not ours.
    absent: HashSet<Key>,
    /// Not listed yet.
    unlisted: BTreeSet<Option<String>>,
    /// What the lists that are under way have shown.
    listing: HashMap<Option<String>, HashSet<Key>>,
}

/// What is kept of a child.
#[derive(Clone)]
pub struct Known<S> {
    pub uid: String,
    pub version: u64,
    pub owner: Option<Key>,
    /// Of what we say about it: it changes when somebody else takes a field of ours.
    pub print: u64,
    pub going: bool,
    /// Digest of what it was last found to be as wanted.
    pub fine: Option<String>,
    pub report: S,
}

/// What is known of a child without asking.
pub enum Look<S> {
    /// There is none that has our mark.
    Unknown,
    /// It is being deleted.
    Going,
    /// It is as wanted.
    Fine(S),
    /// It is there.
    Other,
}

impl<S: Clone + PartialEq> Seen<S> {
    /// Nothing is known, and these places are to be listed.
    pub fn new(unlisted: BTreeSet<Option<String>>) -> Self {
        let (known, absent, listing) = (HashMap::new(), HashSet::new(), HashMap::new());
        Self { state: Mutex::new(State { known, absent, unlisted, listing }), listed: watch::channel(false).0 }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all has been listed, as far as that is let in.
    pub async fn ready(&self) {
        // The sender is ours.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// What is known of a child that is wanted as `digest` says.
    pub fn look(&self, key: &Key, digest: &str) -> Look<S> {
        match self.state().known.get(key) {
            None => Look::Unknown,
            Some(known) if known.going => Look::Going,
            Some(known) if known.fine.as_deref() == Some(digest) => Look::Fine(known.report.clone()),
            Some(_) => Look::Other,
        }
    }

    /// What its owner reports of a child.
    pub fn report(&self, key: &Key) -> Option<S> {
        self.state().known.get(key).map(|known| known.report.clone())
    }

    /// Whether it is known that no child of this name is ours; `unmarked`: also none without our label.
    pub fn is_absent(&self, key: &Key, unmarked: bool) -> bool {
        let state = self.state();
        !state.known.contains_key(key) && (!unmarked || state.absent.contains(key))
    }

    /// It was looked for, and is not there or not ours.
    pub fn absent(&self, key: &Key) {
        let mut state = self.state();
        state.known.remove(key);
        state.absent.insert(key.clone());
    }

    /// Nobody will ask for it again.
    pub fn forget(&self, key: &Key) {
        self.state().absent.remove(key);
    }

    /// We wrote or read it so: what is known of it is at least as new.
    pub fn wrote(&self, key: &Key, known: Known<S>) {
        let mut state = self.state();
        state.absent.remove(key);
        if state.known.get(key).is_none_or(|newer| newer.uid != known.uid || newer.version <= known.version) {
            state.known.insert(key.clone(), known);
        }
    }

    /// A watch shows it so; whose news that is.
    pub fn shown(&self, key: Key, mut known: Known<S>) -> Option<Key> {
        let mut state = self.state();
        for shard in [None, Some(key.namespace.to_string())] {
            if let Some(shown) = state.listing.get_mut(&shard) {
                shown.insert(key.clone());
            }
        }
        state.absent.remove(&key);
        let news = match state.known.get(&key) {
            Some(before) if before.uid == known.uid => {
                if known.version <= before.version {
                    return None;
                }
                let same = before.print == known.print && before.going == known.going;
                if same {
                    known.fine.clone_from(&before.fine);
                }
                !same || before.report != known.report
            }
            _ => true,
        };
        let owner = known.owner.clone().filter(|_| news);
        state.known.insert(key, known);
        owner
    }

    /// A watch shows that it is gone; whose news that is.
    pub fn gone(&self, key: &Key, uid: &str) -> Option<Key> {
        let mut state = self.state();
        if state.known.get(key)?.uid != uid {
            return None;
        }
        state.known.remove(key)?.owner
    }

    /// A place begins to be listed.
    pub fn listing(&self, shard: Option<&str>) {
        self.state().listing.insert(shard.map(str::to_owned), HashSet::new());
    }

    /// A place has been listed: what was not shown is gone, which is news to these.
    pub fn listed(&self, shard: Option<&str>) -> Vec<Key> {
        let mut state = self.state();
        let shown = state.listing.remove(&shard.map(str::to_owned)).unwrap_or_default();
        let here = |key: &Key| shard.is_none_or(|namespace| *key.namespace == *namespace);
        let missing: Vec<_> = state.known.keys().filter(|key| here(key) && !shown.contains(*key)).cloned().collect();
        let owners = missing.iter().filter_map(|key| state.known.remove(key)?.owner).collect();
        drop(state);
        self.settled(shard);
        owners
    }

    /// The list of a place is whole, or refused.
    pub fn settled(&self, shard: Option<&str>) {
        let mut state = self.state();
        state.unlisted.remove(&shard.map(str::to_owned));
        if state.unlisted.is_empty() {
            self.listed.send_if_modified(|listed| !std::mem::replace(listed, true));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("shop", name)
    }

    fn child(version: u64, print: u64, report: u8) -> Known<u8> {
        Known { uid: "1".into(), version, owner: Some(key("owner")), print, going: false, fine: None, report }
    }

    #[test]
    fn our_own_write_is_no_news_and_a_lost_field_is() {
        let seen = Seen::new([None].into());
        let web = key("web");
        seen.wrote(&web, Known { fine: Some("d".into()), ..child(5, 0, 1) });
        for version in [4, 5, 6] {
            assert_eq!(seen.shown(web.clone(), child(version, 0, 1)), None);
        }
        assert!(matches!(seen.look(&web, "d"), Look::Fine(1)));
        assert!(matches!(seen.look(&web, "other"), Look::Other));
        assert_eq!(seen.shown(web.clone(), child(7, 0, 2)), Some(key("owner")), "what is reported has changed");
        assert!(matches!(seen.look(&web, "d"), Look::Fine(2)));
        assert_eq!(seen.shown(web.clone(), child(8, 1, 2)), Some(key("owner")));
        assert!(matches!(seen.look(&web, "d"), Look::Other));
        assert_eq!(seen.gone(&web, "2"), None, "another one of its name");
        assert_eq!(seen.gone(&web, "1"), Some(key("owner")));
        assert!(matches!(seen.look(&web, "d"), Look::Unknown));
    }

    #[test]
    fn one_that_is_made_again_or_goes_is_news() {
        let seen = Seen::new([None].into());
        let web = key("web");
        seen.wrote(&web, Known { fine: Some("d".into()), ..child(5, 0, 1) });
        assert_eq!(seen.shown(web.clone(), Known { going: true, ..child(6, 0, 1) }), Some(key("owner")));
        assert!(matches!(seen.look(&web, "d"), Look::Going));
        assert_eq!(seen.shown(web.clone(), Known { uid: "2".into(), ..child(7, 0, 1) }), Some(key("owner")));
        assert!(matches!(seen.look(&web, "d"), Look::Other));
    }

    #[test]
    fn what_is_absent_is_asked_for_once() {
        let seen = Seen::<u8>::new([None].into());
        let web = key("web");
        assert!(seen.is_absent(&web, false) && !seen.is_absent(&web, true));
        seen.absent(&web);
        assert!(seen.is_absent(&web, true));
        seen.shown(web.clone(), child(1, 0, 1));
        assert!(!seen.is_absent(&web, false));
        seen.gone(&web, "1");
        assert!(!seen.is_absent(&web, true), "it may be there without its label");
    }

    #[tokio::test]
    async fn what_a_list_does_not_show_is_gone() {
        let seen = Seen::new([Some("shop".into()), Some("far".into())].into());
        seen.listing(Some("shop"));
        seen.shown(key("web"), child(5, 0, 1));
        seen.shown(key("db"), child(5, 0, 1));
        assert_eq!(seen.listed(Some("shop")), []);
        assert!(!*seen.listed.borrow(), "another namespace is not listed yet");
        seen.listing(Some("far"));
        seen.listed(Some("far"));
        seen.ready().await;
        seen.listing(Some("shop"));
        seen.shown(key("db"), child(5, 0, 1));
        assert_eq!(seen.listed(Some("shop")), [key("owner")]);
        assert!(matches!(seen.look(&key("web"), "d"), Look::Unknown));
        assert!(matches!(seen.look(&key("db"), "d"), Look::Other));
    }
}
