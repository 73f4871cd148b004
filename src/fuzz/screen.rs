//! Fuzz entry point of the screens of terminals: any output in any pieces, with resizes between.

use crate::service::process::screen::{Follower, Format, Screen, ScreenSettings};
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

    /// Another screen that shows the same, and the output that it still needs.
    fn rebuilt(&mut self) -> (Option<Screen>, Vec<u8>) {
        let (snapshot, mut offset) = self.follower.rebuild(&self.output, 3);
        let screen = self.follower.screen(&self.output);
        if !screen.has_exact_snapshot() {
            return (None, Vec::new());
        }
        let mut rebuilt = screen.empty();
        rebuilt.feed(snapshot.as_bytes());
        let mut rest = Vec::new();
        while offset < self.output.end() {
            let (_, piece) = self.output.piece(offset, usize::MAX);
            rest.extend_from_slice(piece);
            offset += piece.len() as u64;
        }
        (Some(rebuilt), rest)
    }
}

/// Follows any output twice: in small pieces that are laid out at once, and in large pieces that are laid out late. Both show the same,
/// and so does a screen that a snapshot has rebuilt, with the output that follows. The first byte selects how much output is kept, of
/// which the follower's thresholds are a part; pieces of the input are repeated until they reach these.
pub fn screen(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    // Inputs that fill the larger ones take a hundred times as long.
    let capacity = match kind {
        0 => 1 << 20,
        1..4 => 1 << 16,
        _ => 1 << 12,
    };
    let mut eager = Followed::new(capacity);
    let mut lazy = Followed::new(capacity);
    let mut rebuilt: Option<Screen> = None;
    let mut rest = Vec::new();
    for (at, piece) in data.chunks(701).enumerate() {
        let random = usize::from(piece[0]) + at;
        let count = match random % 9 {
            1 => 2 * capacity / 3 / piece.len(),
            _ => 1,
        };
        let most = if count > 9 { 1 + piece.len() % 97 } else { 1 };
        for _ in 0..count {
            eager.add(piece, most, true);
            lazy.add(piece, 1 + piece.len() % 97 + count, false);
            if let Some(rebuilt) = &mut rebuilt {
                rest.extend_from_slice(piece);
                let taken = rebuilt.feed(&rest);
                rest.drain(..taken);
            }
        }
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
            rebuilt = None;
        }
        if rebuilt.is_none() && random.is_multiple_of(3) {
            (rebuilt, rest) = lazy.rebuilt();
        }
    }
    assert_eq!(lazy.shown(), eager.shown());
    if let Some(rebuilt) = &rebuilt {
        let shown = eager.follower.screen(&eager.output);
        assert_eq!(rebuilt.dump_loosely(), shown.dump_loosely());
    }
}

/// A screen for tests/interop/screen, which compares it with xterm.js.
#[derive(Debug)]
pub struct ScreenProbe {
    screen: Screen,
}

impl ScreenProbe {
    /// An empty screen of at most 500 x 1000 cells.
    pub fn new(rows: u16, cols: u16) -> Self {
        let size = TerminalSize { rows, cols };
        Self {
            screen: Screen::new(size, 500),
        }
    }

    /// Takes output. Returns the number of bytes that were taken.
    pub fn feed(&mut self, output: &[u8]) -> usize {
        self.screen.feed(output)
    }

    /// Changes the size.
    pub fn resize(&mut self, rows: u16, cols: u16) {
        self.screen.resize(TerminalSize { rows, cols });
    }

    /// The output that rebuilds the screen, with up to `above` rows above it.
    pub fn rebuild(&self, above: usize) -> String {
        self.screen.rebuild(above)
    }

    /// Everything that later output can show.
    pub fn dump(&self) -> String {
        self.screen.dump()
    }

    /// The memory in bytes.
    pub fn held(&self) -> usize {
        self.screen.held()
    }
}

/// Follows output as the server does, in pieces of 64 KiB, with a screen or without one.
pub fn follow_screen(output: &[u8], with_screen: bool) {
    let mut kept = Scrollback::new(1 << 20);
    let mut follower = Follower::new(TerminalSize::default(), ScreenSettings { history: 500 });
    for piece in output.chunks(64 << 10) {
        let mut piece = piece;
        while !piece.is_empty() {
            let spare = kept.spare(piece.len());
            let (now, later) = piece.split_at(spare.len());
            spare.copy_from_slice(now);
            kept.commit(OutputStream::Stdout, now.len());
            piece = later;
        }
        if with_screen {
            follower.follow(&kept);
        }
    }
}
