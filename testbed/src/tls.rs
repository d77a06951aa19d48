//! Certificates for tests: a certificate authority and its certificates.

use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert_pem: String,
    /// The private key.
    pub key_pem: String,
}

impl Authority {
    /// Returns a new authority with this name.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let ca_pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            ca_pem,
        })
    }

    /// Returns the authority's own certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Issues an identity for a server with these DNS names and IP addresses.
    pub fn server(&self, names: &[&str]) -> anyhow::Result<Identity> {
        self.issue(names, "server", ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues an identity for a client.
    pub fn client(&self, common_name: &str) -> anyhow::Result<Identity> {
        self.issue(&[], common_name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        names: &[&str],
        common_name: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> anyhow::Result<Identity> {
        let mut params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity {
            cert_pem,
            key_pem: key.serialize_pem(),
        })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn roots(ca_pem: &str) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    anyhow::ensure!(
        !roots.is_empty(),
        "no certificate in the PEM of the authority"
    );
    Ok(roots)
}

/// Returns a server's configuration; with `client_ca_pem`, clients need a certificate of that authority.
pub(crate) fn server_config(
    identity: &Identity,
    client_ca_pem: Option<&str>,
    protocols: &[&str],
) -> anyhow::Result<ServerConfig> {
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca_pem {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider())
                    .build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = CertificateDer::pem_slice_iter(identity.cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()?;
    let key =
        PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).context("the server's key")?;
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Ok(config)
}

/// Returns a client's configuration that trusts only this authority.
pub(crate) fn client_config(ca_pem: &str) -> anyhow::Result<ClientConfig> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(ca_pem)?)
        .with_no_client_auth())
}
