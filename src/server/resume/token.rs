//! The token with which a client comes back.

use std::fmt;
use std::str::FromStr;

use crate::record::record;
use crate::secret::is_equal;
use crate::server::id::ClientId;
use crate::sys::random_uuid;

/// A secret with 244 bits of entropy.
#[derive(Clone, Copy)]
pub(crate) struct Secret([u8; 32]);

record!(Secret as [u8; 32]);

impl Secret {
    fn generate() -> Self {
        let (first, second) = (random_uuid(), random_uuid());
        let mut secret = [0; 32];
        secret[..16].copy_from_slice(first.as_bytes());
        secret[16..].copy_from_slice(second.as_bytes());
        Self(secret)
    }

    /// Compares in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        is_equal(&self.0, &other.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The maximum length of a node's name.
const MAX_NODE: usize = 64;

/// Whether a string may be the name of a node: letters, digits, `-`, `_` and `.`.
pub(crate) fn is_node_name(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NODE).contains(&name.len()) && name.bytes().all(is_valid)
}

/// What a client presents when it comes back: its id, a secret, and where it was. Its text is the id, `-` and 64 hexadecimal
/// digits. If the server has a name, `.` and the name follow.
#[derive(Clone, Debug)]
pub(crate) struct ResumeToken {
    pub(crate) client: ClientId,
    pub(crate) secret: Secret,
    pub(crate) node: Option<Box<str>>,
}

impl ResumeToken {
    /// A new token for a client of the server with the name `node`.
    pub(crate) fn generate(client: ClientId, node: Option<&str>) -> Self {
        Self {
            client,
            secret: Secret::generate(),
            node: node.map(Into::into),
        }
    }

    /// The notice: a message with the token and the number of messages that the server has received from the client.
    pub(crate) fn notice(&self, received: u64) -> String {
        format!(r#"{{"outrigger":{{"resume":"{self}","received":{received}}}}}"#)
    }
}

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.client)?;
        for byte in self.secret.0 {
            write!(f, "{byte:02x}")?;
        }
        match &self.node {
            Some(node) => write!(f, ".{node}"),
            None => Ok(()),
        }
    }
}

/// The text is not a [`ResumeToken`].
#[derive(Debug)]
pub(crate) struct ParseResumeTokenError;

impl FromStr for ResumeToken {
    type Err = ParseResumeTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = ParseResumeTokenError;
        let (client, rest) = text.split_once('-').ok_or(wrong)?;
        let client = client.parse().map_err(|_| ParseResumeTokenError)?;
        let (digits, node) = match rest.split_once('.') {
            Some((digits, node)) => (digits, Some(node)),
            None => (rest, None),
        };
        if digits.len() != 64 || !node.is_none_or(is_node_name) {
            return Err(ParseResumeTokenError);
        }
        let mut secret = [0; 32];
        for (byte, digits) in secret.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            for digit in digits {
                let value = match digit {
                    b'0'..=b'9' => digit - b'0',
                    b'a'..=b'f' => digit - b'a' + 10,
                    _ => return Err(ParseResumeTokenError),
                };
                *byte = *byte << 4 | value;
            }
        }
        Ok(Self {
            client,
            secret: Secret(secret),
            node: node.map(Into::into),
        })
    }
}
