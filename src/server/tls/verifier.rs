//! Verifies the certificates of clients, with a limit on the length of their chains.

use std::error::Error as StdError;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

/// The maximum number of intermediate certificates that a client may send. Real chains have up to three. Searching a path
/// through dozens takes a long time, before the client has proved anything.
const MAX_INTERMEDIATES: usize = 5;

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
        if intermediates.len() > MAX_INTERMEDIATES {
            let why: Box<dyn StdError + Send + Sync> =
                format!("it has more than {MAX_INTERMEDIATES} intermediate certificates").into();
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
