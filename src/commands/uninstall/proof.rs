//! `--without-operator`: proves that the operator has stopped, and that no other operator's objects lose their
//! finalizers.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use qm_runtime::ObjectKey;
use tokio::time::{Instant, sleep};

use crate::cli::commands::UninstallArgs;
use crate::commands::RETRY_INTERVAL;
use crate::commands::operator_state::{LeaseVersion, other_leases};

/// Time in which a standby acquires a released Lease.
const HANDOVER: Duration = Duration::from_secs(5);
const UNKNOWN: &str = "cannot tell whether the operator is running, and --without-operator is safe only once it has stopped";

/// Fails unless the operator has certainly stopped. Returns its expired Lease, if there is one, and notes for the user.
pub(super) async fn prove_gone(
    client: &Client,
    args: &UninstallArgs,
) -> anyhow::Result<(Option<LeaseVersion>, Vec<String>)> {
    let key = args.lease.key();
    let read = async || LeaseVersion::read(client, &key).await;
    let expired = expired_lease(&key, read).await?;
    let others = match other_leases(client, &key).await {
        Ok(leases) if leases.is_empty() => None,
        Ok(leases) => {
            let leases = leases.iter().map(|key| format!("Lease {key}"));
            let leases = leases.collect::<Vec<_>>().join(", ");
            Some(format!("another operator is running ({leases})"))
        }
        Err(error) => Some(format!(
            "this command cannot tell whether another operator is running ({error})"
        )),
    };
    if let Some(refusal) = refusal(expired.is_some(), others.as_deref(), args) {
        anyhow::bail!(refusal);
    }
    let why = match &expired {
        Some(lease) => lease.why_gone(),
        None => "the Lease does not exist".into(),
    };
    let mut notes = vec![format!("The operator is not running (Lease {key}): {why}.")];
    notes.extend(others.map(|others| {
        format!("Note: {others}. Make sure that the list above has none of its objects.")
    }));
    Ok((expired, notes))
}

/// Fails if the operator runs again, because the operator then removes its finalizers itself.
pub(super) async fn ensure_still_gone(
    client: &Client,
    key: &ObjectKey,
    expired: Option<&LeaseVersion>,
) -> anyhow::Result<()> {
    match LeaseVersion::read(client, key).await? {
        // The Lease may be deleted after the operator.
        None => Ok(()),
        lease if lease.as_ref() == expired => Ok(()),
        Some(lease) => anyhow::bail!(is_running(&lease.holder, key)),
    }
}

/// Reads the Lease until it has not changed for its duration, by this machine's clock alone. Returns `None` if there is
/// no Lease.
async fn expired_lease(
    key: &ObjectKey,
    read: impl AsyncFn() -> anyhow::Result<Option<LeaseVersion>>,
) -> anyhow::Result<Option<LeaseVersion>> {
    let Some(mut lease) = read().await.context(UNKNOWN)? else {
        return Ok(None);
    };
    let mut since = Instant::now();
    loop {
        let is_held = !lease.holder.is_empty();
        let handover = if is_held { Duration::ZERO } else { HANDOVER };
        if since.elapsed() > lease.duration + handover {
            return Ok(Some(lease));
        }
        sleep(RETRY_INTERVAL).await;
        match read().await.context(UNKNOWN)? {
            None => return Ok(None),
            Some(next) if next == lease => {}
            Some(next) if next.holder.is_empty() => (lease, since) = (next, Instant::now()),
            Some(next) => anyhow::bail!(is_running(&next.holder, key)),
        }
    }
}

fn is_running(holder: &str, key: &ObjectKey) -> String {
    let why = match holder {
        "" => format!("Lease {key} has just been released"),
        _ => format!("{holder} holds Lease {key}"),
    };
    format!(
        "the operator is running ({why}) and removes its finalizers itself: omit --without-operator, or stop the operator \
         first"
    )
}

/// Returns why the flags do not prove enough: the operator may use another Lease, or some objects may belong to another
/// operator, which `others` describes. Pure.
fn refusal(has_lease: bool, others: Option<&str>, args: &UninstallArgs) -> Option<String> {
    let lease = args.lease.key();
    if !has_lease && args.lease.explicit_namespace().is_none() {
        return Some(format!(
            "{UNKNOWN}: Lease {lease} does not exist, but the operator may run in another namespace. If the operator has \
             stopped, name the namespace in which it ran: --operator-namespace=NAMESPACE (and --leader-election-id=NAME, if its \
             Lease had another name)"
        ));
    }
    let others = others?;
    if !has_lease && args.lease.explicit_name().is_none() {
        return Some(format!(
            "{UNKNOWN}: Lease {lease} does not exist, but {others}. To confirm that the stopped operator is a different one, \
             also name its Lease: --leader-election-id=NAME"
        ));
    }
    args.scope.namespace().is_none().then(|| {
        format!(
            "{others}, and without -n this command would also remove that operator's finalizers: run the command with \
             -n NAMESPACE for each namespace of the stopped operator"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::super::target::tests::args;
    use super::*;

    /// The result of reads from this second on.
    type Read = (u64, Result<Option<(&'static str, i64)>, &'static str>);

    #[rstest]
    #[case::is_not_renewed(&[(0, Ok(Some(("a", 5))))], 9, Ok(Some("a")))]
    #[case::is_renewed(&[(0, Ok(Some(("a", 5)))), (8, Ok(Some(("a", 6))))], 8, Err("the operator is running (a holds Lease ops/id)"))]
    #[case::is_held_by_nobody(&[(0, Ok(Some(("", 5))))], 14, Ok(Some("")))]
    #[case::is_handed_over(&[(0, Ok(Some(("", 5)))), (13, Ok(Some(("b", 6))))], 13, Err("the operator is running (b holds"))]
    #[case::is_released(&[(0, Ok(Some(("a", 5)))), (8, Ok(Some(("", 6))))], 22, Ok(Some("")))]
    #[case::is_absent(&[(0, Ok(None))], 0, Ok(None))]
    #[case::is_deleted(&[(0, Ok(Some(("a", 5)))), (8, Ok(None))], 8, Ok(None))]
    #[case::cannot_be_read(&[(0, Err("no answer"))], 0, Err("once it has stopped: no answer"))]
    #[tokio::test(start_paused = true)]
    async fn lease_expires_if_it_stays_the_same(
        #[case] reads: &[Read],
        #[case] seconds: u64,
        #[case] expected: Result<Option<&str>, &str>,
    ) {
        let start = Instant::now();
        let read = async || {
            let now = start.elapsed().as_secs();
            let mut past = reads.iter().rev();
            let (_, read) = past.find(|(second, _)| *second <= now).unwrap();
            let lease = (*read).map_err(anyhow::Error::msg)?;
            Ok(lease.map(|(holder, renewed)| LeaseVersion::for_test(holder, 9, renewed)))
        };
        let came = expired_lease(&ObjectKey::new("ops", "id"), read).await;
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(seconds) && took < Duration::from_secs(seconds + 2));
        match (came, expected) {
            (Ok(lease), Ok(holder)) => assert_eq!(lease.map(|it| it.holder).as_deref(), holder),
            (Err(error), Err(text)) => assert!(format!("{error:#}").contains(text), "{error:#}"),
            (came, _) => panic!("{came:?}"),
        }
    }

    const OPS: &str = "--operator-namespace=ops";
    const TEAM: &str = "--leader-election-id=team";
    const OTHER: Option<&str> = Some("another operator is running (Lease b/c)");

    #[rstest]
    #[case::expired(true, None, &[], None)]
    #[case::missing_where_it_ran(false, None, &[OPS], None)]
    #[case::missing_at_a_guess(false, None, &[], Some("--operator-namespace=NAMESPACE"))]
    #[case::missing_in_no_namespace(false, None, &["--operator-namespace="], Some("--operator-namespace=NAMESPACE"))]
    #[case::missing_by_its_name(false, None, &[TEAM], Some("--operator-namespace=NAMESPACE"))]
    #[case::expired_beside_another(true, OTHER, &[OPS], Some("(Lease b/c), and without -n this command would also remove"))]
    #[case::expired_beside_another_elsewhere(true, OTHER, &[OPS, "-n=shop"], None)]
    #[case::missing_and_maybe_the_other(false, OTHER, &[OPS, "-n=shop"], Some("(Lease b/c). To confirm that the stopped operator is a different one"))]
    #[case::missing_and_not_the_other(false, OTHER, &[OPS, TEAM, "-n=shop"], None)]
    #[case::missing_beside_another(false, OTHER, &[OPS, TEAM], Some("would also remove that operator's finalizers"))]
    fn flags_are_refused_unless_they_prove_enough(
        #[case] has_lease: bool,
        #[case] others: Option<&str>,
        #[case] flags: &[&str],
        #[case] expected: Option<&str>,
    ) {
        let refused = refusal(has_lease, others, &args(flags));
        assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
        let refused = refused.unwrap_or_default();
        assert!(refused.contains(expected.unwrap_or_default()), "{refused}");
    }
}
