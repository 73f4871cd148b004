//! Tests of `outrigger token`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::common::Wire;
use crate::common::program::{Program, outrigger};
use crate::common::terminal::OnTerminal;
use crate::common::traces::TraceFile;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// The status of a request with a token.
fn status(address: SocketAddr, target: &str, secret: &str) -> u16 {
    let mut wire = Wire::open(address);
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n\r\n"
    );
    wire.send(head.as_bytes());
    wire.read_head()[9..12].parse().expect("a number")
}

#[test]
fn the_token_command_adds_lists_and_revokes() {
    let file = TraceFile::new("edited");
    let path = file.path();
    let run = |args: &[&str]| {
        let output = outrigger(&[&["token"], args, &["--token-file", &path]].concat());
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let mode = || fs::metadata(&path).expect("the file").permissions().mode() & 0o777;
    let (code, first, said) = run(&["add", "ada"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((first.trim().len(), mode()), (64, 0o600));
    assert!(
        said.contains("SIGHUP") && !said.contains(first.trim()),
        "{said}"
    );
    assert!(file.text().starts_with("ada all sha256:") && !file.text().contains(first.trim()));
    let (_, second, _) = run(&["add", "bob", "--scope", "metrics"]);
    // A file keeps its mode and its comments, and a link stays a link.
    fs::write(&path, format!("# ours\n{}", file.text())).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("a file");
    let link = TraceFile::new("edited-link");
    symlink(&path, link.path()).expect("a link");
    let args = [
        "token",
        "add",
        "eve",
        "--scope=watch",
        "--token-file",
        &link.path(),
    ];
    assert_eq!(outrigger(&args).status.code(), Some(0));
    assert!(
        fs::symlink_metadata(link.path())
            .expect("a link")
            .is_symlink()
    );
    assert_eq!(mode(), 0o640);
    assert!(
        file.text().starts_with("# ours\nada all "),
        "{}",
        file.text()
    );
    let (code, listed, _) = run(&["list"]);
    assert_eq!(
        (code, &*listed),
        (Some(0), "ada all\nbob metrics\neve watch\n")
    );

    // The secrets that were printed are those that a server accepts.
    let mut command = Command::new(OUTRIGGER);
    command.args([
        "echo",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "off",
        "--token-file",
        &path,
    ]);
    let server = Program::spawn(&mut command);
    let address = server.address();
    assert_eq!(status(address, "/", first.trim()), 426);
    assert_eq!(status(address, "/", second.trim()), 403);
    assert_eq!(status(address, "/status", second.trim()), 200);
    let digest = file.text();
    let digest = digest
        .lines()
        .nth(1)
        .and_then(|line| line.split(' ').nth(2));
    assert_eq!(status(address, "/", digest.expect("a digest")), 401);

    let before = file.text();
    for (args, code, says) in [
        (
            &["add", "ada"][..],
            1,
            "'ada' has a token of the scope all already",
        ),
        (&["revoke", "zoe"], 1, "there is no token 'zoe'"),
        (&["add", "a b"], 2, "'a b' is no name"),
        (&["add", "nobody"], 2, "'nobody' is no name"),
        (&["add", "zoe", "--scope", "root"], 2, "--scope: "),
        (&["add"], 2, "missing NAME"),
        (&["revoke", "a", "b"], 2, "unexpected argument 'b'"),
        (&["list", "--scope", "all"], 2, "--scope has no effect"),
        (&["dance"], 2, "expected 'add', 'list' or 'revoke'"),
        (&[], 2, "expected 'add', 'list' or 'revoke'"),
        (&["list", "--dance"], 2, "unknown option '--dance'"),
    ] {
        let (found, stdout, error) = run(args);
        assert_eq!(found, Some(code), "{args:?}: {error}");
        assert!(
            error.starts_with("outrigger: ") && error.contains(says),
            "{error}"
        );
        assert_eq!((error.lines().count(), &*stdout), (1, ""), "{error}");
    }
    assert_eq!(file.text(), before);
    for name in ["ada", "bob"] {
        assert_eq!(run(&["revoke", name]).0, Some(0));
    }
    let (code, _, error) = run(&["revoke", "eve"]);
    assert!(
        code == Some(1) && error.contains("'eve' is the last token"),
        "{error}"
    );
    assert_eq!(run(&["list"]).1, "eve watch\n");

    // The token of a file with one word is kept under the name that it has had.
    fs::write(&path, "s3cret-0123456789\n").expect("a file");
    assert_eq!(run(&["list"]).1, "default all\n");
    assert_eq!(run(&["revoke", "default"]).0, Some(1));
    assert_eq!(run(&["add", "ada"]).0, Some(0));
    assert!(
        file.text()
            .starts_with("default all s3cret-0123456789\nada all sha256:")
    );
    assert_eq!(run(&["revoke", "default"]).0, Some(0));
    assert_eq!(run(&["list"]).1, "ada all\n");
    // A file that is not valid stays as it is, and an absent one is not listed.
    fs::write(&path, "ada all\n").expect("a file");
    for args in [&["add", "bob"][..], &["list"], &["revoke", "ada"]] {
        let (code, _, error) = run(args);
        assert!(
            code == Some(2) && error.contains("line 1: expected NAME"),
            "{error}"
        );
    }
    fs::remove_file(&path).expect("a file");
    assert_eq!(run(&["list"]).0, Some(1));
    let folder = Path::new(&path).parent().expect("a folder");
    let name = format!("outrigger-edited-{}.", std::process::id());
    let left = fs::read_dir(folder).expect("readable").filter(|entry| {
        let entry = entry.as_ref().expect("readable").file_name();
        entry.to_string_lossy().starts_with(&name)
    });
    assert_eq!(left.count(), 0, "no temporary file is left");
}

#[test]
fn sighup_reloads_the_token_file_of_a_server_in_a_terminal_and_a_closed_terminal_stops_it() {
    // The bug: `token add` recommends SIGHUP, which stopped a server that somebody had started in a terminal.
    let file = TraceFile::new("in-terminal");
    let path = file.path();
    let add = |name: &str| {
        let output = outrigger(&["token", "add", name, "--token-file", &path]);
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    add("ada");
    let listen = ["--listen", "127.0.0.1:0"];
    let token_file = ["--token-file", &path];
    let mut terminal =
        OnTerminal::start(&[&[OUTRIGGER, "echo"], &listen[..], &token_file].concat());
    let address = terminal.address();
    let secret = add("bob");
    assert_eq!(status(address, "/", secret.trim()), 401);
    terminal.signal(Signal::HUP);
    terminal.expect("reloaded access settings");
    assert_eq!(status(address, "/", secret.trim()), 426);
    terminal.hang_up();
    assert_eq!(terminal.code(), Some(0));

    // There is nothing to reload.
    let mut terminal = OnTerminal::start(&[&[OUTRIGGER, "echo"], &listen[..]].concat());
    terminal.address();
    terminal.signal(Signal::HUP);
    assert_eq!(terminal.code(), Some(0));
}
