//! The `outrigger` program: arguments to settings, settings to a running server.

mod announce;
mod cli;
mod demo;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use announce::Announcement;
use cli::names::reached_at;
use cli::output::Output;
use cli::{Action, Command, Settings};
use outrigger::service::{
    Agent, AgentConfig, AgentPerClient, App, AppConfig, Echo, Endpoint, Processes, ProcessesConfig,
    Routes, Terminal, TerminalConfig,
};
use outrigger::{
    Access, Ended, ListenAddress, NonblockingFd, Server, Service, Token, kill_orphans,
};

/// How the program ends, as shells and supervisors see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Stopped because it was asked to.
    Clean,
    /// Failed while running, or was cut short.
    Failure,
    /// The command line is wrong.
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Clean => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
        })
    }
}

/// How long to wait for room on standard output for the `listening` lines.
const PRINTING: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let exit = match cli::parse(std::env::args_os()) {
        Ok(Action::Print(text)) => {
            print(&text);
            Exit::Clean
        }
        Ok(Action::Example(example)) => match example() {
            Ok(()) => Exit::Clean,
            Err(error) => complain(&error.to_string(), Exit::Failure),
        },
        Ok(Action::Run(command, settings)) => run(command, *settings),
        Err(error) => complain(&error, Exit::Usage),
    };
    cli::log::finish();
    exit.into()
}

fn run(command: Command, settings: Settings) -> Exit {
    cli::log::init(settings.log_level, settings.log_format);
    warn(&settings);
    if let Err(error) = settings.find_programs(command) {
        return complain(&error, Exit::Usage);
    }
    let services = settings.services(command);
    let mut routes = Routes::builder();
    for (command, own) in &services {
        let mut endpoint = own.endpoint(*command);
        if *command == Command::Processes {
            endpoint = endpoint.with_subtree();
        }
        let (token, idle_given) = (settings.told_token(), settings.idle_given);
        match service(*command, own, endpoint.clone(), token, idle_given) {
            Ok(service) => {
                routes = if *command == Command::Agent || idle_given {
                    routes.add(endpoint, service)
                } else {
                    routes.add_without_idle_timeout(endpoint, service)
                };
            }
            Err(error) => return complain(&error.to_string(), Exit::Failure),
        }
    }
    if command == Command::Demo {
        let endpoint = settings.endpoint(command);
        routes = routes.add_without_idle_timeout(endpoint, Box::new(demo::Page));
    }
    let routes = match routes.build() {
        Ok(routes) => routes,
        Err(error) => return complain(&error.to_string(), Exit::Failure),
    };
    if settings.check {
        print("outrigger: the settings are valid\n");
        return Exit::Clean;
    }
    let paths: Vec<String> = services
        .iter()
        .map(|(command, own)| own.endpoint(*command).path().to_owned())
        .collect();
    // Where standard output carries events, it carries nothing else.
    let talks_on_stdout = command == Command::App && settings.program.is_empty();
    match serve(command, &settings, &paths, talks_on_stdout, routes) {
        Ok(exit) => exit,
        Err(error) => complain(&error.to_string(), Exit::Failure),
    }
}

/// The service of a command.
fn service(
    command: Command,
    settings: &Settings,
    endpoint: Endpoint,
    told_token: Option<&Token>,
    idle_given: bool,
) -> io::Result<Box<dyn Service>> {
    Ok(match command {
        Command::Echo | Command::Serve | Command::Demo => Box::new(Echo::new(endpoint)),
        Command::Agent => {
            let mut config = AgentConfig::new(endpoint, settings.program.clone())
                .with_protocol(settings.protocol)
                .with_restart_limit(settings.restart_limit);
            config.grace = settings.grace;
            config.sessions_may_idle = !idle_given;
            if settings.per_client {
                Box::new(AgentPerClient::new(config))
            } else {
                Box::new(Agent::new(config))
            }
        }
        Command::App => {
            let mut config = AppConfig::new(endpoint, settings.program.clone());
            config.restart = settings.restart;
            config.subprotocols = settings.subprotocols.clone();
            config.announced_token = told_token.cloned();
            Box::new(App::new(config))
        }
        Command::Terminal => Box::new(Terminal::new(TerminalConfig {
            endpoint,
            command: settings.program.clone(),
            cwd: settings.cwd.clone(),
            env: settings.env.clone(),
            user: settings.user.clone(),
            read_only: settings.read_only,
            once: settings.once,
            linger: settings.linger,
            pass_env: settings.pass_env.clone(),
        })?),
        Command::Processes => Box::new(Processes::new(ProcessesConfig {
            endpoint,
            scrollback: settings.scrollback,
            retention: settings.retention,
            max_processes: settings.max_processes,
            max_exec_output: settings.max_exec_output,
            linger: settings.linger,
            pass_env: settings.pass_env.clone(),
        })),
    })
}

/// Runs a server until it is stopped.
fn serve(
    command: Command,
    settings: &Settings,
    paths: &[String],
    talks_on_stdout: bool,
    routes: Routes,
) -> io::Result<Exit> {
    let mut server = Server::bind(settings.server.clone(), routes)?;
    // In a terminal a hangup is its end, and the end of what runs in it.
    let in_terminal = io::stdin().is_terminal();
    server.stop_on_signals(in_terminal)?;
    server.adopt_orphans()?;
    if !in_terminal {
        let mut token = settings.server.access.token.clone();
        server.reload_on_hangup(move || {
            let access = read_access_again(token.as_ref())?;
            token.clone_from(&access.token);
            Some(access)
        })?;
    }
    let mut announcement = None;
    // If a service failed to start, the server is stopping, and `run` ends at once.
    if server.start().is_ok() {
        let addresses = server.local_addresses();
        announcement = write_announcement(settings, &paths[0], addresses)?;
        let mut text = String::new();
        for address in addresses.iter().flat_map(reached_at) {
            for path in paths {
                text.push_str(&listening(&address, path, settings.told_token()));
            }
        }
        if command == Command::Demo {
            let asks = settings.server.access.token.is_some();
            let addresses: Vec<_> = addresses.iter().flat_map(reached_at).collect();
            let instructions = demo::instructions(&addresses, settings.told_token(), asks);
            text.push_str(&instructions);
        }
        if talks_on_stdout {
            cli::log::say(&text);
        } else {
            print_within(&text, PRINTING);
        }
    }
    let ended = server.run();
    drop(announcement);
    let (routes, ended) = ended?;
    let failure = routes.failure().map(str::to_owned);
    drop(routes);
    // What its programs have left behind is not left behind.
    kill_orphans();
    Ok(match (failure, ended) {
        (Some(failure), _) => complain(&failure, Exit::Failure),
        (None, Ended::Cleanly) => Exit::Clean,
        (None, Ended::AtOnce) => Exit::Failure,
    })
}

/// The line that says where clients can connect. A token that was made here has to be told to someone; a unix socket of
/// our own asks for none.
fn listening(address: &ListenAddress, path: &str, token: Option<&Token>) -> String {
    let url = match token.filter(|_| address.asks_for_token()) {
        Some(token) => address.url(&format!("{path}?token={}", token.reveal())),
        None => address.url(path),
    };
    format!("outrigger: listening on {url}\n")
}

/// Reads whom to let in once more, from the files that the command line names. The token stays unless another one is
/// given: what is served and where does not change, so what has asked for one goes on asking.
fn read_access_again(token: Option<&Token>) -> Option<Access> {
    match cli::parse(std::env::args_os()) {
        Ok(Action::Run(_, settings)) => {
            warn(&settings);
            let mut access = settings.server.access;
            if settings.fresh_token || access.token.is_none() {
                access.token = token.cloned();
            }
            Some(access)
        }
        Ok(Action::Print(_) | Action::Example(_)) => None,
        Err(error) => {
            log::error!("hangup received, but {error}; whom to let in stays as it was");
            None
        }
    }
}

/// Writes the file that `--announce` asks for.
fn write_announcement(
    settings: &Settings,
    path: &str,
    addresses: &[ListenAddress],
) -> io::Result<Option<Announcement>> {
    let (Some(name), Some(address)) = (&settings.announce, addresses.first()) else {
        return Ok(None);
    };
    let token = settings.server.access.token.as_ref();
    Announcement::write(name, address, path, token, &settings.announce_extra).map(Some)
}

/// Logs a warning for each weak setting.
fn warn(settings: &Settings) {
    for warning in settings.warnings() {
        log::warn!("{warning}");
    }
}

/// Says what is wrong on standard error, if anybody listens.
fn complain(error: &str, exit: Exit) -> Exit {
    cli::log::say(&format!("outrigger: {error}\n"));
    exit
}

/// Prints to standard output after the signal handlers were installed. A reader that does not read must not keep the server
/// from serving, and a signal must still end it.
fn print_within(text: &str, patience: Duration) {
    let mut stdout = Output::new(NonblockingFd::shared(io::stdout()));
    if !stdout.line_within(text.as_bytes(), patience, |_| Vec::new()) {
        log::warn!("standard output is blocked: the addresses of the server were not printed");
    }
}

/// Prints to standard output at once. A reader that is gone is no reason to fail.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    drop(
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush()),
    );
}
