//! The hosted workflows, as far as a test without a host can check them: actionlint reads them too (`make lint`).

use std::fs;

use super::*;

/// Returns the workflows by the names of their files.
fn workflows() -> BTreeMap<String, String> {
    let folder = Path::new(ROOT).join(".github/workflows");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    files
        .map(|it| {
            (
                it.file_name().into_string().unwrap(),
                fs::read_to_string(it.path()).unwrap(),
            )
        })
        .collect()
}

/// A tag can be moved to other code, and some of these actions sign, or write to the registry.
#[test]
fn every_action_is_pinned_to_a_commit_and_names_its_version() {
    let mut seen = 0;
    for (file, text) in workflows() {
        let used = text
            .lines()
            .filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("uses: "));
        for action in used.filter(|action| !action.starts_with("./")) {
            let commit = action
                .split_once('@')
                .and_then(|(_, rest)| rest.split_once(" # v"));
            let is_one = commit.is_some_and(|(commit, version)| {
                commit.len() == 40
                    && commit.chars().all(|c| c.is_ascii_hexdigit())
                    && version
                        .split('.')
                        .filter(|part| part.parse::<u32>().is_ok())
                        .count()
                        == 3
            });
            assert!(is_one, "{file}: {action}: write OWNER/NAME@COMMIT # vX.Y.Z");
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn release_is_built_first_and_only_from_the_checkout() {
    let makefile = fs::read_to_string(Path::new(ROOT).join("Makefile")).unwrap();
    let platforms = |text: &str, before: &str| {
        let list = text
            .lines()
            .find_map(|line| line.trim_start().strip_prefix(before))
            .unwrap()
            .to_owned();
        list.split(',')
            .map(str::to_owned)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let workflows = workflows();
    let [test, release] = ["test.yml", "release.yml"].map(|file| workflows[file].as_str());
    assert_eq!(
        platforms(release, "platforms: "),
        platforms(&makefile, "PLATFORMS ?= ")
    );
    assert_eq!(
        platforms(release, "platforms: "),
        platforms(test, "platforms: ")
    );
    // Files that another run left there would be signed too.
    for cache in ["cache-from", "cache-to", "actions/cache@", "cache: true"] {
        assert!(!release.contains(cache), "{cache}");
    }
}
