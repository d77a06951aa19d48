//! Page of the flags, from clap.

use std::fmt::Write as _;

use clap::{Arg, CommandFactory as _};
use quartermaster::cli::Cli;

use super::markdown::{cell, code};

const BEGIN: &str = "\
# Flags

The text is that of `quartermaster COMMAND --help`. You can set a flag by its environment variable instead; the flag takes precedence.
The Helm chart has a [value](chart-values.md) for most flags of `run`, and `extraArgs` for the others.
[Command-line program](../operate/cli.md) has examples.

`run` reads further variables: `KUBECONFIG` (default `~/.kube/config`, then the Pod's own account), `HTTPS_PROXY` and `NO_PROXY` (for
Telegram and AWS), those of AWS's SDK, `OTEL_...` (traces) and `NO_COLOR`.

| exit code | meaning |
| --- | --- |
| 0 | stopped on request, after draining |
| 1 | failed, lost the Lease, or a task ended; Kubernetes restarts the container |
| 2 | a flag or its value is wrong |
";

const HEAD: &str = "\n| flag, environment | default | meaning |\n| --- | --- | --- |\n";

/// Flags that `--help` does not show.
const FURTHER: &str = "
### run: Further flags

`--help` does not list these flags: the defaults suit every cluster, or the manifests set them.

| flag, environment | default | meaning |
| --- | --- | --- |
";

pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    let mut program = Cli::command();
    program.build();
    for command in program
        .get_subcommands()
        .filter(|it| !it.is_hide_set() && it.get_name() != "help")
    {
        let about = command.get_long_about().or(command.get_about());
        let about = about.map(ToString::to_string).unwrap_or_default();
        let (line, explanation) = about.split_once("\n\n").unwrap_or((&about, ""));
        // Writing to a String does not fail.
        let _ = write!(page, "\n## {}\n\n{line}.\n", command.get_name());
        if !explanation.is_empty() {
            let _ = write!(page, "\n{explanation}\n");
        }
        let flags: Vec<&Arg> = command
            .get_arguments()
            .filter(|it| !it.is_hide_set() && !["help", "version"].contains(&it.get_id().as_str()))
            .collect();
        // Flags without a heading come right after the command's description.
        let mut headings = vec![None];
        for flag in &flags {
            if !headings.contains(&flag.get_help_heading()) {
                headings.push(flag.get_help_heading());
            }
        }
        headings.retain(|heading| flags.iter().any(|flag| flag.get_help_heading() == *heading));
        for heading in headings {
            if let Some(heading) = heading {
                let _ = write!(page, "\n### {}: {heading}\n", command.get_name());
            }
            page.push_str(HEAD);
            for flag in flags
                .iter()
                .filter(|flag| flag.get_help_heading() == heading)
            {
                page.push_str(&row(flag));
            }
        }
        if command.get_name() == "run" {
            page.push_str(FURTHER);
            let hidden = command.get_arguments().filter(|it| it.is_hide_set());
            hidden.for_each(|flag| page.push_str(&row(flag)));
        }
    }
    page
}

fn row(flag: &Arg) -> String {
    let long = flag.get_long().map(|name| format!("--{name}"));
    let short = flag.get_short().map(|name| format!("-{name}"));
    let mut names: Vec<_> = short
        .into_iter()
        .chain(long)
        .map(|name| code(&name))
        .collect();
    if names.is_empty() {
        let value = flag.get_value_names().and_then(|names| names.first());
        names.push(code(
            value.map_or(flag.get_id().as_str(), |name| name.as_str()),
        ));
    }
    let environment = flag
        .get_env()
        .map(|name| format!("<br>{}", code(&name.to_string_lossy())))
        .unwrap_or_default();
    let defaults = flag
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy());
    let default = defaults
        .filter(|value| !value.is_empty())
        .map(|value| code(&value))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "| {}{environment} | {default} | {} |\n",
        names.join(", "),
        cell(&what(flag))
    )
}

/// Returns the whole help, with a sentence for each paragraph and each possible value.
fn what(flag: &Arg) -> String {
    let help = flag
        .get_long_help()
        .or(flag.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let sentence = |text: &str| format!("{}.", text.trim().trim_end_matches('.'));
    let mut sentences: Vec<_> = help.split("\n\n").map(sentence).collect();
    let values = flag
        .get_possible_values()
        .into_iter()
        .filter(|it| !it.is_hide_set());
    let values = values.filter(|value| !["true", "false"].contains(&value.get_name()));
    sentences.extend(values.map(|value| match value.get_help() {
        Some(help) => sentence(&format!("{}: {help}", code(value.get_name()))),
        None => sentence(&code(value.get_name())),
    }));
    sentences.join(" ").replace('<', "&lt;").replace('*', "\\*")
}
