//! The chart on a cluster: after the original programs, upgrade, rollback, and uninstall.

use std::sync::Arc;

use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress};
use qm_core::kind::KindInfo;
use serde_json::json;
use testbed::aws::Aws;
use testbed::wait::until;
use testbed::{Options, kubelet};

use super::chart::{CHART, helm};
use super::*;
use crate::support::{Operator, Plane, SOON, SYSTEM, bot_api};

/// A cluster without Quartermaster, and helm for it.
pub struct Site {
    pub bed: Bed,
    pub telegram: testbed::bot_api::BotApi,
    aws: Aws,
    home: Folder,
}

impl Site {
    pub async fn new() -> Self {
        let plane = Plane::Own(Arc::new(
            ControlPlane::start(Options::default()).await.unwrap(),
        ));
        let bed = Bed {
            client: plane.client().await.unwrap(),
            plane,
            namespace: "default".into(),
        };
        Self {
            bed,
            telegram: bot_api(),
            aws: Aws::start().await.unwrap(),
            home: Folder::new().unwrap(),
        }
    }

    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        self.bed.plane.run_kubectl(arguments, "").await.unwrap()
    }

    /// Runs helm; returns whether helm succeeded, and its output.
    async fn helm(&self, arguments: &[&str]) -> (bool, String) {
        helm_on(&self.bed.plane, &self.home, arguments).await
    }

    pub async fn done(&self, arguments: &[&str]) -> String {
        let (done, output) = self.helm(arguments).await;
        assert!(done, "{arguments:?}: {output}");
        output
    }

    /// Returns the values that point to the fakes outside of the cluster.
    pub fn outside(&self) -> String {
        let telegram = (
            "QUARTERMASTER_TELEGRAM_API_URL".to_owned(),
            self.telegram.url(),
        );
        let values = [telegram].into_iter().chain(self.aws.env()).enumerate();
        let value = |(at, (name, value))| {
            format!("extraEnv[{at}].name={name},extraEnv[{at}].value={value}")
        };
        values.map(value).collect::<Vec<_>>().join(",")
    }
}

/// Runs helm on this cluster; returns whether helm succeeded, and its output.
async fn helm_on(plane: &ControlPlane, home: &Folder, arguments: &[&str]) -> (bool, String) {
    let mut command = tree_command(helm().await);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    command
        .env("KUBECONFIG", plane.admin_kubeconfig())
        .args(arguments);
    result_of(&command.output().await.unwrap())
}

/// Number of `TrackedField`s that the example of a set owns: one for each Deployment of the examples.
const SET_CHILDREN: usize = 2;

#[tokio::test]
async fn chart_installs_upgrades_rolls_back_and_uninstalls() {
    let site = Site::new().await;
    let (bed, aws) = (&site.bed, &site.aws);
    let kubectl = async |arguments: &[&str]| site.kubectl(arguments).await;
    let done = async |arguments: &[&str]| site.done(arguments).await;
    let args = async || {
        let path = "jsonpath={.spec.template.spec.containers[0].args}";
        kubectl(&["-n", SYSTEM, "get", "deploy", DEPLOYMENT, "-o", path]).await
    };
    let crds = async || kubectl(&["get", "crd", "-o", "name"]).await.lines().count();

    // Document 000's program was installed here.
    bed.apply(include_str!("../crds/original.yaml")).await;
    let theirs = r#"{"apiVersion": "tg.azamaton.ru/v1", "kind": "ContactPoint", "metadata": {"name": "theirs"}, "spec":
        {"type": "Telegram", "apiToken": {"secretName": "no", "key": "no"}, "telegramSpec": {"chatId": 1}}}"#;
    bed.plane
        .run_kubectl(&["apply", "-f", "-"], theirs)
        .await
        .unwrap();
    let values = site.outside();
    let install = [
        "install",
        "quartermaster",
        CHART,
        "-n",
        SYSTEM,
        "--create-namespace",
        "--set-string",
        &values,
    ];
    let (succeeded, output) = site.helm(&install).await;
    assert!(
        !succeeded
            && output
                .contains("add --take-ownership --force-conflicts --set crds.takeOwnership=true"),
        "{output}"
    );
    let output = done(
        &[
            &install[..],
            &[
                "--take-ownership",
                "--force-conflicts",
                "--set",
                "crds.takeOwnership=true",
            ],
        ]
        .concat(),
    )
    .await;
    assert!(
        output.contains("STATUS: deployed") && output.contains("rollout status deployment/"),
        "{output}"
    );
    assert_eq!(crds().await, controllers::KINDS.len());
    bed.api::<ContactPoint>().get("theirs").await.unwrap();
    let operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;
    assert_eq!(operators.len(), 2);
    wait_for_examples(bed).await;
    drop(operators);

    // Upgrade and rollback.
    let installed = args().await;
    let output = done(&[
        "upgrade",
        "quartermaster",
        CHART,
        "-n",
        SYSTEM,
        "--reuse-values",
        "--set",
        "clusterName=prod",
    ])
    .await;
    assert!(output.contains("STATUS: deployed"), "{output}");
    assert!(args().await.contains("--cluster-name=prod"));
    // An override of the full name does not make another release.
    let renamed = [
        "upgrade",
        "quartermaster",
        CHART,
        "-n",
        SYSTEM,
        "--reuse-values",
        "--set",
        "fullnameOverride=qm",
    ];
    let output = done(&[&renamed[..], &["--dry-run=server"]].concat()).await;
    assert!(
        output.contains("name: qm-controller-manager\n") && !output.contains("may act in the same"),
        "{output}"
    );
    let operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;
    done(&["rollback", "quartermaster", "1", "-n", SYSTEM]).await;
    assert_eq!(args().await, installed);
    drop(operators);
    let operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;

    second_release_installs_beside_the_first(&site).await;

    // Uninstall: users' objects stay, and so do the CRDs.
    let kinds: Vec<_> = controllers::KINDS.iter().map(KindInfo::crd_name).collect();
    let kinds = &*kinds.join(",");
    let before = kubectl(&["get", kinds, "-A", "-o", "name"]).await;
    // The cluster has a second contact point, and the set has TrackedFields.
    let objects = controllers::KINDS.len() + 1 + SET_CHILDREN;
    assert_eq!(before.lines().count(), objects, "{before}");
    // The permissions are deleted while the operator runs.
    bed.plane.audit().expect_refusals().unwrap();
    done(&["uninstall", "quartermaster", "-n", SYSTEM]).await;
    drop(operators);
    assert_eq!(
        (
            crds().await,
            kubectl(&["get", kinds, "-A", "-o", "name"]).await
        ),
        (controllers::KINDS.len(), before)
    );
    let names = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
    let left = kubectl(&["get", names, "-o", "name"]).await;
    assert!(!left.contains("quartermaster"), "{left}");
    let (shop, myingress) = (
        kubectl(&["-n", "shop", "get", "cm", "settings", "-o", "name"]).await,
        aws.balancers().await.unwrap(),
    );
    assert_eq!((shop.trim(), myingress.len()), ("configmap/settings", 1));

    // CRDs that a release left behind may belong to another one, although other objects of it exist.
    kubectl(&["-n", SYSTEM, "create", "deployment", "web", "--image=nginx"]).await;
    let release_annotations = [
        "meta.helm.sh/release-name=quartermaster",
        &format!("meta.helm.sh/release-namespace={SYSTEM}"),
    ];
    kubectl(&[
        "-n",
        SYSTEM,
        "annotate",
        "deployment",
        "web",
        release_annotations[0],
        release_annotations[1],
    ])
    .await;
    let another = [
        "install",
        "another",
        CHART,
        "-n",
        "another",
        "--create-namespace",
        "--dry-run=server",
    ];
    let (succeeded, output) = site.helm(&another).await;
    let take = [
        "--take-ownership",
        "--force-conflicts",
        "--set",
        "crds.takeOwnership=true",
    ];
    assert!(
        !succeeded
            && output.contains(
                "its release quartermaster in quartermaster-system has no Deployment any more"
            ),
        "{output}"
    );
    assert!(
        output.contains(&format!("add {}", take.join(" "))),
        "{output}"
    );
    done(&[&another[..], &take].concat()).await;

    // A new install adopts the remaining objects, once the objects that were installed without helm are deleted.
    kubectl(&["apply", "-k", &format!("{ROOT}/config/default")]).await;
    let delete = ["-n", SYSTEM, "delete", "deployment", DEPLOYMENT];
    let elsewhere = [
        "install",
        "quartermaster",
        CHART,
        "-n",
        "another",
        "--create-namespace",
    ];
    let without_crds = [&elsewhere[..], &["--set", "crds.install=false"]].concat();
    for install in [&install[..], &elsewhere, &another, &without_crds] {
        let (succeeded, output) = site.helm(&[install, &take].concat()).await;
        assert!(
            !succeeded && output.contains(&format!("(kubectl {})", delete.join(" "))),
            "{install:?}: {output}"
        );
    }
    kubectl(&delete).await;
    let output = done(&[&another[..], &["--set", "crds.install=false"]].concat()).await;
    assert!(
        output.contains("Warning: the install with ClusterRole quartermaster-manager-role may act"),
        "{output}"
    );
    let output = done(&[&install[..], &["--take-ownership", "--force-conflicts"]].concat()).await;
    assert!(!output.contains("may act in the same"), "{output}");
    let _operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "--timeout=600s",
        "configmapsync/configmapsync-sample",
        "myingress/myapp",
    ])
    .await;
    assert_eq!(aws.balancers().await.unwrap().len(), 1);
}

/// A second release beside an existing one, with various values.
async fn second_release_installs_beside_the_first(site: &Site) {
    let theirs = "release quartermaster in quartermaster-system, which is installed";
    let take = [
        "--take-ownership",
        "--force-conflicts",
        "--set",
        "crds.takeOwnership=true",
    ];
    let install = |name| {
        [
            "install",
            name,
            CHART,
            "-n",
            "another",
            "--create-namespace",
        ]
    };
    let what = "crd,clusterroles,clusterrolebindings,validatingadmissionpolicies,deployments,serviceaccounts";
    let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid,VERSION:.metadata.resourceVersion";
    let ours = async || {
        let all = site
            .kubectl(&["get", what, "-n", SYSTEM, "-o", columns])
            .await;
        // The cluster writes the status of a Deployment.
        let ours = |line: &&str| {
            line.starts_with("CustomResourceDefinition ")
                || line.contains("quartermaster") && !line.starts_with("Deployment ")
        };
        all.lines()
            .filter(ours)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = ours().await;
    assert!(before.len() > 4 * controllers::KINDS.len(), "{before:?}");
    for name in ["another", "quartermaster"] {
        for more in [&[][..], &take] {
            let (succeeded, output) = site.helm(&[&install(name)[..], more].concat()).await;
            assert!(
                !succeeded && output.contains(&format!("belongs to {theirs}")),
                "{output}"
            );
            assert!(
                output.contains("add --set crds.install=false") && !output.contains("take"),
                "{output}"
            );
        }
    }
    let none =
        "crds.install=false,rbac.create=false,rbac.userRoles=false,admissionPolicies.enabled=false";
    for (value, namespace, what) in [
        (
            "rbac.create=true",
            "another",
            "ClusterRole quartermaster-manager-role",
        ),
        (
            "rbac.userRoles=true",
            "another",
            "ClusterRole quartermaster-contactpoint-viewer-role",
        ),
        (
            "admissionPolicies.enabled=true",
            "another",
            "ValidatingAdmissionPolicy quartermaster-operator-policy",
        ),
        (
            "replicas=2",
            SYSTEM,
            "Deployment quartermaster-controller-manager",
        ),
    ] {
        let values = format!("{none},fullnameOverride=quartermaster,{value}");
        let install = [
            "install",
            "another",
            CHART,
            "-n",
            namespace,
            "--create-namespace",
            "--set",
            &values,
        ];
        let (succeeded, output) = site.helm(&[&install[..], &take].concat()).await;
        let expected = format!("{what} belongs to {theirs}: give this release another name");
        assert!(
            !succeeded && output.contains(&expected),
            "{value}: {output}"
        );
    }
    let install_there = ["install", "another", CHART, "-n", SYSTEM, "--set", none];
    let (succeeded, output) = site.helm(&install_there).await;
    assert!(
        !succeeded
            && output.contains("uses the Lease quartermaster, and only one of the two would act"),
        "{output}"
    );
    assert_eq!(ours().await, before);

    // The first release acts in the whole cluster: a second release reports that.
    for (values, uninstall) in [
        (
            "crds.install=false",
            "quartermaster uninstall -n NAMESPACE --operator-namespace=another\n",
        ),
        (
            "crds.install=false,watchNamespaces={another}",
            "quartermaster uninstall -n another --operator-namespace=another\n",
        ),
    ] {
        let dry = ["--dry-run=server", "--set", values];
        let output = site.done(&[&install("another")[..], &dry].concat()).await;
        let notes = output.split_once("\nNOTES:\n").unwrap().1;
        assert!(
            notes.contains(
                "Warning: quartermaster in quartermaster-system may act in the same namespaces"
            ),
            "{notes}"
        );
        assert!(notes.contains("this release installs none"), "{notes}");
        assert!(
            notes.contains(uninstall) && !notes.contains("--purge"),
            "{notes}"
        );
    }

    site.done(
        &[
            &install("another")[..],
            &["--set", "crds.install=false,watchNamespaces={another}"],
        ]
        .concat(),
    )
    .await;
    site.done(&["uninstall", "another", "-n", "another"]).await;
}

/// With permissions only in its namespace, the operator works there and sends no forbidden request.
#[tokio::test]
async fn namespaced_install_works_without_forbidden_requests() {
    let site = Site::new().await;
    site.kubectl(&["create", "namespace", "team"]).await;
    site.kubectl(&["create", "namespace", "others"]).await;
    let (values, name) = (site.outside(), "team-quartermaster-controller-manager");
    let install = [
        "install",
        "team",
        CHART,
        "-n",
        "ops",
        "--create-namespace",
        "--set-string",
        &values,
    ];
    let output = site
        .done(
            &[
                &install[..],
                &[
                    "--set",
                    "watchNamespaces={team},replicas=1,leaderElection.id=team",
                ],
            ]
            .concat(),
        )
        .await;
    let alone = "Warning: team in ops may act in the same namespaces";
    assert!(!output.contains("may act in the same"), "{output}");
    for (values, reported) in [("watchNamespaces={others}", false), ("replicas=2", true)] {
        let values = format!("crds.install=false,{values}");
        let beside = [
            "install",
            "beside",
            CHART,
            "-n",
            "others",
            "--dry-run=server",
            "--set",
            &values,
        ];
        let output = site.done(&beside).await;
        assert_eq!(
            (
                output.contains(alone),
                output.contains("may act in the same")
            ),
            (reported, reported),
            "{values}: {output}"
        );
    }
    let since = site.bed.plane.audit().mark().await.unwrap();
    let operators = Operator::installed(&site.bed.plane, "ops", name).await;
    assert_eq!(operators.len(), 1);
    // In one namespace, each release has a Lease.
    let values = "crds.install=false,watchNamespaces={others}";
    let beside = [
        "install",
        "beside",
        CHART,
        "-n",
        "ops",
        "--dry-run=server",
        "--set",
        values,
    ];
    let (succeeded, output) = site
        .helm(&[&beside[..], &["--set", "leaderElection.id=team"]].concat())
        .await;
    let expected = format!(
        "leaderElection.id: Deployment {name} of this namespace uses the Lease team, and only one"
    );
    assert!(!succeeded && output.contains(&expected), "{output}");
    // An operator that acts without leader election has no Lease.
    let alone =
        "crds.install=false,watchNamespaces={others},replicas=1,leaderElection.enabled=false";
    site.done(&["install", "alone", CHART, "-n", "ops", "--set", alone])
        .await;
    site.done(&beside).await;

    let bed = Bed {
        plane: site.bed.plane.clone(),
        client: site.bed.client.clone(),
        namespace: "team".into(),
    };
    bed.kubectl(&[
        "create",
        "configmap",
        "settings",
        "--from-literal=colour=blue",
    ])
    .await;
    // An object that all namespaces share.
    let (plane, client) = (bed.plane.clone(), bed.client.clone());
    Bed {
        plane,
        client,
        namespace: "ops".into(),
    }
    .secret("shared", TOKEN)
    .await;
    let token = json!({ "secretName": "shared", "key": "token" });
    bed.point(
        "chat",
        json!({ "type": "Telegram", "telegramSpec": { "chatId": 12_345_678 }, "apiToken": token }),
    )
    .await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "chat")
        .await;
    let copy = json!({ "sourceNamespace": "team", "destinationNamespace": "team", "configMapName": "settings",
        "destinationName": "copied" });
    bed.create::<ConfigMapSync>("copy", json!({ "spec": copy }))
        .await;
    bed.create::<MyApp>(
        "app",
        json!({ "spec": { "image": "nginx:latest", "banner": "here" } }),
    )
    .await;
    let spec = json!({ "size": 1, "image": "nginx", "ports": [{ "port": 80, "targetPort": 80 }] });
    bed.create::<AppService>("shop", json!({ "spec": spec }))
        .await;
    let subnets = json!({ "subnets": ["subnet-abc", "subnet-def"] });
    bed.create::<MyIngress>("front", json!({ "spec": subnets }))
        .await;
    let is_ready = [
        "contactpoint/chat",
        "configmapsync/copy",
        "myapp/app",
        "appservice/shop",
        "myingress/front",
    ];
    bed.kubectl(
        &[
            &["wait", "--for=condition=Ready", "--timeout=600s"],
            &is_ready[..],
        ]
        .concat(),
    )
    .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;

    let account = format!("system:serviceaccount:ops:{name}");
    let requests = site.bed.plane.audit().requests(since).await.unwrap();
    let ours: Vec<_> = requests
        .into_iter()
        .filter(|request| request.subject.user == account)
        .collect();
    let refused: Vec<_> = ours.iter().filter(|request| request.lacked_right).collect();
    assert!(ours.len() > 20 && refused.is_empty(), "{refused:?}");
    // kubectl fails if the answer is no.
    for (namespace, may) in [("team", true), ("others", false)] {
        let asked = [
            "auth", "can-i", "list", "pods", "-n", namespace, "--as", &account,
        ];
        let answer = site.bed.plane.run_kubectl(&asked, "").await;
        assert_eq!(answer.is_ok(), may, "{namespace}: {answer:?}");
    }
}

/// A user with all permissions in one namespace, and none outside, installs an operator for this namespace.
#[tokio::test]
async fn admin_of_one_namespace_may_install_there() {
    let Bed {
        plane, namespace, ..
    } = Bed::shared("tenant").await;
    let (home, user) = (Folder::new().unwrap(), format!("tenant.{namespace}"));
    let kubectl = async |arguments: &[&str]| plane.run_kubectl(arguments, "").await;
    let admin = [
        "-n",
        &namespace,
        "create",
        "rolebinding",
        "tenant",
        "--clusterrole=admin",
        "--user",
        &user,
    ];
    kubectl(&admin).await.unwrap();
    until("they may", SOON, async || {
        kubectl(&[
            "-n",
            &namespace,
            "auth",
            "can-i",
            "create",
            "deployments",
            "--as",
            &user,
        ])
        .await
        .map(Some)
    })
    .await
    .unwrap();
    kubectl(&["auth", "can-i", "get", "crd", "--as", &user])
        .await
        .unwrap_err();
    let values = format!(
        "crds.install=false,rbac.create=false,rbac.userRoles=false,admissionPolicies.enabled=false,watchNamespaces={{{namespace}}}"
    );
    for way in [
        &["install", "team", CHART, "--set", &values][..],
        &["upgrade", "team", CHART, "--set", &values],
        &["uninstall", "team"],
    ] {
        let (done, output) = helm_on(
            &plane,
            &home,
            &[way, &["-n", &namespace, "--kube-as-user", &user]].concat(),
        )
        .await;
        assert!(done, "{way:?}: {output}");
    }
}

/// If CRDs are deleted with the release, their objects are deleted first, while the operator runs; a blocked deletion
/// keeps the whole release.
#[tokio::test]
#[ignore = "long: run by make test-long"]
async fn crds_of_the_release_are_deleted_after_their_objects() {
    let site = Site::new().await;
    let (bed, aws) = (&site.bed, &site.aws);
    let values = site.outside();
    let install = [
        "install",
        "quartermaster",
        CHART,
        "-n",
        SYSTEM,
        "--create-namespace",
        "--set-string",
        &values,
    ];
    site.done(&[&install[..], &["--set", "crds.keep=false"]].concat())
        .await;
    let _operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;
    wait_for_examples(bed).await;
    let uninstall = ["uninstall", "quartermaster", "-n", SYSTEM];
    leaving_crds_out_deletes_nothing(&site).await;

    let balancer = aws.balancers().await.unwrap().remove(0);
    aws.protect(&balancer.arn, true).await.unwrap();
    let job = async |timeout: &str| {
        let container = kubelet::job(&bed.plane, SYSTEM, "quartermaster-uninstall", SOON)
            .await
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quartermaster"));
        let args = container.args.iter().map(|arg| {
            if arg.starts_with("--timeout") {
                timeout
            } else {
                arg
            }
        });
        command
            .args(args)
            .envs(container.env)
            .env("KUBECONFIG", &container.kubeconfig);
        let (is_ready, output) = result_of(&command.output().await.unwrap());
        kubelet::end(&bed.plane, SYSTEM, &container.pod, is_ready)
            .await
            .unwrap();
        output
    };
    let ((uninstalled, _), output) = tokio::join!(site.helm(&uninstall), job("--timeout=30s"));
    assert!(
        !uninstalled && output.contains("DeletionProtected"),
        "{output}"
    );
    let kept = [
        "get",
        "deployment,serviceaccount,crd",
        "-n",
        SYSTEM,
        "-o",
        "name",
    ];
    let kept = site.kubectl(&kept).await;
    assert!(
        kept.contains(DEPLOYMENT) && kept.contains("myingresses.demo.rtfm.co.ua"),
        "{kept}"
    );

    // The permissions are deleted while the operator runs.
    bed.plane.audit().expect_refusals().unwrap();
    aws.protect(&balancer.arn, false).await.unwrap();
    let ((uninstalled, helms), output) = tokio::join!(site.helm(&uninstall), job("--timeout=4m"));
    assert!(uninstalled, "{helms}\n{output}");
    assert_eq!(aws.balancers().await.unwrap(), []);
    assert_eq!(
        site.kubectl(&[
            "-n",
            "shop",
            "get",
            "configmap",
            "settings",
            "--ignore-not-found"
        ])
        .await,
        ""
    );
    let names = "crd,clusterroles,clusterrolebindings,validatingadmissionpolicies";
    let left = site.kubectl(&["get", names, "-o", "name"]).await;
    assert!(!left.contains("quartermaster"), "{left}");
    assert!(!left.contains("customresourcedefinition"), "{left}");
    let left = site
        .kubectl(&[
            "-n",
            SYSTEM,
            "get",
            "all,serviceaccounts,roles,rolebindings",
            "-o",
            "name",
        ])
        .await;
    assert!(!left.contains("quartermaster"), "{left}");
}

/// CRDs that a later release leaves out stay with their objects, although the release would delete its CRDs; where helm
/// would delete them, the chart fails.
async fn leaving_crds_out_deletes_nothing(site: &Site) {
    let kinds: Vec<_> = controllers::KINDS.iter().map(KindInfo::crd_name).collect();
    let (what, uid) = (
        format!("crd,{}", kinds.join(",")),
        "custom-columns=KIND:.kind,NAME:.metadata.name,UID:.metadata.uid",
    );
    let there = async || site.kubectl(&["get", &what, "-A", "-o", uid]).await;
    let upgrade = [
        "upgrade",
        "quartermaster",
        CHART,
        "-n",
        SYSTEM,
        "--reuse-values",
        "--set",
    ];
    let before = there().await;
    assert_eq!(
        before
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("KIND"))
            .count(),
        2 * kinds.len() + SET_CHILDREN,
        "{before}"
    );

    let annotate = ["annotate", "crd", "contactpoints.tg.azamaton.ru"];
    site.kubectl(&[&annotate[..], &["helm.sh/resource-policy-"]].concat())
        .await;
    let (succeeded, output) = site
        .helm(&[&upgrade[..], &["crds.install=false"]].concat())
        .await;
    let keep = [&annotate[..], &["helm.sh/resource-policy=keep"]].concat();
    assert!(
        !succeeded && output.contains(&format!("(kubectl {})", keep.join(" "))),
        "{output}"
    );
    site.kubectl(&keep).await;
    for value in ["crds.install=false", "crds.install=true"] {
        site.done(&[&upgrade[..], &[value]].concat()).await;
        assert_eq!(there().await, before, "{value}");
    }
}
