//! What gets out of what is left, and when that is no way. Pure.

use qm_runtime::Key;

use super::target::Target;
use crate::cli::LeaseOf;
use crate::cli::commands::UninstallArgs;
use crate::commands::lease::{self, Operator};
use crate::controllers::my_ingress;

const UNKNOWN: &str = "--without-operator is for an operator that is known to be gone, and whether it runs is not known";

/// The ways out for all that is left, each once.
pub fn ways_out(left: &[Target], operator: &Operator, args: &UninstallArgs) -> Vec<String> {
    let UninstallArgs { scope, lease, .. } = args;
    let place = scope
        .namespace()
        .map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    let id = lease
        .said_name()
        .map_or_else(String::new, |_| lease.name_flag());
    let said = lease
        .said_namespace()
        .map_or_else(String::new, |name| format!(" --operator-namespace={name}"));
    let mut ways = Vec::new();
    if !left.iter().any(Target::needs_operator) {
        return ways;
    }
    let again = "Start it and run this again";
    let uninstall = |flags: String| {
        scope
            .cluster
            .command(&format!("quartermaster uninstall {flags}"))
    };
    let alone = |said: &str| {
        let command = uninstall(format!("--without-operator{place}{said}"));
        format!("where it is gone for good, take its finalizers away: {command}")
    };
    match operator {
        Operator::Runs(_) | Operator::Late(..) | Operator::NotYet(_) => {}
        Operator::Stopped(why) => {
            // Its Lease was seen there, whoever said where to look.
            let seen = format!(" --operator-namespace={}{}", lease.key().namespace, lease.name_flag());
            ways.push(format!("The operator does not run: {why}. {again}; or, {}", alone(&seen)));
        }
        Operator::Absent(why) if said.is_empty() => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, {} (the namespace that it ran in)",
            alone(&format!(" --operator-namespace=NAMESPACE{id}"))
        )),
        Operator::Absent(why) => {
            let said = format!("{said}{id}");
            ways.push(format!("Whether the operator runs is not known: {why}. {again}; or, {}", alone(&said)));
        }
        Operator::Unread(why) | Operator::Unknown(why) => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, as somebody who may read its Lease, and {}",
            alone(&format!("{said}{id}"))
        )),
    }
    let balancers = left
        .iter()
        .any(|target| target.needs_operator() && target.is(my_ingress::NAME));
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
        Operator::Late(holder, renewed) => Some(format!(
            "The operator may have stopped: {}. {waits}.",
            lease::silent(holder, *renewed)
        )),
        Operator::Stopped(why) => Some(format!("The operator does not run: {why}. {waits}.")),
        Operator::Absent(why) | Operator::Unread(why) | Operator::Unknown(why) => Some(format!(
            "Whether the operator runs is not known: {why}. {waits}."
        )),
    }
}

/// Why `--without-operator` is refused whatever else runs, if it is: only an operator that is known not to run is done without.
pub fn unproved(operator: &Operator, lease: &LeaseOf) -> Option<String> {
    let path = lease.key();
    match operator {
        Operator::Stopped(_) => None,
        Operator::NotYet(holder) if holder.is_empty() => Some(format!(
            "{UNKNOWN}: Lease {path} was given back just now. Run it again"
        )),
        Operator::Runs(holder) | Operator::Late(holder, _) | Operator::NotYet(holder) => {
            Some(format!(
                "the operator runs ({holder} holds Lease {path}), and takes away what is its own: leave --without-operator out, or \
             stop it first"
            ))
        }
        Operator::Absent(_) if lease.said_namespace().is_some() => None,
        Operator::Absent(_) => Some(format!(
            "{UNKNOWN}: there is no Lease {path}, but it may have run elsewhere. Say where it ran, and that there is no Lease counts \
             as its end: --operator-namespace=NAMESPACE (and --leader-election-id=NAME, where it had another one)"
        )),
        Operator::Unread(why) => Some(format!("{UNKNOWN}: {why}. Run it again")),
        Operator::Unknown(why) => Some(format!("{UNKNOWN}: {why}. Run it as somebody who may")),
    }
}

/// Why it is refused beside `others`, the Leases of other operators that run or why these are not known: one of them may be the
/// one that is said to be gone, and nobody else's objects are to lose their finalizers.
pub fn beside(
    operator: &Operator,
    others: &Result<Vec<Key>, String>,
    args: &UninstallArgs,
) -> Option<String> {
    let others = match others {
        Ok(others) if others.is_empty() => return None,
        Ok(others) => format!("another operator runs ({})", leases(others)),
        Err(why) => format!("whether another operator runs is not known ({why})"),
    };
    if matches!(operator, Operator::Absent(_)) && args.lease.said_name().is_none() {
        return Some(format!(
            "{UNKNOWN}: there is no Lease {}, but {others}, which may be that one. Say its name, too, and that there is no Lease \
             counts as its end: --leader-election-id=NAME",
            args.lease.key()
        ));
    }
    args.scope.namespace().is_none().then(|| {
        format!(
            "{others}, and its objects would lose their finalizers, too: say -n NAMESPACE, for each namespace of the one that is gone"
        )
    })
}

/// What is to be known of other operators before anything is deleted.
pub fn neighbours(others: &Result<Vec<Key>, String>) -> Option<String> {
    match others {
        Ok(others) if others.is_empty() => None,
        Ok(others) => Some(format!(
            "Another operator runs ({}): what it looks after is not to be among this.",
            leases(others)
        )),
        Err(why) => Some(format!(
            "Whether another operator runs is not known: {why}."
        )),
    }
}

fn leases(keys: &[Key]) -> String {
    keys.iter()
        .map(|key| format!("Lease {key}"))
        .collect::<Vec<_>>()
        .join(", ")
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
        let matches =
            UninstallArgs::augment_args(clap::Command::new("uninstall")).get_matches_from(words);
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
        assert!(
            ways(&held, &absent, &[])
                .contains("--without-operator --operator-namespace=NAMESPACE (the")
        );
        let said = [
            "-n",
            "shop",
            "--operator-namespace=ops",
            "--leader-election-id=id",
            "--context=a b",
        ];
        let ways = ways(&held, &absent, &said);
        let rest = "-n shop --operator-namespace=ops --leader-election-id=id --context='a b'";
        assert!(
            ways.contains(&format!(
                "quartermaster uninstall --without-operator {rest}\n"
            )),
            "{ways}"
        );
        assert!(
            ways.ends_with(&format!("quartermaster uninstall --keep-children {rest}")),
            "{ways}"
        );
    }

    #[rstest]
    #[case::runs(Operator::Runs("me".into()), None)]
    #[case::late(Operator::Late("me".into(), jiff::Timestamp::UNIX_EPOCH), Some("may have stopped: me has not renewed its Lease since 1970-01-01 00:00:00Z"))]
    #[case::stopped(Operator::Stopped("why".into()), Some("The operator does not run: why. "))]
    #[case::without_a_lease(Operator::Absent("why".into()), Some("not known: why. "))]
    #[case::forbidden(Operator::Unknown("why".into()), Some("not known: why. "))]
    fn who_is_asked_knows_whether_anybody_does_the_rest(
        #[case] operator: Operator,
        #[case] words: Option<&str>,
    ) {
        let said = unlikely(&operator);
        assert_eq!(said.is_some(), words.is_some(), "{said:?}");
        assert!(said.unwrap_or_default().contains(words.unwrap_or_default()));
    }

    #[rstest]
    #[case::stopped(Operator::Stopped("x".into()), &[], None)]
    #[case::absent_where_it_ran(Operator::Absent("x".into()), &["--operator-namespace=ops"], None)]
    #[case::absent_where_somebody_guesses(Operator::Absent("x".into()), &[], Some("--operator-namespace=NAMESPACE"))]
    #[case::absent_where_nothing_is_said(Operator::Absent("x".into()), &["--operator-namespace="], Some("--operator-namespace=NAMESPACE"))]
    #[case::of_a_name_alone(Operator::Absent("x".into()), &["--leader-election-id=team"], Some("--operator-namespace=NAMESPACE"))]
    #[case::runs(Operator::Runs("me".into()), &["--operator-namespace=ops"], Some("the operator runs (me holds Lease ops/quartermaster)"))]
    #[case::not_yet(Operator::NotYet("me".into()), &["--operator-namespace=ops"], Some("the operator runs"))]
    #[case::handed_over(Operator::NotYet(String::new()), &["--operator-namespace=ops"], Some("not known: Lease ops/quartermaster was given back just now. Run it again"))]
    #[case::unread(Operator::Unread("no answer".into()), &["--operator-namespace=ops"], Some("not known: no answer"))]
    #[case::forbidden(Operator::Unknown("may not".into()), &["--operator-namespace=ops"], Some("not known: may not"))]
    fn only_an_operator_that_is_known_to_be_gone_is_done_without(
        #[case] operator: Operator,
        #[case] flags: &[&str],
        #[case] why: Option<&str>,
    ) {
        let came = unproved(&operator, &args(flags).lease);
        assert_eq!(came.is_some(), why.is_some(), "{came:?}");
        assert!(came.unwrap_or_default().contains(why.unwrap_or_default()));
    }

    const OPS: &str = "--operator-namespace=ops";
    const TEAM: &str = "--leader-election-id=team";

    #[rstest]
    #[case::everywhere(Operator::Stopped("x".into()), &[OPS], Some("its objects would lose their finalizers, too"))]
    #[case::in_one_namespace(Operator::Stopped("x".into()), &[OPS, "-n=shop"], None)]
    #[case::that_may_be_the_one(Operator::Absent("x".into()), &[OPS, "-n=shop"], Some("--leader-election-id=NAME"))]
    #[case::that_is_said_not_to_be(Operator::Absent("x".into()), &[OPS, TEAM, "-n=shop"], None)]
    #[case::that_is_said_not_to_be(Operator::Absent("x".into()), &[OPS, TEAM], Some("its objects would lose their finalizers, too"))]
    fn beside_another_operator_nothing_is_undone_that_may_be_its_own(
        #[case] gone: Operator,
        #[case] flags: &[&str],
        #[case] why: Option<&str>,
    ) {
        for (others, of) in [
            (Ok(vec![Key::new("b", "c")]), "(Lease b/c)"),
            (Err("you may not".into()), "you may not"),
        ] {
            assert_eq!(unproved(&gone, &args(flags).lease), None);
            let came = beside(&gone, &others, &args(flags));
            assert_eq!(came.is_some(), why.is_some(), "{came:?}");
            if let (Some(came), Some(why)) = (came, why) {
                assert!(came.contains(why) && came.contains(of), "{came}");
            }
            assert!(neighbours(&others).unwrap().contains(of));
        }
        assert_eq!(
            (
                neighbours(&Ok(Vec::new())),
                beside(&gone, &Ok(Vec::new()), &args(flags))
            ),
            (None, None)
        );
    }
}
