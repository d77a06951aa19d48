//! AWS responses and their encoding.

use http::{HeaderName, HeaderValue, StatusCode, header};

use super::xml::Element;
use crate::serve::Reply;

const NAMESPACE: &str = r#" xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/""#;

/// An error response of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsErrorResponse {
    /// The HTTP status.
    pub http: u16,
    /// The error code, such as `LoadBalancerNotFound`.
    pub code: String,
    /// The message.
    pub message: String,
}

impl std::fmt::Display for AwsErrorResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} (HTTP {})", self.code, self.message, self.http)
    }
}

impl std::error::Error for AwsErrorResponse {}

impl AwsErrorResponse {
    /// Returns an error with HTTP status 400.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self::with_status(400, code, message)
    }

    /// Returns an error with this HTTP status.
    pub fn with_status(http: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            http,
            code: code.to_owned(),
            message: message.into(),
        }
    }

    /// Returns a `ValidationError`, for an invalid parameter.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new("ValidationError", message)
    }

    /// Returns the error of a broken fake, which no test should meet.
    pub(super) fn broken(error: &anyhow::Error) -> Self {
        Self::with_status(500, "InternalFailure", format!("the testbed: {error:#}"))
    }

    fn body(&self, request: &str) -> String {
        let kind = if self.http < 500 {
            "Sender"
        } else {
            "Receiver"
        };
        let error = Element::with(
            "Error",
            vec![
                Element::text("Type", kind),
                Element::text("Code", &self.code),
                Element::text("Message", &self.message),
            ],
        );
        let mut body = String::new();
        let whole = Element::with(
            "ErrorResponse",
            vec![error, Element::text("RequestId", request)],
        );
        whole.render_with(&mut body, NAMESPACE);
        body
    }
}

/// Children of the result, or the error.
pub(super) type CallResult = Result<Vec<Element>, AwsErrorResponse>;

/// Returns the body of a successful response.
pub(super) fn body(action: &str, request: &str, result: Vec<Element>) -> String {
    let metadata = Element::with(
        "ResponseMetadata",
        vec![Element::text("RequestId", request)],
    );
    let result = Element::with(&format!("{action}Result"), result);
    let mut body = String::new();
    Element::with(&format!("{action}Response"), vec![result, metadata])
        .render_with(&mut body, NAMESPACE);
    body
}

/// Returns the whole response.
pub(super) fn reply(action: &str, done: CallResult) -> Reply {
    let request = request_id();
    let (status, body) = match done {
        Ok(result) => (StatusCode::OK, body(action, &request, result)),
        Err(error) => {
            let status =
                StatusCode::from_u16(error.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, error.body(&request))
        }
    };
    let mut reply = Reply::status(status)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("text/xml"))
        .body(body);
    if let Ok(id) = HeaderValue::from_str(&request) {
        reply = reply.header(HeaderName::from_static("x-amzn-requestid"), id);
    }
    reply
}

pub(super) fn request_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
