//! The authenticated owner of a connection, and what it may do.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::record::record;

/// The authenticated owner of a connection.
///
/// Connections of the same principal have the same rights, so one may use the resources of another. Compare principals
/// with [`Principal::is_same`], because two unknown principals are not the same.
///
/// ```
/// use outrigger::Principal;
///
/// assert!(Principal::User(1000).is_same(&Principal::User(1000)));
/// assert!(!Principal::Nobody.is_same(&Principal::Nobody));
/// assert!(Principal::Named("ada".into()).is_person());
/// assert!(!Principal::Token.is_person());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// Unknown: the server requires no token, so any client may have connected.
    Nobody,
    /// A client that has presented the server's only token, which has no name. Several persons may share it.
    Token,
    /// A client that has presented the token of this name.
    Named(Arc<str>),
    /// A client that has presented a certificate over TLS. The name is the first subject alternative name, or else the common
    /// name of the subject, or else `sha256:` and the fingerprint of the certificate.
    Certificate(Arc<str>),
    /// A user that a trusted proxy has authenticated: the name in the header field [`Config::auth_header`](crate::Config::auth_header).
    Proxied(Arc<str>),
    /// The user of this machine with this id, connected through a unix socket that the server created.
    User(u32),
    /// The holder of the link of this number, who may watch one thing. Anyone may have got the link.
    Link(u64),
}

record!(
    enum Principal {
        Nobody,
        Token,
        Named(name),
        Certificate(name),
        Proxied(name),
        User(id),
        Link(id),
    }
);

impl Principal {
    /// Whether both are known and equal.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self == other && *self != Self::Nobody
    }

    /// Whether the principal identifies one person: a named token, a certificate or a user. Several persons may share a token without
    /// a name.
    #[must_use]
    pub fn is_person(&self) -> bool {
        match self {
            Self::Named(_) | Self::Certificate(_) | Self::Proxied(_) | Self::User(_) => true,
            Self::Nobody | Self::Token | Self::Link(_) => false,
        }
    }
}

impl fmt::Display for Principal {
    /// Writes `nobody`, `default` for the token without a name, the name of the token, `cert:NAME`, `user:NAME`, `uid:NUMBER` or
    /// `link:NUMBER`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("nobody"),
            Self::Token => f.write_str("default"),
            Self::Named(name) => f.write_str(name),
            Self::Certificate(name) => write!(f, "cert:{name}"),
            Self::Proxied(name) => write!(f, "user:{name}"),
            Self::User(id) => write!(f, "uid:{id}"),
            Self::Link(id) => write!(f, "link:{id}"),
        }
    }
}

/// Whether a name can be shown: it has 1 to 255 bytes. Invisible characters would make two names look the same, and a space with
/// an equals sign could imitate a field of the log.
pub(crate) fn is_plain_name(name: &str) -> bool {
    /// Longer than a host name or an email address.
    const MAX_NAME: usize = 255;
    /// Letters without a glyph: the fillers of Hangul.
    const FILLERS: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];
    let is_letter = |one: char| one.is_alphanumeric() && !FILLERS.contains(&one);
    let is_plain = |one: char| is_letter(one) || one.is_ascii_graphic() || one == ' ';
    let is_like_field = name.contains(' ') && name.contains('=');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain) && !is_like_field
}

/// What the holder of a token may do.
///
/// Scopes are ordered: each one includes those before it.
///
/// ```
/// use outrigger::Scope;
///
/// assert!(Scope::All > Scope::Use && Scope::Use > Scope::Watch);
/// assert_eq!("watch".parse(), Ok(Scope::Watch));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Read `/status` and `/metrics`.
    Metrics,
    /// Connect to services as a viewer or an observer, which only reads.
    Watch,
    /// Connect to services, without the calls of the process API.
    Use,
    /// Everything.
    #[default]
    All,
}

record!(
    enum Scope {
        Metrics,
        Watch,
        Use,
        All,
    }
);

impl Scope {
    const NAMES: [(Self, &str); 4] = [
        (Self::All, "all"),
        (Self::Use, "use"),
        (Self::Watch, "watch"),
        (Self::Metrics, "metrics"),
    ];
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(scope, _)| scope == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Scope {
    type Err = ParseScopeError;

    /// Parses `all`, `use`, `watch` or `metrics`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(_, name)| *name == text);
        named.map(|(scope, _)| *scope).ok_or(ParseScopeError(()))
    }
}

/// A string that does not name a [`Scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseScopeError(());

impl fmt::Display for ParseScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("none of the scopes all, use, watch and metrics")
    }
}

impl std::error::Error for ParseScopeError {}

#[cfg(test)]
mod tests {
    use mio::Poll;
    use mio::net::UnixStream;

    use crate::protocol::Time;
    use crate::server::address::Remote;
    use crate::server::core::Core;
    use crate::server::event_loop::wakeup::Bell;
    use crate::server::outgoing::Resolver;
    use crate::server::*;

    #[test]
    fn a_principal_is_the_user_of_a_unix_socket_or_the_holder_of_a_token() {
        let tokens: Tokens = "ada watch one\ndefault use two".parse().expect("valid");
        let tcp: std::net::SocketAddr = ([127, 0, 0, 1], 9).into();
        let ada = Principal::Named("ada".into());
        for (remote, presented, principal, scope) in [
            (Remote::unix(1000), "", Principal::User(1000), Scope::All),
            (Remote::SHARED_UNIX, "", Principal::Nobody, Scope::Metrics),
            (Remote::SHARED_UNIX, "two", Principal::Token, Scope::Use),
            (tcp.into(), "", Principal::Nobody, Scope::Metrics),
            (tcp.into(), "one", ada, Scope::Watch),
            (tcp.into(), "two", Principal::Token, Scope::Use),
        ] {
            let mut config = Config::default();
            config.access.tokens = tokens.clone();
            let poll = Poll::new().expect("a poll");
            let registry = poll.registry().try_clone().expect("a registry");
            let resolver = Resolver::new(Bell::new(&registry).expect("a waker"));
            let mut core = Core::new(config, registry, resolver, Vec::new(), Time::default());
            let (stream, _peer) = UnixStream::pair().expect("two sockets");
            let client = core
                .add_client(stream.into(), remote, false)
                .expect("a client");
            core.with(client, |client, _| {
                client.wire.credential = tokens.matching(presented.as_bytes());
            });
            assert_eq!(core.principal(client), principal);
            assert_eq!(core.scope(client), scope);
            // After a reload without it, the token allows nothing more.
            core.replace_access(Access::default());
            if !presented.is_empty() {
                assert_eq!(core.principal(client), Principal::Nobody);
                assert_eq!(core.scope(client), Scope::Metrics);
            }
        }
        assert!(Principal::Token.is_same(&Principal::Token));
        assert!(!Principal::User(0).is_same(&Principal::Token));
        assert!(!Principal::Nobody.is_same(&Principal::Nobody));
    }
}
