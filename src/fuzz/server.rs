//! Operations on a whole server in memory, under simulated time.
//!
//! The operations are connections, bytes, ends of input, resets, reads, passing time, late and spurious events, and the
//! calls of the service from inside its own methods. After each operation, the records of the service must agree with
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
    while let [operation, argument, rest @ ..] = plan {
        plan = rest;
        operate(&mut world, *operation, *argument, &mut plan);
        world.check();
        if world.is_over() {
            break;
        }
    }
    world.finish();
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
            write_frame(
                true,
                2,
                &b"cobesmlpgrtx"[usize::from(operation / 13) % 12..][..1],
                &mut frame,
            );
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
    use crate::random::Random;

    #[test]
    fn after_operations_in_any_order_every_client_has_disconnected() {
        let mut random = Random::new(4);
        for _ in 0..2000 {
            operations(&random.bytes(600));
        }
    }
}
