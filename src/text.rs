//! Untrusted text in the log.

/// Escapes the control characters of untrusted text, so that it stays on one line of the log and cannot control a
/// terminal.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\t' => text.push(' '),
            _ if character.is_control() => text.extend(character.escape_default()),
            _ => text.push(character),
        }
    }
    text
}
