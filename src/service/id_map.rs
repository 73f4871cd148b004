//! Maps whose keys the server assigns: ids of requests, clients, sources, timers and programs.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by an id that the server assigns, so that no peer can choose colliding keys.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Hashes integers and UUIDs in a few instructions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        // The upper bits depend on all bits of the id. A map chooses a bucket by the lower ones.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn write_u64(&mut self, value: u64) {
        // The multiplier is 2^64 divided by the golden ratio, as in Fibonacci hashing.
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_that_differ_in_any_part_have_different_buckets() {
        let bucket = |id: u64| {
            let mut hasher = IdHasher::default();
            hasher.write_u64(id);
            hasher.finish() & 0x3fff
        };
        // The bug: the ids of clients that have used the same slot one after the other, which differ in their upper bits only, had
        // the same bucket.
        for shift in [0, 20, 40] {
            let buckets: HashSet<u64> = (0..1000).map(|id| bucket((id << shift) + 3)).collect();
            assert!(buckets.len() > 900, "{shift}: {}", buckets.len());
        }
    }
}
