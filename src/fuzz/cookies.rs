//! Fuzzes the cookies that servers set, against a naive implementation of RFC 6265.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::Target;
use crate::server::Cookies;

const TARGETS: [&str; 5] = [
    "ws://a.example.org/x/acp",
    "wss://a.example.org/x/acp",
    "ws://10.0.0.1/",
    "ws+unix:/run/s:/acp",
    "wss://h/acp/",
];
const MAX_COOKIES: usize = 32;
const MAX_COOKIE: usize = 512;
const MAX_ALL: usize = 4096;

struct Cookie {
    name: String,
    value: String,
    ends: Option<SystemTime>,
}

impl Cookie {
    fn size(&self) -> usize {
        self.name.len() + self.value.len()
    }
}

/// Sets cookies from any Set-Cookie fields, one a line. The first byte selects the target, and the first byte of each line the time
/// that passes before it, in seconds.
pub fn cookies(data: &[u8]) {
    let Some((choice, lines)) = data.split_first() else {
        return;
    };
    let url = TARGETS[usize::from(*choice) % TARGETS.len()];
    let target: Target = url.parse().expect("a URL");
    let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let mut cookies = Cookies::default();
    let mut jar: Vec<Cookie> = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some((seconds, field)) = line.split_first() else {
            continue;
        };
        now += Duration::from_secs(u64::from(*seconds));
        cookies.set(field, &target, now);
        if let Some(cookie) = parse(field, &target, now) {
            jar.retain(|other| other.name != cookie.name);
            if cookie.ends.is_none_or(|end| end > now) {
                jar.push(cookie);
            }
            while jar.len() > MAX_COOKIES || jar.iter().map(Cookie::size).sum::<usize>() > MAX_ALL {
                jar.remove(0);
            }
        }
        check(&cookies, &jar, &target, now);
    }
    check(&cookies, &jar, &target, now + Duration::from_secs(1 << 40));
}

/// The Cookie field has what the jar holds, and nothing that could end the field.
fn check(cookies: &Cookies, jar: &[Cookie], target: &Target, now: SystemTime) {
    let field = cookies.field(target, now);
    let alive = jar
        .iter()
        .filter(|cookie| cookie.ends.is_none_or(|end| end > now));
    let expected: Vec<String> = alive
        .map(|cookie| format!("{}={}", cookie.name, cookie.value))
        .collect();
    assert_eq!(field.clone().unwrap_or_default(), expected.join("; "));
    assert_eq!(field.is_some(), !expected.is_empty());
    let field = field.unwrap_or_default();
    assert!(field.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    assert!(field.matches(';').count() < MAX_COOKIES);
}

/// The cookie of a field, unless the target must not get it.
fn parse(field: &[u8], target: &Target, now: SystemTime) -> Option<Cookie> {
    let text = std::str::from_utf8(field).ok()?;
    let mut parts = text.split(';').map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (name.trim(), value.trim())
    });
    let (name, value) = parts.next()?;
    let is_pair = text.split(';').next()?.contains('=') && !name.is_empty();
    let is_printable = |char: char| char == ' ' || char.is_ascii_graphic();
    if !is_pair || !name.chars().chain(value.chars()).all(is_printable) {
        return None;
    }
    let attributes: Vec<(String, &str)> = parts
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    let all = |name: &'static str| {
        let same = attributes.iter().filter(move |pair| pair.0 == name);
        same.map(|pair| pair.1)
    };
    let is_secure = all("secure").next().is_some();
    let is_for_target = all("domain").all(|domain| is_domain_of(domain, target.server_name()))
        && all("path").all(|path| is_path_of(path, target.path()))
        && (!is_secure || target.is_tls());
    let max_age = all("max-age").filter_map(seconds).next_back();
    let mut expires = all("expires").filter_map(|date| httpdate::parse_http_date(date).ok());
    let cookie = Cookie {
        name: name.to_owned(),
        value: value.to_owned(),
        ends: match max_age {
            Some(seconds) => now.checked_add(Duration::from_secs(seconds)),
            None => expires.next_back(),
        },
    };
    (is_for_target && cookie.size() <= MAX_COOKIE).then_some(cookie)
}

fn seconds(value: &str) -> Option<u64> {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|char| char.is_ascii_digit());
    match value.strip_prefix('-') {
        Some(digits) => is_number(digits).then_some(0),
        None => is_number(value).then(|| value.parse().unwrap_or(u64::MAX)),
    }
}

fn is_domain_of(domain: &str, host: &str) -> bool {
    let domain = domain.strip_prefix('.').unwrap_or(domain);
    let domain = domain.to_ascii_lowercase();
    let is_address = host.parse::<IpAddr>().is_ok();
    domain.is_empty() || host == domain || !is_address && host.ends_with(&format!(".{domain}"))
}

fn is_path_of(path: &str, requested: &str) -> bool {
    let folder = format!("{}/", path.trim_end_matches('/'));
    match path.as_bytes() {
        [b'/', .., b'/'] | b"/" => requested.starts_with(path),
        [b'/', ..] => requested == path || requested.starts_with(&folder),
        // Not a path, so the cookie has none.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn generated_cookies_go_back_as_the_rfc_says() {
        let parts = [
            "node=one",
            " a = b ",
            "n=",
            "=",
            ";",
            "; ",
            "; Path=/x",
            "; path=/x/",
            ";Path=/x/ac",
            "; Domain=.Example.ORG",
            "; domain=le.org",
            "; Domain=0.0.1",
            "; Secure",
            "; Max-Age=60",
            "; max-age=-5",
            "; Max-Age=99999999999999999999",
            "; Expires=Fri, 01 Jan 2100 00:00:00 GMT",
            "; Expires=Wed, 21 Oct 2015 07:28:00 GMT",
            "; HttpOnly",
            "\n\0",
            "\n<",
            "\u{e9}",
            "\r",
            "\0",
        ];
        let mut random = Random::new(6265);
        for round in 0..rounds(20_000) {
            let mut data = vec![round as u8, 0];
            for _ in 0..random.below(16) {
                data.extend(parts[random.below(parts.len())].bytes());
                if random.below(30) == 0 {
                    data.extend([b'x'].repeat(random.below(1000)));
                }
            }
            cookies(&data);
        }
        let many: String = (0..200).map(|at| format!("\n\0c{at}=1")).collect();
        cookies(format!("\0{many}").as_bytes());
        let x = "x".repeat(480);
        let long: String = (0..12).map(|at| format!("\n\0c{at}={x}")).collect();
        cookies(format!("\0{long}").as_bytes());
    }
}
