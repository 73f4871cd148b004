//! Text in the format of man(7).

use std::fmt::Write;

/// The longest line of the source.
const WIDTH: usize = 72;

/// A term, which is escaped, and its description.
pub(super) fn item(term: &str, about: &str, page: &mut String) {
    let _ = writeln!(page, ".TP\n{term}");
    filled(about, page);
}

/// Paragraphs, of which those with columns keep their lines.
pub(super) fn paragraphs(all: &str, page: &mut String) {
    for paragraph in all.trim_end().split("\n\n") {
        begin_paragraph(page);
        let has_columns = |line: &str| line.starts_with(' ') || line.contains("   ");
        if paragraph.lines().any(has_columns) {
            preformatted(paragraph, page);
        } else {
            filled(paragraph, page);
        }
    }
}

/// A heading begins a paragraph of its own.
pub(super) fn begin_paragraph(page: &mut String) {
    let last = page.lines().next_back().unwrap_or_default();
    if !last.starts_with(".S") {
        page.push_str(".PP\n");
    }
}

/// Text whose lines are kept.
pub(super) fn preformatted(lines: &str, page: &mut String) {
    page.push_str(".nf\n");
    for line in lines.lines() {
        let _ = writeln!(page, "{}", text(line));
    }
    page.push_str(".fi\n");
}

/// Text whose lines are filled. A sentence begins a line, so that formatters know where it ends.
pub(super) fn filled(words: &str, page: &mut String) {
    let mut line = String::new();
    let mut flush = |line: &mut String| {
        if !line.is_empty() {
            let _ = writeln!(page, "{}", text(line));
            line.clear();
        }
    };
    for word in words.split_ascii_whitespace() {
        if line.len() + word.len() >= WIDTH {
            flush(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if word.ends_with('.') && !word.ends_with("...") {
            flush(&mut line);
        }
    }
    flush(&mut line);
}

pub(super) fn bold(words: &str) -> String {
    format!("\\fB{}\\fR", text(words))
}

/// Escapes the characters that roff interprets or replaces by typographic ones.
pub(super) fn text(plain: &str) -> String {
    let mut escaped = String::with_capacity(plain.len());
    if plain.starts_with(['.', '\'']) {
        escaped.push_str("\\&");
    }
    for one in plain.chars() {
        match one {
            '\\' => escaped.push_str("\\e"),
            '-' => escaped.push_str("\\-"),
            '\'' => escaped.push_str("\\(aq"),
            '`' => escaped.push_str("\\(ga"),
            '^' => escaped.push_str("\\(ha"),
            '~' => escaped.push_str("\\(ti"),
            one => escaped.push(one),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_in_roff_is_escaped() {
        assert_eq!(text("'a\\b-c"), "\\&\\(aqa\\eb\\-c");
        assert_eq!(text(".PP"), "\\&.PP");
        let mut page = String::new();
        paragraphs("One. Two e.g.\nthree.\n\n  kept  as\n  it is", &mut page);
        let expected = ".PP\nOne.\nTwo e.g.\nthree.\n.PP\n.nf\n  kept  as\n  it is\n.fi\n";
        assert_eq!(page, expected);
    }
}
