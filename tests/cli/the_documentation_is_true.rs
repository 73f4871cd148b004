//! Tests of the documentation: it has every option with its default and no other option, every link has a target, and what it
//! says about access is what the program does.

#[cfg(feature = "deflate")]
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::PATIENCE;
use crate::common::program::Program;
#[cfg(any(feature = "deflate", feature = "tls"))]
use crate::common::program::outrigger;
use crate::common::traces::TraceFile;
use rustix::process::Signal;

#[cfg(feature = "deflate")]
const COMMANDS: [&str; 15] = [
    "agent",
    "terminal",
    "processes",
    "app",
    "mcp",
    "pipe",
    "echo",
    "serve",
    "demo",
    "connect",
    "attach",
    "token",
    "completions",
    "man",
    "help",
];

/// Every option of all commands, with its defaults in the help. They can differ between commands.
#[cfg(feature = "deflate")]
fn options() -> BTreeMap<String, BTreeSet<String>> {
    let mut options: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for command in COMMANDS {
        let help = String::from_utf8(outrigger(&[command, "--help"]).stdout).expect("UTF-8");
        let mut entries: Vec<String> = Vec::new();
        for line in help.lines() {
            // A letter precedes the names of some options.
            let name = line.strip_prefix("  --").or_else(|| {
                let (_, name) = line.strip_prefix("  -")?.split_once(", --")?;
                Some(name)
            });
            match name {
                Some(entry) => entries.push(entry.to_owned()),
                None if line.starts_with("          ") && !entries.is_empty() => {
                    let last = entries.last_mut().expect("not empty");
                    last.push(' ');
                    last.push_str(line.trim());
                }
                None => {}
            }
        }
        for entry in entries {
            let name = entry.split(' ').next().unwrap_or_default().to_owned();
            let default = entry.trim_end().strip_suffix(']');
            let default = default.and_then(|entry| entry.rsplit_once('['));
            let defaults = options.entry(name).or_default();
            defaults.extend(default.map(|(_, default)| default.to_owned()));
        }
    }
    options
}

// A build without compression does not have its options.
#[cfg(feature = "deflate")]
#[test]
fn every_option_is_in_the_reference_with_its_default() {
    let reference = std::fs::read_to_string("docs/configuration.md").expect("it is there");
    let options = options();
    assert!(options.len() > 40, "{options:?}");
    for (name, defaults) in &options {
        let marks = [format!("`--{name}`"), format!("`--{name} ")];
        let rows: Vec<_> = reference
            .lines()
            .filter(|line| line.starts_with("| `--"))
            .filter(|line| marks.iter().any(|mark| line.contains(mark)))
            .collect();
        assert!(!rows.is_empty(), "--{name} is not in the reference");
        // A default that is a number must be in a row of the option.
        for word in defaults
            .iter()
            .flat_map(|default| default.split([';', ',', ' ']))
        {
            let is_value = word.starts_with(|c: char| c.is_ascii_digit());
            assert!(
                !is_value || rows.iter().any(|row| row.contains(word)),
                "--{name}: {word} is not in: {rows:?}"
            );
        }
    }
    for word in reference.split('`').filter(|word| word.starts_with("--")) {
        let name = word[2..].split([' ', '=']).next().unwrap_or_default();
        // The separator is no option.
        assert!(
            word == "--" || options.contains_key(name),
            "there is no --{name}"
        );
    }
}

#[test]
fn every_link_has_a_target() {
    let pages = std::fs::read_dir("docs").expect("it is there");
    let mut pages: Vec<_> = pages
        .map(|page| page.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "packaging/README.md",
    ] {
        pages.push(page.into());
    }
    let mut links = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for target in text.split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = page.parent().expect("a folder");
            let file = if file.is_empty() {
                page.clone()
            } else {
                folder.join(file)
            };
            assert!(
                Path::new(&file).exists(),
                "{}: {target} is not there",
                page.display()
            );
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&file).expect("a page");
                // As GitHub makes anchors of headings.
                let heading = |line: &str| {
                    let words = line.trim_start_matches('#').trim().to_lowercase();
                    let kept = |&letter: &char| letter.is_alphanumeric() || " -_".contains(letter);
                    let words: String = words.chars().filter(kept).collect();
                    line.starts_with('#') && words.replace(' ', "-") == anchor
                };
                assert!(text.lines().any(heading), "{}: #{anchor}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 30, "{links}");
}

#[test]
fn the_front_door_is_short_and_names_the_version_of_rust() {
    for (page, most) in [("README.md", 200), ("CHANGELOG.md", 80)] {
        let text = std::fs::read_to_string(page).expect("a page");
        assert!(
            text.lines().count() <= most,
            "{page} is longer than {most} lines"
        );
    }
    let manifest = std::fs::read_to_string("Cargo.toml").expect("it is there");
    let version = manifest
        .split("rust-version = \"")
        .nth(1)
        .expect("a version");
    let version = version.split('"').next().expect("it ends");
    let readme = std::fs::read_to_string("README.md").expect("it is there");
    assert!(readme.contains(&format!("[Rust](https://rustup.rs) {version}")));
}

#[cfg(feature = "tls")]
#[test]
fn settings_for_editors_are_json_with_a_command_that_exists() {
    let page = std::fs::read_to_string("docs/connecting.md").expect("it is there");
    let mut count = 0;
    for block in page.split("```json\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let settings: serde_json::Value = serde_json::from_str(block).expect(block);
        let servers = settings.as_object().and_then(|one| one.values().next());
        let server = &servers.expect(block)["devbox"];
        assert_eq!(server["command"], "outrigger", "{block}");
        let args = server["args"].as_array().expect(block).iter();
        let mut args: Vec<&str> = args.filter_map(|arg| arg.as_str()).collect();
        // The file does not exist, which is the only thing that may be wrong.
        let output = outrigger(&args);
        let error = String::from_utf8(output.stderr).expect("UTF-8");
        let file = args.pop().expect("a file");
        assert!(
            error.contains(&format!("--token-file: {file}: ")),
            "{error}"
        );
        count += 1;
    }
    assert!(count >= 3, "{count}");
}

/// Makes an HTTP call, with a token unless it is empty, and returns the answer.
fn ask(address: &str, request: &str, token: &str, body: &str) -> String {
    let mut fields = String::new();
    if !token.is_empty() {
        fields += &format!("Authorization: Bearer {token}\r\n");
    }
    if !body.is_empty() {
        let length = body.len();
        fields += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    }
    let head =
        format!("{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{fields}\r\n");
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket.write_all(head.as_bytes()).expect("it reads");
    socket.write_all(body.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("it answers");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The scopes from the lowest to the highest.
const SCOPES: [&str; 4] = ["metrics", "watch", "use", "all"];

/// The token of a scope, or nothing for any other text.
fn token_of(scope: &str) -> String {
    if SCOPES.contains(&scope) {
        format!("{scope}-0123456789abcdef")
    } else {
        String::new()
    }
}

/// A server with the console and a token of each scope.
fn with_scopes(test: &str) -> (Program, String) {
    let tokens = TraceFile::new(test);
    let lines = SCOPES.map(|scope| format!("{scope} {scope} {}\n", token_of(scope)));
    std::fs::write(tokens.path(), lines.concat()).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(tokens.path(), mode).expect("a file");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["processes", "--listen", "127.0.0.1:0", "--token-file"]);
    let server = Program::spawn(command.arg(tokens.path()));
    let address = server.address().to_string();
    (server, address)
}

/// The status with which a request is answered.
fn status(address: &str, request: &str, scope: &str, body: &str) -> u16 {
    let answer = ask(address, request, &token_of(scope), body);
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    status.unwrap_or_else(|| panic!("{request}: {answer}"))
}

/// The rows of the table whose first row of names begins like this.
fn table(page: &str, begins: &str) -> Vec<Vec<String>> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(begins));
    let first = lines.next();
    assert!(first.is_some(), "{begins}");
    let rows = lines.skip(1).take_while(|line| line.starts_with("| "));
    let cells = |row: &str| -> Vec<String> {
        let row = row.trim_matches(['|', ' ']);
        row.split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    first.into_iter().chain(rows).map(cells).collect()
}

const BROWSER: &str = "docs/browser.md";

#[test]
fn each_scope_opens_what_its_row_says() {
    let page = std::fs::read_to_string(BROWSER).expect("it is there");
    let table = table(&page, "| scope | pages");
    let (server, address) = with_scopes("documented-scopes");
    // One request for each column. There is no such process, so a request that is allowed gets 404.
    let nobody = "/process/00000000-0000-4000-8000-000000000000";
    let requests = [
        "GET /".to_owned(),
        "GET /.outrigger/session".to_owned(),
        "GET /status".to_owned(),
        format!("GET {nobody}/attach?mode=viewer"),
        format!("GET {nobody}/attach"),
        "GET /process".to_owned(),
    ];
    let mut scopes = Vec::new();
    for row in &table[1..] {
        assert_eq!(row.len(), requests.len() + 1, "{row:?}");
        let name = row[0].trim_matches('`');
        if name == "a link" {
            continue;
        }
        assert!(name == "no token" || SCOPES.contains(&name), "{name}");
        scopes.push(name);
        for (cell, request) in row[1..].iter().zip(&requests) {
            let status = status(&address, request, name, "");
            let is_allowed = !matches!(status, 401 | 403);
            let expected = if is_allowed {
                "yes".to_owned()
            } else {
                status.to_string()
            };
            assert_eq!(*cell, expected, "{name}: {request}");
        }
    }
    assert_eq!(scopes, [["no token"].as_slice(), &SCOPES].concat());
    drop(server);
}

#[test]
fn every_resource_of_the_pages_is_there_and_needs_its_scope() {
    let page = std::fs::read_to_string(BROWSER).expect("it is there");
    let (server, address) = with_scopes("documented-resources");
    let sample = |path: &str| {
        path.replace("links/ID", "links/1")
            .replace("clients/ID", "clients/c1000000")
            .replace("SEQ", "1")
            .replace("NAME", "console.js")
    };
    let mut named = 0;
    let words = page.split('`').flat_map(|code| code.split(' '));
    for path in words.filter(|word| word.starts_with("/.outrigger/")) {
        // It is in programs with the feature `web` alone.
        if path.ends_with("LICENSES.txt") && !cfg!(feature = "web") {
            continue;
        }
        // A resource that has another method gets 405.
        let status = status(&address, &format!("GET {}", sample(path)), "all", "");
        assert!(matches!(status, 200 | 405), "{path}: {status}");
        named += 1;
    }
    assert!(named > 8, "{named}");

    let mut checked = 0;
    for row in &table(&page, "| request | scope |")[1..] {
        let scope = row[1].trim_matches('`');
        for request in row[0].split('`').filter(|part| part.contains(" /")) {
            let request = sample(request);
            let body = if request.starts_with("POST") {
                "{}"
            } else {
                ""
            };
            let outcomes = [["no token"].as_slice(), &SCOPES].concat().into_iter();
            let outcomes =
                outcomes.map(|holder| (holder, status(&address, &request, holder, body)));
            let first = outcomes
                .into_iter()
                .find(|(_, status)| !matches!(status, 401 | 403));
            let lowest = match first {
                Some(("no token", _)) => "none",
                Some(("metrics", _)) if scope == "any" => "any",
                Some((holder, _)) => holder,
                None => "nobody",
            };
            assert_eq!(lowest, scope, "{request}");
            checked += 1;
        }
    }
    assert!(checked > 8, "{checked}");
    drop(server);
}

#[test]
fn the_demo_prints_what_to_try_and_serves_its_page() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["demo", "--listen", "127.0.0.1:0"]);
    let mut demo = Program::spawn(&mut command);
    let mut told = Vec::new();
    while told
        .last()
        .is_none_or(|line: &String| !line.contains("^C ends"))
    {
        told.push(demo.line());
    }
    // The console comes first, and nothing else is between the lines: the log is quiet.
    assert!(told[0].starts_with("Open the console"), "{told:?}");
    let begins = [
        "Open ",
        "Or ",
        "  # ",
        "  http://",
        "  echo ",
        "  curl ",
        "  /",
        "outrigger: listening on ",
        "^C ends",
    ];
    for line in &told {
        let is_known = line.is_empty() || begins.iter().any(|begin| line.starts_with(begin));
        assert!(is_known, "{line}");
    }
    for part in [
        "/echo?token=",
        "/terminal?token=",
        "/process/exec",
        "/app?token=",
        "/acp?token=",
        " connect --no-json '",
        " attach '",
        "curl",
    ] {
        assert!(told.iter().any(|line| line.contains(part)), "{part}");
    }
    // The commands can be pasted.
    for (part, input, output, code) in [
        ("/echo?", "hello\n", "hello\n", 0),
        ("/terminal?", "echo $((6*7)); exit 7\n", "42", 7),
        ("/acp?", "", "\"protocolVersion\":1", 0),
    ] {
        let mut lines = told.iter().filter(|line| !line.contains("listening"));
        let line = lines.find(|line| line.contains(part)).expect(part);
        let mut command = std::process::Command::new("sh");
        let mut pasted = Program::spawn(command.args(["-c", line.trim()]));
        pasted.write_text(input);
        pasted.end_input();
        let shown = pasted.rest().join("\n") + "\n";
        assert!(shown.contains(output), "{line}: {shown}");
        assert_eq!(pasted.wait().code(), Some(code), "{line}");
    }
    let link = told
        .iter()
        .find_map(|line| line.trim().strip_prefix("http://"))
        .expect("a link");
    let (page, token) = link.split_once("#token=").expect("a token");
    let address = page.strip_suffix('/').expect("a path");
    // The page is for everybody. What it shows is not.
    let answer = ask(address, "GET /", "", "");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let is_page = answer.contains("\r\nContent-Type: text/html; charset=utf-8\r\n");
    assert!(is_page, "{answer}");
    let stranger = ask(address, "GET /status", "", "");
    assert!(stranger.starts_with("HTTP/1.1 401 "), "{stranger}");
    let holder = ask(address, "GET /status", token, "");
    assert!(holder.starts_with("HTTP/1.1 200 "), "{holder}");
    demo.signal(Signal::TERM);
    assert_eq!(demo.wait().code(), Some(0));
}

/// The bug: the unit said that a reload reads its credential again, but systemd copies a credential once, when it starts the service, so
/// the old token stayed valid.
#[test]
fn a_unit_that_reloads_its_token_reads_the_file_itself() {
    for unit in [
        "examples/deploy/outrigger.service",
        "packaging/deb/outrigger.service",
    ] {
        let text = std::fs::read_to_string(unit).expect("it is there");
        let settings: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let has = |name: &str| settings.iter().any(|line| line.starts_with(name));
        assert!(has("ExecReload=") && has("User=outrigger"), "{unit}");
        for copied in [
            "LoadCredential",
            "SetCredential",
            "DynamicUser",
            "Environment",
        ] {
            assert!(!has(copied), "{unit}: {copied}");
        }
    }
}
