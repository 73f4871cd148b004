//! Describes the errors of rustls in one line, for the log and for callers.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Describes an error of the server's side.
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
