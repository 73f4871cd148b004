//! The authenticated owner of a connection.

/// The authenticated owner of a connection.
///
/// Connections of the same principal cannot be told apart, so resources of one may be handed to the other. More
/// variants may be added. Compare principals with [`Principal::is_same`]: two unknown principals
/// ([`Principal::Nobody`]) are not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Principal {
    /// Unknown: the server requires no token, so anyone may have connected.
    Nobody,
    /// A holder of the server's token.
    Token,
    /// The user of this machine with this id, connected through a unix socket that the server has made.
    User(u32),
}

impl Principal {
    /// Whether both are known to be the same.
    pub fn is_same(self, other: Self) -> bool {
        self == other && self != Self::Nobody
    }
}

#[cfg(test)]
mod tests {
    use mio::Poll;
    use mio::net::UnixStream;

    use crate::protocol::Time;
    use crate::server::client::Remote;
    use crate::server::core::Core;
    use crate::server::*;
    use crate::server::{Config, Token};

    #[test]
    fn a_principal_is_the_user_of_our_own_unix_socket_or_whoever_holds_the_token() {
        let token = Token::new("secret");
        let tcp: std::net::SocketAddr = ([127, 0, 0, 1], 9).into();
        for (remote, token, principal) in [
            (Remote::unix(1000), None, Principal::User(1000)),
            (Remote::unix(0), token.clone(), Principal::User(0)),
            (Remote::SHARED_UNIX, None, Principal::Nobody),
            (Remote::SHARED_UNIX, token.clone(), Principal::Token),
            (tcp.into(), None, Principal::Nobody),
            (tcp.into(), token, Principal::Token),
        ] {
            let mut config = Config::default();
            config.access.token = token;
            let poll = Poll::new().expect("a poll");
            let registry = poll.registry().try_clone().expect("a registry");
            let mut core = Core::new(config, registry, Vec::new(), Time::default());
            let (stream, _peer) = UnixStream::pair().expect("two sockets");
            let client = core.add_client(stream.into(), remote).expect("a client");
            assert_eq!(core.principal(client), principal);
        }
        assert!(Principal::Token.is_same(Principal::Token));
        assert!(!Principal::User(0).is_same(Principal::Token));
        assert!(!Principal::Nobody.is_same(Principal::Nobody));
    }
}
