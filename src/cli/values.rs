//! Parsers for the values of flags.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::Listen;
use crate::server::split_security;
use crate::sys::check_socket_path;

/// A value of `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenValue {
    Address(Listen),
    /// A socket that this process was started with, and whether its connections use TLS, if the flag says so. Reading the
    /// flag does not take it over, because the flags are read again on SIGHUP.
    Descriptor(RawFd, Option<bool>),
}

/// The error for an option of TLS in a build without it.
const NO_TLS: &str =
    "this build of outrigger does not support TLS (it was built without the feature 'tls')";

/// Why this build does not have a flag, if another build does.
pub(super) fn missing_feature(name: &str) -> Option<&'static str> {
    let concerns_tls = name.starts_with("tls-") || matches!(name, "ca" | "fingerprint");
    (!cfg!(feature = "tls") && concerns_tls).then_some(NO_TLS)
}

/// Parses `HOST:PORT`, `PORT`, `:PORT`, `unix:PATH` or `fd:NUMBER`, with an optional prefix `tls:` or `plain:`. A host name means
/// all of its addresses. A port alone is a port of 127.0.0.1, so that a server listens on all interfaces only if its user says so.
pub(super) fn listen(text: &str) -> Result<Vec<ListenValue>, String> {
    let (tls, text) = split_security(text);
    if tls == Some(true) && !cfg!(feature = "tls") {
        return Err(NO_TLS.to_owned());
    }
    let secured = |listen: Listen| match tls {
        Some(tls) => ListenValue::Address(listen.with_tls(tls)),
        None => ListenValue::Address(listen),
    };
    if text.starts_with("unix:") {
        let listen: Listen = text
            .parse()
            .map_err(|_| "missing path after unix:".to_owned())?;
        let path = text.strip_prefix("unix:").unwrap_or(text);
        check_socket_path(path.as_ref()).map_err(|error| format!("'{path}': {error}"))?;
        return Ok(vec![secured(listen)]);
    }
    if let Some(number) = text.strip_prefix("fd:") {
        let number = number
            .parse()
            .map_err(|_| format!("'{text}' is not fd:NUMBER"))?;
        return Ok(vec![ListenValue::Descriptor(number, tls)]);
    }
    let addresses = addresses(text)?.into_iter();
    Ok(addresses
        .map(|address| secured(Listen::tcp(address)))
        .collect())
}

/// A port of 127.0.0.1.
pub(super) fn loopback(port: u16) -> ListenValue {
    ListenValue::Address(Listen::tcp((Ipv4Addr::LOCALHOST, port)))
}

/// Parses `A-B`.
pub(super) fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let range = text.split_once('-').and_then(|(first, last)| {
        let range = first.parse::<u16>().ok()?..=last.parse().ok()?;
        (*range.start() > 0 && !range.is_empty()).then_some(range)
    });
    range.ok_or_else(|| format!("'{text}' is not a range of ports such as 10000-20000"))
}

fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if port.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(port) = port.parse()
    {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]);
    }
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    // A look-up may take seconds, and its error says nothing about a mistake in the text.
    if !is_host_and_port(text) {
        let hint = address_hint(text);
        return Err(format!(
            "'{text}' is not HOST:PORT, PORT, unix:PATH or fd:NUMBER{hint}"
        ));
    }
    let addresses: Vec<_> = text
        .to_socket_addrs()
        .map_err(|error| format!("'{text}': {error}"))?
        .collect();
    if addresses.is_empty() {
        Err(format!("'{text}' has no address"))
    } else {
        Ok(addresses)
    }
}

/// Whether a string has the form of a host name and a port.
fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| is_host_name(host) && port.parse::<u16>().is_ok())
}

fn is_host_name(text: &str) -> bool {
    const MAX: usize = 253;
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let mut bytes = label.bytes();
        !label.is_empty()
            && !label.starts_with('-')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= MAX && name.split('.').all(is_label)
}

/// What may have been meant by an address that has another form.
fn address_hint(text: &str) -> String {
    let port = text.rsplit(':').next().unwrap_or_default();
    let port = if port.parse::<u16>().is_ok() {
        port
    } else {
        "PORT"
    };
    if text.contains("//") {
        "; leave out the scheme and the path of a URL".to_owned()
    } else if text.contains(',') {
        "; write --listen once for each address".to_owned()
    } else if text.starts_with('*') {
        format!("; all addresses are 0.0.0.0:{port} or [::]:{port}")
    } else if text.contains('/') || text.ends_with(".sock") {
        format!("; write unix:{text}")
    } else if let Some((host, _)) = text.rsplit_once(':')
        && host.contains(':')
        && host.parse::<Ipv6Addr>().is_ok()
    {
        format!("; write [{host}]:{port}")
    } else if text.parse::<Ipv6Addr>().is_ok() {
        format!("; write an IPv6 address in brackets, such as [::1]:{port}, or [::]:{port} for all")
    } else {
        String::new()
    }
}

/// Parses a time such as `20s`, `1m 30s` or `500ms`. A bare number is seconds. Zero and `off` are `None`.
pub(super) fn duration(text: &str) -> Result<Option<Duration>, String> {
    let duration = match (text, text.parse::<u32>()) {
        ("off", _) => Duration::ZERO,
        (_, Ok(seconds)) => Duration::from_secs(seconds.into()),
        _ => humantime::parse_duration(text)
            .map_err(|_| format!("'{text}' is not a time such as 20s or 1m"))?,
    };
    if duration > Duration::from_secs(366 * 24 * 3600) {
        return Err(format!("'{text}' is longer than a year"));
    }
    Ok((!duration.is_zero()).then_some(duration))
}

/// Parses a number of bytes such as `65536`, `64KiB` or `1GiB`. `K`, `M` and `G` are short for `KiB`, `MiB` and `GiB`.
pub(super) fn size(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let wrong = || format!("'{text}' is not a number of bytes such as 65536 or 16MiB");
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let unit: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return Err(wrong()),
    };
    let size = digits
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(wrong)?;
    if !range.contains(&size) {
        let (least, most) = (range.start(), range.end() >> 20);
        return Err(format!(
            "'{text}' is not between {least} bytes and {most}MiB"
        ));
    }
    Ok(size)
}

/// Parses one of several words.
pub(super) fn choice<T, const N: usize>(text: &str, words: [(&str, T); N]) -> Result<T, String> {
    let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    let wrong = format!("'{text}' is neither {}", known.join(" nor "));
    let mut words = words.into_iter();
    let found = words.find(|(word, _)| *word == text);
    found.map(|(_, value)| value).ok_or(wrong)
}

/// Parses a whole number in a range.
pub(super) fn number(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            format!(
                "'{text}' is not a number from {} to {}",
                range.start(),
                range.end()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sizes_and_numbers_are_parsed() {
        assert_eq!(duration("20s"), Ok(Some(Duration::from_secs(20))));
        assert_eq!(duration("1m 30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(duration("250ms"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(duration("7"), Ok(Some(Duration::from_secs(7))));
        for off in ["0", "0s", "off"] {
            assert_eq!(duration(off), Ok(None), "{off}");
        }
        assert!(
            duration("soon").is_err() && duration("-1s").is_err() && duration("2years").is_err()
        );

        assert_eq!(size("65536", 1..=1 << 40), Ok(65536));
        assert_eq!(size("16MiB", 1..=1 << 40), Ok(16 << 20));
        assert_eq!(size("64 k", 1..=1 << 40), Ok(64 << 10));
        assert!(
            size("", 1..=1 << 40).is_err()
                && size("12XB", 1..=1 << 40).is_err()
                && size("99999999999G", 1..=1 << 40).is_err()
        );
        assert!(size("10", 125..=1 << 40).is_err());

        assert_eq!(number("5", 1..=9), Ok(5));
        assert!(number("0", 1..=9).is_err() && number("x", 1..=9).is_err());
    }

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_port_of_the_loopback_interface() {
        assert_eq!(
            addresses("127.0.0.1:0"),
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))])
        );
        assert_eq!(addresses("[::1]:80").map(|list| list.len()), Ok(1));
        for (text, port) in [("7070", 7070), (":7070", 7070), ("0", 0), (":0", 0)] {
            let loopback = SocketAddr::from(([127, 0, 0, 1], port));
            assert_eq!(addresses(text), Ok(vec![loopback]));
        }
        for bad in [
            "",
            ":",
            "99999",
            ":99999",
            "+80",
            ":-1",
            "127.0.0.1",
            "127.0.0.1:99999",
            "::1",
        ] {
            assert!(addresses(bad).is_err(), "{bad}");
        }
        // The bug: these were looked up as host names, which took seconds, and the error was the resolver's.
        for (bad, hint) in [
            ("*:80", "0.0.0.0:80 or [::]:80"),
            ("::80", "in brackets, such as [::1]:80"),
            ("fe80::1", "in brackets"),
            ("http://", "leave out the scheme"),
            ("ws://127.0.0.1:80", "leave out the scheme"),
            ("127.0.0.1:1,127.0.0.1:2", "once for each address"),
            ("a b:80", "is not HOST:PORT"),
            ("-a:80", "is not HOST:PORT"),
            ("a..b:80", "is not HOST:PORT"),
        ] {
            let error = addresses(bad).expect_err(bad);
            assert!(error.contains(hint), "{error}");
        }
    }
}
