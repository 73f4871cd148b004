//! The settings of TLS for outgoing connections.

use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};

use super::certificates::{TlsIdentity, parse_fingerprint};
use super::config::{ALPN, TlsError, authorities, certified_key};
use super::trust::{Trusted, Verifier};

/// The maximum number of sessions that are kept for resumption: 8 for each of 4 servers.
const MAX_SESSIONS: usize = 32;

/// How outgoing connections are encrypted: with TLS 1.2 or 1.3, and cipher suites with forward secrecy and authenticated
/// encryption.
///
/// By default, a server must have a certificate for its name that is signed by an authority which the system trusts. The
/// last call of [`ClientTls::with_ca_pem`] or [`ClientTls::with_fingerprint`] replaces this.
///
/// Connections that are opened with one value and its clones resume each other's TLS sessions, which are kept in memory.
/// There is no early data (0-RTT). The only protocol of ALPN (RFC 7301) is `http/1.1`.
///
/// ```
/// use outrigger::{ClientTls, TlsIdentity};
///
/// let (identity, pem) = TlsIdentity::self_signed(&["localhost".to_owned()])?;
/// let by_certificate = ClientTls::new().with_ca_pem(pem.as_bytes())?;
/// let by_fingerprint = ClientTls::new().with_fingerprint(&identity.fingerprint())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct ClientTls {
    trust: Trust,
    identity: Option<TlsIdentity>,
    /// The settings of rustls, which are created for the first connection. Their clones share the sessions.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

/// The servers that are trusted.
#[derive(Clone, Default)]
enum Trust {
    /// Those with a certificate that the system trusts, or with one that such an authority has signed.
    #[default]
    System,
    /// Those with one of these certificates, or with one that they have signed.
    Authorities(Arc<Vec<CertificateDer<'static>>>),
    /// The one whose certificate has this SHA-256 fingerprint.
    Fingerprint([u8; 32]),
}

impl ClientTls {
    /// Settings that trust the certificate authorities of the system. They are loaded when the first connection begins: from
    /// the file `SSL_CERT_FILE` and the directories `SSL_CERT_DIR`, if one of these environment variables is set, and
    /// otherwise from where the system keeps them. As with [`ClientTls::with_ca_pem`], the certificate of a server may be
    /// among them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only these certificate authorities (CAs). `pem` contains their certificates in PEM. A server whose own
    /// certificate is among them is trusted, too, even if it is signed with its own key. In both cases, the certificate
    /// must be for the name of the server, and must not have expired.
    ///
    /// # Errors
    ///
    /// [`TlsError::Authority`] if the text has no certificate in PEM, or one that cannot be an authority.
    pub fn with_ca_pem(self, pem: &[u8]) -> Result<Self, TlsError> {
        let (listed, _) = authorities(pem)?;
        Ok(self.trusting(Trust::Authorities(Arc::new(listed))))
    }

    /// Trusts only the server whose certificate has this SHA-256 fingerprint, whatever its name, issuer and expiry. The
    /// fingerprint has 64 hexadecimal digits, with or without a colon after each pair. See
    /// [`TlsIdentity::fingerprint`](crate::TlsIdentity::fingerprint).
    ///
    /// # Errors
    ///
    /// [`TlsError::Fingerprint`] if the text is not a fingerprint.
    pub fn with_fingerprint(self, fingerprint: &str) -> Result<Self, TlsError> {
        let fingerprint = parse_fingerprint(fingerprint)?;
        Ok(self.trusting(Trust::Fingerprint(fingerprint)))
    }

    /// Sends this client certificate to servers that request one. `certificate` is a certificate in PEM, which may be
    /// followed by intermediate certificates, and `key` its private key in PEM (PKCS #8, PKCS #1 or SEC 1).
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there is no certificate or no key, or if the key is encrypted, not supported, or does not belong to
    /// the certificate.
    pub fn with_identity_pem(self, certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let identity = TlsIdentity::from_pem(certificate, key)?;
        certified_key(&identity, &default_provider())?;
        Ok(Self {
            identity: Some(identity),
            config: Arc::default(),
            ..self
        })
    }

    fn trusting(self, trust: Trust) -> Self {
        Self {
            trust,
            config: Arc::default(),
            ..self
        }
    }

    /// The settings of rustls. The first call creates them, which can take 10 ms or more if the authorities of the system
    /// must be loaded.
    pub(super) fn config(&self) -> io::Result<Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let config = self.build()?;
        Ok(Arc::clone(self.config.get_or_init(|| config)))
    }

    fn build(&self) -> io::Result<Arc<ClientConfig>> {
        let provider = Arc::new(default_provider());
        let trusted = match &self.trust {
            Trust::System => Trusted::authorities(&system_certificates(), &provider)?,
            Trust::Authorities(listed) => Trusted::authorities(listed, &provider)?,
            Trust::Fingerprint(fingerprint) => Trusted::Fingerprint(*fingerprint),
        };
        let verifier = Verifier::new(trusted, &provider);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &self.identity {
            Some(identity) => builder
                .with_client_auth_cert(identity.chain().to_vec(), identity.key())
                .map_err(io::Error::other)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::in_memory_sessions(MAX_SESSIONS);
        Ok(Arc::new(config))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trust = match &self.trust {
            Trust::System => "the authorities of the system",
            Trust::Authorities(..) => "given authorities",
            Trust::Fingerprint(_) => "a fingerprint",
        };
        f.debug_struct("ClientTls")
            .field("trust", &trust)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The certificates that the system trusts. Files that cannot be read are skipped.
fn system_certificates() -> Vec<CertificateDer<'static>> {
    let loaded = rustls_native_certs::load_native_certs();
    for error in loaded.errors {
        log::debug!("loading CA certificates of the system failed: {error}");
    }
    loaded.certs
}

/// The name of a server in a URL: a DNS name or an IP address, in brackets or not.
pub(super) fn server_name(name: &str) -> io::Result<ServerName<'static>> {
    let bare = name
        .strip_prefix('[')
        .and_then(|bare| bare.strip_suffix(']'));
    ServerName::try_from(bare.unwrap_or(name).to_owned()).map_err(|_| {
        let problem = format!("{name:?} is neither a DNS name nor an IP address");
        io::Error::new(io::ErrorKind::InvalidInput, problem)
    })
}
