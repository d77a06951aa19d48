//! `docs/reference/` and the README of the Helm chart: everything that the code knows.

use std::path::Path;

use quartermaster::kinds::{self, KINDS};

use super::files::{Error, File};

mod annotations;
mod chart;
mod fields;
mod flags;
mod markdown;
mod metrics;
mod permissions;
pub mod reasons;

pub use markdown::anchor;
pub use metrics::every_metric;

/// Returns every generated page.
pub fn files(root: &Path) -> Result<Vec<File>, Error> {
    let mut pages = vec![
        ("annotations".to_owned(), annotations::page()),
        ("chart-values".to_owned(), chart::page(root)?),
        ("conditions".to_owned(), reasons::conditions()),
        ("events".to_owned(), reasons::events()),
        ("flags".to_owned(), flags::page()),
        ("metrics".to_owned(), metrics::page()),
        ("permissions".to_owned(), permissions::page()),
        ("reasons".to_owned(), reasons::reasons()),
    ];
    for (kind, crd) in KINDS.iter().zip(kinds::crds()) {
        let page = page_of(&kind.resource().kind);
        pages.push((kind.controller.to_owned(), fields::page(&crd, &page)));
    }
    let pages = pages
        .into_iter()
        .map(|(name, text)| (format!("docs/reference/{name}.md"), text))
        .chain([(
            "charts/quartermaster/README.md".to_owned(),
            chart::readme(root)?,
        )]);
    let generated = "<!-- Generated from the code: run `make manifests`. -->\n";
    Ok(pages
        .map(|(path, text)| (path, format!("{generated}{text}")))
        .collect())
}

/// Returns the file name of the page about a kind, in `docs/kinds/`: `ContactPoint` is in `contact-point.md`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_has_a_page() {
        assert_eq!(page_of("ConfigMapSync"), "config-map-sync.md");
    }
}
