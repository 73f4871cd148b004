//! The HTTP proxies that outgoing connections use.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::target::{Place, Target};

/// The HTTP proxies that outgoing connections use. By default, there are none.
///
/// Connections to unix sockets never use a proxy.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// The proxy for `wss` URLs.
    secure: Option<Proxy>,
    /// The proxy for `ws` URLs.
    plain: Option<Proxy>,
    /// Hosts that are connected to directly.
    except: Vec<String>,
}

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// The value of Proxy-Authorization.
    pub(super) credentials: Option<Secret>,
}

/// A string that debug output hides.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Proxies {
    /// Uses the HTTP proxy with this URL, `http://[USER:PASSWORD@]HOST[:PORT]`, for all hosts but this one. Returns `None` if
    /// it is not valid.
    #[must_use]
    pub fn through(url: &str) -> Option<Self> {
        let proxy = Proxy::parse(url)?;
        Some(Self {
            secure: Some(proxy.clone()),
            plain: Some(proxy),
            except: Vec::new(),
        })
    }

    /// Reads the proxies from the environment: `HTTPS_PROXY` for `wss` URLs, `ALL_PROXY` for all, and `NO_PROXY` with the
    /// exceptions, each also in lower case. For `ws` URLs, `http_proxy` counts in lower case only, because a CGI program
    /// gets `HTTP_PROXY` from a request field.
    ///
    /// A variable that does not matter for `target` is ignored.
    ///
    /// # Errors
    ///
    /// The name of the variable whose value is not the URL of an HTTP proxy.
    pub fn from_env(target: &Target) -> Result<Self, &'static str> {
        Self::from_variables(target, |name| std::env::var(name).ok())
    }

    pub(crate) fn from_variables(
        target: &Target,
        read: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, &'static str> {
        let find = |names: &[&'static str]| {
            let mut set = names.iter().filter_map(|name| {
                let value = read(name)?;
                (!value.trim().is_empty()).then_some((*name, value))
            });
            set.next()
        };
        let proxy = |names: &[&'static str]| match find(names) {
            Some((name, value)) => Proxy::parse(value.trim()).map(Some).ok_or(name),
            None => Ok(None),
        };
        let except = find(&["NO_PROXY", "no_proxy"]).map(|(_, value)| value);
        let except = except.unwrap_or_default();
        let except = except.split([',', ' ']).filter(|one| !one.is_empty());
        let mut proxies = Self {
            except: except.map(str::to_ascii_lowercase).collect(),
            ..Self::default()
        };
        if proxies.is_direct(target) {
            return Ok(proxies);
        }
        if target.is_tls() {
            proxies.secure = proxy(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])?;
        } else {
            proxies.plain = proxy(&["http_proxy", "ALL_PROXY", "all_proxy"])?;
        }
        Ok(proxies)
    }

    /// Whether a target is connected to directly, whatever the proxies are.
    fn is_direct(&self, target: &Target) -> bool {
        match &target.place {
            Place::Tcp { host, port } => self.excludes(host, *port),
            Place::Unix(_) => true,
        }
    }

    /// The proxy for a target. `None` if it is connected to directly.
    pub(super) fn find(&self, target: &Target) -> Option<&Proxy> {
        let proxy = if target.is_tls() {
            self.secure.as_ref()
        } else {
            self.plain.as_ref()
        };
        proxy.filter(|_| !self.is_direct(target))
    }

    /// Whether a host is connected to directly. Loopback addresses always are.
    fn excludes(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        let ip: Option<IpAddr> = host.parse().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return true;
        }
        self.except.iter().any(|rule| {
            if rule == "*" {
                return true;
            }
            let rule = match rule.rsplit_once(':') {
                Some((name, digits)) if !name.contains(':') => {
                    if digits.parse() != Ok(port) {
                        return false;
                    }
                    name
                }
                _ => rule,
            };
            if let (Some(ip), Some((net, bits))) = (ip, rule.split_once('/')) {
                return net.parse().is_ok_and(|net| is_in(ip, net, bits));
            }
            let name = rule.trim_start_matches('*').trim_start_matches('.');
            let below = host
                .strip_suffix(name)
                .is_some_and(|rest| rest.ends_with('.'));
            host == name || (ip.is_none() && below)
        })
    }
}

/// Whether an address is in a network of `bits` bits.
fn is_in(ip: IpAddr, net: IpAddr, bits: &str) -> bool {
    let Ok(bits) = bits.parse::<u32>() else {
        return false;
    };
    match (ip, net) {
        (IpAddr::V4(ip), IpAddr::V4(net)) if bits <= 32 => {
            let shift = 32 - bits;
            (u64::from(ip.to_bits()) >> shift) == (u64::from(net.to_bits()) >> shift)
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) if bits <= 128 => {
            let differ = ip.to_bits() ^ net.to_bits();
            bits == 0 || differ >> (128 - bits) == 0
        }
        _ => false,
    }
}

impl Proxy {
    /// Reads `http://USER:PASSWORD@HOST:PORT/`. The scheme, the user and the port may be omitted.
    fn parse(text: &str) -> Option<Self> {
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return None,
            None => text,
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(credentials), authority),
            None => (None, rest),
        };
        // The parser of URLs checks the host and the port.
        let target: Target = format!("ws://{authority}").parse().ok()?;
        let has_port = authority
            .rsplit(']')
            .next()
            .is_some_and(|end| end.contains(':'));
        let Place::Tcp { host, port } = target.place.clone() else {
            return None;
        };
        (target.path() == "/").then(|| Self {
            host,
            port: if has_port { port } else { 3128 },
            credentials: credentials
                .map(|pair| Secret(format!("Basic {}", BASE64_STANDARD.encode(pair)))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(url: &str, variables: &[(&str, &str)]) -> Result<Proxies, &'static str> {
        let target = url.parse().expect(url);
        Proxies::from_variables(&target, |name| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn used(variables: &[(&str, &str)], url: &str) -> Option<String> {
        let proxies = proxies(url, variables).expect("valid");
        let target: Target = url.parse().expect(url);
        let found = proxies.find(&target);
        found.map(|proxy| format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn a_proxy_is_chosen_by_scheme_and_exceptions() {
        let all = [
            ("HTTPS_PROXY", "http://u:p@proxy:8080/"),
            ("http_proxy", "other"),
            (
                "NO_PROXY",
                "direct.example, .below.example,10.0.0.0/8,[::9],x.example:81",
            ),
        ];
        let secure = if cfg!(feature = "tls") { "wss" } else { "ws" };
        let proxy = if cfg!(feature = "tls") {
            "proxy:8080"
        } else {
            "other:3128"
        };
        assert_eq!(
            used(&all, &format!("{secure}://example.com/")),
            Some(proxy.to_owned())
        );
        assert_eq!(
            used(&all, "ws://example.com/"),
            Some("other:3128".to_owned())
        );
        for direct in [
            "ws://localhost/",
            "ws://127.0.0.1/",
            "ws://[::1]/",
            "ws://direct.example/",
            "ws://a.direct.example/",
            "ws://below.example/",
            "ws://a.below.example/",
            "ws://10.1.2.3/",
            "ws://x.example:81/",
            "ws+unix:x.sock:/",
        ] {
            assert_eq!(used(&all, direct), None, "{direct}");
        }
        for indirect in [
            "ws://x.example/",
            "ws://notdirect.example/",
            "ws://11.0.0.1/",
        ] {
            assert!(used(&all, indirect).is_some(), "{indirect}");
        }
        assert_eq!(used(&[("HTTP_PROXY", "evil")], "ws://h/"), None);
        assert_eq!(
            used(&[("all_proxy", "a:1"), ("no_proxy", "*")], "ws://h/"),
            None
        );
    }

    #[test]
    fn credentials_are_sent_and_not_shown() {
        let variables = [("http_proxy", "http://user:pass@h:1")];
        let proxies = proxies("ws://x/", &variables).expect("valid");
        let plain = proxies.plain.clone().expect("a proxy");
        assert_eq!(
            plain.credentials,
            Some(Secret("Basic dXNlcjpwYXNz".to_owned()))
        );
        assert!(!format!("{proxies:?}").contains("dXNl"));
    }

    #[test]
    fn other_kinds_of_proxies_are_errors_where_they_would_be_used() {
        for wrong in ["socks5://h:1", "https://h:1", "http://h:x", "http://h/path"] {
            let variables = [("all_proxy", wrong), ("NO_PROXY", "direct.example")];
            let error = |url| proxies(url, &variables).err();
            assert_eq!(error("ws://example.com/"), Some("all_proxy"), "{wrong}");
            for direct in ["ws://127.0.0.1/", "ws://direct.example/", "ws+unix:x:/"] {
                assert_eq!(error(direct), None, "{direct}");
            }
        }
    }
}
