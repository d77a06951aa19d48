//! `docs/reference/`: flags, metrics and fields from the code, and an index of the reasons.

use std::path::Path;

use quartermaster::kinds::{self, KINDS};

use super::files::{Error, File, read};

mod fields;
mod flags;
mod markdown;
mod metrics;
mod reasons;

pub use fields::KUBERNETES;
pub use markdown::anchor;
pub use metrics::every_metric;

/// Returns every generated page.
pub fn files(root: &Path) -> Result<Vec<File>, Error> {
    let mut pages = vec![
        ("flags".to_owned(), flags::page()),
        ("metrics".to_owned(), metrics::page()),
    ];
    let mut kinds = Vec::new();
    for (kind, crd) in KINDS.iter().zip(kinds::crds()) {
        let page = page_of(&kind.resource().kind);
        pages.push((kind.controller.to_owned(), fields::page(&crd, &page)));
        kinds.push((
            kind.resource().kind,
            read(root, format!("docs/{page}"))?,
            page,
        ));
    }
    pages.push(("reasons".to_owned(), reasons::page(&kinds)));
    let generated = "<!-- Generated from the code: run `make manifests`. -->\n";
    let file = |(name, text)| {
        (
            format!("docs/reference/{name}.md"),
            format!("{generated}{text}"),
        )
    };
    Ok(pages.into_iter().map(file).collect())
}

/// Returns the path in `docs/` of the page about a kind: `ContactPoint` is in `kinds/contact-point.md`.
pub fn page_of(kind: &str) -> String {
    let mut name = String::new();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    format!("kinds/{name}.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_has_a_page() {
        assert_eq!(page_of("ConfigMapSync"), "kinds/config-map-sync.md");
    }
}
