//! Text from outside: how it is shown to people, in the log and on terminals, and the mark that some programs write before it.

/// The text without the byte order mark that some programs write first. RFC 8259 section 8.1 lets a reader of JSON ignore it.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The same for bytes that may not be UTF-8.
pub(crate) fn bytes_without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Escapes the characters of untrusted text that control a terminal, so that the text stays on one line and shows what it says.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\t' => text.push(' '),
            _ if is_control(character) => text.extend(character.escape_default()),
            _ => text.push(character),
        }
    }
    text
}

/// Whether a character controls a terminal: a control character, or one that changes the direction of the text that follows
/// (Unicode Standard Annex 9), which can make a string read as another one.
pub(crate) fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_is_escaped() {
        assert_eq!(printable(b"a\tb\x1b[2J\r\n"), "a b\\u{1b}[2J\\r\\n");
        // The bug: a CLOSE reason could show the user another text than the one that it has.
        for control in "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}".chars() {
            let shown = printable(format!("a{control}b").as_bytes());
            assert_eq!(shown, format!("a{}b", control.escape_default()));
        }
        for other in ["\u{200d}", "é", "שלום", "日本"] {
            assert_eq!(printable(other.as_bytes()), other);
        }
    }
}
