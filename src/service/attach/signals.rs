//! Signals that concern the terminal, as events of the loop, and the signal that ended the program.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
};
use signal_hook::flag;
use signal_hook::low_level::{pipe, signal_name};

use crate::{Context, Interest, SourceId};

/// The signals of the terminal, and the last signal that asked the program to end.
#[derive(Debug)]
pub(super) struct TerminalSignals {
    pipe: UnixStream,
    source: SourceId,
    /// Whether the process was continued after a stop.
    continued: Arc<AtomicBool>,
    /// The number of the last signal that asked the program to end, or 0.
    ended_by: Arc<AtomicUsize>,
}

/// What the terminal's signals say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TerminalChange {
    /// The process was continued, so its shell may have changed the terminal.
    pub(super) is_continued: bool,
}

impl TerminalSignals {
    pub(super) fn watch(ctx: &mut Context) -> io::Result<Self> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        let continued = Arc::new(AtomicBool::new(false));
        let ended_by = Arc::new(AtomicUsize::new(0));
        // The value must be set before the event is sent, and handlers run in the order of their registration.
        flag::register(SIGCONT, Arc::clone(&continued))?;
        for signal in [SIGWINCH, SIGCONT] {
            pipe::register(signal, sender.try_clone()?)?;
        }
        // The loop handles the first four by itself.
        let unusual = [SIGUSR1, SIGUSR2, SIGALRM];
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM]
            .into_iter()
            .chain(unusual)
        {
            flag::register_usize(signal, Arc::clone(&ended_by), signal as usize)?;
        }
        for signal in unusual {
            pipe::register(signal, sender.try_clone()?)?;
        }
        let source = ctx.watch(&receiver, Interest::Readable)?;
        Ok(Self {
            pipe: receiver,
            source,
            continued,
            ended_by,
        })
    }

    pub(super) fn is(&self, source: SourceId) -> bool {
        self.source == source
    }

    /// Takes the signals of the terminal since the last call.
    pub(super) fn take(&mut self) -> TerminalChange {
        let mut bytes = [0; 64];
        loop {
            match self.pipe.read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        TerminalChange {
            is_continued: self.continued.swap(false, Ordering::SeqCst),
        }
    }

    /// The name of the signal that asked the program to end.
    pub(super) fn ended_by(&self) -> Option<&'static str> {
        let number = self.ended_by.load(Ordering::SeqCst);
        let number = i32::try_from(number).ok().filter(|number| *number != 0)?;
        Some(signal_name(number).unwrap_or("a signal"))
    }
}
