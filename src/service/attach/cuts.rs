//! What follows a cut: the connection continues, another one is made to the same process, or the command fails.

use std::io;

use super::display::Display;
use super::{Attach, MAX_REATTACH, Phase, REATTACH, REDRAW, Streams};
use crate::service::process::Control;
use crate::sys::{TerminalSize, terminal_size};
use crate::text::printable;
use crate::{Cause, CloseReason, Context, Message};

impl Attach {
    pub(super) fn notice_cut(&self) {
        let hint = self.leave_keys().map_or(String::new(), |leave| {
            format!(" (keys are kept; Enter {leave} leaves)")
        });
        self.notice(&[format!("connection lost; trying again{hint}")]);
    }

    /// A cut connection continues.
    pub(super) fn come_back(&mut self, ctx: &mut Context) {
        self.phase = Phase::Open;
        let is_new = std::mem::take(&mut self.is_restarting);
        if is_new && let Some(keyboard) = &mut self.keyboard {
            // They were typed for the program before.
            keyboard.forget();
        }
        let is_full = self.display.as_ref().is_some_and(Display::is_full);
        if let Some(client) = self.client {
            ctx.set_held(client, is_full);
        }
        let is_full_screen = self.display.as_ref().is_some_and(Display::is_full_screen);
        let current = terminal_size(io::stdin());
        match self.size.filter(|_| is_full_screen && current == self.size) {
            // The message about the cut is on the screen of a program, which draws its screen again for a new size.
            Some(size) if size.rows > 1 => {
                let rows = size.rows - 1;
                self.send_size(ctx, TerminalSize { rows, ..size });
                self.redraw = Some(ctx.set_timer(REDRAW));
            }
            _ => self.update_size(ctx),
        }
        if !is_full_screen {
            let notice = if is_new {
                "the server has restarted: this is a new program"
            } else {
                "connected again"
            };
            self.notice(&[notice.to_owned()]);
        }
        self.send_keys(ctx);
    }

    /// The connection is gone for good, except that a process may be attached to again, and that a server that restarts
    /// begins a new program.
    pub(super) fn lose(&mut self, ctx: &mut Context, reason: &CloseReason) {
        let why = printable(reason.reason.as_bytes());
        if reason.cause == Cause::Unreachable {
            return self.fail(ctx, format!("connection lost; gave up: {why}"));
        }
        if self.is_restarting
            && let Some(display) = &mut self.display
        {
            display.leave_full_screen(ctx);
        }
        if self.streams == Streams::Pipes && self.has_sent {
            let message = "connection lost; the program may not have got all of its input";
            return self.fail(ctx, message);
        }
        // A script must not take the exit of another program for that of its own.
        if self.is_process() || (self.is_restarting && self.is_interactive()) {
            if self.phase == Phase::Open {
                self.phase = Phase::Cut;
                self.notice_cut();
            }
            let delay = REATTACH
                .saturating_mul(self.unstable.saturating_mul(self.unstable))
                .min(MAX_REATTACH);
            self.unstable += 1;
            self.retry = Some(ctx.set_timer(delay));
            return;
        }
        self.fail(
            ctx,
            format!("connection lost: {why}; the program has ended or will end"),
        );
    }

    /// Tells the program the size of the terminal if it has changed.
    pub(super) fn update_size(&mut self, ctx: &mut Context) {
        let size = terminal_size(io::stdin()).filter(|_| !self.config.viewer);
        if let Some(size) = size.filter(|_| size != self.size && self.redraw.is_none()) {
            self.send_size(ctx, size);
        }
    }

    pub(super) fn send_size(&mut self, ctx: &mut Context, size: TerminalSize) {
        if let (Phase::Open, Some(client)) = (self.phase, self.client) {
            self.size = Some(size);
            ctx.send(client, Message::Text(&Control::Resize(size).to_json()));
        }
    }
}
