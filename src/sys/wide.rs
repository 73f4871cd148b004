//! Work on many bytes at a time: XOR in the widest vector registers of the processor, which are chosen at run time, and the
//! check that bytes are ASCII text.

/// The minimum number of words for which the call of the AVX2 version pays off.
#[cfg(target_arch = "x86_64")]
const WORTH_A_CALL: usize = 16;

/// XORs each of `words` with `word`, in the widest registers of this processor.
#[inline]
pub(crate) fn xor_words(words: &mut [[u8; 8]], word: u64) {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= WORTH_A_CALL && is_x86_feature_detected!("avx2") {
        // SAFETY: the function only requires AVX2, which has just been detected.
        #[allow(unsafe_code)]
        return unsafe { xor_words_avx2(words, word) };
    }
    xor_each(words, word);
}

/// The loop of [`xor_each`], compiled for 32 bytes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn xor_words_avx2(words: &mut [[u8; 8]], word: u64) {
    xor_each(words, word);
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

#[cfg(test)]
mod tests {
    use super::ascii_text;

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
