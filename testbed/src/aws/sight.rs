//! What describes show, which is not always what there is: what is new is not shown yet, or without its tags.

use std::time::{Duration, Instant};

use super::state::{State, Tags};

/// From when on describes show what was made.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    from: Instant,
    tags_from: Instant,
}

impl State {
    /// Something new is there, with these tags.
    pub(super) fn made(&mut self, arn: &str, tags: Tags) {
        let now = Instant::now();
        let shown = Shown { from: now + self.times.hidden, tags_from: now + self.times.late_tags };
        self.shown.insert(arn.to_owned(), shown);
        self.set_tags(arn, tags);
    }

    /// Whether describes show it by now.
    pub(super) fn shows(&self, arn: &str) -> bool {
        self.shown.get(arn).is_some_and(|shown| shown.from <= Instant::now())
    }

    /// The tags that `DescribeTags` shows.
    pub(super) fn shown_tags(&self, arn: &str) -> Tags {
        let late = self.shown.get(arn).is_none_or(|shown| shown.tags_from > Instant::now());
        self.tags.get(arn).filter(|_| !late).cloned().unwrap_or_default()
    }

    /// Zero: also what is hidden now is shown.
    pub(super) fn hide(&mut self, age: Duration) {
        self.times.hidden = age;
        if age.is_zero() {
            let now = Instant::now();
            self.shown.values_mut().for_each(|shown| shown.from = shown.from.min(now));
        }
    }
    /// Zero: also the tags that are late now are shown.
    pub(super) fn delay_tags(&mut self, age: Duration) {
        self.times.late_tags = age;
        if age.is_zero() {
            let now = Instant::now();
            self.shown.values_mut().for_each(|shown| shown.tags_from = shown.tags_from.min(now));
        }
    }
}
