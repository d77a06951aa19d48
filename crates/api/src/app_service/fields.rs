//! Types of the optional fields of an AppService.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::bounds;
use crate::common::SECRET_NAME;

/// Resource requests and limits of the container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = bounds::requests_within_limits())]
pub struct ContainerResources {
    /// Resources reserved for the container, such as `cpu: 100m`; at most 12, none above its limit. Names are `cpu`, `memory`,
    /// `ephemeral-storage`, `hugepages-SIZE`, or have a domain. Defaults to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub requests: BTreeMap<String, Quantity>,
    /// Maximum resources of the container, such as `memory: 256Mi`; at most 12. Defaults to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub limits: BTreeMap<String, Quantity>,
}

/// Pattern of a quantity that is a string, as controller-gen writes it
/// (<https://github.com/kubernetes-sigs/controller-tools/blob/main/pkg/crd/known_types.go>). A CEL rule would be too costly.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Returns the schema of quantities by name. The schema of `Quantity` would repeat a long description of the format.
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

/// Reference to a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalName {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub name: String,
}

/// Bounds on the number of Pods, and their target CPU usage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(self.min) || self.min <= self.max", "write a max that is not below min"))]
pub struct Autoscaling {
    /// Minimum number of Pods. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub min: Option<i32>,
    /// Maximum number of Pods.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max: i32,
    /// Target average CPU usage of the Pods, in percent of their CPU request. Defaults to 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub cpu: Option<i32>,
}

/// Routing of HTTP from outside of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ingress {
    /// Host name, such as `app.example.com` or `*.example.com`. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        r"self.matches(r'^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')
  && !self.matches(r'^[0-9.]+$')",
        "write a host name in lower-case letters, digits, '-' and '.', without port and path, such as app.example.com",
    ))]
    pub host: Option<String>,
    /// Name of the IngressClass. Defaults to the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of an IngressClass, as kubectl get ingressclass prints it",
    ))]
    pub class: Option<String>,
    /// Prefix of the paths. Defaults to `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        r"self.matches(r'^/[^\s?#]*$') && !self.matches('(//|/[.]{1,2}/|%2f|%2F|/[.]{1,2}$)')",
        "write a path that begins with '/', without '//', '.', '..', '?' and '#', such as /api",
    ))]
    pub path: Option<String>,
    /// TLS with a certificate from a Secret. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<IngressTls>,
}

/// Certificate of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressTls {
    /// Name of the Secret with `tls.crt` and `tls.key`, in the same namespace.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub secret_name: String,
}
