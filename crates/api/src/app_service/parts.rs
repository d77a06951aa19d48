//! Optional parts of an `AppService`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::bounds;
use crate::common::SECRET_NAME;

/// What the container asks for, and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = bounds::requests_within_limits())]
pub struct Resources {
    /// What is kept free for it, such as `cpu: 100m`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Quantity>,
    /// What it may use at most, such as `memory: 256Mi`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Of what is written as a text: Kubernetes' own, in the CRDs of others
/// (<https://github.com/kubernetes-sigs/controller-tools/blob/main/pkg/crd/known_types.go>). A rule would be too dear.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Kubernetes' own describes its format at length at each place.
fn quantities(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "additionalProperties": { "x-kubernetes-int-or-string": true, "maxLength": 64, "pattern": QUANTITY },
        "maxProperties": bounds::MAX_RESOURCES,
        "x-kubernetes-validations": [
            {
                "rule": "self.all(name, size(name) <= 317)",
                "message": "write the name of a resource in at most 317 characters, such as cpu or nvidia.com/gpu",
            },
            bounds::resource_names(),
        ],
    })
}

/// An object of this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalName {
    /// Its name.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub name: String,
}

/// Bounds of the number of Pods, and what they are to use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.min) || self.min <= self.max", "write a max that is not below min"))]
pub struct Autoscaling {
    /// Fewest Pods; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub min: Option<i32>,
    /// Most Pods.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max: i32,
    /// CPU that the Pods are to use on the average, in percent of what they request; 80 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub cpu: Option<i32>,
}

/// How HTTP comes in from outside of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// The host name, such as `app.example.com`, or `*.example.com`; any unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        r"self.matches(r'^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')
  && !self.matches(r'^[0-9.]+$')",
        "write a host name in lower-case letters, digits, '-' and '.', without port and path, such as app.example.com",
    ))]
    pub host: Option<String>,
    /// The `IngressClass`; the cluster's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of an IngressClass, as kubectl get ingressclass prints it",
    ))]
    pub class: Option<String>,
    /// What the paths that are led here begin with; `/` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        r"self.matches(r'^/[^\s?#]*$') && !self.matches('(//|/[.]{1,2}/|%2f|%2F|/[.]{1,2}$)')",
        "write a path that begins with '/', without '//', '.', '..', '?' and '#', such as /api",
    ))]
    pub path: Option<String>,
    /// TLS with this certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<IngressTls>,
}

/// The certificate of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// The Secret with `tls.crt` and `tls.key`, in this namespace.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub secret_name: String,
}
