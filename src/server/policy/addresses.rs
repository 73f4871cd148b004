//! Counts connections and clients by IP address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

/// The counters of one address.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Connections of every kind.
    connections: usize,
    /// Clients and pending calls.
    clients: usize,
}

/// The counters of every address with a connection. Counts nothing, and returns 0, if addresses are not limited.
#[derive(Debug)]
pub(in crate::server) struct Addresses(Option<HashMap<IpAddr, Uses>>);

impl Addresses {
    pub(in crate::server) fn new(is_limited: bool) -> Self {
        Self(is_limited.then(HashMap::new))
    }

    /// Whether no address is counted.
    #[cfg(any(test, fuzzing))]
    pub(in crate::server) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(HashMap::is_empty)
    }

    /// The number of clients and pending calls of an address.
    pub(in crate::server) fn clients(&self, ip: IpAddr) -> usize {
        let uses = self.0.as_ref().and_then(|counts| counts.get(&ip));
        uses.map_or(0, |uses| uses.clients)
    }

    /// Adds a connection and returns how many its address has.
    pub(in crate::server) fn add_connection(&mut self, ip: IpAddr) -> usize {
        let Some(counts) = &mut self.0 else {
            return 0;
        };
        let uses = counts.entry(ip).or_default();
        uses.connections += 1;
        uses.connections
    }

    /// Removes a connection.
    pub(in crate::server) fn remove_connection(&mut self, ip: IpAddr) {
        self.change(ip, |uses| uses.connections -= 1);
    }

    /// Adds a client or a pending call.
    pub(in crate::server) fn add_client(&mut self, ip: IpAddr) {
        if let Some(counts) = &mut self.0 {
            counts.entry(ip).or_default().clients += 1;
        }
    }

    /// Removes a client or a pending call.
    pub(in crate::server) fn remove_client(&mut self, ip: IpAddr) {
        self.change(ip, |uses| uses.clients -= 1);
    }

    fn change(&mut self, ip: IpAddr, change: impl FnOnce(&mut Uses)) {
        if let Some(Entry::Occupied(mut entry)) = self.0.as_mut().map(|counts| counts.entry(ip)) {
            change(entry.get_mut());
            if entry.get().connections + entry.get().clients == 0 {
                entry.remove();
            }
        }
    }
}
