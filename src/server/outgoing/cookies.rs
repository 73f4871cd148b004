//! The cookies of a server, which later connections to it return (RFC 6265). They are kept in memory only.
//!
//! A [`Connect`](super::Connect) has one target, so a cookie that the target would never get back is dropped at once.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use super::target::Target;

/// The maximum number of cookies.
const MAX_COOKIES: usize = 32;

/// The maximum number of bytes of a cookie, its name and its value.
const MAX_COOKIE: usize = 512;

/// The maximum number of bytes of all cookies. Many servers refuse a field that is longer.
const MAX_ALL: usize = 4096;

/// A cookie with its name, as it is sent.
struct Cookie {
    name: String,
    value: String,
    /// When it ends. `None`: with the program.
    expires: Option<SystemTime>,
    is_secure: bool,
}

impl Cookie {
    fn size(&self) -> usize {
        self.name.len() + self.value.len()
    }
}

/// The cookies of the server of one target.
#[derive(Default)]
pub(crate) struct Cookies(Vec<Cookie>);

/// Shows no values, which may be secret.
impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|cookie| &cookie.name);
        f.debug_set().entries(names).finish()
    }
}

impl Cookies {
    /// Handles a Set-Cookie field in a response of the target (section 5.2).
    pub(crate) fn set(&mut self, field: &[u8], target: &Target, now: SystemTime) {
        let Some((mut cookie, attributes)) = parse(field) else {
            return;
        };
        let mut max_age = None;
        for attribute in attributes.split(';') {
            let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let value = value.trim();
            match &*name.trim().to_ascii_lowercase() {
                "expires" => {
                    let date = httpdate::parse_http_date(value).ok();
                    cookie.expires = date.or(cookie.expires);
                }
                "max-age" => max_age = seconds(value).or(max_age),
                "domain" if !is_domain_of(value, target.server_name()) => return,
                "path" if value.starts_with('/') && !is_path_of(value, target.path()) => return,
                "secure" => cookie.is_secure = true,
                _ => {}
            }
        }
        // A server without TLS cannot set cookies for one with it (RFC 6265bis).
        if cookie.is_secure && !target.is_tls() {
            return;
        }
        // Max-Age has precedence over Expires.
        if let Some(seconds) = max_age {
            cookie.expires = now.checked_add(Duration::from_secs(seconds));
        }
        self.0.retain(|other| other.name != cookie.name);
        if cookie.expires.is_none_or(|expires| expires > now) {
            self.0.push(cookie);
            let size = |cookies: &[Cookie]| cookies.iter().map(Cookie::size).sum::<usize>();
            while self.0.len() > MAX_COOKIES || size(&self.0) > MAX_ALL {
                self.0.remove(0);
            }
        }
    }

    /// The value of the Cookie field for a request to the target, if there are cookies.
    pub(crate) fn field(&self, target: &Target, now: SystemTime) -> Option<String> {
        let is_sent = |cookie: &&Cookie| {
            cookie.expires.is_none_or(|expires| expires > now)
                && (target.is_tls() || !cookie.is_secure)
        };
        let pairs = self.0.iter().filter(is_sent);
        let pairs: Vec<_> = pairs
            .map(|cookie| format!("{}={}", cookie.name, cookie.value))
            .collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }
}

/// The cookie of a Set-Cookie field, and its attributes. `None` if it cannot be sent back.
fn parse(field: &[u8]) -> Option<(Cookie, &str)> {
    let field = std::str::from_utf8(field).ok()?;
    let (pair, attributes) = field.split_once(';').unwrap_or((field, ""));
    let (name, value) = pair.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    let is_text = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if name.is_empty() || !is_text(name) || !is_text(value) {
        return None;
    }
    let cookie = Cookie {
        name: name.to_owned(),
        value: value.to_owned(),
        expires: None,
        is_secure: false,
    };
    (cookie.size() <= MAX_COOKIE).then_some((cookie, attributes))
}

/// Parses the value of Max-Age (section 5.2.2). A negative number counts as 0, and one that is too large as the largest.
fn seconds(value: &str) -> Option<u64> {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_negative = digits.len() < value.len();
    Some(if is_negative {
        0
    } else {
        digits.parse().unwrap_or(u64::MAX)
    })
}

/// Whether a host belongs to the domain of a cookie (section 5.1.3).
fn is_domain_of(domain: &str, host: &str) -> bool {
    let domain = domain
        .strip_prefix('.')
        .unwrap_or(domain)
        .to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let is_below = || {
        let rest = host.strip_suffix(&domain);
        rest.is_some_and(|rest| rest.ends_with('.')) && host.parse::<IpAddr>().is_err()
    };
    // An empty domain counts as none.
    domain.is_empty() || host == domain || is_below()
}

/// Whether a path is that of a cookie, or below it (section 5.1.4).
fn is_path_of(path: &str, requested: &str) -> bool {
    let rest = requested.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || path.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Target {
        url.parse().expect("a URL")
    }

    /// The Cookie field that is sent `after` seconds after the server has set these cookies.
    fn sent(url: &str, fields: &[&str], after: u64) -> Option<String> {
        let (mut cookies, target) = (Cookies::default(), target(url));
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for field in fields {
            cookies.set(field.as_bytes(), &target, now);
        }
        cookies.field(&target, now + Duration::from_secs(after))
    }

    #[test]
    fn a_cookie_goes_back_to_where_it_belongs() {
        let url = "ws://a.example.org/x/acp";
        for (field, expected) in [
            ("node=one", Some("node=one")),
            (
                " node = one ; HttpOnly; SameSite=Lax; Path=/",
                Some("node=one"),
            ),
            ("node=\"a b\"; unknown=1; =; ;", Some("node=\"a b\"")),
            ("node=a=b", Some("node=a=b")),
            ("node=", Some("node=")),
            ("node", None),
            ("=one", None),
            ("node=\u{1}", None),
            ("node=\u{e9}", None),
            ("n=1; Domain=example.org", Some("n=1")),
            ("n=1; Domain=.Example.ORG", Some("n=1")),
            ("n=1; Domain=a.example.org", Some("n=1")),
            ("n=1; Domain=", Some("n=1")),
            ("n=1; Domain=b.example.org", None),
            ("n=1; Domain=le.org", None),
            ("n=1; Domain=x.a.example.org", None),
            ("n=1; Path=/x", Some("n=1")),
            ("n=1; Path=/x/", Some("n=1")),
            ("n=1; Path=/x/acp", Some("n=1")),
            ("n=1; Path=relative", Some("n=1")),
            ("n=1; Path=/x/ac", None),
            ("n=1; Path=/y", None),
            ("n=1; Secure", None),
            ("n=1; Max-Age=0", None),
            ("n=1; Max-Age=-5", None),
            ("n=1; Max-Age=x", Some("n=1")),
            ("n=1; Max-Age=99999999999999999999", Some("n=1")),
            ("n=1; Expires=Wed, 21 Oct 2015 07:28:00 GMT", None),
            (
                "n=1; Expires=Wed, 21 Oct 2015 07:28:00 GMT; Max-Age=60",
                Some("n=1"),
            ),
            (
                "n=1; Expires=Fri, 01 Jan 2100 00:00:00 GMT; Max-Age=0",
                None,
            ),
            ("n=1; Expires=tomorrow", Some("n=1")),
        ] {
            assert_eq!(sent(url, &[field], 0).as_deref(), expected, "{field}");
        }
        assert_eq!(
            sent("wss://h/", &["n=1; Secure"], 0).as_deref(),
            Some("n=1")
        );
        assert_eq!(sent("ws://10.0.0.1/", &["n=1; Domain=0.0.1"], 0), None);
        assert_eq!(
            sent("ws+unix:/run/s:/acp", &["n=1"], 0).as_deref(),
            Some("n=1")
        );
    }

    #[test]
    fn cookies_are_replaced_expire_and_are_limited() {
        let url = "ws://h/acp";
        let both = sent(url, &["a=1", "b=2", "a=3"], 0);
        assert_eq!(both.as_deref(), Some("b=2; a=3"));
        assert_eq!(sent(url, &["a=1", "a=; Max-Age=0"], 0), None);
        let short = ["a=1; Max-Age=60", "b=2"];
        assert_eq!(sent(url, &short, 59).as_deref(), Some("a=1; b=2"));
        assert_eq!(sent(url, &short, 60).as_deref(), Some("b=2"));
        assert_eq!(sent(url, &[&format!("a={}", "x".repeat(512))], 0), None);
        let many: Vec<_> = (0..320).map(|number| format!("c{number}=1")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let kept = sent(url, &many, 0).expect("cookies");
        assert_eq!(kept.split("; ").count(), 32);
        assert!(kept.ends_with("c319=1"));
        let long: Vec<_> = (0..30)
            .map(|number| format!("c{number}={}", "x".repeat(500)))
            .collect();
        let long: Vec<_> = long.iter().map(String::as_str).collect();
        let kept = sent(url, &long, 0).expect("cookies");
        assert_eq!(kept.split("; ").count(), 8);
    }
}
