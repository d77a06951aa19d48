//! The documentation against the code, offline: fields, columns, permissions, links and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use qm_core::kind::Permission;
use qm_notify::history::HistoryLimits;
use qm_notify::history::KEPT_BYTES;
use qm_notify::message::TextLimit;
use qm_notify::{message, rate_limit};
use quartermaster::{kinds, permissions};
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
    for (path, text) in pages() {
        for named in prose(&text).split('`').skip(1).step_by(2) {
            let is_local = [
                "src/", "crates/", "xtask/", "tests/", "testbed/", "hack/", "config/",
            ]
            .iter()
            .any(|folder| named.starts_with(folder));
            if is_local && !named.contains([' ', '*', ':']) && !named.contains("KIND") {
                assert!(
                    root().join(named).exists(),
                    "{}: {named} does not exist",
                    path.display()
                );
            }
        }
    }
}

/// Returns every field of a CRD's spec and status, by path; a list's items as `LIST[]`.
fn fields(crd: &CustomResourceDefinition) -> BTreeMap<String, JSONSchemaProps> {
    fn walk(path: &str, schema: &JSONSchemaProps, into: &mut BTreeMap<String, JSONSchemaProps>) {
        into.insert(path.to_owned(), schema.clone());
        // Kubernetes documents conditions, too.
        if path.ends_with("conditions") || generated::KUBERNETES.contains(&path) {
            return;
        }
        for (name, property) in schema.properties.iter().flatten() {
            walk(&format!("{path}.{name}"), property, into);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items
            && items.properties.is_some()
        {
            walk(&format!("{path}[]"), items, into);
        }
    }
    let mut fields = BTreeMap::new();
    let schema = crd.spec.versions[0]
        .schema
        .as_ref()
        .unwrap()
        .open_api_v3_schema
        .as_ref()
        .unwrap();
    for part in ["spec", "status"] {
        walk(
            part,
            &schema.properties.as_ref().unwrap()[part],
            &mut fields,
        );
    }
    fields.retain(|path, _| path.contains('.'));
    assert!(fields.len() > 3, "{fields:?}");
    fields
}

/// Returns the page of a kind.
fn page_of(crd: &CustomResourceDefinition) -> String {
    page(&generated::page_of(&crd.spec.names.kind))
}

#[test]
fn every_field_has_a_row_with_its_bounds() {
    for crd in kinds::crds() {
        let page = page_of(&crd);
        for (path, schema) in fields(&crd) {
            let row = row(&page, &path).unwrap_or_else(|| panic!("{path} has no row"));
            if !path.starts_with("spec") {
                continue;
            }
            let values = match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(values)) => values.max_length,
                _ => None,
            };
            let lengths = [schema.max_length, schema.max_properties, values]
                .map(|bound| bound.map(|bound| bound.to_string()));
            let range = match (
                schema.minimum,
                schema.maximum,
                schema.min_length,
                schema.max_length,
            ) {
                (Some(min), Some(max), _, _) => Some(format!("{min} to {max}")),
                (Some(min), None, _, _) => Some(format!("{min} or more")),
                (_, _, Some(min), Some(max)) => Some(format!("{min} to {max}")),
                _ => None,
            };
            for bound in lengths.into_iter().flatten().chain(range) {
                assert!(
                    row.contains(&bound),
                    "{path}: the bound {bound} is not in its row"
                );
            }
        }
        let rows = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split('`').next());
        for path in rows.filter(|path| path.starts_with("spec.") || path.starts_with("status")) {
            assert!(
                fields(&crd).contains_key(path),
                "{path} is not a field of a {}",
                crd.spec.names.kind
            );
        }
    }
}

#[test]
fn every_column_matches_the_crd() {
    for crd in kinds::crds() {
        let columns = crd.spec.versions[0]
            .additional_printer_columns
            .clone()
            .unwrap();
        let printed = columns
            .iter()
            .filter(|column| column.priority.unwrap_or_default() == 0);
        let header = printed
            .map(|column| column.name.to_uppercase())
            .collect::<Vec<_>>()
            .join(" ");
        let header = format!("NAME {header}");
        let page = page_of(&crd);
        let mut lines = page
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(lines.any(|line| line == header), "no line is {header}");
    }
}

#[test]
fn every_permission_has_a_row() {
    let page = page("security/permissions.md");
    let check = |pages: &str, permission: &Permission| {
        for resource in permission.resources {
            let row = row(pages, resource).unwrap_or_else(|| {
                panic!("{resource} has no row: add one to security/permissions.md or to the page of the kind")
            });
            for verb in permission.verbs {
                assert!(row.contains(verb), "{resource}: {verb}");
            }
        }
    };
    for (kind, crd) in kinds::KINDS.iter().zip(kinds::crds()) {
        let pages = page_of(&crd) + &page;
        for permission in kind.permissions {
            check(&pages, permission);
        }
    }
    for permission in permissions::METRICS_RIGHTS {
        check(&page, permission);
    }
    let crds = row(&page, "customresourcedefinitions").unwrap();
    assert!(
        permissions::CRD_VERBS
            .iter()
            .all(|verb| crds.contains(verb))
    );
    assert!(page.contains(&format!(
        "`{}: \"true\"`",
        permissions::AGGREGATE_TO_TRACKER
    )));
    let (leases, lease) = (permissions::LEASES, quartermaster::cli::LEASE);
    let made = format!(
        "`{}` {}; of the one `{lease}` {}",
        leases.resources[0],
        leases.verbs.join(", "),
        permissions::LEASE_VERBS.join(", ")
    );
    assert!(page.contains(&made), "{made}");
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
    let page = page("kinds/delivery.md");
    for row in rows {
        assert!(
            page.lines().any(|line| line == row),
            "delivery.md has no line {row}"
        );
    }
}
