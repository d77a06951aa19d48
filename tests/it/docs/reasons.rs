//! Every reason in the code has its row.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use qm_api::contact_point::{ContactPointStatus, LastTest};
use qm_aws::{action, error};
use qm_core::conditions::READY;
use qm_core::readiness::NOT_OBSERVED;
use qm_notify::Refusal;
use qm_notify::queue::{AcceptedTests, ReceiverState};
use qm_runtime::error::WRITE_REJECTED;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::watch::ResourceName;
use quartermaster::controllers::config_map_sync;
use quartermaster::controllers::contact_point::endpoint::EndpointError;
use quartermaster::controllers::contact_point::status;
use quartermaster::controllers::tracked_field::field::FieldSelector;
use quartermaster::controllers::tracked_field::waiting::WaitingReason;
use quartermaster::controllers::{app_service, my_app, my_ingress, pod, tracked_field_set};
use quartermaster::kinds;

use super::{in_folder, page, page_of, prose, root, row};

/// A value of each variant: a new variant does not compile without an entry here.
fn blocked() -> Vec<&'static str> {
    let all = [
        EndpointError::SecretNotFound(String::new()),
        EndpointError::SecretKeyMissing(String::new()),
        EndpointError::SecretInvalid(String::new()),
        EndpointError::SecretForbidden(String::new()),
        EndpointError::SpecInvalid(String::new()),
        EndpointError::BodyInvalid(String::new()),
        EndpointError::SecretUnreadable(String::new()),
    ];
    let reason = |blocked: &EndpointError| match blocked {
        EndpointError::SecretNotFound(_)
        | EndpointError::SecretKeyMissing(_)
        | EndpointError::SecretInvalid(_)
        | EndpointError::SecretForbidden(_)
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

#[test]
fn every_reason_of_a_contact_point_has_a_row() {
    let page = page("contact-point.md");
    let of = |receiver: &ReceiverState| {
        let (mut status, tested) = (ContactPointStatus::default(), LastTest::default());
        let outcome = status::answered(
            &mut status,
            receiver,
            false,
            &tested,
            AcceptedTests::default(),
        );
        outcome.reason.into_owned()
    };
    let mut reasons: BTreeSet<String> = blocked()
        .into_iter()
        .chain(stopped())
        .map(str::to_owned)
        .collect();
    reasons.insert(of(&ReceiverState::Accepted { migrated_to: None }));
    reasons.insert(of(&ReceiverState::Retrying(String::new())));
    reasons.insert(SUSPENDED.to_owned());
    reasons.insert(WRITE_REJECTED.to_owned());
    assert!(reasons.len() > 16, "{reasons:?}");
    for reason in reasons {
        assert!(row(&page, &reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_tracked_field_has_a_row() {
    let page = page("tracked-field.md");
    for reason in waiting() {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_tracked_field_set_has_a_row() {
    let page = page("tracked-field-set.md");
    for reason in tracked_field_set::REASONS {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_config_map_sync_has_a_row() {
    let page = page("config-map-sync.md");
    for reason in config_map_sync::status::REASONS {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_my_app_has_a_row() {
    let page = page("my-app.md");
    for reason in my_app::step::REASONS {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

fn of_my_ingress() -> BTreeSet<&'static str> {
    let answered = error::CODES.iter().map(|(.., reason)| *reason);
    my_ingress::status::REASONS
        .into_iter()
        .chain(error::OTHER_REASONS)
        .chain(answered)
        .collect()
}

#[test]
fn every_reason_of_a_my_ingress_has_a_row() {
    let page = page("my-ingress.md");
    for reason in of_my_ingress() {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
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
    let page = page("my-ingress.md");
    let mentioned = page
        .split("```json\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(mentioned).unwrap(),
        action::policy(&qm_api::common::NAMES)
    );
}

#[test]
fn every_reason_of_an_app_service_has_a_row() {
    let page = page("app-service.md");
    let pods = [pod::CRASH_LOOP, pod::PULL_BACK_OFF, pod::UNSCHEDULABLE];
    for reason in app_service::status::REASONS.into_iter().chain(pods) {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_event_is_documented() {
    let pages: String = kinds::crds().iter().map(page_of).collect();
    let sources = root().join("src/controllers");
    let words: BTreeSet<_> = [".warning(", ".normal(", "cx.event("]
        .iter()
        .flat_map(|call| words_after(&sources, call))
        .collect();
    assert!(
        words.contains("DeliveryFailed")
            && words.contains("EntriesMerged")
            && words.contains("Merge"),
        "{words:?}"
    );
    for word in words {
        assert!(
            pages.contains(&word),
            "the Event's {word} is not documented"
        );
    }
}
