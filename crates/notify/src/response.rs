//! Receivers' responses, read within limits.

use std::time::Duration;

use jiff::Timestamp;

use super::rate_limit::LONGEST_PAUSE;

/// Maximum number of bytes to read of a response body.
const MAX_BODY: usize = 64 * 1024;

/// Reads the first bytes of the body of `response`. A read error counts as the end.
pub(super) async fn body(response: &mut reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = MAX_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == MAX_BODY {
            break;
        }
    }
    body
}

/// Returns the pause of `Retry-After`: seconds or a date (RFC 9110, section 10.2.3). A past date is a pause of zero.
pub(super) fn retry_after(response: &reqwest::Response, now: Timestamp) -> Option<Duration> {
    let value = response
        .headers()
        .get(http::header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim();
    parse_retry_after(value, now)
}

pub(super) fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(seconds(value.parse().unwrap_or(u64::MAX)));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(value)
        .ok()?;
    Some(
        Duration::try_from(date.duration_since(now))
            .unwrap_or_default()
            .min(LONGEST_PAUSE),
    )
}

/// Returns a pause of this many seconds, at most [`LONGEST_PAUSE`].
pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST_PAUSE)
}
