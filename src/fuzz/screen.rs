//! Fuzz entry point of the screens of terminals: any output in any pieces, with resizes between.

use crate::service::process::screen::{Follower, Format, ScreenSettings};
use crate::service::process::scrollback::{OutputStream, Scrollback};
use crate::sys::TerminalSize;

/// A follower with the output that it follows.
struct Followed {
    output: Scrollback,
    follower: Follower,
}

impl Followed {
    fn new(capacity: usize) -> Self {
        let size = TerminalSize { rows: 4, cols: 20 };
        Self {
            output: Scrollback::new(capacity),
            follower: Follower::new(size, ScreenSettings { history: 3 }),
        }
    }

    /// Adds output in pieces of at most `most` bytes.
    fn add(&mut self, mut bytes: &[u8], most: usize, is_eager: bool) {
        while !bytes.is_empty() {
            let free = self.output.capacity() - self.follower.pending(&self.output);
            let spare = self.output.spare(most.min(free));
            let count = spare.len().min(bytes.len());
            spare[..count].copy_from_slice(&bytes[..count]);
            self.output.commit(OutputStream::Stdout, count);
            self.follower.follow(&self.output);
            if is_eager {
                self.follower.lay_out(&self.output);
            }
            bytes = &bytes[count..];
        }
    }

    /// What the screen shows, what rebuilds it, and where the output goes on.
    fn shown(&mut self) -> (String, String, u64) {
        let view = self.follower.view(&self.output, 3, Format::Ansi);
        let (rebuilt, offset) = self.follower.rebuild(&self.output, 3);
        (format!("{view:?}"), rebuilt, offset)
    }
}

/// Follows any output twice: byte by byte, and in large pieces that are laid out late. Both show the same.
pub fn screen(data: &[u8]) {
    let mut eager = Followed::new(1 << 16);
    let mut lazy = Followed::new(1 << 16);
    for (at, piece) in data.chunks(701).enumerate() {
        eager.add(piece, 1, true);
        lazy.add(piece, 1 + piece.len() % 97, false);
        let random = usize::from(piece[0]) + at;
        if random.is_multiple_of(5) {
            assert_eq!(lazy.shown(), eager.shown());
        }
        if random.is_multiple_of(7) {
            let size = TerminalSize {
                rows: 1 + (random % 6) as u16,
                cols: 1 + (random % 23) as u16,
            };
            for followed in [&mut eager, &mut lazy] {
                followed.follower.resize(&followed.output, size);
            }
        }
    }
    assert_eq!(lazy.shown(), eager.shown());
}
