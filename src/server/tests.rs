//! Regression tests of the loop, on a server in memory under simulated time.

use std::time::Duration;

use super::simulation::{HEAD, World};
use super::{ClientId, Ended};
use crate::SendError;
use crate::fuzz::protocol::write_frame;
use crate::protocol::{Cause, CloseCode, Message};

impl World {
    /// A client whose handshake is done.
    fn connect(&mut self) -> ClientId {
        self.open(200);
        let id = *self.old.last().expect("just opened");
        assert!(self.server.service.present.contains(&id));
        id
    }
}

impl World {
    /// A client with `count` bytes in the system's buffer, of which its own system has taken nothing yet.
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
        self.server.take_turn();
        let entry = self
            .server
            .ctx
            .core
            .registry
            .get(client)
            .expect("it is there");
        assert_eq!(entry.queued(), 0, "all of it is in the system's buffer");
        client
    }

    /// Passes a second, in which the client's system takes `count` bytes.
    fn second(&mut self, client: ClientId, count: usize) {
        if let Some(stream) = self.streams.get(&client)
            && let Some(taken) = &mut stream.wire().taken
        {
            *taken += count;
        }
        self.pass(Duration::from_secs(1));
        self.server.take_turn();
        self.check();
    }

    fn is_present(&self, client: ClientId) -> bool {
        self.server.service.present.contains(&client)
    }
}

#[test]
fn what_the_system_still_holds_is_not_lost_after_our_close() {
    // The bug: --close-timeout after our CLOSE the socket was closed although its buffer still held megabytes that
    // the peer was reading. With a PING of the peer unread in it, that was a reset.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    let ctx = &mut world.server.ctx;
    ctx.try_close(client, CloseCode::NORMAL, "done")
        .expect("it is open");
    for _ in 0..30 {
        world.give(client, b"\x89\x80mask");
        world.event(client, true, false, false);
        assert_eq!(
            world.stream(client).wire().to_server.len(),
            0,
            "what comes is read and discarded"
        );
        world.second(client, 30_000);
        assert!(world.is_present(client), "it takes 30 kB a second");
    }
    world.give(client, b"\x88\x80mask");
    world.event(client, true, false, false);
    world.server.take_turn();
    assert!(!world.is_present(client), "it has answered our CLOSE");
}

#[test]
fn a_client_that_has_ended_its_direction_still_gets_what_the_service_has_for_it() {
    // The bug: a terminal's or an app's client that had shut down its own side was gone at once, and what the
    // service was about to send was dropped.
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
    assert!(!world.is_present(at_once), "there is nothing for it");
    let ctx = &mut world.server.ctx;
    assert_eq!(ctx.try_send(late, Message::Text("the last")), Ok(()));
    ctx.try_close(late, CloseCode::NORMAL, "done")
        .expect("it is open");
    world.server.take_turn();
    world.check();
    assert!(!world.is_present(late), "its CLOSE is not waited for");
    let ending = world.server.service.endings[&late];
    assert_eq!(ending, (Cause::Service, CloseCode::NORMAL));
}

#[test]
fn a_half_closed_client_is_not_kept_by_what_is_sent_to_everyone() {
    // The bug: each broadcast that its system took was progress, so it stayed as long as anything was broadcast.
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
fn a_peer_that_takes_a_byte_now_and_then_does_not_stay_for_ever_after_our_close() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    let ctx = &mut world.server.ctx;
    ctx.try_close(client, CloseCode::NORMAL, "done")
        .expect("it is open");
    (0..7).for_each(|_| world.second(client, 100));
    assert!(!world.is_present(client));
}

#[test]
fn a_ping_that_lies_behind_output_is_not_missed_while_the_output_moves() {
    // The bug: 5 MB read at 60 kB/s ended as ping_timeout after 40 s, since the PING lay in the system's buffer
    // behind data that the client was reading.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(6_000_000);
    for _ in 0..99 {
        world.second(client, 60_000);
        assert!(world.is_present(client));
    }
}

#[test]
fn a_client_that_vanishes_while_it_is_sent_to_is_gone_after_one_ping_window() {
    // The bug: output that began to wait was taken for progress, so it took 55 to 75 s instead of 40.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect_behind(1_000_000);
    // It takes something until just after the PING, and nothing from then on.
    (0..21).for_each(|_| world.second(client, 10_000));
    for second in 0..=41 {
        if !world.is_present(client) {
            assert!(second >= 19, "not before its window is over");
            return;
        }
        let _ = world
            .server
            .ctx
            .try_send(client, Message::Binary(&[1; 40_000]));
        world.second(client, 0);
    }
    panic!("it is still there after 41 s");
}

#[test]
fn one_message_always_fits_and_a_steady_reader_may_be_further_behind() {
    // The bug: one message within the limit of messages, followed by a small one, closed the client with 1008; so
    // did a burst of updates that a slow link had had no time to take.
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
    // Over the limit from here on, while it takes its output.
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
    // And no more once it takes nothing.
    (0..6).for_each(|_| world.second(client, 0));
    assert_eq!(send(&mut world, 30_000), Err(SendError::SlowConsumer));
}

#[test]
fn every_way_out_tells_every_client_once_with_the_code_that_was_sent() {
    // The bug: where waiting for events failed, no client was told; on a second signal clients that were never
    // sent CLOSE were reported as 1001.
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
                "two at once are one"
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
fn while_the_service_takes_no_messages_everything_before_one_takes_effect() {
    // The bug: while a program did not read, nobody was read: PING and CLOSE went unanswered, and clients that had
    // left stayed counted.
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
        world.server.take_turn();
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
    assert_eq!(pongs(&world, speaks), 1, "what comes before the message");
    assert_eq!(world.server.service.told.get(&speaks), None);
    world.server.ctx.set_paused(false);
    world.server.take_turn();
    assert_eq!(world.server.service.told.get(&speaks), Some(&1));
    assert_eq!(pongs(&world, speaks), 2, "and what comes after it");
}

#[test]
fn who_waits_to_be_read_is_read_however_much_events_cause() {
    // The bug: events came first in every turn. Sixty callers that kept sending used it up, and whoever else had
    // become readable stood in the queue for ever.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.stream(client).wire().room = 1 << 20;
    let mut frame = Vec::new();
    write_frame(true, 1, b"x", &mut frame);
    world.give(client, &frame);
    let spend_the_turn = |world: &mut World| {
        let now = world.server.ctx.now();
        world.server.ctx.core.begin_turn(now);
        world.server.ctx.spend(1_000_000);
    };
    spend_the_turn(&mut world);
    world.event(client, true, false, false);
    assert_eq!(world.server.service.told.get(&client), None);
    world.server.take_turn();
    assert_eq!(world.server.service.told.get(&client), Some(&1));
}

#[test]
fn a_stream_that_cannot_begin_is_counted_out_once() {
    // The bug: a stream whose head could not be written was taken for one that was answered to the end, and its
    // call counted out twice. The address then had less than no clients.
    let mut world = World::new(0x20 + 7).expect("an epoll instance");
    let callers: Vec<_> = (0..2)
        .map(|_| {
            // It calls at once, and is answered later.
            world.open(31);
            *world.old.last().expect("just opened")
        })
        .collect();
    assert_eq!(world.server.ctx.core.env.calls, 2);
    world.stream(callers[0]).wire().reset = true;
    let _ = world.server.ctx.begin_stream(callers[0], &[]);
    world.server.reap();
    assert_eq!(world.server.ctx.core.env.calls, 1);
    let remote = world.server.ctx.remote(callers[1]).expect("it waits");
    assert_eq!(world.server.ctx.core.env.addresses.clients(remote.ip()), 1);
}

#[test]
fn an_event_for_a_client_whose_slot_is_taken_again_finds_nobody() {
    let mut world = World::new(0).expect("an epoll instance");
    let old = world.connect();
    world.stream(old).wire().reset = true;
    world.event(old, true, true, true);
    let new = world.connect();
    assert_eq!(old.slot(), new.slot(), "the slot is used again");
    // The late event says that the peer is gone; it is not about the new one.
    world.event(old, true, true, true);
    world.event(old, true, true, true);
    assert_eq!(
        world.server.service.present.iter().collect::<Vec<_>>(),
        [&new]
    );
    assert_eq!(world.server.ctx.client_count(), 1);
}

#[test]
fn a_clock_jump_gives_everyone_a_fresh_ping_window() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    let pings = |world: &World| {
        let wire = world.stream(client).wire();
        wire.from_server
            .windows(2)
            .filter(|bytes| *bytes == [0x89, 0])
            .count()
    };
    // The first PING is out and not answered when the machine sleeps for an hour.
    world.pass(Duration::from_secs(21));
    world.server.take_turn();
    assert_eq!(pings(&world), 1);
    world.pass(Duration::from_secs(3600));
    world.server.take_turn();
    assert!(
        world.server.service.present.contains(&client),
        "the hour is not held against it"
    );
    world.pass(Duration::from_secs(21));
    world.server.take_turn();
    assert_eq!(pings(&world), 2, "it is asked again");
    world.pass(Duration::from_secs(21));
    world.server.take_turn();
    assert!(
        !world.server.service.present.contains(&client),
        "and this time it counts"
    );
}

#[test]
fn a_ping_goes_out_in_every_interval_and_any_byte_answers_it() {
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.stream(client).wire().room = 1 << 20;
    for _ in 0..10 {
        world.pass(Duration::from_secs(19));
        world.give(client, b"\x82");
        world.event(client, true, false, false);
        world.server.take_turn();
        world.give(client, b"\x80mask");
        world.event(client, true, false, false);
        world.pass(Duration::from_millis(1100));
        world.server.take_turn();
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
fn a_sign_of_life_that_was_not_read_yet_counts() {
    // The bug: after a turn that took long, PONGs of clients whose events were not among the first thousand lay in
    // their sockets while their time ran out.
    let mut world = World::new(0).expect("an epoll instance");
    let client = world.connect();
    world.pass(Duration::from_secs(21));
    world.server.take_turn();
    world.give(client, b"\x8a\x80mask");
    world.pass(Duration::from_secs(21));
    world.server.take_turn();
    assert!(
        world.server.service.present.contains(&client),
        "the PONG is there"
    );
}

#[test]
fn a_pause_is_not_held_against_anyone() {
    let mut world = World::new(0).expect("an epoll instance");
    world.server.ctx.core.env.config.timeouts.idle = Some(Duration::from_secs(60));
    let client = world.connect();
    world.open(1);
    let newcomer = *world.old.last().expect("just opened");
    world.server.ctx.set_paused(true);
    world.give(newcomer, HEAD);
    world.event(newcomer, true, false, false);
    assert!(world.is_present(newcomer), "nobody is turned away");
    let mut frame = Vec::new();
    write_frame(true, 1, b"x", &mut frame);
    for _ in 0..50 {
        world.give(client, &frame);
        world.event(client, true, false, false);
        world.pass(Duration::from_secs(9));
        world.server.take_turn();
    }
    world.server.ctx.set_paused(false);
    world.server.take_turn();
    let present: Vec<_> = world.server.service.present.iter().copied().collect();
    assert_eq!(
        present,
        [client],
        "its messages wait, so it is neither idle nor dead; one that is silent is"
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
    world.server.take_turn();
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
    world.server.take_turn();
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
    world.server.take_turn();
    world.pass(Duration::from_secs(3600));
    world.server.take_turn();
    let wire = world.stream(newcomer).wire();
    assert!(wire.from_server.starts_with(b"HTTP/1.1 408"));
}
