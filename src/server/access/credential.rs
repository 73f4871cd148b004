//! Tokens: the secret that a client presents, and the credential that a server accepts, with its name, its scope, and the
//! digest that presented tokens are compared with.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Principal, Scope};
use crate::record::record;
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

/// The prefix of a secret that is given as its SHA-256 digest.
const DIGEST: &str = "sha256:";

/// The name of the token without a name in the token file.
const DEFAULT: &str = "default";

/// The name of clients without a token, which no token may have.
const NOBODY: &str = "nobody";

/// The maximum length of a name in bytes.
const MAX_NAME: usize = 64;

/// What a token is compared with: its SHA-256 digest, and its text if that is known. `Debug` reveals neither.
///
/// ```
/// use outrigger::{Secret, Token};
///
/// let token = Token::generate();
/// let secret = Secret::from(token.clone());
/// let digest: Secret = secret.to_sha256().parse()?;
/// assert!(digest == secret && digest.token().is_none());
/// assert_eq!(secret.token(), Some(&token));
/// # Ok::<(), outrigger::ParseSecretError>(())
/// ```
#[derive(Clone)]
pub struct Secret {
    digest: [u8; 32],
    token: Option<Token>,
}

// Only the digest: whoever can read the records cannot use the token.
record!(Secret as String, Self::to_sha256, |text| text.parse().ok());

impl Secret {
    /// The digest of a token that a client presented.
    pub(super) fn digest_of(presented: &[u8]) -> Self {
        Self {
            digest: Sha256::digest(presented).into(),
            token: None,
        }
    }

    /// The text of the token, if it is known.
    #[must_use]
    pub fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The digest as the token file has it: `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn to_sha256(&self) -> String {
        let hex = self.digest.iter().map(|byte| format!("{byte:02x}"));
        DIGEST.to_owned() + &hex.collect::<String>()
    }
}

impl From<Token> for Secret {
    fn from(token: Token) -> Self {
        Self {
            token: Some(token.clone()),
            ..Self::digest_of(token.reveal().as_bytes())
        }
    }
}

impl FromStr for Secret {
    type Err = ParseSecretError;

    /// Parses a token, or `sha256:` and the digest of a token in hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = ParseSecretError::NEW;
        let Some(hex) = text.strip_prefix(DIGEST) else {
            return Token::new(text).map(Self::from).ok_or(wrong);
        };
        let mut digest = [0; 32];
        if hex.len() != 2 * digest.len() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(|_| wrong)?;
        }
        Ok(Self {
            digest,
            token: None,
        })
    }
}

impl PartialEq for Secret {
    /// Compares the digests in constant time.
    fn eq(&self, other: &Self) -> bool {
        secret::is_equal(&self.digest, &other.digest)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A string that is not a [`Secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseSecretError(());

impl ParseSecretError {
    pub(super) const NEW: Self = Self(());
}

impl fmt::Display for ParseSecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token is one word of visible ASCII characters, or sha256: with 64 hexadecimal digits")
    }
}

impl std::error::Error for ParseSecretError {}

/// A token that a server accepts, with its name and scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// `None` for the token without a name.
    name: Option<Arc<str>>,
    scope: Scope,
    secret: Secret,
}

record!(Credential {
    name,
    scope,
    secret
});

impl Credential {
    /// A token with a name: 1 to 64 ASCII letters, digits, and characters of `-_.@`. The name `default` means the
    /// token without a name. `None` if the name is not valid, or is `nobody`.
    pub fn new(name: &str, scope: Scope, secret: impl Into<Secret>) -> Option<Self> {
        let is_valid = (1..=MAX_NAME).contains(&name.len())
            && name != NOBODY
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte));
        is_valid.then(|| Self {
            name: (name != DEFAULT).then(|| name.into()),
            scope,
            secret: secret.into(),
        })
    }

    /// A token without a name, which allows everything.
    pub(super) fn unnamed(secret: Secret) -> Self {
        Self {
            name: None,
            scope: Scope::All,
            secret,
        }
    }

    /// Its name: `default` for the token without a name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(DEFAULT)
    }

    /// What it allows.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// What a presented token is compared with.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The owner of a connection that presented this token.
    pub(crate) fn principal(&self) -> Principal {
        self.name.clone().map_or(Principal::Token, Principal::Named)
    }
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
