//! Shares the loop among those who cause work, by fair queueing in three levels: classes, groups, accounts.
//!
//! Each piece of work belongs to an account, and each account to a [`Payer`]: a person, an address, or a service. All
//! connections of a person share one account, so more connections do not get a larger share. The cost of a piece of work is the time
//! that it takes. Each account has a virtual time, which its work advances, and the account with the earliest time is served first.
//! Who has used less than the others is therefore served before them. A new account begins behind those that have used little.
//!
//! Principals come before those who have not signed in only by weight, because everybody begins as a newcomer. Addresses that one
//! host or one site can choose among share the time of their group, so more addresses do not get a larger share either.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slab::Slab;

use super::clock::Nanos;
use crate::server::access::Principal;
use crate::server::id::{ClientId, ServiceId, SourceId};

/// How much of the loop's time, in nanoseconds, an account that has had no work can be ahead of the others, and how far behind them
/// a new account begins.
const QUANTUM: Nanos = 500_000;

/// How far an account can be behind the others, in nanoseconds. Without it, one long piece of work would keep its account waiting long
/// after the others have got as much.
const MOST_DEBT: Nanos = 50 * QUANTUM;

/// The number of phases of a turn.
const PHASES: usize = 2;

/// The number of classes.
const CLASSES: usize = 3;

/// What share of the loop is certain, if all classes have work. The numbers are the order of the arrays of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    /// Principals, services and the server: six tenths.
    Principals,
    /// Connections that no credential identifies, after their first accepted request: three tenths.
    Guests,
    /// Connections before their first accepted request: a tenth.
    Newcomers,
}

impl Class {
    /// How much faster the virtual time of the class passes than that of the principals.
    fn factor(self) -> Nanos {
        match self {
            Self::Principals => 1,
            Self::Guests => 2,
            Self::Newcomers => 6,
        }
    }
}

/// Who causes work, and shares the loop with the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Payer {
    /// The server itself.
    Server,
    /// A program that all clients of a service share.
    Service(ServiceId),
    /// Connections that have not sent an accepted request, by address.
    Strangers(IpAddr),
    /// Clients without a credential, by address.
    Guests(IpAddr),
    /// Clients whose credential several persons may have, by address.
    Address(IpAddr),
    /// One person, or the creator of a link.
    Principal(Principal),
}

impl Payer {
    /// The connections of an address before their first accepted request.
    pub(crate) fn strangers(ip: IpAddr) -> Self {
        Self::Strangers(host(ip))
    }

    /// The payer for a client of this principal. `ip` tells clients apart that the principal does not.
    pub(crate) fn client(principal: Principal, ip: IpAddr) -> Self {
        if principal.is_person() {
            Self::Principal(principal)
        } else if principal == Principal::Nobody {
            Self::Guests(host(ip))
        } else {
            Self::Address(host(ip))
        }
    }

    /// The class, and the network that shares the time of one group.
    fn group(&self) -> GroupKey {
        match self {
            Self::Server | Self::Service(_) | Self::Address(_) | Self::Principal(_) => {
                (Class::Principals, None)
            }
            Self::Guests(ip) => (Class::Guests, Some(site(*ip))),
            Self::Strangers(ip) => (Class::Newcomers, Some(site(*ip))),
        }
    }
}

/// The addresses that one host can use: one IPv4 address, or an IPv6 network of 64 bits.
fn host(ip: IpAddr) -> IpAddr {
    prefix(ip, 32, 64)
}

/// The addresses that one site can use: an IPv4 network of 24 bits, or an IPv6 network of 48 bits.
fn site(ip: IpAddr) -> IpAddr {
    prefix(ip, 24, 48)
}

/// The first `v4` bits of an IPv4 address, or the first `v6` bits of an IPv6 address. Both are greater than 0.
fn prefix(ip: IpAddr, v4: u32, v6: u32) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (u32::BITS - v4))).into(),
        IpAddr::V6(ip) => {
            Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (u128::BITS - v6))).into()
        }
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

/// The place of an account, a group or a class in its level.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Its virtual time. While it has work, it only grows.
    time: Nanos,
    /// Whether it has work.
    waits: bool,
    /// Whether it has not yet had all its work done, and its time is a quantum later for that reason.
    is_new: bool,
}

/// Those that have work in one level, and one phase.
#[derive(Debug, Default)]
struct Waiting {
    /// Their virtual times, the order in which they came, and their numbers; the first to be served on top. A time may be older than
    /// that of its place.
    heap: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    arrivals: u64,
    /// The virtual time of who was served last.
    now: Nanos,
    /// The latest virtual time of anybody in this level.
    latest: Nanos,
}

impl Waiting {
    /// The place of a new member.
    fn admit(&self) -> Place {
        Place {
            time: self.now + QUANTUM,
            waits: false,
            is_new: true,
        }
    }

    /// A member has work.
    fn join(&mut self, member: u32, place: &mut Place) {
        if !std::mem::replace(&mut place.waits, true) {
            place.time = place.time.max(self.now.saturating_sub(QUANTUM));
            self.push(member, place.time);
        }
    }

    fn push(&mut self, member: u32, time: Nanos) {
        self.arrivals += 1;
        self.heap.push(Reverse((time, self.arrivals, member)));
        self.latest = self.latest.max(time);
    }

    /// The member to be served. `time_of` returns the virtual time of a member.
    fn first(&mut self, time_of: impl Fn(u32) -> Nanos) -> Option<u32> {
        loop {
            let Reverse((time, _, member)) = *self.heap.peek()?;
            let real = time_of(member);
            if real == time {
                self.now = self.now.max(time);
                return Some(member);
            }
            self.heap.pop();
            self.push(member, real);
        }
    }

    /// The member that [`Waiting::first`] has returned has no work left.
    fn leave(&mut self, place: &mut Place) {
        self.heap.pop();
        place.waits = false;
        if std::mem::take(&mut place.is_new) {
            place.time -= QUANTUM;
        }
        if self.heap.is_empty() {
            self.forgive();
        }
    }

    /// Nobody has waited, so no debt is kept.
    fn forgive(&mut self) {
        self.now = self.latest;
    }

    /// A member has worked for this long. Its virtual time passes `factor` times as fast.
    fn charge(&mut self, place: &mut Place, cost: Nanos, factor: Nanos) {
        let most = self.now + MOST_DEBT * factor;
        place.time = place.time.max(most.min(place.time + cost * factor));
        self.latest = self.latest.max(place.time);
    }
}

#[derive(Debug)]
struct Account {
    payer: Payer,
    group: u32,
    /// The number of clients and sources that have this account. The account is removed when there are none, and no work.
    holders: usize,
    places: [Place; PHASES],
    queues: [VecDeque<Work>; PHASES],
}

/// The class of a group, and its network.
type GroupKey = (Class, Option<IpAddr>);

/// Accounts that share the time of one group.
#[derive(Debug)]
struct Group {
    key: GroupKey,
    accounts: usize,
    places: [Place; PHASES],
    waiting: [Waiting; PHASES],
}

/// The groups of a class.
#[derive(Debug, Default)]
struct Groups {
    places: [Place; PHASES],
    waiting: [Waiting; PHASES],
}

/// All accounts and their work.
///
/// `push` queues work. `next` takes work and begins its slice, to which the time is charged until the next slice begins.
#[derive(Debug)]
pub(crate) struct Scheduler {
    accounts: Slab<Account>,
    by_payer: HashMap<Payer, AccountId>,
    groups: Slab<Group>,
    by_key: HashMap<GroupKey, u32>,
    classes: [Groups; CLASSES],
    waiting: [Waiting; PHASES],
    /// The only account that has work. It enters the levels when another one has work, too.
    lone: [Option<AccountId>; PHASES],
    /// The account whose work was taken last. If that was all it had, and nobody holds it, it is removed when the work is done.
    taken: AccountId,
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
            groups: Slab::new(),
            by_key: HashMap::new(),
            classes: Default::default(),
            waiting: Default::default(),
            lone: [None; PHASES],
            taken: AccountId::SERVER,
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
        let key = payer.group();
        let group = match self.by_key.get(&key) {
            Some(group) => *group,
            None => self.add_group(key),
        };
        let entry = &mut self.groups[group as usize];
        entry.accounts += 1;
        let slot = self.accounts.insert(Account {
            payer: payer.clone(),
            group,
            holders: 0,
            places: entry.waiting.each_ref().map(Waiting::admit),
            queues: Default::default(),
        });
        let id = AccountId(number(slot));
        self.by_payer.insert(payer, id);
        id
    }

    fn add_group(&mut self, key: GroupKey) -> u32 {
        let class = &self.classes[key.0 as usize];
        let slot = self.groups.insert(Group {
            key,
            accounts: 0,
            places: class.waiting.each_ref().map(Waiting::admit),
            waiting: Default::default(),
        });
        self.by_key.insert(key, number(slot));
        number(slot)
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
        let account = self.accounts.get(id.index());
        if account.is_some_and(|account| account.holders == 0) {
            self.remove_unheld(id);
        }
    }

    #[cold]
    fn remove_unheld(&mut self, id: AccountId) {
        let account = &self.accounts[id.index()];
        let has_work = account.places.iter().any(|place| place.waits);
        if has_work || id == self.current {
            return;
        }
        let account = self.accounts.remove(id.index());
        self.by_payer.remove(&account.payer);
        let group = &mut self.groups[account.group as usize];
        group.accounts -= 1;
        if group.accounts == 0 {
            self.by_key.remove(&group.key);
            self.groups.remove(account.group as usize);
        }
    }

    /// The payer of an account.
    pub(crate) fn payer(&self, id: AccountId) -> &Payer {
        &self.accounts[id.index()].payer
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
        account.queues[phase].push_back(work);
        let place = &mut account.places[phase];
        if std::mem::replace(&mut place.waits, true) {
            return;
        }
        let is_first = self.lone[phase].is_none() && self.waiting[phase].heap.is_empty();
        if is_first && !place.is_new {
            self.lone[phase] = Some(id);
            return;
        }
        if let Some(lone) = self.lone[phase].take() {
            self.enter(lone, phase);
        }
        self.enter(id, phase);
    }

    /// An account that has work waits for its turn.
    fn enter(&mut self, id: AccountId, phase: usize) {
        let account = &mut self.accounts[id.index()];
        let group = &mut self.groups[account.group as usize];
        let class = &mut self.classes[group.key.0 as usize];
        account.places[phase].waits = false;
        group.waiting[phase].join(id.0, &mut account.places[phase]);
        class.waiting[phase].join(account.group, &mut group.places[phase]);
        self.waiting[phase].join(group.key.0 as u32, &mut class.places[phase]);
    }

    /// Queues work that the current account has caused.
    pub(crate) fn push_caused(&mut self, work: Work) {
        self.push(self.current, work);
    }

    /// Whether there is no work for a phase.
    #[inline]
    pub(crate) fn is_idle(&self, phase: Phase) -> bool {
        self.lone[phase as usize].is_none() && self.waiting[phase as usize].heap.is_empty()
    }

    /// Takes the next work of a phase, with its account.
    pub(crate) fn next(&mut self, phase: Phase) -> Option<(AccountId, Work)> {
        let phase = phase as usize;
        let before = std::mem::replace(&mut self.taken, AccountId::SERVER);
        self.remove_unused(before);
        if let Some(id) = self.lone[phase] {
            return self.next_of_lone(id, phase);
        }
        let class =
            self.waiting[phase].first(|class| self.classes[class as usize].places[phase].time)?;
        let class = &mut self.classes[class as usize];
        let group =
            class.waiting[phase].first(|group| self.groups[group as usize].places[phase].time)?;
        let group = &mut self.groups[group as usize];
        let id = group.waiting[phase].first(|id| self.accounts[id as usize].places[phase].time)?;
        let account = &mut self.accounts[id as usize];
        let work = account.queues[phase].pop_front()?;
        if account.queues[phase].is_empty() {
            group.waiting[phase].leave(&mut account.places[phase]);
            if group.waiting[phase].heap.is_empty() {
                class.waiting[phase].leave(&mut group.places[phase]);
                if class.waiting[phase].heap.is_empty() {
                    self.waiting[phase].leave(&mut class.places[phase]);
                }
            }
        }
        self.taken = AccountId(id);
        Some((self.taken, work))
    }

    /// Takes the next work of the only account that has work.
    fn next_of_lone(&mut self, id: AccountId, phase: usize) -> Option<(AccountId, Work)> {
        let account = &mut self.accounts[id.index()];
        let work = account.queues[phase].pop_front()?;
        if account.queues[phase].is_empty() {
            account.places[phase].waits = false;
            self.lone[phase] = None;
            let group = &mut self.groups[account.group as usize];
            let class = &mut self.classes[group.key.0 as usize];
            group.waiting[phase].forgive();
            class.waiting[phase].forgive();
            self.waiting[phase].forgive();
        }
        self.taken = id;
        Some((id, work))
    }

    // Charges.

    /// Charges the current account for the time until `now`, but for at most `most`, and returns the whole time in nanoseconds. What
    /// is beyond `most` was not work: the system ran another process meanwhile.
    pub(crate) fn charge(&mut self, now: Nanos, most: Nanos) -> Nanos {
        let took = now.saturating_sub(self.since);
        self.since = now;
        let (cost, phase) = (took.min(most), self.phase as usize);
        let account = &mut self.accounts[self.current.index()];
        let group = &mut self.groups[account.group as usize];
        let class = &mut self.classes[group.key.0 as usize];
        group.waiting[phase].charge(&mut account.places[phase], cost, 1);
        class.waiting[phase].charge(&mut group.places[phase], cost, 1);
        self.waiting[phase].charge(&mut class.places[phase], cost, group.key.0.factor());
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

/// There are fewer accounts than connections and sources.
fn number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
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
            // Only one of them has output.
            while let Some((account, _)) = world.scheduler.next(Phase::Output) {
                if !world.scheduler.continues(account, Phase::Output) {
                    world.scheduler.charge(world.now, Nanos::MAX);
                    world.scheduler.set_current(account, Phase::Output);
                }
                world.now += LONG / 100;
            }
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
    fn an_account_whose_client_is_gone_is_removed_when_its_work_is_taken() {
        let mut world = World::new();
        let id = world.scheduler.acquire(address(1));
        world.scheduler.push(id, read(1));
        world.scheduler.release(id);
        assert_eq!(world.scheduler.next(Phase::Input), Some((id, read(1))));
        assert_eq!(world.scheduler.next(Phase::Input), None);
        assert_eq!(world.scheduler.accounts.len(), 1, "the server's own");
        assert_eq!(world.scheduler.groups.len(), 1);
    }

    /// What one of several payers gets of the loop, while all have work for `rounds` pieces of `LONG`.
    fn shares<const N: usize>(rounds: usize, payers: [Vec<Payer>; N]) -> [usize; N] {
        let mut world = World::new();
        let mut owners = HashMap::new();
        for (owner, payers) in payers.into_iter().enumerate() {
            for payer in payers {
                let id = world.scheduler.acquire(payer);
                world.scheduler.push(id, read(1));
                owners.insert(id, owner);
            }
        }
        let mut got = [0; N];
        for _ in 0..rounds {
            let (id, work) = world.serve(LONG).expect("work");
            got[owners[&id]] += 1;
            world.scheduler.push(id, work);
        }
        got
    }

    #[test]
    fn newcomers_get_a_tenth_however_many_there_are() {
        let ip = |last: u16| Ipv4Addr::from_bits(0x0a00_0000 + u32::from(last) * 999).into();
        let newcomers = (0..1000).map(|last| Payer::strangers(ip(last)));
        let guests = (0..1000).map(|last| Payer::client(Principal::Nobody, ip(last)));
        let ada = Payer::client(Principal::Named("ada".into()), ip(1));
        let got = shares(1000, [vec![ada], guests.collect(), newcomers.collect()]);
        assert!(got[0] >= 590 && got[1] >= 290 && got[2] >= 95, "{got:?}");
    }

    #[test]
    fn the_addresses_of_a_site_share_its_time() {
        let ip = |site: u8, last: u8| Payer::strangers([192, 0, site, last].into());
        let many = (0..250).map(|last| ip(1, last));
        let got = shares(
            1000,
            [many.collect(), vec![ip(2, 1)], vec![ip(3, 1), ip(3, 2)]],
        );
        assert!(
            got.iter().all(|count| (330..=337).contains(count)),
            "{got:?}"
        );
        let ip = |text: String| Payer::strangers(text.parse().expect("an address"));
        let many = (0..250).map(|net| ip(format!("2001:db8:1:{net:x}::1")));
        let got = shares(1000, [many.collect(), vec![ip("2001:db8:2::1".into())]]);
        assert!(
            got.iter().all(|count| (495..=505).contains(count)),
            "{got:?}"
        );
    }

    #[test]
    fn new_accounts_do_not_come_before_one_that_has_used_little() {
        // The bug: new accounts were served first. A message of 20 bytes waited for 1,000 handshakes from 1,000 addresses.
        let known = || Payer::client(Principal::Named("ada".into()), [192, 0, 2, 1].into());
        let named = |number: u32| {
            let name = number.to_string();
            Payer::client(
                Principal::Named(name.as_str().into()),
                [192, 0, 2, 1].into(),
            )
        };
        let guest =
            |number: u32| Payer::client(Principal::Nobody, Ipv4Addr::from_bits(number).into());
        let cases: [(Payer, &dyn Fn(u32) -> Payer); 2] = [(known(), &named), (guest(0), &guest)];
        for (bystander, new) in cases {
            let mut world = World::new();
            let bystander = world.scheduler.acquire(bystander);
            world.scheduler.push(bystander, read(2));
            world.serve(LONG / 50);
            for wave in 0..20 {
                // The bystander has had its share of the wave before, and comes after the new ones.
                (0..1000).for_each(|number| {
                    let id = world.scheduler.acquire(new(1 + wave * 1000 + number));
                    world.scheduler.push(id, read(1));
                });
                for _ in 0..300 {
                    world.serve(LONG);
                }
                world.scheduler.push(bystander, read(2));
                let mut before = 0;
                while world.serve(LONG / 50).map(|(id, _)| id) != Some(bystander) {
                    // Its work takes longer than that of the bystander.
                    world.now += LONG;
                    world.scheduler.charge(world.now, Nanos::MAX);
                    before += 1;
                }
                let most = world.scheduler.groups.len();
                assert!(before <= most, "{before} came before in wave {wave}");
            }
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
