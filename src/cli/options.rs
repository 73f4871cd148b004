//! Every option: its name, what it takes, what it says in the help, and what it sets.

use std::num::NonZeroU32;

use outrigger::protocol::http::MAX_HEADERS;
use outrigger::service::agent::{AgentProtocol, RestartLimit};

use super::values::{duration, listen, number, peers, port_range, size};
use super::{Command, Settings};

/// One option.
pub(super) struct Option {
    /// The name, without dashes.
    pub(super) name: &'static str,
    /// What its value is called; `None` for a switch.
    pub(super) value: std::option::Option<&'static str>,
    /// What it does, for the help.
    pub(super) help: &'static str,
    /// The only command that takes it; `None` for all.
    only: std::option::Option<Command>,
    /// Takes a value over into the settings, or says what is wrong with it.
    pub(super) apply: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Option {
    /// The option of this name, if the command takes it.
    pub(super) fn find(name: &str, command: Command) -> std::option::Option<&'static Self> {
        OPTIONS
            .iter()
            .find(|option| option.name == name && option.takes(command))
    }

    pub(super) fn takes(&self, command: Command) -> bool {
        match self.only {
            // Each route of `serve` has its own.
            None => self.name != "path" || !matches!(command, Command::Serve | Command::Demo),
            Some(only) => only == command,
        }
    }

    /// Whether it may be given several times. Its help says so.
    pub(super) fn is_repeatable(&self) -> bool {
        self.help.contains("(repeatable)")
    }

    /// Whether it may stand in a configuration file.
    pub(super) fn is_of_files(&self) -> bool {
        !matches!(self.name, "config" | "check")
    }

    /// Whether it is one of every server's.
    pub(super) fn is_general(&self) -> bool {
        self.only.is_none()
    }
}

const fn general(
    name: &'static str,
    value: &'static str,
    help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
) -> Option {
    Option {
        name,
        value: Some(value),
        help,
        only: None,
        apply,
    }
}

/// A general option that takes no value.
const fn switch(
    name: &'static str,
    help: &'static str,
    apply: fn(&mut Settings, &str) -> Result<(), String>,
) -> Option {
    Option {
        name,
        value: None,
        help,
        only: None,
        apply,
    }
}

/// An option of commands that run programs for clients.
const fn linger(command: Command) -> Option {
    Option {
        name: "linger",
        value: Some("TIME"),
        help: "how long to read output after a program has exited while one of its child processes holds the output open [250ms]",
        only: Some(command),
        apply: |settings, value| {
            settings.linger = duration(value)?.unwrap_or_default();
            Ok(())
        },
    }
}

/// Another option of these commands.
const fn pass_env(command: Command) -> Option {
    Option {
        name: "pass-env",
        value: Some("NAME"),
        help: "environment variable of the server to pass on to programs that run as another user (repeatable)",
        only: Some(command),
        apply: |settings, value| {
            if value.is_empty() || value.contains('=') {
                return Err(format!("'{value}' is not the name of a variable"));
            }
            settings.pass_env.push(value.to_owned());
            Ok(())
        },
    }
}

/// All options, in the order of the help.
pub(super) const OPTIONS: &[Option] = &[
    Option {
        name: "mode",
        value: Some("MODE"),
        help: "shared: one agent for all clients; per-client: one for each connection [shared]",
        only: Some(Command::Agent),
        apply: |settings, value| {
            settings.per_client = match value {
                "shared" => false,
                "per-client" => true,
                _ => return Err(format!("'{value}' is neither shared nor per-client")),
            };
            Ok(())
        },
    },
    Option {
        name: "protocol",
        value: Some("PROTOCOL"),
        help: "acp: initialize comes first, sessions have owners; jsonrpc: neither, for MCP servers and others [acp]",
        only: Some(Command::Agent),
        apply: |settings, value| {
            settings.protocol = match value {
                "acp" => AgentProtocol::Acp,
                "jsonrpc" => AgentProtocol::JsonRpc,
                _ => return Err(format!("'{value}' is neither acp nor jsonrpc")),
            };
            Ok(())
        },
    },
    Option {
        name: "grace",
        value: Some("TIME"),
        help: "how long a session keeps its place in the table after its client has disconnected; it can be loaded later, too; 0 gives the place up at once [5m]",
        only: Some(Command::Agent),
        apply: |settings, value| {
            settings.grace = duration(value)?;
            Ok(())
        },
    },
    Option {
        name: "restart-limit",
        value: Some("N/TIME"),
        help: "how many times a shared agent may end within a time before it is given up [5/60s]",
        only: Some(Command::Agent),
        apply: |settings, value| {
            let wrong = || format!("'{value}' is not N/TIME such as 5/60s");
            let (count, window) = value.split_once('/').ok_or_else(wrong)?;
            let window = duration(window)?.ok_or_else(wrong)?;
            settings.restart_limit = RestartLimit {
                count: number(count, 0..=1000)?,
                window,
            };
            Ok(())
        },
    },
    Option {
        name: "restart",
        value: None,
        help: "start the program again when it ends; clients are closed with 1011 first. More than 5 ends in 60s are a failure",
        only: Some(Command::App),
        apply: |settings, _| {
            settings.restart = true;
            Ok(())
        },
    },
    Option {
        name: "subprotocol",
        value: Some("NAME"),
        help: "a subprotocol that the program speaks (repeatable); the first one that a client offers is answered",
        only: Some(Command::App),
        apply: |settings, value| {
            let valid = !value.is_empty()
                && value
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b',');
            if !valid {
                return Err("not the name of a subprotocol".to_owned());
            }
            settings.subprotocols.push(value.to_owned());
            Ok(())
        },
    },
    Option {
        name: "cwd",
        value: Some("DIR"),
        help: "the directory that the program starts in",
        only: Some(Command::Terminal),
        apply: |settings, value| {
            if !std::path::Path::new(value).is_dir() {
                return Err(format!("'{value}' is not a directory"));
            }
            settings.cwd = Some(value.to_owned());
            Ok(())
        },
    },
    Option {
        name: "env",
        value: Some("NAME=VALUE"),
        help: "a variable for the program's environment (repeatable); TERM is xterm-256color unless it is given",
        only: Some(Command::Terminal),
        apply: |settings, value| {
            let (name, value) = value
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("'{value}' is not NAME=VALUE"))?;
            settings.env.push((name.to_owned(), value.to_owned()));
            Ok(())
        },
    },
    Option {
        name: "user",
        value: Some("USER"),
        help: "user to run the program as: a name or number, or USER:GROUP with a numeric group; only root can choose another user",
        only: Some(Command::Terminal),
        apply: |settings, value| {
            settings.user = Some(value.to_owned());
            Ok(())
        },
    },
    pass_env(Command::Terminal),
    linger(Command::Terminal),
    Option {
        name: "read-only",
        value: None,
        help: "what clients type is ignored",
        only: Some(Command::Terminal),
        apply: |settings, _| {
            settings.read_only = true;
            Ok(())
        },
    },
    Option {
        name: "once",
        value: None,
        help: "serve one client and stop when it is gone",
        only: Some(Command::Terminal),
        apply: |settings, _| {
            settings.once = true;
            Ok(())
        },
    },
    Option {
        name: "scrollback",
        value: Some("BYTES"),
        help: "output of a process that is kept for who attaches later [1MiB]",
        only: Some(Command::Processes),
        apply: |settings, value| {
            settings.scrollback = size(value, 4096..=1 << 40)?;
            Ok(())
        },
    },
    Option {
        name: "retention",
        value: Some("TIME"),
        help: "how long an exited process stays visible [60s]",
        only: Some(Command::Processes),
        apply: |settings, value| {
            settings.retention = duration(value)?.unwrap_or_default();
            Ok(())
        },
    },
    Option {
        name: "max-processes",
        value: Some("N"),
        help: "most processes that run at once; more get 503 [256]",
        only: Some(Command::Processes),
        apply: |settings, value| {
            settings.max_processes = number(value, 1..=100_000)?;
            Ok(())
        },
    },
    Option {
        name: "max-exec-output",
        value: Some("BYTES"),
        help: "maximum output buffered for all exec calls together; a call that exceeds it gets 503 [64MiB]",
        only: Some(Command::Processes),
        apply: |settings, value| {
            settings.max_exec_output = size(value, 1024..=1 << 40)?;
            Ok(())
        },
    },
    pass_env(Command::Processes),
    linger(Command::Processes),
    general(
        "listen",
        "ADDRESS",
        "HOST:PORT, where port 0 takes a free one, unix:PATH, or fd:NUMBER for a socket that was opened already (repeatable) [127.0.0.1:7070; the sockets of LISTEN_FDS if there are any]",
        |settings, value| {
            settings.server.listen.extend(listen(value)?);
            Ok(())
        },
    ),
    general(
        "port-range",
        "A-B",
        "a free port of this range, at random, in place of the ports to listen on",
        |settings, value| {
            settings.port_range = Some(port_range(value)?);
            Ok(())
        },
    ),
    switch(
        "reuse-port",
        "share the ports with other processes that do (SO_REUSEPORT): one process for each core",
        |settings, _| {
            settings.server.reuse_port = true;
            Ok(())
        },
    ),
    general(
        "proxy-protocol",
        "PEERS",
        "proxies that say with the PROXY protocol (1 or 2) for whom each connection is: an address, a network such as 10.0.0.0/8, or unix (repeatable); from these it has to come",
        |settings, value| {
            settings.server.proxies.push(peers(value)?);
            Ok(())
        },
    ),
    general(
        "announce",
        "FILE",
        "after listening write {pid, port, transport, url, authToken} there as JSON, for our user only, and remove it at the end; {port} in FILE is the port",
        |settings, value| {
            settings.announce = Some(value.to_owned());
            Ok(())
        },
    ),
    general(
        "announce-extra",
        "JSON",
        "an object whose fields are added to what --announce writes",
        |settings, value| {
            settings.announce_extra = match serde_json::from_str(value) {
                Ok(serde_json::Value::Object(fields)) => fields,
                Ok(_) => return Err("not a JSON object".to_owned()),
                Err(error) => return Err(format!("not JSON: {error}")),
            };
            Ok(())
        },
    ),
    general(
        "token-file",
        "FILE",
        "holds the secret that clients have to present; the variable OUTRIGGER_TOKEN may hold it instead [a fresh one, told in the 'listening' line; echo on loopback: none]",
        |settings, value| {
            settings.token_file = Some(value.into());
            Ok(())
        },
    ),
    general(
        "token-header",
        "NAME",
        "one more header field in which the token may come",
        |settings, value| {
            let token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
            if value.is_empty() || !value.bytes().all(token) {
                return Err("not the name of a header field".to_owned());
            }
            settings.server.access.token_header = Some(value.to_owned());
            Ok(())
        },
    ),
    switch(
        "no-auth",
        "ask for no token: whoever can connect is let in",
        |settings, _| {
            settings.no_auth = true;
            Ok(())
        },
    ),
    general(
        "allow-origin",
        "ORIGIN",
        "let pages of this origin in, such as https://example.com, beside the server's own (repeatable); '*' is all",
        |settings, value| {
            if value != "*" && value != "null" && !value.contains("://") {
                return Err(format!(
                    "'{value}' is not an origin such as https://example.com"
                ));
            }
            settings
                .server
                .access
                .origins
                .push(value.trim_end_matches('/').to_owned());
            Ok(())
        },
    ),
    general(
        "allow-host",
        "HOST",
        "host name that clients may use for this server, without a port (repeatable); '*' allows all. Always allowed: loopback's names, the addresses to listen on and, with 0.0.0.0 or [::], the machine's host name",
        |settings, value| {
            let has_port = value.rsplit_once(':').is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            });
            if value.is_empty() || value.contains(['/', ' ']) || has_port {
                return Err(format!("'{value}' is not a host name without a port"));
            }
            settings.server.access.hosts.push(value.to_owned());
            Ok(())
        },
    ),
    general(
        "path",
        "PATH",
        "path to serve; with '/...' at its end all paths below it too",
        |settings, value| {
            settings.path = Some(value.parse().map_err(|error| format!("{error}"))?);
            Ok(())
        },
    ),
    general(
        "max-clients",
        "N",
        "most clients at once; more get 503 [10000]",
        |settings, value| {
            settings.server.max_clients = number(value, 1..=1_000_000)?;
            Ok(())
        },
    ),
    general(
        "max-clients-per-address",
        "N",
        "maximum clients and pending calls from one IP address; more get 503. Connections of any kind are limited to twice as many. Behind a proxy all clients have the same address [0, off]",
        |settings, value| {
            let most = number(value, 0..=1_000_000)?;
            settings.server.max_clients_per_address = (most > 0).then_some(most);
            Ok(())
        },
    ),
    general(
        "affinity-cookie",
        "NAME=VALUE",
        "a cookie that is set with each 101, for load balancers",
        |settings, value| {
            let valid = value
                .split_once('=')
                .is_some_and(|(name, _)| !name.is_empty())
                && value
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b";,\"\\".contains(&byte));
            if !valid {
                return Err(format!("'{value}' is not NAME=VALUE"));
            }
            settings.server.affinity_cookie = Some(value.to_owned());
            Ok(())
        },
    ),
    general(
        "max-head",
        "BYTES",
        "longest request head; a longer one gets 431 [16KiB]",
        |settings, value| {
            settings.server.limits.max_head = size(value, 1024..=1 << 20)?;
            Ok(())
        },
    ),
    general(
        "max-headers",
        "N",
        "most fields of a request head; more get 431 [64]",
        |settings, value| {
            settings.server.limits.max_headers = number(value, 8..=MAX_HEADERS)?;
            Ok(())
        },
    ),
    general(
        "max-message",
        "BYTES",
        "longest message; a longer one closes 1009 [16MiB]",
        |settings, value| {
            settings.server.limits.max_message = size(value, 125..=1 << 40)?;
            Ok(())
        },
    ),
    general(
        "max-outbound",
        "BYTES",
        "maximum unread output buffered for one client, not counting its longest message; more closes 1008. The limit is four times as high for a client that keeps reading [8MiB]",
        |settings, value| {
            settings.server.max_outbound = size(value, 1024..=1 << 40)?;
            Ok(())
        },
    ),
    #[cfg(feature = "deflate")]
    switch(
        "deflate",
        "compress messages with clients that offer it: permessage-deflate, RFC 7692",
        |settings, _| {
            settings.deflates = true;
            Ok(())
        },
    ),
    #[cfg(feature = "deflate")]
    general(
        "deflate-level",
        "N",
        "from 1, fast, to 9, small [3]",
        |settings, value| {
            settings.deflate.get_or_insert_default().level = number(value, 1..=9)? as u8;
            Ok(())
        },
    ),
    #[cfg(feature = "deflate")]
    general(
        "deflate-memory",
        "BYTES",
        "most memory of clients whose messages refer to earlier ones, 322KiB for each; further clients get no_context_takeover [64MiB]",
        |settings, value| {
            settings.deflate.get_or_insert_default().memory = size(value, 0..=1 << 40)?;
            Ok(())
        },
    ),
    #[cfg(feature = "deflate")]
    general(
        "deflate-min",
        "BYTES",
        "shortest message that is compressed [64; 512 without context takeover and for broadcasts]",
        |settings, value| {
            settings.deflate.get_or_insert_default().min = Some(size(value, 0..=1 << 40)?);
            Ok(())
        },
    ),
    general(
        "handshake-timeout",
        "TIME",
        "for the whole request head, and again for its body; slower gets 408 [10s]",
        |settings, value| {
            settings.server.timeouts.handshake = duration(value)?;
            Ok(())
        },
    ),
    general(
        "ping-interval",
        "TIME",
        "between two PINGs; 0 for none [20s]",
        |settings, value| {
            settings.server.timeouts.ping_interval = duration(value)?;
            Ok(())
        },
    ),
    general(
        "ping-timeout",
        "TIME",
        "how long to wait for any byte of the client after a PING, or after the client last took output; 0 for no limit [20s]",
        |settings, value| {
            settings.server.timeouts.ping_timeout = duration(value)?;
            Ok(())
        },
    ),
    general(
        "idle-timeout",
        "TIME",
        "close clients with 1001 after this time without a message in either direction and without a waiting request. The default does not apply to clients of an agent that have a session or their own process [off; agent: 5m]",
        |settings, value| {
            settings.server.timeouts.idle = duration(value)?;
            settings.idle_given = true;
            Ok(())
        },
    ),
    general(
        "close-timeout",
        "TIME",
        "how long a connection may last after our CLOSE, or after the last answer to a call; extended while the client reads at least 1 KiB/s [5s]",
        |settings, value| {
            settings.server.timeouts.close = duration(value)?;
            Ok(())
        },
    ),
    general(
        "rate-limit",
        "MESSAGES/S",
        "most messages per second of one client; more closes 1008 [0, off]",
        |settings, value| {
            settings.server.rate_limit = NonZeroU32::new(number(value, 0..=1_000_000)? as u32);
            Ok(())
        },
    ),
    general(
        "turn-bytes",
        "BYTES",
        "most that is read from one client before it is another's turn [512KiB]",
        |settings, value| {
            settings.server.turn_bytes = size(value, 4096..=64 << 20)?;
            Ok(())
        },
    ),
    general(
        "turn-accepts",
        "N",
        "most connections taken from one listener before it is a client's turn [256]",
        |settings, value| {
            settings.server.turn_accepts = number(value, 1..=100_000)?;
            Ok(())
        },
    ),
    general(
        "drain-timeout",
        "TIME",
        "how long SIGTERM waits for pending answers and for clients to disconnect, and then again for programs [10s]",
        |settings, value| {
            settings.server.drain_timeout = duration(value)?.unwrap_or_default();
            Ok(())
        },
    ),
    general(
        "config",
        "FILE.json",
        "an object with these settings by the same names, and the program and its arguments as \"command\", or for serve \"routes\"; a flag wins over it",
        |_, _| Ok(()),
    ),
    switch(
        "check",
        "check that the settings are valid and the programs can be found, then exit",
        |settings, _| {
            settings.check = true;
            Ok(())
        },
    ),
    general(
        "log",
        "LEVEL",
        "off, error, warn, info, debug or trace; RUST_LOG works too [info]",
        |settings, value| {
            let level = value
                .parse()
                .map_err(|_| "not one of off, error, warn, info, debug, trace".to_owned())?;
            settings.log_level = Some(level);
            Ok(())
        },
    ),
    general(
        "log-format",
        "FORMAT",
        "text or json, to stderr [text]",
        |settings, value| {
            settings.log_format = value.parse()?;
            Ok(())
        },
    ),
];
