//! Watches: one adapter between kube's watcher and every index of objects.
//!
//! [`watch_updates`] is kube's watcher, restarted where it would be stuck. A [`ResourceWatch`] runs one for each
//! watched namespace, passes lists and events to an [`Index`], and keeps the [`SyncState`] of the lists. The
//! [`WatchHub`] runs watches that begin and end while the process runs; [`crds`] stops the watch of a kind without its
//! CRD.

mod adapter;
pub mod crds;
mod hub;
pub(crate) mod pace;
mod stream;

pub(crate) use adapter::ObservedIndex;
pub use adapter::{Index, Observer, ResourceName, SyncState, WatchPhase, WatchProblem};
pub(crate) use adapter::{ResourceWatch, WatchCommand};
pub use hub::{NewIndex, WatchHub};
#[cfg(test)]
pub(crate) use stream::tests;
pub use stream::{error_status, watch_object};
