//! MyApp: a Pod that prints a banner.

use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over};

/// API group of the kind.
pub const GROUP: &str = "demo.rtfm.co.ua";
/// Maximum size of a banner in bytes: Linux starts no program with a variable of 128 KiB or more (`MAX_ARG_STRLEN`,
/// <https://man7.org/linux/man-pages/man2/execve.2.html>).
pub const MAX_BANNER: usize = 120_000;
/// Value of `podSecurity`: the Pod meets the restricted pod security profile.
pub const RESTRICTED: &str = "Restricted";
/// Value of `podSecurity`: the Pod runs as the user of its image.
pub const BASELINE: &str = "Baseline";

/// Message for an invalid name. The Pod's container and its label `app` have the same name, which limits the characters.
pub const NAME_RULE: &str = "choose a name of at most 63 lower-case letters, digits and '-', with a letter or digit at both ends: the Pod's \
    container has the same name";
/// Message for a spec without an image.
pub const NO_IMAGE: &str = "add image: what the Pod runs, such as image: nginx:1.29";
/// Message for a banner that is too long.
pub const LONG_BANNER: &str = "shorten the banner to 120000 bytes (a letter outside of ASCII has two or more): Linux limits the \
    size of an environment variable";
/// Message for a banner with NUL characters.
pub const NUL_BANNER: &str =
    "remove the NUL characters from the banner: an environment variable cannot contain any";
/// Message for an unknown `podSecurity`.
pub const BAD_PROFILE: &str = "write podSecurity: Restricted, or podSecurity: Baseline for an image that must run as its own user";

/// A Pod that prints a banner and then waits until it is stopped.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "demo.rtfm.co.ua",
    version = "v1",
    kind = "MyApp",
    doc = "A Pod that prints a banner and then waits until it is stopped.",
    plural = "myapps",
    shortname = "ma",
    category = "quartermaster",
    namespaced,
    status = "MyAppStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD accepted an object without a spec. An unreadable object would stop the watch of the kind.
    // The path names the type, because the schema derives from a second type that has no default.
    attr = "cfg_attr(all(), serde(default = \"MyApp::default\"))",
    validation = name_of_a_container(),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[x_kube(validation = image_is_given())]
pub struct MyAppSpec {
    /// Container image of the Pod. The image must contain `/bin/sh` and `sleep`. Required on new objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        r"self == '' || self.matches(r'^\S+$')",
        "write one image without spaces, such as nginx:1.29 or registry.example.com/team/app@sha256:...",
    ))]
    pub image: String,
    /// Text that the Pod prints unchanged at its start, followed by a line break; at most 120000 bytes. Defaults to none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 120_000))]
    #[x_kube(
        validation = ("size(bytes(self)) <= 120000", LONG_BANNER),
        validation = (r"!self.contains('\u0000')", NUL_BANNER),
    )]
    pub banner: String,
    /// Pod security profile. `Restricted`: the Pod meets the restricted profile and runs as user 65532. `Baseline`: the Pod
    /// meets the baseline profile and runs as the user of its image. Defaults to `Restricted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Restricted', 'Baseline']", BAD_PROFILE))]
    pub pod_security: Option<String>,
    /// Suspension of reconciliation. While true, the operator does not create, change or delete the Pod. Defaults to
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// Observed state of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MyAppStatus {
    /// Name of the Pod. Absent until the Pod exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Phase of the Pod: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Readiness: true while the Pod matches the spec and is ready.
    #[serde(default)]
    pub ready: bool,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`, and while `Ready` is False also `Reconciling` or `Stalled` with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

fn image_is_given() -> Rule {
    rule_over(&["image"], "has(self.image) && self.image != ''", NO_IMAGE)
}

/// Applies on create only: at the root, the rule would otherwise block all changes of an older object, even its deletion.
fn name_of_a_container() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
    )
    .message(NAME_RULE)
    .optional_old_self(true)
}

super::kind::kind!(MyApp, MyAppSpec, MyAppStatus { ready });
