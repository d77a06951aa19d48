//! The documentation against the code, offline: links, paths, limits and the tables of the reference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use qm_api::common::{NAMES, PREFIX};
use qm_api::tracked_field::KEPT_BYTES;
use qm_core::names::MetadataNames;
use qm_notify::history::HistoryLimits;
use qm_notify::message::TextLimit;
use qm_notify::{message, rate_limit};
use xtask::docs as generated;

mod book;
mod commands;
mod flags_and_metrics;
mod manifests;
mod reasons;
mod renamed;
mod templates;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the text of a page of `docs`.
fn page(name: &str) -> String {
    let path = root().join("docs").join(name);
    fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: write this page", path.display()))
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect()
}

/// Returns every page of the book: in `docs` and the folders there.
fn pages_of_the_book() -> Vec<PathBuf> {
    let docs = root().join("docs");
    let folders = fs::read_dir(&docs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir());
    let mut pages: Vec<_> = folders
        .flat_map(|folder| in_folder(&folder))
        .chain(in_folder(&docs))
        .collect();
    pages.retain(|path| !path.ends_with("SUMMARY.md"));
    pages
}

/// Returns every page: those of the book, and those at the root.
fn pages() -> BTreeMap<PathBuf, String> {
    let all = pages_of_the_book().into_iter().chain(in_folder(root()));
    let pages: BTreeMap<_, _> = all
        .map(|path| (path.clone(), fs::read_to_string(&path).unwrap()))
        .collect();
    assert!(pages.len() >= 25, "{:?}", pages.keys());
    pages
}

/// Returns the row of a table whose first cell begins with `name` in backticks.
fn row<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.lines()
        .find(|line| line.starts_with(&format!("| `{name}`")))
}

/// Returns the text outside fenced blocks.
fn prose(page: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    assert!(!fenced, "a fenced block is not closed");
    prose
}

/// Returns the anchors that GitHub gives a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| generated::anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn every_link_has_a_target() {
    let mut followed = 0;
    for (path, text) in pages() {
        let prose = prose(&text);
        for link in prose
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.starts_with("https://") {
                continue;
            }
            followed += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            assert!(target.exists(), "{}: {link} leads nowhere", path.display());
            if !anchor.is_empty() {
                let there = fs::read_to_string(&target).unwrap();
                assert!(
                    anchors(&there).contains(anchor),
                    "{}: {link}: no such heading",
                    path.display()
                );
            }
        }
    }
    assert!(followed > 20);
}

#[test]
fn every_named_path_exists() {
    let mut sources = Vec::new();
    for folder in ["src", "crates", "xtask", "testbed", "tests"] {
        add_sources(&root().join(folder), &mut sources);
    }
    for (path, text) in pages() {
        for named in prose(&text).split('`').skip(1).step_by(2) {
            let is_local = [
                "src/", "crates/", "xtask/", "tests/", "testbed/", "hack/", "config/",
            ]
            .iter()
            .any(|folder| named.starts_with(folder));
            let exists = if is_local && !named.contains([' ', '*', ':']) && !named.contains("KIND")
            {
                root().join(named).exists()
            } else if !is_local && Path::new(named).extension().is_some_and(|it| it == "rs") {
                sources.iter().any(|source| source.ends_with(named))
            } else {
                true
            };
            assert!(exists, "{}: {named} does not exist", path.display());
        }
    }
}

#[test]
fn requested_at_has_one_spelling() {
    for (path, text) in pages() {
        let is_other = text.contains("$(date)");
        assert!(!is_other, "{}: write $(date +%s)", path.display());
    }
}

/// The map of the code names each file in the folders of the controllers, and of crates with several subjects.
#[test]
fn map_of_the_code_names_every_file() {
    let page = page("contributing.md");
    let (_, of_runtime) = page.split_once("\n### Runtime\n").unwrap();
    let mut folders = vec![(root().join("crates/runtime/src"), of_runtime)];
    for name in ["aws", "core", "notify"] {
        let named = row(&page, &format!("crates/{name}")).unwrap();
        folders.push((root().join(format!("crates/{name}/src")), named));
    }
    for entry in fs::read_dir(root().join("src/controllers")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy();
            let named = row(&page, &name).unwrap_or_else(|| panic!("{name} has no row"));
            folders.push((path.clone(), named));
        }
    }
    // Roots of modules, and what only tests need.
    let left_out = [
        "fixtures.rs",
        "fuzz.rs",
        "lib.rs",
        "mod.rs",
        "testing.rs",
        "tests.rs",
    ];
    let mut missing = Vec::new();
    for (folder, named) in folders {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            let is_file =
                path.extension().is_some_and(|it| it == "rs") && !left_out.contains(&&*name);
            if is_file && !named.contains(&format!("`{name}`")) {
                missing.push(path.clone());
            }
        }
    }
    assert!(
        missing.is_empty(),
        "docs/contributing.md names none of {missing:#?}"
    );
}

/// Adds the Rust files below `folder`.
fn add_sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Every name under the operator's domain that the program, the manifests or the chart have is in the reference.
#[test]
fn every_annotation_and_label_has_a_row() {
    let reference = page("reference/annotations.md");
    let mut found = BTreeSet::new();
    for folder in [
        "src",
        "crates",
        "xtask/src",
        "charts/quartermaster/templates",
        "config/manager",
        "config/rbac",
    ] {
        names_below(&root().join(folder), &mut found);
    }
    assert!(found.len() > 15, "{found:?}");
    let rows = reference
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeSet<_> = rows.filter_map(|row| row.split('`').next()).collect();
    let missing: Vec<_> = found
        .iter()
        .filter(|name| !rows.contains(&***name))
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:?} have no row in xtask/src/docs/annotations.rs"
    );
    let own = rows.iter().filter(|row| row.starts_with(PREFIX));
    let unused: Vec<_> = own.filter(|row| !found.contains(**row)).collect();
    assert!(unused.is_empty(), "{unused:?} are not used");
}

/// Adds the names with [`PREFIX`] in all files below `folder`, except those in tests.
fn names_below(folder: &Path, into: &mut BTreeSet<String>) {
    for path in fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        if path.ends_with("tests") || path.ends_with("tests.rs") {
            continue;
        }
        if path.is_dir() {
            names_below(&path, into);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for rest in product.split(PREFIX).skip(1) {
            let name = rest
                .split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
                .next();
            into.extend(
                name.filter(|name| !name.is_empty())
                    .map(|name| format!("{PREFIX}{name}")),
            );
        }
    }
    // The macro that makes the names has a placeholder for the domain.
    let MetadataNames {
        requested_at,
        schema,
        owner_uid,
        owner,
        adopt_by,
        applied_digest,
        ..
    } = NAMES;
    into.extend(
        [
            requested_at,
            schema,
            owner_uid,
            owner,
            adopt_by,
            applied_digest,
        ]
        .map(str::to_owned),
    );
}

#[test]
fn every_delivery_limit_matches_the_code() {
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    let bounds = HistoryLimits::new(None);
    let (least, most) = (
        bounds.finished.items,
        HistoryLimits::new(Some(i64::MAX)).finished.items,
    );
    let pace = rate_limit::TelegramLimits::default();
    let seconds = |window: Duration| format!("{} s", window.as_secs_f64());
    let rows = [
        format!(
            "| Pending | {} | {} |",
            bounds.pending.items,
            kib(bounds.pending.bytes)
        ),
        format!(
            "| finished (delivered, failed or skipped) | `historyLimit`: {least}, at most {most} | {} |",
            kib(bounds.finished.bytes)
        ),
        format!(
            "| one value | | {},{:03} bytes, then truncated |",
            KEPT_BYTES / 1000,
            KEPT_BYTES % 1000
        ),
        format!("| entries in one request | {} |", message::MAX_ENTRIES),
        format!(
            "| a Telegram text | {} UTF-16 units |",
            TextLimit::TELEGRAM.max()
        ),
        format!("| a webhook's `text` | {} |", kib(TextLimit::WEBHOOK.max())),
        format!("| a webhook's body | {} |", kib(message::BODY)),
        format!(
            "| one chat | {} | {} |",
            pace.chat.requests,
            seconds(pace.chat.window)
        ),
        format!(
            "| one group (negative `chatId`), in addition | {} | {} |",
            pace.group.requests,
            seconds(pace.group.window)
        ),
        format!(
            "| one token | {} | {} |",
            pace.token.requests,
            seconds(pace.token.window)
        ),
    ];
    let pages = pages();
    for row in rows {
        assert!(
            pages
                .values()
                .any(|page| page.lines().any(|line| line == row)),
            "no page has the line {row}"
        );
    }
}
