//! AWS errors: the table from error codes to classes and reasons.

use std::error::Error;
use std::{fmt, iter};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use qm_runtime::error::Class;
use qm_runtime::telemetry;

/// No load balancer has that name or ARN.
pub const NOT_FOUND: &str = "LoadBalancerNotFound";
/// AWS does not allow the operation in the current state.
pub const OPERATION_NOT_PERMITTED: &str = "OperationNotPermitted";
/// No target group has that name or ARN.
pub const GROUP_NOT_FOUND: &str = "TargetGroupNotFound";
/// No listener has that ARN.
pub(crate) const LISTENER_NOT_FOUND: &str = "ListenerNotFound";
/// Some targets cannot be registered.
pub const INVALID_TARGET: &str = "InvalidTarget";
/// Another resource refers to the resource.
pub const IN_USE: &str = "ResourceInUse";

/// Reason while the credentials are missing, expired or rejected.
pub(crate) const CREDENTIALS_MISSING: &str = "CredentialsMissing";
/// Reason of a load balancer in an account other than the operator's.
pub const ACCOUNT_MISMATCH: &str = "AccountMismatch";
/// Reason of a load balancer in a region other than the operator's.
pub const REGION_MISMATCH: &str = "RegionMismatch";
/// Reason while no region is known.
pub(crate) const REGION_MISSING: &str = "RegionMissing";

/// Reason while `HTTPS_PROXY` names no usable proxy.
pub(crate) const PROXY_INVALID: &str = "ProxyInvalid";

pub(crate) const ACCESS_DENIED: &str = "AccessDenied";
const QUOTA_EXCEEDED: &str = "QuotaExceeded";
const THROTTLED: &str = "Throttled";
const UNAVAILABLE: &str = "AWSUnavailable";
const OPERATION_IN_PROGRESS: &str = "OperationInProgress";
/// Reason while AWS accepts no node, or not every node, as a target.
pub const TARGETS_REJECTED: &str = "TargetsRejected";
const NAME_TAKEN: &str = "NameTaken";
const NOT_PERMITTED: &str = "NotPermitted";
const SUBNET_INVALID: &str = "SubnetInvalid";
const SPEC_REJECTED: &str = "SpecRejected";
const REQUEST_FAILED: &str = "AWSRequestFailed";

/// Reasons of errors without an answer, or with a code that the table lacks.
pub const OTHER_REASONS: [&str; 8] = [
    ACCOUNT_MISMATCH,
    CREDENTIALS_MISSING,
    PROXY_INVALID,
    REGION_MISMATCH,
    REGION_MISSING,
    REQUEST_FAILED,
    THROTTLED,
    UNAVAILABLE,
];

/// Every code of the [API
/// reference](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/CommonErrors.html), including the
/// codes of actions that the operator does not use.
///
/// Terminal: only a change to the spec helps. Slow: somebody has to change something else first.
#[rustfmt::skip]
pub const CODES: &[(&str, Class, &str)] = &[
    // Codes of the spec.
    ("AllocationIdNotFound",                     Class::Terminal,  SPEC_REJECTED),
    ("ALPNPolicyNotFound",                       Class::Terminal,  SPEC_REJECTED),
    ("AvailabilityZoneNotSupported",             Class::Terminal,  SPEC_REJECTED),
    ("CertificateNotFound",                      Class::Terminal,  SPEC_REJECTED),
    ("DuplicateTagKeys",                         Class::Terminal,  SPEC_REJECTED),
    ("IncompatibleProtocols",                    Class::Terminal,  SPEC_REJECTED),
    ("InvalidConfigurationRequest",              Class::Terminal,  SPEC_REJECTED),
    ("InvalidLoadBalancerAction",                Class::Terminal,  SPEC_REJECTED),
    ("InvalidScheme",                            Class::Terminal,  SPEC_REJECTED),
    ("InvalidSecurityGroup",                     Class::Terminal,  SPEC_REJECTED),
    ("SSLPolicyNotFound",                        Class::Terminal,  SPEC_REJECTED),
    ("SubnetNotFound",                           Class::Terminal,  SPEC_REJECTED),
    ("TooManyTags",                              Class::Terminal,  SPEC_REJECTED),
    ("UnsupportedProtocol",                      Class::Terminal,  SPEC_REJECTED),
    ("ValidationError",                          Class::Terminal,  SPEC_REJECTED),
    ("CaCertificatesBundleNotFound",             Class::Terminal,  SPEC_REJECTED),
    ("DeleteAssociationSameAccount",             Class::Terminal,  SPEC_REJECTED),
    ("DuplicateTrustStoreName",                  Class::Terminal,  SPEC_REJECTED),
    ("InvalidCaCertificatesBundle",              Class::Terminal,  SPEC_REJECTED),
    ("InvalidRevocationContent",                 Class::Terminal,  SPEC_REJECTED),
    ("RevocationContentNotFound",                Class::Terminal,  SPEC_REJECTED),
    ("RevocationIdNotFound",                     Class::Terminal,  SPEC_REJECTED),
    ("AssociationNotFound",                      Class::Terminal,  SPEC_REJECTED),
    ("TrustStoreNotFound",                       Class::Terminal,  SPEC_REJECTED),
    // Codes of the account: quotas ...
    ("InvalidSubnet",                            Class::Slow,      SUBNET_INVALID),
    ("TargetGroupAssociationLimit",              Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyActions",                           Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyCertificates",                      Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyListeners",                         Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyLoadBalancers",                     Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyRegistrationsForTargetId",          Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyRules",                             Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyTargetGroups",                      Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyTargets",                           Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyUniqueTargetGroupsPerLoadBalancer", Class::Slow,      QUOTA_EXCEEDED),
    ("CapacityDecreaseRequestLimitExceeded",     Class::Slow,      QUOTA_EXCEEDED),
    ("CapacityUnitsLimitExceeded",               Class::Slow,      QUOTA_EXCEEDED),
    ("InsufficientCapacity",                     Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyTrustStoreRevocationEntries",       Class::Slow,      QUOTA_EXCEEDED),
    ("TooManyTrustStores",                       Class::Slow,      QUOTA_EXCEEDED),
    // ... forbidden operations ...
    (OPERATION_NOT_PERMITTED,                    Class::Slow,      NOT_PERMITTED),
    ("AccessDenied",                             Class::Slow,      ACCESS_DENIED),
    ("AccessDeniedException",                    Class::Slow,      ACCESS_DENIED),
    ("NotAuthorized",                            Class::Slow,      ACCESS_DENIED),
    ("OptInRequired",                            Class::Slow,      ACCESS_DENIED),
    ("UnauthorizedOperation",                    Class::Slow,      ACCESS_DENIED),
    // ... and credentials.
    ("AuthFailure",                              Class::Slow,      CREDENTIALS_MISSING),
    ("ExpiredToken",                             Class::Slow,      CREDENTIALS_MISSING),
    ("ExpiredTokenException",                    Class::Slow,      CREDENTIALS_MISSING),
    ("IncompleteSignature",                      Class::Slow,      CREDENTIALS_MISSING),
    ("InvalidAccessKeyId",                       Class::Slow,      CREDENTIALS_MISSING),
    ("InvalidClientTokenId",                     Class::Slow,      CREDENTIALS_MISSING),
    ("MissingAuthenticationToken",               Class::Slow,      CREDENTIALS_MISSING),
    ("SignatureDoesNotMatch",                    Class::Slow,      CREDENTIALS_MISSING),
    ("UnrecognizedClientException",              Class::Slow,      CREDENTIALS_MISSING),
    // Another load balancer has the name and is not visible yet or no longer.
    ("DuplicateLoadBalancerName",                Class::Transient, NAME_TAKEN),
    // Resources that AWS is still creating or deleting.
    ("DuplicateListener",                        Class::Transient, OPERATION_IN_PROGRESS),
    ("DuplicateTargetGroupName",                 Class::Transient, OPERATION_IN_PROGRESS),
    ("HealthUnavailable",                        Class::Transient, OPERATION_IN_PROGRESS),
    (INVALID_TARGET,                             Class::Transient, TARGETS_REJECTED),
    (LISTENER_NOT_FOUND,                         Class::Transient, OPERATION_IN_PROGRESS),
    (NOT_FOUND,                                  Class::Transient, OPERATION_IN_PROGRESS),
    ("PriorRequestNotComplete",                  Class::Transient, OPERATION_IN_PROGRESS),
    ("PriorityInUse",                            Class::Transient, OPERATION_IN_PROGRESS),
    (IN_USE,                                     Class::Transient, OPERATION_IN_PROGRESS),
    ("ResourceNotFound",                         Class::Transient, OPERATION_IN_PROGRESS),
    ("RuleNotFound",                             Class::Transient, OPERATION_IN_PROGRESS),
    (GROUP_NOT_FOUND,                            Class::Transient, OPERATION_IN_PROGRESS),
    ("CapacityReservationPending",               Class::Transient, OPERATION_IN_PROGRESS),
    ("TrustStoreInUse",                          Class::Transient, OPERATION_IN_PROGRESS),
    ("TrustStoreNotReady",                       Class::Transient, OPERATION_IN_PROGRESS),
    // Codes of AWS itself.
    ("RequestLimitExceeded",                     Class::Transient, THROTTLED),
    ("Throttling",                               Class::Transient, THROTTLED),
    ("ThrottlingException",                      Class::Transient, THROTTLED),
    ("TooManyRequestsException",                 Class::Transient, THROTTLED),
    ("InternalError",                            Class::Transient, UNAVAILABLE),
    ("InternalFailure",                          Class::Transient, UNAVAILABLE),
    ("RequestExpired",                           Class::Transient, UNAVAILABLE),
    ("ServiceUnavailable",                       Class::Transient, UNAVAILABLE),
];

/// Error of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsError {
    /// Class of the error.
    pub class: Class,
    /// Reason of the condition.
    pub reason: &'static str,
    /// AWS's error code, if it answered.
    pub code: Option<String>,
    /// True if the call certainly had no effect.
    pub had_no_effect: bool,
    /// Message for the user.
    pub message: String,
}

impl AwsError {
    /// Creates the error of a call that was not sent.
    pub fn unsent(class: Class, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            class,
            reason,
            code: None,
            had_no_effect: true,
            message: message.into(),
        }
    }

    /// Creates the error of a call without a usable answer.
    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self {
            had_no_effect: false,
            ..Self::unsent(Class::Transient, UNAVAILABLE, message)
        }
    }

    /// Creates the error of an answer with this HTTP status.
    fn answered(code: Option<&str>, message: Option<&str>, status: u16) -> Self {
        let known = CODES.iter().find(|(known, ..)| Some(*known) == code);
        let (class, reason) = match known {
            Some((_, class, reason)) => (*class, *reason),
            None if status >= 500 => (Class::Transient, UNAVAILABLE),
            None if status == 429 => (Class::Transient, THROTTLED),
            None => (Class::Slow, REQUEST_FAILED),
        };
        let cause = message.unwrap_or("no message");
        // AWS's message may quote a whole policy, and the advice after it must stay readable.
        let cause = &cause[..cause.floor_char_boundary(400)];
        let message = match code {
            Some(code) => format!("AWS returned {code}: {cause}"),
            None => format!("AWS returned HTTP {status}: {cause}"),
        };
        let message = Self::advised(reason, message);
        Self {
            class,
            reason,
            code: code.map(Into::into),
            had_no_effect: status < 500,
            message,
        }
    }

    fn advised(reason: &str, message: String) -> String {
        match reason {
            CREDENTIALS_MISSING => {
                format!(
                    "{message}; give the operator credentials (docs/security/aws-iam.md, \"Region and credentials\")"
                )
            }
            ACCESS_DENIED => {
                format!(
                    "{message}; docs/security/aws-iam.md, \"Permissions\", has the policy that the operator needs"
                )
            }
            _ => message,
        }
    }

    /// Returns whether the error may concern only one resource: calls for others may succeed. A permission may depend on
    /// the resource and its tags.
    pub fn concerns_one_resource(&self) -> bool {
        let all = [
            THROTTLED,
            UNAVAILABLE,
            CREDENTIALS_MISSING,
            REGION_MISSING,
            PROXY_INVALID,
        ];
        self.class != Class::Stale && !all.contains(&self.reason)
    }

    /// Returns the error of a rejection that lasts until a person changes something, whatever its code usually means.
    #[must_use]
    pub fn needs_a_person(self) -> Self {
        if self.class == Class::Slow {
            return self;
        }
        Self {
            class: Class::Slow,
            reason: NOT_PERMITTED,
            ..self
        }
    }

    /// Returns the label for metrics: AWS's error code, or the reason if the table lacks the code.
    pub(super) fn label(&self) -> &'static str {
        CODES
            .iter()
            .find(|(code, ..)| self.is(code))
            .map_or(self.reason, |(code, ..)| code)
    }

    /// Returns whether AWS answered with this code.
    pub fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }
}

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for AwsError {}

impl<E: ProvideErrorMetadata + Error + 'static> From<SdkError<E, HttpResponse>> for AwsError {
    fn from(error: SdkError<E, HttpResponse>) -> Self {
        if let SdkError::ServiceError(answer) = &error {
            let (code, message) = (answer.err().code(), answer.err().message());
            return Self::answered(code, message, answer.raw().status().as_u16());
        }
        let causes = telemetry::causes(&error);
        if chain(&error).any(is_about_credentials) {
            if chain(&error).any(sts_failed) {
                let message = format!("AWS gave the operator no credentials: {causes}");
                return Self::unsent(Class::Transient, UNAVAILABLE, message);
            }
            // The message lists every source that the SDK tried, one per line.
            let first = causes.lines().next().unwrap_or_default();
            let message = format!(
                "no credentials for AWS: give the operator's ServiceAccount a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY \
                 (docs/security/aws-iam.md, \"Region and credentials\"); the SDK reports: {first}"
            );
            return Self::unsent(Class::Slow, CREDENTIALS_MISSING, message);
        }
        Self::unknown(format!("AWS did not answer: {causes}"))
    }
}

/// Returns the error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&cause| cause.source())
}

fn is_about_credentials(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<CredentialsError>()
}

/// Returns whether the cause is a request for credentials that STS did not answer, or answered with an error of its own.
/// The operator's configuration is then not the problem, unlike after a rejection.
fn sts_failed(cause: &(dyn Error + 'static)) -> bool {
    fn failed<E: ProvideErrorMetadata + Error + 'static>(cause: &(dyn Error + 'static)) -> bool {
        match cause.downcast_ref::<SdkError<E, HttpResponse>>() {
            Some(SdkError::ServiceError(answer)) => {
                let status = answer.raw().status().as_u16();
                AwsError::answered(answer.err().code(), None, status).class == Class::Transient
            }
            // A request that lacks credentials itself was never sent.
            Some(error) => !chain(error).any(is_about_credentials),
            None => false,
        }
    }
    failed::<AssumeRoleWithWebIdentityError>(cause) || failed::<AssumeRoleError>(cause)
}

#[cfg(test)]
mod tests;
