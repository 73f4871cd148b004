//! The PROXY protocol, versions 1 and 2: a header in which a proxy names the address of the client.
//!
//! The specification is HAProxy's `proxy-protocol.txt`. The header is the first thing on the connection, as text
//! (version 1) or binary (version 2). Every peer can send one, so the header is read only from known
//! proxies, and from those it is required.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum length of a version 1 header with its line end (section 2.1).
const MAX_TEXT: usize = 107;

/// The maximum length of a version 2 header: 16 bytes, addresses of at most 216 bytes, and extensions.
pub const MAX_HEADER: usize = 4096;

/// The signature of version 1.
const TEXT: &[u8] = b"PROXY ";

/// The signature of version 2 (section 2.2).
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The number of bytes before the addresses in version 2.
const FIXED: usize = 16;

/// The result of parsing the start of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The header is incomplete. At least this many bytes are missing.
    More(usize),
    /// The header is complete. The address is `None` if the connection is the proxy's own or the address family is
    /// unknown.
    Whole(Option<SocketAddr>),
}

/// The bytes are not a PROXY protocol header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyError;

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a PROXY protocol header is required from this address")
    }
}

impl std::error::Error for ProxyError {}

/// Parses the start of a connection from a proxy. After [`Progress::More`], call it again with that many more bytes.
/// `held` never contains bytes after the header.
pub fn read_header(held: &[u8]) -> Result<Progress, ProxyError> {
    let begins = |with: &[u8]| held.iter().zip(with).all(|(one, other)| one == other);
    if held.is_empty() {
        Ok(Progress::More(1))
    } else if begins(BINARY) {
        read_binary(held)
    } else if begins(TEXT) {
        read_text(held)
    } else {
        Err(ProxyError)
    }
}

/// Parses `PROXY TCP4 192.0.2.1 192.0.2.2 51000 443\r\n`, or `PROXY UNKNOWN` and any text up to the end of the line.
fn read_text(held: &[u8]) -> Result<Progress, ProxyError> {
    if held.last() != Some(&b'\n') {
        return if held.len() < MAX_TEXT {
            Ok(Progress::More(1))
        } else {
            Err(ProxyError)
        };
    }
    let line = std::str::from_utf8(held).map_err(|_| ProxyError)?;
    let words = line.strip_prefix("PROXY ").ok_or(ProxyError)?;
    let words = words.strip_suffix("\r\n").ok_or(ProxyError)?;
    let mut words = words.split(' ');
    let family = words.next();
    if family == Some("UNKNOWN") {
        return Ok(Progress::Whole(None));
    }
    let [source, destination, port, to] =
        [words.next(), words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
    let address = |text: &str| {
        let ip: IpAddr = text.parse().map_err(|_| ProxyError)?;
        let right = match family {
            Some("TCP4") => ip.is_ipv4(),
            Some("TCP6") => ip.is_ipv6(),
            _ => false,
        };
        right.then_some(ip).ok_or(ProxyError)
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u16>().ok()).flatten();
        number.ok_or(ProxyError)
    };
    address(destination)?;
    number(to)?;
    if words.next().is_some() {
        return Err(ProxyError);
    }
    whole(address(source)?, number(port)?)
}

fn read_binary(held: &[u8]) -> Result<Progress, ProxyError> {
    if held.len() < FIXED {
        return Ok(Progress::More(FIXED - held.len()));
    }
    let (version_and_command, family) = (held[12], held[13]);
    let is_proxied = match version_and_command {
        0x20 => false,
        0x21 => true,
        _ => return Err(ProxyError),
    };
    let total = FIXED + usize::from(u16::from_be_bytes([held[14], held[15]]));
    if total > MAX_HEADER {
        return Err(ProxyError);
    }
    if held.len() < total {
        return Ok(Progress::More(total - held.len()));
    }
    let addresses = &held[FIXED..total];
    let port = |at: usize| u16::from_be_bytes([addresses[at], addresses[at + 1]]);
    match (is_proxied, family) {
        (true, 0x11) => {
            let ip: [u8; 4] = first(addresses, 12)?;
            whole(Ipv4Addr::from(ip).into(), port(8))
        }
        (true, 0x21) => {
            let ip: [u8; 16] = first(addresses, 36)?;
            whole(Ipv6Addr::from(ip).into(), port(32))
        }
        _ => Ok(Progress::Whole(None)),
    }
}

/// The first `N` bytes, if there are at least `least`.
fn first<const N: usize>(bytes: &[u8], least: usize) -> Result<[u8; N], ProxyError> {
    let enough = bytes.len() >= least;
    let first = enough.then(|| bytes.first_chunk()).flatten();
    first.copied().ok_or(ProxyError)
}

/// Accepts an address unless it is unspecified, such as 0.0.0.0.
fn whole(ip: IpAddr, port: u16) -> Result<Progress, ProxyError> {
    if ip.to_canonical().is_unspecified() {
        return Err(ProxyError);
    }
    Ok(Progress::Whole(Some(SocketAddr::new(ip, port))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a header as a connection does: with no more bytes than requested.
    fn read(bytes: &[u8]) -> Result<(usize, Option<SocketAddr>), Option<ProxyError>> {
        let mut len = 0;
        loop {
            match read_header(&bytes[..len]).map_err(Some)? {
                Progress::Whole(address) => return Ok((len, address)),
                Progress::More(count) if len + count <= bytes.len() => len += count,
                Progress::More(_) => return Err(None),
            }
        }
    }

    fn binary(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let head = [version_and_command, family];
        [BINARY, &head, &(rest.len() as u16).to_be_bytes(), rest].concat()
    }

    #[test]
    fn both_versions_name_the_client() {
        let v4 = [&[192, 0, 2, 1, 10, 0, 0, 1][..], &[0xc7, 0x38, 0, 80]].concat();
        let mut v6 = [0; 36];
        (v6[0], v6[15], v6[32], v6[33]) = (0x20, 1, 1, 2);
        for (bytes, address) in [
            (
                b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80\r\n".to_vec(),
                "192.0.2.1:51000",
            ),
            (
                b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n".to_vec(),
                "[2001:db8::1]:65535",
            ),
            (binary(0x21, 0x11, &v4), "192.0.2.1:51000"),
            (
                binary(0x21, 0x11, &[&v4[..], &[4, 0, 1, 9]].concat()),
                "192.0.2.1:51000",
            ),
            (binary(0x21, 0x21, &v6), "[2000::1]:258"),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(read(&bytes), Ok((bytes.len(), Some(address))));
            let longer = [&bytes[..], b"GET / HTTP/1.1"].concat();
            assert_eq!(read(&longer), Ok((bytes.len(), Some(address))));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Err(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn connections_of_the_proxy_itself_have_no_address() {
        for bytes in [
            b"PROXY UNKNOWN\r\n".to_vec(),
            b"PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\n".to_vec(),
            binary(0x20, 0, b""),
            binary(0x20, 0x11, &[1; 12]),
            binary(0x21, 0x31, &[b'x'; 216]),
            binary(0x21, 0, b""),
        ] {
            assert_eq!(read(&bytes), Ok((bytes.len(), None)), "{bytes:?}");
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"PROXY\tTCP4".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 51000 80\r\n".to_vec(),
            b"PROXY TCP6 192.0.2.1 10.0.0.1 51000 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 51000\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 51000 80 1\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 65536 80\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1 10.0.0.1 +1 80\r\n".to_vec(),
            b"PROXY TCP4 0.0.0.0 10.0.0.1 0 80\r\n".to_vec(),
            b"PROXY TCP6 :: ::1 0 80\r\n".to_vec(),
            b"PROXY TCP6 ::ffff:0.0.0.0 ::1 0 80\r\n".to_vec(),
            [b"PROXY UNKNOWN ", &[b'x'; 100][..], b"\r\n"].concat(),
            binary(0x31, 0x11, &[1; 12]),
            binary(0x22, 0x11, &[1; 12]),
            binary(0x21, 0x11, &[1; 11]),
            binary(0x21, 0x21, &[1; 35]),
            binary(0x21, 0x11, &[0; 12]),
            binary(0x20, 0, &[0; MAX_HEADER]),
        ] {
            assert_eq!(read(&bytes), Err(Some(ProxyError)), "{bytes:?}");
        }
    }
}
