//! The addresses of proxies.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

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
    pub(in crate::server) fn contain(&self, remote: Remote) -> bool {
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

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
