//! Text of others in our own log.

/// Text of unknown origin for one line of the log: control characters are escaped, so that it can be neither two lines
/// nor a command to a terminal.
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
