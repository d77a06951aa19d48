//! The book: every page is in it, and every link stays inside it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::process::Folder;

use super::{pages, pages_of_the_book, root};
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

/// Returns the names of the files in a folder with this extension.
fn names(folder: &str, extension: &str) -> BTreeSet<String> {
    fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == extension))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

/// A picture of a terminal.
#[derive(serde::Deserialize)]
struct Terminal {
    name: String,
    page: PathBuf,
    commands: Vec<String>,
}

fn terminals() -> Vec<Terminal> {
    let list = fs::read_to_string(root().join("hack/pictures/terminals.json")).unwrap();
    serde_json::from_str(&list).unwrap()
}

#[test]
fn every_picture_has_a_source_and_is_on_a_page() {
    let mut sources = names("docs/images/src", "mmd");
    for extension in ["csv", "json"] {
        sources.extend(names("docs/images/src", extension));
    }
    sources.extend(terminals().into_iter().map(|it| it.name));
    let pictures = names("docs/images", "svg");
    assert_eq!(pictures, sources, "run make pictures");
    let pages = pages();
    for name in pictures {
        let image = format!("images/{name}.svg)");
        assert!(
            pages.values().any(|page| page.contains(&image)),
            "no page shows docs/images/{name}.svg"
        );
    }
}

#[test]
fn terminals_show_what_their_pages_print() {
    for Terminal {
        name,
        page,
        commands,
    } in terminals()
    {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        let picture = fs::read_to_string(root().join(format!("docs/images/{name}.svg"))).unwrap();
        for command in commands {
            let (_, after) = text
                .split_once(&format!("\n$ {command}\n"))
                .unwrap_or_else(|| panic!("{}: no command {command}", page.display()));
            let printed = after
                .lines()
                .take_while(|line| !line.starts_with("$ ") && !line.starts_with("```"))
                .collect::<Vec<_>>()
                .join("\n");
            let shown = format!("$ {command}\n{}", printed.trim_end())
                .replace('&', "&amp;")
                .replace('<', "&lt;");
            assert!(
                picture.contains(&shown),
                "docs/images/{name}.svg shows another output of {command}: run make pictures"
            );
        }
    }
}
