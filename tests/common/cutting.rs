//! A TCP proxy that cuts connections after a random number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

/// A TCP proxy that cuts each connection after a random number of bytes, until it has cut as many as wanted.
pub struct CuttingProxy {
    pub address: SocketAddr,
    cuts: Arc<AtomicUsize>,
    /// Whether new connections are closed at once.
    refuses: Arc<AtomicBool>,
}

/// A linear congruential generator.
fn next(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

impl CuttingProxy {
    /// Passes connections on to `target`. Cuts the first `cuts` of them after at most `most` bytes.
    pub fn start(target: SocketAddr, cuts: usize, most: u64) -> Self {
        Self::start_within(target, cuts, 0..most)
    }

    /// The same, with limits on the number of bytes after which a connection is cut.
    pub fn start_within(target: SocketAddr, cuts: usize, bytes: Range<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let done = Arc::new(AtomicUsize::new(0));
        let refuses = Arc::new(AtomicBool::new(false));
        let (count, closed) = (Arc::clone(&done), Arc::clone(&refuses));
        std::thread::spawn(move || {
            let mut seed = cuts as u64 + bytes.end;
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(target) else {
                    continue;
                };
                let is_cut = count.load(Ordering::SeqCst) < cuts;
                let most = if is_cut {
                    bytes.start + next(&mut seed) % (bytes.end - bytes.start)
                } else {
                    i64::MAX as u64
                };
                pass(
                    client,
                    server,
                    most as i64,
                    next(&mut seed).is_multiple_of(2),
                    &count,
                );
            }
        });
        Self {
            address,
            cuts: done,
            refuses,
        }
    }

    /// The number of connections that were cut.
    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }

    /// Closes every new connection at once, or no longer does so.
    pub fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }
}

/// Passes bytes in both directions until there were `most` of them.
fn pass(client: TcpStream, server: TcpStream, most: i64, resets: bool, cuts: &Arc<AtomicUsize>) {
    let left = Arc::new(AtomicI64::new(most));
    let is_cut = Arc::new(AtomicBool::new(false));
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (mut from, mut to) = (
            from.try_clone().expect("a clone"),
            to.try_clone().expect("a clone"),
        );
        let (left, is_cut, cuts) = (Arc::clone(&left), Arc::clone(&is_cut), Arc::clone(cuts));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = from.read(&mut buffer).unwrap_or(0);
                if count == 0 {
                    let _ = to.shutdown(Shutdown::Write);
                    return;
                }
                let before = left.fetch_sub(count as i64, Ordering::SeqCst);
                let passed = before.clamp(0, count as i64) as usize;
                let written = to.write_all(&buffer[..passed]);
                if passed == count && written.is_ok() {
                    continue;
                }
                if passed < count && !is_cut.swap(true, Ordering::SeqCst) {
                    cuts.fetch_add(1, Ordering::SeqCst);
                }
                // With unread bytes in the socket, the kernel sends a reset.
                for socket in [&from, &to] {
                    let _ = socket.shutdown(if resets {
                        Shutdown::Both
                    } else {
                        Shutdown::Write
                    });
                }
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        });
    }
}
