//! Tests of exit codes, one-line errors, help, completions, the `listening` line, signals and the log.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::common::program::{Program, outrigger};
use crate::common::traces::{TraceFile, eventually};
use crate::common::{PATIENCE, Wire, call};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;

#[test]
fn help_and_version_go_to_standard_output_with_exit_code_0() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["help"],
        &["echo", "--help"],
        &["app", "-h"],
        &["help", "token"],
        &["token", "--help"],
        &["token", "add", "-h"],
        &["help", "example-agent"],
        &["--version"],
        &["man"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
    ] {
        let output = outrigger(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{args:?}"
        );
    }
    for args in [
        &["--help"][..],
        &["app", "--help"],
        &["serve", "--help"],
        &["token", "--help"],
    ] {
        let help = String::from_utf8(outrigger(args).stdout).expect("UTF-8");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "the line is too long: {line}");
        }
    }
    let help = String::from_utf8(outrigger(&["app", "--help"]).stdout).expect("UTF-8");
    assert!(help.contains("--restart") && help.contains("--ping-interval"));
    let help = String::from_utf8(outrigger(&["echo", "--help"]).stdout).expect("UTF-8");
    assert!(!help.contains("--restart"));
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (args, says) in [
        (&[][..], "missing command"),
        (&["dance"], "unknown command 'dance'"),
        (&["--dance"], "--dance"),
        (&["echo", "--dance"], "unknown option '--dance'"),
        (&["echo", "word"], "unexpected argument 'word'"),
        (
            &["echo", "--", "cat"],
            "unexpected argument 'cat' after '--'",
        ),
        (&["app", "cat"], "put the program after '--'"),
        (&["app", "--"], "missing program after '--'"),
        (&["agent"], "missing program after '--'"),
        (&["serve"], "missing --config FILE.json"),
        (&["token"], "expected 'add', 'list' or 'revoke'"),
        (&["token", "list"], "missing --token-file FILE"),
        (
            &["echo", "--announce-extra", "{}"],
            "--announce-extra has no effect without --announce",
        ),
        (&["app", "--restart"], "--restart requires a program"),
        (&["echo", "--restart"], "unknown option '--restart'"),
        (&["connect"], "missing URL"),
        (&["connect", "ws://x/", "y"], "unexpected argument 'y'"),
        (
            &["connect", "ws://x/", "--", "cat"],
            "unexpected argument 'cat' after '--'",
        ),
        (
            &["connect", "ws://x/", "--listen", "127.0.0.1:0"],
            "unknown option '--listen'",
        ),
        (&["echo", "--give-up", "1s"], "unknown option '--give-up'"),
        (
            &["connect", "ws://x/", "--token-file", "/no/such/file"],
            "--token-file: /no/such/file: ",
        ),
        (&["connect", "ws://x/", "--header", "X"], "NAME: VALUE"),
        (&["echo", "--listen"], "--listen"),
        (&["echo", "--listen", "localhost"], "not HOST:PORT"),
        (&["echo", "--port", "70000"], "not a number from 0 to 65535"),
        (
            &["echo", "-p", "1", "--listen", "0.0.0.0:1"],
            "--port cannot be combined with --listen: write the port after the host",
        ),
        (&["echo", "-x"], "-x"),
        (&["ehco"], "(did you mean 'echo'?)"),
        (&["help", "ehco"], "(did you mean 'echo'?)"),
        (&["echo", "--prot", "1"], "(did you mean '--port'?)"),
        (&["completions"], "missing shell"),
        (&["completions", "tcsh"], "not one of bash, zsh, fish"),
        (&["man", "echo"], "unexpected argument 'echo'"),
        (&["echo", "--max-clients", "0"], "not a number from 1"),
        (&["echo", "--max-message", "lots"], "number of bytes"),
        (&["echo", "--ping-interval", "soon"], "not a time"),
        (&["echo", "--path", "chat"], "begins with '/'"),
        (&["echo", "--log", "loud"], "not one of"),
        (&["echo", "--log-format", "xml"], "neither text nor json"),
    ] {
        let output = outrigger(args);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(
            error.starts_with("outrigger: ") && error.contains(says),
            "{args:?}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_address_in_use_is_one_line_and_exit_code_1() {
    let first = Program::start(&["echo", "--log", "off"]);
    let address = first.address().to_string();
    let output = outrigger(&["echo", "--listen", &address]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.starts_with("outrigger: cannot listen on ") && error.contains(&address),
        "{error}"
    );
}

#[test]
fn a_program_that_cannot_be_found_is_wrong_usage_and_nothing_listens() {
    // The bug: the server printed `listening`, and --check reported valid settings, although the program did not exist.
    let plain = TraceFile::new("no-program");
    fs::write(plain.path(), "text").expect("a file");
    for (program, says) in [
        ("no-such-program", "not found in PATH"),
        ("/no/such/program", "no such file"),
        (&*plain.path(), "it is not an executable file"),
        ("/", "it is not an executable file"),
    ] {
        for command in [
            &["app"][..],
            &["app", "--restart"],
            &["agent"],
            &["pipe"],
            &["terminal"],
            &["terminal", "--check"],
            &["agent", "--check"],
        ] {
            let args = [command, &["--listen", "127.0.0.1:0", "--", program]].concat();
            let output = outrigger(&args);
            let error = String::from_utf8(output.stderr).expect("UTF-8");
            assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
            let start = format!("outrigger: cannot start {program:?}: ");
            assert!(
                error.starts_with(&start) && error.contains(says) && error.lines().count() == 1,
                "{args:?}: {error}"
            );
            assert!(output.stdout.is_empty());
        }
    }
    let found = outrigger(&["terminal", "--check", "--cwd", "/bin", "--", "./sh"]);
    assert_eq!(found.status.code(), Some(0));
}

#[test]
fn a_program_that_cannot_be_started_is_reported_once_and_nothing_listens() {
    // The bug: the failure was logged, and printed again after the `listening` line.
    let script = TraceFile::new("no-interpreter");
    fs::write(script.path(), "#!/no/such/interpreter\n").expect("a file");
    fs::set_permissions(script.path(), fs::Permissions::from_mode(0o755)).expect("a file");
    for command in ["app", "agent"] {
        let output = outrigger(&[command, "--listen", "127.0.0.1:0", "--", &script.path()]);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(error.matches("cannot start").count(), 1, "{error}");
        assert!(error.contains("\noutrigger: cannot start "), "{error}");
        assert!(output.stdout.is_empty());
    }
    let output = outrigger(&["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"]);
    let error = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(
        error.matches("the program exited with code 3").count(),
        1,
        "{error}"
    );
}

#[test]
fn each_address_gets_a_listening_line() {
    let program = Program::start(&["echo", "--listen", "127.0.0.1:0", "--path", "/there"]);
    let (first, second) = (program.address(), program.address());
    assert_ne!(first, second);
    for address in [first, second] {
        let mut wire = Wire::connect(address, "/there");
        wire.send_frame(1, b"x");
        assert_eq!(wire.read_frame().payload, b"x");
    }
    let mut wire = Wire::open(first);
    wire.send(&crate::common::request("/"));
    assert!(wire.read_response().0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_signal_drains_clients_and_exits_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Program::start(&["echo"]);
        let address = program.address();
        let mut wire = Wire::connect(address, "/");
        program.signal(signal);
        assert_eq!(wire.read_close(), (1001, "Server shutting down".to_owned()));
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "no client is accepted"
        );
        wire.send_close(1001);
        wire.expect_end();
        assert_eq!(program.wait().code(), Some(0));
    }
}

#[test]
fn the_drain_timeout_limits_the_wait_for_clients() {
    let mut program =
        Program::start(&["echo", "--drain-timeout", "200ms", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    assert_eq!(program.wait().code(), Some(0));
    wire.expect_end();
}

#[test]
fn a_second_signal_exits_at_once() {
    let mut program = Program::start(&["echo", "--drain-timeout", "1h", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    program.signal(Signal::TERM);
    assert_eq!(wire.read_close().0, 1001);
    // A signal that arrives together with the first counts as the same.
    let mut sent = 0;
    eventually("the program exits", || {
        program.signal(Signal::TERM);
        sent += 1;
        program.has_ended()
    });
    assert!(sent > 1, "{sent}");
    let (status, log) = program.wait_and_read_log();
    assert_eq!(status.code(), Some(1));
    assert!(
        log.contains("cause=shutdown"),
        "the end of each client is logged: {log}"
    );
}

#[test]
fn signals_that_arrive_together_count_as_one() {
    // The bug: a supervisor that sends TERM and INT, or a `^C` that arrives twice, disconnected all clients at once.
    let mut program = Program::start(&["echo", "--close-timeout", "1h"]);
    let mut wire = Wire::connect(program.address(), "/");
    for signal in [Signal::TERM, Signal::INT, Signal::INT, Signal::TERM] {
        program.signal(signal);
    }
    assert_eq!(wire.read_close().0, 1001);
    wire.send_close(1001);
    wire.expect_end();
    assert_eq!(program.wait().code(), Some(0));
}

/// The standard output of a program that succeeds.
fn output_of(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_outrigger"))
}

#[test]
fn the_version_names_the_commit_and_the_features() {
    let text = output_of(program().arg("--version"));
    let (version, features) = text.trim_end().split_once('\n').expect("two lines");
    let commit = version.strip_prefix(concat!("outrigger ", env!("CARGO_PKG_VERSION")));
    let commit = commit.expect(version);
    let features = features.strip_prefix("features: ").expect(features);
    let has = |name: &str| features.split(' ').any(|feature| feature == name);
    assert!(has("cli") && has("server"), "{features}");
    assert_eq!(has("tls"), cfg!(feature = "tls"), "{features}");
    // Packagers name another commit, and a package is no repository.
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let is_own = git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    if is_own && std::env::var_os("OUTRIGGER_COMMIT").is_none() {
        let head = git(&["rev-parse", "HEAD"]).expect("a commit");
        let expected = format!(" ({}", &head[..12]);
        let rest = commit.strip_prefix(&*expected).expect(commit);
        assert!([")", ", modified)"].contains(&rest), "{commit}");
    }
}

/// The commands of the overview.
fn commands() -> Vec<String> {
    let overview = output_of(program().arg("help"));
    let lines = overview.lines().filter(|line| line.starts_with("  "));
    let names = lines.filter_map(|line| line.split_ascii_whitespace().next());
    let names = names.filter(|name| !name.starts_with('-'));
    names.map(str::to_owned).collect()
}

#[test]
fn help_of_a_command_is_the_same_in_both_forms() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        let help = output_of(program().args([&*command, "--help"]));
        assert_eq!(help, output_of(program().args(["help", &command])));
        assert!(help.contains("\nExamples:\n"), "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "the line is too long: {line}");
        }
    }
}

#[test]
fn the_short_help_fits_a_screen_and_begins_as_the_whole_help_does() {
    let mut tried = 0;
    for arguments in [vec!["-h".to_owned()]].into_iter().chain(
        commands()
            .into_iter()
            .map(|name| vec![name, "-h".to_owned()]),
    ) {
        let help = output_of(program().args(&arguments));
        let count = help.lines().count();
        assert!(count <= 40, "{arguments:?}: {count} lines");
        assert!(help.contains("Usage: outrigger") || help.contains("\nExamples:\n"));
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "the line is too long: {line}");
        }
        let Some(end) = help.lines().last().filter(|line| line.contains("--help'")) else {
            continue;
        };
        // It counts the options of the whole help.
        let whole = output_of(program().args([&arguments[0], "--help"]));
        let is_option = |line: &&str| line.starts_with("  -");
        let options = whole.lines().filter(is_option).count();
        assert!(end.contains(&format!("all {options} options")), "{end}");
        let listed: Vec<&str> = help.lines().filter(is_option).collect();
        assert!(listed.len() >= 5, "{help}");
        for line in listed {
            let name = line.split("  ").nth(1).expect("a name");
            assert!(whole.contains(&format!("\n  {name}")), "{name}");
        }
        tried += 1;
    }
    assert!(tried > 5, "{tried}");
}

#[test]
fn help_about_nothing_lists_the_commands() {
    for arguments in [&["help", "nonsense"][..], &["nonsense"]] {
        let output = program().args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(error.lines().count(), 1, "{error}");
        for name in commands() {
            assert!(
                name.starts_with("example-") || error.contains(&name),
                "{error}"
            );
        }
    }
}

#[test]
fn every_example_in_the_help_works() {
    let folder = std::env::temp_dir().join(format!("outrigger-examples-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder");
    let private = fs::Permissions::from_mode(0o600);
    fs::write(folder.join("tokens"), "admin all 0123456789abcdef\n").expect("a file");
    fs::set_permissions(folder.join("tokens"), private).expect("a file");
    fs::write(
        folder.join("outrigger.json"),
        r#"{"routes":{"/":{"echo":{}}}}"#,
    )
    .expect("a file");
    let servers = r#"{"mcpServers":{"files":{"command":"cat"}}}"#;
    fs::write(folder.join("mcp.json"), servers).expect("a file");
    // The programs of the examples, which may not be installed.
    for name in ["bash", "top", "tail", "cat"] {
        let file = folder.join(name);
        fs::write(&file, "#!/bin/sh\n").expect("a file");
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("a file");
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_outrigger"), folder.join("outrigger"))
        .expect("a link");
    let mut tried = 0;
    for command in commands() {
        let help = output_of(program().args(["help", &command]));
        let examples = help.split("\nExamples:\n").nth(1).unwrap_or_default();
        let examples = examples.split("\n\n").next().unwrap_or_default();
        for line in examples.lines().filter(|line| !line.starts_with("  # ")) {
            // What surrounds the command is for the reader's shell.
            let line = line.trim().trim_start_matches("source <(");
            let line = line.split([')', '|', '>']).next().unwrap_or_default();
            let line = match &*command {
                "connect" | "attach" | "upgrade" => continue,
                "token" | "completions" | "man" | "help" => line.to_owned(),
                _ => match line.split_once(" -- ") {
                    Some((options, program)) => format!("{options} --check -- {program}"),
                    None => format!("{line} --check"),
                },
            };
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &line]).current_dir(&folder);
            output_of(shell.env("PATH", &folder).env_remove("OUTRIGGER_TOKEN"));
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
    fs::remove_dir_all(folder).expect("its own folder");
}

#[test]
fn bash_completes_commands_options_values_and_the_program() {
    // `.ci/run shells` has the other shells, and more cases.
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("bash is not installed: its completions were not tested");
        return;
    }
    let script = r#"source <("$1" completions bash); COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2))
        _outrigger; printf '%s\n' "${COMPREPLY[@]}""#;
    for (words, offered) in [
        (&["ec"][..], "echo"),
        (&["echo", "--log", "d"], "debug"),
        (&["echo", "--log", "=", "d"], "debug"),
        (&["echo", "--por"], "--port\n--port-range"),
        (&["token", "r"], "revoke"),
        (&["completions", ""], "bash\nzsh\nfish"),
        (&["echo", "--max-clients", ""], ""),
        (&["echo", "--config", "Cargo.t"], "Cargo.toml"),
        (&["terminal", "--", "cat", "Cargo.t"], "Cargo.toml"),
    ] {
        let mut bash = Command::new("bash");
        bash.args([
            "--norc",
            "-c",
            script,
            "bash",
            env!("CARGO_BIN_EXE_outrigger"),
        ]);
        let found = output_of(bash.arg("outrigger").args(words));
        assert_eq!(found.trim_end(), offered, "{words:?}");
    }
}

#[test]
fn a_port_is_one_of_127_0_0_1_and_overrides_the_file() {
    let file = TraceFile::new("port");
    fs::write(file.path(), r#"{"listen": "[::1]:0"}"#).expect("a file");
    let path = file.path();
    for args in [
        &["-p", "0"][..],
        &["--port", "0", "--config", &path],
        &["--listen", ":0"],
        &["--listen", "0"],
    ] {
        let server = Program::spawn(program().arg("echo").args(args));
        let address = server.address();
        assert_eq!(address.ip().to_string(), "127.0.0.1", "{args:?}");
        Wire::connect(address, "/");
    }
    fs::write(file.path(), r#"{"port": 0}"#).expect("a file");
    let server = Program::spawn(program().args(["echo", "--config", &path]));
    assert_eq!(server.address().ip().to_string(), "127.0.0.1");
    let mut command = program();
    command.args(["echo", "--config", &path, "--listen", "[::1]:0"]);
    let server = Program::spawn(&mut command);
    assert_eq!(server.address().ip().to_string(), "::1");
}

/// A terminal: its master, and its slave.
fn open_terminal() -> (fs::File, fs::File) {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    rustix::pty::unlockpt(&master).expect("a terminal");
    let name = rustix::pty::ptsname(&master, Vec::new()).expect("a name");
    let name = name.into_string().expect("UTF-8");
    let slave = fs::File::options().read(true).write(true).open(name);
    (master.into(), slave.expect("a terminal"))
}

#[test]
fn terminals_get_colors_and_files_do_not() {
    let help = |variables: &[(&str, &str)]| {
        let mut command = program();
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        output_of(
            command
                .args(["echo", "--help"])
                .envs(variables.iter().copied()),
        )
    };
    let plain = help(&[("TERM", "xterm")]);
    assert!(
        !plain.contains('\x1b') && plain.contains("\nUsage: "),
        "{plain}"
    );
    let forced = help(&[("CLICOLOR_FORCE", "1")]);
    assert!(forced.contains("\x1b[1mUsage:\x1b[0m"), "{forced}");
    assert_eq!(help(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), plain);

    let (master, slave) = open_terminal();
    let lines = lines_of(master);
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = program();
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.env("TERM", "xterm").envs(variables.iter().copied());
        let stderr = slave.try_clone().expect("a second handle");
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(stderr).status().expect("it starts");
        lines.recv_timeout(PATIENCE).expect("a line")
    };
    let error = "unknown command 'agnet' (did you mean 'agent'?); see 'outrigger --help'";
    let colored = format!("\x1b[1;31moutrigger:\x1b[0m {error}");
    assert_eq!(run(&["agnet"], &[]), colored);
    for off in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        assert_eq!(run(&["agnet"], &[off]), format!("outrigger: {error}"));
    }
    // A weak setting is logged, and the address is not one of this machine.
    let args = ["echo", "--no-auth", "--listen", "192.0.2.1:0"];
    let line = run(&args, &[]);
    assert!(line.contains(" \x1b[33mWARN \x1b[0m "), "{line}");
    lines.recv_timeout(PATIENCE).expect("why it fails");
    let json = [&args[..], &["--log-format", "json"]].concat();
    let line = run(&json, &[]);
    let record: serde_json::Value = serde_json::from_str(&line).expect(&line);
    assert_eq!(record["level"], "warn", "{line}");
}

/// Starts `echo` with this standard error. Returns it and its address.
fn logging_to(stderr: impl Into<Stdio>) -> (Child, SocketAddr) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["echo", "--listen", "127.0.0.1:0", "--path", "/..."])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let stdout = server.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let url = line.rsplit("ws://").next().expect("a URL");
    let address = url.trim_end().trim_end_matches('/').parse();
    (server, address.expect("an address"))
}

/// The lines that are written to the other end.
fn lines_of(reader: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = BufReader::new(reader).lines().map_while(Result::ok);
        all.try_for_each(|line| sender.send(line))
    });
    lines
}

/// Connects some clients, each of which is logged.
fn come_and_go(address: SocketAddr, path: &str) {
    for _ in 0..10 {
        let mut wire = Wire::connect(address, path);
        wire.send_frame(1, b"still here");
        assert_eq!(wire.read_frame().payload, b"still here");
    }
}

#[test]
fn a_log_without_a_reader_does_not_block_the_server() {
    // The bugs: a full pipe kept the program from exiting, and lost lines were not reported.
    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    let mut filled = 0;
    while let Ok(count) = writer.write(&[b'x'; 4096]) {
        filled += count;
    }
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe");
    let (mut server, address) = logging_to(writer.try_clone().expect("a second handle"));
    come_and_go(address, "/");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("a pipe");
    assert!(
        !flags.contains(rustix::fs::OFlags::NONBLOCK),
        "it is shared"
    );
    reader.read_exact(&mut vec![0; filled]).expect("it is full");
    come_and_go(address, "/again");
    let (mut dropped, mut again) = (false, false);
    let lines = lines_of(reader.try_clone().expect("a second handle"));
    while !again {
        let line = lines.recv_timeout(PATIENCE).expect("a line");
        dropped |= line.contains("lines of the log were dropped");
        again |= line.contains("/again");
    }
    assert!(dropped, "dropped lines are reported first");
    // With a full pipe, the program still exits, and so does one that reports a failure.
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe");
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it runs");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
    let status = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"])
        .stdout(writer.try_clone().expect("a second handle"))
        .stderr(writer)
        .status();
    assert_eq!(status.expect("it ends").code(), Some(1));
}

#[test]
fn a_stopped_terminal_does_not_block_the_server() {
    // The bug: ^S in the terminal of the log blocked the server.
    let (mut master, slave) = open_terminal();
    let lines = lines_of(master.try_clone().expect("a second handle"));
    let (mut server, address) = logging_to(slave.try_clone().expect("a second handle"));
    let mut press = |key: &[u8], goes: bool| {
        master.write_all(key).expect("a terminal");
        eventually("the terminal stops or continues", || {
            let mut fds = [PollFd::new(&slave, PollFlags::OUT)];
            (poll(&mut fds, Some(&Timespec::default())) == Ok(1)) == goes
        });
    };
    press(b"\x13", false);
    come_and_go(address, "/stopped");
    press(b"\x11", true);
    come_and_go(address, "/again");
    let (mut dropped, mut again) = (false, false);
    while !again {
        let line = lines.recv_timeout(PATIENCE).expect("a line");
        dropped |= line.contains("lines of the log were dropped");
        again |= line.contains("/again");
    }
    assert!(dropped, "dropped lines are reported first");
    press(b"\x13", false);
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it runs");
    assert_eq!(server.wait().expect("it ends").code(), Some(0));
}

#[test]
fn clients_cannot_flood_the_log() {
    // The bug: a client without a token could cause 1.3 MB of log per second.
    let mut program = Program::start(&["echo", "--path", "/there"]);
    let address = program.address();
    for _ in 0..1000 {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request("/nowhere"));
        assert!(wire.read_head().starts_with("HTTP/1.1 404 "));
    }
    let mut other = Wire::connect(address, "/there");
    other.send_close(1000);
    other.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    let refused = log.matches("refused: 404").count();
    assert!((100..500).contains(&refused), "{refused}");
    assert!(log.contains("suppressed"), "{log}");
    assert!(
        log.contains("path=\"/there\""),
        "other kinds of lines have their own limit: {log}"
    );
    // At `debug` the log is complete.
    let mut program = Program::start(&["echo", "--path", "/there", "--log", "debug"]);
    let address = program.address();
    let reading = program.read_log();
    for _ in 0..300 {
        let mut wire = Wire::open(address);
        wire.send(&crate::common::request("/nowhere"));
        wire.read_head();
    }
    program.signal(Signal::TERM);
    program.wait();
    let log = reading.join().expect("it is read");
    assert_eq!(log.matches("refused: 404").count(), 300);
}

#[test]
fn the_log_is_text_or_json_and_cannot_be_forged() {
    let mut program = Program::start(&["echo", "--log-format", "json", "--path", "/..."]);
    let mut wire = Wire::connect(program.address(), "/a%0a\"b");
    wire.send_frame(8, b"\x03\xe8two\nlines");
    wire.read_close();
    program.signal(Signal::TERM);
    let (_, log) = program.wait_and_read_log();
    for line in log.lines() {
        let record: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        assert!(
            record["time"].is_string()
                && record["level"].is_string()
                && record["message"].is_string()
        );
    }
    assert!(log.contains("\"code\":1000"), "{log}");
}

#[test]
fn a_failure_exits_with_1_even_if_standard_error_is_closed() {
    // The bug: printing the failure to a closed pipe panicked, and the exit code was that of an abort.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["app", "--listen", "127.0.0.1:0", "--", "sh", "-c", "exit 3"])
        .stdout(writer.try_clone().expect("a second handle"))
        .stderr(writer)
        .status()
        .expect("the program runs");
    assert_eq!(status.code(), Some(1));
}

#[test]
fn the_server_survives_running_out_of_descriptors() {
    // A shell sets the limit. Whoever runs the test may leave it some descriptors.
    let script = "ulimit -n 64; exec \"$0\" echo --listen 127.0.0.1:0 --handshake-timeout 0 --ping-interval 0";
    let program =
        Program::spawn(Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_outrigger")]));
    let address = program.address();
    let mut clients: Vec<_> = (0..15).map(|_| Wire::connect(address, "/")).collect();
    let healthy = |expected: u16| {
        eventually("the answer to a health check", || {
            call(address, "GET", "/healthz", None).0 == expected
        });
    };
    healthy(200);
    // These fill the process's descriptor table. The bug: the rest, and health checks, waited in the kernel's queue.
    let waiting: Vec<_> = (0..60).map(|_| Wire::open(address)).collect();
    healthy(503);
    let mut refused = Wire::open(address);
    refused.send(&crate::common::request("/"));
    let head = refused.read_head();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    for client in &mut clients {
        client.send_frame(1, b"still here");
        assert_eq!(client.read_frame().payload, b"still here");
    }
    drop((clients, waiting));
    healthy(200);
    Wire::connect(address, "/");
    let mut metrics = String::new();
    let mut wire = Wire::open(address);
    wire.send(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    wire.stream.read_to_string(&mut metrics).expect("text");
    let counted = "outrigger_refusals_total{reason=\"descriptors\"} ";
    assert!(metrics.contains(counted), "{metrics}");
}

#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "needs env of GNU coreutils, and reads /proc"
)]
fn signals_that_the_parent_has_blocked_still_stop_the_server() {
    // The bug: a server that was started with TERM blocked could only be killed.
    let mut command = Command::new("env");
    command.args([
        "--block-signal=TERM,HUP,CHLD",
        env!("CARGO_BIN_EXE_outrigger"),
    ]);
    command.args(["pipe", "--no-auth", "--listen", "127.0.0.1:0"]);
    command.args(["--", "grep", "SigBlk", "/proc/self/status"]);
    let mut server = Program::spawn(&mut command);
    let mut client = Wire::connect(server.address(), "/");
    assert_eq!(client.read_frame().payload, b"SigBlk:\t0000000000000000");
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}
