//! The `outrigger` program: arguments to settings, settings to a running server.

mod cli;

use std::io::Write;
use std::process::ExitCode;

use cli::{Action, Command, Settings};
use outrigger::service::{
    Agent, AgentConfig, AgentPerClient, App, AppConfig, Echo, Processes, ProcessesConfig, Terminal,
    TerminalConfig,
};
use outrigger::{Ended, Server, Service, kill_orphans};

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
    let (path, talks_on_stdout) = (
        endpoint.path().to_owned(),
        command == Command::App && settings.program.is_empty(),
    );
    let announce = |url: &str| {
        let line = format!("outrigger: listening on {url}{path}\n");
        // Where standard output carries events, it carries nothing else.
        if talks_on_stdout {
            let _ = write!(std::io::stderr(), "{line}");
        } else {
            print(&line)
        }
    };
    match command {
        Command::Echo => serve(&settings, Echo::new(endpoint), announce, |_| None),
        Command::Agent => {
            let config = AgentConfig {
                endpoint,
                command: settings.program.clone(),
                protocol: settings.protocol,
                grace: settings.grace,
                restart_limit: settings.restart_limit,
            };
            if settings.per_client {
                serve(&settings, AgentPerClient::new(config), announce, |_| None)
            } else {
                let failure = |agent: &Agent| agent.failure().map(str::to_owned);
                serve(&settings, Agent::new(config), announce, failure)
            }
        }
        Command::App => {
            let app = App::new(AppConfig {
                endpoint,
                command: settings.program.clone(),
                restart: settings.restart,
                subprotocols: settings.subprotocols.clone(),
            });
            let failure = |app: &App| app.failure().map(str::to_owned);
            serve(&settings, app, announce, failure)
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
                Ok(terminal) => serve(&settings, terminal, announce, |_| None),
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
            serve(&settings, processes, announce, |_| None)
        }
    }
}

/// Runs a server until it is stopped. `failure` asks the service whether it ended as it should.
fn serve<S: Service>(
    settings: &Settings,
    service: S,
    announce: impl Fn(&str),
    failure: impl FnOnce(&S) -> Option<String>,
) -> Exit {
    let result = Server::bind(settings.server.clone(), service).and_then(|mut server| {
        server.stop_on_signals()?;
        server.adopt_orphans()?;
        for address in server.local_addresses() {
            announce(&format!("ws://{address}"));
        }
        server.run()
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
