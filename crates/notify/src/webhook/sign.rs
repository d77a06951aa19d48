//! Signatures by Standard Webhooks
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;

/// Prefix of a key in the standard's notation.
const PREFIX: &str = "whsec_";

/// Signing key of requests.
#[derive(Clone)]
pub struct SigningKey {
    written: SecretString,
    key: SecretSlice<u8>,
}

impl SigningKey {
    /// Creates a key from the bytes of a Secret: `whsec_` and base64, or the key itself.
    ///
    /// # Errors
    /// Returns the error of the key, without the key.
    pub fn new(bytes: &[u8]) -> Result<Self, &'static str> {
        let written = String::from_utf8_lossy(bytes);
        let key = match written.strip_prefix(PREFIX) {
            Some(encoded) => STANDARD.decode(encoded).map_err(
                |_| {
                    "the signing key begins with whsec_ but what follows is not base64; make the Secret with `printf` \
                     or `echo -n`"
                },
            )?,
            // Random bytes may end in whitespace; text with a final newline comes from `echo`.
            None if std::str::from_utf8(bytes).is_ok_and(|text| text.trim().len() != text.len()) => {
                return Err(
                    "the signing key begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`",
                );
            }
            None => bytes.to_vec(),
        };
        if key.is_empty() {
            return Err("the signing key is empty");
        }
        Ok(Self {
            written: written.into_owned().into(),
            key: key.into(),
        })
    }

    /// Returns the key as its Secret has it, and without the prefix.
    pub(super) fn secrets(&self) -> impl Iterator<Item = SecretString> {
        let bare = self
            .written
            .expose_secret()
            .strip_prefix(PREFIX)
            .map(SecretString::from);
        [self.written.clone()].into_iter().chain(bare)
    }

    /// Returns `v1,BASE64(HMAC-SHA256(key, "id.timestamp.body"))`.
    fn signature(&self, id: &str, timestamp: i64, body: &[u8]) -> Option<String> {
        // HMAC accepts a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.expose_secret()).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(format!(
            "v1,{}",
            STANDARD.encode(mac.finalize().into_bytes())
        ))
    }

    /// Sets `webhook-id`, `webhook-timestamp` (Unix seconds) and `webhook-signature`.
    pub(super) fn write_headers(
        &self,
        id: &str,
        timestamp: i64,
        body: &[u8],
        headers: &mut HeaderMap,
    ) {
        let signature = self.signature(id, timestamp, body).unwrap_or_default();
        for (name, value) in [("webhook-id", id), ("webhook-signature", &signature)] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
        headers.insert("webhook-timestamp", timestamp.into());
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    /// Example that the standard's own libraries check.
    #[test]
    fn signature_matches_the_standards_example() {
        let key = SigningKey::new(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        assert_eq!(
            key.signature(
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                br#"{"test": 2432232314}"#
            )
            .unwrap(),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn raw_key_signs_like_its_encoded_form() {
        let raw = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (raw, encoded) = (
            SigningKey::new(&raw).unwrap(),
            SigningKey::new(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap(),
        );
        assert_eq!(raw.signature("a", 1, b"x"), encoded.signature("a", 1, b"x"));
    }

    #[test]
    fn error_of_an_invalid_key_hides_the_key() {
        for invalid in [
            &b"whsec_not base64 s3cr3t"[..],
            b"",
            b"whsec_",
            b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
            b"s3cr3t\n",
        ] {
            let error = SigningKey::new(invalid).unwrap_err();
            assert!(
                !error.contains("s3cr3t") && !error.contains("MfKQ"),
                "{error}"
            );
        }
        assert!(
            SigningKey::new(b"\xff\xfe\n").is_ok(),
            "bytes need not be text"
        );
        assert_eq!(
            format!("{:?}", SigningKey::new(b"s3cr3t").unwrap()),
            "SigningKey"
        );
    }
}
