//! Text out of bytes, without looking at each byte by itself.

/// The text of bytes that are all ASCII; `None` if any is not.
#[inline]
pub(crate) fn ascii_text(bytes: &[u8]) -> Option<&str> {
    // SAFETY: ASCII is UTF-8.
    #[allow(unsafe_code)]
    bytes
        .is_ascii()
        .then(|| unsafe { std::str::from_utf8_unchecked(bytes) })
}

#[cfg(test)]
mod tests {
    use super::ascii_text;

    #[test]
    fn text_is_what_the_standard_library_says_if_it_is_ascii() {
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
