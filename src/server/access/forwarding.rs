//! Trusted proxies: their addresses, and what they say about the requests that they forward, which client a request is for
//! and which user.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use super::principal::is_plain_name;
use crate::protocol::http::{forwarded, x_forwarded_for};
use crate::protocol::{Rejection, Request, StatusCode};
use crate::server::Remote;

/// Peers by the address that they connect from.
///
/// ```
/// use outrigger::Peers;
///
/// let proxies: Peers = "10.0.0.0/8".parse()?;
/// assert_eq!(proxies, Peers::Network([10, 0, 0, 0].into(), 8));
/// assert_eq!(proxies.to_string(), "10.0.0.0/8");
/// # Ok::<(), outrigger::ParsePeersError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peers {
    /// Every peer that connects to a unix socket.
    Unix,
    /// The network of this address, with a prefix of so many bits.
    Network(IpAddr, u8),
}

impl Peers {
    /// Whether a connection comes from one of these peers.
    fn contain(&self, remote: Remote) -> bool {
        let (ip, bits) = match self {
            Self::Unix => return remote.is_unix(),
            Self::Network(..) if remote.is_unix() => return false,
            Self::Network(ip, bits) => (*ip, u32::from(*bits)),
        };
        let same = |one: u128, other: u128, width: u32| {
            let rest = width.saturating_sub(bits);
            // A prefix of no bits contains every address.
            one.checked_shr(rest).unwrap_or(0) == other.checked_shr(rest).unwrap_or(0)
        };
        match (ip.to_canonical(), remote.ip()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                same(one.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix => f.write_str("unix"),
            Self::Network(ip, bits) => write!(f, "{ip}/{bits}"),
        }
    }
}

/// A string that does not name [`Peers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsePeersError(());

impl fmt::Display for ParsePeersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither unix, an address nor a network such as 10.0.0.0/8")
    }
}

impl std::error::Error for ParsePeersError {}

impl FromStr for Peers {
    type Err = ParsePeersError;

    /// Parses `unix`, an address, or a network as `ADDRESS/BITS`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "unix" {
            return Ok(Self::Unix);
        }
        let wrong = ParsePeersError(());
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong)?;
        let width: u8 = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong))?;
        if bits > width {
            return Err(wrong);
        }
        // An IPv4 address that is written as an IPv6 address is compared as IPv4.
        match ip.to_canonical() {
            short @ IpAddr::V4(_) if ip.is_ipv6() => {
                let bits = bits.checked_sub(96).ok_or(wrong)?;
                Ok(Self::Network(short, bits))
            }
            ip => Ok(Self::Network(ip, bits)),
        }
    }
}

/// Whether a peer is one of these.
pub(crate) fn is_one_of(peers: &[Peers], remote: Remote) -> bool {
    peers.iter().any(|one| one.contain(remote))
}

/// The client of a request that the trusted proxy `peer` sends: `peer` itself, if no field names another address.
pub(crate) fn client(peer: Remote, trusted: &[Peers], request: &Request<'_>) -> Remote {
    let values = |name: &str| {
        let fields = request.headers();
        let fields = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value).collect::<Vec<_>>()
    };
    let (list, standard) = (values("x-forwarded-for"), values("forwarded"));
    let by_list = last_untrusted(peer, trusted, x_forwarded_for(&list));
    let by_standard = last_untrusted(peer, trusted, forwarded(&standard));
    if list.is_empty() {
        return by_standard;
    }
    if standard.is_empty() {
        return by_list;
    }
    if (by_list.is_unix(), by_list.ip()) == (by_standard.is_unix(), by_standard.ip()) {
        // Often only one of them has the port.
        let has_port = SocketAddr::from(by_list).port() != 0;
        return if has_port { by_list } else { by_standard };
    }
    log::warn!(
        "the proxy {peer} forwards X-Forwarded-For (client {by_list}) and Forwarded (client {by_standard}): neither is used, because a client may have forged the one that the proxy does not set; make the proxy remove it, for example with 'proxy_set_header Forwarded \"\"' (nginx) or 'http-request del-header forwarded' (HAProxy)"
    );
    peer
}

/// Reads a list from the right up to the first address that is not a trusted proxy. An entry without an address ends the
/// list: the proxy that wrote it is the last one that is known.
fn last_untrusted(
    peer: Remote,
    trusted: &[Peers],
    hops: impl Iterator<Item = Option<SocketAddr>>,
) -> Remote {
    let mut last = peer;
    for hop in hops {
        let Some(address) = hop else { break };
        last = address.into();
        if !is_one_of(trusted, last) {
            break;
        }
    }
    last
}

/// The user that a trusted proxy names in a header field.
pub(crate) fn user(request: &Request<'_>, header: &str) -> Result<Option<Arc<str>>, Rejection> {
    let named = |(field, _): &(&str, _)| field.eq_ignore_ascii_case(header);
    let mut values = request.headers().filter(named).map(|(_, value)| value);
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let wrong = |why: &str| {
        let why = format!("the header {header}, in which the proxy names the user, {why}");
        Err(Rejection::new(StatusCode::BAD_REQUEST, why).because("auth_header"))
    };
    if values.next().is_some() {
        return wrong("is repeated");
    }
    match std::str::from_utf8(value).map(|name| name.trim_matches([' ', '\t'])) {
        Err(_) => wrong("is not UTF-8"),
        Ok("") => wrong("is empty"),
        Ok(name) if is_plain_name(name) => Ok(Some(name.into())),
        Ok(_) => wrong(
            "is not a name of up to 255 bytes: letters, digits and visible ASCII characters, and spaces if there is no '='",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::random::Random;

    fn address(text: &str) -> Remote {
        text.parse::<SocketAddr>().expect(text).into()
    }

    fn peers(texts: &[&str]) -> Vec<Peers> {
        let peers = texts.iter().map(|text| text.parse().expect("peers"));
        peers.collect()
    }

    /// The client of a request with these fields.
    fn client_of(peer: Remote, trusted: &[Peers], fields: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let request = Request::parse(head.as_bytes()).expect(&head);
        client(peer, trusted, &request).to_string()
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_a_trusted_proxy() {
        let trusted = peers(&["10.0.0.0/8", "2001:db8::/32", "unix"]);
        for (fields, client) in [
            ("", "10.1.1.1:5"),
            ("X-Real-IP: 9.9.9.9\r\n", "10.1.1.1:5"),
            ("X-Forwarded-For: 9.9.9.9\r\n", "9.9.9.9:0"),
            ("x-forwarded-for: 8.8.8.8, 9.9.9.9\r\n", "9.9.9.9:0"),
            (
                "X-Forwarded-For: 8.8.8.8, 9.9.9.9:7, 10.2.2.2, 2001:db8::5\r\n",
                "9.9.9.9:7",
            ),
            (
                "X-Forwarded-For: 8.8.8.8, 9.9.9.9\r\nX-Forwarded-For: 10.2.2.2\r\n",
                "9.9.9.9:0",
            ),
            ("X-Forwarded-For: ::ffff:10.2.2.2\r\n", "10.2.2.2:0"),
            ("X-Forwarded-For: 10.3.3.3, 10.2.2.2\r\n", "10.3.3.3:0"),
            (
                "X-Forwarded-For: 9.9.9.9, unknown, 10.2.2.2\r\n",
                "10.2.2.2:0",
            ),
            ("X-Forwarded-For: 9.9.9.9, x\r\n", "10.1.1.1:5"),
            ("X-Forwarded-For: \r\n", "10.1.1.1:5"),
            (
                "Forwarded: for=8.8.8.8, for=\"9.9.9.9:7\", for=10.2.2.2\r\n",
                "9.9.9.9:7",
            ),
            (
                "Forwarded: for=9.9.9.9, for=_x, for=10.2.2.2\r\n",
                "10.2.2.2:0",
            ),
            ("Forwarded: for=9.9.9.9, for=\"\r\n", "10.1.1.1:5"),
            ("Forwarded: for=9.9.9.9, proto=http\r\n", "10.1.1.1:5"),
            // Both fields.
            (
                "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=\"9.9.9.9:7\"\r\n",
                "9.9.9.9:7",
            ),
            (
                "X-Forwarded-For: 9.9.9.9:8\r\nForwarded: for=\"9.9.9.9:7\"\r\n",
                "9.9.9.9:8",
            ),
            (
                "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=8.8.8.8\r\n",
                "10.1.1.1:5",
            ),
            (
                "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=unknown\r\n",
                "10.1.1.1:5",
            ),
            // No address passes for a unix socket.
            ("X-Forwarded-For: ff00::1\r\n", "[::]:0"),
        ] {
            assert_eq!(
                client_of(address("10.1.1.1:5"), &trusted, fields),
                client,
                "{fields}"
            );
            let unix = if client == "10.1.1.1:5" {
                "unix"
            } else {
                client
            };
            assert_eq!(
                client_of(Remote::SHARED_UNIX, &trusted, fields),
                unix,
                "{fields}"
            );
        }
    }

    /// The last address that is not trusted, or else the first one after an entry that is none.
    fn naive(peer: Remote, trusted: &[Peers], hops: &[&str]) -> Remote {
        let mut known = hops.rsplit(|hop| hop.parse::<IpAddr>().is_err());
        let known = known.next().unwrap_or_default();
        let known: Vec<_> = known
            .iter()
            .map(|hop| address(&format!("{hop}:0")))
            .collect();
        let mut untrusted = known.iter().rev().filter(|hop| !is_one_of(trusted, **hop));
        let first = known.first().copied().unwrap_or(peer);
        untrusted.next().copied().unwrap_or(first)
    }

    #[test]
    fn generated_lists_have_the_client_that_a_naive_search_finds() {
        let mut random = Random::new(5);
        let trusted = peers(&["10.0.0.0/8", "127.0.0.1"]);
        let peer = address("127.0.0.1:80");
        for _ in 0..2000 {
            let kinds = [
                "10.0.0.1",
                "10.0.0.2",
                "127.0.0.1",
                "9.9.9.9",
                "8.8.8.8",
                "unknown",
                "_x",
            ];
            let hops: Vec<_> = (0..random.below(7))
                .map(|_| kinds[random.below(kinds.len())])
                .collect();
            let list = format!("X-Forwarded-For: {}\r\n", hops.join(", "));
            let elements: Vec<_> = hops.iter().map(|hop| format!("for={hop}")).collect();
            let standard = format!("Forwarded: {}\r\n", elements.join(","));
            let expected = naive(peer, &trusted, &hops).to_string();
            for fields in [list.clone(), standard.clone(), standard + &list] {
                assert_eq!(client_of(peer, &trusted, &fields), expected, "{fields}");
            }
        }
    }

    #[test]
    fn a_name_is_taken_whole_or_rejected() {
        let long = "x".repeat(256);
        let most = &long[1..];
        for (values, name) in [
            (&[][..], Ok(None)),
            (&["ada"], Ok(Some("ada"))),
            (&[" \tada@example.org\t "], Ok(Some("ada@example.org"))),
            (&["Ada Lovelace"], Ok(Some("Ada Lovelace"))),
            (&["CN=Ada,O=Example"], Ok(Some("CN=Ada,O=Example"))),
            (&["J\u{fc}rgen"], Ok(Some("J\u{fc}rgen"))),
            (&[most], Ok(Some(most))),
            (&[""], Err("is empty")),
            (&[" "], Err("is empty")),
            (&["ada", "ada"], Err("is repeated")),
            (&["ada", ""], Err("is repeated")),
            (&[&long], Err("is not a name")),
            (&["ada remote=1.2.3.4"], Err("is not a name")),
            (&["ada\tb"], Err("is not a name")),
            (&["ada\u{a0}"], Err("is not a name")),
            (&["a\u{202e}da"], Err("is not a name")),
            (&["ada\u{200b}"], Err("is not a name")),
        ] {
            let fields: String = values
                .iter()
                .map(|value| format!("X-User: {value}\r\n"))
                .collect();
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let request = Request::parse(head.as_bytes()).expect("valid");
            match (user(&request, "x-user"), name) {
                (Ok(found), Ok(name)) => assert_eq!(found.as_deref(), name, "{values:?}"),
                (Err(rejection), Err(why)) => {
                    let text = rejection.to_string();
                    assert!(rejection.status.0 == 400 && text.contains(why), "{text}");
                }
                (found, name) => panic!("{values:?}: {found:?} instead of {name:?}"),
            }
        }
        let request = Request::parse(b"GET / HTTP/1.1\r\nHost: h\r\nX-User: \xff\r\n\r\n");
        let rejection = user(&request.expect("valid"), "X-User").expect_err("not UTF-8");
        assert!(rejection.to_string().contains("is not UTF-8"));
    }

    #[test]
    fn peers_contain_the_addresses_of_their_network() {
        let remote = |text: &str| Remote::from(text.parse::<SocketAddr>().expect("an address"));
        for (peers, from, contained) in [
            ("10.1.2.3", "10.1.2.3:1", true),
            ("10.1.2.3/32", "10.1.2.4:1", false),
            ("10.1.0.0/16", "10.1.255.4:1", true),
            ("10.1.0.0/16", "10.2.0.0:1", false),
            ("10.1.0.0/16", "[::ffff:10.1.0.9]:1", true),
            ("::ffff:10.1.0.0/112", "10.1.0.9:1", true),
            ("0.0.0.0/0", "200.1.1.1:1", true),
            ("0.0.0.0/0", "[::1]:1", false),
            ("::/0", "[::1]:1", true),
            ("::/0", "127.0.0.1:1", false),
            ("2001:db8::/32", "[2001:db8:1::1]:1", true),
            ("2001:db8::/32", "[2001:db9::1]:1", false),
            ("unix", "127.0.0.1:1", false),
        ] {
            let parsed: Peers = peers.parse().expect("peers");
            assert_eq!(parsed.contain(remote(from)), contained, "{peers} {from}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
        assert!(Peers::Unix.contain(Remote::unix(0)) && Peers::Unix.contain(Remote::SHARED_UNIX));
        let all: Peers = "::/0".parse().expect("peers");
        assert!(!all.contain(Remote::unix(0)));
    }
}
