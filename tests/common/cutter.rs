//! A TCP proxy that cuts connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A proxy on a free port. It passes connections on to a server until it cuts them. Dropping it cuts all connections and
/// refuses new ones.
pub struct Cutter {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    /// Where to connect to. `None` closes each connection at once.
    target: Option<SocketAddr>,
    /// After how many bytes, in both directions together, the next connections are cut. Further ones are not cut.
    limits: Vec<usize>,
    /// The sockets of all connections.
    sockets: Vec<TcpStream>,
    /// Whether each connection, of those that are not forgotten yet, is forgotten.
    forgotten: Vec<Arc<AtomicBool>>,
    accepted: usize,
    is_over: bool,
}

impl Cutter {
    /// A proxy for `target` that cuts each connection after the next number of bytes in `limits`.
    pub fn start(target: Option<SocketAddr>, mut limits: Vec<usize>) -> Self {
        limits.reverse();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State {
            target,
            limits,
            sockets: Vec::new(),
            forgotten: Vec::new(),
            accepted: 0,
            is_over: false,
        }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut state = lock(&shared);
                if state.is_over {
                    return;
                }
                state.accepted += 1;
                let Some(server) = state.target.and_then(|to| TcpStream::connect(to).ok()) else {
                    continue;
                };
                let client = client.expect("a connection");
                let clone = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
                state.sockets.extend([clone(&client), clone(&server)]);
                let left = Arc::new(Mutex::new(state.limits.pop()));
                let forgotten = Arc::new(AtomicBool::new(false));
                state.forgotten.push(Arc::clone(&forgotten));
                for (from, to) in [(clone(&client), clone(&server)), (server, client)] {
                    let (left, forgotten) = (Arc::clone(&left), Arc::clone(&forgotten));
                    std::thread::spawn(move || pass(from, to, &left, &forgotten));
                }
            }
        });
        Self { address, state }
    }

    /// Sends the next connections to another server, or nowhere.
    pub fn set_target(&self, target: Option<SocketAddr>) {
        lock(&self.state).target = target;
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for socket in lock(&self.state).sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Passes on nothing more of the present connections, and does not end them, as a NAT that has forgotten them.
    pub fn forget(&self) {
        for forgotten in lock(&self.state).forgotten.drain(..) {
            forgotten.store(true, Ordering::SeqCst);
        }
    }

    /// The number of connections that were accepted so far.
    pub fn accepted(&self) -> usize {
        lock(&self.state).accepted
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.cut();
        lock(&self.state).is_over = true;
        // The listener is closed when it accepts the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Copies bytes until the end, or until the connection may pass on no more.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    left: &Mutex<Option<usize>>,
    forgotten: &AtomicBool,
) {
    let mut buffer = [0; 4096];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if forgotten.load(Ordering::SeqCst) {
            continue;
        }
        let mut left = lock(left);
        let passed = left.map_or(count, |left| left.min(count));
        if let Some(left) = left.as_mut() {
            *left -= passed;
        }
        let is_cut = *left == Some(0);
        drop(left);
        if to.write_all(&buffer[..passed]).is_err() || is_cut {
            break;
        }
    }
    for socket in [from, to] {
        let _ = socket.shutdown(Shutdown::Both);
    }
}
