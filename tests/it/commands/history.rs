//! `quartermaster history`.

use qm_api::tracked_field::Entry;
use qm_api::tracked_field_set::SET;
use qm_api::{TrackedField, TrackedFieldSet};
use serde_json::{Value, json};

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn history_draws_a_timeline() {
    let (bed, run, _receiver, _operator) = Run::beside_operator("history").await;
    let here = bed.namespace.as_str();
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
        output.contains("column 1: unknown variable valu"),
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
            && output.contains("the namespace has replicas"),
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

#[tokio::test]
async fn history_of_a_set_has_the_newest_entries_of_all_children() {
    let (bed, run, _receiver, _operator) = Run::beside_operator("history-set").await;
    let here = bed.namespace.as_str();
    for name in ["a", "b"] {
        bed.deployment(name, 1).await;
    }
    let spec = json!({ "target": { "kind": "Deployment" }, "fields": ["replicas"], "template": { "contactPoint": "hook" } });
    bed.create::<TrackedFieldSet>("all", json!({ "spec": spec }))
        .await;
    let params = kube::api::ListParams::default().labels(&format!("{SET}=all"));
    let recorded = async |entries: usize| {
        let what = format!("{entries} entries");
        let read = testbed::wait::until(what, crate::support::SOON, async || {
            let children = bed.api::<TrackedField>().list(&params).await?.items;
            let histories = children.iter().map(|child| child.history().unwrap());
            let all: Vec<_> = histories.flatten().collect();
            let is_sent = all.len() == entries && !all.iter().any(Entry::is_pending);
            Ok(is_sent.then_some(children))
        });
        read.await.unwrap()
    };
    recorded(2).await;
    for (name, replicas, entries) in [("b", 2, 3), ("a", 3, 4), ("b", 4, 5)] {
        bed.scale(name, replicas).await;
        recorded(entries).await;
    }
    // The label alone makes no child.
    bed.track("other", "Deployment", "a", "replicas", "elsewhere")
        .await;
    bed.patch::<TrackedField>("other", json!({ "metadata": { "labels": { SET: "all" } } }))
        .await;

    let history = ["history", "tfs/all", "-n", here];
    let text = run.ends(0, &history).await;
    assert!(
        text.starts_with("replicas of 2 TrackedFields, sent to contact point hook\n"),
        "{text}"
    );
    let lines: Vec<_> = text.lines().skip(2).collect();
    let head: Vec<_> = lines[0].split_whitespace().collect();
    assert_eq!(
        head,
        ["TIME", "TARGET", "ACTION", "VALUE", "DELIVERY", "BY"]
    );
    let changes = |lines: &[&str]| -> Vec<String> {
        let updated = lines.iter().filter(|line| line.contains("Updated"));
        let words = |line: &&str| line.split_whitespace().collect::<Vec<_>>()[2..6].join(" ");
        updated.map(words).collect()
    };
    let expected = ["b", "a", "b"]
        .into_iter()
        .zip([2, 3, 4])
        .map(|(name, value)| format!("{here}/{name} Updated {value} Delivered"));
    assert_eq!(changes(&lines), expected.collect::<Vec<_>>());
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("  Initial"))
            .count(),
        2,
        "{text}"
    );
    assert!(text.ends_with("\n\n5 entries\n"), "{text}");

    let json: Value =
        serde_json::from_str(&run.ends(0, &[&history[..], &["-o", "json"]].concat()).await)
            .unwrap();
    let entries = json["history"].as_array().unwrap();
    assert_eq!(entries.len(), 5);
    assert_eq!(
        (&entries[4]["target"]["name"], &entries[4]["entry"]["value"]),
        (&"b".into(), &"4".into())
    );
    let when = ["--when", "number(value) > 2"];
    let text = run.ends(0, &[&history[..], &when].concat()).await;
    let sends = text.lines().filter(|line| line.contains("Updated"));
    let sends: Vec<_> = sends
        .filter_map(|it| it.split_whitespace().last())
        .collect();
    assert_eq!(sends, ["no", "yes", "yes"], "{text}");

    let output = run.ends(1, &["history", "all", "-n", here]).await;
    assert!(
        output.contains("there is no TrackedField all in namespace")
            && output.ends_with("; there is tfs/all\n"),
        "{output}"
    );
    let output = run.ends(1, &["history", "tfs/al", "-n", here]).await;
    assert!(
        output.contains("there is no TrackedFieldSet al in namespace")
            && output.contains("the namespace has all"),
        "{output}"
    );
}

/// The histories are written by the test: no operator runs.
#[tokio::test]
async fn history_of_a_set_shows_two_hundred_entries() {
    let bed = Bed::shared("history-long").await;
    let here = bed.namespace.as_str();
    let spec = json!({ "target": { "kind": "Deployment" }, "fields": ["replicas", "image"], "template": { "contactPoint": "hook" } });
    let set = bed
        .create::<TrackedFieldSet>("all", json!({ "spec": spec }))
        .await;
    let owner = json!([{ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet", "name": "all", "uid": set.metadata.uid, "controller": true }]);
    for child in 0..3 {
        let name = format!("child-{child}");
        bed.track(&name, "Deployment", &name, "replicas", "hook")
            .await;
        let metadata = json!({ "labels": { SET: "all" }, "ownerReferences": owner });
        bed.patch::<TrackedField>(&name, json!({ "metadata": metadata }))
            .await;
        // The entries of the children alternate.
        let entries: Vec<_> = (0..100)
            .map(|at| {
                let second = at * 3 + child;
                let time = jiff::Timestamp::from_second(1_800_000_000 + second).unwrap();
                let delivery = if second < 10 { "Pending" } else { "Delivered" };
                json!({ "time": time, "action": "Updated", "value": second.to_string(), "id": format!("{second}"), "delivery": delivery })
            })
            .collect();
        let status = kube::api::Patch::Merge(json!({ "status": entries }));
        let written = bed
            .api::<TrackedField>()
            .patch_status(&name, &Default::default(), &status)
            .await;
        written.unwrap();
    }
    let text = Run::on(&bed)
        .ends(0, &["history", "tfs/all", "-n", here])
        .await;
    let rows = text.lines().filter(|line| line.contains("Updated"));
    let values: Vec<_> = rows
        .map(|line| line.split_whitespace().nth(5).unwrap().to_owned())
        .collect();
    let expected: Vec<_> = (100..300).map(|value| value.to_string()).collect();
    assert_eq!(values, expected);
    assert!(
        text.ends_with("\nthe newest 200 of 300 entries, 10 changes pending\n"),
        "{text}"
    );
}
