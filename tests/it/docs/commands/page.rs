//! The steps of a page, in order.

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// `kubectl apply -f -` with this.
    Manifest(String),
    /// A command line, and its output on the page.
    Command(Command),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Command {
    /// The command as the page writes it, without a comment at its end.
    pub text: String,
    /// The lines that the command prints.
    pub printed: Vec<String>,
    /// The messages that then arrive: the chat's number and the text.
    pub messages: Vec<(String, String)>,
}

/// Returns the steps of a page: its `yaml`, `sh` and `console` blocks, whatever their indent, except for those that say
/// `norun="REASON"`.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (info, lines) in blocks(page) {
        let (language, attribute) = info.split_once(' ').unwrap_or((info, ""));
        if !attribute.is_empty() {
            let reason = attribute
                .strip_prefix("norun=\"")
                .and_then(|reason| reason.strip_suffix('"'));
            assert!(
                reason.is_some_and(|reason| reason.contains(' ')),
                "```{info}: write why nothing runs it, such as norun=\"needs a container engine\""
            );
            continue;
        }
        match language {
            // A kustomization is not an object; `install::equivalence` builds it.
            "yaml" if lines.contains(&"kind: Kustomization") => {}
            "yaml" => steps.push(Step::Manifest(lines.join("\n") + "\n")),
            "sh" => {
                let mut lines = lines
                    .into_iter()
                    .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
                while let Some(line) = lines.next() {
                    steps.push(Step::Command(command(line, &mut lines)));
                }
            }
            "console" => console(lines, &mut steps),
            _ => {}
        }
    }
    steps
}

/// Returns each fenced block: what follows its three backticks, and its lines without the fence's indent.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, &str, Vec<&str>)>);
    for line in page.lines() {
        let trimmed = line.trim_start();
        match (trimmed.strip_prefix("```"), open.take()) {
            (Some(info), None) => {
                open = Some((line.len() - trimmed.len(), info.trim(), Vec::new()));
            }
            (Some(_), Some((_, info, lines))) => blocks.push((info, lines)),
            (None, Some((indent, info, mut lines))) => {
                lines.push(line.get(indent..).unwrap_or_default());
                open = Some((indent, info, lines));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// `$ ` begins a command; its output follows, and received messages are four columns to the right.
fn console(lines: Vec<&str>, steps: &mut Vec<Step>) {
    let mut lines = lines.into_iter();
    while let Some(line) = lines.next() {
        if let Some(line) = line.strip_prefix("$ ") {
            steps.push(Step::Command(command(line, &mut lines)));
            continue;
        }
        let Some(Step::Command(last)) = steps.last_mut() else {
            panic!("{line}: no command prints this")
        };
        if let Some(chat) = line.strip_prefix("    Telegram, chat ") {
            last.messages.push((chat.to_owned(), String::new()));
        } else if let Some(text) = line.strip_prefix("    | ") {
            let (_, message) = last
                .messages
                .last_mut()
                .unwrap_or_else(|| panic!("{line}: in which chat?"));
            if !message.is_empty() {
                message.push('\n');
            }
            message.push_str(text);
        } else if !line.trim().is_empty() {
            last.printed.push(line.to_owned());
        }
    }
}

/// Returns the command that begins with this line.
fn command<'a>(first: &'a str, rest: &mut impl Iterator<Item = &'a str>) -> Command {
    let mut text = first.to_owned();
    let end = loop {
        if let Some(end) = end(&text) {
            break end;
        }
        text.push('\n');
        text.push_str(
            rest.next()
                .unwrap_or_else(|| panic!("{text}: no end of the command")),
        );
    };
    text.truncate(end);
    Command {
        text: text.trim_end().to_owned(),
        ..Command::default()
    }
}

/// Returns where a command line ends, before its comment; `None` if the next line continues it.
fn end(text: &str) -> Option<usize> {
    let (mut quote, mut escaped, mut before) = (None, false, ' ');
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (None | Some('"'), '\\') => escaped = true,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '#') if before.is_whitespace() => return Some(at),
            _ => {}
        }
        before = c;
    }
    let goes_on = ["\\", "|", "&&"]
        .iter()
        .any(|end| text.trim_end().ends_with(end));
    (quote.is_none() && !goes_on).then_some(text.len())
}

#[test]
fn page_is_parsed_into_steps() {
    let page = "\
words

   ```sh
   # nothing
   make a   # it's a
   make b |
     cat
   ```

```yaml
kind: A
```

```console
$ kubectl x -p '{
  \"a\": 1}'
x patched

    Telegram, chat 7
    | one
    | two
    Telegram, chat 7
    | three

$ y \\
    z
```

```text
$ no command
```

```sh norun=\"needs a moon\"
kubectl land
```
";
    let command = |text: &str| Command {
        text: text.into(),
        ..Command::default()
    };
    let patch = Command {
        printed: vec!["x patched".into()],
        messages: vec![
            ("7".into(), "one\ntwo".into()),
            ("7".into(), "three".into()),
        ],
        ..command("kubectl x -p '{\n  \"a\": 1}'")
    };
    let expected = [
        Step::Command(command("make a")),
        Step::Command(command("make b |\n  cat")),
        Step::Manifest("kind: A\n".into()),
        Step::Command(patch),
        Step::Command(command("y \\\n    z")),
    ];
    assert_eq!(steps(page), expected);
}

#[test]
#[should_panic(expected = "write why nothing runs it")]
fn fence_without_a_reason_is_refused() {
    steps("```sh norun\nkubectl land\n```\n");
}
