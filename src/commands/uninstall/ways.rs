//! What gets out of what is left, and when that is no way. Pure.

use super::target::Target;
use crate::cli::LEASE;
use crate::cli::commands::{LeaseOf, UninstallArgs};
use crate::commands::lease::{self, Operator};
use crate::controllers::my_ingress;

/// The ways out for all that is left, each once.
pub fn ways_out(left: &[Target], operator: &Operator, args: &UninstallArgs) -> Vec<String> {
    let UninstallArgs { scope, lease, .. } = args;
    let place = scope.namespace().map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    let id = Some(lease.name()).filter(|name| *name != LEASE);
    let id = id.map_or_else(String::new, |name| format!(" --leader-election-id={name}"));
    let said = lease.said_namespace().map_or_else(String::new, |name| format!(" --operator-namespace={name}"));
    let mut ways = Vec::new();
    if !left.iter().any(Target::needs_operator) {
        return ways;
    }
    let again = "Start it and run this again";
    let uninstall = |flags: String| scope.cluster.command(&format!("quartermaster uninstall {flags}"));
    let alone = |said: &str| {
        let command = uninstall(format!("--without-operator{place}{said}{id}"));
        format!("where it is gone for good, take its finalizers away: {command}")
    };
    match operator {
        Operator::Runs(_) | Operator::Late(..) | Operator::NotYet(_) => {}
        Operator::Stopped(why) => {
            // Its Lease was seen there, whoever said where to look.
            let seen = format!(" --operator-namespace={}", lease.namespace());
            ways.push(format!("The operator does not run: {why}. {again}; or, {}", alone(&seen)));
        }
        Operator::Absent(why) if said.is_empty() => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, {} (the namespace that it ran in)",
            alone(" --operator-namespace=NAMESPACE")
        )),
        Operator::Absent(why) => {
            ways.push(format!("Whether the operator runs is not known: {why}. {again}; or, {}", alone(&said)));
        }
        Operator::Unread(why) | Operator::Unknown(why) => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, as somebody who may read its Lease, and {}",
            alone(&said)
        )),
    }
    let balancers = left.iter().any(|target| target.needs_operator() && target.is(my_ingress::NAME));
    if balancers && !args.keep_children {
        ways.push(format!(
            "To leave load balancers in AWS as they are, and what everything else made too: {}",
            uninstall(format!("--keep-children{place}{said}{id}"))
        ));
    }
    ways
}

/// What is to be known before anything is deleted, where the operator may not be there to do its part.
pub fn unlikely(operator: &Operator) -> Option<String> {
    let waits = "What only it takes away waits for it";
    match operator {
        Operator::Runs(_) | Operator::NotYet(_) => None,
        Operator::Late(holder, renewed) => {
            Some(format!("The operator may have stopped: {}. {waits}.", lease::silent(holder, *renewed)))
        }
        Operator::Stopped(why) => Some(format!("The operator does not run: {why}. {waits}.")),
        Operator::Absent(why) | Operator::Unread(why) | Operator::Unknown(why) => {
            Some(format!("Whether the operator runs is not known: {why}. {waits}."))
        }
    }
}

/// Why `--without-operator` is refused, if it is: only one that is known not to run is done without.
pub fn refusal(operator: &Operator, lease: &LeaseOf) -> Option<String> {
    let path = lease::path(lease);
    let unknown = "--without-operator is for an operator that is known to be gone, and whether it runs is not known";
    match operator {
        Operator::Stopped(_) => None,
        Operator::Runs(holder) | Operator::Late(holder, _) | Operator::NotYet(holder) => Some(format!(
            "the operator runs ({holder} holds Lease {path}), and takes away what is its own: leave --without-operator out, or \
             stop it first"
        )),
        Operator::Absent(_) if lease.said_namespace().is_some() => None,
        Operator::Absent(_) => Some(format!(
            "{unknown}: there is no Lease {path}, but it may have run elsewhere. Say where it ran, and that there is no Lease counts \
             as its end: --operator-namespace=NAMESPACE (and --leader-election-id=NAME, where it had another one)"
        )),
        Operator::Unread(why) => Some(format!("{unknown}: {why}. Run it again")),
        Operator::Unknown(why) => Some(format!("{unknown}: {why}. Run it as somebody who may")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::{Args as _, FromArgMatches as _};
    use rstest::rstest;

    use super::super::target::tests::target;
    use super::*;

    fn args(flags: &[&str]) -> UninstallArgs {
        let words = ["uninstall"].iter().chain(flags);
        let matches = UninstallArgs::augment_args(clap::Command::new("uninstall")).get_matches_from(words);
        UninstallArgs::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn who_may_act_and_what_was_said_makes_the_way_out() {
        let held = target("myingress", "gd");
        let (runs, stopped) = (Operator::Runs("a".into()), Operator::Stopped("why".into()));
        let ways = |target: &Target, operator: &Operator, flags: &[&str]| {
            ways_out(std::slice::from_ref(target), operator, &args(flags)).join("\n")
        };
        assert!(!ways(&held, &runs, &[]).contains("--without-operator"));
        assert!(ways(&held, &runs, &[]).contains("--keep-children"));
        let seen = "--without-operator -n shop --operator-namespace=quartermaster-system\n";
        assert!(ways(&held, &stopped, &["-n", "shop"]).contains(seen));
        assert!(!ways(&target("configmapsync", "gd"), &stopped, &[]).contains("--keep-children"));
        assert_eq!(ways(&target("myapp", "d"), &stopped, &[]), "");

        // What was said of Lease and cluster is said again; what was not is asked for.
        let absent = Operator::Absent("why".into());
        assert!(ways(&held, &absent, &[]).contains("--without-operator --operator-namespace=NAMESPACE (the"));
        let said = ["-n", "shop", "--operator-namespace=ops", "--leader-election-id=id", "--context=a b"];
        let ways = ways(&held, &absent, &said);
        let rest = "-n shop --operator-namespace=ops --leader-election-id=id --context='a b'";
        assert!(ways.contains(&format!("quartermaster uninstall --without-operator {rest}\n")), "{ways}");
        assert!(ways.ends_with(&format!("quartermaster uninstall --keep-children {rest}")), "{ways}");
    }

    #[rstest]
    #[case::runs(Operator::Runs("me".into()), None)]
    #[case::late(Operator::Late("me".into(), jiff::Timestamp::UNIX_EPOCH), Some("may have stopped: me has not renewed its Lease since 1970-01-01 00:00:00Z"))]
    #[case::stopped(Operator::Stopped("why".into()), Some("The operator does not run: why. "))]
    #[case::without_a_lease(Operator::Absent("why".into()), Some("not known: why. "))]
    #[case::forbidden(Operator::Unknown("why".into()), Some("not known: why. "))]
    fn who_is_asked_knows_whether_anybody_does_the_rest(#[case] operator: Operator, #[case] words: Option<&str>) {
        let said = unlikely(&operator);
        assert_eq!(said.is_some(), words.is_some(), "{said:?}");
        assert!(said.unwrap_or_default().contains(words.unwrap_or_default()));
    }

    #[rstest]
    #[case::stopped(Operator::Stopped("x".into()), None, None)]
    #[case::absent_where_it_ran(Operator::Absent("x".into()), Some("ops"), None)]
    #[case::absent_where_somebody_guesses(Operator::Absent("x".into()), None, Some("--operator-namespace=NAMESPACE"))]
    #[case::absent_where_nothing_is_said(Operator::Absent("x".into()), Some(""), Some("--operator-namespace=NAMESPACE"))]
    #[case::runs(Operator::Runs("me".into()), Some("ops"), Some("the operator runs (me holds Lease ops/quartermaster)"))]
    #[case::not_yet(Operator::NotYet("me".into()), Some("ops"), Some("the operator runs"))]
    #[case::unread(Operator::Unread("no answer".into()), Some("ops"), Some("not known: no answer"))]
    #[case::forbidden(Operator::Unknown("may not".into()), Some("ops"), Some("not known: may not"))]
    fn only_an_operator_that_is_known_to_be_gone_is_done_without(
        #[case] operator: Operator,
        #[case] namespace: Option<&str>,
        #[case] why: Option<&str>,
    ) {
        let flag = namespace.map(|name| format!("--operator-namespace={name}"));
        let came = refusal(&operator, &args(&flag.iter().map(String::as_str).collect::<Vec<_>>()).lease);
        assert_eq!(came.is_some(), why.is_some(), "{came:?}");
        assert!(came.unwrap_or_default().contains(why.unwrap_or_default()));
    }
}
