//! What the tests of behaviour share: the operator as a process with the rights that we ship, a namespace for each
//! test, and short words for the objects that it makes.
#![allow(dead_code)] // each test uses some of it

mod bed;
mod kills;
mod look;
mod operator;
mod searched;
mod tools;

pub use bed::*;
#[allow(unused_imports)] // as above
pub use kills::{Trap, at_each_write, killed_at, struck};
#[allow(unused_imports)] // as above
pub use look::{CHAT, READY, bot_api, changes, condition, taken, texts};
pub use operator::{Operator, Settings};
#[allow(unused_imports)] // as above
pub use searched::TOKEN;
#[allow(unused_imports)] // as above
pub use tools::tool;
