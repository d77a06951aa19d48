//! The book: every page is in it, and every link stays inside it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::process::Folder;

use super::{pages_of_the_book, root};
use crate::support::tool;

/// Returns the values of an attribute.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    html.split(&format!(" {attribute}=\""))
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect()
}

/// Returns the built pages.
fn built(folder: &Path) -> Vec<PathBuf> {
    let entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let below = entries
        .iter()
        .filter(|path| path.is_dir())
        .flat_map(|path| built(path))
        .collect::<Vec<_>>();
    entries
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "html"))
        .chain(below)
        .collect()
}

#[tokio::test]
async fn book_builds_without_warning_and_links_resolve() {
    let folder = Folder::new().unwrap();
    let output = Command::new(tool("mdbook").await)
        .arg("build")
        .arg(root())
        .arg("-d")
        .arg(folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !stderr.contains("WARN") && !stderr.contains("ERROR"),
        "{stderr}"
    );

    let (pages, mut followed) = (built(folder.path()), 0);
    assert!(pages.len() > pages_of_the_book().len(), "{pages:?}");
    for page in &pages {
        let html = fs::read_to_string(page).unwrap();
        let own = page.file_name().unwrap().to_string_lossy();
        for link in values(&html, "href")
            .into_iter()
            .chain(values(&html, "src"))
        {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            // 404.html is served for any address, and its links start at the root.
            if own == "404.html" || own == "toc.html" {
                continue;
            }
            followed += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            let is_there = || values(&fs::read_to_string(&target).unwrap(), "id").contains(&anchor);
            assert!(
                anchor.is_empty() || is_there(),
                "{}: {link}: no such heading",
                page.display()
            );
        }
        let loaded = values(&html, "src").into_iter().chain(
            html.split("<link ")
                .skip(1)
                .flat_map(|rest| values(rest.split('>').next().unwrap_or_default(), "href")),
        );
        for part in loaded {
            assert!(
                !part.starts_with("http") && !part.starts_with("//"),
                "{}: {part} is not here",
                page.display()
            );
        }
    }
    assert!(followed > 1000, "{followed}");
}

#[test]
fn every_page_is_in_the_book_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: Vec<_> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|it| docs.join(it))
        .collect();
    let all: BTreeSet<_> = pages_of_the_book().into_iter().collect();
    assert_eq!(listed.iter().cloned().collect::<BTreeSet<_>>(), all);
    assert_eq!(listed.len(), all.len(), "a page appears twice");
}
