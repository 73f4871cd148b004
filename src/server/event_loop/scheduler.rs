//! Shares the loop among those who cause work, by deficit round robin.
//!
//! Each piece of work belongs to an account, and each account to a [`Payer`]: a person, an address, or a service. All
//! connections of a person share one account, so more connections do not get a larger share. Who has used up a share
//! waits behind everyone who has not. The cost of a piece of work is the time that it takes.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use slab::Slab;

use super::clock::Nanos;
use crate::server::access::Principal;
use crate::server::id::{ClientId, ServiceId, SourceId};

/// The share of an account before other accounts get theirs, in nanoseconds.
const QUANTUM: i64 = 500_000;

/// The maximum debt of an account, in nanoseconds. Without it, one long piece of work would keep its account waiting long after
/// the others have got as much.
const MOST_DEBT: i64 = 50 * QUANTUM;

/// The number of phases of a turn.
const PHASES: usize = 2;

/// Who causes work, and shares the loop with the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    /// The server itself.
    Server,
    /// A program that all clients of a service share.
    Service(ServiceId),
    /// Connections that have not sent an accepted request, by address.
    Strangers(IpAddr),
    /// Clients that cannot be told apart by their credentials, by address.
    Address(IpAddr),
    /// One person, or the creator of a link.
    Principal(Principal),
}

impl Payer {
    /// The connections of an address before their first accepted request. One host can use all IPv6 addresses of a /64.
    pub(crate) fn strangers(ip: IpAddr) -> Self {
        Self::Strangers(network(ip))
    }

    /// The payer for a client of this principal. `ip` tells clients apart that the principal does not.
    pub(crate) fn client(principal: Principal, ip: IpAddr) -> Self {
        if principal.is_person() {
            Self::Principal(principal)
        } else {
            Self::Address(network(ip))
        }
    }
}

/// The part of an address that one host cannot choose.
fn network(ip: IpAddr) -> IpAddr {
    /// The bits of an interface in an IPv6 address.
    const INTERFACE: u32 = 64;
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> INTERFACE << INTERFACE).into(),
    }
}

/// The number of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AccountId(u32);

impl AccountId {
    /// The server's own account, which always exists.
    pub(crate) const SERVER: Self = Self(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A client may have more input.
    Read(ClientId),
    /// A client has queued output.
    Write(ClientId),
    /// A descriptor that a service watches is ready.
    Source(SourceId),
    /// A service may start the program that a client has asked for.
    Start(ClientId),
    /// A service may start a program that no client has asked for.
    StartOwn(ServiceId),
}

impl Work {
    fn phase(self) -> Phase {
        match self {
            Self::Read(_) | Self::Source(_) | Self::Start(_) | Self::StartOwn(_) => Phase::Input,
            Self::Write(_) => Phase::Output,
        }
    }
}

/// A phase of a turn. Output is written after the input is handled, so that a client gets all messages of a turn in one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Input,
    Output,
}

/// The list in which an account waits for its next share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listed {
    /// It has no work.
    #[default]
    No,
    /// It had no work when its oldest piece of work was queued, and has not used up its share since.
    New,
    Old,
}

/// The work of one phase of an account.
#[derive(Debug)]
struct Queue {
    work: VecDeque<Work>,
    listed: Listed,
    /// What is left of the share, in nanoseconds; negative for a debt. Each phase has its own, because the accounts that wait in one
    /// phase need not wait in the other, where nobody would keep a debt from being forgiven.
    credit: i64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            work: VecDeque::new(),
            listed: Listed::No,
            credit: QUANTUM,
        }
    }
}

#[derive(Debug)]
struct Account {
    payer: Payer,
    /// The number of clients and sources that have this account. The account is removed when there are none, and no work.
    holders: usize,
    queues: [Queue; PHASES],
}

/// The accounts with work for one phase. Those in `new` come before those in `old`.
#[derive(Debug, Default)]
struct Ring {
    new: VecDeque<AccountId>,
    old: VecDeque<AccountId>,
    /// The pieces of work in all queues of this phase.
    pending: usize,
}

/// All accounts and their work.
///
/// `push` queues work. `next` takes work and begins its slice, to which the time is charged until the next slice begins.
#[derive(Debug)]
pub(crate) struct Scheduler {
    accounts: Slab<Account>,
    by_payer: HashMap<Payer, AccountId>,
    rings: [Ring; PHASES],
    /// The account that is charged now, and for work of which phase.
    current: AccountId,
    phase: Phase,
    /// Since when the current account is charged.
    since: Nanos,
    /// Whether nothing was done in this turn.
    is_fresh: bool,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        let mut scheduler = Self {
            accounts: Slab::new(),
            by_payer: HashMap::new(),
            rings: Default::default(),
            current: AccountId::SERVER,
            phase: Phase::Input,
            since: 0,
            is_fresh: false,
        };
        let server = scheduler.acquire(Payer::Server);
        debug_assert_eq!(server, AccountId::SERVER);
        scheduler
    }

    // Accounts.

    /// The account of a payer, for one more holder. Each holder calls [`Scheduler::release`] once.
    pub(crate) fn acquire(&mut self, payer: Payer) -> AccountId {
        let id = match self.by_payer.get(&payer) {
            Some(id) => *id,
            None => self.add_account(payer),
        };
        self.accounts[id.index()].holders += 1;
        id
    }

    fn add_account(&mut self, payer: Payer) -> AccountId {
        let slot = self.accounts.insert(Account {
            payer: payer.clone(),
            holders: 0,
            queues: Default::default(),
        });
        // There are fewer accounts than connections and sources.
        let id = AccountId(u32::try_from(slot).unwrap_or(u32::MAX));
        self.by_payer.insert(payer, id);
        id
    }

    /// Adds a holder to an account that has one.
    pub(crate) fn hold(&mut self, id: AccountId) {
        self.accounts[id.index()].holders += 1;
    }

    /// Ends what `acquire` or `hold` began.
    pub(crate) fn release(&mut self, id: AccountId) {
        self.accounts[id.index()].holders -= 1;
        self.remove_unused(id);
    }

    #[inline]
    fn remove_unused(&mut self, id: AccountId) {
        if self.accounts[id.index()].holders == 0 {
            self.remove_unheld(id);
        }
    }

    #[cold]
    fn remove_unheld(&mut self, id: AccountId) {
        let account = &self.accounts[id.index()];
        let is_listed = account
            .queues
            .iter()
            .any(|queue| queue.listed != Listed::No);
        if !is_listed && id != self.current {
            self.by_payer.remove(&account.payer);
            self.accounts.remove(id.index());
        }
    }

    /// Whether an account has this payer.
    pub(crate) fn is_of(&self, id: AccountId, payer: &Payer) -> bool {
        self.accounts[id.index()].payer == *payer
    }

    /// Whether an account is that of a person.
    pub(crate) fn is_person(&self, id: AccountId) -> bool {
        matches!(self.accounts[id.index()].payer, Payer::Principal(_))
    }

    /// The number of holders of all accounts, except the server's own hold on its account.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn holders(&self) -> usize {
        let holders = self.accounts.iter().map(|(_, account)| account.holders);
        holders.sum::<usize>() - 1
    }

    // Work.

    /// Queues work of an account.
    pub(crate) fn push(&mut self, id: AccountId, work: Work) {
        let phase = work.phase() as usize;
        let account = &mut self.accounts[id.index()];
        let ring = &mut self.rings[phase];
        let queue = &mut account.queues[phase];
        queue.work.push_back(work);
        ring.pending += 1;
        if queue.listed == Listed::No {
            if queue.credit > 0 {
                queue.listed = Listed::New;
                ring.new.push_back(id);
            } else {
                queue.listed = Listed::Old;
                ring.old.push_back(id);
            }
        }
    }

    /// Queues work that the current account has caused.
    pub(crate) fn push_caused(&mut self, work: Work) {
        self.push(self.current, work);
    }

    /// Whether there is no work for a phase.
    #[inline]
    pub(crate) fn is_idle(&self, phase: Phase) -> bool {
        self.rings[phase as usize].pending == 0
    }

    /// Takes the next work of a phase, with its account.
    pub(crate) fn next(&mut self, phase: Phase) -> Option<(AccountId, Work)> {
        let phase = phase as usize;
        loop {
            let ring = &mut self.rings[phase];
            let (list, is_new) = if ring.new.is_empty() {
                (&mut ring.old, false)
            } else {
                (&mut ring.new, true)
            };
            let id = *list.front()?;
            let account = &mut self.accounts[id.index()];
            let queue = &mut account.queues[phase];
            if queue.credit > 0
                && let Some(work) = queue.work.pop_front()
            {
                ring.pending -= 1;
                return Some((id, work));
            }
            list.pop_front();
            if queue.work.is_empty() && !is_new {
                queue.listed = Listed::No;
                self.remove_unused(id);
                continue;
            }
            // An account whose work is done waits for its turn in `old`, too. Otherwise it could always be new.
            if queue.credit <= 0 {
                queue.credit += QUANTUM;
            }
            queue.listed = Listed::Old;
            ring.old.push_back(id);
        }
    }

    /// Ends a phase of a turn. If no work is left, no account waits for its turn.
    pub(super) fn end_phase(&mut self, phase: Phase) {
        if !self.is_idle(phase) {
            return;
        }
        let phase = phase as usize;
        loop {
            let ring = &mut self.rings[phase];
            let Some(id) = ring.new.pop_front().or_else(|| ring.old.pop_front()) else {
                return;
            };
            self.accounts[id.index()].queues[phase].listed = Listed::No;
            self.remove_unused(id);
        }
    }

    // Charges.

    /// Charges the current account for the time until `now`, but for at most `most`, and returns the whole time in nanoseconds. What
    /// is beyond `most` was not work: the system ran another process meanwhile.
    pub(crate) fn charge(&mut self, now: Nanos, most: Nanos) -> Nanos {
        let took = now.saturating_sub(self.since);
        self.since = now;
        let queue = &mut self.accounts[self.current.index()].queues[self.phase as usize];
        let cost = i64::try_from(took.min(most)).unwrap_or(i64::MAX);
        queue.credit = queue.credit.saturating_sub(cost).max(-MOST_DEBT);
        took
    }

    /// The account that is charged now.
    #[inline]
    pub(crate) fn current(&self) -> AccountId {
        self.current
    }

    /// Makes this the account that is charged, for work of a phase. Call `charge` before.
    #[inline]
    pub(crate) fn set_current(&mut self, id: AccountId, phase: Phase) {
        self.phase = phase;
        let before = std::mem::replace(&mut self.current, id);
        if before != id {
            self.remove_unused(before);
        }
    }

    /// Begins a turn at `now`. The time since the last turn is nobody's.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Nanos) {
        self.since = now;
        self.is_fresh = true;
    }

    /// Whether the current account and phase go on with work of `id`, so that there is nothing to charge yet. The first account of a
    /// turn pays for its beginning.
    #[inline]
    pub(crate) fn continues(&mut self, id: AccountId, phase: Phase) -> bool {
        let goes_on = self.current == id && self.phase == phase;
        if std::mem::replace(&mut self.is_fresh, false) && !goes_on {
            self.set_current(id, phase);
            return true;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work of one millisecond.
    const LONG: Nanos = 1_000_000;

    fn read(number: u64) -> Work {
        Work::Read(ClientId::new(0, number))
    }

    fn address(last: u8) -> Payer {
        Payer::Address([192, 0, 2, last].into())
    }

    /// A scheduler with the time.
    struct World {
        scheduler: Scheduler,
        now: Nanos,
    }

    impl World {
        fn new() -> Self {
            Self {
                scheduler: Scheduler::new(),
                now: 0,
            }
        }

        /// Serves the next work, which takes the time `takes`.
        fn serve(&mut self, takes: Nanos) -> Option<(AccountId, Work)> {
            let (account, work) = self.scheduler.next(Phase::Input)?;
            self.scheduler.charge(self.now, Nanos::MAX);
            self.scheduler.set_current(account, Phase::Input);
            self.now += takes;
            self.scheduler.charge(self.now, Nanos::MAX);
            Some((account, work))
        }
    }

    /// The bug: connections waited in one queue, so a person with 400 connections got 400 shares.
    #[test]
    fn more_connections_get_no_larger_share() {
        let mut world = World::new();
        let many = world.scheduler.acquire(address(1));
        let few = world.scheduler.acquire(address(2));
        let mut spent = [0, 0];
        (1..=400).for_each(|number| world.scheduler.push(many, read(number)));
        world.scheduler.push(few, read(1000));
        for _ in 0..200 {
            let (account, work) = world.serve(LONG).expect("work");
            spent[usize::from(account == few)] += 1;
            world.scheduler.push(account, work);
        }
        assert_eq!(spent, [100, 100]);
    }

    #[test]
    fn newcomers_wait_behind_one_piece_of_work_only() {
        let mut world = World::new();
        let heavy = world.scheduler.acquire(address(1));
        (1..=50).for_each(|number| world.scheduler.push(heavy, read(number)));
        for number in 100..150 {
            assert_eq!(world.serve(LONG).map(|(account, _)| account), Some(heavy));
            let newcomer = world.scheduler.acquire(address(2));
            world.scheduler.push(newcomer, read(number));
            assert_eq!(world.serve(1000), Some((newcomer, read(number))));
            world.scheduler.release(newcomer);
        }
    }

    #[test]
    fn who_always_comes_back_early_does_not_stay_first() {
        // Each piece of work of `often` comes when the one before is done, so it never waits behind itself.
        let mut world = World::new();
        let often = world.scheduler.acquire(address(1));
        let other = world.scheduler.acquire(address(2));
        world.scheduler.push(often, read(1));
        world.scheduler.push(other, read(2));
        let mut served = 0;
        for _ in 0..20 {
            let (account, work) = world.serve(LONG).expect("work");
            served += usize::from(account == other);
            world.scheduler.push(account, work);
        }
        assert_eq!(served, 10);
    }

    #[test]
    fn nobody_pays_for_the_time_in_which_another_process_ran() {
        // The bug: on a busy machine, a client with small messages got into debt when the server was interrupted, and then waited
        // as long behind everyone else.
        let mut world = World::new();
        let small = world.scheduler.acquire(address(1));
        world.scheduler.push(small, read(1));
        let (account, _) = world.scheduler.next(Phase::Input).expect("work");
        world.scheduler.charge(0, 0);
        world.scheduler.set_current(account, Phase::Input);
        assert_eq!(world.scheduler.charge(30 * LONG, 1000), 30 * LONG);
        let other = world.scheduler.acquire(address(2));
        world.scheduler.push(other, read(2));
        world.scheduler.push(small, read(3));
        assert_eq!(world.serve(LONG), Some((small, read(3))));
    }

    #[test]
    fn small_work_does_not_wait_behind_several_long_pieces_of_another() {
        // The bug: 400 connections of one person sent calls that take 7 ms each, and a message of 20 bytes waited for 60 of them.
        let mut world = World::new();
        let (heavy, small) = (
            world.scheduler.acquire(address(1)),
            world.scheduler.acquire(address(2)),
        );
        (1..=400).for_each(|number| world.scheduler.push(heavy, read(number)));
        let write = |number| Work::Write(ClientId::new(0, number));
        // The number of turns for which the small work has waited, if there is any, and the longest wait.
        let (mut waited, mut most) = (None, 0);
        for turn in 0..5000 {
            // A turn takes one long piece of work, or a short one and then a long one.
            world.scheduler.begin_turn(world.now);
            let mut took = 0;
            while took < 4 * LONG {
                let (account, work) = world.scheduler.next(Phase::Input).expect("work");
                if !world.scheduler.continues(account, Phase::Input) {
                    world.scheduler.charge(world.now, Nanos::MAX);
                    world.scheduler.set_current(account, Phase::Input);
                }
                if account == small {
                    took += LONG / 50;
                    world.now += LONG / 50;
                    waited = None;
                } else {
                    took += 7 * LONG;
                    world.now += 7 * LONG;
                    world.scheduler.push(heavy, work);
                    world.scheduler.push(heavy, write(1));
                }
            }
            world.scheduler.end_phase(Phase::Input);
            // Only one of them has output.
            while let Some((account, _)) = world.scheduler.next(Phase::Output) {
                if !world.scheduler.continues(account, Phase::Output) {
                    world.scheduler.charge(world.now, Nanos::MAX);
                    world.scheduler.set_current(account, Phase::Output);
                }
                world.now += LONG / 100;
            }
            world.scheduler.end_phase(Phase::Output);
            world.scheduler.charge(world.now, Nanos::MAX);
            match &mut waited {
                Some(turns) => *turns += 1,
                None if turn % 2 == 0 => {
                    world.scheduler.push(small, read(1000));
                    waited = Some(0);
                }
                None => {}
            }
            most = most.max(waited.unwrap_or(0));
        }
        assert!(most <= 4, "{most} turns");
    }

    #[test]
    fn one_long_piece_of_work_is_forgiven() {
        let mut world = World::new();
        let long = world.scheduler.acquire(address(1));
        let other = world.scheduler.acquire(address(2));
        world.scheduler.push(long, read(1));
        world.serve(10_000 * LONG);
        world.scheduler.push(long, read(1));
        let mut waited = 0;
        loop {
            world.scheduler.push(other, read(2));
            let (account, _) = world.serve(LONG).expect("work");
            if account == long {
                break;
            }
            waited += 1;
        }
        assert!(waited <= 50, "{waited} ms");
    }

    #[test]
    fn an_account_lasts_as_long_as_its_holders_and_its_work() {
        let mut world = World::new();
        for number in 1..100 {
            let id = world.scheduler.acquire(address(1));
            world.scheduler.hold(id);
            world.scheduler.push(id, read(number));
            world.scheduler.release(id);
            world.scheduler.release(id);
            assert_eq!(world.serve(1), Some((id, read(number))));
            assert_eq!(world.serve(1), None);
            world.scheduler.set_current(AccountId::SERVER, Phase::Input);
            assert_eq!(world.scheduler.accounts.len(), 1, "the server's own");
            assert_eq!(world.scheduler.by_payer.len(), 1);
            assert_eq!(world.scheduler.holders(), 0);
        }
    }

    #[test]
    fn a_host_has_one_account_for_all_its_addresses() {
        let ip = |text: &str| text.parse().expect("an address");
        let one = Payer::strangers(ip("2001:db8:1:2::1"));
        assert_eq!(one, Payer::strangers(ip("2001:db8:1:2:ffff::9")));
        assert_ne!(one, Payer::strangers(ip("2001:db8:1:3::1")));
        assert_ne!(
            Payer::strangers(ip("192.0.2.1")),
            Payer::strangers(ip("192.0.2.2"))
        );
        let ada = Payer::client(Principal::Named("ada".into()), ip("192.0.2.1"));
        assert_eq!(
            ada,
            Payer::client(Principal::Named("ada".into()), ip("192.0.2.2"))
        );
        let nobody = |last: &str| Payer::client(Principal::Nobody, ip(last));
        assert_ne!(nobody("192.0.2.1"), nobody("192.0.2.2"));
    }
}
