//! `docs/reference/` and the README of the Helm chart: everything that the code knows.

use std::path::Path;

use quartermaster::controllers::{self, KINDS};

use super::files::{File, GenerateError};

mod annotations;
mod chart;
mod fields;
mod flags;
mod markdown;
mod metrics;
mod permissions;
pub mod reasons;

pub use markdown::anchor;
use markdown::page_of;
pub use metrics::every_metric;

/// Returns every generated page.
pub fn files(root: &Path) -> Result<Vec<File>, GenerateError> {
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
    for (kind, crd) in KINDS.iter().zip(controllers::crds()) {
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
