//! Targets of the fuzzer (`make fuzz`), which the tests call with the inputs of `fuzz/corpus`. Those of messages and answers
//! are in `qm_notify::fuzz`.

#![allow(clippy::missing_panics_doc)] // a target panics if the parser is wrong

use std::time::Instant;

use jiff::SignedDuration;

use crate::cli::parse;
pub use crate::controllers::tracked_field::fuzz::json_path;

/// Parses the duration of a flag, and `Retry-After`.
pub fn duration(input: &str) {
    match parse::duration(input) {
        Ok(duration) => {
            assert!(!duration.is_zero());
            assert!(Instant::now().checked_add(duration).is_some());
            let signed = SignedDuration::try_from(duration).unwrap_or_default();
            for text in [format!("{signed:#}"), signed.to_string()] {
                assert_eq!(parse::duration(&text), Ok(duration), "{text} of {input}");
            }
        }
        Err(error) => assert!(!error.is_empty()),
    }
    #[cfg(feature = "fuzzing")]
    qm_notify::fuzz::retry_after(input);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("json_path", json_path)]
    #[case("duration", duration)]
    fn target_accepts_the_corpus(#[case] name: &str, #[case] target: fn(&str)) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
        let files = std::fs::read_dir(format!("{corpus}/{name}")).unwrap();
        let mut inputs = 0;
        for file in files {
            let file = file.unwrap().path();
            println!("{}", file.display());
            target(&std::fs::read_to_string(file).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no inputs");
    }
}
