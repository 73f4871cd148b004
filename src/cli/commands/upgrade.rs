//! `outrigger upgrade`: makes a server replace itself by a newer version of its program.

use super::super::command::{Command, Serves};
use super::super::outcome::{Failure, Outcome, fail};
use super::super::output::print;
use super::super::settings::Settings;
use crate::service::Inquiry;
use crate::text::printable;

pub(super) static UPGRADE: Command = Command {
    name: "upgrade",
    usage: "[OPTIONS] URL",
    summary: "replace the program of a running server",
    brief: Some(
        "\
Makes a server replace itself by the program that is now at its path. Connections stay open.",
    ),
    about: "\
Makes a server replace itself by the program that is now at its path, with the same arguments and
its configuration file, read anew. The process id, listening sockets and connections stay.

First, the new program is tried: it checks its settings and whether it can continue, and opens new
addresses. If it cannot, nothing happens, and this command says why. While the program is replaced,
the server stands still for some milliseconds.

Connections, sessions and programs go on: terminals, processes, agents, MCP servers, apps and
pipes, with the calls and turns that run in them. Clients over TLS cannot be carried over: those
that are resumable are cut and come back by themselves, and the others get CLOSE 1012. Other HTTP
calls that are pending get 503.

URL is that of any path of the server: http+unix:SOCKET:/, or with --allow-upgrade at the server,
http://HOST[:PORT]/ or https://HOST[:PORT]/. The token must permit everything. SIGUSR2 does the
same, and the log says how it went.

Exit codes: 0 the program was replaced; 1 it was not, or the answer is missing; 2 wrong usage.
",
    examples: &[
        (
            "upgrade a server with a unix socket",
            "outrigger upgrade http+unix:/run/outrigger.sock:/",
        ),
        (
            "present a token",
            "outrigger upgrade --token-file token http://127.0.0.1:7070/",
        ),
    ],
    operand: Some("URL"),
    max_words: 1,
    serves: Serves::Client(run),
    ..Command::BASE
};

fn run(settings: Settings) -> Result<Outcome, Failure> {
    let connect = match settings.connection() {
        Ok(connect) => connect,
        Err(error) => return Ok(fail(&error, Outcome::Usage)),
    };
    let target = connect.target().clone();
    if !target.is_http() {
        let error = "the URL of a server begins with http://, https:// or http+unix:";
        return Ok(fail(error, Outcome::Usage));
    }
    let answer = settings.ask(Inquiry::of_upgrade(connect))?;
    let answer = match answer {
        Ok(answer) => answer,
        Err(why) => {
            let error = format!("the server at {target} was not upgraded: {why}");
            return Ok(fail(&error, Outcome::Failure));
        }
    };
    if let Some(message) = answer["message"].as_str() {
        // Over TLS, the connection does not outlive the program.
        print(&format!("{}\n", printable(message.as_bytes())));
        return Ok(Outcome::Clean);
    }
    let text = |name: &str| printable(answer[name].as_str().unwrap_or("?").as_bytes());
    let count = |name: &str| answer[name].as_u64().unwrap_or_default();
    print(&format!(
        "upgraded from version {} to {}\n\
         connections carried over: {}; cut, and can come back: {}; closed: {}; calls refused: {}\n\
         the server stood still for {:.1} ms\n",
        text("from"),
        text("to"),
        count("passed"),
        count("cut"),
        count("closed"),
        count("refused"),
        answer["pause_ms"].as_f64().unwrap_or_default(),
    ));
    Ok(Outcome::Clean)
}
