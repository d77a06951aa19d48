//! Certificate authority of a control plane, and the keys and certificates of its components.

use anyhow::{Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate and its key, both PEM.
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The authority that signs the certificates of the apiserver and its clients.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "testbed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
        })
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues the apiserver's certificate, for the names by which clients reach the apiserver.
    pub(super) fn server(&self) -> Result<Pair> {
        let names = [
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let mut params = CertificateParams::new(names.map(String::from))?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Issues a client certificate: the common name is the user, each organisation a group
    /// (<https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates>).
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        // rcgen keeps one value for each type; the same type spelled as an OID counts as another type.
        let organisation = [
            DnType::OrganizationName,
            DnType::CustomDnType(vec![2, 5, 4, 10]),
        ];
        ensure!(
            groups.len() <= organisation.len(),
            "a client certificate here carries at most two groups"
        );
        for (attribute, group) in organisation.into_iter().zip(groups) {
            params.distinguished_name.push(attribute, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        Ok(Pair {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}
