//! The status of a `ConfigMapSync`, from what came of a pass. Pure.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::config_map_sync::ConfigMapSyncStatus;
use qm_core::conditions::{self, READY};
use qm_runtime::Key;

/// The reason of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every copy is as its source.
    Synced,
    /// `spec.suspend` is true.
    Suspended,
    /// The spec says what cannot be done; an older CRD let it in.
    SpecInvalid,
    /// It concerns namespaces that this operator does not serve.
    OutOfScope,
    /// Nobody is let write there through the operator.
    DestinationRefused,
    /// What is copied would come back to its source.
    Loop,
    /// There is no source.
    SourceNotFound,
    /// The operator lacks a right.
    Forbidden,
    /// There is no such namespace.
    NamespaceNotFound,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The copy is being deleted.
    Terminating,
    /// What has the copy's name is not ours.
    Conflict,
    /// The namespace's quota is used up.
    QuotaExceeded,
    /// The apiserver does not take the copy.
    Refused,
    /// The apiserver could not do it; it is tried again.
    WriteFailed,
}

impl Reason {
    /// Whether no watch tells when it is over.
    pub fn is_asked_for_again(self) -> bool {
        matches!(self, Self::Forbidden | Self::QuotaExceeded | Self::Refused)
    }

    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Synced,
        Self::Suspended,
        Self::SpecInvalid,
        Self::OutOfScope,
        Self::DestinationRefused,
        Self::Loop,
        Self::SourceNotFound,
        Self::Forbidden,
        Self::NamespaceNotFound,
        Self::NamespaceTerminating,
        Self::Terminating,
        Self::Conflict,
        Self::QuotaExceeded,
        Self::Refused,
        Self::WriteFailed,
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How many destinations, or links of a loop, a message names.
const NAMED: usize = 5;

/// Why one copy is not as its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snag {
    /// The destination's namespace.
    pub namespace: String,
    /// The condition's reason.
    pub reason: Reason,
    /// What is wrong, and what to do.
    pub words: String,
}

/// What came of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Nothing was copied, for one reason.
    Blocked {
        /// The condition's reason.
        reason: Reason,
        /// What is wrong, and what to do.
        words: String,
    },
    /// The copies were looked at.
    Copied {
        /// How many there are to be.
        destinations: usize,
        /// How many of them are as the source.
        right: usize,
        /// How many that are not wanted any more stay until what takes their place is there.
        stay: usize,
        /// What is not as it is wanted: such a copy, or one that is to go.
        snags: Vec<Snag>,
    },
}

/// The status after a pass that wrote something at `wrote`, if it did.
pub fn status(
    before: Option<&ConfigMapSyncStatus>,
    came: &Came,
    wrote: Option<Time>,
    generation: i64,
    now: Time,
) -> ConfigMapSyncStatus {
    let mut status = before.cloned().unwrap_or_default();
    status.observed_generation = Some(generation);
    if wrote.is_some() {
        status.last_sync_time = wrote;
    }
    // A process that was killed before it could say so wrote them.
    if matches!(came, Came::Copied { right: 1.., .. }) {
        status.last_sync_time.get_or_insert_with(|| now.clone());
    }
    let (well, reason, message) = match came {
        Came::Blocked { reason, words } => {
            (status.destinations, status.copies) = (None, None);
            (false, *reason, words.clone())
        }
        Came::Copied {
            destinations,
            right,
            stay,
            snags,
        } => {
            let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
            status.destinations = Some(count(*destinations));
            status.copies = Some(count(*right));
            match snags.first() {
                None => (true, Reason::Synced, well(*destinations)),
                Some(first) => (
                    false,
                    first.reason,
                    ill(*destinations, *right, *stay, snags),
                ),
            }
        }
    };
    conditions::set(
        &mut status.conditions,
        READY,
        well,
        &reason.to_string(),
        &message,
        generation,
        now,
    );
    status
}

/// Returns the message of [`Reason::Loop`] about `sync`. Names the `links` of its own namespace only: whoever reads its
/// status need not know what other tenants have.
pub fn closed_loop(sync: &Key, links: &[Key]) -> String {
    let (own, others): (Vec<_>, Vec<_>) = links
        .iter()
        .partition(|link| link.namespace == sync.namespace);
    let mut parts: Vec<_> = own
        .iter()
        .take(NAMED)
        .map(|link| format!("ConfigMapSync {link}"))
        .collect();
    if own.len() > NAMED {
        parts.push(format!(
            "{} more of namespace {}",
            own.len() - NAMED,
            sync.namespace
        ));
    }
    match others.len() {
        0 => {}
        1 => parts.push("a ConfigMapSync of another namespace".into()),
        several => parts.push(format!("{several} ConfigMapSyncs of other namespaces")),
    }
    let through = match parts.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => parts.concat(),
    };
    let fix = if own.is_empty() {
        "change the source or the destination of this one"
    } else {
        "delete one of these, or this one"
    };
    format!("what this copies would come back to its source through {through}: {fix}")
}

fn well(destinations: usize) -> String {
    match destinations {
        0 => "no namespace is to have a copy".into(),
        1 => "the copy is as its source".into(),
        several => format!("{several} copies are as their source"),
    }
}

/// Each with its own words, as far as there is room.
fn ill(destinations: usize, right: usize, stay: usize, snags: &[Snag]) -> String {
    let named = snags
        .iter()
        .take(NAMED)
        .map(|snag| format!("{}: {}: {}", snag.namespace, snag.reason, snag.words));
    let named = named.collect::<Vec<_>>().join("; ");
    let rest = snags.len().saturating_sub(NAMED);
    let more = if rest == 0 {
        String::new()
    } else {
        format!("; and {rest} more")
    };
    let stay = match stay {
        0 => String::new(),
        1 => "; one from before stays until what takes its place is there".into(),
        several => format!("; {several} from before stay until what takes their place is there"),
    };
    format!("{right} of {destinations} copies are as the source; {named}{more}{stay}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn snag(namespace: &str) -> Snag {
        Snag {
            namespace: namespace.into(),
            reason: Reason::QuotaExceeded,
            words: "full".into(),
        }
    }

    #[test]
    fn the_time_moves_with_a_write_only() {
        let came = Came::Copied {
            destinations: 2,
            right: 2,
            stay: 0,
            snags: vec![],
        };
        let first = status(None, &came, Some(at(1)), 1, at(1));
        assert_eq!(
            (first.last_sync_time.clone(), first.copies),
            (Some(at(1)), Some(2))
        );
        assert_eq!(status(Some(&first), &came, None, 1, at(2)), first);
        let blocked = Came::Blocked {
            reason: Reason::SourceNotFound,
            words: "no".into(),
        };
        let second = status(Some(&first), &blocked, None, 1, at(3));
        assert_eq!(
            (second.last_sync_time, second.copies),
            (Some(at(1)), None),
            "how they stand is not known"
        );
        assert_eq!(second.conditions[0].status, "False");
    }

    #[test]
    fn copies_that_nobody_said_to_have_written_have_a_time() {
        let came = |right| Came::Copied {
            destinations: 2,
            right,
            stay: 0,
            snags: vec![],
        };
        assert_eq!(status(None, &came(0), None, 1, at(1)).last_sync_time, None);
        let first = status(None, &came(2), None, 1, at(1));
        assert_eq!(first.last_sync_time, Some(at(1)));
        assert_eq!(
            status(Some(&first), &came(2), None, 1, at(2)).last_sync_time,
            Some(at(1))
        );
    }

    #[test]
    fn a_loop_names_all_links_of_its_own_namespace_and_counts_the_others() {
        let words = |links: &[(&str, &str)]| {
            let links: Vec<_> = links
                .iter()
                .map(|(namespace, name)| Key::new(namespace, name))
                .collect();
            closed_loop(&Key::new("shop", "c"), &links).replace(
                "what this copies would come back to its source through ",
                "",
            )
        };
        assert_eq!(
            words(&[("shop", "a"), ("shop", "b")]),
            "ConfigMapSync shop/a and ConfigMapSync shop/b: delete one of these, or this one"
        );
        assert_eq!(
            words(&[("secret", "x"), ("shop", "a"), ("hidden", "y")]),
            "ConfigMapSync shop/a and 2 ConfigMapSyncs of other namespaces: delete one of these, or this one"
        );
        assert_eq!(
            words(&[("secret", "x")]),
            "a ConfigMapSync of another namespace: change the source or the destination of this one"
        );
        let many: Vec<_> = (0..2000)
            .map(|number| ("shop", format!("{number:0>253}")))
            .collect();
        let many: Vec<_> = many
            .iter()
            .map(|(namespace, name)| (*namespace, &**name))
            .collect();
        let words = words(&many);
        assert!(
            words.contains(" and 1995 more of namespace shop: ") && words.len() < 2000,
            "{words}"
        );
    }

    #[test]
    fn the_condition_names_those_that_are_not_served() {
        let came = Came::Copied {
            destinations: 3,
            right: 2,
            stay: 0,
            snags: vec![snag("b")],
        };
        let condition = &status(None, &came, None, 1, at(1)).conditions[0];
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "QuotaExceeded")
        );
        assert_eq!(
            condition.message,
            "2 of 3 copies are as the source; b: QuotaExceeded: full"
        );
        let many: Vec<_> = (0..200).map(|number| snag(&format!("n{number}"))).collect();
        let came = Came::Copied {
            destinations: 200,
            right: 0,
            stay: 2,
            snags: many,
        };
        let condition = &status(None, &came, None, 1, at(1)).conditions[0];
        assert!(
            condition
                .message
                .contains("n4: QuotaExceeded: full; and 195 more; 2 from before stay"),
            "{}",
            condition.message
        );
    }
}
