//! x
#[derive(Clone, Debug)]
pub struct Hook;
