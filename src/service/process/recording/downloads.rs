//! The calls that get a recording. Each reads the file as fast as its caller takes it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::service::id_map::IdMap;
use crate::{ClientId, Context, TimerId};

/// The maximum number of bytes that are read from a file at once, and for one caller in one turn.
const PIECE: usize = 64 << 10;
const PIECES_PER_TURN: usize = 4;

/// The time until the next turn.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// The recordings that are being sent.
#[derive(Debug, Default)]
pub(crate) struct Downloads {
    callers: IdMap<ClientId, Download>,
    timer: Option<TimerId>,
}

/// A file, the offset of the next byte to send, and its length when the call began.
#[derive(Debug)]
struct Download {
    file: File,
    next: u64,
    end: u64,
}

enum Progress {
    /// The caller has not taken what it was sent.
    Congested,
    /// There is more for the next turn.
    Unfinished,
    Done,
}

impl Downloads {
    /// Sends a file, whose stream has begun, up to its present length.
    pub(crate) fn add(&mut self, ctx: &mut Context, caller: ClientId, (file, end): (File, u64)) {
        let next = 0;
        self.callers.insert(caller, Download { file, next, end });
        self.send(ctx, caller);
    }

    /// Sends more to a caller that has taken what it was sent.
    pub(crate) fn send(&mut self, ctx: &mut Context, caller: ClientId) {
        let Some(download) = self.callers.get_mut(&caller) else {
            return;
        };
        match download.send(ctx, caller) {
            Ok(Progress::Congested) => {}
            Ok(Progress::Unfinished) => {
                self.timer.get_or_insert_with(|| ctx.set_timer(NEXT_TURN));
            }
            Ok(Progress::Done) => {
                self.callers.remove(&caller);
                let _ = ctx.end_stream(caller);
            }
            Err(error) => {
                // Without the end of the stream, the caller notices that it has not got everything.
                log::warn!("reading a recording failed: {error}");
                self.callers.remove(&caller);
                ctx.cut_off(caller);
            }
        }
    }

    /// Goes on with the callers that can take more. Returns whether the timer is that of the calls.
    pub(crate) fn handle_timer(&mut self, ctx: &mut Context, timer: TimerId) -> bool {
        if self.timer != Some(timer) {
            return false;
        }
        self.timer = None;
        let callers: Vec<ClientId> = self.callers.keys().copied().collect();
        for caller in callers {
            self.send(ctx, caller);
        }
        true
    }

    /// Removes the call of a caller that is gone.
    pub(crate) fn remove(&mut self, caller: ClientId) {
        self.callers.remove(&caller);
    }

    pub(crate) fn contains(&self, caller: ClientId) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Visits the callers.
    pub(crate) fn clients(&self, visit: &mut dyn FnMut(ClientId)) {
        self.callers.keys().copied().for_each(visit);
    }
}

impl Download {
    fn send(&mut self, ctx: &mut Context, caller: ClientId) -> io::Result<Progress> {
        let mut piece = vec![0; PIECE];
        for _ in 0..PIECES_PER_TURN {
            if self.next == self.end {
                return Ok(Progress::Done);
            }
            if ctx.is_congested(caller) {
                return Ok(Progress::Congested);
            }
            let most = (self.end - self.next).min(PIECE as u64) as usize;
            let count = self.file.read_at(&mut piece[..most], self.next)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.next += count as u64;
            ctx.spend(count / 2000);
            if ctx.stream(caller, &piece[..count]).is_err() {
                return Ok(Progress::Congested);
            }
        }
        Ok(Progress::Unfinished)
    }
}
