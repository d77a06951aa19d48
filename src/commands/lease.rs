//! Whether the operator runs, as far as its Lease tells.

use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::{Api, Client};
use qm_runtime::Key;
use tokio::time::{Instant, timeout};

use super::objects::pages;
use super::paper::{span, stamp};
use super::{is, words};

/// By how much this machine's clock may differ from the cluster's.
const SKEW: Duration = Duration::from_secs(30);
/// How long the next one may take to hold a Lease that was given back.
const TAKEOVER: Duration = Duration::from_secs(5);
/// How long another operator's Lease is looked at: one that is good for longer counts as renewed.
const LONGEST: Duration = Duration::from_secs(30);
/// Who writes an operator's Lease, as its `managedFields` have it: what its `User-Agent` begins with.
const WRITER: &str = "quartermaster";

/// What is known of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// It runs: who acts.
    Runs(String),
    /// It runs, or did until then: who holds its Lease, and has not renewed it in time. Their clock may be another one.
    Late(String, Timestamp),
    /// Nobody acts, and why that is known.
    Stopped(String),
    /// Who holds its Lease, of which it is not known yet whether they renew it; empty: nobody, so far.
    NotYet(String),
    /// There is no Lease, in words.
    Absent(String),
    /// Its Lease could not be read this time, and why.
    Unread(String),
    /// Nobody knows, and why.
    Unknown(String),
}

impl Operator {
    /// It is known to run.
    pub fn runs(&self) -> bool {
        matches!(self, Self::Runs(_) | Self::Late(..))
    }

    /// It may well run.
    pub fn may_run(&self) -> bool {
        self.runs() || matches!(self, Self::NotYet(_) | Self::Unread(_))
    }
}

/// What a Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// There is one.
    Lease {
        /// Who holds it; empty: nobody.
        holder: String,
        /// How long it is good for after a renewal.
        duration: Duration,
        /// When it was renewed.
        renewed: Option<Timestamp>,
    },
    /// There is none, in words.
    Absent(String),
    /// It could not be read this time, and why.
    Failed(String),
    /// It may not be read, and why.
    Forbidden(String),
}

/// Reads the Lease.
pub async fn read(client: &Client, lease: &Key) -> Said {
    let api: Api<Lease> = Api::namespaced(client.clone(), &lease.namespace);
    let spec = match api.get_opt(&lease.name).await {
        Ok(Some(lease)) => lease.spec.unwrap_or_default(),
        Ok(None) => {
            return Said::Absent(format!(
                "there is no Lease {lease}: it runs without --leader-elect, elsewhere (--operator-namespace, --leader-election-id), \
                 or not at all"
            ));
        }
        Err(error) if is(&error, 403) => {
            return Said::Forbidden(format!("its Lease may not be read: {}", words(&error)));
        }
        Err(error) => {
            return Said::Failed(format!("its Lease could not be read: {}", words(&error)));
        }
    };
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or(1);
    Said::Lease {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds),
        renewed: spec.renew_time.map(|time| time.0),
    }
}

/// What one look tells, by this machine's clock.
pub fn at_a_glance(said: &Said, now: Timestamp) -> Operator {
    let (holder, duration, renewed) = match said {
        Said::Absent(why) => return Operator::Absent(why.clone()),
        Said::Failed(why) => return Operator::Unread(why.clone()),
        Said::Forbidden(why) => return Operator::Unknown(why.clone()),
        Said::Lease { holder, .. } if holder.is_empty() => return nobody(),
        Said::Lease {
            holder,
            duration,
            renewed,
        } => (holder, *duration, renewed),
    };
    let Some(renewed) = *renewed else {
        return Operator::Runs(holder.clone());
    };
    let since = Duration::try_from(now.duration_since(renewed)).unwrap_or_default();
    if since > duration + SKEW {
        Operator::Stopped(silent(holder, renewed))
    } else if since > duration {
        Operator::Late(holder.clone(), renewed)
    } else {
        Operator::Runs(holder.clone())
    }
}

/// That somebody who holds it does nothing with it.
pub fn silent(holder: &str, renewed: Timestamp) -> String {
    format!(
        "{holder} has not renewed its Lease since {}",
        stamp(renewed)
    )
}

fn nobody() -> Operator {
    Operator::Stopped("nobody holds its Lease".into())
}

/// Several looks at a Lease: whether it moves needs no clock that agrees with the cluster's.
#[derive(Default)]
pub struct Looks {
    last: Option<(Said, Instant)>,
    moved: bool,
}

impl Looks {
    /// What this look tells, after those before.
    pub fn look(&mut self, said: Said, now: Instant) -> Operator {
        // It tells nothing about those before and after it.
        if let Said::Failed(why) = said {
            return Operator::Unread(why);
        }
        let since = match &self.last {
            Some((last, at)) if *last == said => now.duration_since(*at),
            last => {
                self.moved = last.is_some();
                self.last = Some((said.clone(), now));
                Duration::ZERO
            }
        };
        match said {
            Said::Absent(why) => Operator::Absent(why),
            Said::Failed(why) => Operator::Unread(why),
            Said::Forbidden(why) => Operator::Unknown(why),
            // It is so at every handover.
            Said::Lease {
                holder, duration, ..
            } if holder.is_empty() => {
                if since > duration + TAKEOVER {
                    nobody()
                } else {
                    Operator::NotYet(holder)
                }
            }
            // It may have been silent for long before the first look.
            Said::Lease {
                holder,
                duration,
                renewed,
            } if since > duration => Operator::Stopped(match renewed {
                Some(renewed) => silent(&holder, renewed),
                None => format!("{holder} has not renewed its Lease for {}", span(since)),
            }),
            Said::Lease { holder, .. } if self.moved => Operator::Runs(holder),
            Said::Lease { holder, .. } => Operator::NotYet(holder),
        }
    }

    /// Looks until it is known whether somebody renews it: little longer than the Lease is good.
    pub async fn settle(&mut self, client: &Client, lease: &Key, every: Duration) -> Operator {
        loop {
            match self.look(read(client, lease).await, Instant::now()) {
                Operator::NotYet(_) => tokio::time::sleep(every).await,
                known => return known,
            }
        }
    }
}

/// The Leases but this one that other operators renew, or may, wherever they are.
///
/// # Errors
/// They could not be listed, in words.
pub async fn others(client: &Client, but: &Key, every: Duration) -> Result<Vec<Key>, String> {
    let all: Api<PartialObjectMeta<Lease>> = Api::all(client.clone());
    let other = |lease: PartialObjectMeta<Lease>| {
        Some(Key::of(&lease)).filter(|key| is_an_operators(&lease.metadata) && key != but)
    };
    let leases = pages(&all, other).await.map_err(|error| words(&error))?;
    let may_run =
        async |lease: Key| match timeout(LONGEST, Looks::default().settle(client, &lease, every))
            .await
        {
            Ok(Operator::Stopped(_) | Operator::Absent(_)) => None,
            _ => Some(lease),
        };
    Ok(join_all(leases.into_iter().flatten().map(may_run))
        .await
        .into_iter()
        .flatten()
        .collect())
}

/// Whether an operator wrote this Lease, whatever it is called.
fn is_an_operators(metadata: &ObjectMeta) -> bool {
    metadata
        .managed_fields
        .iter()
        .flatten()
        .any(|entry| entry.manager.as_deref() == Some(WRITER))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn lease(holder: &str, renewed: i64) -> Said {
        let renewed = Some(Timestamp::from_second(renewed).unwrap());
        Said::Lease {
            holder: holder.into(),
            duration: Duration::from_secs(9),
            renewed,
        }
    }

    #[test]
    fn one_look_allows_for_clocks_that_differ() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(
            at_a_glance(&lease("a", 100), at(109)),
            Operator::Runs("a".into())
        );
        assert_eq!(
            at_a_glance(&lease("a", 100), at(80)),
            Operator::Runs("a".into()),
            "their clock is ahead"
        );
        for late in [110, 139] {
            assert_eq!(
                at_a_glance(&lease("a", 100), at(late)),
                Operator::Late("a".into(), at(100))
            );
        }
        let why =
            Operator::Stopped("a has not renewed its Lease since 1970-01-01 00:01:40Z".into());
        assert_eq!(at_a_glance(&lease("a", 100), at(140)), why);
        assert!(matches!(
            at_a_glance(&lease("", 100), at(100)),
            Operator::Stopped(_)
        ));
        assert!(matches!(
            at_a_glance(&Said::Absent("x".into()), at(1)),
            Operator::Absent(_)
        ));
        assert!(matches!(
            at_a_glance(&Said::Forbidden("x".into()), at(1)),
            Operator::Unknown(_)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn several_looks_need_no_clock_of_the_cluster() {
        let mut looks = Looks::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(matches!(
            looks.look(lease("a", 5), after(0)),
            Operator::NotYet(_)
        ));
        assert!(matches!(
            looks.look(lease("a", 5), after(9)),
            Operator::NotYet(_)
        ));
        // However long they looked: since when is the Lease's word.
        let why =
            Operator::Stopped("a has not renewed its Lease since 1970-01-01 00:00:05Z".into());
        assert_eq!(looks.look(lease("a", 5), after(10)), why);
        assert!(looks.look(lease("b", 6), after(11)).runs());
        assert!(looks.look(lease("b", 6), after(19)).runs());
        assert!(matches!(
            looks.look(lease("b", 6), after(21)),
            Operator::Stopped(_)
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn that_nobody_holds_it_at_a_handover_proves_nothing() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let vacant = || Operator::NotYet(String::new());
        let mut looks = Looks::default();
        assert_eq!(looks.look(lease("", 5), after(0)), vacant());
        assert_eq!(looks.look(lease("", 5), after(14)), vacant());
        assert!(looks.look(lease("b", 6), after(14)).runs());
        // Nor is it a holder that nobody is seen to come after one who was.
        assert_eq!(looks.look(lease("", 7), after(15)), vacant());
        assert_eq!(looks.look(lease("", 7), after(29)), vacant());
        assert_eq!(looks.look(lease("", 7), after(30)), nobody());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_failed_tells_nothing() {
        let failed = || Said::Failed("no answer".into());
        let mut looks = Looks::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(looks.look(failed(), after(0)).may_run());
        assert!(matches!(
            looks.look(lease("a", 5), after(1)),
            Operator::NotYet(_)
        ));
        assert!(looks.look(failed(), after(2)).may_run());
        // That it could be read again is no renewal, and no beginning.
        assert!(matches!(
            looks.look(lease("a", 5), after(3)),
            Operator::NotYet(_)
        ));
        assert!(matches!(
            looks.look(lease("a", 5), after(11)),
            Operator::Stopped(_)
        ));
        assert!(
            !looks
                .look(Said::Forbidden("no".into()), after(12))
                .may_run()
        );
        assert!(!looks.look(Said::Absent("none".into()), after(13)).may_run());
    }
}
