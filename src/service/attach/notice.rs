//! The messages of `outrigger attach` to its user, on standard error.

/// Formats a message as lines of their own. The terminal is in raw mode if the client is interactive, so the message begins on
/// a new line.
pub(super) fn lines(is_interactive: bool, texts: &[String]) -> String {
    let mut lines = String::new();
    if is_interactive {
        lines.push('\n');
    }
    for text in texts {
        lines.push_str(&format!("outrigger: {text}\n"));
    }
    lines
}

/// Formats a message for a terminal that shows a full-screen program: it covers the last row, and the cursor returns to
/// where it was.
pub(super) fn over_full_screen(texts: &[String]) -> String {
    format!(
        "\x1b7\x1b[999;1H\x1b[0;7moutrigger: {}\x1b[m\x1b[K\x1b8",
        texts.join("; ")
    )
}
