//! The token, the certificate and the printed lines that an upgrade passes on to the next program.

use serde_json::{Value, json};

use super::settings::Settings;
#[cfg(feature = "tls")]
use crate::TlsIdentity;
use crate::Token;

/// What the previous program has passed on in an upgrade.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// The address lines that it has printed.
    pub(crate) printed: String,
    /// The self-signed certificate that it has generated.
    #[cfg(feature = "tls")]
    pub(crate) certificate: Option<TlsIdentity>,
}

impl Settings {
    /// What passes to the program that replaces this one: the token and the certificate that the server generated, because clients
    /// have them, and the lines that it has printed.
    pub(crate) fn pass_on(&self, printed: &str) -> Value {
        let token = self.generated_token().map(Token::reveal);
        #[cfg(feature = "tls")]
        let certificate = self.certificate_to_pass_on();
        #[cfg(not(feature = "tls"))]
        let certificate = Value::Null;
        json!({"token": token, "certificate": certificate, "printed": printed})
    }

    /// Takes over what another program has passed on.
    pub(crate) fn take_over(&mut self, passed: &Value) {
        let token = passed["token"].as_str().and_then(Token::new);
        if let Some(token) = token.filter(|_| self.token_is_generated) {
            self.server.access.tokens = token.into();
        }
        self.passed_on = PassedOn {
            printed: passed["printed"].as_str().unwrap_or_default().to_owned(),
            #[cfg(feature = "tls")]
            certificate: TlsIdentity::passed(&passed["certificate"]),
        };
    }

    /// The self-signed certificate that is kept nowhere else.
    #[cfg(feature = "tls")]
    fn certificate_to_pass_on(&self) -> Option<Value> {
        let is_kept = !self.tls.self_signed || self.tls.dir.is_some();
        let tls = self.server.tls.as_ref().filter(|_| !is_kept)?;
        Some(tls.identity().pass_on())
    }
}
