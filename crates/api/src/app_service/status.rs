//! Status of an AppService.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the app: the Deployment's status, the Service's ports and the conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppServiceStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of Pods of the Deployment, without Terminating ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// Number of Pods that match the current spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i64>,
    /// Number of ready Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i64>,
    /// Number of available Pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i64>,
    /// Number of Pods that are not available yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_replicas: Option<i64>,
    /// Number of Terminating Pods. Absent if the cluster does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_replicas: Option<i64>,
    /// Number of hash collisions of the Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i64>,
    /// Label selector of the Pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Cluster IP address of the Service.
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
    /// Ports of the Service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ServedPort>,
    /// `Ready`, and while `Ready` is False also `Reconciling` or `Stalled` with the same reason. The Deployment's conditions
    /// follow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<AppCondition>,
}

/// An observed port of the Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServedPort {
    /// Name of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of the port.
    #[serde(default)]
    pub port: i64,
    /// Port on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<i64>,
    /// Transport protocol: `TCP`, `UDP` or `SCTP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// A condition in the form of a Deployment's conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["status", "type"]))]
pub struct AppCondition {
    /// Type: `Ready`, `Reconciling` or `Stalled`, or from the Deployment `Available`, `Progressing` or `ReplicaFailure`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// Status: `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: String,
    /// Reason for the status, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message about the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Time of the last change of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Time of the last update, for the Deployment's conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Generation of the spec that the condition describes. Absent on the Deployment's conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

impl AppServiceStatus {
    /// Returns the condition of this type.
    pub fn condition(&self, type_: &str) -> Option<&AppCondition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == type_)
    }
}
