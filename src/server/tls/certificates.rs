//! Certificates: the one of a server with its private key, those of peers, and the fields of an X.509 certificate (RFC 5280
//! section 4.1) that rustls does not expose: `notAfter`, the subject alternative name and the common name.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_GENERALIZEDTIME, TAG_UTCTIME};
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, TagClass};

use super::config::{TlsConfig, TlsError};
use crate::record::{Loader, Record, RecordError, Saver, record};
use crate::server::access::is_plain_name;

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

    /// The certificates and the key, for the program that replaces this one. It is a secret.
    pub(crate) fn pass_on(&self) -> Value {
        let chain = self.chain.iter().map(|one| BASE64_STANDARD.encode(one));
        let key = BASE64_STANDARD.encode(self.key.secret_der());
        json!({"chain": chain.collect::<Vec<_>>(), "key": key})
    }

    /// What [`TlsIdentity::pass_on`] has returned. `None` if it is not valid.
    pub(crate) fn passed(value: &Value) -> Option<Self> {
        let decode = |value: &Value| BASE64_STANDARD.decode(value.as_str()?).ok();
        let chain = value["chain"].as_array()?.iter();
        let chain: Option<Vec<_>> = chain.map(|one| decode(one).map(Into::into)).collect();
        let key = PrivateKeyDer::try_from(decode(&value["key"])?).ok()?;
        Self::new(chain.filter(|chain| !chain.is_empty())?, key).ok()
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

/// The certificate of a peer, which outlasts its connection.
#[derive(Debug)]
pub(crate) struct PeerCertificate {
    pub(super) name: Arc<str>,
    pub(super) chain: Vec<CertificateDer<'static>>,
}

record!(PeerCertificate { name, chain });

impl Record for CertificateDer<'static> {
    fn save<'a>(&'a self, to: &mut Saver<'a>) {
        to.put_bytes(&**self);
    }

    fn restore(from: &mut Loader) -> Result<Self, RecordError> {
        from.take_bytes().map(Into::into)
    }
}

impl PeerCertificate {
    /// The name in the certificate.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the certificate would be accepted now.
    pub(crate) fn is_accepted_by(&self, config: &TlsConfig) -> bool {
        config.accepts(&self.chain)
    }

    /// Whether the certificate has not expired.
    pub(crate) fn is_current(&self) -> bool {
        TlsConfig::is_current(&self.chain)
    }
}

/// The beginning of a name that is a fingerprint.
const FINGERPRINT: &str = "sha256:";

/// The name of a peer: that in its certificate, or the certificate's fingerprint if it has no name that can be shown.
pub(super) fn peer_name(certificate: &[u8]) -> Arc<str> {
    let parsed = Certificate::parse(certificate);
    let name = parsed.as_ref().and_then(Certificate::name);
    let is_shown = |name: &&String| is_plain_name(name) && !name.starts_with(FINGERPRINT);
    match name.filter(is_shown) {
        Some(name) => name.as_str().into(),
        None => format!("{FINGERPRINT}{}", fingerprint(certificate)).into(),
    }
}

/// `id-at-commonName`.
const COMMON_NAME: &[u64] = &[2, 5, 4, 3];

/// `id-ce-subjectAltName`.
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];

/// The fields of a certificate that the server uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// The first time at which it is valid.
    pub(super) not_before: UnixTime,
    /// The last time at which it is valid.
    pub(super) not_after: UnixTime,
    /// The DNS names, email addresses, URIs and IP addresses of the subject alternative name.
    pub(super) names: Vec<String>,
    /// The common name of the subject.
    common_name: Option<String>,
    /// Whether it is of version 3, which has extensions.
    is_version_3: bool,
}

impl Certificate {
    /// The first subject alternative name, or else the common name of the subject.
    pub(super) fn name(&self) -> Option<&String> {
        self.names.first().or(self.common_name.as_ref())
    }

    /// Parses a certificate in DER. `None` if it is malformed.
    pub(super) fn parse(der: &[u8]) -> Option<Self> {
        yasna::parse_der(der, |reader| {
            reader.read_sequence(|outer| {
                let certificate = outer.next().read_sequence(read_contents)?;
                // The signature and its algorithm.
                outer.next().read_der()?;
                outer.next().read_der()?;
                Ok(certificate)
            })
        })
        .ok()
    }
}

fn read_contents(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Certificate> {
    let explicit = |number| Tag::context(number);
    let version = fields
        .read_optional(|reader| reader.read_tagged(explicit(0), |version| version.read_i64()))?;
    // The serial number, the signature algorithm and the issuer.
    for _ in 0..3 {
        fields.next().read_der()?;
    }
    let (not_before, not_after) = fields
        .next()
        .read_sequence(|validity| Ok((read_time(validity.next())?, read_time(validity.next())?)))?;
    let common_name = read_common_name(fields.next())?;
    // subjectPublicKeyInfo
    fields.next().read_der()?;
    // Unique identifiers, which are bit strings.
    for number in [1, 2] {
        fields.read_optional(|reader| {
            reader.read_tagged_implicit(explicit(number), |id| id.read_bitvec_bytes())
        })?;
    }
    let names =
        fields.read_optional(|reader| reader.read_tagged(explicit(3), read_alternative_names))?;
    Ok(Certificate {
        not_before,
        not_after,
        names: names.unwrap_or_default(),
        common_name,
        is_version_3: version == Some(2),
    })
}

fn read_time(reader: BERReader<'_, '_>) -> ASN1Result<UnixTime> {
    let seconds = match reader.lookahead_tag()? {
        TAG_UTCTIME => reader.read_utctime()?.datetime().unix_timestamp(),
        TAG_GENERALIZEDTIME => reader.read_generalized_time()?.datetime().unix_timestamp(),
        _ => return Err(yasna::ASN1Error::new(yasna::ASN1ErrorKind::Invalid)),
    };
    let since = Duration::from_secs(seconds.max(0).unsigned_abs());
    Ok(UnixTime::since_unix_epoch(since))
}

/// The first common name of a distinguished name.
fn read_common_name(reader: BERReader<'_, '_>) -> ASN1Result<Option<String>> {
    let mut found = None;
    reader.read_sequence_of(|set| {
        set.read_set_of(|attribute| {
            attribute.read_sequence(|pair| {
                let kind = pair.next().read_oid()?;
                let value = pair.next().read_tagged_der()?;
                if found.is_none() && kind == ObjectIdentifier::from_slice(COMMON_NAME) {
                    found = String::from_utf8(value.value().to_vec()).ok();
                }
                Ok(())
            })
        })
    })?;
    Ok(found)
}

/// The subject alternative names among the extensions.
fn read_alternative_names(extensions: BERReader<'_, '_>) -> ASN1Result<Vec<String>> {
    let mut found = Vec::new();
    extensions.read_sequence_of(|extension| {
        extension.read_sequence(|fields| {
            let kind = fields.next().read_oid()?;
            fields.read_optional(|critical| critical.read_bool())?;
            let value = fields.next().read_bytes()?;
            if kind == ObjectIdentifier::from_slice(SUBJECT_ALT_NAME) {
                yasna::parse_der(&value, |names| {
                    names.read_sequence_of(|name| {
                        let name = name.read_tagged_der()?;
                        if name.tag().tag_class == TagClass::ContextSpecific {
                            found.extend(general_name(name.tag().tag_number, name.value()));
                        }
                        Ok(())
                    })
                })?;
            }
            Ok(())
        })
    })?;
    Ok(found)
}

/// A name (RFC 5280 section 4.2.1.6): rfc822Name [1], dNSName [2], uniformResourceIdentifier [6] or iPAddress [7].
fn general_name(tag: u64, value: &[u8]) -> Option<String> {
    match tag {
        1 | 6 => String::from_utf8(value.to_vec()).ok(),
        2 => String::from_utf8(value.to_ascii_lowercase()).ok(),
        7 => {
            let v4 = <[u8; 4]>::try_from(value).map(|ip| Ipv4Addr::from(ip).to_string());
            let v6 = <[u8; 16]>::try_from(value).map(|ip| Ipv6Addr::from(ip).to_string());
            v4.or(v6).ok()
        }
        _ => None,
    }
}
