//! x
#[derive(Clone, Debug)]
pub struct Chat;
