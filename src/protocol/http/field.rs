//! The characters that header fields may contain.

/// Whether a byte is allowed in a token, RFC 9110 section 5.6.2.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a name and a value have the characters that HTTP allows in a header field (RFC 9110 section 5.5).
pub fn is_field(name: &str, value: &str) -> bool {
    let allows = |byte| byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
    !name.is_empty() && name.bytes().all(is_token_byte) && value.bytes().all(allows)
}
