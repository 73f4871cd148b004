//! An [`Attach`] whose standard output is a pipe, for the fuzzer.

use std::cell::RefCell;
use std::io::{self, PipeReader};

use super::display::{Display, Screen};
use super::{Attach, AttachConfig, Ending, Phase, SharedEnding};
use crate::service::pipe::Writer;
use crate::sys::NonblockingFd;
use crate::{Connect, Context, Message, Retry, Service};

thread_local! {
    static NOTICES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn notify(text: &str) {
    NOTICES.with_borrow_mut(|notices| notices.push(text.to_owned()));
}

/// What a user sees of messages of a server.
pub(crate) struct Probe {
    attach: Attach,
    ending: SharedEnding,
    pub(crate) output: PipeReader,
    pub(crate) errors: PipeReader,
}

impl Probe {
    /// The connection is open, and no message has arrived.
    pub(crate) fn new(ctx: &mut Context, url: &str, is_terminal: bool) -> io::Result<Self> {
        let config = AttachConfig {
            connect: Connect::new(url.parse().map_err(io::Error::other)?),
            retry: Retry::default(),
            viewer: false,
            takeover: false,
            escape: None,
            notify,
            advise: |_| "",
        };
        let (mut attach, ending) = Attach::new(config);
        let [(output, writer), (errors, error_writer)] = [io::pipe()?, io::pipe()?];
        let own = |writer: io::PipeWriter| NonblockingFd::own(writer.into());
        attach.display = Some(Display {
            writer: Writer::new(ctx, own(writer)?)?,
            errors: Some(Writer::new(ctx, own(error_writer)?)?),
            screen: Screen::default(),
            is_terminal,
            offset: 0,
            is_full: false,
        });
        attach.phase = Phase::Open;
        NOTICES.take();
        Ok(Self {
            attach,
            ending,
            output,
            errors,
        })
    }

    pub(crate) fn receive(&mut self, ctx: &mut Context, message: Message<'_>) {
        let client = "c1".parse().expect("an id");
        self.attach.message(ctx, client, message);
    }

    /// Writes as much as the pipes take.
    pub(crate) fn write(&mut self, ctx: &mut Context) {
        self.attach.write_output(ctx);
    }

    /// The offset of the next byte, whether everything is written, and whether the server's messages must wait.
    pub(crate) fn state(&self) -> (u64, bool, bool) {
        let display = self.attach.display.as_ref().expect("it was given one");
        (display.offset(), display.is_written(), display.is_full())
    }

    /// The path to which the client would come back.
    pub(crate) fn path(&self) -> &str {
        self.attach.config.connect.target().path()
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.borrow().clone()
    }

    /// The messages to the user.
    pub(crate) fn notices() -> Vec<String> {
        NOTICES.take()
    }
}
