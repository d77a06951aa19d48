//! Every reason that the code can give has its row.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::contact_point::LastTest;
use qm_aws::{action, error};
use qm_core::conditions::READY;
use qm_core::readiness::NOT_OBSERVED;
use qm_notify::Refusal;
use qm_notify::queue::{AcceptedTests, Standing};
use qm_runtime::error::WRITE_REJECTED;
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::watch_hub::ResourceName;
use quartermaster::controllers::config_map_sync;
use quartermaster::controllers::contact_point::endpoint::Blocked;
use quartermaster::controllers::contact_point::standing;
use quartermaster::controllers::tracked_field::field::Field;
use quartermaster::controllers::tracked_field::waiting::Waiting;
use quartermaster::controllers::{app_service, my_app, my_ingress, pod};

use super::{in_folder, page, prose, root, row};

/// One of each: a variant that is added does not compile before it is named here.
fn blocked() -> Vec<&'static str> {
    let all = [
        Blocked::SecretNotFound(String::new()),
        Blocked::SecretKeyMissing(String::new()),
        Blocked::SecretInvalid(String::new()),
        Blocked::SecretForbidden(String::new()),
        Blocked::SpecInvalid(String::new()),
        Blocked::SecretUnreadable(String::new()),
    ];
    let reason = |blocked: &Blocked| match blocked {
        Blocked::SecretNotFound(_)
        | Blocked::SecretKeyMissing(_)
        | Blocked::SecretInvalid(_)
        | Blocked::SecretForbidden(_)
        | Blocked::SpecInvalid(_)
        | Blocked::SecretUnreadable(_) => blocked.reason(),
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
        Waiting::SpecInvalid(name()),
        Waiting::TargetNotFound { target: name() },
        Waiting::Forbidden {
            resource: ResourceName {
                api_version: name(),
                plural: name(),
            },
            message: name(),
        },
        Waiting::TargetUnreadable(name()),
        Waiting::TargetUndecodable {
            target: name(),
            problem: name(),
        },
        Waiting::PathTooExpensive {
            target: name(),
            problem: name(),
        },
        Waiting::ResourceMismatch(name()),
        Waiting::TemplateInvalid(name()),
        Waiting::BodyInvalid {
            name: name(),
            message: name(),
        },
        Waiting::OutOfScope { namespace: name() },
        Waiting::Suspended,
        Waiting::ContactPointNotFound {
            name: name(),
            nearest: None,
        },
        Waiting::ContactPointNew { name: name() },
        Waiting::ContactPointNotReady {
            name: name(),
            because: name(),
        },
        Waiting::WriteRejected(name()),
        Waiting::DeliveryFailing {
            name: name(),
            message: name(),
        },
    ];
    for field in ["targetPort", "{.spec"] {
        let error = Field::compile("Deployment", field).unwrap_err();
        all.push(Waiting::Field {
            reason: error.reason(),
            message: error.to_string(),
        });
    }
    let reason = |waiting: &Waiting| match waiting {
        Waiting::SpecInvalid(_)
        | Waiting::TargetNotFound { .. }
        | Waiting::Forbidden { .. }
        | Waiting::TargetUnreadable(_)
        | Waiting::TargetUndecodable { .. }
        | Waiting::PathTooExpensive { .. }
        | Waiting::ResourceMismatch(_)
        | Waiting::TemplateInvalid(_)
        | Waiting::BodyInvalid { .. }
        | Waiting::OutOfScope { .. }
        | Waiting::CrossNamespace { .. }
        | Waiting::Suspended
        | Waiting::Field { .. }
        | Waiting::ContactPointNotFound { .. }
        | Waiting::ContactPointNew { .. }
        | Waiting::ContactPointNotReady { .. }
        | Waiting::WriteRejected(_)
        | Waiting::NotGranted(_)
        | Waiting::DeliveryFailing { .. } => waiting.reason(),
    };
    all.iter().map(reason).collect()
}

/// What `of` says in all sources below `folder`, without those of tests: the words in quotes after each `start`, up to the
/// next semicolon or closing brace.
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
fn every_reason_of_a_contact_point_has_its_row() {
    let page = page("contact-point.md");
    let now = || Time(k8s_openapi::jiff::Timestamp::default());
    let of = |standing: &Standing| {
        standing::status(
            None,
            standing,
            false,
            &LastTest::default(),
            AcceptedTests::default(),
            1,
            now(),
        )
        .unwrap()
        .conditions[0]
            .reason
            .clone()
    };
    let mut reasons: BTreeSet<String> = blocked()
        .into_iter()
        .chain(stopped())
        .map(str::to_owned)
        .collect();
    reasons.insert(of(&Standing::Taken { migrated_to: None }));
    reasons.insert(of(&Standing::Retrying(String::new())));
    reasons.insert(SUSPENDED.to_owned());
    reasons.insert(WRITE_REJECTED.to_owned());
    assert!(reasons.len() > 16, "{reasons:?}");
    for reason in reasons {
        assert!(row(&page, &reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_tracked_field_has_its_row() {
    let page = page("tracked-field.md");
    for reason in waiting() {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_config_map_sync_has_its_row() {
    let page = page("config-map-sync.md");
    for reason in config_map_sync::status::REASONS {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_reason_of_a_my_app_has_its_row() {
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
fn every_reason_of_a_my_ingress_has_its_row() {
    let page = page("my-ingress.md");
    for reason in of_my_ingress() {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

/// Words in backticks outside fenced blocks that are shaped like a reason.
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
    // The alert leaves these two out. An object without a status has the third.
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
            assert!(known, "{}: there is no reason {reason}", path.display());
        }
    }
}

#[test]
fn the_policy_is_that_of_the_code() {
    let page = page("my-ingress.md");
    let shown = page
        .split("```json\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(shown).unwrap(),
        action::policy(&qm_api::common::NAMES)
    );
}

#[test]
fn every_reason_of_an_app_service_has_its_row() {
    let page = page("app-service.md");
    let pods = [pod::CRASH_LOOP, pod::PULL_BACK_OFF, pod::UNSCHEDULABLE];
    for reason in app_service::status::REASONS.into_iter().chain(pods) {
        assert!(row(&page, reason).is_some(), "{reason} has no row");
    }
}

#[test]
fn every_event_is_told_of() {
    let pages = page("contact-point.md")
        + &page("tracked-field.md")
        + &page("config-map-sync.md")
        + &page("my-app.md")
        + &page("app-service.md")
        + &page("my-ingress.md");
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
        assert!(pages.contains(&word), "the Event's {word} is not told of");
    }
}
