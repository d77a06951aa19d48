//! `make demo`: its output, and its cleanup.

use std::path::Path;
use std::time::Duration;

use testbed::bot_api::{BotApi, Chat, Kind};
use testbed::process::{Child, Folder, Program};
use testbed::wait::until;
use testbed::{ControlPlane, Options};

use crate::support::TOKEN;

/// The demo builds nothing here, and ends after some 20 seconds.
const SHOWN: Duration = Duration::from_mins(20);
/// Objects that the demo creates in a user's cluster, by any of these names.
const DEMO_RESOURCES: &str = "crds,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,\
    validatingadmissionpolicybindings";

/// Returns the command of the demo, which runs the programs built for tests, with its files in this folder.
fn demo(folder: &Folder) -> Program {
    let programs = Path::new(env!("CARGO_BIN_EXE_quartermaster"))
        .parent()
        .unwrap();
    Program::new("bash")
        .arg("hack/demo.sh")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("DEMO_PROGRAMS", programs)
        .env("TMPDIR", folder.path())
}

/// Returns the command of the demo in the cluster of the current context.
fn in_existing_cluster(plane: &ControlPlane, folder: &Folder) -> Program {
    let path = format!(
        "{}:{}",
        plane.binaries().display(),
        std::env::var("PATH").unwrap()
    );
    demo(folder)
        .env("CLUSTER", "current")
        .env("KUBECONFIG", plane.admin_kubeconfig())
        .env("PATH", path)
}

fn run(program: Program, folder: &Folder) -> Child {
    program.spawn(folder.path().join("shown")).unwrap()
}

/// Returns the whole output once the demo has ended.
async fn output(mut demo: Child, succeeds: bool) -> String {
    let status = demo.wait(SHOWN).await.unwrap();
    let text = demo.log_text().unwrap();
    assert_eq!(status.success(), succeeds, "{text}");
    let folder = demo.log().parent().unwrap();
    let left: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    assert_eq!(left, ["shown"], "the files of the demo are deleted");
    text
}

async fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> String {
    plane.run_kubectl(arguments, "").await.unwrap()
}

#[tokio::test]
async fn demo_runs_on_its_own_control_plane() {
    let folder = Folder::new().unwrap();
    // The demo ignores the user's cluster.
    let text = output(
        run(demo(&folder).env("KUBECONFIG", "/nowhere"), &folder),
        true,
    )
    .await;
    for expected in [
        "| Value: 3",
        "web runs nginx:1.29 in place of nginx:1.28",
        "app-stock runs nginx:1.29 in place of nginx:1.28, by kubectl-set",
        "\"telegram-chat\" not found; there is \"telegram-cp\"",
        "{\"colour\":\"green\"}",
        "myapp.demo.rtfm.co.ua/example-app condition met",
        "DeleteLoadBalancer",
        "The demo is complete",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[tokio::test]
#[ignore = "long: run by make test-long"]
async fn demo_runs_in_the_cluster_and_chat_of_a_user() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let before = kubectl(&plane, &["get", DEMO_RESOURCES, "-o", "name"]).await;
    let chat = BotApi::start().unwrap();
    chat.add_token(TOKEN);
    chat.add_chat(Chat::new(Kind::Supergroup, -1_001_234_567_890).unwrap());
    let with_chat = |program: Program| {
        let program = program
            .env("TELEGRAM_TOKEN", TOKEN)
            .env("TELEGRAM_CHAT", "-1001234567890");
        program.env("TELEGRAM_API_URL", chat.url())
    };

    // The demo does not touch a cluster without consent, nor a cluster with Quartermaster.
    let folder = Folder::new().unwrap();
    let text = output(run(in_existing_cluster(&plane, &folder), &folder), false).await;
    assert!(
        text.contains("no terminal to ask on; write YES=1"),
        "{text}"
    );
    kubectl(&plane, &["create", "namespace", "quartermaster-system"]).await;
    let folder = Folder::new().unwrap();
    let text = output(
        run(
            in_existing_cluster(&plane, &folder).env("YES", "1"),
            &folder,
        ),
        false,
    )
    .await;
    assert!(
        text.contains("they exist already:\nnamespace/quartermaster-system"),
        "{text}"
    );
    kubectl(&plane, &["delete", "namespace", "quartermaster-system"]).await;
    assert_eq!(
        kubectl(&plane, &["get", DEMO_RESOURCES, "-o", "name"]).await,
        before
    );

    // An interrupted demo removes its objects.
    let folder = Folder::new().unwrap();
    let mut interrupted = run(
        with_chat(in_existing_cluster(&plane, &folder).env("YES", "1")),
        &folder,
    );
    until("copies", SHOWN, async || {
        interrupted.check_running().unwrap();
        Ok(interrupted
            .log_text()?
            .contains("condition met\n")
            .then_some(()))
    })
    .await
    .unwrap();
    interrupted.terminate().unwrap();
    let text = output(interrupted, false).await;
    assert!(!text.contains("Some objects remain"), "{text}");
    assert_eq!(
        kubectl(&plane, &["get", DEMO_RESOURCES, "-o", "name"]).await,
        before,
        "{text}"
    );

    let folder = Folder::new().unwrap();
    let text = output(
        run(
            with_chat(in_existing_cluster(&plane, &folder).env("YES", "1")),
            &folder,
        ),
        true,
    )
    .await;
    assert!(
        text.contains("in the cluster of your current context")
            && text.contains("The demo is complete"),
        "{text}"
    );
    assert!(!text.contains(TOKEN), "{text}");
    let messages: Vec<_> = chat
        .messages()
        .iter()
        .map(|message| message.text.clone())
        .collect();
    for expected in [
        "Contact point is ready",
        "Value: 3",
        "Value: -1",
        "app-stock runs nginx:1.29",
    ] {
        assert!(
            messages.iter().any(|message| message.contains(expected)),
            "{expected}: {messages:?}"
        );
    }
    let digests = messages.iter();
    let digests: Vec<_> = digests.filter(|it| it.contains("app-")).collect();
    let changes = digests
        .iter()
        .map(|it| it.matches("by kubectl-set").count());
    assert_eq!(changes.collect::<Vec<_>>(), [5], "{digests:?}");
    assert_eq!(
        kubectl(&plane, &["get", DEMO_RESOURCES, "-o", "name"]).await,
        before,
        "{text}"
    );
    // The demo creates nothing in other namespaces.
    let events = kubectl(
        &plane,
        &[
            "get",
            "deployments,configmaps,secrets",
            "-n",
            "default",
            "-o",
            "name",
        ],
    )
    .await;
    assert_eq!(events, "configmap/kube-root-ca.crt\n");
}
