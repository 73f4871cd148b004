//! The certificate of a server and its private key.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use super::config::TlsError;
use super::x509::Certificate;

/// How long a self-signed certificate is valid. Browsers reject certificates for more than 398 days.
const VALIDITY: Duration = Duration::from_secs(397 * 24 * 3600);

/// How far the clock of a client may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// The certificate chain of a server and its private key.
///
/// `Debug` shows the fingerprint, and nothing of the key.
#[derive(Clone)]
pub struct TlsIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    certificate: Certificate,
}

impl TlsIdentity {
    /// Parses a certificate in PEM, which may be followed by intermediate certificates, and its private key in PEM (PKCS
    /// #8, PKCS #1 or SEC 1). Other PEM blocks are ignored, and of several keys the first is used. An expired certificate
    /// is accepted.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if there is no certificate or no key, or if the key is encrypted. Whether the key belongs to the
    /// certificate is checked by [`TlsConfig::new`](crate::TlsConfig::new).
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = certificates(chain)?;
        let key = match PrivateKeyDer::from_pem_slice(key) {
            Ok(key) => key,
            Err(_) if is_encrypted(key) => {
                return Err(TlsError::Key(
                    "the private key is encrypted; decrypt it, for example with 'openssl pkey'"
                        .to_owned(),
                ));
            }
            Err(pem::Error::NoItemsFound) => {
                return Err(TlsError::Key(
                    "found no private key in PEM format".to_owned(),
                ));
            }
            Err(_) => return Err(TlsError::Key("malformed PEM".to_owned())),
        };
        Self::new(chain, key)
    }

    fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, TlsError> {
        let malformed = || TlsError::Certificate("the certificate is malformed".to_owned());
        let certificate = Certificate::parse(&chain[0]).ok_or_else(malformed)?;
        if !certificate.is_version_3 {
            let problem = "the certificate is not of X.509 version 3; create one with a subject alternative name";
            return Err(TlsError::Certificate(problem.to_owned()));
        }
        Ok(Self {
            chain,
            key: Arc::new(key),
            certificate,
        })
    }

    /// Creates a certificate that is signed with its own key. Clients must be told to trust it, for instance by its
    /// [fingerprint](TlsIdentity::fingerprint). `names` are the host names (in ASCII) and IP addresses that clients use. The
    /// key is of P-256, and the certificate is valid for 397 days. The second value is the text of a PEM file with the
    /// certificate and the private key, so it is a secret.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if a name is not valid.
    pub fn self_signed(names: &[String]) -> Result<(Self, String), TlsError> {
        let failed = |error: rcgen::Error| TlsError::Certificate(error.to_string());
        let mut params = CertificateParams::new(names).map_err(failed)?;
        let mut subject = DistinguishedName::new();
        let common = names.iter().find(|name| name.parse::<IpAddr>().is_err());
        subject.push(DnType::CommonName, common.map_or("outrigger", |name| name));
        params.distinguished_name = subject;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = SystemTime::now();
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + VALIDITY).into();
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        let text = format!("{}{}", certificate.pem(), key.serialize_pem());
        let identity = Self::from_pem(text.as_bytes(), text.as_bytes())?;
        Ok((identity, text))
    }

    /// The host names, IP addresses and other names for which the certificate is valid: its subject alternative name (RFC
    /// 5280 section 4.2.1.6).
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.certificate.names
    }

    /// The first time at which the certificate is valid (`notBefore`, RFC 5280 section 4.1.2.5).
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.certificate.not_before.as_secs())
    }

    /// The last time at which the certificate is valid (`notAfter`, RFC 5280 section 4.1.2.5).
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.certificate.not_after.as_secs())
    }

    /// The SHA-256 fingerprint of the certificate, as pairs of hexadecimal digits with colons.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.chain[0])
    }

    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

impl PartialEq for TlsIdentity {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain && self.key.secret_der() == other.key.secret_der()
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

/// Parses certificates in PEM, at least one.
pub(super) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let problem = match parsed {
        Ok(chain) if chain.is_empty() => "found no certificate in PEM format",
        Ok(chain) => return Ok(chain),
        Err(_) => "malformed PEM",
    };
    Err(TlsError::Certificate(problem.to_owned()))
}

fn is_encrypted(pem: &[u8]) -> bool {
    String::from_utf8_lossy(pem).contains("ENCRYPTED")
}

/// The SHA-256 fingerprint of a certificate in bytes.
pub(super) fn sha256(der: &[u8]) -> [u8; 32] {
    Sha256::digest(der).into()
}

/// The SHA-256 fingerprint of a certificate.
pub(super) fn fingerprint(der: &[u8]) -> String {
    let mut text = String::new();
    for byte in sha256(der) {
        if !text.is_empty() {
            text.push(':');
        }
        let _ = write!(text, "{byte:02X}");
    }
    text
}

/// Parses a SHA-256 fingerprint: hexadecimal digits of any case, with or without a colon after each pair.
pub(super) fn parse_fingerprint(text: &str) -> Result<[u8; 32], TlsError> {
    let malformed = || {
        let problem = "a SHA-256 fingerprint has 64 hexadecimal digits, such as 'AB:CD:...'";
        TlsError::Fingerprint(problem.to_owned())
    };
    let text = text.trim();
    let pairs: Vec<&str> = if text.contains(':') {
        text.split(':').collect()
    } else {
        let pair = |at| text.get(at..at + 2).unwrap_or_default();
        (0..text.len()).step_by(2).map(pair).collect()
    };
    let parse = |pair: &str| {
        let is_pair = pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_pair.then(|| u8::from_str_radix(pair, 16).ok())?
    };
    let bytes: Option<Vec<u8>> = pairs.into_iter().map(parse).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(malformed)
}
