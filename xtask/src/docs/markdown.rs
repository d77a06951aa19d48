//! Parts of a page in Markdown.

/// Returns the anchor that GitHub and mdBook give a heading.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// Escapes text for a cell of a table.
pub fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// Formats text as code, even with a backtick.
pub fn code(text: &str) -> String {
    let fence = if text.contains('`') { "``" } else { "`" };
    format!("{fence}{text}{fence}")
}

/// Returns the file name of the page about a kind, in `docs/kinds/`: `ContactPoint` is in `contact-point.md`.
pub(super) fn page_of(kind: &str) -> String {
    let mut name = String::new();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name + ".md"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_has_a_page() {
        assert_eq!(page_of("ConfigMapSync"), "config-map-sync.md");
    }

    #[test]
    fn anchor_matches_the_heading() {
        assert_eq!(
            anchor(" What `kubectl apply` refuses: all_of it"),
            "what-kubectl-apply-refuses-all_of-it"
        );
    }

    #[test]
    fn code_may_contain_a_backtick() {
        assert_eq!(
            (code("a"), code("^_`|~")),
            ("`a`".to_owned(), "``^_`|~``".to_owned())
        );
        assert_eq!(cell("a\n b|c"), "a b\\|c");
    }
}
