//! Limit on the size of a spec. The CRDs limit each field, but an object may be older than these limits.

use std::cell::Cell;
use std::io;

use serde::de::{Deserializer, Error as _};
use serde_json::Serializer;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

/// Maximum size of a spec, in bytes of compact JSON. An escape sequence counts as one byte, because the CRDs limit the unescaped
/// texts.
const MAX_SPEC: usize = 256 * 1024;

/// A kind's spec, which may exceed [`MAX_SPEC`] in the cluster.
pub trait StoredSpec {
    /// Returns the size of the stored spec in bytes if that exceeds [`MAX_SPEC`]. The spec is then the default one.
    fn oversized(&self) -> Option<usize>;

    /// Checks that the stored spec was read.
    ///
    /// # Errors
    /// If the spec exceeds [`MAX_SPEC`]: a message with the size, the limit and the fix.
    fn check_size(&self) -> Result<(), String> {
        self.oversized()
            .map_or(Ok(()), |bytes| Err(too_large(bytes)))
    }
}

/// Returns the message for a stored spec of this size in bytes.
pub fn too_large(bytes: usize) -> String {
    format!(
        "spec is {bytes} bytes of JSON (each escape sequence counts as one byte); the operator reads at most {MAX_SPEC}. Shorten it, for example by \
         moving long texts into a ConfigMap, or delete the object"
    )
}

/// Writer that keeps the first bytes of a JSON text and counts all.
struct BoundedText<'a> {
    kept: Vec<u8>,
    written: usize,
    /// Bytes that escape sequences add to the text.
    escapes: &'a Cell<usize>,
}

impl BoundedText<'_> {
    fn size(&self) -> usize {
        self.written.saturating_sub(self.escapes.get())
    }
}

impl io::Write for BoundedText<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.written = self.written.saturating_add(part.len());
        if self.size() <= MAX_SPEC {
            self.kept.extend_from_slice(part);
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON formatter that counts the bytes that escape sequences add.
struct Escapes<'a>(&'a Cell<usize>);

impl Formatter for Escapes<'_> {
    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let added = if matches!(escape, CharEscape::AsciiControl(_)) {
            5
        } else {
            1
        };
        self.0.set(self.0.get() + added);
        CompactFormatter.write_char_escape(writer, escape)
    }
}

/// Returns the JSON of a spec, or its size if that exceeds [`MAX_SPEC`]. Memory holds the text up to that limit and one string of
/// the spec, because parsed values take many times the bytes of their text.
///
/// # Errors
/// From the deserializer.
pub(super) fn text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Result<Vec<u8>, usize>, D::Error> {
    let escapes = Cell::new(0);
    let mut text = BoundedText {
        kept: Vec::new(),
        written: 0,
        escapes: &escapes,
    };
    let mut serializer = Serializer::with_formatter(&mut text, Escapes(&escapes));
    serde_transcode::transcode(deserializer, &mut serializer).map_err(D::Error::custom)?;
    let size = text.size();
    Ok(if size > MAX_SPEC {
        Err(size)
    } else {
        Ok(text.kept)
    })
}

/// Implements serde's traits for a spec with its derived functions (`serde(remote = "Self")`) and the size limit.
macro_rules! stored_spec {
    ($spec:ident) => {
        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$spec>::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match $crate::spec_size::text(deserializer)? {
                    Ok(text) => {
                        <$spec>::deserialize(&mut serde_json::Deserializer::from_slice(&text))
                            .map_err(serde::de::Error::custom)
                    }
                    Err(bytes) => Ok(Self {
                        oversized: Some(bytes),
                        ..Self::default()
                    }),
                }
            }
        }

        impl $crate::spec_size::StoredSpec for $spec {
            fn oversized(&self) -> Option<usize> {
                self.oversized
            }
        }
    };
}

pub(super) use stored_spec;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::app_service::AppServiceSpec;
    use crate::config_map_sync::ConfigMapSyncSpec;
    use crate::contact_point::ContactPointSpec;
    use crate::my_app::MyAppSpec;
    use crate::my_ingress::MyIngressSpec;
    use crate::tracked_field::TrackedFieldSpec;

    fn check<S>(field: &str)
    where
        S: StoredSpec + Default + PartialEq + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let overhead = json!({ field: "" }).to_string().len();
        let sized = |bytes: usize| json!({ field: "\n\u{1}\"x".repeat(bytes)[..bytes - overhead] });
        // From text, as the apiserver sends it, and from a value.
        let parse = |spec: &Value| -> S {
            let by_value: S = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(
                by_value,
                serde_json::from_str(&serde_json::to_string_pretty(spec).unwrap()).unwrap()
            );
            by_value
        };
        let largest = sized(MAX_SPEC);
        let kept = parse(&largest);
        assert_eq!((kept.oversized(), kept.check_size()), (None, Ok(())));
        assert_eq!(serde_json::to_value(&kept).unwrap()[field], largest[field]);
        let size = MAX_SPEC + 1;
        let oversized = parse(&sized(size));
        assert_eq!(oversized.oversized(), Some(size));
        assert_eq!(
            serde_json::to_value(&oversized).unwrap(),
            serde_json::to_value(S::default()).unwrap()
        );
        let message = oversized.check_size().unwrap_err();
        assert!(
            message.starts_with(&format!("spec is {size} bytes of JSON")),
            "{message}"
        );
        assert!(
            message.contains("262144") && message.contains("Shorten it"),
            "{message}"
        );
    }

    #[test]
    fn oversized_spec_of_any_kind_is_dropped() {
        check::<AppServiceSpec>("image");
        check::<ConfigMapSyncSpec>("configMapName");
        check::<ContactPointSpec>("type");
        check::<MyAppSpec>("banner");
        check::<MyIngressSpec>("scheme");
        check::<TrackedFieldSpec>("field");
    }

    /// Parsed values of such a spec take 20 times the bytes of its text.
    #[test]
    fn unknown_fields_count() {
        let spec: AppServiceSpec =
            serde_json::from_value(json!({ "image": "i", "other": vec![""; 100_000] })).unwrap();
        assert_eq!(
            spec.oversized,
            Some(r#"{"image":"i","other":[]}"#.len() + 3 * 100_000 - 1)
        );
    }

    #[test]
    fn unreadable_spec_is_an_error() {
        let error = serde_json::from_value::<AppServiceSpec>(json!({ "image": 7 })).unwrap_err();
        assert!(error.to_string().contains("expected a string"), "{error}");
    }
}
