//! Names for clients and event sources that are never used twice.

use std::fmt;
use std::str::FromStr;

use mio::Token;

/// Bits of a token that name the slot; the rest is the serial number.
const SLOT_BITS: u32 = 20;

/// The most slots that a token can name: clients, handshakes in progress included.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// The bit that tells a source's token from a client's.
const SOURCE_BIT: u64 = 1 << 63;

// A token has to hold slot, serial number and the source bit.
const _: () = assert!(usize::BITS >= 64, "a 64-bit platform is required");

/// The name of a client: the slot it lies in, and a serial number that no client had before.
///
/// A slot is used again as soon as its client is gone, and a late event, timer or command for the old client may still
/// be under way. The serial number is compared on every look-up, so it finds nothing.
///
/// As text it is `c` and the serial number, with the slot behind a dot unless that is the first: `c1`, `c2.1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl ClientId {
    pub(super) fn new(slot: usize, serial: u64) -> Self {
        debug_assert!(slot < MAX_SLOTS && serial > 0 && serial < 1 << (63 - SLOT_BITS));
        Self(serial << SLOT_BITS | slot as u64)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 as usize) & (MAX_SLOTS - 1)
    }

    /// The serial number: higher than that of every client that came before.
    pub fn serial(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    pub(super) fn token(self) -> Token {
        Token(self.0 as usize)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot() {
            0 => write!(f, "c{}", self.serial()),
            slot => write!(f, "c{}.{slot}", self.serial()),
        }
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a [`ClientId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseClientIdError;

impl fmt::Display for ParseClientIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a client id")
    }
}

impl std::error::Error for ParseClientIdError {}

impl FromStr for ClientId {
    type Err = ParseClientIdError;

    /// Reads back what `Display` writes, and nothing else: no sign, no leading zero, no dot for the first slot.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| -> Option<u64> {
            let canonical =
                !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
            canonical.then(|| digits.parse().ok()).flatten()
        };
        let digits = text.strip_prefix('c').ok_or(ParseClientIdError)?;
        let (serial, slot) = match digits.split_once('.') {
            Some((serial, slot)) => (number(serial), number(slot)),
            None => (number(digits), Some(0)),
        };
        match (serial, slot) {
            (Some(serial), Some(slot))
                if slot < MAX_SLOTS as u64 && serial < 1 << (63 - SLOT_BITS) =>
            {
                Ok(Self::new(slot as usize, serial))
            }
            _ => Err(ParseClientIdError),
        }
    }
}

/// Which of several services in one server something belongs to: a client, a file descriptor, a timer. A service that has
/// the server for itself need not know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceId(u8);

impl ServiceId {
    /// The whole server: the id of a service that has it for itself, and of what belongs to no service.
    pub const ALL: Self = Self(0);

    /// The most services in one server.
    pub const MOST: usize = 63;

    /// The id of a service, counted from 0; `None` from [`ServiceId::MOST`] on.
    pub fn new(index: usize) -> Option<Self> {
        (index < Self::MOST).then_some(Self(index as u8 + 1))
    }

    /// Counted from 0, which of the services it is; `None` for the whole server.
    pub fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    /// Whether what belongs to `other` is this one's as well.
    pub(super) fn includes(self, other: Self) -> bool {
        self == Self::ALL || self == other
    }

    /// A bit of its own.
    pub(super) fn bit(self) -> u64 {
        1 << self.0
    }
}

/// The name of a file descriptor that a service watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(u64);

impl SourceId {
    pub(super) fn new(slot: usize, serial: u64) -> Self {
        debug_assert!(slot < MAX_SLOTS && serial > 0);
        Self(serial << SLOT_BITS | slot as u64)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 as usize) & (MAX_SLOTS - 1)
    }

    pub(super) fn serial(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    pub(super) fn token(self) -> Token {
        Token((self.0 | SOURCE_BIT) as usize)
    }
}

/// The name of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(u64);

impl TimerId {
    pub(super) fn new(slot: usize, serial: u64) -> Self {
        debug_assert!(slot < MAX_SLOTS);
        Self(serial << SLOT_BITS | slot as u64)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 as usize) & (MAX_SLOTS - 1)
    }
}

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Client(ClientId),
    Source(SourceId),
    Waker,
    Signals,
    Children,
    Reload,
    Listener(usize),
}

/// The loop's own sources lie where no client or service source can: serial number zero.
pub(super) const WAKER: Token = Token(0);
pub(super) const SIGNALS: Token = Token(1);
pub(super) const CHILDREN: Token = Token(2);
pub(super) const RELOAD: Token = Token(3);
const FIRST_LISTENER: usize = 4;

pub(super) fn listener_token(index: usize) -> Token {
    debug_assert!(index < MAX_SLOTS - FIRST_LISTENER);
    Token(FIRST_LISTENER + index)
}

impl From<Token> for Origin {
    fn from(token: Token) -> Self {
        let value = token.0 as u64;
        if value & SOURCE_BIT != 0 {
            return Self::Source(SourceId(value & !SOURCE_BIT));
        }
        if value >> SLOT_BITS != 0 {
            return Self::Client(ClientId(value));
        }
        match token {
            WAKER => Self::Waker,
            SIGNALS => Self::Signals,
            CHILDREN => Self::Children,
            RELOAD => Self::Reload,
            Token(at) => Self::Listener(at - FIRST_LISTENER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_they_were_written_and_nothing_else_does() {
        for (slot, serial, text) in [
            (0, 1, "c1"),
            (1, 2, "c2.1"),
            (MAX_SLOTS - 1, 77, "c77.1048575"),
        ] {
            let id = ClientId::new(slot, serial);
            assert_eq!(id.to_string(), text);
            assert_eq!(text.parse(), Ok(id));
        }
        for text in [
            "",
            "c",
            "1",
            "c0",
            "c01",
            "c1.0",
            "c1.",
            "c.1",
            "c-1",
            "c+1",
            "c1.1048576",
            "c1 ",
            "C1",
            "c1.1.1",
        ] {
            assert_eq!(text.parse::<ClientId>(), Err(ParseClientIdError), "{text}");
        }
        assert!("c99999999999999999999".parse::<ClientId>().is_err());
        assert!(format!("c{}", 1u64 << 43).parse::<ClientId>().is_err());
    }

    #[test]
    fn a_token_says_whose_event_it_is() {
        let client = ClientId::new(0, 1);
        let source = SourceId::new(0, 1);
        assert_eq!(Origin::from(client.token()), Origin::Client(client));
        assert_eq!(Origin::from(source.token()), Origin::Source(source));
        assert_eq!(Origin::from(WAKER), Origin::Waker);
        assert_eq!(Origin::from(SIGNALS), Origin::Signals);
        assert_eq!(Origin::from(listener_token(3)), Origin::Listener(3));
    }
}
