//! Tells the service manager that has started this program when it is ready, reloads and stops (`sd_notify(3)`).

use std::env;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};

/// The variable with the address of the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The service manager, if there is one that wants to know.
#[derive(Clone, Debug)]
pub(super) struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
}

/// A notification that is sent when this value is dropped.
#[derive(Debug)]
pub(super) struct TellOnDrop {
    manager: ServiceManager,
    state: &'static str,
}

impl ServiceManager {
    /// The service manager that the environment names.
    pub(super) fn from_env() -> Self {
        let socket = match connect() {
            Ok(socket) => socket.map(Arc::new),
            Err(error) => {
                log::warn!("cannot notify the service manager: {SOCKET}: {error}");
                None
            }
        };
        Self { socket }
    }

    /// Says that the server accepts clients.
    pub(super) fn ready(&self) {
        self.tell("READY=1");
    }

    /// Says that the settings are being read again. Drop the result when they are in force.
    pub(super) fn reloading(&self) -> TellOnDrop {
        // The service manager compares this with the time of its own request.
        let now = clock_gettime(ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        self.tell_on_drop("READY=1")
    }

    /// Returns a guard that sends `STOPPING=1` when it is dropped. Drop it when the server begins to stop.
    pub(super) fn until_stopping(&self) -> TellOnDrop {
        self.tell_on_drop("STOPPING=1")
    }

    fn tell_on_drop(&self, state: &'static str) -> TellOnDrop {
        let manager = self.clone();
        TellOnDrop { manager, state }
    }

    fn tell(&self, state: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send(state.as_bytes()) {
            log::warn!("cannot notify the service manager: {error}");
        }
    }
}

impl Drop for TellOnDrop {
    fn drop(&mut self) {
        self.manager.tell(self.state);
    }
}

/// A socket that never blocks, or `None` if no service manager wants to know.
fn connect() -> io::Result<Option<UnixDatagram>> {
    let Some(address) = env::var_os(SOCKET).filter(|address| !address.is_empty()) else {
        return Ok(None);
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match address.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        _ => socket.connect(&address)?,
    }
    Ok(Some(socket))
}
