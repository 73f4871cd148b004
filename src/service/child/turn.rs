//! The output of a program in one turn of the loop.

use crate::Context;

/// The maximum number of messages that are taken from one program in one turn of the loop, and how many of them cost a
/// microsecond.
const TURN_MESSAGES: usize = 2000;
const MESSAGES_PER_UNIT: usize = 8;

/// The messages of a program in one turn of the loop.
#[derive(Debug, Default)]
pub(crate) struct TurnOutput(usize);

impl TurnOutput {
    /// Counts a message. Returns whether the program must wait for the next turn, so that others get theirs.
    pub(crate) fn is_over(&mut self, ctx: &mut Context) -> bool {
        self.0 += 1;
        if self.0.is_multiple_of(MESSAGES_PER_UNIT) {
            ctx.spend(1);
        }
        self.0 >= TURN_MESSAGES || ctx.is_share_spent()
    }
}
