//! Tests of topics and of gathered output, on a server in memory.

use super::*;
use crate::protocol::CloseCode;
use crate::server::Config;
#[cfg(feature = "tls")]
use crate::server::simulation::HEAD;
use crate::server::simulation::{Witness, World};

/// Connects clients, none of which is in a topic, or takes output.
fn with_clients(mut world: World, clients: usize) -> (World, Vec<ClientId>) {
    let ids: Vec<_> = (0..clients)
        .map(|_| {
            world.open(200);
            *world.old.last().expect("just opened")
        })
        .collect();
    for id in &ids {
        let ctx = &mut world.server.ctx;
        let topics: Vec<_> = ctx.topics(*id).map(str::to_owned).collect();
        for topic in topics {
            assert!(ctx.unsubscribe(*id, &topic));
        }
        world.take_turn();
        world.stream(*id).wire().room = 0;
    }
    (world, ids)
}

/// Clients of a server with low limits.
fn world(clients: usize) -> (World, Vec<ClientId>) {
    with_clients(World::new(7).expect("an epoll instance"), clients)
}

/// Clients of a server with the default limits.
fn large_world(clients: usize, memory: Option<usize>) -> (World, Vec<ClientId>) {
    let config = Config {
        max_clients: clients + 2,
        memory,
        ..Config::default()
    };
    let world = World::with_service(config, Witness::default()).expect("an epoll instance");
    with_clients(world, clients)
}

/// Two clients: the first one, in the topic "rare", takes nothing, and the other one, in "busy", takes everything. Also what is held
/// for the first one.
fn rare_and_busy() -> (World, Vec<ClientId>, usize) {
    let (mut world, ids) = world(2);
    for (id, topic) in [(ids[0], "rare"), (ids[1], "busy")] {
        world.server.ctx.subscribe(id, topic).expect("a member");
    }
    world.add_room(ids[1], 100 << 20);
    let before = held(&world, ids[0]);
    (world, ids, before)
}

fn held(world: &World, id: ClientId) -> usize {
    let client = world.server.ctx.core.registry.get(id);
    client.expect("registered").wire.holds()
}

/// Lets the socket of a client take output, and returns all payloads that it has got since `from`.
fn taken(world: &mut World, id: ClientId, from: usize) -> Vec<String> {
    world.add_room(id, 1 << 20);
    for _ in 0..3 {
        world.event(id, false, true, false);
        world.take_turn();
    }
    let sent = world.stream(id).wire().from_server[from..].to_vec();
    let mut rest = &sent[..];
    let mut payloads = Vec::new();
    while let [_, length, ..] = rest {
        let (head, length) = match length {
            126 => (4, usize::from(u16::from_be_bytes([rest[2], rest[3]]))),
            length => (2, usize::from(*length)),
        };
        let payload = &rest[head..head + length];
        payloads.push(String::from_utf8_lossy(payload).into_owned());
        rest = &rest[head + length..];
    }
    payloads
}

fn sent(world: &World, id: ClientId) -> usize {
    world.stream(id).wire().from_server.len()
}

#[test]
fn what_nobody_reads_is_kept_once_for_all_members() {
    // The bug: each member kept a copy of its own, so that 1,000 messages of 1 KiB took 1 GB for 1,000 members.
    let (mut world, ids) = world(8);
    for id in &ids {
        world.server.ctx.subscribe(*id, "x").expect("a member");
    }
    let before: Vec<_> = ids.iter().map(|id| held(&world, *id)).collect();
    for _ in 0..80 {
        assert_eq!(world.server.ctx.publish("x", &[1; 1000]), 8);
        world.take_turn();
    }
    let after = ids.iter().map(|id| held(&world, *id));
    let total: usize = after
        .zip(before)
        .map(|(after, before)| after - before)
        .sum();
    assert!((80_000..110_000).contains(&total), "{total} bytes");
}

#[test]
fn a_member_keeps_nothing_of_what_others_have_got() {
    // A frame must not keep the whole batch in memory in which it was gathered.
    let (mut world, ids, before) = rare_and_busy();
    for _ in 0..50 {
        let ctx = &mut world.server.ctx;
        ctx.publish("rare", "seldom");
        for _ in 0..60 {
            ctx.publish("busy", &[1; 1000]);
        }
        world.take_turn();
    }
    let kept = held(&world, ids[0]) - before;
    assert!(kept < 62_000 + 50 * 20, "{kept} bytes");
    let from = sent(&world, ids[0]);
    assert_eq!(taken(&mut world, ids[0], from), ["seldom"; 50]);
}

#[test]
fn messages_to_one_and_to_all_keep_their_order() {
    let (mut world, ids) = world(3);
    for id in &ids {
        world.add_room(*id, 1 << 20);
        world.server.ctx.subscribe(*id, "x").expect("a member");
    }
    let from = sent(&world, ids[0]);
    let long = "y".repeat(1500);
    for _ in 0..3 {
        let ctx = &mut world.server.ctx;
        ctx.publish("x", "1");
        ctx.publish("x", "2");
        ctx.send(ids[0], "3");
        ctx.publish_except(ids[0], "x", "not this");
        ctx.publish("x", &long);
        ctx.broadcast("5", |_, _| true);
        ctx.send(ids[0], &long);
    }
    world.take_turn();
    let taken = taken(&mut world, ids[0], from);
    let taken: Vec<_> = taken.iter().map(|one| (&one[..1], one.len())).collect();
    let long = ("y", 1500);
    let expected = [("1", 1), ("2", 1), ("3", 1), long, ("5", 1), long].repeat(3);
    assert_eq!(taken, expected);
}

#[test]
fn a_slow_member_gets_the_newest_message_if_it_keeps_no_other() {
    let (mut world, ids) = world(3);
    let (slow, fast) = (ids[0], ids[1]);
    for id in &ids {
        let ctx = &mut world.server.ctx;
        ctx.subscribe_keeping(*id, "x", Keep::Latest)
            .expect("a member");
    }
    world.add_room(fast, 1 << 20);
    let (from_slow, from_fast) = (sent(&world, slow), sent(&world, fast));
    for number in 0..9 {
        let ctx = &mut world.server.ctx;
        assert_eq!(ctx.publish("x", &format!("{number}")), 3);
        world.take_turn();
    }
    assert_eq!(world.server.ctx.core.env.counters.replaced, 2 * 7);
    let all: Vec<_> = (0..9).map(|number| number.to_string()).collect();
    assert_eq!(taken(&mut world, fast, from_fast), all);
    // The first one was queued when the socket was not known to be full.
    assert_eq!(taken(&mut world, slow, from_slow), ["0", "8"]);
    // Now it takes every message again.
    for number in 0..9 {
        world.server.ctx.publish("x", &format!("{number}"));
    }
    world.take_turn();
    let later = taken(&mut world, slow, from_slow);
    assert_eq!(later[2..], all);
    // From now on it keeps all of them, and what waits precedes the next one.
    world.stream(slow).wire().room = 0;
    let from = sent(&world, slow);
    for number in 0..6 {
        let ctx = &mut world.server.ctx;
        if number == 3 {
            assert_eq!(ctx.subscribe(slow, "x"), Ok(false));
        }
        ctx.publish("x", &format!("{number}"));
        world.take_turn();
    }
    assert_eq!(taken(&mut world, slow, from), ["0", "2", "3", "4", "5"]);
    let ctx = &mut world.server.ctx;
    let member = ctx.subscribe_keeping(slow, "x", Keep::Latest);
    assert_eq!(member, Ok(false));
    // What waits precedes the CLOSE.
    world.stream(slow).wire().room = 0;
    let from_slow = sent(&world, slow);
    for number in 0..3 {
        world.server.ctx.publish("x", &format!("{number}"));
        world.take_turn();
    }
    world.close(slow, CloseCode::NORMAL, String::new());
    let last = taken(&mut world, slow, from_slow);
    assert_eq!(last, ["0", "2", "\u{3}\u{fffd}"]);
}

#[test]
fn a_membership_ends_with_its_client_and_a_topic_with_its_last_member() {
    let (mut world, ids) = world(3);
    let ctx = &mut world.server.ctx;
    assert_eq!(ctx.subscribe(ids[0], "x"), Ok(true));
    assert_eq!(ctx.subscribe(ids[0], "x"), Ok(false));
    assert_eq!(ctx.subscribe(ids[1], "x"), Ok(true));
    assert_eq!(ctx.subscribe(ids[1], "y"), Ok(true));
    assert_eq!(ctx.all_topics().count(), 2);
    assert!(ctx.unsubscribe(ids[1], "x"));
    assert!(!ctx.unsubscribe(ids[1], "x"));
    assert_eq!(ctx.subscribers("x").collect::<Vec<_>>(), [ids[0]]);
    assert_eq!(ctx.publish("x", "a"), 1);
    assert_eq!(ctx.publish("z", "a"), 0);
    world.reset(ids[0]);
    world.event(ids[0], true, true, true);
    let ctx = &mut world.server.ctx;
    assert_eq!(ctx.all_topics().collect::<Vec<_>>(), [("y", 1)]);
    assert_eq!(ctx.core.topics.memberships(), 1);
    let gone = SubscribeError::Client(SendError::Gone);
    assert_eq!(ctx.subscribe(ids[0], "x"), Err(gone));
}

#[test]
fn the_limits_of_topics_are_held() {
    let (mut world, ids) = world(2);
    let config: &mut Config = &mut world.server.ctx.core.env.config;
    (config.max_topics, config.max_topics_per_client) = (3, 2);
    let ctx = &mut world.server.ctx;
    for name in ["", &"x".repeat(MAX_NAME + 1)] {
        assert_eq!(ctx.subscribe(ids[0], name), Err(SubscribeError::Name));
    }
    assert_eq!(ctx.subscribe(ids[0], &"x".repeat(MAX_NAME)), Ok(true));
    assert_eq!(ctx.subscribe(ids[0], "b"), Ok(true));
    let full = Err(SubscribeError::TooManyOfClient);
    assert_eq!(ctx.subscribe(ids[0], "c"), full);
    assert_eq!(ctx.subscribe(ids[1], "c"), Ok(true));
    assert_eq!(ctx.subscribe(ids[1], "d"), Err(SubscribeError::TooMany));
    assert_eq!(ctx.core.env.counters.refused_subscriptions, 2);
    // A topic that exists takes further members.
    assert_eq!(ctx.subscribe(ids[1], "b"), Ok(true));
}

#[test]
fn two_frames_of_a_turn_do_not_keep_their_batch() {
    let (mut world, ids, before) = rare_and_busy();
    for _ in 0..50 {
        let ctx = &mut world.server.ctx;
        ctx.publish("rare", "seldom");
        for _ in 0..30 {
            ctx.publish("busy", &[1; 1000]);
        }
        ctx.publish("rare", "seldom");
        for _ in 0..30 {
            ctx.publish("busy", &[1; 1000]);
        }
        world.take_turn();
    }
    let kept = held(&world, ids[0]) - before;
    assert!(kept < 100_000, "{kept} bytes for 800 bytes of frames");
}

#[test]
fn a_frame_before_a_message_of_its_own_does_not_keep_its_batch() {
    let (mut world, ids, before) = rare_and_busy();
    for _ in 0..50 {
        let ctx = &mut world.server.ctx;
        ctx.publish("rare", "seldom");
        for _ in 0..60 {
            ctx.publish("busy", &[1; 1000]);
        }
        ctx.send(ids[0], "own");
        world.take_turn();
    }
    let kept = held(&world, ids[0]) - before;
    assert!(kept < 100_000, "{kept} bytes for 650 bytes of frames");
}

#[test]
fn a_short_frame_does_not_keep_a_long_one() {
    let (mut world, ids, before) = rare_and_busy();
    let ctx = &mut world.server.ctx;
    ctx.publish("rare", "seldom");
    ctx.publish("busy", &vec![1; 10 << 20][..]);
    for _ in 0..30 {
        world.take_turn();
    }
    let kept = held(&world, ids[0]) - before;
    assert!(kept < 100_000, "{kept} bytes for 8 bytes of frames");
}

#[test]
fn each_topic_gets_its_turn_with_a_slow_member() {
    // The bug: the topic that was created first was served first each time.
    let (mut world, ids) = large_world(1, None);
    let slow = ids[0];
    let ctx = &mut world.server.ctx;
    for topic in ["b", "a"] {
        ctx.subscribe_keeping(slow, topic, Keep::Latest)
            .expect("a member");
    }
    ctx.publish("a", "a");
    world.take_turn();
    let from = sent(&world, slow);
    assert_eq!(world.server.ctx.publish("b", "B"), 1);
    let long = "a".repeat(20_000);
    for _ in 0..200 {
        world.server.ctx.publish("a", &long);
        world.add_room(slow, 7000);
        world.event(slow, false, true, false);
        world.take_turn();
    }
    let all = world.stream(slow).wire().from_server[from..].to_vec();
    assert!(all.contains(&b'B'), "the message of b was never sent");
}

#[test]
fn published_bytes_count_towards_the_memory() {
    // The bug: only what was sent to one client made the server measure its memory.
    let limit = 16 << 20;
    let (mut world, ids) = large_world(12, Some(limit));
    for (number, id) in ids.iter().enumerate() {
        let ctx = &mut world.server.ctx;
        ctx.subscribe(*id, &number.to_string()).expect("a member");
    }
    let payload = vec![1; 1 << 20];
    for _ in 0..5 {
        for number in 0..ids.len() {
            world.server.ctx.publish(&number.to_string(), &payload[..]);
            world.take_turn();
        }
    }
    let held = world.server.ctx.core.held_memory();
    assert!(
        held <= 2 * limit,
        "{held} bytes are held, and {limit} allowed"
    );
}

#[test]
fn a_frame_that_has_not_begun_does_not_precede_the_close_of_a_slow_client() {
    let (mut world, ids) = large_world(1, None);
    let slow = ids[0];
    let ctx = &mut world.server.ctx;
    ctx.subscribe(slow, "x").expect("a member");
    ctx.publish("x", &[1; 1000]);
    ctx.publish("x", &vec![2; 5 << 20][..]);
    world.add_room(slow, 10);
    world.take_turn();
    world.server.ctx.cut_off(slow);
    let client = world.server.ctx.core.registry.get(slow).expect("here");
    let queued = client.wire.queued();
    assert!(queued < 2000, "{queued} bytes precede the CLOSE");
}

#[test]
fn many_messages_that_have_waited_are_sent_one_after_another() {
    // The bug: sending one of them wrote the output, which sent the next one, and so on, until the stack was full.
    let (mut world, ids) = large_world(1, None);
    let slow = ids[0];
    let ctx = &mut world.server.ctx;
    for number in 0..1000 {
        ctx.subscribe_keeping(slow, &number.to_string(), Keep::Latest)
            .expect("a member");
    }
    ctx.send(slow, "first");
    world.take_turn();
    let long = vec![1; 300_000];
    for number in 0..1000 {
        let payload = if number % 2 == 0 {
            &long[..1]
        } else {
            &long[..]
        };
        world.server.ctx.publish(&number.to_string(), payload);
    }
    world.add_room(slow, 1 << 30);
    world.event(slow, false, true, false);
    world.take_turn();
    let count = world.stream(slow).wire().from_server.len();
    assert!(count > 500 * 300_000, "all of them are sent");
}

#[cfg(feature = "tls")]
#[test]
fn a_message_that_waits_over_tls_is_sent_when_the_socket_has_room() {
    // The bug: other output had been written before the event arrived, so nothing seemed to be left for the event.
    let mut world = World::new(0x10 + 8 + 3).expect("an epoll instance");
    let config = &mut world.server.ctx.core.env.config;
    config.max_outbound = 10 << 20;
    config.resume.as_mut().expect("on").buffer = 100 << 20;
    world.open(201);
    let slow = *world.old.last().expect("just opened");
    world.add_room(slow, 1 << 20);
    let head = String::from_utf8_lossy(HEAD).replacen("/fuzz", "/fuzz?resume=new", 1);
    world.give(slow, head.as_bytes());
    world.event(slow, true, true, false);
    world.take_turn();
    let ctx = &mut world.server.ctx;
    assert!(ctx.is_resumable(slow));
    ctx.subscribe_keeping(slow, "x", Keep::Latest)
        .expect("a member");
    world.stream(slow).wire().room = 0;
    world.server.ctx.send(slow, &[0; 5000][..]);
    world.take_turn();
    world.add_room(slow, 100);
    world.event(slow, false, true, false);
    world.take_turn();
    // The peer takes everything now. The event comes in the next turn.
    world.add_room(slow, 1 << 20);
    world.server.ctx.send(slow, &[0; 20_000][..]);
    assert_eq!(world.server.ctx.publish("x", "1"), 1);
    for _ in 0..5 {
        world.event(slow, false, true, false);
        world.take_turn();
    }
    let queued = world
        .server
        .ctx
        .core
        .registry
        .get(slow)
        .expect("here")
        .wire
        .queued();
    assert_eq!(queued, 0);
    for _ in 0..5 {
        world.server.ctx.publish("x", "2");
        world.event(slow, false, true, false);
        world.take_turn();
    }
    assert_eq!(
        world.server.ctx.core.env.counters.replaced, 0,
        "messages wait for nothing"
    );
}

#[test]
fn a_fast_member_gets_every_message_of_one_call() {
    let (mut world, ids) = large_world(1, None);
    let fast = ids[0];
    world.add_room(fast, 100 << 20);
    let ctx = &mut world.server.ctx;
    ctx.subscribe_keeping(fast, "x", Keep::Latest)
        .expect("a member");
    for _ in 0..20 {
        ctx.publish("x", &[1; 40_000]);
    }
    world.take_turn();
    assert_eq!(world.server.ctx.core.env.counters.replaced, 0);
}

#[test]
fn what_is_gathered_in_a_turn_congests_no_client() {
    let (mut world, ids) = large_world(1, None);
    let fast = ids[0];
    world.add_room(fast, 100 << 20);
    let ctx = &mut world.server.ctx;
    for _ in 0..20 {
        ctx.broadcast(&[1; 40_000], |_, _| true);
    }
    assert!(!ctx.is_congested(fast));
}

#[test]
fn a_message_that_waits_is_not_lost_while_its_client_is_read() {
    // The bug: it was added to the write buffer while that was being written, and cleared with it.
    // What one call of `Service::message` may do: nothing is slow here.
    let (mut world, ids) = large_world(1, None);
    let fast = ids[0];
    world.add_room(fast, 100 << 20);
    let ctx = &mut world.server.ctx;
    ctx.subscribe_keeping(fast, "x", Keep::Latest)
        .expect("a member");
    assert!(ctx.core.begin_read(fast));
    for _ in 0..20 {
        ctx.publish("x", &[1; 40_000]);
    }
    ctx.publish("x", "NEWEST");
    ctx.send(fast, "reply");
    ctx.core.end_read(true);
    for _ in 0..3 {
        world.take_turn();
    }
    let all = world.stream(fast).wire().from_server.clone();
    assert!(all.windows(6).any(|bytes| bytes == b"NEWEST"), "lost");
}
