//! The commands that connect to a server.
//!
//! With `outrigger connect`, the messages of the server are lines on standard streams, over WebSocket or, for MCP servers, over HTTP. With `outrigger attach`, the user's
//! terminal becomes the terminal of a program behind the server.

use std::time::Duration;

use super::super::client::advise;
use super::super::command::{Command, Serves};
use super::super::flag::{Flag, Takes, put, samples};
use super::super::flags::shared::FRAMING;
use super::super::logging;
use super::super::outcome::{Failure, Outcome, fail};
use super::super::settings::Settings;
use super::super::values::duration;
use super::listing;
use crate::service::attach::{Attach, AttachConfig, Ending};
use crate::service::{
    Bridge, BridgeConfig, Framing, HttpBridge, HttpBridgeConfig, Problem, Routes,
};
use crate::sys::restore_terminal;
use crate::{Config, Connect, Ended, Retry, Server, Service};

pub(super) static CONNECT: Command = Command {
    name: "connect",
    usage: "[OPTIONS] URL",
    summary: "bridge standard streams to a server",
    brief: Some(
        "\
Connects to a server and carries its messages on standard streams, one message in each line.
After a cut it comes back, and every message arrives exactly once.",
    ),
    about: "\
Connects to a server and carries its messages on standard streams: each line of standard input is
sent as a message, and each message is written to standard output as a line. A program that starts
agents or MCP servers as child processes can thus use one that runs elsewhere. After a cut, the
connection resumes, and every message arrives exactly once. All other output goes to standard error.

If the connection is lost for good, each pending JSON-RPC request gets the error -32016. Sessions of
an agent (ACP) continue on a new connection; otherwise, the next 'initialize' begins one.

URL is ws://HOST[:PORT]/PATH or wss://HOST[:PORT]/PATH, or for a unix socket ws+unix:SOCKET:PATH.
For an MCP server over Streamable HTTP, of any make, it is http://HOST[:PORT]/PATH, https:// or
http+unix:. After a cut, answers are resumed or requests are repeated where that is safe; a request
that may have run gets the error -32016. A session that the server has forgotten begins again.

Exit codes: 0 standard input has ended, or the server has closed the connection with code 1000;
1 the connection was refused, could not be opened or was taken over, or messages may be undelivered;
2 wrong usage.
",
    examples: &[
        (
            "use an agent that runs elsewhere",
            "outrigger connect ws://127.0.0.1:7070/acp",
        ),
        (
            "exchange lines with any server",
            "outrigger connect --no-json ws://127.0.0.1:7070/echo",
        ),
        (
            "use an MCP server over HTTP in a host that only starts programs",
            "outrigger connect http://127.0.0.1:7070/mcp",
        ),
        (
            "see what to write into the settings of MCP clients",
            "outrigger connect --list http://127.0.0.1:7070/mcp",
        ),
        #[cfg(feature = "tls")]
        (
            "present a token over TLS",
            "outrigger connect --token-file token wss://example.com/acp",
        ),
    ],
    title: "Connect options",
    flags: CONNECT_FLAGS,
    operand: Some("URL"),
    max_words: 1,
    check: |settings| match settings.client.framing {
        Framing::Lines | Framing::ContentLength => Ok(()),
        Framing::Raw => {
            Err("--framing raw is not supported by connect; use lines or content-length".to_owned())
        }
    },
    serves: Serves::Client(run_connect),
    ..Command::BASE
};

const CONNECT_FLAGS: &[Flag] = &[
    Flag {
        words: &["lines", "content-length"],
        help: "lines, or content-length: a header with the length precedes each message, as between editors and language servers",
        ..FRAMING
    },
    Flag {
        name: "list",
        help: "do not connect; print what to write into the settings of MCP clients for the server at an http:// or https:// URL. If URL has no path, ask the Outrigger there, whose token must permit its status, for all its MCP servers",
        brief: Some("print the settings of MCP clients for URL"),
        ..Flag::BASE
    },
    Flag {
        name: "no-json",
        help: "do not parse messages; without this option, connect answers JSON-RPC requests whose connection is lost",
        brief: Some("carry any lines, not only JSON-RPC"),
        ..Flag::BASE
    },
    Flag {
        name: "linger",
        takes: Takes::One("TIME"),
        default: Some("5s"),
        help: "how long to wait for answers after standard input has ended; with --no-json, how long to wait for messages",
        brief: Some("how long to wait for answers at the end of input"),
        set: |settings, value| {
            settings.client.linger = duration(value)?.unwrap_or_default();
            Ok(())
        },
        ..Flag::BASE
    },
];

/// What the user of `connect` can do about a problem.
fn advise_connect(problem: Problem) -> &'static str {
    match problem {
        // These are the options of `attach`.
        Problem::Conflict | Problem::NoTerminal => "",
        problem => advise(problem),
    }
}

/// The maximum size of the messages that are kept until an HTTP server has got them, in bytes.
const BUFFER: usize = 4 << 20;

/// How long a signal waits for the server's CLOSE, and then again for the reader of standard output.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

fn run_connect(mut settings: Settings) -> Result<Outcome, Failure> {
    let connect = match settings.connection() {
        Ok(connect) => connect,
        Err(error) => return Ok(fail(&error, Outcome::Usage)),
    };
    if settings.has("list") {
        return listing::run(settings, connect);
    }
    let retry = Retry::default().with_give_up(settings.give_up());
    if connect.target().is_http() {
        return run_http(settings, connect.with_retry(retry));
    }
    let mut bridge = BridgeConfig::new(connect.with_retry(retry));
    bridge.framing = settings.client.framing;
    bridge.json = !settings.has("no-json");
    bridge.continue_sessions = !settings.has("no-resume");
    bridge.linger = settings.client.linger;
    bridge.give_up = settings.give_up();
    bridge.advise = advise_connect;
    let mut config: Config = std::mem::take(&mut settings.server);
    config.drain_timeout = DRAIN_TIMEOUT;
    // What was kept before the connection was open is sent at once.
    config.max_outbound = config.max_outbound.max(2 * bridge.buffer);
    if let Some(resume) = &mut config.resume {
        resume.buffer = bridge.buffer;
    }
    run_bridge(config, Box::new(Bridge::new(bridge)))
}

/// Carries messages to an MCP server over HTTP.
fn run_http(mut settings: Settings, connect: Connect) -> Result<Outcome, Failure> {
    let without_effect = ["no-json", "no-resume", "deflate"];
    if let Some(flag) = without_effect.into_iter().find(|flag| settings.has(flag)) {
        let error = format!(
            "--{flag} has no effect over HTTP; the URL of a WebSocket begins with ws:// or wss://"
        );
        return Ok(fail(&error, Outcome::Usage));
    }
    let bridge = HttpBridgeConfig {
        connect,
        framing: settings.client.framing,
        buffer: BUFFER,
        linger: settings.client.linger,
        advise: advise_connect,
    };
    let mut config: Config = std::mem::take(&mut settings.server);
    config.drain_timeout = DRAIN_TIMEOUT;
    let max_message = config.limits.max_message;
    run_bridge(config, Box::new(HttpBridge::new(bridge, max_message)))
}

/// Runs the loop until the service has ended.
fn run_bridge(config: Config, bridge: Box<dyn Service>) -> Result<Outcome, Failure> {
    // As for a server, so that the loop is compiled once.
    let routes = Routes::builder().add_without_idle_timeout("/...".parse()?, bridge);
    let mut server = Server::without_listeners(config, routes.build()?)?;
    server.stop_on_signals()?;
    server.stop_on_hangup()?;
    let (routes, ended) = server.run()?;
    Ok(match (routes.failure(), ended) {
        (Some(failure), _) => fail(failure, Outcome::Failure),
        (None, Ended::Cleanly) => Outcome::Clean,
        (None, Ended::AtOnce) => Outcome::Failure,
    })
}

/// The exit code if the command itself fails, as for ssh.
const FAILED: Outcome = Outcome::Code(255);

/// How long the closing handshake may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum size of keys that the server has not confirmed. Further keys are not read while half of it is in use.
const KEPT_KEYS: usize = 256 << 10;

pub(super) static ATTACH: Command = Command {
    name: "attach",
    usage: "[OPTIONS] URL",
    summary: "use a terminal or process of a server",
    brief: Some(
        "\
Makes this terminal the terminal of a program behind a server. To leave, type ~. after a newline.",
    ),
    about: "\
Makes this terminal the terminal of a program behind a server: a program of 'outrigger terminal' at
ws://HOST:PORT/terminal, or a process of 'outrigger processes' at
ws://HOST:PORT/process/ID/attach or ws://HOST:PORT/process/by-name/NAME. The exit code is that of
the program; 128 plus the signal's number if a signal killed it; 255 if attach itself fails; 0 if
the user leaves.

After a cut the connection comes back, and no output is lost. These escapes work after a newline:

  ~.   leave. A process goes on; the program of a terminal ends
  ~^Z  suspend attach
  ~?   list the escapes
  ~~   send ~

If standard input is not a terminal, it is sent as it is, and then an end of file (^D). A process
without a terminal gets all bytes and the end of its input: tar c . | outrigger attach URL
",
    examples: &[
        (
            "use a terminal of a server",
            "outrigger attach ws://127.0.0.1:7070/terminal",
        ),
        (
            "use the process of a name, which the server starts if there is none",
            "outrigger attach ws://127.0.0.1:7070/process/by-name/work",
        ),
        (
            "watch a process",
            "outrigger attach --viewer ws://127.0.0.1:7070/process/ID/attach",
        ),
    ],
    title: "Attach options",
    flags: ATTACH_FLAGS,
    operand: Some("URL"),
    max_words: 1,
    serves: Serves::Client(run_attach),
    usage_outcome: FAILED,
    ..Command::BASE
};

const ATTACH_FLAGS: &[Flag] = &[
    Flag {
        name: "viewer",
        help: "watch a process without sending to it; several clients can do so at once",
        brief: Some("watch without typing"),
        ..Flag::BASE
    },
    Flag {
        name: "takeover",
        help: "replace the client that writes to the process",
        brief: Some("replace the client that types"),
        ..Flag::BASE
    },
    Flag {
        name: "escape",
        takes: Takes::One("CHAR"),
        default: Some("~"),
        help: "character that begins an escape: an ASCII punctuation character, ^X for a control character, or none",
        brief: Some("character that begins an escape"),
        set: |settings, value| put(&mut settings.client.escape, escape(value)),
        accepts: samples(&["none", "!", "^]", "^^", "^"]),
        rejects: &["", "ab", "é", "^é", "^a", "\n", "a"],
        ..Flag::BASE
    },
];

/// Parses an escape character.
fn escape(text: &str) -> Result<Option<u8>, String> {
    match *text.as_bytes() {
        _ if text == "none" => Ok(None),
        [key] if key.is_ascii_punctuation() => Ok(Some(key)),
        [b'^', key @ b'@'..=b'_'] => Ok(Some(key & 0x1f)),
        _ => Err(format!(
            "'{}' is not an ASCII punctuation character, ^X or none",
            text.escape_debug()
        )),
    }
}

fn run_attach(settings: Settings) -> Result<Outcome, Failure> {
    let (viewer, takeover) = (settings.has("viewer"), settings.has("takeover"));
    if viewer && takeover {
        return Ok(fail("--takeover has no effect with --viewer", FAILED));
    }
    let connect = match settings.connection() {
        Ok(connect) => connect,
        Err(error) => return Ok(fail(&error, FAILED)),
    };
    let retry = Retry::default().with_give_up(settings.give_up());
    let (attach, ending) = Attach::new(AttachConfig {
        connect,
        retry,
        viewer,
        takeover,
        escape: settings.client.escape,
        notify: logging::write_line,
        advise,
    });
    // A panic would leave the terminal in raw mode.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore_terminal();
        report(panic);
    }));
    if let Err(error) = serve_attached(settings, attach) {
        return Ok(fail(&error.to_string(), FAILED));
    }
    let ending = ending.borrow_mut().take();
    let Ending { code, message } = ending.unwrap_or(Ending {
        code: 255,
        message: "ended by a second signal".to_owned(),
    });
    let outcome = Outcome::Code(code);
    Ok(if message.is_empty() {
        outcome
    } else {
        // It need not be an error, so it has no color.
        logging::write_line(&format!("outrigger: {message}\n"));
        outcome
    })
}

/// Runs the loop until the service has ended. The terminal is restored when it returns.
fn serve_attached(settings: Settings, attach: Attach) -> Result<(), Failure> {
    let mut config = Config {
        drain_timeout: CLOSE_TIMEOUT,
        ..settings.server
    };
    if let Some(resume) = &mut config.resume {
        resume.buffer = KEPT_KEYS;
    }
    let routes = Routes::builder().add_without_idle_timeout("/...".parse()?, Box::new(attach));
    let mut server = Server::without_listeners(config, routes.build()?)?;
    server.stop_on_signals()?;
    server.stop_on_hangup()?;
    server.run()?;
    Ok(())
}
