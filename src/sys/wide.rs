//! Vector registers that not every processor of a target has.

/// The fewest words for which a further function is worth its call.
const WORTH_A_CALL: usize = 16;

/// Changes each of `words` by exclusive or with `word`, in the widest registers that this processor has.
#[inline]
pub(crate) fn xor_words(words: &mut [[u8; 8]], word: u64) {
    #[cfg(target_arch = "x86_64")]
    if words.len() >= WORTH_A_CALL && is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there, and that is all the function asks for.
        #[allow(unsafe_code)]
        return unsafe { xor_words_avx2(words, word) };
    }
    xor_each(words, word);
}

/// The same loop, compiled for 32 bytes at a time.
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
