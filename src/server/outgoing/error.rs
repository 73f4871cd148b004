//! Why an outgoing connection could not be opened.

use std::fmt;
use std::io;
use std::time::Duration;

use serde_json::Value;

use crate::protocol::client::{HandshakeError, Refusal};
#[cfg(feature = "tls")]
use crate::server::tls::UNTRUSTED;
use crate::text::is_control;

/// The longest text of a server that an error contains, in characters.
const SHOWN: usize = 200;

/// Why an attempt to open an outgoing connection failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name could not be resolved.
    Resolve {
        /// The host.
        host: String,
        /// The error of the system.
        source: io::Error,
    },
    /// No connection to any address of the host was possible.
    Connect {
        /// The last address, or the path of a unix socket.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The connection ended, or failed, before the handshake was complete.
    Lost(String),
    /// The handshake took longer than the time limit.
    TimedOut,
    /// TLS failed, for this reason.
    Tls {
        /// What is wrong.
        message: String,
        /// Whether the server's certificate is not accepted, so that another attempt would fail, too.
        is_certificate: bool,
    },
    /// The server or a proxy refused the handshake, or its answer is not valid.
    Handshake(HandshakeError),
    /// The server does not know the client that wanted to come back.
    NotResumed(&'static str),
    /// The settings do not allow the connection.
    Invalid(String),
    /// The loop is being stopped, or the service has closed the connection.
    Cancelled,
}

impl ConnectError {
    /// The status of the response with which the server refused the handshake.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Handshake(HandshakeError::Refused(refusal)) => Some(refusal.status),
            _ => None,
        }
    }

    /// Whether another attempt may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Resolve { .. } | Self::Connect { .. } | Self::Lost(_) | Self::TimedOut => true,
            Self::Tls { is_certificate, .. } => !is_certificate,
            Self::Handshake(
                HandshakeError::Refused(refusal) | HandshakeError::RefusedByProxy(refusal),
            ) => matches!(refusal.status, 408 | 421 | 429 | 500 | 502..=504),
            Self::Handshake(HandshakeError::Eof) => true,
            Self::Handshake(_) | Self::NotResumed(_) | Self::Invalid(_) | Self::Cancelled => false,
        }
    }

    /// Whether no trusted authority has signed the server's certificate.
    #[cfg(feature = "tls")]
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, Self::Tls { message, .. } if message == UNTRUSTED)
    }

    /// There is no certificate.
    #[cfg(not(feature = "tls"))]
    pub(crate) fn is_untrusted(&self) -> bool {
        false
    }

    /// Whether there is no such host or socket file, so that waiting does not help a client that was never connected. A client
    /// that comes back tries again nevertheless, because a server that restarts creates its socket file anew.
    pub(crate) fn is_no_such_place(&self) -> bool {
        match self {
            Self::Resolve { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::Connect { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::InvalidInput
            ),
            _ => false,
        }
    }

    /// The time after which the server asks the client to try again.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Handshake(
                HandshakeError::Refused(refusal) | HandshakeError::RefusedByProxy(refusal),
            ) => refusal.retry_after.map(Duration::from_secs),
            _ => None,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { host, source } => write!(f, "cannot resolve '{host}': {source}"),
            Self::Connect { address, source } => write!(f, "{address}: {source}"),
            Self::Lost(why) => f.write_str(why),
            Self::TimedOut => f.write_str("the connection was not established in time"),
            Self::Tls { message, .. } => write!(f, "TLS: {message}"),
            Self::Handshake(error) => {
                error.fmt(f)?;
                match error {
                    HandshakeError::Refused(refusal) | HandshakeError::RefusedByProxy(refusal) => {
                        explain(refusal, f)
                    }
                    _ => Ok(()),
                }
            }
            Self::NotResumed(why) => f.write_str(why),
            Self::Invalid(why) => f.write_str(why),
            Self::Cancelled => f.write_str("the connection was cancelled"),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Resolve { source, .. } | Self::Connect { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Adds what the server says about a refusal: its own message, or where it redirects to.
fn explain(refusal: &Refusal, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let Some(location) = refusal
        .location
        .as_deref()
        .filter(|_| (300..400).contains(&refusal.status))
    {
        return write!(f, ": it redirects to {}", printable(location));
    }
    match said_by(&refusal.body) {
        Some(said) => write!(f, ": {said}"),
        None => Ok(()),
    }
}

/// What the body of a refusal says, in the form that this server uses.
pub(crate) fn said_by(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = |name| body.get(name).and_then(Value::as_str).map(printable);
    let message = text("message")?;
    Some(match text("detail") {
        Some(detail) => format!("{message}: {detail}"),
        None => message,
    })
}

/// Text from the server without control characters, shortened.
fn printable(text: &str) -> String {
    let visible = text
        .chars()
        .map(|one| if is_control(one) { ' ' } else { one });
    visible.take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> ConnectError {
        ConnectError::Handshake(HandshakeError::Refused(Refusal {
            status,
            reason: "No".to_owned(),
            body: body.as_bytes().to_vec(),
            ..Refusal::default()
        }))
    }

    #[test]
    fn a_refusal_shows_the_message_of_the_server_on_one_line() {
        let error = refused(401, "{\"type\":\"error\",\"message\":\"wrong\\ntoken\"}");
        assert_eq!(error.to_string(), "the server answered 401 No: wrong token");
        assert_eq!(error.status(), Some(401));
        assert_eq!(
            refused(404, "<html>").to_string(),
            "the server answered 404 No"
        );
    }

    #[test]
    fn another_attempt_is_made_only_where_it_can_help() {
        for status in [408, 421, 429, 500, 502, 503, 504] {
            assert!(refused(status, "").is_retryable(), "{status}");
        }
        for status in [200, 301, 400, 401, 403, 404, 410, 426, 501, 505] {
            assert!(!refused(status, "").is_retryable(), "{status}");
        }
        assert!(ConnectError::TimedOut.is_retryable());
        assert!(!ConnectError::Cancelled.is_retryable());
    }
}
