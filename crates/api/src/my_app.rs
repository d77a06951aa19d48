//! `MyApp`: one Pod that prints a banner, from an image and a text.

use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over};

/// The kind's API group.
pub const GROUP: &str = "demo.rtfm.co.ua";
/// The longest banner, in bytes: Linux refuses to start a program with a variable of 128 KiB or more (`MAX_ARG_STRLEN`,
/// <https://man7.org/linux/man-pages/man2/execve.2.html>).
pub const MAX_BANNER: usize = 120_000;
/// The `podSecurity` under which the Pod fits the restricted profile.
pub const RESTRICTED: &str = "Restricted";
/// The `podSecurity` under which it runs as its image says.
pub const BASELINE: &str = "Baseline";

/// Why a name will not do, and what will: the Pod's container and its label `app` have it, which take no other.
pub const NAME: &str = "take a name of at most 63 lower-case letters, digits and '-', with a letter or digit at both ends: the Pod's \
    container has the same name";
/// What to say of a spec without an image.
pub const NO_IMAGE: &str = "add image: what the Pod runs, such as image: nginx:1.29";
/// What to say of a banner that is too long.
pub const LONG_BANNER: &str = "shorten the banner: it may have 120000 bytes (a letter outside of ASCII has two or more), because Linux \
    takes no more in one variable";
/// What to say of a banner that no variable can hold.
pub const NUL_BANNER: &str =
    "take the NUL characters out of the banner: no environment variable can hold one";
/// What to say of another word.
pub const BAD_PROFILE: &str = "write podSecurity: Restricted, or podSecurity: Baseline for an image that has to run as its own user";

/// An app: one Pod that prints a banner and then waits to be stopped.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "demo.rtfm.co.ua",
    version = "v1",
    kind = "MyApp",
    doc = "An app: one Pod that prints a banner and then waits to be stopped.",
    plural = "myapps",
    shortname = "ma",
    category = "quartermaster",
    namespaced,
    status = "MyAppStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD let a MyApp without a spec in. One that cannot be read would stop the watch of all.
    // Named, because the derived schema is that of a type beside this one, which has no default of its own.
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
    /// What the Pod runs. It needs a shell at `/bin/sh`, and `sleep`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = (
        r"self == '' || self.matches(r'^\S+$')",
        "write one image without spaces, such as nginx:1.29 or registry.example.com/team/app@sha256:...",
    ))]
    pub image: String,
    /// Printed as it is when the Pod starts, followed by a line break; nothing is printed unless given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 120_000))]
    #[x_kube(
        validation = ("size(bytes(self)) <= 120000", LONG_BANNER),
        validation = (r"!self.contains('\u0000')", NUL_BANNER),
    )]
    pub banner: String,
    /// `Restricted` (unless given): the Pod fits the restricted pod security profile, so it runs as user 65532. `Baseline`: it
    /// runs as its image says, and fits the baseline profile only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Restricted', 'Baseline']", BAD_PROFILE))]
    pub pod_security: Option<String>,
    /// While true the Pod is left alone, whatever becomes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec, in bytes, if that was too large to be read.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// How the Pod is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MyAppStatus {
    /// Name of the Pod, once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// The Pod's phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// True while the Pod runs as the spec says, and is ready.
    #[serde(default)]
    pub ready: bool,
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`; while it is False also `Reconciling` or `Stalled`, with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

fn image_is_given() -> Rule {
    rule_over(&["image"], "has(self.image) && self.image != ''", NO_IMAGE)
}

/// On create only: a rule at the root would otherwise keep an older object from everything, its deletion included.
fn name_of_a_container() -> Rule {
    Rule::new(
        "oldSelf.hasValue() || self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
    )
    .message(NAME)
    .optional_old_self(true)
}

super::kind::kind!(MyApp, MyAppSpec, MyAppStatus { ready });
