//! TLS material of a webhook.

use std::fmt;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

/// `ca.crt`, `tls.crt` and `tls.key` of a Secret.
pub struct Tls {
    /// Certificates to trust instead of the system's authorities.
    roots: Vec<reqwest::Certificate>,
    /// Client certificate.
    identity: Option<reqwest::Identity>,
    /// Digest of the three keys: contact points with the same material share a client.
    pub(crate) digest: [u8; 32],
    /// Shared client, which lives as long as this material.
    pub(crate) client: OnceLock<Arc<reqwest::Client>>,
}

impl Tls {
    /// Checks the three keys of the Secret; each may be missing.
    ///
    /// # Errors
    /// Returns the error, without the private key.
    pub fn new(
        ca: Option<&[u8]>,
        certificate: Option<&[u8]>,
        key: Option<&[u8]>,
    ) -> Result<Self, String> {
        let roots = match ca {
            Some(pem) => reqwest::Certificate::from_pem_bundle(pem)
                .ok()
                .filter(|roots| !roots.is_empty())
                .ok_or("ca.crt contains no PEM certificate")?,
            None => Vec::new(),
        };
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let pem = [certificate, b"\n", key].concat();
                Some(
                    reqwest::Identity::from_pem(&pem)
                        .map_err(|_| "tls.crt and tls.key are not a PEM certificate and key")?,
                )
            }
            (None, None) if roots.is_empty() => {
                return Err("it has neither ca.crt nor tls.crt and tls.key".into());
            }
            (None, None) => None,
            (Some(_), None) => return Err("it has tls.crt but no tls.key".into()),
            (None, Some(_)) => return Err("it has tls.key but no tls.crt".into()),
        };
        let mut digest = Sha256::new();
        for part in [ca, certificate, key] {
            let part = part.unwrap_or_default();
            digest.update(part.len().to_be_bytes());
            digest.update(part);
        }
        let tls = Self {
            roots,
            identity,
            digest: digest.finalize().into(),
            client: OnceLock::new(),
        };
        // Only building a client detects a key that does not match its certificate. This build skips the system's
        // authorities, which cost the most.
        tls.apply(reqwest::Client::builder().tls_certs_only([]))
            .build()
            .map_err(|_| "tls.key does not belong to tls.crt, or ca.crt is broken")?;
        Ok(tls)
    }

    pub(crate) fn apply(&self, mut builder: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
        if !self.roots.is_empty() {
            builder = builder.tls_certs_only(self.roots.clone());
        }
        match &self.identity {
            Some(identity) => builder.identity(identity.clone()),
            None => builder,
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("roots", &self.roots.len())
            .field("identity", &self.identity.is_some())
            .finish_non_exhaustive()
    }
}
