//! The `outrigger` program: arguments to settings, settings to a running server.

mod announce;
mod cli;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use announce::Announcement;
use cli::{Action, Command, Settings};
use outrigger::service::{
    Agent, AgentConfig, AgentPerClient, App, AppConfig, Echo, Processes, ProcessesConfig, Terminal,
    TerminalConfig,
};
use outrigger::{Access, Ended, ListenAddress, Server, Service, Token, kill_orphans};

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

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(Action::Print(text)) => {
            print(&text);
            Exit::Clean
        }
        Ok(Action::Run(command, settings)) => run(command, *settings),
        Err(error) => complain(&error, Exit::Usage),
    }
    .into()
}

fn run(command: Command, settings: Settings) -> Exit {
    cli::log::init(settings.log_level, settings.log_format);
    let endpoint = settings.endpoint(command);
    let path = endpoint.path().to_owned();
    let talks_on_stdout = command == Command::App && settings.program.is_empty();
    if settings.no_auth && !settings.is_local() {
        log::warn!("--no-auth: whoever reaches the port is let in");
    }
    // A token that was made here has to be told to someone.
    let target = match settings.told_token() {
        Some(token) => format!("{path}?token={}", token.reveal()),
        None => path.clone(),
    };
    let announce = |address: &ListenAddress| {
        // A unix socket asks for none.
        let target = if address.tcp().is_some() {
            &target
        } else {
            &path
        };
        let line = format!("outrigger: listening on {}\n", address.url(target));
        // Where standard output carries events, it carries nothing else.
        if talks_on_stdout {
            let _ = write!(std::io::stderr(), "{line}");
        } else {
            print(&line)
        }
    };
    match command {
        Command::Echo => serve(&settings, &path, Echo::new(endpoint), announce, |_| None),
        Command::Agent => {
            let config = AgentConfig {
                endpoint,
                command: settings.program.clone(),
                protocol: settings.protocol,
                grace: settings.grace,
                restart_limit: settings.restart_limit,
            };
            if settings.per_client {
                serve(
                    &settings,
                    &path,
                    AgentPerClient::new(config),
                    announce,
                    |_| None,
                )
            } else {
                let failure = |agent: &Agent| agent.failure().map(str::to_owned);
                serve(&settings, &path, Agent::new(config), announce, failure)
            }
        }
        Command::App => {
            let app = App::new(AppConfig {
                endpoint,
                command: settings.program.clone(),
                restart: settings.restart,
                subprotocols: settings.subprotocols.clone(),
                told_token: settings.told_token().cloned(),
            });
            let failure = |app: &App| app.failure().map(str::to_owned);
            serve(&settings, &path, app, announce, failure)
        }
        Command::Terminal => {
            let terminal = Terminal::new(TerminalConfig {
                endpoint,
                command: settings.program.clone(),
                cwd: settings.cwd.clone(),
                env: settings.env.clone(),
                user: settings.user.clone(),
                read_only: settings.read_only,
                once: settings.once,
            });
            match terminal {
                Ok(terminal) => serve(&settings, &path, terminal, announce, |_| None),
                Err(error) => complain(&error.to_string(), Exit::Failure),
            }
        }
        Command::Processes => {
            let processes = Processes::new(ProcessesConfig {
                endpoint,
                scrollback: settings.scrollback,
                retention: settings.retention,
                max_processes: settings.max_processes,
            });
            serve(&settings, &path, processes, announce, |_| None)
        }
    }
}

/// Runs a server until it is stopped. `failure` asks the service whether it ended as it should.
fn serve<S: Service>(
    settings: &Settings,
    path: &str,
    service: S,
    announce: impl Fn(&ListenAddress),
    failure: impl FnOnce(&S) -> Option<String>,
) -> Exit {
    let result = Server::bind(settings.server.clone(), service).and_then(|mut server| {
        // In a terminal a hangup is its end, and the end of what runs in it.
        let in_terminal = std::io::stdin().is_terminal();
        server.stop_on_signals(in_terminal)?;
        server.adopt_orphans()?;
        if !in_terminal {
            let token = settings.told_token().cloned();
            server.reload_on_hangup(move || read_access_again(token.as_ref()))?;
        }
        let announcement = write_announcement(settings, path, server.local_addresses())?;
        for address in server.local_addresses() {
            announce(address);
        }
        let ended = server.run();
        drop(announcement);
        ended
    });
    match result {
        Ok((service, ended)) => {
            let failure = failure(&service);
            // It gives the standard streams back as they were.
            drop(service);
            // What its programs have left behind is not left behind.
            kill_orphans();
            match (failure, ended) {
                (Some(failure), _) => complain(&failure, Exit::Failure),
                (None, Ended::Cleanly) => Exit::Clean,
                (None, Ended::AtOnce) => Exit::Failure,
            }
        }
        Err(error) => complain(&error.to_string(), Exit::Failure),
    }
}

/// Reads whom to let in once more, from the files that the command line names. A token that was made here stays.
fn read_access_again(token: Option<&Token>) -> Option<Access> {
    match cli::parse(std::env::args_os()) {
        Ok(Action::Run(_, settings)) => {
            let mut access = settings.server.access;
            if settings.fresh_token && token.is_some() {
                access.token = token.cloned();
            }
            Some(access)
        }
        Ok(Action::Print(_)) => None,
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
) -> std::io::Result<Option<Announcement>> {
    let (Some(name), Some(address)) = (&settings.announce, addresses.first()) else {
        return Ok(None);
    };
    let token = settings.server.access.token.as_ref();
    Announcement::write(name, address, path, token, &settings.announce_extra).map(Some)
}

/// Says what is wrong on standard error, if anybody listens.
fn complain(error: &str, exit: Exit) -> Exit {
    let _ = writeln!(std::io::stderr(), "outrigger: {error}");
    exit
}

/// Prints to standard output at once. A reader that is gone is no reason to fail.
fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush()),
    );
}
