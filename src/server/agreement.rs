//! Checks that services and the registry agree on who is connected: a service keeps no client that is gone, and a service that
//! keeps every client misses none. The index of topics has each membership in the registry, and no other.

use std::time::Duration;

use super::event_loop::Server;
use super::id::ClientId;
use super::service::Service;

/// The time between two checks of a busy server. A check visits every client.
const INTERVAL: Duration = Duration::from_secs(60);

/// Debug builds and fuzzers check after every disconnect while there are at most this many connections.
#[cfg(any(debug_assertions, fuzzing))]
const FEW: usize = 64;

/// The clients about whom the services and the registry disagree.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Disagreement {
    /// Clients that a service keeps and that are gone.
    pub(super) kept: Vec<ClientId>,
    /// Clients that are connected and that their service has lost.
    pub(super) lost: Vec<ClientId>,
    /// Clients whose memberships differ from the index of topics.
    pub(super) members: Vec<ClientId>,
}

impl Disagreement {
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.lost.is_empty() && self.members.is_empty()
    }
}

impl<S: Service> Server<S> {
    /// Checks now and then, after a disconnect. A release build counts and logs what it finds; a debug build panics.
    pub(super) fn sample_agreement(&mut self) {
        let now = self.ctx.now();
        let is_due = now >= self.check_at;
        #[cfg(any(debug_assertions, fuzzing))]
        let is_due = is_due || self.ctx.core.registry.len() <= FEW;
        if !is_due {
            return;
        }
        self.check_at = now + INTERVAL;
        let found = self.disagreement();
        if !found.is_empty() {
            let count = found.kept.len() + found.lost.len() + found.members.len();
            self.ctx.core.env.counters.disagreements += count as u64;
            log::error!("the services and the registry disagree: {found:?}");
            debug_assert!(false, "{found:?}");
        }
    }

    /// Compares the clients of the services with the registry.
    pub(super) fn disagreement(&self) -> Disagreement {
        let registry = &self.ctx.core.registry;
        let mut found = Disagreement::default();
        let mut is_kept = vec![false; registry.len()];
        self.service.clients(&mut |id| {
            if registry.get(id).is_none() {
                return found.kept.push(id);
            }
            if is_kept.len() <= id.slot() {
                is_kept.resize(id.slot() + 1, false);
            }
            is_kept[id.slot()] = true;
        });
        // A service may forget a client that it has closed.
        let lost = registry.iter().filter(|client| {
            client.wire.is_open()
                && self.service.keeps_every_client(client.service_id)
                && is_kept.get(client.id.slot()) != Some(&true)
        });
        found.lost = lost.map(|client| client.id).collect();
        found.members = self.ctx.core.topics.disagreement(registry);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::simulation::World;

    #[test]
    fn a_client_that_one_side_has_lost_is_found() -> std::io::Result<()> {
        // The bug: a service that had lost a client was not noticed, and release builds checked nothing.
        let mut world = World::new(7)?;
        for _ in 0..3 {
            world.open(200);
        }
        let present = world.present();
        assert_eq!(present.len(), 3);
        assert_eq!(world.server.disagreement(), Disagreement::default());
        let (_, witness) = world.parts();
        assert!(witness.present.remove(&present[1]));
        let gone = ClientId::new(present[0].slot(), 1000);
        witness.present.insert(gone);
        let found = world.server.disagreement();
        assert_eq!((found.kept, found.lost), (vec![gone], vec![present[1]]));
        Ok(())
    }
}
