//! The negotiation of permessage-deflate, RFC 7692 sections 5 and 7.1.

use std::fmt;

use crate::protocol::http::is_token_byte;
use crate::protocol::http::{Rejection, Request, StatusCode};

/// The extension's name in `Sec-WebSocket-Extensions`.
const NAME: &[u8] = b"permessage-deflate";

/// The largest window, in bits: 32 KiB.
#[cfg(feature = "deflate")]
pub(super) const MAX_WINDOW_BITS: u8 = 15;

/// An acceptable offer of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The client asks the server to compress each message without a context.
    server_no_context_takeover: bool,
    /// The client compresses each message without a context.
    client_no_context_takeover: bool,
    /// The largest window that the server may use, in bits.
    server_max_window_bits: Option<u8>,
    /// Present if the client accepts a limit on its window. The value is the largest window that the client uses.
    client_max_window_bits: Option<Option<u8>>,
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Whether messages of the server may refer to earlier ones.
    pub server_context_takeover: bool,
    /// Whether messages of the client may refer to earlier ones.
    pub client_context_takeover: bool,
    /// The largest window of the server, in bits, from 8 to 15. The response contains it if the offer did.
    pub server_max_window_bits: Option<u8>,
    /// The largest window of the client, if the offer contained one.
    pub client_max_window_bits: Option<u8>,
}

#[cfg(feature = "server")]
crate::record::record!(Agreement {
    server_context_takeover,
    client_context_takeover,
    server_max_window_bits,
    client_max_window_bits,
} => Self::checked);

#[cfg(feature = "server")]
impl Agreement {
    fn checked(mut self) -> Result<Self, crate::record::RecordError> {
        for bits in [
            &mut self.server_max_window_bits,
            &mut self.client_max_window_bits,
        ] {
            *bits = bits.map(|bits| bits.clamp(8, 15));
        }
        Ok(self)
    }
}

impl Offer {
    /// Finds the first acceptable offer in a request. Skips offers of other extensions and offers with unknown, repeated
    /// or invalid parameters (RFC 7692 section 7.1).
    ///
    /// # Errors
    ///
    /// The field does not have the syntax of RFC 6455 section 9.1. The rejection has status 400.
    pub fn find(request: &Request<'_>) -> Result<Option<Self>, Rejection> {
        let lines = request
            .headers()
            .filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-extensions"));
        let mut found = None;
        for (_, value) in lines {
            let offer = Self::find_in(value).ok_or_else(|| {
                Rejection::new(
                    StatusCode::BAD_REQUEST,
                    "Sec-WebSocket-Extensions is malformed",
                )
            })?;
            found = found.or(offer);
        }
        Ok(found)
    }

    /// Finds the first acceptable offer in one line of the field. Returns `None` if the line is malformed.
    pub(crate) fn find_in(value: &[u8]) -> Option<Option<Self>> {
        let mut found = None;
        let mut cursor = Cursor { rest: value };
        // Empty elements are ignored, RFC 9110 section 5.6.1.2.
        while cursor.skip_separators() {
            found = found.or(cursor.extension()?);
        }
        Some(found)
    }

    /// The value of `Sec-WebSocket-Extensions` with which a client offers the extension.
    pub const REQUEST: &'static str = "permessage-deflate; client_max_window_bits";

    /// Adds a parameter. Returns `None` if the parameter makes the offer unacceptable.
    fn with(mut self, key: &[u8], value: Option<&[u8]>) -> Option<Self> {
        let is_new = match (key, value) {
            (b"server_no_context_takeover", None) => {
                !std::mem::replace(&mut self.server_no_context_takeover, true)
            }
            (b"client_no_context_takeover", None) => {
                !std::mem::replace(&mut self.client_no_context_takeover, true)
            }
            (b"server_max_window_bits", Some(value)) => self
                .server_max_window_bits
                .replace(window_bits(value)?)
                .is_none(),
            (b"client_max_window_bits", None) => {
                self.client_max_window_bits.replace(None).is_none()
            }
            (b"client_max_window_bits", Some(value)) => self
                .client_max_window_bits
                .replace(Some(window_bits(value)?))
                .is_none(),
            _ => false,
        };
        is_new.then_some(self)
    }

    /// Accepts the offer. `server_may_keep` and `client_may_keep` say whether there is memory for context takeover.
    pub fn accept(self, server_may_keep: bool, client_may_keep: bool) -> Agreement {
        Agreement {
            server_context_takeover: server_may_keep && !self.server_no_context_takeover,
            client_context_takeover: client_may_keep && !self.client_no_context_takeover,
            server_max_window_bits: self.server_max_window_bits,
            client_max_window_bits: self.client_max_window_bits.flatten(),
        }
    }

    /// Whether the client asks the server for messages without a context.
    #[cfg(feature = "deflate")]
    pub(super) fn asks_for_no_server_context(self) -> bool {
        self.server_no_context_takeover
    }

    /// Whether the client sends messages without a context.
    #[cfg(feature = "deflate")]
    pub(super) fn asks_for_no_client_context(self) -> bool {
        self.client_no_context_takeover
    }
}

/// Parses a number from 8 to 15, in decimal without leading zeros (RFC 7692 section 7.1.2).
fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

impl Agreement {
    /// Reads the response to [`Offer::REQUEST`]: the values of all fields `Sec-WebSocket-Extensions`. Returns `None` if the
    /// server declined the offer.
    ///
    /// # Errors
    ///
    /// The response contains anything other than one valid answer to the offer, so the client must fail the connection
    /// (RFC 7692 section 7.1 and RFC 6455 section 4.1).
    pub fn of_response<'a>(
        values: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<Self>, InvalidAgreement> {
        let mut agreement = None;
        for value in values {
            let mut cursor = Cursor { rest: value };
            while cursor.skip_separators() {
                let answer = cursor.extension().flatten().ok_or(InvalidAgreement)?;
                let is_valid = agreement.is_none() && answer.client_max_window_bits != Some(None);
                agreement = Some(answer.accept(true, true));
                if !is_valid {
                    return Err(InvalidAgreement);
                }
            }
        }
        Ok(agreement)
    }

    /// The agreement with the roles of client and server exchanged.
    #[cfg(feature = "deflate")]
    pub(super) fn reversed(self) -> Self {
        Self {
            server_context_takeover: self.client_context_takeover,
            client_context_takeover: self.server_context_takeover,
            server_max_window_bits: self.client_max_window_bits,
            client_max_window_bits: self.server_max_window_bits,
        }
    }
}

/// The response of a server contains extensions that the client has not offered, or invalid parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidAgreement;

impl fmt::Display for InvalidAgreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's Sec-WebSocket-Extensions does not answer the offer")
    }
}

impl std::error::Error for InvalidAgreement {}

impl fmt::Display for Agreement {
    /// Writes the value of `Sec-WebSocket-Extensions` in the response.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("permessage-deflate")?;
        if !self.server_context_takeover {
            f.write_str("; server_no_context_takeover")?;
        }
        if !self.client_context_takeover {
            f.write_str("; client_no_context_takeover")?;
        }
        if let Some(bits) = self.server_max_window_bits {
            write!(f, "; server_max_window_bits={bits}")?;
        }
        if let Some(bits) = self.client_max_window_bits {
            write!(f, "; client_max_window_bits={bits}")?;
        }
        Ok(())
    }
}

/// A parser of a field's value. It skips white space before each element.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn skip_space(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.rest.is_empty()
    }

    /// Skips commas. Returns true unless the end is reached.
    fn skip_separators(&mut self) -> bool {
        while self.take(b',') {}
        !self.is_at_end()
    }

    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        match self.rest {
            [first, rest @ ..] if *first == byte => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn token(&mut self) -> Option<&'a [u8]> {
        self.skip_space();
        let end = self.rest.iter().position(|&byte| !is_token_byte(byte));
        let (token, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        (!token.is_empty()).then_some(token)
    }

    /// Parses one element of the field: a name and its parameters. Returns `None` if it is malformed, and `Some(None)` if
    /// it is not an acceptable offer of permessage-deflate.
    fn extension(&mut self) -> Option<Option<Offer>> {
        let name = self.token()?;
        let mut offer = (name == NAME).then(Offer::default);
        while self.take(b';') {
            let key = self.token()?;
            let value = if self.take(b'=') {
                Some(self.value()?)
            } else {
                None
            };
            offer = offer.and_then(|offer| offer.with(key, value.as_deref()));
        }
        (self.is_at_end() || self.rest[0] == b',').then_some(offer)
    }

    /// Parses a token or a quoted string that contains one.
    fn value(&mut self) -> Option<Vec<u8>> {
        if !self.take(b'"') {
            return self.token().map(<[u8]>::to_vec);
        }
        let mut value = Vec::new();
        loop {
            let (&first, rest) = self.rest.split_first()?;
            self.rest = rest;
            match first {
                b'"' => break,
                b'\\' => {
                    let (&escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    value.push(escaped);
                }
                byte => value.push(byte),
            }
        }
        // "the value after quoted-string unescaping MUST conform to the 'token' ABNF"
        (!value.is_empty() && value.iter().copied().all(is_token_byte)).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(value: &str) -> Option<Option<String>> {
        let offer = Offer::find_in(value.as_bytes())?;
        Some(offer.map(|offer| offer.accept(true, true).to_string()))
    }

    #[test]
    fn each_offer_has_its_response() {
        for (offer, answer) in [
            ("permessage-deflate", Some("permessage-deflate")),
            // Chromium and Firefox send this.
            (
                "permessage-deflate; client_max_window_bits",
                Some("permessage-deflate"),
            ),
            (
                "permessage-deflate; client_max_window_bits=10",
                Some("permessage-deflate; client_max_window_bits=10"),
            ),
            (
                "permessage-deflate;server_max_window_bits=8 ; client_no_context_takeover",
                Some("permessage-deflate; client_no_context_takeover; server_max_window_bits=8"),
            ),
            (
                "permessage-deflate; server_no_context_takeover; server_max_window_bits=\"1\\2\"",
                Some("permessage-deflate; server_no_context_takeover; server_max_window_bits=12"),
            ),
            // The first acceptable offer.
            (
                "x-webkit-deflate-frame, permessage-deflate; server_max_window_bits=7, , permessage-deflate; server_max_window_bits=15",
                Some("permessage-deflate; server_max_window_bits=15"),
            ),
            (
                "permessage-bzip2; level=\"9\", permessage-deflate",
                Some("permessage-deflate"),
            ),
            // Unknown, invalid or repeated parameters.
            ("permessage-deflate; mux", None),
            ("permessage-deflate; server_max_window_bits", None),
            ("permessage-deflate; server_max_window_bits=16", None),
            ("permessage-deflate; server_max_window_bits=08", None),
            ("permessage-deflate; server_max_window_bits=+9", None),
            ("permessage-deflate; client_max_window_bits=7", None),
            ("permessage-deflate; server_no_context_takeover=1", None),
            ("permessage-deflate; client_no_context_takeover=true", None),
            (
                "permessage-deflate; client_max_window_bits; client_max_window_bits=9",
                None,
            ),
            (
                "permessage-deflate; server_no_context_takeover; server_no_context_takeover",
                None,
            ),
            ("deflate-frame", None),
            ("", None),
            (" , ", None),
        ] {
            assert_eq!(find(offer), Some(answer.map(str::to_owned)), "{offer}");
        }
    }

    #[test]
    fn malformed_lists_of_extensions_are_rejected() {
        for malformed in [
            ";",
            "permessage-deflate;",
            "permessage-deflate; =9",
            "permessage-deflate; server_max_window_bits=",
            "permessage-deflate; server_max_window_bits=\"9",
            "permessage-deflate; server_max_window_bits=\"\"",
            "permessage-deflate; server_max_window_bits=\"1 0\"",
            "permessage-deflate server_max_window_bits",
            "permessage/deflate",
            "perm\u{e9}ssage",
        ] {
            assert_eq!(find(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_client_accepts_only_an_answer_to_its_offer() {
        let read = |values: &[&str]| {
            let values = values.iter().map(|value| value.as_bytes());
            Agreement::of_response(values).map(|agreed| agreed.map(|agreed| agreed.to_string()))
        };
        assert_eq!(read(&[]), Ok(None));
        let every = "permessage-deflate; server_no_context_takeover; client_no_context_takeover; \
            server_max_window_bits=9; client_max_window_bits=10";
        for answer in ["permessage-deflate", every] {
            assert_eq!(read(&[answer]), Ok(Some(answer.to_owned())));
        }
        for wrong in [
            &["permessage-deflate; client_max_window_bits"][..],
            &["permessage-deflate; mux"],
            &["permessage-deflate; server_max_window_bits=16"],
            &["permessage-deflate, permessage-deflate"],
            &["permessage-deflate", "permessage-deflate"],
            &["x-webkit-deflate-frame"],
            &["permessage-deflate;"],
        ] {
            assert_eq!(read(wrong), Err(InvalidAgreement), "{wrong:?}");
        }
    }

    #[test]
    fn without_memory_there_is_no_context_takeover() {
        let offer = Offer::default();
        assert_eq!(
            offer.accept(false, false).to_string(),
            "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
        );
        assert_eq!(
            offer.accept(false, true).to_string(),
            "permessage-deflate; server_no_context_takeover"
        );
    }
}
