//! Ids of clients and event sources. No id is used twice.

use std::fmt;
use std::str::FromStr;

use mio::Token;

use crate::record::record;

/// The bits of a token that hold the slot. The rest holds the serial number.
const SLOT_BITS: u32 = 20;

/// The number of slots, which limits connections of every kind.
pub(super) const MAX_SLOTS: usize = 1 << SLOT_BITS;

/// The bit that distinguishes the token of a source from that of a client.
const SOURCE_BIT: u64 = 1 << 63;

// A token must hold the slot, the serial number and the source bit.
const _: () = assert!(usize::BITS >= 64, "a 64-bit platform is required");

/// The id of a client: its slot in the registry, and a serial number that no other client has.
///
/// A slot is used again as soon as its client has left, while an event, timer or command for that client may still be
/// under way. Every look-up compares the serial number, so it does not find the new client by the old id.
///
/// As text an id is `c` and the serial number, followed by a dot and the slot unless that is 0.
///
/// ```
/// use outrigger::ClientId;
///
/// let client: ClientId = "c7.1".parse()?;
/// assert_eq!(client.serial(), 7);
/// assert_eq!(client.to_string(), "c7.1");
/// # Ok::<(), outrigger::ParseClientIdError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

record!(ClientId as u64, |id| id.0, |number| {
    let serial = number >> SLOT_BITS;
    (serial > 0 && number < SOURCE_BIT).then_some(Self(number))
});

impl ClientId {
    pub(super) fn new(slot: usize, serial: u64) -> Self {
        debug_assert!(slot < MAX_SLOTS && serial > 0 && serial < 1 << (63 - SLOT_BITS));
        Self(serial << SLOT_BITS | slot as u64)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 as usize) & (MAX_SLOTS - 1)
    }

    /// The serial number. Every new client gets a higher one.
    #[must_use]
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

    /// Parses exactly the text that `Display` writes: no sign, no leading zero, no dot for slot 0.
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

/// The id of one of several services in a server. Clients, file descriptors and timers belong to a service. A service
/// that is alone in its server can ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(u8);

record!(ServiceId as u16, |id| id.0.into(), |number| {
    let number = u8::try_from(number).ok()?;
    (number <= Self::ALWAYS_SERVED.0).then_some(Self(number))
});

impl ServiceId {
    /// All services: the id of the only service of a server, and of what belongs to no service.
    pub const ALL: Self = Self(0);

    /// The maximum number of services in one server.
    pub const MOST: usize = 63;

    /// The id of a service whose calls are answered even when the server is full, and do not count as calls of services. It is never
    /// paused, and it has no clients.
    pub(crate) const ALWAYS_SERVED: Self = Self(Self::MOST as u8 + 1);

    /// The id of a service by its index, counted from 0; `None` from [`ServiceId::MOST`] on.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        (index < Self::MOST).then_some(Self(index as u8 + 1))
    }

    /// The index of the service, counted from 0; `None` for [`ServiceId::ALL`].
    #[must_use]
    pub fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    /// Whether what belongs to `other` also belongs to this service.
    pub(super) fn includes(self, other: Self) -> bool {
        self == Self::ALL || self == other
    }

    /// The bit of this service in a set; 0 for [`ServiceId::ALWAYS_SERVED`], which is in no set.
    pub(super) fn bit(self) -> u64 {
        1_u64.checked_shl(self.0.into()).unwrap_or(0)
    }
}

/// The id of a file descriptor that a service watches.
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

/// The id of a timer.
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

/// The origin of an event, by its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Client(ClientId),
    Source(SourceId),
    Waker,
    Signals,
    Children,
    Reload,
    Upgrade,
    Listener(usize),
}

// The loop's own sources have the serial number 0, which no client or service source has.
pub(super) const WAKER: Token = Token(0);
pub(super) const SIGNALS: Token = Token(1);
pub(super) const CHILDREN: Token = Token(2);
pub(super) const RELOAD: Token = Token(3);
pub(super) const UPGRADE: Token = Token(4);
const FIRST_LISTENER: usize = 5;

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
            UPGRADE => Self::Upgrade,
            Token(at) => Self::Listener(at - FIRST_LISTENER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_parsed_exactly_as_it_is_displayed() {
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
    fn a_token_identifies_the_origin_of_an_event() {
        let client = ClientId::new(0, 1);
        let source = SourceId::new(0, 1);
        assert_eq!(Origin::from(client.token()), Origin::Client(client));
        assert_eq!(Origin::from(source.token()), Origin::Source(source));
        assert_eq!(Origin::from(WAKER), Origin::Waker);
        assert_eq!(Origin::from(SIGNALS), Origin::Signals);
        assert_eq!(Origin::from(listener_token(3)), Origin::Listener(3));
    }
}
