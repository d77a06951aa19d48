//! Every reason and Event in the code has its row in the table of the reference, and no row is without code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use qm_api::contact_point::{ContactPointStatus, LastTest};
use qm_aws::{action, error};
use qm_core::conditions::READY;
use qm_core::readiness::NOT_OBSERVED;
use qm_notify::Refusal;
use qm_notify::queue::{AcceptedTests, ReceiverState};
use qm_runtime::drift::RECREATED;
use qm_runtime::error::WRITE_REJECTED;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::watch::ResourceName;
use quartermaster::controllers::app_service::AUTOSCALING_DISABLED;
use quartermaster::controllers::config_map_sync;
use quartermaster::controllers::contact_point::endpoint::EndpointError;
use quartermaster::controllers::contact_point::status;
use quartermaster::controllers::tracked_field::field::FieldSelector;
use quartermaster::controllers::tracked_field::waiting::WaitingReason;
use quartermaster::controllers::{app_service, my_app, my_ingress, pod, tracked_field_set};
use xtask::docs as generated;
use xtask::docs::reasons::table;

use super::{in_folder, page, pages, prose, root, row};

/// A value of each variant: a new variant does not compile without an entry here.
fn blocked() -> Vec<&'static str> {
    let text = String::new;
    let all = [
        EndpointError::SecretNotFound {
            secret: text(),
            namespaces: Vec::new(),
        },
        EndpointError::SecretKeyMissing {
            secret: text(),
            key: text(),
            keys: Vec::new(),
        },
        EndpointError::SecretInvalid {
            secret: text(),
            key: None,
            problem: text(),
        },
        EndpointError::SecretForbidden { namespace: text() },
        EndpointError::SpecInvalid(text()),
        EndpointError::BodyInvalid(text()),
        EndpointError::SecretUnreadable(text()),
    ];
    let reason = |blocked: &EndpointError| match blocked {
        EndpointError::SecretNotFound { .. }
        | EndpointError::SecretKeyMissing { .. }
        | EndpointError::SecretInvalid { .. }
        | EndpointError::SecretForbidden { .. }
        | EndpointError::SpecInvalid(_)
        | EndpointError::BodyInvalid(_)
        | EndpointError::SecretUnreadable(_) => blocked.reason(),
    };
    all.iter().map(reason).collect()
}

fn stopped() -> Vec<&'static str> {
    use Refusal::{
        AddressNotAllowed, ChatNotFound, Forbidden, Gone, NotFound, Redirected, Rejected,
        TopicUnavailable, Unauthorized, UnexpectedStatus,
    };
    let all = [
        Unauthorized,
        Forbidden,
        NotFound,
        Gone,
        ChatNotFound,
        TopicUnavailable,
        Redirected,
        UnexpectedStatus,
        Rejected,
        AddressNotAllowed,
    ];
    let reason = |reason: &Refusal| match reason {
        Unauthorized | Forbidden | NotFound | Gone | ChatNotFound | TopicUnavailable
        | Redirected | UnexpectedStatus | Rejected | AddressNotAllowed => reason.as_str(),
    };
    all.iter().map(reason).collect()
}

fn waiting() -> Vec<&'static str> {
    let name = String::new;
    let mut all = vec![
        WaitingReason::SpecInvalid(name()),
        WaitingReason::TargetNotFound { target: name() },
        WaitingReason::Forbidden {
            resource: ResourceName {
                api_version: name().into(),
                plural: name().into(),
            },
            message: name(),
        },
        WaitingReason::TargetUnreadable(name()),
        WaitingReason::WatchFailing(name()),
        WaitingReason::TargetUndecodable {
            target: name(),
            problem: name(),
        },
        WaitingReason::PathTooExpensive {
            target: name(),
            problem: name(),
        },
        WaitingReason::ResourceMismatch(name()),
        WaitingReason::WhenInvalid(name()),
        WaitingReason::TemplateInvalid(name()),
        WaitingReason::BodyInvalid {
            name: name(),
            message: name(),
        },
        WaitingReason::TestBodyInvalid {
            name: name(),
            message: name(),
        },
        WaitingReason::OutOfScope { namespace: name() },
        WaitingReason::Suspended,
        WaitingReason::ContactPointNotFound {
            name: name(),
            nearest: None,
        },
        WaitingReason::ContactPointNotObserved { name: name() },
        WaitingReason::ContactPointNotReady {
            name: name(),
            because: name(),
        },
        WaitingReason::WriteRejected(name()),
        WaitingReason::DeliveryFailing {
            name: name(),
            message: name(),
        },
    ];
    for field in ["targetPort", "{.spec"] {
        let error = FieldSelector::compile("Deployment", field).unwrap_err();
        all.push(WaitingReason::Field {
            reason: error.reason(),
            message: error.to_string(),
        });
    }
    let reason = |waiting: &WaitingReason| match waiting {
        WaitingReason::SpecInvalid(_)
        | WaitingReason::TargetNotFound { .. }
        | WaitingReason::Forbidden { .. }
        | WaitingReason::TargetUnreadable(_)
        | WaitingReason::WatchFailing(_)
        | WaitingReason::TargetUndecodable { .. }
        | WaitingReason::PathTooExpensive { .. }
        | WaitingReason::ResourceMismatch(_)
        | WaitingReason::WhenInvalid(_)
        | WaitingReason::TemplateInvalid(_)
        | WaitingReason::BodyInvalid { .. }
        | WaitingReason::TestBodyInvalid { .. }
        | WaitingReason::OutOfScope { .. }
        | WaitingReason::CrossNamespace { .. }
        | WaitingReason::Suspended
        | WaitingReason::Field { .. }
        | WaitingReason::ContactPointNotFound { .. }
        | WaitingReason::ContactPointNotObserved { .. }
        | WaitingReason::ContactPointNotReady { .. }
        | WaitingReason::WriteRejected(_)
        | WaitingReason::NotGranted(_)
        | WaitingReason::DeliveryFailing { .. } => waiting.reason(),
    };
    all.iter().map(reason).collect()
}

/// Returns words of all sources below `folder` without tests: the words in quotes after each `start`, up to the next
/// semicolon or closing brace.
fn words_after(folder: &Path, start: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for file in fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        if file.is_dir() {
            words.extend(words_after(&file, start));
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let product = text
            .split("#[cfg(test)]\n#[allow")
            .next()
            .unwrap()
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap();
        if file.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        for call in product
            .split(start)
            .skip(1)
            .filter_map(|rest| rest.split([';', '}']).next())
        {
            let quoted = call.split('"').skip(1).step_by(2);
            let reason = |word: &&str| {
                word.starts_with(|c: char| c.is_ascii_uppercase())
                    && word.chars().all(char::is_alphanumeric)
            };
            words.extend(quoted.filter(reason).map(str::to_owned));
        }
    }
    words
}

fn of_contact_point() -> BTreeSet<String> {
    let of = |receiver: &ReceiverState| {
        // The contact point was not ready before it was suspended.
        let mut status = ContactPointStatus {
            was_ready: Some(false),
            ..ContactPointStatus::default()
        };
        let tested = LastTest::default();
        let outcome = status::answered(
            &mut status,
            receiver,
            false,
            &tested,
            AcceptedTests::default(),
        );
        outcome.reason.into_owned()
    };
    let accepted = of(&ReceiverState::Accepted { migrated_to: None });
    let retrying = of(&ReceiverState::Retrying(String::new()));
    let untried = of(&ReceiverState::Untried);
    owned(blocked().into_iter().chain(stopped()).chain([SUSPENDED]))
        .into_iter()
        .chain([accepted, retrying, untried])
        .collect()
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

fn of_my_ingress() -> BTreeSet<&'static str> {
    let answered = error::CODES.iter().map(|(.., reason)| *reason);
    my_ingress::status::REASONS
        .into_iter()
        .chain(error::OTHER_REASONS)
        .chain(answered)
        .collect()
}

/// Reasons of Pods that the table explains; any other reason of the kubelet is possible, too.
const OF_PODS: [&str; 3] = [pod::CRASH_LOOP, pod::PULL_BACK_OFF, pod::UNSCHEDULABLE];
/// Reasons of Deployments that the table explains.
const OF_DEPLOYMENTS: [&str; 2] = ["FailedCreate", "ProgressDeadlineExceeded"];

#[test]
fn table_has_the_reasons_of_each_kind_and_no_others() {
    let of_app_service = app_service::status::REASONS.into_iter().chain(OF_PODS);
    for (kind, expected) in [
        ("ContactPoint", of_contact_point()),
        ("TrackedField", owned(waiting())),
        ("TrackedFieldSet", owned(tracked_field_set::status::REASONS)),
        ("ConfigMapSync", owned(config_map_sync::status::REASONS)),
        (
            "MyApp",
            owned(my_app::status::REASONS.into_iter().chain(OF_PODS)),
        ),
        ("AppService", owned(of_app_service.chain(OF_DEPLOYMENTS))),
        ("MyIngress", owned(of_my_ingress())),
    ] {
        let rows = owned(generated::reasons::of(kind).map(|it| it.name));
        assert_eq!(
            rows, expected,
            "{kind}: change xtask/src/docs/reasons/table.rs"
        );
    }
    assert_eq!(table::OUTCOMES_RECORDED.name, WRITE_REJECTED);
}

/// Returns words in backticks outside fenced blocks that are shaped like a reason.
fn reasons_in(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let quoted = prose.split('`').skip(1).step_by(2);
    let reasons = quoted.filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
    reasons
        .filter(|word| word.len() > 1 && word.chars().all(char::is_alphanumeric))
        .map(str::to_owned)
        .collect()
}

#[test]
fn runbook_of_load_balancers_names_every_reason_and_no_other() {
    let named = reasons_in(&page("runbooks/QuartermasterLoadBalancerNotReady.md"));
    // The alert excludes the first two. An object without a status has the third.
    let (silent, unobserved) = ([READY, SUSPENDED], NOT_OBSERVED);
    let mut expected: BTreeSet<_> = of_my_ingress()
        .into_iter()
        .filter(|reason| !silent.contains(reason))
        .collect();
    expected.insert(unobserved);
    assert_eq!(
        named.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        expected
    );
}

#[test]
fn every_reason_in_a_runbook_exists() {
    // Kubernetes' states of a Pod, and the action of a policy's binding.
    let kubernetes = [
        "CrashLoopBackOff",
        "Deny",
        "ErrImagePull",
        "ImagePullBackOff",
        "OOMKilled",
        "Pending",
        "Running",
    ];
    let list = page("reference/reasons.md");
    for path in in_folder(&root().join("docs/runbooks")) {
        for reason in reasons_in(&fs::read_to_string(&path).unwrap()) {
            let known = reason == NOT_OBSERVED
                || kubernetes.contains(&&*reason)
                || row(&list, &reason).is_some();
            assert!(known, "{}: reason {reason} does not exist", path.display());
        }
    }
}

#[test]
fn policy_matches_the_code() {
    let policy = action::policy(&qm_api::common::NAMES);
    let is_policy = |block: &str| {
        serde_json::from_str::<serde_json::Value>(block).is_ok_and(|block| block == policy)
    };
    let has_policy = |page: &String| {
        let blocks = page.split("```json\n").skip(1);
        blocks
            .filter_map(|rest| rest.split("```").next())
            .any(is_policy)
    };
    assert!(
        pages().values().any(has_policy),
        "no page has the IAM policy {policy:#}"
    );
}

#[test]
fn table_has_the_events_of_the_code_and_no_others() {
    let mut words: BTreeSet<_> = [".warning(", ".normal(", "cx.event("]
        .iter()
        .flat_map(|call| words_after(&root().join("src/controllers"), call))
        .collect();
    assert!(words.contains("DeliveryFailed"), "{words:?}");
    // Named by constants, or emitted by the runtime.
    words.extend(owned([
        AUTOSCALING_DISABLED,
        RECREATED,
        "Correct",
        "DriftCorrected",
        error::TARGETS_REJECTED,
    ]));
    let rows = table::EVENTS.iter().flat_map(|it| [it.name, it.action]);
    assert_eq!(owned(rows), words, "change xtask/src/docs/reasons/table.rs");
}
