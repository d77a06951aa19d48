//! Faults of a soak that change children, the cluster or the operator's clock.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use qm_api::common::SCHEMA;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::process::Folder;
use testbed::wait::until;

use crate::support::{ACCOUNT, Bed, SOON, SYSTEM};

/// Changes the Service, Ingress or autoscaler of a random `AppService`, or the Pod of a random `MyApp`. (A copy would not
/// be corrected while its source is missing.) Returns whether there is one.
pub async fn damage(bed: &Bed, random: &mut StdRng) -> bool {
    let port = json!([{ "name": "http", "port": 80, "targetPort": 666 }]);
    let damages = [
        (
            ApiResource::erase::<HorizontalPodAutoscaler>(&()),
            "web",
            json!({ "spec": { "maxReplicas": 9 } }),
        ),
        (
            ApiResource::erase::<Ingress>(&()),
            "web",
            json!({ "spec": { "rules": [{ "host": "evil.example.com" }] } }),
        ),
        (
            ApiResource::erase::<Pod>(&()),
            "web-pod",
            json!({ "metadata": { "labels": { "app": null } } }),
        ),
        (
            ApiResource::erase::<Service>(&()),
            "web",
            json!({ "spec": { "ports": port } }),
        ),
    ];
    let (resource, name, patch) = damages.choose(random).unwrap();
    let all: Api<DynamicObject> = Api::all_with(bed.client.clone(), resource);
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let mut children = all.list_metadata(&named).await.unwrap().items;
    children.retain(|child| {
        let namespace = child.namespace().unwrap();
        // In the namespaces of other kinds, objects with such names are targets.
        namespace.starts_with("soak-myapp-") || namespace.starts_with("soak-appservice-")
    });
    let Some(child) = children.choose(random) else {
        return false;
    };
    let namespace = child.namespace().unwrap();
    let children: Api<DynamicObject> =
        Api::namespaced_with(bed.client.clone(), &namespace, resource);
    let params = PatchParams::default();
    match children.patch(name, &params, &Patch::Merge(patch)).await {
        // The workload has deleted the child meanwhile.
        Err(kube::Error::Api(status)) if status.is_not_found() => false,
        patched => {
            patched.unwrap();
            true
        }
    }
}

/// The library that moves a clock, of Debian's package faketime for amd64.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Clock of a process, which [`Clock::move_by`] moves. The monotonic clock stays as it is.
pub struct Clock {
    folder: Folder,
}

impl Clock {
    pub fn new() -> Self {
        assert!(
            Path::new(FAKETIME).exists(),
            "{FAKETIME} is missing: install Debian's package faketime, on amd64"
        );
        let clock = Self {
            folder: Folder::new().unwrap(),
        };
        clock.move_by("+0");
        clock
    }

    /// Returns the environment of the process.
    pub fn env(&self) -> Vec<(String, String)> {
        let file = self.file().display().to_string();
        let variables = [
            ("LD_PRELOAD", FAKETIME),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_CACHE_DURATION", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    /// Moves the clock by an offset such as `+3600`, in seconds, within a second.
    pub fn move_by(&self, offset: &str) {
        // A reader sees all of the file.
        let part = self.file().with_extension("part");
        std::fs::write(&part, offset).unwrap();
        std::fs::rename(part, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }
}

/// Properties of statuses that the operator computes anew, so an older CRD may lack them for a while. `alb` of a
/// `MyIngress` is none: it records which tags the operator manages.
const DERIVED: [(&str, &str); 3] = [
    ("AppService", "clusterIP"),
    ("ConfigMapSync", "copies"),
    ("MyApp", "podName"),
];

/// A CRD that another one has replaced.
pub struct ReplacedCrd {
    api: Api<CustomResourceDefinition>,
    shipped: CustomResourceDefinition,
}

impl ReplacedCrd {
    /// Replaces a random CRD by an older or a newer one. The newer one has another property. The older one lacks the
    /// property of its kind in [`DERIVED`], if there is one.
    pub async fn random(bed: &Bed, random: &mut StdRng) -> Self {
        let shipped = quartermaster::controllers::crds()
            .choose(random)
            .unwrap()
            .clone();
        let replaced = Self {
            api: Api::all(bed.client.clone()),
            shipped,
        };
        let mut other = replaced.shipped.clone();
        let is_newer = random.random_bool(0.5);
        let (number, digest) = other.annotations()[SCHEMA].split_once('-').unwrap();
        let number: i32 = number.parse().unwrap();
        let number = if is_newer { number + 1 } else { number - 1 };
        let schema = format!("{number}-{digest}");
        other.annotations_mut().insert(SCHEMA.into(), schema);
        if is_newer {
            let text = json!({ "type": "string" });
            let added = serde_json::from_value(text).unwrap();
            properties(&mut other, "spec").insert("addedLater".into(), added);
        } else {
            let kind = other.spec.names.kind.clone();
            let missing = DERIVED.iter().find(|(of, _)| *of == kind);
            if let Some((_, property)) = missing {
                properties(&mut other, "status").remove(*property).unwrap();
            }
        }
        replaced.write(other).await;
        replaced
    }

    /// Writes the shipped CRD again.
    pub async fn restore(self) {
        self.write(self.shipped.clone()).await;
    }

    async fn write(&self, mut crd: CustomResourceDefinition) {
        let name = crd.name_any();
        // The apiserver writes the status of the CRD, too.
        until("the CRD is replaced", SOON, async || {
            let there = self.api.get_metadata(&name).await?;
            crd.metadata.resource_version = there.resource_version();
            match self.api.replace(&name, &PostParams::default(), &crd).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
                replaced => replaced.map(|_| Some(())).map_err(Into::into),
            }
        })
        .await
        .unwrap();
    }
}

/// Returns the properties of the spec or the status in the schema of a CRD.
fn properties<'a>(
    crd: &'a mut CustomResourceDefinition,
    part: &str,
) -> &'a mut BTreeMap<String, JSONSchemaProps> {
    let schema = crd.spec.versions[0].schema.as_mut().unwrap();
    let schema = schema.open_api_v3_schema.as_mut().unwrap();
    let part = schema.properties.as_mut().unwrap().get_mut(part).unwrap();
    part.properties.get_or_insert_default()
}

/// A rule that is missing from the operator's `ClusterRole`.
pub struct RevokedRule {
    roles: Api<ClusterRole>,
    shipped: Vec<PolicyRule>,
}

impl RevokedRule {
    const ROLE: &str = "quartermaster-manager-role";

    /// Removes the rule of this number, counted from 0 again and again.
    pub async fn begin(bed: &Bed, number: usize) -> Self {
        let roles: Api<ClusterRole> = Api::all(bed.client.clone());
        let shipped = roles.get(Self::ROLE).await.unwrap().rules.unwrap();
        let revoked = Self { roles, shipped };
        let mut rules = revoked.shipped.clone();
        rules.remove(number % rules.len());
        revoked.write(&rules).await;
        revoked
    }

    pub async fn end(self) {
        self.write(&self.shipped).await;
    }

    async fn write(&self, rules: &[PolicyRule]) {
        let patch = Patch::Merge(json!({ "rules": rules }));
        let params = PatchParams::default();
        let written = self.roles.patch(Self::ROLE, &params, &patch).await;
        written.unwrap();
    }
}

/// API priority and fairness that rejects every request of the operator.
pub struct Starved {
    flow_schemas: Api<FlowSchema>,
}

impl Starved {
    const NAME: &str = "starved";

    pub async fn begin(bed: &Bed) -> Self {
        let levels: Api<PriorityLevelConfiguration> = Api::all(bed.client.clone());
        let none = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "PriorityLevelConfiguration",
            "metadata": { "name": Self::NAME },
            "spec": { "type": "Limited", "limited": {
                "nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                "limitResponse": { "type": "Reject" },
            } },
        });
        apply(&levels, Self::NAME, &none).await;
        let flow_schemas = Api::all(bed.client.clone());
        let account = json!({ "namespace": SYSTEM, "name": ACCOUNT });
        let of_the_operator = json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
            "kind": "FlowSchema",
            "metadata": { "name": Self::NAME },
            "spec": {
                "priorityLevelConfiguration": { "name": Self::NAME },
                "matchingPrecedence": 2,
                "rules": [{
                    "subjects": [{ "kind": "ServiceAccount", "serviceAccount": account }],
                    "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"],
                        "clusterScope": true }],
                    "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
                }],
            },
        });
        apply(&flow_schemas, Self::NAME, &of_the_operator).await;
        Self { flow_schemas }
    }

    pub async fn end(self) {
        let params = DeleteParams::default();
        self.flow_schemas.delete(Self::NAME, &params).await.unwrap();
    }
}

async fn apply<K>(api: &Api<K>, name: &str, object: &Value)
where
    K: Clone + Debug + DeserializeOwned,
{
    let params = PatchParams::apply("torture");
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .unwrap();
}
