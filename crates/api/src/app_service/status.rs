//! What is known of an `AppService`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What is known of an app: the Deployment's status, the Service's ports, and whether all is well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppServiceStatus {
    /// The generation of this object that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods of the Deployment, those that end not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Those of them that are as the spec says now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i64>,
    /// Those of them that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i64>,
    /// Those of them that can serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i64>,
    /// How many are missing until all can serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i64>,
    /// Pods that end, where the cluster counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i64>,
    /// The Deployment's count of collisions of its hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    /// Labels of the Pods, as a selector: for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Address of the Service.
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// Ports of the Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServedPort>,
    /// `Ready`; while it is False also `Reconciling` or `Stalled`, with the same reason; and the Deployment's conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<AppCondition>,
}

/// A port that the Service has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedPort {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its number.
    #[serde(default)]
    pub port: i64,
    /// Its number on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i64>,
    /// Its protocol.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// A condition, as a Deployment has it, which is older than the common form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["status", "type"]))]
pub struct AppCondition {
    /// `Ready`, or a type of the Deployment's: `Available`, `Progressing`, `ReplicaFailure`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the status changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// When the Deployment's condition was last said anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// The generation of this object that it speaks of; `Ready` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl AppServiceStatus {
    /// The condition of that type.
    pub fn condition(&self, type_: &str) -> Option<&AppCondition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == type_)
    }
}
