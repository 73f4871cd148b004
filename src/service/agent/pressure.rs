//! The clients that may have to be held, or released, because an agent process does not read.

use crate::ClientId;

/// Clients whose hold must be decided again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Affected {
    All,
    Only(Vec<ClientId>),
}

/// Notes what may change who is held. All clients are looked at once when a process gets behind or is no longer behind. While it
/// is behind, only clients that have sent or got a message are looked at, because no others can begin or end to use a process.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// Whether a process is behind.
    is_behind: bool,
    /// Whether a process got behind, or is no longer behind, since the clients were last looked at.
    has_changed: bool,
    /// Clients that have sent or got a message since then, while a process is behind.
    touched: Vec<ClientId>,
}

impl Pressure {
    /// A process got behind, is no longer behind, or was removed while it was behind.
    pub(super) fn change(&mut self) {
        self.has_changed = true;
    }

    /// A client has sent or got a message, so the processes that it uses may have changed.
    pub(super) fn touch(&mut self, client: ClientId) {
        if self.is_behind && self.touched.last() != Some(&client) {
            self.touched.push(client);
        }
    }

    /// The clients to look at. `is_behind` says whether a process is behind now.
    pub(super) fn take_affected(&mut self, is_behind: bool) -> Affected {
        self.is_behind = is_behind;
        let touched = std::mem::take(&mut self.touched);
        if std::mem::take(&mut self.has_changed) {
            return Affected::All;
        }
        Affected::Only(touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u64) -> ClientId {
        format!("c{number}").parse().expect("an id")
    }

    /// The bug: while an agent did not read, each message walked all clients, so 8,000 connections stopped the server for a second.
    #[test]
    fn a_message_to_a_slow_agent_affects_only_its_client() {
        let mut pressure = Pressure::default();
        let only = |clients: &[u64]| Affected::Only(clients.iter().map(|n| client(*n)).collect());
        // Nothing is noted while all processes read.
        pressure.touch(client(1));
        assert_eq!(pressure.take_affected(false), only(&[]));
        pressure.change();
        assert_eq!(pressure.take_affected(true), Affected::All);
        for number in 1..100 {
            pressure.touch(client(number));
            pressure.touch(client(number));
            assert_eq!(pressure.take_affected(true), only(&[number]));
        }
        assert_eq!(pressure.take_affected(true), only(&[]));
        pressure.touch(client(1));
        pressure.change();
        assert_eq!(pressure.take_affected(false), Affected::All);
        assert_eq!(pressure.take_affected(false), only(&[]));
    }
}
