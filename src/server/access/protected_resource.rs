//! The metadata of a protected resource (RFC 9728), which tells clients of OAuth where to get a token.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::text::without_mark;

/// The metadata document of a protected resource (RFC 9728 section 2): a JSON object of at most 64 KiB.
///
/// The server answers `GET /.well-known/oauth-protected-resource` with this text, and names that address in each 401
/// response. It does not check tokens with the authorization servers that the document lists.
///
/// ```
/// use outrigger::{Access, ProtectedResource};
///
/// let mut access = Access::default();
/// let document = r#"{"resource":"https://mcp.example.com/mcp"}"#;
/// access.protected_resource = Some(document.parse()?);
/// assert!("[]".parse::<ProtectedResource>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtectedResource {
    document: Box<str>,
    /// The host and the port of the resource, if its address begins with `https://`.
    https_authority: Option<Box<str>>,
}

impl ProtectedResource {
    /// The maximum length of the document in bytes: 64 KiB.
    pub const MAX: usize = 64 << 10;

    /// The path of the document. Clients may append the path of the resource (RFC 9728 section 3.1).
    pub(crate) const PATH: &'static str = "/.well-known/oauth-protected-resource";

    /// The text of the document.
    #[must_use]
    pub fn document(&self) -> &str {
        &self.document
    }

    /// The value of `WWW-Authenticate` in a 401 response to a request for `host` (RFC 9728 section 5.1).
    ///
    /// The document's address begins with `https` if the request came over TLS, or if the document says so of this host: a
    /// proxy in front may have terminated TLS.
    pub(crate) fn challenge(&self, host: &str, is_encrypted: bool) -> String {
        if host.is_empty() {
            return "Bearer".to_owned();
        }
        let declared = self.https_authority.as_deref();
        let declared = declared.is_some_and(|authority| authority.eq_ignore_ascii_case(host));
        let scheme = if is_encrypted || declared {
            "https"
        } else {
            "http"
        };
        // The characters of a Host need no escapes in a quoted string.
        format!(
            "Bearer resource_metadata=\"{scheme}://{host}{}\"",
            Self::PATH
        )
    }
}

impl FromStr for ProtectedResource {
    type Err = ParseResourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.as_bytes().to_vec().try_into()
    }
}

impl TryFrom<Vec<u8>> for ProtectedResource {
    type Error = ParseResourceError;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        if bytes.len() > Self::MAX {
            return Err(ParseResourceError("is longer than 64 KiB"));
        }
        let wrong = ParseResourceError("is not a JSON object");
        let document = String::from_utf8(bytes).map_err(|_| wrong)?;
        let document = without_mark(&document);
        let object: Map<String, Value> = serde_json::from_str(document).map_err(|_| wrong)?;
        let resource = object.get("resource").and_then(Value::as_str);
        let rest = resource.and_then(|url| url.strip_prefix("https://"));
        let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
        Ok(Self {
            document: document.into(),
            https_authority: authority.map(Into::into),
        })
    }
}

/// Why a string is not a [`ProtectedResource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseResourceError(&'static str);

impl fmt::Display for ParseResourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for ParseResourceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_an_object_of_limited_length() {
        let padded = |len: usize| format!("{{}}{}", " ".repeat(len - 2));
        for (text, is_valid) in [
            ("{}", true),
            (" {\"resource\": \"x\", \"n\": [1]}\n", true),
            (&padded(ProtectedResource::MAX), true),
            (&padded(ProtectedResource::MAX + 1), false),
            ("", false),
            ("[]", false),
            ("\"{}\"", false),
            ("{} {}", false),
            ("{", false),
        ] {
            let parsed = text.parse::<ProtectedResource>();
            assert_eq!(parsed.is_ok(), is_valid, "{}", &text[..text.len().min(40)]);
            if let Ok(parsed) = parsed {
                assert_eq!(parsed.document(), text);
            }
        }
    }

    #[test]
    fn the_challenge_has_the_address_of_the_document_as_the_client_sees_it() {
        let document = r#"{"resource":"https://mcp.example:8443/mcp"}"#;
        let resource: ProtectedResource = document.parse().expect("valid");
        for (host, is_encrypted, scheme) in [
            ("localhost:7070", false, "http"),
            ("localhost:7070", true, "https"),
            // A proxy has terminated TLS.
            ("MCP.example:8443", false, "https"),
            ("mcp.example", false, "http"),
        ] {
            let path = "/.well-known/oauth-protected-resource";
            let expected = format!("Bearer resource_metadata=\"{scheme}://{host}{path}\"");
            assert_eq!(resource.challenge(host, is_encrypted), expected);
        }
        // A request of HTTP/1.0 may have no Host.
        assert_eq!(resource.challenge("", true), "Bearer");
    }
}
