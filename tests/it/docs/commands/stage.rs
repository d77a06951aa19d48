//! What is there when a page is read: `stages/PAGE.sh`.
//!
//! A stage is shell text. What stands before the first mark of a command is run before the page. The marks:
//! - `#! nothing is installed`: otherwise CRDs, rights and policies are there, and an operator runs.
//! - `#! the operator starts`, `#! the operator ends`: once the text around it was run.
//! - `#= FROM TO`: what the reader writes in place of FROM.
//! - `#: COMMAND`: what follows is run right before this command of the page (its first line).

use std::path::Path;

/// A page's stage.
#[derive(Debug, Default)]
pub struct Stage {
    /// Whether CRDs, rights and policies are there.
    pub installed: bool,
    /// What is run before the page, and then before some of its commands.
    pub scenes: Vec<Scene>,
    written: Vec<(String, String)>,
}

/// A part of it.
#[derive(Debug, Default, PartialEq)]
pub struct Scene {
    /// The first line of the command that comes then; of the first scene nothing.
    pub before: String,
    /// What is run.
    pub text: String,
    /// Whether an operator is to run from then on; without it nothing changes.
    pub operator: Option<bool>,
}

impl Stage {
    /// That of the page of this name; without a file, that of a page which needs nothing.
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
                _ if line.starts_with("#!") => panic!("{line}: there is no such mark"),
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

    /// What the reader writes.
    pub fn written(&self, text: &str) -> String {
        self.written
            .iter()
            .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

#[test]
fn a_stage_is_read() {
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
