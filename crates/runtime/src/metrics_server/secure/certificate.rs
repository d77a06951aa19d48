//! Certificate of `/metrics`: self-signed or mounted. Each handshake checks the expiry of a self-signed certificate, or
//! rereads the files of a mounted one, so no task has to watch them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use sha2::{Digest, Sha256};
use tokio::fs;
use tracing::{info, warn};

use crate::settings::MetricsCertificate;
use crate::telemetry::causes;

/// Validity of a self-signed certificate.
const DAYS: i64 = 365;
/// Remaining validity at which a new certificate replaces a self-signed one.
const DAYS_LEFT: i64 = 30;

/// Certificate of the secure metrics endpoint.
pub enum Certificate {
    /// Self-signed and kept in memory.
    Own(Mutex<SelfSignedCert>),
    /// Mounted in a folder.
    Mounted(PathBuf, Mutex<Mounted>),
}

pub struct SelfSignedCert {
    /// Name of the program, for the subject.
    name: &'static str,
    config: Arc<ServerConfig>,
    renewed_at: Timestamp,
}

pub struct Mounted {
    config: Arc<ServerConfig>,
    /// Hash of the files at the last read, valid or not; `None` if the read failed.
    seen: Option<[u8; 32]>,
}

impl Certificate {
    /// Generates or reads the certificate of the program of this name.
    ///
    /// # Errors
    /// The certificate cannot be generated, or the folder has no valid one.
    pub async fn open(which: &MetricsCertificate, name: &'static str) -> anyhow::Result<Self> {
        match which {
            MetricsCertificate::SelfSigned => {
                let cert = SelfSignedCert::new(name, Timestamp::now())?;
                Ok(Self::Own(Mutex::new(cert)))
            }
            MetricsCertificate::Mounted(folder) => {
                let mounted = async {
                    let pair = Pair::read(folder).await?;
                    anyhow::Ok(Mounted {
                        config: pair.config()?,
                        seen: Some(pair.hash()),
                    })
                };
                let mounted = mounted.await.with_context(|| {
                    "certificate of /metrics: mount a folder with tls.crt and tls.key (PEM), such as a Secret of the type \
                     kubernetes.io/tls"
                })?;
                Ok(Self::Mounted(folder.clone(), Mutex::new(mounted)))
            }
        }
    }

    /// Returns the TLS configuration of the next handshake. Renews a self-signed certificate that is about to expire.
    pub async fn current(&self) -> Arc<ServerConfig> {
        match self {
            Self::Own(own) => lock(own).at(Timestamp::now()),
            Self::Mounted(folder, mounted) => {
                let pair = Pair::read(folder).await;
                lock(mounted).with(pair)
            }
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SelfSignedCert {
    fn new(name: &'static str, now: Timestamp) -> anyhow::Result<Self> {
        let day = |at: Timestamp| {
            let date: Date = at.to_zoned(TimeZone::UTC).date();
            date_time_ymd(
                date.year().into(),
                date.month().unsigned_abs(),
                date.day().unsigned_abs(),
            )
        };
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        let mut params = CertificateParams::new(["localhost".to_owned()])?;
        params
            .distinguished_name
            .push(DnType::CommonName, format!("{name} metrics"));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = day(now.checked_sub(days(1))?); // some clocks are slow
        params.not_after = day(now.checked_add(days(DAYS))?);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let chain = vec![params.self_signed(&key)?.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(Self {
            name,
            config: config(chain, key)?,
            renewed_at: now.checked_add(days(DAYS - DAYS_LEFT))?,
        })
    }

    fn at(&mut self, now: Timestamp) -> Arc<ServerConfig> {
        if self.renewed_at <= now {
            match Self::new(self.name, now) {
                Ok(new) => *self = new,
                Err(error) => warn!(
                    error = causes(error.as_ref()),
                    "renewing the certificate of /metrics failed; will retry at the next handshake"
                ),
            }
        }
        Arc::clone(&self.config)
    }
}

impl Mounted {
    /// Returns the configuration after `pair` was read. An invalid pair is logged once and changes nothing.
    fn with(&mut self, pair: anyhow::Result<Pair>) -> Arc<ServerConfig> {
        let seen = pair.as_ref().ok().map(Pair::hash);
        if self.seen != seen {
            self.seen = seen;
            match pair.and_then(|pair| pair.config()) {
                Ok(config) => {
                    info!("replaced the certificate of /metrics");
                    self.config = config;
                }
                Err(error) => {
                    let error = causes(error.as_ref());
                    warn!(
                        error,
                        "reading the certificate of /metrics failed; the previous one stays in use"
                    );
                }
            }
        }
        Arc::clone(&self.config)
    }
}

/// Certificate chain and key, as PEM.
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Pair {
    async fn read(folder: &Path) -> anyhow::Result<Self> {
        let read = async |name: &str| {
            let path = folder.join(name);
            fs::read(&path)
                .await
                .with_context(|| path.display().to_string())
        };
        Ok(Self {
            certificate: read("tls.crt").await?,
            key: read("tls.key").await?,
        })
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::new()
            .chain_update(Sha256::digest(&self.certificate))
            .chain_update(&self.key)
            .finalize()
            .into()
    }

    /// Returns the TLS configuration. Errors reveal nothing about the key.
    fn config(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let chain =
            CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain
            .ok()
            .filter(|chain| !chain.is_empty())
            .context("tls.crt contains no PEM certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .ok()
            .context("tls.key holds no PEM private key")?;
        config(chain, key).context("tls.key does not belong to tls.crt, or has an unsupported type")
    }
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would keep the previous certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use testbed::process::Folder;
    use testbed::tls::{Authority, Identity};

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn self_signed_certificate_is_renewed_before_it_expires() {
        let mut own = SelfSignedCert::new("x", at("2027-02-28T12:00:00Z")).unwrap();
        let first = own.at(at("2027-03-01T00:00:00Z"));
        assert!(Arc::ptr_eq(&first, &own.at(at("2028-01-28T12:00:00Z"))));
        let second = own.at(at("2028-01-30T00:00:00Z"));
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &own.at(at("2028-12-01T00:00:00Z"))));
    }

    fn write(folder: &Path, identity: &Identity) {
        std::fs::write(folder.join("tls.crt"), &identity.cert_pem).unwrap();
        std::fs::write(folder.join("tls.key"), &identity.key_pem).unwrap();
    }

    #[tokio::test]
    async fn mounted_certificate_is_replaced_by_a_valid_pair_only() {
        let folder = Folder::new().unwrap();
        let which = MetricsCertificate::Mounted(folder.path().into());
        let missing = Certificate::open(&which, "x")
            .await
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap();
        for part in [
            "certificate of /metrics: mount a folder with tls.crt and tls.key",
            "/tls.crt: No such file",
        ] {
            assert!(missing.contains(part), "{missing}");
        }
        let authority = Authority::new("ours").unwrap();
        let (one, other) = (
            authority.server(&["localhost"]).unwrap(),
            authority.server(&["localhost"]).unwrap(),
        );
        write(folder.path(), &one);
        let certificate = Certificate::open(&which, "x").await.unwrap();
        let first = certificate.current().await;
        for broken in [
            Identity {
                cert_pem: "none".into(),
                ..other.clone()
            },
            Identity {
                key_pem: "none".into(),
                ..other.clone()
            },
            Identity {
                key_pem: one.key_pem.clone(),
                ..other.clone()
            },
        ] {
            write(folder.path(), &broken);
            assert!(Arc::ptr_eq(&first, &certificate.current().await));
        }
        std::fs::remove_file(folder.path().join("tls.crt")).unwrap();
        assert!(Arc::ptr_eq(&first, &certificate.current().await));
        write(folder.path(), &other);
        let second = certificate.current().await;
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &certificate.current().await));
    }
}
