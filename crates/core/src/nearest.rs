//! The name that a user probably meant.

/// Returns the most similar name, if any is similar.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let scored = names.map(|other| {
        let score = strsim::normalized_damerau_levenshtein(&name, &other.to_ascii_lowercase());
        (score, other)
    });
    scored
        .filter(|(score, _)| *score >= 0.5)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Returns what to write instead of a name that is none of `known`.
pub fn instead_of(name: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    nearest(name, known.iter().copied()).map_or_else(
        || format!("write one of {all}"),
        |nearest| format!("write {nearest}, or another of {all}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_name_is_found_and_another_is_not() {
        let names = || ["telegram-cp", "pager", "mail"].into_iter();
        assert_eq!(nearest("telegram-chat", names()), Some("telegram-cp"));
        assert_eq!(nearest("zzz", names()), None);
    }
}
