//! Outrigger tells the service manager that has started it when it is ready, reloads and stops.
//!
//! Without this, `systemctl start` returns before clients can connect, and what is started next fails.

use std::fs;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use rustix::process::Signal;

use crate::common::PATIENCE;
use crate::common::program::Program;
use crate::common::traces::TraceFile;

const OUTRIGGER: &str = env!("CARGO_BIN_EXE_outrigger");

/// The service manager's end.
struct Manager(UnixDatagram);

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self(socket)
    }

    /// The next message.
    fn message(&self) -> String {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer).expect("a message");
        String::from_utf8(buffer[..length].to_vec()).expect("text")
    }

    fn has_no_message(&self) {
        self.0.set_nonblocking(true).expect("a mode");
        let error = self.0.recv(&mut [0; 64]).expect_err("no message");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}

#[test]
fn a_service_manager_learns_of_the_start_each_reload_and_the_stop() {
    let file = TraceFile::new("notify-socket");
    let tokens = TraceFile::new("notify-tokens");
    fs::write(tokens.path(), "a-long-enough-secret").expect("a file");
    let manager = Manager::new(UnixDatagram::bind(file.path()).expect("a socket"));
    let mut command = Command::new(OUTRIGGER);
    command.args(["echo", "--listen", "127.0.0.1:0", "--token-file"]);
    command.arg(tokens.path()).env("NOTIFY_SOCKET", file.path());
    let mut server = Program::spawn(&mut command);
    assert_eq!(manager.message(), "READY=1");
    for _ in 0..2 {
        server.signal(Signal::HUP);
        let reloading = manager.message();
        let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=");
        let time = time.and_then(|time| time.parse::<u64>().ok());
        assert!(time.is_some_and(|time| time > 0), "{reloading}");
        assert_eq!(manager.message(), "READY=1");
    }
    server.signal(Signal::TERM);
    assert_eq!(manager.message(), "STOPPING=1");
    assert!(server.wait().success());
    manager.has_no_message();
}

#[test]
fn a_socket_without_a_file_is_found_and_programs_do_not_inherit_it() {
    let name = format!("outrigger-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("an address");
    let manager = Manager::new(UnixDatagram::bind_addr(&address).expect("a socket"));
    let file = TraceFile::new("notify-inherited");
    let mut command = Command::new(OUTRIGGER);
    command.args(["app", "--listen", "127.0.0.1:0", "--", "sh", "-c"]);
    command.arg(format!(
        "echo \"<$NOTIFY_SOCKET>\" >{}; exec cat >/dev/null",
        file.path()
    ));
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let mut server = Program::spawn(&mut command);
    assert_eq!(manager.message(), "READY=1");
    server.signal(Signal::TERM);
    assert_eq!(manager.message(), "STOPPING=1");
    server.wait();
    assert_eq!(fs::read_to_string(file.path()).expect("a file"), "<>\n");
}

#[test]
fn a_service_manager_that_is_gone_does_not_matter() {
    let mut command = Command::new(OUTRIGGER);
    command.args(["echo", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", "/nonexistent/notify");
    let mut server = Program::spawn(&mut command);
    assert!(server.line().starts_with("outrigger: listening on "));
    server.signal(Signal::TERM);
    assert!(server.wait().success());
}
