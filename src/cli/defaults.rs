//! Completes the settings once all flags are read: defaults and checks that concern several flags.

use std::env::VarError;
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::announce::{is_unspecified, own_names};
use super::command::{Command, ProgramArg};
use super::commands::demo_routes;
use super::flag::Flag;
#[cfg(feature = "mcp")]
use super::mcp_servers;
use super::settings::Settings;
use super::values::ListenValue;
use crate::server::RejectionHints;
use crate::sys::{granted_memory, keep_from_children};
use crate::upgrade::Passed;
use crate::{Config, Peers, ProtectedResource, Token, Tokens};

/// The number of the first socket that a service manager passes (sd_listen_fds(3)).
const FIRST_PASSED: i32 = 3;

/// The maximum number of sockets that a service manager may pass.
const MAX_PASSED: i32 = 1024;

/// A token with fewer characters may be guessed.
const SHORT_TOKEN: usize = 16;

/// The environment variable that may hold the token.
pub(super) const TOKEN_VARIABLE: &str = "OUTRIGGER_TOKEN";

impl Settings {
    /// Checks the flags against each other and fills in the defaults that depend on several flags.
    pub(super) fn complete(&mut self, command: &'static Command) -> Result<(), String> {
        if command.program == ProgramArg::Required && self.program.is_empty() {
            return Err("missing program after '--'".to_owned());
        }
        if let Some(name) = command.operand.filter(|_| self.operand.is_none()) {
            return Err(format!("missing {name}"));
        }
        if command.is_demo() {
            self.routes = demo_routes()?;
        }
        #[cfg(feature = "mcp")]
        if let Some(path) = self.mcp_servers.clone() {
            mcp_servers::add(self, &path).map_err(|error| format!("--mcp-servers: {error}"))?;
        }
        if command.serves_routes() && self.routes.is_empty() {
            return Err(if self.has("config") {
                "--config: the file has no \"routes\"".to_owned()
            } else {
                "missing --config FILE.json with the routes to serve, or --mcp-servers FILE"
                    .to_owned()
            });
        }
        for name in &self.given {
            let Some(flag) = Flag::find(name, command) else {
                continue;
            };
            if let Some(required) = flag.requires
                && !self.has(required)
            {
                return Err(format!("--{name} has no effect without --{required}"));
            }
            let mut excluded = flag.excludes.iter();
            if let Some((other, why)) = excluded.find(|(other, _)| self.has(other)) {
                return Err(format!("--{name} cannot be combined with --{other}: {why}"));
            }
        }
        for (one, own) in self.services(command) {
            (one.check)(own).map_err(|error| own.in_route(command, error))?;
        }
        if self.app.restart && self.program.is_empty() {
            return Err("--restart requires a program after '--'".to_owned());
        }
        #[cfg(feature = "client")]
        if command.is_client() {
            return self.complete_client();
        }
        if !self.has("idle-timeout") {
            let services = self.services(command).into_iter();
            self.server.timeouts.idle = services.filter_map(|(one, _)| one.idle_timeout).max();
        }
        #[cfg(feature = "deflate")]
        if self.has("deflate") {
            self.server.deflate = Some(self.deflate);
        }
        if !self.has("memory") {
            // The process may need twice as much, and its programs need memory, too.
            let granted = granted_memory();
            self.server.memory = granted.map(|granted| (granted / 4).max(Config::MIN_MEMORY));
        }
        if self.has("no-resume") {
            self.server.resume = None;
        }
        self.complete_listen()?;
        self.check_tls()?;
        self.complete_access(command)?;
        self.server.soft_outbound = self.server.soft_outbound.min(self.server.max_outbound);
        Ok(())
    }

    /// Fills in where to listen.
    pub(super) fn complete_listen(&mut self) -> Result<(), String> {
        let passed = passed_sockets()?;
        if self.listen.is_empty() && self.port_range.is_none() {
            let numbers = (0..passed).map(|at| FIRST_PASSED + at);
            self.listen
                .extend(numbers.map(|number| ListenValue::Descriptor(number, None)));
        }
        if self.listen.is_empty() {
            let default = Config::default().listen.into_iter();
            self.listen = default.map(ListenValue::Address).collect();
        }
        if let Some(range) = &self.port_range {
            for one in &mut self.listen {
                if let ListenValue::Address(listen) = one {
                    listen.set_ports(range);
                }
            }
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    fn check_tls(&self) -> Result<(), String> {
        self.tls.check()?;
        if !self.tls.is_on() && self.listen.iter().any(|listen| self.uses_tls(listen)) {
            let why = "--listen tls: requires --tls-cert and --tls-key, or --tls-self-signed";
            return Err(why.to_owned());
        }
        if self.tls.is_on() && !self.listen.iter().any(|listen| self.uses_tls(listen)) {
            return Err("the certificate is not used, because no address of --listen uses TLS; write for example --listen tls:unix:PATH".to_owned());
        }
        Ok(())
    }

    /// Whether no listener needs a token: each one either accepts client certificates instead, or is a unix socket whose mode
    /// limits who can connect. A proxy behind a socket passes on connections from anywhere, and the certificate of a trusted
    /// proxy does not identify its clients.
    #[cfg(feature = "tls")]
    fn needs_no_token(&self) -> bool {
        let has_certificates = self.tls.client_auth && self.server.trusted_proxies.is_empty();
        let is_guarded = |listen: &ListenValue| {
            (has_certificates && self.uses_tls(listen)) || self.is_guarded(listen)
        };
        self.listen.iter().all(is_guarded)
    }

    #[cfg(not(feature = "tls"))]
    fn check_tls(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether every listener is a unix socket whose mode limits who can connect. A proxy behind a socket passes on
    /// connections from anywhere.
    #[cfg(not(feature = "tls"))]
    fn needs_no_token(&self) -> bool {
        self.listen.iter().all(|listen| self.is_guarded(listen))
    }

    /// Whether it is a unix socket whose mode limits who can connect.
    fn is_guarded(&self, listen: &ListenValue) -> bool {
        let is_shared = self.server.trusted_proxies.contains(&Peers::Unix);
        self.server.proxies.is_empty() && !is_shared && is_unix(listen)
    }

    /// Fills in the token and the host names.
    fn complete_access(&mut self, command: &'static Command) -> Result<(), String> {
        self.server.access.hints = RejectionHints {
            host: " (--allow-host)",
            origin: " (--allow-origin)",
        };
        if self.listen.iter().any(is_unspecified) {
            self.server.access.hosts.extend(own_names());
        }
        if let Some(header) = &self.server.auth_header {
            let token_header = self.server.access.token_header.as_deref();
            let carries_token = |name: &str| name.eq_ignore_ascii_case(header);
            if carries_token("authorization") || token_header.is_some_and(carries_token) {
                return Err(format!(
                    "--auth-header {header}: this header carries the token; use another one for the user"
                ));
            }
        }
        if let Some(file) = &self.oauth_resource {
            self.server.access.protected_resource = Some(read_resource(file)?);
        }
        if self.has("no-auth") {
            if self.token_file.is_some() {
                return Err("--no-auth cannot be combined with --token-file".to_owned());
            }
            return Ok(());
        }
        let given = match (&self.token_file, std::env::var(TOKEN_VARIABLE)) {
            (Some(file), _) => Some(read_tokens(file)?),
            (None, Ok(text)) => Some(parse_tokens(&text, TOKEN_VARIABLE)?),
            (None, Err(VarError::NotPresent)) => None,
            (None, Err(VarError::NotUnicode(_))) => {
                return Err(format!("{TOKEN_VARIABLE} is not UTF-8"));
            }
        };
        self.server.access.tokens = match given {
            Some(tokens) => tokens,
            None if !self.runs_programs(command) && self.is_local() => Tokens::default(),
            None if self.needs_no_token() => Tokens::default(),
            None => {
                self.token_is_generated = true;
                Token::generate().into()
            }
        };
        Ok(())
    }

    /// Warnings about settings that are weaker than the user may expect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let access = &self.server.access;
        if self.has("no-auth") && !self.is_local() {
            warnings.push("--no-auth: every client that can reach the port can connect".to_owned());
        }
        if self.has("no-auth") && std::env::var_os(TOKEN_VARIABLE).is_some() {
            warnings.push(format!("--no-auth: {TOKEN_VARIABLE} is ignored"));
        }
        for credential in access.tokens.iter() {
            let length = credential.secret().token();
            let length = length.map(|token| token.reveal().len());
            if let Some(length) = length.filter(|length| *length < SHORT_TOKEN) {
                let name = credential.name();
                warnings.push(format!(
                    "the token '{name}' has only {length} characters and may be guessed; use {SHORT_TOKEN} or more random ones"
                ));
            }
        }
        warnings.extend(self.secret_files().into_iter().filter_map(|(flag, file)| {
            let found = std::fs::metadata(&file).ok().filter(Metadata::is_file)?;
            let mode = found.mode() & 0o777;
            let file = file.display();
            (mode & forbidden_mode(&found) != 0).then(|| {
                format!(
                    "{flag}: users other than the owner can read or write {file} (mode {mode:03o})"
                )
            })
        }));
        for peers in &self.server.trusted_proxies {
            if let Peers::Network(_, 0) = peers {
                let user = match &self.server.auth_header {
                    Some(_) => ", and be any user (--auth-header)",
                    None => "",
                };
                warnings.push(format!(
                    "--trusted-proxy {peers}: every client can name any address as its own{user}"
                ));
            }
        }
        let all = |list: &[String]| list.iter().any(|one| one == "*");
        if access.tokens.is_empty() && all(&access.origins) && all(&access.hosts) {
            warnings.push(
                "--allow-origin '*' and --allow-host '*' without a token: every web page can connect"
                    .to_owned(),
            );
        }
        warnings
    }

    /// The files that contain secrets, with their flags.
    fn secret_files(&self) -> Vec<(&'static str, PathBuf)> {
        let files = [
            ("--token-file", self.token_file.clone()),
            #[cfg(feature = "tls")]
            ("--tls-key", self.tls.key.clone()),
            #[cfg(all(feature = "client", feature = "tls"))]
            ("--tls-client-key", self.client.tls.key.clone()),
            #[cfg(feature = "tls")]
            ("--tls-dir", self.kept_certificate()),
        ];
        let files = files.into_iter();
        files
            .filter_map(|(flag, file)| Some((flag, file?)))
            .collect()
    }

    /// Whether clients can run code through one of the services.
    fn runs_programs(&self, command: &'static Command) -> bool {
        let mut services = self.services(command).into_iter();
        services.any(|(command, _)| command.runs_programs)
    }

    /// Whether only this machine can connect.
    fn is_local(&self) -> bool {
        let mut listen = self.listen.iter();
        self.server.proxies.is_empty()
            && self.server.trusted_proxies.is_empty()
            && listen.all(|listen| match listen {
                ListenValue::Address(listen) => listen.ip().is_none_or(|ip| ip.is_loopback()),
                // The address of an inherited socket is not known here.
                ListenValue::Descriptor(..) => false,
            })
    }
}

/// Whether it is a unix socket that the server creates.
fn is_unix(listen: &ListenValue) -> bool {
    matches!(listen, ListenValue::Address(listen) if listen.is_unix())
}

/// The mode bits that expose a file with a secret. A file of another user may be readable by its group, because the server may
/// read it as a member.
fn forbidden_mode(file: &Metadata) -> u32 {
    if file.uid() == geteuid().as_raw() {
        0o077
    } else {
        0o037
    }
}

fn read_tokens(file: &Path) -> Result<Tokens, String> {
    let name = format!("--token-file: {}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    parse_tokens(&text, &name)
}

fn read_resource(file: &Path) -> Result<ProtectedResource, String> {
    let named = |error: &dyn Display| format!("--oauth-resource: {}: {error}", file.display());
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| named(&error))?;
    // One byte more than the limit, so that a longer file is noticed and an endless one is not read.
    let mut limited = opened.take(ProtectedResource::MAX as u64 + 1);
    let read = limited.read_to_end(&mut bytes);
    read.map_err(|error| named(&error))?;
    bytes.try_into().map_err(|error| named(&error))
}

fn parse_tokens(text: &str, from: &str) -> Result<Tokens, String> {
    text.parse().map_err(|error| format!("{from}: {error}"))
}

/// The number of sockets that a service manager has passed to the server (sd_listen_fds(3)). Child processes do not inherit them.
fn passed_sockets() -> Result<i32, String> {
    let Ok(pid) = std::env::var("LISTEN_PID") else {
        return Ok(0);
    };
    if pid.parse() != Ok(Passed::server_pid()) {
        return Ok(0);
    }
    let text = std::env::var("LISTEN_FDS").unwrap_or_default();
    let count = text
        .parse()
        .ok()
        .filter(|count| (0..=MAX_PASSED).contains(count))
        .ok_or_else(|| format!("LISTEN_FDS: '{text}' is not a number of sockets"))?;
    keep_from_children(FIRST_PASSED..FIRST_PASSED + count);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Listen;

    #[test]
    fn loopback_and_unix_sockets_are_local() {
        let address = ListenValue::Address;
        for (listen, local) in [
            (address(Listen::from(([127, 0, 0, 1], 0))), true),
            (
                address(Listen::port_range(Ipv4Addr::LOCALHOST, 1..=2)),
                true,
            ),
            (address(Listen::unix("x")), true),
            (address(Listen::from(([0, 0, 0, 0], 0))), false),
            (ListenValue::Descriptor(3, None), false),
        ] {
            let mut settings = Settings::new();
            settings.listen = vec![listen];
            assert_eq!(settings.is_local(), local);
        }
    }
}
