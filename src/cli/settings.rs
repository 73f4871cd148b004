//! The settings that flags and the configuration file fill in.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::{Map, Value};

#[cfg(feature = "client")]
use super::client_flags::ClientSettings;
use super::command::Command;
use super::flag::Flag;
use super::logging::LogFormat;
use super::passed_on::PassedOn;
use super::programs;
use super::values::ListenValue;
#[cfg(feature = "deflate")]
use crate::protocol::deflate::DeflateConfig;
use crate::service::{
    AgentConfig, AppConfig, Endpoint, PipeConfig, ProcessesConfig, RecordConfig, RestartLimit,
    TerminalConfig,
};
#[cfg(feature = "mcp")]
use crate::service::{McpConfig, ProgramPlace};
use crate::{Config, Scope, Token};

/// The settings of a command, or of one route. Flags fill in the settings of the services themselves, so each default stands in
/// one place.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) server: Config,
    /// The names of the flags that were given, on the command line or in the configuration file.
    pub(super) given: BTreeSet<&'static str>,
    /// Where to listen. It replaces `server.listen`.
    pub(crate) listen: Vec<ListenValue>,
    pub(crate) port_range: Option<RangeInclusive<u16>>,
    pub(crate) announce: AnnounceFlags,
    #[cfg(feature = "tls")]
    pub(crate) tls: TlsFlags,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) oauth_resource: Option<PathBuf>,
    /// Whether the server generated its token and therefore prints it.
    pub(crate) token_is_generated: bool,
    /// What the previous program has passed on in an upgrade.
    pub(crate) passed_on: PassedOn,
    /// The program that replaces this one in an upgrade, if it is not at the path of this one.
    pub(crate) upgrade_program: Option<PathBuf>,
    /// How to compress messages, if `--deflate` is given.
    #[cfg(feature = "deflate")]
    pub(crate) deflate: DeflateConfig,
    pub(crate) path: Option<Endpoint>,
    /// The routes of a command that serves several, each with settings of its own.
    pub(crate) routes: Vec<(&'static Command, Self)>,
    /// The file with MCP servers that are routes, too.
    #[cfg(feature = "mcp")]
    pub(crate) mcp_servers: Option<String>,
    /// What to log once the log is set up.
    pub(crate) notes: Vec<String>,
    /// The program to run and its arguments.
    pub(crate) program: Vec<String>,
    /// The argument of a command that requires one besides flags.
    pub(crate) operand: Option<String>,
    /// The scope of a new token.
    pub(crate) token_scope: Option<Scope>,
    /// The settings of a command that connects to a server.
    #[cfg(feature = "client")]
    pub(crate) client: ClientSettings,
    pub(crate) log_level: Option<log::LevelFilter>,
    pub(crate) log_format: LogFormat,
    pub(crate) agent: AgentConfig,
    pub(crate) app: AppConfig,
    #[cfg(feature = "mcp")]
    pub(crate) mcp: McpConfig,
    pub(crate) pipe: PipeConfig,
    pub(crate) processes: ProcessesConfig,
    pub(crate) terminal: TerminalConfig,
    /// How terminals are recorded, if `--record` is given.
    pub(crate) record: RecordConfig,
}

/// The values of `--announce` and `--announce-extra`.
#[derive(Debug, Default)]
pub(crate) struct AnnounceFlags {
    pub(crate) file: Option<String>,
    pub(crate) extra: Map<String, Value>,
}

/// The values of the flags for TLS.
#[cfg(feature = "tls")]
#[derive(Debug, Default)]
pub(crate) struct TlsFlags {
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) self_signed: bool,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
    pub(crate) client_auth: bool,
}

#[cfg(feature = "tls")]
impl TlsFlags {
    /// Whether there is a certificate.
    pub(crate) fn is_on(&self) -> bool {
        self.cert.is_some() || self.self_signed
    }

    /// Checks the flags against each other.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.self_signed && self.cert.is_some() {
            return Err("--tls-self-signed cannot be combined with --tls-cert".to_owned());
        }
        if self.client_ca.is_some() && !self.is_on() {
            return Err(
                "--tls-client-ca has no effect without --tls-cert or --tls-self-signed".to_owned(),
            );
        }
        Ok(())
    }
}

impl Settings {
    /// The fingerprint of the self-signed certificate, if the server has one.
    pub(super) fn self_signed_fingerprint(&self) -> Option<String> {
        #[cfg(feature = "tls")]
        if self.tls.self_signed {
            let tls = self.server.tls.as_ref();
            return tls.map(|tls| tls.identity().fingerprint());
        }
        None
    }

    pub(super) fn new() -> Self {
        // The path and the program are filled in when the service is built.
        let endpoint = || Endpoint::from_str("/...").expect("it is a path");
        let program = Vec::<String>::new;
        Self {
            server: Config::default(),
            given: BTreeSet::new(),
            listen: Vec::new(),
            port_range: None,
            announce: AnnounceFlags::default(),
            #[cfg(feature = "tls")]
            tls: TlsFlags::default(),
            token_file: None,
            oauth_resource: None,
            token_is_generated: false,
            passed_on: PassedOn::default(),
            upgrade_program: None,
            #[cfg(feature = "deflate")]
            deflate: DeflateConfig::default(),
            path: None,
            routes: Vec::new(),
            #[cfg(feature = "mcp")]
            mcp_servers: None,
            notes: Vec::new(),
            program: program(),
            operand: None,
            token_scope: None,
            #[cfg(feature = "client")]
            client: ClientSettings::default(),
            log_level: None,
            log_format: LogFormat::Text,
            agent: AgentConfig::new(endpoint(), program()),
            app: AppConfig::new(endpoint(), program()),
            #[cfg(feature = "mcp")]
            mcp: McpConfig::new(endpoint(), program()),
            pipe: PipeConfig::new(endpoint(), program()),
            processes: ProcessesConfig::new(endpoint()),
            terminal: TerminalConfig::new(endpoint(), program()),
            record: RecordConfig::new(""),
        }
    }

    /// How terminals are recorded, if they are.
    pub(super) fn recording(&self) -> Option<RecordConfig> {
        self.has("record").then(|| self.record.clone())
    }

    /// Records that a flag was given.
    pub(super) fn record(&mut self, flag: &Flag) {
        self.given.insert(flag.name);
    }

    /// Whether the flag of this name was given.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.given.contains(flag)
    }

    /// The restart limits of all services. A command has one service, so a flag sets them all.
    pub(super) fn restart_limits(&mut self) -> impl Iterator<Item = &mut RestartLimit> {
        let limits = [
            &mut self.agent.restart_limit,
            &mut self.app.restart_limit,
            &mut self.pipe.restart_limit,
        ];
        #[cfg(feature = "mcp")]
        let limits = limits.into_iter().chain([&mut self.mcp.restart_limit]);
        limits.into_iter()
    }

    /// Where an MCP server runs. The settings of a terminal have it, too, and [`Settings::find_programs`] reads it there.
    #[cfg(feature = "mcp")]
    pub(super) fn mcp_place(&self) -> ProgramPlace {
        let mut place = ProgramPlace::default();
        place.env.clone_from(&self.terminal.env);
        place.cwd.clone_from(&self.terminal.cwd);
        place
    }

    /// Whether settings come from files that SIGHUP reads again.
    pub(super) fn can_be_reloaded(&self) -> bool {
        const FILES: &[&str] = &[
            "config",
            "token-file",
            "oauth-resource",
            "tls-cert",
            "tls-self-signed",
        ];
        FILES.iter().any(|flag| self.has(flag))
    }

    /// The token, if the server generated it and therefore prints it.
    pub(crate) fn generated_token(&self) -> Option<&Token> {
        let token = self.server.access.tokens.only();
        token.filter(|_| self.token_is_generated)
    }

    /// The services to run, each with its settings: the routes, or the command itself.
    pub(crate) fn services(&self, command: &'static Command) -> Vec<(&'static Command, &Self)> {
        if command.serves_routes() {
            let routes = self.routes.iter();
            routes.map(|(command, own)| (*command, own)).collect()
        } else {
            vec![(command, self)]
        }
    }

    /// Checks that the programs of all services can be found.
    pub(crate) fn find_programs(&self, command: &'static Command) -> Result<(), String> {
        for (_, service) in self.services(command) {
            if let Some(name) = service.program.first() {
                let found =
                    programs::find(name, service.terminal.cwd.as_deref(), &service.terminal.env);
                found.map_err(|error| service.in_route(command, error))?;
            }
        }
        Ok(())
    }

    /// An error in these settings, with the route that they belong to.
    pub(super) fn in_route(&self, command: &Command, error: String) -> String {
        match &self.path {
            Some(path) if command.serves_routes() => format!("{path}: {error}"),
            _ => error,
        }
    }

    /// The path that a command serves.
    pub(crate) fn endpoint(&self, command: &Command) -> Endpoint {
        let default = || {
            command
                .default_path
                .parse()
                .expect("a default path is valid")
        };
        let endpoint = self.path.clone().unwrap_or_else(default);
        if command.serves_subtree {
            endpoint.with_subtree()
        } else {
            endpoint
        }
    }
}
