//! Frees memory of the programs of a principal that holds most of it, in the order of what is missed least.

use uuid::Uuid;

use super::program::Program;
use super::programs::Programs;
use super::sink::Sink;
use crate::{Context, Principal};

/// The maximum number of programs from which memory is freed at once. Laying out the rest of one takes up to a millisecond.
const AT_ONCE: usize = 4;

/// The ways to free memory of a program, in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
enum Relief {
    /// Drops the rows above the screen and old output that every reader has got. A client that attaches later gets a `gap` message.
    Shrink,
    /// Removes a program that has exited and has no reader.
    Forget,
    /// Drops old output that readers have not got. Viewers are disconnected, and listeners get a `gap` event.
    Cut,
    /// Gives the screen up. Its readers still get the output.
    DropScreen,
    /// Ends the program. Its readers are disconnected, or get an error.
    End,
}

impl Relief {
    const ALL: [Self; 5] = [
        Self::Shrink,
        Self::Forget,
        Self::Cut,
        Self::DropScreen,
        Self::End,
    ];

    /// Whether a program may have memory to free in this way.
    fn fits(self, program: &Program) -> bool {
        match self {
            Self::Shrink | Self::Cut => matches!(program.sink, Sink::Shared(_)),
            Self::Forget => program.is_finished() && !program.sink.is_read(),
            Self::DropScreen => program.sink.has_screen(),
            Self::End => !program.is_stopping() && !program.is_finished(),
        }
    }
}

impl Programs {
    /// Visits the owner of each program and what is held for it, in bytes.
    pub(crate) fn held(&self, visit: &mut dyn FnMut(&Principal, usize)) {
        self.iter()
            .for_each(|program| visit(&program.owner, program.held_memory()));
    }

    /// Frees about so many bytes of what is held for an owner, from the largest programs first. Returns the number of bytes that
    /// were freed.
    pub(crate) fn free(&mut self, ctx: &mut Context, owner: &Principal, wanted: usize) -> usize {
        let (mut freed, mut relieved) = (0, 0);
        for relief in Relief::ALL {
            let own = self.iter().filter(|program| program.owner == *owner);
            let fitting = own.filter(|program| relief.fits(program));
            let mut largest: Vec<(usize, Uuid)> = fitting
                .map(|program| (program.held_memory(), program.id))
                .collect();
            largest.sort_unstable();
            while let Some((before, id)) = largest.pop() {
                if freed >= wanted || relieved >= AT_ONCE {
                    return freed;
                }
                self.relieve(ctx, id, relief);
                let after = self.get(id).map_or(0, Program::held_memory);
                freed += before.saturating_sub(after);
                relieved += usize::from(after < before);
            }
        }
        freed
    }

    fn relieve(&mut self, ctx: &mut Context, id: Uuid, relief: Relief) {
        if matches!(relief, Relief::Forget) {
            log::info!("forgetting process {id}, which has exited: too little memory is left");
            self.remove(ctx, id);
            return;
        }
        self.with(ctx, id, |program, ctx| match relief {
            Relief::Shrink => program.shrink(false),
            Relief::Cut => program.shrink(true),
            Relief::DropScreen => program.drop_screen(ctx),
            Relief::Forget | Relief::End => program.end_for_memory(ctx),
        });
    }
}
