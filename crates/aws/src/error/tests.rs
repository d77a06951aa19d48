#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use aws_sdk_elasticloadbalancingv2::error::ErrorMetadata;
use aws_sdk_elasticloadbalancingv2::operation::create_load_balancer::CreateLoadBalancerError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use rstest::rstest;

use super::*;

type Sdk = SdkError<CreateLoadBalancerError, HttpResponse>;
type Sts = SdkError<AssumeRoleWithWebIdentityError, HttpResponse>;

fn answered(code: Option<&str>, status: u16) -> AwsError {
    let mut metadata = ErrorMetadata::builder().message("words");
    if let Some(code) = code {
        metadata = metadata.code(code);
    }
    let raw = HttpResponse::new(status.try_into().unwrap(), SdkBody::empty());
    AwsError::from(Sdk::service_error(
        CreateLoadBalancerError::generic(metadata.build()),
        raw,
    ))
}

fn sts_answered(code: &str, status: u16) -> Sts {
    let metadata = ErrorMetadata::builder().code(code).build();
    let raw = HttpResponse::new(status.try_into().unwrap(), SdkBody::empty());
    Sts::service_error(AssumeRoleWithWebIdentityError::generic(metadata), raw)
}

#[test]
fn table_has_each_code_once() {
    let codes: BTreeSet<_> = CODES.iter().map(|(code, ..)| code).collect();
    assert_eq!(codes.len(), CODES.len());
    assert!(
        CODES.iter().all(|(_, class, _)| *class != Class::Stale),
        "reasons are no codes of AWS"
    );
}

#[test]
fn the_table() {
    let rows: Vec<_> = CODES
        .iter()
        .map(|(code, class, reason)| format!("{code}: {class:?}, {reason}"))
        .collect();
    insta::assert_snapshot!(rows.join("\n"));
}

/// A terminal error is not retried, so only the spec may cause it.
#[test]
fn only_the_spec_is_terminal() {
    for (code, class, reason) in CODES {
        assert_eq!(
            *class == Class::Terminal,
            *reason == SPEC_REJECTED,
            "{code}"
        );
    }
}

#[rstest]
#[case("SubnetNotFound", 400, Class::Terminal, "SpecRejected")]
#[case("InvalidConfigurationRequest", 400, Class::Terminal, "SpecRejected")]
#[case("ValidationError", 400, Class::Terminal, "SpecRejected")]
#[case("TooManyLoadBalancers", 400, Class::Slow, "QuotaExceeded")]
#[case("InvalidSubnet", 400, Class::Slow, "SubnetInvalid")]
#[case("AccessDenied", 403, Class::Slow, "AccessDenied")]
#[case("ExpiredToken", 403, Class::Slow, "CredentialsMissing")]
#[case("OperationNotPermitted", 400, Class::Slow, "NotPermitted")]
#[case("DuplicateLoadBalancerName", 400, Class::Transient, "NameTaken")]
#[case("ResourceInUse", 400, Class::Transient, "OperationInProgress")]
#[case("Throttling", 400, Class::Transient, "Throttled")]
#[case("ServiceUnavailable", 503, Class::Transient, "AWSUnavailable")]
#[case::unknown_client_error("NeverHeardOf", 400, Class::Slow, "AWSRequestFailed")]
#[case::unknown_server_error("NeverHeardOf", 500, Class::Transient, "AWSUnavailable")]
#[case::unknown_throttling("NeverHeardOf", 429, Class::Transient, "Throttled")]
fn code_gives_class_and_reason(
    #[case] code: &str,
    #[case] status: u16,
    #[case] class: Class,
    #[case] reason: &str,
) {
    let error = answered(Some(code), status);
    assert_eq!((error.class, error.reason), (class, reason));
    assert!(
        error.is(code)
            && error
                .message
                .starts_with(&format!("AWS returned {code}: words")),
        "{error}"
    );
}

#[test]
fn answer_without_a_code_is_classified_by_its_status() {
    let error = answered(None, 503);
    assert_eq!(
        (error.class, error.reason),
        (Class::Transient, "AWSUnavailable")
    );
    assert_eq!(error.to_string(), "AWS returned HTTP 503: words");
}

#[test]
fn missing_answer_is_classified_by_its_cause() {
    let refused = ConnectorError::io(std::io::Error::other("connection refused").into());
    let error = AwsError::from(Sdk::dispatch_failure(refused));
    assert_eq!(
        (error.class, error.reason),
        (Class::Transient, "AWSUnavailable")
    );
    assert!(error.to_string().contains("connection refused"), "{error}");
    let none = CredentialsError::not_loaded("no providers");
    let error = AwsError::from(Sdk::construction_failure(none));
    assert_eq!(
        (error.class, error.reason),
        (Class::Slow, "CredentialsMissing")
    );
}

/// Only a rejection by STS is a problem of the configuration.
#[rstest]
#[case::unreachable(|| {
    let refused = std::io::Error::other("connection refused");
    Sts::dispatch_failure(ConnectorError::io(refused.into()))
}, Class::Transient, "AWSUnavailable")]
#[case::silent(|| Sts::timeout_error("no answer"), Class::Transient, "AWSUnavailable")]
#[case::failing(|| sts_answered("InternalFailure", 500), Class::Transient, "AWSUnavailable")]
#[case::throttled(|| sts_answered("Throttling", 400), Class::Transient, "AWSUnavailable")]
#[case::denied(|| sts_answered("AccessDenied", 403), Class::Slow, "CredentialsMissing")]
#[case::expired(|| sts_answered("ExpiredTokenException", 400), Class::Slow, "CredentialsMissing")]
#[case::without_other_credentials(|| {
    let missing = CredentialsError::not_loaded_no_source();
    Sts::dispatch_failure(ConnectorError::other(missing.into(), None))
}, Class::Slow, "CredentialsMissing")]
fn failed_request_for_credentials_is_classified_by_its_cause(
    #[case] cause: fn() -> Sts,
    #[case] class: Class,
    #[case] reason: &str,
) {
    let failed = CredentialsError::provider_error(cause());
    // A profile wraps the error of its source.
    let nested = CredentialsError::provider_error(CredentialsError::provider_error(cause()));
    for error in [failed, nested] {
        let error = AwsError::from(Sdk::construction_failure(error));
        assert_eq!((error.class, error.reason), (class, reason), "{error}");
        assert!(error.had_no_effect);
    }
}

#[test]
fn unreadable_token_is_a_problem_of_the_configuration() {
    let unreadable = std::io::Error::other("no such file");
    let error = CredentialsError::provider_error(unreadable);
    let error = AwsError::from(Sdk::construction_failure(error));
    assert_eq!(
        (error.class, error.reason),
        (Class::Slow, "CredentialsMissing")
    );
}
