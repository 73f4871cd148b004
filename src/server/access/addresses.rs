//! What is counted for each IP address: its connections and clients, and its wrong tokens. An address that presents many wrong
//! tokens is slowed down.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::protocol::Time;
use crate::record::record;

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
pub(crate) struct Addresses(Option<HashMap<IpAddr, Uses>>);

impl Addresses {
    pub(crate) fn new(is_limited: bool) -> Self {
        Self(is_limited.then(HashMap::new))
    }

    /// Whether no address is counted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(HashMap::is_empty)
    }

    /// The number of clients and pending calls of an address.
    pub(crate) fn clients(&self, ip: IpAddr) -> usize {
        let uses = self.0.as_ref().and_then(|counts| counts.get(&ip));
        uses.map_or(0, |uses| uses.clients)
    }

    /// Adds a connection and returns how many its address has.
    pub(crate) fn add_connection(&mut self, ip: IpAddr) -> usize {
        let Some(counts) = &mut self.0 else {
            return 0;
        };
        let uses = counts.entry(ip).or_default();
        uses.connections += 1;
        uses.connections
    }

    /// Removes a connection.
    pub(crate) fn remove_connection(&mut self, ip: IpAddr) {
        self.change(ip, |uses| uses.connections -= 1);
    }

    /// Adds a client or a pending call.
    pub(crate) fn add_client(&mut self, ip: IpAddr) {
        if let Some(counts) = &mut self.0 {
            counts.entry(ip).or_default().clients += 1;
        }
    }

    /// Removes a client or a pending call.
    pub(crate) fn remove_client(&mut self, ip: IpAddr) {
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

/// The number of wrong tokens of one address that are rejected without a delay within a [`PERIOD`].
const FREE: u32 = 5;

/// The time after which the count of an address begins anew.
const PERIOD: Duration = Duration::from_secs(60);

/// The delay of later rejections.
pub(crate) const REJECTION_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of addresses that are remembered.
const MOST: usize = 1024;

/// The wrong tokens of one address.
#[derive(Clone, Copy, Debug)]
struct Count {
    since: Time,
    wrong: u32,
}

record!(Count { since, wrong });

/// The addresses that have recently presented wrong tokens.
///
/// Only rejections are delayed. So a client behind the same proxy can neither lock out nor slow down the holder of a
/// right token.
#[derive(Debug, Default)]
pub(crate) struct Failures(HashMap<IpAddr, Count>);

record!(Failures as HashMap<IpAddr, Count>);

impl Failures {
    /// Records a wrong token. Returns how many the address has presented in this period.
    pub(crate) fn record(&mut self, ip: IpAddr, now: Time) -> u32 {
        let ip = network(ip);
        let is_over = |count: &Count| now.since(count.since) >= PERIOD;
        if !self.0.contains_key(&ip) && self.0.len() >= MOST {
            self.0.retain(|_, count| !is_over(count));
        }
        if !self.0.contains_key(&ip) && self.0.len() >= MOST {
            // Forgets the address with the fewest wrong tokens, and the oldest among several.
            let least = self.0.iter();
            let least = least.min_by_key(|(_, count)| (count.wrong, count.since));
            if let Some(ip) = least.map(|(ip, _)| *ip) {
                self.0.remove(&ip);
            }
        }
        let new = Count {
            since: now,
            wrong: 0,
        };
        let count = self.0.entry(ip).or_insert(new);
        if is_over(count) {
            *count = new;
        }
        count.wrong = count.wrong.saturating_add(1);
        count.wrong
    }

    /// Whether the rejection of a wrong token is delayed. `wrong` is what [`Failures::record`] returned.
    pub(crate) fn is_delayed(wrong: u32) -> bool {
        wrong > FREE
    }

    /// Whether this wrong token is the first one of its period whose rejection is delayed.
    pub(crate) fn is_first_delayed(wrong: u32) -> bool {
        wrong == FREE + 1
    }
}

/// The address under which a peer is counted. For IPv6 it is the network, because one peer usually has a whole /64.
fn network(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn an_address_is_slowed_down_after_five_wrong_tokens_in_a_minute() {
        let mut failures = Failures::default();
        let begin = Time::default();
        for period in 0..3 {
            let now = begin + PERIOD * period;
            for wrong in 1..=20 {
                let count = failures.record(v4(1), now + Duration::from_secs(59));
                assert_eq!(count, wrong);
                assert_eq!(Failures::is_delayed(count), wrong > 5);
                assert_eq!(Failures::is_first_delayed(count), wrong == 6);
            }
        }
        assert_eq!(failures.record(v4(2), begin), 1);
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        assert_eq!(failures.record(ip("2001:db8::1"), begin), 1);
        assert_eq!(failures.record(ip("2001:db8::ffff:2"), begin), 2);
        assert_eq!(failures.record(ip("2001:db8:0:1::1"), begin), 1);
    }

    #[test]
    fn the_number_of_addresses_is_limited_and_those_with_many_failures_stay() {
        let mut failures = Failures::default();
        let begin = Time::default();
        for _ in 0..6 {
            failures.record(v4(0), begin);
        }
        for number in 1..5000 {
            failures.record(v4(number), begin + Duration::from_millis(number.into()));
            assert!(failures.0.len() <= MOST);
        }
        let now = begin + Duration::from_secs(5);
        assert_eq!(failures.record(v4(0), now), 7);
        assert_eq!(
            failures.record(v4(4999), now),
            2,
            "the latest is remembered"
        );
        assert_eq!(failures.record(v4(1), now), 1, "the oldest is forgotten");
        failures.record(v4(9999), begin + PERIOD * 2);
        assert_eq!(
            failures.0.len(),
            1,
            "nothing is kept for longer than needed"
        );
    }
}
