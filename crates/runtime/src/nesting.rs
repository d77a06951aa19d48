//! Bounds on how deeply the apiserver's answers nest, and on the memory of `managedFields`.
//!
//! `serde_json` decodes fewer than 128 levels, and the apiserver stores thousands. A single object that cannot be
//! decoded makes its whole list or watch fail, which hides every object of its kind. Requests for metadata alone do not
//! help, because `managedFields` nest as deeply. Whoever may write an object may write any `managedFields`: 1 MB of them
//! would take 100 MB of memory.

use http::Response;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use kube::client::DynBody;
use serde_json::Value;
use tower::BoxError;
use tower::util::MapResponseLayer;

use crate::raw_object::{MAP_BYTES, MEMBER_BYTES, VALUE_BYTES};

/// Number of levels of a response that are kept. An object or array at the last kept level becomes empty, so the
/// response stays valid JSON and each value keeps its type.
const KEPT_LEVELS: usize = 120;

/// Maximum memory of the decoded `managedFields` of an object, in bytes. What would exceed it is removed.
const MAX_MANAGED_FIELDS: usize = 8 * 1024 * 1024;

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

/// Returns a client's layer that truncates responses that nest too deeply, or have too large `managedFields`, to be
/// decoded.
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

/// Filter that truncates a stream of JSON below [`KEPT_LEVELS`], and `managedFields` beyond [`MAX_MANAGED_FIELDS`]. Other
/// data passes and is left for the decoder to reject.
#[derive(Default)]
struct NestingFilter {
    level: usize,
    in_string: bool,
    escaped: bool,
    /// Number of bytes of the current string if it begins as [`MANAGED_FIELDS`] does.
    matched: Option<usize>,
    /// True after the string [`MANAGED_FIELDS`], until its value.
    is_managed_fields: bool,
    /// Last byte outside strings, without whitespace.
    last: u8,
    managed: Option<ManagedFields>,
    /// Number of levels that are kept, once `managed` is too large: no more than are open.
    cut: Option<usize>,
}

/// The `managedFields` that the stream is in.
struct ManagedFields {
    /// Level of the fields' array.
    level: usize,
    /// Memory of the decoded values so far, in bytes.
    size: usize,
}

const MANAGED_FIELDS: &[u8] = b"managedFields";

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
                b'\\' => (self.escaped, self.matched) = (true, None),
                b'"' => {
                    self.in_string = false;
                    self.is_managed_fields = self.matched == Some(MANAGED_FIELDS.len());
                }
                _ => {
                    let matches = |at: &usize| MANAGED_FIELDS.get(*at) == Some(&byte);
                    self.matched = self.matched.filter(matches).map(|at| at + 1);
                }
            }
        } else {
            self.structure(byte);
        }
        // The brackets of the last level are kept, and nothing between them.
        let keeps = before.min(self.level) < self.cut.unwrap_or(KEPT_LEVELS);
        if self.managed.is_none() {
            self.cut = None;
        }
        self.cut = self.cut.map(|cut| cut.min(self.level));
        keeps
    }

    /// Processes a byte outside strings.
    fn structure(&mut self, byte: u8) {
        // Memory, if the value may end after this byte without breaking the JSON.
        let mut size = None;
        match byte {
            b'"' => {
                self.in_string = true;
                self.matched = Some(0);
                size = (self.last == b'{').then_some(MAP_BYTES);
            }
            b'{' | b'[' => {
                self.level += 1;
                size = Some(VALUE_BYTES);
                if byte == b'[' && self.is_managed_fields && self.managed.is_none() {
                    let level = self.level;
                    self.managed = Some(ManagedFields { level, size: 0 });
                }
            }
            b'}' | b']' => {
                self.level = self.level.saturating_sub(1);
                self.managed.take_if(|managed| self.level < managed.level);
            }
            b',' => size = Some(VALUE_BYTES),
            b':' => {
                if let Some(managed) = &mut self.managed {
                    managed.size += MEMBER_BYTES;
                }
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            self.last = byte;
            self.is_managed_fields &= byte == b':';
        }
        if let (Some(managed), Some(size)) = (&mut self.managed, size) {
            managed.size += size;
            if managed.size > MAX_MANAGED_FIELDS && self.cut.is_none() {
                self.cut = Some(self.level.min(KEPT_LEVELS));
            }
        }
    }
}

#[cfg(test)]
mod tests;
