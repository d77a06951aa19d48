#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;

fn foreign(part: Part) -> Problem {
    Problem::Conflict {
        parts: vec![part],
        words: format!("{part:?}"),
    }
}

fn failed() -> Problem {
    Problem::Unwritten(Trouble::Going("b".into()))
}

fn refused(words: &str) -> Problem {
    Problem::Rejected(words.into())
}

#[rstest]
#[case::the_first(failed(), foreign(Part::Service), "Unwritten: b")]
#[case::before_what_is_refused(failed(), refused("a"), "Unwritten: b")]
#[case::after_what_is_refused(refused("a"), failed(), "Unwritten: b")]
#[case::both_refused(refused("a"), refused("c"), "Rejected: a")]
#[case::both_foreign(
    foreign(Part::Deployment),
    foreign(Part::Service),
    "Conflict: Deployment; Service"
)]
fn what_is_refused_hides_nothing_that_is_tried_again(
    #[case] first: Problem,
    #[case] next: Problem,
    #[case] told: &str,
) {
    let problem = first.or(next);
    assert!(
        format!("{}: {problem}", problem.reason()).starts_with(told),
        "{problem:?}"
    );
}
