//! An apiserver that is away for a moment.

use http::StatusCode;
use quartermaster::registry;
use testbed::process::Folder;
use testbed::proxy::{Fault, Match, Proxy, Times, Verb};

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn it_ends_neither_what_is_watched_nor_a_purge() {
    let options = testbed::Options { controller_manager: true, ..testbed::Options::apiserver_only() };
    let bed = Bed::own_with(options, "blip").await;
    // The proxy is for who has a token.
    bed.kubectl(&["create", "serviceaccount", "boss"]).await;
    let account = format!("--serviceaccount={}:boss", bed.namespace);
    bed.kubectl(&["create", "clusterrolebinding", "boss", "--clusterrole=cluster-admin", &account]).await;
    let direct = bed.plane.kubeconfig_for_service_account(&bed.namespace, "boss").await.unwrap();
    let proxy = Proxy::for_kubeconfig(&std::fs::read_to_string(&direct).unwrap()).unwrap();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("kubeconfig");
    proxy.write_kubeconfig(&direct, &file).unwrap();
    let run = Run::on(&bed).kubeconfig(file);
    // Others are tried again below the commands.
    let away = || Fault::status(StatusCode::INTERNAL_SERVER_ERROR);

    bed.webhook("first", "http://127.0.0.1:1").await;
    let mut watch = run.start(&["status", "--watch", "--interval=50ms"]);
    watch.says("contactpoint/first").await;
    proxy.inject(Match::verb(Verb::List).resource("trackedfields"), Times::First(2), away());
    watch.says("the cluster does not answer, which is tried again: the trackedfields could not be listed").await;
    bed.webhook("second", "http://127.0.0.1:1").await;
    watch.says("contactpoint/second").await;
    drop(watch);

    // Each is read once before it begins.
    let kinds = u64::try_from(registry::KINDS.len()).unwrap();
    let crds = "customresourcedefinitions";
    let read = proxy.inject(Match::verb(Verb::Get).resource(crds), Times::Nth(kinds + 1), away());
    let delete = proxy.inject(Match::verb(Verb::Delete).resource(crds), Times::First(1), away());
    let said = run.ends(0, &["uninstall", "--yes", "--purge"]).await;
    assert!(said.contains("the cluster does not answer, which is tried again: "), "{said}");
    assert!(said.starts_with("Cluster: context ") && said.contains(&proxy.url()), "{said}");
    assert!(said.ends_with("All is gone.\n"), "{said}");
    assert_eq!((read.hits(), delete.hits()), (1, 1));
    assert_eq!(bed.kubectl(&["get", "crds", "-o", "name"]).await, "");
}
