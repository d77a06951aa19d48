//! The certificate of `/metrics`: one that is made here, or one that is mounted. Each handshake shows what is there then, so
//! nothing has to watch files or the calendar.

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

/// How long one that is made here is good for, and how long before its end another one is made.
const DAYS: i64 = 365;
const DAYS_LEFT: i64 = 30;

/// What whoever reads `/metrics` is shown.
pub enum Certificate {
    /// Made here, and kept in memory alone.
    Own(Mutex<Own>),
    /// In a folder.
    Mounted(PathBuf, Mutex<Mounted>),
}

pub struct Own {
    shown: Arc<ServerConfig>,
    renewed_at: Timestamp,
}

pub struct Mounted {
    shown: Arc<ServerConfig>,
    /// Hash of what was read last, good or not; none if nothing could be read.
    seen: Option<[u8; 32]>,
}

impl Certificate {
    /// The one that is said.
    ///
    /// # Errors
    /// It cannot be made, or there is none in its folder.
    pub async fn open(which: &MetricsCertificate) -> anyhow::Result<Self> {
        match which {
            MetricsCertificate::Own => Ok(Self::Own(Mutex::new(Own::new(Timestamp::now())?))),
            MetricsCertificate::Mounted(folder) => {
                let mounted = async {
                    let pair = Pair::read(folder).await?;
                    anyhow::Ok(Mounted {
                        shown: pair.config()?,
                        seen: Some(pair.hash()),
                    })
                };
                let mounted = mounted.await.with_context(|| {
                    "--metrics-cert-path: write a folder with tls.crt and tls.key (PEM), as a mounted Secret of the type \
                     kubernetes.io/tls has them; without the flag a certificate is made at start"
                })?;
                Ok(Self::Mounted(folder.clone(), Mutex::new(mounted)))
            }
        }
    }

    /// What the next handshake shows.
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
    // Nothing that holds the lock can leave it half-changed.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Own {
    fn new(now: Timestamp) -> anyhow::Result<Self> {
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
            .push(DnType::CommonName, "quartermaster metrics");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = day(now.checked_sub(days(1))?); // some clocks are slow
        params.not_after = day(now.checked_add(days(DAYS))?);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let chain = vec![params.self_signed(&key)?.der().clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(Self {
            shown: config(chain, key)?,
            renewed_at: now.checked_add(days(DAYS - DAYS_LEFT))?,
        })
    }

    fn at(&mut self, now: Timestamp) -> Arc<ServerConfig> {
        if self.renewed_at <= now {
            match Self::new(now) {
                Ok(new) => *self = new,
                Err(error) => warn!(
                    error = causes(error.as_ref()),
                    "the certificate of /metrics was not renewed"
                ),
            }
        }
        Arc::clone(&self.shown)
    }
}

impl Mounted {
    /// What is shown once `pair` was read: a bad one is told of once, and changes nothing.
    fn with(&mut self, pair: anyhow::Result<Pair>) -> Arc<ServerConfig> {
        let seen = pair.as_ref().ok().map(Pair::hash);
        if self.seen != seen {
            self.seen = seen;
            match pair.and_then(|pair| pair.config()) {
                Ok(config) => {
                    info!("the certificate of /metrics was replaced");
                    self.shown = config;
                }
                Err(error) => {
                    let error = causes(error.as_ref());
                    warn!(
                        error,
                        "the certificate of /metrics was not replaced: the one before is still shown"
                    );
                }
            }
        }
        Arc::clone(&self.shown)
    }
}

/// A certificate with those that it is signed by, and its key, as PEM.
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

    /// The words of an error tell nothing of the key.
    fn config(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let chain =
            CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain
            .ok()
            .filter(|chain| !chain.is_empty())
            .context("tls.crt holds no PEM certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .ok()
            .context("tls.key holds no PEM private key")?;
        config(chain, key)
            .context("tls.key does not belong to tls.crt, or is of a kind that is not known")
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
    // A session that is taken up again would not be shown what is there now.
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
    fn one_that_is_made_here_is_made_anew_before_it_ends() {
        let mut own = Own::new(at("2027-02-28T12:00:00Z")).unwrap();
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
    async fn a_mounted_one_is_replaced_by_a_good_pair_alone() {
        let folder = Folder::new().unwrap();
        let which = MetricsCertificate::Mounted(folder.path().into());
        let missing = Certificate::open(&which)
            .await
            .err()
            .map(|error| format!("{error:#}"))
            .unwrap();
        for words in [
            "--metrics-cert-path: write a folder with tls.crt and tls.key",
            "/tls.crt: No such file",
        ] {
            assert!(missing.contains(words), "{missing}");
        }
        let authority = Authority::new("ours").unwrap();
        let (one, other) = (
            authority.server(&["localhost"]).unwrap(),
            authority.server(&["localhost"]).unwrap(),
        );
        write(folder.path(), &one);
        let certificate = Certificate::open(&which).await.unwrap();
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
