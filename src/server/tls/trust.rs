//! Verifies the certificates of peers, and describes in one line what is wrong with them and with sessions, for the log and
//! for callers.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    InvalidMessage, OtherError, RootCertStore, SignatureScheme,
};

use super::certificates::{Certificate, fingerprint, sha256};

/// The maximum number of intermediate certificates that a server may send. Real chains have up to four, and some servers add
/// certificates that are not needed. Searching a path through dozens takes a long time.
const MAX_INTERMEDIATES: usize = 10;

/// The maximum number of names in an error.
const MAX_NAMES: usize = 4;

/// The last second of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// The error for a certificate that no trusted authority has signed.
pub(crate) const UNTRUSTED: &str = "the server's certificate is not signed by a trusted authority";

/// Verifies the certificate of a server, and that the server has its private key.
#[derive(Debug)]
pub(super) struct Verifier {
    trusted: Trusted,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The certificates that are trusted.
#[derive(Debug)]
pub(super) enum Trusted {
    /// Those that authorities have signed, and those with one of these SHA-256 fingerprints.
    Authorities {
        listed: Vec<[u8; 32]>,
        signed: Arc<WebPkiServerVerifier>,
    },
    /// The one with this SHA-256 fingerprint.
    Fingerprint([u8; 32]),
}

impl Trusted {
    /// Trusts authorities, and the servers that have one of these certificates. Authorities that cannot be used are ignored.
    pub(super) fn authorities(
        certificates: &[CertificateDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> io::Result<Self> {
        let listed = certificates.iter().map(|one| sha256(one)).collect();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.iter().cloned());
        let builder =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
        let signed = builder.build().map_err(|_| {
            let problem = "found no CA certificates on this system; set SSL_CERT_FILE, or trust a certificate explicitly";
            io::Error::new(io::ErrorKind::NotFound, problem)
        })?;
        Ok(Self::Authorities { listed, signed })
    }
}

impl Verifier {
    pub(super) fn new(trusted: Trusted, provider: &CryptoProvider) -> Self {
        Self {
            trusted,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest = sha256(end_entity);
        let (listed, signed) = match &self.trusted {
            Trusted::Authorities { listed, signed } => (listed, signed),
            Trusted::Fingerprint(trusted) if digest == *trusted => {
                return Ok(ServerCertVerified::assertion());
            }
            Trusted::Fingerprint(_) => {
                let actual = fingerprint(end_entity);
                return Err(problem(format!(
                    "the server's certificate has another fingerprint: {actual}"
                )));
            }
        };
        let verified = if listed.contains(&digest) {
            // Its issuer does not matter. It may be a CA certificate, as those that are signed with their own key often are.
            verify_period(end_entity, now)
                .and_then(|()| ParsedCertificate::try_from(end_entity))
                .and_then(|parsed| verify_server_name(&parsed, server_name))
        } else if intermediates.len() > MAX_INTERMEDIATES {
            let why =
                format!("the server sent more than {MAX_INTERMEDIATES} intermediate certificates");
            return Err(problem(why));
        } else {
            signed
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
                .map(drop)
        };
        match verified {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => Err(explain(error, end_entity, server_name)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks that a certificate is valid now.
fn verify_period(certificate: &[u8], now: UnixTime) -> Result<(), Error> {
    let parsed = Certificate::parse(certificate).ok_or(CertificateError::BadEncoding)?;
    let (not_before, not_after) = (parsed.not_before, parsed.not_after);
    if now.as_secs() > not_after.as_secs() {
        return Err(CertificateError::ExpiredContext {
            time: now,
            not_after,
        }
        .into());
    }
    if now.as_secs() < not_before.as_secs() {
        return Err(CertificateError::NotValidYetContext {
            time: now,
            not_before,
        }
        .into());
    }
    Ok(())
}

/// An error about a certificate with this text.
fn problem(text: String) -> Error {
    let text: Box<dyn StdError + Send + Sync> = text.into();
    CertificateError::Other(OtherError(text.into())).into()
}

/// Describes why the certificate of a server is not accepted.
fn explain(error: Error, end_entity: &CertificateDer<'_>, server_name: &ServerName<'_>) -> Error {
    let Error::InvalidCertificate(reason) = error else {
        return error;
    };
    let own = Certificate::parse(end_entity);
    let text = match reason {
        // An authority with the same name and another key is another authority.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => UNTRUSTED.to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => {
            let is_own = own.is_some_and(|own| own.not_after == not_after);
            let subject = if is_own {
                "the server's certificate has expired"
            } else {
                "the certificate of an issuer of the server's certificate has expired"
            };
            format!("{subject}: expiry={}", timestamp(not_after))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let start = timestamp(not_before);
            format!("the server's certificate is not valid before {start}, by this system's clock")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let names = own.map(|own| own.names).unwrap_or_default();
            let name = server_name.to_str();
            format!(
                "the server's certificate is not valid for '{name}': {}",
                list(&names)
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the server's certificate must not be used by servers (extended key usage)".to_owned()
        }
        reason => match reason_text(&reason).as_str() {
            // webpki refuses it before it looks for an issuer.
            "CaUsedAsEndEntity" => UNTRUSTED.to_owned(),
            "UnsupportedCertVersion" => {
                "the server's certificate is not of X.509 version 3".to_owned()
            }
            reason => format!("the server's certificate is not accepted: {reason}"),
        },
    };
    problem(text)
}

fn reason_text(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Other(other) => other.0.to_string(),
        reason => reason.to_string(),
    }
}

fn timestamp(time: UnixTime) -> humantime::Rfc3339Timestamp {
    // Timestamps in text have years of four digits.
    let time = Duration::from_secs(time.as_secs().min(LAST_SECOND));
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + time)
}

/// The names in a certificate that was not accepted, as a clause.
fn list(names: &[String]) -> String {
    /// Longer than most host names.
    const MAX_NAME: usize = 80;
    // They are the peer's, and must not look like something else.
    let is_shown =
        |name: &&String| name.len() <= MAX_NAME && name.bytes().all(|byte| byte.is_ascii_graphic());
    let shown: Vec<_> = names.iter().filter(is_shown).map(String::as_str).collect();
    let first = &shown[..shown.len().min(MAX_NAMES)];
    match (first, names.len() - first.len()) {
        ([], _) => "it has no such name".to_owned(),
        (first, 0) => format!("it is for {}", first.join(", ")),
        (first, _) => format!("it is for {} and others", first.join(", ")),
    }
}

/// The maximum number of intermediate certificates that a client may send. Real chains have up to three. Searching a path
/// through dozens takes a long time, before the client has proved anything.
const MAX_CLIENT_INTERMEDIATES: usize = 5;

/// A verifier that refuses long chains, and leaves everything else to another one.
#[derive(Debug)]
pub(super) struct ShortChains(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > MAX_CLIENT_INTERMEDIATES {
            let why: Box<dyn StdError + Send + Sync> =
                format!("it has more than {MAX_CLIENT_INTERMEDIATES} intermediate certificates")
                    .into();
            return Err(CertificateError::Other(OtherError(why.into())).into());
        }
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Describes a TLS error as the server sees it.
pub(super) fn describe_as_server(error: &Error) -> String {
    let problem = match error {
        Error::InvalidCertificate(problem) => problem,
        Error::NoCertificatesPresented => return "the client sent no certificate".to_owned(),
        error => return error.to_string(),
    };
    let problem = match problem {
        CertificateError::Other(other) => other.0.to_string(),
        CertificateError::UnknownIssuer => "its CA is unknown".to_owned(),
        CertificateError::BadSignature => "its signature is wrong".to_owned(),
        CertificateError::Expired => "it has expired".to_owned(),
        problem => problem.to_string(),
    };
    let problem = match problem.as_str() {
        "UnsupportedCertVersion" => "it is not of X.509 version 3",
        "CaUsedAsEndEntity" => "it is a CA certificate, or signed with its own key",
        problem => problem,
    };
    format!("the client certificate is not accepted: {problem}")
}

/// The error for a server that does not speak TLS.
pub(super) const PLAIN_SERVER: &str = "the server does not speak TLS";

/// Describes an error of the client's side.
pub(super) fn describe_as_client(error: &Error) -> String {
    match error {
        // The verifier describes what is wrong with a certificate.
        Error::InvalidCertificate(CertificateError::Other(other)) => other.0.to_string(),
        // The verifier reports other problems, so this is the signature of the handshake.
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            "the server does not have the private key of its certificate".to_owned()
        }
        Error::InvalidCertificate(problem) => {
            format!("the server's certificate is not accepted: {problem}")
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => PLAIN_SERVER.to_owned(),
        Error::AlertReceived(alert) => {
            let name = alert_name(*alert);
            match alert {
                AlertDescription::CertificateRequired => {
                    format!("the server requires a client certificate (TLS alert {name})")
                }
                AlertDescription::ProtocolVersion => {
                    format!("the server does not speak TLS 1.2 or 1.3 (TLS alert {name})")
                }
                AlertDescription::UnrecognisedName => {
                    format!("the server does not have the requested name (TLS alert {name})")
                }
                alert if concerns_certificate(*alert) => {
                    format!("the server does not accept the client certificate (TLS alert {name})")
                }
                _ => format!("the server ended the TLS session with the alert {name}"),
            }
        }
        error => error.to_string(),
    }
}

/// Whether an error of the client's side is about a certificate, that of the server or that of the client.
pub(super) fn is_about_certificate(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => true,
        Error::AlertReceived(alert) => concerns_certificate(*alert),
        _ => false,
    }
}

/// Whether a server sends this alert because of the client's certificate (RFC 8446 section 6.2).
fn concerns_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

/// The name of an alert in RFC 8446, such as `unknown_ca`, or its number.
fn alert_name(alert: AlertDescription) -> String {
    if let AlertDescription::Unknown(number) = alert {
        return number.to_string();
    }
    let camel = format!("{alert:?}");
    let mut name = String::new();
    let mut was_lower = false;
    for one in camel.chars() {
        if one.is_ascii_uppercase() && was_lower {
            name.push('_');
        }
        was_lower = one.is_ascii_lowercase();
        name.push(one.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_have_the_names_of_the_rfc() {
        for (alert, name) in [
            (AlertDescription::UnknownCA, "unknown_ca"),
            (AlertDescription::HandshakeFailure, "handshake_failure"),
            (
                AlertDescription::NoApplicationProtocol,
                "no_application_protocol",
            ),
            (AlertDescription::Unknown(0xfe), "254"),
        ] {
            assert_eq!(alert_name(alert), name);
        }
    }
}
