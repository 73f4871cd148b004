//! Work on many bytes at a time: XOR in the widest vector registers of the processor, which are chosen at run time, the check
//! that bytes are ASCII text, and a comparison of each byte of a block.

/// The minimum number of words for which the call of the AVX2 version pays off.
const WORTH_A_CALL: usize = 16;

/// Runs `work`, and lets the compiler use the widest registers of this processor in the parts of it that are inlined.
#[inline]
pub(crate) fn in_wide_registers<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the function only requires AVX2, which has just been detected.
        #[allow(unsafe_code)]
        return unsafe { in_avx2_registers(work) };
    }
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn in_avx2_registers<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// XORs each of `words` with `word`, in the widest registers of this processor.
#[inline]
pub(crate) fn xor_words(words: &mut [[u8; 8]], word: u64) {
    if words.len() >= WORTH_A_CALL {
        xor_many(words, word);
    } else {
        xor_each(words, word);
    }
}

/// A function of its own, so that the code for a few words is small enough to be inlined.
#[inline(never)]
fn xor_many(words: &mut [[u8; 8]], word: u64) {
    in_wide_registers(|| xor_each(words, word));
}

#[inline(always)]
fn xor_each(words: &mut [[u8; 8]], word: u64) {
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
}

/// The bytes as text; `None` if any byte is not ASCII.
#[inline]
pub(crate) fn ascii_text(bytes: &[u8]) -> Option<&str> {
    // SAFETY: `then` runs the closure only if all bytes are ASCII, which is valid UTF-8.
    #[allow(unsafe_code)]
    bytes
        .is_ascii()
        .then(|| unsafe { std::str::from_utf8_unchecked(bytes) })
}

/// The bytes of a block that are from `first` to `last`: bit N for byte N.
#[cfg(feature = "screen")]
#[inline]
pub(crate) fn bytes_between(block: &[u8; 64], first: u8, last: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: each processor of this architecture has SSE2.
        #[allow(unsafe_code)]
        unsafe {
            bytes_between_sse2(block, first, last)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    bytes_between_portable(block, first, last)
}

#[cfg(all(feature = "screen", target_arch = "x86_64"))]
#[target_feature(enable = "sse2")]
#[inline]
fn bytes_between_sse2(block: &[u8; 64], first: u8, last: u8) -> u64 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8,
        _mm_sub_epi8,
    };
    let width = _mm_set1_epi8((last - first) as i8);
    let first = _mm_set1_epi8(first as i8);
    let (words, _) = block.as_chunks::<8>();
    let words = words.iter().map(|word| i64::from_le_bytes(*word));
    let mut found = 0;
    for (at, (low, high)) in words
        .clone()
        .step_by(2)
        .zip(words.skip(1).step_by(2))
        .enumerate()
    {
        let distance = _mm_sub_epi8(_mm_set_epi64x(high, low), first);
        let is_within = _mm_cmpeq_epi8(_mm_min_epu8(distance, width), distance);
        found |= u64::from(_mm_movemask_epi8(is_within) as u16) << (16 * at);
    }
    found
}

#[cfg(all(feature = "screen", any(test, not(target_arch = "x86_64"))))]
fn bytes_between_portable(block: &[u8; 64], first: u8, last: u8) -> u64 {
    // The compiler compares many bytes at a time. A product gathers the lowest bits of eight bytes in the highest byte.
    let are_within = block.map(|byte| u8::from(byte.wrapping_sub(first) <= last - first));
    let (words, _) = are_within.as_chunks::<8>();
    let bits = words
        .iter()
        .rev()
        .map(|word| u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56);
    bits.fold(0, |found, bits| found << 8 | bits)
}

#[cfg(test)]
mod tests {
    use super::ascii_text;

    #[cfg(feature = "screen")]
    #[test]
    fn each_byte_of_a_block_is_compared() {
        for value in 0..=255 {
            for at in 0..64 {
                let mut block: [u8; 64] = std::array::from_fn(|at| (at * 7) as u8 ^ value);
                block[at] = value;
                for (first, last) in [
                    (0, 0x1f),
                    (0x1b, 0x1b),
                    (b'0', b';'),
                    (0x80, 0xff),
                    (0, 0xff),
                ] {
                    let mut expected = 0;
                    for (at, byte) in block.iter().enumerate() {
                        expected |= u64::from((first..=last).contains(byte)) << at;
                    }
                    assert_eq!(super::bytes_between(&block, first, last), expected);
                    assert_eq!(super::bytes_between_portable(&block, first, last), expected);
                }
            }
        }
    }

    #[test]
    fn ascii_bytes_become_the_same_text_as_in_the_standard_library() {
        for len in 0..70 {
            let mut bytes = vec![b'~'; len];
            assert_eq!(ascii_text(&bytes), std::str::from_utf8(&bytes).ok());
            for at in 0..len {
                bytes[at] = 0x80;
                assert_eq!(ascii_text(&bytes), None, "{at} of {len}");
                bytes[at] = b'~';
            }
        }
    }
}
