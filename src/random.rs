//! Reproducible pseudo-random numbers for tests.

/// The number of rounds that a test with random input runs: `all`, or a fifth if the variable `OUTRIGGER_ALL_ROUNDS` is not set.
/// `fuzz/run.sh` sets it, so that `cargo test` stays fast.
pub(crate) fn rounds(all: usize) -> usize {
    match std::env::var_os("OUTRIGGER_ALL_ROUNDS") {
        Some(_) => all,
        None => all.div_ceil(5),
    }
}

/// A linear congruential generator: small, and good enough to stir test cases.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }

    /// Up to `most` random bytes, with a bias towards small values.
    pub(crate) fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.below(most + 1);
        (0..len)
            .map(|_| {
                if self.below(3) == 0 {
                    self.below(12) as u8
                } else {
                    self.byte()
                }
            })
            .collect()
    }
}
