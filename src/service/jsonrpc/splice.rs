//! Changes values in a message and keeps all its other bytes.

use std::ops::Range;

use super::envelope::member;

/// Replaces ranges of a string, which must not overlap. Returns the result in parts.
pub(in crate::service) fn splice<'a>(
    text: &'a str,
    edits: &mut [(Range<usize>, &'a str)],
) -> Vec<&'a str> {
    edits.sort_unstable_by_key(|(range, _)| range.start);
    let mut parts = Vec::with_capacity(2 * edits.len() + 1);
    let mut at = 0;
    for (range, new) in edits {
        parts.extend([&text[at..range.start], new]);
        at = range.end;
    }
    parts.push(&text[at..]);
    parts
}

/// Inserts a member at the front of the object at `object`.
pub(in crate::service) fn insert_member(text: &str, object: &Range<usize>, member: &str) -> String {
    let at = object.start + 1;
    let is_empty = text[at..object.end - 1].trim_ascii().is_empty();
    let comma = if is_empty { "" } else { "," };
    [&text[..at], member, comma, &text[at..]].concat()
}

/// Replaces the id of a response. The text must be a valid message.
pub(in crate::service) fn with_id(text: &str, id: &str) -> String {
    let whole = 0..text.len();
    match member(text, &whole, "id") {
        Some(range) => [&text[..range.start], id, &text[range.end..]].concat(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ranges_change() {
        let text = r#"{"id": 7, "t": "x"}"#;
        assert_eq!(splice(text, &mut []).concat(), text);
        assert_eq!(
            splice(text, &mut [(15..18, "1"), (7..8, "\"seven\"")]).concat(),
            r#"{"id": "seven", "t": 1}"#
        );
    }
}
