//! A new process and children that changed while no operator ran.

use kube::api::{Patch, PatchParams};

use super::*;
use crate::support::{Operator, Settings};

const CONTAINER: &str = "/spec/template/spec/containers/0";

async fn scale(bed: &Bed, name: &str, replicas: i32) {
    let by = PatchParams {
        field_manager: Some("their-autoscaler".into()),
        ..PatchParams::default()
    };
    let scale = json!({ "spec": { "replicas": replicas } });
    bed.api::<Deployment>()
        .patch_scale(name, &by, &Patch::Merge(scale))
        .await
        .unwrap();
}

fn sized(size: i32) -> impl Fn(&Deployment) -> bool {
    move |deployment| deployment.spec.as_ref().unwrap().replicas == Some(size)
}

/// Only the second correction and later ones are delayed, by an hour each. A user's change is not delayed, and the
/// operator writes the statuses of all apps.
#[tokio::test]
async fn change_applies_at_once_while_other_children_wait_for_confirmation() {
    let bed = Bed::shared("turns").await;
    let mut operator =
        Operator::start(&bed, Settings::default().flag("--confirmation-period=1h")).await;
    let names = ["a", "b", "c", "d", "e"];
    let spec = |image: &str| json!({ "size": 1, "image": image });
    for name in names {
        app(&bed, name, spec("nginx:1.7.9")).await;
        ready(&bed, name).await;
    }
    operator.kill();
    for name in names {
        scale(&bed, name, 2).await;
    }
    for name in names {
        let runs = |deployment: &Deployment| {
            deployment.status.as_ref().unwrap().available_replicas == Some(2)
        };
        bed.until(name, "runs two Pods", runs).await;
    }
    operator.restart();
    operator.ready().await;
    let mut waiting = Vec::new();
    for name in names {
        until(
            format!("{name} is corrected or has a new status"),
            SOON,
            async || {
                let app: AppService = bed.api().get(name).await?;
                let waits = app.status.unwrap().replicas == Some(2);
                Ok((waits || sized(1)(&deployment(&bed, name).await)).then_some(()))
            },
        )
        .await
        .unwrap();
        if sized(2)(&deployment(&bed, name).await) {
            waiting.push(name);
        }
    }
    let [respecced, requested, edited, labelled] = waiting[..] else {
        panic!("no app was corrected: {waiting:?}")
    };

    let image = |deployment: &Deployment| {
        deployment
            .spec
            .as_ref()
            .unwrap()
            .template
            .spec
            .as_ref()
            .unwrap()
            .containers[0]
            .image
            .clone()
    };
    respec(&bed, respecced, spec("nginx:1.8")).await;
    bed.until(respecced, "has its new image and size", |it| {
        image(it).as_deref() == Some("nginx:1.8") && sized(1)(it)
    })
    .await;
    bed.kubectl(&[
        "annotate",
        "appsvc",
        requested,
        "quartermaster.dev/requested-at=now",
    ])
    .await;
    bed.until(requested, "has its size again", sized(1)).await;
    let evil =
        json!([{ "op": "replace", "path": format!("{CONTAINER}/image"), "value": "nginx:evil" }]);
    bed.kubectl(&[
        "patch",
        "deployment",
        edited,
        "--type=json",
        "-p",
        &evil.to_string(),
    ])
    .await;
    bed.until(edited, "has its image and size again", |it| {
        image(it).as_deref() == Some("nginx:1.7.9") && sized(1)(it)
    })
    .await;

    // The last app waits: waking it causes no request about its Deployment.
    let since = bed.plane.audit().mark().await.unwrap();
    bed.kubectl(&["label", "appsvc", labelled, "team=theirs"])
        .await;
    let marker = format!("{MARKER}{labelled}");
    app(&bed, &marker, json!({ "size": 0, "image": "i" })).await;
    bed.until(&marker, "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;
    let requests = bed.operator_requests(since).await;
    let sent_requests: Vec<_> = requests
        .filter(|it| it.resource == "deployments" && it.name == labelled)
        .map(|it| it.verb)
        .collect();
    assert!(sent_requests.is_empty(), "{sent_requests:?}");
    assert!(
        sized(2)(&deployment(&bed, labelled).await),
        "{labelled} still waits"
    );
}

/// A restart neither ends the contest in the status nor emits its Event again.
#[tokio::test]
async fn app_stays_contested_over_a_restart_without_an_event() {
    let bed = Bed::shared("recontested").await;
    let flags = ["--drift-backoff-min=50ms", "--drift-backoff-max=30m"];
    let settings = flags
        .iter()
        .fold(Settings::default(), |settings, flag| settings.flag(flag));
    let mut operator = Operator::start(&bed, settings).await;
    app(&bed, "web", json!({ "size": 0, "image": "nginx:1.7.9" })).await;
    ready(&bed, "web").await;
    for replicas in [2, 3, 4] {
        scale(&bed, "web", replicas).await;
        bed.until("web", "has its size again", sized(0)).await;
    }
    not_ready(&bed, "web", "DriftContested").await;
    let condition = async || {
        let ready = ready_condition(&bed.api::<AppService>().get("web").await.unwrap())
            .cloned()
            .unwrap();
        (ready.reason, ready.message, ready.last_transition_time)
    };
    let before = condition().await;
    let corrections = async || {
        let mut corrections = Vec::new();
        for reason in ["Ready", "DriftContested", "DriftCorrected"] {
            let events = bed.events("web", reason).await;
            corrections.push(
                events
                    .iter()
                    .map(|it| 1 + it.series.as_ref().map_or(0, |series| series.count))
                    .sum::<i32>(),
            );
        }
        corrections
    };
    bed.event("web", "DriftContested").await;
    let events = corrections().await;
    for _ in 0..2 {
        operator.kill();
        operator.restart();
        operator.ready().await;
        reconciled(&bed, "web").await;
        assert_eq!(condition().await, before);
    }

    // The next correction of the restarted process belongs to the same contest.
    operator.kill();
    operator.restart();
    operator.ready().await;
    scale(&bed, "web", 5).await;
    bed.until("web", "has its size again", sized(0)).await;
    // A reconcile of another app, requested later, has ended: so has this one's.
    app(&bed, "marker-last", json!({ "size": 0, "image": "i" })).await;
    bed.until("marker-last", "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;
    assert_eq!(condition().await, before);
    assert_eq!(corrections().await, events);
}
