//! The settings of TLS.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};

use super::certificates::{Certificate, TlsIdentity, certificates};
use super::trust::ShortChains;

/// The only protocol that both sides offer (RFC 7301).
pub(super) const ALPN: &[u8] = b"http/1.1";

/// How a server encrypts connections: with TLS 1.2 or 1.3, and cipher suites with forward secrecy and authenticated
/// encryption.
///
/// Clients can resume TLS sessions with session tickets (RFC 8446 section 4.6.1, RFC 5077), so the server stores no sessions.
/// Tickets are valid for up to 12 hours, and only for this value and its clones. There is no early data (0-RTT) and no
/// renegotiation. The only protocol of ALPN (RFC 7301) is `http/1.1`.
///
/// ```
/// use outrigger::{Config, TlsConfig, TlsIdentity};
///
/// let (identity, _) = TlsIdentity::self_signed(&["localhost".to_owned()])?;
/// let mut config = Config::new("127.0.0.1:0".parse()?);
/// config.tls = Some(TlsConfig::new(identity)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TlsConfig {
    identity: TlsIdentity,
    server: Arc<ServerConfig>,
    clients: Option<Clients>,
    is_client_auth_enough: bool,
}

/// How certificates of clients are verified.
#[derive(Clone)]
struct Clients {
    authorities: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl TlsConfig {
    /// Settings with a certificate of the server, and without certificates of clients.
    ///
    /// # Errors
    ///
    /// [`TlsError::Key`] if the key is not supported or does not belong to the certificate, and [`TlsError::Certificate`] if
    /// the certificate cannot be used.
    pub fn new(identity: TlsIdentity) -> Result<Self, TlsError> {
        let server = server_config(&identity, None)?;
        Ok(Self {
            identity,
            server,
            clients: None,
            is_client_auth_enough: false,
        })
    }

    /// Requires a certificate of every client, signed by one of these certificate authorities (CAs). `pem` contains their
    /// certificates in PEM. See [`Principal::Certificate`](crate::Principal::Certificate) for the name of the client.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if the text has no certificate in PEM, or one that cannot be an authority.
    pub fn with_client_ca(mut self, pem: &[u8]) -> Result<Self, TlsError> {
        let (authorities, roots) = authorities(pem)?;
        let builder =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::new(default_provider()));
        let verifier = builder
            .build()
            .map_err(|error| TlsError::Authority(error.to_string()))?;
        let verifier: Arc<dyn ClientCertVerifier> = Arc::new(ShortChains(verifier));
        self.server = server_config(&self.identity, Some(Arc::clone(&verifier)))?;
        self.clients = Some(Clients {
            authorities,
            verifier,
        });
        Ok(self)
    }

    /// Sets whether a client certificate is accepted instead of a token, with [`Scope::All`](crate::Scope::All). The default
    /// is false. It has no effect without [`TlsConfig::with_client_ca`].
    #[must_use]
    pub fn with_client_auth(mut self, is_enough: bool) -> Self {
        self.is_client_auth_enough = is_enough;
        self
    }

    /// The certificate of the server.
    #[must_use]
    pub fn identity(&self) -> &TlsIdentity {
        &self.identity
    }

    /// Whether every client must have a certificate.
    #[must_use]
    pub fn requires_client_certificate(&self) -> bool {
        self.clients.is_some()
    }

    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// Whether a client with a certificate needs no token.
    #[must_use]
    pub fn is_client_auth_enough(&self) -> bool {
        self.is_client_auth_enough && self.clients.is_some()
    }

    /// Whether both accept the certificates of the same authorities.
    pub(crate) fn has_same_authorities(&self, other: &Self) -> bool {
        let authorities = |config: &Self| {
            let clients = config.clients.as_ref();
            clients.map(|clients| clients.authorities.clone())
        };
        authorities(self) == authorities(other)
    }

    /// Whether the certificate of a connected client, which was verified with the same authorities, has not expired.
    pub(crate) fn is_current(chain: &[CertificateDer<'_>]) -> bool {
        let own = chain.first().and_then(|own| Certificate::parse(own));
        own.is_none_or(|own| own.not_after.as_secs() >= UnixTime::now().as_secs())
    }

    /// Whether the certificate of a connected client would be accepted now.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Some(clients), Some((own, others))) = (&self.clients, chain.split_first()) else {
            return self.clients.is_none();
        };
        let verified = clients
            .verifier
            .verify_client_cert(own, others, UnixTime::now());
        verified.is_ok()
    }
}

impl PartialEq for TlsConfig {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
            && self.has_same_authorities(other)
            && self.is_client_auth_enough == other.is_client_auth_enough
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("identity", &self.identity)
            .field("requires_client_certificate", &self.clients.is_some())
            .field("is_client_auth_enough", &self.is_client_auth_enough)
            .finish_non_exhaustive()
    }
}

fn server_config(
    identity: &TlsIdentity,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider: Arc<CryptoProvider> = Arc::new(default_provider());
    let certified = certified_key(identity, &provider)?;
    let failed = |error: rustls::Error| TlsError::Certificate(error.to_string());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(failed)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Tickets hold the whole state of a session, so that the server keeps none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Ticketer::new().map_err(failed)?;
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

/// A certificate whose private key is supported and belongs to it.
pub(super) fn certified_key(
    identity: &TlsIdentity,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let Ok(key) = provider.key_provider.load_private_key(identity.key()) else {
        let problem = "unsupported private key; use ECDSA (P-256 or P-384), Ed25519 or RSA (2048 to 4096 bits)";
        return Err(TlsError::Key(problem.to_owned()));
    };
    let certified = CertifiedKey::new(identity.chain().to_vec(), key);
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => Err(TlsError::Key(
            "the private key does not belong to the certificate".to_owned(),
        )),
        Err(rustls::Error::InconsistentKeys(_)) | Ok(()) => Ok(certified),
        Err(error) => Err(TlsError::Certificate(error.to_string())),
    }
}

/// Parses the certificates of authorities in PEM, and prepares them for verifying others.
pub(super) fn authorities(
    pem: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, RootCertStore), TlsError> {
    let failed = |error: &dyn fmt::Display| TlsError::Authority(error.to_string());
    let listed = certificates(pem).map_err(|error| failed(&error))?;
    let mut roots = RootCertStore::empty();
    for one in &listed {
        roots.add(one.clone()).map_err(|error| failed(&error))?;
    }
    Ok((listed, roots))
}

/// Why a certificate or key cannot be used. The text is one line, without the name of a file, and contains no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate cannot be used for this reason.
    Certificate(String),
    /// The private key cannot be used for this reason.
    Key(String),
    /// The CA certificates cannot be used for this reason.
    Authority(String),
    /// The fingerprint is malformed for this reason.
    Fingerprint(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Certificate(problem)
        | Self::Key(problem)
        | Self::Authority(problem)
        | Self::Fingerprint(problem)) = self;
        f.write_str(problem)
    }
}

impl std::error::Error for TlsError {}

impl TlsIdentity {
    /// The time until the certificate expires, in seconds; negative afterwards.
    pub(crate) fn expires_in(&self) -> i64 {
        let expiry = self.not_after();
        let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        match expiry.duration_since(SystemTime::now()) {
            Ok(left) => seconds(left),
            Err(passed) => -seconds(passed.duration()),
        }
    }
}
