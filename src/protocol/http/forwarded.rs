//! The request fields in which HTTP proxies name the client: `X-Forwarded-For`, and `Forwarded` (RFC 7239).
//!
//! Each proxy appends the address from which it got the request. So the last entry is the work of the last proxy, and
//! everything before it may have been sent by the client. Therefore both functions return the entries from the right to the
//! left. The caller decides which of the proxies it trusts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The entries of all `X-Forwarded-For` fields of a request, from the right. `values` are the values of the fields in the
/// order of the request: they are one list.
///
/// An entry is an IPv4 or IPv6 address, or `address:port`, with an IPv6 address in brackets. Without a port, the port is 0.
/// `None` means an entry that names no address: `unknown`, a name that begins with an underscore, and anything
/// malformed. Empty entries are skipped (RFC 9110 section 5.6.1).
///
/// ```
/// use outrigger::protocol::http::x_forwarded_for;
///
/// let values = [&b"192.0.2.1, unknown"[..], b"[2001:db8::1]:4711"];
/// let hops: Vec<_> = x_forwarded_for(&values).collect();
/// assert_eq!(hops[0], Some("[2001:db8::1]:4711".parse()?));
/// assert_eq!(hops[1], None);
/// assert_eq!(hops[2], Some("192.0.2.1:0".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn x_forwarded_for<'a>(
    values: &'a [&'a [u8]],
) -> impl Iterator<Item = Option<SocketAddr>> + 'a {
    let values = values.iter().rev();
    let entries = values.flat_map(|value| value.rsplit(|byte| *byte == b','));
    let entries = entries.map(trim).filter(|entry| !entry.is_empty());
    entries.map(|entry| {
        let entry = std::str::from_utf8(entry).ok()?;
        let bare = entry.parse().ok().map(|ip| (IpAddr::V6(ip), ""));
        let (ip, port) = bare.or_else(|| split_port(entry))?;
        Some(SocketAddr::new(ip, decimal_port(port)?))
    })
}

/// The entries of all `Forwarded` fields of a request, from the right: the address of each `for` parameter (RFC 7239
/// section 6). `values` are the values of the fields in the order of the request: they are one list.
///
/// Without a port, or with an obfuscated one, the port is 0. `None` means an element that names no address: `unknown`,
/// an obfuscated identifier, an element without `for`, and a malformed one. If the syntax of a value is wrong, its elements
/// cannot be told apart, and the whole value is one such element.
///
/// ```
/// use outrigger::protocol::http::forwarded;
///
/// let values = [&br#"for=192.0.2.1, for=_hidden, for="[2001:db8::1]:4711";proto=https"#[..]];
/// let hops: Vec<_> = forwarded(&values).collect();
/// assert_eq!(hops[0], Some("[2001:db8::1]:4711".parse()?));
/// assert_eq!(hops[1], None);
/// assert_eq!(hops[2], Some("192.0.2.1:0".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn forwarded<'a>(values: &'a [&'a [u8]]) -> impl Iterator<Item = Option<SocketAddr>> + 'a {
    let values = values.iter().rev();
    values.flat_map(|value| elements(value).unwrap_or(vec![None]).into_iter().rev())
}

/// Removes optional whitespace (RFC 9110 section 5.6.3) on both sides.
fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// Splits an IPv4 address, or an IPv6 address in brackets, from what follows it. That is empty or begins with a colon.
fn split_port(entry: &str) -> Option<(IpAddr, &str)> {
    let (ip, rest) = match entry.strip_prefix('[') {
        Some(entry) => {
            let (ip, rest) = entry.split_once(']')?;
            (IpAddr::V6(ip.parse::<Ipv6Addr>().ok()?), rest)
        }
        None => {
            let (ip, rest) = entry.split_at(entry.find(':').unwrap_or(entry.len()));
            (IpAddr::V4(ip.parse::<Ipv4Addr>().ok()?), rest)
        }
    };
    (rest.is_empty() || rest.starts_with(':')).then_some((ip, rest))
}

/// The port of a string that is empty or has the form `:80`. An empty string means 0.
fn decimal_port(text: &str) -> Option<u16> {
    let Some(digits) = text.strip_prefix(':') else {
        return Some(0);
    };
    let is_decimal = (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| is_decimal)
}

/// The address of a `node` (RFC 7239 section 6).
fn node(text: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = split_port(std::str::from_utf8(text).ok()?)?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let port = match port.strip_prefix(":_") {
        Some(name) if !name.is_empty() && name.bytes().all(is_name) => 0,
        _ => decimal_port(port)?,
    };
    Some(SocketAddr::new(ip, port))
}

/// The elements of one `Forwarded` value, from the left. `None` if its syntax is wrong.
fn elements(value: &[u8]) -> Option<Vec<Option<SocketAddr>>> {
    let mut elements = Vec::new();
    let mut rest = trim(value);
    while !rest.is_empty() {
        let (mut count, mut nodes) = (0, Vec::new());
        // Pairs up to the comma. Both may be missing: `;;` and `,` are allowed.
        loop {
            rest = trim(rest);
            if !matches!(rest, [] | [b';' | b',', ..]) {
                let (name, content);
                (name, content, rest) = pair(rest)?;
                count += 1;
                if name.eq_ignore_ascii_case(b"for") {
                    nodes.push(content);
                }
            }
            rest = trim(rest);
            match rest {
                [b';', after @ ..] => rest = after,
                [b',', after @ ..] => {
                    rest = after;
                    break;
                }
                [] => break,
                _ => return None,
            }
        }
        if count > 0 {
            // A parameter must not be repeated (section 4).
            elements.push(match &nodes[..] {
                [one] => node(one),
                _ => None,
            });
        }
    }
    Some(elements)
}

/// Parses `name=value` at the start of a string. Returns the name, the value and what follows.
fn pair(text: &[u8]) -> Option<(&[u8], Vec<u8>, &[u8])> {
    let (name, rest) = token(text)?;
    let rest = rest.strip_prefix(b"=")?;
    let Some(mut rest) = rest.strip_prefix(b"\"") else {
        let (value, rest) = token(rest)?;
        return Some((name, value.to_vec(), rest));
    };
    let mut value = Vec::new();
    loop {
        let (byte, after) = match rest {
            [b'"', after @ ..] => return Some((name, value, after)),
            [b'\\', byte, after @ ..] | [byte, after @ ..] => (*byte, after),
            [] => return None,
        };
        if byte.is_ascii_control() && byte != b'\t' {
            return None;
        }
        value.push(byte);
        rest = after;
    }
}

/// Splits a token (RFC 9110 section 5.6.2) from what follows it.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let end = text.iter().position(|byte| !is_token(byte));
    let (token, rest) = text.split_at(end.unwrap_or(text.len()));
    (!token.is_empty()).then_some((token, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn shown(hops: impl Iterator<Item = Option<SocketAddr>>) -> Vec<String> {
        hops.map(|hop| hop.map_or("-".to_owned(), |address| address.to_string()))
            .collect()
    }

    fn of_list(values: &[&str]) -> Vec<String> {
        let values: Vec<_> = values.iter().map(|value| value.as_bytes()).collect();
        shown(x_forwarded_for(&values))
    }

    fn of_forwarded(values: &[&str]) -> Vec<String> {
        let values: Vec<_> = values.iter().map(|value| value.as_bytes()).collect();
        shown(forwarded(&values))
    }

    #[test]
    fn each_form_of_an_entry_is_read_or_names_no_address() {
        for (value, hops) in [
            ("192.0.2.1", &["192.0.2.1:0"][..]),
            ("192.0.2.1:80", &["192.0.2.1:80"]),
            ("192.0.2.1:65535", &["192.0.2.1:65535"]),
            ("2001:db8::1", &["[2001:db8::1]:0"]),
            ("[2001:db8::1]", &["[2001:db8::1]:0"]),
            ("[2001:db8::1]:4711", &["[2001:db8::1]:4711"]),
            ("::ffff:192.0.2.1", &["[::ffff:192.0.2.1]:0"]),
            (
                "\t192.0.2.1 ,, 192.0.2.2\t,",
                &["192.0.2.2:0", "192.0.2.1:0"],
            ),
            ("", &[]),
            (" , ", &[]),
            ("unknown", &["-"]),
            ("_hidden", &["-"]),
            ("192.0.2.1:", &["-"]),
            ("192.0.2.1:65536", &["-"]),
            ("192.0.2.1:+80", &["-"]),
            ("192.0.2.1:000080", &["-"]),
            ("192.0.2.1:_port", &["-"]),
            ("192.0.2.01", &["-"]),
            ("192.0.2", &["-"]),
            ("192.0.2.1 192.0.2.2", &["-"]),
            ("\"192.0.2.1\"", &["-"]),
            ("[192.0.2.1]:80", &["-"]),
            ("[2001:db8::1]x", &["-"]),
            ("[2001:db8::1", &["-"]),
            ("fe80::1%eth0", &["-"]),
            ("localhost", &["-"]),
            ("192.0.2.1, a\u{e9}", &["-", "192.0.2.1:0"]),
        ] {
            assert_eq!(of_list(&[value]), hops, "{value}");
        }
        assert_eq!(
            shown(x_forwarded_for(&[b"1.2.3.4, \xff"])),
            ["-", "1.2.3.4:0"]
        );
        assert_eq!(
            of_list(&["1.1.1.1, 2.2.2.2", "", "3.3.3.3"]),
            ["3.3.3.3:0", "2.2.2.2:0", "1.1.1.1:0"]
        );
        assert_eq!(of_list(&[]), [""; 0]);
    }

    #[test]
    fn each_form_of_an_element_is_read_or_names_no_address() {
        for (value, hops) in [
            ("for=192.0.2.1", &["192.0.2.1:0"][..]),
            ("For=192.0.2.1;proto=http;by=203.0.113.43", &["192.0.2.1:0"]),
            ("proto=http ; for=192.0.2.1 ; by=_x", &["192.0.2.1:0"]),
            ("for=\"192.0.2.1:47\"", &["192.0.2.1:47"]),
            ("for=\"192.0.2.1:_gate.1\"", &["192.0.2.1:0"]),
            ("for=\"[2001:db8::1]:4711\"", &["[2001:db8::1]:4711"]),
            ("for=\"[2001:db8::1]\"", &["[2001:db8::1]:0"]),
            ("for=\"\\1\\92.0.2.1\"", &["192.0.2.1:0"]),
            ("for=1.1.1.1, for=2.2.2.2", &["2.2.2.2:0", "1.1.1.1:0"]),
            (
                "for=1.1.1.1;host=\"a,b;c\",,;,for=2.2.2.2;",
                &["2.2.2.2:0", "1.1.1.1:0"],
            ),
            ("", &[]),
            (",;, ", &[]),
            ("for=unknown", &["-"]),
            ("for=\"unknown:80\"", &["-"]),
            ("for=_hidden, for=1.1.1.1", &["1.1.1.1:0", "-"]),
            ("proto=https", &["-"]),
            ("for=1.1.1.1;for=1.1.1.1", &["-"]),
            ("for=\"2001:db8::1\"", &["-"]),
            ("for=\"192.0.2.1:_\"", &["-"]),
            ("for=\"192.0.2.1:_a b\"", &["-"]),
            ("for=\"192.0.2.1:65536\"", &["-"]),
            ("for=\"\"", &["-"]),
            // The syntax is wrong, so nothing in the value is believed.
            ("for=1.1.1.1, for=[2001:db8::1]", &["-"]),
            ("for=1.1.1.1, for=2.2.2.2:80", &["-"]),
            ("for =1.1.1.1", &["-"]),
            ("for= 1.1.1.1", &["-"]),
            ("for=", &["-"]),
            ("for", &["-"]),
            ("=1.1.1.1", &["-"]),
            ("for=1.1.1.1 for=2.2.2.2", &["-"]),
            ("for=1.1.1.1, for=\"2.2.2.2", &["-"]),
            ("for=\"2.2.2.2\\", &["-"]),
            ("for=\"2.2.2.2\"3", &["-"]),
            ("for=\"2.2.2.2\x01\"", &["-"]),
        ] {
            assert_eq!(of_forwarded(&[value]), hops, "{value}");
        }
        assert_eq!(of_forwarded(&["for=\"", "for=2.2.2.2"]), ["2.2.2.2:0", "-"]);
    }

    #[test]
    fn an_open_quote_of_the_client_does_not_swallow_what_the_proxy_appends() {
        // The bug: a client sends an open quote, the proxy appends its element, and the client's text before it counts.
        for sent in ["for=9.9.9.9;x=\"", "for=9.9.9.9, x=\"", "for=\"", "x=\"\\"] {
            for appended in [
                "for=1.2.3.4",
                "for=\"[2001:db8::1]:4711\"",
                "for=\"1.2.3.4:5\"",
            ] {
                let hops = of_forwarded(&[&format!("{sent}, {appended}")]);
                assert_eq!(hops, ["-"], "{sent} {appended}");
            }
        }
    }

    /// A random entry: its address, if it names one.
    fn random_hop(random: &mut Random) -> Option<SocketAddr> {
        let ip = if random.below(2) == 0 {
            IpAddr::from([192, 0, 2, random.byte()])
        } else {
            IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(random.byte())])
        };
        let port = if random.below(2) == 0 {
            0
        } else {
            1 + u16::from(random.byte())
        };
        (random.below(5) > 0).then_some(SocketAddr::new(ip, port))
    }

    fn pick<'a>(random: &mut Random, of: &[&'a str]) -> &'a str {
        of[random.below(of.len())]
    }

    #[test]
    fn generated_fields_have_the_entries_that_they_were_made_of() {
        let mut random = Random::new(77);
        for _ in 0..3000 {
            let hops: Vec<_> = (0..random.below(6))
                .map(|_| random_hop(&mut random))
                .collect();
            let (mut plain, mut quoted) = (vec![String::new()], vec![String::new()]);
            for (at, hop) in hops.iter().enumerate() {
                let list = match hop {
                    None => pick(&mut random, &["unknown", "_x", "?"]).to_owned(),
                    Some(one) if one.port() > 0 => one.to_string(),
                    Some(one) if one.is_ipv6() && random.below(2) == 0 => format!("[{}]", one.ip()),
                    Some(one) => one.ip().to_string(),
                };
                let is_plain = hop.is_some_and(|one| one.is_ipv4() && one.port() == 0);
                let node = match hop {
                    None => pick(&mut random, &["unknown", "_x", "\"[::\"", "\"\""]).to_owned(),
                    Some(one) if is_plain && random.below(2) == 0 => one.ip().to_string(),
                    Some(one) if one.port() == 0 => {
                        let port = pick(&mut random, &["", ":_p", ":0"]);
                        let with_port = SocketAddr::new(one.ip(), 1).to_string();
                        format!(
                            "\"{}{port}\"",
                            with_port.strip_suffix(":1").expect("a port")
                        )
                    }
                    Some(one) => format!("\"{one}\""),
                };
                let before = pick(
                    &mut random,
                    &["", "proto=https;", ";host=\"a, for=1.1.1.1\" ; "],
                );
                let name = pick(&mut random, &["for=", "For=", "FOR="]);
                let after = pick(&mut random, &["", ";by=\"[::1]\"", ";x=\"\\\"\";", " "]);
                let element = format!("{before}{name}{node}{after}");
                for (fields, entry) in [(&mut plain, list), (&mut quoted, element)] {
                    if at > 0 && random.below(3) == 0 {
                        fields.push(String::new());
                    } else if at > 0 {
                        *fields.last_mut().expect("one") +=
                            pick(&mut random, &[",", ", ", " ,,\t"]);
                    }
                    *fields.last_mut().expect("one") += &entry;
                }
            }
            let expected: Vec<_> = hops.iter().rev().copied().collect();
            let plain: Vec<_> = plain.iter().map(String::as_bytes).collect();
            let quoted: Vec<_> = quoted.iter().map(String::as_bytes).collect();
            assert_eq!(
                x_forwarded_for(&plain).collect::<Vec<_>>(),
                expected,
                "{plain:?}"
            );
            assert_eq!(
                forwarded(&quoted).collect::<Vec<_>>(),
                expected,
                "{quoted:?}"
            );
        }
    }
}
