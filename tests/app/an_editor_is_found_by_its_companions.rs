//! The file of `--announce`, with which command-line companions such as Claude Code find the server of an editor.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Wire;
use crate::common::program::Program;
use crate::common::traces::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};

/// A home directory. Dropping it removes it.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("outrigger-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn folder(&self) -> PathBuf {
        self.0.join(".editor/ide")
    }

    /// Starts an app without a program, as an editor does: without a shell that would expand `~`.
    fn editor(&self, options: &[&str]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
        command
            .args(["app", "--port-range", "20000-60000"])
            .args(["--announce", "~/.editor/ide/{port}.lock"])
            .args(["--token-header", "x-editor-authorization"])
            .args(["--subprotocol", "mcp"])
            .args(options)
            .env("HOME", &self.0);
        Program::spawn(&mut command)
    }

    /// The file of a server, and its port.
    fn file_of(&self, server: &Program) -> (PathBuf, SocketAddr) {
        let address = server.address_of_event();
        let file = self.folder().join(format!("{}.lock", address.port()));
        (file, address)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the file");
    serde_json::from_str(&text).expect("JSON")
}

/// Connects as a companion does. Returns the connection and the head of the response.
fn connect(address: SocketAddr, token: &str) -> (Wire, String) {
    let mut wire = Wire::open(address);
    wire.send(
        format!(
            "GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mcp\r\nx-editor-authorization: {token}\r\n\r\n"
        )
        .as_bytes(),
    );
    let head = wire.read_head();
    (wire, head)
}

/// The bugs: the directory had to exist, `~` was a name like any other, and the pid was that of the server, so companions
/// that look for the editor's process did not find it.
#[test]
fn the_file_is_where_companions_look_and_names_the_editor() {
    let home = Home::new("announce-home");
    let server = home.editor(&[]);
    let (file, address) = home.file_of(&server);
    for folder in [home.folder(), home.0.join(".editor")] {
        let mode = fs::metadata(&folder)
            .expect("it was created")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
    }
    let told = read(&file);
    // This process is the editor.
    assert_eq!(told["pid"], json!(std::process::id()));
    let token = told["authToken"].as_str().expect("a token");
    let (_, head) = connect(address, token);
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.contains("\r\nSec-WebSocket-Protocol: mcp\r\n"),
        "{head}"
    );
    let other = home.editor(&["--announce-extra", r#"{"pid": 12345}"#]);
    assert_eq!(read(&home.file_of(&other).0)["pid"], json!(12345));
}

/// The bug: the file stayed while the server drained, so that companions tried to connect to a server that refused them.
#[test]
fn the_file_goes_when_the_server_begins_to_stop() {
    let home = Home::new("announce-drain");
    let mut server = home.editor(&["--drain-timeout", "1000s", "--close-timeout", "1000s"]);
    let (file, address) = home.file_of(&server);
    let told = read(&file);
    let token = told["authToken"].as_str().expect("a token");
    // This client does not answer CLOSE, so the server waits for it.
    let _client = connect(address, token);
    server.event_of("connect");
    server.end_input();
    eventually("the file is removed", || !file.exists());
    assert!(!server.has_ended());
}

/// The bug: the file of a server that was killed stayed for ever.
#[test]
fn the_file_of_a_killed_server_is_removed_by_the_next_one() {
    let home = Home::new("announce-dead");
    let live = home.editor(&[]);
    let live_file = home.file_of(&live).0;
    let mut killed = home.editor(&[]);
    let killed_file = home.file_of(&killed).0;
    // Files of others are none of our business, even if their process is dead.
    let told = read(&killed_file);
    let foreign = home.folder().join("1.lock");
    fs::write(&foreign, json!({"pid": told["server"]["pid"]}).to_string()).expect("a file");
    let elsewhere = home.folder().join("2.lock");
    let mut copy = told.clone();
    copy["server"]["host"] = json!("another-machine");
    fs::write(&elsewhere, copy.to_string()).expect("a file");
    killed.signal(Signal::KILL);
    killed.wait();
    assert!(killed_file.exists());
    let next = home.editor(&[]);
    let next_file = home.file_of(&next).0;
    assert!(!killed_file.exists());
    for kept in [&live_file, &next_file, &foreign, &elsewhere] {
        assert!(kept.exists(), "{}", kept.display());
    }
}
