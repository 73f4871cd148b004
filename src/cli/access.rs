//! Where to listen and whom to let in, as far as more than one option says it.

use std::env::VarError;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use outrigger::{Listen, Token, keep_from_children};
use rustix::process::geteuid;

use super::names::{is_everywhere, own_names};
use super::{Command, Settings};

/// The first descriptor of a socket that a service manager hands over.
const FIRST_HANDED_OVER: i32 = 3;

/// More than anyone hands over.
const MOST_HANDED_OVER: i32 = 1024;

/// A token with fewer characters may be guessed.
const SHORT: usize = 16;

/// The variable that may hold the token.
const TOKEN_VARIABLE: &str = "OUTRIGGER_TOKEN";

impl Settings {
    /// Puts in what was not said about where to listen.
    pub(super) fn complete_listen(&mut self) -> Result<(), String> {
        let handed_over = handed_over()?;
        let listen = &mut self.server.listen;
        if listen.is_empty() && self.port_range.is_none() {
            listen.extend((0..handed_over).map(|at| Listen::Inherited(FIRST_HANDED_OVER + at)));
        }
        if listen.is_empty() {
            *listen = outrigger::Config::default().listen;
        }
        if let Some(range) = &self.port_range {
            for one in listen.iter_mut() {
                if let Listen::Tcp(address) = one {
                    *one = Listen::PortRange(address.ip(), range.clone());
                }
            }
        }
        if self.announce.is_none() && !self.announce_extra.is_empty() {
            return Err("--announce-extra needs --announce".to_owned());
        }
        Ok(())
    }

    /// Settings that let in more than the user may expect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let access = &self.server.access;
        if self.no_auth && !self.is_local() {
            warnings.push("--no-auth: anyone who can reach the port can connect".to_owned());
        }
        if self.no_auth && std::env::var_os(TOKEN_VARIABLE).is_some() {
            warnings.push(format!("--no-auth: {TOKEN_VARIABLE} is ignored"));
        }
        let length = access.token.as_ref().map(|token| token.reveal().len());
        if let Some(length) = length.filter(|length| *length < SHORT) {
            warnings.push(format!(
                "the token has only {length} characters and may be guessed; use {SHORT} or more random ones"
            ));
        }
        if let Some(file) = &self.token_file
            && let Ok(found) = std::fs::metadata(file)
            && found.is_file()
            && found.mode() & laxness(&found) != 0
        {
            let mode = found.mode() & 0o777;
            let file = file.display();
            warnings.push(format!(
                "--token-file: users other than the owner can read or write {file} (mode {mode:03o})"
            ));
        }
        let all = |list: &[String]| list.iter().any(|one| one == "*");
        if access.token.is_none() && all(&access.origins) && all(&access.hosts) {
            warnings.push(
                "--allow-origin '*' and --allow-host '*' without a token: every web page is let in"
                    .to_owned(),
            );
        }
        warnings
    }

    /// Puts in what was not said about the token.
    pub(super) fn complete_access(&mut self, command: Command) -> Result<(), String> {
        if self.server.listen.iter().any(is_everywhere) {
            self.server.access.hosts.extend(own_names());
        }
        if self.no_auth {
            if self.token_file.is_some() {
                return Err("--no-auth and --token-file exclude each other".to_owned());
            }
            return Ok(());
        }
        let given = match (&self.token_file, std::env::var(TOKEN_VARIABLE)) {
            (Some(file), _) => Some(read_token(file)?),
            (None, Ok(text)) => Some(parse_token(&text, TOKEN_VARIABLE)?),
            (None, Err(VarError::NotPresent)) => None,
            (None, Err(VarError::NotUnicode(_))) => {
                return Err(format!("{TOKEN_VARIABLE} is not UTF-8"));
            }
        };
        self.server.access.token = match given {
            Some(token) => Some(token),
            None if self.only_echoes(command) && self.is_local() => None,
            None if self.is_unix_only() => None,
            None => {
                self.fresh_token = true;
                Some(Token::generate())
            }
        };
        Ok(())
    }

    /// Whether nothing can be reached that runs a program.
    fn only_echoes(&self, command: Command) -> bool {
        let mut services = self.services(command).into_iter();
        services.all(|(command, _)| command == Command::Echo)
    }

    /// Whether the mode of a file says who can connect, everywhere.
    fn is_unix_only(&self) -> bool {
        let mut listen = self.server.listen.iter();
        // Behind a proxy is anyone.
        self.server.proxies.is_empty() && listen.all(|listen| matches!(listen, Listen::Unix(_)))
    }

    /// Whether only this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        let mut listen = self.server.listen.iter();
        self.server.proxies.is_empty()
            && listen.all(|listen| match listen {
                Listen::Tcp(address) => address.ip().is_loopback(),
                Listen::PortRange(ip, _) => ip.is_loopback(),
                Listen::Unix(_) => true,
                // Nobody says where it leads.
                Listen::Inherited(_) => false,
            })
    }
}

/// The mode bits that expose a secret in a file. A file of another user may be group-readable, because we may read it
/// through its group.
fn laxness(file: &Metadata) -> u32 {
    if file.uid() == geteuid().as_raw() {
        0o077
    } else {
        0o037
    }
}

fn read_token(file: &Path) -> Result<Token, String> {
    let name = format!("--token-file: {}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    parse_token(&text, &name)
}

fn parse_token(text: &str, from: &str) -> Result<Token, String> {
    Token::new(text.trim())
        .ok_or_else(|| format!("{from}: a token is one word of visible ASCII characters"))
}

/// How many sockets a service manager has handed over (sd_listen_fds(3)). Programs do not get them.
fn handed_over() -> Result<i32, String> {
    let Ok(pid) = std::env::var("LISTEN_PID") else {
        return Ok(0);
    };
    if pid.parse() != Ok(std::process::id()) {
        return Ok(0);
    }
    let text = std::env::var("LISTEN_FDS").unwrap_or_default();
    let count = text
        .parse()
        .ok()
        .filter(|count| (0..=MOST_HANDED_OVER).contains(count))
        .ok_or_else(|| format!("LISTEN_FDS: '{text}' is not a number of sockets"))?;
    keep_from_children(FIRST_HANDED_OVER..FIRST_HANDED_OVER + count);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn only_what_is_reached_from_here_is_local() {
        for (listen, local) in [
            (Listen::from(([127, 0, 0, 1], 0)), true),
            (
                Listen::PortRange(IpAddr::V4(Ipv4Addr::LOCALHOST), 1..=2),
                true,
            ),
            (Listen::Unix("x".into()), true),
            (Listen::from(([0, 0, 0, 0], 0)), false),
            (Listen::Inherited(3), false),
        ] {
            let mut settings = Settings::new();
            settings.server.listen = vec![listen];
            assert_eq!(settings.is_local(), local);
        }
    }
}
