//! Rules of the API for names, labels and reasons.

/// Returns whether the text is an RFC 1123 label, such as the name of a namespace
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-label-names>).
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 63
        && text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || c == '-')
}

/// Returns whether the text is an RFC 1123 subdomain, such as the name of most objects
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names>).
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(outer)
            && part.ends_with(outer)
            && part.chars().all(|c| outer(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

/// Returns whether the text may be the key of a label
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// Returns whether the text may be the value of a label; the empty text may.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// Returns whether the text may be the name in the key of a label, or a value that is not empty.
fn is_label_name(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || "-_.".contains(c))
}

/// Returns whether the text may be the reason of a condition
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/condition-v1-meta/>).
#[must_use]
pub fn is_condition_reason(text: &str) -> bool {
    text.len() <= 1024
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_,:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules_of_the_api() {
        let long = ["a"; 63].concat();
        for (text, is_label, is_subdomain) in [
            ("shop", true, true),
            ("shop-1", true, true),
            ("1shop", true, true),
            (&*long, true, true),
            (&*format!("{long}a"), false, true),
            ("shop.eu", false, true),
            ("", false, false),
            ("-shop", false, false),
            ("shop-", false, false),
            ("shop..eu", false, false),
            ("shop.-eu", false, false),
            ("Shop", false, false),
            ("sh_op", false, false),
        ] {
            assert_eq!(is_dns_label(text), is_label, "{text}");
            assert_eq!(is_dns_subdomain(text), is_subdomain, "{text}");
        }
        assert!(!is_dns_subdomain(&["a."; 127].concat()));
        assert!(!is_dns_subdomain(&format!("{}a", ["aa."; 85].concat())));
    }

    #[test]
    fn labels_follow_the_rules_of_the_api() {
        let long = ["a"; 63].concat();
        for (text, is_key, is_value) in [
            ("team", true, true),
            ("Team_1.a-b", true, true),
            (&*long, true, true),
            (&*format!("{long}a"), false, false),
            ("", false, true),
            ("-team", false, false),
            ("team.", false, false),
            ("team name", false, false),
            ("t\u{e9}am", false, false),
            ("example.com/team", true, false),
            ("example.com/", false, false),
            ("/team", false, false),
            ("Example.com/team", false, false),
            ("a/b/c", false, false),
        ] {
            assert_eq!(is_label_key(text), is_key, "{text}");
            assert_eq!(is_label_value(text), is_value, "{text}");
        }
    }

    #[test]
    fn reasons_follow_the_rules_of_the_api() {
        for (text, is_reason) in [
            ("ImagePullBackOff", true),
            ("A1_", true),
            ("A,b:c", true),
            ("", false),
            ("1A", false),
            ("A:", false),
            ("A b", false),
        ] {
            assert_eq!(is_condition_reason(text), is_reason, "{text}");
        }
    }
}
