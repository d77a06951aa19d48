//! `docs/operate/cli.md` agrees with the code.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};
use quartermaster::cli::Cli;

const PAGE: &str = include_str!("../../../docs/operate/cli.md");

/// Returns the section of the page under a heading.
fn section(name: &str) -> &'static str {
    let (_, rest) = PAGE
        .split_once(&format!("\n## {name}\n"))
        .unwrap_or_else(|| panic!("no section {name}"));
    rest.split("\n## ").next().unwrap()
}

#[test]
fn page_has_a_row_for_every_flag() {
    let mut program = Cli::command();
    program.build();
    for name in ["status", "history", "matches", "test", "adopt", "uninstall"] {
        let section = format!("{}{}", section(name), section("Every command"));
        let command = program.find_subcommand(name).unwrap();
        assert!(
            command
                .get_after_help()
                .unwrap()
                .to_string()
                .contains("Examples:"),
            "{name}"
        );
        let mut flags = BTreeSet::new();
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let Some(long) = flag.get_long().filter(|long| *long != "help") else {
                continue;
            };
            let row = section
                .lines()
                .find(|line| line.starts_with("| ") && line.contains(&format!("`--{long}`")));
            let row = row.unwrap_or_else(|| panic!("{name} --{long} has no row"));
            for default in flag
                .get_default_values()
                .iter()
                .map(|value| value.to_string_lossy())
            {
                let boolean = ["true", "false"].contains(&&*default);
                assert!(
                    boolean || row.contains(&format!("`{default}`")),
                    "{name} --{long}: {default}"
                );
            }
            flags.insert(format!("--{long}"));
        }
        let named = self::section(name)
            .lines()
            .filter(|line| line.starts_with("| `"))
            .filter_map(|line| line.split('`').nth(1));
        for flag in named.filter(|flag| flag.starts_with("--")) {
            assert!(flags.contains(flag), "{name} has no {flag}");
        }
    }
}

#[test]
fn page_shows_valid_commands() {
    let mut shown = 0;
    let lines = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("$ quartermaster "));
    for line in lines {
        let arguments = line.split(" | ").next().unwrap().split(' ');
        let output = Cli::try_parse_from(["quartermaster"].into_iter().chain(arguments));
        output.unwrap_or_else(|error| panic!("{line}: {error}"));
        shown += 1;
    }
    assert!(shown >= 6, "{shown}");
}
