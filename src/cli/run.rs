//! Runs a server or a client from the settings until it is stopped.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use log::LevelFilter;
use rustix::io::Errno;

use super::action::Action;
use super::announce::{Announcement, AnnouncementContent, reached_at};
use super::command::{Command, ProgramArg, Serves, ServiceParams};
use super::logging::DefaultLevels;
use super::outcome::{Failure, Outcome, fail, with_causes};
use super::output::LineOutput;
use super::output::print;
use super::parser::parse;
use super::service_manager::ServiceManager;
use super::settings::Settings;
use super::values::ListenValue;
use super::{logging, programs};
#[cfg(feature = "tls")]
use crate::TlsConfig;
use crate::demo::Demo;
use crate::service::Routes;
use crate::service::agent::AgentProtocol;
use crate::sys::{NonblockingFd, take_descriptor, unblock_usr2};
use crate::upgrade::{Passed, Successor};
use crate::web::{ConsolePlace, RoutePage, Site};
use crate::{Access, Config, Ended, Listen, ListenAddress, Reload, Server, Service, Token, Tokens};

/// How long to wait for room on standard output for the `listening` lines.
const PRINT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(command: &'static Command, mut settings: Settings) -> Outcome {
    let default = if command.is_client() {
        // A client is silent in normal use, because its output may be mixed with that of the program that started it.
        LevelFilter::Warn.into()
    } else if command.is_demo() {
        // What the demo prints must not scroll away. The console shows the log.
        DefaultLevels {
            written: LevelFilter::Warn,
            shown: LevelFilter::Info,
        }
    } else {
        LevelFilter::Info.into()
    };
    logging::init(settings.log_level, default, settings.log_format);
    warn(&settings);
    for note in &settings.notes {
        log::info!("{note}");
    }
    #[cfg(feature = "client")]
    if let Serves::Client(run) = command.serves {
        return run(settings).unwrap_or_else(|error| fail(&with_causes(&*error), Outcome::Failure));
    }
    let passed = match Passed::from_env() {
        Ok(passed) => passed,
        Err(error) => return fail(&error.to_string(), Outcome::Failure),
    };
    let passed = passed.map(|mut passed| {
        settings.take_over(&passed.take_extra());
        passed
    });
    if let Err(error) = settings.find_programs(command) {
        return fail(&error, Outcome::Usage);
    }
    let routes = match routes(command, &settings) {
        Ok(routes) => routes,
        Err(error) => return fail(&error.to_string(), Outcome::Failure),
    };
    #[cfg(feature = "tls")]
    match settings.load_tls(None) {
        Ok(tls) => settings.server.tls = tls,
        Err(error) => return fail(&error, Outcome::Usage),
    }
    if settings.has("check") {
        print("outrigger: the settings are valid\n");
        return Outcome::Clean;
    }
    match serve(command, settings, routes, passed) {
        Ok(outcome) => outcome,
        Err(error) => {
            let hint = match error.downcast_ref() {
                Some(crate::Error::Listen { address, source })
                    if source.kind() == io::ErrorKind::AddrInUse
                        && !address.starts_with("unix:") =>
                {
                    "; another program uses this port: choose one with -p, or any free one with -p 0"
                }
                _ => "",
            };
            fail(&format!("{}{hint}", with_causes(&*error)), Outcome::Failure)
        }
    }
}

/// The services of a command, each at its path.
fn routes(command: &'static Command, settings: &Settings) -> io::Result<Routes> {
    let mut routes = Routes::builder();
    let mut pages = Vec::new();
    for (command, own) in settings.services(command) {
        let Serves::One(build) = command.serves else {
            continue;
        };
        let endpoint = own.endpoint(command);
        let params = ServiceParams {
            endpoint: endpoint.clone(),
            generated_token: settings.generated_token(),
            sessions_may_idle: !settings.has("idle-timeout"),
        };
        let service = build(own, params)?;
        // A default idle timeout is for the clients of its own command.
        routes = if command.idle_timeout.is_some() || settings.has("idle-timeout") {
            routes.add(endpoint.clone(), service)
        } else {
            routes.add_without_idle_timeout(endpoint.clone(), service)
        };
        routes = routes.named(command.name);
        if own.has("no-resume") {
            routes = routes.without_resume();
        }
        pages.push((endpoint, route_page(command, own)));
    }
    let console = console_place(command, settings);
    let has_console = console != ConsolePlace::Nowhere;
    if has_console || pages.iter().any(|(_, page)| *page != RoutePage::None) {
        if has_console {
            logging::keep_recent();
        }
        let site = Site::new(pages, console, command.is_demo(), logging::recent);
        routes = routes.pages(Box::new(site));
    }
    routes.build().map_err(io::Error::other)
}

/// Where the console is.
fn console_place(command: &Command, settings: &Settings) -> ConsolePlace {
    if settings.has("console") {
        ConsolePlace::AlsoAtRoute
    } else if command.has_console {
        ConsolePlace::Root
    } else {
        ConsolePlace::Nowhere
    }
}

/// What a browser sees at the path of a service. The page for agents speaks the Agent Client Protocol with a shared agent.
fn route_page(command: &Command, own: &Settings) -> RoutePage {
    let has_sessions = own.agent.protocol == AgentProtocol::Acp;
    match command.page {
        RoutePage::Agent if !has_sessions => RoutePage::None,
        page => page,
    }
}

/// A service, the path where clients reach it, and its page.
struct Served<'a> {
    command: &'a Command,
    path: String,
    page: RoutePage,
}

/// Runs the server.
fn serve(
    command: &'static Command,
    mut settings: Settings,
    routes: Routes,
    mut passed: Option<Passed>,
) -> Result<Outcome, Failure> {
    let config = Config {
        listen: take_sockets(&settings.listen, passed.as_mut())?,
        extra_metrics: Some(logging::metrics),
        extra_health: Some(logging::health),
        ..std::mem::take(&mut settings.server)
    };
    let kept = Config {
        listen: Vec::new(),
        ..config.clone()
    };
    let mut server = match &mut passed {
        Some(passed) => Server::bind_passed(config, routes, passed)?,
        None => Server::bind(config, routes)?,
    };
    settings.server = kept;
    let addresses = server.local_addresses().to_vec();
    if let Some(passed) = passed.take_if(|passed| passed.is_rehearsal()) {
        announce(command, &settings, &addresses, Announcement::check)?;
        server.continue_service(passed)?;
        return Ok(Outcome::Clean);
    }
    let is_upgraded = passed.is_some();
    tolerate(is_upgraded, server.stop_on_signals().map_err(Into::into))?;
    let orphans = server.adopt_orphans().map_err(Into::into);
    let orphans = tolerate(is_upgraded, orphans)?;
    let manager = ServiceManager::from_env();
    tolerate(is_upgraded, handle_hangup(&mut server, &settings, &manager))?;
    let text = address_text(command, &settings, &addresses);
    let allowed = allow_upgrades(&mut server, &settings, &text, &manager);
    tolerate(is_upgraded, allowed)?;
    let started = match passed {
        Some(passed) => server.continue_service(passed),
        None => server.start(),
    };
    // If a service fails to start, the server is stopping, and `run` returns at once.
    if let Err(error @ crate::Error::State(_)) = started {
        return Err(error.into());
    }
    if started.is_ok() {
        let announcement = announce(command, &settings, &addresses, Announcement::write);
        let announcement = tolerate(is_upgraded, announcement)?;
        if text != settings.passed_on.printed {
            tell(command, &settings, &text);
        }
        server.drop_when_stopping((announcement, manager.until_stopping()));
        manager.ready();
    }
    let (routes, ended) = server.run()?;
    let failure = routes.failure().map(str::to_owned);
    drop(routes);
    drop(orphans);
    Ok(match (failure, ended) {
        (Some(failure), _) => fail(&failure, Outcome::Failure),
        (None, Ended::Cleanly) => Outcome::Clean,
        (None, Ended::AtOnce) => Outcome::Failure,
    })
}

/// Logs an error instead of returning it after an upgrade, because a server that ends would end its clients and programs.
fn tolerate<T>(is_upgraded: bool, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match result {
        Err(error) if is_upgraded => {
            log::error!("{}", with_causes(&*error));
            Ok(None)
        }
        result => result.map(Some),
    }
}

/// Makes SIGUSR2 and `POST /upgrade` replace the program by the one that is then at its path. `printed` is what
/// [`address_text`] has returned.
fn allow_upgrades(
    server: &mut Server<Routes>,
    settings: &Settings,
    printed: &str,
    manager: &ServiceManager,
) -> Result<(), Failure> {
    if !cfg!(target_os = "linux") {
        return Ok(());
    }
    let (before, after) = (manager.clone(), manager.clone());
    let program = match &settings.upgrade_program {
        Some(program) => std::path::absolute(program)?,
        None => programs::own_path()?,
    };
    let successor = Successor::new(program, std::env::args_os())
        .with_extra(settings.pass_on(printed))
        .over_tcp(settings.has("allow-upgrade"))
        // The next program says that it is ready.
        .with_farewell(move || std::mem::forget(before.reloading()))
        // With `ReloadSignal=SIGUSR2`, `systemctl reload` waits for this.
        .with_failure(move || drop(after.reloading()));
    server.upgrade_to(successor)?;
    unblock_usr2()?;
    Ok(())
}

/// Makes SIGHUP reload the settings. A server in a terminal stops if the terminal has been closed, or if there is nothing to reload.
fn handle_hangup(
    server: &mut Server<Routes>,
    settings: &Settings,
    manager: &ServiceManager,
) -> Result<(), Failure> {
    let is_in_terminal = io::stdin().is_terminal() && !has_lost_terminal();
    if is_in_terminal && !settings.can_be_reloaded() {
        server.stop_on_hangup()?;
        return Ok(());
    }
    let mut reloader = Reloader::new(settings);
    let handle = server.handle();
    let manager = manager.clone();
    server.reload_on_hangup(move || {
        let reloading = manager.reloading();
        let mut reload = reloader.reload();
        // When a shell ends, the kernel sends the signal just before it takes the terminal away, so this is checked last.
        if is_in_terminal && has_lost_terminal() {
            log::info!("hangup received and the terminal is gone: stopping");
            let _ = handle.stop();
            return Reload::default();
        }
        reload.until_applied = Some(Arc::new(reloading));
        reload
    })?;
    Ok(())
}

/// Whether this process has no controlling terminal, for example because the terminal was closed.
fn has_lost_terminal() -> bool {
    let error = File::open("/dev/tty").err();
    let errno = error.as_ref().and_then(Errno::from_io_error);
    // Any other error, such as too many open files, says nothing about the terminal.
    matches!(errno, Some(Errno::NXIO | Errno::IO))
}

/// Takes over the listening sockets that this process was started with.
///
/// The program that this one replaces may have passed them on.
fn take_sockets(
    flags: &[ListenValue],
    mut passed: Option<&mut Passed>,
) -> Result<Vec<Listen>, Failure> {
    let mut listen = Vec::new();
    for (index, flag) in flags.iter().enumerate() {
        listen.push(match flag {
            ListenValue::Address(listen) => listen.clone(),
            ListenValue::Descriptor(number, tls) => {
                let is_same = |one: &ListenValue| matches!(one, ListenValue::Descriptor(other, _) if other == number);
                if flags[..index].iter().any(is_same) {
                    return Err(format!("cannot listen on fd:{number}: it is given twice").into());
                }
                let failed = |error| format!("cannot listen on fd:{number}: {error}");
                let listen = match &mut passed {
                    Some(passed) => passed.take_inherited(*number).ok_or_else(|| {
                        failed(io::Error::other("the server was not started with this descriptor"))
                    })?,
                    None => Listen::inherited(take_descriptor(*number).map_err(failed)?),
                };
                match tls {
                    Some(tls) => listen.with_tls(*tls),
                    None => listen,
                }
            }
        });
    }
    Ok(listen)
}

/// Writes the file of `--announce`, or checks it.
fn announce<T>(
    command: &'static Command,
    settings: &Settings,
    addresses: &[ListenAddress],
    act: impl FnOnce(&str, &AnnouncementContent<'_>) -> io::Result<T>,
) -> Result<Option<T>, Failure> {
    let endpoints = endpoints(command, settings);
    let (Some(name), Some(address), Some(Served { path, .. })) = (
        &settings.announce.file,
        addresses.first(),
        endpoints.first(),
    ) else {
        return Ok(None);
    };
    let tokens = &settings.server.access.tokens;
    if tokens.only().is_none() && !tokens.is_empty() {
        log::warn!(
            "--announce: authToken is null: there are several tokens, or only the digest is known"
        );
    }
    // An app without a program belongs to the editor that has started it.
    let parent = rustix::process::getppid().filter(|_| is_part_of_its_parent(command, settings));
    let parent = parent.and_then(|parent| parent.as_raw_nonzero().get().try_into().ok());
    let content = AnnouncementContent {
        pid: parent,
        address,
        path,
        token: tokens.only(),
        extra: &settings.announce.extra,
    };
    Ok(Some(act(name, &content)?))
}

/// Where the services are found.
fn endpoints<'a>(command: &'static Command, settings: &'a Settings) -> Vec<Served<'a>> {
    let base = &settings.server.base_path;
    let services = settings.services(command).into_iter();
    let served = services.map(|(command, own)| Served {
        command,
        path: format!("{base}{}", own.endpoint(command).path()),
        page: route_page(command, own),
    });
    served.collect()
}

/// The lines that tell where the server listens.
fn address_text(
    command: &'static Command,
    settings: &Settings,
    addresses: &[ListenAddress],
) -> String {
    let reached: Vec<ListenAddress> = addresses.iter().flat_map(reached_at).collect();
    if command.is_demo() {
        demo_text(settings, &reached)
    } else {
        address_lines(command, settings, &reached, &endpoints(command, settings))
    }
}

/// Prints where the server listens.
fn tell(command: &Command, settings: &Settings, text: &str) {
    // Standard output is for events alone.
    if is_part_of_its_parent(command, settings) {
        logging::write_line(text);
    } else {
        print_within(text, PRINT_TIMEOUT);
    }
}

/// Whether the server is an app without a program: it exchanges events and commands with the program that has started it.
fn is_part_of_its_parent(command: &Command, settings: &Settings) -> bool {
    command.program == ProgramArg::Optional && settings.program.is_empty()
}

/// The lines with the addresses of services and pages.
fn address_lines(
    command: &Command,
    settings: &Settings,
    reached: &[ListenAddress],
    endpoints: &[Served<'_>],
) -> String {
    let mut text = String::new();
    if let Some(fingerprint) = settings.self_signed_fingerprint() {
        let _ = writeln!(
            text,
            "outrigger: certificate SHA-256 fingerprint {fingerprint}"
        );
    }
    for address in reached {
        for Served { command, path, .. } in endpoints {
            let url = url(address, path, command, settings.generated_token());
            let _ = writeln!(text, "outrigger: listening on {url}");
        }
    }
    // Programs that read the lines above expect them first.
    for address in reached.iter().filter(|address| address.tcp().is_some()) {
        for Served { path, page, .. } in endpoints {
            let has_page = match page {
                RoutePage::Terminal => cfg!(feature = "web"),
                RoutePage::Agent => true,
                RoutePage::None | RoutePage::Processes => false,
            };
            if has_page {
                let page = page_url(address, path, settings.generated_token());
                let _ = writeln!(text, "outrigger: page at {page}");
            }
        }
        let root = format!("{}/", settings.server.base_path);
        // The page at the path of the process API is the console.
        let place = console_place(command, settings);
        let hides_console = |one: &Served<'_>| match one.page {
            RoutePage::Processes => false,
            RoutePage::None => place == ConsolePlace::Root,
            RoutePage::Terminal | RoutePage::Agent => true,
        };
        let has_root = endpoints
            .iter()
            .any(|one| one.path == root && hides_console(one));
        if place != ConsolePlace::Nowhere && !has_root {
            let page = page_url(address, &root, settings.generated_token());
            let _ = writeln!(text, "outrigger: console at {page}");
        }
    }
    text
}

/// What the demo prints: what to open and to paste, and last the address, which tells scripts that clients can connect.
fn demo_text(settings: &Settings, reached: &[ListenAddress]) -> String {
    let mut text = String::new();
    let root = format!("{}/", settings.server.base_path);
    if let Some(address) = reached.iter().find(|address| address.tcp().is_some()) {
        let demo = Demo {
            program: programs::own_command(),
            address,
            base_path: &settings.server.base_path,
            token: settings.generated_token(),
            needs_token: !settings.server.access.tokens.is_empty(),
            fingerprint: settings.self_signed_fingerprint(),
        };
        text = demo.instructions();
    }
    for address in reached {
        let _ = writeln!(text, "outrigger: listening on {}", address.url(&root));
    }
    text.push_str("^C ends the demo.\n");
    text
}

/// The URL of a service. It contains a generated token where clients must present one.
fn url(
    address: &ListenAddress,
    path: &str,
    command: &Command,
    generated_token: Option<&Token>,
) -> String {
    let url = match generated_token.filter(|_| address.asks_for_token()) {
        Some(token) => address.url(&format!("{path}?token={}", token.reveal())),
        None => address.url(path),
    };
    if command.is_http {
        url.replacen("ws", "http", 1)
    } else {
        url
    }
}

/// The URL of a page. A generated token is in its fragment, which browsers do not send.
fn page_url(address: &ListenAddress, path: &str, generated_token: Option<&Token>) -> String {
    let page = address.url(path).replacen("ws", "http", 1);
    match generated_token.filter(|_| address.asks_for_token()) {
        Some(token) => format!("{page}#token={}", token.reveal()),
        None => page,
    }
}

/// Reads the settings again that a running server can replace.
struct Reloader {
    tokens: Tokens,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

impl Reloader {
    fn new(settings: &Settings) -> Self {
        Self {
            tokens: settings.server.access.tokens.clone(),
            #[cfg(feature = "tls")]
            tls: settings.server.tls.clone(),
        }
    }

    /// The settings that replace those of the server. What cannot be read stays unchanged.
    fn reload(&mut self) -> Reload {
        let mut reload = Reload::default();
        match parse(std::env::args_os()) {
            Ok(Action::Run(_, settings)) => {
                warn(&settings);
                #[cfg(feature = "tls")]
                {
                    reload.tls = self.reload_tls(&settings);
                }
                reload.access = Some(self.reload_access(*settings));
            }
            Ok(Action::Print(_) | Action::Example(_) | Action::Token(_)) => {}
            Err(error) => {
                let error = error.message;
                log::error!("hangup received, but the settings stay unchanged: {error}");
            }
        }
        reload
    }

    /// The tokens stay unless the settings name others, because a server that required a token must continue to require
    /// one.
    fn reload_access(&mut self, settings: Settings) -> Access {
        let generated = settings.token_is_generated;
        let mut access = settings.server.access;
        if generated || access.tokens.is_empty() {
            access.tokens.clone_from(&self.tokens);
        }
        self.tokens.clone_from(&access.tokens);
        access
    }

    /// The TLS settings to apply after a reload. `None` without TLS, or if the new settings are invalid or change the kind of TLS.
    #[cfg(feature = "tls")]
    fn reload_tls(&mut self, settings: &Settings) -> Option<TlsConfig> {
        if self.tls.is_none() && !settings.tls.is_on() {
            return None;
        }
        let loaded = match &self.tls {
            Some(present) => settings.load_tls(Some(present)),
            None => Ok(None),
        };
        let problem = match (&self.tls, loaded) {
            // The certificates of clients are checked again, because some may have expired.
            (Some(present), Ok(Some(loaded))) if loaded == *present => {
                return Some(present.clone());
            }
            (Some(present), Ok(Some(loaded))) if has_same_client_auth(present, &loaded) => {
                self.tls = Some(loaded.clone());
                return Some(loaded);
            }
            (_, Ok(_)) => {
                "TLS, --tls-client-ca and --tls-client-auth cannot be turned on or off while the server runs"
                    .to_owned()
            }
            (_, Err(error)) => error,
        };
        log::error!("hangup received, but the TLS settings stay unchanged: {problem}");
        None
    }
}

/// Whether both settings require the same credentials of clients.
#[cfg(feature = "tls")]
fn has_same_client_auth(present: &TlsConfig, loaded: &TlsConfig) -> bool {
    present.requires_client_certificate() == loaded.requires_client_certificate()
        && present.is_client_auth_enough() == loaded.is_client_auth_enough()
}

/// Logs a warning for each weak setting.
fn warn(settings: &Settings) {
    for warning in settings.warnings() {
        log::warn!("{warning}");
    }
}

/// Prints to standard output while the signal handlers are installed. A reader that does not read must not block the
/// server, and a signal must still stop it.
fn print_within(text: &str, timeout: Duration) {
    let mut stdout = LineOutput::new(NonblockingFd::shared(io::stdout()));
    if !stdout.line_within(text.as_bytes(), timeout, |_| Vec::new()) {
        log::warn!("standard output is blocked: the server's addresses were not printed");
    }
}
