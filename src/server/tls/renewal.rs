//! The certificate of a running server: warns before it expires, and replaces it.

use std::time::Duration;

use super::config::TlsConfig;
use crate::protocol::CloseReason;
use crate::server::client::Delivery;
use crate::server::core::Core;

/// A certificate that expires within this many days is warned about.
const WARN_DAYS: i64 = 14;

/// The time between checks.
const INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Seconds in a day.
const DAY: i64 = 24 * 3600;

impl Core {
    /// Warns about a certificate that expires soon or has expired.
    pub(crate) fn check_certificate(&mut self) {
        let Some(tls) = &self.env.config.tls else {
            return;
        };
        self.certificate_check = Some(self.env.now + INTERVAL);
        let expiry = humantime::format_rfc3339_seconds(tls.identity().not_after());
        match tls.identity().expires_in() {
            left if left < 0 => log::error!("the TLS certificate has expired: expiry={expiry}"),
            left if left < WARN_DAYS * DAY => {
                let days = left / DAY;
                log::warn!("the TLS certificate expires soon: days={days} expiry={expiry}");
            }
            _ => {}
        }
    }

    /// Replaces the certificates for new connections. Closes the clients whose certificates are no longer accepted, detached
    /// ones included, and returns how many it closed.
    pub(crate) fn replace_tls(&mut self, tls: TlsConfig) -> usize {
        let mut revoked = 0;
        let present = self.env.config.tls.as_ref();
        // Verifying the signatures of thousands of clients takes long, and is necessary only for other authorities.
        let is_same = present.is_some_and(|present| present.has_same_authorities(&tls));
        for client in self.registry.iter_mut() {
            let accepted = match (
                client.wire.tls(),
                client.wire.delivery().and_then(Delivery::certificate),
            ) {
                (Some(stream), _) if is_same => stream.is_current(),
                (None, Some(certificate)) if is_same => certificate.is_current(),
                (Some(stream), _) => stream.is_accepted_by(&tls),
                (None, Some(certificate)) => certificate.is_accepted_by(&tls),
                (None, None) => true,
            };
            if !accepted {
                client.revoke(&mut self.env, CloseReason::revoked("certificate"));
                revoked += 1;
            }
        }
        self.env.config.tls = Some(tls);
        self.certificate_check = Some(self.env.now);
        self.plan_chores();
        revoked
    }
}
