//! The certificate of a peer, and its name.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::config::TlsConfig;
use super::identity::fingerprint;
use super::x509;
use crate::server::policy::is_plain_name;

/// The certificate of a peer, which outlasts its connection.
#[derive(Debug)]
pub(in crate::server) struct PeerCertificate {
    pub(super) name: Arc<str>,
    pub(super) chain: Vec<CertificateDer<'static>>,
}

impl PeerCertificate {
    /// The name in the certificate.
    pub(in crate::server) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the certificate would be accepted now.
    pub(in crate::server) fn is_accepted_by(&self, config: &TlsConfig) -> bool {
        config.accepts(&self.chain)
    }

    /// Whether the certificate has not expired.
    pub(in crate::server) fn is_current(&self) -> bool {
        TlsConfig::is_current(&self.chain)
    }
}

/// The beginning of a name that is a fingerprint.
const FINGERPRINT: &str = "sha256:";

/// The name of a peer: that in its certificate, or the certificate's fingerprint if it has no name that can be shown.
pub(super) fn peer_name(certificate: &[u8]) -> Arc<str> {
    let parsed = x509::Certificate::parse(certificate);
    let name = parsed.as_ref().and_then(x509::Certificate::name);
    let is_shown = |name: &&String| is_plain_name(name) && !name.starts_with(FINGERPRINT);
    match name.filter(is_shown) {
        Some(name) => name.as_str().into(),
        None => format!("{FINGERPRINT}{}", fingerprint(certificate)).into(),
    }
}
