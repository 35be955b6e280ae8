//! A cluster's certificate authority, and the certificates and kubeconfigs of its components.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use fs_err as fs;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::state::State;

/// Subject and server names of a certificate.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The Kubernetes user.
    pub user: String,
    /// The Kubernetes group, if any.
    pub group: Option<String>,
    /// Addresses of the server.
    pub addresses: Vec<IpAddr>,
    /// DNS names of the server.
    pub names: Vec<String>,
}

impl Identity {
    /// A client of the API server.
    pub fn user(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            ..Self::default()
        }
    }

    /// Puts the client in a group.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// The certificate authority of a cluster.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority, and the key that signs service account tokens.
    pub fn create(state: &State) -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = name(&format!("vit-cluster {}", state.name()), None);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = parameters.self_signed(&key)?.pem();
        fs::write(state.pki("ca.crt"), &certificate)?;
        let tokens = KeyPair::generate()?;
        write_secret(&state.pki("sa.key"), &tokens.serialize_pem())?;
        fs::write(state.pki("sa.pub"), tokens.public_key_pem())?;
        Ok(Self {
            certificate,
            issuer: Issuer::new(parameters, key),
        })
    }

    /// Writes `FILE.crt` and `FILE.key` for an identity, valid for servers and clients.
    pub fn issue(&self, state: &State, file: &str, identity: &Identity) -> Result<(String, String)> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = name(&identity.user, identity.group.as_deref());
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        for address in &identity.addresses {
            parameters.subject_alt_names.push(SanType::IpAddress(*address));
        }
        for dns in &identity.names {
            parameters
                .subject_alt_names
                .push(SanType::DnsName(dns.as_str().try_into()?));
        }
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        let key = key.serialize_pem();
        fs::write(state.pki(&format!("{file}.crt")), &certificate)?;
        write_secret(&state.pki(&format!("{file}.key")), &key)?;
        Ok((certificate, key))
    }

    /// Issues a certificate and writes a kubeconfig with it.
    pub fn kubeconfig(&self, state: &State, file: &str, identity: &Identity, path: &Path) -> Result<()> {
        let (certificate, key) = self.issue(state, file, identity)?;
        let cluster = state.name().as_str();
        // JSON is YAML, and the data fields are base64 in both.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {
                "server": state.addresses().api_url(),
                "certificate-authority-data": base64(self.certificate.as_bytes()),
            }}],
            "users": [{"name": identity.user, "user": {
                "client-certificate-data": base64(certificate.as_bytes()),
                "client-key-data": base64(key.as_bytes()),
            }}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": identity.user}}],
            "current-context": cluster,
        });
        write_secret(path, &serde_json::to_string_pretty(&config)?)
    }
}

fn name(common: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common);
    name
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Standard base64 with padding, RFC 4648 section 4.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte));
        for position in 0..4 {
            if position <= chunk.len() {
                text.push(char::from(ALPHABET[(group >> (18 - 6 * position)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_rfc() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
