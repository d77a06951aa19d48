//! Bounds on how deeply the apiserver's answers nest, and on the memory and times of `managedFields`.
//!
//! `serde_json` decodes fewer than 128 levels, and the apiserver stores thousands. A single object that cannot be
//! decoded makes its whole list or watch fail, which hides every object of its kind. Requests for metadata alone do not
//! help, because `managedFields` nest as deeply. Whoever may write an object may write any `managedFields`: 1 MB of them
//! would take 100 MB of memory, and jiff decodes no time after 9999-12-30T22:00:00Z.

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
/// decoded, and that corrects times of `managedFields` which cannot be decoded.
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

/// Filter that truncates a stream of JSON below [`KEPT_LEVELS`], and `managedFields` beyond [`MAX_MANAGED_FIELDS`], and
/// that corrects the times of `managedFields`. Other data passes and is left for the decoder to reject.
#[derive(Default)]
struct NestingFilter {
    level: usize,
    in_string: bool,
    escaped: bool,
    /// Name that the current string may be, and the number of bytes that match.
    matched: Option<(&'static [u8], usize)>,
    /// Name that the last string was, until its value.
    name: Option<&'static [u8]>,
    /// The time that the stream is in.
    time: Option<TimeValue>,
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
const TIME: &[u8] = b"time";

/// Value of the field `time` of an entry of `managedFields`. The apiserver writes RFC 3339 in UTC, so a time at either
/// end of the four-digit years may have a year of five digits, or before 0.
#[derive(Default)]
struct TimeValue {
    /// Number of bytes that were kept.
    kept: usize,
    is_last_century: bool,
}

impl TimeValue {
    /// Returns the byte to keep instead of the next one of the value, so that the value is a time that can be decoded.
    fn corrected(&mut self, byte: u8) -> Option<u8> {
        let byte = match (self.kept, byte) {
            // 10000-01-01 becomes 1000-01-01, and -0001-12-31 becomes 0001-12-31.
            (0, b'-') => return None,
            (4, digit) if digit.is_ascii_digit() => return None,
            // 9999-12-31 becomes 9999-12-21.
            (8, b'3') if self.is_last_century => b'2',
            (_, byte) => byte,
        };
        match self.kept {
            0 => self.is_last_century = byte == b'9',
            1 => self.is_last_century &= byte == b'9',
            _ => {}
        }
        self.kept += 1;
        Some(byte)
    }
}

impl NestingFilter {
    fn pass(&mut self, chunk: Bytes) -> Bytes {
        // Nearly every response stays as it is, so a chunk is copied only from its first changed byte on.
        let mut kept: Option<Vec<u8>> = None;
        for (at, byte) in chunk.iter().enumerate() {
            let passed = self.passed(*byte);
            if let Some(kept) = &mut kept {
                kept.extend(passed);
            } else if passed != Some(*byte) {
                let kept = kept.insert(chunk[..at].to_vec());
                kept.extend(passed);
            }
        }
        kept.map_or(chunk, Bytes::from)
    }

    /// Processes the next byte. Returns the byte to keep, if any.
    fn passed(&mut self, byte: u8) -> Option<u8> {
        let before = self.level;
        let mut passed = Some(byte);
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => (self.escaped, self.matched) = (true, None),
                b'"' => {
                    self.in_string = false;
                    self.time = None;
                    let whole = self.matched.filter(|(name, length)| *length == name.len());
                    self.name = whole.map(|(name, _)| name);
                }
                _ => {
                    if let Some(time) = &mut self.time {
                        passed = time.corrected(byte);
                    }
                    // The names differ in their first byte.
                    let names = [MANAGED_FIELDS, TIME].into_iter();
                    self.matched = match self.matched {
                        Some((_, 0)) => names
                            .filter(|name| name[0] == byte)
                            .map(|name| (name, 1))
                            .next(),
                        matched => matched
                            .filter(|(name, length)| name.get(*length) == Some(&byte))
                            .map(|(name, length)| (name, length + 1)),
                    };
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
        passed.filter(|_| keeps)
    }

    /// Processes a byte outside strings.
    fn structure(&mut self, byte: u8) {
        // Memory, if the value may end after this byte without breaking the JSON.
        let mut size = None;
        match byte {
            b'"' => {
                self.in_string = true;
                self.matched = Some((MANAGED_FIELDS, 0));
                let is_entry = |managed: &ManagedFields| self.level == managed.level + 1;
                let is_time =
                    self.name == Some(TIME) && self.managed.as_ref().is_some_and(is_entry);
                self.time = is_time.then(TimeValue::default);
                size = (self.last == b'{').then_some(MAP_BYTES);
            }
            b'{' | b'[' => {
                self.level += 1;
                size = Some(VALUE_BYTES);
                if byte == b'[' && self.name == Some(MANAGED_FIELDS) && self.managed.is_none() {
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
            self.name = self.name.filter(|_| byte == b':');
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
