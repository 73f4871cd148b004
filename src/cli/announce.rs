//! Tells others how to reach the server: the names and addresses of this machine, and the file of `--announce`, in which other
//! programs find them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde_json::{Map, Value, json};

use super::values::ListenValue;
use crate::sys::random_uuid;
use crate::{ListenAddress, Token};

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
pub(super) fn is_unspecified(listen: &ListenValue) -> bool {
    match listen {
        ListenValue::Address(listen) => listen.ip().is_some_and(|ip| ip.is_unspecified()),
        ListenValue::Descriptor(..) => false,
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
    let only = fs::read_to_string("/proc/sys/net/ipv6/bindv6only");
    only.is_ok_and(|only| only.trim() == "0")
}

fn ip_of(interface: &nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// The placeholder for the port in the name of the file.
const PORT: &str = "{port}";

/// The field that says which server has written the file, so that another one can remove it if this one was killed.
const WRITER: &str = "server";

/// The maximum number of files that are looked at for those of servers that were killed, and the length of each.
const MAX_LEFT: usize = 1000;
const MAX_LENGTH: u64 = 64 << 10;

/// What the file says.
#[derive(Debug)]
pub(super) struct AnnouncementContent<'a> {
    /// The process that the server belongs to; `None` for the server itself.
    pub(super) pid: Option<u32>,
    pub(super) address: &'a ListenAddress,
    pub(super) path: &'a str,
    pub(super) token: Option<&'a Token>,
    /// More fields.
    pub(super) extra: &'a Map<String, Value>,
}

/// The file. It is removed on drop, unless another file has taken its name.
#[derive(Debug)]
pub(super) struct Announcement {
    path: PathBuf,
    /// The open file. While it is open, its inode number identifies it.
    file: File,
}

/// A complete file that does not have its name yet.
struct Draft {
    path: String,
    unfinished: PathBuf,
    file: File,
}

impl Draft {
    fn write(name: &str, content: &AnnouncementContent<'_>) -> io::Result<Self> {
        let name = expand_home(name)?;
        let port = content.address.tcp().map(|address| address.port());
        let path = match port {
            Some(port) => name.replace(PORT, &port.to_string()),
            None if name.contains(PORT) => {
                let why = "--announce: a unix socket has no port for {port}";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            None => name.clone(),
        };
        let failed = |error| failure(&path, &error);
        if let Some(folder) = Path::new(&path).parent() {
            // The files have tokens.
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(folder).map_err(failed)?;
        }
        if Path::new(&path).is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        remove_dead(Path::new(&name));
        let text = content.to_json(port);
        // A reader must never see a part of the file, so it is complete before it gets its name.
        let unfinished = PathBuf::from(format!("{path}.{}", random_uuid().simple()));
        let mut out = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .map_err(failed)?;
        match out.write_all(format!("{text}\n").as_bytes()) {
            Ok(()) => Ok(Self {
                path,
                unfinished,
                file: out,
            }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(failed(error))
            }
        }
    }
}

fn failure(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("--announce: {path}: {error}"))
}

impl Announcement {
    /// Writes the file atomically, with access for the server's user only. `{port}` in `name` is replaced by the port, and `~/`
    /// at its beginning by the home directory. Creates its directory. Removes the files that servers of the same name have
    /// left there when they were killed.
    pub(super) fn write(name: &str, content: &AnnouncementContent<'_>) -> io::Result<Self> {
        let Draft {
            path,
            unfinished,
            file,
        } = Draft::write(name, content)?;
        match fs::rename(&unfinished, &path) {
            Ok(()) => Ok(Self {
                path: path.into(),
                file,
            }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(failure(&path, &error))
            }
        }
    }

    /// Fails if the file cannot be written.
    pub(super) fn check(name: &str, content: &AnnouncementContent<'_>) -> io::Result<()> {
        let draft = Draft::write(name, content)?;
        fs::remove_file(draft.unfinished)
    }
}

impl AnnouncementContent<'_> {
    fn to_json(&self, port: Option<u16>) -> Value {
        let mut content = json!({
            "pid": self.pid.unwrap_or_else(std::process::id),
            "port": port,
            "transport": if self.address.is_tls() { "wss" } else { "ws" },
            "url": self.address.url(self.path),
            "authToken": self.token.map(Token::reveal),
        });
        content[WRITER] = json!({"pid": std::process::id(), "host": host()});
        if let Value::Object(fields) = &mut content {
            fields.extend(self.extra.clone());
        }
        content
    }
}

/// Replaces `~/` at the beginning of a path, as a shell does. A program that starts the server without one cannot.
fn expand_home(name: &str) -> io::Result<String> {
    let Some(rest) = name.strip_prefix("~/") else {
        return Ok(name.to_owned());
    };
    match std::env::var("HOME") {
        Ok(home) if !home.is_empty() => Ok(format!("{}/{rest}", home.trim_end_matches('/'))),
        _ => {
            let why = format!("--announce: HOME is not set, so {name} cannot be found");
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
    }
}

/// The name of this machine or container. Process ids of others mean other processes.
fn host() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Removes the files for other ports that servers have left which were killed.
fn remove_dead(name: &Path) {
    let (Some(folder), Some(pattern)) = (name.parent(), name.file_name()) else {
        return;
    };
    let pattern = pattern.to_string_lossy();
    let Some((before, after)) = pattern.split_once(PORT) else {
        return;
    };
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let Ok(files) = fs::read_dir(folder) else {
        return;
    };
    for file in files.take(MAX_LEFT).flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        let port = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after));
        let is_ours = port.is_some_and(|port| port.parse::<u16>().is_ok());
        if is_ours && is_dead(&file.path()) {
            log::info!("--announce: removing {name}, whose server was killed");
            let _ = fs::remove_file(file.path());
        }
    }
}

/// Whether a server of this machine has written a file and does not run any more.
fn is_dead(path: &Path) -> bool {
    let read = || {
        let mut text = String::new();
        File::open(path)
            .ok()?
            .take(MAX_LENGTH)
            .read_to_string(&mut text)
            .ok()?;
        let content: Value = serde_json::from_str(&text).ok()?;
        let writer = content.get(WRITER)?;
        let pid = i32::try_from(writer["pid"].as_i64()?).ok()?;
        (writer["host"] == host().as_str()).then_some(Pid::from_raw(pid)?)
    };
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let writer = if is_file { read() } else { None };
    writer.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let same = |made: fs::Metadata, found: fs::Metadata| {
            (made.dev(), made.ino()) == (found.dev(), found.ino())
        };
        let found = fs::symlink_metadata(&self.path);
        let ours = self
            .file
            .metadata()
            .is_ok_and(|made| found.is_ok_and(|found| same(made, found)));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            log::debug!("removing {} failed: {error}", self.path.display());
        }
    }
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
