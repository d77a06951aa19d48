//! Changes of the history: pure functions without client and clock.
//!
//! [`next`] computes one reconcile. It appends the observed changes ([`ObservationBuffer`]) as Pending entries
//! ([`record()`]), marks entries with their outcomes from the queue ([`mark`]), accounts for suspended time
//! (`set_suspended`) and enforces the limits (`apply_limits`). The queue gets the Pending entries ([`pending`]).

mod buffer;
mod expiry;
mod limits;
mod next;
mod outcome;
mod previous;
mod size;
mod value;

pub use buffer::{ObservationBuffer, Observations};
#[cfg(test)]
pub(crate) use expiry::set_suspended;
pub(crate) use expiry::waiting_since;
pub use expiry::{Ages, Now, expired, waited};
#[cfg(test)]
pub(crate) use limits::apply_limits;
pub use limits::{HistoryLimits, ListLimits};
pub use next::{HistoryChanges, Inputs, NewestState, next, observation, record};
pub use outcome::{DeliveryOutcome, FailedEntries, mark};
pub use previous::{newest, newest_recorded, pending};
pub use value::{Details, ObservedField, ObservedValue};

#[cfg(test)]
mod tests;
