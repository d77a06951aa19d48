//! What describes show, which is not always what there is: what is new is not shown yet.

use std::time::{Duration, Instant};

use super::state::{State, Tags};

/// From when on describes show what was made.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    from: Instant,
}

impl State {
    /// Something new is there, with these tags.
    pub(super) fn made(&mut self, arn: &str, tags: Tags) {
        let now = Instant::now();
        self.shown.insert(arn.to_owned(), Shown { from: now + self.times.hidden });
        self.set_tags(arn, tags);
    }

    /// Whether describes show it by now.
    pub(super) fn shows(&self, arn: &str) -> bool {
        self.shown.get(arn).is_some_and(|shown| shown.from <= Instant::now())
    }

    /// Zero: also what is hidden now is shown.
    pub(super) fn hide(&mut self, age: Duration) {
        self.times.hidden = age;
        if age.is_zero() {
            let now = Instant::now();
            self.shown.values_mut().for_each(|shown| shown.from = shown.from.min(now));
        }
    }
}
