//! Comparison of secrets.

use std::hint::black_box;

/// Whether two secrets are equal. The time depends on their lengths alone, so that it reveals nothing about where they
/// differ.
pub(crate) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one
        .iter()
        .zip(other)
        .fold(0, |difference, (a, b)| difference | (a ^ b));
    // The comparison with 0 must not move into the loop.
    one.len() == other.len() && black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_equal_if_all_bytes_are() {
        for (one, other, equal) in [
            ("", "", true),
            ("secret", "secret", true),
            ("secret", "secreT", false),
            ("secret", "Secret", false),
            ("secret", "secre", false),
            ("", "secret", false),
        ] {
            assert_eq!(is_equal(one.as_bytes(), other.as_bytes()), equal);
        }
    }
}
