//! No file uses a name that the changelog's table calls old.

use std::process::Command;

use super::root;

/// Old names that are ordinary words, or that something else still has.
fn is_ambiguous(name: &str) -> bool {
    const OTHER_USES: [&str; 2] = ["InProgress", "requestedAt"];
    let humps = name.chars().skip(1).any(char::is_uppercase);
    !(humps || name.contains(['_', '/']) || name.starts_with("--"))
        || name.contains(['{', '.']) && !name.contains('/')
        || OTHER_USES.contains(&name)
}

#[test]
fn old_names_are_in_the_changelog_alone() {
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let rows = changelog.lines().filter(|line| line.starts_with("| "));
    let old: Vec<_> = rows
        .filter_map(|row| row.split(" | ").nth(1)?.split('`').nth(1))
        .filter(|name| !is_ambiguous(name))
        .collect();
    assert!(old.len() > 40, "the table has only {old:?}");
    let listed = Command::new("git")
        .args(["ls-files"])
        .current_dir(root())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().any(|file| file == "README.md"), "{listed}");
    let mut uses = Vec::new();
    for file in listed.lines().filter(|file| *file != "CHANGELOG.md") {
        // A deleted file, or no text.
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        let used = old.iter().filter(|name| has_word(&text, name));
        uses.extend(used.map(|name| format!("{file}: {name}")));
    }
    assert!(uses.is_empty(), "{uses:#?}");
}

/// Returns whether the text has the name, and not as a part of a longer one.
fn has_word(text: &str, name: &str) -> bool {
    let continues = |char: Option<char>| {
        char.is_some_and(|char| char.is_alphanumeric() || matches!(char, '_' | '-' | '/'))
    };
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !continues(before.chars().next_back()) && !continues(after.chars().next())
    })
}

#[test]
fn word_is_no_part_of_a_longer_one() {
    for (text, has) in [
        ("a --old b", true),
        ("--old=1", true),
        ("(--old)", true),
        ("--aws-old", false),
        ("--old-period", false),
        ("x--old", false),
    ] {
        assert_eq!(has_word(text, "--old"), has, "{text}");
    }
}
