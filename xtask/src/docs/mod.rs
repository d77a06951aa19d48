//! `docs/reference/`: flags, metrics and fields as the code has them, and where the pages tell of each reason.

use std::path::Path;

use quartermaster::kinds::{self, KINDS};

use super::Error;

mod fields;
mod flags;
mod metrics;
mod reasons;

pub use fields::KUBERNETES;
pub use metrics::every_metric;

/// Every generated page: its path in the tree, and its text. `read` gives the text of a file of the tree.
pub fn files(
    read: &impl Fn(&Path) -> Result<String, Error>,
) -> Result<Vec<(String, String)>, Error> {
    let mut pages = vec![
        ("flags".to_owned(), flags::page()),
        ("metrics".to_owned(), metrics::page()),
    ];
    let mut told = Vec::new();
    for (kind, crd) in KINDS.iter().zip(kinds::crds()) {
        let page = page_of(&kind.resource().kind);
        pages.push((kind.controller.to_owned(), fields::page(&crd, &page)));
        told.push((
            kind.resource().kind,
            read(&Path::new("docs").join(&page))?,
            page,
        ));
    }
    pages.push(("reasons".to_owned(), reasons::page(&told)));
    let generated = "<!-- Generated from the code: run `make manifests`. -->\n";
    let file = |(name, text)| {
        (
            format!("docs/reference/{name}.md"),
            format!("{generated}{text}"),
        )
    };
    Ok(pages.into_iter().map(file).collect())
}

/// The page about a kind, in `docs/`: `ContactPoint` is in `contact-point.md`.
pub fn page_of(kind: &str) -> String {
    let mut name = String::new();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name + ".md"
}

/// The anchor that GitHub and mdBook give a heading.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

/// As it stands, also where it holds a backtick.
fn code(text: &str) -> String {
    let fence = if text.contains('`') { "``" } else { "`" };
    format!("{fence}{text}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_a_page() {
        assert_eq!(page_of("ConfigMapSync"), "config-map-sync.md");
    }

    #[test]
    fn an_anchor_is_that_of_the_heading() {
        assert_eq!(
            anchor(" What `kubectl apply` refuses: all_of it"),
            "what-kubectl-apply-refuses-all_of-it"
        );
    }

    #[test]
    fn code_may_hold_a_backtick() {
        assert_eq!(
            (code("a"), code("^_`|~")),
            ("`a`".to_owned(), "``^_`|~``".to_owned())
        );
        assert_eq!(cell("a\n b|c"), "a b\\|c");
    }
}
