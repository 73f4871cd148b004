//! The names and addresses by which clients reach this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::settings::ListenFlag;
use crate::ListenAddress;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// The maximum number of addresses that are reported for an unspecified one.
const MOST: usize = 8;

/// The names of this machine: its host name, the part before the first dot, and that part with `.local` (RFC 6762).
pub(super) fn own_names() -> Vec<String> {
    let uname = rustix::system::uname();
    let Some(name) = uname.nodename().to_str().ok().filter(|name| is_name(name)) else {
        return Vec::new();
    };
    let short = name.split('.').next().unwrap_or(name);
    let mut names = vec![name.to_owned(), short.to_owned(), format!("{short}.local")];
    names.dedup();
    names
}

fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // "(none)" is the kernel's default for an unset name.
    !name.is_empty() && name != "(none)" && name.bytes().all(valid)
}

/// Whether it means all addresses of the machine.
pub(super) fn is_unspecified(listen: &ListenFlag) -> bool {
    match listen {
        ListenFlag::Address(listen) => listen.ip().is_some_and(|ip| ip.is_unspecified()),
        ListenFlag::Descriptor(..) => false,
    }
}

/// The addresses that reach a listener: its own address, or if that is unspecified, all addresses of the machine,
/// loopback first.
pub(super) fn reached_at(address: &ListenAddress) -> Vec<ListenAddress> {
    let Some(all) = address
        .tcp()
        .filter(|address| address.ip().is_unspecified())
    else {
        return vec![address.clone()];
    };
    let first = match all {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let mut ips: Vec<IpAddr> = vec![first];
    // If the system does not list its interfaces, loopback still works.
    let interfaces = getifaddrs().into_iter().flatten();
    let up = interfaces.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    for ip in up.filter_map(|interface| ip_of(&interface)) {
        // Loopback has many addresses, and a link-local address requires a zone, which a URL cannot carry.
        let same_version = ip.is_ipv4() == all.is_ipv4() || (all.is_ipv6() && accepts_ipv4());
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if same_version
            && !link_local
            && !ip.is_loopback()
            && !ips.contains(&ip)
            && ips.len() < MOST
        {
            ips.push(ip);
        }
    }
    let port = all.port();
    ips.into_iter()
        .map(|ip| ListenAddress::of_tcp(SocketAddr::new(ip, port)).with_tls(address.is_tls()))
        .collect()
}

/// Whether an IPv6 listener accepts IPv4 connections, too.
#[cfg(target_vendor = "apple")]
fn accepts_ipv4() -> bool {
    true
}

/// Whether an IPv6 listener accepts IPv4 connections, too.
#[cfg(not(target_vendor = "apple"))]
fn accepts_ipv4() -> bool {
    let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    only.is_ok_and(|only| only.trim() == "0")
}

fn ip_of(interface: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_replaced_by_addresses_that_work() {
        let tcp = |text: &str| ListenAddress::of_tcp(text.parse().expect("an address"));
        assert_eq!(reached_at(&tcp("127.0.0.1:7")), [tcp("127.0.0.1:7")]);
        for (all, first) in [("0.0.0.0:7", "127.0.0.1:7"), ("[::]:7", "[::1]:7")] {
            let reached = reached_at(&tcp(all));
            assert_eq!(reached[0], tcp(first));
            assert!(reached.len() <= MOST);
            let unspecified =
                |one: &ListenAddress| one.tcp().is_some_and(|one| one.ip().is_unspecified());
            assert!(!reached.iter().any(unspecified), "{reached:?}");
        }
        let unix = ListenAddress::of_unix("/x".into());
        assert_eq!(reached_at(&unix), std::slice::from_ref(&unix));
    }

    #[test]
    fn a_host_name_that_is_not_valid_is_left_out() {
        assert!(is_name("box") && is_name("box.example.com"));
        assert!(!is_name("") && !is_name("(none)") && !is_name("a b"));
        assert!(own_names().iter().all(|name| is_name(name)));
    }
}
