//! Regression tests of the loop, on a server in memory under simulated time.

use std::num::NonZeroU32;
use std::time::Duration;

use super::simulation::{HEAD, World};
use super::{ClientId, Ended};
use crate::SendError;
use crate::fuzz::protocol::write_frame;
use crate::protocol::{Cause, CloseCode, Message};
use crate::random::Random;

impl World {
    /// Connects a client and completes its handshake.
    fn connect(&mut self) -> ClientId {
        self.open(200);
        let id = *self.old.last().expect("just opened");
        assert!(self.server.service.present.contains(&id));
        id
    }
}

impl World {
    /// Connects a client and fills its send buffer with `count` bytes, of which the client's system has taken none.
    fn connect_behind(&mut self, count: usize) -> ClientId {
        let client = self.connect();
        {
            let mut wire = self.stream(client).wire();
            wire.room = 10 << 20;
            wire.taken = Some(wire.from_server.len());
        }
        for _ in 0..count / 50_000 {
            let piece = [5; 50_000];
            let sent = self.server.ctx.try_send(client, Message::Binary(&piece));
            sent.expect("a socket with room");
        }
        self.take_turn();
        let entry = self
            .server
            .ctx
            .core
            .registry
            .get(client)
            .expect("registered");
        assert_eq!(entry.wire.queued(), 0, "all output is in the send buffer");
        client
    }

    /// Passes a second in which the client's system takes `count` bytes.
    fn second(&mut self, client: ClientId, count: usize) {
        if let Some(stream) = self.streams.get(&client)
            && let Some(taken) = &mut stream.wire().taken
        {
            *taken += count;
        }
        self.pass(Duration::from_secs(1));
        self.take_turn();
        self.check();
    }

    fn is_present(&self, client: ClientId) -> bool {
        self.server.service.present.contains(&client)
    }
}

#[test]
fn one_program_is_started_in_a_turn_of_the_loop_and_none_for_a_client_that_is_gone() {
    // The bug: each service had a rule of its own, so 250 requests that arrived together started 250 programs in one turn.
    let mut world = World::new(7).expect("an epoll instance");
    let clients: Vec<ClientId> = (0..6).map(|_| world.connect()).collect();
    for client in &clients {
        world.server.ctx.queue_start(*client);
    }
    world.server.ctx.queue_own_start();
    let gone = clients[3];
    world.server.act(|server| {
        let core = &mut server.ctx.core;
        core.with(gone, |client, env| client.request_removal(env));
    });
    assert!(!world.is_present(gone) && world.server.service.starts.is_empty());
    for turn in 1..=20 {
        world.take_turn();
        assert!(world.server.service.starts.len() <= turn, "turn {turn}");
    }
    let starts = std::mem::take(&mut world.server.service.starts);
    let of_clients: Vec<ClientId> = starts.iter().copied().flatten().collect();
    let wanted: Vec<ClientId> = clients.into_iter().filter(|one| *one != gone).collect();
    assert_eq!(of_clients, wanted, "in the order of their requests");
    assert_eq!(starts.len(), wanted.len() + 1, "and one for the service");
    assert!(!world.server.ctx.core.has_work());
}

#[test]
fn output_in_the_send_buffer_is_not_lost_after_our_close() {
    // The bug: when the close timeout had passed after our CLOSE, the socket was closed although its send buffer held
    // megabytes that the peer was reading. If a PING of the peer was unread, the peer got a reset.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    let ctx = &mut world.server.ctx;
    ctx.try_close(client, CloseCode::NORMAL, "done")
        .expect("open");
    for _ in 0..30 {
        world.give(client, b"\x89\x80mask");
        world.event(client, true, false, false);
        assert_eq!(
            world.stream(client).wire().to_server.len(),
            0,
            "input is read and discarded"
        );
        world.second(client, 30_000);
        assert!(world.is_present(client), "the client takes 30 kB a second");
    }
    world.give(client, b"\x88\x80mask");
    world.event(client, true, false, false);
    world.take_turn();
    assert!(
        !world.is_present(client),
        "the client has answered our CLOSE"
    );
}

#[test]
fn a_half_closed_client_still_gets_the_output_of_the_service() {
    // The bug: a client of a terminal or an app that had ended its direction was disconnected at once, and the remaining
    // output of the service was dropped.
    let mut world = World::new(7).expect("an epoll instance");
    let at_once = (0..3)
        .map(|_| world.connect())
        .find(|client| client.serial() % 3 == 0)
        .expect("one of three");
    let late = world.connect();
    for client in [at_once, late] {
        world.stream(client).wire().room = 1 << 20;
        world.stream(client).wire().ended = true;
        world.event(client, true, false, true);
    }
    assert!(
        !world.is_present(at_once),
        "the service has nothing for this client"
    );
    let ctx = &mut world.server.ctx;
    assert_eq!(ctx.try_send(late, Message::Text("the last")), Ok(()));
    ctx.try_close(late, CloseCode::NORMAL, "done")
        .expect("open");
    world.take_turn();
    world.check();
    assert!(
        !world.is_present(late),
        "the server does not wait for the client's CLOSE"
    );
    let ending = world.server.service.endings[&late];
    assert_eq!(ending, (Cause::Service, CloseCode::NORMAL));
}

#[test]
fn a_half_closed_client_may_pause_before_it_takes_the_rest_of_its_output() {
    // The bug: the rest was dropped after the close timeout, so a client on a busy machine got 195 of 200 echoes.
    let mut world = World::new(7).expect("an epoll instance");
    let client = (0..3)
        .map(|_| world.connect())
        .find(|client| client.serial() % 3 == 0)
        .expect("one of three");
    world.stream(client).wire().room = 1000;
    let sent = world
        .server
        .ctx
        .try_send(client, Message::Binary(&[5; 5000]));
    sent.expect("open");
    world.take_turn();
    world.stream(client).wire().ended = true;
    world.event(client, true, false, true);
    (0..15).for_each(|_| world.second(client, 0));
    assert!(world.is_present(client));
    world.stream(client).wire().room = 1 << 20;
    let stream = world.streams[&client].clone();
    world.event(client, false, true, false);
    world.second(client, 0);
    assert!(stream.wire().from_server.len() > 5000);
    assert!(!world.is_present(client));
}

#[test]
fn broadcasts_do_not_keep_a_half_closed_client_connected() {
    // The bug: each broadcast that the client's system took counted as progress, so the client stayed connected as long
    // as there were broadcasts.
    let mut world = World::new(7).expect("an epoll instance");
    let client = (0..3)
        .map(|_| world.connect())
        .find(|client| client.serial() % 3 == 2)
        .expect("one of three");
    world.stream(client).wire().room = 1 << 20;
    world.stream(client).wire().taken = Some(0);
    world.stream(client).wire().ended = true;
    world.event(client, true, false, true);
    for _ in 0..5 {
        let ctx = &mut world.server.ctx;
        ctx.broadcast(Message::Text("news"), |_, _| true);
        world.second(client, 1000);
    }
    assert!(!world.is_present(client));
}

#[test]
fn a_peer_that_takes_single_bytes_is_disconnected_after_our_close() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    let ctx = &mut world.server.ctx;
    ctx.try_close(client, CloseCode::NORMAL, "done")
        .expect("open");
    (0..7).for_each(|_| world.second(client, 100));
    assert!(!world.is_present(client));
}

#[test]
fn a_ping_behind_output_does_not_time_out_while_the_peer_takes_the_output() {
    // The bug: a client that read 5 MB at 60 kB/s was disconnected with ping_timeout after 40 s, because the PING was in
    // the send buffer behind data that the client was reading.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(6_000_000);
    for _ in 0..99 {
        world.second(client, 60_000);
        assert!(world.is_present(client));
    }
}

#[test]
fn a_client_that_vanishes_while_output_waits_is_disconnected_after_one_ping_window() {
    // The bug: queueing output counted as progress, so it took 55 to 75 s instead of 40.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    // The client takes output until just after the PING, and none after that.
    (0..21).for_each(|_| world.second(client, 10_000));
    for second in 0..=41 {
        if !world.is_present(client) {
            assert!(second >= 19, "not before its ping window has passed");
            return;
        }
        let _ = world
            .server
            .ctx
            .try_send(client, Message::Binary(&[1; 40_000]));
        world.second(client, 0);
    }
    panic!("the client is still connected after 41 s");
}

#[test]
fn one_message_always_fits_and_a_steady_reader_has_a_higher_limit() {
    // The bug: one message within the message limit, followed by a small one, closed the client with 1008. So did a burst
    // of updates that a slow link had no time to take.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(0);
    world.stream(client).wire().room = 0;
    let send = |world: &mut World, len: usize| {
        let message = vec![1; len];
        let ctx = &mut world.server.ctx;
        ctx.try_send(client, Message::Binary(&message))
    };
    for len in [40_000, 40_000, 60_000, 10, 10_000] {
        assert_eq!(send(&mut world, len), Ok(()), "{len}");
    }
    // The output exceeds the limit from here on, while the client takes it.
    for _ in 0..12 {
        {
            let mut wire = world.stream(client).wire();
            wire.room += 9_000;
            wire.taken = wire.taken.map(|taken| taken + 9_000);
        }
        world.event(client, false, true, false);
        assert_eq!(send(&mut world, 30_000), Ok(()));
        world.second(client, 0);
    }
    // Nothing more fits once the client takes nothing.
    (0..6).for_each(|_| world.second(client, 0));
    assert_eq!(send(&mut world, 30_000), Err(SendError::SlowConsumer));
}

#[test]
fn a_broadcast_is_written_after_the_command_even_if_it_does_not_fit() {
    // The bug: who had no room for a message was written to inside the command. One message for 5,000 such clients took 1.4 s.
    let mut world = World::new(0).expect("an epoll instance");
    let clients = [world.connect(), world.connect()];
    let [reader, other] = clients;
    world.stream(reader).wire().room = 1 << 20;
    world.stream(other).wire().room = 0;
    let before = clients.map(|client| world.stream(client).wire().from_server.len());
    let message = [1; 60_000];
    for _ in 0..5 {
        let to = world
            .server
            .ctx
            .broadcast(Message::Binary(&message), |_, _| true);
        assert_eq!(to, 2);
    }
    for (client, before) in clients.into_iter().zip(before) {
        assert_eq!(world.stream(client).wire().from_server.len(), before);
    }
    world.take_turn();
    assert!(world.stream(reader).wire().from_server.len() >= before[0] + 300_000);
    assert!(clients.iter().all(|client| world.is_present(*client)));
    // The limit holds for what its socket has not taken.
    for _ in 0..2 {
        let ctx = &mut world.server.ctx;
        ctx.broadcast(Message::Binary(&message), |_, _| true);
        (0..6).for_each(|_| world.second(other, 0));
    }
    let entry = world.server.ctx.core.registry.get(other);
    assert!(entry.is_none_or(|client| !client.wire.is_open()));
    assert!(world.is_present(reader));
}

#[test]
fn however_the_server_ends_every_client_is_reported_once_with_the_code_that_was_sent() {
    // The bug: when waiting for events failed, no client was reported as disconnected. On a second signal, clients that
    // were never sent CLOSE were reported with 1001.
    for by_signal in [true, false] {
        let mut world = World::new(0).expect("an epoll instance");
        let reads = world.connect();
        world.stream(reads).wire().room = 1 << 20;
        let stuck = world.connect();
        world.stream(stuck).wire().room = 0;
        let mut ended = Ended::Cleanly;
        if by_signal {
            world.server.handle_signal(&mut ended);
            world.server.handle_signal(&mut ended);
            assert_eq!(
                world.server.ctx.core.registry.len(),
                2,
                "two signals at once count as one"
            );
            world.pass(Duration::from_millis(101));
            world.server.handle_signal(&mut ended);
            assert_eq!(ended, Ended::AtOnce);
        } else {
            world.server.leave_at_once();
        }
        assert!(world.server.ctx.core.shutdown.is_over());
        assert_eq!(world.server.ctx.core.registry.len(), 0);
        let endings = &world.server.service.endings;
        assert_eq!(endings[&reads], (Cause::Shutdown, CloseCode::GOING_AWAY));
        assert_eq!(endings[&stuck], (Cause::Shutdown, CloseCode::ABNORMAL));
    }
}

#[test]
fn while_the_service_takes_no_messages_control_frames_before_a_message_take_effect() {
    // The bug: while a program did not read, no client was read. PING and CLOSE were not answered, and clients that had
    // left were still counted.
    let mut world = World::new(7).expect("an epoll instance");
    let frames = |kinds: &[u8]| {
        let mut bytes = Vec::new();
        for opcode in kinds {
            write_frame(true, *opcode, b"", &mut bytes);
        }
        bytes
    };
    let clients: Vec<_> = (0..4).map(|_| world.connect()).collect();
    let [pings, closes, leaves, speaks] = clients[..] else {
        unreachable!()
    };
    for client in &clients {
        world.stream(*client).wire().room = 1 << 20;
    }
    world.server.ctx.set_paused(true);
    world.give(pings, &frames(&[0x9, 0x9]));
    world.give(closes, &frames(&[0xa, 0x8]));
    world.stream(leaves).wire().ended = true;
    world.give(speaks, &frames(&[0x9, 0x2, 0x9]));
    for client in &clients {
        world.event(*client, true, false, *client == leaves);
        world.take_turn();
    }
    let pongs = |world: &World, client| {
        let wire = world.stream(client).wire();
        let pongs = wire
            .from_server
            .windows(2)
            .filter(|bytes| *bytes == [0x8a, 0]);
        pongs.count()
    };
    assert_eq!(pongs(&world, pings), 2);
    assert!(!world.is_present(closes) && !world.is_present(leaves));
    assert_eq!(pongs(&world, speaks), 1, "the PING before the message");
    assert_eq!(world.server.service.told.get(&speaks), None);
    world.server.ctx.set_paused(false);
    world.take_turn();
    assert_eq!(world.server.service.told.get(&speaks), Some(&1));
    assert_eq!(pongs(&world, speaks), 2, "the PING after the message");
}

#[test]
fn a_queued_client_is_read_however_much_work_events_cause() {
    // The bug: events came first in every turn. Sixty callers that kept sending used up each turn, and other readable
    // clients waited in the queue for ever.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.stream(client).wire().room = 1 << 20;
    let mut frame = Vec::new();
    write_frame(true, 1, b"x", &mut frame);
    world.give(client, &frame);
    world.server.ctx.core.env.turn_time = u64::MAX;
    world.event(client, true, false, false);
    assert_eq!(world.server.service.told.get(&client), None);
    world.take_turn();
    assert_eq!(world.server.service.told.get(&client), Some(&1));
}

#[test]
fn the_call_of_a_stream_that_cannot_begin_is_uncounted_once() {
    // The bug: a stream whose head could not be written was treated as completely answered, and its call was uncounted
    // twice. The count of the address then fell below zero.
    let mut world = World::new(0x20 + 7).expect("an epoll instance");
    let callers: Vec<_> = (0..2)
        .map(|_| {
            // The caller sends its call at once and is answered later.
            world.open(31);
            *world.old.last().expect("just opened")
        })
        .collect();
    assert_eq!(world.server.ctx.core.env.calls, 2);
    world.stream(callers[0]).wire().reset = true;
    let _ = world.server.ctx.begin_stream(callers[0], &[]);
    world.server.act(|_| {});
    assert_eq!(world.server.ctx.core.env.calls, 1);
    let remote = world.server.ctx.remote(callers[1]).expect("connected");
    assert_eq!(world.server.ctx.core.env.addresses.clients(remote.ip()), 1);
}

#[test]
fn a_late_event_for_a_reused_slot_has_no_effect() {
    let mut world = World::new(0).expect("an epoll instance");
    let old = world.connect();
    world.stream(old).wire().reset = true;
    world.event(old, true, true, true);
    let new = world.connect();
    assert_eq!(old.slot(), new.slot(), "the slot is reused");
    // The late event reports that the old peer is gone. It must not affect the new client.
    world.event(old, true, true, true);
    world.event(old, true, true, true);
    assert_eq!(
        world.server.service.present.iter().collect::<Vec<_>>(),
        [&new]
    );
    assert_eq!(world.server.ctx.client_count(), 1);
}

#[test]
fn a_clock_jump_gives_every_client_a_fresh_ping_window() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    let pings = |world: &World| {
        let wire = world.stream(client).wire();
        wire.from_server
            .windows(2)
            .filter(|bytes| *bytes == [0x89, 0])
            .count()
    };
    // The first PING is not answered when the machine is suspended for an hour.
    world.pass(Duration::from_secs(21));
    world.take_turn();
    assert_eq!(pings(&world), 1);
    world.pass(Duration::from_secs(3600));
    world.take_turn();
    assert!(
        world.server.service.present.contains(&client),
        "the hour does not count"
    );
    world.pass(Duration::from_secs(21));
    world.take_turn();
    assert_eq!(pings(&world), 2, "a second PING is sent");
    world.pass(Duration::from_secs(21));
    world.take_turn();
    assert!(
        !world.server.service.present.contains(&client),
        "the second PING counts"
    );
}

/// The bug: after a night asleep, the server ended clients that were away, because their grace had passed.
#[test]
fn a_client_that_is_away_stays_while_the_machine_sleeps() {
    let mut world = World::new(8 + 3).expect("an epoll instance");
    world.open(201);
    let client = *world.old.last().expect("just opened");
    let head = String::from_utf8_lossy(HEAD).replacen("/fuzz", "/fuzz?resume=new", 1);
    world.give(client, head.as_bytes());
    world.event(client, true, true, false);
    world.take_turn();
    world.reset(client);
    world.event(client, true, true, true);
    world.take_turn();
    let is_away = |world: &World| {
        let client = world.server.ctx.core.registry.get(client);
        client.is_some_and(|client| client.wire.protocol.is_detached())
    };
    assert!(is_away(&world));
    let grace = world.server.ctx.config().resume.expect("it is on").grace;
    world.server.handle_sleep(100 * grace);
    world.take_turn();
    assert!(is_away(&world));
    for _ in 0..3 {
        world.pass(grace);
        world.take_turn();
    }
    assert!(!is_away(&world));
    world.finish();
}

#[test]
fn a_ping_is_sent_in_every_interval_and_any_byte_answers_it() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.stream(client).wire().room = 1 << 20;
    for _ in 0..10 {
        world.pass(Duration::from_secs(19));
        world.give(client, b"\x82");
        world.event(client, true, false, false);
        world.take_turn();
        world.give(client, b"\x80mask");
        world.event(client, true, false, false);
        world.pass(Duration::from_millis(1100));
        world.take_turn();
    }
    assert!(world.server.service.present.contains(&client));
    let wire = world.stream(client).wire();
    assert_eq!(
        wire.from_server
            .windows(2)
            .filter(|bytes| *bytes == [0x89, 0])
            .count(),
        10
    );
}

#[test]
fn an_unread_sign_of_life_counts() {
    // The bug: after a long turn, clients whose events were not among the first thousand were disconnected while their
    // PONGs waited in their sockets.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.pass(Duration::from_secs(21));
    world.take_turn();
    world.give(client, b"\x8a\x80mask");
    world.pass(Duration::from_secs(21));
    world.take_turn();
    assert!(
        world.server.service.present.contains(&client),
        "the PONG is in the socket"
    );
}

#[test]
fn a_pause_does_not_count_towards_timeouts() {
    let mut world = World::new(0).expect("an epoll instance");
    world.server.ctx.core.env.config.timeouts.idle = Some(Duration::from_secs(60));
    let client = world.connect();
    world.open(1);
    let newcomer = *world.old.last().expect("just opened");
    world.server.ctx.set_paused(true);
    world.give(newcomer, HEAD);
    world.event(newcomer, true, false, false);
    assert!(world.is_present(newcomer), "the new client is accepted");
    let mut frame = Vec::new();
    write_frame(true, 1, b"x", &mut frame);
    for _ in 0..50 {
        world.give(client, &frame);
        world.event(client, true, false, false);
        world.pass(Duration::from_secs(9));
        world.take_turn();
    }
    world.server.ctx.set_paused(false);
    world.take_turn();
    let present: Vec<_> = world.server.service.present.iter().copied().collect();
    assert_eq!(
        present,
        [client],
        "the client whose messages wait is neither idle nor dead; the silent one is idle"
    );
}

#[test]
fn a_client_that_may_not_be_read_does_not_keep_the_loop_awake() {
    // The bug: a client whose output was congested, or whose messages were held back, was queued for reading again in
    // every turn, so the loop never slept until the hold ended.
    let mut message = Vec::new();
    write_frame(true, 2, &[b'x'; 3000], &mut message);
    for is_paused in [true, false] {
        let mut world = World::new(0).expect("an epoll instance");
        let client = world.connect();
        world.stream(client).wire().room = if is_paused { 1 << 20 } else { 0 };
        world.server.ctx.set_paused(is_paused);
        for _ in 0..20 {
            world.give(client, &message);
        }
        world.event(client, true, false, false);
        (0..3).for_each(|_| world.take_turn());
        assert!(!world.server.ctx.core.has_work(), "{is_paused}");
        assert!(world.stream(client).wire().to_server.len() > 10_000);
        world.server.ctx.set_paused(false);
        world.add_room(client, 1 << 20);
        world.event(client, false, true, false);
        (0..40).for_each(|_| world.take_turn());
        assert_eq!(world.server.service.told.get(&client), Some(&20));
        assert!(!world.server.ctx.core.has_work(), "{is_paused}");
    }
}

#[test]
fn a_call_behind_a_call_does_not_keep_the_loop_awake() {
    let mut world = World::new(7).expect("an epoll instance");
    // Calls that are answered later, with more input behind them.
    world.open(15);
    world.open(7);
    world.pass(Duration::from_millis(1));
    (0..3).for_each(|_| world.take_turn());
    assert!(world.server.ctx.core.env.calls > 0);
    assert!(!world.server.ctx.core.has_work());
}

#[test]
fn a_pause_does_not_keep_a_client_that_reads_nothing() {
    // The bug: while its service was paused, a client whose output was congested was excused like one whose messages
    // wait, and was never found to be gone.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    // It is in the middle of a message.
    let mut frame = Vec::new();
    write_frame(true, 1, b"xyz", &mut frame);
    world.give(client, &frame[..7]);
    world.event(client, true, false, false);
    world.stream(client).wire().room = 0;
    let ctx = &mut world.server.ctx;
    ctx.send(client, Message::Binary(&[1; 20_000]));
    ctx.set_paused(true);
    world.take_turn();
    (0..100).for_each(|_| world.second(client, 0));
    assert!(!world.is_present(client));
}

#[test]
fn a_request_that_ended_unread_before_its_deadline_is_not_rejected() {
    // The bug: where the end of the connection was read because the deadline had passed, the request was counted and
    // logged as rejected although the peer was gone.
    let mut world = World::new(0).expect("an epoll instance");
    world.open(1);
    let newcomer = *world.old.last().expect("just opened");
    world.give(newcomer, &HEAD[..20]);
    world.event(newcomer, true, false, false);
    world.end_input(newcomer);
    world.pass(Duration::from_secs(20));
    world.take_turn();
    assert!(world.server.ctx.core.registry.get(newcomer).is_none());
    let written = world.streams[&newcomer].wire().from_server.len();
    assert_eq!(written, 0);
}

#[test]
fn a_clock_jump_gives_a_request_no_more_time() {
    // The bug: every connection that had not finished its request began its handshake timeout anew.
    let mut world = World::new(0).expect("an epoll instance");
    world.open(1);
    let newcomer = *world.old.last().expect("just opened");
    world.add_room(newcomer, 1 << 20);
    world.pass(Duration::from_secs(1));
    world.take_turn();
    world.pass(Duration::from_secs(3600));
    world.take_turn();
    let wire = world.stream(newcomer).wire();
    assert!(wire.from_server.starts_with(b"HTTP/1.1 408"));
}

#[test]
fn the_prologue_of_receiving_and_the_general_path_give_the_same_output() {
    // A rate limit that no client reaches makes every message take the general path.
    let run = |general: bool, seed: u64| {
        let mut world = World::new(0).expect("an epoll instance");
        world.server.ctx.core.env.config.rate_limit = general.then_some(NonZeroU32::MAX);
        let client = world.connect();
        world.add_room(client, 64 << 20);
        let mut random = Random::new(seed);
        for _ in 0..40 {
            let mut frames = Vec::new();
            for _ in 0..random.below(20) {
                let opcode = [0x1, 0x2, 0x2, 0x9][random.below(4)];
                let length = [0, 3, 125, 126, 4000, 30_000][random.below(6)];
                let length = if opcode == 0x9 {
                    length.min(125)
                } else {
                    length
                };
                // The service obeys some first letters; it echoes messages that begin with another one.
                write_frame(true, opcode, &vec![b'z'; length], &mut frames);
            }
            world.give(client, &frames);
            world.event(client, true, true, false);
            (0..40).for_each(|_| world.take_turn());
        }
        assert!(world.is_present(client));
        let told = world.server.service.told.get(&client).copied();
        let written = world.stream(client).wire().from_server.clone();
        (told, written)
    };
    for seed in 1..20 {
        let (quick, general) = (run(false, seed), run(true, seed));
        assert_eq!(quick.0, general.0, "messages");
        assert!(quick.1 == general.1, "output");
    }
}

#[test]
fn near_the_limit_of_memory_the_client_that_holds_most_ends_and_frees_it() {
    // The bug: there was no bound on what all clients hold together. Eight clients that had each sent 15 MB of a message that
    // did not end had the server killed for memory.
    let mut world = World::new(7).expect("an epoll instance");
    let env = &mut world.server.ctx.core.env;
    env.config.memory = Some(200_000);
    env.memory = super::limits::memory::Memory::new(Some(200_000));
    let clients: Vec<_> = (0..5).map(|_| world.connect()).collect();
    for client in &clients {
        world.stream(*client).wire().room = 1 << 20;
    }
    let mut message = Vec::new();
    write_frame(true, 2, &[1; 59_000], &mut message);
    // What was begun stays until its sum is too large. The last one has begun most.
    for (client, begun) in clients.iter().zip([100, 20_000, 40_000, 50_000, 58_000]) {
        world.give(*client, &message[..begun]);
        for _ in 0..20 {
            world.event(*client, true, false, false);
            world.take_turn();
        }
    }
    world.pass(Duration::from_secs(1));
    world.take_turn();
    let sent = world.stream(clients[4]).wire().from_server.clone();
    assert!(sent.ends_with(b"\x03\xf5Too little memory"), "{sent:?}");
    let held = world.server.ctx.core.held_memory();
    assert!((50_000..200_000).contains(&held), "{held}");
    // The others were not touched: what they have begun can be completed.
    for (client, begun) in clients[..2].iter().zip([100, 20_000]) {
        world.give(*client, &message[begun..]);
        for _ in 0..20 {
            world.event(*client, true, false, false);
            world.take_turn();
        }
        assert_eq!(world.server.service.told.get(client), Some(&1));
    }
}
