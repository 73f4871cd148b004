use std::collections::BTreeMap;
use std::time::Duration;

use crate::fuzz::protocol::{visit_server_frames, write_frame};
use crate::protocol::OpCode;
use crate::random::Random;
use crate::server::ClientId;
use crate::server::simulation::{HEAD, World};

/// The response to the handshake without its field `Date`, and then every frame but PINGs: when a PING is due, messages may be as well,
/// and their order is open.
fn heard(bytes: &[u8]) -> Vec<Vec<u8>> {
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
    let (head, frames) = bytes.split_at(end.map_or(bytes.len(), |end| end + 4));
    let fields = head.split(|byte| *byte == b'\n');
    let fields = fields.filter(|field| !field.starts_with(b"Date: "));
    let mut heard: Vec<Vec<u8>> = fields.map(<[u8]>::to_vec).collect();
    if head.starts_with(b"HTTP/1.1 101") {
        visit_server_frames(frames, |opcode, payload| {
            if opcode != OpCode::Ping {
                heard.push([&[opcode as u8], payload].concat());
            }
        });
    }
    heard
}

/// Whether the clients of a run send messages to each other. The order of messages from different clients is open.
fn clients_meet(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// What every client has got from the server, by its serial number: which slots are free may differ.
fn run(seed: u64, upgrades: bool) -> BTreeMap<u64, Vec<Vec<u8>>> {
    let mut random = Random::new(seed);
    let options = [0, 2, 0x20, 0x24, 0x40, 0x80, 0xa6][random.below(7)];
    let letters: &[u8] = if clients_meet(seed) {
        b"xbesmluvkVU"
    } else {
        b"xml"
    };
    let mut world = World::new(options).expect("a world");
    let mut got = BTreeMap::new();
    for _ in 0..60 {
        let ids: Vec<ClientId> = world.streams.keys().copied().collect();
        let chosen = ids.get(random.below(ids.len().max(1))).copied();
        match (random.below(10), chosen) {
            (0 | 1, _) | (_, None) => {
                if let Some(id) = world.add_connection(random.below(3) * 20_000) {
                    let len = if random.below(4) == 0 {
                        random.below(HEAD.len())
                    } else {
                        HEAD.len()
                    };
                    world.give(id, &HEAD[..len]);
                    world.event(id, true, true, false);
                    world.give(id, &HEAD[len..]);
                }
            }
            (2..=6, Some(id)) => {
                let mut bytes = Vec::new();
                for _ in 0..1 + random.below(3) {
                    let letter = *letters.get(random.below(20)).unwrap_or(&b'x');
                    let len = if random.below(4) == 0 {
                        random.below(3000)
                    } else {
                        random.below(60)
                    };
                    let payload: Vec<u8> = std::iter::once(letter)
                        .chain((0..len).map(|_| b'a'))
                        .collect();
                    let cut = random.below(payload.len());
                    let opcode = 1 + random.below(2) as u8;
                    match random.below(3) {
                        0 => {
                            write_frame(false, opcode, &payload[..cut], &mut bytes);
                            write_frame(true, 9, b"ping", &mut bytes);
                            write_frame(true, 0, &payload[cut..], &mut bytes);
                        }
                        _ => write_frame(true, opcode, &payload, &mut bytes),
                    }
                }
                // The message arrives in two parts, and a turn or an upgrade may lie between them.
                let cut = random.below(bytes.len());
                world.give(id, &bytes[..cut]);
                world.event(id, true, false, false);
                if random.below(2) == 0 && upgrades {
                    world.upgrade();
                }
                world.give(id, &bytes[cut..]);
                world.event(id, true, false, false);
            }
            (7, Some(id)) => {
                world.add_room(id, random.below(30_000));
                world.event(id, false, true, false);
            }
            (8, _) => world.pass(Duration::from_millis(random.below(9000) as u64)),
            (_, _) => {}
        }
        world.take_turn();
        if upgrades {
            world.upgrade().expect("nothing prevents it");
        }
        world.check();
        world.take_turn();
        for (id, stream) in &world.streams {
            got.insert(id.serial(), heard(&stream.wire().from_server));
        }
    }
    for id in world.streams.keys().copied().collect::<Vec<_>>() {
        world.add_room(id, 10 << 20);
        world.event(id, true, true, false);
    }
    (0..200).for_each(|_| world.take_turn());
    for (id, stream) in &world.streams {
        got.insert(id.serial(), heard(&stream.wire().from_server));
    }
    world.check();
    world.finish();
    got
}

/// A client must not notice that the server was replaced, wherever a message, its output or its handshake was cut.
#[test]
fn clients_get_the_same_bytes_with_and_without_upgrades() {
    let mut compared = 0;
    for seed in 0..40 {
        let (mut without, mut with) = (run(seed, false), run(seed, true));
        if clients_meet(seed) {
            without
                .values_mut()
                .chain(with.values_mut())
                .for_each(|frames| frames.sort());
        }
        assert_eq!(
            without.keys().collect::<Vec<_>>(),
            with.keys().collect::<Vec<_>>()
        );
        for (id, frames) in &without {
            let pairs = frames.iter().zip(&with[id]);
            let differs = pairs.enumerate().find(|(_, (one, other))| one != other);
            let show =
                |frame: &[u8]| String::from_utf8_lossy(&frame[..frame.len().min(20)]).into_owned();
            let differs = differs.map(|(at, (one, other))| (at, show(one), show(other)));
            let counts = (frames.len(), with[id].len());
            assert_eq!(
                (differs, counts.0),
                (None, counts.1),
                "seed {seed}: client {id}"
            );
            compared += frames.len();
        }
    }
    assert!(compared > 3000, "{compared} frames");
}

/// The bug: the attempt to come back had a lower slot than its client, and its end was taken for the end of the client.
#[test]
fn a_client_that_comes_back_to_a_server_survives_an_upgrade() {
    let mut world = World::new(8).expect("a world");
    let first = world.add_connection(0).expect("a slot");
    world.open_ours(3);
    let open = |world: &mut World| {
        world.take_turn();
        world.pass(Duration::from_secs(1));
        world.take_turn();
        world.check();
        world.establish(0, false);
        world.check();
        world.answer(0, 0);
        world.link_event(0, true, false, false);
        world.check();
    };
    let state = |world: &World| world.server.service.ours.open.clone();
    open(&mut world);
    assert_eq!(state(&world).into_values().collect::<Vec<_>>(), [false]);
    world.reset(first);
    world.event(first, true, true, true);
    world.take_turn();
    world.check();
    world.end_link(0, true);
    let cut = state(&world);
    let (ours, is_cut) = cut.first_key_value().expect("it is there");
    let ids = world.server.ctx.core.registry.ids().into_iter();
    let slots = (ids.map(ClientId::slot).min(), Some(ours.slot()));
    assert!(*is_cut && slots.0 < slots.1, "{is_cut} {slots:?}");
    // After an upgrade that has failed early, the attempt goes on, and no second one begins.
    let count = world.server.ctx.core.registry.ids().len();
    world.server.return_all();
    assert_eq!(world.server.ctx.core.registry.ids().len(), count);
    world.upgrade().expect("an upgrade");
    assert_eq!(state(&world), cut);
    open(&mut world);
    assert_eq!(state(&world).into_values().collect::<Vec<_>>(), [false]);
    world.finish();
}
