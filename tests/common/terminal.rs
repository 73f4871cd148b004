//! A program on a terminal of the test: what it shows, keys, the size and the attributes of the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::program::wait;
use super::traces::eventually;

/// The time after which the reader of a terminal checks whether the test has hung up.
const READ_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// A program in a session of its own, whose controlling terminal is the test's.
pub struct OnTerminal {
    child: Child,
    /// The test's side of the terminal, until it hangs up.
    ours: Option<Arc<File>>,
    /// The program's side. It shares its open file description with the program's standard streams.
    theirs: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// A command that runs the command after it in a session of its own, whose terminal is standard input.
fn on_stdin_terminal() -> Command {
    // Only Linux has the program setsid.
    let python = "import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])";
    let words: &[&str] = if cfg!(target_os = "linux") {
        &["setsid", "--ctty"]
    } else {
        &["python3", "-c", python]
    };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

impl OnTerminal {
    /// Starts a command on a new terminal with 24 rows and 80 columns.
    pub fn start(command: &[&str]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        // The program must not hold the test's side.
        fcntl_setfd(&ours, FdFlags::CLOEXEC).expect("it is open");
        grantpt(&ours).expect("a terminal");
        unlockpt(&ours).expect("a terminal");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).expect("a terminal");
        resize(&ours, 24, 80);
        let stream = || Stdio::from(theirs.try_clone().expect("a descriptor"));
        let child = on_stdin_terminal()
            .args(command)
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .expect("setsid or python3 is installed");
        let ours = Arc::new(File::from(ours));
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let (output, all) = (Arc::downgrade(&ours), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            // The terminal is held only while it is read, so that the test can hang up.
            while let Some(output) = output.upgrade() {
                let mut ready = [PollFd::new(&*output, PollFlags::IN)];
                let count = match poll(&mut ready, Some(&READ_TIME)).expect("poll works") {
                    0 => continue,
                    _ => (&*output).read(&mut buffer).unwrap_or(0),
                };
                if count == 0 {
                    return;
                }
                all.lock()
                    .expect("no panic")
                    .extend_from_slice(&buffer[..count]);
            }
        });
        Self {
            child,
            ours: Some(ours),
            theirs,
            shown,
        }
    }

    /// Everything that the terminal has shown.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    /// Waits until the terminal has shown a string.
    pub fn expect(&self, text: &str) {
        eventually(&format!("it shows {text:?}"), || self.text().contains(text));
    }

    /// The address in the `listening` line of a server.
    pub fn address(&self) -> SocketAddr {
        self.expect("/\r\n");
        let text = self.text();
        let (_, url) = text.split_once("listening on ws://").expect("the line");
        let (address, _) = url.split_once('/').expect("a path");
        address.parse().expect("an address")
    }

    /// Types keys.
    pub fn type_keys(&self, keys: &str) {
        let mut ours: &File = self.ours.as_ref().expect("it has not hung up");
        ours.write_all(keys.as_bytes()).expect("it is open");
    }

    /// Changes the size, of which the kernel notifies the program.
    pub fn resize(&self, rows: u16, cols: u16) {
        resize(self.ours.as_ref().expect("it has not hung up"), rows, cols);
    }

    /// The attributes of the terminal, and the flags of the program's side.
    pub fn attributes(&self) -> String {
        let flags = fcntl_getfl(&self.theirs).expect("it is open");
        let attributes = tcgetattr(&self.theirs).expect("a terminal");
        format!("{attributes:?} {flags:?}")
    }

    /// Hangs up, as a terminal does that is closed.
    pub fn hang_up(&mut self) {
        self.ours = None;
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Waits for the end of the program.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    /// Waits for the end of the program, and returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        self.wait().code()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: impl AsFd, rows: u16, cols: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).expect("a terminal");
}
