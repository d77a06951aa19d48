//! What gets out of what is left, and when that is no way. Pure.

use super::target::{How, Target};
use crate::cli::commands::LeaseOf;
use crate::commands::lease::{self, Operator};
use crate::controllers::my_ingress;

/// The ways out for all that is left, each once. `namespace`: the only one that was looked at.
pub fn ways_out(
    left: &[Target],
    how: How,
    operator: &Operator,
    namespace: Option<&str>,
    lease: &LeaseOf,
) -> Vec<String> {
    let place = namespace.map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    let id = lease.leader_election_id.as_ref().map_or_else(String::new, |name| format!(" --leader-election-id={name}"));
    let said = lease.said_namespace().map_or_else(String::new, |name| format!(" --operator-namespace={name}"));
    let mut ways = Vec::new();
    if !left.iter().any(Target::needs_operator) {
        return ways;
    }
    let again = "Start it and run this again";
    let alone = "where it is gone for good, take its finalizers away: quartermaster uninstall --without-operator";
    match operator {
        Operator::Runs(_) | Operator::NotYet(_) => {}
        Operator::Stopped(why) => {
            ways.push(format!("The operator does not run: {why}. {again}; or, {alone}{place}{said}{id}"));
        }
        Operator::Absent(why) if said.is_empty() => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, {alone}{place} --operator-namespace=NAMESPACE{id} (the \
             namespace that it ran in)"
        )),
        Operator::Absent(why) => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, {alone}{place}{said}{id}"
        )),
        Operator::Unread(why) | Operator::Unknown(why) => ways.push(format!(
            "Whether the operator runs is not known: {why}. {again}; or, as somebody who may read its Lease, and {alone}{place}{said}{id}"
        )),
    }
    let balancers = left.iter().any(|target| target.needs_operator() && target.is(my_ingress::NAME));
    if balancers && !how.keep_children {
        ways.push(format!(
            "To leave load balancers in AWS as they are, and what everything else made too: quartermaster uninstall \
             --keep-children{place}{said}{id}"
        ));
    }
    ways
}

/// Why `--without-operator` is refused, if it is: only one that is known not to run is done without.
pub fn refusal(operator: &Operator, lease: &LeaseOf) -> Option<String> {
    let path = lease::path(lease);
    let unknown = "--without-operator is for an operator that is known to be gone, and whether it runs is not known";
    match operator {
        Operator::Stopped(_) => None,
        Operator::Runs(holder) | Operator::NotYet(holder) => Some(format!(
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

    use rstest::rstest;

    use super::super::target::tests::{PLAIN, target};
    use super::*;

    #[test]
    fn who_may_act_and_what_was_said_makes_the_way_out() {
        let held = target("myingress", "gd");
        let (runs, stopped) = (Operator::Runs("a".into()), Operator::Stopped("why".into()));
        let ways = |target: &Target, operator: &Operator, namespace| {
            ways_out(std::slice::from_ref(target), PLAIN, operator, namespace, &LeaseOf::default()).join("\n")
        };
        assert!(!ways(&held, &runs, None).contains("--without-operator"));
        assert!(ways(&held, &runs, None).contains("--keep-children"));
        assert!(ways(&held, &stopped, Some("shop")).contains("--without-operator -n shop\n"));
        assert!(!ways(&target("configmapsync", "gd"), &stopped, None).contains("--keep-children"));
        assert_eq!(ways(&target("myapp", "d"), &stopped, None), "");

        // What was said of the Lease is said again; what was not is asked for.
        let absent = Operator::Absent("why".into());
        assert!(ways(&held, &absent, None).contains("--without-operator --operator-namespace=NAMESPACE (the"));
        let of = lease_of(Some("ops"), Some("id"));
        let ways = ways_out(&[held], PLAIN, &absent, Some("shop"), &of);
        assert!(
            ways[0].ends_with("--without-operator -n shop --operator-namespace=ops --leader-election-id=id"),
            "{ways:?}"
        );
        assert!(
            ways[1].ends_with("--keep-children -n shop --operator-namespace=ops --leader-election-id=id"),
            "{ways:?}"
        );
    }

    fn lease_of(namespace: Option<&str>, name: Option<&str>) -> LeaseOf {
        LeaseOf { operator_namespace: namespace.map(Into::into), leader_election_id: name.map(Into::into) }
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
        let came = refusal(&operator, &lease_of(namespace, None));
        assert_eq!(came.is_some(), why.is_some(), "{came:?}");
        assert!(came.unwrap_or_default().contains(why.unwrap_or_default()));
    }
}
