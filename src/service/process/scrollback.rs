//! A ring buffer with the last bytes of a program's output, addressed by their offsets from the beginning.

use std::collections::VecDeque;

use crate::record::record;

/// The initial size of the buffer, which grows up to its capacity.
const MIN_SIZE: usize = 4096;

/// The maximum number of changes between the two streams. If a program changes with every byte, less output is kept.
const MAX_RUNS: usize = 16 << 10;

/// The changes that are left for the output that is read after a program has been made to wait.
const RESERVED_RUNS: usize = 1 << 10;

/// The stream that output was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

record!(
    enum OutputStream {
        Stdout,
        Stderr,
    }
);

impl OutputStream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Consecutive output of one stream.
#[derive(Debug)]
struct Run {
    stream: OutputStream,
    /// The offset after its last byte.
    end: u64,
}

record!(Run { stream, end });

/// A ring buffer for output. Readers address bytes by their offset from the start of the output.
///
/// ```text
///  offset:  0 ......... start ................ end
///           dropped     [ kept, capacity at most ]
///  memory:  [ newest .. end | start .. oldest ]      offset modulo capacity
/// ```
#[derive(Debug)]
pub(crate) struct Scrollback {
    memory: Vec<u8>,
    capacity: usize,
    start: u64,
    end: u64,
    runs: VecDeque<Run>,
}

record!(Scrollback {
    memory,
    capacity,
    start,
    end,
    runs,
});

impl Scrollback {
    /// Keeps the last `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            memory: Vec::new(),
            capacity: capacity.max(MIN_SIZE),
            start: 0,
            end: 0,
            runs: VecDeque::new(),
        }
    }

    /// The maximum number of bytes that are kept.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The memory of the buffer in bytes.
    pub(crate) fn held(&self) -> usize {
        self.memory.capacity() + self.runs.capacity() * size_of::<Run>()
    }

    /// The offset of the oldest byte that is kept.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The offset of the next byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether a change between the two streams would drop output.
    pub(crate) fn is_fragmented(&self) -> bool {
        self.runs.len() > MAX_RUNS - RESERVED_RUNS
    }

    /// Whether so many changes between the two streams follow an offset that another one might drop output after it.
    pub(crate) fn is_fragmented_after(&self, offset: u64) -> bool {
        let sent = self.runs.partition_point(|run| run.end <= offset);
        self.runs.len() - sent > MAX_RUNS - RESERVED_RUNS
    }

    /// Makes room for `more` bytes beyond the capacity.
    pub(crate) fn grow(&mut self, more: usize) {
        let capacity = self.capacity + more;
        if self.end > self.memory.len() as u64 {
            // The output wraps around, so each byte gets the place that its offset has in the larger buffer.
            self.move_to(capacity);
        }
        self.capacity = capacity;
    }

    /// Keeps only the last `keep` bytes, and no more from now on.
    pub(crate) fn shrink(&mut self, keep: usize) {
        let keep = keep.max(MIN_SIZE);
        if self.memory.len() <= keep {
            return;
        }
        self.start = self.start.max(self.end.saturating_sub(keep as u64));
        self.move_to(keep);
        self.capacity = keep;
        self.drop_runs();
        self.runs.shrink_to_fit();
    }

    /// Moves the output to another buffer, in which it has room.
    fn move_to(&mut self, size: usize) {
        let mut memory = vec![0; size];
        for offset in self.start..self.end {
            memory[(offset % size as u64) as usize] = self.memory[self.position(offset)];
        }
        self.memory = memory;
    }

    /// Space for at least one and up to `most` bytes of output. It may overlap the oldest output, so bytes written here
    /// must be committed.
    pub(crate) fn spare(&mut self, most: usize) -> &mut [u8] {
        if self.end == self.memory.len() as u64 && self.memory.len() < self.capacity {
            let size = (self.memory.len() * 2).clamp(MIN_SIZE, self.capacity);
            self.memory.resize(size, 0);
        }
        let at = self.position(self.end);
        let room = self.memory.len() - at;
        &mut self.memory[at..at + most.clamp(1, room)]
    }

    /// Adds the first `count` bytes of `spare` to the output.
    pub(crate) fn commit(&mut self, stream: OutputStream, count: usize) {
        if count == 0 {
            return;
        }
        self.end += count as u64;
        self.start = self
            .start
            .max(self.end.saturating_sub(self.capacity as u64));
        match self.runs.back_mut() {
            Some(run) if run.stream == stream => run.end = self.end,
            _ => self.runs.push_back(Run {
                stream,
                end: self.end,
            }),
        }
        self.drop_runs();
    }

    /// Drops the runs that are no longer kept, and the oldest ones if there are too many.
    fn drop_runs(&mut self) {
        while let Some(first) = self.runs.front()
            && (first.end <= self.start || self.runs.len() > MAX_RUNS)
        {
            self.start = self.start.max(first.end);
            self.runs.pop_front();
        }
    }

    /// Output of one stream from an offset on, contiguous and up to `most` bytes. Empty at the end.
    pub(crate) fn piece(&self, from: u64, most: usize) -> (OutputStream, &[u8]) {
        debug_assert!((self.start..=self.end).contains(&from));
        let at = self.runs.partition_point(|run| run.end <= from);
        let Some(run) = self.runs.get(at) else {
            return (OutputStream::Stdout, &[]);
        };
        let position = self.position(from);
        let length = ((run.end - from) as usize)
            .min(self.memory.len() - position)
            .min(most);
        (run.stream, &self.memory[position..position + length])
    }

    /// Frees unused memory after the last output.
    pub(crate) fn seal(&mut self) {
        if self.memory.len() < self.capacity {
            self.memory.truncate(self.end as usize);
            self.memory.shrink_to_fit();
            self.capacity = self.memory.len().max(1);
        }
    }

    /// The position of an offset in the buffer. A buffer that still grows has not wrapped around yet.
    fn position(&self, offset: u64) -> usize {
        (offset % self.memory.len().max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_buffer_that_is_shrunk_keeps_the_last_bytes_and_does_not_grow_again() {
        let mut ring = Scrollback::new(1 << 20);
        let write = |ring: &mut Scrollback, count: usize| {
            for _ in 0..count {
                ring.spare(1)[0] = (ring.end() % 251) as u8;
                ring.commit(OutputStream::Stdout, 1);
            }
        };
        let kept = |ring: &Scrollback| ring.end() - ring.start();
        write(&mut ring, 50_000);
        ring.shrink(40_000);
        assert_eq!((kept(&ring), ring.memory.len()), (40_000, 40_000));
        ring.shrink(50_000);
        write(&mut ring, 100_000);
        assert_eq!((ring.memory.len(), ring.end()), (40_000, 150_000));
        ring.shrink(5000);
        assert_eq!((kept(&ring), ring.memory.len()), (5000, 5000));
        let mut from = ring.start();
        while from < ring.end() {
            let (_, piece) = ring.piece(from, 777);
            for byte in piece {
                assert_eq!(u64::from(*byte), from % 251);
                from += 1;
            }
        }
        let mut empty = Scrollback::new(1 << 20);
        empty.shrink(0);
        write(&mut empty, 10_000);
        assert_eq!(kept(&empty), 10_000);
        empty.shrink(0);
        assert_eq!(kept(&empty), MIN_SIZE as u64);
    }

    #[test]
    fn the_last_bytes_of_the_output_are_kept() {
        let mut random = Random::new(71);
        for capacity in [4096, 5000, 10_000] {
            let mut ring = Scrollback::new(capacity);
            let mut all: Vec<(u8, OutputStream)> = Vec::new();
            for _ in 0..400 {
                let stream = if random.below(5) == 0 {
                    OutputStream::Stderr
                } else {
                    OutputStream::Stdout
                };
                let spare = ring.spare(1 + random.below(300));
                let count = random.below(spare.len() + 1);
                for byte in &mut spare[..count] {
                    *byte = random.byte();
                    all.push((*byte, stream));
                }
                ring.commit(stream, count);
                assert_eq!(ring.end(), all.len() as u64);
                assert!(ring.end() - ring.start() <= capacity as u64);
                let mut from =
                    ring.start() + random.below((ring.end() - ring.start()) as usize + 1) as u64;
                while from < ring.end() {
                    let (stream, piece) = ring.piece(from, 1 + random.below(2000));
                    assert!(!piece.is_empty());
                    for byte in piece {
                        assert_eq!(all[from as usize], (*byte, stream), "offset {from}");
                        from += 1;
                    }
                }
                assert!(ring.piece(from, 10).1.is_empty());
            }
            assert_eq!(ring.end() - ring.start(), capacity as u64);
        }
    }

    #[test]
    fn memory_is_bounded_by_the_output() {
        let mut ring = Scrollback::new(1 << 20);
        ring.spare(10)[..5].copy_from_slice(b"hello");
        ring.commit(OutputStream::Stdout, 5);
        ring.seal();
        assert_eq!(ring.memory.len(), 5);
        assert_eq!(ring.piece(1, 100), (OutputStream::Stdout, &b"ello"[..]));
        // A program that changes its stream with every byte does not grow the list of runs without bound.
        let mut ring = Scrollback::new(1 << 20);
        for at in 0..100_000 {
            ring.spare(1)[0] = b'x';
            ring.commit(
                if at % 2 == 0 {
                    OutputStream::Stdout
                } else {
                    OutputStream::Stderr
                },
                1,
            );
        }
        assert!(ring.runs.len() <= MAX_RUNS);
        assert_eq!(ring.end() - ring.start(), MAX_RUNS as u64);
    }
}
