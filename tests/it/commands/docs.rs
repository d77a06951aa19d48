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
fn page_has_a_section_for_every_command_and_names_existing_flags() {
    let mut program = Cli::command();
    program.build();
    let shared = section("What all commands share");
    for name in [
        "status",
        "history",
        "matches",
        "test",
        "adopt",
        "uninstall",
        "run",
    ] {
        let command = program.find_subcommand(name).unwrap();
        assert!(
            command
                .get_after_help()
                .unwrap()
                .to_string()
                .contains("Examples:"),
            "{name}"
        );
        let flags: BTreeSet<_> = command
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        // A section may name the flags of the operator that the command looks for.
        let of_operator = ["leader-elect", "watch-namespace"];
        let named = section(name).split('`').skip(1).step_by(2);
        for flag in named.filter_map(|code| code.strip_prefix("--")) {
            let flag = flag.split([' ', '=']).next().unwrap();
            assert!(
                flags.contains(flag) || of_operator.contains(&flag),
                "{name} has no --{flag}"
            );
        }
    }
    for flag in [
        "kubeconfig",
        "context",
        "leader-election-id",
        "operator-namespace",
    ] {
        assert!(shared.contains(&format!("`--{flag}`")), "{flag}");
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
