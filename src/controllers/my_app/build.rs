//! Builds the Pod of a `MyApp`. Pure.

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, Pod, PodSpec};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::MyApp;
use qm_api::my_app::{
    BAD_PROFILE, BASELINE, LONG_BANNER, MAX_BANNER, NAME_RULE, NO_IMAGE, NUL_BANNER, RESTRICTED,
};
use qm_api::spec_size;
use qm_core::validation::is_dns_label;
use qm_runtime::outcome::SPEC_INVALID;
use qm_runtime::ownership::Owner;
use qm_runtime::{ObjectKey, short_digest};

use crate::controllers::pod::{restricted_container, restricted_pod};

/// Environment variable with the banner.
pub const BANNER: &str = "BANNER";
/// Annotation of a Pod that the operator created: digest of the desired state. An adopted Pod has none.
pub const SPEC_DIGEST: &str = "quartermaster.dev/spec-digest";
/// Label that the tutorial's Kopf operator (document 003) gives the Pod.
pub const APP: &str = "app";

/// Reason of an app without an image.
pub(crate) const IMAGE_MISSING: &str = "ImageMissing";

/// Script that the Pod runs by `/bin/sh -c`, in POSIX for dash, bash and busybox. No shell parses the banner in its
/// variable, and `printf '%s'` interprets no backslashes, unlike dash's `echo`. Process 1 ignores signals without a
/// handler, so a bare `sleep` would outlast the grace period; the shell has a handler and waits for `sleep`. The
/// kubelet would expand `$(` and `$$`, so the script contains neither.
pub const SCRIPT: &str = "\
trap 'kill $! 2>/dev/null; exit 0' TERM INT
[ -z \"$BANNER\" ] || printf '%s\\n' \"$BANNER\"
while :; do sleep 86400 & wait $! || exit; done
";

/// Reason why the Pod cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMyApp {
    /// An object that is older than the rule has no image.
    #[error("{NO_IMAGE}")]
    ImageMissing,
    /// An object that is older than the rule breaks it.
    #[error("{0}")]
    SpecInvalid(&'static str),
    /// The stored spec, of this size in bytes, was too large to be read.
    #[error("{}", spec_size::too_large(*.0))]
    SpecTooLarge(usize),
}

impl InvalidMyApp {
    /// Returns the condition's reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ImageMissing => IMAGE_MISSING,
            Self::SpecInvalid(_) | Self::SpecTooLarge(_) => SPEC_INVALID,
        }
    }
}

/// The desired state of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesiredPod<'a> {
    pub image: &'a str,
    /// The banner; empty for none.
    pub banner: &'a str,
    /// Whether the Pod fits the restricted profile.
    pub restricted: bool,
}

/// Validates the spec. An object that is older than the rules of its CRD may hold anything.
///
/// # Errors
/// Returns what to write instead.
pub fn validate(app: &MyApp) -> Result<DesiredPod<'_>, InvalidMyApp> {
    let spec = &app.spec;
    if let Some(bytes) = spec.oversized {
        return Err(InvalidMyApp::SpecTooLarge(bytes));
    }
    if spec.image.is_empty() {
        return Err(InvalidMyApp::ImageMissing);
    }
    if !is_dns_label(&app.name_any()) {
        return Err(InvalidMyApp::SpecInvalid(NAME_RULE));
    }
    if spec.banner.len() > MAX_BANNER {
        return Err(InvalidMyApp::SpecInvalid(LONG_BANNER));
    }
    if spec.banner.contains('\0') {
        return Err(InvalidMyApp::SpecInvalid(NUL_BANNER));
    }
    let restricted = match spec.pod_security.as_deref() {
        None | Some(RESTRICTED) => true,
        Some(BASELINE) => false,
        Some(_) => return Err(InvalidMyApp::SpecInvalid(BAD_PROFILE)),
    };
    Ok(DesiredPod {
        image: &spec.image,
        banner: &spec.banner,
        restricted,
    })
}

/// Returns the name of the Pod of a `MyApp`.
pub fn pod_name(app: &str) -> String {
    format!("{app}-pod")
}

/// Returns namespace and name of the Pod of a `MyApp`.
pub(crate) fn pod_key(namespace: &str, app: &str) -> ObjectKey {
    ObjectKey::new(namespace, &pod_name(app))
}

/// Returns the name of the `MyApp` of a Pod.
pub(crate) fn app_name(pod: &str) -> &str {
    pod.strip_suffix("-pod").unwrap_or(pod)
}

/// Builds the Pod.
pub fn pod(owner: &Owner, desired: &DesiredPod<'_>) -> Pod {
    let mut metadata = ObjectMeta {
        name: Some(pod_name(owner.name())),
        namespace: Some(owner.namespace().to_owned()),
        labels: Some([(APP.to_owned(), owner.name().to_owned())].into()),
        annotations: Some([(SPEC_DIGEST.to_owned(), desired.digest())].into()),
        ..ObjectMeta::default()
    };
    owner.set_ownership(&mut metadata);
    let container = Container {
        name: owner.name().to_owned(),
        image: Some(desired.image.to_owned()),
        command: Some(vec!["/bin/sh".into(), "-c".into()]),
        args: Some(vec![SCRIPT.into()]),
        // An empty banner is set too: the image may define the variable.
        env: Some(vec![EnvVar {
            name: BANNER.into(),
            value: Some(unexpanded(desired.banner)),
            ..EnvVar::default()
        }]),
        ports: Some(vec![ContainerPort {
            container_port: 80,
            ..ContainerPort::default()
        }]),
        security_context: desired.restricted.then(restricted_container),
        ..Container::default()
    };
    let spec = PodSpec {
        containers: vec![container],
        // The container only prints the banner and needs no permissions.
        automount_service_account_token: Some(false),
        security_context: desired.restricted.then(restricted_pod),
        ..PodSpec::default()
    };
    Pod {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

impl DesiredPod<'_> {
    /// Returns the digest of the desired state alone, so that a later release that builds Pods in another way replaces no
    /// Pod.
    pub fn digest(&self) -> String {
        let profile = if self.restricted {
            RESTRICTED
        } else {
            BASELINE
        };
        short_digest(format!("{profile}\n{}\n{}", self.image, self.banner))
    }

    /// Returns whether the variable's `value` represents this banner. The tutorial's Kopf operator (document 003),
    /// whose Pods may be adopted, did not escape `$`; the operator always does.
    pub(crate) fn has_banner(&self, value: &Digested, is_adopted: bool) -> bool {
        *value == Digested::of(&unexpanded(self.banner))
            || is_adopted && *value == Digested::of(self.banner)
    }
}

/// Digest of a text of any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digested(String);

impl Digested {
    /// Computes the digest of `text`.
    pub fn of(text: &str) -> Self {
        Self(short_digest(text))
    }
}

/// Escapes `text` so that the kubelet's expansion of `$(NAME)` restores it
/// (<https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/>).
fn unexpanded(text: &str) -> String {
    text.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn app(spec: &Value) -> MyApp {
        let metadata = json!({ "namespace": "default", "name": "example-app", "uid": "8b674a99" });
        let object = json!({ "apiVersion": "demo.rtfm.co.ua/v1", "kind": "MyApp", "metadata": metadata, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    fn built(spec: &Value) -> Pod {
        let app = app(spec);
        pod(&Owner::of(&app).unwrap(), &validate(&app).unwrap())
    }

    /// The sample of document 003.
    #[test]
    fn documents_sample_gives_the_documents_pod() {
        insta::assert_yaml_snapshot!(built(&json!({
            "image": "nginx:latest",
            "banner": "This pod was created by MyApp operator \u{1F680}",
        })));
    }

    #[test]
    fn baseline_pod_without_a_banner() {
        insta::assert_yaml_snapshot!(built(
            &json!({ "image": "nginx:latest", "podSecurity": "Baseline" })
        ));
    }

    #[test]
    fn every_dollar_is_doubled() {
        let pod = built(&json!({ "image": "a", "banner": "$(HOME) $$ $" }));
        let env = pod.spec.unwrap().containers.remove(0).env.unwrap();
        assert_eq!(env[0].value.as_deref(), Some("$$(HOME) $$$$ $$"));
    }

    #[rstest]
    #[case::bare(json!({}), InvalidMyApp::ImageMissing)]
    #[case::empty(json!({ "image": "", "banner": "x" }), InvalidMyApp::ImageMissing)]
    #[case::long(json!({ "image": "a", "banner": "a".repeat(MAX_BANNER + 1) }), InvalidMyApp::SpecInvalid(LONG_BANNER))]
    #[case::long_in_bytes(json!({ "image": "a", "banner": "\u{e4}".repeat(MAX_BANNER / 2 + 1) }), InvalidMyApp::SpecInvalid(LONG_BANNER))]
    #[case::nul(json!({ "image": "a", "banner": "a\0b" }), InvalidMyApp::SpecInvalid(NUL_BANNER))]
    #[case::profile(json!({ "image": "a", "podSecurity": "Privileged" }), InvalidMyApp::SpecInvalid(BAD_PROFILE))]
    fn invalid_older_object_is_rejected(#[case] spec: Value, #[case] invalid: InvalidMyApp) {
        assert_eq!(validate(&app(&spec)), Err(invalid));
    }

    #[rstest]
    #[case::dots("a.b", false)]
    #[case::longest(&"a".repeat(63), true)]
    #[case::too_long(&"a".repeat(64), false)]
    #[case::digits("1-2", true)]
    #[case::hyphen("a-", false)]
    fn names_are_validated(#[case] name: &str, #[case] valid: bool) {
        let mut app = app(&json!({ "image": "a" }));
        app.metadata.name = Some(name.into());
        assert_eq!(validate(&app).is_ok(), valid);
    }

    #[test]
    fn longest_banner_is_valid() {
        let spec = json!({ "image": "a", "banner": "$".repeat(MAX_BANNER) });
        assert!(validate(&app(&spec)).is_ok());
        assert!(LONG_BANNER.contains(&MAX_BANNER.to_string()));
    }

    #[test]
    fn digest_changes_with_each_field() {
        let desired = DesiredPod {
            image: "a",
            banner: "b",
            restricted: true,
        };
        let others = [
            DesiredPod {
                image: "b",
                ..desired
            },
            DesiredPod {
                banner: "c",
                ..desired
            },
            DesiredPod {
                restricted: false,
                ..desired
            },
        ];
        assert!(
            others
                .iter()
                .all(|other| other.digest() != desired.digest())
        );
    }

    #[rstest]
    #[case::same("cost $5", "cost $5", true)]
    #[case::doubled("cost $$5", "cost $5", true)]
    #[case::another("cost $6", "cost $5", false)]
    #[case::reference("$(HOME)", "$(HOME)", true)]
    #[case::none("", "", true)]
    #[case::added("", "a", false)]
    fn banner_of_an_adopted_pod_is_compared(
        #[case] value: &str,
        #[case] banner: &str,
        #[case] same: bool,
    ) {
        let desired = DesiredPod {
            image: "a",
            banner,
            restricted: true,
        };
        assert_eq!(desired.has_banner(&Digested::of(value), true), same);
        let is_escaped = value == unexpanded(banner);
        assert_eq!(desired.has_banner(&Digested::of(value), false), is_escaped);
    }
}
