//! Resources that describes show, which may differ from the stored ones: new resources appear late, or with late tags,
//! and deleted load balancers linger.

use std::time::{Duration, Instant};

use super::state::{Deleted, Shown, State, Tags};
use super::xml::Element;

impl State {
    /// Records a new resource with these tags.
    pub(super) fn record(&mut self, arn: &str, tags: Tags) {
        let now = Instant::now();
        let shown = Shown {
            from: now + self.times.hidden,
            tags_from: now + self.times.late_tags,
        };
        self.shown.insert(arn.to_owned(), shown);
        self.set_tags(arn, tags);
    }

    /// Returns whether describes show the resource.
    pub(super) fn is_shown(&self, arn: &str) -> bool {
        let shown = self
            .shown
            .get(arn)
            .or_else(|| self.lingering(arn).map(|deleted| &deleted.shown));
        shown.is_some_and(|shown| shown.from <= Instant::now())
    }

    /// Returns the tags that `DescribeTags` shows.
    pub(super) fn shown_tags(&self, arn: &str) -> Tags {
        let (shown, tags) = match self.lingering(arn) {
            Some(deleted) => (Some(&deleted.shown), Some(&deleted.tags)),
            None => (self.shown.get(arn), self.tags.get(arn)),
        };
        let late = shown.is_none_or(|shown| shown.tags_from > Instant::now());
        tags.filter(|_| !late).cloned().unwrap_or_default()
    }

    /// Sets the age until which new resources are hidden. Zero also shows resources that are hidden now.
    pub(super) fn hide(&mut self, age: Duration) {
        self.times.hidden = age;
        if age.is_zero() {
            let now = Instant::now();
            self.all_shown()
                .for_each(|shown| shown.from = shown.from.min(now));
        }
    }

    /// Sets the age until which tags of new resources are hidden. Zero also shows tags that are hidden now.
    pub(super) fn delay_tags(&mut self, age: Duration) {
        self.times.late_tags = age;
        if age.is_zero() {
            let now = Instant::now();
            self.all_shown()
                .for_each(|shown| shown.tags_from = shown.tags_from.min(now));
        }
    }

    fn all_shown(&mut self) -> impl Iterator<Item = &mut Shown> {
        self.shown
            .values_mut()
            .chain(self.deleted.values_mut().map(|deleted| &mut deleted.shown))
    }

    /// Lets a deleted load balancer with this description linger.
    pub(super) fn start_lingering(&mut self, arn: &str, description: Element) {
        let now = Instant::now();
        self.deleted.retain(|_, deleted| deleted.until > now);
        let Some(shown) = self.shown.get(arn).copied() else {
            return;
        };
        let name = description.get("LoadBalancerName").to_owned();
        let tags = self.tags.get(arn).cloned().unwrap_or_default();
        let until = now + self.times.linger;
        self.deleted.insert(
            arn.to_owned(),
            Deleted {
                name,
                description,
                tags,
                shown,
                until,
            },
        );
    }

    /// Returns the deleted load balancer, if it lingers.
    fn lingering(&self, arn: &str) -> Option<&Deleted> {
        self.deleted
            .get(arn)
            .filter(|deleted| deleted.until > Instant::now())
    }

    /// Returns all lingering load balancers by ARN.
    pub(super) fn all_lingering(&self) -> impl Iterator<Item = (&String, &Deleted)> {
        let now = Instant::now();
        self.deleted
            .iter()
            .filter(move |(_, deleted)| deleted.until > now)
    }

    /// Sets how long deleted load balancers linger. Zero also removes those that linger now.
    pub(super) fn linger(&mut self, age: Duration) {
        self.times.linger = age;
        if age.is_zero() {
            self.deleted.clear();
        }
    }
}
