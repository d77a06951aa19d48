//! Bounds on how deeply the apiserver's answers nest.
//!
//! `serde_json` decodes fewer than 128 levels, and the apiserver stores thousands. A single object that cannot be
//! decoded makes its whole list or watch fail, which hides every object of its kind. Requests for metadata alone do not
//! help, because `managedFields` nest as deeply.

use http::Response;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use kube::client::DynBody;
use serde_json::Value;
use tower::BoxError;
use tower::util::MapResponseLayer;

/// Number of levels of a response that are kept. An object or array at the last kept level becomes empty, so the
/// response stays valid JSON and each value keeps its type.
const KEPT_LEVELS: usize = 120;

/// Maximum number of levels of an object that the operator reads. A truncated object always has more, whether it came
/// in a list (two more levels), a watch (one) or alone.
pub const OBJECT_LEVELS: usize = 100;

/// Returns whether `value` nests objects and arrays deeper than `levels`.
pub fn is_deeper(value: &Value, levels: usize) -> bool {
    let is_deeper = |inner| levels == 0 || is_deeper(inner, levels - 1);
    match value {
        Value::Object(fields) => levels == 0 || fields.values().any(is_deeper),
        Value::Array(items) => levels == 0 || items.iter().any(is_deeper),
        _ => false,
    }
}

type Bounded = UnsyncBoxBody<Bytes, BoxError>;
type Layer = MapResponseLayer<fn(Response<Box<DynBody>>) -> Response<Bounded>>;

/// Returns a client's layer that truncates responses that nest too deeply to be decoded.
pub(super) fn layer() -> Layer {
    MapResponseLayer::new(bounded)
}

fn bounded(response: Response<Box<DynBody>>) -> Response<Bounded> {
    let content = response
        .headers()
        .get(CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    let is_json = content.is_none_or(|content| content.starts_with(b"application/json"));
    if !is_json {
        return response.map(BodyExt::boxed_unsync);
    }
    let mut filter = NestingFilter::default();
    response.map(|body| {
        body.map_frame(move |frame| frame.map_data(|chunk| filter.pass(chunk)))
            .boxed_unsync()
    })
}

/// Filter that truncates a stream of JSON below [`KEPT_LEVELS`]. Other data passes and is left for the decoder to
/// reject.
#[derive(Default)]
struct NestingFilter {
    level: usize,
    in_string: bool,
    escaped: bool,
}

impl NestingFilter {
    fn pass(&mut self, chunk: Bytes) -> Bytes {
        // Nearly every response is shallow, so a chunk is copied only from its first removed byte on.
        let mut kept: Option<Vec<u8>> = None;
        for (at, byte) in chunk.iter().enumerate() {
            match (self.keeps(*byte), &mut kept) {
                (true, Some(kept)) => kept.push(*byte),
                (false, None) => kept = Some(chunk[..at].to_vec()),
                (true, None) | (false, Some(_)) => {}
            }
        }
        kept.map_or(chunk, Bytes::from)
    }

    /// Processes the next byte. Returns whether it is kept.
    fn keeps(&mut self, byte: u8) -> bool {
        let before = self.level;
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.level += 1,
                b'}' | b']' => self.level = self.level.saturating_sub(1),
                _ => {}
            }
        }
        // The brackets of the last level are kept, and nothing between them.
        before.min(self.level) < KEPT_LEVELS
    }
}

#[cfg(test)]
mod tests;
