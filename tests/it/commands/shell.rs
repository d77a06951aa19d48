//! Completions for a shell, and colours for a terminal.

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn completions_complete() {
    let bed = Bed::shared("completions").await;
    let run = Run::on(&bed);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run.ends(0, &["completions", shell]).await;
        assert!(
            script.contains("uninstall") && script.contains("without-operator"),
            "{shell}: {script}"
        );
    }
    // bash runs this for the Tab key.
    let ask = "eval \"$(quartermaster completions bash)\"\n\
               complete -p quartermaster\n\
               COMP_WORDS=($1) COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))\n\
               _quartermaster quartermaster \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"\n\
               printf '%s\\n' \"${COMPREPLY[@]}\"";
    let bash = Run::on(&bed).shell(&bed).program("/bin/bash".as_ref());
    for (typed, offered) in [
        ("quartermaster unin", "uninstall"),
        ("quartermaster adopt --y", "--yes"),
    ] {
        let output = bash.ends(0, &["-c", ask, "bash", typed]).await;
        let mut lines = output.lines();
        assert!(
            lines
                .next()
                .unwrap()
                .ends_with(" -F _quartermaster quartermaster"),
            "{output}"
        );
        assert_eq!(lines.collect::<Vec<_>>(), [offered], "{typed}");
    }
}

#[tokio::test]
async fn terminal_has_colours_unless_no_color_is_set() {
    let bed = Bed::shared("colours").await;
    bed.webhook("hook", "http://127.0.0.1:1").await;
    // `script` runs the command in a terminal, and copies its output.
    let status = format!("quartermaster status -n {}", bed.namespace);
    let arguments = ["--quiet", "--return", "--command", &status, "/dev/null"];
    for (value, colours) in [(None, true), (Some(""), true), (Some("1"), false)] {
        let run = Run::on(&bed)
            .shell(&bed)
            .program("/usr/bin/script".as_ref());
        let run = value
            .into_iter()
            .fold(run, |run, value| run.env("NO_COLOR", value));
        let result = run.run(&arguments).await;
        assert_eq!(result.code, 0, "{result:#?}");
        assert!(result.out.contains("contactpoint/hook"), "{result:#?}");
        assert_eq!(
            result.out.contains("\u{1b}[33mNotObserved\u{1b}[0m"),
            colours,
            "{value:?}: {result:#?}"
        );
        assert_eq!(
            result.out.contains('\u{1b}'),
            colours,
            "{value:?}: {result:#?}"
        );
    }
}
