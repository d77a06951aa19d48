//! The state in which a page is read: `stages/PAGE.sh`.
//!
//! A stage is shell text. The text before the first mark of a command runs before the page. The marks:
//! - `#! nothing is installed`: otherwise CRDs, permissions and policies are installed, and an operator runs.
//! - `#! the operator starts`, `#! the operator ends`: after the text around the mark has run.
//! - `#= FROM TO`: the reader writes TO in place of FROM.
//! - `#: COMMAND`: the text that follows runs right before this command of the page (its first line).

use std::path::Path;

#[derive(Debug, Default)]
pub struct Stage {
    /// Whether CRDs, permissions and policies are installed.
    pub installed: bool,
    /// Text to run before the page, and then before some of its commands.
    pub scenes: Vec<Scene>,
    written: Vec<(String, String)>,
}

/// A part of a stage.
#[derive(Debug, Default, PartialEq)]
pub struct Scene {
    /// The first line of the command that follows; empty for the first scene.
    pub before: String,
    /// The shell text.
    pub text: String,
    /// Whether an operator runs from then on; `None` changes nothing.
    pub operator: Option<bool>,
}

impl Stage {
    /// Returns the stage of the page of this name; without a file, that of a page that needs nothing.
    pub fn of(page: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/docs/commands/stages");
        Self::parse(&std::fs::read_to_string(folder.join(format!("{page}.sh"))).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let installed = !text.lines().any(|line| line == "#! nothing is installed");
        let mut written = Vec::new();
        let mut scenes = vec![Scene {
            operator: installed.then_some(true),
            ..Scene::default()
        }];
        for line in text.lines() {
            let scene = scenes.last_mut().unwrap();
            match line {
                "#! nothing is installed" => {}
                "#! the operator starts" => scene.operator = Some(true),
                "#! the operator ends" => scene.operator = Some(false),
                _ if line.starts_with("#!") => panic!("{line}: unknown mark"),
                _ => {
                    if let Some(command) = line.strip_prefix("#: ") {
                        scenes.push(Scene {
                            before: command.to_owned(),
                            ..Scene::default()
                        });
                    } else if let Some(pair) = line.strip_prefix("#= ") {
                        let (from, to) = pair.split_once(' ').unwrap();
                        written.push((from.to_owned(), to.to_owned()));
                    } else {
                        scene.text.push_str(line);
                        scene.text.push('\n');
                    }
                }
            }
        }
        Self {
            installed,
            scenes,
            written,
        }
    }

    /// Returns the text as the reader writes it.
    pub fn written(&self, text: &str) -> String {
        self.written
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

#[test]
fn stage_is_parsed() {
    let stage =
        Stage::parse("#= NAME web\nfirst\n#: kubectl get NAME\nthen\n#! the operator ends\n");
    assert!(stage.installed);
    assert_eq!(stage.written("NAME/x"), "web/x");
    let scene = |before: &str, text: &str, operator| Scene {
        before: before.into(),
        text: text.into(),
        operator,
    };
    assert_eq!(
        stage.scenes,
        [
            scene("", "first\n", Some(true)),
            scene("kubectl get NAME", "then\n", Some(false))
        ]
    );
    let bare = Stage::parse("#! nothing is installed\n");
    assert!(!bare.installed && bare.scenes[0].operator.is_none());
}
