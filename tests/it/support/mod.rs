//! Helpers of the tests of behaviour: the operator as a process with the shipped permissions, a namespace for each
//! test, and short functions that create objects.
#![allow(dead_code)] // each test uses only some helpers

mod bed;
mod kills;
mod large;
pub mod mask;
mod observe;
mod operator;
mod secret_search;
mod tools;

pub use bed::*;
#[allow(unused_imports)] // as above
pub use kills::{Trap, kill_at_each_write, kill_at_write, restart_during};
#[allow(unused_imports)] // as above
pub use large::{LIMIT, Peak, create_large, delete_large, only_large_test, patch_large};
#[allow(unused_imports)] // as above
pub use observe::{CHAT, READY, accepted, bot_api, changes, condition, texts};
#[allow(unused_imports)] // as above
pub use operator::{Operator, Settings, series};

pub use secret_search::TOKEN;
#[allow(unused_imports)] // as above
pub use tools::tool;
