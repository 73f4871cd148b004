//! The secret that clients present.

use std::fmt;

use crate::secret;
use crate::sys::random_uuid;

/// The prefix of a subprotocol name that carries the token.
pub(super) const TOKEN_PROTOCOL: &str = "outrigger.token.";

/// A secret that clients present. Its `Debug` output does not reveal it.
///
/// ```
/// use outrigger::Token;
///
/// let token = Token::generate();
/// assert_eq!(token.reveal().len(), 64);
/// assert_eq!(format!("{token:?}"), "Token(..)");
///
/// assert!(Token::new("correct-horse").is_some());
/// assert!(Token::new("not one word").is_none());
/// ```
#[derive(Clone)]
pub struct Token(Box<str>);

impl Token {
    /// A token of your choice. `None` if it is empty or contains anything but visible ASCII characters, because a
    /// request header could not carry it.
    pub fn new(secret: &str) -> Option<Self> {
        let valid = !secret.is_empty() && secret.bytes().all(|byte| byte.is_ascii_graphic());
        valid.then(|| Self(secret.into()))
    }

    /// A random token with 244 bits of entropy.
    pub fn generate() -> Self {
        let (first, second) = (random_uuid(), random_uuid());
        Self(format!("{}{}", first.simple(), second.simple()).into())
    }

    /// The secret, for the client that is to present it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Token {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        secret::is_equal(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whether the name of a subprotocol carries a token.
pub(crate) fn is_token_protocol(name: &str) -> bool {
    name.starts_with(TOKEN_PROTOCOL)
}

/// Removes the token from a query.
pub(crate) fn without_token(query: &str) -> String {
    let kept = query
        .split('&')
        .filter(|pair| !pair.starts_with("token=") && *pair != "token");
    kept.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_revealed_by_debug_output_or_a_query() {
        let token = Token::generate();
        assert_eq!(token.reveal().len(), 64);
        assert_ne!(token, Token::generate());
        assert!(!format!("{token:?}").contains(token.reveal()));
        assert_eq!(
            (Token::new(""), Token::new("a b"), Token::new("a\n")),
            (None, None, None)
        );
        assert_eq!(without_token("a=b&token=x&c"), "a=b&c");
        assert_eq!(without_token("token=x"), "");
    }
}
