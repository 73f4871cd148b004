//! The settings that flags and the configuration file fill in.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "client")]
use super::client::ClientSettings;
#[cfg(feature = "client")]
use super::commands::AttachFlags;
use super::commands::Command;
#[cfg(feature = "mcp")]
use super::commands::McpFlags;
use super::logging::LogFormat;
use super::lookup;
#[cfg(feature = "tls")]
use super::tls::TlsFlags;
#[cfg(feature = "deflate")]
use crate::protocol::deflate::DeflateConfig;
use crate::service::agent::{AgentProtocol, Approvals, RestartLimit, UnknownSessions};
use crate::service::{Compat, Endpoint, Framing};
use crate::{Config, Listen, Scope, Token};

/// The settings of a command, or of one route.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) server: Config,
    /// The names of the flags that were given, on the command line or in the configuration file.
    pub(crate) given: BTreeSet<&'static str>,
    /// Where to listen. It replaces `server.listen`.
    pub(crate) listen: Vec<ListenFlag>,
    pub(crate) port_range: Option<RangeInclusive<u16>>,
    pub(crate) announce: Option<String>,
    pub(crate) announce_pid: Option<u32>,
    pub(crate) announce_extra: serde_json::Map<String, serde_json::Value>,
    #[cfg(feature = "tls")]
    pub(crate) tls: TlsFlags,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) oauth_resource: Option<PathBuf>,
    pub(crate) no_auth: bool,
    /// Whether the server generated its token and therefore prints it.
    pub(crate) token_is_generated: bool,
    #[cfg(feature = "deflate")]
    pub(crate) deflate: bool,
    #[cfg(feature = "deflate")]
    pub(crate) deflate_config: DeflateConfig,
    /// Whether to check the settings and exit.
    pub(crate) check: bool,
    pub(crate) path: Option<Endpoint>,
    /// The routes of a command that serves several, each with settings of its own.
    pub(crate) routes: Vec<(&'static Command, Self)>,
    /// The program to run and its arguments.
    pub(crate) program: Vec<String>,
    /// The argument of a command that requires one besides flags.
    pub(crate) operand: Option<String>,
    /// The scope of a new token.
    pub(crate) token_scope: Option<Scope>,
    /// The settings of a command that connects to a server.
    #[cfg(feature = "client")]
    pub(crate) client: ClientSettings,
    #[cfg(feature = "client")]
    pub(crate) attach: AttachFlags,
    #[cfg(feature = "mcp")]
    pub(crate) mcp: McpFlags,
    /// Whether connections cannot be resumed.
    pub(crate) no_resume: bool,
    /// The limit of `--memory` in bytes; 0 for none.
    pub(crate) memory: Option<usize>,
    pub(crate) restart: bool,
    pub(crate) per_client: bool,
    pub(crate) shared: bool,
    pub(crate) framing: Framing,
    pub(crate) protocol: AgentProtocol,
    pub(crate) grace: Option<Duration>,
    pub(crate) max_agents: usize,
    pub(crate) initialize_timeout: Option<Duration>,
    pub(crate) approvals: Approvals,
    pub(crate) unknown_sessions: UnknownSessions,
    pub(crate) pass_methods: Vec<String>,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) answer_timeout: Option<Duration>,
    pub(crate) restart_limit: RestartLimit,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) once: bool,
    pub(crate) scrollback: usize,
    pub(crate) retention: Duration,
    pub(crate) max_processes: usize,
    pub(crate) max_exec_output: usize,
    pub(crate) wait_for_readers: bool,
    pub(crate) compat: Compat,
    pub(crate) linger: Duration,
    pub(crate) pass_env: Vec<String>,
    pub(crate) log_level: Option<log::LevelFilter>,
    pub(crate) log_format: LogFormat,
}

/// A value of `--listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenFlag {
    Address(Listen),
    /// A socket that this process was started with, and whether its connections use TLS, if the flag says so. Reading the
    /// flag does not take it over, because the flags are read again on SIGHUP.
    Descriptor(RawFd, Option<bool>),
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
        Self {
            server: Config::default(),
            given: BTreeSet::new(),
            listen: Vec::new(),
            port_range: None,
            announce: None,
            announce_pid: None,
            announce_extra: serde_json::Map::new(),
            #[cfg(feature = "tls")]
            tls: TlsFlags::default(),
            token_file: None,
            oauth_resource: None,
            no_auth: false,
            token_is_generated: false,
            #[cfg(feature = "deflate")]
            deflate: false,
            #[cfg(feature = "deflate")]
            deflate_config: DeflateConfig::default(),
            check: false,
            path: None,
            routes: Vec::new(),
            program: Vec::new(),
            operand: None,
            token_scope: None,
            #[cfg(feature = "client")]
            client: ClientSettings::default(),
            #[cfg(feature = "client")]
            attach: AttachFlags::default(),
            #[cfg(feature = "mcp")]
            mcp: McpFlags::default(),
            no_resume: false,
            memory: None,
            restart: false,
            per_client: false,
            shared: false,
            framing: Framing::Lines,
            protocol: AgentProtocol::Acp,
            grace: Some(Duration::from_secs(300)),
            max_agents: 4,
            initialize_timeout: Some(Duration::from_secs(30)),
            approvals: Approvals::Owner,
            unknown_sessions: UnknownSessions::Auto,
            pass_methods: Vec::new(),
            request_timeout: None,
            answer_timeout: None,
            restart_limit: RestartLimit::default(),
            subprotocols: Vec::new(),
            cwd: None,
            env: Vec::new(),
            user: None,
            read_only: false,
            once: false,
            scrollback: 1 << 20,
            retention: Duration::from_secs(60),
            max_processes: 256,
            max_exec_output: 64 << 20,
            wait_for_readers: false,
            compat: Compat::None,
            linger: Duration::from_millis(250),
            pass_env: Vec::new(),
            log_level: None,
            log_format: LogFormat::Text,
        }
    }

    /// Whether `--idle-timeout` was given. It then applies to all clients.
    pub(crate) fn has_idle_timeout(&self) -> bool {
        self.given.contains("idle-timeout")
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
        FILES.iter().any(|flag| self.given.contains(flag))
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
                let found = lookup::find(name, service.cwd.as_deref(), &service.env);
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
