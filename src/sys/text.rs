//! Conversion of ASCII bytes to text, several bytes at a time.

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
