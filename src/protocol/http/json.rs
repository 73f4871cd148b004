//! Writes JSON strings (RFC 8259), for the bodies of error responses.

/// Appends `text` as a JSON string, with its quotation marks.
pub(super) fn push_string(text: &str, out: &mut String) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control @ '\0'..='\u{1f}' => {
                let code = control as usize;
                out.push_str("\\u00");
                out.extend([HEX[code >> 4], HEX[code & 0xf]]);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::push_string;

    #[test]
    fn strings_are_written_as_serde_json_writes_them() {
        let ascii: String = (0..=0x7f).map(char::from).collect();
        for text in [
            "",
            &ascii,
            "é, 漢, 😀, \u{7f}\u{80}\u{2028}\u{2029}\u{feff}\u{10ffff}",
        ] {
            let mut out = String::new();
            push_string(text, &mut out);
            assert_eq!(out, serde_json::to_string(text).expect("a string"));
        }
    }
}
