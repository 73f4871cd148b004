//! Replaces values in a message and keeps all its other bytes.

use std::ops::Range;

/// Replaces ranges of a text, which must not overlap.
pub(super) fn splice(text: &str, edits: &mut [(Range<usize>, &str)]) -> String {
    edits.sort_by_key(|(range, _)| range.start);
    let added: usize = edits.iter().map(|(_, new)| new.len()).sum();
    let mut out = String::with_capacity(text.len() + added);
    let mut at = 0;
    for (range, new) in edits {
        out.push_str(&text[at..range.start]);
        out.push_str(new);
        at = range.end;
    }
    out.push_str(&text[at..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ranges_change() {
        let text = r#"{"id": 7, "t": "x"}"#;
        assert_eq!(splice(text, &mut []), text);
        assert_eq!(
            splice(text, &mut [(15..18, "1"), (7..8, "\"seven\"")]),
            r#"{"id": "seven", "t": 1}"#
        );
    }
}
