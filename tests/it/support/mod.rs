//! Helpers of the tests of behaviour: the operator as a process with the shipped permissions, a namespace for each
//! test, and short functions that create objects.
#![allow(dead_code)] // each test uses only some helpers

mod bed;
mod kills;
pub mod mask;
mod observe;
mod operator;
mod peak;
mod secret_search;
mod tools;

pub use bed::*;
#[allow(unused_imports)] // as above
pub use kills::{Trap, kill_at_each_write, kill_at_write, restart_during};
#[allow(unused_imports)] // as above
pub use observe::{CHAT, READY, accepted, bot_api, changes, condition, texts};
#[allow(unused_imports)] // as above
pub use operator::{Operator, Settings, series};
#[allow(unused_imports)] // as above
pub use peak::{LIMIT, Peak};

pub use secret_search::TOKEN;
#[allow(unused_imports)] // as above
pub use tools::tool;
