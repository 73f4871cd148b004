//! Operations on a whole server in memory, under simulated time.
//!
//! The operations are connections, bytes, ends of input, resets, reads, passing time, late and spurious events, upgrades, and
//! the calls of the service from inside its own methods. After each operation, the records of the service must agree with
//! the registry. At the end, every client that connected must have been disconnected once.

use std::time::Duration;

use super::protocol::write_frame;
use crate::protocol::CloseCode;
use crate::server::simulation::World;

/// Runs any sequence of operations on a server. Every client that connects is reported as disconnected exactly once.
pub fn operations(data: &[u8]) {
    let Some((options, mut plan)) = data.split_first() else {
        return;
    };
    let Ok(mut world) = World::new(*options) else {
        return;
    };
    if options & 2 != 0 {
        world.slow_down();
    }
    while let [operation, argument, rest @ ..] = plan {
        plan = rest;
        if options & 8 != 0 && operation & 0xc0 != 0 {
            operate_outgoing(&mut world, *operation, *argument, &mut plan);
        } else {
            operate(&mut world, *operation, *argument, &mut plan);
        }
        world.check();
        if world.is_over() {
            break;
        }
    }
    if options & 12 == 8 && !world.is_over() {
        world.settle_upstream();
    }
    world.finish();
}

/// An operation that concerns the connections that the service opens.
fn operate_outgoing(world: &mut World, operation: u8, argument: u8, plan: &mut &[u8]) {
    let mut next = || {
        let (first, rest) = plan.split_first().unwrap_or((&0, &[]));
        *plan = rest;
        *first
    };
    match operation & 0x3f {
        0..=3 => world.open_ours(argument),
        4..=6 => world.resolve(argument),
        7 => world.set_dial(argument),
        8 | 9 => world.establish(argument, false),
        10 => world.establish(argument, true),
        11..=20 => {
            world.answer(argument, next());
            world.link_event(argument, true, false, false);
        }
        21..=30 => {
            world.server_sends(argument, next());
            world.link_event(argument, true, false, operation & 0x40 != 0);
        }
        31 => world.answer(argument, next()),
        32 => world.server_sends(argument, next()),
        33 | 34 => world.end_link(argument, false),
        35 => world.end_link(argument, true),
        36 | 37 => world.set_link_room(argument, usize::from(next()) * 64),
        38..=41 => world.link_event(
            argument,
            operation & 0x40 != 0,
            argument & 0x40 != 0,
            argument & 0x80 != 0,
        ),
        42..=48 => world.act(argument, next()),
        49..=52 => {
            let steps = [next(), next(), next()];
            world.plan(&steps);
        }
        53..=56 => world.pass(Duration::from_millis(u64::from(argument) * 4)),
        57 => world.pass(Duration::from_secs(u64::from(argument))),
        58 => world.replace_access(),
        59 | 60 => _ = world.upgrade(),
        _ => return,
    }
    world.take_turn();
}

fn operate(world: &mut World, operation: u8, argument: u8, plan: &mut &[u8]) {
    let chosen = world
        .streams
        .keys()
        .nth(usize::from(argument) % world.streams.len().max(1))
        .copied();
    match (operation % 13, chosen) {
        (0, _) | (_, None) => world.open(argument),
        (1 | 2, Some(id)) => {
            let (payload, rest) = plan.split_at(usize::from(argument % 40).min(plan.len()));
            *plan = rest;
            let opcode = [0x1, 0x2, 0x0, 0x9, 0xa, 0x8][usize::from(operation / 13) % 6];
            let mut frame = Vec::new();
            write_frame(operation < 200, opcode, payload, &mut frame);
            world.give(id, &frame);
            world.event(id, true, false, false);
        }
        (3, Some(id)) => {
            // One of the letters that the service obeys.
            let mut frame = Vec::new();
            let at = usize::from(operation / 13) + usize::from(argument / 8);
            let letter = b"cobesmlpgrtxuvkVU"[at % 17];
            write_frame(true, 2, &[letter, argument], &mut frame);
            world.give(id, &frame.repeat(1 + usize::from(argument % 3)));
            world.event(id, true, false, false);
        }
        (4, Some(id)) => {
            let (bytes, rest) = plan.split_at(usize::from(operation / 13).min(plan.len()));
            *plan = rest;
            if argument & 1 == 0 {
                world.give(id, bytes);
            } else {
                world.give_raw(id, bytes);
            }
            world.event(id, true, false, false);
        }
        (5, Some(id)) => {
            world.end_input(id);
            world.event(id, true, false, true);
        }
        (6, Some(id)) => {
            world.reset(id);
            world.event(id, true, true, true);
        }
        (7 | 8, Some(id)) => {
            world.add_room(id, usize::from(argument) * usize::from(operation));
            world.event(id, false, true, false);
        }
        (9, _) if operation >= 208 => {
            world.upgrade();
        }
        (9, _) => world.pass(Duration::from_millis(u64::from(argument) * 20)),
        (10, _) => world.pass(Duration::from_secs(u64::from(argument))),
        (11, _) => {
            if let Some(&id) = world.old.get(usize::from(argument)) {
                world.event(id, true, true, operation & 1 != 0);
            }
        }
        (_, Some(_)) if argument == 255 => world.signal(),
        (_, Some(id)) => {
            world.close(
                id,
                CloseCode(u16::from(argument) * 20),
                "x".repeat(argument.into()),
            );
        }
    }
    world.take_turn();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, rounds};

    #[test]
    fn after_operations_in_any_order_every_client_has_disconnected() {
        let mut random = Random::new(4);
        for _ in 0..rounds(2000) {
            operations(&random.bytes(600));
        }
    }

    #[test]
    fn connections_of_the_service_end_once_and_lose_no_message() {
        let mut random = Random::new(5);
        for run in 0..rounds(600) {
            let mut data = random.bytes(50 + run % 900);
            if data.is_empty() {
                continue;
            }
            data[0] |= 8;
            // Most operations concern them.
            for at in (1..data.len()).step_by(2) {
                if random.below(5) > 0 {
                    data[at] |= 0x40;
                }
            }
            operations(&data);
        }
    }

    #[test]
    fn a_resumed_connection_that_is_closing_does_not_keep_the_loop_awake() {
        // The bug: a message waited for a connection that the server's next frame had made end.
        let plan = [
            14, 66, 38, 62, 70, 9, 102, 79, 0, 94, 86, 3, 219, 239, 64, 200, 74, 4,
        ];
        operations(&plan);
    }
}
