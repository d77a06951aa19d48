//! `quartermaster history`.

use serde_json::Value;
use testbed::receiver::Receiver;

use super::Run;
use crate::support::{Bed, Operator, Settings};

#[tokio::test]
async fn history_draws_a_timeline() {
    let bed = Bed::shared("history").await;
    let run = Run::on(&bed);
    let here = bed.namespace.as_str();
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 2).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("replicas", &[("Created", Some("2"))]).await;
    bed.scale("web", 4).await;
    bed.delivered(
        "replicas",
        &[("Created", Some("2")), ("Updated", Some("4"))],
    )
    .await;

    let text = run.ends(0, &["history", "tf/replicas", "-n", here]).await;
    assert!(
        text.starts_with(&format!(
            "replicas of Deployment {here}/web, sent to contact point hook\n"
        )),
        "{text}"
    );
    let line = |action: &str| {
        text.lines()
            .find(|line| line.contains(action))
            .unwrap()
            .to_owned()
    };
    let bar = |line: &str| line.chars().filter(|c| *c == '▇').count();
    assert_eq!(
        (bar(&line("Created")), bar(&line("Updated"))),
        (12, 24),
        "{text}"
    );
    assert!(
        line("Updated").contains("  Delivered  ") && text.ends_with("\n2 changes in 2 entries\n"),
        "{text}"
    );

    let when = [
        "--when",
        "action == 'Updated' && number(value) > number(previous)",
    ];
    let arguments = ["history", "replicas", "-n", here];
    let text = run.ends(0, &[&arguments[..], &when].concat()).await;
    let sends = |action: &str| {
        let line = text.lines().find(|line| line.contains(action)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(
        (&*sends("Created"), &*sends("Updated")),
        ("no", "yes"),
        "{text}"
    );
    let arguments = ["history", "replicas", "-n", here, "-o", "json"];
    let json: Value =
        serde_json::from_str(&run.ends(0, &[&arguments[..], &when].concat()).await).unwrap();
    assert_eq!(json["sends"], serde_json::json!([false, true]));
    let invalid = ["history", "replicas", "-n", here, "--when", "valu == '1'"];
    let output = run.ends(2, &invalid).await;
    assert!(
        output.contains("column 1: there is no variable valu"),
        "{output}"
    );

    let json: Value = serde_json::from_str(
        &run.ends(0, &["history", "replicas", "-n", here, "-o", "json"])
            .await,
    )
    .unwrap();
    assert_eq!(
        (&json["history"][1]["value"], &json["target"]["name"]),
        (&"4".into(), &"web".into())
    );

    let output = run.ends(1, &["history", "tf/replica", "-n", here]).await;
    assert!(
        output.contains("there is no TrackedField replica in namespace")
            && output.contains("there is replicas"),
        "{output}"
    );
    let output = run
        .ends(1, &["history", "tf/replicas", "-n", "default"])
        .await;
    assert!(
        output.contains("no TrackedField replicas in namespace default")
            && output.contains(&format!("-n {here}")),
        "{output}"
    );
    let output = run.ends(2, &["history", "cp/hook", "-n", here]).await;
    assert!(output.contains("only these have a history"), "{output}");
}
