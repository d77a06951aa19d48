//! The operator's shipped permissions: all that the operator needs, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::discovery::{ApiGroup, Discovery, Scope};
use kube::{Client, Config};
use quartermaster::{controllers, permissions};
use testbed::control_plane::{ControlPlane, Options};

use super::wait_until;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/local");
const NAMESPACE: &str = "quartermaster-system";
const ACCOUNT: &str = "quartermaster-controller-manager";

/// All permissions of the operator in the whole cluster: verbs, and resources (`RESOURCE[/SUBRESOURCE].GROUP[ NAME]`).
#[rustfmt::skip] // one line a right
const EVERYWHERE: &[(&str, &str)] = &[
    ("list watch",           "contactpoints.tg.azamaton.ru"),
    ("patch",                "contactpoints/status.tg.azamaton.ru"),
    ("create delete get list patch watch", "trackedfields.tg.azamaton.ru"),
    ("patch",                "trackedfields/status.tg.azamaton.ru"),
    ("get list watch",       "trackedfieldsets.tg.azamaton.ru"),
    ("patch",                "trackedfieldsets/status.tg.azamaton.ru"),
    ("get list patch watch", "appservices.kosmos.io"),
    ("patch",                "appservices/status.kosmos.io"),
    ("create delete get list patch watch", "horizontalpodautoscalers.autoscaling"),
    ("create delete get list patch watch", "ingresses.networking.k8s.io"),
    ("get list patch watch", "configmapsyncs.apps.bixbite.io"),
    ("patch",                "configmapsyncs/status.apps.bixbite.io"),
    ("create delete get list update watch", "configmaps."),
    ("list watch",           "namespaces."),
    ("get",                  "namespaces. kube-system"),
    ("get list watch",       "myapps.demo.rtfm.co.ua"),
    ("patch",                "myapps/status.demo.rtfm.co.ua"),
    ("get list patch watch", "myingresses.demo.rtfm.co.ua"),
    ("patch",                "myingresses/status.demo.rtfm.co.ua"),
    // Clusters may check owner references.
    ("update",               "configmapsyncs/finalizers.apps.bixbite.io"),
    ("update",               "trackedfieldsets/finalizers.tg.azamaton.ru"),
    ("update",               "appservices/finalizers.kosmos.io"),
    ("update",               "myapps/finalizers.demo.rtfm.co.ua"),
    ("create delete get list patch watch", "pods."),
    ("get list watch",       "nodes."),
    ("get",                  "secrets."),
    ("create",               "events.events.k8s.io"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io contactpoints.tg.azamaton.ru"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io trackedfields.tg.azamaton.ru"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io trackedfieldsets.tg.azamaton.ru"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io appservices.kosmos.io"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io configmapsyncs.apps.bixbite.io"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io myapps.demo.rtfm.co.ua"),
    ("list watch",           "customresourcedefinitions.apiextensions.k8s.io myingresses.demo.rtfm.co.ua"),
    // The operator reads whether the policies are in force.
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-contactpoint-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-contactpoint-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-trackedfield-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-trackedfield-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-trackedfieldset-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-trackedfieldset-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-configmapsync-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-configmapsync-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-myapp-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-myapp-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-appservice-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-appservice-policybinding"),
    ("get",                  "validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-operator-policy"),
    ("get",                  "validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-operator-policybinding"),
    ("list watch",           "clusterroles.rbac.authorization.k8s.io quartermaster-tracker-role"),
    // Kinds that the operator tracks and creates.
    ("create delete get list patch watch", "deployments.apps"),
    ("get list watch",       "daemonsets.apps"),
    ("get list watch",       "statefulsets.apps"),
    ("get list watch",       "cronjobs.batch"),
    ("get list watch",       "jobs.batch"),
    ("create delete get list patch watch", "services."),
    // Reviews of the clients that read the metrics.
    ("create",               "tokenreviews.authentication.k8s.io"),
    ("create",               "subjectaccessreviews.authorization.k8s.io"),
    // Permissions that Kubernetes gives every known user: to review oneself.
    ("create",               "selfsubjectreviews.authentication.k8s.io"),
    ("create",               "selfsubjectaccessreviews.authorization.k8s.io"),
    ("create",               "selfsubjectrulesreviews.authorization.k8s.io"),
];
/// Further permissions of the operator in its own namespace.
const AT_HOME: [(&str, &str); 2] = [
    ("create", "leases.coordination.k8s.io"),
    ("get update", "leases.coordination.k8s.io quartermaster"),
];

#[tokio::test]
async fn operator_has_the_needed_permissions_and_no_others() {
    let options = Options {
        controller_manager: true,
        ..Options::apiserver_only()
    };
    let plane = ControlPlane::start(options).await.unwrap();
    plane
        .run_kubectl(&["apply", "--warnings-as-errors", "-k", CONFIG], "")
        .await
        .unwrap();
    let path = plane
        .kubeconfig_for_service_account(NAMESPACE, ACCOUNT)
        .await
        .unwrap();
    let (file, options) = (
        Kubeconfig::read_from(path).unwrap(),
        KubeConfigOptions::default(),
    );
    let operator = Client::try_from(
        Config::from_custom_kubeconfig(file, &options)
            .await
            .unwrap(),
    )
    .unwrap();

    // A permission by name covers list and watch with a field selector for that name.
    let crds = Api::<CustomResourceDefinition>::all(operator.clone());
    for name in [
        "contactpoints.tg.azamaton.ru",
        "trackedfields.tg.azamaton.ru",
        "appservices.kosmos.io",
    ] {
        let selector = format!("metadata.name={name}");
        assert_eq!(
            crds.list(&ListParams::default().fields(&selector))
                .await
                .unwrap()
                .items
                .len(),
            1
        );
        let watch = crds
            .watch(&WatchParams::default().fields(&selector).timeout(5), "0")
            .await
            .unwrap();
        let first = pin!(watch).next().await.unwrap().unwrap();
        assert!(matches!(first, WatchEvent::Added(crd) if crd.name_any() == name));
    }
    let other = crds
        .list(&ListParams::default().fields("metadata.name=others.example.com"))
        .await;
    assert!(matches!(other, Err(kube::Error::Api(error)) if error.code == 403));

    // Targets come by aggregation, and so do further kinds.
    for resource in ["deployments.apps", "statefulsets.apps", "services."] {
        wait_until(resource, async || {
            may(&operator, "watch", resource, "").await
        })
        .await;
    }
    assert_eq!(permissions(&operator, "default").await, listed(EVERYWHERE));
    assert_eq!(
        permissions(&operator, NAMESPACE).await,
        listed(&[EVERYWHERE, &AT_HOME].concat())
    );
    plane
        .run_kubectl(
            &[
                "create",
                "clusterrole",
                "more",
                "--verb=get,list,watch",
                "--resource=endpoints",
            ],
            "",
        )
        .await
        .unwrap();
    let label = [
        "label",
        "clusterrole",
        "more",
        "quartermaster.dev/aggregate-to-tracker=true",
    ];
    plane.run_kubectl(&label, "").await.unwrap();
    wait_until("endpoints", async || {
        may(&operator, "watch", "endpoints.", "").await
    })
    .await;

    chart_role_matches_the_scope_of_each_resource(plane.client().await.unwrap()).await;

    // A second installation never removes a permission, not even for a moment.
    plane
        .run_kubectl(&["apply", "-k", CONFIG], "")
        .await
        .unwrap();
    assert!(may(&operator, "watch", "deployments.apps", "").await);
}

/// The chart puts a permission in a Role or a `ClusterRole` by the scope of its resource.
async fn chart_role_matches_the_scope_of_each_resource(admin: Client) {
    let found = Discovery::new(admin).run().await.unwrap();
    let served: BTreeMap<_, _> = found
        .groups()
        .flat_map(ApiGroup::recommended_resources)
        .map(|(resource, can)| {
            (
                (resource.group, resource.plural),
                can.scope == Scope::Namespaced,
            )
        })
        .collect();
    let all = controllers::KINDS.iter().flat_map(|kind| kind.permissions);
    for permission in all
        .chain(permissions::METRICS_PERMISSIONS)
        .chain(permissions::TARGET_PERMISSIONS)
        .chain([&permissions::LEASES])
    {
        for resource in permission.resources {
            let plural = resource.split('/').next().unwrap();
            assert_eq!(
                served[&(permission.group.to_owned(), plural.to_owned())],
                permission.namespaced,
                "{permission:?}"
            );
        }
    }
}

/// Returns `VERB RESOURCE...`, one for each verb.
fn listed(permissions: &[(&str, &str)]) -> BTreeSet<String> {
    permissions
        .iter()
        .flat_map(|(verbs, what)| verbs.split(' ').map(move |verb| format!("{verb} {what}")))
        .collect()
}

/// Returns all permissions of this client in a namespace, by whatever role, in the same form.
async fn permissions(client: &Client, namespace: &str) -> BTreeSet<String> {
    let spec = SelfSubjectRulesReviewSpec {
        namespace: Some(namespace.into()),
    };
    let review = SelfSubjectRulesReview {
        spec,
        ..Default::default()
    };
    let answer = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    let answer = answer.status.unwrap();
    assert!(!answer.incomplete, "{answer:?}");
    let mut permissions = BTreeSet::new();
    for rule in answer.resource_rules {
        let [groups, resources, names] =
            [rule.api_groups, rule.resources, rule.resource_names].map(Option::unwrap_or_default);
        let groups = |resource: &String| {
            groups
                .iter()
                .map(|group| format!("{resource}.{group}"))
                .collect::<Vec<_>>()
        };
        for what in resources.iter().flat_map(groups) {
            let named: Vec<_> = names.iter().map(|name| format!("{what} {name}")).collect();
            for what in if named.is_empty() { vec![what] } else { named } {
                permissions.extend(rule.verbs.iter().map(|verb| format!("{verb} {what}")));
            }
        }
    }
    permissions
}

async fn may(client: &Client, verb: &str, resource: &str, namespace: &str) -> bool {
    let (resource, group) = resource.split_once('.').unwrap();
    let (resource, subresource) = resource
        .split_once('/')
        .map_or((resource, None), |(r, s)| (r, Some(s)));
    let attributes = ResourceAttributes {
        verb: Some(verb.into()),
        group: Some(group.into()),
        resource: Some(resource.into()),
        subresource: subresource.map(Into::into),
        namespace: Some(namespace.into()),
        ..Default::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .unwrap();
    answer.status.unwrap().allowed
}
