//! The operation "upgrade": what the loop keeps is written down, everything is dropped, and another loop continues with it.

use mio::Poll;

use super::World;
use crate::record::simulated::Memory;
use crate::record::{Loader, Restored, Saved, Saver};
use crate::server::upgrade::Carried;
use crate::server::{Server, Service};

impl<S: Service + Default> World<S> {
    /// Replaces the server by one that knows only what was written down. Returns `None` if that is not possible now. The service
    /// passes as it is.
    pub(crate) fn upgrade(&mut self) -> Option<Carried> {
        if self.server.obstacle().is_some() {
            return None;
        }
        self.server.end_outgoing();
        let carried = self.server.make_portable(Carried::default());
        let mut to = Saver::default();
        self.server.save(&mut to);
        let record = to.take_text();
        let memory = Memory(to.all_bytes().concat());
        let passes = to.descriptors().iter().map(|saved| match saved {
            Saved::Descriptor(_) => unreachable!("there are no sockets"),
            Saved::Simulated(stream) => {
                let stream = stream.downcast_ref::<super::memory_stream::MemoryStream>();
                Restored::Simulated(Box::new(stream.expect("a stream").clone()))
            }
        });
        let (passes, len) = (passes.collect(), to.byte_count() as u64);
        let mut rehearsed = Loader::rehearsal(len, to.descriptors().len());
        drop(to);

        let service = std::mem::take(&mut self.server.service);
        let core = &mut self.server.ctx.core;
        let config = core.env.config.clone();
        let stopwatch = std::mem::take(&mut core.env.stopwatch);
        let dialer = core.dialer.take();
        let poll = Poll::new().expect("a poll");
        let server = Server::new(poll, config, Vec::new(), Vec::new(), service);
        self.server = server.expect("a server");
        self.server.ctx.core.env.stopwatch = stopwatch;
        self.server.ctx.core.dialer = dialer;
        rehearsed
            .read(record.clone(), |from| self.server.restore(from))
            .expect("the records are valid");
        let mut from = Loader::new(Box::new(memory), len, passes);
        let continued = from
            .read(record, |from| self.server.restore(from))
            .expect("the records are valid");
        from.read(b"null".to_vec(), |from| {
            self.server.restore_service(continued, &[], from)
        })
        .expect("the service continues");
        assert_eq!(from.left(), 0, "every stream has an owner");
        Some(carried)
    }
}
