//! From standard input to the program: keys, escapes, and the end of the input.

use super::keyboard::{InputState, Keyboard, Request};
use super::{Attach, Phase, QUIET, Streams};
use crate::service::process::Control;
use crate::{Context, Message};

impl Attach {
    pub(super) fn read_keys(&mut self, ctx: &mut Context) {
        let Some(keyboard) = &mut self.keyboard else {
            return;
        };
        let mut requests = Vec::new();
        let state = keyboard.read(ctx, |_, request| requests.push(request));
        for request in requests {
            match request {
                Request::Leave => return self.leave(ctx),
                Request::Help => {
                    let help = self.keyboard.as_ref().map(|one| one.escapes().help());
                    self.notice(&help.unwrap_or_default());
                }
                Request::Suspend => {
                    if let Some(raw) = &self.raw {
                        raw.suspend();
                    }
                    self.update_size(ctx);
                }
            }
        }
        if state == InputState::Ended {
            if self.raw.is_some() {
                return self.fail(ctx, "the terminal has hung up");
            }
            self.end_keys();
        }
        self.send_keys(ctx);
    }

    /// Standard input has ended. The user of a terminal would type an end of file.
    pub(super) fn end_keys(&mut self) {
        if !self.config.viewer && self.streams == Streams::Terminal {
            self.end_of_file = Some((None, QUIET));
            self.type_end_of_file();
        }
    }

    /// The server has said what the standard streams of the program are.
    pub(super) fn set_streams(&mut self, ctx: &mut Context, streams: Streams) {
        if self.streams != Streams::Unknown {
            return;
        }
        self.streams = streams;
        if streams == Streams::Pipes {
            // The program has no terminal that would echo the keys and edit the line.
            self.raw = None;
        }
        if self.keyboard.as_ref().is_some_and(Keyboard::has_ended) {
            self.end_keys();
        }
        self.send_keys(ctx);
    }

    pub(super) fn type_end_of_file(&mut self) {
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.add_end_of_file();
        }
    }

    /// The program has written something after the end of standard input. A terminal loses an end of file that arrives
    /// before the program reads a line, so the program gets another one when it is quiet.
    pub(super) fn repeat_end_of_file(&mut self, ctx: &mut Context) {
        if let Some((timer, delay)) = &mut self.end_of_file
            && let Some(timer) = timer.replace(ctx.set_timer(*delay))
        {
            ctx.cancel_timer(timer);
        }
    }

    pub(super) fn send_keys(&mut self, ctx: &mut Context) {
        if let (Phase::Open, Some(client), Some(keyboard)) =
            (self.phase, self.client, &mut self.keyboard)
        {
            let silence = &mut self.silence;
            let has_sent = &mut self.has_sent;
            keyboard.send(ctx, |ctx, keys| {
                let is_sent = !ctx.is_congested(client)
                    && ctx.try_send(client, Message::Binary(keys)).is_ok();
                if is_sent {
                    *has_sent = true;
                    silence.sent(ctx);
                }
                is_sent
            });
            let is_finished = self.streams == Streams::Pipes && keyboard.is_finished();
            if is_finished && !self.config.viewer && !self.has_ended_input {
                let end = Control::Eof.to_json();
                self.has_ended_input = ctx.try_send(client, Message::Text(&end)).is_ok();
            }
        }
    }
}
