//! Resolves host names on threads of their own, because the system's resolver blocks.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::server::event_loop::wakeup::Bell;
use crate::server::id::ClientId;
use crate::sys::start_thread;

/// The maximum number of threads. A resolver that gets no answer may block for a minute.
const MAX_THREADS: usize = 8;

/// The stack of a thread, in bytes.
const STACK: usize = 256 << 10;

/// A name to be resolved for an attempt of a connection.
#[derive(Debug)]
struct Question {
    id: ClientId,
    attempt: u32,
    host: String,
    port: u16,
}

/// The addresses for an attempt of a connection, or why there are none.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) id: ClientId,
    pub(crate) attempt: u32,
    pub(crate) resolved: Resolved,
}

/// Resolves host names, and wakes the loop when it has an answer.
#[derive(Debug)]
pub(crate) struct Resolver {
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
    bell: Bell,
    threads: Arc<AtomicUsize>,
    /// The questions that wait for a thread, at most one for each connection.
    waiting: VecDeque<Question>,
}

/// Counts a thread while it runs.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Resolver {
    pub(crate) fn new(bell: Bell) -> Self {
        let (sender, answers) = mpsc::channel();
        Self {
            sender,
            answers,
            bell,
            threads: Arc::default(),
            waiting: VecDeque::new(),
        }
    }

    /// Resolves a name for an attempt of a connection. [`Resolver::next_answer`] returns the result. An earlier attempt of the
    /// same connection needs no answer.
    pub(crate) fn resolve(&mut self, id: ClientId, attempt: u32, host: String, port: u16) {
        self.forget(id);
        self.waiting.push_back(Question {
            id,
            attempt,
            host,
            port,
        });
        self.resolve_next();
    }

    /// Drops the question of a connection whose attempt has ended.
    pub(crate) fn forget(&mut self, id: ClientId) {
        self.waiting.retain(|question| question.id != id);
    }

    /// Gives the next waiting name to a thread, unless all are busy.
    pub(crate) fn resolve_next(&mut self) {
        if self.threads.load(Ordering::Acquire) >= MAX_THREADS {
            return;
        }
        let Some(question) = self.waiting.pop_front() else {
            return;
        };
        self.threads.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&self.threads));
        let (sender, bell) = (self.sender.clone(), self.bell.clone());
        let (id, attempt) = (question.id, question.attempt);
        let thread = thread::Builder::new()
            .name("resolver".to_owned())
            .stack_size(STACK);
        let started = start_thread(thread, move || {
            let host = (question.host.as_str(), question.port);
            let resolved = host.to_socket_addrs().map(Iterator::collect);
            let resolved = resolved.map_err(classified);
            drop(running);
            // If the loop has ended, nobody waits for the addresses.
            let _ = sender.send(Answer {
                id,
                attempt,
                resolved,
            });
            bell.ring();
        });
        if let Err(error) = started {
            let resolved = Err(error);
            let _ = self.sender.send(Answer {
                id,
                attempt,
                resolved,
            });
            self.bell.ring();
        }
    }

    /// An answer that has arrived since the bell rang.
    pub(crate) fn next_answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// Gives the error of a host that does not exist its kind. The standard library keeps only the text of getaddrinfo(3), which
/// differs between systems. If no resolver has answered, the text is another one.
fn classified(error: io::Error) -> io::Error {
    const UNKNOWN: &[&str] = &[
        // glibc, and macOS
        "not known",
        "No address associated",
        // musl
        "does not resolve",
        "no usable address",
    ];
    let text = error.to_string();
    if UNKNOWN.iter().any(|unknown| text.contains(unknown)) {
        return io::Error::new(io::ErrorKind::NotFound, text);
    }
    error
}

/// The addresses of a host, or why there are none.
pub(crate) type Resolved = io::Result<Vec<SocketAddr>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_exist_differs_from_a_resolver_that_does_not_answer() {
        let kind = |text: &str| {
            let text = format!("failed to lookup address information: {text}");
            classified(io::Error::other(text)).kind()
        };
        for unknown in [
            "Name or service not known",
            "nodename nor servname provided, or not known",
            "Name does not resolve",
        ] {
            assert_eq!(kind(unknown), io::ErrorKind::NotFound, "{unknown}");
        }
        for passing in ["Temporary failure in name resolution", "Try again"] {
            assert_eq!(kind(passing), io::ErrorKind::Other, "{passing}");
        }
    }
}
