//! `outrigger attach`: the user's terminal becomes the terminal of a program behind a server.

use std::time::Duration;

use super::super::client::advise;
use super::super::flags::{Flag, Takes, put, samples};
use super::super::run::Failure;
use super::super::settings::Settings;
use super::super::{Outcome, fail, logging};
use super::{Command, Serves};
use crate::service::Routes;
use crate::service::attach::{Attach, AttachConfig, Ending};
use crate::sys::restore_terminal;
use crate::{Config, Retry, Server};

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
ws://HOST:PORT/process/ID/attach. The exit code is that of the program; 128 plus the signal's number
if a signal killed it; 255 if attach itself fails; 0 if the user leaves.

After a cut the connection comes back, and no output is lost. These escapes work after a newline:

  ~.   leave. A process goes on; the program of a terminal ends
  ~^Z  suspend attach
  ~?   list the escapes
  ~~   send ~

If standard input is not a terminal, it is sent as it is, and then an end of file (^D).
",
    examples: &[
        (
            "use a terminal of a server",
            "outrigger attach ws://127.0.0.1:7070/terminal",
        ),
        (
            "watch a process",
            "outrigger attach --viewer ws://127.0.0.1:7070/process/ID/attach",
        ),
    ],
    title: "Attach options",
    flags: FLAGS,
    operand: Some("URL"),
    max_words: 1,
    serves: Serves::Client(run),
    usage_outcome: FAILED,
    ..Command::BASE
};

const FLAGS: &[Flag] = &[
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

fn run(settings: Settings) -> Result<Outcome, Failure> {
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
    if let Err(error) = serve(settings, attach) {
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
fn serve(settings: Settings, attach: Attach) -> Result<(), Failure> {
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
