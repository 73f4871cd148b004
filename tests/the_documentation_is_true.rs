//! Tests of the documentation: it has every option with its default and no other option, and every link has a target.

mod common;

#[cfg(feature = "deflate")]
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use common::PATIENCE;
use common::program::Program;
#[cfg(any(feature = "deflate", feature = "tls"))]
use common::program::outrigger;
use rustix::process::Signal;

#[cfg(feature = "deflate")]
const COMMANDS: [&str; 12] = [
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
];

/// Every option of all commands, with its defaults in the help. They can differ between commands.
#[cfg(feature = "deflate")]
fn options() -> BTreeMap<String, BTreeSet<String>> {
    let mut options: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for command in COMMANDS {
        let help = String::from_utf8(outrigger(&[command, "--help"]).stdout).expect("UTF-8");
        let mut entries: Vec<String> = Vec::new();
        for line in help.lines() {
            match line.strip_prefix("  --") {
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
        assert!(options.contains_key(name), "there is no --{name}");
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
                let heading = |line: &str| {
                    let words = line.trim_start_matches('#').trim().to_lowercase();
                    line.starts_with('#') && words.replace(' ', "-") == anchor
                };
                assert!(text.lines().any(heading), "{}: #{anchor}", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 30, "{links}");
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
    assert!(count > 3, "{count}");
}

#[test]
fn the_demo_prints_what_to_try_and_serves_its_page() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(["demo", "--listen", "127.0.0.1:0", "--log", "warn"]);
    let mut demo = Program::spawn(&mut command);
    let call = |address: &str, target: &str| {
        let request =
            format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        socket.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        answer
    };
    let mut told = Vec::new();
    while told
        .last()
        .is_none_or(|line: &String| !line.contains("^C ends"))
    {
        told.push(demo.line());
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
    let (address, query) = link.split_once('/').expect("a path");
    let answer = call(address, &format!("/{query}"));
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("<title>Outrigger</title>"));
    let stranger = call(address, "/");
    assert!(stranger.starts_with("HTTP/1.1 401 "), "{stranger}");
    demo.signal(Signal::TERM);
    assert_eq!(demo.wait().code(), Some(0));
}
